/* The commands of perdure and what they share: one row a command, one way to parse options and to end.
 *
 * A command parses its own arguments with argp and returns a status; main says the error once and turns it into the exit
 * code. Data goes to stdout, talk to stderr. */
#ifndef PD_TOOLS_COMMAND_H
#define PD_TOOLS_COMMAND_H

#include "ckpt/base/status.h"
#include <argp.h>
#include <stdbool.h>

struct pd_command {
    const char *name;
    const char *arguments; /* "CONFIG [key=value...]" */
    const char *summary;   /* NULL: not listed */
    /* argv[0] is "perdure NAME". PD_OK is exit code 0. */
    pd_status (*run)(int argc, char **argv, struct pd_error *err);
};

extern const struct pd_command pd_commands[]; /* ends with a NULL name */

pd_status pd_cmd_bench(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_ckpt(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_data(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_doctor(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_plan(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_sample(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_train(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_worker(int argc, char **argv,
                        struct pd_error *err); /* a rank, or all of them as threads: started by train */

/* Runs argp without letting it exit.
 *   options, parse_option  of the command; --json and --help are added
 *   ret_json               may be NULL for a command without --json
 *   ret_done               true when --help was asked for and printed: the command returns PD_OK at once
 *   errors  PD_USAGE: the message ends with how to get help */
PD_MUST_USE pd_status pd_command_parse(const struct argp *argp, int argc, char **argv, void *input, bool *ret_json,
                                       bool *ret_done, struct pd_error *err);
/* For commands of commands: `perdure ckpt ls ...`. Prints help of all when argv[1] is --help. */
PD_MUST_USE pd_status pd_command_dispatch(const struct pd_command *commands, const char *parent, int argc, char **argv,
                                          struct pd_error *err);

#endif
