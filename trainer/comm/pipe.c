#include "trainer/comm/pipe.h"

#include "ckpt/base/checked.h"

/* Signals the peer after this many bytes, so that both copy concurrently and from cache. */
#define BURST_BYTES (UINT64_C(128) << 10)
#define RING_BYTES_MAX (UINT64_C(1) << 20)

struct pipe_head {
    uint64_t sequence, bytes, cuts;
};

/* A digest of the lengths of device pieces; 0 for host pieces. Finds, even without a GPU, what NCCL could not send. */
static uint64_t cuts_of(struct pd_cursor walk)
{
    uint64_t digest = 0;
    while (walk.memory && walk.left) {
        const uint64_t bytes = walk.pieces[walk.index].bytes;
        digest = (digest ^ bytes) * UINT64_C(0x100000001b3);
        pd_cursor_advance(&walk, bytes);
    }
    return digest;
}

struct ring {
    struct pd_pipe *pipe;
    uint8_t *data; /* (capacity) */
    uint64_t capacity;
};

static struct ring ring_between(const struct pd_progress *engine, uint32_t sender, uint32_t receiver)
{
    const struct pd_segment *segment = engine->segment;
    uint32_t index = receiver < sender ? receiver : receiver - 1;
    uint64_t mailbox = segment->shape.mailbox_bytes;
    uint64_t share = mailbox / (segment->shape.slots - 1) / PD_CACHE_LINE * PD_CACHE_LINE;
    return (struct ring){
        .pipe = pd_segment_pair(segment, sender, receiver),
        .data = segment->mailboxes + sender * mailbox + index * share,
        .capacity = pd_min_u64(share, RING_BYTES_MAX),
    };
}

static uint64_t ring_space(const struct ring *ring)
{
    uint64_t taken = atomic_load_explicit(&ring->pipe->taken, memory_order_acquire);
    return ring->capacity - (atomic_load_explicit(&ring->pipe->written, memory_order_relaxed) - taken);
}

static uint64_t ring_filled(const struct ring *ring)
{
    uint64_t written = atomic_load_explicit(&ring->pipe->written, memory_order_acquire);
    return written - atomic_load_explicit(&ring->pipe->taken, memory_order_relaxed);
}

/* The contiguous part of `bytes` bytes at stream position `at`. */
static uint8_t *ring_span(const struct ring *ring, uint64_t at, uint64_t *bytes)
{
    uint64_t offset = at % ring->capacity;
    *bytes = pd_min_u64(*bytes, ring->capacity - offset);
    return ring->data + offset;
}

static uint8_t *ring_first(const struct ring *ring)
{
    return ring->data + atomic_load_explicit(&ring->pipe->taken, memory_order_relaxed) % ring->capacity;
}

static pd_status ring_put(struct ring *ring, struct pd_cursor *source, uint64_t bytes, struct pd_error *err)
{
    uint64_t at = atomic_load_explicit(&ring->pipe->written, memory_order_relaxed);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t step = bytes - done;
        uint8_t *to = ring_span(ring, at + done, &step);
        PD_TRY(pd_cursor_read(source, to, step, err));
        done += step;
    }
    atomic_store_explicit(&ring->pipe->written, at + bytes, memory_order_release);
    return PD_OK;
}

static pd_status ring_take(struct ring *ring, struct pd_cursor *target, uint64_t bytes, struct pd_error *err)
{
    uint64_t at = atomic_load_explicit(&ring->pipe->taken, memory_order_relaxed);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t step = bytes - done;
        const uint8_t *from = ring_span(ring, at + done, &step);
        PD_TRY(pd_cursor_write(target, from, step, err));
        done += step;
    }
    atomic_store_explicit(&ring->pipe->taken, at + bytes, memory_order_release);
    return PD_OK;
}

/* A header is walked like any message of one piece. */
static struct pd_cursor head_cursor(const struct pd_comm_piece *piece)
{
    return (struct pd_cursor){.pieces = piece, .count = 1, .left = piece->bytes};
}

/* Adds whole integers directly from the ring. */
#define MESSAGE_ALIGN sizeof(uint64_t)

static uint64_t padding(const _Atomic uint64_t *at)
{
    return -atomic_load_explicit(at, memory_order_relaxed) % MESSAGE_ALIGN;
}

static void skip(_Atomic uint64_t *at, uint64_t bytes)
{
    atomic_store_explicit(at, atomic_load_explicit(at, memory_order_relaxed) + bytes, memory_order_release);
}

static pd_status send_some(struct pd_progress *engine, struct pd_link *link, bool *ret_has_moved, struct pd_error *err)
{
    struct ring ring = ring_between(engine, engine->slot, link->slot);
    const uint64_t pad = padding(&ring.pipe->written);
    if (!link->is_send_begun && ring_space(&ring) >= pad + sizeof(struct pipe_head)) {
        skip(&ring.pipe->written, pad);
        struct pipe_head head = {engine->exchange.sequence, link->send.left, cuts_of(link->send)};
        struct pd_comm_piece piece = {.data = &head, .bytes = sizeof head};
        struct pd_cursor cursor = head_cursor(&piece);
        PD_TRY(ring_put(&ring, &cursor, sizeof head, err));
        link->is_send_begun = true;
    }
    while (link->is_send_begun && link->send.left) {
        uint64_t step = pd_min_u64(pd_min_u64(link->send.left, ring_space(&ring)), BURST_BYTES);
        if (step == 0) break;
        PD_TRY(ring_put(&ring, &link->send, step, err));
        pd_segment_ring(engine->segment, link->slot);
        *ret_has_moved = true;
    }
    return PD_OK;
}

static pd_status receive_head(struct pd_progress *engine, uint32_t peer, struct ring *ring, struct pd_error *err)
{
    struct pd_link *link = &engine->exchange.links[peer];
    struct pipe_head head;
    struct pd_comm_piece piece = {.data = &head, .bytes = sizeof head};
    struct pd_cursor cursor = head_cursor(&piece);
    PD_TRY(ring_take(ring, &cursor, sizeof head, err));
    link->is_recv_begun = true;
    const uint64_t cuts = cuts_of(link->recv);
    if (head.sequence == engine->exchange.sequence && head.bytes == link->recv.left) {
        if (!cuts || !head.cuts || cuts == head.cuts) return PD_OK;
        PD_FAIL(err, PD_BUG, "operation %llu: rank %u cuts its %llu bytes otherwise than rank %u, which receives them",
                (unsigned long long)head.sequence, engine->members[peer].world, (unsigned long long)head.bytes,
                engine->members[engine->comm.rank].world);
    }
    PD_FAIL(err, PD_BUG, "operation %llu: rank %u expects %llu bytes of rank %u, which sends %llu in its operation %llu",
            (unsigned long long)engine->exchange.sequence, engine->members[engine->comm.rank].world,
            (unsigned long long)link->recv.left, engine->members[peer].world, (unsigned long long)head.bytes,
            (unsigned long long)head.sequence);
}

static pd_status receive_some(struct pd_progress *engine, uint32_t peer, bool *ret_has_moved, struct pd_error *err)
{
    struct pd_link *link = &engine->exchange.links[peer];
    struct ring ring = ring_between(engine, link->slot, engine->slot);
    const uint64_t pad = padding(&ring.pipe->taken);
    if (!link->is_recv_begun && ring_filled(&ring) >= pad + sizeof(struct pipe_head)) {
        skip(&ring.pipe->taken, pad);
        PD_TRY(receive_head(engine, peer, &ring, err));
    }
    while (link->is_recv_begun && link->recv.left) {
        uint64_t step = pd_min_u64(pd_min_u64(link->recv.left, ring_filled(&ring)), BURST_BYTES);
        if (link->recv.adds) step -= step % sizeof(uint64_t);
        if (step == 0) break;
        if (link->is_damaged) *ring_first(&ring) ^= 1;
        link->is_damaged = false;
        PD_TRY(ring_take(&ring, &link->recv, step, err));
        pd_segment_ring(engine->segment, link->slot);
        *ret_has_moved = true;
    }
    return PD_OK;
}

pd_status pd_pipes_progress(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err)
{
    for (uint32_t i = 0; i < engine->exchange.active_count; i++) {
        struct pd_link *link = &engine->exchange.links[engine->exchange.active[i]];
        if (link->slot == PD_NO_SLOT) continue;
        if (link->send.left) PD_TRY(send_some(engine, link, ret_has_moved, err));
        if (link->recv.left) PD_TRY(receive_some(engine, engine->exchange.active[i], ret_has_moved, err));
    }
    return PD_OK;
}
