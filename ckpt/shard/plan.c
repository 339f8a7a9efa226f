/* Plans a shard file once for a launch: its metadata, the place of every box, and its table except checksums. */
#include "ckpt/base/checked.h"
#include "ckpt/shard/writer.h"

#include <stdlib.h>
#include <string.h>

static pd_status check_box(const struct pd_tensor_table *tensors, const struct pd_shard_box *box, uint32_t number,
                           struct pd_error *err)
{
    if (box->tensor >= tensors->count || (unsigned)box->kind >= PD_KIND_COUNT)
        PD_FAIL(err, PD_INVALID, "box %u names tensor %u of %u", number, box->tensor, tensors->count);
    const struct pd_tensor *tensor = &tensors->tensors[box->tensor];
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++)
        if (box->box.count[d] == 0 || !pd_checked_range(box->box.start[d], box->box.count[d], tensor->shape[d]))
            PD_FAIL(err, PD_INVALID, "tensor %s: box %u is empty or leaves the tensor in dimension %d", tensor->name, number,
                    d);
    return PD_OK;
}

/* Builds the shard's own table: the tensors that its boxes use. */
static pd_status collect_tensors(struct pd_shard_writer *w, struct pd_error *err)
{
    uint32_t *number = malloc(((size_t)w->model->count + 1) * sizeof *number);
    w->tensors.tensors = calloc((size_t)w->model->count + 1, sizeof *w->tensors.tensors);
    w->name_digests = calloc((size_t)w->model->count + 1, sizeof *w->name_digests);
    w->tensors.is_listed = w->model->is_listed;
    if (!number || !w->tensors.tensors || !w->name_digests) {
        free(number);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a shard's table of tensors");
    }
    memset(number, 0xff, ((size_t)w->model->count + 1) * sizeof *number);
    pd_status st = PD_OK;
    for (uint32_t b = 0; !st && b < w->box_count; b++) {
        st = check_box(w->model, &w->boxes[b], b, err);
        if (st) break;
        uint32_t *mine = &number[w->boxes[b].tensor];
        if (*mine == UINT32_MAX) {
            *mine = w->tensors.count;
            w->tensors.tensors[w->tensors.count++] = w->model->tensors[w->boxes[b].tensor];
            w->name_digests[*mine] = pd_shard_name_digest(&w->tensors.tensors[*mine]);
            if (w->model->is_listed) w->tensors.tensors[*mine].kinds = 0;
        }
        if (w->model->is_listed) w->tensors.tensors[*mine].kinds |= 1u << w->boxes[b].kind;
        w->local[b] = w->boxes[b];
        w->local[b].tensor = *mine;
    }
    free(number);
    return st;
}

static pd_status plan_add_box(struct pd_shard_writer *w, struct pd_h5_file *file, uint32_t b, struct pd_error *err)
{
    const struct pd_tensor *tensor = &w->tensors.tensors[w->local[b].tensor];
    struct pd_shard_place *place = &w->places[b];
    char path[PD_H5_PATH_MAX];
    PD_TRY(pd_h5_box_path(tensor, w->local[b].kind, &w->local[b].box, path, err));
    const enum pd_dtype dtype = pd_tensor_dtype(tensor, w->local[b].kind);
    place->bytes = pd_box_elements(&w->local[b].box) * pd_dtype_bytes(dtype);
    place->first_block = w->block_count;
    if (w->chunks && place->bytes >= PD_SHARD_PAGE_BYTES)
        PD_TRY(pd_shard_chunks_add(w->chunks, file, path, pd_h5_type_of(dtype), tensor, &w->local[b], place, err));
    else
        PD_TRY(pd_h5_dataset(file, path, pd_h5_type_of(dtype), pd_tensor_file_dims(tensor), w->local[b].box.count,
                             &place->offset, err));
    w->block_count += pd_shard_blocks_of(place->bytes);
    return PD_OK;
}

static struct pd_shard_counts counts_of(const struct pd_shard_writer *w)
{
    struct pd_shard_counts counts = {PD_SHARD_FORMAT_VERSION, w->tensors.count, w->box_count, w->block_count, 0, 0, 0};
    if (w->chunks) pd_shard_chunks_count(w->chunks, &counts);
    if (w->model->is_listed) {
        counts.version += PD_SHARD_FORMAT_LISTED - PD_SHARD_FORMAT_VERSION;
        return counts;
    }
    for (uint32_t t = 0; t < w->tensors.count; t++)
        if (w->tensors.tensors[t].moments != PD_F32) {
            counts.version += PD_SHARD_FORMAT_MOMENTS;
            break;
        }
    return counts;
}

static pd_status add_everything(struct pd_shard_writer *w, struct pd_h5_file *file, struct pd_error *err)
{
    static const struct pd_h5_field fields[] = {{"run_id_0", PD_H5_U64},
                                                {"run_id_1", PD_H5_U64},
                                                {"lineage", PD_H5_U64},
                                                {"step", PD_H5_U64},
                                                {"writer_rank", PD_H5_U64}};
    PD_TRY(pd_h5_note(file, "/", "format", "perdure shard", err));
    PD_TRY(pd_h5_note_u64(file, "/", "format_version", counts_of(w).version, err));
    PD_TRY(pd_h5_records(file, "/identity", fields, sizeof fields / sizeof *fields, 1, &w->identity_offset, err));
    for (uint32_t b = 0; b < w->box_count; b++)
        PD_TRY(plan_add_box(w, file, b, err));
    const struct pd_shard_counts counts = counts_of(w);
    if (!pd_shard_table_size(&counts, &w->table_bytes))
        PD_FAIL(err, PD_INVALID, "a shard of %llu blocks is too large", (unsigned long long)w->block_count);
    const uint64_t words = w->table_bytes / 8;
    return pd_h5_dataset(file, "/table", PD_H5_U64, 1, &words, &w->table_offset, err);
}

static pd_status build_metadata(struct pd_shard_writer *w, struct pd_error *err)
{
    struct pd_h5_file *file = NULL;
    PD_TRY(pd_h5_new(&file, err));
    pd_status st = add_everything(w, file, err);
    if (st) {
        pd_h5_free(file);
        return st;
    }
    PD_TRY(pd_h5_finish(file, &w->pages, err));
    if (!pd_checked_align_u64(w->pages.bytes, PD_SHARD_PAGE_BYTES, &w->file_bytes) ||
        !pd_checked_add_u64(w->file_bytes, PD_SHARD_PAGE_BYTES, &w->file_bytes))
        PD_FAIL(err, PD_INVALID, "a shard of %llu bytes is too large", (unsigned long long)w->pages.bytes);
    return PD_OK;
}

static pd_status plan_file(struct pd_shard_writer *w, struct pd_error *err)
{
    w->local = calloc((size_t)w->box_count + 1, sizeof *w->local);
    w->places = calloc((size_t)w->box_count + 1, sizeof *w->places);
    if (!w->local || !w->places) PD_FAIL(err, PD_NO_MEMORY, "no memory for the plan of %u boxes", w->box_count);
    PD_TRY(collect_tensors(w, err));
    PD_TRY(build_metadata(w, err));
    const struct pd_shard_extents extents = {w->places,       w->box_count,   NULL,         0,
                                             w->table_offset, w->table_bytes, w->file_bytes};
    pd_status st = pd_shard_map_init(&extents, &w->map, err);
    if (st == PD_CORRUPT) st = pd_error_context(err, PD_BUG, "HDF5's allocation");
    PD_TRY(st);
    /* Checks that HDF5 kept its own pages apart from ours: its allocator is trusted here and nowhere else. */
    uint32_t s = 0;
    for (uint64_t p = 0; p < w->pages.count; p++) {
        uint64_t offset = w->pages.pages[p].number * PD_H5_PAGE_BYTES;
        while (w->map.segments[s].offset + w->map.segments[s].bytes <= offset)
            s++;
        if (w->map.segments[s].type != PD_SEGMENT_REST)
            PD_FAIL(err, PD_BUG, "HDF5 put metadata at %llu, into the pages of data", (unsigned long long)offset);
    }
    w->table = aligned_alloc(PD_VFS_ALIGN, w->table_bytes + PD_SHARD_PAGE_BYTES);
    if (!w->table) PD_FAIL(err, PD_NO_MEMORY, "no memory for the table of %u boxes", w->box_count);
    memset(w->table, 0, w->table_bytes + PD_SHARD_PAGE_BYTES);
    const struct pd_shard_counts counts = counts_of(w);
    pd_shard_table_fill(w->table, w->table_bytes, &counts, &w->tensors, w->local, w->places);
    ((struct pd_shard_head *)(void *)w->table)->file_bytes = w->file_bytes;
    return w->chunks ? pd_shard_chunks_plan(w->chunks, &w->pages, w->table, w->file_bytes, err) : PD_OK;
}

pd_status pd_shard_writer_new(struct pd_vfs *vfs, const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                              uint32_t box_count, void *buffers, uint64_t buffer_bytes, const struct pd_shard_codec *codec,
                              struct pd_shard_writer **ret_writer, struct pd_error *err)
{
    PD_CHECK(buffer_bytes >= PD_SHARD_BUFFERS_MIN && (uintptr_t)buffers % PD_VFS_ALIGN == 0);
    struct pd_shard_writer *w = calloc(1, sizeof *w);
    if (!w) PD_FAIL(err, PD_NO_MEMORY, "no memory for a shard writer");
    *w = (struct pd_shard_writer){.vfs = vfs,
                                  .boxes = boxes,
                                  .model = tensors,
                                  .box_count = box_count,
                                  .buffers = buffers,
                                  .buffer_bytes = buffer_bytes,
                                  .pool = codec ? codec->pool : NULL};
    pd_status st = codec && codec->codec != PD_CODEC_NONE ? pd_shard_chunks_new(codec, &w->chunks, err) : PD_OK;
    if (!st) st = plan_file(w, err);
    if (st) {
        pd_shard_writer_free(w);
        return pd_error_context(err, st, "planning a shard file");
    }
    *ret_writer = w;
    return PD_OK;
}

void pd_shard_writer_free(struct pd_shard_writer *writer)
{
    if (!writer) return;
    pd_queue_close(writer->queue);
    pd_tensor_table_deinit(&writer->tensors);
    free(writer->local);
    free(writer->places);
    free(writer->name_digests);
    pd_shard_map_deinit(&writer->map);
    pd_h5_pages_deinit(&writer->pages);
    pd_shard_chunks_free(writer->chunks);
    free(writer->table);
    free(writer);
}

uint64_t pd_shard_writer_bytes(const struct pd_shard_writer *w)
{
    return sizeof *w + w->table_bytes + PD_SHARD_PAGE_BYTES + pd_h5_pages_heap_bytes(&w->pages) +
           ((uint64_t)w->model->count + 1) * (sizeof *w->tensors.tensors + sizeof *w->name_digests) +
           ((uint64_t)w->box_count + 1) * (sizeof *w->local + sizeof *w->places + sizeof *w->map.small) +
           2 * ((uint64_t)w->box_count + 2) * sizeof *w->map.segments + pd_shard_chunks_heap_bytes(w->chunks);
}

uint64_t pd_shard_writer_file_bytes(const struct pd_shard_writer *writer)
{
    return writer->chunks ? pd_shard_chunks_most_bytes(writer->chunks) : writer->file_bytes;
}

/* In 312 layouts of 3 to 20,739 boxes HDF5's own pages took at most 8.3 KiB and 400 bytes a box. The test of optimizer
 * state in files tries others. */
#define METADATA_BYTES UINT64_C(32768)
#define METADATA_BOX_BYTES UINT64_C(512)

uint64_t pd_shard_writer_most_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                    uint32_t box_count)
{
    const struct pd_shard_map *map = NULL;
    const struct pd_h5_pages *pages = NULL;
    const uint64_t box_bytes = sizeof(struct pd_shard_box_row) + METADATA_BOX_BYTES + sizeof *boxes +
                               sizeof(struct pd_shard_place) + sizeof *map->small + 2 * sizeof *map->segments +
                               sizeof(unsigned char *),
                   page_bytes = 2 * sizeof *pages->pages,
                   alone = METADATA_BYTES + PD_SHARD_STREAM_BYTES + 3 * PD_SHARD_PAGE_BYTES;
    uint64_t bytes = sizeof(struct pd_shard_writer) + sizeof(struct pd_shard_head) + alone + 32 * page_bytes +
                     ((uint64_t)tensors->count + 1) * (sizeof *tensors->tensors + sizeof(uint64_t)) +
                     ((uint64_t)box_count + 4) * (box_bytes + page_bytes / 2);
    for (uint32_t b = 0; b < box_count; b++) {
        const struct pd_tensor *tensor = &tensors->tensors[boxes[b].tensor];
        const uint64_t data = pd_box_elements(&boxes[b].box) * pd_tensor_element_bytes(tensor, boxes[b].kind);
        if (b == 0 || boxes[b - 1].tensor != boxes[b].tensor) bytes += sizeof(struct pd_shard_tensor_row);
        bytes += pd_shard_blocks_of(data) * sizeof(uint64_t) + (data < PD_SHARD_PAGE_BYTES ? data : 0);
    }
    return bytes;
}
