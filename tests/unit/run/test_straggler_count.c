/* What a window of 16,384 ranks costs is counted, not timed: comparisons of the sort, and bytes that the group moves. */
#include "trainer/run/stragglers.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 16384, LOG2_RANKS = 14, STAGES = 8 };

static const uint64_t comparisons_max = (uint64_t)(PD_SPENT_KINDS + 1) * RANKS * LOG2_RANKS;
static uint64_t comparisons, gathered, broadcast;
static int (*compared)(const void *, const void *);

void __real_qsort(void *base, size_t count, size_t bytes, int (*compare)(const void *, const void *));
void __wrap_qsort(void *base, size_t count, size_t bytes, int (*compare)(const void *, const void *));

static int count_and_compare(const void *a, const void *b)
{
    cr_assert_leq(++comparisons, comparisons_max, "more than a sort for each kind of time"); /* ends what is quadratic */
    return compared(a, b);
}

void __wrap_qsort(void *base, size_t count, size_t bytes, int (*compare)(const void *, const void *))
{
    compared = compare;
    __real_qsort(base, count, bytes, count_and_compare);
}

static void rank_set(struct pd_rank_window *w, uint32_t rank)
{
    *w = (struct pd_rank_window){.seconds = {4 + 1e-4 * ((rank * 7919) % RANKS), 1, 1}, .stage = rank % STAGES};
    if (rank == 5000) w->seconds[PD_SPENT_READING] += 6;
}

static pd_status gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                        struct pd_error *err)
{
    (void)send, (void)err;
    cr_expect_eq(root, 0);
    gathered += group->rank == root ? group->size * bytes : bytes;
    for (uint32_t r = 0; group->rank == root && r < group->size && bytes == sizeof(struct pd_rank_window); r++)
        rank_set((struct pd_rank_window *)recv + r, r);
    return PD_OK;
}

static pd_status count_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    (void)group, (void)root, (void)data, (void)err;
    broadcast += bytes;
    return PD_OK;
}

static const struct pd_group_ops ops = {.name = "counted", .gather = gather, .broadcast = count_broadcast};

/* Three windows of ten seconds after the first step. */
static uint32_t named_on(uint32_t rank, struct pd_straggler *ret_said)
{
    struct pd_error err;
    struct pd_group group = {.ops = &ops, .rank = rank, .size = RANKS, .host_count = 1};
    struct pd_stragglers s = {.window_seconds = 10};
    cr_assert_eq(pd_stragglers_init(&s, &group, &err), PD_OK);
    for (uint64_t window = 0; window < 4; window++) {
        comparisons = gathered = broadcast = 0;
        cr_assert_eq(pd_stragglers_look(&s, &group, 1 + window * UINT64_C(10000000000), &err), PD_OK);
    }
    const uint32_t named = pd_stragglers_named(&s, RANKS, ret_said);
    pd_stragglers_deinit(&s);
    return named;
}

Test(straggler_count, rank_0_sorts_once_for_each_kind_of_time)
{
    struct pd_straggler said[PD_STRAGGLERS_SAID];
    cr_assert_eq(named_on(0, said), 1);
    cr_expect_eq(said[0].rank, 5000);
    cr_expect_eq(said[0].at, PD_SPENT_READING);
    cr_expect_gt(comparisons, RANKS, "they are counted");
    cr_expect_eq(gathered, RANKS * sizeof(struct pd_rank_window));
    cr_expect_eq(broadcast, 0, "nobody else needs them");
}

Test(straggler_count, others_send_one_window_and_compare_nothing)
{
    struct pd_straggler said[PD_STRAGGLERS_SAID];
    cr_expect_eq(named_on(RANKS - 1, said), 0);
    cr_expect_eq(comparisons, 0);
    cr_expect_eq(gathered, sizeof(struct pd_rank_window));
    cr_expect_eq(broadcast, 0);
}
