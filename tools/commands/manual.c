/* perdure completion and perdure manual: what commands say of themselves, for shells and for man. */
#include "tools/command.h"
#include "trainer/config/keys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum shell { BASH, ZSH, FISH };

/* Words of "auto, cpu or gpu" or "bash|zsh", each with a space behind it. */
static void print_words(const char *words)
{
    while (*words) {
        char word[48];
        const size_t length = strcspn(words, ", |");
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (strcmp(word, "or") != 0 && strcmp(word, "and") != 0 && *word) printf("%s ", word);
        words += length;
        words += strspn(words, ", |");
    }
}

/* What may follow it: of words that it knows, or NULL. */
static const char *words_of(const struct pd_option *o)
{
    return o->kind != PD_OPTION_CHOICE && o->kind != PD_OPTION_TEXT ? NULL : o->expected ? o->expected : o->offered;
}

static bool takes_files(const struct pd_option *o)
{
    return (o->kind == PD_OPTION_TEXT || o->kind == PD_OPTION_SET) && !o->expected;
}

/* "bash|zsh|fish": its argument is one of these. */
static bool takes_word(const struct pd_usage *u)
{
    return u->arguments && strchr(u->arguments, '|');
}

/* In single quotes: a quote ends them, stands by itself, and begins them again. */
static void print_quoted(const char *text)
{
    putchar('\'');
    for (; *text; text++)
        *text == '\'' ? (void)fputs("'\\''", stdout) : (void)putchar(*text);
    putchar('\'');
}

/* ---- bash and zsh: one case a command, with its words ---- */

static void print_option_words(const struct pd_usage *u)
{
    for (const struct pd_option *o = u->options; o && (o->name || o->doc); o++)
        if (o->name) printf("--%s%s ", o->name, o->argument ? "=" : "");
    printf("%s--help", u->json ? "--json " : "");
}

static void visit_words(void *context, const struct pd_command_described *d)
{
    const struct pd_usage *u = d->usage;
    (void)context;
    printf("    '%s') options='", d->path);
    u ? print_option_words(u) : (void)fputs(strchr(d->path, ' ') ? "--help" : "--help --version", stdout);
    printf("' list='");
    for (const struct pd_command *c = d->commands; c && c->name; c++)
        if (c->summary) printf("%s ", c->name);
    if (u && takes_word(u)) print_words(u->arguments);
    printf("'%s%s;;\n", u && u->arguments && strstr(u->arguments, "key=value") ? " keys=1" : "",
           u && u->words_max && !takes_word(u) ? " files=1" : "");
}

static void visit_values(void *context, const struct pd_command_described *d)
{
    (void)context;
    for (const struct pd_option *o = d->usage ? d->usage->options : NULL; o && (o->name || o->doc); o++) {
        if (!o->name || !o->argument) continue;
        printf("    '%s --%s'", d->path, o->name);
        if (o->letter) printf("|'%s -%c'", d->path, o->letter);
        printf(") list='");
        if (words_of(o)) print_words(words_of(o));
        printf("'%s;;\n", takes_files(o) ? " files=1" : "");
    }
}

static void print_keys(void)
{
    printf("  local all_keys='");
    for (uint32_t i = 0; i < pd_key_count; i++)
        printf("%s= ", pd_keys[i].name);
    puts("'");
}

/* bash cuts words at "="; the commands are the first words that the tables know. Only file names are quoted, which would cut
 * "key=" as well. */
static const char bash_begin[] =
    "# perdure: completion for bash. source <(perdure completion bash)\n"
    "_perdure() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=perdure options list keys files option= i\n"
    "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
    "    _perdure_words \"$at ${COMP_WORDS[i]}\" && at=\"$at ${COMP_WORDS[i]}\" || break\n"
    "  done\n"
    "  options= list= keys= files=; _perdure_words \"$at\"\n"
    "  [ \"$cur\" = = ] && { option=$prev; cur=; }\n"
    "  [ \"$prev\" = = ] && option=${COMP_WORDS[COMP_CWORD-2]}\n"
    "  if [ -n \"$option\" ] || _perdure_values \"$at $prev\"; then\n"
    "    list= keys= files=; _perdure_values \"$at ${option:-$prev}\" || files=1\n"
    "  elif [[ $cur == -* || -z $list$files ]]; then\n"
    "    list=$options keys= files=\n"
    "  fi\n";
static const char bash_end[] =
    "  [[ -n $keys && ( -n $cur || $i -lt $COMP_CWORD ) ]] && list+=$all_keys\n"
    "  mapfile -t COMPREPLY < <(compgen -W \"$list\" -- \"$cur\")\n"
    "  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
    "  [ ${#COMPREPLY[@]} = 0 ] && compopt -o filenames 2>/dev/null\n"
    "  [ -n \"$files\" ] && mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$cur\")\n"
    "  return 0\n"
    "}\n"
    "complete -F _perdure perdure\n";

static const char zsh_begin[] = "#compdef perdure\n"
                                "# perdure: completion for zsh. Put it as _perdure into a directory of $fpath.\n"
                                "_perdure() {\n"
                                "  local at=perdure options list keys files i option\n"
                                "  for ((i = 2; i < CURRENT; i++)); do\n"
                                "    _perdure_words \"$at ${words[i]}\" && at=\"$at ${words[i]}\" || break\n"
                                "  done\n"
                                "  options= list= keys= files=; _perdure_words \"$at\"\n"
                                "  option=${words[CURRENT-1]}\n"
                                "  [[ $PREFIX == --*=* ]] && { option=${PREFIX%%=*}; compset -P '*=' }\n"
                                "  if _perdure_values \"$at $option\"; then\n"
                                "    list= keys= files=; _perdure_values \"$at $option\"\n"
                                "  elif [[ $PREFIX == -* || -z $list$files ]]; then\n"
                                "    list=$options keys= files=\n"
                                "  fi\n";
static const char zsh_end[] = "  [[ -n $keys ]] && list+=$all_keys\n"
                              "  compadd -S '' -- ${(M)${=list}:#*=}\n"
                              "  compadd -- ${${=list}:#*=}\n"
                              "  [[ -n $files ]] && _files\n"
                              "}\n"
                              "_perdure \"$@\"\n";

static void print_tables(void)
{
    puts("_perdure_words() {\n  case $1 in");
    pd_command_describe(pd_commands, "perdure", visit_words, NULL);
    puts("    *) return 1;;\n  esac\n}\n_perdure_values() {\n  case $1 in");
    pd_command_describe(pd_commands, "perdure", visit_values, NULL);
    puts("    *) return 1;;\n  esac\n}");
}

static void print_bash(void)
{
    print_tables();
    fputs(bash_begin, stdout);
    print_keys();
    fputs(bash_end, stdout);
}

static void print_zsh(void)
{
    const char *line_end = strchr(zsh_begin, '\n');
    printf("%.*s\n", (int)(line_end - zsh_begin), zsh_begin); /* #compdef comes first */
    print_tables();
    fputs(line_end + 1, stdout);
    print_keys();
    fputs(zsh_end, stdout);
}

/* ---- fish: a line an option ---- */

/* The words behind "perdure" that must be there: each was seen. */
static void print_condition(const char *path)
{
    const char *below = strchr(path, ' ');
    if (!below) {
        printf("-n __fish_use_subcommand ");
        return;
    }
    printf("-n \"");
    for (const char *word = below + 1; *word;) {
        const size_t length = strcspn(word, " ");
        printf("%s__fish_seen_subcommand_from %.*s", word > below + 1 ? "; and " : "", (int)length, word);
        word += length + (word[length] == ' ');
    }
    printf("\" ");
}

static void fish_option(const char *path, const struct pd_option *o)
{
    printf("complete -c perdure ");
    print_condition(path);
    printf("-l %s ", o->name);
    if (o->letter) printf("-s %c ", o->letter);
    if (o->argument) printf("-r ");
    if (o->argument && !takes_files(o)) printf("-f ");
    if (words_of(o)) {
        printf("-a '");
        print_words(words_of(o));
        printf("' ");
    }
    printf("-d ");
    print_quoted(o->doc ? o->doc : "");
    putchar('\n');
}

static void visit_fish(void *context, const struct pd_command_described *d)
{
    static const struct pd_option json = {.name = "json", .doc = "the result as JSON on stdout"},
                                  help = {.name = "help", .doc = "this text"};
    (void)context;
    for (const struct pd_command *c = d->commands; c && c->name; c++) {
        if (!c->summary) continue;
        printf("complete -c perdure ");
        print_condition(d->path);
        printf("-f -a %s -d ", c->name);
        print_quoted(c->summary);
        putchar('\n');
    }
    if (!d->usage) return;
    if (takes_word(d->usage)) {
        printf("complete -c perdure ");
        print_condition(d->path);
        printf("-f -a '");
        print_words(d->usage->arguments);
        puts("'");
    }
    for (const struct pd_option *o = d->usage->options; o && (o->name || o->doc); o++)
        if (o->name) fish_option(d->path, o);
    if (d->usage->json) fish_option(d->path, &json);
    fish_option(d->path, &help);
}

static void print_fish(void)
{
    puts("# perdure: completion for fish. perdure completion fish | source");
    puts("complete -c perdure -n __fish_use_subcommand -l help -d 'this text'\n"
         "complete -c perdure -n __fish_use_subcommand -l version -d 'which version this is'");
    pd_command_describe(pd_commands, "perdure", visit_fish, NULL);
    for (uint32_t i = 0; i < pd_key_count; i++) {
        printf("complete -c perdure -n \"__fish_seen_subcommand_from train plan\" -f -a '%s=' -d ", pd_keys[i].name);
        print_quoted(pd_keys[i].meaning);
        putchar('\n');
    }
}

pd_status pd_cmd_completion(int argc, char **argv, struct pd_error *err)
{
    static const char *const names[] = {"bash", "zsh", "fish"};
    static void (*const print[])(void) = {print_bash, print_zsh, print_fish};
    const char *shell;
    uint32_t count;
    const struct pd_usage usage = {
        .arguments = "bash|zsh|fish",
        .doc =
            "Prints a script that makes a shell complete commands, options, their values and keys of configurations.\vbash: "
            "source <(perdure completion bash), in ~/.bashrc\nzsh: perdure completion zsh > ~/.zfunc/_perdure, a directory "
            "of fpath\nfish: perdure completion fish > ~/.config/fish/completions/perdure.fish",
        PD_WORDS(&shell, 1, &count)};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    for (int i = 0; count && i < 3; i++) {
        if (strcmp(shell, names[i]) != 0) continue;
        print[i]();
        return PD_OK;
    }
    PD_FAIL(err, PD_USAGE, "completion needs a shell that it knows: bash, zsh or fish, as in perdure completion bash");
}

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
                                   PD_WORDS(&m.directory, 1, &count)};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!count) PD_FAIL(err, PD_USAGE, "manual needs a directory: perdure manual share/man/man1");
    if (mkdir(m.directory, 0777) && errno != EEXIST) PD_FAIL_ERRNO(err, errno, "%s: making it", m.directory);
    pd_command_describe(pd_commands, "perdure", visit, &m);
    return m.status;
}
