#include "trainer/comm/direct.h"

#include "ckpt/base/checked.h"
#include "trainer/comm/staging.h"
#include "trainer/comm/sums.h"

#include <sched.h>

/* Of a sum that stays in the cache while what is added to it passes. */
#define SUM_BYTES (PD_STAGING_THREAD_ROOM_BYTES / 2)

static struct pd_offer *offer_between(const struct pd_progress *engine, uint32_t sender, uint32_t receiver)
{
    return pd_segment_pair(engine->segment, sender, receiver);
}

static void direct_begin(struct pd_progress *engine)
{
    for (uint32_t i = 0; i < engine->exchange.active_count; i++) {
        struct pd_link *link = &engine->exchange.links[engine->exchange.active[i]];
        if (link->slot == PD_NO_SLOT || link->send.left == 0) continue;
        struct pd_offer *offer = offer_between(engine, engine->slot, link->slot);
        offer->sequence = engine->exchange.sequence;
        offer->cursor = link->send;
        link->is_send_begun = true;
        atomic_store(&offer->state, PD_OFFER_OFFERED);
        pd_segment_ring(engine->segment, link->slot);
    }
}

static pd_status check_match(const struct pd_progress *engine, uint32_t peer, const struct pd_offer *offer,
                             uint64_t expected, struct pd_error *err)
{
    if (offer->sequence == engine->exchange.sequence && offer->cursor.left == expected) return PD_OK;
    PD_FAIL(err, PD_BUG, "operation %llu: rank %u expects %llu bytes of rank %u, which sends %llu in its operation %llu",
            (unsigned long long)engine->exchange.sequence, engine->members[engine->comm.rank].world,
            (unsigned long long)expected, engine->members[peer].world, (unsigned long long)offer->cursor.left,
            (unsigned long long)offer->sequence);
}

/* Threads see both sides, so what would fail under NCCL alone fails here too. */
static pd_status check_cuts(const struct pd_progress *engine, uint32_t peer, struct pd_cursor here, struct pd_cursor there,
                            struct pd_error *err)
{
    for (uint32_t piece = 0; here.memory && here.left && there.left; piece++) {
        const uint64_t mine = here.pieces[here.index].bytes, theirs = there.pieces[there.index].bytes;
        if (mine != theirs)
            PD_FAIL(err, PD_BUG, "operation %llu: piece %u from rank %u has %llu bytes and %llu where rank %u receives it",
                    (unsigned long long)engine->exchange.sequence, piece, engine->members[peer].world,
                    (unsigned long long)theirs, (unsigned long long)mine, engine->members[engine->comm.rank].world);
        pd_cursor_advance(&here, mine);
        pd_cursor_advance(&there, theirs);
    }
    return PD_OK;
}

static pd_status take(struct pd_progress *engine, uint32_t peer, bool *ret_has_moved, struct pd_error *err)
{
    struct pd_link *link = &engine->exchange.links[peer];
    struct pd_offer *offer = offer_between(engine, link->slot, engine->slot);
    uint32_t offered = PD_OFFER_OFFERED;
    if (!atomic_compare_exchange_strong(&offer->state, &offered, PD_OFFER_TAKING)) return PD_OK;
    pd_status st = check_match(engine, peer, offer, link->recv.left, err);
    struct pd_cursor source = offer->cursor;
    if (!st) st = check_cuts(engine, peer, link->recv, source, err);
    struct pd_cursor target = link->recv;
    if (!st) st = pd_cursor_copy(&link->recv, &source, source.left, err);
    if (!st && link->is_damaged) st = pd_cursor_damage(&target, err);
    atomic_store(&offer->state, PD_OFFER_EMPTY);
    pd_segment_ring(engine->segment, link->slot);
    *ret_has_moved = true;
    return st;
}

/* ---- sums ---- */

/* All that are expected, or none: what was taken is given back when somebody withdrew meanwhile. */
static bool take_all(struct pd_progress *engine)
{
    const struct pd_exchange *x = &engine->exchange;
    bool have_all_come = true;
    for (uint32_t i = 0; i < x->active_count; i++) {
        struct pd_link *link = &x->links[x->active[i]];
        link->has_come = atomic_load(&offer_between(engine, link->slot, engine->slot)->state) == PD_OFFER_OFFERED;
        have_all_come &= link->has_come;
    }
    if (!have_all_come) return false;
    for (uint32_t i = 0; i < x->active_count; i++) {
        uint32_t offered = PD_OFFER_OFFERED;
        if (atomic_compare_exchange_strong(&offer_between(engine, x->links[x->active[i]].slot, engine->slot)->state,
                                           &offered, PD_OFFER_TAKING))
            continue;
        while (i-- > 0)
            atomic_store(&offer_between(engine, x->links[x->active[i]].slot, engine->slot)->state, PD_OFFER_OFFERED);
        return false;
    }
    return true;
}

static void give_back_all(struct pd_progress *engine)
{
    const struct pd_exchange *x = &engine->exchange;
    for (uint32_t i = 0; i < x->active_count; i++) {
        const uint32_t slot = x->links[x->active[i]].slot;
        atomic_store(&offer_between(engine, slot, engine->slot)->state, PD_OFFER_EMPTY);
        pd_segment_ring(engine->segment, slot);
    }
}

/* `bytes` of every part at `at`: every peer's is read once, while the sum stays in the cache. */
static pd_status sum_piece(struct pd_progress *engine, uint64_t at, uint64_t bytes, struct pd_error *err)
{
    const struct pd_exchange *x = &engine->exchange;
    const struct pd_link *self = &x->links[engine->comm.rank];
    const struct pd_comm_memory *memory = self->recv.memory;
    uint8_t *target = (uint8_t *)self->recv.pieces[self->recv.index].data + at, *sum = memory ? engine->room : target;
    const uint8_t *own = (const uint8_t *)self->send.pieces[self->send.index].data + at;
    if (memory) PD_TRY(memory->copy(memory->context, sum, own, bytes, err));
    for (uint32_t i = 0; i < x->active_count; i++) {
        const struct pd_cursor *peer = &offer_between(engine, x->links[x->active[i]].slot, engine->slot)->cursor;
        const uint8_t *more = (const uint8_t *)peer->pieces[peer->index].data + at;
        if (memory) {
            PD_TRY(memory->copy(memory->context, engine->room + SUM_BYTES, more, bytes, err));
            more = engine->room + SUM_BYTES;
        }
        pd_sum_add(sum, i || memory ? sum : own, more, bytes / sizeof(uint64_t));
    }
    return memory ? memory->copy(memory->context, target, sum, bytes, err) : PD_OK;
}

static pd_status sum_all(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err)
{
    struct pd_exchange *x = &engine->exchange;
    struct pd_link *self = &x->links[engine->comm.rank];
    const uint64_t bytes = self->recv.left;
    pd_status st = PD_OK;
    if (!x->active_count || !x->links[x->active[0]].recv.left || !take_all(engine)) return PD_OK;
    for (uint32_t i = 0; i < x->active_count && !st; i++) {
        const uint32_t peer = x->active[i];
        st = check_match(engine, peer, offer_between(engine, x->links[peer].slot, engine->slot), bytes, err);
    }
    for (uint64_t at = 0; at < bytes && !st; at += SUM_BYTES)
        st = sum_piece(engine, at, pd_min_u64(bytes - at, SUM_BYTES), err);
    for (uint32_t i = 0; i < x->active_count; i++) {
        if (!st && x->links[x->active[i]].is_damaged) st = pd_cursor_damage(&self->recv, err);
        x->links[x->active[i]].recv.left = 0;
        x->links[x->active[i]].has_come = false; /* it is waited for until it has read this rank's */
    }
    give_back_all(engine);
    *ret_has_moved = true;
    return st;
}

static pd_status direct_progress(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err)
{
    if (engine->exchange.adds) PD_TRY(sum_all(engine, ret_has_moved, err));
    for (uint32_t i = 0; i < engine->exchange.active_count; i++) {
        struct pd_link *link = &engine->exchange.links[engine->exchange.active[i]];
        if (link->slot == PD_NO_SLOT) continue;
        if (link->recv.left && !engine->exchange.adds) PD_TRY(take(engine, engine->exchange.active[i], ret_has_moved, err));
        if (link->send.left == 0) continue;
        if (atomic_load(&offer_between(engine, engine->slot, link->slot)->state) != PD_OFFER_EMPTY) continue;
        link->send.left = 0;
        *ret_has_moved = true;
    }
    return PD_OK;
}

/* Withdraws offers of a failed operation; a peer that is copying right now is waited for, which lasts one copy. */
static void direct_end(struct pd_progress *engine)
{
    for (uint32_t i = 0; i < engine->exchange.peer_count; i++) {
        const struct pd_link *link = &engine->exchange.links[engine->exchange.peers[i]];
        if (!link->is_send_begun) continue;
        struct pd_offer *offer = offer_between(engine, engine->slot, link->slot);
        uint32_t seen = PD_OFFER_OFFERED; /* again after TAKING, when a receiver of sums gave it back */
        while (!atomic_compare_exchange_strong(&offer->state, &seen, PD_OFFER_EMPTY) && seen != PD_OFFER_EMPTY) {
            seen = PD_OFFER_OFFERED;
            sched_yield();
        }
    }
}

const struct pd_channel_ops pd_channel_direct = {
    .begin = direct_begin,
    .progress = direct_progress,
    .end = direct_end,
};
