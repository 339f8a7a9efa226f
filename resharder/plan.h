/* One rank's transfer plan: which stored blocks it reads in which round, what it receives from other readers, and where
 * its own reads go. A pure function of the layouts and of who can open which shard, so all ranks compute the same
 * schedule without communicating.
 *
 * The schedule is arithmetic. Wanted boxes form a line, in file order, shard after shard; each takes as many pages as
 * reading it takes, and its place in the line is its *position*. Shards that every host can open form one line, cut
 * evenly over all ranks. A shard that only some hosts have is in the line of the first of these and is cut over its
 * ranks. A block belongs to the reader, and within it to the round, whose range of the line holds its first page. So a
 * position gives reader, round and place in the window, and a rank's plan costs only what concerns it: its own range, and
 * those of the shards that hold something it wants.
 */
#pragma once

#include "resharder/layout.h"

/* One contiguous run of blocks of a stored box. */
struct pd_read_item {
    uint32_t shard, box; /* box: index in the shard */
    uint32_t tensor;
    enum pd_kind kind;
    struct pd_box stored; /* the whole box */
    uint64_t first_block, block_count;
    uint64_t bytes; /* of data: the last block of a box may be short */
    uint32_t reader, round;
    uint64_t window_offset; /* offset in the reader's window, a multiple of PD_VFS_ALIGN */
};

/* One contiguous run of elements from a stored item to a wanted box. */
struct pd_transfer_run {
    uint64_t item_offset;   /* bytes from the start of the item */
    uint32_t wanted_box;    /* index among the wanted boxes of the tensor */
    uint64_t wanted_offset; /* offset in that box; all of these are in bytes of stored elements */
    uint64_t bytes;
};

struct pd_plan_input {
    const struct pd_tensor_table *tensors;
    const struct pd_layout *stored, *wanted;
    enum pd_dtype moments;     /* as stored; the types in `tensors` are ignored */
    uint32_t kinds;            /* bit k: kind k is wanted */
    const bool *tensor_wanted; /* (tensors) or NULL: all */
    uint32_t rank;             /* rank to plan for: among the readers, and in the wanted layout */
    uint32_t readers;          /* ranks of the loading group */
    /* The next two may be NULL: every host can open every shard. */
    const uint32_t *reader_host; /* (readers) host of each, 0.. */
    const uint8_t *host_has;     /* (host_count, stored shards): 1 where the host can open the shard */
    uint32_t host_count;
    uint64_t window_bytes; /* a round of one reader; at least PD_SHARD_BLOCK_BYTES */
};

struct pd_plan_lines; /* the lines of boxes: plan.c */

struct pd_plan {
    struct pd_plan_input input; /* borrowed pointers */
    uint32_t shard_count;
    struct pd_plan_lines *lines;
    struct pd_read_item *items; /* (item_count) this rank's reads, by round and place in the window */
    uint64_t item_count;
    /* (coming_count) other ranks' reads that may hold something this rank wants: by round, reader, place in the window */
    struct pd_read_item *coming;
    uint64_t coming_count;
    uint32_t round_count; /* the same on every rank */
};

/*   memory  8 bytes a stored shard, 4 a tensor and a reader; an item for each read and each incoming piece
 *   errors  PD_NOT_FOUND: a shard no host can open, by number */
PD_MUST_USE pd_status pd_plan_new(const struct pd_plan_input *input, struct pd_plan **ret_plan, struct pd_error *err);
void pd_plan_free(struct pd_plan *plan);

/* Bytes of an element as stored. */
static inline uint32_t pd_plan_element_bytes(const struct pd_plan *plan, uint32_t tensor, enum pd_kind kind)
{
    return pd_dtype_bytes(kind == PD_PARAM ? plan->input.tensors->tensors[tensor].dtype : plan->input.moments);
}

/* Returns the ranks of the wanted layout that own something of the item, at most PD_LAYOUT_CHUNKS_MAX runs. */
uint32_t pd_plan_owners(const struct pd_plan *plan, const struct pd_read_item *item,
                        struct pd_owner_run ret_runs[PD_LAYOUT_CHUNKS_MAX]);
/* Calls visit for each run of `item` that `rank` of the wanted layout owns, in element order. */
void pd_plan_runs(const struct pd_plan *plan, const struct pd_read_item *item, uint32_t rank,
                  void (*visit)(void *context, const struct pd_transfer_run *run), void *context);
