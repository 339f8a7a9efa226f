/* Shards whose checksums are right and whose words make no sense: each field that others rest on is refused by itself. */
#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"
#include "tests/unit/shard/shard_fixture.h"

#include <stddef.h>

enum part { TRAILER, HEAD, TENSOR, BOX, GRID, CHUNK };

struct forgery {
    enum part part;
    uint32_t row;
    size_t at, bytes;
    uint64_t value;
    bool adds; /* to what is there */
    const char *what;
};

#define FORGED(PART, ROW, TYPE, MEMBER, VALUE, ADDS, HOW)                                          \
    {                                                                                              \
        PART, ROW, offsetof(struct TYPE, MEMBER), sizeof(((struct TYPE *)0)->MEMBER), VALUE, ADDS, \
            #PART " " #MEMBER HOW #VALUE                                                           \
    }
#define SET(PART, ROW, TYPE, MEMBER, VALUE) FORGED(PART, ROW, TYPE, MEMBER, VALUE, false, " = ")
#define ADD(PART, ROW, TYPE, MEMBER, VALUE) FORGED(PART, ROW, TYPE, MEMBER, VALUE, true, " + ")

static const struct forgery forgeries[] = {
    SET(TRAILER, 0, pd_shard_trailer, magic, 1),
    ADD(TRAILER, 0, pd_shard_trailer, file_bytes, 4096),
    ADD(TRAILER, 0, pd_shard_trailer, table_offset, 8),
    ADD(TRAILER, 0, pd_shard_trailer, table_offset, UINT64_C(1) << 40),
    ADD(TRAILER, 0, pd_shard_trailer, table_bytes, 8),
    SET(TRAILER, 0, pd_shard_trailer, table_bytes, 0),
    SET(HEAD, 0, pd_shard_head, magic, 1),
    ADD(HEAD, 0, pd_shard_head, table_bytes, 4096),
    ADD(HEAD, 0, pd_shard_head, file_bytes, 4096),
    SET(HEAD, 0, pd_shard_head, tensor_count, UINT64_MAX),
    SET(HEAD, 0, pd_shard_head, box_count, UINT32_MAX),
    SET(HEAD, 0, pd_shard_head, block_count, UINT64_MAX / 4),
    ADD(HEAD, 0, pd_shard_head, block_count, 1),
    ADD(HEAD, 0, pd_shard_head, data_bytes, 1),
    SET(HEAD, 0, pd_shard_head, block_bytes, 1),
    ADD(HEAD, 0, pd_shard_head, tensors_at, 8),
    ADD(HEAD, 0, pd_shard_head, boxes_at, 8),
    ADD(HEAD, 0, pd_shard_head, checksums_at, 8),
    SET(TENSOR, 1, pd_shard_tensor_row, name[0], 0),
    SET(TENSOR, 1, pd_shard_tensor_row, shape[0], UINT64_MAX / 2),
    SET(TENSOR, 1, pd_shard_tensor_row, shape[PD_TENSOR_DIMS_MAX - 1], 2),
    SET(TENSOR, 1, pd_shard_tensor_row, ndim, 0),
    SET(TENSOR, 1, pd_shard_tensor_row, ndim, PD_TENSOR_DIMS_MAX + 1),
    SET(TENSOR, 1, pd_shard_tensor_row, dtype, 99),
    SET(TENSOR, 1, pd_shard_tensor_row, tp_dim, (uint32_t)-2),
    SET(TENSOR, 1, pd_shard_tensor_row, tp_dim, PD_TENSOR_DIMS_MAX),
    SET(TENSOR, 1, pd_shard_tensor_row, decay, 2),
    SET(BOX, 1, pd_shard_box_row, tensor, 99),
    SET(BOX, 1, pd_shard_box_row, kind, 99),
    SET(BOX, 1, pd_shard_box_row, count[0], 0),
    ADD(BOX, 1, pd_shard_box_row, start[0], 1),
    ADD(BOX, 1, pd_shard_box_row, bytes, 4),
    ADD(BOX, 1, pd_shard_box_row, first_block, 1),
    SET(BOX, 1, pd_shard_box_row, offset, UINT64_MAX),
    ADD(BOX, 1, pd_shard_box_row, offset, 4),
    SET(BOX, 1, pd_shard_box_row, offset, 0),
    SET(BOX, 1, pd_shard_box_row, offset, 4096),
};

/* In chunks. */
static const struct forgery forgeries_in_chunks[] = {
    ADD(HEAD, 0, pd_shard_head, chunk_count, 1),
    ADD(HEAD, 0, pd_shard_head, chunks_at, 32),
    SET(GRID, 0, pd_shard_grid, chunk_bytes, 0),
    SET(GRID, 0, pd_shard_grid, chunk_bytes, UINT64_C(1) << 40),
    ADD(GRID, 0, pd_shard_grid, run_bytes, 4),
    SET(GRID, 0, pd_shard_grid, run_bytes, 4),
    ADD(GRID, 0, pd_shard_grid, first_chunk, 1),
    SET(BOX, 0, pd_shard_box_row, offset, 4096),
    ADD(CHUNK, 0, pd_shard_chunk_row, offset, 8),
    ADD(CHUNK, 0, pd_shard_chunk_row, offset, 4096),
    ADD(CHUNK, 0, pd_shard_chunk_row, offset, UINT64_C(1) << 40),
    SET(CHUNK, 0, pd_shard_chunk_row, stored_bytes, 0),
    SET(CHUNK, 0, pd_shard_chunk_row, stored_bytes, UINT64_C(1) << 40),
    SET(CHUNK, 0, pd_shard_chunk_row, filter_mask, 1),
    SET(CHUNK, 0, pd_shard_chunk_row, filter_mask, PD_SHARD_FILTERS_NONE),
};

static size_t place_of(const struct forgery *forgery, const struct pd_shard_head *head)
{
    switch (forgery->part) {
    case TENSOR:
        return head->tensors_at + forgery->row * sizeof(struct pd_shard_tensor_row) + forgery->at;
    case BOX:
        return head->boxes_at + forgery->row * sizeof(struct pd_shard_box_row) + forgery->at;
    case GRID:
        return head->grids_at + forgery->row * sizeof(struct pd_shard_grid) + forgery->at;
    case CHUNK:
        return head->chunks_at + forgery->row * sizeof(struct pd_shard_chunk_row) + forgery->at;
    default:
        return forgery->at;
    }
}

static void forge(const struct forgery *forgery, const struct pd_identity *identity, unsigned char *data, uint64_t bytes)
{
    struct pd_shard_trailer *trailer = (void *)(data + bytes - sizeof *trailer);
    unsigned char *table = data + trailer->table_offset;
    const uint64_t table_bytes = trailer->table_bytes;
    unsigned char *word =
        forgery->part == TRAILER ? (unsigned char *)trailer + forgery->at : table + place_of(forgery, (const void *)table);
    uint64_t value = 0;
    memcpy(&value, word, forgery->bytes);
    value = forgery->adds ? value + forgery->value : forgery->value;
    memcpy(word, &value, forgery->bytes);
    trailer->table_digest = pd_digest64(table, table_bytes, pd_shard_table_seed(identity));
    trailer->self_digest = pd_digest64(trailer, sizeof *trailer - sizeof trailer->self_digest, 0);
}

static void add_model(struct fixture *f)
{
    fixture_init(f, 3, 9);
    fixture_tensor(f, 0, "c.weight", 2, 40, 4000);
    fixture_tensor(f, 1, "a.weight", 1, 1500, 1);
    fixture_tensor(f, 2, "b.bias", 1, 40, 1);
    for (uint32_t t = 0; t < 3; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            fixture_box(f, t, (enum pd_kind)kind, pd_box_whole(&f->tensors.tensors[t]), 0);
}

static unsigned char *write_shard(struct fixture *f, const char *path, const struct pd_shard_codec *codec,
                                  uint64_t *ret_bytes)
{
    struct pd_shard_writer *writer = NULL;
    struct pd_shard_summary summary;
    OK(pd_shard_writer_new(f->vfs, &f->tensors, f->boxes, f->box_count, f->buffers, FIXTURE_BUFFER_BYTES, codec, &writer,
                           err));
    OK(pd_shard_write(writer, path, &f->identity, 0, (const void *const *)f->data, &summary, err));
    pd_shard_writer_free(writer);
    FILE *file = fopen(path, "rb");
    cr_assert(file && fseek(file, 0, SEEK_END) == 0);
    *ret_bytes = (uint64_t)ftell(file);
    unsigned char *data = malloc(*ret_bytes);
    cr_assert(data && fseek(file, 0, SEEK_SET) == 0 && fread(data, 1, *ret_bytes, file) == *ret_bytes && fclose(file) == 0);
    return data;
}

static pd_status open_bytes(struct fixture *f, const char *path, const unsigned char *data, uint64_t bytes,
                            struct pd_error *error)
{
    struct pd_shard *shard = NULL;
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
    const pd_status st = pd_shard_open(f->vfs, path, NULL, NULL, &shard, error);
    pd_shard_close(shard);
    return st;
}

static void try_all(const struct pd_shard_codec *codec, const struct forgery *rows, size_t count)
{
    struct fixture f;
    char path[256];
    uint64_t bytes = 0;
    add_model(&f);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = write_shard(&f, path, codec, &bytes), *forged = malloc(bytes);
    for (size_t i = 0; i < count; i++) {
        struct pd_error error = {0};
        memcpy(forged, data, bytes);
        forge(&rows[i], &f.identity, forged, bytes);
        cr_assert_neq(memcmp(forged, data, bytes), 0, "%s changes nothing", rows[i].what);
        const pd_status st = open_bytes(&f, path, forged, bytes, &error);
        cr_expect_eq(st, PD_CORRUPT, "%s: %s: %s", rows[i].what, pd_status_name(st), error.message);
        cr_expect(strstr(error.message, "s.h5"), "%s: %s", rows[i].what, error.message);
    }
    OK(open_bytes(&f, path, data, bytes, err));
    free(forged);
    free(data);
    fixture_deinit(&f);
}

Test(shard_forged, words_of_a_plain_one)
{
    try_all(NULL, forgeries, sizeof forgeries / sizeof *forgeries);
}

Test(shard_forged, words_of_one_in_chunks)
{
    const struct pd_shard_codec codec = {.codec = PD_CODEC_ZSTD, .level = 1};
    try_all(&codec, forgeries_in_chunks, sizeof forgeries_in_chunks / sizeof *forgeries_in_chunks);
}
