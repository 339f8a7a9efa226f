/* Failures on purpose, for tests: perdure train --chaos SEED,RATE, and perdure bench survive.
 *
 *   when  one in each period of 60 / RATE seconds, at a moment of it that the seed gives, once ranks train. One that comes due
 *         while they start waits until they do
 *   what  by the seed too: a rank is killed, stopped for good, or stopped for a moment; all are asked to save and leave, as
 *         by a scheduler; a byte of the newest checkpoint is turned and a rank killed; a bit of gradients is turned on their way
 *         to a rank; the disk is full for some seconds; all ranks of a host are killed; a host is cut off from the launcher's.
 *         What cannot be done here (PD_CHAOS_CUT_OFF without other hosts) is a rank killed
 *   whom  ranks of all hosts that have a relay (trainer/notes), and of this one
 *   pure  the choice is; the caller strikes */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum pd_chaos_kind {
    PD_CHAOS_KILL,
    PD_CHAOS_STOP,
    PD_CHAOS_PAUSE,
    PD_CHAOS_PREEMPT,
    PD_CHAOS_DAMAGE,
    PD_CHAOS_FLIP,
    PD_CHAOS_FILL,
    PD_CHAOS_HOST,
    PD_CHAOS_CUT_OFF,
    PD_CHAOS_KINDS
};
extern const char *const pd_chaos_names[PD_CHAOS_KINDS];

struct pd_chaos {
    uint64_t seed;
    double per_minute; /* 0: nothing fails */
    const char *dir;   /* where checkpoints are; borrowed */

    uint64_t began_ns, count; /* failures so far */
    uint64_t until_ns;        /* that which passes ends then; 0: nothing does */
    uint32_t paused;          /* that process of ranks; PD_CHAOS_NOBODY */
    int ballast;              /* what fills the disk: a file without a name, so it goes with the launcher; -1: none */
};

struct pd_chaos_blow {
    enum pd_chaos_kind kind;
    uint32_t victim; /* of `processes` */
    double moment;   /* 0 to 1: which byte */
};

/* "7,2": seed 7, two failures a minute. False: it is none. */
bool pd_chaos_parse(const char *text, struct pd_chaos *ret_chaos);
#define PD_CHAOS_NOBODY UINT32_MAX
/* Whether one is due, of so many processes of ranks, all of which train. */
bool pd_chaos_due(struct pd_chaos *chaos, uint64_t now_ns, uint32_t processes, struct pd_chaos_blow *ret_blow);
/* Turns a byte of a shard of the newest checkpoint in chaos->dir. False: there is none. */
bool pd_chaos_damage(const struct pd_chaos *chaos, double moment);
/* Takes what is left of the disk of chaos->dir, until pd_chaos_empty. False: it has more than PD_CHAOS_FILL_BYTES_MAX left and so
 * may be others' too, or cannot be filled so. */
#define PD_CHAOS_FILL_BYTES_MAX (UINT64_C(4) << 30)
bool pd_chaos_fill(struct pd_chaos *chaos);
void pd_chaos_empty(struct pd_chaos *chaos);
