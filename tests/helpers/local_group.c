/* A group whose ranks are threads of one process.
 *
 *   invariants  1. a collective is: publish what I give, meet, copy what I take from the others' memory, meet again; so
 *                  nobody returns while somebody still reads from him
 *               2. a rank that has returned is gone for good; a meeting that it has not reached fails on all others, one
 * that it had passed does not
 *               3. all ranks of a meeting made the same call, otherwise every one of them returns PD_BUG
 */
#include "tests/helpers/local_group.h"

#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum local_call { LOCAL_BARRIER, LOCAL_GATHER, LOCAL_BROADCAST, LOCAL_EXCHANGE };

/* What a rank has published for the collective that is going on. */
struct local_offer {
    enum local_call call;
    uint32_t root;
    uint64_t bytes;
    const void *data;
    const struct pd_group_piece *sends;
    uint32_t send_count;
};

struct local_room {
    pthread_mutex_t mutex;
    pthread_cond_t turned;
    uint32_t size, arrived, gone;
    uint32_t first_gone;        /* rank, for the message */
    uint64_t meeting;           /* counts completed meetings */
    struct local_offer *offers; /* (size) */
    pd_status (*rank_main)(struct pd_group *, void *, struct pd_error *);
    void *context;
};

struct local_rank {
    struct local_room *room;
    struct pd_group group;
    uint32_t *cursors; /* (size), for exchange */
    pthread_t thread;
    bool started;
    pd_status status;
    struct pd_error error;
};

static pd_status room_meet(struct local_room *room, struct pd_error *err)
{
    pthread_mutex_lock(&room->mutex);
    uint64_t meeting = room->meeting;
    if (!room->gone && ++room->arrived == room->size) {
        room->arrived = 0;
        room->meeting++;
        pthread_cond_broadcast(&room->turned);
    }
    while (room->meeting == meeting && !room->gone)
        pthread_cond_wait(&room->turned, &room->mutex);
    bool met = room->meeting != meeting;
    uint32_t gone = room->first_gone;
    pthread_mutex_unlock(&room->mutex);
    if (!met) PD_FAIL(err, PD_PEER_LOST, "rank %u is gone", gone);
    return PD_OK;
}

static void room_leave(struct local_room *room, uint32_t rank)
{
    pthread_mutex_lock(&room->mutex);
    if (!room->gone++) room->first_gone = rank;
    pthread_cond_broadcast(&room->turned);
    pthread_mutex_unlock(&room->mutex);
}

static struct local_rank *self(struct pd_group *group)
{
    return group->context;
}

static pd_status room_offer(struct pd_group *group, const struct local_offer *offer, struct pd_error *err)
{
    struct local_room *room = self(group)->room;
    room->offers[group->rank] = *offer;
    return room_meet(room, err);
}

/* The same verdict on every rank, since all look at the same offers. */
static pd_status room_check(struct pd_group *group, struct pd_error *err)
{
    const struct local_offer *offers = self(group)->room->offers;
    for (uint32_t rank = 1; rank < group->size; rank++) {
        bool equal = offers[rank].call == offers[0].call && offers[rank].root == offers[0].root &&
                     offers[rank].bytes == offers[0].bytes;
        if (!equal) PD_FAIL(err, PD_BUG, "ranks 0 and %u do not make the same collective call", rank);
    }
    return PD_OK;
}

/* The second meeting happens whatever `st` is, so that nobody is left behind in it. */
static pd_status room_finish(struct pd_group *group, pd_status st, struct pd_error *err)
{
    if (st == PD_OK) return room_meet(self(group)->room, err);
    (void)!room_meet(self(group)->room, NULL);
    return st;
}

static pd_status local_barrier(struct pd_group *group, struct pd_error *err)
{
    struct local_offer offer = {.call = LOCAL_BARRIER};
    PD_TRY(room_offer(group, &offer, err));
    return room_finish(group, room_check(group, err), err);
}

static pd_status local_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                              struct pd_error *err)
{
    struct local_offer offer = {.call = LOCAL_GATHER, .root = root, .bytes = bytes, .data = send};
    PD_TRY(room_offer(group, &offer, err));
    pd_status st = room_check(group, err);
    if (st == PD_OK && group->rank == root && bytes) {
        for (uint32_t rank = 0; rank < group->size; rank++)
            memmove((char *)recv + rank * bytes, self(group)->room->offers[rank].data, bytes);
    }
    return room_finish(group, st, err);
}

static pd_status local_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    struct local_offer offer = {.call = LOCAL_BROADCAST, .root = root, .bytes = bytes, .data = data};
    PD_TRY(room_offer(group, &offer, err));
    pd_status st = room_check(group, err);
    if (st == PD_OK && group->rank != root && bytes) memcpy(data, self(group)->room->offers[root].data, bytes);
    return room_finish(group, st, err);
}

/* The next piece that `from` sends to `to`, starting the search at *cursor; NULL when there is none left. */
static const struct pd_group_piece *next_piece(const struct local_offer *from, uint32_t to, uint32_t *cursor)
{
    while (*cursor < from->send_count) {
        const struct pd_group_piece *piece = &from->sends[(*cursor)++];
        if (piece->peer == to) return piece;
    }
    return NULL;
}

static pd_status take_pieces(struct pd_group *group, const struct pd_group_piece *recvs, uint32_t recv_count,
                             struct pd_error *err)
{
    const struct local_offer *offers = self(group)->room->offers;
    uint32_t *cursors = self(group)->cursors;
    memset(cursors, 0, group->size * sizeof *cursors);
    for (uint32_t i = 0; i < recv_count; i++) {
        const struct pd_group_piece *want = &recvs[i];
        const struct pd_group_piece *piece = next_piece(&offers[want->peer], group->rank, &cursors[want->peer]);
        if (!piece || piece->bytes != want->bytes)
            PD_FAIL(err, PD_BUG, "exchange: rank %u expects %llu bytes from rank %u, which sends %llu", group->rank,
                    (unsigned long long)want->bytes, want->peer, piece ? (unsigned long long)piece->bytes : 0ULL);
        if (want->bytes) memmove(want->data, piece->data, want->bytes);
    }
    for (uint32_t peer = 0; peer < group->size; peer++) {
        if (next_piece(&offers[peer], group->rank, &cursors[peer]))
            PD_FAIL(err, PD_BUG, "exchange: rank %u sends more pieces than rank %u expects", peer, group->rank);
    }
    return PD_OK;
}

static pd_status local_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                                const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    struct local_offer offer = {.call = LOCAL_EXCHANGE, .sends = sends, .send_count = send_count};
    PD_TRY(room_offer(group, &offer, err));
    pd_status st = room_check(group, err);
    if (st == PD_OK) st = take_pieces(group, recvs, recv_count, err);
    return room_finish(group, st, err);
}

static const struct pd_group_ops local_ops = {
    .name = "local",
    .barrier = local_barrier,
    .gather = local_gather,
    .broadcast = local_broadcast,
    .exchange = local_exchange,
};

static void *rank_thread(void *argument)
{
    struct local_rank *rank = argument;
    struct local_room *room = rank->room;
    pd_rank_set_thread((int)rank->group.rank);
    rank->status = room->rank_main(&rank->group, room->context, &rank->error);
    room_leave(room, rank->group.rank);
    return NULL;
}

static pd_status start_rank(struct local_room *room, struct local_rank *rank, uint32_t number, uint32_t host_count)
{
    rank->room = room;
    rank->group = (struct pd_group){.ops = &local_ops,
                                    .rank = number,
                                    .size = room->size,
                                    .host = (uint32_t)((uint64_t)number * host_count / room->size),
                                    .host_count = host_count,
                                    .context = rank};
    rank->cursors = calloc(room->size, sizeof *rank->cursors);
    if (!rank->cursors) return pd_error_set(&rank->error, PD_NO_MEMORY, PD_WHERE, 0, "no memory for rank %u", number);
    int number_of_error = pd_thread_start(&rank->thread, NULL, rank_thread, rank);
    if (number_of_error) return pd_error_thread(&rank->error, PD_WHERE, number_of_error, "the thread of a rank");
    rank->started = true;
    return PD_OK;
}

/* A rank that could not start is gone, so the others end by themselves. */
static void run_ranks(struct local_room *room, struct local_rank *ranks, uint32_t host_count)
{
    for (uint32_t r = 0; r < room->size; r++) {
        pd_status st = start_rank(room, &ranks[r], r, host_count);
        if (st == PD_OK) continue;
        ranks[r].status = st;
        room_leave(room, r);
    }
    for (uint32_t r = 0; r < room->size; r++) {
        if (ranks[r].started) pthread_join(ranks[r].thread, NULL);
        free(ranks[r].cursors);
    }
}

/* PD_PEER_LOST only repeats that somebody failed: the reason of the one who did is worth more. */
static const struct local_rank *worst_rank(const struct local_rank *ranks, uint32_t size)
{
    const struct local_rank *lost = NULL;
    for (uint32_t r = 0; r < size; r++) {
        if (ranks[r].status != PD_OK && ranks[r].status != PD_PEER_LOST) return &ranks[r];
        if (ranks[r].status == PD_PEER_LOST && !lost) lost = &ranks[r];
    }
    return lost;
}

pd_status pd_group_run_local(uint32_t size, uint32_t host_count,
                             pd_status (*rank_main)(struct pd_group *, void *context, struct pd_error *), void *context,
                             struct pd_error *err)
{
    if (size == 0 || host_count == 0 || host_count > size)
        PD_FAIL(err, PD_INVALID, "%u ranks cannot live on %u hosts", size, host_count);
    struct local_room room = {.size = size, .rank_main = rank_main, .context = context};
    room.offers = calloc(size, sizeof *room.offers);
    struct local_rank *ranks = calloc(size, sizeof *ranks);
    if (!room.offers || !ranks) {
        free(room.offers);
        free(ranks);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u ranks", size);
    }
    pthread_mutex_init(&room.mutex, NULL);
    pthread_cond_init(&room.turned, NULL);
    run_ranks(&room, ranks, host_count);
    const struct local_rank *worst = worst_rank(ranks, size);
    pd_status st = worst ? pd_error_pass(err, worst->status, &worst->error) : PD_OK;
    pthread_cond_destroy(&room.turned);
    pthread_mutex_destroy(&room.mutex);
    free(room.offers);
    free(ranks);
    return st;
}
