/* What the placements of optimizer state share (trainer/engine/state.h). */
#pragma once

#include "trainer/engine/engine.h"
#include "trainer/engine/state_mirror.h"

/* Every slot is filled; what they do stands at their callers in state.h. */
struct pd_state_ops {
    bool is_in_files;
    pd_status (*take)(struct pd_state *state, struct pd_arena *arena, struct pd_error *err); /* dry: only counts */
    pd_status (*open)(struct pd_state *state, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err);
    void (*close)(struct pd_state *state);
    pd_status (*init)(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
    pd_status (*load)(struct pd_state *state, struct pd_vfs *vfs, struct pd_group *group, struct pd_load_request *request,
                      const struct pd_identity *identity, struct pd_load_report *ret_report, struct pd_error *err);
    pd_status (*begin)(struct pd_state *state, const struct pd_identity *next, const struct pd_before_update *before,
                       struct pd_error *err);
    pd_status (*update)(struct pd_state *state, const struct pd_update_step *step, const struct pd_before_update *before,
                        struct pd_error *err);
    void (*end)(struct pd_state *state);
    void *(*box)(struct pd_state *state, enum pd_kind kind, const struct pd_zero_box *box);
    pd_status (*save_begin)(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
    pd_status (*save_wait)(struct pd_state *state, struct pd_shard_summary *ret_summaries, uint32_t *ret_slots,
                           struct pd_error *err);
    void (*free)(struct pd_state *state);
};

struct pd_state {
    const struct pd_state_ops *ops;
    struct pd_engine *engine;
    uint64_t staging_bytes;
    const struct pd_update_rule *rule;
    struct pd_state_mirror *mirror; /* of state in a GPU's memory, in the host's; NULL: none */
    void *own;                      /* of the implementation */
};

extern const struct pd_state_ops pd_state_on_device, pd_state_on_host, pd_state_streamed, pd_state_in_files;

/* Slots of state in memory: arrays of all held boxes, one a kind. Nothing is opened, and nothing is begun before an update. */
pd_status pd_state_open_nothing(struct pd_state *state, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err);
void pd_state_close_nothing(struct pd_state *state);
pd_status pd_state_init_memory(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
pd_status pd_state_load_memory(struct pd_state *state, struct pd_vfs *vfs, struct pd_group *group,
                               struct pd_load_request *request, const struct pd_identity *identity,
                               struct pd_load_report *ret_report, struct pd_error *err);
pd_status pd_state_begin_nothing(struct pd_state *state, const struct pd_identity *next,
                                 const struct pd_before_update *before, struct pd_error *err);
void *pd_state_box_memory(struct pd_state *state, enum pd_kind kind, const struct pd_zero_box *box);
pd_status pd_state_save_begin_memory(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
pd_status pd_state_save_wait_memory(struct pd_state *state, struct pd_shard_summary *ret_summaries, uint32_t *ret_slots,
                                    struct pd_error *err);
#define PD_STATE_MEMORY_SLOTS                                                                     \
    .open = pd_state_open_nothing, .close = pd_state_close_nothing, .init = pd_state_init_memory, \
    .load = pd_state_load_memory, .begin = pd_state_begin_nothing, .end = pd_state_close_nothing, \
    .box = pd_state_box_memory, .save_begin = pd_state_save_begin_memory, .save_wait = pd_state_save_wait_memory

/* What a placement on the host has of its own, zeros; its free slot frees it. */
PD_MUST_USE pd_status pd_state_own_new(struct pd_state *state, size_t bytes, struct pd_error *err);

/* A held box as an update sees it, its gradient and working copy where they lie unless pd_zero_update_box says otherwise. */
struct pd_update_range pd_state_range(const struct pd_state *state, const struct pd_zero_box *box);
/* The rule's kernel, on compute. */
PD_MUST_USE pd_status pd_state_update_on_device(struct pd_state *state, const struct pd_update_step *step,
                                                const struct pd_update_range *range, struct pd_error *err);
/* `update` of every held box, in order, then new working copies are announced: where gradients and copies are the device's. */
PD_MUST_USE pd_status pd_state_update_boxes(struct pd_state *state, const struct pd_update_step *step,
                                            pd_status (*update)(struct pd_state *state, const struct pd_update_step *step,
                                                                const struct pd_update_range *range, struct pd_error *err),
                                            struct pd_error *err);
/* The box of that number that this rank owns. */
const struct pd_zero_box *pd_state_owned_box(const struct pd_state *state, uint32_t tensor, uint32_t number);

static inline void pd_state_wait_for_readers(const struct pd_before_update *before)
{
    if (before->call) before->call(before->context);
}
