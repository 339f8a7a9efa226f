/* What goes where, and when a tier that failed is asked again. Decided by the saver's thread from the options, the step and
 * what all ranks have told each other, so it is the same on every rank. Nothing here reaches a store or a thread.
 *
 *   a tier   idle --begin--> busy with a copy --end, on every rank--> idle
 *            due while busy: pending; pending and idle at a later save: gets the newest step, or the pending one where that
 *            is a milestone and still there
 *   threads  the saver's */
#pragma once

#include "ckpt/tiers/worker.h"

struct tier_source { /* of a copy */
    uint32_t tier;
    char name[64];
    uint64_t lineage, step;
    bool is_pinned; /* for this copy; unpinned when that has ended on every rank */
};

struct tier_schedule {
    bool is_busy;    /* with a copy, on some rank at least */
    bool is_pending; /* was due while busy */
    uint64_t pending_step;
    uint64_t newest_lineage, newest_step;
    char newest_name[64]; /* where newest_step was committed by this launch; "": by an earlier one */
    uint32_t failures;    /* in a row */
    uint64_t retry_ns;    /* of the root's clock: not asked before, unless nothing else works */
    struct tier_source source;
    char kept_name[64];       /* of the replicator: replicated last, pinned until a newer one is */
    struct tier_names unpins; /* that go with the next job */
};

/* What an earlier launch left. */
void tier_schedule_find(struct tier_schedule *schedule, uint64_t lineage, uint64_t step);
/* The tier is asked again at the next save; from the second failure in a row on it backs off. */
void tier_schedule_fail(struct tier_schedule *schedule, uint64_t now_ns);
void tier_schedule_succeed(struct tier_schedule *schedule, uint64_t lineage, uint64_t step, const char *name);
bool tier_schedule_has(const struct tier_schedule *schedule, const struct pd_identity *identity);
/* A copy begins; a job takes the unpins along. */
void tier_schedule_begin(struct tier_schedule *schedule, const struct tier_source *source);
void tier_schedule_end(struct tier_schedule *schedule);
void tier_schedule_add_unpin(struct tier_schedule *schedule, const char *name);
struct tier_names tier_schedule_take_unpins(struct tier_schedule *schedule);
/* *ret_gives_way: the step that was pending and is not any more; 0: none. */
void tier_schedule_set_pending(struct tier_schedule *schedule, uint64_t step, uint64_t *ret_gives_way);
void tier_schedule_clear_pending(struct tier_schedule *schedule);
void tier_schedule_keep(struct tier_schedule *schedule, const char *name);

/* ---- who copies what ---- */

/* One that copies may go to, as it stands. Number 0 is the other hosts: the first tier itself gets no copies. */
struct tier_target {
    bool is_open; /* it takes copies of what is committed where this save goes */
    bool is_due;  /* at this step, or since its last copy failed */
    bool is_busy, is_backing_off, is_pending;
    uint64_t pending_step;
    uint64_t keep_every;
};

struct tier_plan {
    struct tier_planned {
        uint32_t to;
        uint64_t milestone; /* this step instead of the newest, if the first tier still has it; 0: none */
    } copies[PD_TIERS_MAX];
    uint32_t copy_count;
    uint32_t pending[PD_TIERS_MAX]; /* busy now: the step waits for them */
    uint32_t pending_count;
};

/* What becomes of a checkpoint that is committed in tier `from`. */
void tier_plan_copies(const struct tier_target *targets, uint32_t count, uint32_t from, struct tier_plan *ret_plan);

/* ---- where a save goes ---- */

struct tier_candidate {
    bool is_left_out, is_due, has_failed, is_backing_off;
};

/* Tiers in the order in which they are asked: due before not due, those that work before those that have failed lately.
 * Returns how many. */
uint32_t tier_order(const struct tier_candidate *tiers, uint32_t count, uint32_t ret_order[PD_TIERS_MAX]);
