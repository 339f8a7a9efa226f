#include "ckpt/base/memory_limit.h"

#include <string.h>

#define UNLIMITED (UINT64_C(1) << 60) /* version 1 writes a number near 2^63 */

struct names {
    const char *limit, *usage, *inactive, *active, *events, *swap;
};
static const struct names versions[2] = {
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file", "memory.oom_control",
     "memory.memsw.limit_in_bytes"},
    {"memory.max", "memory.current", "inactive_file", "active_file", "memory.events", "memory.swap.max"}};

struct reading {
    struct pd_memory_limit limit;
    bool any;
    uint64_t swap, whole; /* smallest limits: of swap, and of memory and swap together, as version 1 counts */
};

static void take_tighter(struct reading *r, uint64_t free_bytes, uint64_t limit_bytes, const struct pd_cgroup *group)
{
    struct pd_memory_limit *limit = &r->limit;
    const bool is_smallest = !r->any || limit_bytes < limit->most_bytes,
               is_tightest = !r->any || free_bytes < limit->free_bytes;
    r->any = true;
    if (is_smallest) {
        limit->most_bytes = limit_bytes;
        limit->is_most_of_group = group != NULL;
        snprintf(limit->most_who, sizeof limit->most_who, "%s%s%.200s",
                 group ? versions[group->is_v2].limit : "this machine", group ? " of " : "", group ? group->directory : "");
    }
    if (!is_tightest) return;
    limit->free_bytes = free_bytes;
    limit->limit_bytes = limit_bytes;
    snprintf(limit->who, sizeof limit->who, "%s%.200s", group ? "memory cgroup " : "this machine", group ? group->name : "");
}

static uint64_t read_reclaimable(const struct pd_cgroup *group)
{
    FILE *file = pd_cgroup_open(group, "memory.stat");
    if (!file) return 0;
    const struct names *names = &versions[group->is_v2];
    const uint64_t bytes = pd_cgroup_key(file, names->inactive) + pd_cgroup_key(file, names->active);
    (void)fclose(file);
    return bytes;
}

static void look_at_group(void *context, const struct pd_cgroup *group)
{
    uint64_t most, used, swap;
    struct reading *r = context;
    const struct names *names = &versions[group->is_v2];
    uint64_t *least = group->is_v2 ? &r->swap : &r->whole;
    if (pd_cgroup_number(group, names->swap, &swap) && swap < *least) *least = swap;
    if (!pd_cgroup_number(group, names->limit, &most) || most >= UNLIMITED) return;
    if (!pd_cgroup_number(group, names->usage, &used)) return;
    const uint64_t back = read_reclaimable(group);
    used = used > back ? used - back : 0;
    take_tighter(r, most > used ? most - used : 0, most, group);
}

bool pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit)
{
    const char *meminfo = places && places->meminfo ? places->meminfo : "/proc/meminfo";
    struct reading r = {.whole = UINT64_MAX};
    FILE *file = fopen(meminfo, "re");
    if (file) {
        const uint64_t total = pd_cgroup_key(file, "MemTotal:"), available = pd_cgroup_key(file, "MemAvailable:");
        if (total) take_tighter(&r, available * 1024, total * 1024, NULL);
        r.swap = pd_cgroup_key(file, "SwapTotal:") * 1024;
        (void)fclose(file);
    }
    pd_cgroup_walk(places ? &places->cgroups : NULL, "memory", look_at_group, &r);
    const uint64_t behind = r.whole > r.limit.most_bytes ? r.whole - r.limit.most_bytes : 0;
    r.limit.swap_bytes = r.swap < behind ? r.swap : behind;
    if (r.any) *ret_limit = r.limit;
    return r.any;
}

static void add_kills(void *context, const struct pd_cgroup *group)
{
    FILE *file = group->is_own ? pd_cgroup_open(group, versions[group->is_v2].events) : NULL;
    if (!file) return;
    *(uint64_t *)context += pd_cgroup_key(file, "oom_kill");
    (void)fclose(file);
}

uint64_t pd_memory_oom_kills(const struct pd_cgroup_places *places)
{
    uint64_t kills = 0;
    pd_cgroup_walk(places, "memory", add_kills, &kills);
    return kills;
}
