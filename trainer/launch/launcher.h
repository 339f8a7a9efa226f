/* The launcher of a run: starts ranks, watches them, and restarts them, all or those that are left, until the run is done.
 *
 * The table in judge.c decides what follows each ending. Progress means a newer committed step than at the previous start.
 * After restart_limit restarts without progress: PD_STUCK.
 *   signals  see signals.h; handled while ranks start, run and end, and between starts
 *   threads  call from the main thread, before others exist: signals are blocked while it runs, and the ranks die with the
 *            thread that started them */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/launch/placement.h"
#include "trainer/run/launched.h"

#define PD_LAUNCH_FOUND_BYTES 1600u

struct pd_launch {
    const char *const *worker; /* argv of a worker, NULL-terminated; the first is a path */
    const char *config_path;   /* the worker's, for ranks of other hosts; NULL: none */
    const char *dir;           /* parent of the launch's private directory; NULL: the directory of temporary files */
    uint32_t ranks;            /* 0: `choose` decides */
    enum pd_transport transport;
    uint32_t gpus;                 /* that ranks of this host may use; 0: they compute on the CPU */
    const uint32_t *restart_ranks; /* for the 1st, 2nd, ... restart; later ones use what is left */
    uint32_t restart_ranks_count, restart_limit;
    double begin_seconds, join_seconds, open_seconds, hang_seconds; /* see struct pd_start */
    struct pd_launch_places places;
    /* The newest committed step. false: none, or unknown now; ret_found then describes what is there, with the command to
     * inspect it. It is empty on entry: nothing. */
    bool (*newest_step)(void *context, uint64_t *ret_step, char ret_found[PD_LAUNCH_FOUND_BYTES]);
    void *context;
    /* The layout of the first start with `ranks` ranks (0: one per GPU, or per core), or of a restart with at most that
     * many. NULL: every number is allowed, and `ranks` must not be 0. */
    pd_status (*choose)(void *context, uint32_t ranks, bool is_restart, struct pd_launch_layout *ret_layout,
                        struct pd_error *err);
};

/* Sets all fields that the configuration determines; keeps the rest. */
void pd_launch_configure(struct pd_launch *launch, const struct pd_config *config);

/*   errors  the end of the run as above, with the first cause and its rank; PD_INVALID if the rank count is not possible,
 *           with the nearest that is. pd_status_exit_code gives the command's exit code */
PD_MUST_USE pd_status pd_launch_run(const struct pd_launch *launch, struct pd_error *err);
