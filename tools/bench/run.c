#include "tools/bench/run.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/io/vfs.h"
#include "tools/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HUGE_BYTES (UINT64_C(2) << 20)

/* ---- tokens ---- */

pd_status pd_bench_temporary(char *ret_path, struct pd_error *err)
{
    const char *directory = getenv("TMPDIR");
    snprintf(ret_path, 4096, "%.4000s/perdure-bench-XXXXXX", directory && *directory ? directory : "/tmp");
    const int file = mkstemp(ret_path);
    if (file < 0) PD_FAIL_ERRNO(err, errno, "%s: making a temporary file", ret_path);
    close(file);
    return PD_OK;
}

pd_status pd_bench_write_tokens(const char *path, uint64_t count, uint64_t words, bool evenly, struct pd_error *err)
{
    FILE *f = fopen(path, "we");
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: making it", path);
    const double log_words = log((double)words);
    uint64_t state = 1;
    bool failed = false;
    for (uint64_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const double share = (double)(state >> 11) * 0x1p-53;
        const uint16_t token = evenly ? (uint16_t)((state >> 33) % words) : (uint16_t)(exp(share * log_words) - 0.5);
        failed |= fwrite(&token, sizeof token, 1, f) != 1;
    }
    if (fclose(f) || failed) PD_FAIL_ERRNO(err, errno, "%s: writing it", path);
    return PD_OK;
}

/* ---- a run ---- */

/* Between single quotes, as YAML takes any path; one that does not fit is cut off. */
static const char *quoted(const char *text, size_t bytes, char *ret_text)
{
    size_t at = 0;
    ret_text[at++] = '\'';
    for (; *text && at + 4 < bytes; text++) {
        if (*text == '\'') ret_text[at++] = '\'';
        ret_text[at++] = *text;
    }
    ret_text[at++] = '\'';
    ret_text[at] = '\0';
    return ret_text;
}

pd_status pd_bench_run_configure(struct pd_bench_run *run, const struct pd_bench_run_options *o, struct pd_error *err)
{
    char yaml[16384], path[8192];
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 1000000, device: %s}\nmodel: {%s}\n"
             "data: {train: [{path: %s, format: nanogpt}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "batch: {sequences: %llu, micro_batch: %llu, context: %llu}\n%s",
             o->is_gpu ? "gpu" : "cpu", o->model, quoted(o->tokens, sizeof path, path), (unsigned long long)o->sequences,
             (unsigned long long)o->micro_batch, (unsigned long long)o->context, o->sections);
    pd_config_deinit(&run->config);
    return pd_config_parse("bench", yaml, o->overrides, o->override_count, &run->config, err);
}

pd_status pd_bench_run_open(struct pd_bench_run *run, uint32_t threads, struct pd_error *err)
{
    PD_TRY(pd_whole_engine_open(&run->config, run->comm, &run->device, threads, &run->whole, err));
    return run->config.offload.optimizer == PD_PLACE_NVME ? PD_OK : pd_state_init(run->whole.engine->state, NULL, err);
}

void pd_bench_run_close(struct pd_bench_run *run)
{
    pd_whole_engine_close(&run->whole);
    pd_rank_device_close(&run->device);
    pd_config_deinit(&run->config);
    *run = (struct pd_bench_run){0};
}

pd_status pd_bench_run_step(struct pd_bench_run *run, uint64_t i, double *ret_seconds, double *ret_loss,
                            struct pd_error *err)
{
    struct pd_step_result result;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_engine_step(run->whole.engine, i * run->config.batch.sequences, i, &result, err));
    PD_TRY(pd_rank_device_sync(&run->device, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    if (ret_loss) *ret_loss = result.loss;
    return PD_OK;
}

uint64_t pd_bench_run_state_bytes(const struct pd_bench_run *run)
{
    return run->whole.model->parameter_count * PD_BENCH_STATE_BYTES_A_PARAMETER;
}

/* ---- a state ---- */

pd_status pd_bench_model_of_bytes(uint64_t state_bytes, struct pd_model **ret_model, struct pd_error *err)
{
    const uint64_t hidden = state_bytes < UINT64_C(512) << 20 ? 256 : 768, block = 12 * hidden * hidden + 13 * hidden;
    const uint64_t parameters = state_bytes / PD_BENCH_STATE_BYTES_A_PARAMETER, vocab = parameters / 3 / hidden;
    struct pd_model_config config;
    PD_TRY(pd_model_preset("gpt2-124m", &config, err));
    config.hidden = (uint32_t)hidden;
    config.heads = (uint32_t)hidden / 64;
    config.head_size = config.kv_heads = config.ffn = 0; /* as follows from these */
    if (vocab < config.vocab) config.vocab = (uint32_t)vocab;
    const uint64_t left = parameters - config.vocab * hidden - 2 * hidden, layers = left / block;
    config.layers = layers ? (uint32_t)layers : 1;
    config.context = left > config.layers * block + hidden ? (uint32_t)((left - config.layers * block) / hidden) : 1;
    return pd_model_new(&config, ret_model, err);
}

pd_status pd_bench_memory_new(const struct pd_layout *layout, const struct pd_tensor_table *tensors, uint32_t rank,
                              struct pd_bench_memory *ret_memory, struct pd_error *err)
{
    struct pd_bench_memory *m = ret_memory;
    PD_TRY(pd_layout_shard_boxes(layout, tensors, rank, &m->boxes, &m->box_count, err));
    m->offsets = calloc(m->box_count + 1ull, sizeof *m->offsets);
    if (!m->offsets) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", m->box_count);
    for (uint32_t i = 0; i < m->box_count; i++) {
        m->offsets[i] = m->bytes;
        m->bytes += pd_round_up(pd_box_elements(&m->boxes[i].box) * sizeof(float), PD_VFS_ALIGN);
    }
    m->bytes = pd_round_up(m->bytes, HUGE_BYTES);
    PD_TRY(pd_bench_map(m->bytes, &m->data, err));
    return pd_bench_map(PD_BENCH_IO_BYTES, &m->io_buffers, err);
}

void pd_bench_memory_deinit(struct pd_bench_memory *m)
{
    free(m->boxes);
    free(m->offsets);
}

void *pd_bench_memory_box(void *memory, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct pd_bench_memory *m = memory;
    uint32_t low = 0, high = m->box_count;
    while (low < high) { /* boxes ascend by tensor and kind */
        const uint32_t middle = (low + high) / 2;
        const struct pd_shard_box *b = &m->boxes[middle];
        if (b->tensor < tensor || (b->tensor == tensor && b->kind < kind))
            low = middle + 1;
        else
            high = middle;
    }
    return (char *)m->data + m->offsets[low + box];
}
