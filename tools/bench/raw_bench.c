#include "tools/bench/raw_bench.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/io/transfer_ring.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

struct pd_raw_bench {
    struct pd_vfs *vfs;
    struct pd_queue *queue;
    uint64_t block_bytes, buffer_bytes;
    uint32_t depth;
    char *buffers;                  /* of the slots */
    struct pd_transfer_slot *slots; /* (depth) */
    struct pd_transfer_ring ring;   /* for all runs: drained when one ends */
};

static void raw_bench_fill(char *data, uint64_t bytes)
{
    uint64_t *words = (uint64_t *)data;
    uint64_t state = 1;
    for (uint64_t i = 0; i < bytes / sizeof *words; i++) /* incompressible, so that no device saves work */
        words[i] = state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
}

pd_status pd_raw_bench_new(struct pd_vfs *vfs, uint64_t block_bytes, uint32_t depth, struct pd_raw_bench **ret_bench,
                           struct pd_error *err)
{
    struct pd_raw_bench *bench = calloc(1, sizeof *bench);
    if (!bench) PD_FAIL_ERRNO(err, ENOMEM, "raw disk benchmark");
    *bench = (struct pd_raw_bench){.vfs = vfs, .depth = depth ? depth : PD_RAW_DEPTH};
    bench->block_bytes = block_bytes ? block_bytes : PD_RAW_BLOCK_BYTES;
    bool fits =
        bench->block_bytes % PD_VFS_ALIGN == 0 && pd_checked_mul_u64(bench->block_bytes, bench->depth, &bench->buffer_bytes);
    pd_status st = PD_OK;
    if (!fits)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "blocks of %" PRIu64 " bytes are too large, or not a multiple of %u",
                          bench->block_bytes, PD_VFS_ALIGN);
    void *buffers =
        st ? MAP_FAILED : mmap(NULL, bench->buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffers != MAP_FAILED) {
        bench->buffers = buffers;
        madvise(buffers, bench->buffer_bytes, MADV_HUGEPAGE); /* as for a run's buffers; may fail */
    }
    bench->slots = calloc(bench->depth, sizeof *bench->slots);
    if (!st && (!bench->buffers || !bench->slots))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, ENOMEM, "%" PRIu64 " bytes of I/O buffers", bench->buffer_bytes);
    if (!st) raw_bench_fill(bench->buffers, bench->buffer_bytes);
    if (!st) st = pd_queue_open(vfs, bench->buffers, bench->buffer_bytes, &bench->queue, err);
    if (st) {
        pd_raw_bench_free(bench);
        return st;
    }
    if (bench->depth > pd_queue_depth(bench->queue)) bench->depth = pd_queue_depth(bench->queue);
    pd_transfer_ring_init(&bench->ring, bench->queue, bench->slots, bench->depth, bench->buffers, bench->block_bytes);
    *ret_bench = bench;
    return PD_OK;
}

void pd_raw_bench_free(struct pd_raw_bench *bench)
{
    if (!bench) return;
    pd_queue_close(bench->queue);
    if (bench->buffers) munmap(bench->buffers, bench->buffer_bytes);
    free(bench->slots);
    free(bench);
}

/* ---- moving ---- */

struct progress {
    struct pd_file *file;
    bool is_write;
    uint64_t next, bytes; /* offset of the next block */
};

/* Sends the next block of one of `count` (1 or 2) files moved at once. A slot stays with its first file, so that reads
 * and writes stay balanced, then helps the other file at the end; then it is released. */
static pd_status send_next(struct pd_raw_bench *bench, struct progress *files, uint32_t count, struct pd_transfer_slot *slot,
                           struct pd_error *err)
{
    struct progress *mine = &files[slot->number % count];
    if (mine->next == mine->bytes) mine = &files[(slot->number + 1) % count];
    const uint64_t left = mine->bytes - mine->next, bytes = left < bench->block_bytes ? left : bench->block_bytes;
    if (bytes == 0) {
        pd_transfer_ring_release(&bench->ring, slot);
        return PD_OK;
    }
    const struct pd_transfer transfer = {
        .file = mine->file, .offset = mine->next, .bytes = bytes, .is_write = mine->is_write};
    mine->next += bytes;
    return pd_transfer_ring_submit(&bench->ring, slot, &transfer, err);
}

static pd_status keep_moving(struct pd_raw_bench *bench, struct progress *files, uint32_t count, struct pd_error *err)
{
    for (uint32_t i = 0; i < bench->depth; i++)
        PD_TRY(send_next(bench, files, count, pd_transfer_ring_take(&bench->ring), err));
    for (;;) {
        struct pd_transfer_slot *slot = NULL;
        PD_TRY(pd_transfer_ring_next(&bench->ring, &slot, err));
        if (!slot) return PD_OK;
        PD_TRY(pd_transfer_error(&slot->transfer, err));
        PD_TRY(send_next(bench, files, count, slot, err));
    }
}

static pd_status move_all(struct pd_raw_bench *bench, struct progress *files, uint32_t count, struct pd_error *err)
{
    pd_status st = keep_moving(bench, files, count, err);
    return pd_transfer_ring_drain(&bench->ring, st, err);
}

static pd_status raw_bench_write_file(struct pd_raw_bench *bench, const char *path, uint64_t bytes, bool fresh,
                                      struct pd_error *err)
{
    struct progress progress = {.is_write = true, .bytes = bytes};
    PD_TRY(pd_file_open(bench->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &progress.file, err));
    pd_status st = PD_OK;
    if (fresh) {
        st = pd_file_preallocate(progress.file, bytes, err);
        if (st == PD_UNSUPPORTED) st = PD_OK;
    }
    if (!st) st = move_all(bench, &progress, 1, err);
    if (!st) st = pd_file_sync(progress.file, err);
    pd_status closed = pd_file_close(progress.file, st ? NULL : err);
    return st ? st : closed;
}

static bool is_recyclable(struct pd_vfs *vfs, const char *path, uint64_t bytes)
{
    struct pd_stat st;
    return pd_vfs_stat(vfs, path, &st, NULL) == PD_OK && st.bytes >= bytes && st.allocated_bytes >= bytes;
}

pd_status pd_raw_bench_write(struct pd_raw_bench *bench, const char *path, uint64_t bytes, enum pd_raw_state state,
                             double *ret_seconds, struct pd_error *err)
{
    if (!pd_checked_align_u64(bytes, PD_VFS_ALIGN, &bytes)) PD_FAIL(err, PD_INVALID, "%s: too many bytes", path);
    if (state == PD_RAW_FRESH) {
        pd_status st = pd_vfs_unlink(bench->vfs, path, err);
        if (st && st != PD_NOT_FOUND) return st;
    } else if (!is_recyclable(bench->vfs, path, bytes)) {
        PD_TRY(raw_bench_write_file(bench, path, bytes, true, err));
    }
    uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    PD_TRY(raw_bench_write_file(bench, path, bytes, state == PD_RAW_FRESH, err));
    *ret_seconds = pd_clock_seconds_since(start_ns);
    return PD_OK;
}

/* Time to open `count` files, move their bytes at once and close them. */
static pd_status move_timed(struct pd_raw_bench *bench, const char *const *paths, struct progress *files, uint32_t count,
                            double *ret_seconds, struct pd_error *err)
{
    const uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < count && !st; i++)
        st = pd_file_open(bench->vfs, paths[i], (files[i].is_write ? PD_OPEN_WRITE : PD_OPEN_READ) | PD_OPEN_DIRECT,
                          &files[i].file, err);
    if (!st) st = move_all(bench, files, count, err);
    for (uint32_t i = 0; i < count; i++) {
        const pd_status closed = files[i].file ? pd_file_close(files[i].file, st ? NULL : err) : PD_OK;
        if (!st) st = closed;
    }
    if (!st) *ret_seconds = pd_clock_seconds_since(start_ns);
    return st;
}

pd_status pd_raw_bench_read(struct pd_raw_bench *bench, const char *path, uint64_t bytes, double *ret_seconds,
                            struct pd_error *err)
{
    if (!pd_checked_align_u64(bytes, PD_VFS_ALIGN, &bytes)) PD_FAIL(err, PD_INVALID, "%s: too many bytes", path);
    return move_timed(bench, &path, &(struct progress){.bytes = bytes}, 1, ret_seconds, err);
}

pd_status pd_raw_bench_mixed(struct pd_raw_bench *bench, const char *read_path, const char *write_path, uint64_t bytes,
                             double *ret_seconds, struct pd_error *err)
{
    const char *const paths[2] = {read_path, write_path};
    if (!pd_checked_align_u64(bytes, PD_VFS_ALIGN, &bytes)) PD_FAIL(err, PD_INVALID, "%s: too many bytes", read_path);
    for (int i = 0; i < 2; i++)
        if (!is_recyclable(bench->vfs, paths[i], bytes)) PD_TRY(raw_bench_write_file(bench, paths[i], bytes, true, err));
    struct progress files[2] = {{.bytes = bytes}, {.is_write = true, .bytes = bytes}};
    return move_timed(bench, paths, files, 2, ret_seconds, err);
}
