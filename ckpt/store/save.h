/* The checkpoint being made. save.c owns struct store_save. */
#pragma once

#include "ckpt/store/files.h"

#define STORE_LEFTOVERS_MAX 16u

struct store_save {
    struct store_files *files;
    struct store_catalog *catalog;
    bool is_preparing;
    struct pd_identity identity;
    char name[PD_STORE_NAME_MAX]; /* without ".tmp" */
    const void *index_data;       /* borrowed */
    uint64_t index_bytes;
    uint64_t index_version; /* incremented with each new index */
    uint64_t index_written; /* version in the pool, 0: none */
    uint64_t index_digest;  /* of the data; 0: none */
    bool has_placed_index;  /* in the directory being prepared */

    /* (leftover_count) Failed saves and removals that left files behind. */
    char leftovers[STORE_LEFTOVERS_MAX][PD_STORE_NAME_MAX];
    uint32_t leftover_count;
};

/* Collective: creates the directory of the next checkpoint, without shards. */
PD_MUST_USE pd_status store_save_begin(struct store_save *save, const struct pd_identity *identity, struct pd_error *err);
/* "<root>/<name>.tmp/shard-<of this rank>.h5" */
void store_save_path(const struct store_save *save, char ret_path[STORE_PATH_MAX]);
/* Collective: adds the checkpoint to the catalog, or aborts the save on every rank. summaries (count, the same count on
 * all ranks): the shards this rank has written. */
PD_MUST_USE pd_status store_save_commit(struct store_save *save, pd_status mine, const struct pd_shard_summary *summaries,
                                        uint32_t count, const struct pd_run_state *state, struct pd_error *err);
/* Collective: cleans up a failed save; returns `st`, or a better reason. */
pd_status store_save_give_up(struct store_save *save, pd_status st, struct pd_error *err);
/* Leaves the files of an uncommitted checkpoint for store_save_clear_leftovers to retry. */
void store_save_leave(struct store_save *save, const char *name);
/* Collective: removes what failed saves could not. */
void store_save_clear_leftovers(struct store_save *save);
/* For leaders of shares. */
PD_MUST_USE pd_status store_save_place_index(struct store_save *save, struct pd_error *err);

/* Leaders: writes the record into directory `from` (NULL: it has a valid one), makes it durable, and renames the
 * directory to its final name. This rename commits the checkpoint. */
PD_MUST_USE pd_status store_commit_here(struct store_dir *root, const char *from, const char *to, const void *record,
                                        uint64_t bytes, struct pd_error *err);
