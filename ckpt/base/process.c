#include "ckpt/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool pd_process_read(int process, const char *name, char *ret_text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", process, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, ret_text, bytes - 1) : -1;
    if (fd >= 0) close(fd);
    ret_text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* Returns the text of /proc/<process>/stat after the name, which may hold anything: state, parent, ... */
static const char *stat_of(int process, char text[1024])
{
    const char *end = pd_process_read(process, "stat", text, 1024) ? strrchr(text, ')') : NULL;
    return end && end[1] ? end + 2 : NULL;
}

bool pd_process_has_ended(int process)
{
    char text[1024];
    const char *stat = stat_of(process, text);
    return stat ? *stat == 'Z' || *stat == 'X' : kill(process, 0) != 0 && errno == ESRCH;
}

bool pd_process_is_stopped(int process)
{
    char text[1024];
    const char *stat = stat_of(process, text);
    return stat && *stat == 'T';
}

int pd_process_parent(int process)
{
    char text[1024];
    int parent = 0;
    const char *stat = stat_of(process, text);
    return stat && sscanf(stat, "%*c %d", &parent) == 1 ? parent : 0;
}

double pd_process_busy_seconds(int process)
{
    char text[1024];
    unsigned long long user, system, waited_ns = 0;
    const char *stat = stat_of(process, text);
    if (!stat || sscanf(stat, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2) return 0;
    if (pd_process_read(process, "schedstat", text, sizeof text)) (void)sscanf(text, "%*u %llu", &waited_ns);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK) + (double)waited_ns * 1e-9;
}

void pd_process_kernel_place(int process, char *ret_text, size_t bytes)
{
    char stack[2048], *rest = stack;
    size_t used = 0;
    ret_text[0] = '\0';
    if (!pd_process_read(process, "stack", stack, sizeof stack) && !pd_process_read(process, "wchan", stack, sizeof stack))
        return;
    for (char *line; used < bytes / 2 && (line = strsep(&rest, "\n"));) {
        const char *name = strstr(line, "] "); /* "[<0>] futex_wait_queue+0x60/0x90" */
        name = name ? name + 2 : line;
        const int length = (int)strcspn(name, "+");
        if (length && strcmp(name, "0"))
            used += (size_t)snprintf(ret_text + used, bytes - used, "%s%.*s", used ? " < " : "", length, name);
    }
}
