/* The real disk. Each function makes one system call and returns its errno. EINTR is retried if the call did nothing, but
 * never for sync, whose failure is final, or close, which has released the descriptor anyway. */
#include "ckpt/io/uring.h"

#include "ckpt/base/regular_file.h"
#include "ckpt/io/cached.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Linux moves at most 0x7ffff000 bytes a call; a round number keeps direct I/O aligned after a short transfer. */
#define CALL_BYTES_MAX (UINT64_C(1) << 30)

static int posix_open(struct pd_file *file, unsigned flags)
{
    bool reads = flags & PD_OPEN_READ, writes = flags & PD_OPEN_WRITE;
    int mode = reads && writes ? O_RDWR : writes ? O_WRONLY : O_RDONLY;
    if (flags & PD_OPEN_CREATE) mode |= O_CREAT;
    if (flags & PD_OPEN_EXCLUSIVE) mode |= O_EXCL;
    if (flags & PD_OPEN_TRUNCATE) mode |= O_TRUNC;
    if (flags & PD_OPEN_DIRECT) mode |= O_DIRECT;
    if (writes) mode |= O_NOFOLLOW; /* a link leads to files that are not ours */
    return pd_regular_open(file->path, mode, &file->fd);
}

static int posix_close(struct pd_file *file)
{
    int fd = file->fd;
    file->fd = -1;
    return close(fd) == 0 || errno == EINTR ? 0 : errno;
}

static int posix_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved)
{
    ssize_t moved;
    do {
        moved = pread(file->fd, data, bytes < CALL_BYTES_MAX ? bytes : CALL_BYTES_MAX, (off_t)offset);
    } while (moved < 0 && errno == EINTR);
    if (moved < 0) return errno;
    *ret_moved = (uint64_t)moved;
    return 0;
}

/* As <linux/mman.h> of Linux 6.5 has them. A read with RWF_NOWAIT would start to read ahead. */
#define CACHESTAT 451
struct cachestat_range {
    uint64_t offset, bytes;
};
struct cachestat_pages {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

bool pd_file_is_cached(const struct pd_file *file, uint64_t offset, uint64_t bytes)
{
    struct cachestat_range range = {offset, bytes};
    struct cachestat_pages pages = {0};
    if (file->fd < 0 || syscall(CACHESTAT, file->fd, &range, &pages, 0) != 0) return true;
    return pages.cached * (uint64_t)sysconf(_SC_PAGESIZE) >= bytes / 2;
}

static int posix_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved)
{
    ssize_t moved;
    do {
        moved = pwrite(file->fd, data, bytes < CALL_BYTES_MAX ? bytes : CALL_BYTES_MAX, (off_t)offset);
    } while (moved < 0 && errno == EINTR);
    if (moved < 0) return errno;
    *ret_moved = (uint64_t)moved;
    return 0;
}

/* fallocate, not posix_fallocate: glibc emulates the latter by writing the whole file. */
static int posix_preallocate(struct pd_file *file, uint64_t bytes)
{
    int result;
    do {
        result = fallocate(file->fd, 0, 0, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

static int posix_truncate(struct pd_file *file, uint64_t bytes)
{
    int result;
    do {
        result = ftruncate(file->fd, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

static int posix_sync(struct pd_file *file)
{
    return fdatasync(file->fd) == 0 ? 0 : errno;
}

static void fill_stat(const struct stat *st, struct pd_stat *ret_stat)
{
    *ret_stat = (struct pd_stat){
        .type = S_ISREG(st->st_mode)   ? PD_ENTRY_FILE
                : S_ISDIR(st->st_mode) ? PD_ENTRY_DIRECTORY
                                       : PD_ENTRY_OTHER,
        .bytes = (uint64_t)st->st_size,
        .allocated_bytes = (uint64_t)st->st_blocks * 512,
        .inode = st->st_ino,
        .device = st->st_dev,
        .link_count = st->st_nlink,
    };
}

static int posix_file_stat(struct pd_file *file, struct pd_stat *ret_stat)
{
    struct stat st;
    if (fstat(file->fd, &st) != 0) return errno;
    fill_stat(&st, ret_stat);
    return 0;
}

static int posix_set_buffered(struct pd_file *file)
{
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0) return errno;
    return fcntl(file->fd, F_SETFL, flags & ~O_DIRECT) == 0 ? 0 : errno;
}

static int posix_rename(struct pd_vfs *vfs, const char *from, const char *to)
{
    (void)vfs;
    return rename(from, to) == 0 ? 0 : errno;
}

static int posix_link(struct pd_vfs *vfs, const char *from, const char *to)
{
    (void)vfs;
    return link(from, to) == 0 ? 0 : errno;
}

static int posix_readlink(struct pd_vfs *vfs, const char *path, char ret_target[PD_VFS_PATH_MAX])
{
    (void)vfs;
    const ssize_t length = readlink(path, ret_target, PD_VFS_PATH_MAX);
    if (length < 0) return errno;
    if (length == PD_VFS_PATH_MAX) return ENAMETOOLONG;
    memset(ret_target + length, 0, PD_VFS_PATH_MAX - (size_t)length);
    return 0;
}

static int posix_unlink(struct pd_vfs *vfs, const char *path)
{
    (void)vfs;
    return unlink(path) == 0 ? 0 : errno;
}

static int posix_mkdir(struct pd_vfs *vfs, const char *path)
{
    (void)vfs;
    return mkdir(path, 0777) == 0 ? 0 : errno;
}

static int posix_rmdir(struct pd_vfs *vfs, const char *path)
{
    (void)vfs;
    return rmdir(path) == 0 ? 0 : errno;
}

static int posix_sync_dir(struct pd_vfs *vfs, const char *path)
{
    (void)vfs;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int result = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return result;
}

static int posix_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat)
{
    (void)vfs;
    struct stat st;
    if (stat(path, &st) != 0) return errno;
    fill_stat(&st, ret_stat);
    return 0;
}

static const struct {
    uint32_t magic;
    bool in_memory;
    char name[12];
} file_systems[] = {
    {0xef53, false, "ext4"},         {0x58465342, false, "xfs"},    {0x01021994, true, "tmpfs"},
    {0x858458f6, true, "ramfs"},     {0x6969, false, "nfs"},        {0x0bd00bd0, false, "lustre"},
    {0x794c7630, false, "overlay"},  {0x9123683e, false, "btrfs"},  {0x2fc12fc1, false, "zfs"},
    {0xf2f52010, false, "f2fs"},     {0x65735546, false, "fuse"},   {0x47504653, false, "gpfs"},
    {0x00c36400, false, "ceph"},     {0xff534d42, false, "cifs"},   {0xfe534d42, false, "smb2"},
    {0x01021997, false, "9p"},       {0x19830326, false, "beegfs"}, {0xca451a4e, false, "bcachefs"},
    {0x5346544e, false, "ntfs"},     {0x4d44, false, "fat"},        {0x2011bab0, false, "exfat"},
    {0x958458f6, true, "hugetlbfs"},
};

static int posix_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space)
{
    (void)vfs;
    struct statfs fs;
    int result;
    do {
        result = statfs(path, &fs);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return errno;
    uint64_t block = fs.f_frsize ? (uint64_t)fs.f_frsize : (uint64_t)fs.f_bsize;
    struct pd_space space = {
        .total_bytes = block * fs.f_blocks,
        .available_bytes = block * fs.f_bavail,
        .total_inodes = fs.f_files,
        .available_inodes = fs.f_files ? fs.f_ffree : 0,
    };
    snprintf(space.type_name, sizeof space.type_name, "%x", (unsigned)fs.f_type);
    for (size_t i = 0; i < sizeof file_systems / sizeof *file_systems; i++) {
        if (file_systems[i].magic != (uint32_t)fs.f_type) continue;
        space.in_memory = file_systems[i].in_memory;
        snprintf(space.type_name, sizeof space.type_name, "%s", file_systems[i].name);
    }
    *ret_space = space;
    return 0;
}

/* Closes the stream. */
static int list_stream(DIR *stream, struct pd_listing *ret_listing)
{
    int result = 0;
    while (!result) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (!entry) {
            result = errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = pd_listing_add(ret_listing, entry->d_name);
    }
    closedir(stream);
    return result;
}

static int posix_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing)
{
    (void)vfs;
    DIR *stream = opendir(path);
    return stream ? list_stream(stream, ret_listing) : errno;
}

static int posix_dir_open(struct pd_dir *dir, const struct pd_dir *parent, const char *name)
{
    struct stat st;
    dir->fd = openat(parent ? parent->fd : AT_FDCWD, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (parent ? O_NOFOLLOW : 0));
    if (dir->fd >= 0) return 0;
    const int result = errno;
    const bool is_link = parent && fstatat(parent->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
    return is_link ? ELOOP : result;
}

static int posix_dir_list(struct pd_dir *dir, struct pd_listing *ret_listing)
{
    const int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* a stream needs its own file position */
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream) return list_stream(stream, ret_listing);
    const int result = errno;
    if (fd >= 0) close(fd);
    return result;
}

static int posix_dir_unlink(struct pd_dir *dir, const char *name, bool is_directory)
{
    return unlinkat(dir->fd, name, is_directory ? AT_REMOVEDIR : 0) == 0 ? 0 : errno;
}

static void posix_dir_close(struct pd_dir *dir)
{
    close(dir->fd);
}

/* The previous holder may have unlinked the file between our open and our flock, and another process may hold a new file
 * of that name: EAGAIN. */
static int check_name(int fd, const char *path)
{
    struct stat mine, named;
    if (fstat(fd, &mine) != 0) return errno;
    if (stat(path, &named) != 0) return errno == ENOENT ? EAGAIN : errno;
    return mine.st_dev == named.st_dev && mine.st_ino == named.st_ino ? 0 : EAGAIN;
}

/* flock belongs to the open file description: it ends with the process, and a second lock in the same process fails too. */
static int posix_lock(struct pd_vfs *vfs, const char *path, struct pd_lock *lock)
{
    (void)vfs;
    int fd, result = pd_regular_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, &fd);
    if (result) return result == EAGAIN ? EBUSY : result; /* only a held lock is EAGAIN */
    do {
        result = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    } while (result == EINTR);
    if (!result) result = check_name(fd, path);
    if (result)
        close(fd);
    else
        lock->fd = fd;
    return result;
}

static void posix_unlock(struct pd_lock *lock)
{
    close(lock->fd);
}

static int posix_queue_open(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    return pd_uring_queue_open(queue->vfs->context, queue, buffers, buffer_bytes);
}

static void posix_free(struct pd_vfs *vfs)
{
    pd_uring_free(vfs->context);
}

const struct pd_vfs_ops pd_posix_ops = {
    .name = "disk",
    .open = posix_open,
    .close = posix_close,
    .read = posix_read,
    .write = posix_write,
    .preallocate = posix_preallocate,
    .truncate = posix_truncate,
    .sync = posix_sync,
    .file_stat = posix_file_stat,
    .set_buffered = posix_set_buffered,
    .rename = posix_rename,
    .link = posix_link,
    .readlink = posix_readlink,
    .unlink = posix_unlink,
    .mkdir = posix_mkdir,
    .rmdir = posix_rmdir,
    .sync_dir = posix_sync_dir,
    .stat = posix_stat,
    .space = posix_space,
    .list = posix_list,
    .dir_open = posix_dir_open,
    .dir_list = posix_dir_list,
    .dir_unlink = posix_dir_unlink,
    .dir_close = posix_dir_close,
    .lock = posix_lock,
    .unlock = posix_unlock,
    .queue_open = posix_queue_open,
    .free = posix_free,
};
