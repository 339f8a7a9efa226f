/* Saves that fail in a row: when the next one is tried, and when the run gives up. Pure: every time is the root's clock as
 * all ranks have agreed on it, so all ranks decide alike. An attempt is made at the deadline, not before it only: a run that
 * gives up has just seen a save fail. */
#pragma once

#include "ckpt/base/status.h"

#define PD_SAVE_BRIEF_SECONDS 60.0 /* for memory and threads: what takes them is this run, or goes soon */
#define PD_SAVE_LAST_SECONDS 600.0 /* after the last step: somebody may make room, and nobody may be there */

struct pd_save_failures {
    pd_status status;    /* of the last one */
    uint32_t count;      /* in a row; 0: saves work */
    uint64_t first_step; /* the one that was not saved first */
    uint64_t since_ns;   /* when that was known */
    uint64_t retry_ns;   /* no save is begun before, unless a signal asks for one */
    uint64_t leave_ns;   /* somebody asked to leave: no attempt after this; 0: nobody */
    uint64_t over_ns;    /* training is over, likewise; 0: it goes on */
};

/* A save of `step` has failed; the next one follows after the backoff, a second later where somebody waits to leave. */
void pd_save_failures_add(struct pd_save_failures *failures, pd_status status, uint64_t step, uint64_t now_ns,
                          double give_up_seconds);
/* A save has succeeded. */
void pd_save_failures_clear(struct pd_save_failures *failures);
/* Somebody waits for the run to end: the next save is tried now, and the last one after leave_seconds. */
void pd_save_failures_leave(struct pd_save_failures *failures, uint64_t now_ns, double leave_seconds);
/* Training is over: the last attempt is made after PD_SAVE_LAST_SECONDS, and none waits for minutes. Once counts. */
void pd_save_failures_over(struct pd_save_failures *failures, uint64_t now_ns);

/* When the last attempt is made. */
uint64_t pd_save_failures_deadline(const struct pd_save_failures *failures, double give_up_seconds);
bool pd_save_failures_is_backing_off(const struct pd_save_failures *failures, uint64_t now_ns);
/* After a save has failed: for so long that the run ends. */
bool pd_save_failures_is_too_long(const struct pd_save_failures *failures, uint64_t now_ns, double give_up_seconds);
