/* The last step of a run, in `<run.dir>/last-steps` on each of its hosts. If some hosts are lost, even the launcher's, any
 * other shows how many steps are lost, and no start resumes from an older step than absent hosts hold.
 *
 *   file     two lines of 88 bytes, for even and odd steps: run, fence, step, kept, seconds since 1970
 *   who      the first rank of each host; only rank 0 if the others see its file
 *   when     after every step, into the page cache: no wait for a disk, and a killed process loses nothing
 *   threads  the rank's own */
#pragma once

#include "ckpt/group/group.h"

struct pd_step_line {
    uint64_t run;         /* half of its id; 0: no such line */
    uint64_t fence, step; /* of one run, the highest fence is newest; of one fence, the highest step */
    uint64_t kept; /* newest step that survives losing any one host: replicated, or, without replicas, saved; 0: none */
    double time;   /* when it was computed; 0: unknown */
};

struct pd_step_log {
    bool is_open;
    int file;
    struct pd_step_line line; /* the newest */
};

/* The newest line on any host, of the last run there; called before this run knows its id. Collective.
 *   run_dir  NULL: another rank reads it for this host */
PD_MUST_USE pd_status pd_step_log_newest(struct pd_group *group, const char *run_dir, struct pd_step_line *ret_line,
                                         struct pd_error *err);

/* Writes `first`, on rank 0 and then on the first rank of each other host. If a file cannot be written, rank 0 logs it and
 * the run goes on without. Collective. */
PD_MUST_USE pd_status pd_step_log_open(struct pd_group *group, const char *run_dir, const struct pd_step_line *first,
                                       struct pd_step_log *ret_log, struct pd_error *err);
/* Does nothing if not open. */
void pd_step_log_write(const struct pd_step_log *log);
void pd_step_log_close(struct pd_step_log *log);
