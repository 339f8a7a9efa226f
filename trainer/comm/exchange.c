/* One operation:
 *
 *   begin     every peer's cursor is set; bytes to oneself are copied
 *   progress  channels move bytes until nothing is left; without progress the rank sleeps on its bell
 *   end       after a failure, cancels transfers still in flight to other hosts
 *
 * It fails if a peer that is still needed is gone. A peer's state is read before its bytes are polled for the last time, so
 * bytes sent before it left are received. */
#include "trainer/comm/pipe.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"

#include <sched.h>

#define LOOK_NS UINT64_C(50000000) /* between two checks of the other processes */
#define SPINS 64u
/* Data from other hosts rings no bell: poll at once, then with doubling delays. */
#define REMOTE_LOOKS 16u
#define REMOTE_NAP_NS_MIN UINT64_C(2000)
#define REMOTE_DOUBLINGS_MAX 7u /* to 256 us */

static void link_set(struct pd_progress *engine, uint32_t peer, const struct pd_messages *m, struct pd_comm_traffic *sum)
{
    struct pd_link *link = &engine->exchange.links[peer];
    const bool is_inner = engine->members[peer].host == engine->members[engine->comm.rank].host;
    link->awaits_header = m->header && link->slot == PD_NO_SLOT;
    const uint64_t bytes = link->send.left + (link->awaits_header ? sizeof *m->header : 0);
    if (peer != engine->comm.rank) *(is_inner ? &sum->inside_bytes : &sum->leaving_bytes) += bytes;
    link->send.memory = is_inner ? m->inner : m->outer;
    link->recv.memory = m->arriving;
    link->recv.adds = m->adds;
    link->recv.adds_narrow = m->adds_narrow;
    if (link->recv.left && peer != engine->comm.rank && m->fault) link->is_damaged = pd_fault_asks(m->fault);
}

/* Slots stay: pd_exchange_look reads them from another thread. */
static void link_clear(struct pd_link *link)
{
    link->send = link->recv = (struct pd_cursor){0};
    link->is_named = link->is_send_begun = link->is_recv_begun = false;
    link->is_damaged = false;
}

/* The link of a piece's peer; adds the peer to the exchange. */
static struct pd_link *link_of(struct pd_exchange *x, const struct pd_comm_piece *piece)
{
    struct pd_link *link = &x->links[piece->peer];
    if (!link->is_named) x->peers[x->peer_count++] = piece->peer;
    link->is_named = true;
    return link;
}

static uint32_t steps_after(uint32_t peer, uint32_t rank, uint32_t size)
{
    return peer >= rank ? peer - rank : peer + (size - rank);
}

static void sift_down(uint32_t *peers, uint32_t at, uint32_t count, uint32_t rank, uint32_t size)
{
    const uint32_t peer = peers[at], steps = steps_after(peer, rank, size);
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && steps_after(peers[child + 1], rank, size) > steps_after(peers[child], rank, size)) child++;
        if (steps_after(peers[child], rank, size) <= steps) break;
        peers[at] = peers[child];
    }
    peers[at] = peer;
}

static void count(struct pd_progress *engine, const struct pd_comm_traffic *sum)
{
    atomic_fetch_add_explicit(&engine->root->inside_bytes, sum->inside_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->root->leaving_bytes, sum->leaving_bytes, memory_order_relaxed);
}

static void links_set(struct pd_progress *engine, const struct pd_messages *m)
{
    struct pd_comm_traffic sum = {0};
    struct pd_exchange *x = &engine->exchange;
    for (uint32_t i = 0; i < x->peer_count; i++)
        link_clear(&x->links[x->peers[i]]);
    x->peer_count = 0;
    for (uint32_t i = 0; i < m->send_count; i++)
        pd_cursor_add(&link_of(x, &m->sends[i])->send, m->sends, m->send_count, i);
    for (uint32_t i = 0; i < m->recv_count; i++)
        pd_cursor_add(&link_of(x, &m->recvs[i])->recv, m->recvs, m->recv_count, i);
    /* Each rank begins with the peer after it. Sorts without qsort, which would allocate memory. */
    uint32_t rank = engine->comm.rank;
    uint32_t size = engine->comm.size;
    uint32_t *peers = x->peers;
    for (uint32_t at = x->peer_count / 2; at-- > 0;)
        sift_down(peers, at, x->peer_count, rank, size);
    for (uint32_t last = x->peer_count; last-- > 1;) {
        const uint32_t peer = peers[0];
        peers[0] = peers[last];
        peers[last] = peer;
        sift_down(peers, 0, last, rank, size);
    }
    for (uint32_t i = 0; i < x->peer_count; i++)
        link_set(engine, x->peers[i], m, &sum);
    count(engine, &sum);
    engine->exchange.header = m->header;
    x->active_count = 0;
    for (uint32_t i = 0; i < x->peer_count; i++) {
        const struct pd_link *link = &x->links[x->peers[i]];
        if (x->peers[i] != engine->comm.rank && (link->send.left || link->recv.left))
            x->active[x->active_count++] = x->peers[i];
    }
}

/* Their links are idle: their work is done. */
void pd_exchange_add(struct pd_progress *engine, const struct pd_messages *m)
{
    struct pd_comm_traffic sum = {0};
    struct pd_exchange *x = &engine->exchange;
    for (uint32_t i = 0; i < m->send_count; i++) {
        struct pd_link *link = link_of(x, &m->sends[i]);
        PD_CHECK(link->slot != PD_NO_SLOT && !link->send.left && !link->recv.left);
        link_clear(link);
        link->is_named = true;
        x->active[x->active_count++] = m->sends[i].peer;
    }
    for (uint32_t i = 0; i < m->send_count; i++) {
        pd_cursor_add(&x->links[m->sends[i].peer].send, m->sends, m->send_count, i);
        pd_cursor_add(&x->links[m->recvs[i].peer].recv, m->recvs, m->recv_count, i);
    }
    for (uint32_t i = 0; i < m->send_count; i++)
        link_set(engine, m->sends[i].peer, m, &sum);
    count(engine, &sum);
    x->sequence++;
}

static pd_status copy_to_self(struct pd_progress *engine, struct pd_error *err)
{
    struct pd_link *self = &engine->exchange.links[engine->comm.rank];
    if (self->send.left != self->recv.left)
        PD_FAIL(err, PD_BUG, "rank %u sends %llu bytes to itself and receives %llu", engine->comm.rank,
                (unsigned long long)self->send.left, (unsigned long long)self->recv.left);
    return pd_cursor_copy(&self->recv, &self->send, self->send.left, err);
}

/* Drops finished peers; returns true while one is left. */
static bool links_prune(struct pd_progress *engine, bool *ret_has_remote, bool *ret_has_local)
{
    uint32_t kept = 0;
    *ret_has_remote = *ret_has_local = false;
    for (uint32_t i = 0; i < engine->exchange.active_count; i++) {
        const struct pd_link *link = &engine->exchange.links[engine->exchange.active[i]];
        if (link->send.left == 0 && link->recv.left == 0) continue;
        *(link->slot == PD_NO_SLOT ? ret_has_remote : ret_has_local) = true;
        engine->exchange.active[kept++] = engine->exchange.active[i];
    }
    engine->exchange.active_count = kept;
    return kept > 0;
}

static const struct pd_member *member_of(const struct pd_progress *engine, uint32_t peer)
{
    uint32_t slot = engine->exchange.links[peer].slot;
    return slot == PD_NO_SLOT ? NULL : &engine->segment->members[slot];
}

/* The first peer that is needed and gone, or PD_NOBODY. */
static uint32_t find_gone(const struct pd_progress *engine)
{
    for (uint32_t i = 0; i < engine->exchange.active_count; i++) {
        const struct pd_member *member = member_of(engine, engine->exchange.active[i]);
        if (member && atomic_load(&member->state) != PD_MEMBER_ALIVE) return engine->exchange.active[i];
    }
    return PD_NOBODY;
}

static uint32_t world_rank(const struct pd_progress *engine, uint32_t rank)
{
    return engine->members[rank].world;
}

static pd_status fail_gone(struct pd_progress *engine, uint32_t peer, uint32_t *ret_blamed, struct pd_error *err)
{
    const struct pd_member *member = member_of(engine, peer);
    uint32_t state = atomic_load(&member->state), messenger = world_rank(engine, peer);
    uint32_t blamed = atomic_load(&member->blamed) - 1;
    uint32_t missing = *ret_blamed = state == PD_MEMBER_BROKEN && blamed != PD_NOBODY ? blamed : messenger;
    if (missing != messenger) PD_FAIL(err, PD_PEER_LOST, "rank %u is missing, as rank %u found", missing, messenger);
    if (state == PD_MEMBER_LEFT)
        PD_FAIL(err, PD_PEER_LOST, "rank %u left while rank %u was waiting for it", missing,
                world_rank(engine, engine->comm.rank));
    if (state == PD_MEMBER_DEAD && engine->transport->is_processes)
        PD_FAIL(err, PD_PEER_LOST, "rank %u is gone: its process %d ended", missing,
                (int)atomic_load(&((struct pd_member *)member)->process));
    PD_FAIL(err, PD_PEER_LOST, "rank %u failed", missing);
}

pd_status pd_exchange_look(struct pd_progress *engine, struct pd_error *err)
{
    pd_segment_look(engine->segment);
    for (uint32_t s = 0; s < engine->segment->shape.slots; s++) {
        const uint32_t p = engine->slot_ranks[s];
        uint32_t blamed, nobody = 0;
        if (p == engine->comm.rank || atomic_load(&engine->segment->members[s].state) == PD_MEMBER_ALIVE) continue;
        pd_status st = fail_gone(engine, p, &blamed, err);
        atomic_compare_exchange_strong(&engine->root->blamed, &nobody, blamed + 1);
        return st;
    }
    return PD_OK;
}

/* idle: polls so far without progress. */
static void wait_for_bell(struct pd_progress *engine, uint32_t seen, bool has_remote, uint32_t idle)
{
    const struct pd_member *me = &engine->segment->members[engine->slot];
    for (uint32_t i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&me->bell, memory_order_relaxed) != seen) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    if (!has_remote) {
        pd_segment_sleep(engine->segment, engine->slot, seen, LOOK_NS);
    } else if (idle < REMOTE_LOOKS) {
        sched_yield();
    } else {
        const uint64_t doublings = pd_min_u64(idle - REMOTE_LOOKS, REMOTE_DOUBLINGS_MAX);
        pd_segment_sleep(engine->segment, engine->slot, seen, REMOTE_NAP_NS_MIN << doublings);
    }
}

static pd_status exchange_loop(struct pd_progress *engine, const struct pd_messages *m, uint32_t *ret_blamed,
                               struct pd_error *err)
{
    uint64_t looked_at = pd_clock_monotonic_ns(NULL);
    uint32_t idle = 0;
    bool has_ended = false;
    for (bool has_remote, has_local;; idle++) {
        uint32_t bell = atomic_load(&engine->segment->members[engine->slot].bell);
        if (atomic_load(&engine->is_aborted)) PD_FAIL(err, PD_PEER_LOST, "this rank left the communicator");
        uint32_t gone = find_gone(engine);
        bool has_moved;
        has_moved = false;
        PD_TRY(pd_pipes_progress(engine, &has_moved, err));
        if (engine->remote.state) PD_TRY(engine->transport->remote->progress(engine, &has_moved, err));
        const bool is_left = links_prune(engine, &has_remote, &has_local);
        if (!has_local && m->inside_ended && !has_ended) {
            const uint64_t sequence = engine->exchange.sequence;
            PD_TRY(m->inside_ended(engine, m->context, err));
            has_ended = engine->exchange.sequence == sequence;
            if (!has_ended) continue;
        }
        if (!is_left) return PD_OK;
        if (has_moved) {
            idle = 0;
            continue;
        }
        if (gone != PD_NOBODY && (engine->exchange.links[gone].send.left || engine->exchange.links[gone].recv.left))
            return fail_gone(engine, gone, ret_blamed, err);
        uint64_t now = pd_clock_monotonic_ns(NULL);
        if (now - looked_at >= LOOK_NS) {
            pd_segment_look(engine->segment);
            if (pd_progress_is_watched(engine)) pd_heartbeat_waits_for(world_rank(engine, engine->exchange.active[0]));
            looked_at = now;
        }
        wait_for_bell(engine, bell, has_remote, idle);
    }
}

pd_status pd_exchange_run(struct pd_progress *engine, const struct pd_messages *messages, struct pd_error *err)
{
    uint32_t blamed = PD_NOBODY;
    links_set(engine, messages);
    engine->exchange.sequence++;
    engine->exchange.remote_sequence = engine->exchange.sequence + messages->remote_ahead;
    if (engine->remote.state) engine->transport->remote->begin(engine);
    pd_status st = copy_to_self(engine, err);
    if (!st) st = exchange_loop(engine, messages, &blamed, err);
    uint32_t nobody = 0;
    if (st && blamed != PD_NOBODY) atomic_compare_exchange_strong(&engine->root->blamed, &nobody, blamed + 1);
    /* Tell peers first, so that one which blocks `end` lets go. */
    if (st) pd_segment_depart(engine->segment, engine->slot, PD_MEMBER_BROKEN, blamed);
    if (engine->remote.state) engine->transport->remote->end(engine);
    return st;
}
