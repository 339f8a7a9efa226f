/* perdure watch: shows the current state of a run, repeatedly. */
#include "tools/report/watch.h"
#include "tools/command.h"
#include "tools/output.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define CLEAR_BELOW "\033[J"
#define COLUMNS_MIN 30u

struct watch_options {
    const char *path;
    uint32_t path_count;
    uint64_t every;
    bool once, json;
};

static pd_status watch_draw(const struct pd_watch *watch, struct pd_error *err)
{
    char *text;
    struct winsize size;
    unsigned columns = 80, rows = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
        columns = size.ws_col < COLUMNS_MIN ? COLUMNS_MIN : size.ws_col;
        rows = size.ws_row;
    }
    PD_TRY(pd_watch_screen(watch, columns, rows, &text, err));
    fputs(HOME, stdout);
    fputs(text, stdout);
    fputs(CLEAR_BELOW, stdout);
    (void)fflush(stdout);
    free(text);
    return PD_OK;
}

/* ---- on a terminal ---- */

struct terminal {
    struct termios before;
    bool has_input;
    int signals;
};

/* False: the user wants to quit. */
static bool wait_for_turn(const struct terminal *t, int milliseconds)
{
    struct pollfd polled[] = {{t->signals, POLLIN, 0}, {t->has_input ? STDIN_FILENO : -1, POLLIN, 0}};
    struct signalfd_siginfo signal;
    char key;
    if (poll(polled, 2, milliseconds) <= 0) return true;
    if (polled[0].revents && read(t->signals, &signal, sizeof signal) == sizeof signal) return signal.ssi_signo == SIGWINCH;
    if (!polled[1].revents) return true;
    return read(STDIN_FILENO, &key, 1) == 1 && key != 'q' && key != 'Q' && key != 3;
}

static pd_status on_terminal(struct pd_watch *watch, const struct watch_options *o, struct pd_error *err)
{
    static const int numbers[] = {SIGWINCH, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct terminal t = {.has_input = tcgetattr(STDIN_FILENO, &t.before) == 0};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&mask, numbers[i]);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    t.signals = signalfd(-1, &mask, SFD_CLOEXEC);
    if (t.signals < 0) PD_FAIL_ERRNO(err, errno, "signals of watch");
    if (t.has_input) {
        struct termios raw = t.before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs(ENTER, stdout);
    pd_status st;
    do
        st = watch_draw(watch, err);
    while (!st && wait_for_turn(&t, (int)o->every * 1000) && !(st = pd_watch_look(watch, err)));
    fputs(LEAVE, stdout);
    (void)fflush(stdout);
    if (t.has_input) tcsetattr(STDIN_FILENO, TCSANOW, &t.before);
    close(t.signals);
    return st;
}

/* ---- elsewhere ---- */

static bool is_over(const struct pd_watch *watch)
{
    return watch->state == PD_WATCH_ENDED || watch->state == PD_WATCH_GONE;
}

/* Prints events as they happen, and a line of numbers when they change, until the run is over or nobody reads. */
static pd_status as_lines(struct pd_watch *watch, const struct watch_options *o, struct pd_error *err)
{
    char line[400], before[400] = "";
    uint64_t events = 0;
    for (;;) {
        if (o->json) {
            struct pd_json_writer w;
            pd_json_writer_init(&w, 0);
            pd_watch_json(watch, &w);
            PD_TRY(pd_output_json(&w, err));
        }
        if (!o->json) events = pd_watch_events(watch, events, stdout);
        pd_watch_line(watch, line, sizeof line);
        if (!o->json && strcmp(line, before) != 0) puts(line);
        memcpy(before, line, sizeof before);
        if (fflush(stdout)) return PD_OK;
        if (watch->state == PD_WATCH_NO_DIRECTORY)
            PD_FAIL(err, PD_IO,
                    "%s: run.dir is gone: it was removed or moved; if it was moved, give perdure watch its new path",
                    watch->history.dir);
        if (o->once || is_over(watch)) return PD_OK;
        sleep((unsigned)o->every);
        PD_TRY(pd_watch_look(watch, err));
    }
}

pd_status pd_cmd_watch(int argc, char **argv, struct pd_error *err)
{
    struct watch_options o = {.every = 0};
    struct pd_option options[] = {
        PD_OPTION("every", "SECONDS", "how often to look; 1 on a terminal, 10 elsewhere", PD_OPTION_U64, &o.every, 1, 3600),
        PD_OPTION("once", NULL, "show the state once and leave", PD_OPTION_FLAG, &o.once),
        {0}};
    const struct pd_usage usage = {
        .arguments = "RUN",
        .doc = "Follows a run by reading its files, without touching the run. RUN is its run.dir, on this host or on a "
               "shared file system. On a terminal, q leaves; elsewhere it prints lines until the run ends.",
        .options = options,
        .json = &o.json,
        PD_WORDS(&o.path, 1, &o.path_count)};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!o.path_count) PD_FAIL(err, PD_USAGE, "watch needs the run.dir of a run: perdure watch runs/mine");
    struct pd_watch *watch = calloc(1, sizeof *watch);
    if (!watch) PD_FAIL(err, PD_NO_MEMORY, "no memory to watch with");
    const bool is_terminal = isatty(STDOUT_FILENO) && !o.once && !o.json;
    if (!o.every) o.every = is_terminal ? 1 : 10;
    pd_status st = pd_watch_open(o.path, watch, err);
    if (!st) {
        st = is_terminal ? on_terminal(watch, &o, err) : as_lines(watch, &o, err);
        pd_watch_close(watch);
    }
    free(watch);
    return st;
}
