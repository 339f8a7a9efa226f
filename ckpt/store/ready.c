/* A file that waits in this rank's pool, written once, where files lie in memory: the first touch of a page is what costs.
 * Later saves reuse it as they do the files of pruned checkpoints (place_recycled in store_save.c). */
#include "ckpt/store/internal.h"

#include <string.h>

static bool has_waiting(const struct pd_store *store)
{
    for (uint32_t k = 0; k < STORE_RECYCLE_MAX; k++) {
        char name[PD_STORE_NAME_MAX], path[STORE_PATH_MAX];
        struct pd_stat stat;
        pd_recycle_name_format(store->group->rank, k, name);
        store_pool_path(store, path, name);
        if (pd_vfs_stat(store->vfs, path, &stat, NULL) != PD_NOT_FOUND) return true;
    }
    return false;
}

static pd_status write_zeros(struct pd_file *file, uint64_t bytes, const void *zeros, uint64_t zero_bytes)
{
    PD_TRY(pd_file_preallocate(file, bytes, NULL));
    for (uint64_t at = 0; at < bytes; at += zero_bytes)
        PD_TRY(pd_file_write(file, at, zeros, bytes - at < zero_bytes ? bytes - at : zero_bytes, NULL));
    return PD_OK;
}

void pd_store_keep_ready(struct pd_store *store, uint64_t bytes, void *buffer, uint64_t buffer_bytes)
{
    char name[PD_STORE_NAME_MAX], path[STORE_PATH_MAX];
    struct pd_file *file = NULL;
    if (!store->fence || !bytes || !pd_vfs_is_in_memory(store->vfs, store->root) || has_waiting(store)) return;
    pd_recycle_name_format(store->group->rank, 0, name);
    store_pool_path(store, path, name);
    if (pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, NULL)) return;
    memset(buffer, 0, buffer_bytes);
    pd_status st = write_zeros(file, bytes, buffer, buffer_bytes);
    pd_status closed = pd_file_close(file, NULL);
    if (st || closed) (void)!pd_vfs_unlink(store->vfs, path, NULL);
}
