/* What the caller of NCCL is made of: nccl.c has its life, its failures and the thread that watches, nccl_launch.c gives
 * operations to the library. */
#pragma once

#include "ckpt/base/owner.h"
#include "trainer/comm/nccl.h"
#include "trainer/comm/nccl_library.h"

#include <pthread.h>
#include <stdatomic.h>

#define FLIGHTS 32u /* operations that the host may be ahead */
#define REGISTERED_MAX 4u

struct flight {
    struct pd_event *ended;
    bool is_open; /* started and not waited for */
    bool is_over; /* the stream has passed it */
};

struct family;

struct nccl_comm {
    struct pd_comm comm; /* first: the public face */
    struct family *family;
    struct pd_comm *control;
    bool is_launching, is_link, is_used;
    void *handle; /* NULL: one rank, or ended */
    struct pd_stream *stream;
    const char *lane;       /* of spans */
    struct pd_event *given; /* what the compute stream had before an operation */
    /* Of flights and operations. "A launch" has them, in the caller's thread; at other times "the watcher" looks at them and
     * notes what it saw. is_launching, which the family's lock guards, orders them. is_open is the caller's alone. */
    struct pd_owner flights_owner;
    struct flight flights[FLIGHTS];
    uint64_t operations;
    struct pd_span greeting;          /* of a pair: a byte to the other, and its byte */
    void *registered[REGISTERED_MAX]; /* what the library knows by pd_comm_will_use */
    uint32_t registered_count;
    struct nccl_comm *next;
};

struct family {
    const struct pd_nccl_library *nccl;
    struct pd_dev *dev;
    struct pd_stream *compute;
    struct pd_device_spans *spans; /* NULL: nobody asks */
    uint32_t named;                /* members that were given a lane */
    struct pd_comm *control;       /* of the outermost */
    _Atomic uint64_t sent_bytes;   /* by the library */
    pthread_mutex_t lock;          /* guards what follows, and handles */
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

/* The slots of pd_comm_ops that are the device's; pieces of the host's go over control. */
pd_status nccl_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
pd_status nccl_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err);
/* Gives it to the library, on the communicator's stream. Its handle is the caller's. */
PD_MUST_USE pd_status nccl_launch(struct nccl_comm *c, const struct pd_comm_op *op, struct pd_error *err);

/* The family's failure, or PD_OK. */
pd_status nccl_state_of(struct family *f, struct pd_error *err);
void nccl_break_family(struct family *f, pd_status st, const struct pd_error *error);
/* Between them the handle is the caller's; false: the family is broken. */
bool nccl_begin_launch(struct nccl_comm *c);
void nccl_end_launch(struct nccl_comm *c);
/* What the library answered at once, or says later. */
PD_MUST_USE pd_status nccl_poll_until_done(struct nccl_comm *c, int code, const char *what, struct pd_error *err);
