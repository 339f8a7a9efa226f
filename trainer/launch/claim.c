#include "trainer/launch/claim.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "trainer/notes/note.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#define MODULE "launch"
#define POLL_MS 50u

/* A launch leaves its process number in its private directory (note.h). */
static void describe_owner(const char *run_dir, char *ret_text, size_t bytes)
{
    char pattern[4096];
    glob_t found;
    snprintf(ret_text, bytes, "it has not said who it is");
    snprintf(pattern, sizeof pattern, "%.4000s/.launch-*", run_dir);
    if (glob(pattern, GLOB_NOSORT | GLOB_PERIOD, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct pd_note_begun owner;
        if (!pd_note_read_process(found.gl_pathv[i], PD_NOTE_OWNER, 0, &owner)) continue;
        if (owner.is_here && kill(owner.process, 0) != 0 && errno == ESRCH) continue; /* killed, and not yet cleared away */
        snprintf(ret_text, bytes, "process %d of %s", owner.process, owner.is_here ? "this host" : "another host");
    }
    globfree(&found);
}

static bool asks_to_leave(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT) ||
                                         sigismember(&pending, SIGUSR1) || sigismember(&pending, SIGHUP));
}

static pd_status wait_for_owner(int directory, const char *run_dir, uint32_t wait_ms, struct pd_error *err)
{
    char owner[96];
    describe_owner(run_dir, owner, sizeof owner);
    pd_log_info(MODULE, "waiting for another launch that is using %s (%s), %u seconds at most", run_dir, owner,
                wait_ms / 1000);
    for (uint32_t waited = 0; waited < wait_ms; waited += POLL_MS) {
        if (asks_to_leave()) PD_FAIL(err, PD_STOPPED, "asked to leave while waiting for another launch (%s)", owner);
        pd_clock_sleep_ns(NULL, POLL_MS * 1000000ull);
        if (flock(directory, LOCK_EX | LOCK_NB) == 0) return PD_OK;
    }
    PD_FAIL(err, PD_BUSY, "another launch is using %s (%s): wait for it, stop it, or choose another run.dir", run_dir,
            owner);
}

pd_status pd_launch_claim(const char *run_dir, uint32_t wait_ms, int *ret_claim, struct pd_error *err)
{
    pd_status st = PD_OK;
    const int directory = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) PD_FAIL_ERRNO(err, errno, "run.dir: %s", run_dir);
    if (flock(directory, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) st = wait_for_owner(directory, run_dir, wait_ms, err);
    if (st) {
        close(directory);
        return st;
    }
    *ret_claim = directory;
    return PD_OK;
}

void pd_launch_claim_drop(int claim)
{
    if (claim >= 0) close(claim);
}
