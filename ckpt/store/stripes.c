/* Stripes: shards of a rank on further drives. Such a drive has a directory of its own with a lock, a fence and a pool, so
 * that files are free and in use there by the same rules as in the root.
 *
 *   <root>/stripe-<id>                     symbolic link to that directory
 *   <root>/step-S-F/shard-<n>.h5           symbolic link to ../stripe-<id>/step-S-F/shard-<n>.h5
 *   <root>/stripes                         token of the store
 *   <drive>/stripe                         that token, and the id of this directory
 *   <drive>/step-S-F/shard-<n>.h5          the shard; never under a temporary name
 *
 *   invariants
 *    1. The record lies in the root alone and is the only proof. What it names on a drive, the names there and the links to
 *       them are durable before it is written, and go only after it is durably gone.
 *    2. A shard link names its directory by id. So neither the order of drives, nor other drives later, nor a drive that was
 *       mounted elsewhere changes what an older checkpoint means: stripe-<id> alone is renewed.
 *    3. A directory of checkpoints on a drive that no checkpoint of the root goes by is cleared at open, and only where the
 *       token says that the drive is this store's and the root has something whole: else its checkpoints may have been moved
 *       away, and come back.
 *    4. A drive that is not there makes its checkpoints partial, as an absent host does. Its directory is not made anew while
 *       one goes by it (pd_store_absent_stripes).
 */
#include "ckpt/store/drives.h"

#include "ckpt/base/digest.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK_BYTES 64u
#define TOKEN_FORMAT "%32[0-9a-f]"

/* ---- marks ---- */

static pd_status write_mark(struct store_dir *dir, const char *name, const char *text, struct pd_error *err)
{
    char data[MARK_BYTES + 1];
    snprintf(data, sizeof data, "%-*s\n", (int)MARK_BYTES - 1, text);
    PD_TRY(
        store_file_write(dir->vfs, store_at(dir, "%s", name).text, PD_OPEN_CREATE, data, MARK_BYTES, STORE_FILE_SYNC, err));
    return store_sync_dir(dir, dir->root, err);
}

/* Absent, or never finished: an empty text. */
static pd_status read_mark_at(struct pd_vfs *vfs, const char *dir, const char *name, char ret_text[MARK_BYTES + 1],
                              struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    void *data = NULL;
    uint64_t bytes = 0;
    memset(ret_text, 0, MARK_BYTES + 1);
    snprintf(path, sizeof path, "%.3500s/%.255s", dir, name);
    pd_status st = store_file_read(vfs, path, MARK_BYTES, &data, &bytes, err);
    if (st == PD_NOT_FOUND || st == PD_CORRUPT) return PD_OK;
    PD_TRY(st);
    if (bytes == MARK_BYTES) memcpy(ret_text, data, bytes);
    free(data);
    return PD_OK;
}

/* The id of the directory `dir`; 0: it has none, or is absent. */
static pd_status read_id_at(struct pd_vfs *vfs, const char *dir, uint64_t *ret_id, struct pd_error *err)
{
    char text[MARK_BYTES + 1], token[33];
    *ret_id = 0;
    PD_TRY(read_mark_at(vfs, dir, "stripe", text, err));
    if (sscanf(text, TOKEN_FORMAT " %" SCNu64, token, ret_id) != 2) *ret_id = 0;
    return PD_OK;
}

/* Of a drive that is marked: false where it is not. */
static pd_status read_drive(const struct store_drive *drive, char ret_token[33], uint64_t *ret_id, bool *ret_has,
                            struct pd_error *err)
{
    char text[MARK_BYTES + 1];
    PD_TRY(read_mark_at(drive->dir.vfs, drive->dir.root, "stripe", text, err));
    *ret_has = sscanf(text, TOKEN_FORMAT " %" SCNu64, ret_token, ret_id) == 2 && strlen(ret_token) == 32;
    return PD_OK;
}

/* The root means this drive by that id: it is the store's whatever became of its token. */
static bool goes_by(const struct store_dir *root, const struct store_drive *drive, uint64_t id)
{
    char target[STORE_PATH_MAX];
    const struct store_text path = store_at(root, "stripe-%" PRIu64, id);
    return pd_vfs_readlink(root->vfs, path.text, target, NULL) == PD_OK && strcmp(target, drive->dir.root) == 0;
}

/* The store's token, made when there is none: a disk that lost it may have kept the links and what goes by them. */
static pd_status settle_token(struct store_drive *root, const struct store_drive *drive, char ret_token[33],
                              struct pd_error *err)
{
    char text[MARK_BYTES + 1], there[33];
    uint64_t id;
    bool is_marked;
    PD_TRY(read_mark_at(root->dir.vfs, root->dir.root, "stripes", text, err));
    if (sscanf(text, TOKEN_FORMAT, ret_token) == 1 && strlen(ret_token) == 32) return PD_OK;
    PD_TRY(read_drive(drive, there, &id, &is_marked, err));
    memcpy(ret_token, is_marked && goes_by(&root->dir, drive, id) ? there : root->lease.token, 33);
    return write_mark(&root->dir, "stripes", ret_token, err);
}

static pd_status mark_drive(struct store_drive *root, struct store_drive *drive, uint32_t stripe, struct pd_error *err)
{
    char text[MARK_BYTES + 1], token[33], there[33];
    uint64_t id;
    bool is_marked;
    PD_TRY(settle_token(root, drive, token, err));
    PD_TRY(read_drive(drive, there, &id, &is_marked, err));
    if (is_marked && strcmp(there, token) == 0) return PD_OK;
    if (is_marked)
        PD_FAIL(err, PD_INVALID, "it holds stripes of another checkpoint directory than %s: name another one, or empty it",
                root->dir.root);
    /* Of this launch and drive alone; 48 bits, so that it is short. */
    id = pd_digest64(drive->lease.token, strlen(drive->lease.token), stripe) >> 16;
    snprintf(text, sizeof text, "%s %" PRIu64, token, id);
    return write_mark(&drive->dir, "stripe", text, err);
}

/* A link that is there is replaced at once: readers never miss it. */
static pd_status place_link(struct store_dir *root, const struct store_drive *drive, struct pd_error *err)
{
    const struct store_text path = store_at(root, "stripe-%" PRIu64, drive->id);
    const struct store_text fresh = store_at(root, "stripe-%" PRIu64 ".new", drive->id);
    pd_status st = pd_vfs_unlink(root->vfs, fresh.text, err);
    if (st != PD_NOT_FOUND) PD_TRY(st);
    PD_TRY(pd_vfs_symlink(root->vfs, drive->dir.root, fresh.text, err));
    PD_TRY(pd_vfs_rename(root->vfs, fresh.text, path.text, err));
    return store_sync_dir(root, root->root, err);
}

/* ---- opening ---- */

/* Who shares the root must share the drive: a shard that only one host sees would have to be told to the others. All ranks
 * look at the same tables, so all say the same. */
static pd_status check_shares(const struct store_dir *root, const struct store_dir *drive, struct pd_error *err)
{
    if (memcmp(root->share_of, drive->share_of, root->group->size * sizeof *root->share_of) == 0) return PD_OK;
    PD_FAIL(err, PD_INVALID, "it is not shared by the same hosts as %s: take directories on drives of the same kind",
            root->root);
}

static pd_status read_id(struct store_drive *drive, struct pd_error *err)
{
    char token[33];
    bool is_marked;
    PD_TRY(read_drive(drive, token, &drive->id, &is_marked, err));
    if (!is_marked) PD_FAIL(err, PD_IO, "its file \"stripe\" is not to be seen here");
    return PD_OK;
}

static pd_status join(struct store_drive *root, struct store_drive *drive, uint32_t stripe, struct pd_error *err)
{
    struct pd_group *group = root->dir.group;
    const bool leads = root->dir.leads_share;
    PD_TRY(check_shares(&root->dir, &drive->dir, err));
    PD_TRY(pd_group_agree(group, leads ? mark_drive(root, drive, stripe, err) : PD_OK, err));
    PD_TRY(pd_group_agree(group, read_id(drive, err), err));
    PD_TRY(pd_group_agree(group, leads ? place_link(&root->dir, drive, err) : PD_OK, err));
    pd_fault_point("store.stripes.joined");
    return PD_OK;
}

pd_status store_stripes_open(struct store_drives *drives, const struct pd_store_options *options, struct pd_error *err)
{
    struct store_drive *root = &drives->rows[0];
    for (uint32_t s = 1; options->stripes && s < drives->shards; s++) {
        const char *path = options->stripes[s - 1];
        drives->count = s + 1;
        pd_status st = store_drive_open(&drives->rows[s], root->dir.vfs, root->dir.group, path, options, err);
        if (st == PD_OK && options->writable) st = store_drive_open_pool(&drives->rows[s], options, err);
        if (st == PD_OK) st = join(root, &drives->rows[s], s, err);
        if (st != PD_OK) return pd_error_context(err, st, "checkpoint.stripes, %s", path);
    }
    if (drives->count == 1) root->pool.free_max *= drives->shards;
    return PD_OK;
}

static bool is_known(const struct store_dir *root, const struct store_catalog *catalog, const char *name)
{
    return store_catalog_knows(catalog, name) || store_exists(root, store_at(root, "quarantine/%s", name).text);
}

static void clear_unknown(const struct store_dir *root, const struct store_catalog *catalog, const struct store_dir *drive)
{
    struct pd_listing listing = {0};
    if (pd_vfs_list(drive->vfs, drive->root, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count; i++) {
        struct pd_step_name name;
        struct pd_error own;
        if (!pd_step_name_parse(listing.names[i], &name) || name.is_tmp || is_known(root, catalog, listing.names[i]))
            continue;
        const struct store_text path = store_at(drive, "%s", listing.names[i]);
        if (store_remove_files(drive, path.text, &own) != PD_OK)
            pd_log_warn("ckpt", "what an interrupted save or removal left in %s stays: %s", path.text, own.message);
    }
    pd_listing_deinit(&listing);
}

void store_stripes_clear(struct store_drives *drives, const struct store_catalog *catalog)
{
    const struct store_dir *root = &drives->rows[0].dir;
    for (uint32_t s = 1; s < drives->count; s++) {
        if (root->leads_share && catalog->committed.count) clear_unknown(root, catalog, &drives->rows[s].dir);
        store_drive_clear_launches(&drives->rows[s]);
    }
}

/* ---- saving ---- */

static pd_status make_step(const struct store_dir *drive, const char *name, struct pd_error *err)
{
    const struct store_text path = store_at(drive, "%s", name);
    pd_status st = pd_vfs_mkdir(drive->vfs, path.text, err);
    if (st != PD_EXISTS) return st;
    PD_TRY(store_remove_files(drive, path.text, err)); /* a failed save of this launch could not clear it */
    return pd_vfs_mkdir(drive->vfs, path.text, err);
}

static pd_status link_shard(const struct store_drives *drives, uint32_t stripe, const char *name, struct pd_error *err)
{
    const struct store_dir *root = &drives->rows[0].dir;
    char target[3 * PD_STORE_NAME_MAX];
    const struct pd_store_name shard = store_shard_name(drives, stripe);
    snprintf(target, sizeof target, "../stripe-%" PRIu64 "/%s/%s", drives->rows[stripe].id, name, shard.text);
    return pd_vfs_symlink(root->vfs, target, store_at(root, "%s.tmp/%s", name, shard.text).text, err);
}

pd_status store_stripes_begin(struct store_drives *drives, const char *name, struct pd_error *err)
{
    const struct store_dir *root = &drives->rows[0].dir;
    for (uint32_t s = 1; s < drives->count; s++) {
        pd_status st = root->leads_share ? make_step(&drives->rows[s].dir, name, err) : PD_OK;
        PD_TRY(pd_group_agree(root->group, st, err));
        PD_TRY(pd_group_agree(root->group, link_shard(drives, s, name, err), err));
    }
    return PD_OK;
}

pd_status store_stripes_sync(struct store_drives *drives, const char *name, struct pd_error *err)
{
    for (uint32_t s = 1; s < drives->count; s++) {
        struct store_dir *drive = &drives->rows[s].dir;
        PD_TRY(store_sync_dir(drive, store_at(drive, "%s", name).text, err));
        PD_TRY(store_sync_dir(drive, drive->root, err));
    }
    return PD_OK;
}

/* ---- removing ---- */

void store_stripes_recycle(struct store_drives *drives, const char *name)
{
    for (uint32_t s = 1; s < drives->count; s++) {
        const struct store_text path = store_at(&drives->rows[s].dir, "%s/%s", name, store_shard_name(drives, s).text);
        (void)!store_free_put(&drives->rows[s].pool, drives->rows[0].dir.group->rank, path.text);
    }
}

/* Through the links: also what lies on drives that this launch does not use. */
pd_status store_stripes_remove(const struct store_drives *drives, const char *name, struct pd_error *err)
{
    for (uint32_t i = 0; i < drives->link_count; i++) {
        PD_TRY(store_remove_files(&drives->rows[0].dir,
                                  store_at(&drives->rows[0].dir, "stripe-%" PRIu64 "/%s", drives->links[i], name).text,
                                  err));
    }
    return PD_OK;
}

/* In the quarantine a checkpoint's links begin one directory further down. */
pd_status store_stripes_quarantine(const struct store_drives *drives, struct pd_error *err)
{
    const struct store_dir *root = &drives->rows[0].dir;
    for (uint32_t i = 0; i < drives->link_count; i++) {
        char target[PD_STORE_NAME_MAX];
        const struct store_text path = store_at(root, "quarantine/stripe-%" PRIu64, drives->links[i]);
        snprintf(target, sizeof target, "../stripe-%" PRIu64, drives->links[i]);
        pd_status st = pd_vfs_symlink(root->vfs, target, path.text, err);
        if (st != PD_EXISTS) PD_TRY(st);
    }
    return PD_OK;
}

void store_stripes_find(struct store_drives *drives)
{
    const struct store_dir *root = &drives->rows[0].dir;
    struct pd_listing listing = {0};
    uint64_t id;
    if (pd_vfs_list(root->vfs, root->root, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count && drives->link_count < STORE_LINKS_MAX; i++)
        if (pd_numbered_name_parse(listing.names[i], "stripe-", &id)) drives->links[drives->link_count++] = id;
    pd_listing_deinit(&listing);
}

/* ---- drives that are not there ---- */

/* Of a link to a shard: false where it is none of ours. */
static bool id_of_shard(struct pd_vfs *vfs, const char *path, uint64_t *ret_id)
{
    static const char up[] = "../";
    char target[STORE_PATH_MAX], link[PD_STORE_NAME_MAX];
    if (pd_vfs_readlink(vfs, path, target, NULL) != PD_OK || strncmp(target, up, sizeof up - 1) != 0) return false;
    snprintf(link, sizeof link, "%.*s", (int)strcspn(target + sizeof up - 1, "/"), target + sizeof up - 1);
    return pd_numbered_name_parse(link, "stripe-", ret_id);
}

bool pd_store_absent_drive(struct pd_vfs *vfs, const char *checkpoint, uint32_t shard, char *ret_dir)
{
    char path[STORE_PATH_MAX];
    const char *slash = strrchr(checkpoint, '/');
    const int root = slash ? (int)(slash - checkpoint) : 0;
    uint64_t id, there;
    snprintf(path, sizeof path, "%.3700s/%s", checkpoint, pd_shard_name(shard).text);
    if (!slash || !id_of_shard(vfs, path, &id)) return false;
    snprintf(path, sizeof path, "%.*s/stripe-%" PRIu64, root < 3700 ? root : 3700, checkpoint, id);
    if (read_id_at(vfs, path, &there, NULL) != PD_OK || there == id) return false;
    return pd_vfs_readlink(vfs, path, ret_dir, NULL) == PD_OK;
}

static bool step_goes_by(struct pd_vfs *vfs, const char *step, uint64_t id)
{
    struct pd_listing listing = {0};
    bool found = false;
    if (pd_vfs_list(vfs, step, &listing, NULL) != PD_OK) return false;
    for (uint32_t i = 0; !found && i < listing.count; i++) {
        char path[STORE_PATH_MAX];
        uint32_t shard;
        uint64_t other;
        snprintf(path, sizeof path, "%.3700s/%.255s", step, listing.names[i]);
        found = pd_shard_name_parse(listing.names[i], &shard) && id_of_shard(vfs, path, &other) && other == id;
    }
    pd_listing_deinit(&listing);
    return found;
}

/* One that is being prepared will be a checkpoint if its record was begun. */
static bool may_be_committed(struct pd_vfs *vfs, const char *step)
{
    char path[STORE_PATH_MAX];
    struct pd_stat stat;
    snprintf(path, sizeof path, "%.3700s/commit.h5", step);
    return pd_vfs_stat(vfs, path, &stat, NULL) != PD_NOT_FOUND;
}

static bool any_goes_by(struct pd_vfs *vfs, const char *root, const struct pd_listing *listing, uint64_t id)
{
    for (uint32_t i = 0; i < listing->count; i++) {
        struct pd_step_name name;
        char path[STORE_PATH_MAX];
        snprintf(path, sizeof path, "%.3500s/%.255s", root, listing->names[i]);
        if (!pd_step_name_parse(listing->names[i], &name) || (name.is_tmp && !may_be_committed(vfs, path))) continue;
        if (step_goes_by(vfs, path, id)) return true;
    }
    return false;
}

/* The directories of a launch, and what is there of them. */
struct offered {
    const char *const *dirs;
    uint32_t count;
    uint64_t ids[PD_LAYOUT_STRIPES_MAX];
};

/* The directory that link `name` of the root means: not there, though a checkpoint needs it. */
static pd_status look_at_link(struct pd_vfs *vfs, const char *root, const struct pd_listing *listing, const char *name,
                              const struct offered *offered, uint64_t *bits, struct pd_error *err)
{
    char path[STORE_PATH_MAX], target[STORE_PATH_MAX], dir[STORE_PATH_MAX];
    uint64_t id, there;
    snprintf(path, sizeof path, "%.3500s/%.255s", root, name);
    if (!pd_numbered_name_parse(name, "stripe-", &id) || pd_vfs_readlink(vfs, path, target, NULL) != PD_OK) return PD_OK;
    if (read_id_at(vfs, path, &there, NULL) != PD_OK || there == id) return PD_OK; /* opening says what is wrong */
    for (uint32_t i = 0; i < offered->count; i++)
        if (offered->ids[i] == id) return PD_OK;
    for (uint32_t i = 0; i < offered->count; i++) {
        PD_TRY(store_absolute(offered->dirs[i], dir, err));
        if (!offered->ids[i] && strcmp(dir, target) == 0 && any_goes_by(vfs, root, listing, id)) *bits |= UINT64_C(1) << i;
    }
    return PD_OK;
}

pd_status pd_store_absent_stripes(struct pd_vfs *vfs, const char *root, const char *const *stripes, uint32_t count,
                                  uint64_t *ret_bits, struct pd_error *err)
{
    struct offered offered = {.dirs = stripes, .count = count};
    struct pd_listing listing = {0};
    uint64_t bits = 0;
    PD_CHECK(count < PD_LAYOUT_STRIPES_MAX);
    pd_status st = pd_vfs_list(vfs, root, &listing, err);
    if (st != PD_OK && st != PD_NOT_FOUND) return st;
    st = PD_OK;
    for (uint32_t i = 0; i < count; i++) /* what cannot be read is something */
        if (read_id_at(vfs, stripes[i], &offered.ids[i], NULL) != PD_OK) offered.ids[i] = UINT64_MAX;
    for (uint32_t i = 0; st == PD_OK && i < listing.count; i++)
        st = look_at_link(vfs, root, &listing, listing.names[i], &offered, &bits, err);
    pd_listing_deinit(&listing);
    if (st == PD_OK) *ret_bits = bits;
    return st;
}
