/* perdure bench io: the queue that saves and loads use, against threads that call pwrite and pread on the same kind of file.
 */
#include "ckpt/io/raw_bench.h"
#include "tools/bench/bare.h"
#include "tools/bench/bench.h"
#include "tools/bench/room.h"
#include "tools/output.h"

#include <stdio.h>

enum measure { WRITE_FRESH, WRITE_RECYCLED, READ, MEASURES };
static const char *const measure_names[MEASURES] = {"write, fresh", "write, recycled", "read"};

struct io_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    struct pd_raw_bench *queue;
    struct pd_bare *bare;
    char queue_path[4096], bare_path[4096];
    struct pd_pairs pairs[MEASURES];
};

static pd_status run_queue(struct io_bench *b, enum measure measure, double *ret_seconds, struct pd_error *err)
{
    PD_TRY(pd_bench_room_settle(&b->room, err));
    if (measure == READ) return pd_raw_bench_read(b->queue, b->queue_path, b->options.bytes, ret_seconds, err);
    return pd_raw_bench_write(b->queue, b->queue_path, b->options.bytes,
                              measure == WRITE_FRESH ? PD_RAW_FRESH : PD_RAW_RECYCLED, ret_seconds, err);
}

static pd_status run_bare(struct io_bench *b, enum measure measure, double *ret_seconds, struct pd_error *err)
{
    PD_TRY(pd_bench_room_settle(&b->room, err));
    if (measure == READ) return pd_bare_read(b->bare, b->bare_path, b->options.bytes, ret_seconds, err);
    return pd_bare_write(b->bare, b->bare_path, b->options.bytes, measure == WRITE_FRESH, ret_seconds, err);
}

/* Who goes first changes from pair to pair, so that neither profits from what the other left in a cache. */
static pd_status run_pair(struct io_bench *b, uint64_t pair, enum measure measure, struct pd_error *err)
{
    double queue = 0, bare = 0;
    if (pair % 2) PD_TRY(run_bare(b, measure, &bare, err));
    PD_TRY(run_queue(b, measure, &queue, err));
    if (pair % 2 == 0) PD_TRY(run_bare(b, measure, &bare, err));
    pd_pairs_add(&b->pairs[measure], queue, bare);
    return PD_OK;
}

static pd_status measure_all(struct io_bench *b, struct pd_error *err)
{
    PD_TRY(pd_raw_bench_new(b->room.vfs, 0, 0, &b->queue, err));
    PD_TRY(pd_bare_new(PD_RAW_BLOCK_BYTES, PD_RAW_DEPTH, &b->bare, err));
    pd_bench_room_path(&b->room, "queue", b->queue_path);
    pd_bench_room_path(&b->room, "bare", b->bare_path);
    for (uint64_t pair = 0; pair < b->options.pairs; pair++)
        for (int measure = 0; measure < MEASURES; measure++)
            PD_TRY(run_pair(b, pair, (enum measure)measure, err));
    return PD_OK;
}

static pd_status print(const struct io_bench *b, const struct pd_pairs_summary *results, struct pd_error *err)
{
    if (!b->options.json) {
        printf("%s, %s a file in %s\n", pd_vfs_describe(b->room.vfs), pd_text_bytes(b->options.bytes).text, b->options.dir);
        for (int m = 0; m < MEASURES; m++)
            pd_bench_print_ratio(measure_names[m], "bare calls", b->options.bytes, (uint32_t)b->options.pairs, &results[m]);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_bench_json_ratio(&w, "write_ratio", &results[WRITE_FRESH]);
    pd_bench_json_ratio(&w, "write_ratio_recycled", &results[WRITE_RECYCLED]);
    pd_bench_json_ratio(&w, "read_ratio", &results[READ]);
    pd_json_double(&w, "write_bytes_per_second", (double)b->options.bytes / results[WRITE_FRESH].candidate_s);
    pd_json_double(&w, "read_bytes_per_second", (double)b->options.bytes / results[READ].candidate_s);
    pd_json_u64(&w, "bytes", b->options.bytes);
    pd_json_u64(&w, "pairs", b->options.pairs);
    pd_json_string(&w, "engine", pd_vfs_describe(b->room.vfs));
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

pd_status pd_bench_io(int argc, char **argv, struct pd_error *err)
{
    struct io_bench b = {.options = {.dir = ".", .bytes = UINT64_C(512) << 20, .pairs = 7}};
    struct pd_pairs_summary results[MEASURES];
    bool done;
    PD_TRY(pd_bench_parse(
        "The I/O queue of saves and loads against threads that call pwrite and pread: direct transfers of 4 MiB, 8 in "
        "flight, open to fdatasync and close, alternated. write_ratio, read_ratio: throughput of ours / bare, 1 is "
        "the ceiling.",
        argc, argv, &b.options, &done, err));
    if (done) return PD_OK;
    b.options.bytes = b.options.bytes / PD_VFS_ALIGN * PD_VFS_ALIGN;
    PD_TRY(pd_bench_room_open(b.options.dir, 2 * b.options.bytes, &b.room, err));
    pd_status st = measure_all(&b, err);
    for (int m = 0; !st && m < MEASURES; m++)
        results[m] = pd_pairs_summarise_throughput(&b.pairs[m]);
    if (!st) st = print(&b, results, err);
    pd_raw_bench_free(b.queue);
    pd_bare_free(b.bare);
    pd_bench_room_close(&b.room);
    return st;
}
