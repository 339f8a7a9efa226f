/* The life of a rank:
 *
 *   set up (store, data, memory, engine) -> resume -> [step -> validate -> agree -> begin a save]* -> last save -> leave
 *
 * Signals are looked at between micro-batches and agreed upon by all ranks; a step left unfinished changes nothing, so the
 * state that is saved is that of the last update. Saves go on in the background (save.h); which have ended on all ranks is
 * part of the same agreement, so all of them act on the same outcomes at the same step. */
#include "trainer/run/worker.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/trace.h"
#include "ckpt/base/words.h"
#include "trainer/comm/nccl.h"
#include "trainer/engine/gpus.h"
#include "trainer/engine/loss_scale.h"
#include "trainer/engine/scratch.h"
#include "trainer/engine/state_files.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/plan/device_room.h"
#include "trainer/run/directories.h"
#include "trainer/run/launch_layout.h"
#include "trainer/run/metrics.h"
#include "trainer/run/resume.h"
#include "trainer/run/save.h"
#include "trainer/run/signals.h"
#include "trainer/run/stripes.h"
#include "trainer/run/tier_places.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE "worker"
#define COPY_SECONDS_MAX 1e7
#define SAVE_FAILURES_MAX 3u /* in a row, each retried after the next step */

struct worker {
    const struct pd_config *config; /* of this launch: `own` where stripes are left out */
    const struct pd_config *given;
    struct pd_config own;
    struct pd_stripes_left left;
    struct pd_comm *comm;
    struct pd_comm *nccl;                     /* over comm, for what engines move between GPUs; NULL: comm moves it */
    struct pd_comm *tier_comms[PD_TIERS_MAX]; /* the first: of background saves; the others: of copies into their tiers */
    struct pd_comm *copy_comm;                /* of second copies, on other hosts */
    struct pd_group group, tier_groups[PD_TIERS_MAX], copy_group;
    struct pd_vfs *vfs;
    struct pd_tiers *tiers;
    struct pd_tier_places places;
    struct pd_layout stripes; /* of the launch: weights alone count */
    struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_rank_device device;
    struct pd_model *model;
    struct pd_arena *arena;
    struct pd_engine *engine;
    struct pd_scratch *scratch;
    struct pd_saver *saver;
    struct pd_metrics *metrics; /* rank 0 */
    struct pd_run_state state;
    uint32_t threads;
    bool is_thread; /* ranks are threads of one process */
    uint64_t planned_bytes;
    uint64_t saved_step;   /* newest that is known on all ranks to be committed; 0: none */
    uint64_t started_step; /* newest whose save is under way or ended well; 0: none */
    uint32_t save_failures;
    bool is_aborting;                   /* saves under way are given up too */
    double save_seconds, stall_seconds; /* of the saves that ended since the last line of metrics */
};

/* ---- set up ---- */

pd_status pd_worker_write_config(const struct pd_config *config, const char *path, struct pd_error *err)
{
    char *yaml = NULL, temporary[4200];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    PD_TRY(pd_config_print(config, &yaml, err));
    FILE *f = fopen(temporary, "we");
    bool written = f && fputs(yaml, f) >= 0;
    if (f && fclose(f)) written = false;
    int number = errno;
    free(yaml);
    if (written && !rename(temporary, path)) return PD_OK;
    if (written) number = errno;
    if (f) unlink(temporary);
    PD_FAIL_ERRNO(err, number, "%s: writing it", path);
}

/* For people, once this launch owns the run. */
static pd_status publish_config(struct worker *w, struct pd_error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.yaml", w->config->run.dir);
    pd_status st = w->comm->rank == 0 ? pd_worker_write_config(w->given, path, err) : PD_OK;
    return pd_group_agree(&w->group, st, err);
}

static pd_status make_all_directories(struct worker *w, struct pd_tiers_options *options, struct pd_error *err)
{
    PD_TRY(pd_directories_make("run.dir", w->config->run.dir, err));
    if (!w->vfs) PD_TRY(pd_vfs_new_auto(&w->vfs, err));
    return pd_tier_places_make(&w->places, w->vfs, options, err);
}

static bool keeps_files(const struct pd_config *c)
{
    return c->offload.optimizer == PD_PLACE_NVME || c->offload.parameters == PD_PLACE_NVME ||
           c->offload.gradients == PD_PLACE_NVME || c->offload.activations == PD_PLACE_NVME;
}

static pd_status make_stripes(struct worker *w, struct pd_tiers_options *options, struct pd_error *err)
{
    PD_TRY(make_all_directories(w, options, err));
    for (uint32_t i = 0; i < w->config->checkpoint.stripes_count; i++) {
        char key[PD_DIRECTORY_KEY_MAX];
        pd_directories_stripe_key(i, key);
        PD_TRY(pd_directories_make(key, w->config->checkpoint.stripes[i], err));
    }
    return PD_OK;
}

/* Drives that are not there on some host are none of this launch's: what lies on them stays as it is, and what is whole
 * without them is gone on from. */
static pd_status leave_out_stripes(struct worker *w, struct pd_error *err)
{
    uint64_t absent = 0;
    PD_TRY(pd_group_agree(&w->group, pd_stripes_find_absent(w->vfs, w->config, &absent, err), err));
    PD_TRY(pd_comm_all_reduce(w->comm, &absent, 1, PD_REDUCE_OR_U64, err));
    if (!absent) return PD_OK;
    if (w->comm->rank == 0) pd_stripes_say_absent(w->config, absent);
    pd_stripes_leave_out(w->config, absent, &w->left, &w->own);
    w->config = &w->own;
    return PD_OK;
}

/* Before anything is laid out: how much of its state a rank has on which drive is part of the layout. */
static pd_status settle_stripes(struct worker *w, struct pd_error *err)
{
    struct pd_tiers_options options = {.count = 0};
    if (!w->config->checkpoint.stripes_count) return PD_OK;
    if (!w->vfs) PD_TRY(pd_group_agree(&w->group, pd_vfs_new_auto(&w->vfs, err), err));
    PD_TRY(leave_out_stripes(w, err));
    options.count = pd_config_tiers(w->config, options.tiers);
    PD_TRY(pd_tier_places_find(&w->places, w->config, &w->group, &options, err));
    PD_TRY(pd_group_agree(&w->group, make_stripes(w, &options, err), err));
    return pd_stripes_settle(w->vfs, &w->group, w->config, &w->stripes, err);
}

static const struct pd_comm_memory host_memory = {.copy = NULL};

/* For groups alone, whose pieces are in the host's memory whatever the communicator above knows. */
static pd_status split_for_host(struct worker *w, struct pd_comm **ret_comm, struct pd_error *err)
{
    PD_TRY(pd_comm_split(w->comm, 0, w->comm->rank, ret_comm, err));
    pd_comm_use_memory(*ret_comm, &host_memory);
    return PD_OK;
}

/* Copies into later tiers take as long as they take, and some ranks longer than others: a peer that is silent there is not
 * lost. One that is lost shows in training. */
static pd_status open_tiers(struct worker *w, struct pd_error *err)
{
    struct pd_tiers_options options = {.quarantine_bytes_max = UINT64_C(64) << 30,
                                       .busy_wait_ms = 10000,
                                       .generations = w->config->offload.optimizer == PD_PLACE_NVME,
                                       .needs_first = keeps_files(w->config),
                                       .shards = pd_stripes_count(w->config)};
    if (options.shards > 1) options.stripes = (const char *const *)w->config->checkpoint.stripes;
    options.count = pd_config_tiers(w->config, options.tiers);
    PD_TRY(pd_tier_places_find(&w->places, w->config, &w->group, &options, err));
    PD_TRY(pd_group_agree(&w->group, make_all_directories(w, &options, err), err));
    for (uint32_t i = 0; i < options.count; i++) {
        PD_TRY(split_for_host(w, &w->tier_comms[i], err));
        if (i) w->tier_comms[i]->time_limit_seconds = COPY_SECONDS_MAX;
        pd_comm_group(w->tier_comms[i], &w->tier_groups[i]);
        options.groups[i] = &w->tier_groups[i];
    }
    if (options.tiers[0].copies) {
        PD_TRY(split_for_host(w, &w->copy_comm, err));
        w->copy_comm->time_limit_seconds = COPY_SECONDS_MAX;
        pd_comm_group(w->copy_comm, &w->copy_group);
        options.copy_group = &w->copy_group;
    }
    return pd_tiers_open(w->vfs, &options, &w->tiers, err);
}

static pd_status open_data(struct worker *w, struct pd_error *err)
{
    const struct pd_config *c = w->config;
    const struct pd_data_options options = pd_config_data(c);
    PD_TRY(pd_data_open(&options, &w->data, err));
    if (c->validation.every && !pd_data_sample_count(w->data, PD_SPLIT_VALIDATION))
        PD_FAIL(err, PD_INVALID,
                "validation.every is %llu and there is no validation data: give data.validation or "
                "data.validation_fraction, or set validation.every=0",
                (unsigned long long)c->validation.every);
    return PD_OK;
}

static bool leave_requested(void *context)
{
    (void)context;
    return pd_signals_pending() >= PD_SIGNAL_SAVE_AND_LEAVE;
}

/* NCCL takes its buffers when it first needs them, after everything else has its place. */
static void check_nccl_room(const struct worker *w, const struct pd_memory_plan *plan)
{
    struct pd_dev_memory memory;
    if (!w->nccl || pd_dev_memory(w->device.dev, &memory, NULL) || memory.free_bytes >= plan->library_bytes) return;
    pd_log(PD_LOG_WARN, MODULE,
           "GPU %u has %llu MiB of its memory left, and NCCL may take about %llu, by an estimate; if it runs out, set "
           "NCCL_BUFFSIZE=1048576%s",
           w->device.dev->index, (unsigned long long)memory.free_bytes >> 20, (unsigned long long)plan->library_bytes >> 20,
           w->config->batch.micro_batch > 1 ? " or lower batch.micro_batch" : "");
}

/* A stream of their own, as with NCCL: no gather waits for copies of gradients. */
static pd_status part_gathers(struct worker *w, struct pd_error *err)
{
    struct pd_comm_memory memory;
    if (!w->device.dev || w->nccl || !w->engine->grid.gathers) return PD_OK;
    PD_TRY(pd_rank_device_memory(&w->device, PD_STREAM_GATHERS, &memory, err));
    pd_comm_use_memory(w->engine->grid.gathers, &memory);
    return PD_OK;
}

static pd_status build_engine(struct worker *w, struct pd_error *err)
{
    struct pd_memory_plan plan;
    const uint32_t world = w->comm->size, rank = w->comm->rank;
    struct pd_laid_out laid_out;
    PD_TRY(pd_lay_out(w->config, w->model, world, &laid_out, err));
    memcpy(laid_out.layout.stripe_weight, w->stripes.stripe_weight, sizeof w->stripes.stripe_weight);
    const bool is_gpu = w->device.dev != NULL;
    const struct pd_engine_options options = {.config = w->config,
                                              .model = w->model,
                                              .world = world,
                                              .rank = rank,
                                              .threads = w->threads,
                                              .laid_out = &laid_out,
                                              .is_gpu = is_gpu,
                                              .device = is_gpu ? &w->device : NULL};
    PD_TRY(pd_engine_arena(&options, &plan, &w->arena, err));
    check_nccl_room(w, &plan);
    w->planned_bytes = is_gpu ? pd_memory_plan_host(&plan) : pd_memory_plan_total(&plan);
    PD_TRY(pd_thread_pool_new(w->threads, &w->pool, err));
    PD_TRY(pd_engine_new(&options, w->nccl ? w->nccl : w->comm, w->data, w->pool, w->arena, &w->engine, err));
    w->engine->should_leave = leave_requested;
    return part_gathers(w, err);
}

/* The best of some products of the given operands, in operations a second. */
static pd_status time_gemm(struct worker *w, const struct pd_gemm *gemm, double *ret_best, struct pd_error *err)
{
    enum { TRIES_MIN = 3, TRIES = 16 };
    const double seconds_max = 0.03; /* portable kernels are slow and need no better figure */
    double best = 0;
    PD_TRY(pd_comm_barrier(w->comm, err));
    const uint64_t begin = pd_clock_monotonic_ns(NULL);
    for (int i = 0; i < TRIES && (i < TRIES_MIN || pd_clock_seconds_since(NULL, begin) < seconds_max); i++) {
        uint64_t start = pd_clock_monotonic_ns(NULL);
        PD_TRY(pd_gemm(w->engine->math, gemm, err));
        PD_TRY(pd_math_sync(w->engine->math, err));
        best = fmax(best, 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k / pd_clock_seconds_since(NULL, start));
    }
    *ret_best = best;
    return PD_OK;
}

static pd_status time_gemm_here(struct worker *w, double *ret_best, struct pd_error *err)
{
    enum { SIDE = 384 };
    float *a = w->engine->io_buffers, *b = a + SIDE * SIDE, *c = b + SIDE * SIDE;
    for (int i = 0; i < 2 * SIDE * SIDE; i++)
        a[i] = (float)(i % 7) - 3.0f;
    const struct pd_gemm gemm = {
        .m = SIDE, .n = SIDE, .k = SIDE, .a = {a, PD_F32, SIDE}, .b = {b, PD_F32, SIDE}, .c = {c, PD_F32, SIDE}};
    return time_gemm(w, &gemm, ret_best, err);
}

/* Every element is the same small number; zeros stay behind, as there were. */
static pd_status time_gemm_on_gpu(struct worker *w, double *ret_best, struct pd_error *err)
{
    const struct pd_gemm gemm = pd_engine_product(w->engine);
    const struct pd_span span = {w->engine->product, pd_engine_product_bytes(w->engine), false};
    PD_TRY(pd_dev_fill(w->device.dev, w->device.compute, span, 0x2e, err));
    PD_TRY(time_gemm(w, &gemm, ret_best, err));
    return pd_dev_fill(w->device.dev, w->device.compute, span, 0, err);
}

/* Rate of the GEMM this run uses, all ranks at once: what the progress line measures itself against. */
static pd_status measure_gemm(struct worker *w, double *ret_flops_per_second, struct pd_error *err)
{
    double best = 0;
    PD_TRY(w->device.dev ? time_gemm_on_gpu(w, &best, err) : time_gemm_here(w, &best, err));
    uint64_t rate = (uint64_t)best;
    PD_TRY(pd_comm_all_reduce(w->comm, &rate, 1, PD_REDUCE_SUM_U64, err));
    *ret_flops_per_second = (double)rate;
    return PD_OK;
}

static pd_status open_metrics(struct worker *w, struct pd_error *err)
{
    struct pd_metrics_options options = {.directory = w->config->run.dir,
                                         .steps = w->config->run.steps,
                                         .log_every = w->config->run.log_every,
                                         .ranks = w->comm->size,
                                         .threads = w->threads,
                                         .has_loss_scale = w->config->numerics.precision == PD_F16,
                                         .has_stages = w->engine->grid.layout.pp > 1,
                                         .flops_per_token = pd_model_flops_per_token(w->model, w->config->batch.context)};
    PD_TRY(measure_gemm(w, &options.gemm_flops_per_second, err));
    pd_status st = w->comm->rank == 0 ? pd_metrics_open(&options, &w->metrics, err) : PD_OK;
    return pd_group_agree(&w->group, st, err);
}

static uint32_t ranks_of_a_host(const struct pd_comm *comm)
{
    return (comm->size + comm->host_count - 1) / comm->host_count;
}

/* All ranks are GPUs or none is: one on a CPU would keep the others waiting. */
static pd_status open_device(struct worker *w, struct pd_error *err)
{
    const uint32_t rank_here = w->comm->rank % ranks_of_a_host(w->comm);
    PD_TRY(pd_group_agree(&w->group, pd_rank_device_open(w->config->run.device, rank_here, &w->device, err), err));
    if (pd_trace_is_on) PD_TRY(pd_group_agree(&w->group, pd_rank_device_watch(&w->device, err), err));
    uint64_t kinds = w->device.dev ? 1 : 2;
    PD_TRY(pd_comm_all_reduce(w->comm, &kinds, 1, PD_REDUCE_OR_U64, err));
    if (kinds != 3) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "some ranks have a GPU and others have none; leave out the hosts without one, or set run.device=cpu");
}

/* A GPU is there and the CPU computes: nobody means that who did not say so. */
static void say_unused(void)
{
    struct pd_gpus gpus;
    struct pd_dev *dev;
    struct pd_error why = {0};
    pd_gpus_find(&gpus);
    if (!gpus.count) return;
    if (pd_dev_open_cuda(0, &dev, &why))
        pd_log(PD_LOG_WARN, MODULE, "computing on the CPU, beside %u x %s: %s; run.device=cpu means it so", gpus.count,
               gpus.gpus[0].name, why.message);
    else
        pd_dev_close(dev);
}

static void say_device(const struct worker *w)
{
    const uint32_t gpus = pd_dev_cuda_count(), here = ranks_of_a_host(w->comm);
    if (w->comm->rank > 0) return;
    pd_launch_layout_say_hosts(w->config, w->comm->size, w->comm->host_count);
    if (!w->device.dev && w->config->run.device == PD_DEVICE_AUTO) say_unused();
    if (!w->device.dev) return;
    pd_log(PD_LOG_INFO, MODULE, "computing on %s%s", w->device.dev->description,
           here > gpus ? ": several ranks share a GPU, whose time and memory they divide" : "");
}

static pd_status set_up_local(struct worker *w, struct pd_error *err)
{
    PD_TRY(pd_model_new(&w->config->model, &w->model, err));
    PD_TRY(open_data(w, err));
    return build_engine(w, err);
}

/* What this rank was planned to take and does not hold yet. */
static uint64_t memory_to_come(const struct worker *w)
{
    const uint64_t held = pd_metrics_resident_bytes() / (w->is_thread ? w->comm->size : 1);
    return w->planned_bytes > held ? w->planned_bytes - held : 0;
}

/* Between GPUs by NCCL; where there is none, or ranks share a GPU, through the memory of the host. */
static pd_status open_transfers(struct worker *w, struct pd_error *err)
{
    struct pd_error why;
    bool is_meant = false;
    if (!w->device.dev || w->comm->size == 1) return PD_OK;
    const pd_status st =
        pd_comm_new_nccl(w->comm, w->device.dev, w->device.compute, w->device.spans, &w->nccl, &is_meant, &why);
    if (st != PD_UNSUPPORTED) {
        if (st && err) *err = why;
        return st;
    }
    struct pd_comm_memory memory;
    PD_TRY(pd_group_agree(&w->group, pd_rank_device_memory(&w->device, PD_STREAM_EXCHANGES, &memory, err), err));
    pd_comm_use_memory(w->comm, &memory);
    if (w->comm->rank == 0)
        pd_log(is_meant ? PD_LOG_INFO : PD_LOG_WARN, MODULE, "what ranks exchange goes through the memory of the host: %s",
               why.message);
    return PD_OK;
}

static void let_saves_go(void *saver)
{
    pd_saver_let_go(saver);
}

/* Before the state is there: building an index takes memory that goes back, and nothing else is in use yet. */
static pd_status make_saver(struct worker *w, struct pd_error *err)
{
    const struct pd_config *c = w->config;
    pd_status st = pd_saver_new(w->vfs, w->tiers, &w->tier_groups[0], w->engine, c->checkpoint.in_flight, &w->saver, err);
    PD_TRY(pd_group_agree(&w->group, st, err));
    w->engine->before_update = let_saves_go;
    w->engine->update_context = w->saver;
    return PD_OK;
}

/* State in files is made in them: whether they fit is said, and they are made, before that. Where the first tier is in
 * memory and left out of saves, files are made as they are needed, which is fewer. */
static pd_status make_generations(struct worker *w, const uint64_t *bytes, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(w->tiers, 0);
    const uint32_t stripes = pd_stripes_count(w->config);
    struct pd_tier_report first;
    for (uint32_t s = 0; s < stripes; s++) /* of all generations */
        PD_TRY(pd_store_check_space(pd_store_stripe(store, s), bytes[s], 1, err));
    PD_TRY(pd_tiers_check_room(w->tiers, bytes, memory_to_come(w), err));
    pd_tiers_report(w->tiers, 0, &first);
    if (first.is_left_out) return PD_OK;
    for (uint32_t s = 0; s < stripes; s++)
        PD_TRY(pd_group_agree(&w->group, pd_store_generations_reserve(pd_store_stripe(store, s), bytes[s], err), err));
    return PD_OK;
}

static void list_shard_bytes(const struct worker *w, uint64_t ret_bytes[PD_LAYOUT_STRIPES_MAX])
{
    for (uint32_t s = 0; s < pd_stripes_count(w->config); s++)
        ret_bytes[s] = pd_saver_file_bytes(w->saver, s);
}

static pd_status open_saver(struct worker *w, struct pd_error *err)
{
    uint64_t bytes[PD_LAYOUT_STRIPES_MAX];
    list_shard_bytes(w, bytes);
    if (!w->engine->files) PD_TRY(pd_tiers_check_room(w->tiers, bytes, memory_to_come(w), err));
    PD_TRY(pd_tiers_start(w->tiers, err));
    pd_saver_keep_ready(w->saver);
    return PD_OK;
}

static pd_status open_offload(struct worker *w, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(w->tiers, 0);
    PD_TRY(pd_scratch_open(w->engine, w->vfs, store, &w->scratch, err));
    return w->config->offload.optimizer == PD_PLACE_NVME ? pd_state_files_open(w->engine, w->vfs, store, err) : PD_OK;
}

static pd_status set_up(struct worker *w, struct pd_error *err)
{
    struct pd_resume_report report;
    uint64_t bytes[PD_LAYOUT_STRIPES_MAX];
    pd_comm_group(w->comm, &w->group);
    PD_TRY(open_device(w, err));
    PD_TRY(open_transfers(w, err));
    say_device(w);
    PD_TRY(settle_stripes(w, err));
    PD_TRY(pd_group_agree(&w->group, set_up_local(w, err), err));
    PD_TRY(open_tiers(w, err));
    PD_TRY(publish_config(w, err));
    pd_tier_places_note(&w->places, w->tiers);
    PD_TRY(pd_group_agree(&w->group, open_offload(w, err), err));
    PD_TRY(make_saver(w, err));
    list_shard_bytes(w, bytes);
    if (w->engine->files) PD_TRY(make_generations(w, bytes, err));
    PD_TRY(pd_resume(w->vfs, w->tiers, &w->group, w->engine, &w->state, &report, err));
    w->saved_step = report.resumed ? w->state.identity.step : 0;
    PD_TRY(open_saver(w, err));
    PD_TRY(open_metrics(w, err));
    if (w->comm->rank > 0) return PD_OK;
    const struct pd_counted ranks = pd_counted(w->comm->size, "rank"), threads = pd_counted(w->threads, "thread");
    if (report.resumed)
        pd_log(PD_LOG_INFO, MODULE, "resumed at step %llu, saved by %s, on %s x %s in %.2f s",
               (unsigned long long)w->state.identity.step, pd_counted(report.from_world, "rank").text, ranks.text,
               threads.text, report.seconds);
    else
        pd_log(PD_LOG_INFO, MODULE, "fresh start: %llu parameters on %s x %s", (unsigned long long)w->model->parameter_count,
               ranks.text, threads.text);
    return PD_OK;
}

static void tear_down(struct worker *w)
{
    pd_metrics_close(w->metrics);
    pd_saver_free(w->saver);
    pd_state_files_close(w->engine);
    pd_scratch_close(w->scratch);
    if (w->tiers) pd_tier_places_note(&w->places, w->tiers);
    pd_tiers_close(w->tiers);
    for (uint32_t i = 0; i < PD_TIERS_MAX; i++)
        pd_comm_free(w->tier_comms[i]);
    pd_comm_free(w->copy_comm);
    pd_vfs_free(w->vfs);
    pd_run_state_deinit(&w->state);
    pd_rank_device_quiet(&w->device);
    pd_engine_free(w->engine);
    pd_comm_free(w->nccl);
    pd_arena_free(w->arena);
    pd_comm_use_memory(w->comm, &host_memory); /* it outlives the device */
    pd_rank_device_close(&w->device);
    pd_thread_pool_free(w->pool);
    pd_data_close(w->data);
    pd_model_free(w->model);
}

/* ---- steps ---- */

static pd_status say_last_save(const struct worker *w, pd_status st, struct pd_error *err)
{
    if (!w->saved_step) return pd_error_context(err, st, "no save has worked; mend this, and run the same command again");
    return pd_error_context(err, st,
                            "no save since step %llu has worked; mend this, and the same command goes on from there",
                            (unsigned long long)w->saved_step);
}

/* A save that failed is said and tried again after the next step; a run that cannot save ends. */
static pd_status take_outcome(struct worker *w, struct pd_saver_outcome *o, struct pd_error *err)
{
    w->save_seconds += o->save_seconds;
    w->stall_seconds += o->stall_seconds;
    if (!o->status) {
        w->saved_step = o->step;
        w->save_failures = 0;
        return PD_OK;
    }
    if (w->started_step == o->step) w->started_step = 0;
    const pd_status st = o->status;
    if (st == PD_PEER_LOST || st == PD_EXISTS || st == PD_BUSY || ++w->save_failures == SAVE_FAILURES_MAX) {
        if (err) *err = o->error;
        pd_error_context(err, st, "saving step %llu", (unsigned long long)o->step);
        return w->save_failures == SAVE_FAILURES_MAX ? say_last_save(w, st, err) : st;
    }
    if (w->comm->rank == 0)
        pd_log(PD_LOG_ERROR, MODULE,
               "step %llu is not saved, the newest checkpoint is of step %llu; trying again after the next step: %s",
               (unsigned long long)o->step, (unsigned long long)w->saved_step, o->error.message);
    return PD_OK;
}

/* What became of the first `finished` saves, which have ended on all ranks. */
static pd_status take_outcomes(struct worker *w, uint64_t finished, struct pd_error *err)
{
    struct pd_saver_outcome outcome;
    while (pd_saver_collect(w->saver, finished, &outcome))
        PD_TRY(take_outcome(w, &outcome, err));
    return PD_OK;
}

static void begin_save(struct worker *w, bool everywhere)
{
    w->started_step = w->state.identity.step;
    pd_saver_start(w->saver, &w->state, everywhere || w->started_step == w->config->run.steps);
}

/* Until what is under way has ended on this rank: it ends alike on all. */
static pd_status finish_saves(struct worker *w, struct pd_error *err)
{
    pd_saver_wait(w->saver);
    return take_outcomes(w, pd_saver_finished(w->saver), err);
}

static pd_status save_and_wait(struct worker *w, struct pd_error *err)
{
    if (w->started_step != w->state.identity.step) begin_save(w, true);
    return finish_saves(w, err);
}

/* The strongest wish of any rank, and the saves that have ended on every one. */
static pd_status agree(struct worker *w, enum pd_signal *ret_signal, uint64_t *ret_finished, struct pd_error *err)
{
    uint64_t words[2] = {pd_signals_pending(), UINT64_MAX - pd_saver_finished(w->saver)};
    PD_TRY(pd_comm_all_reduce(w->comm, words, 2, PD_REDUCE_MAX_U64, err));
    *ret_signal = (enum pd_signal)words[0];
    *ret_finished = UINT64_MAX - words[1];
    if (*ret_signal == PD_SIGNAL_SAVE) pd_signals_clear_save();
    return PD_OK;
}

static bool save_is_due(const struct worker *w, enum pd_signal signal)
{
    const uint64_t step = w->state.identity.step;
    if (w->saved_step == step || w->started_step == step) return false;
    return signal != PD_SIGNAL_NONE || w->save_failures || step == w->config->run.steps || pd_tiers_is_due(w->tiers, step);
}

static pd_status save_and_leave(struct worker *w, struct pd_error *err)
{
    if (w->state.identity.step == 0)
        PD_FAIL(err, PD_STOPPED, "asked to leave before the first step; there was nothing to save");
    PD_TRY(finish_saves(w, err));
    while (w->saved_step != w->state.identity.step)
        PD_TRY(save_and_wait(w, err));
    PD_TRY(pd_saver_finish(w->saver, &w->state, w->config->checkpoint.leave_seconds, err));
    PD_FAIL(err, PD_STOPPED, "asked to leave; the state of step %llu is saved, the same command goes on from there",
            (unsigned long long)w->state.identity.step);
}

/* Every rank stopped at the same place; they may not all have seen the signal. */
static pd_status leave(struct worker *w, struct pd_error *err)
{
    enum pd_signal signal;
    uint64_t finished;
    PD_TRY(agree(w, &signal, &finished, err));
    if (signal != PD_SIGNAL_ABORT) return save_and_leave(w, err);
    w->is_aborting = true;
    PD_FAIL(err, PD_STOPPED, "aborted; nothing after step %llu is saved", (unsigned long long)w->saved_step);
}

/* A skipped step consumes its samples and updates nothing. */
static pd_status advance(struct worker *w, const struct pd_step_result *result, struct pd_error *err)
{
    if (w->config->numerics.precision == PD_F16)
        PD_TRY(pd_loss_scale_advance(&w->state, result->skipped, w->config->numerics.loss_scale_interval, err));
    w->state.identity.step++;
    w->state.updates += !result->skipped;
    w->state.samples += w->config->batch.sequences;
    w->state.tokens += result->tokens;
    w->state.last_loss = result->loss;
    if (result->skipped && w->comm->rank == 0)
        pd_log(PD_LOG_WARN, MODULE, "step %llu is skipped: a gradient overflowed fp16 (%s so far); loss scale %g",
               (unsigned long long)w->state.identity.step, pd_counted(w->state.skipped_steps, "skip").text,
               w->state.loss_scale);
    return PD_OK;
}

static pd_status validate(struct worker *w, double *ret_loss, struct pd_error *err)
{
    const uint64_t every = w->config->validation.every, step = w->state.identity.step;
    *ret_loss = NAN;
    if (!every || (step % every && step != w->config->run.steps)) return PD_OK;
    PD_TRY(pd_engine_validate(w->engine, w->config->validation.sequences, ret_loss, err));
    if (!(w->state.best_validation_loss <= *ret_loss)) w->state.best_validation_loss = *ret_loss;
    return PD_OK;
}

/* The line goes first: a step that a kill leaves committed is not computed again. */
static void write_metrics(struct worker *w, struct pd_metrics_step *m)
{
    struct pd_error error;
    struct pd_dev_memory device;
    m->step = w->state.identity.step;
    m->fence = w->state.fence;
    m->skipped_steps = w->state.skipped_steps;
    m->last_checkpoint = w->saved_step;
    m->tiers = w->tiers;
    m->save_seconds = w->save_seconds;
    m->stall_seconds = w->stall_seconds;
    m->memory_bytes = pd_metrics_resident_bytes();
    if (w->metrics && w->device.dev && !pd_dev_memory(w->device.dev, &device, NULL))
        m->device_free_bytes = device.free_bytes;
    w->save_seconds = w->stall_seconds = 0;
    pd_tier_places_note(&w->places, w->tiers);
    if (w->metrics && pd_metrics_write(w->metrics, m, &error))
        pd_log(PD_LOG_WARN, MODULE, "metrics of step %llu are lost: %s", (unsigned long long)m->step, error.message);
}

/* Who is waited for, a person or a batch system, is told when it is done; training itself waits for nothing. */
static pd_status save_if_due(struct worker *w, enum pd_signal signal, struct pd_error *err)
{
    if (signal == PD_SIGNAL_ABORT || !save_is_due(w, signal)) return PD_OK;
    if (signal != PD_SIGNAL_NONE) return save_and_wait(w, err);
    begin_save(w, false);
    return PD_OK;
}

static pd_status run_step(struct worker *w, struct pd_error *err)
{
    struct pd_metrics_step m = {.loss_scale = w->state.loss_scale};
    enum pd_signal signal;
    uint64_t start = pd_clock_monotonic_ns(NULL), finished;
    w->engine->loss_scale = w->state.loss_scale;
    w->engine->next_identity = w->state.identity;
    w->engine->next_identity.step++;
    PD_TRY(pd_engine_step(w->engine, w->state.samples, w->state.updates, &m.result, err));
    m.seconds = pd_clock_seconds_since(NULL, start);
    PD_TRY(advance(w, &m.result, err));
    pd_fault_point("worker.stepped");
    PD_TRY(validate(w, &m.validation_loss, err));
    PD_TRY(agree(w, &signal, &finished, err));
    pd_status saved = take_outcomes(w, finished, err);
    write_metrics(w, &m);
    PD_TRY(saved);
    PD_TRY(save_if_due(w, signal, err));
    if (signal < PD_SIGNAL_SAVE_AND_LEAVE) return PD_OK;
    PD_FAIL(err, PD_STOPPED, "asked to leave after step %llu", (unsigned long long)m.step);
}

static pd_status run_steps(struct worker *w, struct pd_error *err)
{
    bool frozen = false;
    while (w->state.identity.step < w->config->run.steps || w->saved_step != w->state.identity.step) {
        pd_status st = w->state.identity.step < w->config->run.steps ? run_step(w, err) : save_and_wait(w, err);
        if (st == PD_STOPPED) return leave(w, err);
        PD_TRY(st);
        if (!frozen && w->saved_step) {
            pd_arena_freeze(w->arena);
            frozen = true;
        }
    }
    PD_TRY(pd_saver_finish(w->saver, &w->state, -1, err));
    if (w->comm->rank == 0)
        pd_log(PD_LOG_INFO, MODULE, "done: step %llu, loss %.6f, saved", (unsigned long long)w->state.identity.step,
               w->state.last_loss);
    return PD_OK;
}

pd_status pd_worker_run(const struct pd_config *config, struct pd_comm *comm, const struct pd_launched *launched,
                        struct pd_error *err)
{
    struct worker w = {.config = config,
                       .given = config,
                       .comm = comm,
                       .is_thread = !launched,
                       .threads = pd_launched_threads(config->layout.threads, ranks_of_a_host(comm))};
    comm->time_limit_seconds = config->restart.peer_timeout;
    pd_numerics_thread_init();
    pd_status st = set_up(&w, err);
    if (!st) st = run_steps(&w, err);
    st = pd_rank_device_say_lost(&w.device, st, err);
    /* What ended training is no reason to lose a save of the state before it, while there are peers to commit it with. */
    if (st && st != PD_PEER_LOST && w.saver && !w.is_aborting) pd_saver_wait(w.saver);
    /* Peers may still read from and write to this rank's memory: nobody may before it is freed. */
    if (st) pd_comm_abort(comm);
    if (st && w.nccl) pd_comm_abort(w.nccl);
    if (st && w.engine) pd_engine_abort(w.engine);
    /* Said before the rest is put away: the starter may end this process at any time now, and it is not one that died. */
    if (st && launched) pd_launched_end(launched, st, err ? err->message : "");
    tear_down(&w);
    return st;
}

static pd_status run_local_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    pd_rank_set_thread((int)comm->rank);
    return pd_worker_run(context, comm, NULL, err);
}

pd_status pd_worker_main(const struct pd_config *config, const struct pd_launched *launched, struct pd_error *err)
{
    uint32_t ranks = launched->is_launched ? launched->ranks : config->layout.ranks ? config->layout.ranks : 1;
    enum pd_transport transport = launched->is_launched ? launched->transport : config->layout.transport;
    if (transport != PD_TRANSPORT_MPI) {
        pd_launched_ready(launched);
        pd_status st = pd_comm_run_local(ranks, 1, run_local_rank, (void *)config, err);
        pd_fault_point("worker.ended");
        return st;
    }
    struct pd_comm *comm;
    PD_TRY(pd_comm_open_mpi(&comm, err));
    pd_rank_set_process((int)comm->rank);
    pd_launched_ready(launched);
    pd_status st = pd_worker_run(config, comm, launched, err);
    pd_comm_free(comm);
    pd_fault_point("worker.ended");
    return st;
}
