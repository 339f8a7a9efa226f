#include "ckpt/base/cgroup.h"

#include <inttypes.h>
#include <string.h>

#define PATH_BYTES 4096

FILE *pd_cgroup_open(const struct pd_cgroup *group, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", group->directory, name);
    return fopen(path, "re");
}

bool pd_cgroup_number(const struct pd_cgroup *group, const char *name, uint64_t *ret)
{
    FILE *file = pd_cgroup_open(group, name);
    const bool is_read = file && fscanf(file, "%" SCNu64, ret) == 1;
    if (file) (void)fclose(file);
    return is_read;
}

uint64_t pd_cgroup_key(FILE *file, const char *wanted)
{
    char key[64];
    uint64_t value;
    rewind(file);
    while (fscanf(file, "%63s %" SCNu64 "%*[^\n]", key, &value) == 2)
        if (strcmp(key, wanted) == 0) return value;
    return 0;
}

/* True if a comma-separated list has the word: "cpu,cpuacct" has "cpu". */
static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
    return false;
}

struct mount {
    char root[PATH_BYTES / 2], point[PATH_BYTES / 2]; /* the mounted group, and its mount point */
};

/* "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu" */
static bool find_mount(const char *mountinfo, const char *controller, bool is_v2, struct mount *ret)
{
    char line[PATH_BYTES];
    bool is_found = false;
    FILE *file = fopen(mountinfo, "re");
    while (file && !is_found && fgets(line, sizeof line, file)) {
        char type[32], options[512];
        const char *behind = strstr(line, " - ");
        if (!behind || sscanf(behind, " - %31s %*s %511s", type, options) != 2) continue;
        if (strcmp(type, is_v2 ? "cgroup2" : "cgroup") != 0 || (!is_v2 && !has_word(options, controller))) continue;
        is_found = sscanf(line, "%*s %*s %*s %2047s %2047s", ret->root, ret->point) == 2;
    }
    if (file) (void)fclose(file);
    return is_found;
}

static void walk_up(const struct mount *mount, const char *path, bool is_v2, pd_cgroup_visit *visit, void *context)
{
    char name[PATH_BYTES / 2], directory[PATH_BYTES];
    const size_t hidden = strcmp(mount->root, "/") == 0 ? 0 : strlen(mount->root);
    const bool is_below = strncmp(path, mount->root, hidden) == 0 && strncmp(path, "/..", 3) != 0;
    snprintf(name, sizeof name, "%s", is_below ? path + hidden : "");
    for (bool is_own = true;; is_own = false) {
        size_t length = strlen(name);
        while (length && name[length - 1] == '/')
            name[--length] = '\0';
        snprintf(directory, sizeof directory, "%s%s", mount->point, name);
        visit(context, &(struct pd_cgroup){directory, length ? name : "/", is_v2, is_own});
        char *slash = strrchr(name, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

void pd_cgroup_walk(const struct pd_cgroup_places *places, const char *controller, pd_cgroup_visit *visit, void *context)
{
    const char *self = places && places->self ? places->self : "/proc/self/cgroup";
    const char *mountinfo = places && places->mountinfo ? places->mountinfo : "/proc/self/mountinfo";
    char line[PATH_BYTES / 2];
    struct mount mount;
    FILE *file = fopen(self, "re");
    while (file && fgets(line, sizeof line, file)) { /* "4:memory:/a/b" or "0::/a/b" */
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        const bool is_v2 = controllers[1] == '\0';
        if (!is_v2 && !has_word(controllers + 1, controller)) continue;
        if (find_mount(mountinfo, controller, is_v2, &mount)) walk_up(&mount, path, is_v2, visit, context);
    }
    if (file) (void)fclose(file);
}
