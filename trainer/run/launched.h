/* The worker's side of the launcher: reads what the worker was started for, ends it with its launcher, and reports its end.
 *
 *   pd_launched_begin(&launched)      first in main: installs signal handlers; the parent's death ends this process
 *   pd_launched_ready(&launched)      the ranks have joined (MPI is up)
 *   pd_launched_end(&launched, ...)   last before exit, after ranks agreed on the status
 *
 * Without a launcher (a worker started by hand under mpirun) all of this has no effect. */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/config/config.h"
#include <stdint.h>

struct pd_launched {
    bool is_launched;            /* by perdure's launcher */
    uint32_t ranks;              /* of the whole job; 0: not launched */
    uint32_t restart;            /* 0: first start of this launch */
    enum pd_transport transport; /* LOCAL: this process runs all ranks. MPI: it runs one. AUTO: not launched */
    uint32_t rank;               /* of this process; 0 if LOCAL */
    char layout[160];            /* settings that the launcher chose; "": use the configuration's */
};

/* MPI reports the rank only once it has started. The programs that start ranks set one of these variables before that. */
#define PD_LAUNCHED_RANK_VARIABLES 4u
extern const char *const pd_launched_rank_variables[PD_LAUNCHED_RANK_VARIABLES];

PD_MUST_USE pd_status pd_launched_begin(struct pd_launched *ret_launched, struct pd_error *err);
void pd_launched_ready(const struct pd_launched *launched);
/* Rank 0, before the first step of this start: from now on there may be something to save. */
void pd_launched_training(void);
/* Rank 0 reports a committed step: hosts have their own tiers, which the launcher may not see. */
void pd_launched_saved(uint64_t step);
/* Reports that this rank ends because `rank` is missing. UINT32_MAX: unknown. */
void pd_launched_misses(uint32_t rank);
/* Returns true if the launcher received the report; the exit code of this process then adds nothing. */
bool pd_launched_end(const struct pd_launched *launched, pd_status status, const char *message);

/* PERDURE_GRACE_S; INFINITY: nobody ends what is left. */
double pd_launched_grace_seconds(void);
/* How long saves are tried, and further tiers waited for, by who was asked to leave: `asked`, and at most four fifths of
 * PERDURE_GRACE_S, when what is left is ended. */
double pd_launched_leave_seconds(double asked);

/* Hosts of launch.hosts that are left out of this start, as reported to rank 0; "": none. */
const char *pd_launched_hosts_away(void);

/* Reports that the rank's host will be taken away. The launcher continues without it if it can. */
void pd_launched_taken(uint32_t rank);

/* Reports a lost GPU. is_spare: ranks still find enough GPUs without it. */
void pd_launched_lost_gpu(uint32_t rank, const char *identity, bool is_spare);

/* Reports that the rank computed a gradient that is not finite. is_spare: as above. */
void pd_launched_not_finite(uint32_t rank, const char *gpu, bool is_spare);

/* Threads for each of `ranks_here` ranks on this host: `asked`, or an even share of the cores this process may use. */
uint32_t pd_launched_threads(uint32_t asked, uint32_t ranks_here);

/* Environment variables from the launcher to its ranks. */
#define PD_LAUNCH_ENV_RANKS "PERDURE_LAUNCH_RANKS"
#define PD_LAUNCH_ENV_RESTART "PERDURE_LAUNCH_RESTART"
#define PD_LAUNCH_ENV_TRANSPORT "PERDURE_LAUNCH_TRANSPORT"
#define PD_LAUNCH_ENV_LAYOUT "PERDURE_LAUNCH_LAYOUT"
#define PD_LAUNCH_ENV_LEFT_OUT "PERDURE_LAUNCH_LEFT_OUT" /* GPU identities, separated by commas */
#define PD_LAUNCH_ENV_AWAY "PERDURE_LAUNCH_AWAY"         /* hosts of launch.hosts left out */
#define PD_LAUNCH_ENV_PARENT "PERDURE_LAUNCH_PARENT"
#define PD_LAUNCH_ENV_GRACE "PERDURE_GRACE_S" /* set by the user or batch system */
#define PD_LAUNCH_GRACE_SECONDS "25"
#define PD_LAUNCH_ENV_CONFIG "PERDURE_LAUNCH_CONFIG" /* absolute path of the user's file */
#define PD_LAUNCH_ENV_VERIFY "PERDURE_LAUNCH_VERIFY" /* "1": --verify-data; "": off */
#define PD_LAUNCH_ENV_TRACE "PERDURE_LAUNCH_TRACE"   /* file for --trace; "": none */

/* The layout of one start. The launcher chooses it, so that all ranks agree. */
struct pd_launch_layout {
    uint32_t ranks;
    char summary[64];   /* for people: "dp=2 tp=4" */
    char settings[192]; /* for the ranks */
};

/* Ranks per host for a run of `ranks`: layout.ranks_per_host, or all. */
uint32_t pd_launch_ranks_of_a_host(const struct pd_config *config, uint32_t ranks);
/* Warns if the launcher planned for a different placement: `most` ranks are on one host. */
void pd_launch_layout_log_hosts(const struct pd_config *config, uint32_t ranks, uint32_t hosts, uint32_t most);
/* On a rank: sets layout.* and offload.update of the configuration to the launcher's settings. */
PD_MUST_USE pd_status pd_launch_layout_apply(struct pd_config *config, const char *settings, uint32_t ranks,
                                             struct pd_error *err);
