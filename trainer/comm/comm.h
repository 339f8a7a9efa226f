/* Communicators: ranks exchange bytes during a training step, behind one table of functions. local: ranks are threads of a
 * process. mpi: ranks are processes that use shared memory on a host and MPI between hosts. nccl: GPU to GPU.
 *
 * The caller starts an operation and waits for it later. All ranks of a communicator start the same operations in the same
 * order. They complete in that order, on the communicator's own thread, while the caller computes. Only integers are summed
 * here, modulo 2^64, so the order of a sum does not matter. Floats are never summed here.
 *
 *   errors   PD_PEER_LOST if a peer died or left; the message names it. Every later call on the communicator then fails at
 *            once. No rank gives up on a silent peer: the launcher decides that
 *   threads  one caller per communicator
 *   memory   pd_comm_bytes, requested at open and split; later nothing is allocated except the caller's own pd_comm_op
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

/* Gives communicators access to device memory that the host cannot read. Pieces may then lie in host or device memory, and
 * both sides must cut a message alike. Collectives of values (all_reduce, broadcast) and groups use host memory only.
 *   threads  ready: the caller's. copy: any, several at once */
struct pd_comm_memory {
    /* Called before an operation starts. Waits for the work that the caller queued on its device. */
    pd_status (*ready)(void *context, struct pd_error *err);
    /* Synchronous copy. Each side may be host or device memory. */
    pd_status (*copy)(void *context, void *dst, const void *src, uint64_t bytes, struct pd_error *err);
    /* Pins host memory that copies will use, until unlock. Returns false if the memory is not pinned; then unlock is not
     * called. May run on any thread that executes an operation. */
    bool (*lock)(void *context, void *data, uint64_t bytes);
    void (*unlock)(void *context, void *data, uint64_t bytes);
    void *context; /* must outlive the communicator, or be removed with pd_comm_use_memory */
};

enum pd_comm_kind { PD_COMM_EXCHANGE, PD_COMM_REDUCE_SCATTER, PD_COMM_ALL_GATHER };
extern const char *const pd_comm_kind_names[];

/* One operation. The caller owns the storage and must not touch it until pd_comm_wait. In an exchange each side may cut a
 * message into pieces in its own way; only the total lengths must agree. With pd_comm_use_memory the lengths of the pieces
 * must agree too, in order, because NCCL, which may replace such a communicator, cannot join pieces. */
struct pd_comm_op {
    const struct pd_comm_piece *sends, *recvs; /* borrowed */
    uint32_t send_count, recv_count;
    const char *what; /* name of the payload, for traces: a string constant, or NULL */
    /* private to the implementation; zero at the start */
    enum pd_comm_kind kind;
    uint8_t *parts; /* (size, part_bytes) of the collectives */
    uint64_t part_bytes;
    void *sum;
    bool adds_narrow; /* 32-bit integers instead of 64-bit ones */
    struct pd_comm_op *next;
    bool is_begun; /* its first exchange already ran, together with the previous operation's last one */
    const struct pd_comm_memory *memory; /* memory of the pieces; NULL: host */
    uint32_t ticket;
    pd_status status;
    struct pd_error error;
    _Atomic int done; /* set last, under the communicator's lock; the caller may poll it but must still call wait */
};

/* Ranks of equal color form a new communicator, ordered by (key, rank). A link has two ranks, and each operation has one
 * sender and one receiver; the receiver may arrive long before the sender. */
struct pd_comm_part {
    uint32_t color, key;
    bool is_link;
};

/* Bytes this rank has sent on a communicator and on all splits of its root, since the first operation. Message headers and
 * retransmissions are not counted. */
struct pd_comm_traffic {
    uint64_t inside_bytes;  /* to other ranks of its host */
    uint64_t leaving_bytes; /* to other hosts */
    uint64_t library_bytes; /* passed to NCCL, which chooses the route: what a ring sends for a collective */
};

struct pd_comm_ops {
    const char *name;
    pd_status (*start)(struct pd_comm *, struct pd_comm_op *, struct pd_error *);
    pd_status (*wait)(struct pd_comm *, struct pd_comm_op *, struct pd_error *);
    pd_status (*exchange)(struct pd_comm *, struct pd_comm_op *,
                          struct pd_error *); /* start and wait in the caller's thread; pieces in host memory */
    pd_status (*all_reduce)(struct pd_comm *, uint64_t *values, uint32_t count, enum pd_reduce, struct pd_error *);
    pd_status (*broadcast)(struct pd_comm *, uint32_t root, void *data, uint64_t bytes, struct pd_error *);
    pd_status (*gather)(struct pd_comm *, uint32_t root, const void *send, uint64_t bytes, void *recv, struct pd_error *);
    pd_status (*split)(struct pd_comm *, const struct pd_comm_part *, struct pd_comm **ret_comm, struct pd_error *);
    pd_status (*look)(struct pd_comm *, struct pd_error *);
    void (*abort)(struct pd_comm *);
    void (*unlock)(struct pd_comm *);                                 /* unpins what it pinned through its memory */
    void (*will_use)(struct pd_comm *, void *memory, uint64_t bytes); /* NULL: it makes no difference */
    void (*traffic)(struct pd_comm *, struct pd_comm_traffic *ret_traffic);
    void (*free)(struct pd_comm *);
};

struct pd_comm {
    const struct pd_comm_ops *ops;
    uint32_t rank, size;
    uint32_t host, host_count;
    uint32_t rank_here, ranks_here; /* this rank's index among the ranks of its host, and their number */
    uint32_t ranks_here_max;        /* most ranks on any host */
    bool is_background;             /* waiting in it delays nobody, so heartbeats ignore it */
    uint64_t bytes;                 /* memory this rank allocated for it */
    struct pd_comm_memory memory;
};

/* Later operations access their pieces through `memory`. It is copied, and later splits inherit it. NULL functions return to
 * host memory. All ranks must make the same call, between operations. */
void pd_comm_use_memory(struct pd_comm *comm, const struct pd_comm_memory *memory);

/* Announces that parts and sums of later operations lie in this buffer, which stays valid until the communicator is freed.
 * The library may then prepare it (NCCL: ncclCommRegister). This only affects speed: other memory works too. */
void pd_comm_will_use(struct pd_comm *comm, void *memory, uint64_t bytes);

/* After PD_PEER_LOST: the rank, numbered in the whole job, that was found missing first, or UINT32_MAX. Only for
 * communicators of processes or threads. */
uint32_t pd_comm_missed(const struct pd_comm *comm);

PD_MUST_USE pd_status pd_comm_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
/* Bulk collectives; finish them with pd_comm_wait. All ranks pass the same count or bytes. They set every field of *op but
 * `what`. Until the wait, the caller must not touch parts or sum: peers may read `parts`.
 *
 *   reduce_scatter  parts (size, count) on each rank -> sum (count): the sum of part `rank` over all ranks, modulo 2^64. sum
 *                   may be parts + rank * count, and must not overlap other parts. Overwrites parts: other sums may be
 *                   formed there
 *   .. narrow       the same with integers of 32 bits; count is even
 *   all_gather      parts (size, bytes) with the own part filled -> all parts, the same on every rank
 *
 * Each host sends (host_count - 1) / host_count of the parts once, however many ranks it has (trainer/comm/README.md).
 */
PD_MUST_USE pd_status pd_comm_start_reduce_scatter(struct pd_comm *comm, struct pd_comm_op *op, uint64_t *parts,
                                                   uint64_t count, uint64_t *sum, struct pd_error *err);
PD_MUST_USE pd_status pd_comm_start_reduce_scatter_narrow(struct pd_comm *comm, struct pd_comm_op *op, uint32_t *parts,
                                                          uint64_t count, uint32_t *sum, struct pd_error *err);
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
/* The same, if each rank's new communicator is a link or has one rank. */
PD_MUST_USE pd_status pd_comm_split_links(struct pd_comm *comm, uint32_t color, uint32_t key, struct pd_comm **ret_comm,
                                          struct pd_error *err);
/* Checks without waiting whether all visible peers are alive. PD_PEER_LOST names one that died, failed or left. Callable
 * from any thread. */
PD_MUST_USE pd_status pd_comm_look(struct pd_comm *comm, struct pd_error *err);
/* Callable from any thread. */
void pd_comm_traffic(struct pd_comm *comm, struct pd_comm_traffic *ret_traffic);
/* This rank gives up. Its pending and later operations return PD_PEER_LOST at once, and so do those of peers that need it.
 * If `comm` is the outermost communicator, this includes its splits. Use it to clean up after a failure: a started operation
 * owns its pieces until pd_comm_wait, and abort makes that wait short. */
void pd_comm_abort(struct pd_comm *comm); /* NULL is fine */
void pd_comm_free(struct pd_comm *comm);  /* NULL is fine */

/* Bytes that each rank of a communicator of `size` ranks allocates, staging included. Ranks are threads of one process, or
 * processes with at most PD_COMM_RANKS_PER_HOST ranks on a host (more ranks need a few more pages). */
#define PD_COMM_RANKS_PER_HOST 30u
uint64_t pd_comm_bytes(uint32_t size, bool is_processes);

/* A pd_group over a communicator, for ckpt/ and resharder/. Its pieces are always in host memory. Valid while the
 * communicator lives; needs no release. */
void pd_comm_group(struct pd_comm *comm, struct pd_group *ret_group);

/* Runs `size` ranks as threads of this process, on host_count simulated hosts (rank r is on host r * host_count / size). If
 * rank_main fails, the other ranks see that rank as dead. Returns the first failure in rank order; PD_PEER_LOST is returned
 * only if there is no other. The message begins with the rank. */
PD_MUST_USE pd_status pd_comm_run_local(uint32_t size, uint32_t host_count,
                                        pd_status (*rank_main)(struct pd_comm *, void *context, struct pd_error *),
                                        void *context, struct pd_error *err);

/* Joins the MPI job that started this process; calls MPI_Init. pd_comm_free of this communicator finalises MPI. It waits for
 * the other ranks to arrive, but only a moment after a failure; if one does not arrive, MPI is left open until the process
 * ends. PD_UNSUPPORTED in a program without MPI. */
PD_MUST_USE pd_status pd_comm_open_mpi(struct pd_comm **ret_comm, struct pd_error *err);

/* This program was linked with MPI. */
bool pd_comm_has_mpi(void);

/* All ranks reached pd_comm_free and MPI is finalised: exit code 0 then tells mpirun the truth, whatever the status. */
bool pd_comm_mpi_is_over(void);
