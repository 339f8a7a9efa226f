#include "ckpt/base/cpu.h"
#include "ckpt/base/memory_limit.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static char root[64];
static char self[128], mountinfo[128], meminfo[128];
static struct pd_memory_places places = {{self, mountinfo}, meminfo};

static void put(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(const char *path, const char *format, ...)
{
    char whole[256], *slash;
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(whole, 0777);
        *slash = '/';
    }
    FILE *f = fopen(whole, "w");
    va_list arguments;
    cr_assert_not_null(f, "%s", whole);
    va_start(arguments, format);
    vfprintf(f, format, arguments);
    va_end(arguments);
    fclose(f);
}

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/perdure-limit-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    snprintf(self, sizeof self, "%s/self", root);
    snprintf(mountinfo, sizeof mountinfo, "%s/mountinfo", root);
    snprintf(meminfo, sizeof meminfo, "%s/meminfo", root);
    put("meminfo", "MemTotal:       16777216 kB\nMemFree:         1 kB\nMemAvailable:    8388608 kB\n");
    put("self", "0::/\n");
    put("mountinfo",
        "30 23 0:27 / /proc rw - proc proc rw\n"
        "31 23 0:28 / %s/groups rw shared:4 - cgroup2 cgroup2 rw\n"
        "32 31 0:29 / %s/groups/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 31 0:30 /docker %s/groups/memory rw - cgroup cgroup rw,memory\n",
        root, root, root);
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(memory_limit, .init = set_up, .fini = tear_down);

static struct pd_memory_limit read_limit(void)
{
    struct pd_memory_limit limit = {0};
    cr_assert(pd_memory_limit_read(&places, &limit));
    return limit;
}

Test(memory_limit, the_machine_where_no_group_limits)
{
    struct pd_memory_limit limit = read_limit();
    cr_assert_eq(limit.free_bytes, 8192 * MIB);
    cr_assert_eq(limit.limit_bytes, 16384 * MIB);
    cr_assert_str_eq(limit.who, "this machine");
}

Test(memory_limit, version_2_counts_page_cache_as_free_and_tmpfs_not)
{
    put("self", "0::/a/b\n");
    put("groups/a/b/memory.max", "max\n");
    put("groups/a/b/memory.current", "%llu\n", 500ull << 20);
    put("groups/a/memory.max", "%llu\n", 1000ull << 20);
    put("groups/a/memory.current", "%llu\n", 700ull << 20);
    put("groups/a/memory.stat", "anon 1\nfile %llu\nshmem %llu\ninactive_file %llu\nactive_file %llu\n", 400ull << 20,
        250ull << 20, 100ull << 20, 50ull << 20);
    struct pd_memory_limit limit = read_limit();
    cr_assert_eq(limit.free_bytes, 450 * MIB, "%llu", (unsigned long long)limit.free_bytes);
    cr_assert_eq(limit.limit_bytes, 1000 * MIB);
    cr_assert_str_eq(limit.who, "memory cgroup /a");
    put("groups/a/b/memory.max", "%llu\n", 600ull << 20);
    limit = read_limit();
    cr_assert_eq(limit.free_bytes, 100 * MIB);
    cr_assert_str_eq(limit.who, "memory cgroup /a/b");
    put("groups/a/b/memory.max", "%llu\n", 400ull << 20);
    cr_assert_eq(read_limit().free_bytes, 0, "more is used than may be");
}

/* The smallest limit is what a start can have at most, whatever is free elsewhere. */
Test(memory_limit, the_smallest_limit_on_the_way_up)
{
    char wanted[160];
    put("self", "0::/a/b\n");
    put("groups/a/b/memory.max", "%llu\n", 900ull << 20);
    put("groups/a/b/memory.current", "%llu\n", 850ull << 20);
    put("groups/a/memory.max", "%llu\n", 700ull << 20);
    put("groups/a/memory.current", "0\n");
    const struct pd_memory_limit limit = read_limit();
    cr_expect_eq(limit.free_bytes, 50 * MIB);
    cr_expect_eq(limit.most_bytes, 700 * MIB);
    cr_expect(limit.is_most_of_group);
    snprintf(wanted, sizeof wanted, "memory.max of %s/groups/a", root);
    cr_expect_str_eq(limit.most_who, wanted);
}

Test(memory_limit, version_1_and_paths_that_are_mounted_or_hidden)
{
    put("self", "4:cpu,memory:/docker/1234\n3:cpuset:/x\n0::/\n");
    put("groups/memory/memory.limit_in_bytes", "%llu\n", 256ull << 20);
    put("groups/memory/memory.usage_in_bytes", "%llu\n", 200ull << 20);
    put("groups/memory/memory.stat", "total_inactive_file %llu\ntotal_active_file 0\n", 44ull << 20);
    struct pd_memory_limit limit = read_limit();
    cr_assert_eq(limit.free_bytes, 100 * MIB);
    cr_assert_str_eq(limit.who, "memory cgroup /");
    put("groups/memory/1234/memory.limit_in_bytes", "9223372036854771712\n");
    put("groups/memory/1234/memory.usage_in_bytes", "1\n");
    cr_assert_eq(read_limit().free_bytes, 100 * MIB, "no limit of its own");
    put("groups/memory/1234/memory.limit_in_bytes", "%llu\n", 50ull << 20);
    cr_assert_eq(read_limit().most_bytes, 50 * MIB, "what is mounted is /docker");
    put("self", "4:memory:/../elsewhere\n");
    cr_assert_eq(read_limit().most_bytes, 256 * MIB, "hidden: the group that is mounted");
}

/* Of version 2 the swap itself is limited, of version 1 memory and swap together. */
Test(memory_limit, swap_that_groups_allow)
{
    put("self", "4:memory:/docker/1\n0::/a/b\n");
    cr_expect_eq(read_limit().swap_bytes, 0, "the machine has none");
    put("meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nSwapTotal:       4194304 kB\n");
    put("groups/a/b/memory.max", "%llu\n", 600ull << 20);
    put("groups/a/b/memory.current", "0\n");
    put("groups/a/b/memory.swap.max", "max\n");
    cr_expect_eq(read_limit().swap_bytes, 4096 * MIB);
    put("groups/a/memory.swap.max", "%llu\n", 300ull << 20);
    cr_expect(read_limit().swap_bytes == 300 * MIB && read_limit().most_bytes == 600 * MIB, "one above allows less");
    put("groups/memory/1/memory.memsw.limit_in_bytes", "%llu\n", 700ull << 20);
    cr_expect_eq(read_limit().swap_bytes, 100 * MIB);
    put("groups/memory/memory.memsw.limit_in_bytes", "%llu\n", 500ull << 20);
    cr_expect_eq(read_limit().swap_bytes, 0);
}

Test(memory_limit, kills_of_the_own_group)
{
    put("self", "4:memory:/docker/1\n0::/a\n");
    put("groups/memory/1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    put("groups/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 70\n");
    cr_expect_eq(pd_memory_oom_kills(&places.cgroups), 3);
    put("groups/a/memory.events", "low 0\noom 9\noom_kill 2\noom_group_kill 0\n");
    cr_expect_eq(pd_memory_oom_kills(&places.cgroups), 5);
}

Test(memory_limit, quota_of_cpu_time)
{
    put("self", "1:cpu,cpuacct:/x/y\n0::/a/b\n");
    cr_expect(isinf(pd_cpu_quota(&places.cgroups)));
    put("groups/cpu/x/y/cpu.cfs_quota_us", "-1\n");
    put("groups/cpu/x/y/cpu.cfs_period_us", "100000\n");
    put("groups/a/b/cpu.max", "max 100000\n");
    cr_expect(isinf(pd_cpu_quota(&places.cgroups)));
    put("groups/cpu/x/cpu.cfs_quota_us", "350000\n");
    put("groups/cpu/x/cpu.cfs_period_us", "100000\n");
    cr_expect_eq(pd_cpu_quota(&places.cgroups), 3.5);
    put("groups/a/cpu.max", "150000 100000\n");
    cr_expect_eq(pd_cpu_quota(&places.cgroups), 1.5);
}

Test(memory_limit, nothing_to_read)
{
    struct pd_memory_limit limit;
    cr_assert_eq(unlink(meminfo), 0);
    cr_assert_not(pd_memory_limit_read(&places, &limit));
    cr_assert(pd_memory_limit_read(NULL, &limit), "this machine is Linux");
}
