#include "trainer/data/file_writer.h"

#include "ckpt/base/regular_file.h"
#include "ckpt/base/words.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STREAM_BUFFER_BYTES (1u << 20)

static pd_status open_temporary(struct pd_file_writer *writer, struct pd_error *err)
{
    size_t bytes = strlen(writer->path) + 32;
    writer->temporary = malloc(bytes);
    if (!writer->temporary) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its temporary name", writer->path);
    snprintf(writer->temporary, bytes, "%s.tmp-%d", writer->path, (int)getpid());
    writer->stream = fopen(writer->temporary, "we");
    if (writer->stream) {
        setvbuf(writer->stream, NULL, _IOFBF, STREAM_BUFFER_BYTES);
        return PD_OK;
    }
    int failed = errno;
    pd_error_set(err, pd_status_from_errno(failed), PD_WHERE, failed, "%s cannot be created%s", writer->path,
                 failed == ENOENT ? ", as the directory it is to lie in is not there" : "");
    free(writer->temporary);
    writer->temporary = NULL; /* nothing of ours to remove */
    return pd_status_from_errno(failed);
}

pd_status pd_file_writer_begin(const char *path, struct pd_file_writer *ret_writer, struct pd_error *err)
{
    struct pd_file_writer writer = {.path = strdup(path)};
    if (writer.path && pd_regular_is_other(path)) {
        pd_file_writer_abort(&writer, err);
        PD_FAIL(err, PD_INVALID, "%s is no regular file, and would be replaced by one; name another", path);
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
    free(writer->temporary);
    free(writer->path);
    memset(writer, 0, sizeof *writer);
}
