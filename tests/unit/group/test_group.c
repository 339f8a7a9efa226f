#include "tests/helpers/local_group.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sizes {
    uint32_t size, host_count;
};

static pd_status all_calls(struct pd_group *group, void *context, struct pd_error *err)
{
    const struct sizes *sizes = context;
    cr_assert_eq(group->size, sizes->size);
    cr_assert_eq(group->host, group->rank * sizes->host_count / sizes->size);
    for (uint32_t root = 0; root < group->size; root++) {
        uint64_t mine = group->rank * 100 + root, *all = calloc(group->size, sizeof *all);
        PD_TRY(pd_group_gather(group, root, &mine, sizeof mine, group->rank == root ? all : NULL, err));
        for (uint32_t r = 0; group->rank == root && r < group->size; r++)
            cr_assert_eq(all[r], r * 100 + root);
        free(all);
        char text[8] = {0};
        if (group->rank == root) memcpy(text, "from me", 8);
        PD_TRY(pd_group_broadcast(group, root, text, sizeof text, err));
        cr_assert_str_eq(text, "from me");
        PD_TRY(pd_group_barrier(group, err));
    }
    return PD_OK;
}

Test(group, gather_broadcast_barrier)
{
    const struct sizes table[] = {{1, 1}, {2, 1}, {4, 2}, {5, 3}, {16, 16}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct pd_error err = {0};
        struct sizes sizes = table[i];
        cr_assert_eq(pd_group_run_local(sizes.size, sizes.host_count, all_calls, &sizes, &err), PD_OK, "%s", err.message);
    }
}

/* Rank a sends b two pieces of a+1 and b+2 bytes, in another order of peers than the receiver names. */
static pd_status two_pieces_each(struct pd_group *group, void *context, struct pd_error *err)
{
    (void)context;
    uint32_t n = group->size;
    struct pd_group_piece *sends = calloc(2 * n, sizeof *sends), *recvs = calloc(2 * n, sizeof *recvs);
    unsigned char(*out)[2][64] = calloc(n, sizeof *out), (*in)[2][64] = calloc(n, sizeof *in);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t to = (group->rank + i) % n;
        for (uint32_t k = 0; k < 2; k++) {
            memset(out[to][k], (int)(group->rank * 16 + to * 2 + k), 64);
            sends[2 * i + k] = (struct pd_group_piece){to, out[to][k], k ? to + 2 : group->rank + 1};
            recvs[2 * i + k] = (struct pd_group_piece){i, in[i][k], k ? group->rank + 2 : i + 1};
        }
    }
    pd_status st = pd_group_exchange(group, sends, 2 * n, recvs, 2 * n, err);
    for (uint32_t from = 0; st == PD_OK && from < n; from++) {
        for (uint32_t k = 0; k < 2; k++) {
            uint64_t bytes = k ? group->rank + 2 : from + 1;
            for (uint64_t b = 0; b < 64; b++)
                cr_assert_eq(in[from][k][b], b < bytes ? from * 16 + group->rank * 2 + k : 0);
        }
    }
    free(sends);
    free(recvs);
    free(out);
    free(in);
    return st;
}

Test(group, exchange_matches_kth_with_kth)
{
    struct pd_error err = {0};
    for (uint32_t n = 1; n <= 7; n++)
        cr_assert_eq(pd_group_run_local(n, 1, two_pieces_each, NULL, &err), PD_OK, "%s", err.message);
}

static pd_status wrong_sizes(struct pd_group *group, void *context, struct pd_error *err)
{
    (void)context;
    char byte[4] = {0};
    struct pd_group_piece send = {0, byte, group->rank == 1 ? 3 : 2}, recvs[3];
    for (uint32_t i = 0; i < 3; i++)
        recvs[i] = (struct pd_group_piece){i, byte, 2};
    pd_status st = pd_group_exchange(group, &send, 1, recvs, group->rank == 0 ? 3 : 0, err);
    cr_assert_eq(st, group->rank == 0 ? PD_BUG : PD_OK);
    return PD_OK;
}

Test(group, exchange_of_unequal_sizes_is_a_bug)
{
    cr_assert_eq(pd_group_run_local(3, 1, wrong_sizes, NULL, NULL), PD_OK);
}

static pd_status unlike_calls(struct pd_group *group, void *context, struct pd_error *err)
{
    (void)context;
    uint64_t word = 0, all[2];
    if (group->rank == 0) return pd_group_gather(group, 0, &word, sizeof word, all, err);
    return pd_group_broadcast(group, 0, &word, sizeof word, err);
}

Test(group, unlike_calls_are_a_bug)
{
    cr_assert_eq(pd_group_run_local(2, 1, unlike_calls, NULL, NULL), PD_BUG);
}

static pd_status one_fails(struct pd_group *group, void *context, struct pd_error *err)
{
    uint32_t failing = *(uint32_t *)context;
    pd_status mine = PD_OK;
    if (group->rank >= failing) mine = pd_error_set(err, PD_NO_SPACE, PD_WHERE, 0, "disk %u is full", group->rank);
    pd_status st = pd_group_agree(group, mine, err);
    cr_assert_eq(st, failing < group->size ? PD_NO_SPACE : PD_OK);
    char expected[64];
    snprintf(expected, sizeof expected, "rank %u: disk %u is full", failing, failing);
    if (st != PD_OK) cr_assert_str_eq(err->message, expected);
    return PD_OK;
}

Test(group, agreement_is_the_lowest_failing_ranks)
{
    for (uint32_t failing = 0; failing <= 4; failing++)
        cr_assert_eq(pd_group_run_local(4, 2, one_fails, &failing, NULL), PD_OK);
}

/* What one rank has failed by is agreed upon again by those who were told. */
static pd_status agree_twice(struct pd_group *group, void *context, struct pd_error *err)
{
    (void)context;
    pd_status mine = group->rank == 2 ? pd_error_set(err, PD_IO, PD_WHERE, 0, "lock: gone") : PD_OK;
    pd_status st = pd_error_context(err, pd_group_agree(group, mine, err), "directory /x");
    st = pd_group_agree(group, st, err);
    cr_assert_eq(st, PD_IO);
    cr_assert_str_eq(err->message, "directory /x: rank 2: lock: gone");
    return PD_OK;
}

Test(group, a_rank_is_named_once)
{
    cr_assert_eq(pd_group_run_local(4, 2, agree_twice, NULL, NULL), PD_OK);
    cr_assert(pd_error_names_rank("rank 12: x") && pd_error_names_rank("a: rank 1: x"));
    cr_assert(!pd_error_names_rank("") && !pd_error_names_rank("of rank 1: x") && !pd_error_names_rank("rank : x"));
    cr_assert(!pd_error_names_rank("a: rank 1 and: x") && !pd_error_names_rank("a: ranks 1: x"));
}

static pd_status agree_without_text(struct pd_group *group, void *context, struct pd_error *err)
{
    (void)context;
    cr_assert_eq(pd_group_agree(group, group->rank == 299 ? PD_IO : PD_OK, NULL), PD_IO);
    cr_assert_eq(pd_group_agree(group, PD_OK, err), PD_OK);
    return PD_OK;
}

Test(group, many_ranks_agree)
{
    cr_assert_eq(pd_group_run_local(300, 3, agree_without_text, NULL, NULL), PD_OK);
}

/* Rank `*context` leaves before the second barrier; nobody may hang, and the first barrier holds for all. */
static pd_status one_leaves(struct pd_group *group, void *context, struct pd_error *err)
{
    uint32_t leaver = *(uint32_t *)context;
    PD_TRY(pd_group_barrier(group, err));
    if (group->rank == leaver) PD_FAIL(err, PD_DEVICE_LOST, "device of rank %u", group->rank);
    cr_assert_eq(pd_group_barrier(group, err), PD_PEER_LOST);
    cr_assert_eq(pd_group_agree(group, PD_OK, err), PD_PEER_LOST);
    struct pd_error own = {.status = PD_IO, .message = "my own reason"};
    cr_assert_eq(pd_group_agree(group, PD_IO, &own), PD_IO);
    cr_assert_str_eq(own.message, "my own reason");
    return pd_group_barrier(group, err);
}

Test(group, a_lost_peer_ends_every_call)
{
    for (uint32_t round = 0; round < 50; round++) {
        uint32_t leaver = round % 4;
        struct pd_error err = {0};
        cr_assert_eq(pd_group_run_local(4, 2, one_leaves, &leaver, &err), PD_DEVICE_LOST);
        char expected[64];
        snprintf(expected, sizeof expected, "device of rank %u", leaver);
        cr_assert_str_eq(err.message, expected);
    }
}

Test(group, one_rank_alone)
{
    struct pd_group group;
    pd_group_init_single(&group);
    uint64_t give = 7, take = 0;
    cr_assert_eq(pd_group_gather(&group, 0, &give, sizeof give, &take, NULL), PD_OK);
    cr_assert_eq(take, 7);
    struct pd_group_piece send = {0, &give, 8}, recv = {0, &take, 8};
    give = 9;
    cr_assert_eq(pd_group_exchange(&group, &send, 1, &recv, 1, NULL), PD_OK);
    cr_assert_eq(take, 9);
    recv.bytes = 4;
    cr_assert_eq(pd_group_exchange(&group, &send, 1, &recv, 1, NULL), PD_BUG);
    struct pd_error err = {0};
    pd_status mine = pd_error_set(&err, PD_IO, PD_WHERE, 0, "alone");
    cr_assert_eq(pd_group_agree(&group, mine, &err), PD_IO);
    cr_assert_str_eq(err.message, "alone");
    cr_assert_eq(pd_group_barrier(&group, &err), PD_OK);
}

Test(group, impossible_hosts_are_refused)
{
    struct pd_error err;
    cr_assert_eq(pd_group_run_local(2, 3, all_calls, NULL, &err), PD_INVALID);
    cr_assert_eq(pd_group_run_local(0, 1, all_calls, NULL, &err), PD_INVALID);
}
