/* perdure bench io: the queue that saves and loads use, against threads that call pwrite and pread on the same kind of file.
 */
#include "ckpt/io/raw_bench.h"
#include "tools/bench/bare.h"
#include "tools/bench/bench.h"
#include "tools/bench/room.h"

enum measure { WRITE_FRESH, WRITE_RECYCLED, READ, MEASURES };

struct io_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    struct pd_raw_bench *queue;
    struct pd_bare *bare;
    char queue_path[4096], bare_path[4096];
    enum measure measure; /* under way */
    struct pd_pairs pairs[MEASURES];
};

static pd_status run_queue(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct io_bench *b = bench;
    PD_TRY(pd_bench_room_settle(&b->room, err));
    if (b->measure == READ) return pd_raw_bench_read(b->queue, b->queue_path, b->options.bytes, ret_seconds, err);
    return pd_raw_bench_write(b->queue, b->queue_path, b->options.bytes,
                              b->measure == WRITE_FRESH ? PD_RAW_FRESH : PD_RAW_RECYCLED, ret_seconds, err);
}

static pd_status run_bare(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct io_bench *b = bench;
    PD_TRY(pd_bench_room_settle(&b->room, err));
    if (b->measure == READ) return pd_bare_read(b->bare, b->bare_path, b->options.bytes, ret_seconds, err);
    return pd_bare_write(b->bare, b->bare_path, b->options.bytes, b->measure == WRITE_FRESH, ret_seconds, err);
}

static pd_status measure_all(struct io_bench *b, struct pd_error *err)
{
    PD_TRY(pd_raw_bench_new(b->room.vfs, 0, 0, &b->queue, err));
    PD_TRY(pd_bare_new(PD_RAW_BLOCK_BYTES, PD_RAW_DEPTH, &b->bare, err));
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
    bool done;
    struct pd_option options[] = {PD_BENCH_ROOM_OPTIONS(&b.options), {0}};
    const struct pd_usage usage = {
        .doc =
            "The I/O queue of saves and loads against threads that call pwrite and pread: direct transfers of 4 MiB, 8 in "
            "flight, open to fdatasync and close, alternated. write_ratio, read_ratio: throughput of ours / bare, 1 is "
            "the ceiling.",
        .options = options,
        .json = &b.options.json};
    PD_TRY(pd_command_parse(&usage, argc, argv, &done, err));
    if (done) return PD_OK;
    b.options.bytes = b.options.bytes / PD_VFS_ALIGN * PD_VFS_ALIGN;
    PD_TRY(pd_bench_room_open(b.options.dir, 2 * b.options.bytes, true, &b.room, err));
    pd_status st = measure_all(&b, err);
    if (!st) st = print(&b, err);
    pd_raw_bench_free(b.queue);
    pd_bare_free(b.bare);
    pd_bench_room_close(&b.room);
    return st;
}
