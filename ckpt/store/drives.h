/* Where a store's files lie: the root, and with stripes further drives, each {dir, lease, pool}. drives.c opens and closes
 * one; stripes.c marks the further ones, links them to the root, and walks over all. Owner of struct store_drives: stripes.c. */
#pragma once

#include "ckpt/store/catalog.h"
#include "ckpt/store/lease.h"
#include "ckpt/store/pool.h"

#define STORE_LINKS_MAX 64u

struct store_drive {
    struct store_dir dir;
    struct store_lease lease; /* and pool: of a writable store */
    struct store_pool pool;
    uint64_t id; /* of a further drive's directory */
};

struct store_drives {
    uint32_t shards;                                /* of one rank */
    uint32_t count;                                 /* 1: all shards lie in the root; else one drive a shard */
    struct store_drive rows[PD_LAYOUT_STRIPES_MAX]; /* [0] is the root */
    uint64_t links[STORE_LINKS_MAX]; /* (link_count) ids that links in the root go by, also of drives not used; of leaders */
    uint32_t link_count;
};

/* The drive that the shard `stripe` of a rank lies on. */
static inline struct store_drive *store_drive_of(struct store_drives *drives, uint32_t stripe)
{
    PD_CHECK(stripe < drives->shards);
    return &drives->rows[stripe < drives->count ? stripe : 0];
}

/* Of the shard `stripe` of this rank. */
static inline struct pd_store_name store_shard_name(const struct store_drives *drives, uint32_t stripe)
{
    return pd_shard_name(drives->rows[0].dir.group->rank * drives->shards + stripe);
}

/* ---- drives.c: one drive ---- */

/* Collective. What was begun before a failure is closed by store_drive_close. */
PD_MUST_USE pd_status store_drive_open(struct store_drive *drive, struct pd_vfs *vfs, struct pd_group *group,
                                       const char *root, const struct pd_store_options *options, struct pd_error *err);
/* Of a writable one. Without room: PD_NO_SPACE, and store_pool_close before the next attempt. */
PD_MUST_USE pd_status store_drive_open_pool(struct store_drive *drive, const struct pd_store_options *options,
                                            struct pd_error *err);
void store_drive_close(struct store_drive *drive, bool forgets);
/* Leaders: removes older fences, and takes over or empties the pools of dead launches. What stays is met again. */
void store_drive_clear_launches(const struct store_drive *drive);

/* ---- stripes.c: the further drives; nothing happens where there are none ---- */

/* Collective. */
PD_MUST_USE pd_status store_stripes_open(struct store_drives *drives, const struct pd_store_options *options,
                                         struct pd_error *err);
/* Collective: the directory of checkpoint `name` on every drive, and the links to this rank's shards. */
PD_MUST_USE pd_status store_stripes_begin(struct store_drives *drives, const char *name, struct pd_error *err);
/* Leaders: finds the links of the root; clears what no checkpoint goes by. */
void store_stripes_find(struct store_drives *drives);
void store_stripes_clear(struct store_drives *drives, const struct store_catalog *catalog);
PD_MUST_USE pd_status store_stripes_remove(const struct store_drives *drives, const char *name, struct pd_error *err);
PD_MUST_USE pd_status store_stripes_quarantine(const struct store_drives *drives, struct pd_error *err);
/* Leaders of hosts. */
PD_MUST_USE pd_status store_stripes_sync(struct store_drives *drives, const char *name, struct pd_error *err);
void store_stripes_recycle(struct store_drives *drives, const char *name); /* every rank its own */

/* ---- replicas.c: shards that lie on another host once more ---- */

/* Collective: who keeps whose. Nothing is made where all ranks see one directory. */
PD_MUST_USE pd_status store_replicas_open(struct pd_store_replicas *replicas, const struct store_dir *root,
                                          struct pd_error *err);
PD_MUST_USE pd_status store_replica_begin(struct store_pool *pool, uint32_t rank, char *ret_path, struct pd_error *err);
PD_MUST_USE pd_status store_replica_end(struct store_pool *pool, const char *name, uint32_t rank, pd_status mine,
                                        struct pd_error *err);
/* What replicas take here, in the newest checkpoints. */
uint64_t store_replica_bytes(const struct store_dir *root, const struct store_items *committed, uint32_t newest);
