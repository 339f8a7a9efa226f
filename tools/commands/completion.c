/* perdure completion: what the tables of commands and options say, as scripts for shells. */
#include "tools/command.h"
#include "trainer/config/keys.h"

#include <stdio.h>
#include <string.h>

enum shell { BASH, ZSH, FISH };

/* Words of "auto, cpu or gpu", each as `format` has it. */
static void print_words(const char *words, const char *format)
{
    while (*words) {
        char word[48];
        const size_t length = strcspn(words, ", ");
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (strcmp(word, "or") != 0 && strcmp(word, "and") != 0 && *word) printf(format, word);
        words += length;
        words += strspn(words, ", ");
    }
}

static bool has_words(const struct pd_option *o)
{
    return o->expected && (o->kind == PD_OPTION_CHOICE || o->kind == PD_OPTION_TEXT);
}

static bool takes_keys(const struct pd_usage *u)
{
    return u->arguments && strstr(u->arguments, "key=value");
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
    (void)context;
    printf("    '%s') words='", d->path);
    if (d->usage) print_option_words(d->usage);
    for (const struct pd_command *c = d->commands; c && c->name; c++)
        if (c->summary) printf("%s ", c->name);
    printf("'%s;;\n", d->usage && takes_keys(d->usage) ? " keys=1" : "");
}

static void visit_values(void *context, const struct pd_command_described *d)
{
    (void)context;
    for (const struct pd_option *o = d->usage ? d->usage->options : NULL; o && (o->name || o->doc); o++) {
        if (!o->name || !has_words(o)) continue;
        printf("    '%s --%s') words='", d->path, o->name);
        print_words(o->expected, "%s ");
        puts("';;");
    }
}

static void print_keys(void)
{
    printf("  local all_keys='");
    for (uint32_t i = 0; i < pd_key_count; i++)
        printf("%s= ", pd_keys[i].name);
    puts("'");
}

/* bash cuts words at "="; the commands are the first words that the tables know. */
static const char bash_begin[] =
    "# perdure: completion for bash. source <(perdure completion bash)\n"
    "_perdure() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path=perdure words= keys= option= i\n"
    "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
    "    _perdure_words \"$path ${COMP_WORDS[i]}\" && path=\"$path ${COMP_WORDS[i]}\" || break\n"
    "  done\n"
    "  words= keys=; _perdure_words \"$path\"\n"
    "  [ \"$cur\" = = ] && { option=$prev; cur=; }\n"
    "  [ \"$prev\" = = ] && option=${COMP_WORDS[COMP_CWORD-2]}\n"
    "  if [ -n \"$option\" ]; then words=; _perdure_values \"$path $option\"; keys=; fi\n";
static const char bash_end[] =
    "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
    "  [ -n \"$keys\" ] && [[ $cur != -* ]] && COMPREPLY+=($(compgen -W \"$all_keys\" -- \"$cur\"))\n"
    "  [ ${#COMPREPLY[@]} = 0 ] && COMPREPLY=($(compgen -f -- \"$cur\"))\n"
    "  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
    "  return 0\n"
    "}\n"
    "complete -o filenames -F _perdure perdure\n";

static const char zsh_begin[] =
    "#compdef perdure\n"
    "# perdure: completion for zsh. Put it as _perdure into a directory of $fpath.\n"
    "_perdure() {\n"
    "  local path=perdure words= keys= i option=\n"
    "  for ((i = 2; i < CURRENT; i++)); do\n"
    "    _perdure_words \"$path ${_perdure_line[i]}\" && path=\"$path ${_perdure_line[i]}\" || break\n"
    "  done\n"
    "  words= keys=; _perdure_words \"$path\"\n"
    "  if [[ $PREFIX == --*=* ]]; then\n"
    "    option=${PREFIX%%=*}; words=; _perdure_values \"$path $option\"\n"
    "    compset -P '*='\n"
    "    [[ -n $words ]] && compadd -- ${=words} || _files\n"
    "    return\n"
    "  fi\n";
static const char zsh_end[] = "  compadd -S '' -- ${(M)${=words}:#*=}\n"
                              "  compadd -- ${${=words}:#*=}\n"
                              "  [[ -n $keys ]] && compadd -S '' -- ${=all_keys}\n"
                              "  [[ $PREFIX == -* ]] || _files\n"
                              "}\n"
                              "_perdure_entry() { local -a _perdure_line=(\"${words[@]}\"); _perdure; }\n"
                              "_perdure_entry \"$@\"\n";

static void print_tables(void)
{
    puts("_perdure_words() {\n  case $1 in");
    pd_command_describe(pd_commands, "perdure", visit_words, NULL);
    puts("    *) return 1;;\n  esac\n}\n_perdure_values() {\n  case $1 in");
    pd_command_describe(pd_commands, "perdure", visit_values, NULL);
    puts("  esac\n}");
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
    if (has_words(o)) {
        printf("-f -a '");
        print_words(o->expected, "%s ");
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
    for (const struct pd_option *o = d->usage->options; o && (o->name || o->doc); o++)
        if (o->name) fish_option(d->path, o);
    if (d->usage->json) fish_option(d->path, &json);
    fish_option(d->path, &help);
}

static void print_fish(void)
{
    puts("# perdure: completion for fish. perdure completion fish | source");
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
    bool done;
    const struct pd_usage usage = {
        .arguments = "bash|zsh|fish",
        .doc = "Prints a script for a shell, which then completes commands, options, their values and keys of "
               "configurations.\v"
               "bash: source <(perdure completion bash), in ~/.bashrc\n"
               "zsh: perdure completion zsh > ~/.zfunc/_perdure, a directory of fpath\n"
               "fish: perdure completion fish > ~/.config/fish/completions/perdure.fish",
        .words = &shell,
        .words_max = 1,
        .word_count = &count};
    PD_TRY(pd_command_parse(&usage, argc, argv, &done, err));
    if (done) return PD_OK;
    for (int i = 0; count && i < 3; i++) {
        if (strcmp(shell, names[i]) != 0) continue;
        print[i]();
        return PD_OK;
    }
    PD_FAIL(err, PD_USAGE, "completion needs a shell that it knows: bash, zsh or fish, as in perdure completion bash");
}
