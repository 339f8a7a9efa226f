#include "tools/bench/run.h"

#include "tools/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 128 };
/* What fills a GPU: a micro-batch of 8,192 tokens, and blocks of a model that is trained on one. */
enum { GPU_CONTEXT = 1024, GPU_MICRO_BATCH = 8, GPU_HIDDEN = 2048 };
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
    const uint64_t hidden = hidden_of(o, is_gpu), micro_batch = is_large ? GPU_MICRO_BATCH : 1;
    const int context = is_large ? GPU_CONTEXT : CONTEXT;
    const uint64_t block = 12 * hidden * hidden;
    const uint64_t layers = o->bytes / PD_BENCH_RUN_STATE_BYTES / block;
    char yaml[16384], path[8192];
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 1000000}\n"
             "model: {family: gpt2, vocab: 256, context: %d, layers: %llu, hidden: %llu, heads: %llu}\n"
             "data: {train: [{path: %s, format: text}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "batch: {sequences: %llu, micro_batch: %llu, context: %d}\nlayout: {ranks: 1, zero_stage: 0}\noffload: "
             "{optimizer: %s}\n",
             context, (unsigned long long)(layers ? layers : 1), (unsigned long long)hidden,
             (unsigned long long)(hidden / 64), pd_bench_quoted(o->text, sizeof path, path),
             (unsigned long long)(o->micro_batches * micro_batch), (unsigned long long)micro_batch, context,
             o->has_files ? "nvme" : "device");
    return pd_config_parse("bench", yaml, NULL, 0, ret_config, err);
}

pd_status pd_bench_run_open(const struct pd_bench_run_options *o, struct pd_bench_run *run, struct pd_error *err)
{
    *run = (struct pd_bench_run){0};
    PD_TRY(pd_rank_device_open(o->device, 0, &run->device, err));
    PD_TRY(configure(o, run->device.dev != NULL, &run->config, err));
    PD_TRY(pd_whole_engine_open(&run->config, NULL, &run->device, o->threads, &run->whole, err));
    return o->has_files ? PD_OK : pd_engine_init_state(run->whole.engine, err);
}

void pd_bench_run_close(struct pd_bench_run *run)
{
    pd_whole_engine_close(&run->whole);
    pd_rank_device_close(&run->device);
    pd_config_deinit(&run->config);
    *run = (struct pd_bench_run){0};
}

pd_status pd_bench_run_settle(struct pd_bench_run *run, struct pd_error *err)
{
    return pd_rank_device_settle(&run->device, err);
}

uint64_t pd_bench_run_state_bytes(const struct pd_bench_run *run)
{
    return run->whole.model->parameter_count * PD_BENCH_RUN_STATE_BYTES;
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
