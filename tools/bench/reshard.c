/* perdure bench reshard: loads a GPT-2 shaped checkpoint under other layouts and rewrites it, against raw direct I/O of
 * as many bytes. The offline rewrites come first, so that they define the largest resident memory. */
#include "resharder/convert/reshard.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "resharder/load/load.h"
#include "tools/bench/bench.h"
#include "tools/bench/raw_bench.h"
#include "trainer/comm/comm.h"
#include "trainer/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define FILL_BYTES (UINT64_C(2) << 20)

enum { LOADERS = 2 };

struct reshard_bench {
    struct pd_bench_options options;
    struct pd_bench_dir dir;
    struct pd_group group; /* of one rank */
    struct pd_model *model;
    struct pd_layout stored, loaded, rewritten;
    struct pd_commit commit;
    char source[4096];
    uint64_t data_bytes, file_bytes;
    struct pd_raw_bench *raw;
    void *rewrite_buffers; /* touched, like the raw side's */
    struct pd_bench_memory loaders[LOADERS];
    struct pd_load_report reports[LOADERS];
    struct pd_pairs load_pairs, offline_pairs;
    uint64_t peak_rss_bytes;
    double offline_cpu_s; /* CPU time of the last rewrite, which a faster disk would not reduce */
};

/* ---- layouts and model ---- */

static void make_layout(struct pd_layout *l, uint32_t dp, uint32_t tp, uint32_t pp, uint32_t units)
{
    pd_layout_init_dp(l, dp);
    l->tp = tp, l->pp = pp;
    l->virtual_tp = 4;
    l->stage_count = pp;
    for (uint32_t s = 0; s < pp; s++)
        l->first_unit[s] = (uint16_t)(s * units / pp);
}

/* ---- making the source in bounded memory ---- */

static pd_status make_box(struct pd_shard_stream *stream, uint32_t box, uint64_t offset, uint64_t bytes, uint64_t seed,
                          unsigned char *buffer, struct pd_error *err)
{
    for (uint64_t at = 0; at < bytes; at += FILL_BYTES) {
        const uint64_t length = bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES;
        const uint64_t pages = pd_round_up(length, PD_VFS_ALIGN);
        memset(buffer + length, 0, pages - length);
        pd_bench_fill((float *)(void *)buffer, length / sizeof(float), seed + at);
        for (uint64_t b = 0; b < length; b += PD_SHARD_BLOCK_BYTES) {
            const uint64_t left = length - b, block = left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES;
            pd_shard_stream_block(stream, box, (at + b) / PD_SHARD_BLOCK_BYTES, buffer + b, block);
        }
        if (bytes >= PD_VFS_ALIGN) PD_TRY(pd_file_write(pd_shard_stream_file(stream), offset + at, buffer, pages, err));
    }
    return PD_OK;
}

static pd_status make_boxes(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                            uint32_t rank, const struct pd_shard_box *boxes, uint32_t count, unsigned char *buffer,
                            struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct pd_shard_stream *stream = NULL;
    PD_TRY(pd_shard_stream_begin(writer, path, identity, rank, &stream, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < count; i++)
        st = make_box(stream, i, pd_shard_writer_box_offset(writer, i), pd_box_elements(&boxes[i].box) * sizeof(float),
                      rank * 1000003u + i, buffer, err);
    if (!st) return pd_shard_stream_finish(stream, ret_summary, err);
    pd_shard_stream_abort(stream);
    return st;
}

static pd_status make_shard(struct reshard_bench *b, uint32_t rank, unsigned char *buffers, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &b->model->tensors;
    struct pd_shard_box *boxes = NULL;
    struct pd_shard_writer *writer = NULL;
    uint32_t count = 0;
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/shard-%05u.h5", b->source, rank);
    pd_status st = pd_layout_shard_boxes(&b->stored, tensors, rank, &boxes, &count, err);
    if (!st)
        st = pd_shard_writer_new(b->dir.vfs, tensors, boxes, count, buffers + FILL_BYTES, PD_BENCH_IO_BYTES - FILL_BYTES,
                                 NULL, &writer, err);
    if (!st)
        st = make_boxes(writer, path, &b->commit.state.identity, rank, boxes, count, buffers, &b->commit.shards[rank], err);
    pd_shard_writer_free(writer);
    free(boxes);
    return st;
}

static pd_status write_record(const struct reshard_bench *b, struct pd_error *err)
{
    char path[4096 + 32];
    void *data = NULL;
    uint64_t bytes = 0;
    struct pd_file *file = NULL;
    snprintf(path, sizeof path, "%s/commit.h5", b->source);
    PD_TRY(pd_commit_encode(&b->commit, &data, &bytes, err));
    pd_status st = pd_file_open(b->dir.vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err);
    if (!st) st = pd_file_write(file, 0, data, bytes, err);
    const pd_status closed = pd_file_close(file, st ? NULL : err);
    free(data);
    return st ? st : closed;
}

static pd_status make_source(struct reshard_bench *b, struct pd_error *err)
{
    const uint32_t world = pd_layout_world(&b->stored);
    unsigned char *buffers = aligned_alloc(PD_VFS_ALIGN, PD_BENCH_IO_BYTES);
    pd_status st = PD_OK;
    pd_bench_dir_path(&b->dir, "source", b->source);
    b->commit = (struct pd_commit){.shard_count = world, .shards = calloc(world, sizeof *b->commit.shards)};
    b->commit.state = (struct pd_run_state){.identity = {.run_id = {1, 2}, .lineage = 1, .step = 1},
                                            .loss_scale = 1,
                                            .layout = b->stored,
                                            .tensor_count = b->model->tensors.count,
                                            .parameter_count = b->model->parameter_count,
                                            .created_by = "perdure bench",
                                            .config = strdup("bench: true\n"),
                                            .environment = strdup("{}")};
    if (!buffers || !b->commit.shards || !b->commit.state.config || !b->commit.state.environment)
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "bench: no memory");
    if (!st) st = pd_vfs_mkdir(b->dir.vfs, b->source, err);
    for (uint32_t r = 0; !st && r < world; r++) {
        st = make_shard(b, r, buffers, err);
        b->data_bytes += b->commit.shards[r].data_bytes;
        b->file_bytes += b->commit.shards[r].file_bytes;
    }
    free(buffers);
    return st ? st : write_record(b, err);
}

/* ---- the raw side ---- */

static pd_status read_raw(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct reshard_bench *b = bench;
    *ret_seconds = 0;
    for (uint32_t s = 0; s < b->commit.shard_count; s++) {
        char path[4096 + 32];
        double seconds = 0;
        snprintf(path, sizeof path, "%s/shard-%05u.h5", b->source, s);
        PD_TRY(pd_raw_bench_read(b->raw, path, b->commit.shards[s].file_bytes, &seconds, err));
        *ret_seconds += seconds;
    }
    return PD_OK;
}

/* ---- offline ---- */

static pd_status rewrite_ours(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct reshard_bench *b = bench;
    char target[4096];
    PD_TRY(pd_bench_dir_remove(&b->dir, "target", err));
    pd_bench_dir_path(&b->dir, "target", target);
    PD_TRY(pd_vfs_mkdir(b->dir.vfs, target, err));
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    const struct pd_store_options options = {.writable = true, .keep_last = 1};
    struct pd_store *store = NULL;
    PD_TRY(pd_store_open(b->dir.vfs, target, &options, &b->group, &store, err));
    const struct pd_import_request request = {.source = b->source,
                                              .ours = &b->commit,
                                              .tensors = &b->model->tensors,
                                              .layout = &b->rewritten,
                                              .target = store,
                                              .buffers = b->rewrite_buffers};
    const double cpu_before = pd_bench_processor_seconds();
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_status st = pd_reshard(b->dir.vfs, &request, NULL, err);
    *ret_seconds = pd_clock_seconds_since(start);
    b->offline_cpu_s = pd_bench_processor_seconds() - cpu_before;
    pd_store_close(store);
    return st;
}

static pd_status rewrite_raw(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct reshard_bench *b = bench;
    char path[4096];
    double writing = 0;
    PD_TRY(pd_bench_dir_remove(&b->dir, "raw", err));
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    pd_bench_dir_path(&b->dir, "raw", path);
    PD_TRY(pd_raw_bench_write(b->raw, path, b->file_bytes, PD_RAW_FRESH, &writing, err));
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    PD_TRY(read_raw(b, ret_seconds, err));
    *ret_seconds += writing;
    return pd_bench_dir_remove(&b->dir, "raw", err);
}

/* ---- loads ---- */

struct loading {
    struct reshard_bench *b;
    const char *directory;
    const struct pd_commit *commit;
};

static pd_status load_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct loading *l = context;
    struct pd_bench_memory *m = &l->b->loaders[comm->rank];
    struct pd_group group;
    const struct pd_load_request request = {.directory = l->directory,
                                            .commit = l->commit,
                                            .tensors = &l->b->model->tensors,
                                            .wanted = &l->b->loaded,
                                            .kinds = (1u << PD_KIND_COUNT) - 1,
                                            .buffers = m->io_buffers,
                                            .buffer_bytes = PD_BENCH_IO_BYTES,
                                            .destination = pd_bench_memory_box,
                                            .context = m};
    pd_comm_group(comm, &group);
    return pd_load(l->b->dir.vfs, &group, &request, &l->b->reports[comm->rank], err);
}

static pd_status reshard_load(struct reshard_bench *b, const char *directory, const struct pd_commit *commit,
                              double *ret_seconds, struct pd_error *err)
{
    struct loading l = {b, directory, commit};
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_status st = pd_comm_run_local(LOADERS, 1, load_rank, &l, err);
    *ret_seconds = pd_clock_seconds_since(start);
    return st;
}

static uint64_t memory_digest(const struct reshard_bench *b)
{
    uint64_t digests[LOADERS];
    for (int r = 0; r < LOADERS; r++)
        digests[r] = pd_digest64(b->loaders[r].data, b->loaders[r].bytes, 0);
    return pd_digest_words(digests, LOADERS, 0);
}

/* The rewritten checkpoint must load like its source, or the speed means nothing. */
static pd_status check_rewritten(struct reshard_bench *b, struct pd_error *err)
{
    const struct pd_store_options look = {.keep_last = 1};
    struct pd_store *store = NULL;
    struct pd_commit commit = {0};
    char target[4096], directory[4096];
    double unused;
    PD_TRY(reshard_load(b, b->source, &b->commit, &unused, err));
    const uint64_t digest = memory_digest(b);
    for (int r = 0; r < LOADERS; r++)
        memset(b->loaders[r].data, 0, b->loaders[r].bytes);
    pd_bench_dir_path(&b->dir, "target", target);
    PD_TRY(pd_store_open(b->dir.vfs, target, &look, &b->group, &store, err));
    pd_status st =
        pd_store_count(store) == 1 ? PD_OK : pd_error_set(err, PD_BUG, PD_WHERE, 0, "bench: no checkpoint was rewritten");
    if (!st) st = pd_store_read_commit(store, pd_store_entry_at(store, 0), &commit, err);
    if (!st) pd_store_entry_path(store, pd_store_entry_at(store, 0), directory);
    if (!st) st = reshard_load(b, directory, &commit, &unused, err);
    pd_commit_deinit(&commit);
    pd_store_close(store);
    if (!st && memory_digest(b) != digest) PD_FAIL(err, PD_BUG, "bench: a rewritten checkpoint loads as another state");
    return st;
}

/* ---- all of it ---- */

static pd_status load_source(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct reshard_bench *b = bench;
    return reshard_load(b, b->source, &b->commit, ret_seconds, err);
}

static pd_status reshard_measure_all(struct reshard_bench *b, struct pd_error *err)
{
    struct rusage usage;
    pd_group_init_single(&b->group);
    PD_TRY(b->options.experts ? pd_bench_model_of_experts(b->options.bytes, b->options.experts, &b->model, err)
                              : pd_bench_model_of_bytes(b->options.bytes, &b->model, err));
    make_layout(&b->stored, 3, 2, 1, b->model->unit_count);
    make_layout(&b->loaded, LOADERS, 1, 1, b->model->unit_count);
    make_layout(&b->rewritten, 1, 4, 2, b->model->unit_count);
    PD_TRY(make_source(b, err));
    PD_TRY(pd_raw_bench_new(b->dir.vfs, 0, 0, &b->raw, err));
    PD_TRY(pd_bench_map(PD_RESHARD_BUFFER_BYTES, &b->rewrite_buffers, err));
    for (uint64_t pair = 0; pair < b->options.pairs; pair++)
        PD_TRY(pd_pairs_measure(&b->offline_pairs, b, rewrite_ours, rewrite_raw, err));
    (void)getrusage(RUSAGE_SELF, &usage);
    b->peak_rss_bytes = (uint64_t)usage.ru_maxrss * 1024;
    for (uint32_t r = 0; r < LOADERS; r++)
        PD_TRY(pd_bench_memory_new(&b->loaded, &b->model->tensors, r, &b->loaders[r], err));
    PD_TRY(check_rewritten(b, err));
    for (uint64_t pair = 0; pair < b->options.pairs; pair++)
        PD_TRY(pd_pairs_measure(&b->load_pairs, b, load_source, read_raw, err));
    return PD_OK;
}

static void reshard_release(struct reshard_bench *b)
{
    for (uint32_t r = 0; r < LOADERS; r++)
        pd_bench_memory_deinit(&b->loaders[r]);
    pd_raw_bench_free(b->raw);
    pd_commit_deinit(&b->commit);
    pd_model_free(b->model);
    pd_bench_dir_close(&b->dir); /* memory is freed at exit */
}

static void read_totals(const struct reshard_bench *b, double *ret_amplification, double *ret_worst)
{
    uint64_t read = 0, most = 0;
    for (uint32_t r = 0; r < LOADERS; r++) {
        read += b->reports[r].bytes_read;
        if (b->reports[r].bytes_read > most) most = b->reports[r].bytes_read;
    }
    *ret_amplification = (double)read / (double)b->data_bytes;
    *ret_worst = (double)most * LOADERS / (double)read;
}

static pd_status reshard_print(const struct reshard_bench *b, struct pd_error *err)
{
    const struct pd_pairs_summary loads = pd_pairs_summarise_throughput(&b->load_pairs),
                                  offline = pd_pairs_summarise(&b->offline_pairs);
    double amplification, worst;
    read_totals(b, &amplification, &worst);
    struct pd_report r;
    pd_report_begin(&r, b->options.json);
    pd_bench_report_ratio(&r, "load_ratio", &loads);
    pd_report_double(&r, "load_bytes_per_second", (double)b->data_bytes / loads.candidate_s, PD_UNIT_BYTES_PER_SECOND);
    pd_report_double(&r, "read_amplification", amplification, PD_UNIT_NONE);
    pd_report_double(&r, "read_share_worst", worst, PD_UNIT_NONE);
    pd_bench_report_ratio(&r, "offline_ratio", &offline);
    pd_report_double(&r, "offline_seconds", offline.candidate_s, PD_UNIT_SECONDS);
    pd_report_double(&r, "offline_cpu_seconds", b->offline_cpu_s, PD_UNIT_SECONDS);
    pd_report_u64(&r, "peak_rss_bytes", b->peak_rss_bytes, PD_UNIT_BYTES);
    pd_report_u64(&r, "state_bytes", b->data_bytes, PD_UNIT_BYTES);
    pd_report_u64(&r, "pairs", b->options.pairs, PD_UNIT_NONE);
    pd_report_text(&r, "engine", pd_vfs_describe(b->dir.vfs));
    return pd_report_end(&r, err);
}

pd_status pd_bench_reshard(int argc, char **argv, struct pd_error *err)
{
    struct reshard_bench b = {.options = {.dir = ".", .bytes = UINT64_C(1) << 30, .pairs = 3}};
    struct pd_option options[] = {PD_BENCH_DIR_OPTIONS(&b.options), PD_BENCH_EXPERTS_OPTION(&b.options), {0}};
    const struct pd_usage usage = {
        .doc = "A checkpoint loaded by two ranks and rewritten offline, each under another layout, against raw direct reads "
               "and writes of as many bytes, alternated. load_ratio: throughput of ours / raw. offline_ratio: seconds of "
               "ours / raw, 1 when reading and writing take turns.",
        .options = options,
        .json = &b.options.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    PD_TRY(pd_bench_dir_open(b.options.dir, 4 * b.options.bytes, true, &b.dir, err));
    pd_status st = reshard_measure_all(&b, err);
    if (!st) st = reshard_print(&b, err);
    reshard_release(&b);
    return st;
}
