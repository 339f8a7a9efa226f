/* A file system that can be made to stall: DIRECTORY is seen at MOUNT, through FUSE.
 *
 *   stalling_files DIRECTORY MOUNT CONTROL
 *
 * While the file CONTROL exists, an operation waits for it to go if one of its lines names it: "OPERATION PATTERN". OPERATION is
 * open, read, write, sync, stat, list, names (rename, mkdir, unlink, ...), space (fallocate, truncate), or * for all of them.
 * PATTERN is for the path below MOUNT, which begins with "/". "OPERATION PATTERN THREAD" holds that thread alone, and
 * "OPERATION PATTERN -THREAD" all others.
 *
 * TERM, or the end of the parent, ends it at once, with whatever waits: nothing that hangs is left behind. */
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fuse.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct open_file {
    int fd;
    char path[];
};

static const char *mount_point, *control;
static int root;

static bool is_held(const char *operation, const char *path)
{
    char line[4096], wanted[16], pattern[4096];
    bool found = false;
    int thread, own = fuse_get_context()->pid;
    FILE *f = fopen(control, "re");
    for (int words; f && !found && fgets(line, sizeof line, f);)
        found = (words = sscanf(line, "%15s %4095s %d", wanted, pattern, &thread)) >= 2 &&
                (words == 2 || (thread > 0 ? thread == own : thread != -own)) &&
                (!strcmp(wanted, "*") || !strcmp(wanted, operation)) && !fnmatch(pattern, path, 0);
    if (f) (void)fclose(f);
    return found;
}

static void hold(const char *operation, const char *path)
{
    while (is_held(operation, path))
        usleep(20000);
}

/* The kernel aborts the connection when this process is gone: whoever waits gets an error. */
static void leave(int number)
{
    (void)number;
    if (umount2(mount_point, MNT_DETACH) != 0 && fork() == 0)
        execlp("fusermount3", "fusermount3", "-uz", mount_point, (char *)NULL);
    _exit(0);
}

static int result_of(long result)
{
    return result < 0 ? -errno : (int)result;
}

static const char *below(const char *path)
{
    return path[1] ? path + 1 : ".";
}

static struct open_file *file_of(const struct fuse_file_info *info)
{
    return info ? (struct open_file *)(uintptr_t)info->fh : NULL;
}

static void *files_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    connection->max_background = 1024; /* what is held must not keep others back */
    config->use_ino = 1;
    config->hard_remove = 1; /* by the descriptor, which stays good */
    config->nullpath_ok = 1;
    config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
    return NULL;
}

static int files_stat(const char *path, struct stat *ret_stat, struct fuse_file_info *info)
{
    const struct open_file *file = file_of(info);
    hold("stat", file ? file->path : path);
    return result_of(file ? fstat(file->fd, ret_stat) : fstatat(root, below(path), ret_stat, AT_SYMLINK_NOFOLLOW));
}

static int files_open_with(const char *path, mode_t mode, struct fuse_file_info *info)
{
    const size_t bytes = strlen(path) + 1;
    hold("open", path);
    struct open_file *file = malloc(sizeof *file + bytes);
    if (!file) return -ENOMEM;
    memcpy(file->path, path, bytes);
    file->fd = openat(root, below(path), (info->flags & ~O_DIRECT) | O_CLOEXEC, mode);
    const int result = file->fd < 0 ? -errno : 0;
    info->fh = (uint64_t)(uintptr_t)file;
    info->direct_io = !(info->flags & O_DIRECTORY); /* every read comes here */
    if (result) free(file);
    return result;
}

static int files_open(const char *path, struct fuse_file_info *info)
{
    return files_open_with(path, 0, info);
}

static int files_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
    return files_open_with(path, mode, info);
}

static int files_release(const char *path, struct fuse_file_info *info)
{
    struct open_file *file = file_of(info);
    (void)path;
    close(file->fd);
    free(file);
    return 0;
}

static int files_read(const char *path, char *data, size_t bytes, off_t offset, struct fuse_file_info *info)
{
    (void)path;
    hold("read", file_of(info)->path);
    return result_of(pread(file_of(info)->fd, data, bytes, offset));
}

static int files_write(const char *path, const char *data, size_t bytes, off_t offset, struct fuse_file_info *info)
{
    (void)path;
    hold("write", file_of(info)->path);
    return result_of(pwrite(file_of(info)->fd, data, bytes, offset));
}

static int files_sync(const char *path, int is_data_only, struct fuse_file_info *info)
{
    (void)path;
    hold("sync", file_of(info)->path);
    return result_of(is_data_only ? fdatasync(file_of(info)->fd) : fsync(file_of(info)->fd));
}

static int files_allocate(const char *path, int mode, off_t offset, off_t bytes, struct fuse_file_info *info)
{
    (void)path;
    hold("space", file_of(info)->path);
    return result_of(fallocate(file_of(info)->fd, mode, offset, bytes));
}

static int files_truncate(const char *path, off_t bytes, struct fuse_file_info *info)
{
    const struct open_file *file = file_of(info);
    hold("space", file ? file->path : path);
    if (file) return result_of(ftruncate(file->fd, bytes));
    const int fd = openat(root, below(path), O_WRONLY | O_CLOEXEC);
    const int result = fd < 0 ? -errno : result_of(ftruncate(fd, bytes));
    if (fd >= 0) close(fd);
    return result;
}

static int files_space(const char *path, struct statvfs *ret_space)
{
    hold("stat", path);
    return result_of(fstatvfs(root, ret_space));
}

static int files_list(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                      enum fuse_readdir_flags flags)
{
    (void)path;
    (void)offset;
    (void)flags;
    hold("list", file_of(info)->path);
    const int fd = openat(file_of(info)->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) return -errno;
    for (const struct dirent *entry; (entry = readdir(dir));)
        fill(buffer, entry->d_name, NULL, 0, 0);
    closedir(dir);
    return 0;
}

static int files_rename(const char *from, const char *to, unsigned flags)
{
    hold("names", to);
    return result_of(renameat2(root, below(from), root, below(to), flags));
}

static int files_link(const char *from, const char *to)
{
    hold("names", to);
    return result_of(linkat(root, below(from), root, below(to), 0));
}

static int files_symlink(const char *target, const char *path)
{
    hold("names", path);
    return result_of(symlinkat(target, root, below(path)));
}

static int files_readlink(const char *path, char *ret_target, size_t bytes)
{
    hold("stat", path);
    const ssize_t length = readlinkat(root, below(path), ret_target, bytes - 1);
    if (length >= 0) ret_target[length] = '\0';
    return length < 0 ? -errno : 0;
}

static int files_mkdir(const char *path, mode_t mode)
{
    hold("names", path);
    return result_of(mkdirat(root, below(path), mode));
}

static int files_unlink(const char *path)
{
    hold("names", path);
    return result_of(unlinkat(root, below(path), 0));
}

static int files_rmdir(const char *path)
{
    hold("names", path);
    return result_of(unlinkat(root, below(path), AT_REMOVEDIR));
}

int main(int argc, char **argv)
{
    static const struct fuse_operations operations = {.init = files_init,
                                                      .getattr = files_stat,
                                                      .open = files_open,
                                                      .create = files_create,
                                                      .release = files_release,
                                                      .read = files_read,
                                                      .write = files_write,
                                                      .fsync = files_sync,
                                                      .fsyncdir = files_sync,
                                                      .fallocate = files_allocate,
                                                      .truncate = files_truncate,
                                                      .statfs = files_space,
                                                      .opendir = files_open,
                                                      .releasedir = files_release,
                                                      .readdir = files_list,
                                                      .rename = files_rename,
                                                      .link = files_link,
                                                      .symlink = files_symlink,
                                                      .readlink = files_readlink,
                                                      .mkdir = files_mkdir,
                                                      .unlink = files_unlink,
                                                      .rmdir = files_rmdir};
    if (argc != 4) {
        (void)fprintf(stderr, "usage: %s DIRECTORY MOUNT CONTROL\n", argv[0]);
        return 64;
    }
    char *words[] = {argv[0], argv[2], "-f", "-o", "max_threads=1024,max_idle_threads=1024,fsname=stalling_files", NULL};
    root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    mount_point = argv[2];
    control = argv[3];
    const struct sigaction leaves = {.sa_handler = leave};
    sigaction(SIGTERM, &leaves, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (root < 0 || getppid() == 1) return 1;
    return fuse_main(5, words, &operations, NULL);
}
