/* The wrappers of the VFS table: check arguments, call slots, continue short transfers, turn errno into a message. */
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/trace.h"
#include "ckpt/io/vfs_ops.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- VFSs ---- */

pd_status pd_vfs_new(const struct pd_vfs_ops *ops, uint32_t queue_depth, void *context, struct pd_vfs **ret_vfs,
                     struct pd_error *err)
{
    if (queue_depth == 0 || queue_depth > 4096)
        PD_FAIL(err, PD_INVALID, "a queue depth of %" PRIu32 " is outside 1..4096", queue_depth);
    struct pd_vfs *vfs = calloc(1, sizeof *vfs);
    if (!vfs) PD_FAIL_ERRNO(err, ENOMEM, "opening the %s disk VFS", ops->name);
    vfs->ops = ops;
    vfs->queue_depth = queue_depth;
    vfs->context = context;
    pthread_mutex_init(&vfs->mutex, NULL);
    atomic_store(&vfs->description, ops->name);
    *ret_vfs = vfs;
    return PD_OK;
}

void pd_vfs_free(struct pd_vfs *vfs)
{
    if (!vfs) return;
    pd_vfs_free(vfs->remote);
    vfs->ops->free(vfs);
    pthread_mutex_destroy(&vfs->mutex);
    free(vfs);
}

static struct {
    const char *scheme; /* NULL: none is registered */
    pd_status (*open)(struct pd_vfs **ret_vfs, struct pd_error *err);
} remote;

void pd_vfs_register_remote(const char *scheme, pd_status (*open)(struct pd_vfs **ret_vfs, struct pd_error *err))
{
    remote.scheme = scheme;
    remote.open = open;
}

bool pd_vfs_is_remote(const char *path)
{
    return remote.scheme && strncmp(path, remote.scheme, strlen(remote.scheme)) == 0;
}

pd_status pd_vfs_of_path(struct pd_vfs **vfs, const char *path, struct pd_error *err)
{
    struct pd_vfs *local = *vfs;
    pd_status st = PD_OK;
    if (!pd_vfs_is_remote(path)) return PD_OK;
    pthread_mutex_lock(&local->mutex);
    if (!local->remote) st = remote.open(&local->remote, err);
    if (!st) *vfs = local->remote;
    pthread_mutex_unlock(&local->mutex);
    return st;
}

const char *pd_vfs_describe(const struct pd_vfs *vfs)
{
    return atomic_load(&vfs->description);
}

struct pd_vfs_counts pd_vfs_counts(const struct pd_vfs *vfs)
{
    struct pd_vfs_counts counts = {atomic_load(&vfs->bytes_read), atomic_load(&vfs->bytes_written),
                                   atomic_load(&vfs->flushes)};
    if (vfs->remote) counts.bytes_read += atomic_load(&vfs->remote->bytes_read); /* the remote VFS is read-only */
    return counts;
}

void pd_vfs_count_flush(struct pd_vfs *vfs)
{
    atomic_fetch_add(&vfs->flushes, 1);
}

/* Readers take no lock, so a published text never changes; a VFS publishes only a few. */
void pd_vfs_set_description(struct pd_vfs *vfs, const char *format, ...)
{
    pthread_mutex_lock(&vfs->mutex);
    if (vfs->text_count < sizeof vfs->texts / sizeof *vfs->texts) {
        char *text = vfs->texts[vfs->text_count++];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof *vfs->texts, format, arguments);
        va_end(arguments);
        atomic_store(&vfs->description, text);
    }
    pthread_mutex_unlock(&vfs->mutex);
}

void pd_vfs_set_failure(struct pd_vfs *vfs, int sys_errno, const struct pd_error *failure)
{
    pthread_mutex_lock(&vfs->mutex);
    vfs->failure = *failure;
    vfs->failure_errno = sys_errno;
    pthread_mutex_unlock(&vfs->mutex);
}

pd_status pd_vfs_explain(struct pd_vfs *vfs, pd_status st, struct pd_error *err)
{
    pthread_mutex_lock(&vfs->mutex);
    if (err && err->sys_errno && err->sys_errno == vfs->failure_errno) {
        const char *errno_text = strerrordesc_np(err->sys_errno), *said = vfs->failure.message;
        const char *colon = strstr(said, ": "); /* drop "s3://bucket/key: " if the message already has it */
        if (colon && memmem(err->message, strlen(err->message), said, (size_t)(colon - said))) said = colon + 2;
        const size_t bytes = strlen(err->message), length = strlen(errno_text);
        const bool ends = bytes > length && strcmp(err->message + bytes - length, errno_text) == 0;
        snprintf(err->message + bytes - (ends ? length : 0), sizeof err->message - bytes + (ends ? length : 0), "%s%s",
                 ends ? "" : ": ", said); /* replaces the errno text */
        st = pd_error_change(err, vfs->failure.status);
    }
    pthread_mutex_unlock(&vfs->mutex);
    return st;
}

/* ---- direct I/O that is refused ---- */

/* Warns once per process, since ranks may be threads. The fallback is correct but slower. */
static void log_buffered(const struct pd_file *file, const char *when)
{
    static _Atomic bool is_logged;
    if (!atomic_exchange(&is_logged, true))
        pd_log_warn("io", "%s: this file system refuses direct I/O at %s; buffered I/O is used and may be slower",
                    file->path, when);
}

bool pd_file_fall_back(struct pd_file *file, bool was_direct, int sys_errno)
{
    if (sys_errno != EINVAL || !was_direct) return false;
    if (!atomic_load(&file->direct)) return true; /* another transfer has already fallen back */
    if (file->vfs->ops->set_buffered(file) != 0) return false;
    if (atomic_exchange(&file->direct, false)) log_buffered(file, "the first transfer");
    return true;
}

/* ---- files ---- */

static int open_slot(struct pd_file *file, bool *ret_refused)
{
    const struct pd_vfs_ops *ops = file->vfs->ops;
    int result = ops->open(file, file->flags);
    *ret_refused = (file->flags & PD_OPEN_DIRECT) && (result == EINVAL || result == EOPNOTSUPP);
    if (!*ret_refused) return result;
    /* The refused open may have created the file: do not ask for O_EXCL again. */
    unsigned flags = file->flags & ~(unsigned)PD_OPEN_DIRECT;
    result = ops->open(file, flags);
    if (result == EEXIST && (flags & PD_OPEN_EXCLUSIVE)) {
        struct pd_stat st;
        bool is_ours = ops->stat(file->vfs, file->path, &st) == 0 && st.type == PD_ENTRY_FILE && st.bytes == 0;
        if (is_ours) result = ops->open(file, flags & ~(unsigned)PD_OPEN_EXCLUSIVE);
    }
    return result;
}

pd_status pd_file_open(struct pd_vfs *vfs, const char *path, unsigned flags, struct pd_file **ret_file, struct pd_error *err)
{
    PD_CHECK(flags & (PD_OPEN_READ | PD_OPEN_WRITE));
    PD_CHECK((flags & PD_OPEN_WRITE) || !(flags & (PD_OPEN_TRUNCATE | PD_OPEN_CREATE)));
    PD_TRY(pd_vfs_of_path(&vfs, path, err));
    struct pd_file *file = calloc(1, sizeof *file);
    char *copy = strdup(path);
    if (!file || !copy) {
        free(file);
        free(copy);
        PD_FAIL_ERRNO(err, ENOMEM, "open %s", path);
    }
    *file = (struct pd_file){.vfs = vfs, .path = copy, .flags = flags, .fd = -1, .direct = flags & PD_OPEN_DIRECT};
    bool refused = false;
    int result;
    PD_ON_STORAGE(result = open_slot(file, &refused));
    if (result) {
        free(file);
        free(copy);
        if (result == ENXIO) PD_FAIL(err, PD_IO, "open %s: it is not a regular file", path);
        const pd_status st = flags & PD_OPEN_EXCLUSIVE ? pd_vfs_name_status(result) : pd_status_from_errno(result);
        pd_error_set(err, st, PD_WHERE, result, "open %s%s", path, flags & PD_OPEN_CREATE ? " for writing" : "");
        return pd_vfs_explain(vfs, st, err);
    }
    if (refused) {
        atomic_store(&file->direct, false);
        log_buffered(file, "open");
    }
    *ret_file = file;
    return PD_OK;
}

pd_status pd_file_close(struct pd_file *file, struct pd_error *err)
{
    int result;
    PD_ON_STORAGE(result = file->vfs->ops->close(file));
    pd_status status = PD_OK;
    if (result) status = pd_error_set(err, pd_status_from_errno(result), PD_WHERE, result, "close %s", file->path);
    free(file->path);
    free(file);
    return status;
}

void pd_file_close_readonly(struct pd_file *file)
{
    if (!file) return;
    pd_status unused = pd_file_close(file, NULL);
    (void)unused; /* nothing was written, so nothing can be lost */
}

bool pd_file_is_direct(const struct pd_file *file)
{
    return atomic_load(&file->direct);
}

uint64_t pd_file_progress(const struct pd_file *file, uint64_t moved, uint64_t asked)
{
    if (moved >= asked) return asked;
    return atomic_load(&file->direct) ? moved / PD_VFS_ALIGN * PD_VFS_ALIGN : moved;
}

int pd_file_move(struct pd_file *file, bool is_write, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved)
{
    const struct pd_vfs_ops *ops = file->vfs->ops;
    *ret_moved = 0;
    while (*ret_moved < bytes) {
        uint64_t at = offset + *ret_moved, left = bytes - *ret_moved, moved = 0;
        char *place = (char *)data + *ret_moved;
        bool direct = atomic_load(&file->direct);
        int result = is_write ? ops->write(file, at, place, left, &moved) : ops->read(file, at, place, left, &moved);
        if (result && pd_file_fall_back(file, direct, result)) continue;
        if (result) return result;
        uint64_t progress = pd_file_progress(file, moved, left);
        if (progress == 0) {
            *ret_moved += moved;
            return is_write ? EIO : PD_MOVE_END_OF_FILE;
        }
        *ret_moved += progress;
    }
    return 0;
}

static pd_status check_extent(const struct pd_file *file, const char *what, uint64_t offset, uint64_t bytes,
                              struct pd_error *err)
{
    if (offset > INT64_MAX || bytes > INT64_MAX - offset)
        PD_FAIL(err, PD_INVALID, "%s %s: %" PRIu64 " bytes at %" PRIu64 " do not fit into a file", what, file->path, bytes,
                offset);
    return PD_OK;
}

static pd_status check_aligned(const struct pd_file *file, const char *what, uint64_t offset, const void *data,
                               uint64_t bytes, struct pd_error *err)
{
    if (!atomic_load(&file->direct) || (offset | bytes | (uintptr_t)data) % PD_VFS_ALIGN == 0) return PD_OK;
    PD_FAIL_ERRNO(err, EINVAL, "%s %s: direct I/O of %" PRIu64 " bytes at %" PRIu64 " from address %p is not aligned to %u",
                  what, file->path, bytes, offset, data, PD_VFS_ALIGN);
}

static pd_status check_believed(const struct pd_file *file, const char *what, struct pd_error *err)
{
    if (!atomic_load(&file->sync_failed)) return PD_OK;
    PD_FAIL_ERRNO(err, EIO, "%s %s: an earlier sync of this file failed, so what it holds is unknown; it must be removed",
                  what, file->path);
}

pd_status pd_file_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, struct pd_error *err)
{
    PD_TRY(check_extent(file, "read", offset, bytes, err));
    PD_TRY(check_aligned(file, "read", offset, data, bytes, err));
    uint64_t moved = 0;
    const uint64_t begin = pd_trace_begin();
    int result;
    PD_ON_STORAGE(result = pd_file_move(file, false, offset, data, bytes, &moved));
    pd_trace_end(begin, "io", "read", moved);
    atomic_fetch_add(&file->vfs->bytes_read, moved);
    if (result == PD_MOVE_END_OF_FILE)
        PD_FAIL(err, PD_CORRUPT,
                "read %s: the file ends at %" PRIu64 " where %" PRIu64 " bytes at %" PRIu64 " were expected", file->path,
                offset + moved, bytes, offset);
    if (!result) return PD_OK;
    const pd_status st = pd_error_set(err, pd_status_from_errno(result), PD_WHERE, result,
                                      "read %s: %" PRIu64 " bytes at %" PRIu64, file->path, bytes, offset);
    return pd_vfs_explain(file->vfs, st, err);
}

pd_status pd_file_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes, struct pd_error *err)
{
    PD_TRY(check_believed(file, "write", err));
    PD_TRY(check_extent(file, "write", offset, bytes, err));
    PD_TRY(check_aligned(file, "write", offset, data, bytes, err));
    uint64_t moved = 0;
    const uint64_t begin = pd_trace_begin();
    int result;
    PD_ON_STORAGE(result = pd_file_move(file, true, offset, (void *)(uintptr_t)data, bytes, &moved));
    pd_trace_end(begin, "io", "write", moved);
    atomic_fetch_add(&file->vfs->bytes_written, moved);
    if (result) PD_FAIL_ERRNO(err, result, "write %s: %" PRIu64 " bytes at %" PRIu64, file->path, bytes, offset);
    return PD_OK;
}

pd_status pd_file_preallocate(struct pd_file *file, uint64_t bytes, struct pd_error *err)
{
    PD_TRY(check_believed(file, "preallocate", err));
    PD_TRY(check_extent(file, "preallocate", 0, bytes, err));
    if (bytes == 0) return PD_OK;
    int result;
    PD_ON_STORAGE(result = file->vfs->ops->preallocate(file, bytes));
    if (result) PD_FAIL_ERRNO(err, result, "preallocate %s: %" PRIu64 " bytes", file->path, bytes);
    return PD_OK;
}

pd_status pd_file_truncate(struct pd_file *file, uint64_t bytes, struct pd_error *err)
{
    PD_TRY(check_believed(file, "truncate", err));
    PD_TRY(check_extent(file, "truncate", 0, bytes, err));
    int result;
    PD_ON_STORAGE(result = file->vfs->ops->truncate(file, bytes));
    if (result) PD_FAIL_ERRNO(err, result, "truncate %s to %" PRIu64 " bytes", file->path, bytes);
    return PD_OK;
}

pd_status pd_file_sync(struct pd_file *file, struct pd_error *err)
{
    PD_TRY(check_believed(file, "sync", err));
    const uint64_t begin = pd_trace_begin();
    int result;
    PD_ON_STORAGE(pd_vfs_count_flush(file->vfs); result = file->vfs->ops->sync(file));
    pd_trace_end(begin, "io", "sync", 0);
    if (!result) return PD_OK;
    atomic_store(&file->sync_failed, true);
    PD_FAIL_ERRNO(err, result, "sync %s", file->path);
}

pd_status pd_file_stat(struct pd_file *file, struct pd_stat *ret_stat, struct pd_error *err)
{
    struct pd_stat st;
    int result;
    PD_ON_STORAGE(result = file->vfs->ops->file_stat(file, &st));
    if (result) PD_FAIL_ERRNO(err, result, "stat %s", file->path);
    *ret_stat = st;
    return PD_OK;
}
