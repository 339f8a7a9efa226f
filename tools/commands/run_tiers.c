#include "tools/commands/run_tiers.h"

#include "ckpt/base/words.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void pd_run_tiers_of_config(const struct pd_config *config, struct pd_run_tiers *ret_tiers)
{
    struct pd_tier_options options[PD_TIERS_MAX];
    *ret_tiers = (struct pd_run_tiers){.count = pd_config_tiers(config, options)};
    for (uint32_t i = 0; i < ret_tiers->count; i++)
        snprintf(ret_tiers->tiers[i].dir, sizeof ret_tiers->tiers[i].dir, "%s", options[i].dir);
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
    char path[4200], usual[4200];
    *ret_tiers = (struct pd_run_tiers){0};
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    if (pd_config_load_saved(path, &config, NULL)) return;
    pd_run_tiers_of_config(&config, &all);
    snprintf(usual, sizeof usual, "%.4000s/checkpoints", run_dir);
    for (uint32_t i = 0; i < all.count; i++) {
        find_now(&config, run_dir, all.tiers[i].dir);
        if (!config.checkpoint.tiers_count && strcmp(all.tiers[i].dir, usual) == 0) break;
        ret_tiers->tiers[ret_tiers->count++] = all.tiers[i];
    }
    pd_config_deinit(&config);
}

static void take_contents(struct pd_run_tier *tier)
{
    struct pd_store *store = tier->store;
    const uint32_t unusable = pd_store_unusable_count(store);
    tier->count = pd_store_count(store);
    if (tier->count) {
        tier->lineage = pd_store_entry_at(store, 0)->lineage;
        tier->step = pd_store_entry_at(store, 0)->step;
    }
    if (pd_store_count_quarantined(store, &tier->quarantined, NULL)) tier->quarantined = 0;
    struct pd_store_entry unnamed;
    if (pd_store_unnamed(store, &unnamed)) snprintf(tier->unnamed, sizeof tier->unnamed, "%s", unnamed.name);
    if (!unusable) return;
    const struct pd_store_unusable *newest = pd_store_unusable_at(store, unusable - 1);
    tier->unusable_step = newest->step;
    snprintf(tier->unusable, sizeof tier->unusable, "%s", newest->name);
    snprintf(tier->flaw, sizeof tier->flaw, "%s", newest->cause);
}

pd_status pd_run_tiers_open(struct pd_run_tiers *tiers, struct pd_vfs *vfs, struct pd_group *group, struct pd_error *err)
{
    const struct pd_store_options options = {.keep_last = 1, .quiet = tiers->is_quiet};
    pd_status result = PD_OK;
    for (uint32_t i = 0; i < tiers->count; i++) {
        struct pd_run_tier *tier = &tiers->tiers[i];
        struct pd_error own = {0};
        struct stat st;
        tier->is_absent = stat(tier->dir, &st) && errno == ENOENT;
        if (tier->is_absent) continue;
        tier->status = pd_store_open(vfs, tier->dir, &options, group, &tier->store, &own);
        if (!tier->status) {
            take_contents(tier);
            continue;
        }
        snprintf(tier->cause, sizeof tier->cause, "%.511s", own.message);
        if (!result && err) *err = own;
        if (!result) result = tier->status;
    }
    return result;
}

void pd_run_tiers_close(struct pd_run_tiers *tiers)
{
    for (uint32_t i = 0; i < tiers->count; i++) {
        pd_store_close(tiers->tiers[i].store);
        tiers->tiers[i].store = NULL;
    }
}

pd_status pd_run_tiers_look(struct pd_run_tiers *tiers, struct pd_error *err)
{
    struct pd_vfs *vfs;
    struct pd_group group;
    PD_TRY(pd_vfs_new_threads(4, 1, &vfs, err));
    pd_group_init_single(&group);
    const pd_status result = pd_run_tiers_open(tiers, vfs, &group, err);
    pd_run_tiers_close(tiers);
    pd_vfs_free(vfs);
    return result;
}

bool pd_run_tier_is_there(const struct pd_run_tier *tier)
{
    return !tier->is_absent && !tier->status;
}

bool pd_run_tiers_warn(const struct pd_run_tiers *tiers)
{
    bool any = false;
    for (uint32_t i = 0; i < tiers->count; i++) {
        const struct pd_run_tier *tier = &tiers->tiers[i];
        any = any || pd_run_tier_is_there(tier);
        if (tier->is_absent) fprintf(stderr, "perdure: %s is a tier of this run and does not exist\n", tier->dir);
        if (tier->status)
            fprintf(stderr, "perdure: %s is a tier of this run and cannot be read, so what it holds is not known: %s\n",
                    tier->dir, tier->cause);
    }
    return any;
}

pd_status pd_run_tiers_unread(const struct pd_run_tiers *tiers, struct pd_error *err)
{
    for (uint32_t i = 0; i < tiers->count; i++)
        if (tiers->tiers[i].status)
            PD_FAIL(err, PD_IO, "%s is not looked at; this is what the other tiers hold", tiers->tiers[i].dir);
    return PD_OK;
}

void pd_run_tiers_found(const struct pd_run_tiers *tiers, const char *run_dir, char *ret_text, size_t bytes)
{
    const struct pd_run_tier *newest = NULL, *aside = NULL, *unread = NULL;
    ret_text[0] = '\0';
    for (uint32_t i = 0; i < tiers->count; i++) {
        const struct pd_run_tier *t = &tiers->tiers[i];
        if (t->unusable[0] && (!newest || t->unusable_step > newest->unusable_step)) newest = t;
        if (t->quarantined && !aside) aside = t;
        if (t->status && !unread) unread = t;
    }
    if (newest)
        snprintf(
            ret_text, bytes,
            "there are checkpoints in %.400s, and none is whole, as seen from here; the newest is %s: %s. To look closer: "
            "perdure ckpt verify %.400s",
            newest->dir, newest->unusable, newest->flaw, run_dir);
    else if (aside)
        snprintf(ret_text, bytes,
                 "there is no whole checkpoint in %.400s, but %s in its quarantine directory. To look closer: perdure ckpt "
                 "verify %.400s",
                 aside->dir, pd_counted(aside->quarantined, "damaged one").text, run_dir);
    else if (unread)
        snprintf(ret_text, bytes, "cannot find out what %.400s holds: %s", unread->dir, unread->cause);
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

const struct pd_run_tier *pd_run_tiers_look_quietly(struct pd_run_tiers *tiers)
{
    tiers->is_quiet = true;
    (void)!pd_run_tiers_look(tiers, NULL);
    return pd_run_tiers_newest(tiers);
}

pd_status pd_run_tiers_checkpoints_of(const char *path, char buffer[4096], const char **ret_path, struct pd_error *err)
{
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        PD_FAIL(err, PD_NOT_FOUND, "%s %s; name a run or its directory of checkpoints", path,
                access(path, F_OK) ? "does not exist" : "is not a directory");
    struct pd_run_tiers tiers;
    pd_run_tiers_of_run(path, &tiers);
    pd_status looked = pd_run_tiers_look(&tiers, err);
    if (tiers.count > 1) (void)pd_run_tiers_warn(&tiers);
    const struct pd_run_tier *newest = pd_run_tiers_newest(&tiers);
    if (looked && !newest) return looked;
    if (newest)
        snprintf(buffer, 4096, "%s", newest->dir);
    else
        snprintf(buffer, 4096, "%.4000s/checkpoints", path);
    *ret_path = stat(buffer, &st) == 0 ? buffer : path;
    return PD_OK;
}
