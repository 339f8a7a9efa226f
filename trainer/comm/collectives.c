/* Collectives as exchanges. Few ranks talk all to all, in one step; many use a binomial tree rooted at rank 0, in two walks
 * of log2(size) steps. Values are integers, so the order of combination does not matter. */
#include "trainer/comm/progress.h"

#include <string.h>

static uint64_t combine(uint64_t a, uint64_t b, enum pd_reduce reduce)
{
    switch (reduce) {
    case PD_REDUCE_SUM_U64:
        return a + b;
    case PD_REDUCE_OR_U64:
        return a | b;
    case PD_REDUCE_MAX_U64:
        return a > b ? a : b;
    case PD_REDUCE_MIN_U64:
        return a < b ? a : b;
    }
    pd_check_failed(PD_WHERE, "a reduction that exists");
}

static void combine_values(uint64_t *values, const uint64_t *others, uint32_t count, enum pd_reduce reduce)
{
    for (uint32_t i = 0; i < count; i++)
        values[i] = combine(values[i], others[i], reduce);
}

static pd_status reduce_flat(struct pd_progress *engine, uint64_t *values, uint32_t count, enum pd_reduce reduce,
                             struct pd_error *err)
{
    uint32_t size = engine->comm.size, peers = 0;
    uint64_t bytes = count * sizeof *values;
    struct pd_comm_piece *sends = engine->scratch_pieces, *recvs = sends + size;
    for (uint32_t r = 0; r < size; r++) {
        if (r == engine->comm.rank) continue;
        sends[peers] = (struct pd_comm_piece){.peer = r, .data = values, .bytes = bytes};
        recvs[peers] = (struct pd_comm_piece){
            .peer = r, .data = engine->scratch_values + (size_t)peers * PD_REDUCE_ROUND, .bytes = bytes};
        peers++;
    }
    PD_TRY(pd_progress_run(engine, sends, peers, recvs, peers, err));
    for (uint32_t p = 0; p < peers; p++)
        combine_values(values, engine->scratch_values + (size_t)p * PD_REDUCE_ROUND, count, reduce);
    return PD_OK;
}

/* `relative` numbers ranks from the root of the tree. */
static uint32_t rank_of(const struct pd_progress *engine, uint32_t relative, uint32_t root)
{
    return (uint32_t)(((uint64_t)relative + root) % engine->comm.size);
}

static pd_status send_one(struct pd_progress *engine, uint32_t peer, void *data, uint64_t bytes, struct pd_error *err)
{
    struct pd_comm_piece piece = {.peer = peer, .data = data, .bytes = bytes};
    return pd_progress_run(engine, &piece, 1, NULL, 0, err);
}

static pd_status receive_one(struct pd_progress *engine, uint32_t peer, void *data, uint64_t bytes, struct pd_error *err)
{
    struct pd_comm_piece piece = {.peer = peer, .data = data, .bytes = bytes};
    return pd_progress_run(engine, NULL, 0, &piece, 1, err);
}

static pd_status idle_step(struct pd_progress *engine, struct pd_error *err)
{
    return pd_progress_run(engine, NULL, 0, NULL, 0, err);
}

/* Every rank makes the same number of steps, so that operations stay numbered alike. */
static pd_status reduce_tree(struct pd_progress *engine, uint64_t *values, uint32_t count, enum pd_reduce reduce,
                             struct pd_error *err)
{
    uint32_t size = engine->comm.size, rank = engine->comm.rank;
    bool has_sent = false;
    for (uint64_t step = 1; step < size; step *= 2) {
        if (!has_sent && rank & step) {
            PD_TRY(send_one(engine, (uint32_t)(rank - step), values, count * sizeof *values, err));
            has_sent = true;
        } else if (!has_sent && rank + step < size) {
            PD_TRY(receive_one(engine, (uint32_t)(rank + step), engine->scratch_values, count * sizeof *values, err));
            combine_values(values, engine->scratch_values, count, reduce);
        } else {
            PD_TRY(idle_step(engine, err));
        }
    }
    return pd_progress_broadcast(&engine->comm, 0, values, count * sizeof *values, err);
}

pd_status pd_progress_all_reduce(struct pd_comm *comm, uint64_t *values, uint32_t count, enum pd_reduce reduce,
                                 struct pd_error *err)
{
    struct pd_progress *engine = pd_progress_of(comm);
    for (uint32_t at = 0; at < count; at += PD_REDUCE_ROUND) {
        uint32_t round = count - at < PD_REDUCE_ROUND ? count - at : PD_REDUCE_ROUND;
        if (comm->size <= PD_FLAT_RANKS_MAX)
            PD_TRY(reduce_flat(engine, values + at, round, reduce, err));
        else
            PD_TRY(reduce_tree(engine, values + at, round, reduce, err));
    }
    return PD_OK;
}

pd_status pd_progress_broadcast(struct pd_comm *comm, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    struct pd_progress *engine = pd_progress_of(comm);
    if (comm->size <= PD_FLAT_RANKS_MAX) {
        if (engine->comm.rank != root) return receive_one(engine, root, data, bytes, err);
        struct pd_comm_piece *pieces = engine->scratch_pieces;
        uint32_t peers = 0;
        for (uint32_t r = 0; r < engine->comm.size; r++)
            if (r != root) pieces[peers++] = (struct pd_comm_piece){.peer = r, .data = data, .bytes = bytes};
        return pd_progress_run(engine, pieces, peers, NULL, 0, err);
    }
    uint32_t size = engine->comm.size, me = (engine->comm.rank + size - root) % size;
    uint64_t step = 1;
    while (step < size)
        step *= 2;
    for (step /= 2; step > 0; step /= 2) {
        bool is_holder = me % (2 * step) == 0, is_next = me % (2 * step) == step;
        if (is_holder && me + step < size)
            PD_TRY(send_one(engine, rank_of(engine, (uint32_t)(me + step), root), data, bytes, err));
        else if (is_next)
            PD_TRY(receive_one(engine, rank_of(engine, (uint32_t)(me - step), root), data, bytes, err));
        else
            PD_TRY(idle_step(engine, err));
    }
    return PD_OK;
}

/* ---- gathers ---- */

/* Gathers to rank 0: a rank sends its own block and those it received. Every rank has a buffer for all. */
static pd_status collect_tree(struct pd_progress *engine, uint8_t *all, uint64_t bytes, struct pd_error *err)
{
    const uint32_t size = engine->comm.size, rank = engine->comm.rank;
    bool has_sent = false;
    for (uint64_t step = 1; step < size; step *= 2) {
        const uint64_t left = size - rank, next = rank + step;
        if (!has_sent && rank & step) {
            const uint64_t count = step < left ? step : left;
            PD_TRY(send_one(engine, (uint32_t)(rank - step), all + rank * bytes, count * bytes, err));
            has_sent = true;
        } else if (!has_sent && next < size) {
            const uint64_t count = step < size - next ? step : size - next;
            PD_TRY(receive_one(engine, (uint32_t)next, all + next * bytes, count * bytes, err));
        } else {
            PD_TRY(idle_step(engine, err));
        }
    }
    return PD_OK;
}

static pd_status collect_flat(struct pd_progress *engine, uint32_t root, const void *send, uint64_t bytes, uint8_t *recv,
                              struct pd_error *err)
{
    if (engine->comm.rank != root) return send_one(engine, root, (void *)(uintptr_t)send, bytes, err);
    struct pd_comm_piece *pieces = engine->scratch_pieces;
    uint32_t peers = 0;
    memmove(recv + root * bytes, send, bytes);
    for (uint32_t r = 0; r < engine->comm.size; r++)
        if (r != root) pieces[peers++] = (struct pd_comm_piece){.peer = r, .data = recv + r * bytes, .bytes = bytes};
    return pd_progress_run(engine, NULL, 0, pieces, peers, err);
}

/* One rank speaks for each host; on the root's host that is the root. */
static uint32_t speaker_of(const struct pd_hosts *hosts, uint32_t host, uint32_t root)
{
    for (uint32_t i = hosts->first[host]; i < hosts->first[host + 1]; i++)
        if (hosts->ranks[i] == root) return root;
    return hosts->ranks[hosts->first[host]];
}

/* The ranks of a speaker's host send it their blocks: the root stores them in place, others in `scratch`, in rank order. */
static pd_status collect_inside(struct pd_progress *engine, uint32_t root, const void *send, uint64_t bytes, uint8_t *recv,
                                struct pd_error *err)
{
    const struct pd_hosts *hosts = &engine->hosts;
    const uint32_t rank = engine->comm.rank, speaker = speaker_of(hosts, hosts->mine, root),
                   first = hosts->first[hosts->mine];
    struct pd_comm_piece *pieces = engine->scratch_pieces;
    uint32_t peers = 0;
    if (rank != speaker) return send_one(engine, speaker, (void *)(uintptr_t)send, bytes, err);
    for (uint32_t i = first; i < hosts->first[hosts->mine + 1]; i++) {
        uint8_t *data = rank == root ? recv + hosts->ranks[i] * bytes : engine->scratch + (i - first) * bytes;
        if (hosts->ranks[i] == rank)
            memcpy(data, send, bytes);
        else
            pieces[peers++] = (struct pd_comm_piece){.peer = hosts->ranks[i], .data = data, .bytes = bytes};
    }
    return pd_progress_run(engine, NULL, 0, pieces, peers, err);
}

static pd_status collect_outside(struct pd_progress *engine, uint32_t root, uint64_t bytes, uint8_t *recv,
                                 struct pd_error *err)
{
    const struct pd_hosts *hosts = &engine->hosts;
    const uint32_t rank = engine->comm.rank;
    struct pd_comm_piece *pieces = engine->scratch_pieces;
    uint32_t peers = 0;
    const bool is_speaker = rank == speaker_of(hosts, hosts->mine, root);
    if (!is_speaker) return idle_step(engine, err);
    if (rank != root) return send_one(engine, root, engine->scratch, pd_hosts_ranks(hosts, hosts->mine) * bytes, err);
    for (uint32_t h = 0; h < hosts->count; h++)
        for (uint32_t i = hosts->first[h]; h != hosts->mine && i < hosts->first[h + 1]; i++)
            pieces[peers++] = (struct pd_comm_piece){
                .peer = hosts->ranks[hosts->first[h]], .data = recv + hosts->ranks[i] * bytes, .bytes = bytes};
    return pd_progress_run(engine, NULL, 0, pieces, peers, err);
}

pd_status pd_progress_gather(struct pd_comm *comm, uint32_t root, const void *send, uint64_t bytes, void *recv,
                             struct pd_error *err)
{
    struct pd_progress *engine = pd_progress_of(comm);
    const struct pd_hosts *hosts = &engine->hosts;
    if (!bytes) return PD_OK;
    if (comm->size <= PD_FLAT_RANKS_MAX || hosts->largest == 1 || bytes > engine->scratch_bytes / hosts->largest)
        return collect_flat(engine, root, send, bytes, recv, err);
    PD_TRY(collect_inside(engine, root, send, bytes, recv, err));
    return collect_outside(engine, root, bytes, recv, err);
}

pd_status pd_progress_all_gather(struct pd_progress *engine, const void *send, uint32_t bytes, void *recv,
                                 struct pd_error *err)
{
    const uint32_t size = engine->comm.size, rank = engine->comm.rank;
    uint8_t *all = recv;
    memcpy(all + (size_t)rank * bytes, send, bytes);
    if (size <= PD_FLAT_RANKS_MAX)
        PD_TRY(collect_flat(engine, 0, send, bytes, all, err));
    else
        PD_TRY(collect_tree(engine, all, bytes, err));
    return pd_progress_broadcast(&engine->comm, 0, recv, (uint64_t)size * bytes, err);
}
