/* Lanes by walking them: every micro-batch is in one lane and on one rank, lanes are whole on a rank, and nobody has more than a
 * lane more than others. */
#include "trainer/parallel/lanes.h"

#include <criterion/criterion.h>

static void walk(struct pd_lanes l)
{
    uint32_t next = 0, most = 0, begun = 0, longest = 0, length = 0, lanes_most = 0, lanes_least = l.count;
    for (uint32_t rank = 0; rank < l.ranks; rank++) {
        uint32_t slot = 0;
        const uint32_t before = begun;
        cr_assert_eq(pd_lanes_first(&l, rank), next, "V %u L %u d %u rank %u", l.micro_batches, l.count, l.ranks, rank);
        for (; !pd_lanes_is_padding(&l, rank, slot); slot++, next++) {
            if (pd_lanes_begins(&l, rank, slot)) begun++, length = 0;
            cr_assert(slot || pd_lanes_begins(&l, rank, slot));
            length++;
            cr_assert(!pd_lanes_ends(&l, rank, slot) || pd_lanes_any_ends(&l, slot));
            longest = length > longest ? length : longest;
        }
        cr_assert(!slot || pd_lanes_ends(&l, rank, slot - 1));
        most = slot > most ? slot : most;
        lanes_most = begun - before > lanes_most ? begun - before : lanes_most;
        lanes_least = begun - before < lanes_least ? begun - before : lanes_least;
    }
    cr_assert_eq(next, l.micro_batches);
    cr_assert_eq(begun, l.count);
    cr_assert_eq(most, pd_lanes_slots(&l));
    cr_assert_eq(longest, pd_lanes_longest(&l));
    cr_assert_leq(lanes_most - lanes_least, 1);
    cr_assert(most == 0 || pd_lanes_any_ends(&l, most - 1));
}

Test(lanes, cover_a_step)
{
    for (uint32_t micro_batches = 1; micro_batches <= 24; micro_batches++)
        for (uint32_t lanes = 1; lanes <= micro_batches; lanes++)
            for (uint32_t ranks = 1; ranks <= lanes + 2; ranks++) /* a validation may have fewer than ranks */
                walk((struct pd_lanes){micro_batches, lanes, ranks});
}

/* The first micro-batch of a lane depends on nothing but V and L. */
Test(lanes, are_the_same_for_all_ranks)
{
    for (uint32_t lanes = 1; lanes <= 17; lanes++)
        for (uint32_t ranks = 2; ranks <= lanes; ranks++) {
            const struct pd_lanes one = {17, lanes, 1}, many = {17, lanes, ranks};
            for (uint32_t rank = 0; rank < ranks; rank++)
                for (uint32_t slot = 0; !pd_lanes_is_padding(&many, rank, slot); slot++)
                    cr_assert_eq(pd_lanes_begins(&many, rank, slot),
                                 pd_lanes_begins(&one, 0, pd_lanes_first(&many, rank) + slot));
        }
}
