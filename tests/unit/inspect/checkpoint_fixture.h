/* Whole checkpoint directories of a small model, cut in several ways. */
#pragma once

#include "ckpt/base/digest.h"
#include "ckpt/store/commit.h"
#include "ckpt/store/index.h"
#include "tests/helpers/box_copy.h"
#include "tests/unit/shard/shard_fixture.h"

#include <math.h>
#include <sys/stat.h>

/* A tensor's values depend on name, kind and place alone, so every cut holds the same state. */
static inline void checkpoint_model(struct fixture *f)
{
    fixture_init(f, 5, 1);
    fixture_tensor(f, 0, "embed.weight", 2, 101, 33);
    fixture_tensor(f, 1, "norm.weight", 1, 33, 1);
    fixture_tensor(f, 2, "mlp.up.weight", 2, 600, 70);
    fixture_tensor(f, 3, "mlp.down.weight", 2, 70, 600);
    fixture_tensor(f, 4, "scale", 1, 1, 1);
}

static inline float *checkpoint_values(const struct fixture *f, uint32_t tensor, int kind)
{
    uint64_t count = pd_tensor_elements(&f->tensors.tensors[tensor]);
    float *values = malloc(count * sizeof *values);
    cr_assert_not_null(values);
    fixture_fill(values, count, tensor * 31u + (unsigned)kind + 1);
    if (strcmp(f->tensors.tensors[tensor].name, "odd.weight") == 0) {
        values[tensor % 2] = NAN;
        values[1 - tensor % 2] = -INFINITY;
    }
    return values;
}

struct checkpoint_cut {
    uint32_t shards;
    uint64_t columns;  /* tensors of two dimensions are cut into column runs of this width too; 0: not */
    int64_t more_rows; /* of each shard than its share: they overlap; fewer: there are gaps */
};

static inline uint32_t checkpoint_boxes(const struct fixture *f, const struct checkpoint_cut *cut, uint32_t shard,
                                        struct pd_shard_box *ret_boxes)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < f->tensors.count; t++) {
        const struct pd_tensor *tensor = &f->tensors.tensors[t];
        uint64_t rows = (tensor->shape[0] + cut->shards - 1) / cut->shards;
        uint64_t wide = cut->columns && tensor->ndim > 1 ? cut->columns : tensor->shape[1];
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            for (uint64_t column = 0; column < tensor->shape[1]; column += wide) {
                struct pd_box box = {{shard * rows, column, 0, 0}, {rows + (uint64_t)cut->more_rows, wide, 1, 1}},
                              whole = pd_box_whole(tensor);
                if (!pd_box_intersect(&box, &whole, &box)) continue;
                ret_boxes[count++] = (struct pd_shard_box){t, (enum pd_kind)kind, box};
            }
        }
    }
    return count;
}

static inline void checkpoint_write_file(const char *path, const void *data, uint64_t bytes)
{
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, "%s", path);
}

static inline void checkpoint_shard(struct fixture *f, const char *directory, const struct checkpoint_cut *cut,
                                    uint32_t shard, struct pd_shard_box *boxes, uint32_t count,
                                    struct pd_shard_summary *ret_summary)
{
    char path[512];
    const void **data = calloc(count + 1, sizeof *data);
    for (uint32_t b = 0; b < count; b++) {
        const struct pd_tensor *tensor = &f->tensors.tensors[boxes[b].tensor];
        struct pd_box whole = pd_box_whole(tensor);
        float *values = checkpoint_values(f, boxes[b].tensor, (int)boxes[b].kind);
        float *part = malloc(pd_box_elements(&boxes[b].box) * sizeof *part);
        pd_box_copy(part, &boxes[b].box, values, &whole, &boxes[b].box, sizeof *part);
        free(values);
        data[b] = part;
    }
    struct pd_shard_writer *writer = NULL;
    snprintf(path, sizeof path, "%s/shard-%05u.h5", directory, shard);
    OK(pd_shard_writer_new(f->vfs, &f->tensors, boxes, count, f->buffers, FIXTURE_BUFFER_BYTES, NULL, &writer, err));
    OK(pd_shard_write(writer, path, &f->identity, shard, data, ret_summary, err));
    pd_shard_writer_free(writer);
    for (uint32_t b = 0; b < count; b++)
        free((void *)(uintptr_t)data[b]);
    free(data);
    (void)cut;
}

/* Writes <fixture>/<name>/{shard-*.h5, index.h5, commit.h5}. */
static inline void checkpoint_write(struct fixture *f, const char *name, const struct checkpoint_cut *cut,
                                    char *ret_directory, size_t room)
{
    char path[512];
    fixture_path(f, name, ret_directory, room);
    cr_assert_eq(mkdir(ret_directory, 0777), 0);
    struct pd_commit commit = {.shard_count = cut->shards};
    commit.shards = calloc(cut->shards, sizeof *commit.shards);
    commit.state =
        (struct pd_run_state){.identity = f->identity, .fence = 1, .loss_scale = 1, .tensor_count = f->tensors.count};
    commit.state.layout = (struct pd_layout){.dp = cut->shards,
                                             .tp = 1,
                                             .pp = 1,
                                             .sp = 1,
                                             .virtual_tp = 1,
                                             .virtual_sp = 1,
                                             .zero_shard = cut->shards,
                                             .zero_stage = 3,
                                             .interleave = 1,
                                             .stage_count = 1};
    struct pd_index_source *sources = calloc(cut->shards, sizeof *sources);
    char(*names)[32] = calloc(cut->shards, sizeof *names);
    for (uint32_t s = 0; s < cut->shards; s++) {
        struct pd_shard_box *boxes = calloc(4096, sizeof *boxes);
        uint32_t count = checkpoint_boxes(f, cut, s, boxes);
        checkpoint_shard(f, ret_directory, cut, s, boxes, count, &commit.shards[s]);
        snprintf(names[s], sizeof names[s], "shard-%05u.h5", s);
        sources[s] = (struct pd_index_source){names[s], boxes, count};
    }
    void *data = NULL;
    uint64_t bytes = 0;
    OK(pd_index_build(&f->tensors, sources, cut->shards, &data, &bytes, err));
    snprintf(path, sizeof path, "%s/index.h5", ret_directory);
    checkpoint_write_file(path, data, bytes);
    commit.state.index_digest = pd_digest64(data, bytes, 0);
    free(data);
    OK(pd_commit_encode(&commit, &data, &bytes, err));
    snprintf(path, sizeof path, "%s/commit.h5", ret_directory);
    checkpoint_write_file(path, data, bytes);
    free(data);
    for (uint32_t s = 0; s < cut->shards; s++)
        free((void *)(uintptr_t)sources[s].boxes);
    free(sources);
    free(names);
    pd_commit_deinit(&commit);
}

static inline void checkpoint_flip(const char *path, uint64_t bit)
{
    FILE *file = fopen(path, "r+b");
    unsigned char byte = 0;
    cr_assert(file && fseek(file, (long)(bit / 8), SEEK_SET) == 0 && fread(&byte, 1, 1, file) == 1);
    byte ^= (unsigned char)(1u << bit % 8);
    cr_assert(fseek(file, (long)(bit / 8), SEEK_SET) == 0 && fwrite(&byte, 1, 1, file) == 1 && fclose(file) == 0);
}
