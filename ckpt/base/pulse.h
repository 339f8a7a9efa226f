/* Where each rank is, in memory that the process which watches it maps too: so a rank that is stopped, or waits in the
 * kernel, has said it before.
 *
 *   memory   a memfd with one pulse a rank of this process; the watcher opens it through /proc/<pid>/fd
 *   threads  every member has one meaning at a time and is written by relaxed stores; several threads of a rank count `done`
 *   nothing  where no pulses were opened, all calls but pd_pulse_open do nothing */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum pd_pulse_place {
    PD_PULSE_OPENING,
    PD_PULSE_COMPUTING,
    PD_PULSE_READING,
    PD_PULSE_SAVING,
    PD_PULSE_UPDATING_FILES,
    PD_PULSE_EXCHANGING,
    PD_PULSE_PLACES
};

#define PD_PULSE_WORDS 4u          /* of the name of an operation */
#define PD_PULSE_STORAGE_WORDS 16u /* of a directory: its end, where it is longer */

struct pd_pulse {
    alignas(128) _Atomic uint64_t done; /* blocks, exchanges and steps that were completed or begun */
    _Atomic uint64_t step, exchange;    /* under way; exchanges are numbered from 1 on, whatever the communicator */
    _Atomic uint32_t micro_batch, block;
    _Atomic uint32_t place;     /* enum pd_pulse_place, of the thread that trains */
    _Atomic uint32_t exchanges; /* under way */
    _Atomic uint32_t waits_for; /* the rank that the exchange misses, plus 1; 0: none, or not for long */
    _Atomic uint32_t steps;     /* begun by this process */
    _Atomic uint32_t is_held;   /* stopped by a fault of a test: nobody's to end */
    _Atomic uint64_t operation[PD_PULSE_WORDS];
    _Atomic uint64_t storage[PD_PULSE_STORAGE_WORDS]; /* where the save under way writes; "": nowhere */
    _Atomic uint64_t beats;                           /* copies that were made for watchers of other hosts */
    _Atomic uint64_t entered_ns;                      /* into `place`, by the monotonic clock */
    _Atomic uint64_t place_ns[PD_PULSE_PLACES];       /* spent in each before that */
    _Atomic uint64_t step_ns; /* of the monotonic clock: when `step` was begun, and the one before it was done */
};

/* Once a process, before it has threads.   ret_fd: for others.   False: there is no such memory, and no pulse. */
bool pd_pulse_open(uint32_t ranks, int *ret_fd);
/* Of the one rank of this process, for a watcher that cannot map it. False: there is no pulse. */
bool pd_pulse_copy(struct pd_pulse *ret_copy);
/* NULL: it cannot be mapped. */
const struct pd_pulse *pd_pulse_map(int process, int fd, uint32_t ranks);
void pd_pulse_unmap(const struct pd_pulse *pulses, uint32_t ranks);

/* Of the rank that the calling thread works for (ckpt/base/rank.h). */
void pd_pulse_step(uint64_t step);
void pd_pulse_micro_batch(uint32_t micro_batch);
void pd_pulse_block(uint32_t block);
/* Returns the place before. Nothing in threads that do not train, which is what pd_pulse_step is called by. */
enum pd_pulse_place pd_pulse_enter(enum pd_pulse_place place);
void pd_pulse_spent(uint64_t ret_ns[PD_PULSE_PLACES]); /* since the first step of this process; 0 without pulses */
void pd_pulse_exchange_begin(const char *operation);
void pd_pulse_waits_for(uint32_t rank);
void pd_pulse_exchange_end(void);
/* The directory of the tier that a save now writes to, by the thread that saves; "": none. */
void pd_pulse_storage(const char *dir);
void pd_pulse_hold(void); /* of all ranks of this process */
