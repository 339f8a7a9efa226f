#include "trainer/run/tier_places.h"

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"
#include "trainer/run/directories.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE "tiers"
#define LINE_MAX 4096

static void list_path(const struct pd_tier_places *places, char ret_path[4096])
{
    snprintf(ret_path, 4096, "%.4000s/used-tiers", places->config->run.dir);
}

static uint64_t bits_of(const struct pd_tiers_options *options, const char *dir)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < options->count; i++)
        if (strcmp(options->tiers[i].dir, dir) == 0) bits |= UINT64_C(1) << i;
    return bits;
}

/* A run of an earlier version has no list: all that its configuration names. Where that cannot be read, every tier. */
static uint64_t used_by_config(const struct pd_tier_places *places, const struct pd_tiers_options *options)
{
    struct pd_tier_options before[PD_TIERS_MAX];
    struct pd_config config;
    char path[4096];
    uint64_t used = 0;
    snprintf(path, sizeof path, "%.4000s/config.yaml", places->config->run.dir);
    if (access(path, F_OK) != 0) return 0;
    if (pd_config_load_saved(path, &config, NULL)) return UINT64_MAX;
    const uint32_t count = pd_config_tiers(&config, before);
    for (uint32_t i = 0; i < count; i++)
        used |= bits_of(options, before[i].dir);
    pd_config_deinit(&config);
    return used;
}

static uint64_t find_used(const struct pd_tier_places *places, const struct pd_tiers_options *options)
{
    char path[4096], line[LINE_MAX];
    uint64_t used = 0;
    list_path(places, path);
    FILE *f = pd_regular_fopen(path, false);
    if (!f) return errno == ENOENT ? used_by_config(places, options) : UINT64_MAX;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        used |= bits_of(options, line);
    }
    if (ferror(f)) used = UINT64_MAX;
    (void)fclose(f);
    return used;
}

pd_status pd_tier_places_find(struct pd_tier_places *places, const struct pd_config *config, struct pd_group *group,
                              const struct pd_tiers_options *options, struct pd_error *err)
{
    struct stat st;
    uint64_t words[2] = {0};
    *places = (struct pd_tier_places){.config = config, .rank = group->rank};
    const enum pd_heartbeat_place before = pd_heartbeat_storage_begin();
    if (group->rank == 0) words[0] = find_used(places, options);
    for (uint32_t i = 0; i < options->count; i++)
        if (stat(options->tiers[i].dir, &st) && errno == ENOENT) words[1] |= UINT64_C(1) << i;
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
    pd_directories_tier_key(places->config, tier, key);
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
    const bool may_be_missed = options->count > 1; /* the only one ends the start: recorded.h */
    if (!st && was_absent && was_used && may_be_missed && places->rank == 0 && !pd_vfs_is_in_memory(vfs, o->dir))
        pd_log_warn(MODULE, "%s held checkpoints of this run, was absent, and begins empty: is its disk not mounted?",
                    o->dir);
    return st;
}

pd_status pd_tier_places_make(struct pd_tier_places *places, struct pd_vfs *vfs, struct pd_tiers_options *options,
                              struct pd_error *err)
{
    for (uint32_t i = 0; i < options->count; i++)
        PD_TRY(make_tier(places, vfs, options, i, err));
    return PD_OK;
}

void pd_tier_places_note(struct pd_tier_places *places, struct pd_tiers *tiers)
{
    uint64_t seen = 0;
    char path[4096];
    struct pd_tier_report report;
    if (places->rank != 0 || pd_tiers_count(tiers) < 2) return;
    for (uint32_t i = 0; i < pd_tiers_count(tiers); i++) {
        pd_tiers_report(tiers, i, &report);
        seen |= (uint64_t)(report.newest_step > 0) << i;
    }
    list_path(places, path);
    if (!(seen & ~places->used) && access(path, F_OK) == 0) return;
    FILE *f = pd_regular_fopen(path, true);
    if (!f) return;
    for (uint32_t i = 0; i < pd_tiers_count(tiers); i++) {
        pd_tiers_report(tiers, i, &report);
        if ((seen & ~places->used) >> i & 1) (void)fprintf(f, "%s\n", report.dir);
    }
    if (fclose(f) == 0) places->used |= seen;
}
