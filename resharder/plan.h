/* A transfer plan: which stored block which reader reads in which round, and which pieces go where. A pure function of the
 * stored boxes, the wanted layout and who can open what: every rank computes the same schedule.
 *
 * Every stored block that is wanted has one reader. Shards that every host can open are cut evenly over all ranks; a shard
 * that only some hosts have is cut over the ranks of the first of these. A reader's blocks are taken in file order and cut
 * into rounds of at most `window_bytes`, so memory is bounded whatever the size of the checkpoint.
 */
#ifndef PD_RESHARDER_PLAN_H
#define PD_RESHARDER_PLAN_H

#include "resharder/layout.h"

/* One contiguous run of blocks of a stored box. */
struct pd_read_item {
    uint32_t shard, box; /* box: index in the shard */
    uint64_t first_block, block_count;
    uint64_t bytes; /* of data: the last block of a box may be short */
    uint32_t reader, round;
    uint64_t window_offset; /* place in the reader's window, a multiple of PD_DOOR_ALIGN */
};

/* One contiguous run of elements from a stored item to a wanted box. */
struct pd_transfer_run {
    uint64_t item_offset;   /* bytes from the start of the item */
    uint32_t wanted_box;    /* index among the wanted boxes of the tensor */
    uint64_t wanted_offset; /* bytes from the start of that box */
    uint64_t bytes;
};

struct pd_plan_input {
    const struct pd_tensor_table *tensors;
    const struct pd_layout *stored, *wanted;
    uint32_t kinds;              /* bit k: kind k is wanted */
    const bool *tensor_wanted;   /* (tensors) or NULL: all */
    uint32_t readers;            /* ranks of the loading group */
    const uint32_t *reader_host; /* (readers) host of each, 0.. */
    uint32_t host_count;
    const uint8_t *host_has; /* (host_count, stored shards): 1 where the host can open the shard */
    uint64_t window_bytes;   /* a round of one reader; at least PD_SHARD_BLOCK_BYTES */
};

struct pd_plan {
    struct pd_plan_input input; /* borrowed pointers */
    uint32_t shard_count;
    struct pd_shard_box **shard_boxes; /* (shards) stored boxes of each */
    uint32_t *shard_box_count;
    struct pd_read_item *items; /* by reader, round, then file order */
    uint64_t item_count;
    uint64_t *reader_first; /* (readers + 1) */
    uint32_t round_count;
};

/*   errors  PD_NOT_FOUND: a shard no host can open, by number */
PD_MUST_USE pd_status pd_plan_new(const struct pd_plan_input *input, struct pd_plan **ret_plan, struct pd_error *err);
void pd_plan_free(struct pd_plan *plan);

/* Runs of `item` that `rank` of the wanted layout owns, in element order; calls visit for each.*/
void pd_plan_runs(const struct pd_plan *plan, const struct pd_read_item *item, uint32_t rank,
                  void (*visit)(void *context, const struct pd_transfer_run *run), void *context);

#endif
