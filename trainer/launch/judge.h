/* Decides how a start ended and what follows. It is one table in judge.c, a row per outcome: condition, status, blamed
 * ranks, next step, and the launcher's message. */
#pragma once

#include "trainer/launch/starter.h"
#include "trainer/status/message.h"

/* What is known of a process that runs ranks. */
struct pd_launch_process {
    int32_t process;
    bool has_begun, is_here, is_gone;
    bool was_ended;   /* its starter sent it TERM first: it ended because another process had */
    uint64_t gone_ns; /* when its end was seen; for a rank of another host, the end of its connection */
};

/* What is known when the starter has ended. */
struct pd_launch_end {
    const struct pd_start *start;
    const struct pd_rank_table *said;
    const char *starter_name;
    int starter;                               /* its process */
    int status;                                /* as waitpid gives it */
    const struct pd_launch_process *processes; /* (count) */
    uint32_t count;                            /* 1 for LOCAL, else ranks */
    bool is_run_dir_gone;                      /* moved or deleted during the start */
    bool is_left_opening;                      /* asked to leave while no rank was in a step */
    bool is_left_stopped;                      /* killed by the launcher: asked to leave, and a rank was stopped (SIGSTOP) */
    bool is_left_late;                         /* killed by the launcher: asked to leave, and PERDURE_GRACE_S passed */
    char hang[640];                            /* killed by the launcher: this rank held up the others; "": none */
    uint32_t hang_rank;
    char silent[256];       /* killed by the launcher: these hosts stopped responding; "": none */
    bool is_begin_overdue;  /* killed by the launcher: not all ranks began in time */
    bool is_join_overdue;   /* killed by the launcher: all began, but did not join in time */
    uint64_t oom_kills;     /* of the launcher's memory cgroup, during this start */
    char memory_limit[288]; /* of that cgroup, for messages: "300 MiB (memory.max of /sys/fs/cgroup/...)" */
};

enum pd_launch_next {
    PD_LAUNCH_END,   /* the run is done, or a restart would not help */
    PD_LAUNCH_AGAIN, /* restart. Use fewer ranks only if the same named rank was lost before, without progress since */
    PD_LAUNCH_AWAIT  /* restart when a host returns that this start lacked */
};

#define PD_LAUNCH_LOST_NAMED 16u

struct pd_launch_verdict {
    pd_status status; /* PD_OK; PD_STOPPED: saved and left; else the status of the first cause */
    enum pd_launch_next next;
    uint32_t lost;                             /* blamed ranks: they died or hung. 0: unknown */
    uint32_t lost_ranks[PD_LAUNCH_LOST_NAMED]; /* the first of them */
    bool is_logged;                            /* already logged: a hang, when it was seen */
    bool has_begun;                            /* a rank joined the others, or was killed before it could */
    bool may_be_network;                       /* ranks began but did not meet: the network may be the cause */
    bool is_overdue;                           /* the launcher ended the start because ranks did not begin in time */
    bool was_cut_off;                          /* someone killed the starter, or the one worker of local ranks */
    char message[sizeof((struct pd_error *)0)->message];
};

void pd_launch_judge(const struct pd_launch_end *end, struct pd_launch_verdict *ret_verdict);
