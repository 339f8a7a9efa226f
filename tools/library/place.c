#include "tools/library/place.h"

#include "ckpt/base/parse.h"
#include "ckpt/base/words.h"
#include "ckpt/store/commit.h"
#include "ckpt/store/paths.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/perdure.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pd_run_tiers_of_config(const struct pd_config *config, struct pd_run_tiers *ret_tiers)
{
    struct pd_tier_options options[PD_TIERS_MAX];
    *ret_tiers = (struct pd_run_tiers){.count = pd_config_tiers(config, options)};
    for (uint32_t i = 0; i < ret_tiers->count; i++)
        snprintf(ret_tiers->tiers[i].dir, sizeof ret_tiers->tiers[i].dir, "%s", options[i].dir);
}

/* Finds a directory below run.dir under the run's current path: it may have been moved, or have been relative. */
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

/* Opens each tier's store for reading; close them even after a failure. */
static pd_status tiers_open(struct pd_run_tiers *tiers, struct pd_vfs *vfs, struct pd_group *group, struct pd_error *err)
{
    const struct pd_store_options options = {.keep_last = 1, .quiet = tiers->is_quiet};
    pd_status result = PD_OK;
    for (uint32_t i = 0; i < tiers->count; i++) {
        struct pd_run_tier *tier = &tiers->tiers[i];
        struct pd_error own = {0};
        struct pd_stat stat;
        tier->is_absent = pd_vfs_stat(vfs, tier->dir, &stat, NULL) == PD_NOT_FOUND;
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

static void tiers_close(struct pd_run_tiers *tiers)
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
    const pd_status result = tiers_open(tiers, vfs, &group, err);
    tiers_close(tiers);
    pd_vfs_free(vfs);
    return result;
}

static bool tier_is_there(const struct pd_run_tier *tier)
{
    return !tier->is_absent && !tier->status;
}

/* Notes missing or unreadable ones. False: none exists. */
static bool tiers_warn(const struct pd_run_tiers *tiers)
{
    bool any = false;
    for (uint32_t i = 0; i < tiers->count; i++) {
        const struct pd_run_tier *tier = &tiers->tiers[i];
        any = any || tier_is_there(tier);
        if (tier->is_absent) pd_note(tiers->notes, "%s is a tier of this run and does not exist", tier->dir);
        if (tier->status)
            pd_note(tiers->notes, "%s is a tier of this run and cannot be read, so nobody knows what it holds: %s",
                    tier->dir, tier->cause);
    }
    return any;
}

pd_status pd_run_tiers_unread(const struct pd_run_tiers *tiers, struct pd_error *err)
{
    for (uint32_t i = 0; i < tiers->count; i++)
        if (tiers->tiers[i].status)
            PD_FAIL(err, PD_IO, "%s is left out; this is what the other tiers hold", tiers->tiers[i].dir);
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
        snprintf(ret_text, bytes,
                 "there are checkpoints in %.400s, and none is complete, as seen from here; the newest is %s: %s. To look "
                 "closer: perdure ckpt verify %.400s",
                 newest->dir, newest->unusable, newest->flaw, run_dir);
    else if (aside)
        snprintf(ret_text, bytes,
                 "there is no complete checkpoint in %.400s, but %s in its quarantine directory. To look closer: perdure "
                 "ckpt verify %.400s",
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

static bool exists(struct pd_vfs *vfs, const char *directory, const char *name)
{
    char path[4200];
    struct pd_stat stat;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return !pd_vfs_stat(vfs, path, &stat, NULL);
}

static pd_status checkpoints_of(struct pd_vfs *vfs, const char *path, const struct pd_notes *notes, char buffer[4096],
                                const char **ret_path, struct pd_error *err)
{
    struct pd_stat stat;
    const pd_status st = pd_vfs_stat(vfs, path, &stat, err);
    if (st && st != PD_NOT_FOUND) return st;
    if (st || stat.type != PD_ENTRY_DIRECTORY)
        PD_FAIL(err, PD_NOT_FOUND, "%s %s; name a run or its directory of checkpoints", path,
                st ? "does not exist" : "is not a directory");
    struct pd_run_tiers tiers;
    pd_run_tiers_of_run(path, &tiers);
    tiers.notes = notes;
    pd_status looked = pd_run_tiers_look(&tiers, err);
    if (tiers.count > 1) (void)tiers_warn(&tiers);
    const struct pd_run_tier *newest = pd_run_tiers_newest(&tiers);
    if (looked && !newest) return looked;
    if (newest)
        snprintf(buffer, 4096, "%s", newest->dir);
    else
        snprintf(buffer, 4096, "%.4000s/checkpoints", path);
    *ret_path = exists(vfs, buffer, "") ? buffer : path;
    return PD_OK;
}

pd_status pd_run_tiers_checkpoints_of(const char *path, const struct pd_notes *notes, char buffer[4096],
                                      const char **ret_path, struct pd_error *err)
{
    struct pd_vfs *vfs;
    PD_TRY(pd_vfs_new_threads(4, 1, &vfs, err));
    const pd_status st = checkpoints_of(vfs, path, notes, buffer, ret_path, err);
    pd_vfs_free(vfs);
    return st;
}

static void describe_foreign(const char *path, const struct pd_format *format, char *ret_text, size_t bytes)
{
    snprintf(ret_text, bytes,
             "%s is a checkpoint of another program (%s), and this command reads only perdure's: perdure ckpt import "
             "converts it; ckpt show, stats and diff read it as it is",
             path, format->name);
}

/* step-000000001200-7 */
static bool is_step_name(const char *name)
{
    return strncmp(name, "step-", 5) == 0 && name[5] >= '0' && name[5] <= '9' && !strstr(name, ".tmp");
}

/* PATH is a file: a checkpoint of another system, one file of such, or of no format that is known. */
static pd_status refuse_file(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    const struct pd_format *format = NULL;
    char text[4400];
    PD_TRY(pd_format_of(vfs, path, &format, err));
    describe_foreign(path, format, text, sizeof text);
    PD_FAIL(err, PD_INVALID, "%s", text);
}

/* Without links, and slashes at the end: its last name is a checkpoint's or not. *ret_real is freed by the caller. */
static pd_status find_real(struct pd_vfs *vfs, const char *path, char **ret_real, bool *ret_is_directory,
                           struct pd_error *err)
{
    struct pd_stat stat;
    const bool is_remote = pd_vfs_is_remote(path);
    char *real = is_remote ? strdup(path) : realpath(path, NULL);
    const int number = real ? 0 : errno;
    pd_status st = number == ENOENT ? PD_NOT_FOUND : PD_OK;
    if (is_remote && real) st = pd_vfs_stat(vfs, real, &stat, err);
    if (st == PD_NOT_FOUND)
        st = pd_error_set(err, st, PD_WHERE, 0, "%s does not exist; name a run, its checkpoints or one of them",
                          path[0] ? path : "the empty path");
    else if (number)
        st = pd_error_set(err, pd_status_from_errno(number), PD_WHERE, number, "%s: looking for checkpoints", path);
    if (st) {
        free(real);
        return st;
    }
    for (size_t length = strlen(real); length > 1 && real[length - 1] == '/';)
        real[--length] = '\0';
    *ret_is_directory = is_remote ? stat.type == PD_ENTRY_DIRECTORY : exists(vfs, real, "");
    *ret_real = real;
    return PD_OK;
}

/* ret_root  (4096): the directory of checkpoints that PATH means where it is no run that names others */
static pd_status find_root(struct pd_vfs *vfs, const char *path, char ret_root[4096], char ret_named[64],
                           struct pd_error *err)
{
    char *real;
    bool is_directory;
    PD_TRY(find_real(vfs, path, &real, &is_directory, err));
    bool fits = strlen(real) < 4096 - 64;
    char *name = strrchr(real, '/');
    if (fits && is_directory && name && is_step_name(name + 1) && strlen(name + 1) < 64) {
        snprintf(ret_named, 64, "%.63s", name + 1);
        *name = '\0';
    }
    if (fits)
        snprintf(ret_root, 4096, "%.4000s%s", real, !ret_named[0] && exists(vfs, real, "checkpoints") ? "/checkpoints" : "");
    free(real);
    if (!is_directory) return refuse_file(vfs, path, err);
    if (!fits) PD_FAIL(err, PD_INVALID, "%s is too long a path; go there and name it .", path);
    return PD_OK;
}

/* A relative checkpoint.dir is relative to where the run was started. */
static pd_status refuse_absent(const char *dir, const char *path, struct pd_error *err)
{
    PD_FAIL(err, PD_NOT_FOUND, "%.600s/config.yaml names %.600s for its checkpoints (checkpoint.dir), which is not there%s",
            path, dir,
            dir[0] == '/' ? "; bring it back, or name where they are now" : " from here; name the directory itself");
}

/* Those named by the run, else the directory itself. */
static pd_status find_tiers(const char *path, struct pd_ckpt_place *place, struct pd_error *err)
{
    struct pd_run_tiers *tiers = &place->tiers;
    struct pd_stat stat;
    char root[4096];
    PD_TRY(find_root(place->vfs, path, root, place->named, err));
    if (!place->named[0]) pd_run_tiers_of_run(path, tiers);
    if (tiers->count == 1 && pd_vfs_stat(place->vfs, tiers->tiers[0].dir, &stat, NULL) == PD_NOT_FOUND) {
        if (!exists(place->vfs, path, "checkpoints")) return refuse_absent(tiers->tiers[0].dir, path, err);
        tiers->count = 0;
    }
    if (!tiers->count) memcpy(tiers->tiers[tiers->count++].dir, root, sizeof root);
    return PD_OK;
}

bool pd_ckpt_place_turn_to(struct pd_ckpt_place *place, uint32_t tier)
{
    if (!place->tiers.tiers[tier].store) return false;
    place->tier = tier;
    place->root = place->tiers.tiers[tier].dir;
    place->store = place->tiers.tiers[tier].store;
    return true;
}

pd_status pd_ckpt_place_reopen(struct pd_ckpt_place *place, const struct pd_store_options *options, struct pd_error *err)
{
    struct pd_store **store = &place->tiers.tiers[place->tier].store;
    pd_store_close(*store);
    *store = place->store = NULL;
    PD_TRY(pd_store_open(place->vfs, place->root, options, &place->group, store, err));
    place->store = *store;
    return PD_OK;
}

/* Opens the tier with the newest checkpoint, else the first that exists. */
static pd_status open_tiers(struct pd_ckpt_place *place, const char *path, struct pd_error *err)
{
    struct pd_run_tiers *tiers = &place->tiers;
    const pd_status status = tiers_open(tiers, place->vfs, &place->group, err);
    const bool any = tiers->count == 1 ? tier_is_there(&tiers->tiers[0]) : tiers_warn(tiers);
    if (!any && status) return status;
    if (!any)
        PD_FAIL(err, PD_NOT_FOUND,
                "none of the directories that %s/config.yaml names for checkpoints is there; mount them, or name the "
                "directory that has them",
                path);
    const struct pd_run_tier *newest = pd_run_tiers_newest(tiers);
    if (newest) (void)pd_ckpt_place_turn_to(place, (uint32_t)(newest - tiers->tiers));
    for (uint32_t i = 0; !place->store && i < tiers->count; i++)
        (void)pd_ckpt_place_turn_to(place, i);
    return PD_OK;
}

static pd_status open_place(const char *path, bool is_quiet, const struct pd_notes *notes, struct pd_ckpt_place *place,
                            struct pd_error *err)
{
    *place = (struct pd_ckpt_place){0};
    pd_group_init_single(&place->group);
    PD_TRY(pd_vfs_new_auto(&place->vfs, err));
    pd_status status = find_tiers(path, place, err);
    place->tiers.notes = notes;
    place->tiers.is_quiet = is_quiet || place->named[0]; /* of one that is named, others are no concern */
    if (!status) status = open_tiers(place, path, err);
    if (status) pd_ckpt_place_close(place);
    return status;
}

pd_status pd_ckpt_place_open(const char *path, const struct pd_store_options *writable, const struct pd_notes *notes,
                             struct pd_ckpt_place *ret_place, struct pd_error *err)
{
    PD_TRY(open_place(path, writable, notes, ret_place, err));
    const pd_status status = writable ? pd_ckpt_place_reopen(ret_place, writable, err) : PD_OK;
    if (status) pd_ckpt_place_close(ret_place);
    return status;
}

pd_status pd_ckpt_place_open_quiet(const char *path, const struct pd_notes *notes, struct pd_ckpt_place *ret_place,
                                   struct pd_error *err)
{
    return open_place(path, true, notes, ret_place, err);
}

void pd_ckpt_place_close(struct pd_ckpt_place *place)
{
    tiers_close(&place->tiers);
    if (place->vfs) pd_vfs_free(place->vfs);
    *place = (struct pd_ckpt_place){0};
}

/* Returns the requested checkpoint if it is unusable, else the newest unusable one; NULL: none. */
static const struct pd_store_unusable *find_unusable(const struct pd_ckpt_place *place, uint64_t step)
{
    const bool is_any = !place->named[0] && step == UINT64_MAX;
    for (uint32_t i = pd_store_unusable_count(place->store); i-- > 0;) {
        const struct pd_store_unusable *unusable = pd_store_unusable_at(place->store, i);
        if (is_any || (place->named[0] ? strcmp(unusable->name, place->named) == 0 : unusable->step == step))
            return unusable;
    }
    return NULL;
}

/* Describes damaged checkpoints; false: there are none. */
static bool describe_flawed(const struct pd_ckpt_place *place, uint32_t quarantined, char *ret_text, size_t bytes)
{
    const uint32_t unusable = pd_store_unusable_count(place->store);
    if (unusable)
        snprintf(ret_text, bytes,
                 "%s holds %s, damaged or incomplete, and none that is complete; perdure ckpt verify %s shows more",
                 place->root, pd_counted(unusable, "checkpoint").text, place->root);
    else if (quarantined)
        snprintf(ret_text, bytes,
                 "%s holds %s in its quarantine directory, moved there as damaged (see reason.txt), and none that is "
                 "complete; bring back a copy, or begin again with another run.dir",
                 place->root, pd_counted(quarantined, "checkpoint").text);
    return unusable || quarantined;
}

/* Reads its name from its record. */
static bool read_name(const struct pd_ckpt_place *place, char ret_name[PD_STORE_NAME_MAX])
{
    char path[4200];
    struct pd_commit commit = {0};
    snprintf(path, sizeof path, "%s/commit.h5", place->root);
    if (pd_commit_read(place->vfs, path, &commit, NULL)) return false;
    const struct pd_step_name name = {.step = commit.state.identity.step, .fence = commit.state.fence};
    memcpy(ret_name, pd_step_name_text(&name).text, PD_STORE_NAME_MAX);
    pd_commit_deinit(&commit);
    return true;
}

/* True if PATH is itself a checkpoint that a store would not list. */
static bool describe_other(const struct pd_ckpt_place *place, char *ret_text, size_t bytes)
{
    const struct pd_format *format;
    char name[PD_STORE_NAME_MAX];
    if (pd_format_of(place->vfs, place->root, &format, NULL)) return false;
    if (format == &pd_format_perdure && read_name(place, name))
        snprintf(ret_text, bytes, "%s is a checkpoint without the name that its save gave it: rename it to %s", place->root,
                 name);
    else
        describe_foreign(place->root, format, ret_text, bytes);
    return true;
}

pd_status pd_ckpt_place_describe_empty(const struct pd_ckpt_place *place, char *ret_text, size_t bytes, struct pd_error *err)
{
    char begun[64] = ""; /* by a killed save or rewrite */
    uint32_t quarantined;
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(place->vfs, place->root, &listing, err));
    for (uint32_t i = 0; i < listing.count; i++) {
        struct pd_step_name name;
        if (pd_step_name_parse(listing.names[i], &name) && name.is_tmp) snprintf(begun, 64, "%s", listing.names[i]);
    }
    pd_listing_deinit(&listing);
    PD_TRY(pd_store_count_quarantined(place->store, &quarantined, err));
    if (begun[0])
        snprintf(ret_text, bytes,
                 "%s holds no checkpoint yet: %s was begun and not finished; run the command that began it again",
                 place->root, begun);
    else if (!describe_flawed(place, quarantined, ret_text, bytes) && !describe_other(place, ret_text, bytes))
        snprintf(
            ret_text, bytes,
            "%s holds no checkpoint; a run saves its own in <run.dir>/checkpoints, and `perdure ckpt import --help` lists "
            "the files of other programs",
            place->root);
    return PD_OK;
}

pd_status pd_ckpt_place_fail_none(const struct pd_ckpt_place *place, uint64_t step, struct pd_error *err)
{
    const struct pd_store_unusable *unusable = find_unusable(place, step);
    char text[4400];
    if (unusable)
        PD_FAIL(err, unusable->flaw == PD_STORE_UNREADABLE ? PD_IO : PD_CORRUPT,
                "%s/%s is not a valid checkpoint: %s; perdure ckpt verify lists what else is wrong", place->root,
                unusable->name, unusable->cause);
    if (place->named[0])
        PD_FAIL(err, PD_CORRUPT,
                "%s/%s is not a valid checkpoint: it holds nothing that a save would leave; perdure ckpt ls %s", place->root,
                place->named, place->root);
    if (!pd_store_count(place->store)) {
        PD_TRY(pd_ckpt_place_describe_empty(place, text, sizeof text, err));
        PD_FAIL(err, PD_CORRUPT, "%s", text);
    }
    char steps[160];
    size_t bytes = sizeof steps;
    uint32_t count = pd_store_count(place->store);
    size_t used = 0;
    steps[0] = '\0';
    for (uint32_t i = 0; i < count && i < 6; i++) {
        used += (size_t)snprintf(steps + used, bytes - used, "%s%" PRIu64, i ? ", " : "",
                                 pd_store_entry_at(place->store, i)->step);
    }
    if (count > 6) snprintf(steps + used, bytes - used, ", ...");
    PD_FAIL(err, PD_CORRUPT, "%s holds no valid checkpoint of step %" PRIu64 "; there %s %s", place->root, step,
            pd_store_count(place->store) == 1 ? "is step" : "are steps", steps);
}

static const struct pd_store_entry *find_entry(const struct pd_ckpt_place *place, uint64_t step)
{
    for (uint32_t i = 0; i < pd_store_count(place->store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(place->store, i);
        if (place->named[0] ? strcmp(entry->name, place->named) == 0 : step == UINT64_MAX || entry->step == step)
            return entry;
    }
    return NULL;
}

/* Warns if the newest usable checkpoint is not the newest. */
static void warn_passed(const struct pd_ckpt_place *place, const struct pd_store_entry *chosen)
{
    for (uint32_t i = 0; i < place->tiers.count; i++) {
        const struct pd_run_tier *tier = &place->tiers.tiers[i];
        if (tier->unusable[0] && tier->unusable_step >= chosen->step)
            pd_note(place->tiers.notes, "%s/%s is not a complete checkpoint: %s; using %s/%s", tier->dir, tier->unusable,
                    tier->flaw, place->root, chosen->name);
    }
}

pd_status pd_ckpt_place_choose(struct pd_ckpt_place *place, uint64_t step, const struct pd_store_entry **ret_entry,
                               struct pd_error *err)
{
    const uint32_t first = place->tier;
    *ret_entry = find_entry(place, step);
    for (uint32_t i = 0; !*ret_entry && i < place->tiers.count; i++)
        if (pd_ckpt_place_turn_to(place, i)) *ret_entry = find_entry(place, step);
    if (!*ret_entry) (void)pd_ckpt_place_turn_to(place, first);
    if (*ret_entry && !place->tiers.is_quiet && step == UINT64_MAX) warn_passed(place, *ret_entry);
    return *ret_entry ? PD_OK : pd_ckpt_place_fail_none(place, step, err);
}

/* True if another copy may help: damage, a missing shard, a storage error. */
static bool is_of_copy(pd_status status)
{
    return status == PD_CORRUPT || status == PD_NOT_FOUND || status == PD_IO;
}

bool pd_ckpt_place_next_copy(struct pd_ckpt_place *place, const struct pd_error *cause, const struct pd_store_entry **entry)
{
    const struct pd_store_entry *bad = *entry;
    const char *before = place->root;
    if (place->named[0] || !is_of_copy(cause->status)) return false;
    place->tried |= 1u << place->tier;
    for (uint32_t i = 0; i < place->tiers.count; i++) {
        if (place->tried >> i & 1 || !pd_ckpt_place_turn_to(place, i)) continue;
        const struct pd_store_entry *copy = find_entry(place, bad->step);
        if (!copy || copy->lineage != bad->lineage) continue;
        pd_note(place->tiers.notes, "%s/%s: %s; using the copy in %s", before, bad->name, cause->message, place->root);
        *entry = copy;
        return true;
    }
    return false;
}

pd_status pd_ckpt_add_advice(pd_status status, struct pd_error *err)
{
    static const char next[] = "; perdure ckpt verify shows which checkpoints are complete: name one of them";
    if (status != PD_CORRUPT || !err) return status;
    const size_t used = strlen(err->message);
    if (!strstr(err->message, "perdure ckpt") && used + sizeof next <= sizeof err->message)
        memcpy(err->message + used, next, sizeof next);
    return status;
}

pd_status pd_ckpt_target_open(struct pd_vfs *vfs, const char *path, const struct pd_notes *notes,
                              struct pd_ckpt_target *ret_target, struct pd_error *err)
{
    static const struct pd_store_options options = {
        .writable = true, .keep_last = UINT32_MAX, .quarantine_bytes_max = UINT64_MAX, .leaves_nothing = true};
    const pd_status st = pd_vfs_mkdir(vfs, path, err);
    if (st && st != PD_EXISTS) return pd_formats_explain_above(st, path, err);
    *ret_target = (struct pd_ckpt_target){.vfs = vfs, .path = path, .has_made = !st};
    if (st && !pd_formats_is_directory(vfs, path))
        PD_FAIL(err, PD_USAGE, "%s is not a directory; name one for the checkpoint", path);
    PD_TRY(pd_ckpt_place_open(path, &options, notes, &ret_target->place, err));
    if (ret_target->place.named[0])
        PD_FAIL(err, PD_USAGE, "%s is one checkpoint; name a directory to put the new one in", path);
    return PD_OK;
}

const struct pd_store_entry *pd_ckpt_target_written(const struct pd_ckpt_target *target)
{
    const struct pd_store *store = target->place.store;
    for (uint32_t i = 0; i < pd_store_count(store); i++)
        if (pd_store_entry_at(store, i)->fence == pd_store_fence(store)) return pd_store_entry_at(store, i);
    return NULL;
}

/* True if the launch with this fence wrote a file of this name. The fence file itself stays. */
static bool is_of_fence(const char *name, uint64_t fence)
{
    struct pd_step_name step;
    uint64_t number;
    if (pd_step_name_parse(name, &step)) return step.fence == fence;
    return pd_numbered_name_parse(name, "pool-", &number) && number == fence;
}

/* ret_name "": nothing. Prefers a checkpoint that was begun to other files. */
static void find_left(const struct pd_ckpt_target *t, const char *root, uint64_t fence, char ret_name[PD_STORE_NAME_MAX])
{
    struct pd_listing listing;
    ret_name[0] = '\0';
    if (pd_vfs_list(t->vfs, root, &listing, NULL)) return;
    for (uint32_t i = 0; i < listing.count; i++)
        if (is_of_fence(listing.names[i], fence) && (!ret_name[0] || listing.names[i][0] == 's'))
            snprintf(ret_name, PD_STORE_NAME_MAX, "%s", listing.names[i]);
    pd_listing_deinit(&listing);
}

pd_status pd_ckpt_target_close(struct pd_ckpt_target *t, pd_status mine, struct pd_error *err)
{
    char root[4096], left[PD_STORE_NAME_MAX] = "";
    const bool is_undone = mine && t->place.store && !pd_ckpt_target_written(t);
    const uint64_t fence = is_undone ? pd_store_fence(t->place.store) : 0;
    if (is_undone) snprintf(root, sizeof root, "%s", t->place.root);
    if (t->place.vfs) pd_ckpt_place_close(&t->place);
    if (is_undone) find_left(t, root, fence, left);
    if (mine && t->has_made) (void)!pd_vfs_rmdir(t->vfs, t->path, NULL);
    if (is_undone) {
        /* After a stop *err says only what became of the written files. */
        if (mine == PD_STOPPED) (void)pd_error_set(err, PD_STOPPED, PD_WHERE, 0, "asked to leave");
        if (left[0])
            pd_error_append(err, "; %s/%s could not be removed, and the next checkpoint written there removes it", root,
                            left);
        else if (mine == PD_STOPPED)
            pd_error_append(err, ": what was written in %s is removed", t->path);
    }
    return mine;
}
