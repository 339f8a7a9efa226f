#include "ckpt/objects/bucket_store.h"
#include "ckpt/objects/probe.h"
#include "ckpt/objects/upload.h"
#include "ckpt/objects/url.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/base/random_bits.h"
#include "ckpt/io/vfs_ops.h"
#include "ckpt/shard/pieces.h"
#include "ckpt/store/catalog.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUCKET_STORE_MODULE "objects"
#define DOUBTS_MAX 16u
#define FENCE_TRIES 100u
#define RECORD_TRIES 4u

struct pd_bucket_store {
    struct pd_object_url url;
    struct pd_bucket_store_options options;
    struct pd_bucket *bucket;
    struct pd_group *group;
    struct pd_upload upload;
    uint64_t fence; /* 0: none taken */
    /* Used on the root rank only. */
    bool has_beside;
    struct store_catalog catalog;
    char doubts[DOUBTS_MAX][PD_STORE_NAME_MAX]; /* (doubt_count) record was sent, no answer came */
    uint32_t doubt_count;
};

struct bucket_key {
    char text[PD_OBJECT_KEY_MAX + 1];
};

static struct bucket_key key_of(const struct pd_bucket_store *s, const char *name, const char *file)
{
    struct bucket_key key;
    const int length = snprintf(key.text, sizeof key.text, "%s%s%s%s%s", s->url.key, s->url.key[0] ? "/" : "", name,
                                file[0] ? "/" : "", file);
    PD_CHECK(length > 0 && (size_t)length < sizeof key.text); /* open has checked the prefix length */
    return key;
}

/* PD_BUSY from the server only means a conflicting request; for us PD_BUSY means that another launch has taken over. */
static pd_status as_storage(pd_status st, struct pd_error *err)
{
    return st == PD_BUSY || st == PD_EXISTS || st == PD_NOT_FOUND ? pd_error_change(err, PD_IO) : st;
}

/* ---- fences ---- */

struct fences {
    struct pd_listing names;
    uint64_t highest;
    size_t prefix_bytes;
};

static pd_status fence_listed(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    struct fences *f = context;
    uint64_t number;
    (void)bytes, (void)is_directory;
    if (!pd_numbered_name_parse(key + f->prefix_bytes, "fence-", &number)) return PD_OK;
    if (number > f->highest) f->highest = number;
    return PD_ALLOCATED(pd_listing_add(&f->names, key) == 0, err, "listing fences");
}

static pd_status fences_list(struct pd_bucket_store *s, struct fences *ret, struct pd_error *err)
{
    const struct bucket_key key = key_of(s, "fence-", "");
    *ret = (struct fences){.prefix_bytes = strlen(key.text) - strlen("fence-")};
    const pd_status st = pd_bucket_list(s->bucket, key.text, true, fence_listed, ret, err);
    return st ? pd_error_context(err, as_storage(st, err), "looking for newer launches") : PD_OK;
}

static pd_status fence_check(struct pd_bucket_store *s, struct pd_error *err)
{
    struct fences fences;
    if (!s->fence) return PD_OK;
    const pd_status st = fences_list(s, &fences, err);
    pd_listing_deinit(&fences.names);
    PD_TRY(st);
    if (fences.highest > s->fence)
        PD_FAIL(err, PD_BUSY, "another launch has taken over s3://%s/%s (fence-%" PRIu64 ", ours is fence-%" PRIu64 ")",
                s->url.bucket, s->url.key, fences.highest, s->fence);
    if (fences.highest < s->fence)
        PD_FAIL(err, PD_IO, "fence-%" PRIu64 " of this launch was removed from s3://%s/%s: start the run again", s->fence,
                s->url.bucket, s->url.key);
    return PD_OK;
}

/* *ret_won: the fence is ours. After a lost connection only reading the object shows whose it is. */
static pd_status fence_put(struct pd_bucket_store *s, uint64_t number, const char *mine, bool *ret_won, struct pd_error *err)
{
    char name[PD_STORE_NAME_MAX], *text = NULL;
    size_t bytes = 0;
    snprintf(name, sizeof name, "fence-%" PRIu64, number);
    const struct bucket_key key = key_of(s, name, "");
    struct pd_error own = {0};
    const pd_status st = pd_bucket_put(s->bucket, key.text, mine, strlen(mine), true, &own);
    *ret_won = st == PD_OK;
    if (st == PD_OK) return PD_OK;
    if (st != PD_EXISTS) return pd_error_pass(err, as_storage(st, &own), &own);
    const pd_status found = pd_bucket_get_small(s->bucket, key.text, 4096, &text, &bytes, err);
    *ret_won = found == PD_OK && strcmp(text, mine) == 0;
    free(text);
    return found == PD_NOT_FOUND || found == PD_CORRUPT ? PD_OK : found; /* nobody has won: the caller retries */
}

static pd_status fence_take(struct pd_bucket_store *s, struct pd_error *err)
{
    struct fences fences;
    char mine[300], host[200] = "";
    const uint64_t now = pd_clock_wall_ns();
    (void)!gethostname(host, sizeof host - 1);
    snprintf(mine, sizeof mine, "%s, process %ld, %08" PRIx32 "%08" PRIx32, host, (long)getpid(),
             pd_random_bits(now, (uint64_t)getpid()), pd_random_bits(now, (uintptr_t)s));
    bool has_won = false;
    pd_status st = fences_list(s, &fences, err);
    uint64_t number = fences.highest;
    for (uint32_t i = 0; !st && !has_won && i < FENCE_TRIES; i++)
        st = fence_put(s, ++number, mine, &has_won, err);
    if (!st && !has_won)
        st = pd_error_set(err, PD_IO, PD_WHERE, 0,
                          "cannot take a fence in s3://%s/%s: other launches took each first; start the run again",
                          s->url.bucket, s->url.key);
    if (!st) s->fence = number;
    for (uint32_t i = 0; !st && i < fences.names.count; i++)
        (void)!pd_bucket_delete(s->bucket, fences.names.names[i],
                                NULL); /* ignore failures: those fences are lower than ours */
    pd_listing_deinit(&fences.names);
    return st;
}

/* ---- removing ---- */

/* All objects below step-…, in key order. */
struct contents {
    struct pd_listing keys;
    size_t prefix_bytes;
};

static pd_status object_listed(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    struct contents *c = context;
    (void)bytes, (void)is_directory;
    return PD_ALLOCATED(pd_listing_add(&c->keys, key) == 0, err, "listing checkpoints");
}

/* Splits a key into "step-S-F" and the file name. Returns false if the key is not of that form. */
static bool split_key(const char *key, size_t prefix_bytes, struct pd_store_name *ret_name, struct pd_step_name *ret_step,
                      const char **ret_file)
{
    const char *name = key + prefix_bytes, *slash = strchr(name, '/');
    if (!slash || (size_t)(slash - name) >= sizeof ret_name->text) return false;
    snprintf(ret_name->text, sizeof ret_name->text, "%.*s", (int)(slash - name), name);
    *ret_file = slash + 1;
    return pd_step_name_parse(ret_name->text, ret_step) && !ret_step->is_tmp;
}

static bool is_in_doubt(const struct pd_bucket_store *s, const char *name)
{
    bool is = s->doubt_count == DOUBTS_MAX; /* the list is full: treat every name as in doubt */
    for (uint32_t i = 0; i < s->doubt_count; i++)
        is = is || strcmp(s->doubts[i], name) == 0;
    return is;
}

static bool is_among(char (*names)[PD_STORE_NAME_MAX], uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* Removes one checkpoint, whose objects are keys [first, last). */
static pd_status remove_one(struct pd_bucket_store *s, const struct contents *c, const char *name, uint32_t first,
                            uint32_t last, struct pd_error *err)
{
    const char *keys[PD_BUCKET_DELETE_MAX];
    uint32_t count = 0;
    pd_status st = pd_bucket_delete(s->bucket, key_of(s, name, "commit.h5").text, err);
    for (uint32_t i = first; !st && i < last; i++) {
        if (pd_store_owns_file(strrchr(c->keys.names[i], '/') + 1)) keys[count++] = c->keys.names[i];
        if (count < PD_BUCKET_DELETE_MAX && i + 1 < last) continue;
        st = pd_bucket_delete_many(s->bucket, keys, count, err);
        count = 0;
    }
    return st ? pd_error_context(err, as_storage(st, err), "removing %s", name) : PD_OK;
}

/* Removes the `victims` (count), and directories that have no record and cannot get one. Returns the first failure. */
static pd_status clear(struct pd_bucket_store *s, char (*victims)[PD_STORE_NAME_MAX], uint32_t count, struct pd_error *err)
{
    const struct bucket_key prefix = key_of(s, "step-", "");
    struct contents c = {.prefix_bytes = strlen(prefix.text) - strlen("step-")};
    struct fences fences = {.highest = s->fence};
    pd_status first_failure = pd_bucket_list(s->bucket, prefix.text, true, object_listed, &c, err);
    if (!first_failure && !s->fence) first_failure = fences_list(s, &fences, err);
    const bool is_listed = !first_failure;
    for (uint32_t first = 0, last = 0; is_listed && first < c.keys.count; first = last) {
        struct pd_store_name name, other;
        struct pd_step_name step, ignored;
        const char *file;
        bool has_record = false;
        last = first + 1;
        if (!split_key(c.keys.names[first], c.prefix_bytes, &name, &step, &file)) continue;
        has_record = strcmp(file, "commit.h5") == 0;
        while (last < c.keys.count && split_key(c.keys.names[last], c.prefix_bytes, &other, &ignored, &file) &&
               strcmp(other.text, name.text) == 0) {
            has_record = has_record || strcmp(file, "commit.h5") == 0;
            last++;
        }
        const bool is_dead = step.fence < fences.highest || (step.fence == s->fence && !is_in_doubt(s, name.text));
        if (has_record ? !is_among(victims, count, name.text) : !is_dead) continue;
        struct pd_error own = {0};
        const pd_status st = remove_one(s, &c, name.text, first, last, &own);
        if (!st) store_items_remove(&s->catalog.committed, name.text);
        if (st && !first_failure) first_failure = pd_error_pass(err, st, &own);
    }
    pd_listing_deinit(&fences.names);
    pd_listing_deinit(&c.keys);
    return first_failure;
}

struct uploads {
    struct pd_bucket_store *store;
    size_t prefix_bytes;
    uint64_t below; /* abort uploads of lower fences: nobody continues them */
    uint32_t aborted;
};

static pd_status upload_listed(void *context, const char *key, const char *id, struct pd_error *err)
{
    struct uploads *u = context;
    struct pd_store_name name;
    struct pd_step_name step;
    const char *file;
    if (!split_key(key, u->prefix_bytes, &name, &step, &file) || step.fence >= u->below) return PD_OK;
    u->aborted++;
    return pd_bucket_upload_abort(u->store->bucket, key, id, err);
}

static pd_status abort_uploads(struct pd_bucket_store *s, struct pd_error *err)
{
    const struct bucket_key prefix = key_of(s, "step-", "");
    struct uploads u = {.store = s, .prefix_bytes = strlen(prefix.text) - strlen("step-"), .below = s->fence + 1};
    if (!s->fence) {
        struct fences fences;
        const pd_status st = fences_list(s, &fences, err);
        pd_listing_deinit(&fences.names);
        PD_TRY(st);
        u.below = fences.highest;
    }
    const pd_status st = pd_bucket_uploads(s->bucket, prefix.text, upload_listed, &u, err);
    if (u.aborted)
        pd_log_info(BUCKET_STORE_MODULE, "s3://%s/%s: aborted %" PRIu32 " uploads that dead launches left", s->url.bucket,
                    s->url.key, u.aborted);
    return st ? pd_error_context(err, as_storage(st, err), "aborting uploads that dead launches left") : PD_OK;
}

/* ---- opening ---- */

static pd_status open_here(struct pd_bucket_store *s, const char *url, struct pd_error *err)
{
    PD_TRY(pd_object_url_parse(url, &s->url, err));
    if (strlen(s->url.key) > PD_OBJECT_KEY_MAX - 100)
        PD_FAIL(err, PD_INVALID, "%s: the prefix is longer than %u bytes: choose a shorter one", url,
                PD_OBJECT_KEY_MAX - 100);
    PD_TRY(pd_bucket_open(s->url.bucket, s->options.stop, &s->bucket, err));
    s->upload.bucket = s->bucket;
    s->upload.memory = s->options.memory;
    s->upload.memory_bytes = s->options.memory_bytes;
    s->upload.bytes_per_second = s->options.bytes_per_second;
    s->upload.stop = s->options.stop;
    s->upload.bytes_sent = s->options.sent;
    s->upload.wait = s->options.wait;
    s->upload.wait_context = s->options.wait_context;
    return PD_OK;
}

/* Root only. The next launch retries what cannot be removed now. */
static pd_status begin_launch(struct pd_bucket_store *s, struct pd_error *err)
{
    if (s->options.only_removes) return PD_OK;
    PD_TRY(pd_bucket_probe(s->bucket, s->url.key, 0, NULL, err));
    PD_TRY(fence_take(s, err));
    struct pd_error own = {0};
    pd_status st = clear(s, NULL, 0, &own);
    if (!st) st = abort_uploads(s, &own);
    if (st)
        pd_log_warn(BUCKET_STORE_MODULE,
                    "cannot remove what dead launches left in s3://%s/%s; the next launch tries again: %s", s->url.bucket,
                    s->url.key, own.message);
    return PD_OK;
}

/* Every rank: its host may have other credentials than the root's, and would not notice before its first upload. Our fence
 * exists, so a server that lets us put answers PD_EXISTS. If a newer launch has removed it, the object is a lower fence than
 * the newest, which the next launch removes. */
static pd_status try_put(struct pd_bucket_store *s, struct pd_error *err)
{
    char name[PD_STORE_NAME_MAX], host[65] = "";
    struct pd_error own = {0};
    if (!s->fence || !s->group->rank) return PD_OK;
    snprintf(name, sizeof name, "fence-%" PRIu64, s->fence);
    const pd_status st = pd_bucket_put(s->bucket, key_of(s, name, "").text, "", 0, true, &own);
    if (!st || st == PD_EXISTS) return PD_OK;
    (void)!gethostname(host, sizeof host - 1);
    (void)pd_error_pass(err, as_storage(st, &own), &own);
    return pd_error_context(err, as_storage(st, &own), "host %s", host);
}

pd_status pd_bucket_store_open(const char *url, const struct pd_bucket_store_options *options, struct pd_group *group,
                               struct pd_bucket_store **ret_store, struct pd_error *err)
{
    PD_CHECK(options->only_removes || options->memory_bytes >= PD_BUCKET_STORE_MEMORY_LEAST);
    struct pd_bucket_store *s = calloc(1, sizeof *s);
    pd_status st = PD_ALLOCATED(s, err, "opening %s", url);
    if (s) {
        s->options = *options;
        s->group = group;
        st = open_here(s, url, err);
    }
    st = pd_group_agree(group, st, err);
    if (!st) st = pd_group_agree(group, group->rank ? PD_OK : as_storage(begin_launch(s, err), err), err);
    if (!st) st = pd_group_broadcast(group, 0, &s->fence, sizeof s->fence, err);
    if (!st) st = pd_group_agree(group, try_put(s, err), err);
    if (st) {
        pd_bucket_store_close(s);
        return pd_error_context(err, st, "checkpoints in %s", url);
    }
    *ret_store = s;
    return PD_OK;
}

void pd_bucket_store_close(struct pd_bucket_store *s)
{
    if (!s) return;
    pd_bucket_close(s->bucket);
    store_catalog_deinit(&s->catalog);
    free(s);
}

uint64_t pd_bucket_store_fence(const struct pd_bucket_store *s)
{
    return s->fence;
}

pd_status pd_bucket_store_take(struct pd_bucket_store *s, const struct pd_store *found, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(found); i++) {
        const struct store_item item = {.entry = *pd_store_entry_at(found, i)};
        if (store_items_find(&s->catalog.committed, item.entry.name)) continue;
        PD_TRY(store_items_reserve(&s->catalog.committed, err));
        store_items_add(&s->catalog.committed, &item);
    }
    return PD_OK;
}

/* ---- saving ---- */

/* *ret_is_there: an earlier save of this launch has already committed it. */
static pd_status begin_save(struct pd_bucket_store *s, const char *name, bool *ret_is_there, struct pd_error *err)
{
    char *data = NULL;
    size_t bytes = 0;
    struct pd_error own = {0};
    *ret_is_there = false;
    PD_TRY(store_items_reserve(&s->catalog.committed, err));
    PD_TRY(fence_check(s, err));
    const struct bucket_key key = key_of(s, name, "commit.h5");
    const pd_status st = pd_bucket_get_small(s->bucket, key.text, PD_HTTP_TEXT_MAX, &data, &bytes, &own);
    free(data);
    *ret_is_there = st == PD_OK;
    return st == PD_NOT_FOUND ? PD_OK : pd_error_pass(err, as_storage(st, &own), &own);
}

static pd_status send_shard(struct pd_bucket_store *s, struct pd_vfs *vfs, const char *source, const char *name,
                            const struct pd_commit *commit, uint32_t number, struct pd_error *err)
{
    char path[PD_VFS_PATH_MAX];
    struct pd_shard *shard = NULL;
    const struct pd_store_name file = pd_shard_name(number);
    snprintf(path, sizeof path, "%.4000s/%s", source, file.text);
    PD_TRY(pd_shard_open(vfs, path, &commit->state.identity, &commit->shards[number], &shard, err));
    pd_status st = pd_shard_verify_made(shard, s->options.memory, s->options.memory_bytes, err);
    s->upload.shard = shard;
    if (!st) st = pd_upload_file(&s->upload, path, key_of(s, name, file.text).text, err);
    s->upload.shard = NULL;
    pd_shard_close(shard);
    return st;
}

static pd_status send_all(struct pd_bucket_store *s, struct pd_vfs *vfs, const char *source, const char *name,
                          const struct pd_commit *commit, struct pd_error *err)
{
    char path[PD_VFS_PATH_MAX];
    s->upload.vfs = vfs;
    for (uint32_t i = s->group->rank; i < commit->shard_count; i += s->group->size)
        PD_TRY(send_shard(s, vfs, source, name, commit, i, err));
    pd_fault_point("objects.save.sent");
    if (s->group->rank || !commit->state.index_digest) return PD_OK;
    snprintf(path, sizeof path, "%.4000s/index.h5", source);
    return pd_upload_file(&s->upload, path, key_of(s, name, "index.h5").text, err);
}

/* Compares the record under our name with ours: it is ours if only the answer to an earlier try was lost.
 * PD_NOT_FOUND: there is no record */
static pd_status compare_record(struct pd_bucket_store *s, const char *key, const void *data, uint64_t bytes,
                                struct pd_error *err)
{
    char *found = NULL;
    size_t found_bytes = 0;
    PD_TRY(pd_bucket_get_small(s->bucket, key, PD_HTTP_TEXT_MAX, &found, &found_bytes, err));
    const bool is_ours = found_bytes == bytes && memcmp(found, data, bytes) == 0;
    free(found);
    if (is_ours) return PD_OK;
    PD_FAIL(err, PD_BUSY, "another launch has put s3://%s/%s with the fence of this launch", s->url.bucket, key);
}

/* After a 409 or no answer we do not know who put the record, if anybody did. Reading it tells. */
static pd_status put_record(struct pd_bucket_store *s, const char *key, const void *data, uint64_t bytes,
                            struct pd_error *err)
{
    pd_status st = PD_EXISTS, result = PD_IO;
    for (uint32_t i = 0; st == PD_EXISTS && i < RECORD_TRIES; i++) {
        struct pd_error own = {0}, compared = {0};
        st = pd_bucket_put(s->bucket, key, data, bytes, true, &own);
        if (st == PD_OK) return PD_OK;
        const pd_status found = compare_record(s, key, data, bytes, &compared);
        if (found == PD_OK) return PD_OK;
        if (found == PD_BUSY) return pd_error_pass(err, found, &compared);
        result = as_storage(st, &own);
        (void)pd_error_pass(err, result, &own);
    }
    return result;
}

static pd_status commit_here(struct pd_bucket_store *s, const char *name, const struct pd_commit *source,
                             struct pd_error *err)
{
    struct pd_commit commit = *source;
    void *data = NULL;
    uint64_t bytes = 0;
    commit.state.fence = s->fence;
    PD_TRY(pd_commit_encode(&commit, &data, &bytes, err));
    pd_status st = fence_check(s, err);
    if (!st && bytes > PD_HTTP_TEXT_MAX)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "the commit record has %" PRIu64 " bytes, too many for a bucket",
                          bytes);
    if (!st) {
        pd_fault_point("objects.commit.checked");
        st = put_record(s, key_of(s, name, "commit.h5").text, data, bytes, err);
        if (!st) st = fence_check(s, err);
        if (st && s->doubt_count < DOUBTS_MAX) snprintf(s->doubts[s->doubt_count++], PD_STORE_NAME_MAX, "%s", name);
        if (!st) pd_fault_point("objects.commit.put");
    }
    free(data);
    return st;
}

static void add_item(struct pd_bucket_store *s, const char *name, const struct pd_commit *commit)
{
    struct store_item item = {.entry = {.lineage = commit->state.identity.lineage,
                                        .step = commit->state.identity.step,
                                        .fence = s->fence,
                                        .shard_count = commit->shard_count}};
    snprintf(item.entry.name, sizeof item.entry.name, "%s", name);
    if (!store_items_find(&s->catalog.committed, name)) store_items_add(&s->catalog.committed, &item);
}

/* A failure does not fail the save: the next one tries again. */
static void put_beside(struct pd_bucket_store *s, struct pd_vfs *vfs)
{
    struct pd_stat stat;
    struct pd_error err;
    const char *path = s->options.beside;
    if (!path || s->has_beside || pd_vfs_stat(vfs, path, &stat, &err)) return;
    struct pd_upload upload = s->upload;
    upload.bytes_sent = NULL; /* counts checkpoints */
    if (pd_upload_file(&upload, path, key_of(s, strrchr(path, '/') + 1, "").text, &err))
        pd_log_warn(BUCKET_STORE_MODULE, "%s is not copied to s3://%s/%s: %s", path, s->url.bucket, s->url.key, err.message);
    else
        s->has_beside = true;
}

pd_status pd_bucket_store_save(struct pd_bucket_store *s, struct pd_vfs *vfs, const char *source,
                               const struct pd_commit *commit, char *ret_name, struct pd_error *err)
{
    const bool is_root = s->group->rank == 0;
    const struct pd_step_name step = {.step = commit->state.identity.step, .fence = s->fence};
    const struct pd_store_name name = pd_step_name_text(&step);
    uint64_t is_there = 0;
    bool found = false;
    PD_CHECK(s->fence);
    pd_status st = pd_group_agree(s->group, is_root ? begin_save(s, name.text, &found, err) : PD_OK, err);
    is_there = found;
    if (!st) st = pd_group_broadcast(s->group, 0, &is_there, sizeof is_there, err);
    if (!st && !is_there) {
        st = send_all(s, vfs, source, name.text, commit, err);
        st = pd_group_agree(s->group, as_storage(st, err), err);
        if (!st) st = pd_group_agree(s->group, is_root ? commit_here(s, name.text, commit, err) : PD_OK, err);
    }
    PD_TRY(st);
    if (is_root) add_item(s, name.text, commit);
    if (is_root) put_beside(s, vfs);
    memcpy(ret_name, name.text, sizeof name.text);
    return PD_OK;
}

static pd_status prune_here(struct pd_bucket_store *s, struct pd_error *err)
{
    const struct pd_store_options retention = {.keep_last = s->options.keep_last, .keep_every = s->options.keep_every};
    char(*victims)[PD_STORE_NAME_MAX] = NULL;
    uint32_t count = 0;
    PD_TRY(fence_check(s, err));
    pd_status st = store_catalog_victims(&s->catalog, &retention, &victims, &count, err);
    if (!st) st = clear(s, victims, count, err);
    if (!st) st = abort_uploads(s, err); /* this launch has no upload running */
    free(victims);
    return st;
}

pd_status pd_bucket_store_prune(struct pd_bucket_store *s, struct pd_error *err)
{
    return pd_group_agree(s->group, s->group->rank ? PD_OK : prune_here(s, err), err);
}
