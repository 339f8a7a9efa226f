/* Passes over optimizer state in files, and the insides of a store that they share with optimizer_store.c.
 *
 * A pass takes every extent through the ring once: an update (read, check, update, hash, write), the same without AdamW, or
 * the last writes of a generation (boxes that stay in memory and own pages).
 *
 *   invariants  1. no byte is used before its block verified; one that does not is read once more
 *               2. boxes and elements are met in the order of groups (optimizer_extents.h), those that stay in memory
 *                  included
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
    struct pd_shard_stream *stream; /* until it is finished or given up */
    struct pd_file *from;           /* while it is read */
    char path[4096];
    uint32_t slot;
    bool is_held;
    struct pd_shard_summary summary; /* once finished, and well */
};

struct pd_optimizer_generation {
    struct pd_optimizer_file file;
    unsigned char *resident; /* (resident_bytes) */
    struct pd_identity identity;
    bool has_residents, is_finished; /* has_residents: boxes that stay in memory are in its file too */
    pd_status finish_status;
    struct pd_error finish_error;
};

/* An extent while it is in the ring: its parts and where they lie. */
struct pd_optimizer_flight {
    struct pd_optimizer_part parts[PD_OPTIMIZER_PARTS_MAX];
    uint64_t first_block[PD_OPTIMIZER_PARTS_MAX + 1];      /* in the extent, all parts one behind the other */
    uint32_t piece[PD_OPTIMIZER_PARTS_MAX][PD_KIND_COUNT]; /* PD_OPTIMIZER_NO_PIECE: the kind has no pages of its own */
    char *data[PD_OPTIMIZER_PARTS_MAX][PD_KIND_COUNT];
    const float *gradient[PD_OPTIMIZER_PARTS_MAX];
    char *copy[PD_OPTIMIZER_PARTS_MAX];
    uint32_t count;
};

struct pd_optimizer_pass {
    struct pd_optimizer_store *store;
    const struct pd_optimizer_store_step *step; /* NULL: the last writes */
    struct pd_optimizer_generation *old, *new;
    bool has_kept; /* what is kept in memory is that of `old`: not read */
    struct pd_optimizer_cursor cursor;
    uint32_t next_group;             /* those before it were met */
    uint64_t described, expected;    /* extents */
    struct pd_optimizer_flight *now; /* being worked on */
    pthread_mutex_t mutex;
    _Atomic bool failed;
    uint64_t failed_at; /* block of the extent: the first one is reported, whichever thread was quicker */
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
    bool has_kept;                       /* what is kept in memory is that of the current generation */
    struct pd_optimizer_store_step step; /* of the update that was begun, and its pass */
    struct pd_optimizer_pass pass;
    struct pd_optimizer_flight flights[PD_RING_SLOTS];
};

/* Every extent and every box that stays, in turn, reads on their way from begin on; after a begin that succeeded comes end or
 * abandon. Set: store, step, old, new, has_kept. step->update is looked at by end. */
PD_MUST_USE pd_status pd_optimizer_pass_begin(struct pd_optimizer_pass *pass, struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_pass_end(struct pd_optimizer_pass *pass, struct pd_ring_report *ret_report,
                                            struct pd_error *err);
void pd_optimizer_pass_abandon(struct pd_optimizer_pass *pass);
/* Writes boxes that stay in memory and have pages of their own into the file of `g`, and lets its stream know of all. */
PD_MUST_USE pd_status pd_optimizer_pass_residents(struct pd_optimizer_store *store, struct pd_optimizer_generation *g,
                                                  struct pd_error *err);

static inline void *pd_optimizer_resident(const struct pd_optimizer_store *store, const struct pd_optimizer_generation *g,
                                          uint32_t box)
{
    return g->resident + store->resident_at[box];
}
