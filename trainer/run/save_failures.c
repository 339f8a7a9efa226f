#include "trainer/run/save_failures.h"

#include "ckpt/base/backoff.h"
#include "ckpt/base/checked.h"

#define LEAVING_RETRY_NS UINT64_C(1000000000)

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9); /* a key's: 6e7 seconds at most */
}

static uint64_t deadline(const struct pd_save_failures *f, double give_up_seconds)
{
    const uint64_t end = f->since_ns + ns_of(give_up_seconds);
    return f->leave_ns ? pd_min_u64(end, f->leave_ns) : end;
}

void pd_save_failures_add(struct pd_save_failures *f, uint64_t step, uint64_t now_ns, double give_up_seconds)
{
    if (!f->count++) {
        f->first_step = step;
        f->since_ns = now_ns;
    }
    f->retry_ns =
        pd_min_u64(now_ns + (f->leave_ns ? LEAVING_RETRY_NS : pd_backoff_ns(f->count)), deadline(f, give_up_seconds));
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

bool pd_save_failures_is_backing_off(const struct pd_save_failures *f, uint64_t now_ns)
{
    return f->count && now_ns < f->retry_ns;
}

bool pd_save_failures_is_too_long(const struct pd_save_failures *f, uint64_t now_ns, double give_up_seconds)
{
    return f->count && now_ns >= deadline(f, give_up_seconds);
}
