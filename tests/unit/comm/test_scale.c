/* One rank of 16,384 on 2,048 hosts, whose peers are not there: a channel that takes and gives at once counts what the rank
 * does for an operation. Steps are counted, not time. */
#include "trainer/comm/progress.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { RANKS = 16384, RANKS_PER_HOST = 8, HOSTS = RANKS / RANKS_PER_HOST };

static struct {
    uint64_t exchanges, messages, bytes_sent;
    uint32_t messages_most; /* of an exchange */
} counted;

static void count_begin(struct pd_progress *engine)
{
    const struct pd_exchange *x = &engine->exchange;
    counted.exchanges++;
    counted.messages += x->active_count;
    if (x->active_count > counted.messages_most) counted.messages_most = x->active_count;
    for (uint32_t i = 0; i < x->active_count; i++)
        counted.bytes_sent += x->links[x->active[i]].send.left;
}

/* Whatever is expected comes, and is what this rank sends: agreements find everybody of one mind. */
static pd_status count_progress(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err)
{
    const struct pd_exchange *x = &engine->exchange;
    const void *own = engine->sends[0].data;
    for (uint32_t i = 0; i < x->active_count; i++) {
        struct pd_link *link = &x->links[x->active[i]];
        if (link->recv.left == 16 && own) PD_TRY(pd_cursor_write(&link->recv, own, 16, err));
        link->send.left = link->recv.left = 0;
        *ret_has_moved = true;
    }
    return PD_OK;
}

static void nothing(struct pd_progress *engine)
{
    (void)engine;
}

/* Asks for all peers, also on the same host. */
static pd_status count_open(struct pd_progress *engine, struct pd_error *err)
{
    (void)err;
    engine->remote.state = &counted;
    return PD_OK;
}

static const struct pd_remote_ops counting = {count_open, nothing, count_begin, count_progress, nothing};
static const struct pd_comm_ops ops = {.name = "counting", PD_PROGRESS_SLOTS, .free = pd_progress_free};
static const struct pd_comm_transport transport = {.ops = &ops, .remote = &counting, .is_processes = true};

static void expect_ok(pd_status st, const struct pd_error *err)
{
    cr_assert_eq(st, PD_OK, "%s: %s", err->where, err->message);
}

static struct pd_progress *engine_of(uint32_t rank, uint32_t size)
{
    struct pd_member_info *members = calloc(size, sizeof *members);
    struct pd_segment_ticket ticket;
    struct pd_segment *segment;
    struct pd_progress *engine;
    struct pd_error err;
    for (uint32_t r = 0; r < size; r++)
        members[r] =
            (struct pd_member_info){.world = r, .host = r % (size / RANKS_PER_HOST), .domain = r % (size / RANKS_PER_HOST)};
    const struct pd_segment_shape shape = pd_progress_shape(&transport, size, RANKS_PER_HOST);
    expect_ok(pd_segment_make(&shape, &ticket, &segment, &err), &err);
    expect_ok(pd_progress_new(&transport, NULL, 0, rank, size, members, segment, &engine, &err), &err);
    free(members);
    return engine;
}

static void count_from_here(void)
{
    memset(&counted, 0, sizeof counted);
}

Test(scale, hosts_are_found_without_comparing_pairs)
{
    struct pd_progress *engine = engine_of(5000, RANKS);
    const struct pd_hosts *hosts = &engine->hosts;
    cr_assert_eq(hosts->count, HOSTS);
    cr_assert_eq(hosts->mine, 5000 % HOSTS);
    cr_assert_eq(hosts->slot, 5000 / HOSTS);
    cr_assert_eq(hosts->largest, RANKS_PER_HOST);
    cr_assert_eq(hosts->smallest, RANKS_PER_HOST);
    for (uint32_t h = 0; h < HOSTS; h++)
        cr_assert_eq(pd_hosts_column(hosts, h, 3), h + 3 * HOSTS);
    cr_assert_eq(pd_hosts_before(hosts, HOSTS - 1), pd_hosts_after(hosts, 1));
    pd_progress_free(&engine->comm);
}

/* Values go by trees, and a gather by hosts. */
Test(scale, control_operations_take_as_many_steps_as_a_tree_is_deep)
{
    struct pd_error err;
    for (uint32_t rank = 0; rank < RANKS; rank += 5461) {
        struct pd_progress *engine = engine_of(rank, RANKS);
        uint64_t value = 1;
        uint8_t *all = calloc(RANKS, 24);
        count_from_here();
        expect_ok(pd_comm_all_reduce(&engine->comm, &value, 1, PD_REDUCE_MAX_U64, &err), &err);
        cr_assert_leq(counted.exchanges, 2 * 14u);
        cr_assert_leq(counted.messages, 2 * 14u);
        count_from_here();
        expect_ok(pd_progress_all_gather(engine, all, 24, all, &err), &err);
        cr_assert_leq(counted.exchanges, 2 * 14u);
        cr_assert_leq(counted.messages, 2 * 14u);
        count_from_here();
        expect_ok(pd_progress_gather(&engine->comm, 0, all, 24, all, &err), &err);
        cr_assert_eq(counted.exchanges, 2u);
        cr_assert_leq(counted.messages, rank ? 2u : HOSTS - 1 + RANKS_PER_HOST - 1);
        free(all);
        pd_progress_free(&engine->comm);
    }
}

/* Of rank `rank`: messages of a reduce-scatter and an all-gather. */
static uint64_t collectives_of(uint32_t rank, uint32_t size, uint64_t *ret_bytes)
{
    enum { COUNT = 3 };
    struct pd_progress *engine = engine_of(rank, size);
    uint64_t *parts = calloc(size, COUNT * sizeof *parts);
    struct pd_comm_op op = {.what = "terms"};
    struct pd_error err;
    count_from_here();
    expect_ok(pd_comm_start_reduce_scatter(&engine->comm, &op, parts, COUNT, parts + rank * (uint64_t)COUNT, &err), &err);
    expect_ok(pd_comm_wait(&engine->comm, &op, &err), &err);
    *ret_bytes = counted.bytes_sent / (COUNT * sizeof *parts);
    expect_ok(pd_comm_start_all_gather(&engine->comm, &op, parts, COUNT * sizeof *parts, &err), &err);
    expect_ok(pd_comm_wait(&engine->comm, &op, &err), &err);
    free(parts);
    pd_progress_free(&engine->comm);
    return counted.messages;
}

/* A rank is with its host and its column, in rounds of few hosts: linear in hosts, and never with everybody. */
Test(scale, a_collective_is_with_a_host_and_a_column)
{
    uint64_t parts, half_parts;
    const uint64_t messages = collectives_of(4711, RANKS, &parts), half = collectives_of(4711, RANKS / 2, &half_parts);
    cr_assert_leq(messages, 8 * HOSTS, "%lu messages", (unsigned long)messages);
    cr_assert_leq(messages, 2 * half + 64);
    cr_assert_leq(counted.messages_most, HOSTS + RANKS_PER_HOST);
    /* Parts sent: those of other columns inside, one a host outside, and the agreement. */
    cr_assert_leq(parts, RANKS + 2 * HOSTS, "%lu parts", (unsigned long)parts);
    cr_assert_geq(parts, RANKS - HOSTS + HOSTS - 1);
}
