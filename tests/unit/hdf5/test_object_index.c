#include "ckpt/hdf5/h5.h"
#include "tests/unit/shard/shard_fixture.h"

struct shape {
    uint32_t ndim;
    uint64_t shape[3], chunk[3], chunks;
};

/* One chunk, a few, the edge of what lies under one checksum, several of those, edges in every dimension. */
static const struct shape shapes[] = {
    {1, {30000}, {30000}, 1},           {1, {30001}, {30000}, 2},
    {2, {70, 1000}, {17, 1000}, 5},     {1, {3000000}, {10000}, 300},
    {1, {1024 * 2048}, {2048}, 1024},   {1, {1024 * 2048 + 1}, {2048}, 1025},
    {2, {9, 1000000}, {1, 20000}, 450}, {3, {5, 40, 3000}, {1, 17, 3000}, 15},
    {1, {3000 * 2048}, {2048}, 3000},   {2, {3, 30000}, {3, 30000}, 1},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Of the i-th dataset; no two chunks lie in one place. */
static struct pd_h5_chunk *places(uint64_t count, uint64_t from, uint64_t seed, uint32_t i)
{
    seed += i;
    from += i * (UINT64_C(1) << 30);
    struct pd_h5_chunk *chunks = malloc(count * sizeof *chunks);
    for (uint64_t c = 0; c < count; c++) {
        const uint64_t bytes = 4096 + fixture_random(&seed) % 4000;
        chunks[c] = (struct pd_h5_chunk){from, bytes, fixture_random(&seed) % 2 ? 3 : 0};
        from += 8192;
    }
    return chunks;
}

/* All shapes several times, with other things between them. */
static void build(uint64_t from, uint64_t seed, struct pd_h5_pages *ret_pages, uint64_t headers[3 * SHAPES])
{
    struct pd_h5_file *file = NULL;
    OK(pd_h5_new(&file, err));
    for (uint32_t i = 0; i < 3 * SHAPES; i++) {
        const struct shape *s = &shapes[i % SHAPES];
        char path[64];
        uint64_t elements = 1 + i * 700, offset = 0;
        struct pd_h5_chunk *chunks = places(s->chunks, from, seed, i);
        snprintf(path, sizeof path, "/kind/chunked%u", i);
        OK(pd_h5_chunked(file, path, i % 2 ? PD_H5_BF16 : PD_H5_F32, s->ndim, s->shape, s->chunk, 3, chunks, &headers[i],
                         err));
        snprintf(path, sizeof path, "/other/plain%u", i);
        OK(pd_h5_dataset(file, path, PD_H5_F32, 1, &elements, &offset, err));
        free(chunks);
    }
    OK(pd_h5_finish(file, ret_pages, err));
}

/* What a file says that was laid out with other places and then patched is what the library says itself. */
Test(object_index, patched_is_as_written)
{
    uint64_t headers[3 * SHAPES], same[3 * SHAPES];
    struct pd_h5_pages patched = {0}, written = {0};
    const uint64_t from = UINT64_C(3) << 40;
    build(PD_H5_FAR_AWAY, 1, &patched, headers);
    build(from, 2, &written, same);
    cr_assert_eq(memcmp(headers, same, sizeof headers), 0);
    cr_assert_eq(patched.bytes, written.bytes);
    for (uint32_t i = 0; i < 3 * SHAPES; i++) {
        struct pd_h5_index index;
        struct pd_h5_chunk *chunks = places(shapes[i % SHAPES].chunks, from, 2, i);
        OK(pd_h5_index_find(&patched, headers[i], shapes[i % SHAPES].chunks, &index, err));
        OK(pd_h5_index_set(&patched, &index, chunks, err));
        free(chunks);
    }
    cr_assert_eq(patched.count, written.count);
    for (uint64_t p = 0; p < patched.count; p++) {
        cr_assert_eq(patched.pages[p].number, written.pages[p].number);
        cr_assert_eq(memcmp(patched.pages[p].data, written.pages[p].data, PD_H5_PAGE_BYTES), 0, "page %llu",
                     (unsigned long long)patched.pages[p].number);
    }
    pd_h5_pages_deinit(&patched);
    pd_h5_pages_deinit(&written);
}

Test(object_index, the_end_is_where_it_is_put)
{
    uint64_t headers[3 * SHAPES];
    struct pd_h5_pages pages = {0};
    unsigned char before[48], after[48];
    build(PD_H5_FAR_AWAY, 1, &pages, headers);
    pd_h5_pages_read(&pages, 0, before, sizeof before);
    const uint64_t end = pages.bytes;
    OK(pd_h5_end_set(&pages, end + (1 << 20), err));
    pd_h5_pages_read(&pages, 0, after, sizeof after);
    cr_assert_neq(memcmp(before, after, sizeof before), 0);
    OK(pd_h5_end_set(&pages, end, err)); /* what the library itself had sealed */
    pd_h5_pages_read(&pages, 0, after, sizeof after);
    cr_assert_eq(memcmp(before, after, sizeof before), 0);
    pd_h5_pages_deinit(&pages);
}

Test(object_index, what_is_not_known_is_a_bug)
{
    uint64_t headers[3 * SHAPES];
    struct pd_h5_pages pages = {0};
    struct pd_h5_index index;
    struct pd_error error;
    build(PD_H5_FAR_AWAY, 1, &pages, headers);
    cr_assert_eq(pd_h5_index_find(&pages, headers[1], 3, &index, &error), PD_BUG, "another number of chunks");
    cr_assert_eq(pd_h5_index_find(&pages, headers[0], 2, &index, &error), PD_BUG);
    cr_assert_eq(pd_h5_index_find(&pages, headers[1] + 1, 2, &index, &error), PD_BUG, "no header");
    unsigned char byte;
    pd_h5_pages_read(&pages, headers[1] + 9, &byte, 1);
    byte ^= 1;
    OK(pd_h5_pages_write(&pages, headers[1] + 9, &byte, 1, err));
    cr_assert_eq(pd_h5_index_find(&pages, headers[1], 2, &index, &error), PD_BUG, "a checksum that does not match");
    pd_h5_pages_deinit(&pages);
}

/* ---- what the library might write one day, with its checksums ---- */

uint32_t H5_checksum_lookup3(const void *data, size_t bytes, uint32_t initial);

struct change {
    uint64_t at, sealed_at, sealed_bytes; /* in the file; sealed_bytes 0: there is no checksum */
    unsigned char value;
    const char *what;
};

/* Makes the change, looks, and takes it back. */
static void expect_refused(struct pd_h5_pages *pages, uint64_t header, uint64_t count, const struct change *c)
{
    unsigned char data[1024], before[1024];
    struct pd_h5_index index;
    struct pd_error error = {0};
    const uint64_t from = c->sealed_bytes ? c->sealed_at : c->at, bytes = c->sealed_bytes ? c->sealed_bytes + 4 : 1;
    cr_assert_leq(bytes, sizeof data);
    pd_h5_pages_read(pages, from, before, bytes);
    memcpy(data, before, bytes);
    cr_assert_neq(data[c->at - from], c->value, "%s: no change", c->what);
    data[c->at - from] = c->value;
    if (c->sealed_bytes) {
        const uint32_t sum = H5_checksum_lookup3(data, c->sealed_bytes, 0);
        memcpy(data + c->sealed_bytes, &sum, sizeof sum);
    }
    OK(pd_h5_pages_write(pages, from, data, bytes, err));
    cr_expect_eq(pd_h5_index_find(pages, header, count, &index, &error), PD_BUG, "%s", c->what);
    OK(pd_h5_pages_write(pages, from, before, bytes, err));
    OK(pd_h5_index_find(pages, header, count, &index, err));
}

/* Of an object header's messages to its checksum, and in it the layout message's body: version 4, chunked. */
static void find_header(const struct pd_h5_pages *pages, uint64_t header, uint64_t *ret_bytes, uint64_t *ret_layout)
{
    unsigned char data[1024];
    pd_h5_pages_read(pages, header, data, sizeof data);
    const unsigned size_bytes = 1u << (data[5] & 3);
    cr_assert(data[5] < 4 && size_bytes <= 2, "flags that this test does not know: %u", data[5]);
    uint64_t at = 6 + size_bytes;
    *ret_bytes = at + data[6] + (size_bytes > 1 ? 256u * data[7] : 0);
    while (data[at] != 8)
        at += 4u + data[at + 1];
    cr_assert_lt(at, *ret_bytes);
    *ret_layout = at + 4;
}

Test(object_index, what_a_later_library_might_write_is_refused)
{
    uint64_t headers[3 * SHAPES], bytes, m;
    struct pd_h5_pages pages = {0};
    struct pd_h5_index index;
    unsigned char dims[2];
    build(PD_H5_FAR_AWAY, 1, &pages, headers);
    for (int s = 0; s < 2; s++) { /* a single chunk, an array */
        const uint64_t h = headers[s];
        find_header(&pages, h, &bytes, &m);
        pd_h5_pages_read(&pages, h + m + 3, dims, 2);
        const uint64_t type = h + m + 5 + (uint64_t)dims[0] * dims[1];
        const struct change changes[] = {{h, h, bytes, 'X', "no object header"},
                                         {h + 4, h, bytes, 3, "a header of another version"},
                                         {h + m, h, bytes, 5, "a layout of another version"},
                                         {h + m + 1, h, bytes, 1, "a layout that is not chunked"},
                                         {h + m + 3, h, bytes, 255, "more dimensions than there is room"},
                                         {h + m - 4, h, bytes, 0x0c, "no layout"},
                                         {type, h, bytes, 2, "an index of another type"},
                                         {type, h, bytes, s ? 1 : 4, "an index of another type"}};
        for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
            expect_refused(&pages, h, s + 1u, &changes[i]);
        if (s == 0) expect_refused(&pages, h, 1, &(struct change){h + m + 2, h, bytes, 0, "a chunk without a filter"});
    }
    OK(pd_h5_index_find(&pages, headers[1], 2, &index, err));
    unsigned char back[8];
    pd_h5_pages_read(&pages, index.at + 6, back, 8);
    uint64_t array = 0;
    memcpy(&array, back, 8);
    const struct change changes[] = {{array, array, 24, 'X', "no array"},
                                     {array + 5, array, 24, 0, "chunks without a filter"},
                                     {array + 6, array, 24, 12, "entries that are too short"},
                                     {array + 6, array, 24, 21, "entries that are too long"},
                                     {array + 7, array, 24, 11, "more under a checksum"},
                                     {array + 7, array, 24, 32, "more than can be"},
                                     {array + 8, array, 24, 3, "another number of chunks"},
                                     {array + 9, 0, 0, 1, "a checksum that does not match"},
                                     {index.at, 0, 0, 'X', "no block"},
                                     {index.at + 6, 0, 0, (unsigned char)(back[0] + 1), "a block of another array"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        expect_refused(&pages, headers[1], 2, &changes[i]);
    pd_h5_pages_deinit(&pages);
}
