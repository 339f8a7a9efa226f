/* The commands of perdure and what they share: a table of commands, tables of options, one way to end.
 *
 * A command fills its variables through a table of options and returns a status; main prints the error once and turns it
 * into the exit code. Data goes to stdout, messages to stderr. */
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
pd_status pd_cmd_reach(int argc, char **argv, struct pd_error *err); /* on a host of launch.hosts: which others it reaches */
pd_status pd_cmd_relay(int argc, char **argv, struct pd_error *err); /* for a host's ranks: started by one of them */
pd_status pd_cmd_replay(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_report(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_sample(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_train(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_watch(int argc, char **argv, struct pd_error *err);
pd_status pd_cmd_worker(int argc, char **argv,
                        struct pd_error *err); /* one rank, or all of them as threads; started by train */

enum pd_option_kind {
    PD_OPTION_FLAG,   /* bool */
    PD_OPTION_TEXT,   /* const char *; one of the words of `expected`, if that is set */
    PD_OPTION_CHOICE, /* an enum from 0 on: index among the words of `expected` */
    PD_OPTION_U32,    /* uint32_t */
    PD_OPTION_U64,    /* uint64_t */
    PD_OPTION_BYTES,  /* uint64_t, written as 512M or 2G */
    PD_OPTION_SET,    /* parsed by `set` */
};

struct pd_option {
    const char *name;     /* NULL with a doc: a heading in --help for the rows below */
    const char *argument; /* in --help: "N"; NULL for a flag */
    const char *doc;
    enum pd_option_kind kind;
    void *value;        /* receives the value, of the kind's type */
    uint64_t low, high; /* for numbers; high 0: no bound */
    /* For the message about a bad value; NULL: "a number from 1 to 99" is made from the bounds. The words of a choice are
     * listed as in a sentence: "auto, cpu or gpu". */
    const char *expected;
    pd_status (*set)(const struct pd_option *option, const char *text, struct pd_error *err);
    char letter;           /* short form: -o for --output, or 0 */
    bool may_be_in_bucket; /* its path may be s3://bucket/key */
    uint32_t given;        /* set by parsing: 1 for the first option given, 2 for the next; 0: not given */
};

/* A row of a table of options: PD_OPTION("name", "ARGUMENT", "doc", PD_OPTION_U64, &value, low, high). */
#define PD_OPTION(...)      \
    {                       \
        .name = __VA_ARGS__ \
    }

struct pd_usage {
    const char *arguments, *doc; /* for --help; a \v in doc ends the text above the options */
    struct pd_option *options;   /* ends with an empty row; NULL: none. --json and --help are added automatically */
    bool *json;                  /* NULL: a command without --json */
    const char **words;          /* (words_max): arguments that are not options */
    uint32_t words_max, *word_count;
    uint32_t words_in_buckets; /* so many of the first may be s3://bucket/prefix */
    bool takes_keys;           /* section.key=value among the words */
};

/* Sets those three members: PD_WORDS(paths, 2, &path_count). */
#define PD_WORDS(words_, max_, count_) .words = (words_), .words_max = (max_), .word_count = (count_)

/*   ret_done  true if it printed --help: the command returns PD_OK at once
 *   errors    PD_USAGE: the message says what was expected, or ends with how to get help */
PD_MUST_USE pd_status pd_command_parse(const struct pd_usage *usage, int argc, char **argv, bool *ret_done,
                                       struct pd_error *err);
/* Parses, and returns from the calling function after --help. */
#define PD_COMMAND_PARSE(usage, argc, argv, err)                             \
    do {                                                                     \
        bool pd_done_;                                                       \
        PD_TRY(pd_command_parse((usage), (argc), (argv), &pd_done_, (err))); \
        if (pd_done_) return PD_OK;                                          \
    } while (0)
/* Fails with "--name=text: expected ...", for `set`. */
PD_MUST_USE pd_status pd_option_refuse(const struct pd_option *option, const char *text, const char *expected,
                                       struct pd_error *err);
/* Removes the first word that is not an override from words such as `CONFIG key=value ...`.   returns  it, or NULL */
const char *pd_command_take_config(const char **words, uint32_t *count);

/* For commands of commands: `perdure ckpt ls ...`. Prints the list for --help and help; `help NAME` is `NAME --help`. */
PD_MUST_USE pd_status pd_command_dispatch(const struct pd_command *commands, const char *parent, int argc, char **argv,
                                          struct pd_error *err);
