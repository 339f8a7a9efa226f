/* The open parts of a store: its directory and who shares it (dir), the lock of this launch (lease), and the files that
 * are free or in use (pool). */
#pragma once

#include "ckpt/store/catalog.h"
#include "ckpt/store/lease.h"
#include "ckpt/store/pool.h"

struct store_files {
    struct store_dir dir;
    struct store_lease lease; /* like pool, only in a writable store */
    struct store_pool pool;
};

/* Collective. Even after a failure call store_files_close. */
PD_MUST_USE pd_status store_files_open(struct store_files *files, struct pd_vfs *vfs, struct pd_group *group,
                                       const char *root, const struct pd_store_options *options, struct pd_error *err);
/* For a writable store. If the disk is full: PD_NO_SPACE; call store_pool_close before the next attempt. */
PD_MUST_USE pd_status store_files_open_pool(struct store_files *files, const struct pd_store_options *options,
                                            struct pd_error *err);
void store_files_close(struct store_files *files, bool forgets);
/* Leaders: removes older fences, and takes over or empties the pools of dead launches. The next open retries failures. */
void store_files_clear_launches(const struct store_files *files);

/* ---- replicas.c: copies of shards on another host ---- */

/* Collective: assigns the host of each rank's replicas. Makes none if all ranks see one directory. */
PD_MUST_USE pd_status store_replicas_open(struct pd_store_replicas *replicas, const struct store_dir *root,
                                          struct pd_error *err);
PD_MUST_USE pd_status store_replica_begin(struct store_pool *pool, uint32_t rank, char *ret_path, struct pd_error *err);
PD_MUST_USE pd_status store_replica_end(struct store_pool *pool, const char *name, uint32_t rank, pd_status mine,
                                        struct pd_error *err);
/* Bytes of replicas here, in the newest checkpoints. */
uint64_t store_replica_bytes(const struct store_dir *root, const struct store_items *committed, uint32_t newest);
