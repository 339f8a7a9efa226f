/* A small model's state on a simulated disk, stored in real shards under any layout. Values depend on tensor, kind and place
 * alone. */
#pragma once

#include "ckpt/base/log.h"
#include "ckpt/store/store.h"
#include "resharder/layout.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_TENSORS = 8, STATE_UNITS = 6, STATE_BUFFER_BYTES = 16 << 20 };

#define OK(expression)                                                                       \
    do {                                                                                     \
        struct pd_error ok_error_ = {0};                                                     \
        struct pd_error *err = &ok_error_;                                                   \
        pd_status ok_status_ = (expression);                                                 \
        cr_assert_eq(ok_status_, PD_OK, "%s: %s", pd_status_name(ok_status_), err->message); \
    } while (0)

struct state {
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs;
    struct pd_tensor tensors[STATE_TENSORS];
    struct pd_tensor_table table;
    struct pd_identity identity;
    void *buffers;
    uint64_t random;
    bool compresses;     /* every other shard */
    bool compresses_all; /* the others, too */
};

static inline uint64_t state_random(struct state *s, uint64_t below)
{
    s->random = s->random * 6364136223846793005ull + 1442695040888963407ull;
    return (s->random >> 33) % below;
}

static inline float state_value(uint32_t tensor, uint32_t kind, uint64_t element)
{
    return (float)((element * 2654435761u + tensor * 40503u + kind * 977u) % 1000003) - 500000.0f;
}

/* Shapes that no degree divides, tensors of a few bytes, and some of many blocks. */
static inline void state_tensors(struct state *s)
{
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        struct pd_tensor *tensor = &s->tensors[t];
        *tensor = (struct pd_tensor){.ndim = 1 + (state_random(s, 4) > 0),
                                     .shape = {1 + state_random(s, 500), 1, 1, 1},
                                     .dtype = PD_F32,
                                     .tp_dim = -1,
                                     .tp_unit = 1 + state_random(s, 3),
                                     .unit = t * STATE_UNITS / STATE_TENSORS};
        if (tensor->ndim == 2) {
            tensor->shape[1] = 1 + state_random(s, 300);
            tensor->tp_dim = (int32_t)state_random(s, 3) - 1;
        }
        if (tensor->tp_dim >= 0) tensor->shape[tensor->tp_dim] = tensor->tp_unit * (1 + state_random(s, 150));
        snprintf(tensor->name, sizeof tensor->name, "layers.%u.weight", t);
    }
    s->table = (struct pd_tensor_table){.tensors = s->tensors, .count = STATE_TENSORS};
}

/* Boxes of many chunks: of whole blocks and of others, rows longer than a chunk, ends that are filled up. */
static inline void state_enlarge(struct state *s)
{
    static const uint64_t shapes[STATE_TENSORS][2] = {{3000, 700},  {900001, 1}, {5, 300001}, {40, 40},
                                                      {2000, 1024}, {1024, 1},   {777, 999},  {262144, 1}};
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        struct pd_tensor *tensor = &s->tensors[t];
        tensor->ndim = shapes[t][1] > 1 ? 2 : 1;
        memcpy(tensor->shape, shapes[t], sizeof shapes[t]);
        tensor->tp_dim = t == 4 ? 1 : t % 2 ? -1 : 0;
        tensor->tp_unit = 1;
    }
}

/* Many tensors of less than a page to 17 KiB, as in small experts. `tensors` has STATE_MANY places. */
enum { STATE_MANY = 500 };
static inline void state_crowd(struct state *s, struct pd_tensor *tensors)
{
    for (uint32_t t = 0; t < STATE_MANY; t++) {
        tensors[t] = (struct pd_tensor){.ndim = 2,
                                        .shape = {4 * (1 + state_random(s, 16)), t % 8 ? 64 : 4, 1, 1},
                                        .dtype = PD_F32,
                                        .tp_dim = (int32_t)(t % 2),
                                        .tp_unit = 1,
                                        .unit = t * STATE_UNITS / STATE_MANY};
        snprintf(tensors[t].name, sizeof tensors[t].name, "experts.%u.weight", t);
    }
    s->table = (struct pd_tensor_table){.tensors = tensors, .count = STATE_MANY};
}

/*   lacks  what the disk cannot do, enum pd_disk_lack */
static inline void state_init_lacking(struct state *s, uint64_t seed, unsigned lacks)
{
    const struct pd_disk_options options = {.seed = seed, .mounts = {{.path = "/", .lacks = lacks}}};
    *s = (struct state){.identity = {{seed, 22}, 1, 7}, .random = seed * 77 + 5};
    OK(pd_log_configure("error", err));
    OK(pd_simulated_disk_new(&options, &s->disk, err));
    OK(pd_simulated_disk_vfs(s->disk, 0, &s->vfs, err));
    s->buffers = aligned_alloc(PD_VFS_ALIGN, STATE_BUFFER_BYTES);
    cr_assert_not_null(s->buffers);
    state_tensors(s);
}

static inline void state_init(struct state *s, uint64_t seed)
{
    state_init_lacking(s, seed, 0);
}

/* How moments are kept from here on. */
static inline void state_keep(struct state *s, enum pd_dtype moments)
{
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        s->tensors[t].moments = moments;
}

static inline void state_deinit(struct state *s)
{
    pd_vfs_free(s->vfs);
    pd_simulated_disk_free(s->disk);
    free(s->buffers);
}

static inline struct pd_layout state_layout(struct state *s, uint32_t virtual_tp)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, 1 + (uint32_t)state_random(s, 3));
    l.virtual_tp = virtual_tp;
    l.tp = 1u << state_random(s, 1 + (uint64_t)__builtin_ctz(virtual_tp));
    l.virtual_sp = 2;
    l.sp = 1 + (uint32_t)state_random(s, 2);
    l.zero_shard = 1 + (uint32_t)state_random(s, l.dp * l.sp);
    l.zero_stage = (uint32_t)state_random(s, 4);
    l.pp = 1 + (uint32_t)state_random(s, 2);
    l.interleave = 1 + (uint32_t)state_random(s, 2);
    l.stage_count = l.pp * l.interleave;
    for (uint32_t i = 0; i < l.stage_count; i++)
        l.first_unit[i] = (uint16_t)(i * STATE_UNITS / l.stage_count);
    l.small_bytes = state_random(s, 2) ? 0 : 8192;
    OK(pd_layout_check(&l, err));
    return l;
}

static inline void state_fill(const struct state *s, const struct pd_shard_box *b, float *ret)
{
    const uint64_t columns = s->table.tensors[b->tensor].shape[1];
    for (uint64_t i = 0; i < b->box.count[0]; i++)
        for (uint64_t j = 0; j < b->box.count[1]; j++)
            *ret++ = state_value(b->tensor, b->kind, (b->box.start[0] + i) * columns + b->box.start[1] + j);
}

static inline void state_save_shard(struct state *s, const struct pd_layout *layout, uint32_t shard, const char *path,
                                    struct pd_shard_summary *ret_summary)
{
    struct pd_shard_box *boxes;
    struct pd_shard_writer *writer;
    uint32_t count;
    OK(pd_layout_shard_boxes(layout, &s->table, shard, &boxes, &count, err));
    const void **data = calloc(count + 1, sizeof *data);
    for (uint32_t b = 0; b < count; b++) {
        float *values = malloc(pd_box_elements(&boxes[b].box) * sizeof *values);
        state_fill(s, &boxes[b], values);
        if (pd_tensor_dtype(&s->table.tensors[boxes[b].tensor], boxes[b].kind) == PD_BF16)
            pd_narrow_bf16(values, values, pd_box_elements(&boxes[b].box));
        data[b] = values;
    }
    const struct pd_shard_codec codec = {
        .codec = s->compresses && (shard % 2 == 0 || s->compresses_all) ? PD_CODEC_ZSTD : PD_CODEC_NONE, .level = 1};
    OK(pd_shard_writer_new(s->vfs, &s->table, boxes, count, s->buffers, STATE_BUFFER_BYTES, &codec, &writer, err));
    OK(pd_shard_write(writer, path, &s->identity, shard, data, ret_summary, err));
    pd_shard_writer_free(writer);
    for (uint32_t b = 0; b < count; b++)
        free((void *)(uintptr_t)data[b]);
    free(data);
    free(boxes);
}

static inline void state_write_record(struct state *s, const char *directory, const struct pd_commit *commit)
{
    char path[512];
    void *data;
    uint64_t bytes;
    struct pd_file *file;
    OK(pd_commit_encode(commit, &data, &bytes, err));
    snprintf(path, sizeof path, "%s/commit.h5", directory);
    OK(pd_file_open(s->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_file_write(file, 0, data, bytes, err));
    OK(pd_file_sync(file, err));
    OK(pd_file_close(file, err));
    free(data);
}

/* A checkpoint in a directory of its own, and its record. */
static inline void state_save(struct state *s, const struct pd_layout *layout, const char *directory,
                              struct pd_commit *ret_commit)
{
    const uint32_t shards = pd_layout_world(layout);
    *ret_commit = (struct pd_commit){.shard_count = shards, .shards = calloc(shards, sizeof *ret_commit->shards)};
    ret_commit->state = (struct pd_run_state){.identity = s->identity,
                                              .updates = 5,
                                              .loss_scale = 1,
                                              .layout = *layout,
                                              .moments = s->tensors[0].moments,
                                              .tensor_count = s->table.count,
                                              .created_by = "test",
                                              .config = strdup("a: 1\n"),
                                              .environment = strdup("{}")};
    OK(pd_vfs_mkdir(s->vfs, directory, err));
    for (uint32_t i = 0; i < shards; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/shard-%05u.h5", directory, i);
        state_save_shard(s, layout, i, path, &ret_commit->shards[i]);
    }
    state_write_record(s, directory, ret_commit);
    OK(pd_vfs_sync_dir(s->vfs, directory, err));
    OK(pd_vfs_sync_dir(s->vfs, "/", err));
}
