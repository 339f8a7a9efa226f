#include "trainer/engine/engine_internal.h"
#include "trainer/engine/state_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

static const struct pd_state_ops *ops_of(const struct pd_engine *engine)
{
    const enum pd_place place = engine->options.config->offload.optimizer;
    if (place == PD_PLACE_NVME) return &pd_state_in_files;
    if (place == PD_PLACE_DEVICE || !engine->options.is_gpu) return &pd_state_on_device;
    return engine->own->laid_out.updates_on_device ? &pd_state_streamed : &pd_state_on_host;
}

pd_status pd_state_new(struct pd_engine *engine, uint64_t staging_bytes, struct pd_arena *arena, struct pd_state **ret_state,
                       struct pd_error *err)
{
    struct pd_state *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state");
    *s = (struct pd_state){.ops = ops_of(engine), .engine = engine, .staging_bytes = staging_bytes, .rule = &pd_adamw};
    const pd_status st = s->ops->take(s, arena, err);
    if (st) {
        pd_state_free(s);
        return st;
    }
    *ret_state = s;
    return PD_OK;
}

pd_status pd_state_own_new(struct pd_state *s, size_t bytes, struct pd_error *err)
{
    s->own = calloc(1, bytes);
    if (!s->own) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state on the host");
    return PD_OK;
}

void pd_state_free(struct pd_state *s)
{
    if (!s) return;
    s->ops->close(s);
    s->ops->free(s);
    free(s);
}

const struct pd_update_rule *pd_state_rule(const struct pd_state *s)
{
    return s->rule;
}

bool pd_state_is_in_files(const struct pd_state *s)
{
    return s->ops->is_in_files;
}

bool pd_state_is_streamed(const struct pd_state *s)
{
    return s->ops == &pd_state_streamed;
}

bool pd_state_is_mirrored(const struct pd_state *s)
{
    return s->mirror != NULL;
}

pd_status pd_state_open(struct pd_state *s, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err)
{
    return s->ops->open(s, vfs, store, err);
}

void pd_state_close(struct pd_state *s)
{
    s->ops->close(s);
}

pd_status pd_state_init(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    return s->ops->init(s, identity, err);
}

pd_status pd_state_load(struct pd_state *s, struct pd_vfs *vfs, struct pd_group *group, struct pd_load_request *request,
                        const struct pd_identity *identity, struct pd_load_report *ret_report, struct pd_error *err)
{
    return s->ops->load(s, vfs, group, request, identity, ret_report, err);
}

pd_status pd_state_begin(struct pd_state *s, const struct pd_identity *next, const struct pd_before_update *before,
                         struct pd_error *err)
{
    return s->ops->begin(s, next, before, err);
}

pd_status pd_state_update(struct pd_state *s, const struct pd_update_step *step, const struct pd_before_update *before,
                          struct pd_error *err)
{
    return s->ops->update(s, step, before, err);
}

void pd_state_end(struct pd_state *s)
{
    s->ops->end(s);
}

void *pd_state_box(struct pd_state *s, uint32_t tensor, enum pd_kind kind, uint32_t number)
{
    return s->ops->box(s, kind, pd_state_owned_box(s, tensor, number));
}

pd_status pd_state_save_begin(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    return s->ops->save_begin(s, identity, err);
}

pd_status pd_state_save_wait(struct pd_state *s, struct pd_shard_summary *ret_summaries, uint32_t *ret_slots,
                             struct pd_error *err)
{
    return s->ops->save_wait(s, ret_summaries, ret_slots, err);
}

/* ---- slots with nothing to do ---- */

pd_status pd_state_open_nothing(struct pd_state *s, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err)
{
    (void)s, (void)vfs, (void)store, (void)err;
    return PD_OK;
}

void pd_state_close_nothing(struct pd_state *s)
{
    (void)s;
}

pd_status pd_state_begin_nothing(struct pd_state *s, const struct pd_identity *next, const struct pd_before_update *before,
                                 struct pd_error *err)
{
    (void)s, (void)next, (void)before, (void)err;
    return PD_OK;
}

/* ---- state in memory ---- */

static void init_box(void *context, uint64_t index)
{
    struct pd_state *s = context;
    const struct pd_zero_box *b = &pd_zero_held(s->engine->zero)->boxes[index];
    if (s->mirror && !b->owned) return;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        void *data = s->ops->box(s, (enum pd_kind)kind, b);
        if (pd_kinds[kind].initial == PD_INITIAL_MODEL)
            pd_model_init_box(s->engine->options.model, b->tensor, &b->box, s->engine->options.config->run.seed, data);
        else
            memset(data, 0, b->elements * pd_zero_element_bytes(pd_zero_held(s->engine->zero), (enum pd_kind)kind));
    }
}

pd_status pd_state_init_memory(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    (void)identity;
    pd_parallel(s->engine->pool, pd_zero_held(s->engine->zero)->box_count, init_box, s);
    if (s->mirror) {
        PD_TRY(pd_state_mirror_in(s->mirror, err));
        PD_TRY(pd_zero_share_state(s->engine->zero, err)); /* replicas are mirrored on their owner */
    }
    return pd_zero_refresh_compute(s->engine->zero, err);
}

void *pd_state_box_memory(struct pd_state *s, enum pd_kind kind, const struct pd_zero_box *b)
{
    if (s->mirror) return pd_state_mirror_box(s->mirror, kind, b);
    return pd_zero_state(pd_zero_held(s->engine->zero), kind, b->offset);
}

pd_status pd_state_save_begin_memory(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    (void)identity;
    return s->mirror ? pd_state_mirror_begin_out(s->mirror, err) : PD_OK;
}

pd_status pd_state_save_wait_memory(struct pd_state *s, struct pd_shard_summary *ret_summaries, uint32_t *ret_slots,
                                    struct pd_error *err)
{
    (void)ret_summaries, (void)ret_slots;
    return s->mirror ? pd_state_mirror_wait_out(s->mirror, err) : PD_OK;
}

/* First of the boxes, which come in table order, whose tensor is `tensor` or later. */
static uint32_t first_box_of(const struct pd_zero *zero, uint32_t tensor)
{
    const struct pd_zero_box *boxes = pd_zero_held(zero)->boxes;
    uint32_t low = 0, high = pd_zero_held(zero)->box_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (boxes[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct pd_zero_box *pd_state_owned_box(const struct pd_state *s, uint32_t tensor, uint32_t number)
{
    const struct pd_zero_box *boxes = pd_zero_held(s->engine->zero)->boxes;
    const uint32_t count = pd_zero_held(s->engine->zero)->box_count;
    for (uint32_t i = first_box_of(s->engine->zero, tensor); i < count && boxes[i].tensor == tensor; i++)
        if (boxes[i].owned && boxes[i].number == number) return &boxes[i];
    PD_CHECK(!"a box that this rank owns");
    return NULL;
}

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    return pd_state_box(context, tensor, kind, box);
}

pd_status pd_state_load_memory(struct pd_state *s, struct pd_vfs *vfs, struct pd_group *group,
                               struct pd_load_request *request, const struct pd_identity *identity,
                               struct pd_load_report *ret_report, struct pd_error *err)
{
    (void)identity;
    request->kinds = (1u << PD_KIND_COUNT) - 1;
    request->destination = destination;
    request->context = s;
    PD_TRY(pd_load(vfs, group, request, ret_report, err));
    if (s->mirror) PD_TRY(pd_state_mirror_in(s->mirror, err));
    PD_TRY(pd_zero_share_state(s->engine->zero, err));
    return pd_zero_refresh_compute(s->engine->zero, err);
}

struct pd_update_range pd_state_range(const struct pd_state *s, const struct pd_zero_box *b)
{
    struct pd_zero *zero = s->engine->zero;
    const struct pd_zero_held *held = pd_zero_held(zero);
    const struct pd_tensor *tensor = &s->engine->options.model->tensors.tensors[b->tensor];
    const enum pd_dtype precision = s->engine->options.config->numerics.precision;
    char *copy = held->copy;
    struct pd_update_range range = {.n = b->elements,
                                    .decay = tensor->decay,
                                    .by_sign = tensor->by_sign,
                                    .sign_step = tensor->sign_step,
                                    .grad = held->gradient + b->gradient_offset,
                                    .copy = copy ? copy + b->offset * pd_dtype_bytes(precision) : NULL,
                                    .copy_dtype = precision,
                                    .moments = held->moments,
                                    .place = pd_update_place_of(tensor, b->tensor, &b->box)};
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        range.state[kind] = pd_zero_state(held, (enum pd_kind)kind, b->offset);
    return range;
}
