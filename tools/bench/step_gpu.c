#include "tools/bench/step_gpu.h"

#include "tools/bench/bench.h"
#include "tools/bench/stages.h"
#include "trainer/engine/gpus.h"
#include "trainer/math/math_cuda.h"
#include "trainer/plan/auto_layout.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MICRO_BATCH_ENOUGH = 4, MICRO_BATCH_MAX = 64, MODES = 2 };

static const char *const modes[MODES] = {"invariant", "fast"};
static const char *const recomputes[] = {"none", "selective", "full"}; /* as enum pd_recompute */
enum { RECOMPUTES = sizeof recomputes / sizeof *recomputes };
/* State that is moved to the host if a model does not fit, in this order; --set=offload... overrides it. */
static const struct placement {
    const char *said, *yaml;
} placements[] = {{"all state on the device", ""},
                  {"offload.optimizer=cpu", "offload: {optimizer: cpu}\n"},
                  {"offload.optimizer=cpu offload.parameters=cpu", "offload: {optimizer: cpu, parameters: cpu}\n"}};
enum { PLACEMENTS = sizeof placements / sizeof *placements };

/* Stages that run beside the compute stages of tools/bench/stages.h, or instead of them. */
enum {
    EXCHANGE = PD_BENCH_STAGES,
    PARAMETERS_IN,
    PARAMETERS_OUT,
    GRADIENTS_IN,
    GRADIENTS_OUT,
    ACTIVATIONS_IN,
    ACTIVATIONS_OUT,
    OPTIMIZER_IN,
    OPTIMIZER_OUT,
    SAVES,
    HOST_OPTIMIZER,
    STAGES
};

static const struct {
    const char *name, *lane; /* lane NULL: one of NCCL or of exchanges through the host */
} lanes[STAGES] = {[EXCHANGE] = {"exchange", NULL},
                   [PARAMETERS_IN] = {"parameters_in", PD_LANE_PARAMETERS_IN},
                   [PARAMETERS_OUT] = {"parameters_out", PD_LANE_PARAMETERS_OUT},
                   [GRADIENTS_IN] = {"gradients_in", PD_LANE_GRADIENTS_IN},
                   [GRADIENTS_OUT] = {"gradients_out", PD_LANE_GRADIENTS_OUT},
                   [ACTIVATIONS_IN] = {"activations_in", PD_LANE_ACTIVATIONS_IN},
                   [ACTIVATIONS_OUT] = {"activations_out", PD_LANE_ACTIVATIONS_OUT},
                   [OPTIMIZER_IN] = {"optimizer_in", PD_LANE_OPTIMIZER_IN},
                   [OPTIMIZER_OUT] = {"optimizer_out", PD_LANE_OPTIMIZER_OUT},
                   [SAVES] = {"saves", PD_LANE_SAVES},
                   [HOST_OPTIMIZER] = {"host_optimizer", PD_LANE_HOST}};

enum { LANE_COMPUTE = PD_BENCH_STAGES - 1 }; /* in `busy`; other lanes are at their stage's index */

/* Measurements under one mode. */
struct measured {
    double seconds, low, high; /* of a step: median, minimum, maximum */
    double loss;
    double stages[STAGES], watched_seconds; /* of a step with timed operations: the time attributed to each */
    double busy[STAGES];                    /* by lane, including overlaps: compute, then the stages from EXCHANGE on */
    uint32_t plain_shapes;                  /* of GEMMs without a cuBLASLt algorithm */
    uint64_t operations, lost;              /* lost: operations beyond the capacity; 0: shares can be trusted */
    uint64_t watched_sequences;             /* of the step with timed operations */
};

/* Result of the planner's recipe. */
struct choice {
    uint64_t micro_batch; /* 0: none yet */
    const char *recompute;
    uint32_t layers; /* the first ones, which are recomputed */
};

struct gpu_bench {
    const struct pd_bench_step_gpu *asked;
    const char *model_name;
    struct choice choice;
    uint64_t sequences; /* of the next step; fewer than asked for if the operations of all cannot be timed */
    uint32_t placement, threads, blocks, recomputed; /* recomputed: of the blocks */
    uint64_t device_bytes, host_bytes, parameters;
    double flops_per_token, peak;
    char device[96], tokens_path[4096];
    bool is_done[MODES];
    struct measured measured[MODES];
    char kernels[160]; /* attention and GEMM, by name */
};

/* ---- configuration ---- */

static const char *const sizes[][2] = {
    {"0.5B", "qwen2.5-0.5b"}, {"1.5B", "qwen2.5-1.5b"}, {"3B", "qwen2.5-3b"}, {"7B", "qwen2.5-7b"}, {"14B", "qwen2.5-14b"}};

static const char *preset_of(const char *name)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i][0], name)) return sizes[i][1];
    return name;
}

bool pd_bench_step_is_size(const char *name)
{
    return preset_of(name) != name;
}

static pd_status configure(struct pd_bench_run *r, const struct gpu_bench *b, const char *mode, struct choice choice,
                           struct pd_error *err)
{
    const struct pd_bench_step_gpu *a = b->asked;
    char model[64], sections[512], layers[16] = "auto";
    if (choice.layers != PD_LAYERS_ALL) snprintf(layers, sizeof layers, "%u", choice.layers);
    snprintf(model, sizeof model, "preset: %.48s", b->model_name);
    snprintf(sections, sizeof sections,
             "numerics: {precision: %.16s, mode: %s, virtual_tp: 1, virtual_sp: 1, lanes: 1}\n"
             "layout: {ranks: 1, recompute: %s, recompute_layers: %s, threads: %u}\n%s",
             a->precision ? a->precision : "bf16", mode, choice.recompute, layers, b->threads,
             placements[b->placement].yaml);
    const struct pd_bench_run_options options = {.model = model,
                                                 .tokens = b->tokens_path,
                                                 .sequences = b->sequences,
                                                 .micro_batch = choice.micro_batch,
                                                 .context = a->context,
                                                 .sections = sections,
                                                 .overrides = a->keys,
                                                 .override_count = a->key_count,
                                                 .is_gpu = true};
    PD_TRY(pd_bench_run_configure(r, &options, err));
    const enum pd_place places[] = {r->config.offload.optimizer, r->config.offload.parameters, r->config.offload.gradients,
                                    r->config.offload.activations};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i] == PD_PLACE_NVME)
            PD_FAIL(err, PD_USAGE, "bench step: offload.* is nvme, and a bench of a GPU has no drive to it; use cpu");
    return PD_OK;
}

static uint64_t device_bytes_of(const struct pd_memory_plan *plan)
{
    return pd_memory_plan_total(plan) - pd_memory_plan_host(plan);
}

/* Device bytes for one choice, from the recipe. */
static pd_status plan_one(struct pd_bench_run *r, const struct gpu_bench *b, struct choice choice, uint64_t *ret_bytes,
                          struct pd_error *err)
{
    struct pd_model *model;
    struct pd_memory_plan plan;
    PD_TRY(configure(r, b, modes[0], choice, err));
    PD_TRY(pd_config_model(&r->config, &model, err));
    const struct pd_engine_options options = {
        .config = &r->config, .model = model, .world = 1, .threads = b->threads, .is_gpu = true};
    const pd_status st = pd_engine_plan_of(&options, &plan, err);
    if (!st) *ret_bytes = device_bytes_of(&plan);
    pd_model_free(model);
    return st;
}

/* Largest micro-batch that fits, 0 if none does; needed: bytes of the last one tried. */
static pd_status largest_micro_batch(struct pd_bench_run *r, const struct gpu_bench *b, const char *recompute,
                                     uint64_t available, uint64_t *ret_micro_batch, uint64_t *ret_needed,
                                     struct pd_error *err)
{
    *ret_micro_batch = 0;
    for (uint64_t micro_batch = b->asked->micro_batch ? b->asked->micro_batch : MICRO_BATCH_MAX;
         micro_batch && !*ret_micro_batch; micro_batch = b->asked->micro_batch ? 0 : micro_batch / 2) {
        if (b->asked->sequences % micro_batch) continue;
        PD_TRY(plan_one(r, b, (struct choice){micro_batch, recompute, PD_LAYERS_ALL}, ret_needed, err));
        if (*ret_needed <= available) *ret_micro_batch = micro_batch;
    }
    return PD_OK;
}

struct some_layers {
    struct gpu_bench *bench;
    struct pd_bench_run *run;
    uint64_t available;
};

static pd_status fits_with(void *context, uint32_t layers, bool *ret_fits, struct pd_error *err)
{
    const struct some_layers *s = context;
    struct choice some = s->bench->choice;
    uint64_t needed;
    some.layers = layers;
    PD_TRY(plan_one(s->run, s->bench, some, &needed, err));
    *ret_fits = needed <= s->available;
    if (*ret_fits) s->bench->choice = some;
    return PD_OK;
}

/* Fewest blocks to recompute so that the chosen micro-batch fits. */
static pd_status fewest_layers(struct gpu_bench *b, struct pd_bench_run *r, uint64_t available, struct pd_error *err)
{
    struct some_layers context = {b, r, available};
    uint32_t unused;
    if (strcmp(b->choice.recompute, recomputes[0]) == 0) return PD_OK;
    return pd_fit_fewest(fits_with, &context, r->config.model.layers, &unused, err);
}

static pd_status choose_micro_batch(struct gpu_bench *b, struct pd_bench_run *r, uint64_t available, uint64_t *ret_needed,
                                    struct pd_error *err)
{
    for (int i = 0; i < RECOMPUTES; i++) {
        uint64_t micro_batch;
        if (b->asked->recompute && strcmp(b->asked->recompute, recomputes[i]) != 0) continue;
        PD_TRY(largest_micro_batch(r, b, recomputes[i], available, &micro_batch, ret_needed, err));
        if (micro_batch > b->choice.micro_batch) b->choice = (struct choice){micro_batch, recomputes[i], PD_LAYERS_ALL};
        if (b->choice.micro_batch >= MICRO_BATCH_ENOUGH || (b->choice.micro_batch && b->asked->micro_batch)) break;
    }
    return b->choice.micro_batch && !b->asked->recompute ? fewest_layers(b, r, available, err) : PD_OK;
}

static bool is_placement_asked(const struct pd_bench_step_gpu *asked)
{
    for (uint32_t i = 0; i < asked->key_count; i++)
        if (!strncmp(asked->keys[i], "offload.", strlen("offload."))) return true;
    return false;
}

static pd_status step_gpu_choose(struct gpu_bench *b, struct pd_bench_run *r, struct pd_error *err)
{
    struct pd_dev_memory memory;
    uint64_t needed = 0;
    PD_TRY(pd_dev_memory(r->device.dev, &memory, err));
    const uint64_t available = memory.free_bytes - memory.free_bytes / 32; /* libraries allocate some later */
    for (b->placement = 0;; b->placement++) {
        PD_TRY(choose_micro_batch(b, r, available, &needed, err));
        if (b->choice.micro_batch || b->placement + 1 == PLACEMENTS || is_placement_asked(b->asked)) break;
    }
    if (!b->choice.micro_batch)
        PD_FAIL(err, PD_INVALID,
                "bench step: %s needs %s of device memory at least and %s is free; offload.* (--set) takes less",
                b->model_name, pd_text_bytes(needed).text, pd_text_bytes(memory.free_bytes).text);
    return PD_OK;
}

/* ---- a run ---- */

static pd_status step_gpu_build(struct pd_bench_run *r, struct gpu_bench *b, struct pd_error *err)
{
    PD_TRY(pd_bench_run_open(r, b->threads, err));
    b->device_bytes = device_bytes_of(&r->whole.plan);
    b->host_bytes = pd_memory_plan_host(&r->whole.plan);
    b->parameters = r->whole.model->parameter_count;
    b->blocks = r->config.model.layers;
    b->choice.recompute = recomputes[r->config.layout.recompute]; /* --set has the last word */
    b->recomputed = r->config.layout.recompute_layers < b->blocks ? r->config.layout.recompute_layers : b->blocks;
    if (r->config.layout.recompute == PD_RECOMPUTE_NONE) b->recomputed = 0;
    b->flops_per_token = pd_model_flops_per_token(r->whole.model, r->config.batch.context);
    return PD_OK;
}

/* The first step warms up. */
static pd_status step_gpu_measure(struct pd_bench_run *r, uint64_t steps, struct measured *m, struct pd_error *err)
{
    double seconds[PD_BENCH_STEPS_MAX];
    PD_TRY(pd_bench_run_step(r, 0, &seconds[0], &m->loss, err));
    for (uint64_t i = 0; i < steps; i++)
        PD_TRY(pd_bench_run_step(r, 1 + i, &seconds[i], &m->loss, err));
    m->seconds = pd_bench_quantile(seconds, (uint32_t)steps, 0.5);
    m->low = seconds[0];
    m->high = seconds[steps - 1];
    return PD_OK;
}

static int stage_of(const struct pd_device_share *share)
{
    if (!strcmp(share->lane, PD_LANE_COMPUTE)) return (int)pd_bench_stage_of(share->name);
    for (int s = PARAMETERS_IN; s < STAGES; s++)
        if (!strcmp(share->lane, lanes[s].lane)) return s;
    return EXCHANGE;
}

static pd_status watch(struct pd_bench_run *r, struct measured *m, struct pd_error *err)
{
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    memset(m->stages, 0, sizeof m->stages);
    memset(m->busy, 0, sizeof m->busy);
    m->operations = 0;
    PD_TRY(pd_bench_run_step(r, 0, &m->watched_seconds, NULL, err));
    pd_device_spans_clear(r->device.spans);
    PD_TRY(pd_bench_run_step(r, 1, &m->watched_seconds, NULL, err));
    m->watched_seconds -= pd_device_spans_collecting(r->device.spans);
    const uint32_t count = pd_device_spans_shares(r->device.spans, shares);
    for (uint32_t i = 0; i < count; i++) {
        const int stage = stage_of(&shares[i]);
        m->stages[stage] += shares[i].answered;
        m->busy[stage < EXCHANGE ? LANE_COMPUTE : stage] += shares[i].seconds;
        m->operations += stage == HOST_OPTIMIZER ? 0 : shares[i].count;
    }
    m->lost = pd_device_spans_lost(r->device.spans);
    m->plain_shapes = pd_math_cuda_plain_shapes(r->whole.engine->math);
    return PD_OK;
}

/* Times steps undisturbed, then recreates the engine with an event before and after every operation. */
static pd_status run_mode(struct gpu_bench *b, int mode, bool is_watched, struct pd_error *err)
{
    struct pd_bench_run r = {.device = {.dev = NULL}};
    pd_status st = pd_rank_device_open(PD_DEVICE_GPU, 0, NULL, &r.device, err);
    if (!st) snprintf(b->device, sizeof b->device, "%s", r.device.dev->description);
    if (!st) pd_math_cuda_kernels(r.device.dev->capability, NULL, b->kernels, sizeof b->kernels);
    if (!st && is_watched) st = pd_rank_device_watch(&r.device, err);
    if (!st && !b->choice.micro_batch) st = step_gpu_choose(b, &r, err);
    if (!st) st = configure(&r, b, modes[mode], b->choice, err);
    if (!st) st = step_gpu_build(&r, b, err);
    if (!st)
        st =
            is_watched ? watch(&r, &b->measured[mode], err) : step_gpu_measure(&r, b->asked->steps, &b->measured[mode], err);
    pd_bench_run_close(&r);
    return st;
}

static const char *placement_text(const struct gpu_bench *b)
{
    return is_placement_asked(b->asked) ? "placements as asked for" : placements[b->placement].said;
}

/* A large model has more operations in a step than spans can be recorded: true if fewer sequences are to be watched. */
static bool watches_fewer(struct gpu_bench *b, struct measured *m)
{
    const uint64_t micro_batches = b->sequences / b->choice.micro_batch;
    m->watched_sequences = b->sequences;
    if (!m->lost || micro_batches < 2) return false;
    uint64_t fewer = micro_batches * m->operations / (m->operations + m->lost);
    if (fewer >= micro_batches) fewer = micro_batches - 1;
    b->sequences = (fewer ? fewer : 1) * b->choice.micro_batch;
    fprintf(
        stderr,
        "%llu operations of a step cannot be timed: the next one has %llu of %llu sequences, so the optimizer's share is "
        "larger than in a whole step\n",
        (unsigned long long)m->lost, (unsigned long long)b->sequences, (unsigned long long)b->asked->sequences);
    return true;
}

static pd_status bench_mode(struct gpu_bench *b, int mode, struct pd_error *err)
{
    b->sequences = b->asked->sequences;
    PD_TRY(run_mode(b, mode, false, err));
    fprintf(stderr, "%s, %s: %.4g s a step with micro-batch %llu, recompute %s in %u of %u blocks, %s\n", b->model_name,
            modes[mode], b->measured[mode].seconds, (unsigned long long)b->choice.micro_batch, b->choice.recompute,
            b->recomputed, b->blocks, placement_text(b));
    do
        PD_TRY(run_mode(b, mode, true, err));
    while (watches_fewer(b, &b->measured[mode]));
    b->is_done[mode] = true;
    return PD_OK;
}

/* ---- tokens ---- */

static pd_status write_tokens(struct gpu_bench *b, struct pd_error *err)
{
    struct pd_bench_run r = {0};
    const char *recompute = b->asked->recompute ? b->asked->recompute : recomputes[0]; /* keys may override it */
    PD_TRY(pd_bench_temporary(b->tokens_path, err));
    PD_TRY(configure(&r, b, modes[0], (struct choice){1, recompute, PD_LAYERS_ALL}, err));
    const uint64_t words = r.config.model.vocab < UINT16_MAX ? r.config.model.vocab : UINT16_MAX;
    pd_config_deinit(&r.config);
    return pd_bench_write_tokens(b->tokens_path, b->asked->sequences * b->asked->context * 2 + 1, words, false, err);
}

/* ---- report ---- */

static double tokens_per_second(const struct gpu_bench *b, const struct measured *m)
{
    return (double)(b->asked->sequences * b->asked->context) / m->seconds;
}

static double share(const struct gpu_bench *b, const struct measured *m)
{
    return b->peak > 0 ? tokens_per_second(b, m) * b->flops_per_token / b->peak : 0;
}

static double other_seconds(const struct measured *m)
{
    double sum = 0;
    for (int s = 0; s < STAGES; s++)
        sum += m->stages[s];
    return m->watched_seconds - sum;
}

/* Prints an object of shares; for people its nonzero members with the name as prefix. */
static void report_shares(struct pd_report *r, const char *name, const struct measured *m, const double seconds[STAGES],
                          int first, const char *first_name, double other)
{
    if (r->is_json) pd_json_object_begin(&r->writer, name);
    for (int s = first; s < STAGES; s++) {
        const char *stage = s == first && first_name ? first_name : s < EXCHANGE ? pd_bench_stage_names[s] : lanes[s].name;
        if (r->is_json || seconds[s] > 0) pd_bench_report_share(r, name, stage, seconds[s] / m->watched_seconds);
    }
    if (!first_name) pd_bench_report_share(r, name, "between", other / m->watched_seconds);
    if (r->is_json) pd_json_object_end(&r->writer);
}

/* No suffix: the invariant mode, or the only one measured. */
static void report_mode(struct pd_report *r, const struct gpu_bench *b, int mode, const char *suffix)
{
    const struct measured *m = &b->measured[mode];
    char key[64];
    if (!b->is_done[mode]) return;
#define KEY(NAME) (snprintf(key, sizeof key, "%s%s", NAME, suffix), key)
    pd_report_double(r, KEY("tokens_per_second"), tokens_per_second(b, m), PD_UNIT_NONE);
    if (b->peak > 0)
        pd_report_double(r, KEY("matmul_share"), share(b, m), PD_UNIT_SHARE);
    else if (r->is_json)
        pd_json_null(&r->writer, KEY("matmul_share"));
    pd_report_range(r, KEY("step_seconds"), m->seconds, m->low, m->high, PD_UNIT_SECONDS);
    pd_report_double(r, KEY("loss"), m->loss, PD_UNIT_NONE);
    pd_report_u64(r, KEY("operations"), m->operations, PD_UNIT_NONE);
    if (r->is_json || m->plain_shapes) pd_report_u64(r, KEY("plain_gemm_shapes"), m->plain_shapes, PD_UNIT_NONE);
    pd_report_u64(r, KEY("operations_not_timed"), m->lost, PD_UNIT_NONE);
    pd_report_u64(r, KEY("watched_sequences"), m->watched_sequences, PD_UNIT_NONE);
    report_shares(r, KEY("stage_shares"), m, m->stages, 0, NULL, other_seconds(m));
    report_shares(r, KEY("busy_shares"), m, m->busy, LANE_COMPUTE, "compute", 0);
#undef KEY
}

pd_status pd_bench_step_gpu(const struct pd_bench_step_gpu *asked, struct pd_error *err)
{
    struct gpu_bench b = {
        .asked = asked, .model_name = preset_of(asked->preset), .sequences = asked->sequences, .threads = asked->threads};
    if (asked->micro_batch && asked->sequences % asked->micro_batch)
        PD_FAIL(err, PD_USAGE, "--micro-batch=%llu: --sequences %llu is not a multiple of it",
                (unsigned long long)asked->micro_batch, (unsigned long long)asked->sequences);
    pd_status st = write_tokens(&b, err);
    for (int i = 0; i < MODES && !st; i++)
        if (!asked->mode || !strcmp(asked->mode, modes[i])) st = bench_mode(&b, i, err);
    unlink(b.tokens_path);
    PD_TRY(st);
    b.peak = pd_gpu_matmul_flops(b.device);
    struct pd_report r;
    pd_report_begin(&r, b.asked->json);
    pd_report_text(&r, "device", b.device);
    pd_report_text(&r, "kernels", b.kernels);
    pd_report_text(&r, "model", b.model_name);
    report_mode(&r, &b, 0, "");
    report_mode(&r, &b, 1, b.is_done[0] ? "_fast" : "");
    pd_report_text(&r, "mode", b.is_done[0] ? modes[0] : modes[1]);
    pd_report_double(&r, "matmul_bound_tflops", b.peak / 1e12, PD_UNIT_NONE);
    PD_REPORT_U64S(&r, {"parameters", b.parameters}, {"tokens", b.asked->sequences * b.asked->context},
                   {"context", b.asked->context}, {"micro_batch", b.choice.micro_batch});
    pd_report_text(&r, "recompute", b.choice.recompute);
    pd_report_u64(&r, "recompute_layers", b.recomputed, PD_UNIT_NONE);
    pd_report_text(&r, "placement", placement_text(&b));
    pd_report_u64(&r, "threads", b.threads, PD_UNIT_NONE);
    pd_report_u64(&r, "device_bytes", b.device_bytes, PD_UNIT_BYTES);
    pd_report_u64(&r, "pinned_bytes", b.host_bytes, PD_UNIT_BYTES);
    pd_report_u64(&r, "steps", b.asked->steps, PD_UNIT_NONE);
    return pd_report_end(&r, err);
}
