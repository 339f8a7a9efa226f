/* perdure completion: what the tables of commands and options say, as scripts for shells. */
#include "tools/command.h"
#include "trainer/config/keys.h"

#include <stdio.h>
#include <string.h>

enum shell { BASH, ZSH, FISH };

/* Words of "auto, cpu or gpu" or "bash|zsh", each as `format` has it. */
static void print_words(const char *words, const char *format)
{
    while (*words) {
        char word[48];
        const size_t length = strcspn(words, ", |");
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (strcmp(word, "or") != 0 && strcmp(word, "and") != 0 && *word) printf(format, word);
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
    if (u && takes_word(u)) print_words(u->arguments, "%s ");
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
        if (words_of(o)) print_words(words_of(o), "%s ");
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
        print_words(words_of(o), "%s ");
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
        print_words(d->usage->arguments, "%s ");
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
        .words = &shell,
        .words_max = 1,
        .word_count = &count};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    for (int i = 0; count && i < 3; i++) {
        if (strcmp(shell, names[i]) != 0) continue;
        print[i]();
        return PD_OK;
    }
    PD_FAIL(err, PD_USAGE, "completion needs a shell that it knows: bash, zsh or fish, as in perdure completion bash");
}
