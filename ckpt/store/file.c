#include "ckpt/store/file.h"

#include <inttypes.h>
#include <stdlib.h>

pd_status store_file_read(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, void **ret_data, uint64_t *ret_bytes,
                          struct pd_error *err)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    pd_status st = pd_file_stat(file, &stat, err);
    if (st == PD_OK && stat.bytes > bytes_max)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s has %" PRIu64 " bytes, and at most %" PRIu64 " can be read",
                          path, stat.bytes, bytes_max);
    void *data = NULL;
    if (st == PD_OK && !(data = malloc(stat.bytes + 1)))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %s", path);
    if (st == PD_OK && stat.bytes) st = pd_file_read(file, 0, data, stat.bytes, err);
    pd_file_close_readonly(file);
    if (st != PD_OK) {
        free(data);
        return st;
    }
    *ret_data = data;
    *ret_bytes = stat.bytes;
    return PD_OK;
}

pd_status store_file_write(struct pd_vfs *vfs, const char *path, unsigned flags, const void *data, uint64_t bytes,
                           enum store_file_end end, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_WRITE | flags, &file, err));
    pd_status st = bytes ? pd_file_write(file, 0, data, bytes, err) : PD_OK;
    if (st == PD_OK && end == STORE_FILE_CUT_SYNC) st = pd_file_truncate(file, bytes, err);
    if (st == PD_OK && end != STORE_FILE_LEAVE) st = pd_file_sync(file, err);
    pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
    return st != PD_OK ? st : closed;
}
