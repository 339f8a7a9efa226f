/* Shared by the placements of optimizer state (trainer/engine/state.h). */
#pragma once

#include "trainer/engine/engine.h"
#include "trainer/engine/state_mirror.h"

/* Every slot is filled; state.h documents them at their callers. */
struct pd_state_ops {
    bool is_in_files;
    pd_status (*take)(struct pd_state *state, struct pd_arena *arena, struct pd_error *err); /* dry arena: only counts */
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
    struct pd_state_mirror *mirror; /* host mirror of state in GPU memory; NULL: none */
    void *own;                      /* private to the implementation */
};

extern const struct pd_state_ops pd_state_on_device, pd_state_on_host, pd_state_streamed, pd_state_in_files;

/* Slots for state in memory: one array of held boxes per kind. Nothing to open, or to start before an update. */
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

/* Allocates the private data of a placement on the host, zeroed; its free slot frees it. */
PD_MUST_USE pd_status pd_state_own_new(struct pd_state *state, size_t bytes, struct pd_error *err);

/* A held box as an update sees it. Gradient and working copy stay in place unless pd_zero_update_box moves them. */
struct pd_update_range pd_state_range(const struct pd_state *state, const struct pd_zero_box *box);
/* Runs the rule's kernel on compute. */
PD_MUST_USE pd_status pd_state_update_on_device(struct pd_state *state, const struct pd_update_step *step,
                                                const struct pd_update_range *range, struct pd_error *err);
/* Calls `update` per held box, in order, then announces new working copies. Gradients and copies: on the device. */
PD_MUST_USE pd_status pd_state_update_boxes(struct pd_state *state, const struct pd_update_step *step,
                                            pd_status (*update)(struct pd_state *state, const struct pd_update_step *step,
                                                                const struct pd_update_range *range, struct pd_error *err),
                                            struct pd_error *err);
/* The box with that number that this rank owns. */
const struct pd_zero_box *pd_state_owned_box(const struct pd_state *state, uint32_t tensor, uint32_t number);

static inline void pd_state_wait_for_readers(const struct pd_before_update *before)
{
    if (before->call) before->call(before->context);
}
