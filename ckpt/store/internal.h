/* What the files of the store share: its state and the steps of its protocol. The protocol itself opens store.c. */
#ifndef PD_CKPT_STORE_INTERNAL_H
#define PD_CKPT_STORE_INTERNAL_H

#include "ckpt/store/names.h"
#include "ckpt/store/retention.h"
#include "ckpt/store/store.h"

#include <pthread.h>

#define STORE_PATH_MAX 4096u
#define STORE_ROOT_MAX 3500u /* leaves room for every name below it */
#define STORE_RECYCLE_MAX 2u /* files that wait for one rank whose state is in memory */
#define STORE_LEFTOVERS_MAX 16u
#define STORE_DRIVES_MAX 64u

struct store_item {
    struct pd_store_entry entry;
    uint32_t record_rank; /* can read the record */
    uint32_t pins;
};

struct store_items {
    struct store_item *rows; /* (count) newest first, owned */
    uint32_t count, capacity;
};

struct pd_store {
    struct pd_vfs *vfs;
    struct pd_group *group;
    struct pd_store_options options;
    char root[STORE_PATH_MAX];
    uint64_t fence;

    /* Who does what. A domain is a set of hosts that see the same directory; its lowest rank leads it. */
    uint32_t *host_of, *domain_of; /* (group->size) */
    bool leads_host, leads_domain;
    bool has_other_domains;
    bool domain_is_local; /* one host and no network file system: files of dead launches may be taken over */
    struct pd_lock *launch_lock, *rank_lock;
    bool is_first_launch; /* options.leaves_nothing, and nothing of an earlier launch lay here */
    char token[33];       /* of this launch, random */

    struct pd_store_ring ring; /* of second copies; sources NULL: none */

    struct store_items sealed;          /* every shard and a valid record are in sight */
    struct store_items partial;         /* a valid record, but shards are not in sight */
    struct pd_store_unusable *unusable; /* (unusable_count) what the open saw, owned */
    uint32_t unusable_count;
    struct pd_store_entry unnamed; /* a reader's: the newest that has its temporary name still; without a name: none */

    /* Shards of one rank, and the stores of those on drives of their own; [0] is NULL. store_stripes.c */
    uint32_t shards;
    struct pd_store *stripes[PD_LAYOUT_STRIPES_MAX];
    struct pd_store *parent; /* of a drive's store, with its number and the id of its directory */
    uint32_t stripe;
    uint64_t stripe_id;
    uint64_t drives[STORE_DRIVES_MAX]; /* (drive_count) ids that links in the root go by; of leaders */
    uint32_t drive_count;

    bool is_preparing;
    struct pd_identity identity;
    char name[PD_STORE_NAME_MAX];           /* of the checkpoint being prepared, without ".tmp" */
    const struct pd_shard_summary *written; /* (written_count) by one rank for all; NULL: each wrote its own. Borrowed */
    uint32_t written_count;

    const void *index_data; /* borrowed */
    uint64_t index_bytes;
    uint64_t index_version; /* raised by pd_store_set_index */
    bool has_placed_index;  /* in the directory being prepared */
    uint64_t index_written; /* version that lies in the pool, 0: none */
    bool has_links, syncs_names;

    /* Names of files that wait: a save may end on one thread while a step begins on another. */
    pthread_mutex_t waiting_mutex;
    uint64_t slots_held[PD_STORE_GENERATIONS_MAX / 64]; /* a bit a slot */
    uint64_t slots_lost[PD_STORE_GENERATIONS_MAX / 64]; /* their names could not be freed: not used again in this launch */
    bool has_said_copies;

    char leftovers[STORE_LEFTOVERS_MAX][PD_STORE_NAME_MAX]; /* (leftover_count) failed saves that could not be cleared yet */
    uint32_t leftover_count;
};

/* ---- store.c: paths and small collectives ---- */

/* "<root>/<formatted>" */
/* From the root of the file system, without slashes at its end. */
PD_MUST_USE pd_status store_absolute(const char *path, char ret_path[STORE_PATH_MAX], struct pd_error *err);
void store_path(const struct pd_store *store, char ret_path[STORE_PATH_MAX], const char *format, ...) PD_PRINTF(3, 4);
void store_pool_path(const struct pd_store *store, char ret_path[STORE_PATH_MAX], const char *name);
/* Every rank gives `bytes`; all (size * bytes, rank order) on every rank. */
PD_MUST_USE pd_status store_gather_all(struct pd_store *store, const void *mine, uint64_t bytes, void *all,
                                       struct pd_error *err);
/* A directory sync where the file system knows it. */
PD_MUST_USE pd_status store_sync_dir(struct pd_store *store, const char *path, struct pd_error *err);
PD_MUST_USE pd_status store_items_reserve(struct store_items *items, struct pd_error *err); /* room for one more */
void store_items_add(struct store_items *items, const struct store_item *item);
bool store_is_sealed(struct pd_store *store, const char *name);
void store_items_remove(struct store_items *items, const char *name);

/* ---- store_claim.c: domains, launch lock, fence ---- */

PD_MUST_USE pd_status store_claim(struct pd_store *store, struct pd_error *err);
/* Takes the next fence, makes pool-<fence> and locks this rank's place in it. */
PD_MUST_USE pd_status store_take_fence(struct pd_store *store, struct pd_error *err);
/* Leaders only; PD_BUSY when a newer launch has been here. */
PD_MUST_USE pd_status store_check_fence_here(struct pd_store *store, struct pd_error *err);
/* Removes older fences and takes over or empties the pools of dead launches. Nothing fails: what stays is met again. */
void store_clear_launches(struct pd_store *store);
void store_release(struct pd_store *store); /* locks, and this rank's files in the pool */

/* ---- store_stripes.c: shards on further drives; nothing happens where there are none ---- */

bool store_is_striped(const struct pd_store *store); /* on drives of their own */
/* Collective. */
PD_MUST_USE pd_status store_stripes_open(struct pd_store *store, struct pd_error *err);
PD_MUST_USE pd_status store_stripes_begin(struct pd_store *store, struct pd_error *err);
/* Leaders of domains: finds the links of the root; clears what no checkpoint goes by and what dead launches left. */
void store_stripes_find(struct pd_store *store);
void store_stripes_clear(struct pd_store *store);
PD_MUST_USE pd_status store_stripes_remove(struct pd_store *store, const char *name, struct pd_error *err);
PD_MUST_USE pd_status store_stripes_quarantine(struct pd_store *store, struct pd_error *err);
PD_MUST_USE pd_status store_stripes_sync(struct pd_store *store, struct pd_error *err); /* leaders of hosts */
void store_stripes_recycle(struct pd_store *store, const char *name);                   /* every rank its own */
/* store.c: with lock, fence and pool, and without checkpoints. Collective; *ret_drive is set also where it fails. */
PD_MUST_USE pd_status store_open_drive(const struct pd_store *store, const char *root,
                                       const struct pd_store_options *options, struct pd_store **ret_drive,
                                       struct pd_error *err);

/* ---- store_survey.c: what lies where, united over all hosts ---- */

enum store_verdict_kind {
    STORE_SEALED,   /* valid record, every shard in sight */
    STORE_PARTIAL,  /* valid record, shards missing (or of another size on a disk that may not show it yet): never touched */
    STORE_UNSEALED, /* no record anywhere: a save or a removal that was interrupted */
    STORE_DAMAGED,  /* a sealed name, and its record does not verify anywhere or a shard has another size */
    STORE_UNREADABLE, /* the record cannot be read: a storage error, not damage */
};

struct store_verdict { /* one (step, fence), the same on every rank */
    uint64_t step, fence, lineage, bytes;
    uint32_t shard_count, record_rank;
    uint32_t kind;
    uint32_t needs_repair;    /* somewhere the record or the final name is missing */
    uint32_t has_tmp;         /* somewhere it still has its temporary name */
    uint32_t is_emptied;      /* no shard lies under its final name */
    uint32_t hosts;           /* directories that have a shard, the fewest of any */
    uint32_t is_drive_absent; /* shards lie on a drive that is not there, as rank 0 sees it; `cause` names its directory */
    uint32_t is_shard_absent; /* a shard is nowhere in sight, not merely of another size */
    char cause[324];          /* what is wrong with its shards, or empty */
};

enum store_record_state { STORE_RECORD_ABSENT, STORE_RECORD_VALID, STORE_RECORD_INVALID, STORE_RECORD_UNREADABLE };

struct store_sighting { /* one step directory as a leader sees it */
    struct pd_step_name name;
    enum store_record_state record;
    char cause[192]; /* why the record is not valid; stays on this rank */
    uint64_t lineage, digest;
    uint32_t shard_count;
    uint64_t *expected; /* (shard_count) file sizes the record promises, owned */
    uint32_t file_count;
    uint64_t *files; /* (file_count, 2): rank, bytes, owned */
};

struct store_survey {
    struct store_sighting *sightings; /* of this rank, owned; none for ranks that lead nothing */
    uint32_t sighting_count;
    struct store_verdict *verdicts; /* the same on every rank, ascending (step, fence), owned */
    uint32_t verdict_count;
    struct pd_error unreadable; /* why, for the first record that this rank could not read */
};

PD_MUST_USE pd_status store_survey_take(struct pd_store *store, struct store_survey *ret_survey, struct pd_error *err);
void store_survey_deinit(struct store_survey *survey);
/* The file as bytes, malloc'ed. */
PD_MUST_USE pd_status store_read_file(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, void **ret_data,
                                      uint64_t *ret_bytes, struct pd_error *err);

/* ---- store_recover.c: acting on a survey ---- */

/* Rolls sealed ones forward, clears the unsealed, moves the damaged aside, fills store->sealed and store->partial. */
PD_MUST_USE pd_status store_recover(struct pd_store *store, const struct store_survey *survey, struct pd_error *err);

/* ---- store_save.c ---- */

/* Both collective: makes the directory of the next checkpoint, without shards; clears what a failed save has made. */
PD_MUST_USE pd_status store_begin_directory(struct pd_store *store, const struct pd_identity *identity,
                                            struct pd_error *err);
PD_MUST_USE pd_status store_give_up(struct pd_store *store, pd_status st, struct pd_error *err);
/* Collective: removes what a save that failed has made, or remembers it. */
bool store_clear_save(struct pd_store *store, const char *name);
/* "<root>/<checkpoint being prepared>.tmp/shard-<of this rank>.h5", or on the stripe's drive. */
void store_shard_path(const struct pd_store *store, uint32_t stripe, char ret_path[STORE_PATH_MAX]);

/* Writes the record into directory `from` (NULL: a valid one lies there), makes it durable, gives the directory its final
 * name. Leaders. */
PD_MUST_USE pd_status store_seal_here(struct pd_store *store, const char *from, const char *to, const void *record,
                                      uint64_t bytes, struct pd_error *err);

/* ---- store_generation.c: files that wait for reuse, and those that hold state ---- */

uint32_t store_waiting_max(const struct pd_store *store);
/* A file of `rank` that waits here, when nobody else knows it by another name, gets the name `path`. */
bool store_waiting_take(struct pd_store *store, uint32_t rank, const char *path);
/* The file at `path` waits from now on; false: it has another name, or there is no place, and it is where it was. */
bool store_waiting_put(struct pd_store *store, uint32_t rank, const char *path);

/* ---- store_copies.c: shards that lie on another host once more ---- */

/* Collective: fills store->ring. */
PD_MUST_USE pd_status store_make_ring(struct pd_store *store, struct pd_error *err);
/* This rank keeps the copies of `rank`. */
bool store_keeps_copy_of(const struct pd_store *store, uint32_t rank);

/* ---- store_remove.c ---- */

/* Collective: takes the record away on every host, then the directory. With `recycle` every rank keeps its shard. */
PD_MUST_USE pd_status store_retire(struct pd_store *store, const char *name, bool recycle, struct pd_error *err);
/* Leaders: a directory that holds no valid record anywhere. Foreign files in it, and it with them, stay. */
PD_MUST_USE pd_status store_clear_dir(struct pd_store *store, const char *name, struct pd_error *err);
/* Removes our files of a checkpoint directory, then it; what is not ours stays. */
PD_MUST_USE pd_status store_remove_files(struct pd_store *store, const char *path, struct pd_error *err);
/* Leaders: moves <root>/<name> into the quarantine with the reason beside it and enforces the cap. */
PD_MUST_USE pd_status store_quarantine_here(struct pd_store *store, const char *name, const char *reason,
                                            struct pd_error *err);

#endif
