#include "offload/optimizer_extents.h"

#include "ckpt/base/checked.h"

#include <stdlib.h>
#include <string.h>

/* What is left of a slot is filled with the beginning of a group only where that makes pieces worth a request. */
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

/* The box of that kind which covers what `boxes[param]` covers: behind it, among those of the same tensor. */
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

static int by_chunk(const struct pd_shard_box *a, const struct pd_shard_box *b)
{
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    return a->box.start[1] < b->box.start[1] ? -1 : a->box.start[1] > b->box.start[1];
}

static int group_order(const void *left, const void *right, void *context)
{
    const struct pd_optimizer_group *a = left, *b = right;
    const struct pd_shard_box *boxes = context;
    const int order = by_chunk(&boxes[a->box[PD_PARAM]], &boxes[b->box[PD_PARAM]]);
    return order ? order : a->box[PD_PARAM] < b->box[PD_PARAM] ? -1 : 1;
}

static void bundle_groups(const struct pd_shard_box *boxes, uint32_t stripes, struct pd_optimizer_groups *groups)
{
    struct pd_optimizer_group *g = groups->groups;
    for (uint32_t i = 0; i < groups->count; i++)
        g[i].bundle = 1;
    if (stripes < 2) return;
    qsort_r(g, groups->count, sizeof *g, group_order, (void *)(uintptr_t)boxes);
    for (uint32_t begin = 0, end; begin < groups->count; begin = end) {
        for (end = begin + 1; end < groups->count && end - begin < stripes; end++) {
            if (by_chunk(&boxes[g[begin].box[PD_PARAM]], &boxes[g[end].box[PD_PARAM]])) break;
            g[end].bundle = 0;
        }
        g[begin].bundle = end - begin;
    }
}

pd_status pd_optimizer_groups_init(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                   uint32_t box_count, uint32_t stripes, struct pd_optimizer_groups *ret_groups,
                                   struct pd_error *err)
{
    struct pd_optimizer_groups groups = {.groups = calloc((size_t)box_count + 1, sizeof *groups.groups),
                                         .moments = tensors->count ? tensors->tensors[0].moments : PD_F32};
    if (!groups.groups) PD_FAIL(err, PD_NO_MEMORY, "no memory for the state of %u boxes", box_count);
    pd_status st = find_groups(tensors, boxes, box_count, &groups, err);
    if (st) {
        free(groups.groups);
        return st;
    }
    bundle_groups(boxes, stripes, &groups);
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
    for (uint32_t end = groups->count, g; end > 0; end = g) {
        uint64_t need = 0;
        for (g = end - 1; !groups->groups[g].bundle;)
            g--;
        for (uint32_t i = g; i < end; i++)
            if (!pd_optimizer_is_resident(&groups->groups[i]))
                need += pd_optimizer_all_page_bytes(groups->moments, groups->groups[i].elements);
        if (need > bytes - used) continue;
        for (uint32_t i = g; i < end; i++) {
            if (pd_optimizer_is_resident(&groups->groups[i])) continue;
            groups->groups[i].kept_at = used;
            used += pd_optimizer_all_page_bytes(groups->moments, groups->groups[i].elements);
        }
    }
    return used;
}

/* ---- extents ---- */

static bool is_selected(const struct pd_optimizer_cursor *c, const struct pd_optimizer_group *group)
{
    if (c->select == PD_OPTIMIZER_STREAMED) return !pd_optimizer_is_resident(group);
    return pd_optimizer_is_resident(group) && group->elements * sizeof(float) >= PD_VFS_ALIGN;
}

/* What is left of a bundle. */
struct rest {
    uint64_t elements[PD_LAYOUT_STRIPES_MAX]; /* of its groups; 0: done, or not selected */
    uint64_t blocks, bytes;                   /* bytes: of all kinds, in whole pages */
    uint32_t groups;                          /* that have any */
};

static struct rest rest_of(const struct pd_optimizer_cursor *c)
{
    const struct pd_optimizer_group *groups = &c->groups->groups[c->group];
    const enum pd_dtype moments = c->groups->moments;
    struct rest rest = {.blocks = 0};
    for (uint32_t k = 0; k < groups->bundle; k++) {
        if (!is_selected(c, &groups[k]) || c->first[k] == groups[k].elements) continue;
        rest.elements[k] = groups[k].elements - c->first[k];
        rest.blocks += pd_divide_up(rest.elements[k], pd_optimizer_block_elements(moments));
        rest.bytes += pd_optimizer_all_page_bytes(moments, rest.elements[k]);
        rest.groups++;
    }
    return rest;
}

/* Cuts the rest down to `blocks`, fewer than it has, in proportion: of the groups up to each, as much as is their share. */
static void share(struct rest *rest, uint64_t blocks, uint64_t block_elements, uint32_t bundle)
{
    uint64_t before = 0, given = 0;
    for (uint32_t k = 0; k < bundle; k++) {
        const uint64_t have = pd_divide_up(rest->elements[k], block_elements);
        before += have;
        const uint64_t get = before * blocks / rest->blocks - given; /* at most `have` */
        if (get < have) rest->elements[k] = get * block_elements;
        given += get;
    }
}

static uint32_t take(struct pd_optimizer_cursor *c, const struct rest *rest, struct pd_optimizer_part *ret_parts)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < c->groups->groups[c->group].bundle; k++) {
        if (!rest->elements[k]) continue;
        ret_parts[count++] = (struct pd_optimizer_part){c->group + k, c->first[k], rest->elements[k]};
        c->first[k] += rest->elements[k];
    }
    return count;
}

static void next_bundle(struct pd_optimizer_cursor *c)
{
    c->group += c->groups->groups[c->group].bundle;
    memset(c->first, 0, sizeof c->first);
}

uint32_t pd_optimizer_cursor_next(struct pd_optimizer_cursor *c, struct pd_optimizer_part *ret_parts)
{
    const uint64_t block_elements = pd_optimizer_block_elements(c->groups->moments),
                   block_bytes = pd_optimizer_all_page_bytes(c->groups->moments, block_elements);
    uint32_t count = 0;
    uint64_t room = c->slot_bytes;
    PD_CHECK(room >= block_bytes);
    for (; c->group < c->groups->count && count < PD_OPTIMIZER_PARTS_MAX; next_bundle(c)) {
        const struct pd_optimizer_group *group = &c->groups->groups[c->group];
        struct rest rest = rest_of(c);
        if (!rest.groups) continue;
        if (c->by_unit && count > 0 && c->groups->groups[ret_parts[0].group].unit != group->unit) return count;
        if (count + rest.groups > PD_OPTIMIZER_PARTS_MAX) return count;
        if (rest.bytes <= room) {
            room -= rest.bytes;
            count += take(c, &rest, ret_parts + count);
            continue;
        }
        const uint64_t blocks = room / block_bytes;
        if (count > 0 && blocks < REST_BLOCKS_MIN) return count;
        share(&rest, blocks, block_elements, group->bundle);
        return count + take(c, &rest, ret_parts + count);
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
