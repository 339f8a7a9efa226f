/* Whether threads leave signals to the one that began. */
#pragma once

#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Threads of this process beside the first; fails where one would take SIGTERM or SIGINT. */
static unsigned threads_without_signals(void)
{
    const unsigned long long both = 1ull << (SIGTERM - 1) | 1ull << (SIGINT - 1);
    unsigned others = 0;
    DIR *tasks = opendir("/proc/self/task");
    cr_assert(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[256];
        unsigned long long blocked = 0;
        unsigned threads = 1;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = task->d_name[0] != '.' && strtol(task->d_name, NULL, 10) != getpid() ? fopen(path, "r") : NULL;
        if (!status) continue; /* the first, or one that has ended by now */
        bool found = false;
        while (!found && fgets(line, sizeof line, status)) {
            sscanf(line, "Threads: %u", &threads);
            found = sscanf(line, "SigBlk: %llx", &blocked) == 1;
        }
        fclose(status);
        if (!found || !threads) continue; /* one that ends has no signals left to show: proc(5) then has 0 of everything */
        cr_assert_eq(blocked & both, both, "thread %s takes signals: blocked are %llx", task->d_name, blocked);
        others++;
    }
    closedir(tasks);
    return others;
}

/* A progress callback; context: the most threads (unsigned) there were at once. */
static void look_at_threads(void *context, uint64_t done, uint64_t total)
{
    unsigned *most = context;
    const unsigned others = threads_without_signals();
    if (others > *most) *most = others;
    cr_assert_leq(done, total);
}
