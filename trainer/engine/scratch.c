#include "trainer/engine/scratch.h"

#include "ckpt/base/checked.h"
#include "offload/spill.h"
#include "trainer/engine/engine_internal.h"

#include <stdlib.h>

struct part {
    struct pd_spill *spill; /* NULL: in memory */
    uint32_t slot;          /* of the pool */
};

struct pd_scratch {
    struct pd_engine *engine;
    struct pd_store *pool;
    struct part parts[PD_SCRATCH_PARTS];
};

/* Spans of one part, malloc'ed: a box, a bucket, or two per place. */
struct spans {
    uint64_t *bytes;
    uint32_t count;
    uint64_t block_bytes;
};

static enum pd_place scratch_place_of(const struct pd_engine *e, int part)
{
    const struct pd_config *c = e->options.config;
    const enum pd_place places[] = {c->offload.parameters, c->offload.gradients, c->offload.activations};
    return places[part];
}

static bool is_in_files(const struct pd_engine *e, int part)
{
    return scratch_place_of(e, part) == PD_PLACE_NVME;
}

static bool is_wanted(const struct pd_engine *e, int part)
{
    return is_in_files(e, part) || (e->options.is_gpu && scratch_place_of(e, part) == PD_PLACE_CPU);
}

static uint32_t count_spans(const struct pd_engine *e, int part)
{
    if (part == PD_SCRATCH_PARAMETERS) return pd_zero_held(e->zero)->box_count;
    return part == PD_SCRATCH_GRADIENTS ? pd_zero_held(e->zero)->bucket_count : pd_transformer_span_count(e->transformer);
}

static pd_status spans_of(const struct pd_engine *e, int part, struct spans *ret_spans, struct pd_error *err)
{
    struct spans s = {.count = count_spans(e, part), .block_bytes = PD_ZERO_FILE_ELEMENTS * sizeof(float)};
    if (part == PD_SCRATCH_PARAMETERS)
        s.block_bytes = PD_ZERO_FILE_ELEMENTS * pd_dtype_bytes(e->options.config->numerics.precision);
    s.bytes = calloc(s.count + 1ull, sizeof *s.bytes);
    if (!s.bytes) PD_FAIL(err, PD_NO_MEMORY, "no memory for scratch of %u spans", s.count);
    for (uint32_t i = 0; part != PD_SCRATCH_ACTIVATIONS && i < s.count; i++)
        s.bytes[i] = (part == PD_SCRATCH_PARAMETERS ? pd_zero_parameter_span : pd_zero_gradient_span)(e->zero, i);
    if (part == PD_SCRATCH_ACTIVATIONS) pd_transformer_spans(e->transformer, s.bytes);
    *ret_spans = s;
    return PD_OK;
}

/* How the rank's device uses each part. */
static const struct {
    const char *name, *lane_in, *lane_out;
    enum pd_rank_stream in, out;
    const char *read, *write;
} kinds[PD_SCRATCH_PARTS] = {
    [PD_SCRATCH_PARAMETERS] = {"parameters", PD_LANE_PARAMETERS_IN, PD_LANE_PARAMETERS_OUT, PD_STREAM_PARAMETERS_IN,
                               PD_STREAM_PARAMETERS_OUT, "read of parameters", "write of parameters"},
    [PD_SCRATCH_GRADIENTS] = {"gradients", PD_LANE_GRADIENTS_IN, PD_LANE_GRADIENTS_OUT, PD_STREAM_GRADIENTS_IN,
                              PD_STREAM_GRADIENTS_OUT, "read of gradients", "write of gradients"},
    [PD_SCRATCH_ACTIVATIONS] = {"activations", PD_LANE_ACTIVATIONS_IN, PD_LANE_ACTIVATIONS_OUT, PD_STREAM_ACTIVATIONS_IN,
                                PD_STREAM_ACTIVATIONS_OUT, "read of activations", "write of activations"},
};

/* On a GPU; all zero on a CPU. New copies of parameters come in on the stream of an update on the host. */
static pd_status device_of(const struct pd_engine *e, int part, struct pd_spill_device *ret_device, struct pd_error *err)
{
    struct pd_rank_device *d = e->options.device;
    void *memory = e->own->scratch_memory[part];
    *ret_device = (struct pd_spill_device){0};
    if (!e->options.is_gpu) return PD_OK;
    struct pd_spill_device device = {.dev = d->dev,
                                     .compute = d->compute,
                                     .memory = is_in_files(e, part) ? NULL : memory,
                                     .staging = is_in_files(e, part) ? memory : NULL,
                                     .spans = d->spans,
                                     .lane_in = kinds[part].lane_in,
                                     .lane_out = kinds[part].lane_out,
                                     .name = kinds[part].name};
    PD_TRY(pd_rank_device_stream(d, kinds[part].in, &device.copies_in, err));
    PD_TRY(pd_rank_device_stream(d, kinds[part].out, &device.copies_out, err));
    if (part == PD_SCRATCH_PARAMETERS && e->options.config->offload.optimizer != PD_PLACE_DEVICE)
        PD_TRY(pd_rank_device_stream(d, PD_STREAM_OPTIMIZER_IN, &device.others, err));
    *ret_device = device;
    return PD_OK;
}

static pd_status open_part(struct pd_scratch *s, struct pd_vfs *vfs, int part, struct pd_error *err)
{
    struct spans spans;
    char path[4096] = "";
    const bool has_file = is_in_files(s->engine, part);
    struct pd_spill_device device;
    PD_TRY(device_of(s->engine, part, &device, err));
    PD_TRY(spans_of(s->engine, part, &spans, err));
    pd_status st = has_file ? pd_store_generation_take(s->pool, &s->parts[part].slot, path, err) : PD_OK;
    const struct pd_spill_options options = {.vfs = vfs,
                                             .path = path,
                                             .block_bytes = spans.block_bytes,
                                             .span_bytes = spans.bytes,
                                             .span_count = spans.count,
                                             .what_in = kinds[part].read,
                                             .what_out = kinds[part].write,
                                             .pool = s->engine->pool,
                                             .device = device.dev ? &device : NULL};
    if (!st && (st = pd_spill_new(&options, &s->parts[part].spill, err)) && has_file)
        pd_store_generation_release(s->pool, s->parts[part].slot, true);
    free(spans.bytes);
    return st;
}

pd_status pd_scratch_take(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    static const enum pd_memory_category categories[] = {PD_MEMORY_PARAMETERS, PD_MEMORY_GRADIENTS, PD_MEMORY_ACTIVATIONS};
    for (int part = 0; e->options.is_gpu && part < PD_SCRATCH_PARTS; part++) {
        struct spans spans;
        if (!is_wanted(e, part)) continue;
        PD_TRY(spans_of(e, part, &spans, err));
        e->own->scratch_memory[part] =
            is_in_files(e, part)
                ? pd_arena_take_host(arena, PD_MEMORY_BUFFERS, pd_spill_staging_bytes(spans.bytes, spans.count))
                : pd_arena_take_host(arena, categories[part], pd_spill_memory_bytes(spans.bytes, spans.count));
        free(spans.bytes);
    }
    return PD_OK;
}

static void attach(struct pd_scratch *s)
{
    pd_zero_attach_files(s->engine->zero, s->parts[PD_SCRATCH_PARAMETERS].spill, s->parts[PD_SCRATCH_GRADIENTS].spill);
    pd_transformer_attach_files(s->engine->transformer, s->parts[PD_SCRATCH_ACTIVATIONS].spill);
}

pd_status pd_scratch_open(struct pd_engine *engine, struct pd_vfs *vfs, struct pd_store *store,
                          struct pd_scratch **ret_scratch, struct pd_error *err)
{
    struct pd_scratch *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for scratch");
    s->engine = engine;
    s->pool = store;
    for (int part = 0; part < PD_SCRATCH_PARTS; part++) {
        pd_status st = is_wanted(engine, part) ? open_part(s, vfs, part, err) : PD_OK;
        if (!st) continue;
        pd_scratch_close(s);
        return st;
    }
    attach(s);
    *ret_scratch = s;
    return PD_OK;
}

void pd_scratch_close(struct pd_scratch *s)
{
    if (!s) return;
    for (int part = 0; part < PD_SCRATCH_PARTS; part++) {
        if (!s->parts[part].spill) continue;
        pd_spill_free(s->parts[part].spill);
        s->parts[part].spill = NULL;
        if (is_in_files(s->engine, part)) pd_store_generation_release(s->pool, s->parts[part].slot, false);
    }
    attach(s);
    free(s);
}

pd_status pd_scratch_plan(const struct pd_engine *e, uint64_t *ret_heap_bytes, uint64_t *ret_file_bytes,
                          struct pd_error *err)
{
    *ret_heap_bytes = *ret_file_bytes = 0;
    for (int part = 0; part < PD_SCRATCH_PARTS; part++) {
        struct spans spans;
        if (!is_wanted(e, part)) continue;
        PD_TRY(spans_of(e, part, &spans, err));
        const uint64_t heap = pd_spill_bytes(spans.bytes, spans.count, spans.block_bytes);
        *ret_heap_bytes += pd_round_up(heap, PD_ARENA_ALIGN);
        if (is_in_files(e, part)) *ret_file_bytes += pd_spill_file_bytes(spans.bytes, spans.count, spans.block_bytes);
        free(spans.bytes);
    }
    return PD_OK;
}
