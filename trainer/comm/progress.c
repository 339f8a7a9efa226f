#include "trainer/comm/progress.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/trace.h"
#include "trainer/comm/pipe.h"
#include "trainer/comm/staging.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t pd_progress_slot_of(const struct pd_member_info *members, uint32_t size, uint32_t rank, uint32_t *ret_slots)
{
    uint32_t slots = 0, mine = 0;
    for (uint32_t r = 0; r < size; r++) {
        if (members[r].domain != members[rank].domain) continue;
        if (r == rank) mine = slots;
        slots++;
    }
    *ret_slots = slots;
    return mine;
}

/* Pieces in an exchange of a collective, in one direction: at most three per rank it involves, and rounds involve few
 * (reduce_scatter.c, all_gather.c). */
static uint64_t pieces_max(uint32_t size)
{
    return 3 * pd_max_u64(size, PD_ROUND_PARTS) + PD_ROUND_PARTS;
}

/* The parts of one allocation, the engine first. */
struct parts {
    uint64_t members, links, active, pieces, sends, recvs, values, peers, slots, firsts, ranks, end;
};

static struct parts progress_parts_of(uint32_t size)
{
    uint64_t rounds = size < PD_FLAT_RANKS_MAX ? size : PD_FLAT_RANKS_MAX;
    struct parts p = {.links = (sizeof(struct pd_progress) + 15) / 16 * 16};
    p.pieces = p.links + size * sizeof(struct pd_link);
    p.sends = p.pieces + 2 * size * sizeof(struct pd_comm_piece);
    p.recvs = p.sends + pieces_max(size) * sizeof(struct pd_comm_piece);
    p.values = p.recvs + pieces_max(size) * sizeof(struct pd_comm_piece);
    p.members = p.values + rounds * PD_REDUCE_ROUND * sizeof(uint64_t);
    p.active = p.members + size * sizeof(struct pd_member_info);
    p.peers = p.active + size * sizeof(uint32_t);
    p.slots = p.peers + size * sizeof(uint32_t);
    p.firsts = p.slots + size * sizeof(uint32_t);
    p.ranks = p.firsts + (size + UINT64_C(1)) * sizeof(uint32_t);
    p.end = p.ranks + size * sizeof(uint32_t);
    return p;
}

uint64_t pd_progress_bytes(uint32_t size)
{
    return progress_parts_of(size).end + pd_staging_scratch_bytes(size);
}

struct pd_segment_shape pd_progress_shape(const struct pd_comm_transport *transport, uint32_t size, uint32_t slots)
{
    return (struct pd_segment_shape){.slots = slots,
                                     .is_processes = transport->is_processes,
                                     .pair_bytes = sizeof(struct pd_pipe),
                                     .mailbox_bytes = pd_staging_mailbox_bytes(size, slots)};
}

static struct pd_progress *engine_allocate(uint32_t size)
{
    struct parts parts = progress_parts_of(size);
    const uint64_t scratch_bytes = pd_staging_scratch_bytes(size);
    uint8_t *base = calloc(1, parts.end);
    struct pd_progress *engine = (struct pd_progress *)base;
    if (!engine) return NULL;
    if (scratch_bytes && !(engine->scratch = aligned_alloc(4096, scratch_bytes))) {
        free(engine);
        return NULL;
    }
    engine->scratch_bytes = scratch_bytes;
    engine->sends = (struct pd_comm_piece *)(base + parts.sends);
    engine->recvs = (struct pd_comm_piece *)(base + parts.recvs);
    engine->hosts.first = (uint32_t *)(base + parts.firsts);
    engine->hosts.ranks = (uint32_t *)(base + parts.ranks);
    engine->members = (struct pd_member_info *)(base + parts.members);
    engine->exchange.links = (struct pd_link *)(base + parts.links);
    engine->exchange.active = (uint32_t *)(base + parts.active);
    engine->exchange.peers = (uint32_t *)(base + parts.peers);
    engine->slot_ranks = (uint32_t *)(base + parts.slots);
    engine->scratch_pieces = (struct pd_comm_piece *)(base + parts.pieces);
    engine->scratch_values = (uint64_t *)(base + parts.values);
    return engine;
}

static uint64_t progress_bytes_of(const struct pd_comm_op *op)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < op->send_count; i++)
        bytes += op->sends[i].bytes;
    for (uint32_t i = 0; i < op->recv_count; i++)
        bytes += op->recvs[i].bytes;
    return bytes + op->part_bytes;
}

/* Threads share the mailboxes; the first to finish would unpin them for all. */
static uint64_t mailbox_bytes(const struct pd_progress *engine)
{
    const struct pd_segment_shape *shape = &engine->segment->shape;
    return shape->slots > 1 && shape->is_processes ? shape->slots * shape->mailbox_bytes : 0;
}

static const char the_operation[] = "an operation";
const char *const pd_comm_kind_names[] = {"exchange", "reduce-scatter", "all-gather"};

/* Pins the mailboxes of all: a device fills this rank's and empties the others'. */
static void lock_staging(struct pd_progress *engine, const struct pd_comm_memory *memory)
{
    if (engine->locker.lock) return;
    engine->locker = *memory;
    const uint64_t bytes = mailbox_bytes(engine);
    engine->is_mailbox_locked = bytes && memory->lock(memory->context, engine->segment->mailboxes, bytes);
    engine->is_remote_locked =
        engine->remote.staging && memory->lock(memory->context, engine->remote.staging, engine->remote.staging_bytes);
    engine->is_scratch_locked = engine->scratch && memory->lock(memory->context, engine->scratch, engine->scratch_bytes);
}

static void unlock_staging(struct pd_progress *engine)
{
    const struct pd_comm_memory *memory = &engine->locker;
    pd_owner_acquire(&engine->staging_owner, "unlocking");
    if (engine->is_mailbox_locked) memory->unlock(memory->context, engine->segment->mailboxes, mailbox_bytes(engine));
    if (engine->is_remote_locked) memory->unlock(memory->context, engine->remote.staging, engine->remote.staging_bytes);
    if (engine->is_scratch_locked) memory->unlock(memory->context, engine->scratch, engine->scratch_bytes);
    engine->is_mailbox_locked = engine->is_remote_locked = engine->is_scratch_locked = false;
    engine->locker = (struct pd_comm_memory){.lock = NULL};
    pd_owner_release(&engine->staging_owner, "unlocking");
}

void pd_progress_unlock(struct pd_comm *comm)
{
    struct pd_progress *engine = pd_progress_of(comm);
    pthread_mutex_lock(&engine->lock);
    while (engine->is_executing)
        pthread_cond_wait(&engine->done, &engine->lock);
    unlock_staging(engine);
    pthread_mutex_unlock(&engine->lock);
}

static pd_status carry_out(struct pd_progress *engine, struct pd_comm_op *op, struct pd_error *err)
{
    if (op->kind == PD_COMM_REDUCE_SCATTER) return pd_reduce_scatter_run(engine, op, err);
    if (op->kind == PD_COMM_ALL_GATHER) return pd_all_gather_run(engine, op, err);
    const struct pd_messages all = {.sends = op->sends,
                                    .send_count = op->send_count,
                                    .recvs = op->recvs,
                                    .recv_count = op->recv_count,
                                    .inner = op->memory,
                                    .outer = op->memory,
                                    .arriving = op->memory,
                                    .fault = "comm.exchange.flip"};
    return pd_exchange_run(engine, &all, err);
}

/* Called with the lock. The first call for an operation counts. */
static void end_current(struct pd_progress *engine, pd_status st)
{
    struct pd_comm_op *op = engine->current;
    if (!op) return;
    engine->current = NULL;
    op->status = st;
    if (st) op->error = engine->broken_error;
    op->done = 1;
    pthread_cond_signal(&engine->done);
}

void pd_progress_end_current(struct pd_progress *engine)
{
    pthread_mutex_lock(&engine->lock);
    end_current(engine, PD_OK);
    pthread_mutex_unlock(&engine->lock);
}

const struct pd_comm_op *pd_progress_begin_next(struct pd_progress *engine, const struct pd_comm_op *op)
{
    pthread_mutex_lock(&engine->lock);
    struct pd_comm_op *next = engine->is_own_thread && !engine->broken ? engine->head : NULL;
    if (next && (next->kind != op->kind || next->memory != op->memory || !next->part_bytes)) next = NULL;
    if (next) next->is_begun = true;
    pthread_mutex_unlock(&engine->lock);
    return next;
}

/* Called with the lock held; releases it while the operation runs. */
static void execute(struct pd_progress *engine, struct pd_comm_op *op, bool is_own_thread)
{
    struct pd_error error;
    engine->is_executing = true;
    engine->is_own_thread = is_own_thread;
    engine->current = op;
    pd_status st = engine->broken;
    if (!st) {
        const char *what = op->what ? op->what : pd_comm_kind_names[op->kind];
        const uint64_t bytes = progress_bytes_of(op);
        pthread_mutex_unlock(&engine->lock);
        pd_owner_acquire(&engine->staging_owner, the_operation);
        if (op->memory) lock_staging(engine, op->memory);
        const uint64_t begin = pd_trace_begin();
        const bool is_watched = pd_progress_is_watched(engine);
        if (is_watched) pd_heartbeat_exchange_begin(what);
        st = carry_out(engine, op, &error);
        if (is_watched) pd_heartbeat_exchange_end();
        pd_trace_end(begin, "comm", what, bytes);
        pd_owner_release(&engine->staging_owner, the_operation);
        pthread_mutex_lock(&engine->lock);
    }
    if (st && !engine->broken) {
        engine->broken = st;
        engine->broken_error = error;
        pd_segment_depart(engine->segment, engine->slot, PD_MEMBER_BROKEN, PD_NOBODY);
    }
    end_current(engine, st);
    engine->is_executing = false;
    pthread_cond_signal(&engine->done);
    if (engine->head) pthread_cond_signal(&engine->work);
}

static struct pd_comm_op *queue_pop(struct pd_progress *engine)
{
    struct pd_comm_op *op = engine->head;
    engine->head = op->next;
    if (!engine->head) engine->tail = NULL;
    return op;
}

static void queue_push(struct pd_progress *engine, struct pd_comm_op *op)
{
    op->next = NULL;
    if (engine->tail)
        engine->tail->next = op;
    else
        engine->head = op;
    engine->tail = op;
}

static void *thread_main(void *argument)
{
    struct pd_progress *engine = argument;
    pd_rank_set_thread((int)engine->members[engine->comm.rank].world);
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        while (engine->is_executing || (!engine->head && !engine->is_closing))
            pthread_cond_wait(&engine->work, &engine->lock);
        if (!engine->head) break;
        execute(engine, queue_pop(engine), true);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

static pd_status thread_start(struct pd_progress *engine, struct pd_error *err)
{
    int number = pd_thread_start(&engine->thread, NULL, thread_main, engine);
    if (number) PD_FAIL_THREAD(err, number, "a thread for communication");
    engine->is_thread_running = true;
    char name[16];
    snprintf(name, sizeof name, "pd-comm-%u", engine->members[engine->comm.rank].world % 100000);
    pthread_setname_np(engine->thread, name);
    return PD_OK;
}

static void family_join(struct pd_progress *engine, struct pd_progress *root)
{
    engine->root = root ? root : engine;
    if (!root) return;
    pthread_mutex_lock(&root->lock);
    engine->sibling = root->child;
    root->child = engine;
    pthread_mutex_unlock(&root->lock);
}

static void family_leave(struct pd_progress *engine)
{
    struct pd_progress *root = engine->root;
    if (root == engine) return;
    pthread_mutex_lock(&root->lock);
    struct pd_progress **at = &root->child;
    while (*at != engine)
        at = &(*at)->sibling;
    *at = engine->sibling;
    pthread_mutex_unlock(&root->lock);
}

pd_status pd_progress_new(const struct pd_comm_transport *transport, struct pd_progress *root, uint32_t id, uint32_t rank,
                          uint32_t size, const struct pd_member_info *members, struct pd_segment *segment,
                          struct pd_progress **ret_engine, struct pd_error *err)
{
    struct pd_progress *engine = engine_allocate(size);
    if (!engine) PD_FAIL(err, PD_NO_MEMORY, "a communicator of %u ranks", size);
    engine->comm = (struct pd_comm){.ops = transport->ops, .rank = rank, .size = size};
    engine->comm.bytes = pd_progress_bytes(size) + pd_segment_share_bytes(&segment->shape);
    engine->transport = transport;
    engine->id = id;
    engine->next_id = id + 1;
    memcpy(engine->members, members, size * sizeof *members);
    engine->segment = segment;
    /* Slots are given in rank order. */
    uint32_t slots = 0, mine = engine->comm.rank;
    for (uint32_t r = 0; r < engine->comm.size; r++) {
        bool is_shared = engine->members[r].domain == engine->members[mine].domain;
        engine->exchange.links[r].slot = is_shared ? slots : PD_NO_SLOT;
        if (is_shared) engine->slot_ranks[slots++] = r;
    }
    engine->slot = engine->exchange.links[mine].slot;
    pd_hosts_set(&engine->hosts, members, size, rank, engine->exchange.active);
    engine->comm.host = engine->hosts.mine;
    engine->comm.host_count = engine->hosts.count;
    engine->comm.rank_here = engine->hosts.slot;
    engine->comm.ranks_here = pd_hosts_ranks(&engine->hosts, engine->hosts.mine);
    engine->comm.ranks_here_max = engine->hosts.largest;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->work, NULL);
    pthread_cond_init(&engine->done, NULL);
    family_join(engine, root);
    if (root) engine->comm.is_background = root->comm.is_background;
    pd_status st = transport->remote ? transport->remote->open(engine, err) : PD_OK;
    if (!st) st = thread_start(engine, err);
    if (st) {
        engine->segment = NULL; /* stays the caller's */
        pd_progress_free(&engine->comm);
        return st;
    }
    *ret_engine = engine;
    return PD_OK;
}

/* Fails pending operations and tells the peers. If another rank was missing, names that one. */
static void engine_break(struct pd_progress *engine, enum pd_member_state state)
{
    pthread_mutex_lock(&engine->lock);
    if (!engine->broken)
        engine->broken = pd_error_set(&engine->broken_error, PD_PEER_LOST, PD_WHERE, 0, "this rank left the communicator");
    uint32_t blamed = atomic_load(&engine->root->blamed) - 1;
    if (blamed != PD_NOBODY && state == PD_MEMBER_DEAD) state = PD_MEMBER_BROKEN;
    /* Tell peers before the running operation ends, which does not know whom to blame. */
    if (engine->segment) pd_segment_depart(engine->segment, engine->slot, state, blamed);
    atomic_store(&engine->is_aborted, 1);
    pthread_mutex_unlock(&engine->lock);
}

/* Includes its splits if it is the outermost communicator. */
static void family_break(struct pd_progress *engine, enum pd_member_state state)
{
    engine_break(engine, state);
    if (engine->root != engine) return;
    pthread_mutex_lock(&engine->lock); /* splits leave the list under it */
    for (struct pd_progress *child = engine->child; child; child = child->sibling)
        engine_break(child, state);
    pthread_mutex_unlock(&engine->lock);
}

pd_status pd_progress_look(struct pd_comm *comm, struct pd_error *err)
{
    struct pd_progress *engine = pd_progress_of(comm);
    pthread_mutex_lock(&engine->lock);
    pd_status st = engine->broken;
    if (st && err) *err = engine->broken_error;
    pthread_mutex_unlock(&engine->lock);
    return st ? st : pd_exchange_look(engine, err);
}

void pd_progress_traffic(struct pd_comm *comm, struct pd_comm_traffic *ret_traffic)
{
    struct pd_progress *root = pd_progress_of(comm)->root;
    *ret_traffic = (struct pd_comm_traffic){.inside_bytes = atomic_load(&root->inside_bytes),
                                            .leaving_bytes = atomic_load(&root->leaving_bytes)};
}

void pd_progress_abort(struct pd_comm *comm)
{
    family_break(pd_progress_of(comm), PD_MEMBER_DEAD);
}

void pd_progress_leave(struct pd_comm *comm)
{
    family_break(pd_progress_of(comm), PD_MEMBER_LEFT);
}

void pd_progress_free(struct pd_comm *comm)
{
    struct pd_progress *engine = pd_progress_of(comm);
    engine_break(engine, PD_MEMBER_LEFT);
    pthread_mutex_lock(&engine->lock);
    engine->is_closing = true;
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    if (engine->is_thread_running) pthread_join(engine->thread, NULL);
    family_leave(engine);
    unlock_staging(engine);
    if (engine->remote.state) engine->transport->remote->close(engine);
    pd_segment_free(engine->segment);
    pthread_cond_destroy(&engine->work);
    pthread_cond_destroy(&engine->done);
    pthread_mutex_destroy(&engine->lock);
    free(engine->scratch);
    free(engine);
}

pd_status pd_progress_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    struct pd_progress *engine = pd_progress_of(comm);
    pthread_mutex_lock(&engine->lock);
    pd_status st = engine->broken;
    op->status = st;
    op->done = st != PD_OK;
    if (st) {
        op->error = engine->broken_error;
        if (err) *err = op->error;
    } else {
        queue_push(engine, op);
        if (!engine->is_executing) pthread_cond_signal(&engine->work);
    }
    pthread_mutex_unlock(&engine->lock);
    return st;
}

pd_status pd_progress_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    struct pd_progress *engine = pd_progress_of(comm);
    pthread_mutex_lock(&engine->lock);
    const enum pd_heartbeat_place before = op->done ? PD_HEARTBEAT_PLACES : pd_heartbeat_enter(PD_HEARTBEAT_EXCHANGING);
    while (!op->done) {
        if (engine->head == op && !engine->is_executing)
            execute(engine, queue_pop(engine), false);
        else
            pthread_cond_wait(&engine->done, &engine->lock);
    }
    if (before != PD_HEARTBEAT_PLACES) pd_heartbeat_enter(before);
    pthread_mutex_unlock(&engine->lock);
    if (op->status && err) *err = op->error;
    return op->status;
}

pd_status pd_progress_exchange(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    struct pd_progress *engine = pd_progress_of(comm);
    const enum pd_heartbeat_place before = pd_heartbeat_enter(PD_HEARTBEAT_EXCHANGING);
    pthread_mutex_lock(&engine->lock);
    if (!engine->head && !engine->is_executing)
        execute(engine, op, false);
    else
        queue_push(engine, op);
    pthread_mutex_unlock(&engine->lock);
    const pd_status st = pd_progress_wait(comm, op, err);
    pd_heartbeat_enter(before);
    return st;
}

pd_status pd_progress_run(struct pd_progress *engine, const struct pd_comm_piece *sends, uint32_t send_count,
                          const struct pd_comm_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    struct pd_comm_op op = {.sends = sends, .send_count = send_count, .recvs = recvs, .recv_count = recv_count};
    return pd_progress_exchange(&engine->comm, &op, err);
}

uint32_t pd_comm_missed(const struct pd_comm *comm)
{
    return atomic_load(&((const struct pd_progress *)comm)->root->blamed) - 1;
}
