/* Two bytes say how long the table is, the table follows, then pages of data. What digests there are over these bytes is
 * made right, but for the blocks of compressed chunks: so each number of the table is believed as far as it makes sense. */
#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"
#include "tests/fuzz/input_disk.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = PD_SHARD_PAGE_BYTES, DATA = 16 * PAGE, BLOCKS_MAX = 16, BUFFER_BYTES = 1 << 20 };

struct sealed {
    unsigned char *bytes; /* DATA, the table, the trailer */
    struct pd_shard_head *head;
    uint64_t table_bytes, file_bytes;
    struct pd_identity identity;
    struct pd_shard_contents contents;
};

static unsigned char *row(const struct sealed *s, uint64_t at, uint64_t number, uint64_t row_bytes)
{
    return s->bytes + DATA + at + number * row_bytes;
}

static void seal_blocks(struct sealed *s, const struct pd_shard_place *place, uint64_t seed)
{
    for (uint64_t block = 0; block < pd_shard_blocks_of(place->bytes); block++) {
        const uint64_t digest = pd_shard_block_digest(seed, block, s->bytes + place->offset + block * PD_SHARD_BLOCK_BYTES,
                                                      pd_shard_block_length(place->bytes, block));
        memcpy(row(s, s->head->checksums_at, place->first_block + block, sizeof digest), &digest, sizeof digest);
    }
}

static void seal_chunks(struct sealed *s, const struct pd_shard_place *place, uint64_t seed)
{
    for (uint64_t c = 0; c < pd_shard_grid_count(&place->grid, place->bytes); c++) {
        struct pd_shard_chunk_row chunk;
        unsigned char *at = row(s, s->head->chunks_at, place->grid.first_chunk + c, sizeof chunk);
        memcpy(&chunk, at, sizeof chunk);
        if (!chunk.filter_mask) chunk.digest = pd_shard_chunk_digest(seed, c, s->bytes + chunk.offset, chunk.stored_bytes);
        memcpy(at, &chunk, sizeof chunk);
    }
}

static void seal_rest(struct sealed *s, const struct pd_shard_map *map)
{
    struct pd_digest_stream stream;
    pd_digest_stream_init(&stream, pd_shard_table_seed(&s->identity));
    for (uint32_t i = 0; i < map->segment_count; i++) {
        const struct pd_shard_segment *segment = &map->segments[i];
        unsigned char *copy = segment->type == PD_SEGMENT_REST ? malloc(segment->bytes) : NULL;
        if (!copy) continue;
        memcpy(copy, s->bytes + segment->offset, segment->bytes);
        pd_shard_map_mask(map, s->contents.places, segment->offset, copy, segment->bytes);
        pd_digest_stream_add(&stream, copy, segment->bytes);
        free(copy);
    }
    s->head->rest_digest = pd_digest_stream_value(&stream);
}

static void seal_contents(struct sealed *s)
{
    struct pd_shard_map map = {0};
    const struct pd_shard_contents *c = &s->contents;
    const struct pd_shard_extents extents = {c->places, c->box_count,   c->chunks,    c->chunk_count,
                                             DATA,      s->table_bytes, s->file_bytes};
    if (pd_shard_map_init(&extents, &map, NULL)) return;
    for (uint32_t b = 0; b < c->box_count; b++) {
        const struct pd_shard_box *box = &c->boxes[b];
        const uint64_t name = pd_shard_name_digest(&c->tensors.tensors[box->tensor]);
        const uint64_t seed = pd_shard_box_seed(&s->identity, name, box->kind, &box->box);
        (c->places[b].grid.chunk_bytes ? seal_chunks : seal_blocks)(s, &c->places[b], seed);
    }
    seal_rest(s, &map);
    pd_shard_map_deinit(&map);
}

static void seal(struct sealed *s)
{
    struct pd_shard_head *head = s->head;
    struct pd_shard_trailer trailer;
    head->magic = PD_SHARD_MAGIC;
    head->table_bytes = s->table_bytes;
    head->file_bytes = s->file_bytes;
    s->identity = (struct pd_identity){{head->run_id[0], head->run_id[1]}, head->lineage, head->step};
    if (!pd_shard_table_parse(head, s->table_bytes, s->file_bytes, &s->contents, NULL)) seal_contents(s);
    pd_shard_contents_deinit(&s->contents);
    pd_shard_trailer_fill(&trailer, head, s->table_bytes, DATA, &s->identity);
    memcpy(s->bytes + s->file_bytes - PAGE, &trailer, sizeof trailer);
}

static pd_status look(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes, pd_status verified,
                      const struct pd_error *damage, struct pd_error *err)
{
    (void)box;
    (void)block;
    (void)data;
    (void)err;
    if (bytes > PD_SHARD_BLOCK_BYTES || (verified && !damage->message[0])) abort();
    return --*(uint32_t *)context ? PD_OK : PD_NOT_FOUND; /* enough was seen */
}

static void read_all(struct pd_shard *shard)
{
    static _Alignas(PD_VFS_ALIGN) unsigned char buffer[BUFFER_BYTES];
    struct pd_error err = {0};
    uint32_t left = BLOCKS_MAX;
    const struct pd_shard_visitor visitor = {&left, look};
    for (uint32_t b = 0; b < pd_shard_box_count(shard) && b < BLOCKS_MAX; b++)
        (void)!pd_shard_read_blocks(shard, b, 0, 1, buffer, &err);
    const pd_status st = pd_shard_scan(shard, buffer, sizeof buffer, &visitor, &err);
    if (st && left && !err.message[0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2 + sizeof(struct pd_shard_head)) return 0;
    const uint64_t wanted = data[0] | (uint64_t)data[1] << 8, there = wanted < bytes - 2 ? wanted : bytes - 2;
    const uint64_t pages = (there + PAGE - 1) / PAGE * PAGE, behind = bytes - 2 - there;
    if (there < sizeof(struct pd_shard_head)) return 0;
    struct sealed s = {.bytes = calloc(1, DATA + pages + PAGE), .table_bytes = pages, .file_bytes = DATA + pages + PAGE};
    if (!s.bytes) abort();
    memcpy(s.bytes, data + 2 + there, behind < DATA ? behind : DATA);
    memcpy(s.bytes + DATA, data + 2, there);
    s.head = (void *)(s.bytes + DATA);
    seal(&s);
    struct pd_shard *shard = NULL;
    struct pd_error err = {0};
    const pd_status st = pd_shard_open(input_disk_of(s.bytes, s.file_bytes), INPUT_PATH, NULL, NULL, &shard, &err);
    if (st && !err.message[0]) abort();
    if (!st) read_all(shard);
    if (!st) pd_shard_close(shard);
    free(s.bytes);
    return 0;
}
