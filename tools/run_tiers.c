#include "tools/run_tiers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void pd_run_tiers_of_config(const struct pd_config *config, struct pd_run_tiers *ret_tiers)
{
    struct pd_tier_options options[PD_TIERS_MAX];
    *ret_tiers = (struct pd_run_tiers){.count = pd_config_tiers(config, options)};
    for (uint32_t i = 0; i < ret_tiers->count; i++)
        snprintf(ret_tiers->tiers[i].dir, sizeof ret_tiers->tiers[i].dir, "%s", options[i].dir);
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A directory below run.dir is looked for below the run as it is named now: it may have been moved, or been relative. */
static void find_now(const struct pd_config *config, const char *run_dir, char dir[4096])
{
    const size_t length = strlen(config->run.dir);
    char text[4096];
    if (strncmp(dir, config->run.dir, length) != 0 || dir[length] != '/') return;
    snprintf(text, sizeof text, "%.1500s%.2500s", run_dir, dir + length);
    snprintf(dir, 4096, "%s", text);
}

void pd_run_tiers_of_run(const char *run_dir, struct pd_run_tiers *ret_tiers)
{
    struct pd_config config;
    struct pd_run_tiers all;
    char path[4200];
    *ret_tiers = (struct pd_run_tiers){0};
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    if (pd_config_load(path, NULL, 0, &config, NULL)) return;
    pd_run_tiers_of_config(&config, &all);
    for (uint32_t i = 0; config.checkpoint.tiers_count && i < all.count; i++) {
        find_now(&config, run_dir, all.tiers[i].dir);
        if (is_directory(all.tiers[i].dir)) ret_tiers->tiers[ret_tiers->count++] = all.tiers[i];
    }
    pd_config_deinit(&config);
}

static pd_status look_at(struct pd_door *door, struct pd_run_tier *tier, struct pd_error *err)
{
    const struct pd_store_options options = {.keep_last = 1};
    struct pd_group group;
    struct pd_store *store;
    struct stat st;
    tier->count = 0;
    if (stat(tier->dir, &st) && errno == ENOENT) return PD_OK;
    pd_group_init_single(&group);
    PD_TRY(pd_store_open(door, tier->dir, &options, &group, &store, err));
    tier->count = pd_store_count(store);
    if (tier->count) {
        tier->lineage = pd_store_entry_at(store, 0)->lineage;
        tier->step = pd_store_entry_at(store, 0)->step;
    }
    pd_store_close(store);
    return PD_OK;
}

pd_status pd_run_tiers_look(struct pd_run_tiers *tiers, struct pd_error *err)
{
    struct pd_door *door;
    PD_TRY(pd_door_new_threads(4, 1, &door, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < tiers->count; i++)
        st = look_at(door, &tiers->tiers[i], err);
    pd_door_free(door);
    return st;
}

const struct pd_run_tier *pd_run_tiers_newest(const struct pd_run_tiers *tiers)
{
    const struct pd_run_tier *best = NULL;
    for (uint32_t i = 0; i < tiers->count; i++) {
        const struct pd_run_tier *t = &tiers->tiers[i];
        if (!t->count) continue;
        if (!best || t->lineage > best->lineage || (t->lineage == best->lineage && t->step > best->step)) best = t;
    }
    return best;
}
