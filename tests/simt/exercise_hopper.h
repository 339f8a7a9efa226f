/* A kernel of compute capability 9.0 that does right, or breaks one rule. */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/math/operations.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum exercise_hopper {
    HOPPER_RIGHT,
    HOPPER_NO_PRODUCT_WAIT,
    HOPPER_NO_BEGIN,
    HOPPER_NO_COPY_WAIT,
    HOPPER_NO_INIT,
    HOPPER_NO_ARRIVAL,
    HOPPER_OTHER_PRODUCTS,
    HOPPER_OVERWRITES,
    HOPPER_NO_FENCE,
    HOPPER_NO_FENCE_BEFORE_COPY,
    HOPPER_COMES_ALONE
};

/* a (a_rows, 64), b (64, 128) of bf16; c (64, 128) = a b, d (64, 64) = a a^T, rows of a beyond a_rows zeros. */
pd_status exercise_hopper(enum exercise_hopper how, const uint16_t *a, uint32_t a_rows, const uint16_t *b, float *c,
                          float *d, struct pd_error *err);

/* Which of a grid's items is whose: sequence, head, tile; `of` an enum pd_attention_items. */
struct exercise_item {
    uint32_t sequence, head, tile;
};
void exercise_item_of(const struct pd_attention *resolved, uint64_t item, uint32_t tiles, int of,
                      struct exercise_item *ret_item);

/* A map of an array (sequences, rows, columns), rows ld elements apart, that nobody reads. */
pd_status exercise_map(uint64_t columns, uint64_t ld, uint64_t rows, uint64_t sequences, struct pd_error *err);

/* How often each item comes to one of the blocks. */
pd_status exercise_queue(uint32_t *begun, uint32_t items, uint32_t blocks, uint32_t *counts, struct pd_error *err);

#ifdef __cplusplus
}
#endif
