/* perdure bench ckpt --every N: what a run loses to a checkpoint every N steps, state in memory.
 *
 * One rank, a GPT-2 shaped model, whole training steps on all cores, AdamW over all state included; saved by the trainer's
 * own saver into a store. N steps with a save are alternated with the same steps without one. Beforehand a copy is measured:
 * what a save takes, with nothing else going on, until state may change again; then the batch is made so large that a step
 * takes at least COPIES of them. The end of the save counts: a turn is over when its checkpoint is sealed. */
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/words.h"
#include "tools/bench/bench.h"
#include "tools/bench/saves.h"
#include "tools/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COPIES = 20, MICRO_BATCHES_MAX = 4096, REHEARSALS = 5 };
#define MEMORY_DIR "/dev/shm"

struct every_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    const char *file_system;
    uint32_t threads;
    char device[96];
    struct pd_bench_saves saves;
    struct pd_bench_run run;
    double copy_s;          /* median of the rehearsals */
    struct pd_pairs turns;  /* with saves, without */
    struct pd_pairs work;   /* the same in seconds of processors */
    struct pd_pairs stalls; /* stall of a save, the turn it was in */
    struct pd_pairs whole;  /* whole save, copy */
};

/* ---- a run ---- */

static pd_status build(struct every_bench *b, uint64_t micro_batches, struct pd_error *err)
{
    char text[4096];
    pd_bench_room_path(&b->room, "text", text);
    const struct pd_bench_run_options options = {.text = text,
                                                 .bytes = b->options.bytes,
                                                 .micro_batches = micro_batches,
                                                 .threads = b->threads,
                                                 .device = b->options.device};
    PD_TRY(pd_bench_run_open(&options, &b->run, err));
    snprintf(b->device, sizeof b->device, "%s",
             b->run.device.dev ? b->run.device.dev->description : pd_counted(b->threads, "thread").text);
    PD_TRY(pd_bench_saves_attach(&b->saves, &b->room, &b->run, err));
    pd_saver_keep_ready(b->saves.saver);
    return PD_OK;
}

static void release(struct every_bench *b)
{
    pd_bench_saves_detach(&b->saves);
    pd_bench_run_close(&b->run);
}

static pd_status run_steps(struct every_bench *b, uint64_t count, double *ret_seconds, struct pd_error *err)
{
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    for (uint64_t i = 0; i < count; i++)
        PD_TRY(pd_bench_saves_step(&b->saves, &b->run, err));
    PD_TRY(pd_bench_run_settle(&b->run, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

/* ---- rehearsal: how long a copy takes, and how many micro-batches make a step ---- */

static pd_status rehearse_copy(struct every_bench *b, struct pd_error *err)
{
    double copies[REHEARSALS], unused;
    struct pd_saver_outcome outcome;
    for (int i = -2; i < REHEARSALS; i++) { /* the first ones make files */
        PD_TRY(run_steps(b, 1, &unused, err));
        uint64_t start = pd_clock_monotonic_ns(NULL);
        pd_saver_start(b->saves.saver, &b->saves.state, true);
        pd_saver_unpin(b->saves.saver);
        if (i >= 0) copies[i] = pd_clock_seconds_since(NULL, start);
        PD_TRY(pd_bench_saves_finish(&b->saves, &outcome, err));
    }
    b->copy_s = pd_bench_quantile(copies, REHEARSALS, 0.5);
    return PD_OK;
}

static pd_status rehearse_step(struct every_bench *b, double *ret_seconds, struct pd_error *err)
{
    double steps[REHEARSALS];
    for (int i = -1; i < REHEARSALS; i++) { /* the first one touches every page */
        double seconds;
        PD_TRY(run_steps(b, 1, &seconds, err));
        if (i >= 0) steps[i] = seconds;
    }
    *ret_seconds = pd_bench_quantile(steps, REHEARSALS, 0.5);
    return PD_OK;
}

/* From one micro-batch up, until a step is long enough; the engine that is left standing makes such steps. */
static pd_status rehearse(struct every_bench *b, struct pd_error *err)
{
    double step = 0;
    uint64_t micro_batches = 1;
    PD_TRY(build(b, micro_batches, err));
    PD_TRY(run_steps(b, 1, &step, err));
    PD_TRY(rehearse_copy(b, err));
    PD_TRY(rehearse_step(b, &step, err));
    while (step < COPIES * b->copy_s && micro_batches < MICRO_BATCHES_MAX) {
        const double more = ceil((double)micro_batches * 1.1 * COPIES * b->copy_s / step);
        micro_batches = more > MICRO_BATCHES_MAX ? MICRO_BATCHES_MAX : (uint64_t)more;
        release(b);
        PD_TRY(build(b, micro_batches, err));
        PD_TRY(rehearse_step(b, &step, err));
    }
    return PD_OK;
}

/* ---- turns ---- */

/* Of all threads. Other programs do not show in it. */
static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static pd_status run_with(struct every_bench *b, double *ret_seconds, struct pd_error *err)
{
    struct pd_saver_outcome outcome;
    double unused;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_saver_start(b->saves.saver, &b->saves.state, true);
    PD_TRY(run_steps(b, b->options.every, &unused, err));
    PD_TRY(pd_bench_saves_finish(&b->saves, &outcome, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    pd_pairs_add(&b->stalls, outcome.stall_seconds, *ret_seconds);
    pd_pairs_add(&b->whole, outcome.save_seconds, b->copy_s);
    return PD_OK;
}

static pd_status run_turn(struct every_bench *b, bool saves, double *ret_seconds, double *ret_work, struct pd_error *err)
{
    const double start = processor_seconds();
    PD_TRY(saves ? run_with(b, ret_seconds, err) : run_steps(b, b->options.every, ret_seconds, err));
    *ret_work = processor_seconds() - start;
    return PD_OK;
}

static pd_status run_pair(struct every_bench *b, uint64_t pair, struct pd_error *err)
{
    double seconds[2], work[2];
    PD_TRY(pd_bench_room_settle(&b->room, err)); /* asked to leave? */
    for (int turn = 0; turn < 2; turn++) {
        const bool saves = (turn ^ (int)(pair % 2)) == 0;
        PD_TRY(run_turn(b, saves, &seconds[saves], &work[saves], err));
    }
    pd_pairs_add(&b->turns, seconds[1], seconds[0]);
    pd_pairs_add(&b->work, work[1], work[0]);
    return PD_OK;
}

static pd_status measure(struct every_bench *b, struct pd_error *err)
{
    struct pd_saver_outcome outcome;
    char text[4096];
    double unused;
    pd_bench_room_path(&b->room, "text", text);
    PD_TRY(pd_bench_run_write_text(text, err));
    PD_TRY(pd_bench_saves_open(&b->saves, &b->room, false, err));
    PD_TRY(rehearse(b, err));
    pd_saver_start(b->saves.saver, &b->saves.state, true); /* this saver has not saved yet */
    PD_TRY(pd_bench_saves_finish(&b->saves, &outcome, err));
    PD_TRY(run_steps(b, 1, &unused, err));
    for (uint64_t pair = 0; pair < b->options.pairs; pair++)
        PD_TRY(run_pair(b, pair, err));
    return PD_OK;
}

/* ---- where, and what came out ---- */

/* One checkpoint that is kept and one that is written; the run's state is a little more than what was asked for. */
static uint64_t needed(const struct every_bench *b)
{
    return 2 * b->options.bytes + b->options.bytes / 4;
}

/* In memory when there is room for it beside state and its copy, else here. */
static pd_status choose_dir(struct every_bench *b, struct pd_error *err)
{
    struct pd_vfs *vfs;
    struct pd_space space;
    if (b->options.dir) return PD_OK;
    PD_TRY(pd_vfs_new_auto(&vfs, err));
    pd_status st = pd_vfs_space(vfs, MEMORY_DIR, &space, NULL);
    b->options.dir = !st && space.in_memory && space.available_bytes > 4 * b->options.bytes ? MEMORY_DIR : ".";
    pd_vfs_free(vfs);
    return PD_OK;
}

struct result {
    struct pd_pairs_summary turns, work, saves;
    double stall_p50, stall_p99, copies;
};

static struct result summarise(const struct every_bench *b)
{
    struct result r = {.turns = pd_pairs_summarise(&b->turns),
                       .work = pd_pairs_summarise(&b->work),
                       .saves = pd_pairs_summarise(&b->whole)};
    double shares[PD_BENCH_PAIRS_MAX];
    for (uint32_t i = 0; i < b->stalls.count; i++)
        shares[i] = b->stalls.candidate_s[i] / b->stalls.ceiling_s[i];
    r.stall_p50 = pd_bench_quantile(shares, b->stalls.count, 0.5);
    r.stall_p99 = pd_bench_quantile(shares, b->stalls.count, 0.99);
    r.copies = r.turns.ceiling_s / (double)b->options.every / b->copy_s;
    return r;
}

static void print_text(const struct every_bench *b, const struct result *r)
{
    const uint64_t bytes = pd_bench_run_state_bytes(&b->run);
    printf("%s of state, %s, saves into %s (%s)\n", pd_text_bytes(bytes).text, b->device, b->options.dir, b->file_system);
    printf("a step takes %.3f s, %.1f copies of %.4f s (%.2f GB/s); a save in the background %.4f s\n",
           r->turns.ceiling_s / (double)b->options.every, r->copies, b->copy_s, (double)bytes / b->copy_s / 1e9,
           r->saves.candidate_s);
    printf("stall %.2f%% of the time between saves in the median, %.2f%% in the 99th percentile of %u saves\n",
           100 * r->stall_p50, 100 * r->stall_p99, b->stalls.count);
    printf("slowdown by a save every %llu: %.2f%% (median of %u pairs, %.2f%% to %.2f%%)\n",
           (unsigned long long)b->options.every, 100 * (r->turns.ratio - 1), b->turns.count, 100 * (r->turns.ratio_low - 1),
           100 * (r->turns.ratio_high - 1));
    printf("processor time beside it: %.2f%% more (%.2f%% to %.2f%%)\n", 100 * (r->work.ratio - 1),
           100 * (r->work.ratio_low - 1), 100 * (r->work.ratio_high - 1));
}

static pd_status print(const struct every_bench *b, struct pd_error *err)
{
    const struct result r = summarise(b);
    if (!b->options.json) {
        print_text(b, &r);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_double(&w, "stall_p50", r.stall_p50);
    pd_json_double(&w, "stall_p99", r.stall_p99);
    pd_json_double(&w, "slowdown_every_step", r.turns.ratio - 1);
    pd_json_double(&w, "slowdown_every_step_low", r.turns.ratio_low - 1);
    pd_json_double(&w, "slowdown_every_step_high", r.turns.ratio_high - 1);
    pd_json_double(&w, "work_every_step", r.work.ratio - 1);
    pd_json_double(&w, "copies_a_step", r.copies);
    pd_json_double(&w, "step_seconds", r.turns.ceiling_s / (double)b->options.every);
    pd_json_double(&w, "copy_seconds", b->copy_s);
    pd_json_double(&w, "save_seconds", r.saves.candidate_s);
    pd_json_u64(&w, "state_bytes", pd_bench_run_state_bytes(&b->run));
    pd_json_u64(&w, "every", b->options.every);
    pd_json_u64(&w, "pairs", b->turns.count);
    pd_json_u64(&w, "threads", b->threads);
    pd_json_string(&w, "device", b->device);
    pd_json_string(&w, "dir", b->options.dir);
    pd_json_string(&w, "file_system", b->file_system);
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

/* Before room is looked for: what a bench of no GPU needs of it is nobody's question. */
static pd_status look_for_device(enum pd_device_choice choice, struct pd_error *err)
{
    struct pd_rank_device device;
    PD_TRY(pd_rank_device_open(choice, 0, &device, err));
    pd_rank_device_close(&device);
    return PD_OK;
}

pd_status pd_bench_every(const struct pd_bench_options *options, struct pd_error *err)
{
    struct every_bench b = {.options = *options, .threads = pd_cpu_cores()};
    struct pd_space space = {0};
    pd_numerics_thread_init();
    PD_TRY(look_for_device(options->device, err));
    PD_TRY(choose_dir(&b, err));
    PD_TRY(pd_bench_room_open_anywhere(b.options.dir, needed(&b), &b.room, err));
    pd_status st = pd_vfs_space(b.room.vfs, b.options.dir, &space, err);
    b.file_system = space.type_name;
    if (!st) st = measure(&b, err);
    if (!st) st = print(&b, err);
    release(&b);
    pd_bench_saves_close(&b.saves);
    pd_bench_room_close(&b.room);
    return st;
}
