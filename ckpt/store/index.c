#include "ckpt/store/index.h"

#include "ckpt/base/checked.h"
#include "ckpt/hdf5/h5.h"
#include "ckpt/shard/table.h"
#include "ckpt/tensor/shapes.h"

#include <stdlib.h>
#include <string.h>

/* One box of one shard file. Sorted, so that the sources of a virtual dataset are adjacent. */
struct piece {
    uint32_t tensor, kind, source, box;
};

static int compare_pieces(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->source != b->source) return a->source < b->source ? -1 : 1;
    return (a->box > b->box) - (a->box < b->box);
}

struct builder {
    const struct pd_tensor_table *tensors;
    const struct pd_index_source *sources;
    struct piece *pieces;
    uint64_t piece_count;
    struct pd_h5_source *mapped;   /* (longest run) */
    char (*paths)[PD_H5_PATH_MAX]; /* (longest run) */
    struct pd_h5_file *file;
};

static uint64_t run_end(const struct builder *b, uint64_t first)
{
    uint64_t end = first + 1;
    while (end < b->piece_count && b->pieces[end].tensor == b->pieces[first].tensor &&
           b->pieces[end].kind == b->pieces[first].kind)
        end++;
    return end;
}

static pd_status index_add_tensor(struct builder *b, uint64_t first, uint64_t end, struct pd_error *err)
{
    const struct pd_tensor *tensor = &b->tensors->tensors[b->pieces[first].tensor];
    const enum pd_kind kind = (enum pd_kind)b->pieces[first].kind;
    char path[PD_H5_PATH_MAX];
    for (uint64_t p = first; p < end; p++) {
        const struct pd_index_source *source = &b->sources[b->pieces[p].source];
        const struct pd_box *box = &source->boxes[b->pieces[p].box].box;
        PD_TRY(pd_h5_box_path(tensor, kind, box, b->paths[p - first], err));
        b->mapped[p - first] = (struct pd_h5_source){source->file_name, b->paths[p - first], *box};
    }
    const struct pd_tensor_shape *whole = pd_shapes_find(b->tensors, tensor->name);
    PD_TRY(pd_h5_tensor_path(tensor, kind, path, err));
    return pd_h5_virtual(b->file, path, pd_h5_view_type_of(pd_tensor_dtype(tensor, kind)),
                         whole ? whole->ndim : pd_tensor_file_dims(tensor), whole ? whole->shape : tensor->shape, b->mapped,
                         end - first, err);
}

/* One without elements, which no shard has. */
static pd_status index_add_empty(struct builder *b, const struct pd_tensor_shape *shape, struct pd_error *err)
{
    struct pd_tensor tensor = {0};
    char path[PD_H5_PATH_MAX];
    memcpy(tensor.name, shape->name, sizeof tensor.name);
    PD_TRY(pd_h5_tensor_path(&tensor, shape->kind, path, err));
    return pd_h5_virtual(b->file, path, pd_h5_view_type_of(shape->dtype), shape->ndim, shape->shape, NULL, 0, err);
}

static pd_status add_all(struct builder *b, struct pd_error *err)
{
    PD_TRY(pd_h5_note(b->file, "/", "format", "perdure index", err));
    PD_TRY(pd_h5_note_u64(b->file, "/", "format_version", PD_SHARD_FORMAT_VERSION, err));
    PD_TRY(pd_h5_note(b->file, "/", "note",
                      "views of whole tensors over the shard files beside this file; NaN: a file is missing", err));
    for (uint64_t first = 0; first < b->piece_count;) {
        uint64_t end = run_end(b, first);
        PD_TRY(index_add_tensor(b, first, end, err));
        first = end;
    }
    for (uint32_t i = 0; i < b->tensors->shape_count; i++)
        if (pd_shape_is_empty(&b->tensors->shapes[i])) PD_TRY(index_add_empty(b, &b->tensors->shapes[i], err));
    return PD_OK;
}

static pd_status index_build(struct builder *b, uint32_t source_count, struct pd_h5_pages *ret_pages, struct pd_error *err)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < source_count; s++)
        total += b->sources[s].box_count;
    b->pieces = malloc((total + 1) * sizeof *b->pieces);
    if (!b->pieces) PD_FAIL(err, PD_NO_MEMORY, "index: no memory for %llu boxes", (unsigned long long)total);
    for (uint32_t s = 0; s < source_count; s++) {
        for (uint32_t i = 0; i < b->sources[s].box_count; i++) {
            const struct pd_shard_box *box = &b->sources[s].boxes[i];
            if (box->tensor >= b->tensors->count || (unsigned)box->kind >= PD_KIND_COUNT)
                PD_FAIL(err, PD_INVALID, "index: %s has a box of tensor %u of %u", b->sources[s].file_name, box->tensor,
                        b->tensors->count);
            b->pieces[b->piece_count++] = (struct piece){box->tensor, (uint32_t)box->kind, s, i};
        }
    }
    qsort(b->pieces, b->piece_count, sizeof *b->pieces, compare_pieces);
    uint64_t longest = 1;
    for (uint64_t first = 0; first < b->piece_count;) {
        uint64_t end = run_end(b, first);
        if (end - first > longest) longest = end - first;
        first = end;
    }
    b->mapped = malloc(longest * sizeof *b->mapped);
    b->paths = malloc(longest * sizeof *b->paths);
    if (!b->mapped || !b->paths)
        PD_FAIL(err, PD_NO_MEMORY, "index: no memory for %llu sources", (unsigned long long)longest);
    PD_TRY(pd_h5_new(&b->file, err));
    pd_status st = add_all(b, err);
    if (st) {
        pd_h5_free(b->file);
        return st;
    }
    return pd_h5_finish(b->file, ret_pages, err);
}

pd_status pd_index_build(const struct pd_tensor_table *tensors, const struct pd_index_source *sources, uint32_t source_count,
                         void **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    struct builder b = {.tensors = tensors, .sources = sources};
    struct pd_h5_pages pages = {0};
    pd_status st = index_build(&b, source_count, &pages, err);
    free(b.pieces);
    free(b.mapped);
    free(b.paths);
    PD_TRY(st);
    uint64_t bytes = pd_round_up(pages.bytes, PD_H5_PAGE_BYTES);
    void *data = malloc(bytes);
    if (data) pd_h5_pages_read(&pages, 0, data, bytes);
    pd_h5_pages_deinit(&pages);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "index: no memory for %llu bytes", (unsigned long long)bytes);
    *ret_data = data;
    *ret_bytes = bytes;
    return PD_OK;
}
