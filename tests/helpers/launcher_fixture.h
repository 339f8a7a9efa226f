/* A launcher in a process of its own, with workers that fail as their plan says (fake_worker), in a directory of the test. */
#pragma once

#include "ckpt/base/parse.h"
#include "tests/helpers/scale.h"
#include "trainer/comm/comm.h"
#include "trainer/launch/launcher.h"
#include "trainer/launch/starter.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[PATH_MAX];    /* of one test */
static char worker[PATH_MAX]; /* fake_worker lies beside this program */

static inline void set_up(void)
{
    snprintf(dir, sizeof dir, "/tmp/perdure-launcher-XXXXXX");
    cr_assert(mkdtemp(dir));
    ssize_t length = readlink("/proc/self/exe", worker, sizeof worker - 1);
    cr_assert_gt(length, 0);
    worker[length] = '\0';
    snprintf(strrchr(worker, '/'), 32, "/fake_worker");
    unsetenv("PERDURE_MPIRUN");
}

static inline void tear_down(void)
{
    DIR *listing = opendir(dir);
    for (const struct dirent *entry; listing && (entry = readdir(listing));)
        if (entry->d_name[0] != '.') unlinkat(dirfd(listing), entry->d_name, 0);
    if (listing) closedir(listing);
    rmdir(dir); /* fails, and tests look at that, when the launch left something behind */
}

static inline int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status, (void)kind, (void)place;
    return remove(path);
}

/* What a launch left behind that was killed goes too. */
static inline void tear_down_all(void)
{
    tear_down();
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

enum { PATIENCE_MS = 300000 }; /* what takes so long does not come, however slow the machine is */

static inline bool newest_step(void *context, uint64_t *ret_step, char ret_found[PD_LAUNCH_FOUND_BYTES])
{
    (void)context;
    (void)ret_found;
    char path[PATH_MAX + 8], text[32] = "";
    snprintf(path, sizeof path, "%s/step", dir);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool is_read = fgets(text, sizeof text, file) && pd_parse_u64(text, ret_step);
    fclose(file);
    return is_read;
}

/* At most eight ranks, and where seven are left six start. */
static inline pd_status choose(void *context, uint32_t ranks, bool is_restart, struct pd_launch_layout *ret_layout,
                               struct pd_error *err)
{
    (void)context;
    if (ranks > 8 && !is_restart) PD_FAIL(err, PD_INVALID, "%u ranks are not admitted", ranks);
    *ret_layout = (struct pd_launch_layout){.ranks = ranks == 7 ? 6 : ranks};
    snprintf(ret_layout->settings, sizeof ret_layout->settings, "dp=%u,tp=1", ret_layout->ranks);
    return PD_OK;
}

static inline struct pd_launch launch_of(const char *const *argv, enum pd_transport transport, uint32_t ranks)
{
    if (transport == PD_TRANSPORT_MPI && !pd_comm_has_mpi()) cr_skip_test("this build has no MPI");
    return (struct pd_launch){.worker = argv,
                              .dir = dir,
                              .ranks = ranks,
                              .choose = choose,
                              .transport = transport,
                              .restart_limit = 3,
                              .newest_step = newest_step};
}

/* The launcher in a process of its own, as `perdure train` is. */
static inline pid_t launch_begin(const struct pd_launch *launch)
{
    fflush(NULL);
    pid_t process = fork();
    if (process == 0) {
        struct pd_error err;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing behind */
        pd_status st = pd_launch_run(launch, &err);
        char path[PATH_MAX + 16];
        snprintf(path, sizeof path, "%s/error", dir);
        FILE *file = fopen(path, "w");
        if (file) fprintf(file, "%s", st ? err.message : "ok");
        if (file) fclose(file);
        _exit(pd_status_exit_code(st));
    }
    return process;
}

/* Waits until the signal is in one of two masks that the kernel shows of the process, or in neither. For a moment fork
 * and pthread_create of the C library block everything, which a program does not: then SIGSEGV is blocked too. */
static inline void wait_masks(pid_t process, int signal, const char *one, const char *other, bool is_in)
{
    const unsigned long long everything = 1ull << (SIGSEGV - 1);
    char path[64], line[128];
    snprintf(path, sizeof path, "/proc/%d/status", (int)process);
    for (int tries = 0; tries < PATIENCE_MS; tries++) {
        unsigned long long either = 0;
        FILE *file = fopen(path, "r");
        cr_assert(file);
        while (fgets(line, sizeof line, file))
            if (!strncmp(line, one, 7) || !strncmp(line, other, 7)) {
                const unsigned long long mask = strtoull(line + 7, NULL, 16);
                if (strncmp(line, "SigBlk:", 7) != 0 || !(mask & everything)) either |= mask;
            }
        fclose(file);
        if ((either >> (signal - 1) & 1) == is_in) return;
        usleep(1000);
    }
    cr_assert_fail("signal %d: %s %s", signal, one, is_in ? "lacks it" : "has it");
}

/* Until the process catches or blocks the signal: before that it ends as any process would. */
static inline void wait_caught(pid_t process, int signal)
{
    wait_masks(process, signal, "SigCgt:", "SigBlk:", true);
}

/* Until the process has taken the signal: another one like it, sent before, would be the same one. */
static inline void wait_taken(pid_t process, int signal)
{
    wait_masks(process, signal, "SigPnd:", "ShdPnd:", false);
}

static inline int launch_end(pid_t process)
{
    int status;
    cr_assert_eq(waitpid(process, &status, 0), process);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline int launch(const struct pd_launch *what)
{
    return launch_end(launch_begin(what));
}

static inline void error_read(char *ret_message, int bytes)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/error", dir);
    FILE *file = fopen(path, "r");
    cr_assert(file);
    cr_assert(fgets(ret_message, bytes, file));
    fclose(file);
}

static inline bool error_has(const char *text)
{
    char message[1024] = "";
    error_read(message, sizeof message);
    return strstr(message, text);
}

static inline void expect_error_says(const char *text)
{
    char message[1024] = "";
    error_read(message, sizeof message);
    cr_assert(strstr(message, text), "\"%s\" does not say \"%s\"", message, text);
}

/* Calls `visit` for each line of the log of `rank`; the number of lines that begin with `word`. */
static inline uint32_t log_count(uint32_t rank, const char *word, uint32_t *ret_last_ranks, int *ret_last_process)
{
    char path[PATH_MAX + 16], line[256];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/log-%u", dir, rank);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char said[64];
        uint32_t restart, ranks;
        int process;
        if (sscanf(line, "%63s restart=%u ranks=%u pid=%d", said, &restart, &ranks, &process) != 4) continue;
        if (strcmp(said, word)) continue;
        count++;
        if (ret_last_ranks) *ret_last_ranks = ranks;
        if (ret_last_process) *ret_last_process = process;
    }
    if (file) fclose(file);
    return count;
}

static inline uint32_t starts(uint32_t rank)
{
    return log_count(rank, "start", NULL, NULL);
}

static inline uint32_t last_ranks(void)
{
    uint32_t ranks = 0;
    log_count(0, "start", &ranks, NULL);
    return ranks;
}

static inline void expect_no_orphan(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        int process = 0;
        if (log_count(r, "start", NULL, &process) == 0) continue;
        bool is_gone = false;
        for (int tries = 0; !is_gone && tries < PATIENCE_MS / 10; tries++) {
            is_gone = kill(process, 0) != 0 && errno == ESRCH;
            if (!is_gone) usleep(10000);
        }
        cr_assert(is_gone, "rank %u, process %d, is left", r, process);
    }
}

static inline void wait_for(uint32_t rank, const char *word, uint32_t count)
{
    for (int tries = 0; tries < PATIENCE_MS / 5; tries++) {
        if (log_count(rank, word, NULL, NULL) >= count) return;
        usleep(5000);
    }
    cr_assert_fail("rank %u did not say %s", rank, word);
}

#define WORKER(plan)            \
    (const char *[])            \
    {                           \
        worker, dir, plan, NULL \
    }
