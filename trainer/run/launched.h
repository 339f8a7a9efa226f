/* The worker's side of the launcher: what it was started for, that it dies with its launcher, and its last words.
 *
 *   pd_launched_begin(&launched)      first thing in main: signals are caught, the parent's death ends this process
 *   pd_launched_ready(&launched)      the ranks have joined (MPI is up)
 *   pd_launched_end(&launched, ...)   the last thing before exit, after ranks agreed upon the status
 *
 * Without a launcher (a worker started by hand under mpirun) all of it is harmless. */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/config/config.h"
#include <stdint.h>

struct pd_launched {
    bool is_launched;            /* by a launcher of perdure */
    uint32_t ranks;              /* of the whole job; 0: not launched */
    uint32_t restart;            /* 0: the first start of this launch */
    enum pd_transport transport; /* LOCAL: this process runs all ranks. MPI: it is one. AUTO: not launched */
    uint32_t rank;               /* of this process; 0 for LOCAL */
    char layout[160];            /* settings that the launcher chose; "": those of the configuration */
};

/* MPI tells the rank only after it has started; the programs that start ranks tell it before, by one of these variables. */
#define PD_LAUNCHED_RANK_VARIABLES 4u
extern const char *const pd_launched_rank_variables[PD_LAUNCHED_RANK_VARIABLES];

PD_MUST_USE pd_status pd_launched_begin(struct pd_launched *ret_launched, struct pd_error *err);
void pd_launched_ready(const struct pd_launched *launched);
/* Rank 0, before the first step of this start: from here on there may be something to save. */
void pd_launched_training(void);
/* Rank 0: the step is committed. Hosts have their own tiers, and the launcher may see none of them. */
void pd_launched_saved(uint64_t step);
/* This rank ends because that one is missing; UINT32_MAX: nobody knows which. */
void pd_launched_misses(uint32_t rank);
/* True: the launcher has it, so the exit code of this process tells it nothing more. */
bool pd_launched_end(const struct pd_launched *launched, pd_status status, const char *message);

/* How long saves are tried, and further tiers waited for, by who was asked to leave: `asked`, and at most four fifths of
 * PERDURE_GRACE_S, when what is left is ended. */
double pd_launched_leave_seconds(double asked);

/* Hosts of launch.hosts that take no part in this start, as rank 0 is told; "": none. */
const char *pd_launched_hosts_away(void);

/* The rank's host will be taken away: the launcher goes on without it where it can. */
void pd_launched_taken(uint32_t rank);

/* The rank lost its GPU. is_spare: as many ranks find one when it is left out. */
void pd_launched_lost_gpu(uint32_t rank, const char *identity, bool is_spare);

/* The rank computed a gradient that is not finite. is_spare: as above. */
void pd_launched_not_finite(uint32_t rank, const char *gpu, bool is_spare);

/* Threads for each of `ranks_here` ranks of this host: `asked`, or an even share of the cores this process may use. */
uint32_t pd_launched_threads(uint32_t asked, uint32_t ranks_here);

/* How a launcher tells: environment variables, names shared by both sides. */
#define PD_LAUNCH_ENV_RANKS "PERDURE_LAUNCH_RANKS"
#define PD_LAUNCH_ENV_RESTART "PERDURE_LAUNCH_RESTART"
#define PD_LAUNCH_ENV_TRANSPORT "PERDURE_LAUNCH_TRANSPORT"
#define PD_LAUNCH_ENV_LAYOUT "PERDURE_LAUNCH_LAYOUT"
#define PD_LAUNCH_ENV_LEFT_OUT "PERDURE_LAUNCH_LEFT_OUT" /* identities of GPUs, with commas between them */
#define PD_LAUNCH_ENV_AWAY "PERDURE_LAUNCH_AWAY"         /* hosts of launch.hosts that take no part */
#define PD_LAUNCH_ENV_PARENT "PERDURE_LAUNCH_PARENT"
#define PD_LAUNCH_ENV_GRACE "PERDURE_GRACE_S" /* the user's or the batch system's */
#define PD_LAUNCH_GRACE_SECONDS "25"
#define PD_LAUNCH_ENV_CONFIG "PERDURE_LAUNCH_CONFIG" /* the file that the user named, absolute */
#define PD_LAUNCH_ENV_VERIFY "PERDURE_LAUNCH_VERIFY" /* "1": --verify-data; "": not */
#define PD_LAUNCH_ENV_TRACE "PERDURE_LAUNCH_TRACE"   /* the file of --trace; "": none */

/* How the ranks of one start are laid out; chosen by the launcher, so that they agree. */
struct pd_launch_layout {
    uint32_t ranks;
    char summary[64];   /* for people: "dp=2 tp=4" */
    char settings[192]; /* for the ranks */
};

/* Ranks of each host, where `ranks` run: layout.ranks_per_host, or all. */
uint32_t pd_launch_ranks_of_a_host(const struct pd_config *config, uint32_t ranks);
/* Warns where the launcher chose for other hosts than there are: `most` ranks are on one. */
void pd_launch_layout_log_hosts(const struct pd_config *config, uint32_t ranks, uint32_t hosts, uint32_t most);
/* What the launcher said, on a rank: layout.* of the configuration, and offload.update, become that. */
PD_MUST_USE pd_status pd_launch_layout_apply(struct pd_config *config, const char *settings, uint32_t ranks,
                                             struct pd_error *err);
