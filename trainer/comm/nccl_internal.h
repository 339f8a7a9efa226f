/* Shared by nccl.c (lifetime, failures, the watcher thread) and nccl_launch.c (passes operations to NCCL). */
#pragma once

#include "ckpt/base/owner.h"
#include "trainer/comm/nccl.h"
#include "trainer/comm/nccl_library.h"

#include <pthread.h>
#include <stdatomic.h>

#define FLIGHTS 32u /* operations that the host may run ahead of the stream */
#define REGISTERED_MAX 4u

struct flight {
    struct pd_event *begun, *ended; /* the stream has come to the operation, has finished it */
    const char *what;
    bool is_open; /* started, not yet waited for */
    bool is_over; /* the stream has passed it */
};

struct comm_group;

struct nccl_comm {
    struct pd_comm comm; /* first: the public face */
    struct comm_group *group;
    struct pd_comm *control;
    bool is_launching, is_link, is_used;
    void *handle; /* NULL: one rank, or ended */
    struct pd_stream *stream;
    const char *lane;       /* name in spans */
    struct pd_event *given; /* marks the work on the compute stream before an operation */
    /* Owner of flights and operations. During a launch the caller's thread has them; otherwise the watcher polls them and
     * sets is_over. is_launching, guarded by the group's lock, orders the two. Only the caller uses is_open. */
    struct pd_owner flights_owner;
    struct flight flights[FLIGHTS];
    uint64_t operations;
    uint64_t number;                  /* in heartbeats, the same on all members */
    uint64_t ended;                   /* operations that the watcher has seen end */
    struct pd_span greeting;          /* link only: the byte sent to the peer, and the byte received */
    void *registered[REGISTERED_MAX]; /* buffers registered by pd_comm_will_use */
    uint32_t registered_count;
    struct nccl_comm *next;
};

struct comm_group {
    const struct pd_nccl_library *nccl;
    struct pd_dev *dev;
    struct pd_stream *compute;
    struct pd_device_spans *spans; /* NULL: not recorded */
    uint32_t named;                /* members that have a lane */
    struct pd_comm *control;       /* of the outermost communicator */
    int rank;                      /* of the job, for heartbeats */
    _Atomic uint64_t sent_bytes;   /* by NCCL */
    pthread_mutex_t lock;          /* guards the fields below, and handles */
    pthread_cond_t wake;
    struct nccl_comm *members;
    bool is_closing, is_watched;
    pd_status broken;
    struct pd_error error;
    pthread_t watcher;
};

static inline struct nccl_comm *nccl_of(struct pd_comm *comm)
{
    return (struct nccl_comm *)comm;
}

/* The slots of pd_comm_ops for pieces in device memory; host pieces use control. */
pd_status nccl_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
pd_status nccl_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
/* Passes the operation to NCCL on the communicator's stream. The caller must hold the handle. */
PD_MUST_USE pd_status nccl_launch(struct nccl_comm *c, const struct pd_comm_op *op, struct pd_error *err);

/* The group's failure, or PD_OK. */
pd_status nccl_state_of(struct comm_group *f, struct pd_error *err);
void nccl_break_group(struct comm_group *f, pd_status st, const struct pd_error *error);
/* Between begin and end the caller holds the handle. Returns false if the group is broken. */
bool nccl_begin_launch(struct nccl_comm *c);
void nccl_end_launch(struct nccl_comm *c);
/* Polls until the call that returned `code` has finished. */
PD_MUST_USE pd_status nccl_poll_until_done(struct nccl_comm *c, int code, const char *what, struct pd_error *err);
