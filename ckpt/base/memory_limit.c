#include "ckpt/base/memory_limit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PATH_ROOM 4096
#define UNLIMITED (UINT64_C(1) << 60) /* version 1 writes a number near 2^63 */

struct hierarchy {
    const char *subdirectory; /* below the root */
    const char *limit, *usage, *inactive, *active;
};
static const struct hierarchy version_1 = {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                           "total_inactive_file", "total_active_file"};
static const struct hierarchy version_2 = {"", "memory.max", "memory.current", "inactive_file", "active_file"};

static FILE *open_in(const char *directory, const char *name)
{
    char path[PATH_ROOM];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
}

static bool read_number(const char *directory, const char *name, uint64_t *ret)
{
    FILE *file = open_in(directory, name);
    bool is_read = file && fscanf(file, "%" SCNu64, ret) == 1;
    if (file) fclose(file);
    return is_read;
}

/* "key value" lines; absent: 0. */
static uint64_t read_key(FILE *file, const char *wanted)
{
    char key[64];
    uint64_t value;
    rewind(file);
    while (fscanf(file, "%63s %" SCNu64 "%*[^\n]", key, &value) == 2)
        if (strcmp(key, wanted) == 0) return value;
    return 0;
}

static uint64_t read_reclaimable(const char *directory, const struct hierarchy *h)
{
    FILE *file = open_in(directory, "memory.stat");
    if (!file) return 0;
    uint64_t bytes = read_key(file, h->inactive) + read_key(file, h->active);
    fclose(file);
    return bytes;
}

static void take_tighter(struct pd_memory_limit *limit, bool *any, uint64_t free_bytes, uint64_t limit_bytes,
                         const char *kind, const char *name)
{
    if (*any && limit->free_bytes <= free_bytes) return;
    *any = true;
    limit->free_bytes = free_bytes;
    limit->limit_bytes = limit_bytes;
    snprintf(limit->who, sizeof limit->who, "%s%.200s", kind, name);
}

/* From the group itself up to the root. Where namespaces hide the upper part of its path, the root is the group. */
static void look_at_groups(const char *root, const struct hierarchy *h, const char *group, struct pd_memory_limit *limit,
                           bool *any)
{
    char name[PATH_ROOM / 2], directory[PATH_ROOM];
    snprintf(name, sizeof name, "%s", group);
    for (;;) {
        uint64_t most, used;
        size_t length = strlen(name);
        while (length && name[length - 1] == '/')
            name[--length] = '\0';
        snprintf(directory, sizeof directory, "%.1500s%s%.2000s", root, h->subdirectory, name);
        if (read_number(directory, h->limit, &most) && most < UNLIMITED && read_number(directory, h->usage, &used)) {
            const uint64_t back = read_reclaimable(directory, h);
            used = used > back ? used - back : 0;
            take_tighter(limit, any, most > used ? most - used : 0, most, "memory cgroup ", name[0] ? name : "/");
        }
        char *slash = strrchr(name, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

static bool lists_memory(const char *controllers)
{
    for (const char *at = controllers; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, "memory", 6) == 0 && (at[6] == ',' || at[6] == '\0')) return true;
    return false;
}

static void look_at_cgroups(const char *self, const char *root, struct pd_memory_limit *limit, bool *any)
{
    FILE *file = fopen(self, "re");
    char line[PATH_ROOM];
    while (file && fgets(line, sizeof line, file)) { /* "4:memory:/a/b" or "0::/a/b" */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (controllers[1] == '\0')
            look_at_groups(root, &version_2, group, limit, any);
        else if (lists_memory(controllers + 1))
            look_at_groups(root, &version_1, group, limit, any);
    }
    if (file) fclose(file);
}

bool pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit)
{
    const char *self = places && places->cgroup_of_self ? places->cgroup_of_self : "/proc/self/cgroup";
    const char *root = places && places->cgroup_root ? places->cgroup_root : "/sys/fs/cgroup";
    const char *meminfo = places && places->meminfo ? places->meminfo : "/proc/meminfo";
    struct pd_memory_limit limit = {0};
    bool any = false;
    FILE *file = fopen(meminfo, "re");
    if (file) {
        const uint64_t total = read_key(file, "MemTotal:"), available = read_key(file, "MemAvailable:");
        if (total) take_tighter(&limit, &any, available * 1024, total * 1024, "this machine", "");
        fclose(file);
    }
    look_at_cgroups(self, root, &limit, &any);
    if (any) *ret_limit = limit;
    return any;
}
