/* Replicas: shards that lie on another host once more. */
#ifndef PD_CKPT_STORE_REPLICAS_H
#define PD_CKPT_STORE_REPLICAS_H

#include "ckpt/store/catalog.h"
#include "ckpt/store/pool.h"

/* Collective: who keeps whose. Nothing is made where all ranks see one directory. */
PD_MUST_USE pd_status store_replicas_open(struct pd_store_replicas *replicas, const struct store_dir *root,
                                          struct pd_error *err);
PD_MUST_USE pd_status store_replica_begin(struct store_pool *pool, uint32_t rank, char *ret_path, struct pd_error *err);
PD_MUST_USE pd_status store_replica_end(struct store_pool *pool, const char *name, uint32_t rank, pd_status mine,
                                        struct pd_error *err);
/* What replicas take here, in the newest checkpoints. */
uint64_t store_replica_bytes(const struct store_dir *root, const struct store_items *committed, uint32_t newest);

#endif
