/* A thread reads a catalog into slots, and its caller takes them in the same order. If one of them fails, both end.
 *
 *        handoff_free          handoff_fill          handoff_next          (the next handoff_next)
 *   free ────────────▶ filling ────────────▶ filled ────────────▶ taken ───────────────────────▶ free
 *
 *   threads  free, fill: the reading thread; the others: the caller */
#pragma once

#include "resharder/catalog/read.h"
#include <pthread.h>

/* Body of the thread: fills slots until it is done or handoff_free returns false. */
typedef pd_status (*handoff_read)(void *context, struct pd_reader *reader, struct pd_error *err);

struct handoff {
    struct pd_vfs *vfs;
    const struct pd_catalog *catalog;
    void *buffers; /* (buffer_bytes) of the reader */
    uint64_t buffer_bytes;
    handoff_read read;
    void *context;
    uint64_t bytes_read; /* by all threads so far; updated when one ends */
    uint32_t slots;

    pthread_t thread;
    bool runs;
    pthread_mutex_t mutex; /* guards the members below */
    pthread_cond_t changed;
    uint64_t filled, taken;
    bool holds_slot; /* the caller has slot `taken` */
    bool is_over, leaves;
    pd_status status; /* of the thread, once it is over */
    struct pd_error error;
};

/* The caller has set the first eight members. */
PD_MUST_USE pd_status handoff_start(struct handoff *handoff, struct pd_error *err);
/* Waits for a slot to fill. False: the caller has stopped taking. */
bool handoff_free(struct handoff *handoff, uint32_t *ret_slot);
void handoff_fill(struct handoff *handoff);
/* Waits for a filled slot, and returns the previous one. *ret_has_one false: no more.   errors  of the thread */
PD_MUST_USE pd_status handoff_next(struct handoff *handoff, uint32_t *ret_slot, bool *ret_has_one, struct pd_error *err);
/* Ends the thread; fine if it was not started. */
void handoff_stop(struct handoff *handoff);
