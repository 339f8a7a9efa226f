/* Decides where checkpoints go and when to retry a tier that failed. The saver's thread decides from the options, the step
 * and the state that ranks have exchanged, so every rank decides the same. Nothing here uses a store or a thread.
 *
 *   a tier   idle --begin--> busy with a copy --end, on every rank--> idle
 *            A step that is due while the tier is busy is pending. A pending tier that is idle at a later save gets the
 *            newest step, or the pending step if that is a milestone and still exists.
 *   threads  the saver's */
#pragma once

#include "ckpt/tiers/worker.h"

struct tier_source { /* the checkpoint to copy */
    uint32_t tier;
    char name[64];
    uint64_t lineage, step;
    bool is_pinned; /* for this copy; unpin it when every rank has ended the copy */
};

struct tier_schedule {
    bool is_busy;    /* at least one rank is copying */
    bool is_pending; /* a step was due while busy */
    uint64_t pending_step;
    uint64_t newest_lineage, newest_step;
    char newest_name[64]; /* if this launch committed newest_step; "": an earlier one did */
    uint32_t failures;    /* in a row */
    uint64_t retry_ns;    /* root's clock: no retry earlier, unless no other tier works */
    struct tier_source source;
    char kept_name[64];       /* replicator only: last replicated, pinned until a newer one is */
    struct tier_names unpins; /* for the next job */
};

/* Sets the newest checkpoint of earlier launches. */
void tier_schedule_find(struct tier_schedule *schedule, uint64_t lineage, uint64_t step);
/* Retries the tier at the next save; from the second failure in a row on it backs off. */
void tier_schedule_fail(struct tier_schedule *schedule, uint64_t now_ns);
void tier_schedule_succeed(struct tier_schedule *schedule, uint64_t lineage, uint64_t step, const char *name);
bool tier_schedule_has(const struct tier_schedule *schedule, const struct pd_identity *identity);
/* A copy begins; a job takes the unpins along. */
void tier_schedule_begin(struct tier_schedule *schedule, const struct tier_source *source);
void tier_schedule_end(struct tier_schedule *schedule);
void tier_schedule_add_unpin(struct tier_schedule *schedule, const char *name);
struct tier_names tier_schedule_take_unpins(struct tier_schedule *schedule);
/* *ret_gives_way: the step that is no longer pending because of this one; 0: none. */
void tier_schedule_set_pending(struct tier_schedule *schedule, uint64_t step, uint64_t *ret_gives_way);
void tier_schedule_clear_pending(struct tier_schedule *schedule);
void tier_schedule_keep(struct tier_schedule *schedule, const char *name);

/* ---- who copies what ---- */

/* State of a possible target of copies. Number 0 stands for the other hosts, since the first tier gets no copies. */
struct tier_target {
    bool is_open; /* it takes copies from the tier of this save */
    bool is_due;  /* at this step, or because its last copy failed */
    bool is_busy, is_backing_off, is_pending;
    uint64_t pending_step;
    uint64_t keep_every;
};

struct tier_plan {
    struct tier_planned {
        uint32_t to;
        uint64_t milestone; /* copy this step instead, if the first tier still has it; 0: none */
    } copies[PD_TIERS_MAX];
    uint32_t copy_count;
    uint32_t pending[PD_TIERS_MAX]; /* busy now: they get the step later */
    uint32_t pending_count;
};

/* Plans the copies of a checkpoint that is committed in tier `from`. */
void tier_plan_copies(const struct tier_target *targets, uint32_t count, uint32_t from, struct tier_plan *ret_plan);

/* ---- where a save goes ---- */

struct tier_candidate {
    bool is_left_out, is_due, has_failed, is_backing_off;
};

/* Orders the tiers to try for a save: working ones before those that failed lately; among these, due ones before others.
 * Returns how many. */
uint32_t tier_order(const struct tier_candidate *tiers, uint32_t count, uint32_t ret_order[PD_TIERS_MAX]);
