#include "trainer/plan/offload_plan.h"

#include "ckpt/base/checked.h"
#include "ckpt/tiers/tiers.h"
#include "offload/optimizer_extents.h"
#include "offload/optimizer_store.h"
#include "resharder/layout.h"
#include "trainer/engine/scratch.h"
#include "trainer/engine/state_files.h"

#include <stdlib.h>

#define BUCKETS_THAT_STAY 2u

bool pd_config_offloads(const struct pd_config *c, bool is_gpu)
{
    const struct pd_engine_options o = {.config = c, .is_gpu = is_gpu};
    return pd_leaves_device(&o, c->offload.optimizer) || pd_leaves_device(&o, c->offload.activations) ||
           pd_blocks_leave_device(&o);
}

static pd_status plan_state(const struct pd_engine *e, struct pd_offload_plan *p, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &e->options.model->tensors;
    struct pd_shard_box *boxes;
    uint32_t count;
    PD_TRY(pd_layout_shard_boxes(&e->grid.layout, tensors, e->options.rank, &boxes, &count, err));
    for (uint32_t b = 0; b < count; b++) {
        const uint64_t elements = pd_box_elements(&boxes[b].box),
                       bytes = elements * pd_tensor_element_bytes(&tensors->tensors[boxes[b].tensor], boxes[b].kind);
        if (elements >= PD_OPTIMIZER_STREAMED_MIN) p->state_traffic += 2 * pd_round_up(bytes, PD_VFS_ALIGN);
    }
    const pd_status st = pd_optimizer_store_plan(tensors, boxes, count, &p->generation_bytes, err);
    free(boxes);
    p->state_traffic -= pd_state_files_kept_bytes(e->state); /* written, and not read */
    struct pd_tier_options tiers[PD_TIERS_MAX];
    p->generations = pd_tiers_own_checkpoints(tiers, pd_config_tiers(e->options.config, tiers), 0, true);
    return st;
}

/* Bytes read and written per step for an offloaded part. */
static void note(const struct pd_engine *e, enum pd_place place, uint64_t in, uint64_t out, uint64_t *drives,
                 struct pd_offload_plan *p)
{
    if (place == PD_PLACE_NVME) *drives = in + out;
    p->bus_in_bytes += e->options.is_gpu ? in : 0;
    p->bus_out_bytes += e->options.is_gpu ? out : 0;
}

/* Bytes of a pass over all blocks, and of blocks not read again when the next pass starts where it ended. */
struct pass {
    uint64_t all, first, last;
};

static struct pass pass_over(const struct pd_zero *zero)
{
    struct pass pass = {0};
    const struct pd_zero_held *held = pd_zero_held(zero);
    const uint32_t blocks_end = held->bucket_count - 1;
    for (uint32_t bucket = 1; bucket < blocks_end; bucket++) {
        uint64_t bytes = 0;
        for (uint32_t b = held->first_box[bucket]; b < held->first_box[bucket + 1]; b++)
            bytes += pd_round_up(pd_zero_parameter_span(zero, b), PD_VFS_ALIGN);
        pass.all += bytes;
        if (bucket < held->copies_away + BUCKETS_THAT_STAY) pass.first += bytes;
        if (bucket + BUCKETS_THAT_STAY >= blocks_end) pass.last += bytes;
    }
    return pass;
}

static void plan_gradients(const struct pd_engine *e, struct pd_offload_plan *p)
{
    uint64_t bytes = 0;
    for (uint32_t bucket = pd_zero_held(e->zero)->sums_away + BUCKETS_THAT_STAY;
         bucket < pd_zero_held(e->zero)->bucket_count; bucket++)
        bytes += pd_round_up(pd_zero_gradient_span(e->zero, bucket), PD_VFS_ALIGN);
    note(e, e->options.config->offload.gradients, bytes, bytes, &p->gradient_traffic, p);
}

/* AdamW on the host: summed gradients come out, new copies go in. On the device: host state goes in and comes out. */
static void plan_update(const struct pd_engine *e, struct pd_offload_plan *p)
{
    uint64_t elements = 0;
    for (uint32_t b = 0; b < pd_zero_held(e->zero)->box_count; b++)
        elements += pd_zero_held(e->zero)->boxes[b].elements;
    const struct pd_config *c = e->options.config;
    const uint64_t state = pd_state_is_streamed(e->state) ? pd_kinds_bytes(c->optimizer.moments) : 0;
    p->bus_out_bytes += elements * (state ? state : sizeof(float));
    p->bus_in_bytes += elements * (state ? state : pd_dtype_bytes(c->numerics.precision));
}

static pd_status plan_engine(const struct pd_engine *e, struct pd_offload_plan *p, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    const struct pd_engine_options *o = &e->options;
    uint64_t heap;
    if (c->offload.optimizer == PD_PLACE_NVME) PD_TRY(plan_state(e, p, err));
    if (o->is_gpu && pd_leaves_device(o, c->offload.optimizer)) plan_update(e, p);
    if (pd_leaves_device(o, c->offload.parameters)) {
        const struct pass pass = pass_over(e->zero);
        const uint64_t micro_batches = e->is_breadth_first ? 1 : e->slots,
                       read = 2 * micro_batches * pass.all - micro_batches * pass.last - (micro_batches - 1) * pass.first;
        note(e, e->options.config->offload.parameters, read, pass.all, &p->parameter_traffic, p);
    }
    if (pd_leaves_device(o, c->offload.gradients)) plan_gradients(e, p);
    PD_TRY(pd_scratch_plan(e, &heap, &p->scratch_bytes, err));
    if (pd_leaves_device(o, c->offload.activations)) {
        const uint64_t bytes = pd_transformer_away_bytes(e->transformer, e->slots);
        note(e, c->offload.activations, bytes, bytes, &p->activation_traffic, p);
    }
    p->nvme_bytes = p->generations * p->generation_bytes + p->scratch_bytes;
    p->step_bytes = p->state_traffic + p->parameter_traffic + p->gradient_traffic + p->activation_traffic;
    return PD_OK;
}

pd_status pd_offload_plan_of(const struct pd_engine_options *options, struct pd_offload_plan *ret_plan, struct pd_error *err)
{
    struct pd_arena *arena;
    struct pd_engine *engine = NULL;
    *ret_plan = (struct pd_offload_plan){0};
    if (!pd_config_offloads(options->config, options->is_gpu)) return PD_OK;
    PD_TRY(pd_arena_new_dry(&arena, err));
    pd_status st = pd_engine_new(options, NULL, NULL, NULL, arena, &engine, err);
    if (!st) st = plan_engine(engine, ret_plan, err);
    pd_engine_free(engine);
    pd_arena_free(arena);
    return st;
}

#define PROGRAM_BYTES (UINT64_C(17) << 20)
#define THREAD_BYTES (UINT64_C(256) << 10)
#define TENSOR_BYTES (UINT64_C(6) << 10)

uint64_t pd_process_bytes(const struct pd_model *model, uint32_t threads)
{
    return PROGRAM_BYTES + threads * THREAD_BYTES + model->tensors.count * TENSOR_BYTES;
}
