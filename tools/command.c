#include "tools/command.h"

#include "ckpt/base/nearest.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/scheme.h"
#include "trainer/config/keys.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMMANDS_MAX = 32 };

enum { OPTIONS_MAX = 32, KEY_HELP = 'h', KEY_JSON = 0x1001, KEY_FIRST };

/* argp writes --help and splits options; our rows fill the variables. */
struct parsing {
    const struct pd_usage *usage;
    struct argp argp;
    struct argp_option rows[OPTIONS_MAX];
    const char *program;
    uint32_t given;
    bool *ret_done;
    struct pd_error *err;
};

/* ---- values ---- */

pd_status pd_option_refuse(const struct pd_option *option, const char *text, const char *expected, struct pd_error *err)
{
    PD_FAIL(err, PD_USAGE, "--%s=%s: expected %s", option->name, text, expected);
}

/* Index of the word in "auto, cpu or gpu", or -1. */
static int find_word(const char *words, const char *text)
{
    const size_t length = strlen(text);
    for (int i = 0; *words; i++) {
        const size_t word = strcspn(words, ", ");
        if (word == length && strncmp(words, text, length) == 0) return i;
        words += word;
        if (*words == ',') words++;
        if (*words == ' ') words++;
        if (strncmp(words, "or ", 3) == 0 || strncmp(words, "and ", 4) == 0) words += strcspn(words, " ") + 1;
    }
    return -1;
}

static pd_status set_number(const struct pd_option *o, const char *text, struct pd_error *err)
{
    const uint64_t high = o->high ? o->high : o->kind == PD_OPTION_U32 ? UINT32_MAX : UINT64_MAX;
    uint64_t value;
    char range[80] = "a whole number";
    if (o->kind == PD_OPTION_BYTES) snprintf(range, sizeof range, "a size such as 512M or 2G");
    const bool is_number = o->kind == PD_OPTION_BYTES ? pd_parse_bytes(text, &value) : pd_parse_u64(text, &value);
    if (o->high)
        snprintf(range, sizeof range, "a number from %llu to %llu", (unsigned long long)o->low, (unsigned long long)high);
    if (!is_number || value < o->low || value > high)
        return pd_option_refuse(o, text, o->expected ? o->expected : range, err);
    if (o->kind == PD_OPTION_U32)
        *(uint32_t *)o->value = (uint32_t)value;
    else
        *(uint64_t *)o->value = value;
    return PD_OK;
}

static bool takes_path(const struct pd_option *o)
{
    static const char *const paths[] = {"FILE", "DIR", "PATH", NULL};
    for (size_t i = 0; o->argument && paths[i]; i++)
        if (strcmp(o->argument, paths[i]) == 0) return true;
    return false;
}

static pd_status set_value(struct pd_option *o, const char *text, struct pd_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "--%s", o->name);
    if (text && takes_path(o))
        PD_TRY((o->may_be_in_bucket ? pd_scheme_check_source : pd_scheme_check)(name, text, PD_USAGE, err));
    const int word = text && o->expected ? find_word(o->expected, text) : 0;
    switch (o->kind) {
    case PD_OPTION_FLAG:
        *(bool *)o->value = true;
        return PD_OK;
    case PD_OPTION_TEXT:
        *(const char **)o->value = text;
        return word < 0 ? pd_option_refuse(o, text, o->expected, err) : PD_OK;
    case PD_OPTION_CHOICE:
        if (word < 0) return pd_option_refuse(o, text, o->expected, err);
        *(unsigned *)o->value = (unsigned)word;
        return PD_OK;
    case PD_OPTION_SET:
        return o->set(o, text, err);
    default:
        return set_number(o, text, err);
    }
}

/* ---- mistakes ---- */

/* For `train --lr=3e-4`: keys are not options. */
static pd_status refuse_key(const struct parsing *p, const char *word, const char *value)
{
    const struct pd_key_meaning meant = pd_key_meant(word);
    const bool has_value = meant.key && strchr(meant.key, '=');
    if (meant.key)
        PD_FAIL(p->err, PD_USAGE, "%s has no option --%s; a key is written without dashes: %s%s%s", p->program, word,
                meant.key, has_value ? "" : "=", has_value ? "" : value);
    if (meant.said) PD_FAIL(p->err, PD_USAGE, "%s has no option --%s: %s", p->program, word, meant.said);
    PD_FAIL(p->err, PD_USAGE, "%s has no option --%s; %s --help lists all", p->program, word, p->program);
}

static pd_status bad_option(const struct parsing *p, const char *argument)
{
    const char *names[OPTIONS_MAX], *name = argument + 2, *value = strchr(argument, '=');
    uint32_t count = 0;
    char word[64];
    if (strncmp(argument, "--", 2) != 0)
        PD_FAIL(p->err, PD_USAGE, "%s has no option %s; see %s --help", p->program, argument, p->program);
    snprintf(word, sizeof word, "%.*s", (int)strcspn(name, "="), name);
    for (const struct argp_option *o = p->rows; o->name || o->doc; o++) {
        if (!o->name) continue;
        names[count++] = o->name;
        if (strcmp(o->name, word) != 0) continue;
        if (!o->arg) PD_FAIL(p->err, PD_USAGE, "--%s takes no value; see %s --help", word, p->program);
        PD_FAIL(p->err, PD_USAGE, "--%s needs a value: --%s=%s; see %s --help", word, word, o->arg, p->program);
    }
    const char *near = pd_nearest_name(word, names, count);
    if (near)
        PD_FAIL(p->err, PD_USAGE, "%s has no option --%s; did you mean --%s? %s --help lists all", p->program, word, near,
                p->program);
    if (p->usage->takes_keys) return refuse_key(p, word, value ? value + 1 : "VALUE");
    PD_FAIL(p->err, PD_USAGE, "%s has no option --%s; %s --help lists all", p->program, word, p->program);
}

static pd_status take_word(const struct parsing *p, const char *word)
{
    const struct pd_usage *u = p->usage;
    if (!word[0])
        PD_FAIL(p->err, PD_USAGE, "one of the arguments is empty: is it a variable that is not set? %s --help", p->program);
    if (!u->words_max)
        PD_FAIL(p->err, PD_USAGE, "%s takes no argument such as \"%s\"; see %s --help", p->program, word, p->program);
    if (*u->word_count == u->words_max)
        PD_FAIL(p->err, PD_USAGE, "\"%s\" is one path too many: at most %u; see %s --help", word, u->words_max, p->program);
    const bool is_source = *u->word_count < u->words_in_buckets;
    u->words[(*u->word_count)++] = word;
    return (is_source ? pd_scheme_check_source : pd_scheme_check)(p->program, word, PD_USAGE, p->err);
}

/* Returns the word that argp refuses: the one before the next, or the next if argp is inside that cluster of letters. */
static const char *refused_word(const struct parsing *p, const struct argp_state *state)
{
    const char *before = state->argv[state->next - 1], *next = state->next < state->argc ? state->argv[state->next] : NULL;
    bool is_whole = before[0] != '-' || state->next == 1;
    for (const struct argp_option *o = p->rows; o->name || o->doc; o++)
        is_whole = is_whole || (o->name && !o->arg && strncmp(before, "--", 2) == 0 && strcmp(before + 2, o->name) == 0);
    return is_whole && next && next[0] == '-' && next[1] != '-' ? next : before;
}

/* ---- argp ---- */

static int command_key_of(const struct pd_usage *usage, const struct pd_option *o)
{
    return !o->name ? 0 : o->letter ? o->letter : KEY_FIRST + (int)(o - usage->options);
}

static error_t command_parse(int key, char *argument, struct argp_state *state)
{
    struct parsing *p = state->input;
    switch (key) {
    case KEY_JSON:
        *p->usage->json = true;
        return 0;
    case KEY_HELP:
        argp_help(&p->argp, stdout, ARGP_HELP_STD_HELP, (char *)(uintptr_t)p->program);
        *p->ret_done = true;
        return ECANCELED;
    case ARGP_KEY_ARG:
        return take_word(p, argument) ? EINVAL : 0;
    case ARGP_KEY_ERROR:
        if (!*p->ret_done && p->err->status == PD_OK) (void)bad_option(p, refused_word(p, state));
        return 0;
    default:
        for (struct pd_option *o = p->usage->options; o && (o->name || o->doc); o++) {
            if (!o->name || command_key_of(p->usage, o) != key) continue;
            o->given = ++p->given;
            return set_value(o, argument, p->err) ? EINVAL : 0;
        }
        return ARGP_ERR_UNKNOWN;
    }
}

pd_status pd_command_parse(const struct pd_usage *usage, int argc, char **argv, bool *ret_done, struct pd_error *err)
{
    struct parsing p = {.usage = usage, .program = argv[0], .ret_done = ret_done, .err = err};
    uint32_t count = 0;
    for (const struct pd_option *o = p.usage->options; o && (o->name || o->doc); o++) {
        PD_CHECK(count < OPTIONS_MAX - 3);
        p.rows[count++] = (struct argp_option){o->name, command_key_of(p.usage, o), o->argument, 0, o->doc, 0};
    }
    if (p.usage->json) p.rows[count++] = (struct argp_option){"json", KEY_JSON, NULL, 0, "the result as JSON on stdout", -1};
    p.rows[count] = (struct argp_option){"help", KEY_HELP, NULL, 0, "this text", -1};
    p.argp = (struct argp){.options = p.rows, .parser = command_parse, .args_doc = usage->arguments, .doc = usage->doc};
    pd_error_clear(err);
    *ret_done = false;
    if (usage->word_count) *usage->word_count = 0;
    setenv("ARGP_HELP_FMT", "rmargin=110,opt-doc-col=28,no-dup-args-note", 0);
    const error_t result = argp_parse(&p.argp, argc, argv, ARGP_NO_EXIT | ARGP_NO_ERRS | ARGP_NO_HELP, NULL, &p);
    if (*ret_done || result == 0) return PD_OK;
    if (err->status != PD_OK) return err->status;
    PD_FAIL(err, PD_USAGE, "the arguments are not understood; see %s --help", argv[0]);
}

const char *pd_command_take_config(const char **words, uint32_t *count)
{
    const char *config = NULL;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        if (!config && !strchr(words[i], '='))
            config = words[i];
        else
            words[kept++] = words[i];
    }
    *count = kept;
    return config;
}

/* ---- commands with subcommands ---- */

static void print_commands(const struct pd_command *commands, const char *parent)
{
    printf("usage: %s COMMAND ...\n\n", parent);
    for (const struct pd_command *c = commands; c->name; c++) {
        if (!c->summary) continue;
        char left[96];
        snprintf(left, sizeof left, "%s %s", c->name, c->arguments);
        printf("  %-44s %s\n", left, c->summary);
    }
    printf("\nSee %s COMMAND --help. Commands that print results take --json.\n", parent);
}

pd_status pd_command_dispatch(const struct pd_command *commands, const char *parent, int argc, char **argv,
                              struct pd_error *err)
{
    if (argc < 2) PD_FAIL(err, PD_USAGE, "a command is missing; %s --help lists them", parent);
    if (argc > 2 && strcmp(argv[1], "help") == 0) { /* help train -> train --help */
        memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = (char[]){"--help"};
        return pd_command_dispatch(commands, parent, argc, argv, err);
    }
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
    const char *names[COMMANDS_MAX], *word = argv[1];
    uint32_t count = 0;
    if (word[0] == '-')
        PD_FAIL(err, PD_USAGE, "a command comes first, and %s is not one; %s --help lists them", word, parent);
    for (const struct pd_command *c = commands; c->name; c++)
        if (c->summary && count < COMMANDS_MAX) names[count++] = c->name;
    const char *near = pd_nearest_name(word, names, count);
    if (near)
        PD_FAIL(err, PD_USAGE, "%s has no command %s; did you mean %s %s? %s --help lists all", parent, word, parent, near,
                parent);
    PD_FAIL(err, PD_USAGE, "%s has no command %s; %s --help lists all", parent, word, parent);
}
