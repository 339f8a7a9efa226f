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

struct local_shared {
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
    struct local_shared *shared;
    struct pd_group group;
    uint32_t *cursors; /* (size), for exchange */
    pthread_t thread;
    bool started;
    pd_status status;
    struct pd_error error;
};

static pd_status shared_meet(struct local_shared *shared, struct pd_error *err)
{
    pthread_mutex_lock(&shared->mutex);
    uint64_t meeting = shared->meeting;
    if (!shared->gone && ++shared->arrived == shared->size) {
        shared->arrived = 0;
        shared->meeting++;
        pthread_cond_broadcast(&shared->turned);
    }
    while (shared->meeting == meeting && !shared->gone)
        pthread_cond_wait(&shared->turned, &shared->mutex);
    bool met = shared->meeting != meeting;
    uint32_t gone = shared->first_gone;
    pthread_mutex_unlock(&shared->mutex);
    if (!met) PD_FAIL(err, PD_PEER_LOST, "rank %u is gone", gone);
    return PD_OK;
}

static void shared_leave(struct local_shared *shared, uint32_t rank)
{
    pthread_mutex_lock(&shared->mutex);
    if (!shared->gone++) shared->first_gone = rank;
    pthread_cond_broadcast(&shared->turned);
    pthread_mutex_unlock(&shared->mutex);
}

static struct local_rank *self(struct pd_group *group)
{
    return group->context;
}

static pd_status shared_offer(struct pd_group *group, const struct local_offer *offer, struct pd_error *err)
{
    struct local_shared *shared = self(group)->shared;
    shared->offers[group->rank] = *offer;
    return shared_meet(shared, err);
}

/* The same verdict on every rank, since all look at the same offers. */
static pd_status shared_check(struct pd_group *group, struct pd_error *err)
{
    const struct local_offer *offers = self(group)->shared->offers;
    for (uint32_t rank = 1; rank < group->size; rank++) {
        bool equal = offers[rank].call == offers[0].call && offers[rank].root == offers[0].root &&
                     offers[rank].bytes == offers[0].bytes;
        if (!equal) PD_FAIL(err, PD_BUG, "ranks 0 and %u do not make the same collective call", rank);
    }
    return PD_OK;
}

/* The second meeting happens whatever `st` is, so that nobody is left behind in it. */
static pd_status shared_finish(struct pd_group *group, pd_status st, struct pd_error *err)
{
    if (st == PD_OK) return shared_meet(self(group)->shared, err);
    (void)!shared_meet(self(group)->shared, NULL);
    return st;
}

static pd_status local_barrier(struct pd_group *group, struct pd_error *err)
{
    struct local_offer offer = {.call = LOCAL_BARRIER};
    PD_TRY(shared_offer(group, &offer, err));
    return shared_finish(group, shared_check(group, err), err);
}

static pd_status local_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                              struct pd_error *err)
{
    struct local_offer offer = {.call = LOCAL_GATHER, .root = root, .bytes = bytes, .data = send};
    PD_TRY(shared_offer(group, &offer, err));
    pd_status st = shared_check(group, err);
    if (st == PD_OK && group->rank == root && bytes) {
        for (uint32_t rank = 0; rank < group->size; rank++)
            memmove((char *)recv + rank * bytes, self(group)->shared->offers[rank].data, bytes);
    }
    return shared_finish(group, st, err);
}

static pd_status local_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    struct local_offer offer = {.call = LOCAL_BROADCAST, .root = root, .bytes = bytes, .data = data};
    PD_TRY(shared_offer(group, &offer, err));
    pd_status st = shared_check(group, err);
    if (st == PD_OK && group->rank != root && bytes) memcpy(data, self(group)->shared->offers[root].data, bytes);
    return shared_finish(group, st, err);
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
    const struct local_offer *offers = self(group)->shared->offers;
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
    PD_TRY(shared_offer(group, &offer, err));
    pd_status st = shared_check(group, err);
    if (st == PD_OK) st = take_pieces(group, recvs, recv_count, err);
    return shared_finish(group, st, err);
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
    struct local_shared *shared = rank->shared;
    pd_rank_set_thread((int)rank->group.rank);
    rank->status = shared->rank_main(&rank->group, shared->context, &rank->error);
    shared_leave(shared, rank->group.rank);
    return NULL;
}

static pd_status start_rank(struct local_shared *shared, struct local_rank *rank, uint32_t number, uint32_t host_count)
{
    rank->shared = shared;
    rank->group = (struct pd_group){.ops = &local_ops,
                                    .rank = number,
                                    .size = shared->size,
                                    .host = (uint32_t)((uint64_t)number * host_count / shared->size),
                                    .host_count = host_count,
                                    .context = rank};
    rank->cursors = calloc(shared->size, sizeof *rank->cursors);
    if (!rank->cursors) return pd_error_set(&rank->error, PD_NO_MEMORY, PD_WHERE, 0, "no memory for rank %u", number);
    int number_of_error = pd_thread_start(&rank->thread, NULL, rank_thread, rank);
    if (number_of_error) return pd_error_thread(&rank->error, PD_WHERE, number_of_error, "the thread of a rank");
    rank->started = true;
    return PD_OK;
}

/* A rank that could not start is gone, so the others end by themselves. */
static void run_ranks(struct local_shared *shared, struct local_rank *ranks, uint32_t host_count)
{
    for (uint32_t r = 0; r < shared->size; r++) {
        pd_status st = start_rank(shared, &ranks[r], r, host_count);
        if (st == PD_OK) continue;
        ranks[r].status = st;
        shared_leave(shared, r);
    }
    for (uint32_t r = 0; r < shared->size; r++) {
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
    struct local_shared shared = {.size = size, .rank_main = rank_main, .context = context};
    shared.offers = calloc(size, sizeof *shared.offers);
    struct local_rank *ranks = calloc(size, sizeof *ranks);
    if (!shared.offers || !ranks) {
        free(shared.offers);
        free(ranks);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u ranks", size);
    }
    pthread_mutex_init(&shared.mutex, NULL);
    pthread_cond_init(&shared.turned, NULL);
    run_ranks(&shared, ranks, host_count);
    const struct local_rank *worst = worst_rank(ranks, size);
    pd_status st = worst ? pd_error_pass(err, worst->status, &worst->error) : PD_OK;
    pthread_cond_destroy(&shared.turned);
    pthread_mutex_destroy(&shared.mutex);
    free(shared.offers);
    free(ranks);
    return st;
}
