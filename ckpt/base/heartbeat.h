/* Heartbeats: where each rank is, in memory that the watching process also maps. A rank writes its place before it
 * blocks, so the watcher sees where a stopped, blocked or killed rank was.
 *
 *   memory   a memfd with one heartbeat per rank of this process; the watcher opens it through /proc/<pid>/fd
 *   threads  members are independent and written by relaxed stores; several threads of a rank count `done`
 *   nothing  without pd_heartbeat_open all other calls do nothing */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum pd_heartbeat_place {
    PD_HEARTBEAT_OPENING,
    PD_HEARTBEAT_COMPUTING,
    PD_HEARTBEAT_READING,
    PD_HEARTBEAT_SAVING,
    PD_HEARTBEAT_UPDATING_FILES,
    PD_HEARTBEAT_STORAGE, /* in a call that may block on storage, for none of the reasons above */
    PD_HEARTBEAT_EXCHANGING,
    PD_HEARTBEAT_PLACES
};

#define PD_HEARTBEAT_WORDS 4u          /* length of an operation's name */
#define PD_HEARTBEAT_STORAGE_WORDS 16u /* length of a directory; a longer one keeps its end */
#define PD_HEARTBEAT_COMMUNICATORS 12u /* between devices; further ones are not recorded */

/* Operations between devices run on a stream while the host goes on, so the host's place does not show them. A member that
 * has reached fewer of them than another, which is in one, holds that one up. */
struct pd_heartbeat_flights {
    _Atomic uint64_t communicator;                  /* a number that all its members know it by; 0: unused */
    _Atomic uint64_t reached, ended;                /* operations the device has come to, and those it has finished */
    _Atomic uint64_t operation[PD_HEARTBEAT_WORDS]; /* the last one reached */
};

struct pd_heartbeat {
    alignas(128) _Atomic uint64_t done; /* blocks, exchanges and steps begun or completed so far */
    _Atomic uint64_t step, exchange;    /* current ones; exchanges are numbered from 1 across all communicators */
    _Atomic uint32_t micro_batch, block;
    _Atomic uint32_t place;              /* enum pd_heartbeat_place of the training thread */
    _Atomic uint32_t exchanges;          /* number of exchanges under way */
    _Atomic uint32_t waits_for;          /* rank that the exchange waits for, plus 1; 0: none, or not for long */
    _Atomic uint32_t steps;              /* number begun by this process */
    _Atomic uint32_t storage_waits;      /* threads of the rank inside calls that may block on storage */
    _Atomic uint32_t is_ended_by_parent; /* SIGTERM came from the parent of this process, which started the ranks */
    _Atomic uint32_t is_held;            /* stopped by a test's fault: nobody may kill it */
    _Atomic uint64_t storage_done;       /* number of those calls that have returned */
    _Atomic uint64_t operation[PD_HEARTBEAT_WORDS];
    _Atomic uint64_t storage[PD_HEARTBEAT_STORAGE_WORDS]; /* directory that the save is writing to; "": none */
    _Atomic uint64_t beats;                               /* copies made for watchers on other hosts */
    _Atomic uint64_t entered_ns;                          /* when `place` was entered, monotonic clock */
    _Atomic uint64_t place_ns[PD_HEARTBEAT_PLACES];       /* time spent in each place before that */
    _Atomic uint64_t step_ns; /* monotonic clock: when `step` began and the previous step ended */
    struct pd_heartbeat_flights flights[PD_HEARTBEAT_COMMUNICATORS];
};

/* Call once, before the process starts threads. ret_fd: for other processes. False: no shared memory, no heartbeats. */
bool pd_heartbeat_open(uint32_t ranks, int *ret_fd);
/* Returns NULL if it cannot be mapped. */
const struct pd_heartbeat *pd_heartbeat_map(int process, int fd, uint32_t ranks);
void pd_heartbeat_unmap(const struct pd_heartbeat *heartbeats, uint32_t ranks);

/* These write the heartbeat of the rank that the calling thread works for (ckpt/base/rank.h). */
void pd_heartbeat_step(uint64_t step);
void pd_heartbeat_micro_batch(uint32_t micro_batch);
void pd_heartbeat_block(uint32_t block);
void pd_heartbeat_done(void); /* counts a completed piece of other work */
/* Returns the previous place. Does nothing except in the training thread, the one that calls pd_heartbeat_step. */
enum pd_heartbeat_place pd_heartbeat_enter(enum pd_heartbeat_place place);
void pd_heartbeat_spent(
    uint64_t ret_ns[PD_HEARTBEAT_PLACES]); /* since the first step of this process; 0 without heartbeats */
void pd_heartbeat_exchange_begin(const char *operation);
void pd_heartbeat_waits_for(uint32_t rank);
void pd_heartbeat_exchange_end(void);
/* Operations on a device; one thread of the rank at a time. Every newly ended one counts as done. */
void pd_heartbeat_flight(uint64_t communicator, const char *operation, uint64_t reached, uint64_t ended);
void pd_heartbeat_flights_end(uint64_t communicator); /* it is freed */
/* Wrap every call that may block on storage, in any thread; pass the result of begin to end. READING, SAVING and
 * UPDATING_FILES are kept as the place because they say why. */
enum pd_heartbeat_place pd_heartbeat_storage_begin(void);
void pd_heartbeat_storage_end(enum pd_heartbeat_place before);
/* Runs STATEMENT, which may block on storage. It must not return from the function. errno is preserved. */
#define PD_ON_STORAGE(STATEMENT)                                                      \
    do {                                                                              \
        const enum pd_heartbeat_place pd_place_before = pd_heartbeat_storage_begin(); \
        STATEMENT;                                                                    \
        pd_heartbeat_storage_end(pd_place_before);                                    \
    } while (0)
void pd_heartbeat_ended_by_parent(void); /* marks all ranks of this process; safe in a signal handler */
/* Sets the directory of the tier that a save writes to. The saving thread calls it; "": none. */
void pd_heartbeat_tier(const char *dir);
void pd_heartbeat_hold(void); /* marks all ranks of this process */
