#include "trainer/run/directories.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "trainer/data/file_writer.h"
#include "trainer/run/events.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- all directories ---- */

#define MODULE "directories"
#define NAMED_MAX (PD_TIERS_MAX + 1u)

/* ---- keys ---- */

static bool follows_from_run(const struct pd_config *config)
{
    const size_t length = strlen(config->run.dir);
    const char *dir = config->checkpoint.dir;
    return strncmp(dir, config->run.dir, length) == 0 && strcmp(dir + length, "/checkpoints") == 0;
}

/* "checkpoint.tiers[1].dir"; without tiers "checkpoint.dir", or "run.dir" if that determines it. */
static void directories_tier_key(const struct pd_config *config, uint32_t tier, char ret_key[PD_DIRECTORY_KEY_MAX])
{
    if (config->checkpoint.tiers_count)
        snprintf(ret_key, PD_DIRECTORY_KEY_MAX, "checkpoint.tiers[%u].dir", tier);
    else
        snprintf(ret_key, PD_DIRECTORY_KEY_MAX, "%s", follows_from_run(config) ? "run.dir" : "checkpoint.dir");
}

/* If root creates /nvme, a mount is probably missing, and the system disk fills up. */
static void warn_made_in_root(const char *key, const char *made, const char *path)
{
    if (made[0] != '/' || strchr(made + 1, '/')) return;
    pd_log_warn(MODULE,
                "%s, %s: there was no %s, so it was made on the system's own disk: if a drive belongs there, stop, mount it "
                "and start again",
                key, path, made);
}

static pd_status make_path(const char *key, const char *path, struct pd_error *err)
{
    char partial[4096];
    struct stat st;
    snprintf(partial, sizeof partial, "%s", path);
    for (char *slash = strchr(partial + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = '\0';
        const int number = mkdir(partial, 0777) ? errno : 0;
        if (!number) {
            (void)!pd_sync_directory_of(partial, NULL); /* if the file system supports it */
            warn_made_in_root(key, partial, path);
        } else if (number != EEXIST && !(stat(partial, &st) == 0 && S_ISDIR(st.st_mode))) {
            PD_FAIL_ERRNO(err, number, "%s: making the directory", partial);
        }
        const bool is_there = stat(partial, &st) == 0;
        if (number == EEXIST && !is_there)
            PD_FAIL(err, PD_IO, "%s is a link to a missing target: mount or create the target, or remove the link", partial);
        if (is_there && !S_ISDIR(st.st_mode) && !slash)
            PD_FAIL(err, PD_INVALID, "%s is not a directory; give another place for it", partial);
        if (is_there && !S_ISDIR(st.st_mode))
            PD_FAIL(err, PD_INVALID, "%s is not a directory, so %s cannot be created; give another directory for it",
                    partial, path);
        if (!slash) return PD_OK;
        *slash = '/';
    }
}

pd_status pd_directories_make(const char *key, const char *path, struct pd_error *err)
{
    struct pd_error own = {0};
    pd_status st = make_path(key, path, &own);
    if (!st) return PD_OK;
    return pd_error_set(err, st, own.where, 0, "%s: %.700s%s%s%s", key, own.message,
                        st == PD_INVALID ? "" : "; see to it that it can be made, or name another directory with ",
                        st == PD_INVALID ? "" : key, st == PD_INVALID ? "" : "=DIR");
}

/* ---- directories inside others ---- */

struct named {
    char key[PD_DIRECTORY_KEY_MAX];
    const char *path;
    char real[4096];
    bool is_idle; /* nothing is saved there: it may be another one */
};

/* Appends `rest`, which does not exist, to `real`; "." and ".." are resolved textually. */
static void directories_append(char real[4096], char *rest)
{
    char *more;
    for (char *name = strtok_r(rest, "/", &more); name; name = strtok_r(NULL, "/", &more)) {
        const size_t used = strlen(real);
        char *slash = strrchr(real, '/');
        if (strcmp(name, ".") == 0) continue;
        if (strcmp(name, "..") == 0) {
            if (slash) *slash = '\0';
        } else {
            snprintf(real + used, 4096 - used, "/%s", name);
        }
    }
}

/* Resolves links in the existing part of a path and appends the rest; the root is "". */
static void resolve(const char *path, char ret_real[4096])
{
    char whole[8300], part[8300], here[4096] = "";
    if (path[0] != '/' && !getcwd(here, sizeof here)) here[0] = '\0';
    snprintf(whole, sizeof whole, "%s/%.4000s", path[0] == '/' ? "" : here, path);
    for (size_t end = strlen(whole);; end--) {
        while (end > 0 && whole[end] && whole[end] != '/')
            end--;
        snprintf(part, sizeof part, "%.*s", (int)end, whole);
        char *real = realpath(end ? part : "/", NULL);
        if (!real) continue;
        snprintf(ret_real, 4096, "%s", strcmp(real, "/") == 0 ? "" : real);
        free(real);
        directories_append(ret_real, whole + end);
        return;
    }
}

static bool is_inside(const struct named *inner, const struct named *outer)
{
    const size_t length = strlen(outer->real);
    const bool begins = strncmp(inner->real, outer->real, length) == 0;
    if (begins && inner->real[length] == '\0') return !inner->is_idle && !outer->is_idle;
    return begins && inner->real[length] == '/';
}

static uint32_t list(const struct pd_config *config, struct named *ret_all)
{
    struct pd_tier_options tiers[PD_TIERS_MAX];
    const uint32_t tier_count = pd_config_tiers(config, tiers);
    uint32_t count = 0;
    for (uint32_t i = 0; i < tier_count; i++, count++) {
        directories_tier_key(config, i, ret_all[count].key);
        ret_all[count].path = tiers[i].dir;
    }
    if (config->checkpoint.tiers_count) {
        snprintf(ret_all[count].key, PD_DIRECTORY_KEY_MAX, "checkpoint.dir");
        ret_all[count].path = config->checkpoint.dir;
        ret_all[count++].is_idle = true;
    }
    for (uint32_t i = 0; i < count; i++)
        if (pd_vfs_is_remote(ret_all[i].path))
            snprintf(ret_all[i].real, sizeof ret_all[i].real, "%s", ret_all[i].path);
        else
            resolve(ret_all[i].path, ret_all[i].real);
    return count;
}

static pd_status refuse(const struct named *inner, const struct named *outer, struct pd_error *err)
{
    const bool is_same = strcmp(inner->real, outer->real) == 0;
    const bool is_linked = strcmp(inner->real, inner->path) != 0 || strcmp(outer->real, outer->path) != 0;
    char links[700] = "";
    if (is_linked) snprintf(links, sizeof links, " (that is %.330s, and %.330s)", inner->real, outer->real);
    PD_FAIL(err, PD_INVALID,
            "%s, %.200s, %s %s, %.200s%.200s: each holds checkpoints of its own; name another directory with %s=DIR",
            inner->key, inner->path, is_same ? "is the same directory as" : "lies inside", outer->key, outer->path, links,
            inner->is_idle ? outer->key : inner->key);
}

bool pd_directories_are_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

pd_status pd_directories_check(const struct pd_config *config, struct pd_error *err)
{
    struct named *all = calloc(NAMED_MAX, sizeof *all);
    if (!all) PD_FAIL(err, PD_NO_MEMORY, "no memory for the names of directories");
    const uint32_t count = list(config, all);
    pd_status st = PD_OK;
    for (uint32_t i = count; i-- > 0;)
        for (uint32_t k = 0; !st && k < count; k++)
            if (i != k && is_inside(&all[i], &all[k])) st = refuse(&all[i], &all[k], err);
    free(all);
    return st;
}

/* ---- which share a file system ---- */

void pd_directories_warn_shared(const struct pd_config *config)
{
    struct named *all = calloc(NAMED_MAX, sizeof *all);
    if (!all) return;
    const uint32_t count = list(config, all), tiers = count - (config->checkpoint.tiers_count ? 1 : 0);
    for (uint32_t i = 1; i < tiers; i++)
        for (uint32_t k = 0; k < i; k++) {
            struct stat here, other;
            if (stat(all[k].path, &other) || stat(all[i].path, &here) || here.st_dev != other.st_dev) continue;
            pd_log_warn(MODULE,
                        "%s, %s, lies on the same file system as %s, %s: what takes one takes both, so the copy protects "
                        "nothing; name a directory on another drive or on shared storage",
                        all[i].key, all[i].path, all[k].key, all[k].path);
            break;
        }
    free(all);
}

/* ---- directories of tiers ---- */

#define TIER_PLACES_MODULE "tiers"

pd_status pd_tier_places_find(struct pd_tier_places *places, const struct pd_config *config, struct pd_group *group,
                              const struct pd_tiers_options *options, struct pd_error *err)
{
    struct stat st;
    uint64_t words[2] = {0};
    *places = (struct pd_tier_places){.config = config, .rank = group->rank};
    const enum pd_heartbeat_place before = pd_heartbeat_storage_begin();
    if (group->rank == 0) words[0] = pd_recorded_used(config->run.dir, options);
    for (uint32_t i = 0; i < options->count; i++)
        if (!pd_vfs_is_remote(options->tiers[i].dir) && stat(options->tiers[i].dir, &st) && errno == ENOENT)
            words[1] |= UINT64_C(1) << i;
    pd_heartbeat_storage_end(before);
    PD_TRY(pd_group_broadcast(group, 0, words, sizeof words, err));
    places->used = words[0];
    places->absent = words[1];
    return PD_OK;
}

static bool find_parent(const char *dir, struct stat *ret)
{
    char path[4096];
    size_t length = strlen(dir);
    while (length > 1 && dir[length - 1] == '/')
        length--;
    while (length && dir[length - 1] != '/')
        length--;
    snprintf(path, sizeof path, "%.*s.", (int)length, dir);
    return stat(path, ret) == 0;
}

bool pd_tier_places_are_removed(const struct pd_tier_places *places)
{
    struct pd_tier_options tiers[PD_TIERS_MAX];
    struct stat found;
    const uint32_t count = pd_config_tiers(places->config, tiers);
    bool are_removed = true;
    for (uint32_t i = 0; i < count && are_removed; i++) {
        const char *dir = tiers[i].dir;
        if (pd_vfs_is_remote(dir)) continue; /* it takes no saves */
        are_removed = places->parents[i].inode && stat(dir, &found) != 0 && errno == ENOENT && find_parent(dir, &found) &&
                      found.st_dev == places->parents[i].device && found.st_ino == places->parents[i].inode;
    }
    return are_removed;
}

static pd_status make_tier(struct pd_tier_places *places, struct pd_vfs *vfs, struct pd_tiers_options *options,
                           uint32_t tier, struct pd_error *err)
{
    struct pd_tier_options *o = &options->tiers[tier];
    const bool was_used = places->used >> tier & 1, was_absent = places->absent >> tier & 1;
    struct pd_error why = {0};
    struct stat parent;
    char key[PD_DIRECTORY_KEY_MAX];
    directories_tier_key(places->config, tier, key);
    pd_status st = pd_directories_make(key, o->dir, &why);
    if (!st && find_parent(o->dir, &parent)) {
        places->parents[tier].device = parent.st_dev;
        places->parents[tier].inode = parent.st_ino;
    }
    if (st && options->count > 1 && st != PD_INVALID) {
        o->missing_in_memory = pd_vfs_is_in_memory(vfs, o->dir);
        o->missing = o->missing_in_memory || !was_used ? PD_NOT_FOUND : PD_IO;
        snprintf(places->causes[tier], sizeof places->causes[tier], "%.690s", why.message);
        o->missing_cause = places->causes[tier];
        return PD_OK;
    }
    if (st && err) *err = why;
    const bool may_be_missed = options->count > 1; /* the only one ends the start: events.h */
    if (!st && was_absent && was_used && may_be_missed && places->rank == 0 && !pd_vfs_is_in_memory(vfs, o->dir))
        pd_log_warn(TIER_PLACES_MODULE,
                    "%s held checkpoints of this run, was absent, and begins empty: is its disk not mounted?", o->dir);
    return st;
}

pd_status pd_tier_places_make(struct pd_tier_places *places, struct pd_vfs *vfs, struct pd_tiers_options *options,
                              struct pd_error *err)
{
    for (uint32_t i = 0; i < options->count; i++)
        if (!pd_vfs_is_remote(options->tiers[i].dir)) PD_TRY(make_tier(places, vfs, options, i, err));
    return PD_OK;
}
