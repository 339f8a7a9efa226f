#include "tools/commands/ckpt_place.h"

#include "ckpt/base/words.h"
#include "ckpt/store/paths.h"
#include "resharder/formats/perdure.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool exists(const char *directory, const char *name)
{
    char path[4200];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return stat(path, &st) == 0;
}

static void describe_foreign(const char *path, const struct pd_format *format, char *ret_text, size_t bytes)
{
    snprintf(ret_text, bytes,
             "%s is a checkpoint of another system (%s), and this command reads only perdure's: perdure ckpt import "
             "converts it; ckpt show, stats and diff read it as it is",
             path, format->name);
}

/* step-000000001200-7 */
static bool is_step_name(const char *name)
{
    return strncmp(name, "step-", 5) == 0 && name[5] >= '0' && name[5] <= '9' && !strstr(name, ".tmp");
}

/* PATH is a file: a checkpoint of another system, one file of such, or of no format that is known. */
static pd_status refuse_file(const char *path, struct pd_error *err)
{
    const struct pd_format *format = NULL;
    struct pd_vfs *vfs = NULL;
    char text[4400];
    PD_TRY(pd_vfs_new_auto(&vfs, err));
    const pd_status st = pd_format_of(vfs, path, &format, err);
    pd_vfs_free(vfs);
    if (st) return st;
    describe_foreign(path, format, text, sizeof text);
    PD_FAIL(err, PD_INVALID, "%s", text);
}

/* ret_root  (4096): the directory of checkpoints that PATH means where it is no run that names others */
static pd_status find_root(const char *path, char ret_root[4096], char ret_named[64], struct pd_error *err)
{
    char *real = realpath(path, NULL);
    if (!real && errno == ENOENT)
        PD_FAIL(err, PD_NOT_FOUND, "%s does not exist; name a run, its checkpoints or one of them", path);
    if (!real) PD_FAIL_ERRNO(err, errno, "%s: looking for checkpoints", path);
    struct stat st;
    bool is_directory = stat(real, &st) == 0 && S_ISDIR(st.st_mode);
    bool fits = strlen(real) < 4096 - 64;
    char *name = strrchr(real, '/');
    if (fits && is_directory && name && is_step_name(name + 1) && strlen(name + 1) < 64) {
        snprintf(ret_named, 64, "%.63s", name + 1);
        *name = '\0';
    }
    if (fits)
        snprintf(ret_root, 4096, "%.4000s%s", real, !ret_named[0] && exists(real, "checkpoints") ? "/checkpoints" : "");
    free(real);
    if (!is_directory) return refuse_file(path, err);
    if (!fits) PD_FAIL(err, PD_INVALID, "%s is too long a path; go there and name it .", path);
    return PD_OK;
}

/* A relative checkpoint.dir is where the run was started. */
static pd_status refuse_absent(const char *dir, const char *path, struct pd_error *err)
{
    PD_FAIL(err, PD_NOT_FOUND, "%.600s/config.yaml names %.600s for its checkpoints (checkpoint.dir), which is not there%s",
            path, dir,
            dir[0] == '/' ? "; bring it back, or name where they are now" : " from here; name the directory itself");
}

/* Those that the run names, else the directory itself. */
static pd_status find_tiers(const char *path, struct pd_ckpt_place *place, struct pd_error *err)
{
    struct pd_run_tiers *tiers = &place->tiers;
    struct stat st;
    char root[4096];
    PD_TRY(find_root(path, root, place->named, err));
    if (!place->named[0]) pd_run_tiers_of_run(path, tiers);
    if (tiers->count == 1 && stat(tiers->tiers[0].dir, &st) && errno == ENOENT) {
        if (!exists(path, "checkpoints")) return refuse_absent(tiers->tiers[0].dir, path, err);
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

/* Where the newest checkpoint lies, else the first that is there. */
static pd_status open_tiers(struct pd_ckpt_place *place, const char *path, struct pd_error *err)
{
    struct pd_run_tiers *tiers = &place->tiers;
    const pd_status status = pd_run_tiers_open(tiers, place->vfs, &place->group, err);
    const bool any = tiers->count == 1 ? pd_run_tier_is_there(&tiers->tiers[0]) : pd_run_tiers_warn(tiers);
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

static pd_status open_place(const char *path, bool is_quiet, struct pd_ckpt_place *place, struct pd_error *err)
{
    *place = (struct pd_ckpt_place){0};
    PD_TRY(find_tiers(path, place, err));
    place->tiers.is_quiet = is_quiet || place->named[0]; /* of one that is named, others are no concern */
    pd_group_init_single(&place->group);
    PD_TRY(pd_vfs_new_auto(&place->vfs, err));
    const pd_status status = open_tiers(place, path, err);
    if (status) pd_ckpt_place_close(place);
    return status;
}

pd_status pd_ckpt_place_open(const char *path, const struct pd_store_options *writable, struct pd_ckpt_place *ret_place,
                             struct pd_error *err)
{
    PD_TRY(open_place(path, writable, ret_place, err));
    const pd_status status = writable ? pd_ckpt_place_reopen(ret_place, writable, err) : PD_OK;
    if (status) pd_ckpt_place_close(ret_place);
    return status;
}

pd_status pd_ckpt_place_open_quiet(const char *path, struct pd_ckpt_place *ret_place, struct pd_error *err)
{
    return open_place(path, true, ret_place, err);
}

void pd_ckpt_place_close(struct pd_ckpt_place *place)
{
    pd_run_tiers_close(&place->tiers);
    if (place->vfs) pd_vfs_free(place->vfs);
    *place = (struct pd_ckpt_place){0};
}

/* What was asked for and lies there all the same, with what is wrong with it; else the newest such; NULL: nothing. */
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

/* What a run, or a store's launches, leave in a directory that has no checkpoint yet. */
static bool is_of_ours(const char *name)
{
    uint64_t number;
    return strcmp(name, "config.yaml") == 0 || pd_numbered_name_parse(name, "fence-", &number) ||
           pd_numbered_name_parse(name, "pool-", &number);
}

/* What lies there and is none; false: nothing. */
static bool describe_flawed(const struct pd_ckpt_place *place, uint32_t quarantined, char *ret_text, size_t bytes)
{
    const uint32_t unusable = pd_store_unusable_count(place->store);
    if (unusable)
        snprintf(ret_text, bytes,
                 "%s holds %s, damaged or incomplete, and none that is whole; perdure ckpt verify %s tells more",
                 place->root, pd_counted(unusable, "checkpoint").text, place->root);
    else if (quarantined)
        snprintf(ret_text, bytes,
                 "%s holds %s in its quarantine directory, moved there as damaged (see reason.txt), and none that is whole; "
                 "bring back a copy, or begin again with another run.dir",
                 place->root, pd_counted(quarantined, "checkpoint").text);
    return unusable || quarantined;
}

/* What its record calls it. */
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

/* PATH is itself a checkpoint, but not one that a store would list; false: it is none. */
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

static void describe_nothing(const struct pd_ckpt_place *place, bool is_strange, char *ret_text, size_t bytes)
{
    char known[PD_FORMATS_NAMES_MAX];
    pd_format_list_read(known);
    if (is_strange)
        snprintf(ret_text, bytes,
                 "%s holds no checkpoint of perdure or of another system that it reads (%s): `perdure ckpt import --help` "
                 "says which files each has; a run of perdure saves its own in <run.dir>/checkpoints",
                 place->root, known);
    else
        snprintf(ret_text, bytes, "%s holds no checkpoint yet; a run saves its own in <run.dir>/checkpoints", place->root);
}

pd_status pd_ckpt_place_describe_empty(const struct pd_ckpt_place *place, char *ret_text, size_t bytes, struct pd_error *err)
{
    char begun[64];
    uint32_t quarantined;
    bool is_strange;
    /* ret_begun   of a save or a rewrite that was killed; "" where there is none
     * ret_is_strange  files lie there, and none that a run or a store leaves */
    struct pd_listing listing = {0};
    begun[0] = '\0';
    PD_TRY(pd_vfs_list(place->vfs, place->root, &listing, err));
    is_strange = listing.count > 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        struct pd_step_name name;
        if (pd_step_name_parse(listing.names[i], &name) && name.is_tmp) snprintf(begun, 64, "%s", listing.names[i]);
        if (is_of_ours(listing.names[i])) is_strange = false;
    }
    pd_listing_deinit(&listing);
    PD_TRY(pd_store_count_quarantined(place->store, &quarantined, err));
    if (begun[0])
        snprintf(ret_text, bytes,
                 "%s holds no checkpoint yet: %s was begun and not finished; the command that began it does it again",
                 place->root, begun);
    else if (!describe_flawed(place, quarantined, ret_text, bytes) && !describe_other(place, ret_text, bytes))
        describe_nothing(place, is_strange, ret_text, bytes);
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

/* The newest that is whole may not be the newest that lies there. */
static void warn_passed(const struct pd_ckpt_place *place, const struct pd_store_entry *chosen)
{
    for (uint32_t i = 0; i < place->tiers.count; i++) {
        const struct pd_run_tier *tier = &place->tiers.tiers[i];
        if (tier->unusable[0] && tier->unusable_step >= chosen->step)
            fprintf(stderr, "perdure: %s/%s is no whole checkpoint: %s; taking %s/%s\n", tier->dir, tier->unusable,
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

bool pd_ckpt_is_of_copy(pd_status status)
{
    return status == PD_CORRUPT || status == PD_NOT_FOUND || status == PD_IO;
}

bool pd_ckpt_place_next_copy(struct pd_ckpt_place *place, const struct pd_error *cause, const struct pd_store_entry **entry)
{
    const struct pd_store_entry *bad = *entry;
    const char *before = place->root;
    if (place->named[0] || !pd_ckpt_is_of_copy(cause->status)) return false;
    place->tried |= 1u << place->tier;
    for (uint32_t i = 0; i < place->tiers.count; i++) {
        if (place->tried >> i & 1 || !pd_ckpt_place_turn_to(place, i)) continue;
        const struct pd_store_entry *copy = find_entry(place, bad->step);
        if (!copy || copy->lineage != bad->lineage) continue;
        fprintf(stderr, "perdure: %s/%s: %s; taking the copy in %s\n", before, bad->name, cause->message, place->root);
        *entry = copy;
        return true;
    }
    return false;
}

pd_status pd_ckpt_add_advice(pd_status status, struct pd_error *err)
{
    static const char next[] = "; perdure ckpt verify tells which checkpoints are whole: name one of them";
    if (status != PD_CORRUPT || !err) return status;
    const size_t used = strlen(err->message);
    if (!strstr(err->message, "perdure ckpt") && used + sizeof next <= sizeof err->message)
        memcpy(err->message + used, next, sizeof next);
    return status;
}
