#include "trainer/comm/direct.h"

#include <sched.h>

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
    if (!st) st = pd_cursor_copy(&link->recv, &source, source.left, err);
    atomic_store(&offer->state, PD_OFFER_EMPTY);
    pd_segment_ring(engine->segment, link->slot);
    *ret_has_moved = true;
    return st;
}

static pd_status direct_progress(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err)
{
    for (uint32_t i = 0; i < engine->exchange.active_count; i++) {
        struct pd_link *link = &engine->exchange.links[engine->exchange.active[i]];
        if (link->slot == PD_NO_SLOT) continue;
        if (link->recv.left) PD_TRY(take(engine, engine->exchange.active[i], ret_has_moved, err));
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
    for (uint32_t p = 0; p < engine->comm.size; p++) {
        const struct pd_link *link = &engine->exchange.links[p];
        if (!link->is_send_begun) continue;
        struct pd_offer *offer = offer_between(engine, engine->slot, link->slot);
        uint32_t offered = PD_OFFER_OFFERED;
        if (atomic_compare_exchange_strong(&offer->state, &offered, PD_OFFER_EMPTY)) continue;
        while (atomic_load(&offer->state) == PD_OFFER_TAKING)
            sched_yield();
    }
}

const struct pd_channel_ops pd_channel_direct = {
    .begin = direct_begin,
    .progress = direct_progress,
    .end = direct_end,
};
