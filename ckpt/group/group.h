/* The collectives that ckpt/ and resharder/ need: a table of functions that the caller provides.
 *
 * Every call is collective: all ranks make the same calls in the same order. A peer that dies makes the call return
 * PD_PEER_LOST on the others, in bounded time; after that the group is unusable. `host` numbers the hosts 0..host_count-1:
 * ranks of equal host see the same local file system.
 *   threads  one caller per rank at a time
 */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>

struct pd_group;

/* One message to or from `peer`; buffers are the caller's and may be reused when exchange returns. */
struct pd_group_piece {
    uint32_t peer;
    void *data; /* host memory */
    uint64_t bytes;
};

struct pd_group_ops {
    const char *name;
    pd_status (*barrier)(struct pd_group *, struct pd_error *);
    /* Every rank sends `bytes` (equal on all ranks). root's recv receives size*bytes in rank order; elsewhere it is NULL. */
    pd_status (*gather)(struct pd_group *, uint32_t root, const void *send, uint64_t bytes, void *recv, struct pd_error *);
    pd_status (*broadcast)(struct pd_group *, uint32_t root, void *data, uint64_t bytes, struct pd_error *);
    /* All-to-all of variable length. The k-th piece sent from a to b is received into the k-th piece b names with peer a;
     * their sizes are equal. Sends to oneself are allowed. */
    pd_status (*exchange)(struct pd_group *, const struct pd_group_piece *sends, uint32_t send_count,
                          const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *);
};

struct pd_group {
    const struct pd_group_ops *ops; /* NULL: one rank alone */
    uint32_t rank, size;
    uint32_t host, host_count;
    void *context;
};

PD_MUST_USE pd_status pd_group_barrier(struct pd_group *group, struct pd_error *err);
PD_MUST_USE pd_status pd_group_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                                      struct pd_error *err);
PD_MUST_USE pd_status pd_group_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes,
                                         struct pd_error *err);
PD_MUST_USE pd_status pd_group_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                                        const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err);

/* Gives every rank the data of all ranks: *ret_all (size * bytes, in rank order) is malloc'ed; the caller frees it. */
PD_MUST_USE pd_status pd_group_gather_all(struct pd_group *group, const void *mine, uint64_t bytes, void **ret_all,
                                          struct pd_error *err);

/* Agreement: returns PD_OK on every rank only if `mine` is PD_OK on every rank; otherwise every rank returns the status and
 * the message of the lowest failing rank ("rank 3: ..."). This is how one rank's failure becomes everybody's decision. */
PD_MUST_USE pd_status pd_group_agree(struct pd_group *group, pd_status mine, struct pd_error *err);

/* A group of one rank on one host; needs no release. */
void pd_group_init_single(struct pd_group *ret_group);
