/* perdure bench objects: uploads a checkpoint to a bucket and loads it as a run does. Compares that with raw libcurl
 * requests for the same bytes, as many at once, without signatures or checksums. Both sides use the same server, which must
 * accept unsigned requests. */
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/objects/http.h"
#include "ckpt/objects/upload.h"
#include "ckpt/store/store.h"
#include "resharder/load/load.h"
#include "tools/bench/bench.h"
#include "trainer/model/model.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD "shard-00000.h5"
#define PIECE_BYTES (UINT64_C(8) << 20)
#define UPLOAD_THREADS 8u    /* as pd_upload_file */
#define SAVES 3u             /* the third can reuse a file, as most saves of a run do */
#define DOWNLOAD_THREADS 16u /* as a queue of pd_vfs_new_objects */

struct objects_bench {
    struct pd_bench_options options;
    const char *url; /* s3://bucket/prefix */
    struct pd_bench_dir dir;
    struct pd_bench_bucket to;
    struct pd_http *http; /* of the raw side */
    struct pd_group group;
    struct pd_thread_pool *pool; /* as large as a run of one rank has it */
    struct pd_model *model;
    struct pd_layout layout;
    struct pd_bench_memory memory; /* holds the state */
    struct pd_upload upload;
    struct pd_store *local;
    char directory[4096]; /* of the checkpoint on disk */
    uint64_t file_bytes;
    double save_s; /* of the last save */
    void *raw;     /* (file_bytes) of the raw side */
    struct pd_pairs up, down;
    struct pd_pairs up_work, down_work; /* CPU time of this process, the server's is not in it */
    double work_s[2];                   /* of the current pair: ours, raw */
};

/* ---- the raw side ---- */

struct objects_raw {
    struct objects_bench *b;
    bool is_upload;
    _Atomic uint64_t next; /* the next piece to take */
    pthread_mutex_t mutex; /* guards the fields below: the first failure */
    pd_status status;
    struct pd_error err;
};

static pd_status raw_move(struct objects_raw *r, uint64_t piece, struct pd_error *err)
{
    struct objects_bench *b = r->b;
    char key[PD_OBJECT_KEY_MAX + 1], url[PD_BUCKET_URL_MAX], range[96] = "";
    const uint64_t begin = piece * PIECE_BYTES, left = b->file_bytes - begin,
                   bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    const struct iovec into = {(char *)b->raw + begin, bytes};
    struct pd_http_response response;
    if (r->is_upload)
        snprintf(key, sizeof key, "%.900s/raw-%" PRIu64, b->to.prefix, piece);
    else
        snprintf(key, sizeof key, "%.900s/" SHARD, b->to.prefix);
    pd_bucket_url(b->to.bucket, key, url);
    if (!r->is_upload) snprintf(range, sizeof range, "range: bytes=%" PRIu64 "-%" PRIu64 "\n", begin, begin + bytes - 1);
    const struct pd_http_request request = {.method = r->is_upload ? "PUT" : "GET",
                                            .url = url,
                                            .headers = range,
                                            .body = r->is_upload ? into.iov_base : NULL,
                                            .body_bytes = r->is_upload ? bytes : 0,
                                            .into = r->is_upload ? NULL : &into,
                                            .into_count = r->is_upload ? 0 : 1};
    PD_TRY(pd_http_run(b->http, &request, &response, err));
    const int code = response.code;
    pd_http_response_deinit(&response);
    if (code / 100 == 2) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "%s answered an unsigned request with HTTP %d. bench objects compares with unsigned requests: use a server that "
            "accepts them (weed without -s3.config)",
            pd_bucket_endpoint(b->to.bucket), code);
}

static void *raw_main(void *context)
{
    struct objects_raw *r = context;
    const uint64_t pieces = (r->b->file_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    for (uint64_t piece; (piece = atomic_fetch_add(&r->next, 1)) < pieces;) {
        struct pd_error err = {0};
        const pd_status st = raw_move(r, piece, &err);
        if (!st) continue;
        pthread_mutex_lock(&r->mutex);
        if (!r->status) r->err = err;
        r->status = st;
        pthread_mutex_unlock(&r->mutex);
        break;
    }
    return NULL;
}

static pd_status raw_run(struct objects_bench *b, bool is_upload, double *ret_seconds, struct pd_error *err)
{
    const uint32_t count = is_upload ? UPLOAD_THREADS : DOWNLOAD_THREADS;
    struct objects_raw r = {.b = b, .is_upload = is_upload};
    pthread_t threads[DOWNLOAD_THREADS];
    uint32_t started = 0;
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    pthread_mutex_init(&r.mutex, NULL);
    const double work = pd_bench_processor_seconds();
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    while (started < count && !pd_thread_start(&threads[started], NULL, raw_main, &r))
        started++;
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    *ret_seconds = pd_clock_seconds_since(start);
    b->work_s[1] = pd_bench_processor_seconds() - work;
    pthread_mutex_destroy(&r.mutex);
    if (started < count) PD_FAIL(err, PD_UNSUPPORTED, "bench objects: cannot start %" PRIu32 " threads", count);
    return pd_error_pass(err, r.status, &r.err);
}

static pd_status raw_up(void *bench, double *ret_seconds, struct pd_error *err)
{
    return raw_run(bench, true, ret_seconds, err);
}

static pd_status raw_down(void *bench, double *ret_seconds, struct pd_error *err)
{
    return raw_run(bench, false, ret_seconds, err);
}

/* ---- ours ---- */

static pd_status up(struct objects_bench *b, const char *name, struct pd_error *err)
{
    char path[4096 + 64], key[PD_OBJECT_KEY_MAX + 1];
    snprintf(path, sizeof path, "%s/%s", b->directory, name);
    snprintf(key, sizeof key, "%.900s/%s", b->to.prefix, name);
    return pd_upload_file(&b->upload, path, key, err);
}

static pd_status our_up(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct objects_bench *b = bench;
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    const double work = pd_bench_processor_seconds();
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(up(b, SHARD, err));
    *ret_seconds = pd_clock_seconds_since(start);
    b->work_s[0] = pd_bench_processor_seconds() - work;
    return PD_OK;
}

static pd_status our_down(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct objects_bench *b = bench;
    struct pd_commit commit = {0};
    char path[PD_OBJECT_KEY_MAX + 128];
    PD_TRY(pd_store_read_commit(b->local, pd_store_entry_at(b->local, 0), &commit, err));
    snprintf(path, sizeof path, "s3://%s/%s", b->to.place.bucket, b->to.prefix);
    const struct pd_load_request request = {.directory = path,
                                            .commit = &commit,
                                            .tensors = &b->model->tensors,
                                            .wanted = &b->layout,
                                            .kinds = (1u << PD_KIND_COUNT) - 1,
                                            .buffers = b->memory.io_buffers,
                                            .buffer_bytes = PD_BENCH_IO_BYTES,
                                            .pool = b->pool,
                                            .destination = pd_bench_memory_box,
                                            .context = &b->memory};
    pd_status st = pd_bench_dir_settle(&b->dir, err);
    const double work = pd_bench_processor_seconds();
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    if (!st) st = pd_load(b->dir.vfs, &b->group, &request, NULL, err);
    *ret_seconds = pd_clock_seconds_since(start);
    b->work_s[0] = pd_bench_processor_seconds() - work;
    pd_commit_deinit(&commit);
    return st;
}

/* ---- a checkpoint on disk ---- */

static pd_status objects_save(struct objects_bench *b, struct pd_shard_writer *writer, const void *const *data,
                              uint64_t step, struct pd_error *err)
{
    struct pd_run_state state = {.identity = {.run_id = {1, 2}, .lineage = 1, .step = step},
                                 .fence = pd_store_fence(b->local),
                                 .loss_scale = 1.0,
                                 .layout = b->layout,
                                 .tensor_count = b->model->tensors.count,
                                 .parameter_count = b->model->parameter_count,
                                 .created_by = "perdure bench",
                                 .config = (char[]){"bench: true\n"}};
    struct pd_shard_summary summary = {0};
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_store_begin(b->local, &state.identity, b->directory, err));
    const pd_status written = pd_shard_write(writer, b->directory, &state.identity, 0, data, &summary, err);
    PD_TRY(pd_store_commit(b->local, written, &summary, &state, err));
    PD_TRY(pd_store_prune(b->local, err));
    b->save_s = pd_clock_seconds_since(start);
    pd_store_entry_path(b->local, pd_store_entry_at(b->local, 0), b->directory);
    return PD_OK;
}

static pd_status make_checkpoint(struct objects_bench *b, struct pd_error *err)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 1};
    struct pd_bench_memory *m = &b->memory;
    struct pd_shard_writer *writer = NULL;
    char path[4096];
    PD_TRY(pd_bench_memory_new(&b->layout, &b->model->tensors, 0, m, err));
    const void **data = calloc(m->box_count, sizeof *data);
    PD_TRY(PD_ALLOCATED(data, err, "bench: no memory for %u boxes", m->box_count));
    for (uint32_t i = 0; i < m->box_count; i++) {
        float *values = pd_bench_memory_box(m, m->boxes[i].tensor, m->boxes[i].kind, 0);
        pd_bench_fill(values, pd_box_elements(&m->boxes[i].box), i + 1);
        data[i] = values;
    }
    pd_bench_dir_path(&b->dir, "checkpoints", path);
    pd_status st = pd_vfs_mkdir(b->dir.vfs, path, err);
    if (!st) st = pd_store_open(b->dir.vfs, path, &options, &b->group, &b->local, err);
    if (!st)
        st = pd_shard_writer_new(b->dir.vfs, &b->model->tensors, m->boxes, m->box_count, m->io_buffers, PD_BENCH_IO_BYTES,
                                 NULL, &writer, err);
    if (!st) b->file_bytes = pd_shard_writer_file_bytes(writer);
    for (uint64_t step = 1; !st && step <= SAVES; step++)
        st = objects_save(b, writer, data, step, err);
    pd_shard_writer_free(writer);
    free(data);
    return st;
}

/* ---- pairs ---- */

static pd_status objects_measure(struct objects_bench *b, struct pd_error *err)
{
    double seconds;
    PD_TRY(pd_bench_bucket_open(b->url, &b->to, err));
    PD_TRY(pd_http_new(&b->http, err));
    pd_group_init_single(&b->group);
    PD_TRY(pd_thread_pool_new(pd_cpu_cores(), &b->pool, err));
    pd_layout_init_dp(&b->layout, 1);
    PD_TRY(pd_bench_model_of_bytes(b->options.bytes, &b->model, err));
    PD_TRY(make_checkpoint(b, err));
    b->upload = (struct pd_upload){.bucket = b->to.bucket, .vfs = b->dir.vfs, .memory_bytes = PD_UPLOAD_MEMORY_BYTES};
    PD_TRY(pd_bench_map(b->upload.memory_bytes, &b->upload.memory, err));
    PD_TRY(pd_bench_map(b->file_bytes, &b->raw, err));
    /* The speed means nothing unless the loaded bytes are the saved ones. */
    const uint64_t saved = pd_digest64(b->memory.data, b->memory.bytes, 0);
    PD_TRY(up(b, SHARD, err));
    memset(b->memory.data, 0, b->memory.bytes);
    PD_TRY(our_down(b, &seconds, err));
    if (pd_digest64(b->memory.data, b->memory.bytes, 0) != saved)
        PD_FAIL(err, PD_BUG, "bench: the state loaded from the bucket differs from the saved one");
    for (uint64_t pair = 0; pair < b->options.pairs; pair++) {
        PD_TRY(pd_pairs_measure(&b->up, b, our_up, raw_up, err));
        pd_pairs_add(&b->up_work, b->work_s[0], b->work_s[1]);
    }
    for (uint64_t pair = 0; pair < b->options.pairs; pair++) {
        PD_TRY(pd_pairs_measure(&b->down, b, our_down, raw_down, err));
        pd_pairs_add(&b->down_work, b->work_s[0], b->work_s[1]);
    }
    return PD_OK;
}

static void objects_release(struct objects_bench *b)
{
    pd_store_close(b->local);
    pd_bench_memory_deinit(&b->memory);
    pd_model_free(b->model);
    pd_http_free(b->http);
    pd_bench_bucket_close(&b->to);
    pd_thread_pool_free(b->pool);
    pd_bench_dir_close(&b->dir);
}

static void report_work(struct pd_report *r, const char *what, const struct pd_pairs *pairs)
{
    const struct pd_pairs_summary work = pd_pairs_summarise(pairs);
    char key[64];
    snprintf(key, sizeof key, "%s_processor_seconds", what);
    pd_report_double(r, key, work.candidate_s, PD_UNIT_SECONDS);
    snprintf(key, sizeof key, "raw_%s_processor_seconds", what);
    pd_report_double(r, key, work.ceiling_s, PD_UNIT_SECONDS);
}

static pd_status objects_print(const struct objects_bench *b, struct pd_error *err)
{
    const struct pd_pairs_summary up_ = pd_pairs_summarise_throughput(&b->up),
                                  down = pd_pairs_summarise_throughput(&b->down);
    struct pd_report r;
    pd_report_begin(&r, b->options.json);
    pd_bench_report_ratio(&r, "upload_ratio", &up_);
    pd_bench_report_ratio(&r, "download_ratio", &down);
    pd_report_double(&r, "upload_bytes_per_second", (double)b->file_bytes / up_.candidate_s, PD_UNIT_BYTES_PER_SECOND);
    pd_report_double(&r, "download_bytes_per_second", (double)b->file_bytes / down.candidate_s, PD_UNIT_BYTES_PER_SECOND);
    report_work(&r, "upload", &b->up_work);
    report_work(&r, "download", &b->down_work);
    pd_report_double(&r, "save_seconds", b->save_s, PD_UNIT_SECONDS);
    pd_report_u64(&r, "file_bytes", b->file_bytes, PD_UNIT_BYTES);
    PD_REPORT_U64S(&r, {"boxes", b->memory.box_count}, {"pairs", b->options.pairs});
    pd_report_text(&r, "endpoint", pd_bucket_endpoint(b->to.bucket));
    return pd_report_end(&r, err);
}

pd_status pd_bench_objects(int argc, char **argv, struct pd_error *err)
{
    struct objects_bench b = {.options = {.dir = ".", .bytes = UINT64_C(2) << 30, .pairs = 5}};
    uint32_t count;
    struct pd_option options[] = {PD_BENCH_DIR_OPTIONS(&b.options), {0}};
    const struct pd_usage usage = {
        .arguments = "s3://BUCKET/PREFIX",
        .doc = "Uploads a checkpoint of a GPT-2 shaped state in parts, and loads it with every checksum verified. Compares "
               "that, "
               "in alternation, with raw requests for the same bytes, as many at once, without signatures or checksums. "
               "upload_ratio, download_ratio: throughput of ours / raw, 1 is the ceiling (2G, 5 pairs). The server must "
               "accept unsigned requests. Removes its objects at the end.",
        .options = options,
        .json = &b.options.json,
        PD_WORDS(&b.url, 1, &count),
        .words_in_buckets = 1};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!count) PD_FAIL(err, PD_USAGE, "give a place in a bucket, s3://BUCKET/PREFIX; see %s --help", argv[0]);
    PD_TRY(pd_bench_dir_open(b.options.dir, 2 * b.options.bytes, false, &b.dir, err));
    pd_status st = objects_measure(&b, err);
    if (!st) st = objects_print(&b, err);
    objects_release(&b);
    return st;
}
