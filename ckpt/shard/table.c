#include "ckpt/shard/table.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include <stdlib.h>
#include <string.h>

/* ---- seeds ---- */

uint64_t pd_shard_table_seed(const struct pd_identity *identity)
{
    const uint64_t words[4] = {identity->run_id[0], identity->run_id[1], identity->lineage, identity->step};
    return pd_digest_words(words, 4, PD_SHARD_SEED);
}

uint64_t pd_shard_name_digest(const struct pd_tensor *tensor)
{
    return pd_digest64(tensor->name, strnlen(tensor->name, PD_TENSOR_NAME_MAX), PD_SHARD_SEED);
}

uint64_t pd_shard_box_seed(const struct pd_identity *identity, uint64_t name_digest, enum pd_kind kind,
                           const struct pd_box *box)
{
    const uint64_t words[10] = {identity->run_id[0], identity->run_id[1], identity->lineage, identity->step, name_digest,
                                (uint64_t)kind,      box->start[0],       box->start[1],     box->start[2],  box->start[3]};
    return pd_digest_words(words, 10, PD_SHARD_SEED);
}

uint64_t pd_shard_block_digest(uint64_t box_seed, uint64_t block, const void *data, uint64_t bytes)
{
    return pd_digest64(data, bytes, box_seed + block * PD_SHARD_BLOCK_STRIDE);
}

uint64_t pd_shard_chunk_digest(uint64_t box_seed, uint64_t chunk, const void *data, uint64_t bytes)
{
    return pd_digest64(data, bytes, ~box_seed + chunk * PD_SHARD_BLOCK_STRIDE);
}

/* ---- where things lie ---- */

uint64_t pd_shard_blocks_of(uint64_t bytes)
{
    return bytes / PD_SHARD_BLOCK_BYTES + (bytes % PD_SHARD_BLOCK_BYTES != 0);
}

static int compare_segments(const void *left, const void *right)
{
    const struct pd_shard_segment *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* True if it lies in shared pages. */
static bool is_small(const struct pd_shard_place *place)
{
    return place->bytes < PD_SHARD_PAGE_BYTES && !place->grid.chunk_bytes;
}

/* Collects boxes and chunks that own pages, the table and the trailer, by offset. */
static uint64_t collect_owned(const struct pd_shard_extents *e, struct pd_shard_segment *ret_owned)
{
    uint64_t count = 0;
    for (uint32_t b = 0; b < e->box_count; b++) {
        const struct pd_shard_place *place = &e->places[b];
        if (is_small(place) || place->grid.chunk_bytes) continue;
        ret_owned[count++] =
            (struct pd_shard_segment){place->offset, pd_round_up(place->bytes, PD_SHARD_PAGE_BYTES), PD_SEGMENT_BOX, b};
    }
    for (uint64_t c = 0; c < e->chunk_count; c++)
        ret_owned[count++] = (struct pd_shard_segment){
            e->chunks[c].offset, pd_round_up(e->chunks[c].stored_bytes, PD_SHARD_PAGE_BYTES), PD_SEGMENT_CHUNK, 0};
    ret_owned[count++] = (struct pd_shard_segment){e->table_offset, e->table_bytes, PD_SEGMENT_TABLE, 0};
    ret_owned[count++] =
        (struct pd_shard_segment){e->file_bytes - PD_SHARD_PAGE_BYTES, PD_SHARD_PAGE_BYTES, PD_SEGMENT_TABLE, 0};
    qsort(ret_owned, count, sizeof *ret_owned, compare_segments);
    return count;
}

/* Adds rest segments between the owned extents. */
static pd_status fill_gaps(const struct pd_shard_segment *owned, uint64_t owned_count, uint64_t file_bytes,
                           struct pd_shard_map *map, struct pd_error *err)
{
    uint64_t at = 0;
    for (uint64_t s = 0; s < owned_count; s++) {
        const struct pd_shard_segment *next = &owned[s];
        if (next->offset % PD_SHARD_PAGE_BYTES || next->offset < at ||
            !pd_checked_range(next->offset, next->bytes, file_bytes))
            PD_FAIL(err, PD_CORRUPT, "extent of %llu bytes at %llu overlaps another or leaves the file of %llu bytes",
                    (unsigned long long)next->bytes, (unsigned long long)next->offset, (unsigned long long)file_bytes);
        if (next->offset > at)
            map->segments[map->segment_count++] = (struct pd_shard_segment){at, next->offset - at, PD_SEGMENT_REST, 0};
        map->segments[map->segment_count++] = *next;
        at = next->offset + next->bytes;
    }
    return PD_OK;
}

struct small_box {
    uint64_t offset;
    uint32_t box;
};

static int compare_small(const void *left, const void *right)
{
    const struct small_box *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static pd_status collect_small(const struct pd_shard_place *places, uint32_t box_count, struct pd_shard_map *map,
                               struct pd_error *err)
{
    struct small_box *small = malloc(((size_t)box_count + 1) * sizeof *small);
    map->small = malloc(((size_t)box_count + 1) * sizeof *map->small);
    pd_status st = PD_ALLOCATED(small && map->small, err, "no memory for a shard's map");
    for (uint32_t b = 0; !st && b < box_count; b++)
        if (is_small(&places[b])) small[map->small_count++] = (struct small_box){places[b].offset, b};
    if (!st) qsort(small, map->small_count, sizeof *small, compare_small);
    for (uint32_t s = 0; !st && s < map->small_count; s++) {
        map->small[s] = small[s].box;
        if (s && small[s].offset < small[s - 1].offset + places[small[s - 1].box].bytes)
            st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "boxes %u and %u overlap", small[s - 1].box, small[s].box);
    }
    free(small);
    return st;
}

/* Checks that small boxes lie in rest segments. */
static pd_status check_small(const struct pd_shard_place *places, const struct pd_shard_map *map, struct pd_error *err)
{
    uint32_t segment = 0;
    for (uint32_t s = 0; s < map->small_count; s++) {
        const struct pd_shard_place *place = &places[map->small[s]];
        while (segment < map->segment_count && map->segments[segment].offset + map->segments[segment].bytes <= place->offset)
            segment++;
        const struct pd_shard_segment *in = segment < map->segment_count ? &map->segments[segment] : NULL;
        if (!in || in->type != PD_SEGMENT_REST || !pd_checked_range(place->offset - in->offset, place->bytes, in->bytes))
            PD_FAIL(err, PD_CORRUPT, "box %u of %llu bytes at %llu lies where something else is", map->small[s],
                    (unsigned long long)place->bytes, (unsigned long long)place->offset);
    }
    return PD_OK;
}

pd_status pd_shard_map_init(const struct pd_shard_extents *extents, struct pd_shard_map *ret_map, struct pd_error *err)
{
    const uint64_t file_bytes = extents->file_bytes;
    if (file_bytes < PD_SHARD_PAGE_BYTES || file_bytes % PD_SHARD_PAGE_BYTES)
        PD_FAIL(err, PD_CORRUPT, "%llu bytes are not whole pages", (unsigned long long)file_bytes);
    const uint64_t most = extents->box_count + extents->chunk_count + 2;
    if (most > UINT32_MAX / 2) PD_FAIL(err, PD_CORRUPT, "%llu extents are too many", (unsigned long long)most);
    struct pd_shard_map map = {0};
    struct pd_shard_segment *owned = malloc(most * sizeof *owned);
    map.segments = malloc(2 * most * sizeof *map.segments);
    pd_status st = PD_ALLOCATED(owned && map.segments, err, "no memory for a shard's map");
    if (!st) st = fill_gaps(owned, collect_owned(extents, owned), file_bytes, &map, err);
    if (!st) st = collect_small(extents->places, extents->box_count, &map, err);
    if (!st) st = check_small(extents->places, &map, err);
    free(owned);
    if (st)
        pd_shard_map_deinit(&map);
    else
        *ret_map = map;
    return st;
}

void pd_shard_map_deinit(struct pd_shard_map *map)
{
    if (!map) return;
    free(map->segments);
    free(map->small);
    *map = (struct pd_shard_map){0};
}

uint32_t pd_shard_map_small_at(const struct pd_shard_map *map, const struct pd_shard_place *places, uint64_t offset)
{
    uint32_t low = 0, high = map->small_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct pd_shard_place *place = &places[map->small[middle]];
        if (place->offset + place->bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void pd_shard_map_mask(const struct pd_shard_map *map, const struct pd_shard_place *places, uint64_t offset, void *data,
                       uint64_t bytes)
{
    for (uint32_t s = pd_shard_map_small_at(map, places, offset); s < map->small_count; s++) {
        const struct pd_shard_place *place = &places[map->small[s]];
        if (place->offset >= offset + bytes) return;
        uint64_t first = place->offset > offset ? place->offset - offset : 0;
        uint64_t end = place->offset + place->bytes - offset;
        memset((char *)data + first, 0, (end < bytes ? end : bytes) - first);
    }
}

/* ---- table and trailer ---- */

bool pd_shard_table_size(const struct pd_shard_counts *counts, uint64_t *ret_bytes)
{
    const bool is_chunked = pd_shard_version_has_chunks(counts->version);
    const uint64_t parts[5][2] = {{counts->tensors, sizeof(struct pd_shard_tensor_row)},
                                  {counts->boxes, sizeof(struct pd_shard_box_row)},
                                  {counts->blocks, sizeof(uint64_t)},
                                  {is_chunked ? counts->boxes : 0, sizeof(struct pd_shard_grid)},
                                  {is_chunked ? counts->chunks : 0, sizeof(struct pd_shard_chunk_row)}};
    uint64_t bytes = sizeof(struct pd_shard_head), part = 0;
    for (int p = 0; p < 5; p++)
        if (!pd_checked_mul_u64(parts[p][0], parts[p][1], &part) || !pd_checked_add_u64(bytes, part, &bytes)) return false;
    return pd_checked_align_u64(bytes, PD_SHARD_PAGE_BYTES, ret_bytes);
}

/* Computes where the parts of a table begin, from its counts. */
static void place_parts(struct pd_shard_head *head)
{
    head->tensors_at = sizeof *head;
    head->boxes_at = head->tensors_at + head->tensor_count * sizeof(struct pd_shard_tensor_row);
    head->checksums_at = head->boxes_at + head->box_count * sizeof(struct pd_shard_box_row);
    if (!pd_shard_version_has_chunks(head->version)) return;
    head->grids_at = head->checksums_at + head->block_count * sizeof(uint64_t);
    head->chunks_at = head->grids_at + head->box_count * sizeof(struct pd_shard_grid);
}

/* Of a listed shard: what it holds of the tensor, and nothing of what it does not. */
static void fill_listed(struct pd_shard_tensor_row *row, const struct pd_tensor *tensor)
{
    row->ndim = tensor->ndim;
    row->dtype = pd_tensor_has_kind(tensor, PD_PARAM) ? (uint32_t)tensor->dtype : 0;
    row->unit = tensor->kinds;
    row->decay = tensor->is_bytes ? PD_SHARD_TENSOR_BYTES : 0;
    row->moments = tensor->kinds > 1u << PD_PARAM ? (uint32_t)tensor->moments : 0;
}

static void fill_tensor(struct pd_shard_tensor_row *row, const struct pd_tensor *tensor, bool is_listed)
{
    memcpy(row->name, tensor->name, strnlen(tensor->name, sizeof row->name - 1));
    memcpy(row->shape, tensor->shape, sizeof row->shape);
    if (is_listed) {
        fill_listed(row, tensor);
        return;
    }
    row->tp_unit = tensor->tp_unit;
    row->ndim = tensor->ndim;
    row->dtype = (uint32_t)tensor->dtype;
    row->tp_dim = tensor->tp_dim;
    row->unit = tensor->unit;
    row->decay = tensor->decay;
    row->moments = (uint32_t)tensor->moments;
}

void pd_shard_table_fill(void *table, uint64_t table_bytes, const struct pd_shard_counts *counts,
                         const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                         const struct pd_shard_place *places)
{
    struct pd_shard_head *head = table;
    *head = (struct pd_shard_head){.magic = PD_SHARD_MAGIC,
                                   .version = counts->version,
                                   .table_bytes = table_bytes,
                                   .tensor_count = counts->tensors,
                                   .box_count = counts->boxes,
                                   .block_count = counts->blocks,
                                   .block_bytes = PD_SHARD_BLOCK_BYTES,
                                   .chunk_count = counts->chunks,
                                   .codec = counts->codec,
                                   .level = counts->level};
    place_parts(head);
    struct pd_shard_tensor_row *tensor_rows = (void *)((char *)table + head->tensors_at);
    for (uint32_t t = 0; t < tensors->count; t++)
        fill_tensor(&tensor_rows[t], &tensors->tensors[t], tensors->is_listed);
    struct pd_shard_grid *grids = head->grids_at ? (void *)((char *)table + head->grids_at) : NULL;
    struct pd_shard_box_row *box_rows = (void *)((char *)table + head->boxes_at);
    for (uint32_t b = 0; b < counts->boxes; b++) {
        struct pd_shard_box_row row = {.offset = places[b].offset,
                                       .bytes = places[b].bytes,
                                       .first_block = places[b].first_block,
                                       .tensor = boxes[b].tensor,
                                       .kind = (uint32_t)boxes[b].kind};
        memcpy(row.start, boxes[b].box.start, sizeof row.start);
        memcpy(row.count, boxes[b].box.count, sizeof row.count);
        box_rows[b] = row;
        if (grids) grids[b] = places[b].grid;
        head->data_bytes += places[b].bytes;
    }
}

void pd_shard_trailer_fill(struct pd_shard_trailer *ret_trailer, const void *table, uint64_t table_bytes,
                           uint64_t table_offset, const struct pd_identity *identity)
{
    const struct pd_shard_head *head = table;
    *ret_trailer = (struct pd_shard_trailer){.magic = PD_SHARD_TRAILER_MAGIC,
                                             .version = head->version,
                                             .file_bytes = head->file_bytes,
                                             .table_offset = table_offset,
                                             .table_bytes = table_bytes};
    ret_trailer->table_digest = pd_digest64(table, table_bytes, pd_shard_table_seed(identity));
    ret_trailer->self_digest = pd_digest64(ret_trailer, sizeof *ret_trailer - sizeof ret_trailer->self_digest, 0);
}

/* ---- parsing ---- */

static bool shape_makes_sense(const struct pd_shard_tensor_row *row)
{
    uint64_t elements = 1;
    bool ok = memchr(row->name, 0, sizeof row->name) && row->name[0] && row->ndim <= PD_TENSOR_DIMS_MAX;
    for (uint32_t d = 0; ok && d < PD_TENSOR_DIMS_MAX; d++)
        ok = pd_checked_mul_u64(elements, row->shape[d], &elements) && (d < row->ndim || row->shape[d] == 1);
    return ok && elements <= UINT64_MAX / 8;
}

static pd_status parse_listed(const struct pd_shard_tensor_row *row, struct pd_tensor *ret_tensor, struct pd_error *err)
{
    const uint32_t kinds = row->unit, moment_kinds = kinds & ~(1u << PD_PARAM);
    const bool has_param = kinds & 1u << PD_PARAM, is_bytes = row->decay & PD_SHARD_TENSOR_BYTES;
    if (!shape_makes_sense(row) || row->tp_unit || row->tp_dim || !kinds || kinds >> PD_KIND_COUNT ||
        row->dtype >= PD_DTYPE_COUNT || row->moments >= PD_DTYPE_COUNT || (!has_param && row->dtype) ||
        (!moment_kinds && row->moments) || row->decay > PD_SHARD_TENSOR_BYTES ||
        (is_bytes && (row->dtype != PD_U8 || row->ndim != 1 || moment_kinds)))
        PD_FAIL(err, PD_CORRUPT, "a tensor's row is invalid");
    *ret_tensor = (struct pd_tensor){.ndim = row->ndim,
                                     .dtype = (enum pd_dtype)row->dtype,
                                     .moments = (enum pd_dtype)row->moments,
                                     .tp_dim = -1,
                                     .tp_unit = 1,
                                     .kinds = kinds,
                                     .is_bytes = is_bytes};
    memcpy(ret_tensor->name, row->name, sizeof ret_tensor->name);
    memcpy(ret_tensor->shape, row->shape, sizeof ret_tensor->shape);
    return PD_OK;
}

static pd_status parse_tensor(const struct pd_shard_tensor_row *row, uint64_t version, struct pd_tensor *ret_tensor,
                              struct pd_error *err)
{
    const uint32_t moments = version > PD_SHARD_FORMAT_MOMENTS ? row->moments : PD_F32;
    if (version >= PD_SHARD_FORMAT_LISTED) return parse_listed(row, ret_tensor, err);
    if (!shape_makes_sense(row) || row->ndim < 1 || row->dtype >= PD_DTYPE_RUN_COUNT || moments >= PD_DTYPE_RUN_COUNT ||
        row->tp_dim < -1 || row->tp_dim >= PD_TENSOR_DIMS_MAX || row->decay > 1)
        PD_FAIL(err, PD_CORRUPT, "a tensor's row is invalid");
    *ret_tensor = (struct pd_tensor){.ndim = row->ndim,
                                     .dtype = (enum pd_dtype)row->dtype,
                                     .moments = (enum pd_dtype)moments,
                                     .tp_dim = row->tp_dim,
                                     .tp_unit = row->tp_unit,
                                     .unit = row->unit,
                                     .expert = pd_tensor_expert_of(row->name),
                                     .decay = row->decay != 0};
    memcpy(ret_tensor->name, row->name, sizeof ret_tensor->name);
    memcpy(ret_tensor->shape, row->shape, sizeof ret_tensor->shape);
    return PD_OK;
}

static bool box_fits(const struct pd_shard_box_row *row, const struct pd_tensor *tensor)
{
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++)
        if (row->count[d] == 0 || !pd_checked_range(row->start[d], row->count[d], tensor->shape[d])) return false;
    return true;
}

static pd_status parse_box(const struct pd_shard_box_row *row, const struct pd_tensor_table *tensors, uint64_t file_bytes,
                           uint64_t expected_block, struct pd_shard_box *ret_box, struct pd_shard_place *ret_place,
                           struct pd_error *err)
{
    if (row->tensor >= tensors->count || row->kind >= PD_KIND_COUNT || !box_fits(row, &tensors->tensors[row->tensor]) ||
        !pd_tensor_has_kind(&tensors->tensors[row->tensor], (enum pd_kind)row->kind))
        PD_FAIL(err, PD_CORRUPT, "a box's row refers to something that does not exist");
    struct pd_shard_box box = {.tensor = row->tensor, .kind = (enum pd_kind)row->kind};
    memcpy(box.box.start, row->start, sizeof row->start);
    memcpy(box.box.count, row->count, sizeof row->count);
    uint64_t bytes = pd_box_elements(&box.box) * pd_tensor_element_bytes(&tensors->tensors[row->tensor], box.kind);
    /* A chunked box has offset 0. The map checks later that everything lies inside the file. */
    if (row->bytes != bytes || row->first_block != expected_block ||
        (row->offset && !pd_checked_range(row->offset, row->bytes, file_bytes)))
        PD_FAIL(err, PD_CORRUPT, "tensor %s: the offset of a box is invalid", tensors->tensors[row->tensor].name);
    *ret_box = box;
    *ret_place = (struct pd_shard_place){.offset = row->offset, .bytes = row->bytes, .first_block = row->first_block};
    return PD_OK;
}

static bool chunk_makes_sense(const struct pd_shard_chunk_row *row, uint64_t chunk_bytes)
{
    if (row->offset % PD_SHARD_PAGE_BYTES || row->stored_bytes == 0 || row->stored_bytes > chunk_bytes) return false;
    return row->filter_mask == 0 ||
           (row->filter_mask == PD_SHARD_FILTERS_NONE && row->stored_bytes == chunk_bytes && row->digest == 0);
}

/* Parses grids and rows of chunks. The map checks later that chunks lie in the file and apart. */
static pd_status parse_chunks(const void *table, const struct pd_shard_head *head, struct pd_shard_contents *c,
                              struct pd_error *err)
{
    const struct pd_shard_grid *grids = (const void *)((const char *)table + head->grids_at);
    uint64_t next = 0;
    c->chunks = (const void *)((const char *)table + head->chunks_at);
    c->chunk_count = head->chunk_count;
    for (uint32_t b = 0; b < c->box_count; b++) {
        const struct pd_shard_grid *grid = &grids[b];
        if (grid->chunk_bytes == 0 && c->places[b].offset) continue;
        const uint64_t bytes = c->places[b].bytes;
        bool ok = grid->chunk_bytes && !c->places[b].offset && grid->chunk_bytes <= PD_SHARD_CHUNK_MAX &&
                  grid->chunk_bytes <= grid->run_bytes && grid->run_bytes <= bytes && bytes % grid->run_bytes == 0 &&
                  grid->first_chunk == next && pd_shard_grid_count(grid, bytes) <= c->chunk_count - next;
        const uint64_t count = ok ? pd_shard_grid_count(grid, bytes) : 0;
        for (uint64_t k = 0; k < count && ok; k++)
            ok = chunk_makes_sense(&c->chunks[next + k], grid->chunk_bytes);
        if (!ok)
            PD_FAIL(err, PD_CORRUPT, "tensor %s: the chunks of a box are invalid",
                    c->tensors.tensors[c->boxes[b].tensor].name);
        c->places[b].grid = *grid;
        next += count;
    }
    if (next != c->chunk_count) PD_FAIL(err, PD_CORRUPT, "the chunks do not add up to what the head of the table says");
    return PD_OK;
}

static pd_status parse_rows(const void *table, const struct pd_shard_head *head, struct pd_shard_contents *c,
                            struct pd_error *err)
{
    const struct pd_shard_tensor_row *tensor_rows = (const void *)((const char *)table + head->tensors_at);
    const struct pd_shard_box_row *box_rows = (const void *)((const char *)table + head->boxes_at);
    for (uint32_t t = 0; t < c->tensors.count; t++)
        PD_TRY(parse_tensor(&tensor_rows[t], head->version, &c->tensors.tensors[t], err));
    uint64_t block = 0, data_bytes = 0;
    for (uint32_t b = 0; b < c->box_count; b++) {
        PD_TRY(parse_box(&box_rows[b], &c->tensors, head->file_bytes, block, &c->boxes[b], &c->places[b], err));
        block += pd_shard_blocks_of(c->places[b].bytes);
        data_bytes += c->places[b].bytes;
    }
    if (pd_shard_version_has_chunks(head->version)) PD_TRY(parse_chunks(table, head, c, err));
    if (block != head->block_count || data_bytes != head->data_bytes)
        PD_FAIL(err, PD_CORRUPT, "the boxes do not add up to what the head of the table says");
    return PD_OK;
}

pd_status pd_shard_table_parse(const void *table, uint64_t table_bytes, uint64_t file_bytes,
                               struct pd_shard_contents *ret_contents, struct pd_error *err)
{
    const struct pd_shard_head *head = table;
    if (head->magic != PD_SHARD_MAGIC) PD_FAIL(err, PD_CORRUPT, "the table does not begin with \"PDSHARD1\"");
    if (head->version < PD_SHARD_FORMAT_VERSION || head->version > PD_SHARD_FORMAT_LATEST)
        PD_FAIL(err, PD_UNSUPPORTED,
                "the table has format version %llu and this perdure reads versions up to %u; use a newer one",
                (unsigned long long)head->version, PD_SHARD_FORMAT_LATEST);
    const struct pd_shard_counts counts = {.version = head->version,
                                           .tensors = head->tensor_count,
                                           .boxes = head->box_count,
                                           .blocks = head->block_count,
                                           .chunks = head->chunk_count};
    struct pd_shard_head placed = *head;
    uint64_t expected = 0;
    bool fits = head->box_count <= UINT32_MAX - 2 && head->tensor_count <= UINT32_MAX &&
                pd_shard_table_size(&counts, &expected) && expected == table_bytes && head->table_bytes == table_bytes &&
                head->file_bytes == file_bytes && head->block_bytes == PD_SHARD_BLOCK_BYTES;
    if (fits) place_parts(&placed);
    fits = fits && memcmp(&placed, head, sizeof placed) == 0;
    if (!fits) PD_FAIL(err, PD_CORRUPT, "the sizes in the head of the table contradict each other");
    struct pd_shard_contents c = {.box_count = (uint32_t)head->box_count};
    c.tensors.count = (uint32_t)head->tensor_count;
    c.tensors.is_listed = head->version >= PD_SHARD_FORMAT_LISTED;
    c.tensors.tensors = calloc(head->tensor_count + 1, sizeof *c.tensors.tensors);
    c.boxes = calloc(head->box_count + 1, sizeof *c.boxes);
    c.places = calloc(head->box_count + 1, sizeof *c.places);
    pd_status st = c.tensors.tensors && c.boxes && c.places
                       ? parse_rows(table, head, &c, err)
                       : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for the table of %u boxes", c.box_count);
    if (st)
        pd_shard_contents_deinit(&c);
    else
        *ret_contents = c;
    return st;
}

void pd_shard_contents_deinit(struct pd_shard_contents *contents)
{
    if (!contents) return;
    pd_tensor_table_deinit(&contents->tensors);
    free(contents->boxes);
    free(contents->places);
    *contents = (struct pd_shard_contents){0};
}

uint64_t pd_shard_chunk_extent(const struct pd_shard_contents *contents, uint32_t box, uint64_t chunk, uint64_t *ret_bytes)
{
    const struct pd_shard_chunk_row *row = &contents->chunks[contents->places[box].grid.first_chunk + chunk];
    *ret_bytes = pd_round_up(row->stored_bytes, PD_SHARD_PAGE_BYTES);
    return row->offset;
}
