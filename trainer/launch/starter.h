/* The programs that start ranks: which one, with which words and which environment. */
#pragma once

#include "trainer/config/config.h"

#define PD_STARTER_WORDS_MAX 128u

struct pd_start {
    enum pd_transport transport; /* LOCAL or MPI */
    uint32_t ranks, restart;
    const char *dir;           /* private, of the launch */
    const uint8_t *secret;     /* (PD_SEAL_SECRET_BYTES) of the launch; borrowed */
    const char *run_dir;       /* of the run; NULL: it was not there when the launch began */
    const char *layout;        /* settings for the ranks; NULL or "": none */
    const char *const *worker; /* argv, NULL at the end */
    double begin_seconds;      /* until all ranks have begun; 0: for ever */
    double join_seconds;       /* after that, until they have joined one another; 0: for ever */
    double open_seconds;       /* after that, in which some rank completes something, before the second step; 0: for ever */
    double hang_seconds;       /* the same, after the second step; 0: nobody looks, before it either */
    bool is_verbose;           /* the starter prints what it has to say: the start before failed in it */
    const char *hosts;         /* "a:2,b:4", in the order of ranks; NULL: those that the starter knows */
    const char *agent;         /* reaches them */
    const char *addresses;     /* of this host, as other hosts of the start reach it; NULL or "": there are none */
    uint16_t port;             /* on which they are heard; 0: any */
    const char *config_path;   /* what ranks of other hosts get to read; NULL: none */
    const char *left_out;      /* GPUs; NULL: none */
    const char *away;          /* hosts of the list that take no part, with commas between them; NULL: none */
};

struct pd_starter_command {
    char *argv[PD_STARTER_WORDS_MAX + 1]; /* NULL at the end; owned by the text below or by the worker's argv */
    char text[4096];
    const char *name; /* "mpirun", for messages */
};

/* LOCAL or MPI for what was asked: AUTO takes MPI for several ranks where it can start them.
 *   errors  PD_UNSUPPORTED: MPI was asked for and nothing here starts its ranks */
PD_MUST_USE pd_status pd_starter_choose(enum pd_transport asked, uint32_t ranks, enum pd_transport *ret_transport,
                                        struct pd_error *err);

/* PERDURE_MPIRUN ("mpirun --hostfile hosts") goes before srun (inside a Slurm job of several nodes), before mpirun. */
PD_MUST_USE pd_status pd_starter_command_make(const struct pd_start *start, struct pd_starter_command *ret_command,
                                              struct pd_error *err);

/* Before the start, limits of this machine: under them mpirun would wait for ever, and a run could save nothing. Raises
 * the soft limit of open files, which ranks inherit.
 *   errors  PD_UNSUPPORTED: too few open files; too little address space for mpirun */
PD_MUST_USE pd_status pd_starter_check_limits(const struct pd_start *start, struct pd_error *err);

/* Whether there is a program of that name on PATH, or one that can be run under a name with a slash. */
bool pd_starter_find_program(const char *program, char ret_path[4096]);

/* In the child, before exec. Settings of the user are kept. */
void pd_starter_environment_set(const struct pd_start *start, int launcher_process);
/* It dies with the launcher, and is alone in a group of processes.
 *   addresses  where ranks reach the launcher */
PD_MUST_USE pd_status pd_starter_spawn(const struct pd_start *start, const struct pd_starter_command *command,
                                       const char *addresses, int *ret_process, struct pd_error *err);
/* Without launch.hosts: whether the starter may put ranks on other hosts, by what the user or a batch system has told it. */
bool pd_starter_may_reach_others(void);
/* srun is gone, and its tasks may live on, with their GPUs: they are ended through Slurm, and waited for.
 *   errors  PD_PEER_LOST: asked to leave meanwhile */
struct pd_launch_requests;
struct pd_rank_table;
PD_MUST_USE pd_status pd_starter_end_step(const struct pd_start *start, const struct pd_rank_table *said,
                                          struct pd_launch_requests *requests, struct pd_error *err);
/* The file that holds the secret: in the private directory, at the same path on all hosts. */
#define PD_STARTER_SECRET_NAME "secret"
