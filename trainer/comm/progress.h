/* The progress engine that all transports share: a queue of operations, the thread that carries them out, and the loop of
 * one exchange.
 * Every collective is an exchange (collectives.c); a transport only moves bytes between two ranks (a channel).
 *
 *   invariants  1. one operation is carried out at a time, in the order of starts: by the communicator's thread, or by the
 *                  caller itself when it would only wait for it anyway
 *               2. an operation is done only when no peer reads from or writes to its pieces any more
 *               3. the first failure is final: it is kept, told to the peers, and returned by every later call
 *               4. communicators split from one another are a family: who gives up names to all of it the rank that the
 *                  first failure in the family found missing
 *   states      alive -> broken (failure, or abort by the caller) -> freed
 */
#pragma once

#include "ckpt/base/owner.h"
#include "trainer/comm/comm.h"
#include "trainer/comm/hosts.h"
#include "trainer/comm/pieces.h"
#include "trainer/comm/segment.h"
#include <pthread.h>

#define PD_NO_SLOT UINT32_MAX
#define PD_REDUCE_ROUND 64u   /* values of all_reduce in one exchange */
#define PD_ROUND_PARTS 64u    /* of ranks on other hosts, in one exchange of a collective, unless a host has more */
#define PD_FLAT_RANKS_MAX 16u /* up to here collectives go straight to everybody, then by trees */

struct pd_progress;

/* One peer during one operation. A channel sets left to 0 when that direction is finished. */
struct pd_link {
    uint32_t slot; /* of the peer in the shared segment; PD_NO_SLOT: its memory is not shared with this rank */
    struct pd_cursor send, recv;
    bool is_named;                     /* it is one of the exchange's peers */
    bool is_send_begun, is_recv_begun; /* the channel's own */
    bool is_damaged;                   /* a test wants a bit of what arrives to be another */
    bool awaits_claim;                 /* the peer's has not come */
};

/* The channel to ranks whose memory is not shared; pipes go to the others. */
struct pd_remote_ops {
    pd_status (*open)(struct pd_progress *, struct pd_error *); /* adds what it takes to comm.bytes */
    void (*close)(struct pd_progress *);
    void (*begin)(struct pd_progress *);
    /* Moves what can be moved without waiting. */
    pd_status (*progress)(struct pd_progress *, bool *ret_has_moved, struct pd_error *);
    /* After this no peer touches the pieces of the operation, whether it succeeded or not. */
    void (*end)(struct pd_progress *);
};

/* What differs between threads and processes. */
struct pd_comm_transport {
    const struct pd_comm_ops *ops;
    const struct pd_remote_ops *remote; /* NULL: all ranks share memory */
    bool is_processes;
};

struct pd_member_info {
    uint32_t world; /* rank in the outermost communicator */
    uint32_t host;
    uint32_t domain; /* members of one domain share memory */
};

/* What a rank says that a collective is, to each that it is with. Before the messages of an exchange each rank on another host
 * sends one and gets one; until the peer's has come no more than a window follows, since MPI would keep for a rank that has not
 * begun whatever it is sent. So messages go both ways, and all at once. */
struct pd_claim {
    uint64_t kind, part_bytes;
};

/* What one exchange moves. Collectives of many bytes are several, one after the other (reduce_scatter.c, all_gather.c). */
struct pd_messages {
    const struct pd_comm_piece *sends, *recvs;
    uint32_t send_count, recv_count;
    const struct pd_comm_memory *inner, *outer, *arriving; /* of what goes to ranks of this host, to others, of what comes;
                                                              NULL: the host's */
    bool adds;                    /* uint64 that arrive are added to what is there, in the host's memory */
    const char *fault;            /* the place where a test damages a message; NULL: none */
    const struct pd_claim *claim; /* NULL: all have agreed */
    /* Called once nothing is left between ranks that share memory, which other ranks do not delay, and again when what it has
     * added by pd_exchange_add is done. NULL: nothing is to be done then. */
    pd_status (*inside_ended)(struct pd_progress *, void *context, struct pd_error *);
    void *context;
    uint32_t remote_ahead; /* what is between hosts is of this many exchanges later */
};

/* The exchange being carried out: written by exchange.c, the cursors by channels as well. */
struct pd_exchange {
    struct pd_link *links;    /* (size) those of other ranks than `peers` are empty */
    uint32_t *peers, *active; /* (size) each: named by pieces, in the order of steps after this rank; not finished yet */
    uint32_t peer_count, active_count;
    uint64_t sequence;            /* exchanges begun */
    uint64_t remote_sequence;     /* the same of ranks on other hosts, where it may be ahead */
    const struct pd_claim *claim; /* of the messages */
};

/* Written by the transport alone. */
struct pd_remote {
    void *state;      /* of transport->remote; NULL: this rank shares the memory of all */
    uint8_t *staging; /* (staging_bytes) of its own pages; NULL: none */
    uint64_t staging_bytes;
};

struct pd_progress {
    struct pd_comm comm; /* first: the public face */
    const struct pd_comm_transport *transport;
    struct pd_progress *root;
    uint32_t id, next_id;           /* next_id: of the root; names communicators, equal on their members */
    struct pd_member_info *members; /* (size) */
    struct pd_segment *segment;
    uint32_t slot;        /* mine */
    uint32_t *slot_ranks; /* (slots of the segment) */
    struct pd_hosts hosts;
    struct pd_remote remote;
    struct pd_exchange exchange;

    /* Staging: mailboxes of the segment, remote.staging, and room and pieces of the collectives of many bytes. Who carries the
     * operation out has it, the communicator's thread or a caller that waits; `is_executing` orders them. Other
     * processes read this rank's mailbox: written and taken of each ring (pipe.h) order that. The first operation with pieces of
     * a device locks it. */
    struct pd_owner staging_owner;
    struct pd_comm_memory locker; /* lock NULL: nobody was asked */
    bool is_mailbox_locked, is_remote_locked, is_room_locked;
    uint8_t *room; /* (room_bytes) in pages of its own; NULL: one rank */
    uint64_t room_bytes;
    struct pd_comm_piece *sends, *recvs; /* of an exchange; (size) or (PD_ROUND_PARTS) or more */

    /* scratch of the collectives */
    struct pd_comm_piece *scratch_pieces; /* (2, size) */
    uint64_t *scratch_values;             /* (at most PD_FLAT_RANKS_MAX, PD_REDUCE_ROUND) */

    pthread_mutex_t lock;      /* guards what follows */
    pthread_cond_t work, done; /* for the thread; for the caller */
    struct pd_comm_op *head, *tail;
    struct pd_comm_op *current; /* is carried out and not done; NULL: none, or what begins the next one is left */
    bool is_executing, is_closing, is_thread_running;
    bool is_own_thread; /* carries it out, and not a caller that waits */
    pd_status broken;
    struct pd_error broken_error;
    _Atomic uint32_t is_aborted;
    _Atomic uint32_t blamed; /* of the root: rank of the world that was found missing first, plus 1; 0: none */
    pthread_t thread;

    /* Of the root: sent by this rank over all of the family, by whoever carries an operation out. */
    _Atomic uint64_t inside_bytes, leaving_bytes;
    struct pd_progress *child, *sibling; /* communicators split from the root, guarded by the root's lock */
};

/* Whoever waits in a copy in the background says nothing of its rank. */
static inline bool pd_progress_is_watched(const struct pd_progress *engine)
{
    return !engine->comm.is_background;
}

static inline struct pd_progress *pd_progress_of(struct pd_comm *comm)
{
    return (struct pd_progress *)comm;
}

/* Memory of a rank's place in a communicator of `size` ranks, without the shared segment and what a transport adds. */
uint64_t pd_progress_bytes(uint32_t size);
/* The segment of `slots` of `size` members. */
struct pd_segment_shape pd_progress_shape(const struct pd_comm_transport *transport, uint32_t size, uint32_t slots);

/* members: (size) copied. segment and slot: this rank's place, owned by the engine afterwards (on success). root NULL: it
 * is its own root. */
PD_MUST_USE pd_status pd_progress_new(const struct pd_comm_transport *transport, struct pd_progress *root, uint32_t id,
                                      uint32_t rank, uint32_t size, const struct pd_member_info *members,
                                      struct pd_segment *segment, struct pd_progress **ret_engine, struct pd_error *err);
/* The slot of `rank` among the members that share its memory; slots are given in rank order. */
uint32_t pd_progress_slot_of(const struct pd_member_info *members, uint32_t size, uint32_t rank, uint32_t *ret_slots);

/* The slots of pd_comm_ops that every transport uses. */
pd_status pd_progress_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
pd_status pd_progress_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
pd_status pd_progress_exchange(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
pd_status pd_progress_all_reduce(struct pd_comm *comm, uint64_t *values, uint32_t count, enum pd_reduce reduce,
                                 struct pd_error *err);
pd_status pd_progress_broadcast(struct pd_comm *comm, uint32_t root, void *data, uint64_t bytes, struct pd_error *err);
pd_status pd_progress_gather(struct pd_comm *comm, uint32_t root, const void *send, uint64_t bytes, void *recv,
                             struct pd_error *err);
pd_status pd_progress_split(struct pd_comm *comm, const struct pd_comm_part *part, struct pd_comm **ret_comm,
                            struct pd_error *err);
pd_status pd_progress_look(struct pd_comm *comm, struct pd_error *err);
/* This rank fails: pending operations end, peers get PD_PEER_LOST. With its splits when it is a root. */
void pd_progress_abort(struct pd_comm *comm);
/* The same for a rank that is finished: who still needs it is told that it left. */
void pd_progress_leave(struct pd_comm *comm);
/* After the last operation on pieces of the memory, or when no more of them is carried out. */
void pd_progress_unlock(struct pd_comm *comm);
void pd_progress_traffic(struct pd_comm *comm, struct pd_comm_traffic *ret_traffic);
#define PD_PROGRESS_SLOTS                                                                                           \
    .start = pd_progress_start, .wait = pd_progress_wait, .exchange = pd_progress_exchange,                         \
    .all_reduce = pd_progress_all_reduce, .broadcast = pd_progress_broadcast, .gather = pd_progress_gather,         \
    .split = pd_progress_split, .look = pd_progress_look, .abort = pd_progress_abort, .unlock = pd_progress_unlock, \
    .traffic = pd_progress_traffic
void pd_progress_free(struct pd_comm *comm);

/* The operation behind `op`, which is carried out, where that is of the same kind and memory and not empty: its first exchange
 * is begun with the last one of `op`. By the communicator's own thread alone: who waits for `op` shall not wait for more.
 * NULL: none. */
const struct pd_comm_op *pd_progress_begin_next(struct pd_progress *engine, const struct pd_comm_op *op);
/* The one that is carried out is done, whatever becomes of the next one that was begun with its end. */
void pd_progress_end_current(struct pd_progress *engine);

/* Carry it out. Only the thread that holds engine->is_executing may call them. */
PD_MUST_USE pd_status pd_exchange_run(struct pd_progress *engine, const struct pd_messages *messages, struct pd_error *err);
/* Messages to and from ranks that share memory, of pieces in the host's, as one exchange more beside the one that is being
 * carried out. Called by inside_ended. */
void pd_exchange_add(struct pd_progress *engine, const struct pd_messages *messages);
PD_MUST_USE pd_status pd_reduce_scatter_run(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err);
PD_MUST_USE pd_status pd_all_gather_run(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err);
/* All have begun the same collective; otherwise PD_BUG on two ranks, which name one another. *ret_claim: goes with the first
 * exchange in which ranks on other hosts are, instead of an exchange of its own in which links would be idle; NULL: none does. */
PD_MUST_USE pd_status pd_collective_agree(struct pd_progress *engine, const struct pd_claim *claim,
                                          const struct pd_claim **ret_claim, struct pd_error *err);
PD_MUST_USE pd_status pd_collective_compare(const struct pd_progress *engine, const struct pd_claim *own,
                                            const struct pd_claim *other, uint32_t peer, struct pd_error *err);
/* PD_PEER_LOST where a peer's memory says that it is gone; its rank is then the one to blame. From any thread. */
PD_MUST_USE pd_status pd_exchange_look(struct pd_progress *engine, struct pd_error *err);

/* Start and wait in one, of pieces in the host's memory; carried out by the caller when nothing is queued. */
PD_MUST_USE pd_status pd_progress_run(struct pd_progress *engine, const struct pd_comm_piece *sends, uint32_t send_count,
                                      const struct pd_comm_piece *recvs, uint32_t recv_count, struct pd_error *err);

/* recv: (size, bytes), the same on every rank afterwards. */
PD_MUST_USE pd_status pd_progress_all_gather(struct pd_progress *engine, const void *send, uint32_t bytes, void *recv,
                                             struct pd_error *err);
