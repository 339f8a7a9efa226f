/* Spans that leave memory come back as they were, on every VFS and with every cut; what does not is told. */
#include "offload/spill.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPANS = 5, BLOCK = 65536 };

static const uint64_t span_bytes[SPANS] = {1, 4096, BLOCK + 17, 0, 5 * (1u << 20) + 3};

static uint64_t room_of(uint32_t span)
{
    return (span_bytes[span] + 4095) / 4096 * 4096;
}

static void fill(unsigned char *data, uint64_t bytes, unsigned salt)
{
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((i + salt) * 2654435761u >> 13);
}

static void *take(uint32_t span)
{
    void *data = aligned_alloc(4096, room_of(span) ? room_of(span) : 4096);
    cr_assert_not_null(data);
    memset(data, 0xee, room_of(span));
    return data;
}

static struct pd_spill *make(struct pd_vfs *vfs, const char *path, struct pd_thread_pool *pool)
{
    struct pd_error err;
    struct pd_spill *spill;
    const struct pd_spill_options options = {
        .vfs = vfs, .path = path, .block_bytes = BLOCK, .span_bytes = span_bytes, .span_count = SPANS, .pool = pool};
    cr_assert_eq(pd_spill_new(&options, &spill, &err), PD_OK, "%s", err.message);
    return spill;
}

static void round_trip(struct pd_vfs *vfs, const char *path, struct pd_thread_pool *pool)
{
    struct pd_error err;
    struct pd_stat stat;
    unsigned char *out[SPANS], *in[SPANS];
    struct pd_spill *spill = make(vfs, path, pool);
    cr_assert_eq(pd_vfs_stat(vfs, path, &stat, &err), PD_NOT_FOUND, "the scratch file has no name");
    for (uint32_t i = 0; i < SPANS; i++)
        out[i] = take(i), in[i] = take(i);
    for (unsigned round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < SPANS; i++) {
            if (!span_bytes[i]) continue;
            fill(out[i], span_bytes[i], round * 7 + i);
            cr_assert_eq(pd_spill_write(spill, i, out[i], &err), PD_OK, "%s", err.message);
        }
        for (uint32_t i = 0; i < SPANS; i++)
            cr_assert_eq(pd_spill_wait(spill, i, &err), PD_OK, "%s", err.message);
        for (uint32_t i = SPANS; i-- > 0;)
            if (span_bytes[i]) cr_assert_eq(pd_spill_read(spill, i, in[i], &err), PD_OK, "%s", err.message);
        for (uint32_t i = 0; i < SPANS; i++) {
            cr_assert_eq(pd_spill_wait(spill, i, &err), PD_OK, "%s", err.message);
            cr_assert(memcmp(in[i], out[i], span_bytes[i]) == 0, "round %u, span %u", round, i);
        }
    }
    pd_spill_free(spill);
    for (uint32_t i = 0; i < SPANS; i++)
        free(out[i]), free(in[i]);
}

Test(spill, round_trip)
{
    struct pd_error err;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perdure-spill-%d", (int)getpid());
    for (int rung = 0; rung < 2; rung++) {
        struct pd_vfs *vfs;
        struct pd_thread_pool *pool = NULL;
        pd_status st = rung ? pd_vfs_new_threads(4, 2, &vfs, &err) : pd_vfs_new_uring(4, &vfs, &err);
        cr_assert_eq(st, PD_OK, "%s", err.message);
        if (rung) cr_assert_eq(pd_thread_pool_new(2, &pool, &err), PD_OK);
        round_trip(vfs, path, pool);
        pd_thread_pool_free(pool);
        pd_vfs_free(vfs);
    }
}

/* In the file without a name that a path had. */
static void write_over(const char *path, const unsigned char *what)
{
    char name[32], target[96];
    unsigned char page[4096];
    ssize_t length = 0;
    int fd = 2, file;
    do {
        snprintf(name, sizeof name, "/proc/self/fd/%d", ++fd);
        length = readlink(name, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = '\0';
    } while (fd < 256 && strncmp(target, path, strlen(path)) != 0);
    file = open(name, O_RDWR | O_CLOEXEC);
    cr_assert_geq(file, 0);
    off_t at = 0;
    while (pread(file, page, sizeof page, at) == (ssize_t)sizeof page && memcmp(page, what, sizeof page) != 0)
        at += (off_t)sizeof page;
    memset(page, 0, sizeof page);
    cr_assert_eq(pwrite(file, page, sizeof page, at), (ssize_t)sizeof page);
    close(file);
}

/* If one block overwrites another, the error names its span; the other blocks are still fine. */
Test(spill, damage_is_told)
{
    struct pd_error err;
    struct pd_vfs *vfs;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perdure-spill-damage-%d", (int)getpid());
    cr_assert_eq(pd_vfs_new_threads(4, 2, &vfs, &err), PD_OK);
    struct pd_spill *spill = make(vfs, path, NULL);
    unsigned char *data = take(4);
    fill(data, span_bytes[4], 1);
    cr_assert_eq(pd_spill_write(spill, 4, data, &err), PD_OK);
    cr_assert_eq(pd_spill_wait(spill, 4, &err), PD_OK);
    write_over(path, data + 7 * BLOCK);
    cr_assert_eq(pd_spill_read(spill, 4, data, &err), PD_OK);
    cr_assert_eq(pd_spill_wait(spill, 4, &err), PD_CORRUPT);
    cr_assert_not_null(strstr(err.message, "differs from what was written"), "%s", err.message);
    pd_spill_free(spill);
    free(data);
    pd_vfs_free(vfs);
}

/* Every operation of a write and a read fails once: an error, or the right bytes; never others, never a hang. */
Test(spill, every_operation_fails)
{
    static const struct {
        enum pd_disk_fault_kind kind;
        int number;
    } kinds[] = {{PD_DISK_FAULT_ERROR, 5}, {PD_DISK_FAULT_ERROR, 28}, {PD_DISK_FAULT_SHORT, 0},
                 {PD_DISK_FAULT_TORN, 0},  {PD_DISK_FAULT_LOST, 0},   {PD_DISK_FAULT_MISDIRECTED, 0}};
    uint32_t told = 0;
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (uint64_t nth = 1;; nth++) {
            struct pd_error err;
            struct pd_simulated_disk *disk;
            struct pd_vfs *vfs;
            struct pd_spill *spill;
            const struct pd_spill_options options = {
                .path = "/scratch", .block_bytes = BLOCK, .span_bytes = span_bytes, .span_count = SPANS};
            const struct pd_disk_options room = {.host_count = 1, .seed = nth};
            cr_assert_eq(pd_simulated_disk_new(&room, &disk, &err), PD_OK, "%s", err.message);
            cr_assert_eq(pd_simulated_disk_vfs(disk, 0, &vfs, &err), PD_OK);
            struct pd_spill_options o = options;
            o.vfs = vfs;
            pd_simulated_disk_set_fault(
                disk, &(struct pd_disk_fault){.kind = kinds[k].kind, .sys_errno = kinds[k].number, .nth = nth});
            unsigned char *out = take(4), *in = take(4);
            fill(out, span_bytes[4], 3);
            pd_status st = pd_spill_new(&o, &spill, &err);
            if (!st) {
                st = pd_spill_write(spill, 4, out, &err);
                if (!st) st = pd_spill_wait(spill, 4, &err);
                if (!st) st = pd_spill_read(spill, 4, in, &err);
                if (!st) st = pd_spill_wait(spill, 4, &err);
                if (!st)
                    cr_assert(memcmp(in, out, span_bytes[4]) == 0, "kind %u, operation %llu", k, (unsigned long long)nth);
                pd_spill_free(spill);
            }
            told += st != PD_OK;
            const bool fired = pd_simulated_disk_fired(disk) > 0;
            free(out);
            free(in);
            pd_vfs_free(vfs);
            pd_simulated_disk_free(disk);
            if (!fired) break;
        }
    }
    cr_assert_gt(told, 10);
}
