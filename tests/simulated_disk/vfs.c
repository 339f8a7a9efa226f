/* The slots of the simulated disk: each takes the disk's lock, lets the fault strike, changes the tree, writes a trace line.
 */
#include "ckpt/base/digest.h"
#include "tests/simulated_disk/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct pd_simulated_disk *disk_of(struct pd_vfs *vfs)
{
    return ((struct pd_sim_vfs *)vfs->context)->disk;
}

/* ---- symbolic links: replaced in the text of a path, since they may lead to another volume ---- */

#define LINKS_MAX 8

/* What the link at path[0, length) says, or NULL: it is none. */
static const char *link_at(const struct pd_sim_vfs *vfs, const char *path, size_t length)
{
    char prefix[PD_VFS_PATH_MAX];
    const char *rest;
    struct pd_sim_node *node;
    memcpy(prefix, path, length);
    prefix[length] = '\0';
    struct pd_sim_volume *volume = pd_sim_locate(vfs->disk, vfs->host, prefix, &rest);
    return pd_sim_find(volume, rest, &node) ? NULL : node->target;
}

/* The first link of `path` is replaced; false: there is none. `follows`: the last component counts too. */
static bool replace_link(const struct pd_sim_vfs *vfs, char path[PD_VFS_PATH_MAX], bool follows)
{
    const char *target = NULL;
    size_t begin = 0, end = 0;
    for (;;) {
        begin = end + strspn(path + end, "/");
        end = begin + strcspn(path + begin, "/");
        if (begin == end || (!follows && !path[end])) return false;
        if ((target = link_at(vfs, path, end))) break;
    }
    char replaced[2 * PD_VFS_PATH_MAX];
    int length =
        snprintf(replaced, sizeof replaced, "%.*s%s%s", target[0] == '/' ? 0 : (int)begin, path, target, path + end);
    if (length < 0 || (size_t)length >= PD_VFS_PATH_MAX) return false;
    memcpy(path, replaced, (size_t)length + 1);
    return true;
}

static struct pd_sim_volume *locate(struct pd_vfs *vfs, const char *path, bool follows, const char **ret_rest)
{
    struct pd_sim_vfs *mine = vfs->context;
    struct pd_simulated_disk *disk = mine->disk;
    if (!disk->has_symlinks || strlen(path) >= PD_VFS_PATH_MAX) return pd_sim_locate(disk, mine->host, path, ret_rest);
    disk->next_path = !disk->next_path; /* the paths of one call */
    char *text = disk->paths[disk->next_path];
    memcpy(text, path, strlen(path) + 1);
    for (int i = 0; i < LINKS_MAX && replace_link(mine, text, follows); i++)
        continue;
    return pd_sim_locate(disk, mine->host, text, ret_rest);
}

static struct pd_sim_volume *volume_of(struct pd_vfs *vfs, const char *path, const char **ret_rest)
{
    return locate(vfs, path, true, ret_rest);
}

/* Of a call that takes a link for itself. */
static struct pd_sim_volume *volume_of_name(struct pd_vfs *vfs, const char *path, const char **ret_rest)
{
    return locate(vfs, path, false, ret_rest);
}

static const char *result_name(int result)
{
    return pd_status_name(result == EAGAIN ? PD_BUSY : pd_vfs_name_status(result)); /* of a lock, which alone has it */
}

/* ---- files ---- */

static struct pd_sim_handle *handle_new(struct pd_simulated_disk *disk, struct pd_sim_node *node, bool direct)
{
    struct pd_sim_handle *handle = calloc(1, sizeof *handle);
    if (!handle) return NULL;
    *handle =
        (struct pd_sim_handle){.node = node, .epoch = node->volume->epoch, .id = ++disk->next_handle, .direct = direct};
    pd_sim_node_ref(node);
    node->opens++;
    pd_sim_node_charge(node);
    return handle;
}

static void handle_free(struct pd_sim_handle *handle)
{
    struct pd_sim_node *node = handle->node;
    if (handle->epoch == node->volume->epoch) {
        node->opens--;
        pd_sim_node_charge(node);
    }
    pd_sim_node_unref(node);
    free(handle);
}

static int open_node(struct pd_sim_volume *volume, const char *path, unsigned flags, struct pd_sim_node **ret_node)
{
    int result = pd_sim_find(volume, path, ret_node);
    bool creates = flags & PD_OPEN_CREATE;
    if (result == ENOENT && creates) return pd_sim_create(volume, path, false, ret_node);
    if (result) return result;
    if (creates && flags & PD_OPEN_EXCLUSIVE) return EEXIST;
    if ((*ret_node)->is_directory) return EISDIR;
    if ((flags & PD_OPEN_WRITE) && (volume->lacks & PD_DISK_READ_ONLY)) return EROFS;
    return flags & PD_OPEN_TRUNCATE ? pd_sim_resize(*ret_node, 0) : 0;
}

static int do_open(struct pd_file *file, unsigned flags)
{
    const char *rest;
    struct pd_sim_volume *volume = volume_of(file->vfs, file->path, &rest);
    struct pd_sim_node *node = NULL;
    int result = open_node(volume, rest, flags, &node);
    bool direct = flags & PD_OPEN_DIRECT;
    if (!result && direct && volume->lacks & PD_DISK_NO_DIRECT_OPEN) result = EINVAL;
    if (result) return result;
    file->context = handle_new(disk_of(file->vfs), node, direct);
    return file->context ? 0 : ENOMEM;
}

static int sim_open(struct pd_file *file, unsigned flags)
{
    struct pd_simulated_disk *disk = disk_of(file->vfs);
    struct pd_sim_strike strike;
    file->context = NULL;
    int result = pd_sim_begin(file->vfs, PD_DISK_OPEN, &strike);
    if (!result && strike.kind != PD_DISK_FAULT_ERROR) result = do_open(file, flags);
    result = pd_sim_struck(&strike, result);
    struct pd_sim_handle *handle = file->context;
    pd_sim_trace(disk, "open %" PRIu64 " %u", handle ? handle->id : 0, flags);
    pd_sim_trace_path(disk, file->path);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    if (result && handle) handle_free(handle);
    return pd_sim_end(file->vfs, &strike, result);
}

static int sim_close(struct pd_file *file)
{
    struct pd_sim_strike strike;
    struct pd_sim_handle *handle = file->context;
    int result = pd_sim_begin(file->vfs, PD_DISK_CLOSE, &strike);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk_of(file->vfs), "close %" PRIu64 " = %s\n", handle->id, result_name(result));
    handle_free(handle);
    return pd_sim_end(file->vfs, &strike, result);
}

static int check_direct(const struct pd_sim_handle *handle, uint64_t offset, const void *data, uint64_t bytes)
{
    if (!handle->direct) return 0;
    if (handle->node->volume->lacks & PD_DISK_NO_DIRECT_TRANSFER) return EINVAL;
    return (offset | bytes | (uintptr_t)data) % PD_VFS_ALIGN ? EINVAL : 0;
}

/* What a short transfer moves: at least one unit, and less than all where that is possible. */
static uint64_t shortened(struct pd_simulated_disk *disk, const struct pd_sim_handle *handle, uint64_t bytes)
{
    uint64_t unit = handle->direct ? PD_VFS_ALIGN : 1;
    return bytes <= unit ? bytes : unit * (1 + pd_sim_below(&disk->random, (bytes - 1) / unit));
}

static int sim_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved)
{
    struct pd_simulated_disk *disk = disk_of(file->vfs);
    struct pd_sim_handle *handle = file->context;
    struct pd_sim_strike strike;
    uint64_t moved = 0;
    int result = pd_sim_begin(file->vfs, PD_DISK_READ, &strike);
    if (!result && !(file->flags & PD_OPEN_READ)) result = EBADF;
    if (!result) result = check_direct(handle, offset, data, bytes);
    uint64_t asked = bytes;
    if (strike.kind == PD_DISK_FAULT_SHORT) bytes = shortened(disk, handle, bytes);
    if (!result) moved = pd_sim_read(handle->node, offset, data, bytes);
    if (strike.kind == PD_DISK_FAULT_FLIP && moved) {
        uint64_t bit = pd_sim_below(&disk->random, moved * 8);
        ((uint8_t *)data)[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "read %" PRIu64 " %" PRIu64 " %" PRIu64 " = %s %" PRIu64 " %016" PRIx64 "\n", handle->id, offset,
                 asked, result_name(result), moved, disk->tracing ? pd_digest64(data, moved, 0) : 0);
    *ret_moved = moved;
    return pd_sim_end(file->vfs, &strike, result);
}

/* Some of the pieces of a write, as a failed or torn one leaves them. */
static void write_pieces(struct pd_simulated_disk *disk, struct pd_sim_node *node, uint64_t offset, const uint8_t *data,
                         uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        uint64_t place = offset + at, count = PD_SIM_PIECE_BYTES - place % PD_SIM_PIECE_BYTES, moved = 0;
        if (count > bytes - at) count = bytes - at;
        bool lands = pd_sim_random(&disk->random) & 1;
        if (lands && pd_sim_write(node, place, data + at, count, &moved)) return; /* full: the rest does not land */
        at += count;
    }
}

static void write_elsewhere(struct pd_simulated_disk *disk, struct pd_sim_node *node, uint64_t offset, const void *data,
                            uint64_t bytes)
{
    uint64_t pieces = node->bytes.size / PD_SIM_PIECE_BYTES, moved = 0;
    if (pieces == 0) return; /* nowhere to go but lost */
    uint64_t place = pd_sim_below(&disk->random, pieces) * PD_SIM_PIECE_BYTES;
    if (place == offset) place = (place + PD_SIM_PIECE_BYTES) % (pieces * PD_SIM_PIECE_BYTES);
    if (bytes > node->bytes.size - place) bytes = node->bytes.size - place;
    int unused = place == offset ? 0 : pd_sim_write(node, place, data, bytes, &moved);
    (void)unused;
}

static int do_write(struct pd_simulated_disk *disk, const struct pd_sim_handle *handle, const struct pd_sim_strike *strike,
                    uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved)
{
    struct pd_sim_node *node = handle->node;
    *ret_moved = bytes;
    switch (strike->kind) {
    case PD_DISK_FAULT_ERROR:
    case PD_DISK_FAULT_TORN:
        write_pieces(disk, node, offset, data, bytes);
        return 0;
    case PD_DISK_FAULT_LOST:
        return 0;
    case PD_DISK_FAULT_MISDIRECTED:
        write_elsewhere(disk, node, offset, data, bytes);
        return 0;
    case PD_DISK_FAULT_SHORT:
        bytes = shortened(disk, handle, bytes);
        break;
    default:
        break;
    }
    return pd_sim_write(node, offset, data, bytes, ret_moved);
}

static int sim_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved)
{
    struct pd_simulated_disk *disk = disk_of(file->vfs);
    struct pd_sim_handle *handle = file->context;
    struct pd_sim_strike strike;
    uint64_t moved = 0;
    int result = pd_sim_begin(file->vfs, PD_DISK_WRITE, &strike);
    if (!result && !(file->flags & PD_OPEN_WRITE)) result = EBADF;
    if (!result) result = check_direct(handle, offset, data, bytes);
    if (!result) result = do_write(disk, handle, &strike, offset, data, bytes, &moved);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "write %" PRIu64 " %" PRIu64, handle->id, offset);
    pd_sim_trace_hex(disk, data, bytes);
    pd_sim_trace(disk, " = %s %" PRIu64 "\n", result_name(result), result ? 0 : moved);
    *ret_moved = moved;
    return pd_sim_end(file->vfs, &strike, result);
}

static int do_preallocate(const struct pd_file *file, uint64_t bytes)
{
    struct pd_sim_node *node = ((struct pd_sim_handle *)file->context)->node;
    if (!(file->flags & PD_OPEN_WRITE)) return EBADF;
    if (node->volume->lacks & PD_DISK_NO_PREALLOCATE) return EOPNOTSUPP;
    return bytes > node->bytes.size ? pd_sim_resize(node, bytes) : 0;
}

static int do_truncate(const struct pd_file *file, uint64_t bytes)
{
    return file->flags & PD_OPEN_WRITE ? pd_sim_resize(((struct pd_sim_handle *)file->context)->node, bytes) : EINVAL;
}

static int resize_slot(struct pd_file *file, uint64_t bytes, enum pd_disk_operation operation,
                       int (*body)(const struct pd_file *, uint64_t))
{
    const struct pd_sim_handle *handle = file->context;
    struct pd_sim_strike strike;
    int result = pd_sim_begin(file->vfs, operation, &strike);
    if (!result && strike.kind != PD_DISK_FAULT_ERROR) result = body(file, bytes);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk_of(file->vfs), "%s %" PRIu64 " %" PRIu64 " = %s\n", pd_disk_operation_name(operation), handle->id,
                 bytes, result_name(result));
    return pd_sim_end(file->vfs, &strike, result);
}

static int sim_preallocate(struct pd_file *file, uint64_t bytes)
{
    return resize_slot(file, bytes, PD_DISK_PREALLOCATE, do_preallocate);
}

static int sim_truncate(struct pd_file *file, uint64_t bytes)
{
    return resize_slot(file, bytes, PD_DISK_TRUNCATE, do_truncate);
}

static int sim_sync(struct pd_file *file)
{
    struct pd_sim_handle *handle = file->context;
    struct pd_sim_strike strike;
    int result = pd_sim_begin(file->vfs, PD_DISK_SYNC, &strike);
    if (!result && strike.kind == PD_DISK_FAULT_ERROR)
        pd_sim_doom_content(handle->node);
    else if (!result && strike.kind != PD_DISK_FAULT_LOST_SYNC)
        pd_sim_sync_content(handle->node);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk_of(file->vfs), "sync %" PRIu64 " = %s\n", handle->id, result_name(result));
    return pd_sim_end(file->vfs, &strike, result);
}

static void fill_stat(const struct pd_sim_node *node, struct pd_stat *ret_stat)
{
    *ret_stat = (struct pd_stat){
        .type = node->is_directory ? PD_ENTRY_DIRECTORY : PD_ENTRY_FILE,
        .bytes = node->is_directory ? PD_SIM_PAGE_BYTES : node->bytes.size,
        .allocated_bytes = node->charged_bytes,
        .inode = node->id,
        .device = node->volume->device,
        .link_count = node->is_directory ? 2 : node->links,
    };
}

/* Sizes and links of directories differ between file systems and are no part of a trace. */
static void trace_stat(struct pd_simulated_disk *disk, int result, const struct pd_stat *st)
{
    bool is_file = !result && st->type == PD_ENTRY_FILE;
    pd_sim_trace(disk, " = %s %d %" PRIu64 " %" PRIu64 "\n", result_name(result), result ? 0 : (int)st->type,
                 is_file ? st->bytes : 0, is_file ? st->link_count : 0);
}

static int sim_file_stat(struct pd_file *file, struct pd_stat *ret_stat)
{
    const struct pd_sim_handle *handle = file->context;
    struct pd_sim_strike strike;
    int result = pd_sim_begin(file->vfs, PD_DISK_STAT, &strike);
    if (!result) fill_stat(handle->node, ret_stat);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk_of(file->vfs), "file_stat %" PRIu64, handle->id);
    trace_stat(disk_of(file->vfs), result, ret_stat);
    return pd_sim_end(file->vfs, &strike, result);
}

static int sim_set_buffered(struct pd_file *file)
{
    struct pd_simulated_disk *disk = disk_of(file->vfs);
    struct pd_sim_handle *handle = file->context;
    pthread_mutex_lock(&disk->mutex);
    handle->direct = false;
    pthread_mutex_unlock(&disk->mutex);
    return 0;
}

/* ---- names ---- */

static int two_path_slot(struct pd_vfs *vfs, enum pd_disk_operation operation, const char *from, const char *to,
                         int (*body)(struct pd_sim_volume *, const char *, const char *))
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    int result = pd_sim_begin(vfs, operation, &strike);
    if (!result && strike.kind != PD_DISK_FAULT_ERROR) {
        const char *from_rest, *to_rest;
        struct pd_sim_volume *volume = volume_of_name(vfs, from, &from_rest);
        result = volume == volume_of_name(vfs, to, &to_rest) ? body(volume, from_rest, to_rest) : EXDEV;
    }
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "%s", pd_disk_operation_name(operation));
    pd_sim_trace_path(disk, from);
    pd_sim_trace_path(disk, to);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    return pd_sim_end(vfs, &strike, result);
}

static int sim_rename(struct pd_vfs *vfs, const char *from, const char *to)
{
    return two_path_slot(vfs, PD_DISK_RENAME, from, to, pd_sim_rename);
}

static int sim_link(struct pd_vfs *vfs, const char *from, const char *to)
{
    return two_path_slot(vfs, PD_DISK_LINK, from, to, pd_sim_link);
}

static int sim_symlink(struct pd_vfs *vfs, const char *target, const char *path)
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    int result = pd_sim_begin(vfs, PD_DISK_SYMLINK, &strike);
    if (!result && strike.kind != PD_DISK_FAULT_ERROR) {
        const char *rest;
        struct pd_sim_volume *volume = volume_of_name(vfs, path, &rest);
        result = pd_sim_symlink(volume, target, rest);
        disk->has_symlinks = disk->has_symlinks || !result;
    }
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "symlink");
    pd_sim_trace_path(disk, target);
    pd_sim_trace_path(disk, path);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    return pd_sim_end(vfs, &strike, result);
}

static int sim_readlink(struct pd_vfs *vfs, const char *path, char ret_target[PD_VFS_PATH_MAX])
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    struct pd_sim_node *node = NULL;
    const char *rest;
    int result = pd_sim_begin(vfs, PD_DISK_READLINK, &strike);
    struct pd_sim_volume *volume = volume_of_name(vfs, path, &rest);
    if (!result) result = pd_sim_find(volume, rest, &node);
    if (!result && !node->target) result = EINVAL;
    if (!result) snprintf(ret_target, PD_VFS_PATH_MAX, "%s", node->target);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "readlink");
    pd_sim_trace_path(disk, path);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    return pd_sim_end(vfs, &strike, result);
}

static int one_path_slot(struct pd_vfs *vfs, enum pd_disk_operation operation, const char *path,
                         int (*body)(struct pd_sim_volume *, const char *))
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    int result = pd_sim_begin(vfs, operation, &strike);
    if (!result && strike.kind != PD_DISK_FAULT_ERROR) {
        const char *rest;
        struct pd_sim_volume *volume = volume_of_name(vfs, path, &rest);
        result = body(volume, rest);
    }
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "%s", pd_disk_operation_name(operation));
    pd_sim_trace_path(disk, path);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    return pd_sim_end(vfs, &strike, result);
}

static int do_mkdir(struct pd_sim_volume *volume, const char *path)
{
    struct pd_sim_node *node;
    return pd_sim_create(volume, path, true, &node);
}

static int sim_unlink(struct pd_vfs *vfs, const char *path)
{
    return one_path_slot(vfs, PD_DISK_UNLINK, path, pd_sim_unlink);
}

static int sim_mkdir(struct pd_vfs *vfs, const char *path)
{
    return one_path_slot(vfs, PD_DISK_MKDIR, path, do_mkdir);
}

static int sim_rmdir(struct pd_vfs *vfs, const char *path)
{
    return one_path_slot(vfs, PD_DISK_RMDIR, path, pd_sim_rmdir);
}

static int sync_dir(struct pd_sim_volume *volume, const char *path, enum pd_disk_fault_kind kind)
{
    struct pd_sim_node *dir;
    int result = pd_sim_find(volume, path, &dir);
    if (result) return result;
    if (!dir->is_directory) return ENOTDIR;
    if (volume->lacks & PD_DISK_NO_SYNC_DIR) return EINVAL;
    if (kind == PD_DISK_FAULT_ERROR)
        pd_sim_doom_names(dir);
    else if (kind != PD_DISK_FAULT_LOST_SYNC)
        pd_sim_sync_names(dir);
    return 0;
}

static int sim_sync_dir(struct pd_vfs *vfs, const char *path)
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    const char *rest;
    int result = pd_sim_begin(vfs, PD_DISK_SYNC_DIR, &strike);
    struct pd_sim_volume *volume = volume_of(vfs, path, &rest);
    if (!result) result = sync_dir(volume, rest, strike.kind);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "sync_dir");
    pd_sim_trace_path(disk, path);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    return pd_sim_end(vfs, &strike, result);
}

static int sim_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat)
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    struct pd_sim_node *node = NULL;
    const char *rest;
    int result = pd_sim_begin(vfs, PD_DISK_STAT, &strike);
    struct pd_sim_volume *volume = volume_of(vfs, path, &rest);
    if (!result) result = pd_sim_find(volume, rest, &node);
    if (!result) fill_stat(node, ret_stat);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "stat");
    pd_sim_trace_path(disk, path);
    trace_stat(disk, result, ret_stat);
    return pd_sim_end(vfs, &strike, result);
}

static void fill_space(const struct pd_sim_volume *volume, struct pd_space *ret_space)
{
    uint64_t bytes = volume->capacity_bytes ? volume->capacity_bytes : UINT64_C(1) << 40;
    uint64_t inodes = volume->inode_limit ? volume->inode_limit : UINT64_C(1) << 20;
    *ret_space = (struct pd_space){
        .total_bytes = bytes,
        .available_bytes = bytes > volume->used_bytes ? bytes - volume->used_bytes : 0,
        .total_inodes = inodes,
        .available_inodes = inodes > volume->used_inodes ? inodes - volume->used_inodes : 0,
        .in_memory = volume->in_memory,
    };
    snprintf(ret_space->type_name, sizeof ret_space->type_name, "%s", volume->in_memory ? "tmpfs" : "simulated");
}

static int sim_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space)
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    struct pd_sim_node *node = NULL;
    const char *rest;
    int result = pd_sim_begin(vfs, PD_DISK_SPACE, &strike);
    struct pd_sim_volume *volume = volume_of(vfs, path, &rest);
    if (!result) result = pd_sim_find(volume, rest, &node);
    if (!result) fill_space(volume, ret_space);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "space");
    pd_sim_trace_path(disk, path);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    return pd_sim_end(vfs, &strike, result);
}

static int do_list(struct pd_sim_volume *volume, const char *path, struct pd_listing *listing)
{
    struct pd_sim_node *dir;
    int result = pd_sim_find(volume, path, &dir);
    if (!result && !dir->is_directory) result = ENOTDIR;
    for (uint32_t i = 0; !result && i < dir->current.count; i++)
        result = pd_listing_add(listing, dir->current.items[i].name);
    return result;
}

static int sim_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing)
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    const char *rest;
    int result = pd_sim_begin(vfs, PD_DISK_LIST, &strike);
    struct pd_sim_volume *volume = volume_of(vfs, path, &rest);
    if (!result) result = do_list(volume, rest, ret_listing);
    result = pd_sim_struck(&strike, result);
    pd_sim_trace(disk, "list");
    pd_sim_trace_path(disk, path);
    pd_sim_trace(disk, " = %s", result_name(result));
    for (uint32_t i = 0; !result && i < ret_listing->count; i++)
        pd_sim_trace_path(disk, ret_listing->names[i]);
    pd_sim_trace(disk, "\n");
    return pd_sim_end(vfs, &strike, result);
}

/* ---- locks ---- */

static int do_lock(struct pd_vfs *vfs, const char *path, struct pd_lock *lock)
{
    const char *rest;
    struct pd_sim_volume *volume = volume_of(vfs, path, &rest);
    struct pd_sim_node *node = NULL;
    int result = open_node(volume, rest, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE, &node);
    if (!result && volume->lacks & PD_DISK_NO_LOCKS) result = ENOLCK;
    if (!result && node->lock) result = EAGAIN;
    if (result) return result;
    lock->context = handle_new(disk_of(vfs), node, false);
    if (!lock->context) return ENOMEM;
    node->lock = vfs;
    return 0;
}

static void lock_release(struct pd_lock *lock)
{
    struct pd_sim_handle *handle = lock->context;
    if (handle->epoch == handle->node->volume->epoch && handle->node->lock == lock->vfs) handle->node->lock = NULL;
    handle_free(handle);
    lock->context = NULL;
}

static int sim_lock(struct pd_vfs *vfs, const char *path, struct pd_lock *lock)
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    struct pd_sim_strike strike;
    int result = pd_sim_begin(vfs, PD_DISK_LOCK, &strike);
    if (!result && strike.kind != PD_DISK_FAULT_ERROR) result = do_lock(vfs, path, lock);
    result = pd_sim_struck(&strike, result);
    const struct pd_sim_handle *handle = lock->context;
    pd_sim_trace(disk, "lock %" PRIu64, handle ? handle->id : 0);
    pd_sim_trace_path(disk, path);
    pd_sim_trace(disk, " = %s\n", result_name(result));
    if (result && handle) lock_release(lock);
    return pd_sim_end(vfs, &strike, result);
}

static void sim_unlock(struct pd_lock *lock)
{
    struct pd_simulated_disk *disk = disk_of(lock->vfs);
    pthread_mutex_lock(&disk->mutex);
    pd_sim_trace(disk, "unlock %" PRIu64 "\n", ((struct pd_sim_handle *)lock->context)->id);
    lock_release(lock);
    pthread_mutex_unlock(&disk->mutex);
}

/* ---- queues ---- */

struct sim_queue {
    struct pd_transfer **waiting; /* (depth) */
    uint32_t count;
};

static int queue_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count)
{
    struct sim_queue *mine = queue->context;
    for (uint32_t i = 0; i < count; i++)
        mine->waiting[mine->count++] = transfers[i];
    return 0;
}

static uint32_t choose_below(struct pd_vfs *vfs, uint32_t bound)
{
    struct pd_simulated_disk *disk = disk_of(vfs);
    pthread_mutex_lock(&disk->mutex);
    uint32_t chosen = (uint32_t)pd_sim_below(&disk->random, bound);
    pthread_mutex_unlock(&disk->mutex);
    return chosen;
}

/* Some of what waits, in any order; the rest may as well not have reached the disk when power fails. */
static int queue_reap(struct pd_queue *queue, bool wait)
{
    struct sim_queue *mine = queue->context;
    uint32_t finish = mine->count ? choose_below(queue->vfs, mine->count + 1) : 0;
    if (wait && finish == 0 && mine->count) finish = 1;
    while (finish-- > 0) {
        uint32_t at = choose_below(queue->vfs, mine->count);
        struct pd_transfer *transfer = mine->waiting[at];
        mine->waiting[at] = mine->waiting[--mine->count];
        uint64_t moved;
        int result =
            pd_file_move(transfer->file, transfer->is_write, transfer->offset, transfer->data, transfer->bytes, &moved);
        pd_queue_finish(queue, transfer, result);
    }
    return 0;
}

static void queue_close(struct pd_queue *queue)
{
    struct sim_queue *mine = queue->context;
    free(mine->waiting);
    free(mine);
}

static const struct pd_queue_ops queue_ops = {
    .name = "simulated",
    .submit = queue_submit,
    .reap = queue_reap,
    .close = queue_close,
};

static int sim_queue_open(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    (void)buffers;
    (void)buffer_bytes;
    struct pd_sim_strike strike;
    int result = pd_sim_begin(queue->vfs, PD_DISK_QUEUE_OPEN, &strike);
    result = pd_sim_end(queue->vfs, &strike, result);
    if (result) return result;
    struct sim_queue *mine = calloc(1, sizeof *mine);
    struct pd_transfer **waiting = calloc(queue->depth, sizeof(struct pd_transfer *));
    if (!mine || !waiting) {
        free(mine);
        free(waiting);
        return ENOMEM;
    }
    mine->waiting = waiting;
    queue->context = mine;
    queue->ops = &queue_ops;
    return 0;
}

static void sim_free(struct pd_vfs *vfs)
{
    struct pd_sim_vfs *mine = vfs->context;
    struct pd_simulated_disk *disk = mine->disk;
    pthread_mutex_lock(&disk->mutex);
    for (uint32_t i = 0; i < disk->mount_count; i++)
        for (struct pd_sim_node *node = disk->mounts[i].volumes[mine->host]->nodes; node; node = node->next)
            if (node->lock == vfs) node->lock = NULL;
    pthread_mutex_unlock(&disk->mutex);
    free(mine);
}

/* ---- directories that are held open, by their paths ---- */

static int sim_dir_open(struct pd_dir *dir, const struct pd_dir *parent, const char *name)
{
    char target[PD_VFS_PATH_MAX];
    struct pd_stat stat;
    (void)name;
    if (parent && dir->vfs->ops->readlink(dir->vfs, dir->path, target) == 0) return ELOOP;
    const int result = dir->vfs->ops->stat(dir->vfs, dir->path, &stat);
    return result ? result : stat.type == PD_ENTRY_DIRECTORY ? 0 : ENOTDIR;
}

static int sim_dir_list(struct pd_dir *dir, struct pd_listing *ret_listing)
{
    return dir->vfs->ops->list(dir->vfs, dir->path, ret_listing);
}

static int sim_dir_unlink(struct pd_dir *dir, const char *name, bool is_directory)
{
    char path[PD_VFS_PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/%s", dir->path, name);
    if (length < 0 || (size_t)length >= sizeof path) return ENAMETOOLONG;
    return (is_directory ? dir->vfs->ops->rmdir : dir->vfs->ops->unlink)(dir->vfs, path);
}

static void sim_dir_close(struct pd_dir *dir)
{
    (void)dir;
}

const struct pd_vfs_ops pd_sim_vfs_ops = {
    .name = "simulated",
    .open = sim_open,
    .close = sim_close,
    .read = sim_read,
    .write = sim_write,
    .preallocate = sim_preallocate,
    .truncate = sim_truncate,
    .sync = sim_sync,
    .file_stat = sim_file_stat,
    .set_buffered = sim_set_buffered,
    .rename = sim_rename,
    .link = sim_link,
    .readlink = sim_readlink,
    .unlink = sim_unlink,
    .mkdir = sim_mkdir,
    .rmdir = sim_rmdir,
    .sync_dir = sim_sync_dir,
    .stat = sim_stat,
    .space = sim_space,
    .list = sim_list,
    .dir_open = sim_dir_open,
    .dir_list = sim_dir_list,
    .dir_unlink = sim_dir_unlink,
    .dir_close = sim_dir_close,
    .lock = sim_lock,
    .unlock = sim_unlock,
    .queue_open = sim_queue_open,
    .free = sim_free,
};

pd_status pd_simulated_symlink(struct pd_vfs *vfs, const char *target, const char *path)
{
    int result = 0;
    if (vfs->ops == &pd_sim_vfs_ops)
        result = sim_symlink(vfs, target, path);
    else if (symlink(target, path) != 0)
        result = errno;
    return pd_vfs_name_status(result);
}
