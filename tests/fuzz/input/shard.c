/* A table and the data it describes become a shard file: what digests there are over these bytes is made right. */
#include "tests/fuzz/input/shard.h"

#include "ckpt/base/digest.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = PD_SHARD_PAGE_BYTES };

static unsigned char *row(const struct input_shard *s, uint64_t at, uint64_t number, uint64_t row_bytes)
{
    return s->bytes + s->data_bytes + at + number * row_bytes;
}

static void seal_blocks(struct input_shard *s, const struct pd_shard_place *place, uint64_t seed)
{
    for (uint64_t block = 0; block < pd_shard_blocks_of(place->bytes); block++) {
        const uint64_t digest = pd_shard_block_digest(seed, block, s->bytes + place->offset + block * PD_SHARD_BLOCK_BYTES,
                                                      pd_shard_block_length(place->bytes, block));
        memcpy(row(s, s->head->checksums_at, place->first_block + block, sizeof digest), &digest, sizeof digest);
    }
}

static void seal_chunks(struct input_shard *s, const struct pd_shard_place *place, uint64_t seed)
{
    for (uint64_t c = 0; c < pd_shard_grid_count(&place->grid, place->bytes); c++) {
        struct pd_shard_chunk_row chunk;
        unsigned char *at = row(s, s->head->chunks_at, place->grid.first_chunk + c, sizeof chunk);
        memcpy(&chunk, at, sizeof chunk);
        if (!chunk.filter_mask) chunk.digest = pd_shard_chunk_digest(seed, c, s->bytes + chunk.offset, chunk.stored_bytes);
        memcpy(at, &chunk, sizeof chunk);
    }
}

static void seal_rest(struct input_shard *s, const struct pd_shard_map *map)
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

static void seal_contents(struct input_shard *s)
{
    struct pd_shard_map map = {0};
    const struct pd_shard_contents *c = &s->contents;
    const struct pd_shard_extents extents = {c->places,     c->box_count,   c->chunks,    c->chunk_count,
                                             s->data_bytes, s->table_bytes, s->file_bytes};
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

void input_shard_seal(struct input_shard *s)
{
    struct pd_shard_head *head = s->head = (void *)(s->bytes + s->data_bytes);
    struct pd_shard_trailer trailer;
    head->magic = PD_SHARD_MAGIC;
    head->table_bytes = s->table_bytes;
    head->file_bytes = s->file_bytes;
    s->identity = (struct pd_identity){{head->run_id[0], head->run_id[1]}, head->lineage, head->step};
    if (!pd_shard_table_parse(head, s->table_bytes, s->file_bytes, &s->contents, NULL)) seal_contents(s);
    pd_shard_contents_deinit(&s->contents);
    pd_shard_trailer_fill(&trailer, head, s->table_bytes, s->data_bytes, &s->identity);
    memcpy(s->bytes + s->file_bytes - PAGE, &trailer, sizeof trailer);
}
