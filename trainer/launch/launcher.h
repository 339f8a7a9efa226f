/* The launcher of a run: starts ranks, watches them, and starts them again, in full or with what is left, until the
 * run is done.
 *
 * What follows which ending is the table in judge.c. Progress is a newer committed step than at the start before. After
 * restart_limit restarts without it: PD_STUCK.
 *   signals  see signals.h; honoured while ranks start, run, end, and between two starts
 *   threads  call from the main thread, before others exist: signals are blocked while it runs, and the ranks die with the
 *            thread that started them */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/launch/placement.h"
#include "trainer/run/launched.h"

#define PD_LAUNCH_FOUND_BYTES 1600u

struct pd_launch {
    const char *const *worker; /* argv of a worker, NULL at the end; the first is a path */
    const char *config_path;   /* of the worker's, for ranks of other hosts; NULL: none */
    const char *dir;           /* where the private directory of the launch is made; NULL: that of temporary files */
    uint32_t ranks;            /* 0: as many as choose says */
    enum pd_transport transport;
    const uint32_t *restart_ranks; /* of the 1st, 2nd, ... restart; then what is left */
    uint32_t restart_ranks_count, restart_limit;
    double begin_seconds, join_seconds, open_seconds, hang_seconds; /* of struct pd_start */
    struct pd_launch_places places;
    /* The newest committed step; false: there is none, or it cannot be told now, and ret_found is what lies there all the
     * same, in words and with the command to look closer. Empty as it comes: nothing. */
    bool (*newest_step)(void *context, uint64_t *ret_step, char ret_found[PD_LAUNCH_FOUND_BYTES]);
    void *context;
    /* The layout of the first start with `ranks` ranks (0: one a GPU, or one a core), and of a restart with at most that
     * many. NULL: ranks is not 0, and every number is admitted. */
    pd_status (*choose)(void *context, uint32_t ranks, bool is_restart, struct pd_launch_layout *ret_layout,
                        struct pd_error *err);
};

/* Everything that a configuration says; the rest stays as it is. */
void pd_launch_configure(struct pd_launch *launch, const struct pd_config *config);

/*   errors  the end of the run as above, with the first cause and its rank; PD_INVALID for a rank count that is not
 *           admitted, with the nearest that is. pd_status_exit_code gives the exit code of the command */
PD_MUST_USE pd_status pd_launch_run(const struct pd_launch *launch, struct pd_error *err);
