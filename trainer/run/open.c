/* Opens a rank, with later parts built on earlier ones, and closes it in reverse:
 *
 *   device -> transfers between GPUs -> model, data, memory, engine -> tiers -> offload files
 *          -> saver -> room for checkpoints -> state (resume.h) -> metrics
 *
 * What one rank alone learns is agreed on before the next part begins, so all ranks fail with the same status.
 */
#include "ckpt/base/clock.h"
#include "ckpt/base/file_limit.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/trace.h"
#include "ckpt/base/words.h"
#include "trainer/comm/nccl.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_origin.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/gpus.h"
#include "trainer/engine/scratch.h"
#include "trainer/math/math_cuda.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/plan/device_memory.h"
#include "trainer/plan/memory_plan.h"
#include "trainer/run/directories.h"
#include "trainer/run/events.h"
#include "trainer/run/internal.h"
#include "trainer/run/launched.h"
#include "trainer/run/resume.h"
#include "trainer/run/signals.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- how fast the GEMM of this run is on these ranks: the bound that the progress line compares a step with ---- */

/* On a CPU in the engine's I/O buffers. */
static struct pd_gemm gemm_here(const struct pd_engine *e)
{
    enum { SIDE = 384 };
    float *a = e->staging.data, *b = a + SIDE * SIDE, *c = b + SIDE * SIDE;
    for (int i = 0; i < 2 * SIDE * SIDE; i++)
        a[i] = (float)(i % 7) - 3.0f;
    return (struct pd_gemm){
        .m = SIDE, .n = SIDE, .k = SIDE, .a = {a, PD_F32, SIDE}, .b = {b, PD_F32, SIDE}, .c = {c, PD_F32, SIDE}};
}

/* Operations per second of all ranks of `comm` computing at once: the best of several products. Collective. On a GPU the
 * operands are in the gradients' memory, or the plan's: call before the first step and save. Memory is zeroed again
 * afterwards. */
static pd_status gemm_rate_measure(struct pd_engine *e, struct pd_comm *comm, double *ret_flops_per_second,
                                   struct pd_error *err)
{
    enum { TRIES_MIN = 2, TRIES = 16 };
    const double seconds_max = 0.005; /* of every start, and of every restart */
    struct pd_rank_device *device = e->options.device;
    const struct pd_gemm gemm = device ? pd_engine_gemm(e) : gemm_here(e);
    const struct pd_span operands = {(void *)(uintptr_t)gemm.a.data, 3 * gemm.m * gemm.k * pd_dtype_bytes(gemm.a.dtype),
                                     false}; /* one after another */
    double best = 0;
    if (device) PD_TRY(pd_rank_device_randomize(device, operands, gemm.a.dtype, err));
    PD_TRY(pd_comm_barrier(comm, err));
    const uint64_t begin = pd_clock_monotonic_ns(NULL);
    for (int i = 0; i < TRIES && (i < TRIES_MIN || pd_clock_seconds_since(begin) < seconds_max); i++) {
        const uint64_t start = pd_clock_monotonic_ns(NULL);
        PD_TRY(pd_gemm(e->math, &gemm, err));
        PD_TRY(pd_math_sync(e->math, err));
        best = fmax(best, 2.0 * (double)gemm.m * (double)gemm.n * (double)gemm.k / pd_clock_seconds_since(start));
    }
    if (device) PD_TRY(pd_dev_fill(device->dev, device->compute, operands, 0, err));
    uint64_t rate = (uint64_t)best;
    PD_TRY(pd_comm_all_reduce(comm, &rate, 1, PD_REDUCE_SUM_U64, err));
    *ret_flops_per_second = (double)rate;
    return PD_OK;
}

/* ---- open and close ---- */

#define MODULE "worker"
#define LANES_LOGGED_BYTES (256u << 20)

/* For people, once this launch owns the run. */
static pd_status publish_config(struct run *r, struct pd_error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.yaml", r->config->run.dir);
    pd_status st = PD_OK;
    if (r->comm->rank == 0) PD_ON_STORAGE(st = pd_config_write(r->config, path, err));
    return pd_group_agree(&r->group, st, err);
}

/* For sampling from the run, once it is certain that the run continues with this data. */
static pd_status publish_tokenizer(struct run *r, struct pd_error *err)
{
    const char *tokens = NULL;
    (void)pd_data_tokenizer(r->data, &tokens);
    pd_status st = PD_OK;
    if (tokens && r->comm->rank == 0) PD_ON_STORAGE(st = pd_token_origin_copy(tokens, r->tokenizer_path, err));
    return pd_group_agree(&r->group, st, err);
}

static pd_status make_all_directories(struct run *r, struct pd_tiers_options *options, struct pd_error *err)
{
    PD_TRY(pd_directories_make("run.dir", r->config->run.dir, err));
    if (!r->vfs) PD_TRY(pd_vfs_new_auto(&r->vfs, err));
    return pd_tier_places_make(&r->places, r->vfs, options, err);
}

static bool keeps_files(const struct pd_config *c)
{
    return c->offload.optimizer == PD_PLACE_NVME || c->offload.parameters == PD_PLACE_NVME ||
           c->offload.gradients == PD_PLACE_NVME || c->offload.activations == PD_PLACE_NVME;
}

static const struct pd_comm_memory host_memory = {.copy = NULL};

/* For groups, whose pieces are always in host memory. */
static pd_status split_for_host(struct run *r, struct pd_comm **ret_comm, struct pd_error *err)
{
    PD_TRY(pd_comm_split(r->comm, 0, r->comm->rank, ret_comm, err));
    pd_comm_use_memory(*ret_comm, &host_memory);
    return PD_OK;
}

/* Saves and copies take as long as storage does, on some ranks longer than on others: a silent peer is not lost. A lost one
 * shows in training. */
static pd_status open_tiers(struct run *r, struct pd_error *err)
{
    struct pd_tiers_options options = {.quarantine_bytes_max = UINT64_C(64) << 30,
                                       .busy_wait_ms = 10000,
                                       .give_up_seconds =
                                           fmin(60 * r->config->checkpoint.give_up_minutes, PD_SAVE_LAST_SECONDS),
                                       .generations = r->config->offload.optimizer == PD_PLACE_NVME,
                                       .needs_first = keeps_files(r->config),
                                       .beside = r->tokenizer_path};
    snprintf(r->tokenizer_path, sizeof r->tokenizer_path, "%s/" PD_TOKENIZER_FILE, r->config->run.dir);
    options.is_host_away = pd_launched_hosts_away()[0];
    options.count = pd_config_tiers(r->config, options.tiers);
    pd_status st;
    PD_TRY(pd_tier_places_find(&r->places, r->config, &r->group, &options, err));
    PD_ON_STORAGE(st = make_all_directories(r, &options, err));
    PD_TRY(pd_group_agree(&r->group, st, err));
    if (r->comm->rank == 0) pd_directories_warn_shared(r->config);
    for (uint32_t i = 0; i < options.count; i++) {
        PD_TRY(split_for_host(r, &r->tier_comms[i], err));
        r->tier_comms[i]->is_background = true;
        pd_comm_group(r->tier_comms[i], &r->tier_groups[i]);
        options.groups[i] = &r->tier_groups[i];
    }
    if (options.tiers[0].replicas) {
        PD_TRY(split_for_host(r, &r->replica_comm, err));
        r->replica_comm->is_background = true;
        pd_comm_group(r->replica_comm, &r->replica_group);
        options.replica_group = &r->replica_group;
    }
    return pd_tiers_open(r->vfs, &options, &r->tiers, err);
}

/* NCCL allocates its buffers on first use, after everything else. */
static void check_nccl_memory(const struct run *r, const struct pd_memory_plan *plan)
{
    struct pd_dev_memory memory;
    if (!r->nccl || pd_dev_memory(r->device.dev, &memory, NULL) || memory.free_bytes >= plan->library_bytes) return;
    pd_log(PD_LOG_WARN, MODULE,
           "GPU %u has %llu MiB of its memory left, and NCCL may take about %llu, by an estimate; if it runs out, set "
           "NCCL_BUFFSIZE=1048576%s",
           r->device.dev->index, (unsigned long long)memory.free_bytes >> 20, (unsigned long long)plan->library_bytes >> 20,
           r->config->batch.micro_batch > 1 ? " or lower batch.micro_batch" : "");
}

/* Names the first file that differs from rank 0's; the format chosen for it may differ too. theirs: (count) */
static pd_status name_other_file(const struct pd_data *data, const struct pd_data_file *theirs, uint32_t count,
                                 const char *host, struct pd_error *err)
{
    uint32_t differ = 0, first = 0;
    char more[64] = "";
    struct pd_data_file own;
    for (uint32_t i = count; i-- > 0;) {
        (void)pd_data_file(data, i, &own);
        if (own.bytes == theirs[i].bytes && own.digest == theirs[i].digest) continue;
        first = i;
        differ++;
    }
    if (!differ)
        PD_FAIL(err, PD_INVALID, "host %s takes its data for other than rank 0 does: formats, weights or order", host);
    const char *path = pd_data_file(data, first, &own);
    if (differ > 1) snprintf(more, sizeof more, ", the first of %u files that differ", differ);
    PD_FAIL(err, PD_INVALID,
            "host %s has other data than rank 0: %.500s has %llu bytes (digest %016llx), and there %llu bytes (digest "
            "%016llx)%s; "
            "give all hosts the same files",
            host, path, (unsigned long long)own.bytes, (unsigned long long)own.digest,
            (unsigned long long)theirs[first].bytes, (unsigned long long)theirs[first].digest, more);
}

static pd_status compare_data(struct run *r, const char *host, uint32_t count, struct pd_data_file *theirs,
                              struct pd_error *err)
{
    uint64_t own[2], first[2];
    pd_data_fingerprint(r->data, own);
    memcpy(first, own, sizeof first);
    for (uint32_t i = 0; i < count; i++)
        (void)pd_data_file(r->data, i, &theirs[i]);
    PD_TRY(pd_group_broadcast(&r->group, 0, first, sizeof first, err));
    PD_TRY(pd_group_broadcast(&r->group, 0, theirs, count * sizeof *theirs, err));
    const bool is_same = memcmp(own, first, sizeof own) == 0;
    return pd_group_agree(&r->group, is_same ? PD_OK : name_other_file(r->data, theirs, count, host, err), err);
}

/* Each host reads its own files; opening read all of them. */
static pd_status agree_data(struct run *r, struct pd_error *err)
{
    char host[64] = "";
    pd_status st = PD_OK;
    const uint32_t count = pd_data_file_count(r->data);
    uint32_t first = count;
    (void)gethostname(host, sizeof host - 1);
    PD_TRY(pd_group_broadcast(&r->group, 0, &first, sizeof first, err));
    struct pd_data_file *theirs = calloc(count, sizeof *theirs);
    if (!theirs) st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "a list of data files");
    if (first != count)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "host %s finds %u data files, and rank 0 %u: give all hosts the same files", host, count, first);
    st = pd_group_agree(&r->group, st, err);
    if (!st) st = compare_data(r, host, count, theirs, err);
    free(theirs);
    return st;
}

/* What this rank would save if every data rank had one lane. */
static uint64_t lanes_cost(const struct pd_engine_options *options, const struct pd_memory_plan *plan)
{
    struct pd_config fewer = *options->config; /* shares what it points to */
    struct pd_engine_options other = *options;
    struct pd_memory_plan less;
    struct pd_error ignored;
    other.config = &fewer;
    if (fewer.numerics.lanes <= options->laid_out->layout.dp) return 0;
    fewer.numerics.lanes = options->laid_out->layout.dp;
    if (pd_engine_plan_of(&other, &less, &ignored)) return 0;
    const uint64_t now = pd_memory_of_device(options->config, plan), then = pd_memory_of_device(&fewer, &less);
    return now > then ? now - then : 0;
}

/* A failure here affects only some ranks, in the middle of collective operations: ending those tells the others. */
static pd_status build_engine(struct run *r, struct pd_error *err)
{
    struct pd_memory_plan plan;
    const uint32_t world = r->comm->size, rank = r->comm->rank;
    struct pd_laid_out laid_out;
    PD_TRY(pd_lay_out(r->config, r->model, world, &laid_out, err));
    const bool is_gpu = r->device.dev != NULL;
    const struct pd_engine_options options = {.config = r->config,
                                              .model = r->model,
                                              .world = world,
                                              .rank = rank,
                                              .threads = r->threads,
                                              .ranks_here = r->comm->ranks_here,
                                              .laid_out = &laid_out,
                                              .is_gpu = is_gpu,
                                              .device = is_gpu ? &r->device : NULL};
    PD_TRY(pd_engine_arena(&options, &plan, &r->arena, err));
    check_nccl_memory(r, &plan);
    if (rank == 0) r->lanes_bytes = lanes_cost(&options, &plan);
    r->planned_bytes = is_gpu ? pd_memory_plan_host(&plan) : pd_memory_plan_total(&plan);
    PD_TRY(pd_thread_pool_new(r->threads, &r->pool, err));
    PD_TRY(pd_engine_new(&options, r->nccl ? r->nccl : r->comm, r->data, r->pool, r->arena, &r->engine, err));
    r->engine->should_leave = pd_signals_say_leave;
    r->engine->should_save = pd_signals_say_save;
    r->engine->save = pd_run_save_in_validation;
    r->engine->save_context = r;
    if (is_gpu && rank == 0) {
        const struct pd_attention sizes = {.head_size = r->config->model.head_size, .dtype = r->config->numerics.precision};
        char kernels[160];
        pd_math_cuda_kernels(r->device.dev->capability, &sizes, kernels, sizeof kernels);
        pd_log(PD_LOG_INFO, MODULE, "GPU kernels: %s", kernels);
    }
    /* Its own stream, as with NCCL: no gather waits for copies of gradients. */
    struct pd_comm_memory memory;
    if (!r->device.dev || r->nccl || !r->engine->grid.gathers) return PD_OK;
    PD_TRY(pd_rank_device_memory(&r->device, PD_STREAM_GATHERS, &memory, err));
    pd_comm_use_memory(r->engine->grid.gathers, &memory);
    return PD_OK;
}

static pd_status open_metrics(struct run *r, const struct pd_resume_report *report, struct pd_error *err)
{
    struct pd_metrics_options options = {.config = r->config,
                                         .ranks = r->comm->size,
                                         .planned_bytes = r->planned_bytes,
                                         .has_stages = r->engine->grid.layout.pp > 1,
                                         .flops_per_token = pd_model_flops_per_token(r->model, r->config->batch.context)};
    PD_TRY(gemm_rate_measure(r->engine, r->comm, &options.gemm_flops_per_second, err));
    pd_status st = r->comm->rank == 0 ? pd_metrics_open(&options, &r->metrics, err) : PD_OK;
    PD_TRY(pd_group_agree(&r->group, st, err));
    return pd_event_open(r, report, options.gemm_flops_per_second, err);
}

/* Either all ranks use GPUs or none: one on a CPU would slow down the others. */
static pd_status open_device(struct run *r, struct pd_error *err)
{
    const pd_status st =
        pd_rank_device_open(r->config->run.device, r->comm->rank_here, getenv(PD_LAUNCH_ENV_LEFT_OUT), &r->device, err);
    PD_TRY(pd_group_agree(&r->group, st, err));
    if (r->device.dev)
        pd_log(PD_LOG_DEBUG, MODULE, "rank %u of the host, on GPU %u", r->comm->rank_here, r->device.dev->index);
    if (pd_trace_is_on) PD_TRY(pd_group_agree(&r->group, pd_rank_device_watch(&r->device, err), err));
    uint64_t kinds = r->device.dev ? 1 : 2;
    PD_TRY(pd_comm_all_reduce(r->comm, &kinds, 1, PD_REDUCE_OR_U64, err));
    if (kinds != 3) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "some ranks have a GPU and others have none; leave out the hosts without one, or set run.device=cpu");
}

/* There is a GPU but the CPU computes: probably unintended, unless configured. */
static void log_unused_gpu(void)
{
    struct pd_gpus gpus;
    struct pd_dev *dev;
    struct pd_error why = {0};
    pd_gpus_find(&gpus);
    if (!gpus.count) return;
    if (pd_dev_open_cuda(0, &dev, &why))
        pd_log(PD_LOG_WARN, MODULE, "computing on the CPU although there are %u x %s: %s; set run.device=cpu if you mean it",
               gpus.count, gpus.gpus[0].name, why.message);
    else
        pd_dev_close(dev);
}

static void log_device(const struct run *r)
{
    const uint32_t gpus = pd_dev_cuda_count(), here = r->comm->ranks_here_max;
    if (r->comm->rank > 0) return;
    pd_launch_layout_log_hosts(r->config, r->comm->size, r->comm->host_count, here);
    if (!r->device.dev && r->config->run.device == PD_DEVICE_AUTO) log_unused_gpu();
    if (!r->device.dev) return;
    pd_log(PD_LOG_INFO, MODULE, "computing on %s%s", r->device.dev->description,
           here > gpus ? ": several ranks share a GPU, whose time and memory they divide" : "");
}

/* Reads files, and waits for no other rank. */
static pd_status set_up_local(struct run *r, struct pd_error *err)
{
    PD_TRY(pd_config_model(r->config, &r->model, err));
    const struct pd_config *c = r->config;
    struct pd_data_options options = pd_config_data(c);
    char cache[4300], host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    snprintf(cache, sizeof cache, "%s/" PD_SCAN_CACHE_PREFIX "%s", c->run.dir, host);
    options.scan_cache = cache;
    options.should_stop = pd_signals_stop();
    PD_TRY(pd_data_open(&options, &r->data, err));
    if (c->validation.every && !pd_data_sample_count(r->data, PD_SPLIT_VALIDATION))
        PD_FAIL(err, PD_INVALID,
                "validation.every is %llu and there is no validation data: give data.validation or "
                "data.validation_fraction, or set validation.every=0",
                (unsigned long long)c->validation.every);
    const uint64_t windows = pd_data_sample_count(r->data, PD_SPLIT_VALIDATION);
    r->validation_sequences = (uint32_t)windows;
    if (c->validation.every && windows < c->validation.sequences && r->comm->rank == 0)
        pd_log_warn(MODULE, "validation.sequences is %u and the validation data holds %llu of %u tokens: each counts once",
                    c->validation.sequences, (unsigned long long)windows, c->batch.context);
    return PD_OK;
}

/* Planned memory that this rank has not allocated yet. */
static uint64_t memory_to_come(const struct run *r)
{
    const uint64_t held = pd_metrics_resident_bytes() / (r->is_thread ? r->comm->size : 1);
    return r->planned_bytes > held ? r->planned_bytes - held : 0;
}

/* Between GPUs by NCCL; without it, or if ranks share a GPU, through host memory. */
static pd_status open_transfers(struct run *r, struct pd_error *err)
{
    struct pd_error why;
    bool is_meant = false;
    if (!r->device.dev || r->comm->size == 1) return PD_OK;
    const pd_status st = pd_comm_new_nccl(r->comm, r->device.dev, r->device.compute, r->device.spans,
                                          r->config->layout.pp <= 1, &r->nccl, &is_meant, &why);
    if (st != PD_UNSUPPORTED) {
        if (st && err) *err = why;
        return st;
    }
    struct pd_comm_memory memory;
    PD_TRY(pd_group_agree(&r->group, pd_rank_device_memory(&r->device, PD_STREAM_EXCHANGES, &memory, err), err));
    pd_comm_use_memory(r->comm, &memory);
    if (r->comm->rank == 0)
        pd_log(is_meant ? PD_LOG_INFO : PD_LOG_WARN, MODULE, "ranks exchange data through the host's memory: %s",
               why.message);
    return PD_OK;
}

static void unpin_state(void *saver)
{
    pd_saver_unpin(saver);
}

/* Before the state is loaded: building an index needs temporary memory, and nothing else is in use yet. */
static pd_status make_saver(struct run *r, struct pd_error *err)
{
    const struct pd_config *c = r->config;
    pd_status st = pd_saver_new(r->vfs, r->tiers, &r->tier_groups[0], r->engine, c->checkpoint.in_flight, &r->saver, err);
    PD_TRY(pd_group_agree(&r->group, st, err));
    r->engine->before_update = (struct pd_before_update){unpin_state, r->saver};
    return PD_OK;
}

/* Checks that files for state fit, and creates them first. If the first tier is in memory and excluded from saves, files are
 * created as needed, which is fewer. */
static pd_status make_generations(struct run *r, uint64_t bytes, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(r->tiers, 0);
    struct pd_tier_report first;
    PD_TRY(pd_store_check_space(store, bytes, 1, err)); /* of all generations */
    PD_TRY(pd_tiers_check_space(r->tiers, bytes, memory_to_come(r), err));
    pd_tiers_report(r->tiers, 0, &first);
    if (first.is_left_out) return PD_OK;
    return pd_group_agree(&r->group, pd_store_generations_reserve(store, bytes, err), err);
}

static pd_status open_saver(struct run *r, uint64_t bytes, struct pd_error *err)
{
    if (!pd_state_is_in_files(r->engine->state)) PD_TRY(pd_tiers_check_space(r->tiers, bytes, memory_to_come(r), err));
    PD_TRY(pd_tiers_start(r->tiers, err));
    pd_saver_keep_ready(r->saver);
    return PD_OK;
}

static pd_status open_offload(struct run *r, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(r->tiers, 0);
    PD_TRY(pd_scratch_open(r->engine, r->vfs, store, &r->scratch, err));
    return pd_state_open(r->engine->state, r->vfs, store, err);
}

static void log_start(const struct run *r, const struct pd_resume_report *report)
{
    char lost[64] = "";
    struct pd_tier_report tier;
    if (r->comm->rank > 0) return;
    const struct pd_counted ranks = pd_counted(r->comm->size, "rank"), threads = pd_counted(r->threads, "thread");
    if (report->resumed) {
        pd_tiers_report(r->tiers, report->from_tier, &tier);
        if (report->lost_steps) snprintf(lost, sizeof lost, ": %s lost", pd_counted(report->lost_steps, "step").text);
        pd_log(PD_LOG_INFO, MODULE, "resumed at step %llu, saved by %s, on %s x %s in %.2f s; from %.400s%s%s",
               (unsigned long long)r->state.identity.step, pd_counted(report->from_world, "rank").text, ranks.text,
               threads.text, report->seconds, tier.dir, tier.in_memory ? ", in memory" : "", lost);
    } else {
        pd_log(PD_LOG_INFO, MODULE, "fresh start: %llu parameters on %s x %s", (unsigned long long)r->model->parameter_count,
               ranks.text, threads.text);
        if (r->lanes_bytes < LANES_LOGGED_BYTES) return;
        const uint32_t dp = r->engine->grid.layout.dp;
        pd_log(
            PD_LOG_INFO, MODULE,
            "numerics.lanes is %u: integer sums of lanes take %s of rank 0; numerics.lanes=%u needs none, but the run then "
            "never uses more than %s, and later it gives other bits",
            r->config->numerics.lanes, pd_bytes_text((double)r->lanes_bytes).text, dp, pd_counted(dp, "data rank").text);
    }
}

/* NULL: another rank of this host has the log. */
static const char *step_log_dir(const struct run *r)
{
    return r->comm->rank_here ? NULL : r->config->run.dir;
}

/* The step known to be kept remains kept, unless it is given up. */
static pd_status open_step_log(struct run *r, const struct pd_step_line *known, struct pd_resume_report *report,
                               struct pd_error *err)
{
    struct pd_tier_report first;
    const struct pd_identity *identity = &r->state.identity;
    struct pd_step_line line = {.run = identity->run_id[0],
                                .fence = r->state.fence,
                                .step = identity->step,
                                .time = (double)pd_clock_wall_ns() * 1e-9};
    pd_tiers_report(r->tiers, 0, &first);
    if (!first.has_replicas) line.kept = line.step;
    if (known->run == line.run && known->kept) line.kept = known->kept < line.step ? known->kept : line.step;
    if (known->run == line.run && known->step > line.step) report->lost_steps = known->step - line.step;
    return pd_step_log_open(&r->group, step_log_dir(r), &line, &r->step_log, err);
}

static struct pd_resume_limit limit_of(const struct pd_rollbacks *rollbacks, const struct pd_step_line *known)
{
    static const char doubt[] = "made after the last step at which ranks agreed on gradients, and before they disagreed "
                                "(guard.replay_every)";
    if (!rollbacks->goes_back) return (struct pd_resume_limit){.step = UINT64_MAX, .known = *known};
    return (struct pd_resume_limit){rollbacks->target, rollbacks->doubts ? doubt : NULL, *known};
}

/* Before ranks have compared gradients, the start is what they go back to. */
static void trust_start(struct run *r)
{
    const uint64_t every = r->config->guard.replay_every, step = r->state.identity.step;
    if (every && !r->state.agreed_step && step > every) r->state.agreed_step = step;
}

pd_status pd_run_open(struct run *r, struct pd_error *err)
{
    struct pd_resume_report report;
    struct pd_step_line known;
    pd_status st;
    pd_comm_group(r->comm, &r->group);
    PD_TRY(open_device(r, err));
    PD_TRY(open_transfers(r, err));
    log_device(r);
    PD_ON_STORAGE(st = set_up_local(r, err));
    PD_TRY(pd_group_agree(&r->group, st, err));
    PD_TRY(agree_data(r, err));
    PD_TRY(build_engine(r, err));
    const struct pd_rank_place *place = &r->engine->grid.place;
    const struct pd_lanes lanes = pd_lanes_of(r->config, r->engine->grid.layout.dp);
    r->stragglers =
        (struct pd_stragglers){.window_seconds = r->config->restart.straggler_seconds,
                               .stage = place->pp,
                               .micro_batches = pd_lanes_first(&lanes, place->dp + 1) - pd_lanes_first(&lanes, place->dp),
                               .is_gpu = r->device.dev != NULL};
    PD_TRY(pd_group_agree(&r->group, pd_stragglers_init(&r->stragglers, &r->group, err), err));
    PD_TRY(open_tiers(r, err));
    PD_TRY(publish_config(r, err));
    PD_TRY(pd_group_agree(&r->group, open_offload(r, err), err));
    PD_TRY(make_saver(r, err));
    const uint64_t bytes = pd_saver_file_bytes(r->saver);
    PD_TRY(pd_group_agree(&r->group, pd_file_limit_check("a checkpoint of this layout", bytes, err), err));
    if (pd_state_is_in_files(r->engine->state)) PD_TRY(make_generations(r, bytes, err));
    PD_TRY(pd_step_log_newest(&r->group, step_log_dir(r), &known, err));
    PD_TRY(pd_resume(r->vfs, r->tiers, &r->group, r->engine, limit_of(r->rollbacks, &known), &r->state, &report, err));
    PD_TRY(publish_tokenizer(r, err));
    PD_TRY(open_step_log(r, &known, &report, err));
    r->saved_step = report.resumed ? r->state.identity.step : 0;
    r->rollbacks->goes_back = false;
    trust_start(r);
    PD_TRY(open_saver(r, bytes, err));
    PD_TRY(open_metrics(r, &report, err));
    log_start(r, &report);
    return PD_OK;
}

void pd_run_close(struct run *r)
{
    pd_metrics_close(r->metrics);
    pd_step_log_close(&r->step_log);
    pd_saver_free(r->saver);
    if (r->engine) pd_state_close(r->engine->state);
    pd_scratch_close(r->scratch);
    pd_tiers_close(r->tiers);
    for (uint32_t i = 0; i < PD_TIERS_MAX; i++)
        pd_comm_free(r->tier_comms[i]);
    pd_comm_free(r->replica_comm);
    pd_vfs_free(r->vfs);
    pd_run_state_deinit(&r->state);
    pd_stragglers_deinit(&r->stragglers);
    pd_rank_device_quiet(&r->device);
    pd_engine_free(r->engine);
    pd_comm_free(r->nccl);
    pd_arena_free(r->arena);
    pd_comm_use_memory(r->comm, &host_memory); /* it outlives the device */
    pd_rank_device_close(&r->device);
    pd_thread_pool_free(r->pool);
    pd_data_close(r->data);
    pd_model_free(r->model);
}
