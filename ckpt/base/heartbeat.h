/* Where each rank is, in memory that the process which watches it maps too. So a rank that is stopped or waits in the kernel has
 * written it before, and what a killed one wrote can still be read.
 *
 *   memory   a memfd with one heartbeat a rank of this process; the watcher opens it through /proc/<pid>/fd
 *   threads  every member has one meaning at a time and is written by relaxed stores; several threads of a rank count `done`
 *   nothing  where no heartbeats were opened, all calls but pd_heartbeat_open do nothing */
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

#define PD_HEARTBEAT_WORDS 4u          /* of the name of an operation */
#define PD_HEARTBEAT_STORAGE_WORDS 16u /* of a directory: its end, where it is longer */

struct pd_heartbeat {
    alignas(128) _Atomic uint64_t done; /* blocks, exchanges and steps that were completed or begun */
    _Atomic uint64_t step, exchange;    /* under way; exchanges are numbered from 1 on, whatever the communicator */
    _Atomic uint32_t micro_batch, block;
    _Atomic uint32_t place;              /* enum pd_heartbeat_place, of the thread that trains */
    _Atomic uint32_t exchanges;          /* under way */
    _Atomic uint32_t waits_for;          /* the rank that the exchange misses, plus 1; 0: none, or not for long */
    _Atomic uint32_t steps;              /* begun by this process */
    _Atomic uint32_t storage_waits;      /* threads of the rank that are in calls which may block on storage */
    _Atomic uint32_t is_ended_by_parent; /* TERM came from the parent of this process, the starter of ranks */
    _Atomic uint32_t is_held;            /* stopped by a fault of a test: nobody's to end */
    _Atomic uint64_t storage_done;       /* calls of those that have returned */
    _Atomic uint64_t operation[PD_HEARTBEAT_WORDS];
    _Atomic uint64_t storage[PD_HEARTBEAT_STORAGE_WORDS]; /* where the save under way writes; "": nowhere */
    _Atomic uint64_t beats;                               /* copies that were made for watchers of other hosts */
    _Atomic uint64_t entered_ns;                          /* into `place`, by the monotonic clock */
    _Atomic uint64_t place_ns[PD_HEARTBEAT_PLACES];       /* spent in each before that */
    _Atomic uint64_t step_ns; /* of the monotonic clock: when `step` was begun, and the one before it was done */
};

/* Once a process, before it has threads.   ret_fd: for others.   False: there is no such memory, and no heartbeat. */
bool pd_heartbeat_open(uint32_t ranks, int *ret_fd);
/* NULL: it cannot be mapped. */
const struct pd_heartbeat *pd_heartbeat_map(int process, int fd, uint32_t ranks);
void pd_heartbeat_unmap(const struct pd_heartbeat *heartbeats, uint32_t ranks);

/* Of the rank that the calling thread works for (ckpt/base/rank.h). */
void pd_heartbeat_step(uint64_t step);
void pd_heartbeat_micro_batch(uint32_t micro_batch);
void pd_heartbeat_block(uint32_t block);
/* Returns the place before. Nothing in threads that do not train, which is what pd_heartbeat_step is called by. */
enum pd_heartbeat_place pd_heartbeat_enter(enum pd_heartbeat_place place);
void pd_heartbeat_spent(
    uint64_t ret_ns[PD_HEARTBEAT_PLACES]); /* since the first step of this process; 0 without heartbeats */
void pd_heartbeat_exchange_begin(const char *operation);
void pd_heartbeat_waits_for(uint32_t rank);
void pd_heartbeat_exchange_end(void);
/* Around a call that may block on storage; in every thread. Returns what end needs. READING, SAVING and UPDATING_FILES stay:
 * they say why. */
enum pd_heartbeat_place pd_heartbeat_storage_begin(void);
void pd_heartbeat_storage_end(enum pd_heartbeat_place before);
/* STATEMENT may block on storage. It must not return from the function; errno stays what it makes it. */
#define PD_ON_STORAGE(STATEMENT)                                                      \
    do {                                                                              \
        const enum pd_heartbeat_place pd_place_before = pd_heartbeat_storage_begin(); \
        STATEMENT;                                                                    \
        pd_heartbeat_storage_end(pd_place_before);                                    \
    } while (0)
void pd_heartbeat_ended_by_parent(void); /* of all ranks of this process; may be called in a signal handler */
/* The directory of the tier that a save now writes to, by the thread that saves; "": none. */
void pd_heartbeat_tier(const char *dir);
void pd_heartbeat_hold(void); /* of all ranks of this process */
