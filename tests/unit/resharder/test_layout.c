/* Boxes of a layout cover every tensor exactly once, for random shapes and degrees. */
#include "resharder/layout.h"

#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 1;
static uint64_t random_below(uint64_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (random_state >> 33) % n;
}

static struct pd_tensor random_tensor(uint32_t units)
{
    struct pd_tensor t = {.ndim = 1 + (uint32_t)random_below(2), .dtype = PD_F32, .unit = (uint32_t)random_below(units)};
    static const uint64_t unit_sizes[] = {1, 4, 16};
    t.tp_unit = unit_sizes[random_below(3)];
    for (uint32_t i = 0; i < PD_TENSOR_DIMS_MAX; i++)
        t.shape[i] = 1;
    t.shape[0] = 1 + random_below(300);
    if (t.ndim == 2) t.shape[1] = 1 + random_below(70);
    t.tp_dim = (int32_t)random_below(t.ndim + 1) - 1;
    if (t.tp_dim >= 0) t.shape[t.tp_dim] = t.tp_unit * (1 + random_below(20));
    if (random_below(2)) t.expert = 1 + (uint32_t)random_below(9);
    snprintf(t.name, sizeof t.name, "t");
    return t;
}

static struct pd_layout random_layout(uint32_t units)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, 1 + (uint32_t)random_below(5));
    l.virtual_tp = 1u << random_below(4);
    l.tp = 1u << random_below(1 + (uint64_t)__builtin_ctz(l.virtual_tp));
    l.virtual_sp = 1u << random_below(3);
    l.sp = 1u << random_below(1 + (uint64_t)__builtin_ctz(l.virtual_sp));
    l.zero_shard = 1 + (uint32_t)random_below(l.dp * l.sp);
    do
        l.ep = 1 + (uint32_t)random_below(l.zero_shard);
    while (l.zero_shard % l.ep);
    l.small_bytes = random_below(2) ? 0 : 4096;
    l.interleave = 1 + (uint32_t)random_below(2);
    l.pp = 1 + (uint32_t)random_below(3);
    l.stage_count = l.pp * l.interleave;
    for (uint32_t s = 0; s < l.stage_count; s++)
        l.first_unit[s] = (uint16_t)(s * units / l.stage_count);
    return l;
}

Test(layout, covers_every_element_once)
{
    for (int round = 0; round < 3000; round++) {
        struct pd_tensor t = random_tensor(8);
        struct pd_layout l = random_layout(8);
        cr_assert_eq(pd_layout_check(&l, NULL), PD_OK);
        uint64_t columns = t.shape[1];
        uint8_t *seen = calloc(t.shape[0], columns);
        uint32_t index = (uint32_t)random_below(100);
        for (uint32_t r = 0; r < pd_layout_world(&l); r++) {
            struct pd_box boxes[64];
            uint32_t count = pd_layout_owned_boxes(&l, &t, index, r, boxes, 64);
            cr_assert_leq(count, 64u);
            const struct pd_rank_place place = pd_layout_place(&l, r);
            if (count && t.expert) cr_assert_eq((place.dp * l.sp + place.sp) % l.ep, (t.expert - 1) % l.ep);
            for (uint32_t b = 0; b < count; b++)
                for (uint64_t i = 0; i < boxes[b].count[0]; i++)
                    for (uint64_t j = 0; j < boxes[b].count[1]; j++)
                        seen[(boxes[b].start[0] + i) * columns + boxes[b].start[1] + j]++;
        }
        for (uint64_t i = 0; i < t.shape[0] * columns; i++)
            cr_assert_eq(seen[i], 1, "round %d element %lu owned %u times", round, i, seen[i]);
        free(seen);
    }
}

Test(layout, rank_and_place_are_inverse)
{
    for (int round = 0; round < 200; round++) {
        struct pd_layout l = random_layout(8);
        for (uint32_t r = 0; r < pd_layout_world(&l); r++)
            cr_assert_eq(pd_layout_rank(&l, pd_layout_place(&l, r)), r);
    }
}

Test(layout, small_tensors_have_one_owner_in_turn)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, 3);
    struct pd_tensor t = {.ndim = 1, .shape = {100, 1, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    for (uint32_t index = 0; index < 6; index++)
        for (uint32_t r = 0; r < 3; r++)
            cr_assert_eq(pd_layout_owned_boxes(&l, &t, index, r, NULL, 0), r == index % 3 ? 1u : 0u);
}

static void check_refused(const struct pd_layout *layout, const char *says)
{
    struct pd_error err = {0};
    cr_assert_eq(pd_layout_check(layout, &err), PD_INVALID, "not refused with \"%s\"", says);
    cr_assert(strstr(err.message, says), "%s", err.message);
}

/* Two data-parallel ranks, and one number that does not do. */
Test(layout, refusals_name_what_is_admitted)
{
#define FIELD(name) offsetof(struct pd_layout, name)
    static const struct {
        size_t field;
        uint32_t value;
        const char *says;
    } cases[] = {
        {FIELD(dp), 0, "dp is 0 and must be between 1 and 65536"},
        {FIELD(tp), 65537, "tp is 65537 and must be between 1 and 65536"},
        {FIELD(tp), 3, "tp 3 does not divide virtual_tp 1; the nearest admitted tp is 1"},
        {FIELD(sp), 65536, "sp 65536 does not divide virtual_sp 1; the nearest admitted sp is 1"},
        {FIELD(virtual_tp), 3, "virtual_tp is 3 and must be a power of two up to 256"},
        {FIELD(virtual_tp), 0, "virtual_tp is 0 and must be a power of two up to 256"},
        {FIELD(virtual_tp), 512, "virtual_tp is 512 and must be a power of two up to 256"},
        {FIELD(virtual_sp), 6, "virtual_sp is 6 and must be a power of two up to 256"},
        {FIELD(virtual_sp), 1024, "virtual_sp is 1024 and must be a power of two up to 256"},
        {FIELD(zero_shard), 0, "zero_shard is 0 and must be between 1 and dp*sp = 2"},
        {FIELD(zero_shard), 3, "zero_shard is 3 and must be between 1 and dp*sp = 2"},
        {FIELD(zero_stage), 4, "zero_stage is 4 and must be between 0 and 3"},
        {FIELD(interleave), 0, "pp 1 x interleave 0 gives 1 stages and must give between 1 and 256"},
        {FIELD(interleave), 2, "pp 1 x interleave 2 gives 1 stages and must give between 1 and 256"},
    };
    struct pd_layout l;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pd_layout_init_dp(&l, 2);
        memcpy((char *)&l + cases[i].field, &cases[i].value, sizeof cases[i].value);
        check_refused(&l, cases[i].says);
    }
    pd_layout_init_dp(&l, 65536);
    l.pp = 32;
    check_refused(&l, "more than 1048576 ranks; lower pp");
    pd_layout_init_dp(&l, 2);
    l.virtual_tp = 4;
    l.tp = 3;
    check_refused(&l, "the nearest admitted tp is 2");
    pd_layout_init_dp(&l, 2);
    l.pp = l.stage_count = 257;
    check_refused(&l, "gives 257 stages and must give between 1 and 256");
    l.pp = l.stage_count = 3;
    l.first_unit[1] = 4;
    l.first_unit[2] = 4;
    check_refused(&l, "stage 2 starts at unit 4; stages start at 0 and ascend");
    l.first_unit[0] = 1;
    check_refused(&l, "stage 0 starts at unit 1; stages start at 0 and ascend");
    l.first_unit[0] = 0;
    l.first_unit[2] = 5;
    cr_assert_eq(pd_layout_check(&l, NULL), PD_OK);
}
