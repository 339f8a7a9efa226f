#include "tools/bench_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 128 };
/* What fills a GPU: a leaf of 8,192 tokens, and blocks of a model that is trained on one. */
enum { GPU_CONTEXT = 1024, GPU_LEAF = 8, GPU_HIDDEN = 2048 };
#define GPU_WIDE_BYTES (UINT64_C(4) << 30)
/* Width by bytes of state: a few blocks and not many narrow ones. */
#define WIDE_BYTES (UINT64_C(512) << 20)
#define SMALL_BYTES (UINT64_C(64) << 20)
enum { WIDE_HIDDEN = 768, HIDDEN = 384, SMALL_HIDDEN = 128 };
#define TEXT_BYTES 65536u

pd_status pd_bench_run_write_text(const char *path, struct pd_error *err)
{
    FILE *f = fopen(path, "we");
    if (!f) PD_FAIL(err, PD_IO, "%s: making it", path);
    uint32_t seed = 1;
    for (uint32_t i = 0; i < TEXT_BYTES; i++) {
        seed = seed * 1664525u + 1013904223u;
        fputc((int)(seed >> 24), f);
    }
    if (fclose(f)) PD_FAIL(err, PD_IO, "%s: writing it", path);
    return PD_OK;
}

static uint64_t hidden_of(const struct pd_bench_run_options *o, bool is_gpu)
{
    if (is_gpu && o->bytes >= GPU_WIDE_BYTES) return GPU_HIDDEN;
    return o->bytes < SMALL_BYTES ? SMALL_HIDDEN : o->bytes < WIDE_BYTES ? HIDDEN : WIDE_HIDDEN;
}

static pd_status configure(const struct pd_bench_run_options *o, bool is_gpu, struct pd_config *ret_config,
                           struct pd_error *err)
{
    const bool is_large = is_gpu && o->bytes >= WIDE_BYTES;
    const uint64_t hidden = hidden_of(o, is_gpu), leaf = is_large ? GPU_LEAF : 1;
    const int context = is_large ? GPU_CONTEXT : CONTEXT;
    const uint64_t block = 12 * hidden * hidden;
    const uint64_t layers = o->bytes / PD_BENCH_RUN_STATE_BYTES / block;
    char yaml[8192];
    snprintf(
        yaml, sizeof yaml,
        "run: {dir: unused, steps: 1000000}\n"
        "model: {family: gpt2, vocab: 256, context: %d, layers: %llu, hidden: %llu, heads: %llu}\n"
        "data: {train: [{path: %s, format: text}], validation_fraction: 0}\nvalidation: {every: 0}\n"
        "batch: {sequences: %llu, leaf: %llu, context: %d}\nlayout: {ranks: 1, zero_stage: 0}\noffload: {optimizer: %s}\n",
        context, (unsigned long long)(layers ? layers : 1), (unsigned long long)hidden, (unsigned long long)(hidden / 64),
        o->text, (unsigned long long)(o->leaves * leaf), (unsigned long long)leaf, context,
        o->has_files ? "nvme" : "device");
    return pd_config_parse("bench", yaml, NULL, 0, ret_config, err);
}

pd_status pd_bench_run_open(const struct pd_bench_run_options *o, struct pd_bench_run *run, struct pd_error *err)
{
    *run = (struct pd_bench_run){0};
    PD_TRY(pd_rank_device_open(o->device, 0, &run->device, err));
    const bool is_gpu = run->device.dev != NULL;
    PD_TRY(configure(o, is_gpu, &run->config, err));
    const struct pd_config *c = &run->config;
    const struct pd_data_options data = {.train = c->data.train,
                                         .train_count = c->data.train_count,
                                         .context = c->batch.context,
                                         .vocab = c->model.vocab,
                                         .document_token = -1,
                                         .seed = 1};
    struct pd_memory_plan plan;
    PD_TRY(pd_model_new(&c->model, &run->model, err));
    PD_TRY(pd_data_open(&data, &run->data, err));
    PD_TRY(pd_thread_pool_new(o->threads, &run->pool, err));
    const struct pd_engine_options options = {.config = c,
                                              .model = run->model,
                                              .world = 1,
                                              .threads = o->threads,
                                              .is_gpu = is_gpu,
                                              .device = is_gpu ? &run->device : NULL};
    const struct pd_arena_source source = pd_rank_device_source(&run->device);
    PD_TRY(pd_engine_plan_of(&options, &plan, err));
    PD_TRY(is_gpu ? pd_arena_new_on(&plan, &source, &run->arena, err) : pd_arena_new(&plan, &run->arena, err));
    PD_TRY(pd_engine_new(&options, NULL, run->data, run->pool, run->arena, &run->engine, err));
    return o->has_files ? PD_OK : pd_engine_init_state(run->engine, err);
}

void pd_bench_run_close(struct pd_bench_run *run)
{
    pd_engine_free(run->engine);
    pd_arena_free(run->arena);
    pd_rank_device_close(&run->device);
    pd_thread_pool_free(run->pool);
    pd_data_close(run->data);
    pd_model_free(run->model);
    pd_config_deinit(&run->config);
    *run = (struct pd_bench_run){0};
}

pd_status pd_bench_run_settle(struct pd_bench_run *run, struct pd_error *err)
{
    return pd_rank_device_settle(&run->device, err);
}

uint64_t pd_bench_run_state_bytes(const struct pd_bench_run *run)
{
    return run->model->parameter_count * PD_BENCH_RUN_STATE_BYTES;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double pd_bench_quantile(double *values, uint32_t count, double share)
{
    qsort(values, count, sizeof *values, ascending);
    const uint32_t rank = (uint32_t)ceil(share * count);
    return values[rank ? rank - 1 : 0];
}
