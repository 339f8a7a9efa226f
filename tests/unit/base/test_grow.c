#include "ckpt/base/grow.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdlib.h>

/* Each item finds room and the ones before it stay, also when some have been taken away in between. */
Test(grow, there_is_room_for_one_more)
{
    uint32_t *items = NULL, count = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        cr_assert(pd_grow(&items, count, sizeof *items));
        cr_assert_geq(malloc_usable_size(items), (count + 1) * sizeof *items);
        items[count] = count;
        count++;
        if (i % 7 == 0) count -= count / 3;
    }
    for (uint32_t i = 0; i < count; i++)
        cr_assert_eq(items[i], i);
    free(items);
}

Test(grow, what_no_memory_can_hold_is_refused_and_all_stays)
{
    char *items = NULL, *before;
    cr_assert(pd_grow(&items, 0, 1));
    before = items;
    cr_assert_not(pd_grow(&items, UINT64_C(1) << 62, 16));
    cr_assert_eq(items, before);
    free(items);
}
