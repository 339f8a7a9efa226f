#include "trainer/launch/run_lock.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "trainer/launch/hold.h"
#include "trainer/launch/private_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#define MODULE "launch"
#define POLL_MS 50u

static pd_status wait_for_owner(int directory, const char *run_dir, uint32_t wait_ms, struct pd_error *err)
{
    char owner[96];
    pd_private_dir_describe_owner(run_dir, owner, sizeof owner);
    pd_log_info(MODULE, "waiting for another launch that is using %s (%s), %u seconds at most", run_dir, owner,
                wait_ms / 1000);
    for (uint32_t waited = 0; waited < wait_ms; waited += POLL_MS) {
        if (pd_launch_signals_say_leave())
            PD_FAIL(err, PD_STOPPED, "asked to leave while waiting for another launch (%s)", owner);
        pd_clock_sleep_ns(POLL_MS * 1000000ull);
        if (flock(directory, LOCK_EX | LOCK_NB) == 0) return PD_OK;
    }
    PD_FAIL(err, PD_BUSY, "another launch is using %s (%s): wait for it, stop it, or choose another run.dir", run_dir,
            owner);
}

pd_status pd_launch_lock(const char *run_dir, uint32_t wait_ms, int *ret_lock, struct pd_error *err)
{
    pd_status st = PD_OK;
    int directory;
    PD_ON_STORAGE(directory = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory < 0) PD_FAIL_ERRNO(err, errno, "run.dir: %s", run_dir);
    if (flock(directory, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) st = wait_for_owner(directory, run_dir, wait_ms, err);
    if (st) {
        close(directory);
        return st;
    }
    *ret_lock = directory;
    return PD_OK;
}

void pd_launch_unlock(int lock)
{
    if (lock >= 0) close(lock);
}
