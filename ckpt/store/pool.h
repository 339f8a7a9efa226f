/* The files of one launch in one directory, pool-<fence>/: free ones for reuse, and those in use by this rank. pool.c,
 * and for slots generation.c, own struct store_pool. Invariants 7, 11 and 12 of store.c. */
#pragma once

#include "ckpt/store/dir.h"
#include "ckpt/store/store.h"

#include <pthread.h>

struct store_pool {
    struct store_dir *dir;
    uint64_t fence;         /* 0: not open */
    struct pd_lock *lock;   /* of this rank; released when its process dies */
    bool lacks_lock;        /* the directory was recreated, and locking it failed */
    uint32_t free_max;      /* most free files of this rank */
    const uint32_t *others; /* (other_count) ranks whose replicas this one keeps, borrowed */
    uint32_t other_count;
    /* Protects names of free files and slots: a save may end on one thread while a step begins on another. */
    pthread_mutex_t mutex;
    uint64_t slots_in_use[PD_STORE_GENERATIONS_MAX / 64]; /* one bit a slot; under `mutex` */
    uint64_t slots_lost[PD_STORE_GENERATIONS_MAX / 64];   /* could not be freed, not reused in this launch; under `mutex` */
    bool has_logged_copies;
};

/* Collective: creates the directory, locks this rank's place in it, and probes it. */
PD_MUST_USE pd_status store_pool_open(struct store_pool *pool, struct store_dir *dir, uint64_t fence, struct pd_error *err);
/* True if somebody removed the directory and no slot is in use, whose state would be lost with it. */
bool store_pool_is_gone(struct store_pool *pool);
/* Collective: recreates and locks a removed directory. Check the lease afterwards: another launch may have begun
 * meanwhile, with a higher fence. */
PD_MUST_USE pd_status store_pool_make_again(struct store_pool *pool, struct pd_error *err);
/* Removes this rank's files; the last rank also removes the directory. Works without the group, which may be broken. */
void store_pool_close(struct store_pool *pool);
/* "<root>/pool-<fence>/<name>"; NULL: the pool itself. */
struct store_text store_pool_at(const struct store_pool *pool, const char *name);
/* Leaders: takes over or empties <root>/<name>, the pool of a dead launch. The next open retries what fails. */
void store_pool_clear(const struct store_pool *pool, const char *name);

/* Renames a free file of `rank` to `path`, if the file has no other name. */
bool store_free_take(struct store_pool *pool, uint32_t rank, const char *path);
/* Makes the file at `path` free. False, with the file unchanged: it has another name, or the pool is full. */
bool store_free_put(struct store_pool *pool, uint32_t rank, const char *path);
/* Counts this rank's files in the pool that have no other name. */
void store_pool_count(const struct store_pool *pool, uint32_t *ret_count, uint64_t *ret_bytes);
/* Preallocates files until `count` are free. Does nothing where space cannot be preallocated. */
PD_MUST_USE pd_status store_pool_reserve(struct store_pool *pool, uint32_t count, uint64_t file_bytes, struct pd_error *err);
/* In a memory file system: keeps a written file free for this rank, since first touching the pages is the expensive part. */
void store_pool_keep_ready(struct store_pool *pool, uint64_t bytes, void *buffer, uint64_t buffer_bytes);

/* ---- generation.c: files in use ---- */

bool store_slot_is_in_use(struct store_pool *pool, uint32_t slot);
PD_MUST_USE pd_status store_slot_take(struct store_pool *pool, uint32_t *ret_slot, struct store_text *ret_path,
                                      struct pd_error *err);
void store_slot_release(struct store_pool *pool, uint32_t slot, bool is_bad);
/* Links the finished file in `slot` as `to`, or copies it if links are refused. */
PD_MUST_USE pd_status store_slot_link(struct store_pool *pool, uint32_t slot, const char *to,
                                      const struct pd_identity *identity, void *buffers, uint64_t buffer_bytes,
                                      struct pd_error *err);
