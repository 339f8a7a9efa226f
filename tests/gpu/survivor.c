#include "tests/gpu/survivor.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BROKEN_MAX = 40, DONE = UINT32_MAX };

struct message {
    uint32_t row; /* DONE: all are behind it */
    char what[96];
};

/* ---- the child ---- */

static bool number_of(const char *text, uint32_t *ret_number)
{
    char *end;
    const unsigned long number = strtoul(text, &end, 10);
    if (!*text || *end || number > INT32_MAX) return false;
    *ret_number = (uint32_t)number;
    return true;
}

/* --from ROW [PIPE] */
bool survivor_is_child(int count, char **arguments, struct survivor_child *ret_child)
{
    uint32_t pipe = 0;
    if (count < 3 || count > 4 || strcmp(arguments[1], "--from") != 0) return false;
    if (!number_of(arguments[2], &ret_child->from) || (count > 3 && !number_of(arguments[3], &pipe))) return false;
    ret_child->row = 0;
    ret_child->pipe = count > 3 ? (int)pipe : -1;
    return true;
}

static void tell(const struct survivor_child *child, uint32_t row, const char *what)
{
    struct message m = {.row = row};
    if (child->pipe < 0) return;
    snprintf(m.what, sizeof m.what, "%s", what);
    if (write(child->pipe, &m, sizeof m) != (ssize_t)sizeof m) _exit(1); /* nobody reads: the parent is gone */
}

bool survivor_next(struct survivor_child *child, const char *what)
{
    const uint32_t row = child->row++;
    if (row < child->from) return false;
    fflush(stdout);
    tell(child, row, what);
    return true;
}

void survivor_hurry(const struct survivor_child *child, unsigned seconds)
{
    if (child->pipe >= 0) alarm(seconds);
}

void survivor_done(const struct survivor_child *child)
{
    tell(child, DONE, "");
}

/* ---- the parent ---- */

static pid_t start(uint32_t from, int *ret_pipe)
{
    int ends[2];
    char row[16], write_end[16];
    if (pipe(ends)) return -1;
    snprintf(row, sizeof row, "%u", from);
    snprintf(write_end, sizeof write_end, "%d", ends[1]);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        execl("/proc/self/exe", "gpu_operations", "--from", row, write_end, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    *ret_pipe = ends[0];
    return child;
}

static void say_broken(const struct message *last, int status)
{
    printf("FAIL %s: ", last->what);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        printf("it hung\n");
    else if (WIFSIGNALED(status))
        printf("killed by signal %d\n", WTERMSIG(status));
    else
        printf("exit code %d, see what was said to stderr\n", WEXITSTATUS(status));
}

int survivor_run(void)
{
    uint32_t from = 0, broken = 0;
    while (broken < BROKEN_MAX) {
        struct message last = {.row = from}, next;
        int pipe, status = 0;
        bool is_begun = false;
        const pid_t child = start(from, &pipe);
        if (child < 0) return 70;
        while (read(pipe, &next, sizeof next) == (ssize_t)sizeof next) {
            last = next;
            is_begun = true;
        }
        close(pipe);
        if (waitpid(child, &status, 0) != child) return 70;
        if (last.row == DONE) return broken ? 1 : WEXITSTATUS(status);
        if (!is_begun && WIFEXITED(status)) return WEXITSTATUS(status) ? WEXITSTATUS(status) : 1; /* before any row */
        say_broken(&last, status);
        broken++;
        from = last.row + 1;
    }
    printf("%u rows broke: the rest is not tried\n", broken);
    return 1;
}
