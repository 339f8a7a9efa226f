/* The files of one launch in one directory, pool-<fence>/: those free for reuse, and those in use by this rank.
 * Owner of struct store_pool: pool.c and, for slots, generation.c. Invariants 7, 11 and 12 of store.c. */
#pragma once

#include "ckpt/store/dir.h"
#include "ckpt/store/store.h"

#include <pthread.h>

struct store_pool {
    struct store_dir *dir;
    uint64_t fence;         /* 0: not open */
    struct pd_lock *lock;   /* of this rank; dies with its process */
    bool lacks_lock;        /* the directory was made again, and locking it failed */
    uint32_t free_max;      /* files of this rank that may be free at once */
    const uint32_t *others; /* (other_count) ranks whose replicas this one keeps, borrowed */
    uint32_t other_count;
    /* Names of free files and slots: a save may end on one thread while a step begins on another. */
    pthread_mutex_t mutex;
    uint64_t slots_in_use[PD_STORE_GENERATIONS_MAX / 64]; /* a bit a slot; under `mutex` */
    uint64_t slots_lost[PD_STORE_GENERATIONS_MAX / 64];   /* could not be freed: not used again in this launch; as above */
    bool has_logged_copies;
};

/* Collective: makes the directory, locks this rank's place in it, probes it. */
PD_MUST_USE pd_status store_pool_open(struct store_pool *pool, struct store_dir *dir, uint64_t fence, struct pd_error *err);
/* Somebody removed the directory under us, and no state is in use there, which would be gone with it. */
bool store_pool_is_gone(struct store_pool *pool);
/* Collective: makes and locks a directory that is gone. Another launch that began meanwhile has the higher fence, so that
 * whoever calls this checks the lease behind it. */
PD_MUST_USE pd_status store_pool_make_again(struct store_pool *pool, struct pd_error *err);
/* This rank's files go, and the directory with the last one. Without the group, which may be broken. */
void store_pool_close(struct store_pool *pool);
/* "<root>/pool-<fence>/<name>"; NULL: the pool itself. */
struct store_text store_pool_at(const struct store_pool *pool, const char *name);
/* Leaders: takes over or empties <root>/<name>, the pool of a dead launch. What stays is met again by the next open. */
void store_pool_clear(const struct store_pool *pool, const char *name);

/* A free file of `rank`, when nobody else knows it by another name, gets the name `path`. */
bool store_free_take(struct store_pool *pool, uint32_t rank, const char *path);
/* The file at `path` is free from now on; false: it has another name, or there is no place, and it is where it was. */
bool store_free_put(struct store_pool *pool, uint32_t rank, const char *path);
/* This rank's files in the pool that nobody else knows. */
void store_pool_count(const struct store_pool *pool, uint32_t *ret_count, uint64_t *ret_bytes);
/* Preallocates files until `count` are free. Does nothing where space cannot be preallocated. */
PD_MUST_USE pd_status store_pool_reserve(struct store_pool *pool, uint32_t count, uint64_t file_bytes, struct pd_error *err);
/* Where files lie in memory: a written file is free for this rank, since the first touch of a page is what costs. */
void store_pool_keep_ready(struct store_pool *pool, uint64_t bytes, void *buffer, uint64_t buffer_bytes);

/* ---- generation.c: files in use ---- */

bool store_slot_is_in_use(struct store_pool *pool, uint32_t slot);
PD_MUST_USE pd_status store_slot_take(struct store_pool *pool, uint32_t *ret_slot, struct store_text *ret_path,
                                      struct pd_error *err);
void store_slot_release(struct store_pool *pool, uint32_t slot, bool is_bad);
/* The finished file in `slot` gets the further name `to`; where links are refused it is copied. */
PD_MUST_USE pd_status store_slot_link(struct store_pool *pool, uint32_t slot, const char *to,
                                      const struct pd_identity *identity, void *buffers, uint64_t buffer_bytes,
                                      struct pd_error *err);
