#include "tools/bench/step_gpu.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "tools/bench/bench.h"
#include "tools/output.h"
#include "trainer/engine/gpus.h"
#include "trainer/run/whole_engine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MICRO_BATCH_ENOUGH = 4, MICRO_BATCH_MAX = 64, MODES = 2 };

static const char *const modes[MODES] = {"invariant", "fast"};
static const char *const recomputes[] = {"none", "selective", "full"}; /* as enum pd_recompute */
enum { RECOMPUTES = sizeof recomputes / sizeof *recomputes };
/* What a model that does not fit otherwise leaves to the host; --set=offload... decides it instead. */
static const struct placement {
    const char *said, *yaml;
} placements[] = {{"all state on the device", ""},
                  {"offload.optimizer=cpu", "offload: {optimizer: cpu}\n"},
                  {"offload.optimizer=cpu offload.parameters=cpu", "offload: {optimizer: cpu, parameters: cpu}\n"}};
enum { PLACEMENTS = sizeof placements / sizeof *placements };

/* Of compute until copies; what is busy beside it, or in its place, comes after those. */
enum stage {
    PRODUCTS,
    ATTENTION,
    POINTWISE,
    LOSS,
    OPTIMIZER,
    COPIES,
    EXCHANGE,
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

static const char *const stage_names[STAGES] = {
    "products",        "attention",     "pointwise",      "loss",         "optimizer",     "copies",
    "exchange",        "parameters_in", "parameters_out", "gradients_in", "gradients_out", "activations_in",
    "activations_out", "optimizer_in",  "optimizer_out",  "saves",        "host_optimizer"};

enum { LANE_COMPUTE = COPIES }; /* in `busy`; other lanes are where their stage is */

/* What is measured under one mode. */
struct measured {
    double seconds, low, high; /* of a step: median, smallest, largest */
    double loss;
    double stages[STAGES], watched_seconds; /* of a step whose operations were timed: what each answered for */
    double busy[STAGES];       /* by lane, whatever ran beside it: compute, then those of stages from EXCHANGE on */
    uint64_t operations, lost; /* lost: operations beyond what is noted; 0 where shares are to be trusted */
};

/* What the planner's recipe decides. */
struct choice {
    uint64_t micro_batch; /* 0: none yet */
    const char *recompute;
    uint32_t layers; /* that are recomputed, the first ones */
};

struct gpu_bench {
    const struct pd_bench_step_gpu *asked;
    const char *model_name;
    struct choice choice;
    uint32_t placement, threads, blocks, recomputed; /* recomputed: of the blocks */
    uint64_t device_bytes, host_bytes, parameters;
    double flops_per_token, peak;
    char device[96], tokens_path[4096];
    bool is_done[MODES];
    struct measured measured[MODES];
};

/* One engine on the card. */
struct run {
    struct pd_rank_device device;
    struct pd_config config;
    struct pd_whole_engine whole;
};

static void release(struct run *r)
{
    pd_whole_engine_close(&r->whole);
    pd_config_deinit(&r->config);
    pd_rank_device_close(&r->device);
}

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

static pd_status configure(struct run *r, const struct gpu_bench *b, const char *mode, struct choice choice,
                           struct pd_error *err)
{
    const struct pd_bench_step_gpu *a = b->asked;
    char yaml[16384], path[8192], layers[16] = "auto";
    if (choice.layers != PD_LAYERS_ALL) snprintf(layers, sizeof layers, "%u", choice.layers);
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 1000, device: gpu}\nmodel: {preset: %s}\n"
             "data: {train: [{path: %s, format: nanogpt}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "batch: {sequences: %llu, micro_batch: %llu, context: %llu}\n"
             "numerics: {precision: %s, mode: %s, virtual_tp: 1, virtual_sp: 1}\n"
             "layout: {ranks: 1, recompute: %s, recompute_layers: %s, threads: %u}\n%s",
             b->model_name, pd_bench_quoted(b->tokens_path, sizeof path, path), (unsigned long long)a->sequences,
             (unsigned long long)choice.micro_batch, (unsigned long long)a->context, a->precision ? a->precision : "bf16",
             mode, choice.recompute, layers, b->threads, placements[b->placement].yaml);
    pd_config_deinit(&r->config);
    PD_TRY(pd_config_parse("bench", yaml, a->keys, a->key_count, &r->config, err));
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

/* Device bytes of one choice, by the recipe. */
static pd_status plan_one(struct run *r, const struct gpu_bench *b, struct choice choice, uint64_t *ret_bytes,
                          struct pd_error *err)
{
    struct pd_model *model;
    struct pd_memory_plan plan;
    PD_TRY(configure(r, b, modes[0], choice, err));
    PD_TRY(pd_model_new(&r->config.model, &model, err));
    const struct pd_engine_options options = {
        .config = &r->config, .model = model, .world = 1, .threads = b->threads, .is_gpu = true};
    const pd_status st = pd_engine_plan_of(&options, &plan, err);
    if (!st) *ret_bytes = device_bytes_of(&plan);
    pd_model_free(model);
    return st;
}

/* The largest micro-batch that fits with it, 0 when none does; needed: by the last that was looked at. */
static pd_status largest_micro_batch(struct run *r, const struct gpu_bench *b, const char *recompute, uint64_t room,
                                     uint64_t *ret_micro_batch, uint64_t *ret_needed, struct pd_error *err)
{
    *ret_micro_batch = 0;
    for (uint64_t micro_batch = b->asked->micro_batch ? b->asked->micro_batch : MICRO_BATCH_MAX;
         micro_batch && !*ret_micro_batch; micro_batch = b->asked->micro_batch ? 0 : micro_batch / 2) {
        if (b->asked->sequences % micro_batch) continue;
        PD_TRY(plan_one(r, b, (struct choice){micro_batch, recompute, PD_LAYERS_ALL}, ret_needed, err));
        if (*ret_needed <= room) *ret_micro_batch = micro_batch;
    }
    return PD_OK;
}

/* The fewest blocks to recompute with which the chosen micro-batch fits. */
static pd_status fewest_layers(struct gpu_bench *b, struct run *r, uint64_t room, struct pd_error *err)
{
    uint32_t too_few = 0, enough = r->config.model.layers;
    while (strcmp(b->choice.recompute, recomputes[0]) != 0 && enough - too_few > 1) {
        uint64_t needed;
        struct choice some = b->choice;
        some.layers = too_few + (enough - too_few) / 2;
        PD_TRY(plan_one(r, b, some, &needed, err));
        *(needed <= room ? &enough : &too_few) = some.layers;
        if (needed <= room) b->choice = some;
    }
    return PD_OK;
}

static pd_status choose_micro_batch(struct gpu_bench *b, struct run *r, uint64_t room, uint64_t *ret_needed,
                                    struct pd_error *err)
{
    for (int i = 0; i < RECOMPUTES; i++) {
        uint64_t micro_batch;
        if (b->asked->recompute && strcmp(b->asked->recompute, recomputes[i]) != 0) continue;
        PD_TRY(largest_micro_batch(r, b, recomputes[i], room, &micro_batch, ret_needed, err));
        if (micro_batch > b->choice.micro_batch) b->choice = (struct choice){micro_batch, recomputes[i], PD_LAYERS_ALL};
        if (b->choice.micro_batch >= MICRO_BATCH_ENOUGH || (b->choice.micro_batch && b->asked->micro_batch)) break;
    }
    return b->choice.micro_batch && !b->asked->recompute ? fewest_layers(b, r, room, err) : PD_OK;
}

static bool is_placement_asked(const struct pd_bench_step_gpu *asked)
{
    for (uint32_t i = 0; i < asked->key_count; i++)
        if (!strncmp(asked->keys[i], "offload.", strlen("offload."))) return true;
    return false;
}

static pd_status choose(struct gpu_bench *b, struct run *r, struct pd_error *err)
{
    struct pd_dev_memory memory;
    uint64_t needed = 0;
    PD_TRY(pd_dev_memory(r->device.dev, &memory, err));
    const uint64_t room = memory.free_bytes - memory.free_bytes / 32; /* libraries take some later */
    for (b->placement = 0;; b->placement++) {
        PD_TRY(choose_micro_batch(b, r, room, &needed, err));
        if (b->choice.micro_batch || b->placement + 1 == PLACEMENTS || is_placement_asked(b->asked)) break;
    }
    if (!b->choice.micro_batch)
        PD_FAIL(err, PD_INVALID,
                "bench step: %s needs %s of device memory at least and %s is free; offload.* (--set) takes less",
                b->model_name, pd_text_bytes(needed).text, pd_text_bytes(memory.free_bytes).text);
    return PD_OK;
}

/* ---- a run ---- */

static pd_status build(struct run *r, struct gpu_bench *b, struct pd_error *err)
{
    PD_TRY(pd_whole_engine_open(&r->config, NULL, &r->device, b->threads, &r->whole, err));
    b->device_bytes = device_bytes_of(&r->whole.plan);
    b->host_bytes = pd_memory_plan_host(&r->whole.plan);
    b->parameters = r->whole.model->parameter_count;
    b->blocks = r->config.model.layers;
    b->choice.recompute = recomputes[r->config.layout.recompute]; /* --set says it last */
    b->recomputed = r->config.layout.recompute_layers < b->blocks ? r->config.layout.recompute_layers : b->blocks;
    if (r->config.layout.recompute == PD_RECOMPUTE_NONE) b->recomputed = 0;
    b->flops_per_token = pd_model_flops_per_token(r->whole.model, r->config.batch.context);
    return pd_engine_init_state(r->whole.engine, err);
}

static pd_status timed_step(struct run *r, uint64_t i, double *ret_seconds, double *ret_loss, struct pd_error *err)
{
    struct pd_step_result result;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_engine_step(r->whole.engine, i * r->config.batch.sequences, i, &result, err));
    PD_TRY(pd_rank_device_settle(&r->device, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    *ret_loss = result.loss;
    return PD_OK;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first step warms up. */
static pd_status measure(struct run *r, uint64_t steps, struct measured *m, struct pd_error *err)
{
    double seconds[PD_BENCH_STEPS_MAX];
    PD_TRY(timed_step(r, 0, &seconds[0], &m->loss, err));
    for (uint64_t i = 0; i < steps; i++)
        PD_TRY(timed_step(r, 1 + i, &seconds[i], &m->loss, err));
    qsort(seconds, steps, sizeof *seconds, by_size);
    m->seconds = seconds[steps / 2];
    m->low = seconds[0];
    m->high = seconds[steps - 1];
    return PD_OK;
}

/* By the names that operations have in traces; what is no other is pointwise: norms, rotations, activations, sums, casts. */
static enum stage stage_of_compute(const char *name)
{
    static const struct {
        const char *begin;
        enum stage stage;
    } begins[] = {{"gemm", PRODUCTS},
                  {"attention", ATTENTION},
                  {"logits", LOSS},
                  {"cross_entropy", LOSS},
                  {"adam", OPTIMIZER},
                  {"row_squares", OPTIMIZER},
                  {"superaccumulate", OPTIMIZER},
                  {"copy", COPIES}};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (!strncmp(name, begins[i].begin, strlen(begins[i].begin))) return begins[i].stage;
    return POINTWISE;
}

/* In lanes of NCCL, and in that of what goes through the host, there are exchanges. */
static enum stage stage_of(const struct pd_device_share *share)
{
    static const struct {
        const char *lane;
        enum stage stage;
    } lanes[] = {{PD_LANE_PARAMETERS_IN, PARAMETERS_IN},
                 {PD_LANE_PARAMETERS_OUT, PARAMETERS_OUT},
                 {PD_LANE_GRADIENTS_IN, GRADIENTS_IN},
                 {PD_LANE_GRADIENTS_OUT, GRADIENTS_OUT},
                 {PD_LANE_ACTIVATIONS_IN, ACTIVATIONS_IN},
                 {PD_LANE_ACTIVATIONS_OUT, ACTIVATIONS_OUT},
                 {PD_LANE_OPTIMIZER_IN, OPTIMIZER_IN},
                 {PD_LANE_OPTIMIZER_OUT, OPTIMIZER_OUT},
                 {PD_LANE_SAVES, SAVES},
                 {PD_LANE_HOST, HOST_OPTIMIZER}};
    if (!strcmp(share->lane, PD_LANE_COMPUTE)) return stage_of_compute(share->name);
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        if (!strcmp(share->lane, lanes[i].lane)) return lanes[i].stage;
    return EXCHANGE;
}

static pd_status watch(struct run *r, struct measured *m, struct pd_error *err)
{
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    double loss;
    PD_TRY(timed_step(r, 0, &m->watched_seconds, &loss, err));
    pd_device_spans_clear(r->device.spans);
    PD_TRY(timed_step(r, 1, &m->watched_seconds, &loss, err));
    m->watched_seconds -= pd_device_spans_collecting(r->device.spans);
    const uint32_t count = pd_device_spans_shares(r->device.spans, shares);
    for (uint32_t i = 0; i < count; i++) {
        const enum stage stage = stage_of(&shares[i]);
        m->stages[stage] += shares[i].answered;
        m->busy[stage <= COPIES ? LANE_COMPUTE : stage] += shares[i].seconds;
        m->operations += stage == HOST_OPTIMIZER ? 0 : shares[i].count;
    }
    m->lost = pd_device_spans_lost(r->device.spans);
    return PD_OK;
}

/* Steps that nobody watches, then the same engine anew with an event before and behind every operation. */
static pd_status run_mode(struct gpu_bench *b, int mode, bool is_watched, struct pd_error *err)
{
    struct run r = {.device = {.dev = NULL}};
    pd_status st = pd_rank_device_open(PD_DEVICE_GPU, 0, &r.device, err);
    if (!st) snprintf(b->device, sizeof b->device, "%s", r.device.dev->description);
    if (!st && is_watched) st = pd_rank_device_watch(&r.device, err);
    if (!st && !b->choice.micro_batch) st = choose(b, &r, err);
    if (!st) st = configure(&r, b, modes[mode], b->choice, err);
    if (!st) st = build(&r, b, err);
    if (!st) st = is_watched ? watch(&r, &b->measured[mode], err) : measure(&r, b->asked->steps, &b->measured[mode], err);
    release(&r);
    return st;
}

static const char *said_placement(const struct gpu_bench *b)
{
    return is_placement_asked(b->asked) ? "placements as asked for" : placements[b->placement].said;
}

static pd_status bench_mode(struct gpu_bench *b, int mode, struct pd_error *err)
{
    PD_TRY(run_mode(b, mode, false, err));
    fprintf(stderr, "%s, %s: %.4g s a step with micro-batch %llu, recompute %s in %u of %u blocks, %s\n", b->model_name,
            modes[mode], b->measured[mode].seconds, (unsigned long long)b->choice.micro_batch, b->choice.recompute,
            b->recomputed, b->blocks, said_placement(b));
    PD_TRY(run_mode(b, mode, true, err));
    b->is_done[mode] = true;
    return PD_OK;
}

/* ---- tokens ---- */

/* Words in numbers as text has them: the n-th commonest with a share of 1 / n. */
static pd_status write_tokens(struct gpu_bench *b, struct pd_error *err)
{
    const uint64_t count = b->asked->sequences * b->asked->context * 2 + 1;
    const char *directory = getenv("TMPDIR");
    snprintf(b->tokens_path, sizeof b->tokens_path, "%.4000s/perdure-bench-XXXXXX",
             directory && *directory ? directory : "/tmp");
    struct run r = {.device = {.dev = NULL}};
    const char *recompute = b->asked->recompute ? b->asked->recompute : recomputes[0]; /* of which keys may say more */
    PD_TRY(configure(&r, b, modes[0], (struct choice){1, recompute, PD_LAYERS_ALL}, err));
    const double words = r.config.model.vocab < UINT16_MAX ? r.config.model.vocab : UINT16_MAX;
    pd_config_deinit(&r.config);
    const int file = mkstemp(b->tokens_path);
    FILE *f = file < 0 ? NULL : fdopen(file, "w");
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: making a temporary file", b->tokens_path);
    uint64_t state = 1;
    bool failed = false;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const uint16_t token = (uint16_t)(exp((double)(state >> 11) / (double)(1ull << 53) * log(words)) - 0.5);
        failed |= fwrite(&token, sizeof token, 1, f) != 1;
    }
    if (fclose(f) || failed) PD_FAIL_ERRNO(err, errno, "%s: writing it", b->tokens_path);
    return PD_OK;
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

static void print_text(const struct gpu_bench *b)
{
    printf("%s on %s: micro-batch %llu of %llu, %llu a step, recompute %s in %u of %u blocks, %s; %s of device memory, %s "
           "pinned\n",
           b->model_name, b->device, (unsigned long long)b->choice.micro_batch, (unsigned long long)b->asked->context,
           (unsigned long long)b->asked->sequences, b->choice.recompute, b->recomputed, b->blocks, said_placement(b),
           pd_text_bytes(b->device_bytes).text, pd_text_bytes(b->host_bytes).text);
    for (int i = 0; i < MODES; i++) {
        const struct measured *m = &b->measured[i];
        if (!b->is_done[i]) continue;
        printf("%s: %.0f tokens/s, %.4g s a step (%.4g to %.4g)", modes[i], tokens_per_second(b, m), m->seconds, m->low,
               m->high);
        if (b->peak > 0) printf(", %.1f%% of %.0f TFLOP/s", 100 * share(b, m), b->peak / 1e12);
        printf("\n  of a step:");
        for (int s = 0; s < STAGES; s++)
            if (m->stages[s] > 0) printf(" %s %.1f%%,", stage_names[s], 100 * m->stages[s] / m->watched_seconds);
        printf(" between them %.1f%%\n", 100 * other_seconds(m) / m->watched_seconds);
        if (m->lost)
            printf("  %llu of %llu operations were not timed: shares are too small\n", (unsigned long long)m->lost,
                   (unsigned long long)(m->lost + m->operations));
    }
}

/* Without a suffix the invariant mode, or the only one that was measured. */
static void mode_json(struct pd_json_writer *w, const struct gpu_bench *b, int mode, const char *suffix)
{
    const struct measured *m = &b->measured[mode];
    char key[64];
    if (!b->is_done[mode]) return;
#define KEY(NAME) (snprintf(key, sizeof key, "%s%s", NAME, suffix), key)
    pd_json_double(w, KEY("tokens_per_second"), tokens_per_second(b, m));
    if (b->peak > 0)
        pd_json_double(w, KEY("matmul_share"), share(b, m));
    else
        pd_json_null(w, KEY("matmul_share"));
    pd_json_double(w, KEY("step_seconds"), m->seconds);
    pd_json_double(w, KEY("step_seconds_low"), m->low);
    pd_json_double(w, KEY("step_seconds_high"), m->high);
    pd_json_double(w, KEY("loss"), m->loss);
    pd_json_u64(w, KEY("operations"), m->operations);
    pd_json_u64(w, KEY("operations_not_timed"), m->lost);
    pd_json_object_begin(w, KEY("stage_shares"));
    for (int s = 0; s < STAGES; s++)
        pd_json_double(w, stage_names[s], m->stages[s] / m->watched_seconds);
    pd_json_double(w, "between", other_seconds(m) / m->watched_seconds);
    pd_json_object_end(w);
    pd_json_object_begin(w, KEY("busy_shares"));
    for (int s = LANE_COMPUTE; s < STAGES; s++)
        pd_json_double(w, s == LANE_COMPUTE ? "compute" : stage_names[s], m->busy[s] / m->watched_seconds);
    pd_json_object_end(w);
#undef KEY
}

static pd_status print_json(const struct gpu_bench *b, struct pd_error *err)
{
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_string(&w, "device", b->device);
    pd_json_string(&w, "model", b->model_name);
    mode_json(&w, b, 0, "");
    mode_json(&w, b, 1, b->is_done[0] ? "_fast" : "");
    pd_json_string(&w, "mode", b->is_done[0] ? modes[0] : modes[1]);
    pd_json_double(&w, "matmul_bound_tflops", b->peak / 1e12);
    pd_json_u64(&w, "parameters", b->parameters);
    pd_json_u64(&w, "tokens", b->asked->sequences * b->asked->context);
    pd_json_u64(&w, "context", b->asked->context);
    pd_json_u64(&w, "micro_batch", b->choice.micro_batch);
    pd_json_string(&w, "recompute", b->choice.recompute);
    pd_json_u64(&w, "recompute_layers", b->recomputed);
    pd_json_string(&w, "placement", said_placement(b));
    pd_json_u64(&w, "threads", b->threads);
    pd_json_u64(&w, "device_bytes", b->device_bytes);
    pd_json_u64(&w, "pinned_bytes", b->host_bytes);
    pd_json_u64(&w, "steps", b->asked->steps);
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

static pd_status check(const struct pd_bench_step_gpu *a, struct pd_error *err)
{
    bool is_known = !a->recompute;
    for (int i = 0; i < RECOMPUTES && !is_known; i++)
        is_known = !strcmp(a->recompute, recomputes[i]);
    if (!is_known) PD_FAIL(err, PD_USAGE, "--recompute=%s: expected none, selective or full", a->recompute);
    if (a->mode && strcmp(a->mode, modes[0]) != 0 && strcmp(a->mode, modes[1]) != 0)
        PD_FAIL(err, PD_USAGE, "--mode=%s: expected invariant or fast", a->mode);
    if (a->micro_batch && a->sequences % a->micro_batch)
        PD_FAIL(err, PD_USAGE, "--micro-batch=%llu: --sequences %llu is no multiple of it",
                (unsigned long long)a->micro_batch, (unsigned long long)a->sequences);
    return PD_OK;
}

pd_status pd_bench_step_gpu(const struct pd_bench_step_gpu *asked, struct pd_error *err)
{
    struct gpu_bench b = {.asked = asked, .model_name = preset_of(asked->preset), .threads = asked->threads};
    PD_TRY(check(asked, err));
    pd_status st = write_tokens(&b, err);
    for (int i = 0; i < MODES && !st; i++)
        if (!asked->mode || !strcmp(asked->mode, modes[i])) st = bench_mode(&b, i, err);
    unlink(b.tokens_path);
    PD_TRY(st);
    b.peak = pd_gpu_matmul_flops(b.device);
    if (asked->json) return print_json(&b, err);
    print_text(&b);
    return PD_OK;
}
