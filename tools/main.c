#include "ckpt/base/log.h"
#include "tools/command.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* A new command is one row here and one file. */
const struct pd_command pd_commands[] = {
    {"plan", "CONFIG [key=value...]", "memory a rank by category, without starting anything", pd_cmd_plan},
    //{"ckpt", "ls|show|verify|diff|stats|prune PATH", "look at, check and delete checkpoints", pd_cmd_ckpt},
    {"data", "pack|inspect", "make token files, and look into them", pd_cmd_data},
    {"doctor", "[DIR]", "what this machine offers, what is used, what is missing", pd_cmd_doctor},
    {0},
};

static const char topics[] =
    "\nperdure --version    version\n"
    "Exit codes: 0 done, 64 usage, 65 no valid checkpoint, 70 internal error or loss not finite, 74 storage,\n"
    "75 preempted or a peer lost (run again), 78 configuration, 93 no progress in three restarts.\n";

static pd_status run(int argc, char **argv, struct pd_error *err)
{
    PD_TRY(pd_log_configure_env(err));
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) {
        printf("perdure %s\n", PERDURE_VERSION);
        return PD_OK;
    }
    bool help = argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0);
    PD_TRY(pd_command_dispatch(pd_commands, "perdure", argc, argv, err));
    if (help) fputs(topics, stdout);
    return PD_OK;
}

int main(int argc, char **argv)
{
    struct pd_error err = {0};
    signal(SIGPIPE, SIG_IGN); /* `perdure ... | head` ends with an error of stdout, not in the middle of a write */
    pd_status status = run(argc, argv, &err);
    if (status == PD_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = pd_error_set(&err, PD_IO, PD_WHERE, 0, "stdout could not be written");
    if (status != PD_OK) fprintf(stderr, "perdure: %s\n", err.message);
    return pd_status_exit_code(status);
}
