#include "trainer/run/save_failures.h"

#include "ckpt/base/backoff.h"
#include "ckpt/base/checked.h"

#include <math.h>

#define LEAVING_RETRY_NS UINT64_C(1000000000)
#define OVER_RETRY_NS_MAX UINT64_C(15000000000)

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9); /* a key's: 6e7 seconds at most */
}

uint64_t pd_save_failures_deadline(const struct pd_save_failures *f, double give_up_seconds)
{
    const bool is_brief = f->status == PD_NO_MEMORY || f->status == PD_UNSUPPORTED;
    uint64_t end = f->since_ns + ns_of(is_brief ? fmin(give_up_seconds, PD_SAVE_BRIEF_SECONDS) : give_up_seconds);
    if (f->leave_ns) end = pd_min_u64(end, f->leave_ns);
    return f->over_ns ? pd_min_u64(end, f->over_ns) : end;
}

/* From one attempt to the next. */
static uint64_t pause_ns(const struct pd_save_failures *f)
{
    if (f->leave_ns) return LEAVING_RETRY_NS;
    return f->over_ns ? pd_min_u64(pd_backoff_ns(f->count), OVER_RETRY_NS_MAX) : pd_backoff_ns(f->count);
}

void pd_save_failures_add(struct pd_save_failures *f, pd_status status, uint64_t step, uint64_t now_ns,
                          double give_up_seconds)
{
    f->status = status;
    if (!f->count++) {
        f->first_step = step;
        f->since_ns = now_ns;
    }
    f->retry_ns = pd_min_u64(now_ns + pause_ns(f), pd_save_failures_deadline(f, give_up_seconds));
}

void pd_save_failures_clear(struct pd_save_failures *f)
{
    f->count = 0;
    f->retry_ns = 0;
}

void pd_save_failures_leave(struct pd_save_failures *f, uint64_t now_ns, double leave_seconds)
{
    f->leave_ns = now_ns + ns_of(leave_seconds);
    f->retry_ns = 0;
}

void pd_save_failures_over(struct pd_save_failures *f, uint64_t now_ns)
{
    if (!f->over_ns) f->over_ns = now_ns + ns_of(PD_SAVE_LAST_SECONDS);
}

bool pd_save_failures_is_backing_off(const struct pd_save_failures *f, uint64_t now_ns)
{
    return f->count && now_ns < f->retry_ns;
}

bool pd_save_failures_is_too_long(const struct pd_save_failures *f, uint64_t now_ns, double give_up_seconds)
{
    return f->count && now_ns >= pd_save_failures_deadline(f, give_up_seconds);
}
