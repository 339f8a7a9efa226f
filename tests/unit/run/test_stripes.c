/* State on several drives: what the configuration takes, weights that are measured once, and how state is cut into extents:
 * every element once, nothing too large, and of several drives all of them all the time. */
#include "ckpt/base/log.h"
#include "offload/optimizer_extents.h"
#include "resharder/layout.h"
#include "trainer/run/stripes.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENSORS 12u
#define SLOT_BYTES (UINT64_C(3) << 20)

static uint64_t state = 77;

static uint64_t random_below(uint64_t bound)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % bound;
}

struct scene {
    struct pd_tensor tensors[TENSORS];
    struct pd_tensor_table table;
    struct pd_layout layout;
    struct pd_shard_box *boxes;
    uint32_t box_count, counts[PD_LAYOUT_STRIPES_MAX];
    struct pd_optimizer_groups groups;
    uint64_t *met; /* (groups) elements so far */
};

static void scene_init(struct scene *s, uint32_t stripes)
{
    memset(s, 0, sizeof *s);
    for (uint32_t t = 0; t < TENSORS; t++)
        s->tensors[t] = (struct pd_tensor){.ndim = 2,
                                           .shape = {1 + random_below(3000), 1 + random_below(700), 1, 1},
                                           .tp_dim = t % 3 == 0 ? 1 : -1,
                                           .tp_unit = 1,
                                           .unit = t / 3};
    s->table = (struct pd_tensor_table){s->tensors, TENSORS};
    pd_layout_init_dp(&s->layout, 1);
    s->layout.virtual_tp = 4; /* several boxes a tensor */
    s->layout.stripes = stripes;
    for (uint32_t i = 0; i < stripes; i++)
        s->layout.stripe_weight[i] = (uint16_t)(1 + random_below(9));
    cr_assert_eq(pd_layout_rank_boxes(&s->layout, &s->table, 0, &s->boxes, &s->box_count, s->counts, NULL), PD_OK);
    cr_assert_eq(
        pd_optimizer_groups_init(&s->table, s->boxes, s->box_count, pd_layout_stripes(&s->layout), &s->groups, NULL), PD_OK);
    s->met = calloc(s->groups.count + 1, sizeof *s->met);
}

static void scene_deinit(struct scene *s)
{
    pd_optimizer_groups_deinit(&s->groups);
    free(s->boxes);
    free(s->met);
}

static uint32_t bundle_of(const struct scene *s, uint32_t group)
{
    while (!s->groups.groups[group].bundle)
        group--;
    return group;
}

/* A bundle that an extent leaves unfinished gave from every group that had more than a block's share left. */
static void check_shares(const struct scene *s, const struct pd_optimizer_part *parts, uint32_t count)
{
    const uint32_t bundle = bundle_of(s, parts[count - 1].group);
    uint64_t left = 0, taken = 0;
    for (uint32_t k = 0; k < s->groups.groups[bundle].bundle; k++) {
        const struct pd_optimizer_group *group = &s->groups.groups[bundle + k];
        if (!pd_optimizer_is_resident(group)) left += group->elements - s->met[bundle + k];
    }
    if (!left) return;
    for (uint32_t p = 0; p < count; p++)
        if (bundle_of(s, parts[p].group) == bundle) taken += parts[p].n;
    for (uint32_t k = 0; k < s->groups.groups[bundle].bundle; k++) {
        const struct pd_optimizer_group *group = &s->groups.groups[bundle + k];
        if (pd_optimizer_is_resident(group)) continue;
        uint64_t mine = 0;
        for (uint32_t p = 0; p < count; p++)
            if (parts[p].group == bundle + k) mine += parts[p].n;
        const uint64_t before = group->elements - s->met[bundle + k] + mine;
        const double fair = (double)before * (double)taken / (double)(left + taken);
        const double two_blocks = 2.0 * (double)pd_optimizer_block_elements(PD_F32);
        cr_assert((double)mine + two_blocks > fair && (double)mine < fair + two_blocks,
                  "group %u gives %lu elements, fair are %.0f", bundle + k, mine, fair);
    }
}

static void check_extent(struct scene *s, const struct pd_optimizer_part *parts, uint32_t count, bool by_unit)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < count; p++) {
        const struct pd_optimizer_group *group = &s->groups.groups[parts[p].group];
        cr_assert(!pd_optimizer_is_resident(group));
        cr_assert_eq(parts[p].first, s->met[parts[p].group], "elements of a group ascend");
        cr_assert_eq(parts[p].first % pd_optimizer_block_elements(PD_F32), 0u);
        cr_assert(parts[p].n > 0);
        s->met[parts[p].group] += parts[p].n;
        cr_assert(s->met[parts[p].group] == group->elements || parts[p].n % pd_optimizer_block_elements(PD_F32) == 0);
        bytes += (parts[p].n * sizeof(float) + 4095) / 4096 * 4096 * PD_KIND_COUNT;
        if (p) cr_assert(bundle_of(s, parts[p].group) >= bundle_of(s, parts[p - 1].group));
        if (by_unit) cr_assert_eq(group->unit, s->groups.groups[parts[0].group].unit);
    }
    cr_assert_leq(bytes, SLOT_BYTES);
    check_shares(s, parts, count);
}

Test(stripes, every_element_once_from_all_drives_alike)
{
    for (uint32_t round = 0; round < 120; round++) {
        struct scene s;
        const uint32_t stripes = round % 6;
        scene_init(&s, stripes);
        struct pd_optimizer_cursor cursor = {
            .groups = &s.groups, .select = PD_OPTIMIZER_STREAMED, .slot_bytes = SLOT_BYTES, .by_unit = round % 2};
        struct pd_optimizer_part parts[PD_OPTIMIZER_PARTS_MAX];
        uint64_t extents = 0, expected = pd_optimizer_cursor_count(cursor);
        for (uint32_t count; (count = pd_optimizer_cursor_next(&cursor, parts)) > 0; extents++)
            check_extent(&s, parts, count, round % 2);
        cr_assert_eq(extents, expected);
        uint32_t largest = 0;
        for (uint32_t g = 0; g < s.groups.count; g++) {
            const struct pd_optimizer_group *group = &s.groups.groups[g];
            if (!pd_optimizer_is_resident(group)) cr_assert_eq(s.met[g], group->elements);
            if (group->bundle > largest) largest = group->bundle;
        }
        cr_assert_eq(largest, stripes < 2 ? 1u : stripes);
        scene_deinit(&s);
    }
}

/* ---- the configuration ---- */

static const char minimal[] = "run: {dir: r}\ndata: {train: [{path: x}]}\noffload: {optimizer: nvme}\n";

static pd_status parse(struct pd_config *config, const char *stripes, const char *weights, struct pd_error *err)
{
    char texts[2][200];
    const char *overrides[] = {texts[0], texts[1]};
    snprintf(texts[0], sizeof texts[0], "checkpoint.stripes=%s", stripes);
    snprintf(texts[1], sizeof texts[1], "checkpoint.stripe_weights=%s", weights);
    return pd_config_parse("test", minimal, overrides, 2, config, err);
}

Test(stripes, are_named_and_weighed)
{
    struct pd_config config;
    struct pd_error err = {0};
    struct pd_layout layout;
    char *yaml = NULL;
    cr_assert_eq(parse(&config, "[/a/x, /b y]", "3, 1,2", &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_stripes_count(&config), 3u);
    cr_assert_str_eq(config.checkpoint.stripes[0], "/a/x");
    cr_assert_str_eq(config.checkpoint.stripes[1], "/b y");
    pd_layout_init_dp(&layout, 2);
    pd_stripes_apply(&config, &layout);
    cr_assert(layout.stripes == 3 && layout.stripe_weight[0] == 3 && layout.stripe_weight[2] == 2);
    cr_assert_eq(pd_config_print(&config, &yaml, &err), PD_OK, "%s", err.message);
    pd_config_deinit(&config);
    cr_assert_eq(pd_config_parse("printed", yaml, NULL, 0, &config, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_stripes_count(&config), 3u);
    cr_assert_str_eq(config.checkpoint.stripes[1], "/b y");
    cr_assert_str_eq(config.checkpoint.stripe_weights, "3, 1,2");
    pd_config_deinit(&config);
    free(yaml);
    cr_assert_eq(parse(&config, "/a", "", &err), PD_OK, "%s", err.message);
    pd_stripes_apply(&config, &layout);
    cr_assert(layout.stripes == 2 && layout.stripe_weight[0] == 1 && layout.stripe_weight[1] == 1);
    pd_config_deinit(&config);
    cr_assert_eq(parse(&config, "[]", "", &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_stripes_count(&config), 1u);
    pd_config_deinit(&config);
}

Test(stripes, are_refused_in_a_sentence)
{
    static const struct {
        const char *stripes, *weights, *sentence;
    } rows[] = {
        {"/a,/b,/a", "", "checkpoint.stripes[0] and [2] are both /a"},
        {"/a", "1,2,3", "write 2 numbers from 1 to 65535"},
        {"/a", "1,0", "write 2 numbers from 1 to 65535"},
        {"/a", "1,x", "write 2 numbers from 1 to 65535"},
        {"1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "", "there may be at most 15"},
    };
    struct pd_config config;
    struct pd_error err = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(parse(&config, rows[i].stripes, rows[i].weights, &err), PD_INVALID, "%s", rows[i].stripes);
        cr_assert(strstr(err.message, rows[i].sentence), "%s", err.message);
    }
    const char *in_memory[] = {"checkpoint.stripes=/a", "offload.optimizer=device"};
    cr_assert_eq(pd_config_parse("test", minimal, in_memory, 2, &config, &err), PD_INVALID);
    cr_assert(strstr(err.message, "set offload.optimizer=nvme"), "%s", err.message);
}

/* ---- measuring ---- */

static pd_status settle(struct pd_vfs *vfs, const char *folder, const char *second, struct pd_layout *layout)
{
    struct pd_group group;
    struct pd_config config;
    struct pd_error err = {0};
    char dir[200], stripes[200];
    const char *overrides[] = {dir, stripes};
    snprintf(dir, sizeof dir, "checkpoint.dir=%s", folder);
    snprintf(stripes, sizeof stripes, "checkpoint.stripes=%s/%s", folder, second);
    pd_group_init_single(&group);
    cr_assert_eq(pd_config_parse("test", minimal, overrides, 2, &config, &err), PD_OK, "%s", err.message);
    pd_layout_init_dp(layout, 1);
    pd_status st = pd_stripes_settle(vfs, &group, &config, layout, &err);
    pd_config_deinit(&config);
    return st;
}

/* What was measured stays: a restart must not reshard everything because a drive was busy. Another drive is measured. */
Test(stripes, are_measured_once)
{
    char folder[] = "/tmp/perdure-stripes-XXXXXX", path[200], text[400] = "";
    struct pd_vfs *vfs;
    struct pd_layout layout;
    cr_assert_eq(pd_log_configure("error", NULL), PD_OK);
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(pd_vfs_new_auto(&vfs, NULL), PD_OK);
    cr_assert_eq(settle(vfs, folder, "absent", &layout), PD_NOT_FOUND);
    snprintf(path, sizeof path, "%s/second", folder);
    cr_assert_eq(pd_vfs_mkdir(vfs, path, NULL), PD_OK);
    cr_assert_eq(settle(vfs, folder, "second", &layout), PD_OK);
    cr_assert_eq(layout.stripes, 2u);
    for (int s = 0; s < 2; s++)
        cr_assert(layout.stripe_weight[s] >= 1 && layout.stripe_weight[s] <= PD_STRIPES_WEIGHT_MAX);
    cr_assert(layout.stripe_weight[0] == PD_STRIPES_WEIGHT_MAX || layout.stripe_weight[1] == PD_STRIPES_WEIGHT_MAX);
    snprintf(path, sizeof path, "%s/stripe-weights", folder);
    FILE *file = fopen(path, "we");
    cr_assert(file && fprintf(file, "5 %s\n7 %s/second\n", folder, folder) > 0 && !fclose(file));
    cr_assert_eq(settle(vfs, folder, "second", &layout), PD_OK);
    cr_assert(layout.stripe_weight[0] == 5 && layout.stripe_weight[1] == 7, "taken from the file");
    snprintf(path, sizeof path, "%s/third", folder);
    cr_assert_eq(pd_vfs_mkdir(vfs, path, NULL), PD_OK);
    cr_assert_eq(settle(vfs, folder, "third", &layout), PD_OK);
    snprintf(path, sizeof path, "%s/stripe-weights", folder);
    file = fopen(path, "re");
    cr_assert(file && fread(text, 1, sizeof text - 1, file) > 0 && !fclose(file));
    cr_assert(strstr(text, "/third\n") && !strstr(text, "/second\n"), "%s", text);
    pd_vfs_free(vfs);
    snprintf(path, sizeof path, "rm -rf %s", folder);
    cr_assert_eq(system(path), 0);
}
