#include "tests/fuzz/input/disk.h"

#include "ckpt/io/uring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct {
    struct input_file *files; /* (count) */
    uint32_t count;
} disk;

static struct input_file *find(const char *path)
{
    for (uint32_t i = 0; i < disk.count; i++)
        if (disk.files[i].is_there && strcmp(disk.files[i].name, path) == 0) return &disk.files[i];
    return NULL;
}

/* What a name goes on with behind `path` and a slash; NULL: it does not. */
static const char *inside(const struct input_file *file, const char *path)
{
    const size_t bytes = strlen(path);
    return strncmp(file->name, path, bytes) == 0 && file->name[bytes] == '/' ? file->name + bytes + 1 : NULL;
}

static bool is_directory(const char *path)
{
    for (uint32_t i = 0; i < disk.count; i++)
        if (inside(&disk.files[i], path)) return true;
    return false;
}

static void fill_stat(const struct input_file *file, struct pd_stat *ret)
{
    *ret = (struct pd_stat){.type = file ? PD_ENTRY_FILE : PD_ENTRY_DIRECTORY, .bytes = file ? file->bytes : 0};
}

static int disk_open(struct pd_file *file, unsigned flags)
{
    file->context = find(file->path);
    if (flags & PD_OPEN_WRITE) return EROFS;
    return file->context ? 0 : is_directory(file->path) ? EISDIR : ENOENT;
}

static int disk_close(struct pd_file *file)
{
    (void)file;
    return 0;
}

static int disk_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved)
{
    const struct input_file *f = file->context;
    const uint64_t left = offset < f->bytes ? f->bytes - offset : 0, end = offset + (bytes < left ? bytes : left);
    *ret_moved = end - offset;
    memset(data, 0, *ret_moved);
    for (uint32_t i = 0; i < f->extent_count; i++) {
        const struct input_extent *e = &f->extents[i];
        const uint64_t from = offset > e->offset ? offset : e->offset,
                       to = end < e->offset + e->bytes ? end : e->offset + e->bytes;
        if (from < to) memcpy((char *)data + (from - offset), (const char *)e->data + (from - e->offset), to - from);
    }
    return 0;
}

static int disk_file_stat(struct pd_file *file, struct pd_stat *ret_stat)
{
    fill_stat(file->context, ret_stat);
    return 0;
}

static int disk_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat)
{
    (void)vfs;
    const struct input_file *file = find(path);
    fill_stat(file, ret_stat);
    return file || is_directory(path) ? 0 : ENOENT;
}

static int disk_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing)
{
    (void)vfs;
    int result = is_directory(path) ? 0 : ENOTDIR;
    for (uint32_t i = 0; !result && i < disk.count; i++) {
        const char *name = inside(&disk.files[i], path);
        const size_t bytes = name ? strcspn(name, "/") : 0;
        char text[256];
        if (!name || (!name[bytes] && !disk.files[i].is_there) || bytes >= sizeof text) continue;
        memcpy(text, name, bytes);
        text[bytes] = '\0';
        bool is_new = true;
        for (uint32_t k = 0; k < ret_listing->count; k++)
            is_new &= strcmp(ret_listing->names[k], text) != 0;
        if (is_new) result = pd_listing_add(ret_listing, text);
    }
    return result;
}

static int queue_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        transfers[i]->internal.next = queue->context;
        queue->context = transfers[i];
    }
    return 0;
}

static int queue_reap(struct pd_queue *queue, bool wait)
{
    (void)wait;
    for (struct pd_transfer *t; (t = queue->context);) {
        uint64_t moved = 0;
        queue->context = t->internal.next;
        pd_queue_finish(queue, t, pd_file_move(t->file, t->is_write, t->offset, t->data, t->bytes, &moved));
    }
    return 0;
}

static void queue_close(struct pd_queue *queue)
{
    (void)queue;
}

static int queue_open(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    static const struct pd_queue_ops ops = {"input", queue_submit, queue_reap, queue_close};
    (void)buffers;
    (void)buffer_bytes;
    queue->ops = &ops;
    return 0;
}

static void disk_free(struct pd_vfs *vfs)
{
    (void)vfs;
}

struct pd_vfs *input_disk(struct input_file *files, uint32_t count)
{
    static struct pd_vfs *vfs;
    static struct pd_vfs_ops ops;
    disk.files = files;
    disk.count = count;
    if (vfs) return vfs;
    ops = pd_posix_ops;
    ops.name = "input";
    ops.open = disk_open;
    ops.close = disk_close;
    ops.read = disk_read;
    ops.file_stat = disk_file_stat;
    ops.stat = disk_stat;
    ops.list = disk_list;
    ops.queue_open = queue_open;
    ops.free = disk_free;
    if (pd_vfs_new(&ops, 64, NULL, &vfs, NULL)) abort();
    return vfs;
}

struct pd_vfs *input_disk_of(const void *data, uint64_t bytes)
{
    static struct input_file file = {.name = INPUT_PATH, .is_there = true, .extent_count = 1};
    file.bytes = bytes;
    file.extents[0] = (struct input_extent){0, bytes, data};
    return input_disk(&file, 1);
}
