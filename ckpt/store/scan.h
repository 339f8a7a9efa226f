/* Scans a store without changing it. Every leader lists its directory; rank 0 merges the listings and gives each
 * checkpoint one state, the same on every rank. */
#pragma once

#include "ckpt/store/dir.h"
#include "ckpt/store/store.h"

enum store_state_kind {
    STORE_COMMITTED,   /* a valid record, and every shard is visible */
    STORE_PARTIAL,     /* a valid record, shards missing (or of another size on a disk that may lag behind): never touched */
    STORE_UNCOMMITTED, /* no record anywhere: an interrupted save or removal, or somebody deleted the record */
    STORE_DAMAGED,     /* a final name, but no record verifies, or a shard has another size */
    STORE_UNREADABLE,  /* the record cannot be read: a storage error, not damage */
    STORE_MISNAMED,    /* a valid record, but no directory has the name it gives: see `misnamed` */
};

enum store_mark {
    STORE_MARK_REMOVED = 1, /* this store has started to remove it */
};

struct store_state { /* one (step, fence), the same on every rank */
    uint64_t step, fence, lineage, run_id[2], bytes;
    uint32_t kind;
    uint32_t shard_count, record_rank;
    uint32_t needs_repair;            /* some directory lacks the record or the final name */
    uint32_t has_tmp;                 /* some directory still has its temporary name */
    uint32_t has_shards;              /* some shards lie under its final name */
    uint32_t marks;                   /* store_mark of any host */
    uint32_t hosts;                   /* number of directories with each shard; minimum over shards */
    uint32_t is_shard_absent;         /* a shard is missing everywhere, not just of another size */
    char misnamed[PD_STORE_NAME_MAX]; /* the wrong name of a directory with its record, or empty */
    char cause[324];                  /* what is wrong with its shards, or empty */
};
static inline bool store_state_has_record(const struct store_state *state)
{
    return state->kind == STORE_COMMITTED || state->kind == STORE_PARTIAL;
}

enum store_record { STORE_RECORD_ABSENT, STORE_RECORD_VALID, STORE_RECORD_INVALID, STORE_RECORD_UNREADABLE };

struct store_listing { /* one step directory as a leader sees it */
    struct pd_step_name name;
    char misnamed[PD_STORE_NAME_MAX]; /* actual name of the directory if its record gives another one, `name`; or empty */
    enum store_record record;
    uint32_t marks;  /* store_mark */
    char cause[192]; /* why the record is invalid; stays on this rank */
    uint64_t lineage, run_id[2], digest;
    uint32_t shard_count;
    uint64_t *expected; /* (shard_count) file sizes according to the record, owned */
    uint32_t file_count;
    uint64_t *files; /* (file_count, 2): rank, bytes, owned */
};

struct store_scan {
    struct store_listing *listings; /* (listing_count) of this rank, owned; empty on ranks that lead nothing */
    uint32_t listing_count;
    struct store_state *states; /* (state_count) the same on every rank, ascending (step, fence), owned */
    uint32_t state_count;
    struct pd_error unreadable; /* cause for the first record that this rank could not read */
};

/* Collective: scans step directories in the root, and directories of other names that hold a valid record.
 *   errors  PD_NOT_FOUND: no host has the directory, or, for a writable root, one host lacks it */
PD_MUST_USE pd_status store_scan(struct store_dir *dir, bool writable, struct store_scan *ret_scan, struct pd_error *err);
/* Collective: with records of several runs, checks each against its shards. A state with another's record is damaged. */
PD_MUST_USE pd_status store_scan_check_records(struct store_dir *dir, struct store_scan *scan, struct pd_error *err);
/* True if a shard in the directory `step` is not the one in the record. Shards that are absent or unreadable prove
 * nothing. */
bool store_has_other_shards(const struct store_dir *dir, const char *step, const struct pd_commit *commit);
void store_scan_deinit(struct store_scan *scan);
struct pd_store_name store_state_name(const struct store_state *state, bool is_tmp);
/* Returns this rank's listing of the state under that name, or NULL. */
const struct store_listing *store_scan_find(const struct store_scan *scan, const struct store_state *state, bool is_tmp);
