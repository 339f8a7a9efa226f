#include "trainer/data/file_writer.h"

#include "ckpt/base/regular_file.h"
#include "ckpt/base/words.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_BUFFER_BYTES (1u << 20)

/* Returns 0 or the errno. *ret_fd: the file with this name, locked if the file system supports it. An unlocked file is left
 * from a killed process and is overwritten. */
static int open_locked(const char *path, int *ret_fd)
{
    for (;;) {
        struct stat mine, named;
        const int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0) return errno;
        int failed = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK ? errno : 0;
        if (!failed && fstat(fd, &mine)) failed = errno;
        /* The previous lock holder may have renamed it. */
        const bool is_it = !failed && stat(path, &named) == 0 && named.st_ino == mine.st_ino && named.st_dev == mine.st_dev;
        if (is_it && ftruncate(fd, 0)) failed = errno;
        if (is_it && !failed) {
            *ret_fd = fd;
            return 0;
        }
        close(fd);
        if (failed) return failed;
    }
}

static pd_status open_temporary(struct pd_file_writer *writer, struct pd_error *err)
{
    const size_t bytes = strlen(writer->path) + sizeof ".packing";
    writer->temporary = malloc(bytes);
    if (!writer->temporary) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its temporary name", writer->path);
    snprintf(writer->temporary, bytes, "%s.packing", writer->path);
    const int failed = open_locked(writer->temporary, &writer->fd);
    writer->stream = failed ? NULL : fdopen(dup(writer->fd), "w");
    if (writer->stream) {
        setvbuf(writer->stream, NULL, _IOFBF, STREAM_BUFFER_BYTES);
        return PD_OK;
    }
    if (!failed) PD_FAIL_ERRNO(err, errno, "opening %s", writer->temporary);
    free(writer->temporary);
    writer->temporary = NULL; /* nothing of ours to remove */
    if (failed == EWOULDBLOCK)
        PD_FAIL(err, PD_BUSY, "another process is writing %s; wait until it ends, or name another file", writer->path);
    PD_FAIL_ERRNO(err, failed, "%s cannot be created%s", writer->path,
                  failed == ENOENT ? ", since its directory does not exist" : "");
}

pd_status pd_file_writer_begin(const char *path, struct pd_file_writer *ret_writer, struct pd_error *err)
{
    struct pd_file_writer writer = {.path = strdup(path), .fd = -1};
    if (writer.path && pd_regular_is_other(path)) {
        pd_file_writer_abort(&writer, err);
        PD_FAIL(err, PD_INVALID, "%s is not a regular file, and would be replaced by one; name another", path);
    }
    if (!writer.path) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its name", path);
    pd_status status = open_temporary(&writer, err);
    if (status) {
        pd_file_writer_abort(&writer, err);
        return status;
    }
    *ret_writer = writer;
    return PD_OK;
}

pd_status pd_file_writer_add(struct pd_file_writer *writer, const void *data, size_t bytes, struct pd_error *err)
{
    if (fwrite(data, 1, bytes, writer->stream) != bytes) PD_FAIL_ERRNO(err, errno, "writing %s", writer->temporary);
    writer->bytes += bytes;
    return PD_OK;
}

pd_status pd_file_writer_patch(struct pd_file_writer *writer, uint64_t offset, const void *data, size_t bytes,
                               struct pd_error *err)
{
    PD_CHECK(offset + bytes <= writer->bytes);
    bool written =
        fflush(writer->stream) == 0 && pwrite(fileno(writer->stream), data, bytes, (off_t)offset) == (ssize_t)bytes;
    if (!written) PD_FAIL_ERRNO(err, errno ? errno : EIO, "writing %s", writer->temporary);
    return PD_OK;
}

pd_status pd_file_writer_seal(struct pd_file_writer *writer, struct pd_error *err)
{
    int failed = fflush(writer->stream) != 0 || fsync(fileno(writer->stream)) != 0 ? errno : 0;
    if (fclose(writer->stream) != 0 && !failed) failed = errno;
    writer->stream = NULL;
    if (failed) PD_FAIL_ERRNO(err, failed, "writing %s", writer->temporary);
    return PD_OK;
}

pd_status pd_sync_directory_of(const char *path, struct pd_error *err)
{
    char *copy = strdup(path);
    if (!copy) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for the name of its directory", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0) close(fd);
    free(copy);
    if (failed) PD_FAIL_ERRNO(err, failed, "syncing the directory of %s", path);
    return PD_OK;
}

pd_status pd_file_writer_commit(struct pd_file_writer *writer, struct pd_error *err)
{
    PD_CHECK(!writer->stream);
    pd_status status = PD_OK;
    if (rename(writer->temporary, writer->path) != 0) {
        status = pd_error_set(err, pd_status_from_errno(errno), PD_WHERE, errno, "renaming %s to %s", writer->temporary,
                              writer->path);
    } else {
        free(writer->temporary);
        writer->temporary = NULL;
        status = pd_sync_directory_of(writer->path, err);
    }
    pd_file_writer_abort(writer, err);
    return status;
}

void pd_file_writer_abort(struct pd_file_writer *writer, struct pd_error *err)
{
    char text[128];
    if (writer->stream) fclose(writer->stream);
    if (writer->temporary && unlink(writer->temporary) != 0)
        pd_error_append(err, "; %s stays behind: %s", writer->temporary, strerror_r(errno, text, sizeof text));
    if (writer->path && writer->fd >= 0) close(writer->fd);
    free(writer->temporary);
    free(writer->path);
    memset(writer, 0, sizeof *writer);
}
