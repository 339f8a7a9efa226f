/* perdure bench ckpt --every N: what a run loses to a checkpoint every N steps.
 *
 * One rank runs whole training steps on all cores, and the trainer's own saver saves into a store. Turns of steps with
 * saves alternate with turns without; a turn ends when its checkpoint is committed. With state in memory a rehearsal
 * first times a copy alone, then makes the batch so large that a step takes at least COPIES of them. With --state nvme
 * the update works on generations of the store, a save links the file that the update wrote, and the batch makes forward
 * and backward take about as long as the update; the VFS counts writes and flushes. With --bucket all
 * turns save into memory, and every second turn uploads that too, during its steps and longer. */
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/words.h"
#include "ckpt/objects/upload.h"
#include "tools/bench/bench.h"
#include "trainer/run/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COPIES = 20, STEPS = 4, REHEARSALS = 5, MICRO_BATCHES_MAX = 4096, SAVES_MAX = 100000 };
#define MEMORY_DIR "/dev/shm"

struct every_bench {
    struct pd_bench_options options;
    struct pd_bench_dir dir;
    char file_system[16], device[96], tokens[4096];
    uint32_t threads;
    /* A run and its saves. Tiers point to the group and outlive engines. */
    struct pd_bench_run run;
    struct pd_group group, bucket_group;
    struct pd_bench_bucket bucket; /* the second tier, if there is one */
    struct pd_tiers *tiers;
    struct pd_saver *saver; /* NULL: no saves */
    struct pd_run_state state;
    uint64_t update_started_ns;
    /* Medians from the rehearsals: a copy; forward and backward of a micro-batch; the update. */
    double copy_s, compute_s, update_s;
    /* Turns with and without saves: wall time and CPU time; bytes written and flushes. */
    struct pd_pairs turns, work;
    double work_s[2];                /* of the current pair */
    struct pd_vfs_counts written[2]; /* without, with */
    uint64_t save_count;
    double upload_bytes_per_second; /* of the last one */
    double *stalls, *seconds;       /* (SAVES_MAX) share of steps during a save; seconds from its start until committed */
};

/* ---- a run ---- */

static char config_text[] = "bench: true\n";

/* Chooses the width by the state's bytes: a few blocks, not many narrow ones. Fills a GPU: micro-batches of 8,192 tokens. */
static pd_status configure(struct every_bench *b, uint64_t micro_batches, struct pd_error *err)
{
    const uint64_t bytes = b->options.bytes;
    const bool is_gpu = b->run.device.dev, is_large = is_gpu && bytes >= UINT64_C(512) << 20;
    const uint64_t hidden = is_gpu && bytes >= UINT64_C(4) << 30 ? 2048
                            : bytes >= UINT64_C(512) << 20       ? 768
                            : bytes >= UINT64_C(64) << 20        ? 384
                                                                 : 128;
    const uint64_t layers = bytes / PD_BENCH_STATE_BYTES_A_PARAMETER / (12 * hidden * hidden);
    const uint64_t context = is_large ? 1024 : 128, micro_batch = is_large ? 8 : 1;
    char model[160];
    snprintf(model, sizeof model, "family: gpt2, vocab: 256, context: %llu, layers: %llu, hidden: %llu, heads: %llu",
             (unsigned long long)context, (unsigned long long)(layers ? layers : 1), (unsigned long long)hidden,
             (unsigned long long)hidden / 64);
    const struct pd_bench_run_options options = {
        .model = model,
        .tokens = b->tokens,
        .sequences = micro_batches * micro_batch,
        .micro_batch = micro_batch,
        .context = context,
        .sections = b->options.state_in_files ? "layout: {ranks: 1, zero_stage: 0}\noffload: {optimizer: nvme}\n"
                                              : "layout: {ranks: 1, zero_stage: 0}\n",
        .is_gpu = is_gpu};
    return pd_bench_run_configure(&b->run, &options, err);
}

static void on_update(void *context)
{
    struct every_bench *b = context;
    if (b->saver) pd_saver_unpin(b->saver);
    b->update_started_ns = pd_clock_monotonic_ns(NULL);
}

static pd_status every_build(struct every_bench *b, uint64_t micro_batches, struct pd_error *err)
{
    struct pd_whole_engine *whole = &b->run.whole;
    PD_TRY(pd_rank_device_open(b->options.device, 0, NULL, &b->run.device, err));
    snprintf(b->device, sizeof b->device, "%s",
             b->run.device.dev ? b->run.device.dev->description : pd_counted(b->threads, "thread").text);
    PD_TRY(configure(b, micro_batches, err));
    PD_TRY(pd_bench_run_open(&b->run, b->threads, err));
    if (b->options.state_in_files) {
        PD_TRY(pd_state_open(whole->engine->state, b->dir.vfs, pd_tiers_store(b->tiers, 0), err));
        PD_TRY(pd_state_init(whole->engine->state, &b->state.identity, err));
    }
    PD_TRY(pd_saver_new(b->dir.vfs, b->tiers, &b->group, whole->engine, 1, &b->saver, err));
    if (!b->options.state_in_files) pd_saver_keep_ready(b->saver);
    whole->engine->should_leave = pd_bench_should_leave;
    whole->engine->before_update = (struct pd_before_update){on_update, b};
    b->state.layout = whole->engine->grid.layout;
    b->state.tensor_count = whole->model->tensors.count;
    b->state.parameter_count = whole->model->parameter_count;
    return PD_OK;
}

static void every_release(struct every_bench *b)
{
    pd_saver_free(b->saver);
    b->saver = NULL;
    if (b->options.state_in_files) pd_state_close(b->run.whole.engine->state);
    pd_bench_run_close(&b->run);
}

static pd_status run_steps(struct every_bench *b, uint64_t count, double *ret_seconds, struct pd_error *err)
{
    struct pd_step_result result;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    for (uint64_t i = 0; i < count; i++) {
        b->run.whole.engine->next_identity = b->state.identity;
        b->run.whole.engine->next_identity.step++;
        const pd_status st = pd_engine_step(b->run.whole.engine, b->state.samples, b->state.updates, &result, err);
        PD_TRY(st == PD_STOPPED ? pd_bench_dir_settle(&b->dir, err) : st);
        b->state.samples += b->run.config.batch.sequences;
        b->state.updates++;
        b->state.identity.step++;
    }
    PD_TRY(pd_rank_device_sync(&b->run.device, err));
    *ret_seconds = pd_clock_seconds_since(start);
    return PD_OK;
}

/* Saves the state from before `steps` while they run. `everywhere`: uploads it too, while they run and longer. */
static pd_status run_saved(struct every_bench *b, uint64_t steps, bool everywhere, struct pd_saver_outcome *outcome,
                           double *ret_seconds, struct pd_error *err)
{
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_saver_start(b->saver, &b->state, everywhere);
    if (steps)
        PD_TRY(run_steps(b, steps, ret_seconds, err));
    else
        pd_saver_unpin(b->saver);
    *ret_seconds = pd_clock_seconds_since(start); /* of a save alone: its copy */
    pd_saver_wait(b->saver);
    PD_CHECK(pd_saver_collect(b->saver, pd_saver_finished(b->saver), outcome));
    if (steps) *ret_seconds = pd_clock_seconds_since(start);
    if (outcome->status) *err = outcome->error;
    return outcome->status;
}

/* Waits until the bucket, if there is one, has the step. If its thread was still ending the upload before when the save came,
 * nothing begins: the next save makes up for it. */
static pd_status wait_for_upload(struct every_bench *b, uint64_t step, struct pd_error *err)
{
    struct pd_tier_report r = {.newest_step = step};
    struct pd_saver_outcome unused;
    double seconds;
    uint32_t idle = 0;
    do {
        if (b->options.bucket) pd_tiers_report(b->tiers, 1, &r);
        if (r.failures) PD_FAIL(err, PD_IO, "%s: %s", b->options.bucket, r.cause);
        if (pd_bench_should_leave()) PD_FAIL(err, PD_STOPPED, "bench: asked to leave");
        if (r.newest_step < step) pd_clock_sleep_ns(10000000);
        idle = r.uploading_step ? 0 : idle + 1;
        if (r.newest_step < step && idle % 500 == 0 && idle) PD_TRY(run_saved(b, 1, false, &unused, &seconds, err));
    } while (r.newest_step < step);
    if (r.bytes_per_second > 0) b->upload_bytes_per_second = r.bytes_per_second;
    return PD_OK;
}

/* ---- rehearsal: chooses the micro-batches of a step; leaves an engine with such steps ---- */

static pd_status rehearse_copy(struct every_bench *b, struct pd_error *err)
{
    double copies[REHEARSALS], unused;
    struct pd_saver_outcome outcome;
    for (int i = -2; i < REHEARSALS; i++) { /* the first ones create files */
        PD_TRY(run_steps(b, 1, &unused, err));
        PD_TRY(run_saved(b, 0, false, &outcome, i < 0 ? &unused : &copies[i], err));
    }
    b->copy_s = pd_bench_quantile(copies, REHEARSALS, 0.5);
    return PD_OK;
}

/* Medians of a whole step and of its update. */
static pd_status rehearse_step(struct every_bench *b, double *ret_step_s, struct pd_error *err)
{
    double steps[REHEARSALS], updates[REHEARSALS], seconds;
    for (int i = -3; i < REHEARSALS; i++) { /* the first ones touch every page and every file */
        PD_TRY(run_steps(b, 1, &seconds, err));
        if (i < 0) continue;
        steps[i] = seconds;
        updates[i] = pd_clock_seconds_since(b->update_started_ns);
    }
    *ret_step_s = pd_bench_quantile(steps, REHEARSALS, 0.5);
    b->update_s = pd_bench_quantile(updates, REHEARSALS, 0.5);
    return PD_OK;
}

static pd_status rehearse(struct every_bench *b, struct pd_error *err)
{
    double step = 0, wanted = 0;
    uint64_t micro_batches = 1;
    PD_TRY(every_build(b, micro_batches, err));
    if (!b->options.state_in_files) PD_TRY(rehearse_copy(b, err));
    PD_TRY(rehearse_step(b, &step, err));
    b->compute_s = step - b->update_s;
    wanted = b->options.state_in_files ? 2 * b->update_s : COPIES * b->copy_s;
    while (step < wanted && micro_batches < MICRO_BATCHES_MAX) {
        const double more =
            b->options.state_in_files ? b->update_s / b->compute_s : (double)micro_batches * 1.1 * wanted / step;
        micro_batches = ceil(more) > MICRO_BATCHES_MAX ? MICRO_BATCHES_MAX : (uint64_t)ceil(more);
        every_release(b);
        PD_TRY(every_build(b, micro_batches, err));
        if (b->options.state_in_files) break;
        PD_TRY(rehearse_step(b, &step, err));
    }
    return PD_OK;
}

/* ---- turns ---- */

static pd_status run_and_save(struct every_bench *b, bool is_counted, struct pd_error *err)
{
    struct pd_saver_outcome outcome;
    double seconds;
    PD_CHECK(b->save_count < SAVES_MAX);
    PD_TRY(run_saved(b, b->options.every, is_counted, &outcome, &seconds, err));
    if (!is_counted) return PD_OK;
    b->stalls[b->save_count] = outcome.stall_seconds / seconds;
    b->seconds[b->save_count++] = outcome.save_seconds;
    return PD_OK;
}

static pd_status run_turn(struct every_bench *b, bool has_saves, double *ret_seconds, struct pd_error *err)
{
    struct pd_vfs_counts *sum = &b->written[has_saves];
    double unused;
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    const struct pd_vfs_counts before = pd_vfs_counts(b->dir.vfs);
    const double work = pd_bench_processor_seconds();
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    for (uint64_t i = 0; i < b->options.steps; i += b->options.every)
        PD_TRY(has_saves || b->options.bucket ? run_and_save(b, has_saves, err)
                                              : run_steps(b, b->options.every, &unused, err));
    *ret_seconds = pd_clock_seconds_since(start);
    if (has_saves) PD_TRY(wait_for_upload(b, b->state.identity.step - b->options.every, err));
    b->work_s[has_saves] = pd_bench_processor_seconds() - work;
    const struct pd_vfs_counts after = pd_vfs_counts(b->dir.vfs);
    sum->bytes_written += after.bytes_written - before.bytes_written;
    sum->flushes += after.flushes - before.flushes;
    return PD_OK;
}

static pd_status run_with(void *bench, double *ret_seconds, struct pd_error *err)
{
    return run_turn(bench, true, ret_seconds, err);
}

static pd_status run_without(void *bench, double *ret_seconds, struct pd_error *err)
{
    return run_turn(bench, false, ret_seconds, err);
}

static pd_status every_measure(struct every_bench *b, struct pd_error *err)
{
    struct pd_saver_outcome unused;
    double seconds;
    b->stalls = calloc(SAVES_MAX, sizeof *b->stalls);
    b->seconds = calloc(SAVES_MAX, sizeof *b->seconds);
    if (!b->stalls || !b->seconds) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory");
    pd_bench_dir_path(&b->dir, "tokens", b->tokens);
    PD_TRY(pd_bench_write_tokens(b->tokens, UINT64_C(1) << 16, 256, true, err));
    char path[4096], url[PD_OBJECT_KEY_MAX + 128];
    const struct pd_tiers_options options = {
        .tiers = {{.dir = path, .keep_last = 1, .every = 1},
                  {.dir = url, .keep_last = 1, .upload_memory = PD_UPLOAD_MEMORY_BYTES}},
        .count = b->options.bucket ? 2 : 1,
        .groups = {&b->group, &b->bucket_group},
        .generations = b->options.state_in_files};
    pd_group_init_single(&b->group);
    pd_group_init_single(&b->bucket_group);
    if (b->options.bucket) PD_TRY(pd_bench_bucket_open(b->options.bucket, &b->bucket, err));
    snprintf(url, sizeof url, "s3://%s/%s", b->bucket.place.bucket, b->bucket.prefix);
    pd_bench_dir_path(&b->dir, "store", path);
    PD_TRY(pd_vfs_mkdir(b->dir.vfs, path, err));
    PD_TRY(pd_tiers_open(b->dir.vfs, &options, &b->tiers, err));
    PD_TRY(pd_tiers_start(b->tiers, err));
    b->state = (struct pd_run_state){.identity = {.run_id = {1, 2}, .lineage = 1},
                                     .fence = pd_tiers_fence(b->tiers),
                                     .loss_scale = 1.0,
                                     .created_by = "perdure bench",
                                     .config = config_text};
    PD_TRY(rehearse(b, err));
    for (int i = 0; i < (b->options.state_in_files ? 4 : 1); i++) { /* write every file in rotation once */
        PD_TRY(run_saved(b, 1, true, &unused, &seconds, err));
        PD_TRY(run_steps(b, 1, &seconds, err));
    }
    for (uint64_t pair = 0; pair < b->options.pairs; pair++) {
        PD_TRY(pd_pairs_measure(&b->turns, b, run_with, run_without, err));
        pd_pairs_add(&b->work, b->work_s[true], b->work_s[false]);
    }
    return PD_OK;
}

/* ---- results ---- */

static void report_files(const struct every_bench *b, struct pd_report *r)
{
    const double saves = (double)b->save_count;
    const double flushes = ((double)b->written[1].flushes - (double)b->written[0].flushes) / saves;
    pd_report_double(r, "extra_bytes",
                     ((double)b->written[1].bytes_written - (double)b->written[0].bytes_written) / saves /
                         (double)pd_bench_run_state_bytes(&b->run),
                     PD_UNIT_SHARE);
    pd_report_double(r, "flushes", flushes, PD_UNIT_NONE);
    pd_report_u64(r, "shards", 1, PD_UNIT_NONE);
    pd_report_double(r, "update_seconds", b->update_s, PD_UNIT_SECONDS);
    pd_report_double(r, "micro_batch_seconds", b->compute_s, PD_UNIT_SECONDS);
}

static void report_lost(struct pd_report *r, const char *key, const struct pd_pairs_summary *s)
{
    pd_report_range(r, key, s->ratio - 1, s->ratio_low - 1, s->ratio_high - 1, PD_UNIT_SHARE);
}

static pd_status every_print(const struct every_bench *b, struct pd_error *err)
{
    const struct pd_pairs_summary turns = pd_pairs_summarise(&b->turns), work = pd_pairs_summarise(&b->work);
    const uint32_t saves = (uint32_t)b->save_count;
    const double step_s = turns.ceiling_s / (double)b->options.steps;
    struct pd_report r;
    pd_report_begin(&r, b->options.json);
    pd_report_double(&r, "stall_p50", pd_bench_quantile(b->stalls, saves, 0.5), PD_UNIT_SHARE);
    pd_report_double(&r, "stall_p99", pd_bench_quantile(b->stalls, saves, 0.99), PD_UNIT_SHARE);
    report_lost(&r, "slowdown_every_step", &turns);
    report_lost(&r, "work_every_step", &work);
    pd_report_double(&r, "step_seconds", step_s, PD_UNIT_SECONDS);
    pd_report_double(&r, "save_seconds", pd_bench_quantile(b->seconds, saves, 0.5), PD_UNIT_SECONDS);
    if (b->options.bucket) {
        pd_report_double(&r, "upload_bytes_per_second", b->upload_bytes_per_second, PD_UNIT_BYTES_PER_SECOND);
        pd_report_double(&r, "step_processor_seconds", work.ceiling_s / (double)b->options.steps, PD_UNIT_SECONDS);
        pd_report_double(&r, "upload_processor_seconds",
                         (work.ratio - 1) * work.ceiling_s * (double)b->options.every / (double)b->options.steps,
                         PD_UNIT_SECONDS);
    }
    if (b->options.state_in_files) {
        report_files(b, &r);
    } else {
        pd_report_double(&r, "copies_a_step", step_s / b->copy_s, PD_UNIT_NONE);
        pd_report_double(&r, "copy_seconds", b->copy_s, PD_UNIT_SECONDS);
    }
    pd_report_u64(&r, "state_bytes", pd_bench_run_state_bytes(&b->run), PD_UNIT_BYTES);
    PD_REPORT_U64S(&r, {"every", b->options.every}, {"steps", b->options.steps}, {"pairs", b->turns.count}, {"saves", saves},
                   {"threads", b->threads});
    pd_report_text(&r, "device", b->device);
    pd_report_text(&r, "dir", b->options.dir);
    pd_report_text(&r, "file_system", b->file_system);
    pd_report_text(&r, "engine", pd_vfs_describe(b->dir.vfs));
    return pd_report_end(&r, err);
}

/* Saves state in memory into memory if it fits there with its copy; everything else in the current directory. */
static pd_status choose_dir(struct every_bench *b, struct pd_error *err)
{
    struct pd_vfs *vfs;
    struct pd_space space;
    if (b->options.dir) return PD_OK;
    b->options.dir = ".";
    if (b->options.state_in_files) return PD_OK;
    PD_TRY(pd_vfs_new_auto(&vfs, err));
    const pd_status st = pd_vfs_space(vfs, MEMORY_DIR, &space, NULL);
    if (!st && space.in_memory && space.available_bytes > 4 * b->options.bytes) b->options.dir = MEMORY_DIR;
    pd_vfs_free(vfs);
    return PD_OK;
}

/* Call before checking free space: without the device the bench fails anyway. */
static pd_status look_for_device(enum pd_device_choice choice, struct pd_error *err)
{
    struct pd_rank_device device;
    PD_TRY(pd_rank_device_open(choice, 0, NULL, &device, err));
    pd_rank_device_close(&device);
    return PD_OK;
}

/* One checkpoint is kept and one is written, and the run's state is a little more than requested; state in files has
 * another file to read and more to overwrite. */
static pd_status open_dir(struct every_bench *b, struct pd_error *err)
{
    const uint64_t bytes = b->options.bytes, needed = b->options.state_in_files ? 5 * bytes : 2 * bytes + bytes / 4;
    struct pd_space space;
    PD_TRY(look_for_device(b->options.device, err));
    PD_TRY(choose_dir(b, err));
    PD_TRY(pd_bench_dir_open(b->options.dir, needed, b->options.state_in_files, &b->dir, err));
    PD_TRY(pd_vfs_space(b->dir.vfs, b->options.dir, &space, err));
    snprintf(b->file_system, sizeof b->file_system, "%s", space.type_name);
    return PD_OK;
}

pd_status pd_bench_every(const struct pd_bench_options *options, struct pd_error *err)
{
    struct every_bench b = {.options = *options, .threads = pd_cpu_cores()};
    if (!b.options.steps) b.options.steps = b.options.state_in_files ? STEPS * b.options.every : b.options.every;
    b.options.steps = pd_round_up(b.options.steps, b.options.every);
    pd_numerics_thread_init();
    pd_status st = open_dir(&b, err);
    if (!st) st = every_measure(&b, err);
    if (!st) st = every_print(&b, err);
    every_release(&b);
    pd_tiers_close(b.tiers);
    pd_bench_bucket_close(&b.bucket);
    free(b.stalls);
    free(b.seconds);
    pd_bench_dir_close(&b.dir);
    return st;
}
