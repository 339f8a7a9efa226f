/* perdure bench ckpt --every N --state nvme: what a run loses to a checkpoint every N steps, optimizer state in files.
 *
 * One rank, whole training steps on all cores, the update on generations of a store; saved by the trainer's own saver, which
 * links the file that the update wrote. Turns of K steps with saves are alternated with turns of K steps without. The batch
 * is made so large that forward and backward take about as long as the update. What both kinds of turn write and flush is
 * counted at the VFS, which can also make every flush slower, as on a drive that honours it. */
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "tools/bench/bench.h"
#include "tools/bench/saves.h"
#include "tools/output.h"
#include "trainer/engine/state_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 4, REHEARSALS = 3, MICRO_BATCHES_MAX = 4096, SAVES_MAX = 100000 };

struct files_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    const char *file_system;
    uint32_t threads;
    char text[4096];
    struct pd_bench_saves saves;
    struct pd_bench_run run;
    uint64_t update_started_ns;
    double compute_s, update_s; /* of one micro-batch, of a step: medians of the rehearsals */
    uint64_t micro_batches;
    /* turns */
    struct pd_pairs turns; /* with saves, without */
    struct pd_vfs_counts with, without;
    uint64_t save_count;
    double *stalls;  /* (save_count) share of the step beside it */
    double *seconds; /* (save_count) from start to sealed and pruned */
};

/* ---- a run ---- */

static void on_update(void *context)
{
    struct files_bench *b = context;
    if (b->saves.saver) pd_saver_unpin(b->saves.saver);
    b->update_started_ns = pd_clock_monotonic_ns(NULL);
}

static pd_status build(struct files_bench *b, uint64_t micro_batches, bool saves, struct pd_error *err)
{
    const struct pd_bench_run_options options = {.text = b->text,
                                                 .bytes = b->options.bytes,
                                                 .micro_batches = micro_batches,
                                                 .threads = b->threads,
                                                 .has_files = true,
                                                 .device = b->options.device};
    PD_TRY(pd_bench_run_open(&options, &b->run, err));
    PD_TRY(pd_state_files_open(b->run.whole.engine, b->room.vfs, pd_tiers_store(b->saves.tiers, 0), err));
    PD_TRY(pd_state_files_init(b->run.whole.engine, &b->saves.state.identity, err));
    if (saves) PD_TRY(pd_bench_saves_attach(&b->saves, &b->room, &b->run, err));
    b->run.whole.engine->before_update = on_update;
    b->run.whole.engine->update_context = b;
    return PD_OK;
}

static void release(struct files_bench *b)
{
    pd_bench_saves_detach(&b->saves);
    pd_state_files_close(b->run.whole.engine);
    pd_bench_run_close(&b->run);
}

/* The save of the state before it goes on beside the step, and ends before the step's update. */
static pd_status run_saved_step(struct files_bench *b, struct pd_saver_outcome *ret_outcome, struct pd_error *err)
{
    pd_saver_start(b->saves.saver, &b->saves.state, true);
    PD_TRY(pd_bench_saves_step(&b->saves, &b->run, err));
    return pd_bench_saves_finish(&b->saves, ret_outcome, err);
}

/* How many micro-batches make forward and backward as long as the update. */
static pd_status rehearse(struct files_bench *b, struct pd_error *err)
{
    double computes[REHEARSALS], updates[REHEARSALS];
    PD_TRY(build(b, 1, false, err));
    for (int i = -3; i < REHEARSALS; i++) { /* the first ones touch every page and every file */
        const uint64_t start = pd_clock_monotonic_ns(NULL);
        PD_TRY(pd_bench_saves_step(&b->saves, &b->run, err));
        if (i < 0) continue;
        updates[i] = pd_clock_seconds_since(NULL, b->update_started_ns);
        computes[i] = pd_clock_seconds_since(NULL, start) - updates[i];
    }
    b->compute_s = pd_bench_quantile(computes, REHEARSALS, 0.5);
    b->update_s = pd_bench_quantile(updates, REHEARSALS, 0.5);
    const double micro_batches = ceil(b->update_s / b->compute_s);
    b->micro_batches = micro_batches < MICRO_BATCHES_MAX ? (uint64_t)micro_batches : MICRO_BATCHES_MAX;
    release(b);
    return PD_OK;
}

/* ---- turns ---- */

static void note_save(struct files_bench *b, const struct pd_saver_outcome *outcome, double step_seconds)
{
    PD_CHECK(b->save_count < SAVES_MAX);
    b->stalls[b->save_count] = outcome->stall_seconds / step_seconds;
    b->seconds[b->save_count++] = outcome->save_seconds;
}

static pd_status run_turn(struct files_bench *b, bool has_saves, double *ret_seconds, struct pd_error *err)
{
    struct pd_vfs_counts *sum = has_saves ? &b->with : &b->without;
    PD_TRY(pd_bench_room_settle(&b->room, err));
    const struct pd_vfs_counts before = pd_vfs_counts(b->room.vfs);
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    for (uint64_t i = 0; i < b->options.steps; i++) {
        const uint64_t step_start = pd_clock_monotonic_ns(NULL);
        struct pd_saver_outcome outcome;
        const bool saves = has_saves && i % b->options.every == 0;
        PD_TRY(saves ? run_saved_step(b, &outcome, err) : pd_bench_saves_step(&b->saves, &b->run, err));
        if (saves) note_save(b, &outcome, pd_clock_seconds_since(NULL, step_start));
    }
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    const struct pd_vfs_counts after = pd_vfs_counts(b->room.vfs);
    sum->bytes_written += after.bytes_written - before.bytes_written;
    sum->flushes += after.flushes - before.flushes;
    return PD_OK;
}

/* Who goes first changes from pair to pair. */
static pd_status run_pair(struct files_bench *b, uint64_t pair, struct pd_error *err)
{
    double with = 0, without = 0;
    if (pair % 2) PD_TRY(run_turn(b, false, &without, err));
    PD_TRY(run_turn(b, true, &with, err));
    if (pair % 2 == 0) PD_TRY(run_turn(b, false, &without, err));
    pd_pairs_add(&b->turns, with, without);
    return PD_OK;
}

static pd_status prepare(struct files_bench *b, struct pd_error *err)
{
    struct pd_saver_outcome unused;
    b->stalls = calloc(SAVES_MAX, sizeof *b->stalls);
    b->seconds = calloc(SAVES_MAX, sizeof *b->seconds);
    if (!b->stalls || !b->seconds) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory");
    pd_bench_room_path(&b->room, "text", b->text);
    PD_TRY(pd_bench_run_write_text(b->text, err));
    PD_TRY(pd_bench_saves_open(&b->saves, &b->room, true, err));
    PD_TRY(rehearse(b, err));
    PD_TRY(build(b, b->micro_batches, true, err));
    for (int i = 0; i < 4; i++) { /* every file that takes turns was written once */
        PD_TRY(pd_bench_saves_step(&b->saves, &b->run, err));
        PD_TRY(run_saved_step(b, &unused, err));
    }
    pd_vfs_slow_flushes(b->room.vfs, (uint32_t)b->options.flush_ms);
    return PD_OK;
}

static pd_status measure(struct files_bench *b, struct pd_error *err)
{
    PD_TRY(prepare(b, err));
    for (uint64_t pair = 0; pair < b->options.pairs; pair++)
        PD_TRY(run_pair(b, pair, err));
    return PD_OK;
}

/* ---- what came out ---- */

struct result {
    struct pd_pairs_summary turns;
    uint64_t state_bytes;
    double stall_p50, stall_p99, step_s, save_s, extra_bytes, flushes;
    double added_s, flush_s; /* a step: by saves in all; what flushes alone were made slower by */
};

static struct result summarise(const struct files_bench *b)
{
    struct result r = {.turns = pd_pairs_summarise(&b->turns), .state_bytes = pd_bench_run_state_bytes(&b->run)};
    const double saves = (double)b->save_count, steps = (double)b->options.steps;
    double added[PD_BENCH_PAIRS_MAX];
    for (uint32_t i = 0; i < b->turns.count; i++)
        added[i] = (b->turns.candidate_s[i] - b->turns.ceiling_s[i]) / steps;
    r.stall_p50 = pd_bench_quantile(b->stalls, (uint32_t)b->save_count, 0.5);
    r.stall_p99 = pd_bench_quantile(b->stalls, (uint32_t)b->save_count, 0.99);
    r.save_s = pd_bench_quantile(b->seconds, (uint32_t)b->save_count, 0.5);
    r.step_s = r.turns.ceiling_s / steps;
    r.extra_bytes = ((double)b->with.bytes_written - (double)b->without.bytes_written) / saves / (double)r.state_bytes;
    r.flushes = ((double)b->with.flushes - (double)b->without.flushes) / saves;
    r.added_s = pd_bench_quantile(added, b->turns.count, 0.5);
    r.flush_s = r.flushes * (double)b->options.flush_ms * 1e-3 * saves / (steps * b->turns.count);
    return r;
}

static void print_text(const struct files_bench *b, const struct result *r)
{
    printf("%s, %s of state in files, %u threads, in %s (%s)\n", pd_vfs_describe(b->room.vfs),
           pd_text_bytes(r->state_bytes).text, b->threads, b->options.dir, b->file_system);
    printf("a step takes %.3f s (update %.3f s, %llu micro-batches of %.3f s), a save in the background %.3f s\n", r->step_s,
           b->update_s, (unsigned long long)b->micro_batches, b->compute_s, r->save_s);
    printf("a checkpoint writes %.4f%% of the state beyond what its step wrote, and flushes %.2f times for 1 shard\n",
           100 * r->extra_bytes, r->flushes);
    printf("stall %.2f%% of a step in the median, %.2f%% in the 99th percentile of %llu saves\n", 100 * r->stall_p50,
           100 * r->stall_p99, (unsigned long long)b->save_count);
    printf("slowdown by a save every %llu: %.2f%% (median of %u pairs of %llu steps, %.2f%% to %.2f%%)\n",
           (unsigned long long)b->options.every, 100 * (r->turns.ratio - 1), b->turns.count,
           (unsigned long long)b->options.steps, 100 * (r->turns.ratio_low - 1), 100 * (r->turns.ratio_high - 1));
    if (b->options.flush_ms)
        printf("flushes were made %llu ms slower: %.4f s a step; saves added %.4f s a step\n",
               (unsigned long long)b->options.flush_ms, r->flush_s, r->added_s);
}

static pd_status print(const struct files_bench *b, struct pd_error *err)
{
    const struct result r = summarise(b);
    if (!b->options.json) {
        print_text(b, &r);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_double(&w, "extra_bytes", r.extra_bytes);
    pd_json_double(&w, "flushes", r.flushes);
    pd_json_u64(&w, "shards", 1);
    pd_json_double(&w, "stall_p50", r.stall_p50);
    pd_json_double(&w, "stall_p99", r.stall_p99);
    pd_json_double(&w, "slowdown_every_step", r.turns.ratio - 1);
    pd_json_double(&w, "slowdown_every_step_low", r.turns.ratio_low - 1);
    pd_json_double(&w, "slowdown_every_step_high", r.turns.ratio_high - 1);
    pd_json_double(&w, "added_seconds", r.added_s);
    pd_json_double(&w, "flush_seconds", r.flush_s);
    pd_json_u64(&w, "flush_ms", b->options.flush_ms);
    pd_json_double(&w, "step_seconds", r.step_s);
    pd_json_double(&w, "update_seconds", b->update_s);
    pd_json_double(&w, "save_seconds", r.save_s);
    pd_json_u64(&w, "state_bytes", r.state_bytes);
    pd_json_u64(&w, "every", b->options.every);
    pd_json_u64(&w, "steps", b->options.steps);
    pd_json_u64(&w, "pairs", b->turns.count);
    pd_json_u64(&w, "saves", b->save_count);
    pd_json_u64(&w, "threads", b->threads);
    pd_json_string(&w, "dir", b->options.dir);
    pd_json_string(&w, "file_system", b->file_system);
    pd_json_string(&w, "engine", pd_vfs_describe(b->room.vfs));
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

pd_status pd_bench_every_files(const struct pd_bench_options *options, struct pd_error *err)
{
    struct files_bench b = {.options = *options, .threads = pd_cpu_cores()};
    struct pd_space space = {0};
    pd_numerics_thread_init();
    if (!b.options.dir) b.options.dir = ".";
    if (!b.options.steps) b.options.steps = STEPS * b.options.every;
    PD_TRY(pd_bench_room_open(b.options.dir, 5 * b.options.bytes, &b.room, err));
    pd_status st = pd_vfs_space(b.room.vfs, b.options.dir, &space, err);
    b.file_system = space.type_name;
    if (!st) st = measure(&b, err);
    if (!st) st = print(&b, err);
    release(&b);
    pd_bench_saves_close(&b.saves);
    free(b.stalls);
    free(b.seconds);
    pd_bench_room_close(&b.room);
    return st;
}
