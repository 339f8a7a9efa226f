/* perdure bench io: the queue that saves and loads use, against threads that call pwrite and pread on the same kind of file:
 * no engine, no batching. Thread i takes blocks i, i + depth, i + 2 depth, ...: a synchronous program that keeps as many
 * transfers in flight as the queue does. */
#include "ckpt/base/clock.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/io/raw_bench.h"
#include "tools/bench/bench.h"
#include "tools/bench/room.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum measure { WRITE_FRESH, WRITE_RECYCLED, READ, MEASURES };

struct io_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    struct pd_raw_bench *queue;
    char queue_path[4096], bare_path[4096];
    enum measure measure; /* under way */
    struct pd_pairs pairs[MEASURES];
    /* Of the bare side. */
    struct pd_thread_pool *threads;
    char *buffers;                /* (PD_RAW_DEPTH, PD_RAW_BLOCK_BYTES) */
    int fd, failed[PD_RAW_DEPTH]; /* errno; -1: the file ended early */
};

static pd_status run_queue(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct io_bench *b = bench;
    PD_TRY(pd_bench_room_settle(&b->room, err));
    if (b->measure == READ) return pd_raw_bench_read(b->queue, b->queue_path, b->options.bytes, ret_seconds, err);
    return pd_raw_bench_write(b->queue, b->queue_path, b->options.bytes,
                              b->measure == WRITE_FRESH ? PD_RAW_FRESH : PD_RAW_RECYCLED, ret_seconds, err);
}

static int move_block(const struct io_bench *b, char *buffer, uint64_t offset, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t moved = b->measure == READ ? pread(b->fd, buffer + done, bytes - done, (off_t)(offset + done))
                                           : pwrite(b->fd, buffer + done, bytes - done, (off_t)(offset + done));
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return moved ? errno : -1;
        done += (uint64_t)moved;
    }
    return 0;
}

static void move_blocks(void *context, uint64_t index)
{
    struct io_bench *b = context;
    const uint64_t block = PD_RAW_BLOCK_BYTES, all = b->options.bytes;
    b->failed[index] = 0;
    for (uint64_t at = index * block; at < all && !b->failed[index]; at += block * PD_RAW_DEPTH)
        b->failed[index] = move_block(b, b->buffers + index * block, at, all - at < block ? all - at : block);
}

/* From open to the end of fdatasync and close. A fresh file is new and preallocated, a recycled one is overwritten. */
static pd_status run_bare(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct io_bench *b = bench;
    const bool is_fresh = b->measure == WRITE_FRESH;
    PD_TRY(pd_bench_room_settle(&b->room, err));
    if (is_fresh && unlink(b->bare_path) && errno != ENOENT) PD_FAIL_ERRNO(err, errno, "%s: removing", b->bare_path);
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    b->fd =
        open(b->bare_path,
             O_DIRECT | O_CLOEXEC | (b->measure == READ ? O_RDONLY : O_WRONLY) | (is_fresh ? O_CREAT | O_EXCL : 0), 0666);
    if (b->fd < 0) PD_FAIL_ERRNO(err, errno, "%s: opening with O_DIRECT", b->bare_path);
    int failed = is_fresh && fallocate(b->fd, 0, 0, (off_t)b->options.bytes) && errno != EOPNOTSUPP ? errno : 0;
    if (!failed) pd_parallel(b->threads, PD_RAW_DEPTH, move_blocks, b);
    for (uint32_t i = 0; i < PD_RAW_DEPTH && !failed; i++)
        failed = b->failed[i];
    if (!failed && b->measure != READ && fdatasync(b->fd)) failed = errno;
    if (close(b->fd) && !failed) failed = errno;
    if (failed < 0) PD_FAIL(err, PD_CORRUPT, "%s: ends early", b->bare_path);
    if (failed) PD_FAIL_ERRNO(err, failed, "%s: %s", b->bare_path, b->measure == READ ? "reading" : "writing");
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

static pd_status measure_all(struct io_bench *b, struct pd_error *err)
{
    void *buffers;
    PD_TRY(pd_raw_bench_new(b->room.vfs, 0, 0, &b->queue, err));
    PD_TRY(pd_thread_pool_new(PD_RAW_DEPTH, &b->threads, err));
    PD_TRY(pd_bench_map(PD_RAW_DEPTH * PD_RAW_BLOCK_BYTES, &buffers, err));
    b->buffers = buffers;
    pd_bench_fill(buffers, PD_RAW_DEPTH * PD_RAW_BLOCK_BYTES / sizeof(float),
                  1); /* no zeros, which some drives do not write */
    pd_bench_room_path(&b->room, "queue", b->queue_path);
    pd_bench_room_path(&b->room, "bare", b->bare_path);
    for (uint64_t pair = 0; pair < b->options.pairs; pair++)
        for (b->measure = 0; b->measure < MEASURES; b->measure++)
            PD_TRY(pd_pairs_measure(&b->pairs[b->measure], b, run_queue, run_bare, err));
    return PD_OK;
}

static pd_status print(const struct io_bench *b, struct pd_error *err)
{
    static const char *const keys[MEASURES] = {"write_ratio", "write_ratio_recycled", "read_ratio"};
    struct pd_pairs_summary results[MEASURES];
    struct pd_report r;
    pd_report_begin(&r, b->options.json);
    for (int m = 0; m < MEASURES; m++) {
        results[m] = pd_pairs_summarise_throughput(&b->pairs[m]);
        pd_bench_report_ratio(&r, keys[m], &results[m]);
    }
    pd_report_double(&r, "write_bytes_per_second", (double)b->options.bytes / results[WRITE_FRESH].candidate_s,
                     PD_UNIT_BYTES_PER_SECOND);
    pd_report_double(&r, "read_bytes_per_second", (double)b->options.bytes / results[READ].candidate_s,
                     PD_UNIT_BYTES_PER_SECOND);
    pd_report_u64(&r, "bytes", b->options.bytes, PD_UNIT_BYTES);
    pd_report_u64(&r, "pairs", b->options.pairs, PD_UNIT_NONE);
    pd_report_text(&r, "engine", pd_vfs_describe(b->room.vfs));
    return pd_report_end(&r, err);
}

pd_status pd_bench_io(int argc, char **argv, struct pd_error *err)
{
    struct io_bench b = {.options = {.dir = ".", .bytes = UINT64_C(512) << 20, .pairs = 7}};
    struct pd_option options[] = {PD_BENCH_ROOM_OPTIONS(&b.options), {0}};
    const struct pd_usage usage = {
        .doc =
            "The I/O queue of saves and loads against threads that call pwrite and pread: direct transfers of 4 MiB, 8 in "
            "flight, open to fdatasync and close, alternated. write_ratio, read_ratio: throughput of ours / bare, 1 is "
            "the ceiling.",
        .options = options,
        .json = &b.options.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    b.options.bytes = b.options.bytes / PD_VFS_ALIGN * PD_VFS_ALIGN;
    PD_TRY(pd_bench_room_open(b.options.dir, 2 * b.options.bytes, true, &b.room, err));
    pd_status st = measure_all(&b, err);
    if (!st) st = print(&b, err);
    pd_raw_bench_free(b.queue);
    pd_thread_pool_free(b.threads);
    pd_bench_room_close(&b.room);
    return st;
}
