/* Communication of a step: the third table. local: ranks as threads of one process. mpi: processes; ranks of one host move
 * bytes through shared memory, others through MPI. nccl comes behind the same slots.
 *
 * Operations are started and waited for. All ranks of a communicator start the same operations in the same order; they
 * complete in that order, on a thread of the communicator's own, while the caller computes. Floats are never summed here;
 * integers are, modulo 2^64, so the order of a sum is nobody's business.
 *
 *   errors   PD_PEER_LOST when a peer died or left; the message names it. After that every call on the communicator fails at
 *            once. Nobody gives up on a silent peer: that is the launcher's decision
 *   threads  one caller a communicator
 *   memory   pd_comm_bytes, requested at open and split; nothing is allocated later except the caller's own pd_comm_op
 */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/group/group.h"

enum pd_reduce { PD_REDUCE_SUM_U64, PD_REDUCE_OR_U64, PD_REDUCE_MAX_U64, PD_REDUCE_MIN_U64 };

struct pd_comm;

struct pd_comm_piece {
    uint32_t peer;
    void *data;
    uint64_t bytes;
};

/* How the bytes of pieces are reached where the host cannot: memory of a device. Pieces may then lie in either memory, and
 * both sides cut a message alike. Collectives of values (all_reduce, broadcast) and groups stay in the host's.
 *   threads  ready: the caller's. copy: any, several at once */
struct pd_comm_memory {
    /* Before an operation starts: what the caller queued on its device has happened. */
    pd_status (*ready)(void *context, struct pd_error *err);
    /* Has happened on return. Either side is in the host's or the device's memory. */
    pd_status (*copy)(void *context, void *dst, const void *src, uint64_t bytes, struct pd_error *err);
    /* Memory of the host that copies will go through, until unlock; false: it stays as it is, and is not unlocked. From
     * whichever thread carries out an operation. */
    bool (*lock)(void *context, void *data, uint64_t bytes);
    void (*unlock)(void *context, void *data, uint64_t bytes);
    void *context; /* outlives the communicator, or is taken from it by pd_comm_use_memory */
};

enum pd_comm_kind { PD_COMM_EXCHANGE, PD_COMM_REDUCE_SCATTER, PD_COMM_ALL_GATHER };
extern const char *const pd_comm_kind_names[];

/* One operation: the caller's storage, untouched by the caller until waited for. In an exchange a message from a to b is cut
 * into pieces independently on both sides: only the concatenation of pieces must have equal length. With pd_comm_use_memory
 * the pieces themselves must have equal lengths, in order: NCCL, which such a communicator may become, knows no
 * concatenation. */
struct pd_comm_op {
    const struct pd_comm_piece *sends, *recvs; /* borrowed */
    uint32_t send_count, recv_count;
    const char *what; /* carries, for traces: a string constant, or NULL */
    /* of the implementation; zero at the start */
    enum pd_comm_kind kind;
    uint8_t *parts; /* (size, part_bytes) of the collectives */
    uint64_t part_bytes;
    void *sum;
    struct pd_comm_op *next;
    bool is_begun;                       /* its first exchange was carried out with the last one of the operation before */
    const struct pd_comm_memory *memory; /* of the pieces; NULL: the host's */
    uint32_t ticket;
    pd_status status;
    struct pd_error error;
    _Atomic int done; /* set last, under the communicator's lock; may be looked at to poll, wait is still due */
};

/* Ranks of equal color form a new communicator, ordered by (key, rank). A link is one of two ranks, whose operations have
 * one sender and one receiver: who expects something may come to it long before the other. */
struct pd_comm_part {
    uint32_t color, key;
    bool is_link;
};

/* What a rank sent over a communicator and all that were split from the same one, from its first operation on, heads of
 * messages and retransmissions left out. */
struct pd_comm_traffic {
    uint64_t inside_bytes;  /* to other ranks of its host */
    uint64_t leaving_bytes; /* to other hosts */
    uint64_t library_bytes; /* given to NCCL, which knows the way: what a ring sends of a collective */
};

struct pd_comm_ops {
    const char *name;
    pd_status (*start)(struct pd_comm *, struct pd_comm_op *, struct pd_error *);
    pd_status (*wait)(struct pd_comm *, struct pd_comm_op *, struct pd_error *);
    pd_status (*exchange)(struct pd_comm *, struct pd_comm_op *,
                          struct pd_error *); /* both, in the caller's thread; pieces in the host's memory */
    pd_status (*all_reduce)(struct pd_comm *, uint64_t *values, uint32_t count, enum pd_reduce, struct pd_error *);
    pd_status (*broadcast)(struct pd_comm *, uint32_t root, void *data, uint64_t bytes, struct pd_error *);
    pd_status (*gather)(struct pd_comm *, uint32_t root, const void *send, uint64_t bytes, void *recv, struct pd_error *);
    pd_status (*split)(struct pd_comm *, const struct pd_comm_part *, struct pd_comm **ret_comm, struct pd_error *);
    pd_status (*look)(struct pd_comm *, struct pd_error *);
    void (*abort)(struct pd_comm *);
    void (*unlock)(struct pd_comm *);                                 /* what it has locked by its memory */
    void (*will_use)(struct pd_comm *, void *memory, uint64_t bytes); /* NULL: it makes no difference */
    void (*traffic)(struct pd_comm *, struct pd_comm_traffic *ret_traffic);
    void (*free)(struct pd_comm *);
};

struct pd_comm {
    const struct pd_comm_ops *ops;
    uint32_t rank, size;
    uint32_t host, host_count;
    uint32_t rank_here, ranks_here; /* this rank's number among those of its host, and how many these are */
    uint32_t ranks_here_max;        /* of any host */
    bool is_background;             /* what waits in it holds up nobody: heartbeats leave it out */
    uint64_t bytes;                 /* what this rank took for it */
    struct pd_comm_memory memory;
};

/* Pieces from now on are reached through `memory`, which is copied and inherited by later splits; its functions NULL: they
 * are in the host's memory, as at first. All ranks say the same, between operations. */
void pd_comm_use_memory(struct pd_comm *comm, const struct pd_comm_memory *memory);

/* Parts and sums of later operations lie in here, until the communicator is freed: a library may prepare for it (NCCL:
 * ncclCommRegister). Other memory does as well, and where preparing fails nothing but speed is lost. */
void pd_comm_will_use(struct pd_comm *comm, void *memory, uint64_t bytes);

/* PD_PEER_LOST: the rank that was found missing first, of the whole job; UINT32_MAX: none. Of a communicator of processes or
 * threads. */
uint32_t pd_comm_missed(const struct pd_comm *comm);

PD_MUST_USE pd_status pd_comm_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
/* Collectives of many bytes, waited for by pd_comm_wait; all ranks give the same count or bytes. They set all of *op but
 * `what`. Until the wait parts and sum belong to the operation: peers may read `parts`, and the caller touches neither.
 *
 *   reduce_scatter  parts (size, count) of each rank -> sum (count): of part number `rank` of all ranks,
 *                   modulo 2^64. sum may be the own part, parts + rank * count, and overlaps parts nowhere else. Parts are
 *                   used up: sums of others may be made in them
 *   all_gather      parts (size, bytes), of which the own is filled -> all of them, the same on every rank
 *
 * (host_count - 1) / host_count of the parts leave a host once, however many ranks it has (trainer/comm/README.md). */
PD_MUST_USE pd_status pd_comm_start_reduce_scatter(struct pd_comm *comm, struct pd_comm_op *op, uint64_t *parts,
                                                   uint64_t count, uint64_t *sum, struct pd_error *err);
PD_MUST_USE pd_status pd_comm_start_all_gather(struct pd_comm *comm, struct pd_comm_op *op, void *parts, uint64_t bytes,
                                               struct pd_error *err);
PD_MUST_USE pd_status pd_comm_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
PD_MUST_USE pd_status pd_comm_all_reduce(struct pd_comm *comm, uint64_t *values, uint32_t count, enum pd_reduce reduce,
                                         struct pd_error *err);
PD_MUST_USE pd_status pd_comm_broadcast(struct pd_comm *comm, uint32_t root, void *data, uint64_t bytes,
                                        struct pd_error *err);
PD_MUST_USE pd_status pd_comm_barrier(struct pd_comm *comm, struct pd_error *err);
PD_MUST_USE pd_status pd_comm_split(struct pd_comm *comm, uint32_t color, uint32_t key, struct pd_comm **ret_comm,
                                    struct pd_error *err);
/* The same where the parts of all ranks are links or of one rank. */
PD_MUST_USE pd_status pd_comm_split_links(struct pd_comm *comm, uint32_t color, uint32_t key, struct pd_comm **ret_comm,
                                          struct pd_error *err);
/* Whether all peers that can be seen are still there, without waiting: PD_PEER_LOST names one that died, failed or left.
 * From any thread. */
PD_MUST_USE pd_status pd_comm_look(struct pd_comm *comm, struct pd_error *err);
/* From any thread. */
void pd_comm_traffic(struct pd_comm *comm, struct pd_comm_traffic *ret_traffic);
/* This rank gives up: its pending and later operations return PD_PEER_LOST at once, and so do those of its peers that need
 * it, on this communicator and, where it is the outermost, on those split from it. For the way out after a failure: pieces
 * of an operation that was started belong to it until it was waited for, and this makes that wait short. */
void pd_comm_abort(struct pd_comm *comm); /* NULL is fine */
void pd_comm_free(struct pd_comm *comm);  /* NULL is fine */

/* Bytes that each rank of a communicator of `size` ranks takes, staging included: threads of a process, or processes on any
 * hosts of at most PD_COMM_RANKS_PER_HOST of its ranks each (more take some pages more). */
#define PD_COMM_RANKS_PER_HOST 30u
uint64_t pd_comm_bytes(uint32_t size, bool is_processes);

/* A pd_group over a communicator, for ckpt/ and resharder/, whose pieces are in the host's memory always. Valid while the
 * communicator lives; needs no release. */
void pd_comm_group(struct pd_comm *comm, struct pd_group *ret_group);

/* `size` ranks as threads of this process, on host_count pretended hosts (rank r lives on host r * host_count / size). A rank
 * whose rank_main fails is dead to the others. Returns the first failure in rank order, causes (any other status) before
 * consequences (PD_PEER_LOST); its message begins with the rank. */
PD_MUST_USE pd_status pd_comm_run_local(uint32_t size, uint32_t host_count,
                                        pd_status (*rank_main)(struct pd_comm *, void *context, struct pd_error *),
                                        void *context, struct pd_error *err);

/* Joins the MPI job this process was started in (MPI_Init included; MPI is finalised by pd_comm_free of this communicator,
 * which waits for the other ranks to come to it, after a failure for a moment only; where one does not come, MPI is left to
 * the end of the process). PD_UNSUPPORTED in builds without MPI. */
PD_MUST_USE pd_status pd_comm_open_mpi(struct pd_comm **ret_comm, struct pd_error *err);

/* All ranks came to pd_comm_free and MPI is finalised: whatever the status is, an exit code of 0 is honest to mpirun. */
bool pd_comm_mpi_is_over(void);
