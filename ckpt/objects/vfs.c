#include "ckpt/objects/vfs.h"
#include "ckpt/objects/bucket.h"
#include "ckpt/objects/url.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/grow.h"
#include "ckpt/io/threads.h"
#include "ckpt/io/vfs_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_DEPTH 1024u /* waiting reads are joined */
#define THREADS 16u       /* concurrent requests of a queue */
#define LISTED_NS UINT64_C(1000000000)

struct objects_bucket {
    char name[PD_BUCKET_NAME_MAX + 1];
    struct pd_bucket *bucket;
};

/* Callers that list a directory usually stat each file next. Names are immutable, so the last listing answers that for a
 * moment. A name that is not in it may be new: ask the server. */
struct objects_seen {
    char bucket[PD_BUCKET_NAME_MAX + 1], prefix[PD_OBJECT_KEY_MAX + 2];
    uint64_t at_ns;
    struct pd_listing names; /* in the server's order */
    struct pd_stat *stats;   /* (names.count) */
};

/* The directory that was found last, which callers often look for again. */
struct objects_found {
    char bucket[PD_BUCKET_NAME_MAX + 1], key[PD_OBJECT_KEY_MAX + 1];
    uint64_t at_ns; /* 0: none */
};

struct objects {
    struct pd_io_threads *threads;
    pthread_mutex_t mutex;          /* guards the fields below */
    struct objects_bucket *buckets; /* (bucket_count), open until the VFS is freed */
    uint32_t bucket_count;
    struct objects_seen seen; /* the last listing */
    struct objects_found found;
};

struct objects_file {
    struct pd_bucket *bucket;
    struct pd_object object;
    struct pd_object_url url;
};

/* Converts an error to an errno. The VFS keeps its text, which the wrapper puts into its own message. */
static int objects_failed(struct pd_vfs *vfs, pd_status st, const struct pd_error *err)
{
    if (!st) return 0;
    const int number = err->sys_errno ? err->sys_errno : st == PD_NOT_FOUND ? ENOENT : st == PD_INVALID ? EINVAL : EIO;
    pd_vfs_set_failure(vfs, number, err);
    return number;
}

static pd_status objects_bucket(struct pd_vfs *vfs, const char *name, struct pd_bucket **ret, struct pd_error *err)
{
    struct objects *objects = vfs->context;
    pd_status st = PD_OK;
    pthread_mutex_lock(&objects->mutex);
    uint32_t i = 0;
    while (i < objects->bucket_count && strcmp(objects->buckets[i].name, name) != 0)
        i++;
    if (i == objects->bucket_count) {
        struct objects_bucket made = {.bucket = NULL};
        snprintf(made.name, sizeof made.name, "%s", name);
        st = PD_ALLOCATED(pd_grow(&objects->buckets, i, sizeof made), err, "opening bucket %s", name);
        if (!st) st = pd_bucket_open(name, NULL, &made.bucket, err);
        if (!st) objects->buckets[objects->bucket_count++] = made;
    }
    if (!st) *ret = objects->buckets[i].bucket;
    pthread_mutex_unlock(&objects->mutex);
    return st;
}

static pd_status objects_find(struct pd_vfs *vfs, const char *path, struct pd_object_url *ret_url,
                              struct pd_bucket **ret_bucket, struct pd_error *err)
{
    PD_TRY(pd_object_url_parse(path, ret_url, err));
    return objects_bucket(vfs, ret_url->bucket, ret_bucket, err);
}

static struct pd_stat stat_of(uint64_t bytes, bool is_directory)
{
    if (is_directory) return (struct pd_stat){.type = PD_ENTRY_DIRECTORY, .link_count = 1};
    return (struct pd_stat){.type = PD_ENTRY_FILE, .bytes = bytes, .allocated_bytes = bytes, .link_count = 1};
}

static void seen_deinit(struct objects_seen *seen)
{
    pd_listing_deinit(&seen->names);
    free(seen->stats);
}

static bool seen_find(struct objects *objects, const struct pd_object_url *url, struct pd_stat *ret)
{
    const struct objects_seen *seen = &objects->seen;
    bool is_found = false;
    pthread_mutex_lock(&objects->mutex);
    const size_t prefix = strlen(seen->prefix);
    const bool is_there = strcmp(seen->bucket, url->bucket) == 0 && strncmp(url->key, seen->prefix, prefix) == 0 &&
                          pd_clock_monotonic_ns(NULL) - seen->at_ns < LISTED_NS;
    for (uint32_t i = 0; is_there && i < seen->names.count && !is_found; i++) {
        is_found = strcmp(seen->names.names[i], url->key + prefix) == 0;
        if (is_found) *ret = seen->stats[i];
    }
    const struct objects_found *found = &objects->found;
    if (!is_found && found->at_ns && strcmp(found->key, url->key) == 0 && strcmp(found->bucket, url->bucket) == 0 &&
        pd_clock_monotonic_ns(NULL) - found->at_ns < LISTED_NS) {
        is_found = true;
        *ret = stat_of(0, true);
    }
    pthread_mutex_unlock(&objects->mutex);
    return is_found;
}

struct objects_listing {
    struct pd_listing *listing;
    struct objects_seen *seen;
    size_t prefix_bytes;
};

static pd_status objects_listed(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    struct objects_listing *l = context;
    if (strlen(key) <= l->prefix_bytes) return PD_OK; /* some tools put the directory itself there as an object */
    if (strchr(key + l->prefix_bytes, '/'))
        PD_FAIL(err, PD_CORRUPT, "the server listed %s, which is in a subdirectory of the listed one", key);
    struct objects_seen *seen = l->seen;
    const bool has_memory = pd_grow(&seen->stats, seen->names.count, sizeof *seen->stats) &&
                            pd_listing_add(&seen->names, key + l->prefix_bytes) == 0 &&
                            pd_listing_add(l->listing, key + l->prefix_bytes) == 0;
    PD_TRY(PD_ALLOCATED(has_memory, err, "listing a bucket"));
    seen->stats[seen->names.count - 1] = stat_of(bytes, is_directory);
    return PD_OK;
}

static pd_status objects_any(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    (void)key, (void)bytes, (void)is_directory, (void)err;
    *(bool *)context = true;
    return PD_STOPPED; /* one is enough */
}

/* The key prefix of a directory: "a/b/" for "a/b", "" for the whole bucket. */
static void objects_prefix(const struct pd_object_url *url, char ret[PD_OBJECT_KEY_MAX + 2])
{
    snprintf(ret, PD_OBJECT_KEY_MAX + 2, "%s%s", url->key, url->key[0] ? "/" : "");
}

static pd_status objects_look(struct pd_vfs *vfs, const char *path, struct pd_stat *ret, struct pd_error *err)
{
    struct objects_file file = {.bucket = NULL};
    char prefix[PD_OBJECT_KEY_MAX + 2];
    bool is_directory = false;
    struct pd_error own = {0};
    PD_TRY(objects_find(vfs, path, &file.url, &file.bucket, err));
    if (seen_find(vfs->context, &file.url, ret)) return PD_OK;
    pd_status st = file.url.key[0] ? pd_bucket_head(file.bucket, file.url.key, &file.object, &own) : PD_NOT_FOUND;
    if (!st) {
        *ret = stat_of(file.object.bytes, false);
        return PD_OK;
    }
    if (st != PD_NOT_FOUND) return pd_error_pass(err, st, &own);
    objects_prefix(&file.url, prefix);
    PD_TRY(pd_bucket_list(file.bucket, prefix, false, objects_any, &is_directory, err));
    if (!is_directory && file.url.key[0]) return pd_error_pass(err, st, &own);
    *ret = stat_of(0, true);
    if (!is_directory) return PD_OK; /* the whole bucket, which may be empty */
    struct objects *objects = vfs->context;
    struct objects_found found = {.at_ns = pd_clock_monotonic_ns(NULL)};
    memcpy(found.bucket, file.url.bucket, sizeof found.bucket);
    memcpy(found.key, file.url.key, sizeof found.key);
    pthread_mutex_lock(&objects->mutex);
    objects->found = found;
    pthread_mutex_unlock(&objects->mutex);
    return PD_OK;
}

/* ---- files ---- */

static int objects_open(struct pd_file *file, unsigned flags)
{
    if (flags & PD_OPEN_WRITE) return EROFS;
    struct pd_error err = {0};
    struct objects_file *made = calloc(1, sizeof *made);
    if (!made) return ENOMEM;
    pd_status st = objects_find(file->vfs, file->path, &made->url, &made->bucket, &err);
    if (!st) st = pd_bucket_head(made->bucket, made->url.key, &made->object, &err);
    if (!st) {
        file->context = made;
        atomic_store(&file->direct, false); /* any address will do */
    } else {
        free(made);
    }
    return objects_failed(file->vfs, st, &err);
}

static int objects_close(struct pd_file *file)
{
    free(file->context);
    return 0;
}

static int objects_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved)
{
    const struct objects_file *f = file->context;
    struct pd_error err = {0};
    const uint64_t left = offset < f->object.bytes ? f->object.bytes - offset : 0, moved = bytes < left ? bytes : left;
    const struct iovec into = {data, moved};
    const pd_status st = moved ? pd_bucket_get(f->bucket, f->url.key, f->object.etag, offset, &into, 1, &err) : PD_OK;
    if (!st) *ret_moved = moved;
    return objects_failed(file->vfs, st, &err);
}

static int objects_read_pieces(struct pd_file *file, uint64_t offset, const struct iovec *pieces, uint32_t count)
{
    const struct objects_file *f = file->context;
    struct pd_error err = {0};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += pieces[i].iov_len;
    if (offset + bytes > f->object.bytes) return PD_MOVE_END_OF_FILE;
    return objects_failed(file->vfs, pd_bucket_get(f->bucket, f->url.key, f->object.etag, offset, pieces, count, &err),
                          &err);
}

static const struct pd_io_join objects_join = {.bytes_max = 8 << 20, .read = objects_read_pieces};

static int objects_file_stat(struct pd_file *file, struct pd_stat *ret_stat)
{
    const struct objects_file *f = file->context;
    *ret_stat = stat_of(f->object.bytes, false);
    return 0;
}

/* ---- names ---- */

static int objects_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat)
{
    struct pd_error err = {0};
    return objects_failed(vfs, objects_look(vfs, path, ret_stat, &err), &err);
}

static int objects_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing)
{
    struct pd_object_url url;
    struct pd_bucket *bucket = NULL;
    struct pd_error err = {0};
    char prefix[PD_OBJECT_KEY_MAX + 2];
    pd_status st = objects_find(vfs, path, &url, &bucket, &err);
    if (!st) {
        struct objects *objects = vfs->context;
        struct objects_seen seen = {.at_ns = pd_clock_monotonic_ns(NULL)};
        objects_prefix(&url, prefix);
        memcpy(seen.bucket, url.bucket, sizeof seen.bucket);
        memcpy(seen.prefix, prefix, sizeof seen.prefix);
        struct objects_listing listing = {ret_listing, &seen, strlen(prefix)};
        st = pd_bucket_list(bucket, prefix, false, objects_listed, &listing, &err);
        pthread_mutex_lock(&objects->mutex);
        struct objects_seen old = st ? seen : objects->seen;
        if (!st) objects->seen = seen;
        pthread_mutex_unlock(&objects->mutex);
        seen_deinit(&old);
    }
    if (!st && !ret_listing->count && url.key[0]) /* a bucket has no empty directories */
        st = pd_error_set(&err, PD_NOT_FOUND, PD_WHERE, 0, "%s: there is no such object or prefix", path);
    return objects_failed(vfs, st, &err);
}

/* Slots that would write: only uploads write to a bucket. */
static int refuse_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved)
{
    (void)file, (void)offset, (void)data, (void)bytes, (void)ret_moved;
    return EROFS;
}

static int refuse_size(struct pd_file *file, uint64_t bytes)
{
    (void)file, (void)bytes;
    return EROFS;
}

static int refuse_file(struct pd_file *file)
{
    (void)file;
    return EROFS;
}

static int refuse_two(struct pd_vfs *vfs, const char *from, const char *to)
{
    (void)vfs, (void)from, (void)to;
    return EROFS;
}

static int refuse_path(struct pd_vfs *vfs, const char *path)
{
    (void)vfs, (void)path;
    return EROFS;
}

static int no_link(struct pd_vfs *vfs, const char *path, char ret_target[PD_VFS_PATH_MAX])
{
    (void)vfs, (void)path, (void)ret_target;
    return EINVAL;
}

static int no_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space)
{
    (void)vfs, (void)path, (void)ret_space;
    return EOPNOTSUPP;
}

static int no_lock(struct pd_vfs *vfs, const char *path, struct pd_lock *lock)
{
    (void)vfs, (void)path, (void)lock;
    return EOPNOTSUPP;
}

static void no_unlock(struct pd_lock *lock)
{
    (void)lock;
}

/* Only removal opens directories. */
static int no_dir(struct pd_dir *dir, const struct pd_dir *parent, const char *name)
{
    (void)dir, (void)parent, (void)name;
    return EROFS;
}

static int no_dir_list(struct pd_dir *dir, struct pd_listing *ret_listing)
{
    (void)dir, (void)ret_listing;
    return EROFS;
}

static int no_dir_unlink(struct pd_dir *dir, const char *name, bool is_directory)
{
    (void)dir, (void)name, (void)is_directory;
    return EROFS;
}

static void no_dir_close(struct pd_dir *dir)
{
    (void)dir;
}

static int stays_direct(struct pd_file *file)
{
    (void)file; /* there is no page cache here */
    return 0;
}

static int objects_queue_open(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    (void)buffers, (void)buffer_bytes;
    return pd_io_threads_queue_open(((struct objects *)queue->vfs->context)->threads, queue);
}

static void objects_free(struct objects *objects)
{
    pd_io_threads_free(objects->threads);
    for (uint32_t i = 0; i < objects->bucket_count; i++)
        pd_bucket_close(objects->buckets[i].bucket);
    seen_deinit(&objects->seen);
    pthread_mutex_destroy(&objects->mutex);
    free(objects->buckets);
    free(objects);
}

static void vfs_free(struct pd_vfs *vfs)
{
    objects_free(vfs->context);
}

static const struct pd_vfs_ops objects_ops = {
    .name = "object storage",
    .open = objects_open,
    .close = objects_close,
    .read = objects_read,
    .write = refuse_write,
    .preallocate = refuse_size,
    .truncate = refuse_size,
    .sync = refuse_file,
    .file_stat = objects_file_stat,
    .set_buffered = stays_direct,
    .rename = refuse_two,
    .link = refuse_two,
    .readlink = no_link,
    .unlink = refuse_path,
    .mkdir = refuse_path,
    .rmdir = refuse_path,
    .sync_dir = refuse_path,
    .stat = objects_stat,
    .space = no_space,
    .list = objects_list,
    .dir_open = no_dir,
    .dir_list = no_dir_list,
    .dir_unlink = no_dir_unlink,
    .dir_close = no_dir_close,
    .lock = no_lock,
    .unlock = no_unlock,
    .queue_open = objects_queue_open,
    .free = vfs_free,
};

pd_status pd_vfs_new_objects(struct pd_vfs **ret_vfs, struct pd_error *err)
{
    struct objects *objects = calloc(1, sizeof *objects);
    if (!objects) PD_FAIL(err, PD_NO_MEMORY, "opening object storage");
    pthread_mutex_init(&objects->mutex, NULL);
    pd_status st = pd_io_threads_new(THREADS, &objects_join, &objects->threads, err);
    if (!st) st = pd_vfs_new(&objects_ops, QUEUE_DEPTH, objects, ret_vfs, err);
    if (st) objects_free(objects);
    return st;
}
