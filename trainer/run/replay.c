#include "trainer/run/replay.h"

#include "ckpt/inspect/inspect.h"
#include "trainer/engine/advance.h"
#include "trainer/engine/rank_device.h"
#include "trainer/run/resume.h"
#include "trainer/run/whole_engine.h"

#include <stdlib.h>
#include <string.h>

struct replaying {
    const struct pd_replay *replay;
    struct pd_group group;
    struct pd_vfs *vfs;
    struct pd_tiers *tiers;
    struct pd_rank_device device;
    struct pd_whole_engine whole;
    struct pd_run_state state;
    struct pd_rollbacks rollbacks;
};

/* The newest checkpoint of `step` or before. */
static pd_status replay_load(struct replaying *r, uint64_t step, struct pd_error *err)
{
    struct pd_tiers_options options = *r->replay->tiers;
    const struct pd_resume_limit limit = {.step = step};
    struct pd_resume_report report;
    options.read_only = true;
    for (uint32_t i = 0; i < options.count; i++)
        options.groups[i] = &r->group;
    pd_tiers_close(r->tiers);
    r->tiers = NULL;
    pd_run_state_deinit(&r->state);
    PD_TRY(pd_tiers_open(r->vfs, &options, &r->tiers, err));
    PD_TRY(pd_resume(r->vfs, r->tiers, &r->group, r->whole.engine, limit, &r->state, &report, err));
    r->rollbacks.goes_back = false;
    pd_rollbacks_pass(&r->rollbacks, r->replay->config, false, &r->state);
    return PD_OK;
}

static pd_status replay_open_all(struct replaying *r, struct pd_error *err)
{
    const struct pd_replay *replay = r->replay;
    pd_group_init_single(&r->group);
    pd_numerics_thread_init();
    PD_TRY(pd_rank_device_open(replay->config->run.device, 0, NULL, &r->device, err));
    PD_TRY(pd_whole_engine_open(replay->config, NULL, &r->device, replay->threads, &r->whole, err));
    PD_TRY(pd_vfs_new_auto(&r->vfs, err));
    return replay_load(r, replay->step - 1, err);
}

static pd_status compute(struct replaying *r, struct pd_error *err)
{
    struct pd_step_result result;
    const struct pd_replay *replay = r->replay;
    struct pd_engine *e = r->whole.engine;
    while (r->state.identity.step < replay->last) {
        e->loss_scale = r->state.loss_scale;
        memcpy(e->gradient_sizes.log2, r->state.gradient_sizes, sizeof r->state.gradient_sizes);
        PD_TRY(pd_engine_step(e, r->state.samples, r->state.updates, &result, err));
        PD_TRY(pd_advance(replay->config, &result, false, &r->state, &r->rollbacks, err));
        PD_TRY(replay->stepped(replay->context, r->state.identity.step, &result, err));
        if (r->rollbacks.goes_back) PD_TRY(replay_load(r, r->rollbacks.target, err));
        pd_rollbacks_pass(&r->rollbacks, replay->config, false, &r->state);
    }
    return PD_OK;
}

static pd_status digest(struct replaying *r, uint64_t *ret_digest, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &r->whole.model->tensors;
    struct pd_state *state = r->whole.engine->state;
    const struct pd_zero_held *held = pd_zero_held(r->whole.engine->zero);
    struct pd_shard_summary unused;
    uint32_t slot;
    PD_TRY(pd_state_save_begin(state, &r->state.identity, err));
    PD_TRY(pd_state_save_wait(state, &unused, &slot, err));
    uint64_t *digests = calloc((size_t)tensors->count * PD_KIND_COUNT, sizeof *digests);
    if (!digests) PD_FAIL(err, PD_NO_MEMORY, "no memory for the digests of %u tensors", tensors->count);
    for (uint32_t i = 0; i < held->box_count; i++) {
        const struct pd_zero_box *b = &held->boxes[i];
        for (uint32_t kind = 0; b->owned && kind < PD_KIND_COUNT; kind++)
            digests[b->tensor * PD_KIND_COUNT + kind] += pd_tensor_digest(
                &tensors->tensors[b->tensor], &b->box, pd_tensor_dtype(&tensors->tensors[b->tensor], (enum pd_kind)kind),
                pd_state_box(state, b->tensor, (enum pd_kind)kind, b->number));
    }
    const pd_status st = pd_state_digest(tensors, digests, ret_digest, err);
    free(digests);
    return st;
}

pd_status pd_replay(const struct pd_replay *replay, struct pd_replayed *ret_replayed, struct pd_error *err)
{
    struct replaying r = {.replay = replay};
    struct pd_replayed replayed = {.from_step = 0};
    pd_status st = replay_open_all(&r, err);
    replayed.from_step = r.state.identity.step;
    if (!st) st = compute(&r, err);
    if (!st) st = digest(&r, &replayed.state_digest, err);
    pd_tiers_close(r.tiers);
    pd_vfs_free(r.vfs);
    pd_run_state_deinit(&r.state);
    pd_whole_engine_close(&r.whole);
    pd_rank_device_close(&r.device);
    if (!st) *ret_replayed = replayed;
    return st;
}
