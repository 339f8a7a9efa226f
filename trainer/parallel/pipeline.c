#include "trainer/parallel/pipeline.h"

#include "ckpt/base/owner.h"
#include "offload/stalls.h"

#include <stdlib.h>

enum { BUFFERS_MAX = 3, FIRST_PASSES = 8 };

/* A residual stream or its gradient. The stage uses it while it is `current`. From the start of a transfer to its wait the
 * communicator's thread, or NCCL's stream, owns it exclusively. */
struct buffer {
    void *data;
    struct pd_owner owner;
    struct pd_comm *comm; /* of the transfer in flight; NULL: none */
    struct pd_comm_op op;
    struct pd_comm_piece piece;
};

/* Buffers of one kind, used in turn: arriving streams, leaving streams, or gradients. */
struct ring {
    uint32_t count, next;
    struct buffer buffers[BUFFERS_MAX];
    struct buffer *current, *expected; /* used by the caller; next to be received */
    uint64_t left;                     /* receives not yet started */
};

struct pd_pipeline {
    const struct pd_grid *grid;
    struct pd_math *math;
    uint64_t bytes;
    struct pd_stalls *stalls;
    uint32_t first_passes; /* that are left */
    bool has_gradients;    /* this pass */
    struct ring streams_in, streams_out, gradients;
};

static void take_ring(struct ring *ring, uint32_t count, uint64_t bytes, struct pd_arena *arena,
                      enum pd_memory_category category)
{
    ring->count = count;
    for (uint32_t i = 0; i < count; i++)
        ring->buffers[i].data = pd_arena_take(arena, category, bytes);
}

pd_status pd_pipeline_new(const struct pd_grid *grid, uint64_t stream_bytes, struct pd_math *math, struct pd_dev *dev,
                          struct pd_stream *compute, struct pd_arena *arena, struct pd_pipeline **ret_pipeline,
                          struct pd_error *err)
{
    const struct pd_layout *layout = &grid->layout;
    const bool wraps = layout->pp > 1 && layout->interleave > 1;
    const bool has_before = grid->place.pp > 0 || wraps, has_after = grid->place.pp + 1 < layout->pp || wraps;
    struct pd_pipeline *p = calloc(1, sizeof *p);
    if (!p) PD_FAIL(err, PD_NO_MEMORY, "pipeline: no memory");
    const pd_status st = pd_stalls_new(dev, compute, &p->stalls, err);
    if (st) {
        pd_pipeline_free(p);
        return st;
    }
    p->grid = grid;
    p->math = math;
    p->bytes = stream_bytes;
    p->first_passes = dev ? FIRST_PASSES : 0;
    take_ring(&p->streams_in, has_before ? 1 : 0, stream_bytes, arena, PD_MEMORY_BUFFERS);
    take_ring(&p->streams_out, has_after ? 2 : 0, stream_bytes, arena, PD_MEMORY_BUFFERS);
    take_ring(&p->gradients, 1u + has_before + has_after, stream_bytes, arena, PD_MEMORY_ACTIVATIONS);
    *ret_pipeline = p;
    return PD_OK;
}

void pd_pipeline_free(struct pd_pipeline *pipeline)
{
    if (!pipeline) return;
    pd_stalls_free(pipeline->stalls);
    free(pipeline);
}

/* ---- one transfer ---- */

static const char the_transfer[] = "the transfer between stages";

static pd_status pipeline_start(struct pd_pipeline *p, struct buffer *b, struct pd_comm *comm, bool is_send,
                                struct pd_error *err)
{
    PD_CHECK(comm && !b->comm);
    pd_owner_acquire(&b->owner, the_transfer);
    b->piece = (struct pd_comm_piece){.peer = 1 - comm->rank, .data = b->data, .bytes = p->bytes};
    b->op = is_send ? (struct pd_comm_op){.sends = &b->piece, .send_count = 1, .what = "to another stage"}
                    : (struct pd_comm_op){.recvs = &b->piece, .recv_count = 1, .what = "from another stage"};
    const pd_status st = pd_comm_start(comm, &b->op, err);
    b->comm = st ? NULL : comm;
    if (st) pd_owner_release(&b->owner, the_transfer);
    return st;
}

static pd_status pipeline_finish(struct pd_pipeline *p, struct buffer *b, struct pd_error *err)
{
    if (!b->comm) return PD_OK;
    struct pd_comm *comm = b->comm;
    struct pd_error second; /* if timing failed: the wait is needed all the same */
    pd_status timed = pd_stalls_begin(p->stalls, &second);
    b->comm = NULL;
    const pd_status st = pd_comm_wait(comm, &b->op, err);
    pd_owner_release(&b->owner, the_transfer);
    if (st) return st;
    if (!timed) timed = pd_stalls_end(p->stalls, &second);
    if (timed && err) *err = second;
    return timed;
}

/* ---- rings ---- */

/* The buffer whose send, if any, started first. */
static pd_status take_free(struct pd_pipeline *p, struct ring *ring, struct buffer **ret_buffer, struct pd_error *err)
{
    struct buffer *b;
    PD_CHECK(ring->count > (ring->current ? 1u : 0u) + (ring->expected ? 1u : 0u));
    do {
        b = &ring->buffers[ring->next];
        ring->next = (ring->next + 1) % ring->count;
    } while (b == ring->current || b == ring->expected);
    PD_TRY(pipeline_finish(p, b, err));
    *ret_buffer = b;
    return PD_OK;
}

/* Selects the buffer and starts receiving into it. Not in the first passes on a device: the driver loads a kernel's code at
 * its first launch, and may wait for the device to be idle. But the expected data may depend on this rank's own sends. */
static pd_status pipeline_expect(struct pd_pipeline *p, struct ring *ring, struct pd_comm *comm, struct pd_error *err)
{
    if (!ring->left) return PD_OK;
    ring->left--;
    PD_TRY(take_free(p, ring, &ring->expected, err));
    return p->first_passes ? PD_OK : pipeline_start(p, ring->expected, comm, false, err);
}

static pd_status pipeline_receive(struct pd_pipeline *p, struct ring *ring, struct pd_comm *comm, struct pd_error *err)
{
    if (!ring->expected) PD_TRY(pipeline_expect(p, ring, comm, err));
    PD_CHECK(ring->expected);
    if (!ring->expected->comm) PD_TRY(pipeline_start(p, ring->expected, comm, false, err));
    PD_TRY(pipeline_finish(p, ring->expected, err));
    ring->current = ring->expected;
    ring->expected = NULL;
    return PD_OK;
}

static pd_status take_current(struct pd_pipeline *p, struct ring *ring, void **ret_data, struct pd_error *err)
{
    ring->current = NULL;
    PD_TRY(take_free(p, ring, &ring->current, err));
    *ret_data = ring->current->data;
    return PD_OK;
}

static pd_status send_current(struct pd_pipeline *p, struct ring *ring, struct pd_comm *comm, struct pd_error *err)
{
    struct buffer *b = ring->current;
    PD_CHECK(b);
    ring->current = NULL;
    return pipeline_start(p, b, comm, true, err);
}

pd_status pd_pipeline_begin(struct pd_pipeline *p, uint64_t streams, uint64_t gradients, struct pd_error *err)
{
    pd_stalls_forget(p->stalls);
    p->streams_in.current = p->streams_out.current = p->gradients.current = NULL;
    PD_CHECK(!p->streams_in.expected && !p->gradients.expected);
    p->streams_in.next = p->streams_out.next = p->gradients.next = 0;
    p->streams_in.left = streams;
    p->gradients.left = gradients;
    p->has_gradients = false;
    PD_TRY(pipeline_expect(p, &p->streams_in, p->grid->forward_in, err));
    return pipeline_expect(p, &p->gradients, p->grid->backward_in, err);
}

pd_status pd_pipeline_take_stream(struct pd_pipeline *p, void *stream, struct pd_error *err)
{
    struct ring *ring = &p->streams_in;
    PD_TRY(pipeline_receive(p, ring, p->grid->forward_in, err));
    PD_TRY(pd_math_copy(p->math, stream, ring->current->data, p->bytes, err));
    ring->current = NULL;
    return pipeline_expect(p, ring, p->grid->forward_in, err);
}

pd_status pd_pipeline_next_stream(struct pd_pipeline *p, void **ret_stream, struct pd_error *err)
{
    return take_current(p, &p->streams_out, ret_stream, err);
}

pd_status pd_pipeline_send_stream(struct pd_pipeline *p, struct pd_error *err)
{
    return send_current(p, &p->streams_out, p->grid->forward_out, err);
}

pd_status pd_pipeline_take_gradient(struct pd_pipeline *p, void **ret_gradient, struct pd_error *err)
{
    p->has_gradients = true;
    PD_TRY(pipeline_receive(p, &p->gradients, p->grid->backward_in, err));
    *ret_gradient = p->gradients.current->data;
    return pipeline_expect(p, &p->gradients, p->grid->backward_in, err);
}

pd_status pd_pipeline_next_gradient(struct pd_pipeline *p, void **ret_gradient, struct pd_error *err)
{
    return take_current(p, &p->gradients, ret_gradient, err);
}

pd_status pd_pipeline_send_gradient(struct pd_pipeline *p, struct pd_error *err)
{
    p->has_gradients = true;
    return send_current(p, &p->gradients, p->grid->backward_out, err);
}

/* After an abort: ignores their results. */
static pd_status finish_all(struct pd_pipeline *p, bool is_over, struct pd_error *err)
{
    struct ring *rings[] = {&p->streams_in, &p->streams_out, &p->gradients};
    for (int r = 0; r < 3; r++)
        for (uint32_t i = 0; i < rings[r]->count; i++) {
            const pd_status st = pipeline_finish(p, &rings[r]->buffers[i], err);
            if (st && !is_over) return st;
        }
    return PD_OK;
}

pd_status pd_pipeline_end(struct pd_pipeline *p, uint64_t *ret_wait_ns, struct pd_error *err)
{
    PD_TRY(finish_all(p, false, err));
    if (p->has_gradients && p->first_passes) p->first_passes--;
    return pd_stalls_take(p->stalls, ret_wait_ns, err);
}

void pd_pipeline_sync(struct pd_pipeline *p)
{
    (void)!finish_all(p, true, NULL);
}
