/* Cuts optimizer state into extents for streaming through a ring. A group is a `param` box with its two moments, a part
 * is a range of a group's elements, an extent is the parts that share a slot. It only computes on boxes, so its memory
 * grows with the number of groups alone.
 *
 * Groups are cut at blocks. A block has as many elements as the narrowest kind has in 64 KiB, so that each kind is whole
 * blocks of its shard. With moments in bf16 a block is two of the parameter's and one of each moment's.
 *
 *   invariants  1. extents in turn cover every selected group's elements once; groups ascend, and elements within a group
 *               2. a part begins at a block; it ends at one too, or with its group
 *               3. an extent's bytes, each kind rounded up to pages, fit into a slot
 */
#pragma once

#include "ckpt/store/commit.h"
#include "offload/ring.h"

#define PD_OPTIMIZER_STREAMED_MIN (PD_SHARD_BLOCK_BYTES / sizeof(float)) /* elements: smaller groups stay in memory */
#define PD_OPTIMIZER_PARTS_MAX (PD_RING_PIECES_MAX / PD_KIND_COUNT)

struct pd_optimizer_group {
    uint32_t box[PD_KIND_COUNT];
    uint64_t elements;
    uint32_t unit;    /* pipeline unit of the tensor */
    uint64_t kept_at; /* offset of its three kinds in the kept memory, each page-aligned; or PD_OPTIMIZER_NOT_KEPT */
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
/* Bytes of that many elements: of one kind in whole pages, and of all kinds. */
uint64_t pd_optimizer_page_bytes(enum pd_dtype moments, int kind, uint64_t elements);
uint64_t pd_optimizer_all_page_bytes(enum pd_dtype moments, uint64_t elements);

/* PD_INVALID: a `param` box without both moments, or moments without it; or tensors that keep moments in different types. */
PD_MUST_USE pd_status pd_optimizer_groups_init(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                               uint32_t box_count, struct pd_optimizer_groups *ret_groups,
                                               struct pd_error *err);
void pd_optimizer_groups_deinit(struct pd_optimizer_groups *groups);
/* Assigns streamed groups to at most `bytes` of kept memory, whole groups, last first: the reads of the first ones start
 * before the update does, so they cost least. Returns the bytes assigned. */
uint64_t pd_optimizer_groups_keep(struct pd_optimizer_groups *groups, uint64_t bytes);

/* Groups of a pass. Groups whose parameters take less than 64 KiB are resident in memory. A kind below a page has no
 * pages of its own in a shard file; neither has a group if its parameters have none. */
enum pd_optimizer_select { PD_OPTIMIZER_STREAMED, PD_OPTIMIZER_RESIDENT_PAGES };
bool pd_optimizer_is_resident(const struct pd_optimizer_group *group);

struct pd_optimizer_part {
    uint32_t group;
    uint64_t first, n; /* elements */
};
struct pd_optimizer_cursor {
    const struct pd_optimizer_groups *groups;
    enum pd_optimizer_select select;
    uint64_t slot_bytes; /* at least a block of each kind */
    bool by_unit;        /* end extents at pipeline units */
    uint32_t group;
    uint64_t first; /* element of that group */
};
/* Returns the number of parts of the next extent, at most PD_OPTIMIZER_PARTS_MAX; 0 at the end. */
uint32_t pd_optimizer_cursor_next(struct pd_optimizer_cursor *cursor, struct pd_optimizer_part *ret_parts);
/* Returns the number of extents left. */
uint64_t pd_optimizer_cursor_count(struct pd_optimizer_cursor cursor);
