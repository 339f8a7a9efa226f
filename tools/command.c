#include "tools/command.h"

#include "ckpt/base/nearest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 32
enum { OPTION_JSON = 0x1001, OPTION_HELP = 0x1002 };

struct parsing {
    const struct argp *user, *wrapped;
    void *input;
    bool *ret_json, *ret_done;
    struct pd_error *err;
    struct argp_option options[OPTIONS_MAX];
    const char *program;
};

/* Names of options that take part in suggestions. */
static uint32_t option_names(const struct parsing *p, const char **ret_names)
{
    uint32_t count = 0;
    for (const struct argp_option *o = p->options; o->name || o->key || o->doc; o++)
        if (o->name && !(o->flags & OPTION_HIDDEN)) ret_names[count++] = o->name;
    return count;
}

static const struct argp_option *option_called(const struct parsing *p, const char *name, size_t length)
{
    for (const struct argp_option *o = p->options; o->name || o->key || o->doc; o++)
        if (o->name && strncmp(o->name, name, length) == 0 && o->name[length] == '\0') return o;
    return NULL;
}

static pd_status bad_option(const struct parsing *p, const char *argument)
{
    if (strncmp(argument, "--", 2) != 0)
        PD_FAIL(p->err, PD_USAGE, "%s has no option %s; see %s --help", p->program, argument, p->program);
    const char *name = argument + 2;
    size_t length = strcspn(name, "=");
    const struct argp_option *known = option_called(p, name, length);
    if (known && known->arg)
        PD_FAIL(p->err, PD_USAGE, "--%s needs a value: --%s=%s; see %s --help", known->name, known->name, known->arg,
                p->program);
    if (known) PD_FAIL(p->err, PD_USAGE, "--%s takes no value; see %s --help", known->name, p->program);
    const char *names[OPTIONS_MAX];
    char word[64];
    uint32_t near;
    snprintf(word, sizeof word, "%.*s", (int)length, name);
    pd_nearest_names(word, names, option_names(p, names), &near, 1);
    PD_FAIL(p->err, PD_USAGE, "%s has no option --%s; the nearest is --%s, and %s --help lists all", p->program, word,
            names[near], p->program);
}

/* An empty word is a variable of the shell that is not set; one that the command does not take is told as such. */
static error_t parse_word(struct parsing *p, char *word, struct argp_state *state)
{
    if (!word[0]) {
        (void)pd_error_set(p->err, PD_USAGE, PD_WHERE, 0,
                           "one of the arguments is empty: is it a variable that is not set? %s --help", p->program);
        return EINVAL;
    }
    error_t result = p->user->parser ? p->user->parser(ARGP_KEY_ARG, word, state) : ARGP_ERR_UNKNOWN;
    if (result == ARGP_ERR_UNKNOWN) {
        (void)pd_error_set(p->err, PD_USAGE, PD_WHERE, 0, "%s takes no argument such as \"%s\"; see %s --help", p->program,
                           word, p->program);
        return EINVAL;
    }
    return result;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct parsing *p = state->input;
    switch (key) {
    case OPTION_JSON:
        *p->ret_json = true;
        return 0;
    case OPTION_HELP:
        argp_help(p->wrapped, stdout, ARGP_HELP_STD_HELP, (char *)p->program);
        *p->ret_done = true;
        return ECANCELED;
    case ARGP_KEY_ERROR:
        if (!*p->ret_done && p->err->status == PD_OK) (void)bad_option(p, state->argv[state->next - 1]);
        return 0;
    default: {
        state->input = p->input;
        error_t result = key == ARGP_KEY_ARG ? parse_word(p, argument, state)
                         : p->user->parser   ? p->user->parser(key, argument, state)
                                             : ARGP_ERR_UNKNOWN;
        state->input = p;
        return result;
    }
    }
}

static void fill_options(struct parsing *p)
{
    int count = 0;
    for (const struct argp_option *o = p->user->options; o && (o->name || o->key || o->doc); o++) {
        PD_CHECK(count < OPTIONS_MAX - 3);
        p->options[count++] = *o;
    }
    if (p->ret_json)
        p->options[count++] = (struct argp_option){"json", OPTION_JSON, NULL, 0, "the result as JSON on stdout", 1};
    p->options[count] = (struct argp_option){"help", OPTION_HELP, NULL, 0, "this text", 1};
}

pd_status pd_command_parse(const struct argp *argp, int argc, char **argv, void *input, bool *ret_json, bool *ret_done,
                           struct pd_error *err)
{
    struct parsing p = {
        .user = argp, .input = input, .ret_json = ret_json, .ret_done = ret_done, .err = err, .program = argv[0]};
    struct argp wrapped = {.options = p.options, .parser = parse_option, .args_doc = argp->args_doc, .doc = argp->doc};
    p.wrapped = &wrapped;
    fill_options(&p);
    err->status = PD_OK;
    *ret_done = false;
    setenv("ARGP_HELP_FMT", "rmargin=110,opt-doc-col=28,no-dup-args-note", 0);
    error_t result = argp_parse(&wrapped, argc, argv, ARGP_NO_EXIT | ARGP_NO_ERRS | ARGP_NO_HELP, NULL, &p);
    if (*ret_done || result == 0) return PD_OK;
    if (err->status != PD_OK) return err->status;
    PD_FAIL(err, PD_USAGE, "the arguments are not understood; see %s --help", argv[0]);
}

static void print_commands(const struct pd_command *commands, const char *parent)
{
    printf("usage: %s COMMAND ...\n\n", parent);
    for (const struct pd_command *c = commands; c->name; c++) {
        if (!c->summary) continue;
        char left[96];
        snprintf(left, sizeof left, "%s %s", c->name, c->arguments);
        printf("  %-44s %s\n", left, c->summary);
    }
    printf("\n%s COMMAND --help tells more; every command takes --json.\n", parent);
}

pd_status pd_command_dispatch(const struct pd_command *commands, const char *parent, int argc, char **argv,
                              struct pd_error *err)
{
    const char *names[OPTIONS_MAX];
    uint32_t count = 0, near;
    for (const struct pd_command *c = commands; c->name; c++) {
        PD_CHECK(count < OPTIONS_MAX);
        if (c->summary) names[count++] = c->name;
    }
    if (argc < 2) PD_FAIL(err, PD_USAGE, "a command is missing; %s --help lists them", parent);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_commands(commands, parent);
        return PD_OK;
    }
    for (const struct pd_command *c = commands; c->name; c++) {
        if (strcmp(c->name, argv[1]) != 0) continue;
        char program[64];
        snprintf(program, sizeof program, "%s %s", parent, c->name);
        argv[1] = program;
        return c->run(argc - 1, argv + 1, err);
    }
    if (argv[1][0] == '-')
        PD_FAIL(err, PD_USAGE, "a command comes first, and %s is none; %s --help lists them", argv[1], parent);
    pd_nearest_names(argv[1], names, count, &near, 1);
    PD_FAIL(err, PD_USAGE, "%s has no command %s; the nearest is %s, and %s --help lists all", parent, argv[1], names[near],
            parent);
}
