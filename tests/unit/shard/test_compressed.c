#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"
#include "ckpt/shard/writer.h"
#include "ckpt/tensor/codec_zstd.h"
#include "tests/simulated_disk/simulated_disk.h"
#include "tests/unit/shard/shard_fixture.h"

#include <errno.h>

static const struct pd_shard_codec ZSTD_3 = {.codec = PD_CODEC_ZSTD, .level = 3};

/* Values of a normal size, noise that no compressor makes smaller, and zeros. */
static void fill_box(struct fixture *f, uint32_t b, uint64_t seed)
{
    const uint64_t bytes = pd_box_elements(&f->boxes[b].box) * 4;
    unsigned char *data = f->data[b];
    if (b % 3 == 0)
        fixture_fill((float *)(void *)data, bytes / 4, seed);
    else if (b % 3 == 1)
        for (uint64_t i = 0; i < bytes; i++)
            data[i] = (unsigned char)fixture_random(&seed);
    else
        memset(data, 0, bytes);
}

static void add_box(struct fixture *f, uint32_t ndim, const uint64_t *shape, const struct pd_box *box, uint64_t shift)
{
    const uint32_t t = f->tensors.count++;
    char name[64];
    snprintf(name, sizeof name, "model.layers.%u.weight", t);
    fixture_tensor(f, t, name, ndim, shape[0], ndim > 1 ? shape[1] : 1);
    for (uint32_t d = 2; d < ndim; d++)
        f->tensors.tensors[t].shape[d] = shape[d];
    fixture_box(f, t, (enum pd_kind)(t % 3), box ? *box : pd_box_whole(&f->tensors.tensors[t]), shift);
    fill_box(f, f->box_count - 1, t + 1);
}

/* One chunk and many; whole blocks and others; rows longer than a chunk; three and four dimensions; edges everywhere. */
static void add_odd_shapes(struct fixture *f)
{
    static const struct {
        uint32_t ndim;
        uint64_t shape[4];
    } cases[] = {
        {1, {1}},           {1, {1023}},        {1, {1024}},
        {1, {1025}},        {1, {16384}},       {1, {262144}},
        {1, {262145}},      {1, {900001}},      {2, {40, 40}},
        {2, {301, 1000}},   {2, {700, 768}},    {2, {3, 300001}},
        {2, {2, 524288}},   {2, {999, 333}},    {3, {3, 17, 7001}},
        {3, {2, 600, 500}}, {4, {2, 3, 5, 70}}, {4, {2, 2, 1, 262200}},
        {2, {5000, 111}},   {1, {524288}},      {1, {524287}},
    };
    fixture_init(f, 200, 200);
    f->tensors.count = 0;
    for (int variant = 0; variant < 3; variant++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            if ((c + (unsigned)variant) % 3 != 2 || c < 6) add_box(f, cases[c].ndim, cases[c].shape, NULL, variant * 4u);
    const uint64_t wide[2] = {600, 900};
    add_box(f, 2, wide, &(struct pd_box){{100, 300, 0, 0}, {450, 600, 1, 1}}, 0);
}

static void save(struct fixture *f, const char *name, const struct pd_shard_codec *codec, uint64_t buffer_bytes,
                 struct pd_shard_summary *ret_summary)
{
    char path[256];
    struct pd_shard_writer *writer = NULL;
    fixture_path(f, name, path, sizeof path);
    OK(pd_shard_writer_new(f->vfs, &f->tensors, f->boxes, f->box_count, f->buffers, buffer_bytes, codec, &writer, err));
    OK(pd_shard_write(writer, path, &f->identity, 3, (const void *const *)f->data, ret_summary, err));
    cr_assert_leq(ret_summary->file_bytes, pd_shard_writer_file_bytes(writer));
    pd_shard_writer_free(writer);
}

struct counting {
    struct fixture *f;
    uint64_t blocks;
    uint32_t box;
    uint64_t next;
};

static pd_status compare_block(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes,
                               pd_status verified, const struct pd_error *damage, struct pd_error *err)
{
    struct counting *c = context;
    (void)err;
    cr_assert_eq(verified, PD_OK, "%s", damage ? damage->message : "");
    cr_assert_eq(memcmp(data, (const char *)c->f->data[box] + block * PD_SHARD_BLOCK_BYTES, bytes), 0);
    if (block) cr_assert(c->box == box && c->next == block, "blocks of a box come in order");
    c->box = box;
    c->next = block + 1;
    c->blocks++;
    return PD_OK;
}

static void check_contents(struct fixture *f, const char *name, const struct pd_shard_summary *summary)
{
    char path[256];
    struct pd_shard *shard = NULL;
    fixture_path(f, name, path, sizeof path);
    OK(pd_shard_open(f->vfs, path, &f->identity, summary, &shard, err));
    uint64_t blocks = 0;
    for (uint32_t b = 0; b < f->box_count; b++) {
        const uint64_t bytes = pd_shard_box_bytes(shard, b), count = pd_shard_block_count(shard, b);
        char *data = malloc(bytes);
        OK(pd_shard_read_blocks(shard, b, 0, count, data, err));
        cr_assert_eq(memcmp(data, f->data[b], bytes), 0, "box %u", b);
        blocks += count;
        const uint64_t last = bytes - (count - 1) * PD_SHARD_BLOCK_BYTES; /* backwards, one by one */
        for (uint64_t k = count; k-- > 0;) {
            OK(pd_shard_read_blocks(shard, b, k, 1, data, err));
            cr_assert_eq(
                memcmp(data, (char *)f->data[b] + k * PD_SHARD_BLOCK_BYTES, k + 1 == count ? last : PD_SHARD_BLOCK_BYTES),
                0);
        }
        free(data);
    }
    struct counting counting = {.f = f};
    const struct pd_shard_visitor visitor = {&counting, compare_block};
    OK(pd_shard_scan(shard, f->buffers, FIXTURE_BUFFER_BYTES, &visitor, err));
    cr_assert_eq(counting.blocks, blocks);
    OK(pd_shard_verify(shard, f->buffers, FIXTURE_BUFFER_BYTES, err));
    cr_assert(pd_shard_is_compressed(shard));
    pd_shard_close(shard);
}

Test(shard_compressed, odd_shapes_come_back)
{
    struct fixture f;
    struct pd_shard_summary summary, plain;
    add_odd_shapes(&f);
    save(&f, "s.h5", &ZSTD_3, FIXTURE_BUFFER_BYTES, &summary);
    check_contents(&f, "s.h5", &summary);
    save(&f, "p.h5", NULL, FIXTURE_BUFFER_BYTES, &plain);
    cr_assert_eq(plain.data_bytes, summary.data_bytes);
    cr_assert_lt(summary.file_bytes, plain.file_bytes * 7 / 10, "a third of it is zeros");
    fixture_deinit(&f);
}

/* Every cut covers its box once, in order, within the limits of the format. */
Test(shard_compressed, grids_cover_their_boxes)
{
    uint64_t random = 1;
    for (int i = 0; i < 20000; i++) {
        struct pd_box box = {{0}, {1, 1, 1, 1}};
        uint64_t shape[PD_TENSOR_DIMS_MAX], elements = 1, at = 0, chunk = 1, chunks = 1;
        struct pd_shard_grid grid;
        const uint32_t element = i % 2 ? 4 : 2;
        for (int d = 0; d < 4; d++)
            if (fixture_random(&random) % 3)
                box.count[d] = 1 + fixture_random(&random) % (UINT64_C(2) << fixture_random(&random) % 11);
        pd_shard_grid_cut(&box, element, shape, &grid);
        for (int d = 0; d < 4; d++) {
            elements *= box.count[d];
            chunk *= shape[d];
            chunks *= (box.count[d] + shape[d] - 1) / shape[d];
            cr_assert_leq(shape[d], box.count[d]);
        }
        cr_assert_eq(grid.chunk_bytes, chunk * element);
        cr_assert_leq(grid.chunk_bytes, PD_SHARD_CHUNK_MAX);
        cr_assert_eq(pd_shard_grid_count(&grid, elements * element), chunks);
        cr_assert_eq(elements * element % grid.run_bytes, 0);
        for (uint64_t c = 0; c < chunks; c++) {
            uint64_t begin = 0, bytes = pd_shard_grid_range(&grid, c, &begin);
            cr_assert(begin == at && bytes > 0 && bytes <= grid.chunk_bytes);
            cr_assert_eq(pd_shard_grid_find(&grid, begin), c);
            cr_assert_eq(pd_shard_grid_find(&grid, begin + bytes - 1), c);
            at += bytes;
        }
        cr_assert_eq(at, elements * element);
    }
    struct pd_shard_grid grid;
    uint64_t shape[PD_TENSOR_DIMS_MAX];
    pd_shard_grid_cut(&(struct pd_box){{0}, {4096, 768, 1, 1}}, 4, shape, &grid);
    cr_assert_eq(grid.chunk_bytes % PD_SHARD_BLOCK_BYTES, 0, "whole blocks where that can be");
}

static unsigned char *load_file(const char *path, uint64_t *ret_bytes)
{
    FILE *file = fopen(path, "rb");
    cr_assert(file && fseek(file, 0, SEEK_END) == 0);
    *ret_bytes = (uint64_t)ftell(file);
    unsigned char *data = malloc(*ret_bytes);
    cr_assert(data && fseek(file, 0, SEEK_SET) == 0 && fread(data, 1, *ret_bytes, file) == *ret_bytes);
    fclose(file);
    return data;
}

Test(shard_compressed, bytes_depend_on_the_level_alone)
{
    struct fixture f;
    struct pd_shard_summary first, again;
    char path[256];
    uint64_t bytes = 0, again_bytes = 0;
    add_odd_shapes(&f);
    fixture_path(&f, "s.h5", path, sizeof path);
    save(&f, "s.h5", &ZSTD_3, FIXTURE_BUFFER_BYTES, &first);
    unsigned char *data = load_file(path, &bytes);
    for (unsigned threads = 2; threads <= 9; threads += 7)
        for (uint64_t room = 4u << 20; room <= FIXTURE_BUFFER_BYTES; room *= 2) {
            struct pd_shard_codec codec = ZSTD_3;
            OK(pd_thread_pool_new(threads, &codec.pool, err));
            save(&f, "s.h5", &codec, room, &again);
            unsigned char *now = load_file(path, &again_bytes);
            cr_assert_eq(again_bytes, bytes);
            cr_assert_eq(memcmp(now, data, bytes), 0, "%u threads", threads);
            cr_assert_eq(memcmp(&again, &first, sizeof first), 0);
            free(now);
            pd_thread_pool_free(codec.pool);
        }
    struct pd_shard_codec nine = {.codec = PD_CODEC_ZSTD, .level = 9};
    save(&f, "s.h5", &nine, FIXTURE_BUFFER_BYTES, &again);
    cr_assert_neq(again.digest, first.digest);
    check_contents(&f, "s.h5", &again);
    free(data);
    fixture_deinit(&f);
}

/* Whatever lay in the file before and whatever the writer wrote before, the result is the same file. */
Test(shard_compressed, recycled_files_are_overwritten_whole)
{
    struct fixture f;
    struct pd_shard_summary summary, again;
    struct pd_shard_writer *writer = NULL;
    char path[256];
    uint64_t bytes = 0, again_bytes = 0;
    add_odd_shapes(&f);
    save(&f, "s.h5", &ZSTD_3, FIXTURE_BUFFER_BYTES, &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = load_file(path, &bytes);
    OK(pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, f.box_count, f.buffers, FIXTURE_BUFFER_BYTES, &ZSTD_3, &writer, err));
    for (int i = 0; i < 4; i++) {
        for (uint32_t b = 0; i % 2 && b < f.box_count; b++) /* a larger one in between, then the first again */
            if (b % 3 == 2) memset(f.data[b], 0x5a + (int)b, pd_box_elements(&f.boxes[b].box) * 4);
        if (i == 3) {
            FILE *file = fopen(path, "wb");
            unsigned char *garbage = malloc(2 * bytes);
            memset(garbage, 0xa5, 2 * bytes);
            cr_assert(file && fwrite(garbage, 1, 2 * bytes, file) == 2 * bytes && fclose(file) == 0);
            free(garbage);
        }
        OK(pd_shard_write(writer, path, &f.identity, 3, (const void *const *)f.data, &again, err));
        check_contents(&f, "s.h5", &again);
        for (uint32_t b = 2; b < f.box_count; b += 3)
            memset(f.data[b], 0, pd_box_elements(&f.boxes[b].box) * 4);
    }
    OK(pd_shard_write(writer, path, &f.identity, 3, (const void *const *)f.data, &again, err));
    unsigned char *now = load_file(path, &again_bytes);
    cr_assert_eq(again_bytes, bytes);
    cr_assert_eq(memcmp(now, data, bytes), 0);
    cr_assert_eq(memcmp(&again, &summary, sizeof summary), 0);
    pd_shard_writer_free(writer);
    free(now);
    free(data);
    fixture_deinit(&f);
}

/* As much as fits into one read of a load: opens and reads everything. */
static pd_status load_all(struct fixture *f, const char *path, const struct pd_shard_summary *expect, struct pd_error *error)
{
    struct pd_shard *shard = NULL;
    PD_TRY(pd_shard_open(f->vfs, path, &f->identity, expect, &shard, error));
    pd_status st = PD_OK;
    for (uint32_t b = 0; !st && b < pd_shard_box_count(shard); b++) {
        char *data = malloc(pd_shard_box_bytes(shard, b));
        st = pd_shard_read_blocks(shard, b, 0, pd_shard_block_count(shard, b), data, error);
        free(data);
    }
    pd_status verified = pd_shard_verify(shard, f->buffers, FIXTURE_BUFFER_BYTES, NULL);
    cr_assert_eq(verified, st, "verify and load agree");
    pd_shard_close(shard);
    return st;
}

/* Small boxes, one of a page, one that is kept as it is, one in several chunks of which the last is filled up. */
static void add_small_model(struct fixture *f)
{
    fixture_init(f, 5, 5);
    f->tensors.count = 0;
    static const uint64_t sizes[5][2] = {{40, 1}, {1024, 1}, {50, 30}, {20000, 1}, {70, 5000}};
    for (int t = 0; t < 5; t++)
        add_box(f, sizes[t][1] > 1 ? 2 : 1, sizes[t], NULL, 0);
}

static void flip(FILE *file, const unsigned char *data, uint64_t at, unsigned bit)
{
    const unsigned char byte = data[at] ^ (unsigned char)(1u << bit);
    cr_assert(fseek(file, (long)at, SEEK_SET) == 0 && fwrite(&byte, 1, 1, file) == 1 && fflush(file) == 0);
}

static void restore(FILE *file, const unsigned char *data, uint64_t at)
{
    cr_assert(fseek(file, (long)at, SEEK_SET) == 0 && fwrite(&data[at], 1, 1, file) == 1 && fflush(file) == 0);
}

Test(shard_compressed, every_flipped_bit_is_seen, .timeout = 600)
{
    struct fixture f;
    struct pd_shard_summary summary;
    char path[256];
    uint64_t bytes = 0, random = 7;
    add_small_model(&f);
    save(&f, "s.h5", &ZSTD_3, FIXTURE_BUFFER_BYTES, &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = load_file(path, &bytes);
    FILE *file = fopen(path, "r+b");
    const uint64_t flips = fixture_scale() >= 10 ? 10000 : 300;
    const struct pd_shard_head *head = (const void *)(data + summary.table_offset);
    const struct pd_shard_chunk_row *rows = (const void *)(data + summary.table_offset + head->chunks_at);
    for (uint64_t i = 0; i < flips; i++) {
        struct pd_error error = {0};
        uint64_t at = fixture_random(&random) % bytes;
        if (i % 3 == 1) at = fixture_random(&random) % rows[0].offset; /* metadata, table: few bytes, many meanings */
        if (i % 3 == 2) {                                              /* around the ends of chunks */
            const struct pd_shard_chunk_row *row = &rows[fixture_random(&random) % head->chunk_count];
            at = row->offset + row->stored_bytes - 8 + fixture_random(&random) % 16;
        }
        flip(file, data, at, i % 8);
        cr_assert_eq(load_all(&f, path, i % 2 ? &summary : NULL, &error), PD_CORRUPT, "byte %llu", (unsigned long long)at);
        cr_assert_not_null(strstr(error.message, path), "%s", error.message);
        restore(file, data, at);
    }
    fclose(file);
    struct pd_error error;
    cr_assert_eq(load_all(&f, path, &summary, &error), PD_OK, "%s", error.message);
    free(data);
    fixture_deinit(&f);
}

Test(shard_compressed, damage_names_file_tensor_and_chunk)
{
    struct fixture f;
    struct pd_shard_summary summary;
    struct pd_error error = {0};
    char path[256];
    uint64_t bytes = 0;
    add_small_model(&f);
    save(&f, "s.h5", &ZSTD_3, FIXTURE_BUFFER_BYTES, &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = load_file(path, &bytes);
    const struct pd_shard_head *head = (const void *)(data + summary.table_offset);
    const struct pd_shard_grid *grids = (const void *)(data + summary.table_offset + head->grids_at);
    const struct pd_shard_chunk_row *rows = (const void *)(data + summary.table_offset + head->chunks_at);
    cr_assert_eq(head->chunk_count, 5, "one each, and two of the last");
    FILE *file = fopen(path, "r+b");
    flip(file, data, rows[grids[3].first_chunk].offset + 50, 1); /* stored bytes of values */
    cr_assert_eq(load_all(&f, path, &summary, &error), PD_CORRUPT);
    cr_assert(strstr(error.message, "model.layers.3.weight, param, chunk 0 of 1") && strstr(error.message, "digest"), "%s",
              error.message);
    restore(file, data, rows[grids[3].first_chunk].offset + 50);
    cr_assert_eq(rows[grids[1].first_chunk].filter_mask, PD_SHARD_FILTERS_NONE);
    flip(file, data, rows[grids[1].first_chunk].offset + 50,
         1); /* noise, kept as it is: the checksum of a block covers it */
    cr_assert_eq(load_all(&f, path, &summary, &error), PD_CORRUPT);
    cr_assert(strstr(error.message, "model.layers.1.weight, exp_avg, block 0 of 1"), "%s", error.message);
    fclose(file);
    free(data);
    fixture_deinit(&f);
}

/* The n-th operation of a save fails: the error comes back, nothing hangs; the next save on a fresh file is whole. */
Test(shard_compressed, every_failing_operation_is_reported, .timeout = 600)
{
    struct fixture f;
    struct pd_simulated_disk *disk = NULL;
    struct pd_vfs *vfs = NULL;
    struct pd_shard_writer *writer = NULL;
    struct pd_shard_summary summary;
    struct pd_shard_codec codec = ZSTD_3;
    struct pd_error error = {0};
    const uint64_t sizes[4] = {40, 20000, 1200000, 1000000};
    fixture_init(&f, 4, 4);
    f.tensors.count = 0;
    for (int t = 0; t < 4; t++)
        add_box(&f, 1, &sizes[t], NULL, 0);
    const struct pd_disk_options options = {.seed = 1};
    OK(pd_thread_pool_new(2, &codec.pool, err));
    OK(pd_simulated_disk_new(&options, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    OK(pd_shard_writer_new(vfs, &f.tensors, f.boxes, f.box_count, f.buffers, FIXTURE_BUFFER_BYTES, &codec, &writer, err));
    static const int errors[] = {EIO, ENOSPC};
    for (int run = 0; run < 4; run++) {
        for (uint64_t nth = 1;; nth++) {
            const struct pd_disk_fault fault = {
                .kind = PD_DISK_FAULT_ERROR, .sys_errno = errors[run % 2], .nth = nth, .persistent = run > 1};
            pd_simulated_disk_set_fault(disk, &fault);
            pd_status st = pd_shard_write(writer, "/s.h5", &f.identity, 0, (const void *const *)f.data, &summary, &error);
            const bool fired = pd_simulated_disk_fired(disk) > 0;
            pd_simulated_disk_set_fault(disk, NULL);
            if (!fired) {
                cr_assert_eq(st, PD_OK);
                break;
            }
            if (st)
                cr_assert_eq(st, run % 2 ? PD_NO_SPACE : PD_IO, "operation %llu: %s", (unsigned long long)nth,
                             error.message);
            if (!st) { /* room that could not be reserved is no failure: less may be needed */
                cr_assert(errors[run % 2] == ENOSPC && run < 2);
                struct pd_shard *shard = NULL;
                OK(pd_shard_open(vfs, "/s.h5", &f.identity, &summary, &shard, err));
                OK(pd_shard_verify(shard, f.buffers, FIXTURE_BUFFER_BYTES, err));
                pd_shard_close(shard);
            }
            if (pd_vfs_unlink(vfs, "/s.h5", NULL) != PD_OK) continue;
        }
        struct pd_shard *shard = NULL;
        OK(pd_shard_open(vfs, "/s.h5", &f.identity, &summary, &shard, err));
        OK(pd_shard_verify(shard, f.buffers, FIXTURE_BUFFER_BYTES, err));
        pd_shard_close(shard);
        OK(pd_vfs_unlink(vfs, "/s.h5", err));
    }
    /* A read that fails is no damage; one that flips a bit once is none either. */
    OK(pd_shard_write(writer, "/s.h5", &f.identity, 0, (const void *const *)f.data, &summary, err));
    for (uint64_t nth = 1; nth < 30; nth++) {
        struct pd_shard *shard = NULL;
        pd_simulated_disk_set_fault(disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_FLIP, .nth = nth});
        OK(pd_shard_open(vfs, "/s.h5", &f.identity, &summary, &shard, err));
        OK(pd_shard_verify(shard, f.buffers, FIXTURE_BUFFER_BYTES, err));
        pd_shard_close(shard);
        shard = NULL;
        pd_simulated_disk_set_fault(disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_ERROR, .nth = nth});
        pd_status st = pd_shard_open(vfs, "/s.h5", &f.identity, &summary, &shard, &error);
        if (!st) st = pd_shard_verify(shard, f.buffers, FIXTURE_BUFFER_BYTES, &error);
        cr_assert_eq(st, pd_simulated_disk_fired(disk) && st ? PD_IO : PD_OK, "%s", error.message);
        pd_shard_close(shard);
        shard = NULL;
        pd_simulated_disk_set_fault(disk, NULL);
        OK(pd_shard_open(vfs, "/s.h5", &f.identity, &summary, &shard, err));
        pd_simulated_disk_set_fault(disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_FLIP, .nth = nth});
        for (uint32_t b = 0; b < f.box_count; b++)
            OK(pd_shard_read_blocks(shard, b, 0, pd_shard_block_count(shard, b), f.buffers, err));
        pd_shard_close(shard);
    }
    pd_simulated_disk_set_fault(disk, NULL);
    pd_shard_writer_free(writer);
    pd_thread_pool_free(codec.pool);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
    fixture_deinit(&f);
}

Test(shard_compressed, levels_that_do_not_exist_are_refused)
{
    struct fixture f;
    struct pd_error error;
    struct pd_shard_writer *writer = NULL;
    struct pd_shard_summary summary;
    add_small_model(&f);
    for (int level = -1; level < 30; level += 30 - 9) {
        struct pd_shard_codec codec = {.codec = PD_CODEC_ZSTD, .level = level};
        cr_assert_eq(pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, f.box_count, f.buffers, FIXTURE_BUFFER_BYTES, &codec,
                                         &writer, &error),
                     PD_INVALID);
        cr_assert_not_null(strstr(error.message, "levels are 1 to 19"), "%s", error.message);
    }
    f.box_count = 1; /* nothing in chunks, and nothing at all */
    save(&f, "s.h5", &ZSTD_3, FIXTURE_BUFFER_BYTES, &summary);
    check_contents(&f, "s.h5", &summary);
    f.box_count = 0;
    save(&f, "s.h5", &ZSTD_3, FIXTURE_BUFFER_BYTES, &summary);
    check_contents(&f, "s.h5", &summary);
    f.box_count = 5;
    fixture_deinit(&f);
}
