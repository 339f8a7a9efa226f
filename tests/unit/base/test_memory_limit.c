#include "ckpt/base/memory_limit.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static char root[64];
static char self[128], groups[128], meminfo[128];
static struct pd_memory_places places = {self, groups, meminfo};

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
    snprintf(groups, sizeof groups, "%s/groups", root);
    snprintf(meminfo, sizeof meminfo, "%s/meminfo", root);
    put("meminfo", "MemTotal:       16777216 kB\nMemFree:         1 kB\nMemAvailable:    8388608 kB\n");
    put("self", "0::/\n");
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

Test(memory_limit, version_1_and_a_path_that_namespaces_hide)
{
    put("self", "4:cpu,memory:/docker/1234\n3:cpuset:/x\n0::/\n");
    put("groups/memory/memory.limit_in_bytes", "%llu\n", 256ull << 20);
    put("groups/memory/memory.usage_in_bytes", "%llu\n", 200ull << 20);
    put("groups/memory/memory.stat", "total_inactive_file %llu\ntotal_active_file 0\n", 44ull << 20);
    struct pd_memory_limit limit = read_limit();
    cr_assert_eq(limit.free_bytes, 100 * MIB);
    cr_assert_str_eq(limit.who, "memory cgroup /");
    put("groups/memory/docker/1234/memory.limit_in_bytes", "9223372036854771712\n");
    put("groups/memory/docker/1234/memory.usage_in_bytes", "1\n");
    cr_assert_eq(read_limit().free_bytes, 100 * MIB, "no limit of its own");
}

Test(memory_limit, nothing_to_read)
{
    struct pd_memory_limit limit;
    cr_assert_eq(unlink(meminfo), 0);
    cr_assert_not(pd_memory_limit_read(&places, &limit));
    cr_assert(pd_memory_limit_read(NULL, &limit), "this machine is Linux");
}
