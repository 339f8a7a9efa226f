/* The progress engine that all transports share: a queue of operations, the thread that executes them, and the loop of one
 * exchange. Every collective consists of exchanges (collectives.c); a transport only moves bytes between two ranks.
 *
 *   invariants  1. one operation runs at a time, in the order of starts: on the communicator's thread, or in the caller if
 *                  it would only wait for it
 *               2. an operation is done only when no peer reads from or writes to its pieces any more
 *               3. the first failure is final: it is kept, sent to the peers, and returned by every later call
 *               4. a communicator and its splits form a group: a rank that gives up reports to all of them the rank that
 *                  the group's first failure found missing
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
#define PD_REDUCE_ROUND 64u   /* values that all_reduce sends in one exchange */
#define PD_ROUND_PARTS 64u    /* parts for other hosts in one exchange of a collective; more if a host has more ranks */
#define PD_FLAT_RANKS_MAX 16u /* up to this size a collective sends directly to every rank; larger ones use trees */

struct pd_progress;

/* One peer during one operation. When a direction is finished, the channel sets its left to 0. */
struct pd_link {
    uint32_t slot; /* of the peer in the shared segment; PD_NO_SLOT: it shares no memory with this rank */
    struct pd_cursor send, recv;
    bool is_named;                     /* a piece of the exchange names this peer */
    bool is_send_begun, is_recv_begun; /* private to the channel */
    bool is_damaged;                   /* a test asks for a flipped bit in the data received */
    bool awaits_header;                /* the peer's header has not arrived */
};

/* The channel to ranks that share no memory with this one; the others use pipes. */
struct pd_remote_ops {
    pd_status (*open)(struct pd_progress *, struct pd_error *); /* adds its allocations to comm.bytes */
    void (*close)(struct pd_progress *);
    void (*begin)(struct pd_progress *);
    /* Moves as many bytes as it can without waiting. */
    pd_status (*progress)(struct pd_progress *, bool *ret_has_moved, struct pd_error *);
    /* After this no peer touches the pieces of the operation, even if it failed. */
    void (*end)(struct pd_progress *);
};

/* The differences between threads and processes. */
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

/* Header of a collective: the sender's view of what is being run. Before the messages of an exchange every pair of ranks on
 * different hosts swaps headers. Until the peer's header arrives, this rank sends at most one window, because MPI would
 * buffer data for a rank that has not started. So messages can flow both ways at once. */
struct pd_collective_header {
    uint64_t kind, part_bytes;
};

/* The messages of one exchange. A bulk collective runs several in sequence (reduce_scatter.c, all_gather.c). */
struct pd_messages {
    const struct pd_comm_piece *sends, *recvs;
    uint32_t send_count, recv_count;
    const struct pd_comm_memory *inner, *outer, *arriving; /* memory of pieces sent inside the host, to other hosts,
                                                            * received; NULL: host */
    bool adds;                                 /* adds received uint64 values to the destination, in host memory */
    bool adds_narrow;                          /* or pairs of uint32 values */
    const char *fault;                         /* fault point where a test damages a message; NULL: none */
    const struct pd_collective_header *header; /* NULL: all ranks have agreed already */
    /* Called when the transfers between ranks that share memory are done (other ranks cannot delay them), and again when the
     * exchange that it added with pd_exchange_add is done. NULL: not called. */
    pd_status (*inside_ended)(struct pd_progress *, void *context, struct pd_error *);
    void *context;
    uint32_t remote_ahead; /* transfers between hosts run ahead by this many exchanges */
};

/* The running exchange. exchange.c writes it; channels also move the cursors. */
struct pd_exchange {
    struct pd_link *links;    /* (size); empty for ranks not in `peers` */
    uint32_t *peers, *active; /* (size) each: peers named by pieces, in step order after this rank; those not finished */
    uint32_t peer_count, active_count;
    uint64_t sequence;                         /* exchanges started */
    uint64_t remote_sequence;                  /* the same for ranks on other hosts, which may run ahead */
    const struct pd_collective_header *header; /* from the messages */
};

/* Written only by the transport. */
struct pd_remote {
    void *state;      /* of transport->remote; NULL: all ranks share memory with this one */
    uint8_t *staging; /* (staging_bytes) in its own pages, or NULL */
    uint64_t staging_bytes;
};

struct pd_progress {
    struct pd_comm comm; /* first: the public face */
    const struct pd_comm_transport *transport;
    struct pd_progress *root;
    uint32_t id, next_id;           /* next_id: in the root; numbers communicators, the same on all members */
    struct pd_member_info *members; /* (size) */
    struct pd_segment *segment;
    uint32_t slot;        /* this rank's */
    uint32_t *slot_ranks; /* (slots of the segment) */
    struct pd_hosts hosts;
    struct pd_remote remote;
    struct pd_exchange exchange;

    /* Owner of the staging memory: mailboxes, remote.staging, and the buffers and pieces of bulk collectives. Whoever
     * executes the operation has it: the communicator's thread or a waiting caller; `is_executing` orders them. Other
     * processes read this rank's mailbox, ordered by `written` and `taken` of each ring (pipe.h). The first operation with
     * device pieces pins it. */
    struct pd_owner staging_owner;
    struct pd_comm_memory locker; /* the memory whose lock() pinned it; lock NULL: not pinned */
    bool is_mailbox_locked, is_remote_locked, is_scratch_locked;
    uint8_t *scratch; /* (scratch_bytes) in its own pages; NULL if the communicator has one rank */
    uint64_t scratch_bytes;
    struct pd_comm_piece *sends, *recvs; /* of one exchange: (size), or at least (PD_ROUND_PARTS) */

    /* scratch of the collectives */
    struct pd_comm_piece *scratch_pieces; /* (2, size) */
    uint64_t *scratch_values;             /* (at most PD_FLAT_RANKS_MAX, PD_REDUCE_ROUND) */

    pthread_mutex_t lock;      /* guards the fields below */
    pthread_cond_t work, done; /* wake the thread; wake the caller */
    struct pd_comm_op *head, *tail;
    struct pd_comm_op *current; /* running operation; NULL: none, or only the early start of the next one remains */
    bool is_executing, is_closing, is_thread_running;
    bool is_own_thread; /* the communicator's thread runs it, not a waiting caller */
    pd_status broken;
    struct pd_error broken_error;
    _Atomic uint32_t is_aborted;
    _Atomic uint32_t blamed; /* in the root: world rank found missing first, plus 1; 0: none */
    pthread_t thread;

    /* In the root: bytes this rank sent in the whole communicator group. Added to by whichever thread executes an operation. */
    _Atomic uint64_t inside_bytes, leaving_bytes;
    struct pd_progress *child, *sibling; /* communicators split from the root, guarded by the root's lock */
};

/* False for background copies: their waits do not count as this rank's heartbeat. */
static inline bool pd_progress_is_watched(const struct pd_progress *engine)
{
    return !engine->comm.is_background;
}

static inline struct pd_progress *pd_progress_of(struct pd_comm *comm)
{
    return (struct pd_progress *)comm;
}

/* Memory of one rank in a communicator of `size` ranks, without the shared segment and the transport's own. */
uint64_t pd_progress_bytes(uint32_t size);
/* Shape of a segment that `slots` of `size` members share. */
struct pd_segment_shape pd_progress_shape(const struct pd_comm_transport *transport, uint32_t size, uint32_t slots);

/* Copies members (size). On success the engine owns segment and slot, this rank's place. root NULL: the new engine is a
 * root. */
PD_MUST_USE pd_status pd_progress_new(const struct pd_comm_transport *transport, struct pd_progress *root, uint32_t id,
                                      uint32_t rank, uint32_t size, const struct pd_member_info *members,
                                      struct pd_segment *segment, struct pd_progress **ret_engine, struct pd_error *err);
/* The slot of `rank` among the members that share its memory. Slots follow rank order. */
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
/* This rank fails: pending operations end and peers get PD_PEER_LOST. Includes the splits of a root. */
void pd_progress_abort(struct pd_comm *comm);
/* The same for a rank that has finished: peers that still need it get an error that it left. */
void pd_progress_leave(struct pd_comm *comm);
/* Call after the last operation on device pieces, or when no more of them will run. */
void pd_progress_unlock(struct pd_comm *comm);
void pd_progress_traffic(struct pd_comm *comm, struct pd_comm_traffic *ret_traffic);
#define PD_PROGRESS_SLOTS                                                                                           \
    .start = pd_progress_start, .wait = pd_progress_wait, .exchange = pd_progress_exchange,                         \
    .all_reduce = pd_progress_all_reduce, .broadcast = pd_progress_broadcast, .gather = pd_progress_gather,         \
    .split = pd_progress_split, .look = pd_progress_look, .abort = pd_progress_abort, .unlock = pd_progress_unlock, \
    .traffic = pd_progress_traffic
void pd_progress_free(struct pd_comm *comm);

/* Called with the running operation. Returns the next queued operation, or NULL, if it has the same kind and memory and is
 * not empty: its first exchange then runs with the last one of `op`. Only for the communicator's thread: a caller that waits
 * for `op` must not wait longer. */
const struct pd_comm_op *pd_progress_begin_next(struct pd_progress *engine, const struct pd_comm_op *op);
/* Marks the running operation done, whatever happens to the next one that was started early. */
void pd_progress_end_current(struct pd_progress *engine);

/* Execute an operation. Only the thread that set engine->is_executing may call these. */
PD_MUST_USE pd_status pd_exchange_run(struct pd_progress *engine, const struct pd_messages *messages, struct pd_error *err);
/* Adds a second exchange beside the running one, between ranks that share memory and with pieces in host memory. Called by
 * inside_ended. */
void pd_exchange_add(struct pd_progress *engine, const struct pd_messages *messages);
PD_MUST_USE pd_status pd_reduce_scatter_run(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err);
PD_MUST_USE pd_status pd_all_gather_run(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err);
/* Checks that all ranks started the same collective; otherwise two ranks return PD_BUG and name each other. *ret_header: send
 * it with the first exchange between hosts, which saves an exchange with idle links; NULL: not needed. */
PD_MUST_USE pd_status pd_collective_agree(struct pd_progress *engine, const struct pd_collective_header *header,
                                          const struct pd_collective_header **ret_header, struct pd_error *err);
PD_MUST_USE pd_status pd_collective_compare(const struct pd_progress *engine, const struct pd_collective_header *own,
                                            const struct pd_collective_header *other, uint32_t peer, struct pd_error *err);
/* PD_PEER_LOST if a peer's shared state says that it is gone; that rank is then blamed. Callable from any thread. */
PD_MUST_USE pd_status pd_exchange_look(struct pd_progress *engine, struct pd_error *err);

/* Start and wait in one call, pieces in host memory. The caller executes it if the queue is empty. */
PD_MUST_USE pd_status pd_progress_run(struct pd_progress *engine, const struct pd_comm_piece *sends, uint32_t send_count,
                                      const struct pd_comm_piece *recvs, uint32_t recv_count, struct pd_error *err);

/* recv: (size, bytes), the same on every rank afterwards. */
PD_MUST_USE pd_status pd_progress_all_gather(struct pd_progress *engine, const void *send, uint32_t bytes, void *recv,
                                             struct pd_error *err);
