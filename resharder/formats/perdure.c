#include "resharder/formats/perdure.h"

#include "ckpt/inspect/open.h"
#include "ckpt/store/paths.h"
#include "ckpt/tensor/shapes.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/stored.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK PD_SHARD_BLOCK_BYTES

/* Pieces of the catalog are the checkpoint's boxes, one to one, in order. */
struct stored {
    struct pd_inspect *inspect;
    bool *is_plain;           /* (boxes) */
    pthread_mutex_t *reading; /* (shards) one thread at a time reads through a shard's buffers */
    uint32_t shard_count;
};

static const struct pd_inspect_box *box_of(const struct stored *s, uint64_t piece)
{
    PD_CHECK(piece < pd_inspect_box_count(s->inspect));
    return &pd_inspect_boxes(s->inspect)[piece];
}

static bool is_plain(void *context, uint64_t piece)
{
    const struct stored *s = context;
    (void)box_of(s, piece);
    return s->is_plain[piece];
}

static pd_status check(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data, struct pd_error *err)
{
    struct stored *s = context;
    const struct pd_inspect_box *box = box_of(s, piece);
    struct pd_shard *shard = NULL;
    pd_status st = PD_OK;
    PD_TRY(pd_inspect_acquire(s->inspect, box->shard, &shard, err));
    for (uint64_t done = 0; !st && done < bytes; done += BLOCK) {
        unsigned char *block = (unsigned char *)data + done;
        if (!pd_shard_verify_block(shard, box->box, (offset + done) / BLOCK, block, NULL)) continue;
        pthread_mutex_lock(&s->reading[box->shard]);
        st = pd_stored_verify_block(shard, box->box, (offset + done) / BLOCK, block, err); /* reads it once more */
        pthread_mutex_unlock(&s->reading[box->shard]);
    }
    pd_inspect_release(s->inspect, box->shard);
    return st;
}

static pd_status read_blocks(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data,
                             struct pd_error *err)
{
    struct stored *s = context;
    const struct pd_inspect_box *box = box_of(s, piece);
    struct pd_shard *shard = NULL;
    PD_TRY(pd_inspect_acquire(s->inspect, box->shard, &shard, err));
    pthread_mutex_lock(&s->reading[box->shard]);
    const pd_status st = pd_shard_read_blocks(shard, box->box, offset / BLOCK, (bytes + BLOCK - 1) / BLOCK, data, err);
    pthread_mutex_unlock(&s->reading[box->shard]);
    pd_inspect_release(s->inspect, box->shard);
    return st;
}

static void free_stored(void *context)
{
    struct stored *s = context;
    pd_inspect_close(s->inspect);
    for (uint32_t i = 0; i < s->shard_count; i++)
        pthread_mutex_destroy(&s->reading[i]);
    free(s->reading);
    free(s->is_plain);
    free(s);
}

static pd_status add_shards(struct pd_vfs *vfs, const struct stored *s, const char *directory, struct pd_catalog *catalog,
                            struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_inspect_commit(s->inspect)->shard_count; i++) {
        char path[PD_FORMATS_PATH_MAX];
        struct pd_stat stat;
        PD_TRY(pd_formats_path(directory, pd_shard_name(i).text, path, err));
        PD_TRY(pd_vfs_stat(vfs, path, &stat, err));
        PD_TRY(pd_catalog_add_file(catalog, path, stat.bytes, NULL, err));
    }
    return PD_OK;
}

/* The box of a tensor of more dimensions than its row has: the last one takes them apart. */
static pd_status take_apart(const struct pd_tensor_shape *shape, struct pd_piece *piece, struct pd_error *err)
{
    const uint32_t last = PD_TENSOR_DIMS_MAX - 1;
    const uint64_t inner = pd_shape_inner(shape);
    if (piece->start[last] % inner || piece->count[last] % inner)
        PD_FAIL(err, PD_CORRUPT, "tensor %s: a box is cut along a dimension that is stored joined", shape->name);
    piece->start[last] /= inner;
    piece->count[last] /= inner;
    for (uint32_t d = last + 1; d < shape->ndim; d++)
        piece->count[d] = shape->shape[d];
    return PD_OK;
}

static pd_status perdure_add_box(struct stored *s, uint64_t number, uint32_t tensor, const struct pd_tensor_shape *shape,
                                 struct pd_catalog *catalog, struct pd_error *err)
{
    const struct pd_inspect_box *box = box_of(s, number);
    struct pd_shard *shard = NULL;
    struct pd_piece piece = {.file = box->shard, .offset = box->file_offset};
    memcpy(piece.start, box->place.start, sizeof box->place.start);
    memcpy(piece.count, box->place.count, sizeof box->place.count);
    if (shape) PD_TRY(take_apart(shape, &piece, err));
    PD_TRY(pd_inspect_acquire(s->inspect, box->shard, &shard, err));
    const bool is_in_chunks = pd_shard_box_is_in_chunks(shard, box->box);
    pd_inspect_release(s->inspect, box->shard);
    s->is_plain[number] = !is_in_chunks;
    return pd_catalog_add_piece(catalog, tensor, &piece, err);
}

static bool is_same_place(const struct pd_inspect_box *a, const struct pd_inspect_box *b)
{
    return a->tensor == b->tensor && a->kind == b->kind && !memcmp(&a->place, &b->place, sizeof a->place);
}

/* Boxes come by tensor and kind: if the next array is not array `have`, no shard has it. */
static pd_status check_all_kinds(const struct pd_tensor_table *table, uint32_t have, uint32_t next, struct pd_error *err)
{
    while (have < next && !pd_tensor_has_kind(&table->tensors[have / PD_KIND_COUNT], (enum pd_kind)(have % PD_KIND_COUNT)))
        have++;
    if (have == next) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "tensor %s, %s: no shard holds any of its elements", table->tensors[have / PD_KIND_COUNT].name,
            pd_kind_name((enum pd_kind)(have % PD_KIND_COUNT)));
}

/* A run knows its model; beside other checkpoints of ours lie the files of transformers, as an import writes them. */
static pd_status add_texts_beside(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    char directory[PD_FORMATS_PATH_MAX];
    PD_TRY(pd_formats_join(path, "..", directory, err));
    return pd_formats_add_texts(vfs, directory, catalog, err);
}

/* Tensors without elements, which no shard has. */
static pd_status add_empty(const struct pd_tensor_table *table, struct pd_catalog *catalog, struct pd_error *err)
{
    for (uint32_t i = 0; i < table->shape_count; i++) {
        const struct pd_tensor_shape *shape = &table->shapes[i];
        struct pd_foreign_tensor foreign = {.name = (char *)(uintptr_t)shape->name,
                                            .kind = shape->kind,
                                            .element = pd_element_of(shape->dtype),
                                            .is_bytes = shape->is_bytes,
                                            .ndim = shape->ndim};
        memcpy(foreign.shape, shape->shape, sizeof shape->shape);
        if (pd_shape_is_empty(shape)) PD_TRY(pd_catalog_add_tensor(catalog, &foreign, NULL, err));
    }
    return PD_OK;
}

static pd_status perdure_fill(struct pd_vfs *vfs, struct stored *s, const char *path, struct pd_catalog *catalog,
                              struct pd_error *err)
{
    PD_TRY(pd_inspect_check_complete(s->inspect, err));
    s->is_plain = calloc(pd_inspect_box_count(s->inspect) + 1, sizeof *s->is_plain);
    const uint32_t shards = pd_inspect_commit(s->inspect)->shard_count;
    s->reading = calloc(shards, sizeof *s->reading);
    if (!s->is_plain || !s->reading) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its boxes", path);
    for (; s->shard_count < shards; s->shard_count++)
        pthread_mutex_init(&s->reading[s->shard_count], NULL);
    PD_TRY(add_shards(vfs, s, path, catalog, err));
    const uint64_t count = pd_inspect_box_count(s->inspect);
    const struct pd_inspect_box *boxes = pd_inspect_boxes(s->inspect);
    uint32_t tensor = 0, next_array = 0;
    const struct pd_tensor_table *table = pd_inspect_tensors(s->inspect);
    for (uint64_t b = 0; b < count; b++) {
        const struct pd_tensor *mine = &table->tensors[boxes[b].tensor];
        const struct pd_tensor_shape *shape = pd_shapes_find(table, mine->name);
        const bool is_new = b == 0 || boxes[b].tensor != boxes[b - 1].tensor || boxes[b].kind != boxes[b - 1].kind;
        if (b && is_same_place(&boxes[b], &boxes[b - 1]))
            PD_FAIL(err, PD_CORRUPT, "tensor %s: two shards hold the same part of it", mine->name);
        if (is_new) {
            struct pd_foreign_tensor foreign = {.name = (char *)(uintptr_t)mine->name,
                                                .kind = boxes[b].kind,
                                                .element = pd_element_of(pd_tensor_dtype(mine, boxes[b].kind)),
                                                .is_bytes = mine->is_bytes,
                                                .ndim = shape ? shape->ndim : mine->ndim};
            memcpy(foreign.shape, shape ? shape->shape : mine->shape, shape ? sizeof shape->shape : sizeof mine->shape);
            const uint32_t array = boxes[b].tensor * PD_KIND_COUNT + boxes[b].kind;
            PD_TRY(check_all_kinds(table, next_array, array, err));
            next_array = array + 1;
            PD_TRY(pd_catalog_add_tensor(catalog, &foreign, &tensor, err));
        }
        PD_TRY(perdure_add_box(s, b, tensor, shape, catalog, err));
    }
    PD_TRY(check_all_kinds(table, next_array, table->count * PD_KIND_COUNT, err));
    PD_TRY(add_empty(table, catalog, err));
    /* Takes the other data of the record. */
    const struct pd_run_state *state = &pd_inspect_commit(s->inspect)->state;
    catalog->counters = (struct pd_catalog_counters){.has_step = true,
                                                     .has_updates = true,
                                                     .has_samples = true,
                                                     .has_tokens = true,
                                                     .has_loss_scale = true,
                                                     .step = state->identity.step,
                                                     .updates = state->updates,
                                                     .samples = state->samples,
                                                     .tokens = state->tokens,
                                                     .loss_scale = state->loss_scale};
    const char *name = state->layout.is_listed ? PD_FORMAT_LISTED_TEXT : "config.yaml";
    PD_TRY(pd_catalog_add_text(catalog, name, state->config, strlen(state->config), err));
    return state->layout.is_listed ? add_texts_beside(vfs, path, catalog, err) : PD_OK;
}

static pd_status perdure_read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog,
                                         struct pd_error *err)
{
    struct stored *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read it", path);
    const pd_status st = pd_inspect_open(vfs, path, &s->inspect, err);
    if (st) {
        free(s);
        return st;
    }
    catalog->source = (struct pd_catalog_source){
        .context = s, .is_plain = is_plain, .check = check, .read = read_blocks, .free = free_stored};
    return perdure_fill(vfs, s, path, catalog, err);
}

static bool perdure_recognizes(struct pd_vfs *vfs, const char *path)
{
    return pd_formats_is_directory(vfs, path) && pd_formats_has_file(vfs, path, "commit.h5");
}

const struct pd_format pd_format_perdure = {
    .name = "perdure",
    .about = "a checkpoint of perdure: commit.h5 and shards",
    .holds_moments = true,
    .recognizes = perdure_recognizes,
    .read = perdure_read_checkpoint,
    .plan = pd_format_not_written,
    .observe = pd_format_observe_nothing,
    .finish = pd_format_finish_nothing,
};
