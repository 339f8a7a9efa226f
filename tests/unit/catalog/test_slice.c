/* A tensor whose elements are their own row-major numbers, stored in every arrangement of pieces; slices of it are known
 * without reading. A source that verifies counts which blocks are read. */
#include "resharder/catalog/slice.h"

#include "ckpt/io/cached.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLANES = 7, ROWS = 300, COLUMNS = 257, FIRST = 4093, ELEMENTS = PLANES * ROWS * COLUMNS };
enum arrangement { DENSE, PLANE_CUT, GRID, RANGES, TRANSPOSED, PADDED_ROWS, ARRANGEMENTS };

static struct pd_error err;
static struct pd_vfs *vfs;
static char path[64];

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/test_slice.XXXXXX");
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(pd_vfs_new_auto(&vfs, &err), PD_OK);
}

static void teardown(void)
{
    pd_vfs_free(vfs);
    unlink(path);
}

TestSuite(slice, .init = setup, .fini = teardown);

static void put(FILE *f, uint64_t value)
{
    const int32_t number = (int32_t)value;
    fwrite(&number, sizeof number, 1, f);
}

static void put_box(FILE *f, struct pd_catalog *c, struct pd_piece piece, enum arrangement how)
{
    piece.offset = (uint64_t)ftell(f);
    const uint64_t *n = piece.count, *s = piece.start;
    if (how == TRANSPOSED) piece.stride[0] = 1, piece.stride[1] = n[0] * n[2], piece.stride[2] = n[0];
    if (how == PADDED_ROWS) piece.stride[0] = n[1] * (n[2] + 5), piece.stride[1] = n[2] + 5, piece.stride[2] = 1;
    if (how == TRANSPOSED) {
        for (uint64_t b = 0; b < n[1]; b++)
            for (uint64_t x = 0; x < n[2]; x++)
                for (uint64_t a = 0; a < n[0]; a++)
                    put(f, ((s[0] + a) * ROWS + s[1] + b) * COLUMNS + s[2] + x);
    } else {
        for (uint64_t a = 0; a < n[0]; a++)
            for (uint64_t b = 0; b < n[1]; b++) {
                for (uint64_t x = 0; x < n[2]; x++)
                    put(f, ((s[0] + a) * ROWS + s[1] + b) * COLUMNS + s[2] + x);
                for (int i = 0; how == PADDED_ROWS && i < 5; i++)
                    put(f, 99999999);
            }
    }
    cr_assert_eq(pd_catalog_add_piece(c, 0, &piece, &err), PD_OK);
}

static void make(struct pd_catalog *c, enum arrangement how)
{
    const struct pd_foreign_tensor tensor = {
        .name = "w", .element = PD_ELEMENT_I32, .ndim = 3, .shape = {PLANES, ROWS, COLUMNS}};
    const uint64_t cuts[3][4] = {{0, 2, 3, PLANES}, {0, 100, 101, ROWS}, {0, 50, 250, COLUMNS}};
    uint64_t parts[3] = {1, 1, 1};
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < FIRST; i++) /* nothing is aligned */
        fputc(0x55, f);
    pd_catalog_init(c, "test");
    cr_assert_eq(pd_catalog_add_tensor(c, &tensor, NULL, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_file(c, path, UINT64_C(1) << 30, NULL, &err), PD_OK);
    if (how == PLANE_CUT || how == GRID) parts[0] = 3;
    if (how == GRID) parts[1] = parts[2] = 3;
    for (uint64_t at = 0; how == RANGES && at < ELEMENTS; at += 100003) {
        const struct pd_piece piece = {.is_range = true,
                                       .offset = (uint64_t)ftell(f),
                                       .start = {at},
                                       .count = {at + 100003 < ELEMENTS ? 100003 : ELEMENTS - at}};
        for (uint64_t i = 0; i < piece.count[0]; i++)
            put(f, at + i);
        cr_assert_eq(pd_catalog_add_piece(c, 0, &piece, &err), PD_OK);
    }
    for (uint64_t p = 0; how != RANGES && p < parts[0] * parts[1] * parts[2]; p++) {
        struct pd_piece piece = {0};
        for (uint64_t d = 3, rest = p; d-- > 0; rest /= parts[d]) {
            const uint64_t k = rest % parts[d];
            piece.start[d] = parts[d] > 1 ? cuts[d][k] : 0;
            piece.count[d] = (parts[d] > 1 ? cuts[d][k + 1] : tensor.shape[d]) - piece.start[d];
        }
        put_box(f, c, piece, how);
    }
    cr_assert_eq(fclose(f), 0);
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
}

static void check(const struct pd_slice *s, const void *to)
{
    uint64_t i = 0;
    for (uint64_t a = s->start[0]; a < s->start[0] + s->count[0]; a++)
        for (uint64_t b = s->start[1]; b < s->start[1] + s->count[1]; b++)
            for (uint64_t x = s->start[2]; x < s->start[2] + s->count[2]; x++, i++) {
                const int32_t want = (int32_t)((a * ROWS + b) * COLUMNS + x);
                const int32_t got = s->as_f32 ? (int32_t)((const float *)to)[i] : ((const int32_t *)to)[i];
                cr_assert_eq(got, want, "element %d is %d, not %d", (int)i, got, want);
            }
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (*state >> 33) % below;
}

Test(slice, random_boxes_of_every_arrangement)
{
    struct pd_thread_pool *pool = NULL;
    uint64_t state = 7;
    cr_assert_eq(pd_thread_pool_new(3, &pool, &err), PD_OK);
    for (int how = 0; how < ARRANGEMENTS; how++) {
        struct pd_catalog c;
        struct pd_slicer *s = NULL;
        make(&c, (enum arrangement)how);
        cr_assert_eq(pd_slicer_new(vfs, &c, &s, &err), PD_OK);
        for (int round = 0; round < 40; round++) {
            struct pd_slice slices[5] = {{0}};
            const uint64_t count = 1 + draw(&state, 5);
            for (uint64_t k = 0; k < count; k++) {
                for (int d = 0; d < 3; d++) {
                    const uint64_t size = c.tensors[0].shape[d];
                    slices[k].start[d] = round ? draw(&state, size) : 0;
                    slices[k].count[d] = round ? draw(&state, size - slices[k].start[d] + 1) : size;
                }
                slices[k].as_f32 = draw(&state, 2);
                cr_assert_eq(pd_slice_check(&c, &slices[k], &err), PD_OK);
                slices[k].to = malloc(pd_slice_bytes(&c, &slices[k]) + 1);
            }
            cr_assert_eq(pd_slicer_read(s, slices, count, round % 2 ? pool : NULL, NULL, NULL, &err), PD_OK, "%s",
                         err.message);
            for (uint64_t k = 0; k < count; k++) {
                check(&slices[k], slices[k].to);
                free(slices[k].to);
            }
        }
        pd_slicer_free(s);
        pd_catalog_deinit(&c);
    }
    pd_thread_pool_free(pool);
}

static _Atomic uint64_t checked_bytes;
static uint64_t bad_block;

static pd_status check_blocks(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data,
                              struct pd_error *error)
{
    (void)context, (void)piece, (void)data;
    cr_assert_eq(offset % 65536, 0);
    atomic_fetch_add(&checked_bytes, bytes);
    if (bad_block >= offset && bad_block < offset + bytes) PD_FAIL(error, PD_CORRUPT, "block of byte %d", (int)bad_block);
    return PD_OK;
}

/* A row of a column slice lies in one or two blocks; no other block is read. */
Test(slice, reads_only_blocks_that_it_needs)
{
    struct pd_catalog c;
    struct pd_slicer *s = NULL;
    struct pd_slice slice = {.start = {3, 10, 5}, .count = {1, 20, 2}};
    int32_t *to = malloc(sizeof *to * ELEMENTS);
    bad_block = UINT64_MAX;
    make(&c, DENSE);
    c.source.check = check_blocks;
    cr_assert_eq(pd_slicer_new(vfs, &c, &s, &err), PD_OK);
    slice.to = to;
    cr_assert_eq(pd_slicer_read(s, &slice, 1, NULL, NULL, NULL, &err), PD_OK, "%s", err.message);
    check(&slice, to);
    const uint64_t first = 4 * ((3ull * ROWS + 10) * COLUMNS + 5), last = 4 * ((3ull * ROWS + 29) * COLUMNS + 7);
    cr_assert_eq(checked_bytes, (last / 65536 - first / 65536 + 1) * 65536);
    cr_assert_eq(pd_slicer_bytes(s), checked_bytes);
    /* Damage elsewhere is no concern; in a needed block it is. */
    bad_block = first / 65536 * 65536 - 1;
    cr_assert_eq(pd_slicer_read(s, &slice, 1, NULL, NULL, NULL, &err), PD_OK, "%s", err.message);
    bad_block = last;
    cr_assert_eq(pd_slicer_read(s, &slice, 1, NULL, NULL, NULL, &err), PD_CORRUPT);
    cr_assert(strstr(err.message, "tensor w: block"), "%s", err.message);
    pd_slicer_free(s);
    pd_catalog_deinit(&c);
    free(to);
}

/* Reads past the page cache verify and copy as others do, into memory that is on pages or not, and leave nothing in it. */
Test(slice, direct_reads_leave_nothing_in_the_page_cache)
{
    const uint64_t first = 8192, bytes = 4ull * ELEMENTS;
    struct pd_catalog c;
    struct pd_slicer *s = NULL;
    struct pd_file *file = NULL;
    unlink(path);
    snprintf(path, sizeof path, "test_slice.XXXXXX"); /* on a disk, which /tmp may not be */
    close(mkstemp(path));
    make(&c, DENSE);
    FILE *f = fopen(path, "r+b");
    fseek(f, (long)first, SEEK_SET);
    for (uint64_t i = 0; i < ELEMENTS; i++)
        put(f, i);
    fflush(f);
    cr_assert_eq(ftruncate(fileno(f), (off_t)(first + bytes + 65536) / 4096 * 4096), 0);
    cr_assert_eq(fsync(fileno(f)), 0);
    posix_fadvise(fileno(f), 0, 0, POSIX_FADV_DONTNEED);
    fclose(f);
    c.pieces[0].offset = first;
    bad_block = UINT64_MAX;
    c.source.check = check_blocks;
    cr_assert_eq(pd_slicer_new(vfs, &c, &s, &err), PD_OK);
    pd_slicer_read_direct(s);
    char *to = aligned_alloc(4096, (bytes / 4096 + 2) * 4096);
    for (uint64_t skip = 0; skip <= 64; skip += 64) {
        struct pd_slice slice = {.count = {PLANES, ROWS, COLUMNS}, .to = to + skip};
        memset(to, 0, bytes);
        cr_assert_eq(pd_slicer_read(s, &slice, 1, NULL, NULL, NULL, &err), PD_OK, "%s", err.message);
        check(&slice, to + skip);
    }
    cr_assert_eq(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_DIRECT, &file, &err), PD_OK);
    const bool has_direct = pd_file_is_direct(file) && !pd_vfs_is_in_memory(vfs, path);
    pd_file_close_readonly(file);
    cr_assert_eq(pd_file_open(vfs, path, PD_OPEN_READ, &file, &err), PD_OK);
    if (has_direct) cr_assert(!pd_file_is_cached(file, first, bytes));
    cr_assert_eq(pd_file_read(file, first, to, bytes, &err), PD_OK);
    cr_assert(pd_file_is_cached(file, first, bytes));
    pd_file_close_readonly(file);
    pd_slicer_free(s);
    pd_catalog_deinit(&c);
    free(to);
}

static pd_status stop_at_once(void *context, uint64_t done, uint64_t total, struct pd_error *error)
{
    *(uint64_t *)context = done;
    cr_assert_leq(done, total);
    PD_FAIL(error, PD_STOPPED, "stop");
}

Test(slice, refuses_and_stops)
{
    struct pd_catalog c;
    struct pd_slicer *s = NULL;
    struct pd_slice slice = {.start = {6, 0, 0}, .count = {2, 1, 1}};
    uint64_t done = 0;
    make(&c, DENSE);
    cr_assert_eq(pd_slicer_new(vfs, &c, &s, &err), PD_OK);
    cr_assert_eq(pd_slice_check(&c, &slice, &err), PD_INVALID);
    slice.start[0] = UINT64_MAX;
    cr_assert_eq(pd_slice_check(&c, &slice, &err), PD_INVALID);
    slice = (struct pd_slice){.tensor = 1};
    cr_assert_eq(pd_slice_check(&c, &slice, &err), PD_INVALID);
    slice = (struct pd_slice){.count = {PLANES, ROWS, COLUMNS}, .to = malloc(4ull * ELEMENTS)};
    cr_assert_eq(pd_slicer_read(s, &slice, 1, NULL, stop_at_once, &done, &err), PD_STOPPED);
    cr_assert_gt(done, 0);
    cr_assert_eq(truncate(path, FIRST + 100000), 0);
    cr_assert_eq(pd_slicer_read(s, &slice, 1, NULL, NULL, NULL, &err), PD_CORRUPT);
    free(slice.to);
    pd_slicer_free(s);
    pd_catalog_deinit(&c);
}
