#include "trainer/run/recovery.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "trainer/run/events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

const char *const pd_recovery_names[PD_RECOVERY_PHASES] = {"detect", "end",  "decide", "start",
                                                           "join",   "open", "load",   "step"};
static double seconds[PD_RECOVERY_PHASES];
static uint64_t since_ns; /* 0: nothing was lost, or all is said */

void pd_recovery_begin(void)
{
    uint64_t spawned_ns;
    const uint64_t now_ns = pd_clock_wall_ns(NULL);
    const char *text = getenv(PD_LAUNCH_ENV_RECOVERY);
    if (!text || sscanf(text, "%lf %lf %lf %" SCNu64, &seconds[PD_RECOVERY_DETECT], &seconds[PD_RECOVERY_END],
                        &seconds[PD_RECOVERY_DECIDE], &spawned_ns) != 4)
        return;
    since_ns = pd_clock_monotonic_ns(NULL);
    if (now_ns > spawned_ns) seconds[PD_RECOVERY_START] = (double)(now_ns - spawned_ns) * 1e-9;
}

void pd_recovery_reached(enum pd_recovery_phase phase)
{
    if (!since_ns) return;
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL);
    seconds[phase] += (double)(now_ns - since_ns) * 1e-9;
    since_ns = now_ns;
}

static void note(const char *run_dir, uint64_t step, double total)
{
    struct pd_json_writer w;
    pd_event_begin(&w, "recover");
    pd_json_u64(&w, "step", step);
    pd_json_object_begin(&w, "recover_seconds");
    pd_json_double(&w, "total", total);
    for (int i = 0; i < PD_RECOVERY_PHASES; i++)
        pd_json_double(&w, pd_recovery_names[i], seconds[i]);
    pd_json_object_end(&w);
    pd_event_end(&w, run_dir);
}

void pd_recovery_end(const char *run_dir, uint64_t step)
{
    char text[256];
    double total = 0;
    int used = 0;
    if (!since_ns) return;
    pd_recovery_reached(PD_RECOVERY_STEP);
    since_ns = 0;
    for (int i = 0; i < PD_RECOVERY_PHASES; i++) {
        total += seconds[i];
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "%s%s %.2f", i ? ", " : "", pd_recovery_names[i], seconds[i]);
    }
    pd_log(PD_LOG_INFO, "worker", "step %llu is done, %.2f s after the last one before the loss: %s",
           (unsigned long long)step, total, text);
    note(run_dir, step, total);
}
