/* Products of a warpgroup, boxes and barriers as the host emulates them: right, and with one rule broken. */
#include "ckpt/base/half.h"
#include "tests/simt/exercise_hopper.h"
#include "tests/simt/simt_order.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define A_ROWS 50u

static const uint64_t orders[] = {0, 1, 12345};

static struct operands {
    uint16_t a[64 * 64], b[64 * 128];
    float c[64 * 128], d[64 * 64];
} operands __attribute__((aligned(64)));

static struct operands *operands_new(void)
{
    uint32_t state = 7;
    memset(&operands, 0xff, sizeof operands);
    for (size_t i = 0; i < 64 * 64 + 64 * 128; i++) {
        state = state * 1664525u + 1013904223u;
        const uint16_t x = pd_bf16_from_f32((float)(int32_t)state * 0x1p-31f);
        if (i < 64 * 64)
            operands.a[i] = x;
        else
            operands.b[i - 64 * 64] = x;
    }
    return &operands;
}

static double a_at(const struct operands *o, size_t row, size_t k)
{
    return row < A_ROWS ? (double)pd_f32_from_bf16(o->a[row * 64 + k]) : 0;
}

/* The largest difference from float64. */
static double worst(const struct operands *o)
{
    double most = 0;
    for (size_t r = 0; r < 64; r++)
        for (size_t n = 0; n < 192; n++) {
            double want = 0;
            for (size_t k = 0; k < 64; k++)
                want += a_at(o, r, k) * (n < 128 ? (double)pd_f32_from_bf16(o->b[k * 128 + n]) : a_at(o, n - 128, k));
            const double difference = fabs((double)(n < 128 ? o->c[r * 128 + n] : o->d[r * 64 + n - 128]) - want);
            if (!(difference <= most)) most = difference;
        }
    return most;
}

Test(hopper, products_of_tiles_agree_with_float64)
{
    for (size_t i = 0; i < 3; i++) {
        struct operands *o = operands_new();
        struct pd_error err = {0};
        simt_set_order(orders[i]);
        cr_assert_eq(exercise_hopper(HOPPER_RIGHT, o->a, A_ROWS, o->b, o->c, o->d, &err), PD_OK, "%s", err.message);
        const double difference = worst(o);
        cr_assert(difference < 1e-5, "off by %g", difference);
    }
}

static const struct broken {
    enum exercise_hopper how;
    const char *said;
} broken[] = {
    {HOPPER_NO_PRODUCT_WAIT, "returns with products on their way"},
    {HOPPER_NO_BEGIN, "no pd_wgmma_fence"},
    {HOPPER_NO_COPY_WAIT, "a copy into shared memory that nobody waited for"},
    {HOPPER_NO_INIT, "was not initialised"},
    {HOPPER_NO_ARRIVAL, "waits for a phase of a barrier, and nobody can continue"},
    {HOPPER_OTHER_PRODUCTS, "other products than the first thread of its warpgroup"},
    {HOPPER_NO_FENCE, "a product reads what ordinary stores wrote"},
    {HOPPER_NO_FENCE_BEFORE_COPY, "copies a box over what ordinary stores wrote"},
    {HOPPER_COMES_ALONE, "a numbered barrier that nobody else came to"},
};

Test(hopper, a_broken_rule_is_named)
{
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        for (size_t j = 0; j < 3; j++) {
            struct operands *o = operands_new();
            struct pd_error err = {0};
            simt_set_order(orders[j]);
            cr_assert_neq(exercise_hopper(broken[i].how, o->a, A_ROWS, o->b, o->c, o->d, &err), PD_OK, "case %zu", i);
            cr_assert(strstr(err.message, broken[i].said), "no \"%s\" in: %s", broken[i].said, err.message);
        }
}

/* CUDA Driver API, cuTensorMapEncodeTiled: sides of 1 to 2^32, strides of multiples of 16 bytes below 2^40. */
Test(hopper, a_map_is_of_what_a_device_takes)
{
    const uint64_t many = (UINT64_C(1) << 32) + 1;
    static const struct {
        uint64_t columns, ld, rows, sequences;
    } wrong[] = {{0, 8, 1, 1}, {8, 8, 0, 1}, {8, 8, 1, 0}, {16, 8, 1, 1}, {8, 12, 1, 1}, {8, 8, UINT64_C(1) << 36, 1}};
    struct pd_error err = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_eq(exercise_map(wrong[i].columns, wrong[i].ld, wrong[i].rows, wrong[i].sequences, &err), PD_BUG, "%zu", i);
    cr_assert_eq(exercise_map(8, 8, many, 1, &err), PD_BUG);
    cr_assert_eq(exercise_map(5120, 7168, 8192, 8, &err), PD_OK, "%s", err.message);
    cr_assert_eq(exercise_map(8, 8, UINT64_C(1) << 32, 1, &err), PD_OK, "%s", err.message);
}

Test(hopper, a_tile_that_changes_before_the_wait_shows)
{
    struct operands *o = operands_new();
    struct pd_error err = {0};
    cr_assert_eq(exercise_hopper(HOPPER_OVERWRITES, o->a, A_ROWS, o->b, o->c, o->d, &err), PD_OK, "%s", err.message);
    cr_assert(worst(o) > 1e-3);
}

/* Keys and values of a key-value head of 16,384 positions are 8 MiB: of 24 MiB three times its two heads are together. Four
 * heads have the 396 tiles of keys that are to be together. */
Test(hopper, every_tile_is_one_item_and_some_heads_come_together)
{
    const struct pd_attention a = {.sequences = 2,
                                   .length = 16384,
                                   .key_length = 16384,
                                   .heads = 10,
                                   .kv_heads = 5,
                                   .group = 2,
                                   .head_size = 128,
                                   .dtype = PD_BF16};
    static const uint32_t together_of[] = {6, 4};
    for (int of = 0; of < 2; of++) {
        const uint32_t tiles = 128, heads = a.heads, all = 2 * heads, together = together_of[of];
        bool seen[20][128] = {{false}};
        for (uint64_t i = 0; i < (uint64_t)all * tiles; i++) {
            struct exercise_item item;
            exercise_item_of(&a, i, tiles, of, &item);
            const uint32_t which = item.sequence * heads + item.head;
            cr_assert(item.sequence < 2 && item.head < heads && item.tile < tiles && !seen[which][item.tile]);
            seen[which][item.tile] = true;
            cr_assert_eq(which / together, i / tiles / together, "item %zu is of head %u", (size_t)i, which);
            if (i == 0) cr_assert_eq(item.tile, of ? 0 : tiles - 1, "long work first");
        }
    }
}

/* Launch after launch, with whatever each block gets. */
Test(hopper, every_item_comes_to_one_block_once_and_the_counter_is_left_as_it_was)
{
    uint32_t begun = 0;
    for (uint32_t blocks = 1; blocks < 9; blocks++)
        for (uint32_t items = blocks; items < 60; items++) {
            struct pd_error err = {0};
            uint32_t counts[60] = {0};
            simt_set_order(items % 7);
            cr_assert_eq(exercise_queue(&begun, items, blocks, counts, &err), PD_OK, "%s", err.message);
            cr_assert_eq(begun, 0, "%u items, %u blocks", items, blocks);
            for (uint32_t item = 0; item < 60; item++)
                cr_assert_eq(counts[item], item < items, "item %u of %u", item, items);
        }
    simt_set_order(0);
}
