/* The programs that start ranks: which one, its arguments and its environment. */
#pragma once

#include "trainer/config/config.h"

#define PD_STARTER_WORDS_MAX 128u

struct pd_start {
    enum pd_transport transport; /* LOCAL or MPI */
    uint32_t ranks, restart;
    const char *dir;           /* the launch's private directory */
    const uint8_t *secret;     /* (PD_SEAL_SECRET_BYTES) of the launch; borrowed */
    const char *run_dir;       /* NULL: it did not exist when the launch began */
    const char *layout;        /* settings for the ranks; NULL or "": none */
    const char *const *worker; /* argv, NULL at the end */
    double begin_seconds;      /* limit until all ranks have begun; 0: none */
    double join_seconds;       /* then, limit until they have joined each other; 0: none */
    double open_seconds;       /* then, before the second step, limit between completions of any rank; 0: none */
    double hang_seconds;       /* the same after the second step; 0: never checked, before it either */
    bool is_verbose;           /* print the starter's output: the last start failed in it */
    const char *hosts;         /* "a:2,b:4", in rank order; NULL: those the starter knows */
    const char *agent;         /* runs commands on them */
    const char *addresses;     /* where other hosts of the start reach this one; NULL or "": no other hosts */
    uint16_t port;             /* for those; 0: any */
    const char *config_path;   /* file sent to ranks of other hosts; NULL: none */
    const char *left_out;      /* GPUs; NULL: none */
    const char *away;          /* listed hosts left out, separated by commas; NULL: none */
};

struct pd_starter_command {
    char *argv[PD_STARTER_WORDS_MAX + 1]; /* NULL-terminated; owned by `text` or by the worker's argv */
    char text[4096];
    const char *name; /* "mpirun", for messages */
};

/* Resolves AUTO to MPI for several ranks if MPI can start them, else LOCAL.
 *   errors  PD_UNSUPPORTED: MPI was requested and nothing here starts its ranks */
PD_MUST_USE pd_status pd_starter_choose(enum pd_transport asked, uint32_t ranks, enum pd_transport *ret_transport,
                                        struct pd_error *err);

/* Prefers PERDURE_MPIRUN ("mpirun --hostfile hosts"), then srun (in a Slurm job of several nodes), then mpirun. */
PD_MUST_USE pd_status pd_starter_command_make(const struct pd_start *start, struct pd_starter_command *ret_command,
                                              struct pd_error *err);

/* Checks limits of this machine before the start: with too low ones mpirun would wait for ever, and a run could not save.
 * Raises the soft limit of open files, which ranks inherit.
 *   errors  PD_UNSUPPORTED: too few open files; too little address space for mpirun */
PD_MUST_USE pd_status pd_starter_check_limits(const struct pd_start *start, struct pd_error *err);

/* Finds a program on PATH, or checks one whose name has a slash. */
bool pd_starter_find_program(const char *program, char ret_path[4096]);

/* Call in the child, before exec. Keeps the user's settings. */
void pd_starter_environment_set(const struct pd_start *start, int launcher_process);
/* The starter dies with the launcher and has its own process group.
 *   addresses  where ranks reach the launcher */
PD_MUST_USE pd_status pd_starter_spawn(const struct pd_start *start, const struct pd_starter_command *command,
                                       const char *addresses, int *ret_process, struct pd_error *err);
/* Without launch.hosts: whether the starter may put ranks on other hosts, by settings of the user or batch system. */
bool pd_starter_may_reach_others(void);
/* srun is gone, but its tasks may still run and hold GPUs: ends them through Slurm and waits for it.
 *   errors  PD_PEER_LOST: asked to leave meanwhile */
struct pd_launch_requests;
struct pd_rank_table;
PD_MUST_USE pd_status pd_starter_end_step(const struct pd_start *start, const struct pd_rank_table *said,
                                          struct pd_launch_requests *requests, struct pd_error *err);
/* The secret's file in the private directory, at the same path on all hosts. */
#define PD_STARTER_SECRET_NAME "secret"
