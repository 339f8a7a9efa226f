#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"
#include "tests/simulated_disk/simulated_disk.h"
#include "tests/unit/shard/shard_fixture.h"

#include <errno.h>

/* Sizes around every boundary there is: pages, blocks, staging slots, zero-copy and staged. */
static void add_odd_shapes(struct fixture *f)
{
    static const uint64_t elements[] = {1,     2,     15,    1023,  1024,   1025,   2047,    2048,    16383,  16384,
                                        16385, 17408, 32768, 65537, 262144, 262145, 1048576, 1050001, 300000, 7};
    const uint32_t count = sizeof elements / sizeof *elements;
    fixture_init(f, count + 1, 3 * count + 2);
    for (uint32_t t = 0; t < count; t++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.weight", t);
        fixture_tensor(f, t, name, 1, elements[t], 1);
        const bool is_large = elements[t] > 200000; /* one kind of these: even ones are zero-copy, odd ones staged */
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            if (!is_large || kind == (t % 2 ? 0 : 1))
                fixture_box(f, t, (enum pd_kind)kind, pd_box_whole(&f->tensors.tensors[t]), kind == 1 ? 0 : 4u * t % 64);
    }
    fixture_tensor(f, count, "lm_head.weight", 2, 50, 30);
    fixture_box(f, count, PD_PARAM, (struct pd_box){{0, 0, 0, 0}, {1, 30, 1, 1}}, 4);
    fixture_box(f, count, PD_PARAM, (struct pd_box){{1, 10, 0, 0}, {49, 20, 1, 1}}, 0);
}

static void check_contents(struct fixture *f, const char *name, const struct pd_shard_summary *summary)
{
    char path[256];
    struct pd_shard *shard = NULL;
    fixture_path(f, name, path, sizeof path);
    OK(pd_shard_open(f->vfs, path, &f->identity, summary, &shard, err));
    cr_assert_eq(pd_shard_box_count(shard), f->box_count);
    for (uint32_t b = 0; b < f->box_count; b++) {
        const struct pd_shard_box *box = &pd_shard_boxes(shard)[b];
        cr_assert_str_eq(pd_shard_tensors(shard)->tensors[box->tensor].name, f->tensors.tensors[f->boxes[b].tensor].name);
        cr_assert_eq(memcmp(&box->box, &f->boxes[b].box, sizeof box->box), 0);
        cr_assert_eq(box->kind, f->boxes[b].kind);
        uint64_t bytes = pd_shard_box_bytes(shard, b);
        char *data = malloc(bytes);
        OK(pd_shard_read_blocks(shard, b, 0, pd_shard_block_count(shard, b), data, err));
        cr_assert_eq(memcmp(data, f->data[b], bytes), 0, "box %u", b);
        free(data);
    }
    OK(pd_shard_verify(shard, f->buffers, FIXTURE_BUFFER_BYTES, err));
    pd_shard_close(shard);
}

Test(shard, odd_shapes_come_back)
{
    struct fixture f;
    struct pd_shard_summary summary;
    add_odd_shapes(&f);
    fixture_save(&f, "s.h5", &summary);
    cr_assert_eq(summary.box_count, f.box_count);
    check_contents(&f, "s.h5", &summary);
    check_contents(&f, "s.h5", NULL);
    fixture_deinit(&f);
}

Test(shard, empty_shard)
{
    struct fixture f;
    struct pd_shard_summary summary;
    fixture_init(&f, 1, 0);
    fixture_tensor(&f, 0, "unused", 1, 5, 1);
    fixture_save(&f, "s.h5", &summary);
    check_contents(&f, "s.h5", &summary);
    fixture_deinit(&f);
}

/* A small shard with everything in it: small boxes, a box of one page, of several, with padding. */
static void add_small_model(struct fixture *f)
{
    fixture_init(f, 4, 12);
    fixture_tensor(f, 0, "a.weight", 1, 1500, 1);
    fixture_tensor(f, 1, "b.weight", 2, 40, 40);
    fixture_tensor(f, 2, "b.bias", 1, 40, 1);
    fixture_tensor(f, 3, "c.weight", 1, 40000, 1);
    for (uint32_t t = 0; t < 4; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            fixture_box(f, t, (enum pd_kind)kind, pd_box_whole(&f->tensors.tensors[t]), 0);
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

static void store_file(const char *path, const void *data, uint64_t bytes)
{
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

/* Opens and reads everything, as a load does. */
static pd_status load_all(struct fixture *f, const char *path, const struct pd_identity *identity,
                          const struct pd_shard_summary *expect, struct pd_error *error)
{
    struct pd_shard *shard = NULL;
    PD_TRY(pd_shard_open(f->vfs, path, identity, expect, &shard, error));
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

Test(shard, every_flipped_bit_is_seen, .timeout = 600)
{
    struct fixture f;
    struct pd_shard_summary summary;
    char path[256];
    uint64_t bytes = 0, random = 3;
    add_small_model(&f);
    fixture_save(&f, "s.h5", &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = load_file(path, &bytes);
    FILE *file = fopen(path, "r+b");
    const unsigned flips = fixture_scale() >= 10 ? 10000 : 250;
    for (unsigned i = 0; i < flips; i++) {
        struct pd_error error = {0};
        uint64_t bit = fixture_random(&random) % (bytes * 8);
        unsigned char byte = data[bit / 8] ^ (unsigned char)(1u << bit % 8);
        cr_assert(fseek(file, (long)(bit / 8), SEEK_SET) == 0 && fwrite(&byte, 1, 1, file) == 1 && fflush(file) == 0);
        cr_assert_eq(load_all(&f, path, &f.identity, i % 2 ? &summary : NULL, &error), PD_CORRUPT, "bit %llu",
                     (unsigned long long)bit);
        cr_assert_not_null(strstr(error.message, path), "%s", error.message);
        cr_assert(fseek(file, (long)(bit / 8), SEEK_SET) == 0 && fwrite(&data[bit / 8], 1, 1, file) == 1 &&
                  fflush(file) == 0);
    }
    fclose(file);
    struct pd_error error;
    cr_assert_eq(load_all(&f, path, &f.identity, &summary, &error), PD_OK);
    free(data);
    fixture_deinit(&f);
}

Test(shard, damage_names_file_tensor_and_block)
{
    struct fixture f;
    struct pd_shard_summary summary;
    struct pd_shard *shard = NULL;
    struct pd_error error = {0};
    char path[256];
    uint64_t bytes = 0;
    add_small_model(&f);
    fixture_save(&f, "s.h5", &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    OK(pd_shard_open(f.vfs, path, &f.identity, &summary, &shard, err));
    uint64_t offset = pd_shard_box_offset(shard, 10) + 2 * PD_SHARD_BLOCK_BYTES + 3; /* c.weight, exp_avg, third block */
    uint64_t padding = pd_shard_box_offset(shard, 0) + 6000;
    pd_shard_close(shard);
    unsigned char *data = load_file(path, &bytes);
    data[offset] ^= 1;
    store_file(path, data, bytes);
    cr_assert_eq(load_all(&f, path, &f.identity, &summary, &error), PD_CORRUPT);
    cr_assert(strstr(error.message, path) && strstr(error.message, "c.weight, exp_avg, block 2 of 3"), "%s", error.message);
    data[offset] ^= 1;
    cr_assert_eq(data[padding], 0);
    data[padding] = 1;
    store_file(path, data, bytes);
    cr_assert_eq(load_all(&f, path, &f.identity, &summary, &error), PD_CORRUPT);
    cr_assert(strstr(error.message, "a.weight, param, block 0 of 1") && strstr(error.message, "padding"), "%s",
              error.message);
    free(data);
    fixture_deinit(&f);
}

Test(shard, truncated_stale_swapped_and_missing)
{
    struct fixture f;
    struct pd_shard_summary summary, other_summary;
    struct pd_error error = {0};
    char path[256], other[256];
    uint64_t bytes = 0;
    add_small_model(&f);
    fixture_save(&f, "s.h5", &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    fixture_path(&f, "t.h5", other, sizeof other);
    unsigned char *data = load_file(path, &bytes);
    for (uint64_t n = 0; n < bytes; n += 4096) {
        store_file(other, data, n);
        cr_assert_eq(load_all(&f, other, &f.identity, &summary, &error), PD_CORRUPT, "%llu", (unsigned long long)n);
        cr_assert_eq(load_all(&f, other, NULL, NULL, &error), PD_CORRUPT, "%llu", (unsigned long long)n);
    }
    store_file(other, data, bytes - 1);
    cr_assert_eq(load_all(&f, other, &f.identity, NULL, &error), PD_CORRUPT);

    f.identity.step++; /* the same file, one step later */
    fixture_save(&f, "t.h5", &other_summary);
    struct pd_identity now = f.identity, before = now;
    before.step--;
    cr_assert_eq(load_all(&f, path, &now, &other_summary, &error), PD_CORRUPT, "stale");
    cr_assert_eq(load_all(&f, path, &now, NULL, &error), PD_CORRUPT);
    cr_assert_not_null(strstr(error.message, "step 7"), "%s", error.message);
    before.run_id[0]++;
    cr_assert_eq(load_all(&f, path, &before, NULL, &error), PD_CORRUPT);
    cr_assert_not_null(strstr(error.message, "run"), "%s", error.message);
    other_summary.box_count++;
    cr_assert_eq(load_all(&f, other, &now, &other_summary, &error), PD_CORRUPT);

    /* Blocks of the stale file do not verify in the new one, wherever they come from. */
    uint64_t new_bytes = 0;
    unsigned char *new_data = load_file(other, &new_bytes);
    cr_assert_eq(new_bytes, bytes);
    other_summary.box_count--;
    const struct pd_shard_summary unchanged = other_summary;
    float changed = 1.5f;
    memcpy(f.data[9], &changed, sizeof changed);
    fixture_save(&f, "t.h5", &other_summary);
    cr_assert_eq(load_all(&f, other, &now, &unchanged, &error), PD_CORRUPT,
                 "whole, of the same step, and not what was committed");
    cr_assert_not_null(strstr(error.message, "it is another shard or another step"), "%s", error.message);
    struct pd_shard *shard = NULL;
    OK(pd_shard_open(f.vfs, other, &now, &other_summary, &shard, err));
    uint64_t at = pd_shard_box_offset(shard, 9);
    pd_shard_close(shard);
    unsigned char *mixed = load_file(other, &new_bytes);
    memcpy(mixed + at, data + at, PD_SHARD_BLOCK_BYTES);
    store_file(other, mixed, bytes);
    cr_assert_eq(load_all(&f, other, &now, &other_summary, &error), PD_CORRUPT);

    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(load_all(&f, path, &f.identity, &summary, &error), PD_NOT_FOUND);
    cr_assert_not_null(strstr(error.message, path));
    free(data);
    free(new_data);
    free(mixed);
    fixture_deinit(&f);
}

Test(shard, newer_version_is_refused_and_said_so)
{
    struct fixture f;
    struct pd_shard_summary summary;
    struct pd_error error = {0};
    char path[256];
    uint64_t bytes = 0;
    add_small_model(&f);
    fixture_save(&f, "s.h5", &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = load_file(path, &bytes);
    struct pd_shard_trailer *trailer = (void *)(data + bytes - sizeof *trailer);
    trailer->version = PD_SHARD_FORMAT_LATEST + 1;
    trailer->self_digest = pd_digest64(trailer, sizeof *trailer - 8, 0);
    store_file(path, data, bytes);
    cr_assert_eq(load_all(&f, path, &f.identity, &summary, &error), PD_UNSUPPORTED);
    cr_assert_not_null(strstr(error.message, "version 7"), "%s", error.message);
    free(data);
    fixture_deinit(&f);
}

/* Whatever lay in the file before, longer or shorter, the result is the same file. */
Test(shard, recycled_files_are_overwritten_whole)
{
    struct fixture f;
    struct pd_shard_summary summary, again;
    char path[256];
    uint64_t bytes = 0, again_bytes = 0;
    add_odd_shapes(&f);
    fixture_save(&f, "s.h5", &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = load_file(path, &bytes);
    static const int64_t changes[] = {-4096 * 3, 0, 4096 * 5, 12345};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint64_t old_bytes = bytes + (uint64_t)changes[i];
        unsigned char *garbage = malloc(old_bytes);
        memset(garbage, 0xa5, old_bytes);
        store_file(path, garbage, old_bytes);
        free(garbage);
        fixture_save(&f, "s.h5", &again);
        unsigned char *now = load_file(path, &again_bytes);
        cr_assert_eq(again_bytes, bytes);
        for (uint64_t b = 0; b < bytes; b++)
            cr_assert_eq(now[b], data[b], "case %zu, %02x %02x byte %llu of %llu", i, now[b], data[b], (unsigned long long)b,
                         (unsigned long long)bytes);
        cr_assert_eq(memcmp(&again, &summary, sizeof summary), 0);
        free(now);
    }
    free(data);
    fixture_deinit(&f);
}

Test(shard, a_writer_is_reused_by_every_thread_and_step)
{
    struct fixture f;
    struct pd_shard_summary summary;
    struct pd_shard_writer *writer = NULL;
    char path[256];
    add_odd_shapes(&f);
    fixture_path(&f, "s.h5", path, sizeof path);
    OK(pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, f.box_count, f.buffers, FIXTURE_BUFFER_BYTES, NULL, &writer, err));
    cr_assert_gt(pd_shard_writer_bytes(writer), 8u * 100);
    for (uint64_t step = 1; step < 6; step++) {
        f.identity.step = step;
        fixture_fill(f.data[30], 100, step);
        OK(pd_shard_write(writer, path, &f.identity, 1, (const void *const *)f.data, &summary, err));
        cr_assert_eq(summary.file_bytes, pd_shard_writer_file_bytes(writer));
        check_contents(&f, "s.h5", &summary);
    }
    pd_shard_writer_free(writer);
    fixture_deinit(&f);
}

Test(shard, thousands_of_boxes)
{
    struct fixture f;
    struct pd_shard_summary summary;
    const uint32_t rows = 3000;
    fixture_init(&f, 2, rows);
    fixture_tensor(&f, 0, "wide.weight", 2, rows, 1100);
    fixture_tensor(&f, 1, "narrow.weight", 2, rows, 3);
    for (uint32_t r = 0; r < rows; r++)
        fixture_box(&f, r % 2, PD_PARAM, (struct pd_box){{r, 0, 0, 0}, {1, r % 2 ? 3 : 1100, 1, 1}}, 0);
    fixture_save(&f, "s.h5", &summary);
    check_contents(&f, "s.h5", &summary);
    fixture_deinit(&f);
}

Test(shard, bad_requests_are_refused)
{
    static const char *const names[] = {"", "a/b", "a%b", "with space", ".", "[0:1]"};
    struct fixture f;
    struct pd_error error;
    struct pd_shard_writer *writer = NULL;
    fixture_init(&f, 1, 1);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        fixture_tensor(&f, 0, names[n], 1, 8, 1);
        f.boxes[0] = (struct pd_shard_box){0, PD_PARAM, pd_box_whole(&f.tensors.tensors[0])};
        cr_assert_eq(
            pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, 1, f.buffers, FIXTURE_BUFFER_BYTES, NULL, &writer, &error),
            PD_INVALID, "%s", names[n]);
    }
    fixture_tensor(&f, 0, "good", 1, 8, 1);
    f.boxes[0] = (struct pd_shard_box){0, PD_PARAM, {{4, 0, 0, 0}, {5, 1, 1, 1}}};
    cr_assert_eq(pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, 1, f.buffers, FIXTURE_BUFFER_BYTES, NULL, &writer, &error),
                 PD_INVALID);
    cr_assert_not_null(strstr(error.message, "good"));
    f.boxes[0].tensor = 1;
    cr_assert_eq(pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, 1, f.buffers, FIXTURE_BUFFER_BYTES, NULL, &writer, &error),
                 PD_INVALID);
    fixture_deinit(&f);
}

/* The n-th operation of a save fails: the error comes back, nothing hangs; the next save on a fresh file is whole. */
Test(shard, every_failing_operation_is_reported, .timeout = 600)
{
    struct fixture f;
    struct pd_simulated_disk *disk = NULL;
    struct pd_vfs *vfs = NULL;
    struct pd_shard_writer *writer = NULL;
    struct pd_shard_summary summary;
    struct pd_error error = {0};
    fixture_init(&f, 3, 3);
    fixture_tensor(&f, 0, "small", 1, 40, 1);
    fixture_tensor(&f, 1, "staged", 1, 20000, 1);
    fixture_tensor(&f, 2, "zero-copy", 1, 1200000, 1);
    for (uint32_t t = 0; t < 3; t++)
        fixture_box(&f, t, PD_PARAM, pd_box_whole(&f.tensors.tensors[t]), 0);
    const struct pd_disk_options options = {.seed = 1};
    OK(pd_simulated_disk_new(&options, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    OK(pd_shard_writer_new(vfs, &f.tensors, f.boxes, f.box_count, f.buffers, FIXTURE_BUFFER_BYTES, NULL, &writer, err));
    static const int errors[] = {EIO, ENOSPC};
    for (int e = 0; e < 2; e++) {
        for (int persistent = 0; persistent < 2; persistent++) {
            for (uint64_t nth = 1;; nth++) {
                const struct pd_disk_fault fault = {
                    .kind = PD_DISK_FAULT_ERROR, .sys_errno = errors[e], .nth = nth, .persistent = persistent != 0};
                pd_simulated_disk_set_fault(disk, &fault);
                pd_status st =
                    pd_shard_write(writer, "/s.h5", &f.identity, 0, (const void *const *)f.data, &summary, &error);
                bool fired = pd_simulated_disk_fired(disk) > 0;
                pd_simulated_disk_set_fault(disk, NULL);
                if (!fired) {
                    cr_assert_eq(st, PD_OK);
                    break;
                }
                /* The first one asks whether the file lies in memory: not to know is to take it for a disk. */
                const bool is_question = nth == 1 && !persistent;
                cr_assert_eq(st,
                             is_question ? PD_OK
                             : e         ? PD_NO_SPACE
                                         : PD_IO,
                             "operation %llu: %s", (unsigned long long)nth, error.message);
                if (pd_vfs_unlink(vfs, "/s.h5", NULL) != PD_OK) continue;
            }
            struct pd_shard *shard = NULL;
            OK(pd_shard_open(vfs, "/s.h5", &f.identity, &summary, &shard, err));
            OK(pd_shard_verify(shard, f.buffers, FIXTURE_BUFFER_BYTES, err));
            pd_shard_close(shard);
            OK(pd_vfs_unlink(vfs, "/s.h5", err));
        }
    }
    /* A read that fails is no damage; one that flips a bit once is none either. */
    OK(pd_shard_write(writer, "/s.h5", &f.identity, 0, (const void *const *)f.data, &summary, err));
    for (uint64_t nth = 1; nth < 25; nth++) {
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
    }
    pd_simulated_disk_set_fault(disk, NULL);
    pd_shard_writer_free(writer);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
    fixture_deinit(&f);
}

/* Most of the file is data: the table and the trailer are walked apart, so that no field of theirs is left to chance. */
Test(shard, no_byte_of_table_and_trailer_is_uncovered)
{
    struct fixture f;
    struct pd_shard_summary summary;
    char path[256];
    uint64_t bytes = 0;
    add_small_model(&f);
    fixture_save(&f, "s.h5", &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    unsigned char *data = load_file(path, &bytes);
    FILE *file = fopen(path, "r+b");
    for (uint64_t at = summary.table_offset; at < bytes; at += at < summary.table_offset + 2600 ? 3 : 89) {
        struct pd_shard *shard = NULL;
        unsigned char byte = data[at] ^ (unsigned char)(1u << at % 8);
        cr_assert(fseek(file, (long)at, SEEK_SET) == 0 && fwrite(&byte, 1, 1, file) == 1 && fflush(file) == 0);
        cr_assert_eq(pd_shard_open(f.vfs, path, &f.identity, at % 2 ? &summary : NULL, &shard, NULL), PD_CORRUPT,
                     "byte %llu", (unsigned long long)at);
        cr_assert(fseek(file, (long)at, SEEK_SET) == 0 && fwrite(&data[at], 1, 1, file) == 1 && fflush(file) == 0);
    }
    fclose(file);
    free(data);
    fixture_deinit(&f);
}

/* Equal data has other checksums in another run, lineage, step, tensor, kind, place or block. */
Test(shard, seeds_tell_everything_apart)
{
    const struct pd_identity base = {{1, 2}, 3, 4};
    struct pd_identity others[4] = {base, base, base, base};
    others[0].run_id[0]++;
    others[1].run_id[1]++;
    others[2].lineage++;
    others[3].step++;
    struct pd_box box = {{5, 6, 0, 0}, {1, 1, 1, 1}}, moved = {{6, 5, 0, 0}, {1, 1, 1, 1}};
    uint64_t seed = pd_shard_box_seed(&base, 9, PD_PARAM, &box);
    for (int i = 0; i < 4; i++) {
        cr_assert_neq(pd_shard_box_seed(&others[i], 9, PD_PARAM, &box), seed);
        cr_assert_neq(pd_shard_table_seed(&others[i]), pd_shard_table_seed(&base));
    }
    cr_assert_neq(pd_shard_box_seed(&base, 8, PD_PARAM, &box), seed);
    cr_assert_neq(pd_shard_box_seed(&base, 9, PD_EXP_AVG, &box), seed);
    cr_assert_neq(pd_shard_box_seed(&base, 9, PD_PARAM, &moved), seed);
    cr_assert_neq(pd_shard_block_digest(seed, 0, &box, sizeof box), pd_shard_block_digest(seed, 1, &box, sizeof box));
    cr_assert_neq(pd_shard_block_digest(seed, 0, &box, sizeof box), pd_shard_block_digest(seed + 1, 0, &box, sizeof box));
}
