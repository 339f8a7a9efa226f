#include "trainer/launch/private_dir.h"

#include "ckpt/base/parse.h"
#include "trainer/launch/starter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX ".launch-"

struct owner {
    int process;
    bool is_here;
};

static bool file_write(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3900s/%s", dir, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    const bool is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    return (close(fd) == 0) & is_written;
}

static bool owner_write(const char *dir)
{
    char place[PD_MESSAGE_PLACE_BYTES], text[256];
    pd_message_place(0, UINT32_MAX, place);
    snprintf(text, sizeof text, "%d\n%s\n", (int)getpid(), place);
    return file_write(dir, "owner", text);
}

static bool owner_read(const char *dir, struct owner *ret)
{
    char path[PATH_MAX], place[PD_MESSAGE_PLACE_BYTES], text[256] = "";
    uint64_t process;
    snprintf(path, sizeof path, "%.3900s/owner", dir);
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    char *end = got > 0 ? strchr(text, '\n') : NULL, *second = end ? strchr(end + 1, '\n') : NULL;
    if (!second) return false;
    *end = *second = '\0';
    if (!pd_parse_u64(text, &process) || process > INT32_MAX) return false;
    pd_message_place(0, UINT32_MAX, place);
    *ret = (struct owner){(int)process, strcmp(end + 1, place) == 0};
    return true;
}

static bool is_dead(const struct owner *owner)
{
    return owner->is_here && kill(owner->process, 0) != 0 && errno == ESRCH;
}

static int private_dir_remove_one(const char *path, const struct stat *found, int kind, struct FTW *at)
{
    (void)found;
    (void)kind;
    (void)at;
    return remove(path) && false;
}

/* Removes also what mpirun left in it. Does not follow links. */
static void tree_remove(const char *path)
{
    (void)nftw(path, private_dir_remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void stale_remove(const char *parent)
{
    DIR *listing = opendir(parent);
    if (!listing) return;
    for (const struct dirent *entry; (entry = readdir(listing));) {
        char path[PATH_MAX];
        struct owner owner;
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX))) continue;
        const int length = snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        if (length > 0 && (size_t)length < sizeof path && owner_read(path, &owner) && is_dead(&owner)) tree_remove(path);
    }
    closedir(listing);
}

static bool make_in(const char *parent, char ret_path[PD_PRIVATE_DIR_BYTES])
{
    char path[PATH_MAX], whole[PATH_MAX];
    if (!parent || !*parent) return false;
    stale_remove(parent);
    const int length = snprintf(path, sizeof path, "%s/" PREFIX "XXXXXX", parent);
    if (length < 0 || length >= (int)sizeof path || !mkdtemp(path)) return false;
    const int copied = snprintf(ret_path, PD_PRIVATE_DIR_BYTES, "%s", realpath(path, whole) ? whole : path);
    if (copied < (int)PD_PRIVATE_DIR_BYTES && owner_write(ret_path)) return true;
    const int number = errno;
    tree_remove(path);
    errno = number;
    return false;
}

pd_status pd_private_dir_make(const char *run_dir, struct pd_private_dir *ret_dir, struct pd_error *err)
{
    *ret_dir = (struct pd_private_dir){.path = ""};
    if (!pd_seal_random(ret_dir->secret, sizeof ret_dir->secret)) PD_FAIL_ERRNO(err, errno, "the secret of this launch");
    for (size_t i = 0; i < sizeof ret_dir->secret; i++)
        snprintf(ret_dir->secret_text + 2 * i, 4, "%02x\n", ret_dir->secret[i]);
    if (!make_in(run_dir, ret_dir->path) && !make_in(getenv("TMPDIR"), ret_dir->path) && !make_in("/tmp", ret_dir->path) &&
        !make_in("/dev/shm", ret_dir->path))
        PD_FAIL_ERRNO(err, errno, "making a directory for the launch in %s, $TMPDIR, /tmp or /dev/shm",
                      run_dir ? run_dir : "-");
    if (file_write(ret_dir->path, PD_STARTER_SECRET_NAME, ret_dir->secret_text)) return PD_OK;
    const int number = errno;
    pd_private_dir_remove(ret_dir);
    PD_FAIL_ERRNO(err, number, "writing the secret of this launch");
}

void pd_private_dir_remove(struct pd_private_dir *dir)
{
    if (dir->path[0]) tree_remove(dir->path);
    dir->path[0] = '\0';
}

void pd_private_dir_describe_owner(const char *run_dir, char *ret_text, size_t bytes)
{
    char pattern[4096];
    glob_t found;
    snprintf(ret_text, bytes, "its owner is unknown");
    snprintf(pattern, sizeof pattern, "%.4000s/" PREFIX "*", run_dir);
    if (glob(pattern, GLOB_NOSORT | GLOB_PERIOD, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct owner owner;
        if (!owner_read(found.gl_pathv[i], &owner) || is_dead(&owner)) continue;
        snprintf(ret_text, bytes, "process %d of %s", owner.process, owner.is_here ? "this host" : "another host");
    }
    globfree(&found);
}
