/* The commands of perdure and what they share: one row a command, a table of options, one way to end.
 *
 * A command fills its variables through a table of options and returns a status; main prints the error once and turns it
 * into the exit code. Data goes to stdout, talk to stderr. */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

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
pd_status pd_cmd_eval(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_init(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_plan(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_reach(int argc, char **argv, struct pd_error *err); /* on a host of launch.hosts: which others answer it */
pd_status pd_cmd_relay(int argc, char **argv, struct pd_error *err); /* of a host's ranks: started by one of them */
pd_status pd_cmd_replay(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_report(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_sample(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_train(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_watch(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_worker(int argc, char **argv,
                        struct pd_error *err); /* a rank, or all of them as threads: started by train */

enum pd_option_kind {
    PD_OPTION_FLAG,   /* bool */
    PD_OPTION_TEXT,   /* const char *; where `expected` is given, one of its words */
    PD_OPTION_CHOICE, /* an enum from 0 on: which of the words of `expected` it is */
    PD_OPTION_U32,    /* uint32_t */
    PD_OPTION_U64,    /* uint64_t */
    PD_OPTION_BYTES,  /* uint64_t, written as 512M or 2G */
    PD_OPTION_SET,    /* whatever `set` makes of it */
};

struct pd_option {
    const char *name;     /* NULL beside a doc: the heading in --help of the rows that follow */
    const char *argument; /* in --help: "N"; NULL for a flag */
    const char *doc;
    enum pd_option_kind kind;
    void *value;        /* what it fills, of the kind's type */
    uint64_t low, high; /* of numbers; high 0: no bound */
    /* What a refused value is told: "a number from 1 to 99" is made of the bounds where this is NULL. Words that may be
     * chosen from stand here as in a sentence: "auto, cpu or gpu". */
    const char *expected;
    pd_status (*set)(const struct pd_option *option, const char *text, struct pd_error *err);
    char letter;    /* -o beside --output, or 0 */
    uint32_t given; /* filled: 1 for the option that was given first, 2 for the next; 0: not given */
};

/* A row of a table of options: PD_OPTION("name", "ARGUMENT", "doc", PD_OPTION_U64, &value, low, high). */
#define PD_OPTION(...)      \
    {                       \
        .name = __VA_ARGS__ \
    }

struct pd_usage {
    const char *arguments, *doc; /* of --help; a \v in doc ends what stands above the options */
    struct pd_option *options;   /* ends with an empty row; NULL: none. --json and --help are added */
    bool *json;                  /* NULL: a command without --json */
    const char **words;          /* (words_max): arguments that are no options */
    uint32_t words_max, *word_count;
    bool takes_keys; /* section.key=value among the words */
};

/* Those three members: PD_WORDS(paths, 2, &path_count). */
#define PD_WORDS(words_, max_, count_) .words = (words_), .words_max = (max_), .word_count = (count_)

/*   ret_done  true when --help was asked for and printed: the command returns PD_OK at once
 *   errors    PD_USAGE: the message says what was expected, or ends with how to get help */
PD_MUST_USE pd_status pd_command_parse(const struct pd_usage *usage, int argc, char **argv, bool *ret_done,
                                       struct pd_error *err);
/* The same, and returns from the calling function where that is all. */
#define PD_COMMAND_PARSE(usage, argc, argv, err)                             \
    do {                                                                     \
        bool pd_done_;                                                       \
        PD_TRY(pd_command_parse((usage), (argc), (argv), &pd_done_, (err))); \
        if (pd_done_) return PD_OK;                                          \
    } while (0)
/* "--name=text: expected ...", for what `set` refuses. */
PD_MUST_USE pd_status pd_option_refuse(const struct pd_option *option, const char *text, const char *expected,
                                       struct pd_error *err);
/* Of words such as `CONFIG key=value ...` takes the first that is no override out.   returns  it, or NULL */
const char *pd_command_take_config(const char **words, uint32_t *count);

/* For commands of commands: `perdure ckpt ls ...`. Prints the list for --help and for help; `help NAME` is `NAME --help`. */
PD_MUST_USE pd_status pd_command_dispatch(const struct pd_command *commands, const char *parent, int argc, char **argv,
                                          struct pd_error *err);
