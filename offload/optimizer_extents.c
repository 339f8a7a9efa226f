#include "offload/optimizer_extents.h"

#include "ckpt/base/checked.h"

#include <stdlib.h>
#include <string.h>

/* Least blocks of a group that may start in the rest of a slot: smaller pieces are not worth a request. */
#define REST_BLOCKS_MIN 16u

uint64_t pd_optimizer_page_bytes(enum pd_dtype moments, int kind, uint64_t elements)
{
    return pd_round_up(elements * pd_optimizer_element_bytes(moments, kind), PD_VFS_ALIGN);
}

uint64_t pd_optimizer_all_page_bytes(enum pd_dtype moments, uint64_t elements)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        bytes += pd_optimizer_page_bytes(moments, kind, elements);
    return bytes;
}

/* ---- groups ---- */

/* Finds the box of that kind that covers the same elements as `boxes[param]`: after it, within the same tensor. */
static bool find_moment(const struct pd_shard_box *boxes, uint32_t box_count, uint32_t param, enum pd_kind kind,
                        uint32_t *ret_box)
{
    for (uint32_t b = param + 1; b < box_count && boxes[b].tensor == boxes[param].tensor; b++) {
        if (boxes[b].kind != kind || memcmp(&boxes[b].box, &boxes[param].box, sizeof boxes[b].box) != 0) continue;
        *ret_box = b;
        return true;
    }
    return false;
}

static pd_status find_groups(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes, uint32_t box_count,
                             struct pd_optimizer_groups *groups, struct pd_error *err)
{
    for (uint32_t b = 0; b < box_count; b++) {
        PD_CHECK(boxes[b].tensor < tensors->count);
        const struct pd_tensor *tensor = &tensors->tensors[boxes[b].tensor];
        if (tensor->dtype != PD_F32 || tensor->moments == PD_F16 || tensor->moments != groups->moments)
            PD_FAIL(err, PD_INVALID, "tensor %s: optimizer state is fp32, moments of all tensors are fp32 or bf16",
                    tensor->name);
        if (boxes[b].kind != PD_PARAM) continue;
        struct pd_optimizer_group *group = &groups->groups[groups->count++];
        *group = (struct pd_optimizer_group){.box = {b},
                                             .elements = pd_box_elements(&boxes[b].box),
                                             .unit = tensors->tensors[boxes[b].tensor].unit,
                                             .kept_at = PD_OPTIMIZER_NOT_KEPT};
        for (int kind = PD_PARAM + 1; kind < PD_KIND_COUNT; kind++)
            if (!find_moment(boxes, box_count, b, (enum pd_kind)kind, &group->box[kind]))
                PD_FAIL(err, PD_INVALID, "tensor %s: box %u has no %s", tensors->tensors[boxes[b].tensor].name, b,
                        pd_kind_name((enum pd_kind)kind));
    }
    if ((uint64_t)groups->count * PD_KIND_COUNT != box_count)
        PD_FAIL(err, PD_INVALID, "%u boxes are not three kinds of %u", box_count, groups->count);
    return PD_OK;
}

pd_status pd_optimizer_groups_init(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                   uint32_t box_count, struct pd_optimizer_groups *ret_groups, struct pd_error *err)
{
    struct pd_optimizer_groups groups = {.groups = calloc((size_t)box_count + 1, sizeof *groups.groups),
                                         .moments = tensors->count ? tensors->tensors[0].moments : PD_F32};
    if (!groups.groups) PD_FAIL(err, PD_NO_MEMORY, "no memory for the state of %u boxes", box_count);
    pd_status st = find_groups(tensors, boxes, box_count, &groups, err);
    if (st) {
        free(groups.groups);
        return st;
    }
    *ret_groups = groups;
    return PD_OK;
}

void pd_optimizer_groups_deinit(struct pd_optimizer_groups *groups)
{
    free(groups->groups);
    *groups = (struct pd_optimizer_groups){0};
}

bool pd_optimizer_is_resident(const struct pd_optimizer_group *group)
{
    return group->elements < PD_OPTIMIZER_STREAMED_MIN;
}

uint64_t pd_optimizer_groups_keep(struct pd_optimizer_groups *groups, uint64_t bytes)
{
    uint64_t used = 0;
    for (uint32_t g = groups->count; g-- > 0;) {
        struct pd_optimizer_group *group = &groups->groups[g];
        const uint64_t need = pd_optimizer_all_page_bytes(groups->moments, group->elements);
        if (pd_optimizer_is_resident(group) || need > bytes - used) continue;
        group->kept_at = used;
        used += need;
    }
    return used;
}

/* ---- extents ---- */

static bool is_selected(const struct pd_optimizer_cursor *c, const struct pd_optimizer_group *group)
{
    if (c->select == PD_OPTIMIZER_STREAMED) return !pd_optimizer_is_resident(group);
    return pd_optimizer_is_resident(group) && group->elements * sizeof(float) >= PD_VFS_ALIGN;
}

uint32_t pd_optimizer_cursor_next(struct pd_optimizer_cursor *c, struct pd_optimizer_part *ret_parts)
{
    const enum pd_dtype moments = c->groups->moments;
    const uint64_t block_elements = pd_optimizer_block_elements(moments),
                   block_bytes = pd_optimizer_all_page_bytes(moments, block_elements);
    uint32_t count = 0;
    uint64_t space = c->slot_bytes;
    PD_CHECK(space >= block_bytes);
    for (; c->group < c->groups->count && count < PD_OPTIMIZER_PARTS_MAX; c->group++, c->first = 0) {
        const struct pd_optimizer_group *group = &c->groups->groups[c->group];
        const uint64_t left = group->elements - c->first, bytes = pd_optimizer_all_page_bytes(moments, left);
        if (!is_selected(c, group) || !left) continue;
        if (c->by_unit && count > 0 && c->groups->groups[ret_parts[0].group].unit != group->unit) return count;
        if (bytes <= space) {
            space -= bytes;
            ret_parts[count++] = (struct pd_optimizer_part){c->group, c->first, left};
            continue;
        }
        const uint64_t blocks = space / block_bytes;
        if (count > 0 && blocks < REST_BLOCKS_MIN) return count;
        ret_parts[count++] = (struct pd_optimizer_part){c->group, c->first, blocks * block_elements};
        c->first += blocks * block_elements;
        return count;
    }
    return count;
}

uint64_t pd_optimizer_cursor_count(struct pd_optimizer_cursor cursor)
{
    struct pd_optimizer_part parts[PD_OPTIMIZER_PARTS_MAX];
    uint64_t count = 0;
    while (pd_optimizer_cursor_next(&cursor, parts) > 0)
        count++;
    return count;
}
