#include "trainer/engine/host_state.h"

#include <stdlib.h>

struct pd_host_state {
    struct pd_engine *engine;
    struct pd_host_adam *adam;
    struct pd_adam_range *ranges; /* (count) of the boxes that are held */
    uint32_t count;
};

bool pd_host_state_is_wanted(const struct pd_engine_options *options)
{
    return options->is_gpu && options->config->offload.optimizer == PD_PLACE_CPU;
}

static struct pd_adam_range range_of(struct pd_engine *e, const struct pd_zero_box *b)
{
    const enum pd_dtype precision = e->options.config->numerics.precision;
    return (struct pd_adam_range){.n = b->elements,
                                  .decay = e->options.model->tensors.tensors[b->tensor].decay,
                                  .param = pd_zero_state(e->zero, PD_PARAM) + b->offset,
                                  .exp_avg = pd_zero_state(e->zero, PD_EXP_AVG) + b->offset,
                                  .exp_avg_sq = pd_zero_state(e->zero, PD_EXP_AVG_SQ) + b->offset,
                                  .grad = pd_zero_gradient(e->zero) + b->gradient_offset,
                                  .copy = (char *)pd_zero_working_copy(e->zero) + b->offset * pd_dtype_bytes(precision),
                                  .copy_dtype = precision};
}

static pd_status build(struct pd_host_state *s, struct pd_engine *e, struct pd_error *err)
{
    struct pd_rank_device *device = e->options.device;
    struct pd_host_adam_options options = {.dev = device->dev,
                                           .compute = device->compute,
                                           .pool = e->pool,
                                           .copy_dtype = e->options.config->numerics.precision,
                                           .buffers = e->io_buffers,
                                           .buffer_bytes = e->io_bytes,
                                           .spans = device->spans};
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_IN, &options.copies_in, err));
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_OUT, &options.copies_out, err));
    PD_TRY(pd_isa_resolve(PD_ISA_AUTO, &options.isa, err));
    for (uint32_t i = 0; i < s->count; i++)
        s->ranges[i] = range_of(e, &pd_zero_boxes(e->zero)[i]);
    return pd_host_adam_new(&options, &s->adam, err);
}

pd_status pd_host_state_new(struct pd_engine *e, struct pd_arena *arena, struct pd_host_state **ret_state,
                            struct pd_error *err)
{
    struct pd_host_state *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state on the host");
    s->engine = e;
    s->count = pd_zero_box_count(e->zero);
    s->ranges = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, s->count * sizeof *s->ranges);
    const pd_status st = pd_arena_is_dry(arena) ? PD_OK : build(s, e, err);
    if (st) {
        pd_host_state_free(s);
        return st;
    }
    *ret_state = s;
    return PD_OK;
}

void pd_host_state_free(struct pd_host_state *s)
{
    if (!s) return;
    pd_host_adam_free(s->adam);
    free(s);
}

static pd_status update_set(struct pd_host_state *s, uint32_t set, const struct pd_adam_step *adam, struct pd_error *err)
{
    struct pd_zero *zero = s->engine->zero;
    uint32_t first, end;
    pd_zero_set_boxes(zero, set, &first, &end);
    for (uint32_t i = first; i < end; i++)
        PD_TRY(pd_zero_update_box(zero, i, &s->ranges[i].grad, &s->ranges[i].copy, err));
    return pd_host_adam_update(s->adam, adam, s->ranges + first, end - first, err);
}

pd_status pd_host_state_update(struct pd_host_state *s, const struct pd_adam_step *adam, struct pd_error *err)
{
    struct pd_zero *zero = s->engine->zero;
    if (!pd_blocks_leave_device(&s->engine->options)) return pd_host_adam_update(s->adam, adam, s->ranges, s->count, err);
    PD_TRY(pd_zero_update_begin(zero, err));
    for (uint32_t set = 0; set < pd_zero_set_count(zero); set++)
        PD_TRY(update_set(s, set, adam, err));
    return pd_zero_update_end(zero, err);
}
