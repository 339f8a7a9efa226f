/* Passes over optimizer state in files, and the internals of the store shared with optimizer_store.c.
 *
 * A pass takes every extent through the ring once: an update (read, check, update, hash, write), the same without AdamW,
 * or the last writes of a generation (resident boxes that own pages).
 *
 *   invariants  1. no byte is used before its block verified; a mismatching block is read once more
 *               2. boxes and elements are met in the order of groups (optimizer_extents.h), resident ones included
 *               3. a block is checked, updated and hashed by one thread while it is in that core's cache
 */
#pragma once

#include "offload/optimizer_extents.h"
#include "offload/optimizer_store.h"

#include <pthread.h>
#include <stdatomic.h>

#define PD_OPTIMIZER_IN_FILE UINT64_MAX
#define PD_OPTIMIZER_NO_PIECE UINT32_MAX

/* The shard file of a generation. */
struct pd_optimizer_file {
    struct pd_shard_writer *writer;
    struct pd_shard_stream *stream; /* until it is finished or aborted */
    struct pd_file *from;           /* open for reading */
    char path[4096];
    uint32_t slot;
    bool is_held;
    struct pd_shard_summary summary; /* valid once it finished with success */
};

struct pd_optimizer_generation {
    struct pd_optimizer_file file;
    unsigned char *resident; /* (resident_bytes) */
    struct pd_identity identity;
    bool has_residents, is_finished; /* has_residents: resident boxes are in its file too */
    pd_status finish_status;
    struct pd_error finish_error;
};

/* An extent in the ring: its parts and their places. */
struct pd_optimizer_flight {
    struct pd_optimizer_part parts[PD_OPTIMIZER_PARTS_MAX];
    uint64_t first_block[PD_OPTIMIZER_PARTS_MAX + 1];      /* in the extent, counted over all parts */
    uint32_t piece[PD_OPTIMIZER_PARTS_MAX][PD_KIND_COUNT]; /* PD_OPTIMIZER_NO_PIECE: the kind has no pages of its own */
    char *data[PD_OPTIMIZER_PARTS_MAX][PD_KIND_COUNT];
    const float *gradient[PD_OPTIMIZER_PARTS_MAX];
    char *copy[PD_OPTIMIZER_PARTS_MAX];
    uint32_t count;
};

struct pd_optimizer_pass {
    struct pd_optimizer_store *store;
    const struct pd_optimizer_store_step *step; /* NULL: last writes of a generation */
    struct pd_optimizer_generation *old, *new;
    bool has_kept; /* the kept memory belongs to `old`, so it is not read */
    struct pd_optimizer_cursor cursor;
    uint32_t next_group;             /* groups before it were met */
    uint64_t described, expected;    /* extents */
    struct pd_optimizer_flight *now; /* in work */
    pthread_mutex_t mutex;
    _Atomic bool failed;
    uint64_t failed_at; /* block of the extent: the first failing one is reported, whichever thread found one first */
    pd_status status;
    struct pd_error error;
};

struct pd_optimizer_store {
    struct pd_optimizer_store_options options;
    struct pd_ring *ring;
    struct pd_optimizer_groups groups;
    uint64_t *resident_at; /* (box_count) first byte in a generation's `resident`, or IN_FILE */
    uint64_t resident_bytes;
    struct pd_optimizer_generation generations[2];
    uint32_t current;
    bool has_current, is_filling, is_updating;
    bool has_kept;                       /* the kept memory belongs to the current generation */
    struct pd_optimizer_store_step step; /* the update that was begun, and its pass */
    struct pd_optimizer_pass pass;
    struct pd_optimizer_flight flights[PD_RING_SLOTS];
};

/* Passes over every extent and every resident box in turn; begin starts the reads. After a successful begin call end or
 * abandon. The caller sets store, step, old, new, has_kept. Only end uses step->update. */
PD_MUST_USE pd_status pd_optimizer_pass_begin(struct pd_optimizer_pass *pass, struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_pass_end(struct pd_optimizer_pass *pass, struct pd_ring_report *ret_report,
                                            struct pd_error *err);
void pd_optimizer_pass_abandon(struct pd_optimizer_pass *pass);
/* Writes resident boxes that own pages into the file of `g`, and passes all resident boxes to its stream. */
PD_MUST_USE pd_status pd_optimizer_pass_residents(struct pd_optimizer_store *store, struct pd_optimizer_generation *g,
                                                  struct pd_error *err);

static inline void *pd_optimizer_resident(const struct pd_optimizer_store *store, const struct pd_optimizer_generation *g,
                                          uint32_t box)
{
    return g->resident + store->resident_at[box];
}
