/* The last step of a run, in `<run.dir>/last-steps` of each of its hosts. Whoever goes on when some of them are lost, the
 * launcher's own too, learns from any other how many steps are lost, and does not go on from an older step than hosts that
 * are away hold.
 *
 *   file     two lines of 88 bytes, of even and odd steps: run, fence, step, kept, seconds since 1970
 *   who      the first rank of each host; where others see the file of rank 0, it alone
 *   when     behind every step, into the page cache: nobody waits for a disk, and the end of a process loses nothing
 *   threads  the rank's own */
#pragma once

#include "ckpt/group/group.h"

struct pd_step_line {
    uint64_t run;         /* half of its id; 0: there is no such line */
    uint64_t fence, step; /* of equal runs the highest fence is the newest, of equal fences the highest step */
    uint64_t kept; /* newest that is whole without any one host: copied to another, or, without replicas, saved; 0: none */
    double time;   /* when it was computed; 0: not known */
};

struct pd_step_log {
    bool is_open;
    int file;
    struct pd_step_line line; /* the newest */
};

/* The newest line on any host, before the run knows which it is: of the run that was there last. Collective.
 *   run_dir  NULL: another rank reads it for this host */
PD_MUST_USE pd_status pd_step_log_newest(struct pd_group *group, const char *run_dir, struct pd_step_line *ret_line,
                                         struct pd_error *err);

/* Begins with `first`, on rank 0 and then on the others that are the first of their host. A file that cannot be written is logged
 * by rank 0; the run goes on without. Collective. */
PD_MUST_USE pd_status pd_step_log_open(struct pd_group *group, const char *run_dir, const struct pd_step_line *first,
                                       struct pd_step_log *ret_log, struct pd_error *err);
/* Not open: fine. */
void pd_step_log_write(const struct pd_step_log *log);
void pd_step_log_close(struct pd_step_log *log);
