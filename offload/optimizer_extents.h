/* How optimizer state is cut for its way through a ring: a group is a `param` box with its two moments, a part is a range of
 * a group's elements, an extent is the parts that share a slot. Arithmetic on boxes alone, so that nothing grows with the
 * state but the groups.
 *
 * Groups are cut at blocks: as many elements as the narrowest kind has in 64 KiB, so that every kind is whole blocks of its
 * shard. With moments in bf16 that is two of the parameter and one of each moment.
 *
 *   invariants  1. extents in turn cover every element of every group asked for once; groups ascend, and elements of a
 *                  group
 *               2. a part begins at a block; it ends at one too, or with its group
 *               3. an extent's bytes, each kind rounded up to pages, fit into a slot
 */
#pragma once

#include "ckpt/store/commit.h"
#include "offload/ring.h"

#define PD_OPTIMIZER_STREAMED_MIN (PD_SHARD_BLOCK_BYTES / sizeof(float)) /* elements: smaller groups live in memory */
#define PD_OPTIMIZER_PARTS_MAX (PD_RING_PIECES_MAX / PD_KIND_COUNT)

struct pd_optimizer_group {
    uint32_t box[PD_KIND_COUNT];
    uint64_t elements;
    uint32_t unit;    /* pipeline unit of the tensor */
    uint64_t kept_at; /* its three kinds lie there in memory that is kept, each at a page; PD_OPTIMIZER_NOT_KEPT */
};
#define PD_OPTIMIZER_NOT_KEPT UINT64_MAX
struct pd_optimizer_groups {
    struct pd_optimizer_group *groups; /* (count), in the order of their `param` boxes; owned */
    uint32_t count;
    enum pd_dtype moments;
};
static inline uint32_t pd_optimizer_element_bytes(enum pd_dtype moments, int kind)
{
    return pd_dtype_bytes(kind == PD_PARAM ? PD_F32 : moments);
}
static inline uint64_t pd_optimizer_block_elements(enum pd_dtype moments)
{
    return PD_SHARD_BLOCK_BYTES / pd_dtype_bytes(moments);
}
/* Of so many elements: of a kind in whole pages, and of all kinds. */
uint64_t pd_optimizer_page_bytes(enum pd_dtype moments, int kind, uint64_t elements);
uint64_t pd_optimizer_all_page_bytes(enum pd_dtype moments, uint64_t elements);

/* PD_INVALID: a `param` box whose moments are not there alike, or the other way round; tensors that keep them
 * otherwise than the first does. */
PD_MUST_USE pd_status pd_optimizer_groups_init(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                               uint32_t box_count, struct pd_optimizer_groups *ret_groups,
                                               struct pd_error *err);
void pd_optimizer_groups_deinit(struct pd_optimizer_groups *groups);
/* Gives the streamed groups a place in memory that is kept, of at most `bytes`, whole groups and the last first:
 * what an update begins with is on its way before it begins. Returns the bytes given out. */
uint64_t pd_optimizer_groups_keep(struct pd_optimizer_groups *groups, uint64_t bytes);

/* Which groups a pass goes through. Those whose parameters have less than 64 KiB live in memory; a kind of less than a page
 * has no pages of its own in a shard file, and a group none where its parameters have none. */
enum pd_optimizer_select { PD_OPTIMIZER_STREAMED, PD_OPTIMIZER_RESIDENT_PAGES };
bool pd_optimizer_is_resident(const struct pd_optimizer_group *group);

struct pd_optimizer_part {
    uint32_t group;
    uint64_t first, n; /* elements */
};
struct pd_optimizer_cursor {
    const struct pd_optimizer_groups *groups;
    enum pd_optimizer_select select;
    uint64_t slot_bytes; /* at least a block a kind */
    bool by_unit;        /* an extent ends with its pipeline unit */
    uint32_t group;
    uint64_t first; /* of its elements */
};
/* Parts of the next extent, at most PD_OPTIMIZER_PARTS_MAX; 0: there is none. */
uint32_t pd_optimizer_cursor_next(struct pd_optimizer_cursor *cursor, struct pd_optimizer_part *ret_parts);
/* Extents from where the cursor stands. */
uint64_t pd_optimizer_cursor_count(struct pd_optimizer_cursor cursor);
