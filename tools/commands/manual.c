/* perdure manual: man pages out of the tables of commands and options, for whoever installs them. */
#include "tools/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct manual {
    const char *directory;
    pd_status status;
    struct pd_error *err;
};

/* A backslash, a dot at the start of a line and dashes mean something to troff. */
static void put(FILE *out, const char *text)
{
    bool is_start = true;
    for (; *text; text++) {
        if (is_start && (*text == '.' || *text == '\'')) fputs("\\&", out);
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text == '\v' ? '\n' : *text, out);
        is_start = *text == '\n';
    }
}

static void put_option(FILE *out, const struct pd_option *o)
{
    if (!o->name) {
        fputs(".SS ", out);
        put(out, o->doc);
        fputc('\n', out);
        return;
    }
    fputs(".TP\n\\fB", out);
    if (o->letter) fprintf(out, "\\-%c\\fR, \\fB", o->letter);
    fputs("\\-\\-", out);
    put(out, o->name);
    fputs("\\fR", out);
    if (o->argument) {
        fputs("=\\fI", out);
        put(out, o->argument);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    put(out, o->doc ? o->doc : "");
    fputc('\n', out);
}

static void put_usage(FILE *out, const struct pd_command_described *d)
{
    const struct pd_usage *u = d->usage;
    static const struct pd_option json = {.name = "json", .doc = "the result as JSON on stdout"},
                                  help = {.name = "help", .doc = "a shorter text"};
    const char *more = u->doc ? strchr(u->doc, '\v') : NULL;
    char above[4096];
    fprintf(out, ".SH SYNOPSIS\n.B %s\n[\\fIOPTION\\fR...] ", d->path);
    put(out, u->arguments ? u->arguments : "");
    fputs("\n.SH DESCRIPTION\n", out);
    snprintf(above, sizeof above, "%.*s",
             (int)(more     ? more - u->doc
                   : u->doc ? (long)strlen(u->doc)
                            : 0),
             u->doc ? u->doc : "");
    put(out, above);
    fputs("\n.SH OPTIONS\n", out);
    for (const struct pd_option *o = u->options; o && (o->name || o->doc); o++)
        put_option(out, o);
    if (u->json) put_option(out, &json);
    put_option(out, &help);
    if (!more) return;
    fputs(".SH NOTES\n.nf\n", out);
    put(out, more + 1);
    fputs("\n.fi\n", out);
}

static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {{0, "done"},
                  {64, "the command line is wrong"},
                  {65, "no checkpoint is whole, or the compared things differ"},
                  {70, "an internal error, or the loss diverged"},
                  {74, "storage failed, is full or in use"},
                  {75, "preempted, or a peer was lost: run the same command again"},
                  {78, "the configuration is wrong, or asks for more memory than there is"},
                  {93, "no progress in three restarts: remove the cause first"}};

static void put_exit_status(FILE *out)
{
    fputs(".SH EXIT STATUS\n", out);
    for (size_t i = 0; i < sizeof exit_codes / sizeof *exit_codes; i++)
        fprintf(out, ".TP\n.B %d\n%s\n", exit_codes[i].code, exit_codes[i].meaning);
}

static void put_see_also(FILE *out, const struct pd_command *commands, const char *name)
{
    const bool is_top = strcmp(name, "perdure") == 0;
    fprintf(out, ".SH SEE ALSO%s", is_top ? "" : "\n.BR perdure (1)");
    for (const struct pd_command *c = commands; c && c->name; c++)
        if (c->summary) {
            fputs(is_top && c == commands ? "\n.BR " : " ,\n.BR ", out);
            put(out, name);
            fprintf(out, "\\-%s (1)", c->name);
        }
    fputc('\n', out);
}

static void put_commands(FILE *out, const struct pd_command_described *d)
{
    fprintf(out, ".SH SYNOPSIS\n.B %s\n\\fICOMMAND\\fR ...\n.SH COMMANDS\n", d->path);
    for (const struct pd_command *c = d->commands; c->name; c++) {
        if (!c->summary) continue;
        fprintf(out, ".TP\n\\fB%s\\fR ", c->name);
        put(out, c->arguments);
        fputc('\n', out);
        put(out, c->summary);
        fputc('\n', out);
    }
}

static void visit(void *context, const struct pd_command_described *d)
{
    struct manual *m = context;
    char name[64], path[4200], title[64];
    if (m->status) return;
    snprintf(name, sizeof name, "%s", d->path);
    for (char *c = name; *c; c++)
        if (*c == ' ') *c = '-';
    for (size_t i = 0; i <= strlen(name); i++)
        title[i] = name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 'a' + 'A') : name[i];
    snprintf(path, sizeof path, "%.4000s/%s.1", m->directory, name);
    FILE *out = fopen(path, "we");
    if (!out) {
        m->status = pd_error_set(m->err, pd_status_from_errno(errno), PD_WHERE, errno, "%s: making it", path);
        return;
    }
    fprintf(out, ".TH %s 1 \"\" \"perdure %s\" \"User Commands\"\n.SH NAME\n%s \\- ", title, PERDURE_VERSION, name);
    put(out, d->summary ? d->summary : "trains transformers on machines that can disappear");
    fputc('\n', out);
    d->usage ? put_usage(out, d) : put_commands(out, d);
    if (strcmp(name, "perdure") == 0) put_exit_status(out);
    put_see_also(out, d->commands, name);
    if (fclose(out)) m->status = pd_error_set(m->err, PD_IO, PD_WHERE, errno, "%s: writing it", path);
}

pd_status pd_cmd_manual(int argc, char **argv, struct pd_error *err)
{
    struct manual m = {.err = err};
    uint32_t count;
    const struct pd_usage usage = {.arguments = "DIRECTORY",
                                   .doc = "Writes a man page for each command into DIRECTORY, which it creates.",
                                   .words = &m.directory,
                                   .words_max = 1,
                                   .word_count = &count};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!count) PD_FAIL(err, PD_USAGE, "manual needs a directory: perdure manual share/man/man1");
    if (mkdir(m.directory, 0777) && errno != EEXIST) PD_FAIL_ERRNO(err, errno, "%s: making it", m.directory);
    pd_command_describe(pd_commands, "perdure", visit, &m);
    return m.status;
}
