#include "trainer/comm/nccl_internal.h"

#include "ckpt/base/heartbeat.h"
#include "offload/ranges.h"

#define PACK_BYTES \
    16u /* NCCL moves so many at a time where each rank's part begins at a multiple of them, else one by one */
#define BULK_BYTES 4096u

/* The n-th piece to oneself is the n-th from oneself. */
static pd_status copy_to_self(struct nccl_comm *c, const struct pd_comm_op *op, struct pd_error *err)
{
    uint32_t to = 0;
    if (op->kind == PD_COMM_REDUCE_SCATTER && !c->handle && op->sum != op->parts) {
        const struct pd_span own = {op->parts, op->part_bytes, false}, sum = {op->sum, op->part_bytes, false};
        return pd_dev_copy(c->group->dev, c->stream, sum, 0, own, 0, op->part_bytes, err);
    }
    for (uint32_t from = 0; from < op->send_count; from++) {
        const struct pd_comm_piece *source = &op->sends[from];
        if (source->peer != c->comm.rank || !source->bytes) continue;
        while (to < op->recv_count && (op->recvs[to].peer != c->comm.rank || !op->recvs[to].bytes))
            to++;
        if (to == op->recv_count || op->recvs[to].bytes != source->bytes)
            PD_FAIL(err, PD_BUG, "NCCL: rank %u sends itself %llu bytes that it receives otherwise", c->comm.rank,
                    (unsigned long long)source->bytes);
        const struct pd_span src = {source->data, source->bytes, false}, dst = {op->recvs[to++].data, source->bytes, false};
        PD_TRY(pd_dev_copy(c->group->dev, c->stream, dst, 0, src, 0, source->bytes, err));
    }
    return PD_OK;
}

static void keep_first(int *code, int next)
{
    if (*code == PD_NCCL_DONE || *code == PD_NCCL_IN_PROGRESS) *code = next;
}

static pd_status launch_pieces(struct nccl_comm *c, const struct pd_comm_op *op, struct pd_error *err)
{
    const struct pd_nccl_library *nccl = c->group->nccl;
    void *stream = pd_dev_stream_handle(c->group->dev, c->stream);
    int code = nccl->GroupStart();
    for (uint32_t i = 0; i < op->send_count + op->recv_count; i++) {
        const bool is_send = i < op->send_count;
        const struct pd_comm_piece *p = is_send ? &op->sends[i] : &op->recvs[i - op->send_count];
        if (p->peer == c->comm.rank || !p->bytes) continue;
        keep_first(&code, is_send ? nccl->Send(p->data, p->bytes, PD_NCCL_UINT8, (int)p->peer, c->handle, stream)
                                  : nccl->Recv(p->data, p->bytes, PD_NCCL_UINT8, (int)p->peer, c->handle, stream));
    }
    keep_first(&code, nccl->GroupEnd());
    return nccl_poll_until_done(c, code, "a group of sends and receives", err);
}

pd_status nccl_launch(struct nccl_comm *c, const struct pd_comm_op *op, struct pd_error *err)
{
    if (op->kind == PD_COMM_EXCHANGE) return launch_pieces(c, op, err);
    /* In place, at the own part; for integers the order of additions does not matter. */
    const struct pd_nccl_library *nccl = c->group->nccl;
    void *stream = pd_dev_stream_handle(c->group->dev, c->stream);
    const uint8_t *own = op->parts + c->comm.rank * op->part_bytes;
    int code;
    if (!op->part_bytes) return PD_OK;
#ifdef PERDURE_CHECK_OWNERS
    PD_CHECK(op->part_bytes < BULK_BYTES || ((uintptr_t)op->parts % PACK_BYTES == 0 && op->part_bytes % PACK_BYTES == 0));
#endif
    if (op->kind == PD_COMM_REDUCE_SCATTER)
        code =
            nccl->ReduceScatter(op->parts, op->sum, op->part_bytes / (op->adds_narrow ? sizeof(uint32_t) : sizeof(uint64_t)),
                                op->adds_narrow ? PD_NCCL_UINT32 : PD_NCCL_UINT64, PD_NCCL_SUM, c->handle, stream);
    else
        code = nccl->AllGather(own, op->parts, op->part_bytes, PD_NCCL_UINT8, c->handle, stream);
    return nccl_poll_until_done(c, code, op->kind == PD_COMM_REDUCE_SCATTER ? "a reduce-scatter" : "an all-gather", err);
}

/* As a ring sends for a collective. */
static uint64_t sent_bytes(const struct nccl_comm *c, const struct pd_comm_op *op)
{
    uint64_t bytes = (c->comm.size - 1) * op->part_bytes;
    for (uint32_t i = 0; i < op->send_count; i++)
        if (op->sends[i].peer != c->comm.rank) bytes += op->sends[i].bytes;
    return bytes;
}

static uint64_t received_bytes(const struct pd_comm_op *op)
{
    uint64_t bytes = op->part_bytes;
    for (uint32_t i = 0; i < op->recv_count; i++)
        bytes += op->recvs[i].bytes;
    return bytes;
}

static pd_status put_on_stream(struct nccl_comm *c, const struct pd_comm_op *op, struct flight *flight, struct pd_error *err)
{
    struct comm_group *f = c->group;
    PD_TRY(pd_dev_event_record(f->dev, c->given, f->compute, err));
    PD_TRY(pd_dev_event_wait(f->dev, c->stream, c->given, err));
    PD_TRY(pd_dev_event_record(f->dev, flight->begun, c->stream, err));
    flight->what = op->what ? op->what : pd_comm_kind_names[op->kind];
    const uint32_t span = pd_device_spans_begin(f->spans, c->stream, c->lane, flight->what, received_bytes(op));
    pd_range_push(flight->what, received_bytes(op));
    pd_status st = copy_to_self(c, op, err);
    if (!st && c->handle) st = nccl_launch(c, op, err);
    pd_range_pop();
    atomic_fetch_add_explicit(&f->sent_bytes, sent_bytes(c, op), memory_order_relaxed);
    pd_device_spans_end(f->spans, span, c->stream);
    return st ? st : pd_dev_event_record(f->dev, flight->ended, c->stream, err);
}

/* Keeps the host at most FLIGHTS operations ahead. If a flight was waited for, everything its peers need is queued. */
static pd_status take_flight(struct nccl_comm *c, struct flight **ret_flight, struct pd_error *err)
{
    struct flight *flight = &c->flights[c->operations % FLIGHTS];
    PD_CHECK(!flight->is_open);
    pthread_mutex_lock(&c->group->lock);
    const bool is_over = flight->is_over;
    pthread_mutex_unlock(&c->group->lock);
    pd_status st = PD_OK;
    if (!is_over) {
        const enum pd_heartbeat_place before = pd_heartbeat_enter(PD_HEARTBEAT_EXCHANGING);
        st = pd_dev_event_sync(c->group->dev, flight->ended, err);
        pd_heartbeat_enter(before);
    }
    if (!st) *ret_flight = flight;
    return st;
}

static pd_status start_here(struct nccl_comm *c, struct pd_comm_op *op, struct pd_error *err)
{
    struct flight *flight;
    PD_TRY(take_flight(c, &flight, err));
    if (!nccl_begin_launch(c)) return nccl_state_of(c->group, err);
    flight->is_over = false;
    pd_status st = put_on_stream(c, op, flight, err);
    if (st) {
        struct pd_error why = *err;
        flight->is_over = true;
        nccl_break_group(c->group, st, &why);
    }
    op->ticket = (uint32_t)(c->operations++ % FLIGHTS);
    flight->is_open = !st;
    nccl_end_launch(c);
    return st;
}

pd_status nccl_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    struct nccl_comm *c = nccl_of(comm);
    if (!op->memory) return c->control->ops->start(c->control, op, err);
    if (!c->is_used) PD_FAIL(err, PD_BUG, "NCCL: an operation on a communicator that was made for none");
    op->status = start_here(c, op, &op->error);
    op->done = op->status != PD_OK;
    if (op->status && err) *err = op->error;
    return op->status;
}

pd_status nccl_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    struct nccl_comm *c = nccl_of(comm);
    struct comm_group *f = c->group;
    if (!op->memory) return c->control->ops->wait(c->control, op, err);
    if (!op->done) {
        struct flight *flight = &c->flights[op->ticket];
        struct pd_error ignored;
        flight->is_open = false;
        op->status = nccl_state_of(f, &op->error);
        if (!op->status)
            op->status = pd_dev_event_wait(f->dev, f->compute, flight->ended, &op->error);
        else if (pd_dev_stream_sync(f->dev, c->stream, &ignored)) /* nothing uses its pieces any more */
            op->error = f->error;
        op->done = 1;
    }
    if (op->status && err) *err = op->error;
    return op->status;
}
