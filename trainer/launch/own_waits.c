#include "trainer/launch/own_waits.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/process.h"
#include "ckpt/base/thread.h"

#include <unistd.h>

#define LOOK_NS UINT64_C(200000000)
#define SAY_NS UINT64_C(5000000000)
#define SAY_AGAIN_NS UINT64_C(30000000000)

static void say(uint64_t waited_ns)
{
    char kernel[240];
    pd_process_kernel_place(getpid(), kernel, sizeof kernel);
    pd_log_warn("launch", "the launcher has waited for a file for %.0f s%s%s. Its storage is slow or stuck: waiting for it",
                (double)waited_ns * 1e-9, kernel[0] ? ", in the kernel at " : "", kernel);
}

static void *own_waits_main(void *context)
{
    const struct pd_heartbeat *own = context;
    uint64_t done = 0, since_ns = 0, next_ns = SAY_NS; /* next_ns: after since_ns */
    for (;; pd_clock_sleep_ns(LOOK_NS)) {
        const uint64_t now = pd_clock_monotonic_ns(NULL), done_now = atomic_load(&own->storage_done);
        if (!since_ns || !atomic_load(&own->storage_waits) || done_now != done) {
            done = done_now;
            since_ns = now;
            next_ns = SAY_NS;
        } else if (now - since_ns >= next_ns) {
            say(now - since_ns);
            next_ns += SAY_AGAIN_NS;
        }
    }
    return NULL;
}

void pd_launch_own_waits_report(void)
{
    int fd;
    pthread_t thread;
    if (!pd_heartbeat_open(1, &fd)) return;
    const struct pd_heartbeat *own = pd_heartbeat_map(getpid(), fd, 1);
    if (own && !pd_thread_start(&thread, NULL, own_waits_main, (void *)(uintptr_t)own)) pthread_detach(thread);
}
