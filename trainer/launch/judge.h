/* How a start has ended, and what follows. All of it is one table in judge.c, a row an outcome: what must hold, the status,
 * who is blamed, what follows, and the launcher's sentence. */
#pragma once

#include "trainer/launch/starter.h"
#include "trainer/status/message.h"

/* What is known of a process of ranks. */
struct pd_launch_process {
    int32_t process;
    bool has_begun, is_here, is_gone;
    bool was_ended;   /* its starter sent it TERM before it was gone: it ended because another had */
    uint64_t gone_ns; /* when that was seen; for a rank of another host, when its connection ended */
};

/* What is known when the starter is gone. */
struct pd_launch_end {
    const struct pd_start *start;
    const struct pd_rank_table *said;
    const char *starter_name;
    int starter;                               /* its process */
    int status;                                /* as waitpid gives it */
    const struct pd_launch_process *processes; /* (count) */
    uint32_t count;                            /* 1 for LOCAL, else ranks */
    bool is_run_dir_gone;                      /* moved or deleted meanwhile */
    bool is_left_opening;                      /* asked to leave, and no rank was in a step */
    bool is_left_stopped;                      /* ended by the launcher: asked to leave, and a rank was stopped (SIGSTOP) */
    bool is_left_late;                         /* ended by the launcher: asked to leave, and PERDURE_GRACE_S is over */
    char hang[640];                            /* ended by the launcher: this rank held up the others; "": none did */
    uint32_t hang_rank;
    char silent[256];       /* ended by the launcher: these hosts are gone without a sign; "": none is */
    bool is_begin_overdue;  /* ended by the launcher: not all ranks had begun in time */
    bool is_join_overdue;   /* ended by the launcher: all had, and they had not joined one another in time */
    uint64_t oom_kills;     /* of the launcher's memory cgroup, during this start */
    char memory_limit[288]; /* of that cgroup, for people: "300 MiB (memory.max of /sys/fs/cgroup/...)" */
};

enum pd_launch_next {
    PD_LAUNCH_END,   /* nothing: the run is over, or starting again mends nothing */
    PD_LAUNCH_AGAIN, /* start again. With fewer ranks only where the same named rank was lost before, without progress since */
    PD_LAUNCH_AWAIT /* start again when a host is there that this start was without */
};

#define PD_LAUNCH_LOST_NAMED 16u

struct pd_launch_verdict {
    pd_status status; /* PD_OK; PD_STOPPED: saved and left; else that of the first cause */
    enum pd_launch_next next;
    uint32_t lost;                             /* ranks that are blamed: they died or hung. 0: nobody knows who it was */
    uint32_t lost_ranks[PD_LAUNCH_LOST_NAMED]; /* the first of them */
    bool is_told;                              /* the message is in the log: a hang, when it was seen */
    bool has_begun;                            /* a rank has joined the others, or was killed before it could */
    bool may_be_network;                       /* ranks were there and have not met: nobody knows what lies between them */
    bool is_overdue;                           /* this launcher ended the start, since ranks did not begin or join in time */
    bool was_cut_off;                          /* somebody killed the starter, or the one worker of local ranks */
    char message[sizeof((struct pd_error *)0)->message];
};

void pd_launch_judge(const struct pd_launch_end *end, struct pd_launch_verdict *ret_verdict);
