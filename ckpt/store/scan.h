/* What lies where: every leader lists its directory, rank 0 unites the listings and gives each checkpoint one state, the same
 * on every rank. Nothing is changed. */
#pragma once

#include "ckpt/store/dir.h"
#include "ckpt/store/store.h"

enum store_state_kind {
    STORE_COMMITTED, /* a valid record, and every shard is in sight */
    STORE_PARTIAL, /* a valid record, shards missing (or of another size on a disk that may not show it yet): never touched */
    STORE_UNCOMMITTED, /* no record anywhere: a save that ended early, a removal, or somebody took the record */
    STORE_DAMAGED,     /* a final name, and its record does not verify anywhere or a shard has another size */
    STORE_UNREADABLE,  /* the record cannot be read: a storage error, not damage */
    STORE_MISNAMED,    /* a valid record, in no directory of the name that it gives: see `misnamed` */
};

enum store_mark {
    STORE_MARK_REMOVED = 1, /* this store has begun to remove it */
};

struct store_state { /* one (step, fence), the same on every rank */
    uint64_t step, fence, lineage, run_id[2], bytes;
    uint32_t kind;
    uint32_t shard_count, record_rank;
    uint32_t needs_repair;            /* somewhere the record or the final name is missing */
    uint32_t has_tmp;                 /* somewhere it still has its temporary name */
    uint32_t has_shards;              /* some lie under its final name */
    uint32_t marks;                   /* store_mark of any host */
    uint32_t hosts;                   /* directories that have a shard, the fewest of any */
    uint32_t is_shard_absent;         /* a shard is nowhere in sight, not merely of another size */
    char misnamed[PD_STORE_NAME_MAX]; /* a directory that has its record under another name, or empty */
    char cause[324];                  /* what is wrong with its shards, or empty */
};

enum store_record { STORE_RECORD_ABSENT, STORE_RECORD_VALID, STORE_RECORD_INVALID, STORE_RECORD_UNREADABLE };

struct store_listing { /* one step directory as a leader sees it */
    struct pd_step_name name;
    char misnamed[PD_STORE_NAME_MAX]; /* its own name, where its record gives `name` and it has another; or empty */
    enum store_record record;
    uint32_t marks;  /* store_mark */
    char cause[192]; /* why the record is not valid; stays on this rank */
    uint64_t lineage, run_id[2], digest;
    uint32_t shard_count;
    uint64_t *expected; /* (shard_count) file sizes the record promises, owned */
    uint32_t file_count;
    uint64_t *files; /* (file_count, 2): rank, bytes, owned */
};

struct store_scan {
    struct store_listing *listings; /* (listing_count) of this rank, owned; none for ranks that lead nothing */
    uint32_t listing_count;
    struct store_state *states; /* (state_count) the same on every rank, ascending (step, fence), owned */
    uint32_t state_count;
    struct pd_error unreadable; /* why, for the first record that this rank could not read */
};

/* Collective: of the step directories in the root, and of directories of another name that hold a valid record.
 *   errors  PD_NOT_FOUND: there is no such directory on any host, or, of a writable root, on one */
PD_MUST_USE pd_status store_scan(struct store_dir *dir, bool writable, struct store_scan *ret_scan, struct pd_error *err);
/* Collective: records of several runs against the shards beside them. A state whose record is another's becomes damaged. */
PD_MUST_USE pd_status store_scan_check_records(struct store_dir *dir, struct store_scan *scan, struct pd_error *err);
/* Whether a shard in the directory `step` is not the one that the record promises. Shards that are absent, or cannot be read,
 * prove nothing. */
bool store_has_other_shards(const struct store_dir *dir, const char *step, const struct pd_commit *commit);
void store_scan_deinit(struct store_scan *scan);
struct pd_store_name store_state_name(const struct store_state *state, bool is_tmp);
/* What this rank has listed of it under that name; NULL: nothing. */
const struct store_listing *store_scan_find(const struct store_scan *scan, const struct store_state *state, bool is_tmp);
