/* Resolves PATH: a run directory, a directory of checkpoints, or one checkpoint. */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/store/store.h"
#include "tools/library/notes.h"
#include "trainer/config/config.h"

/* A tier of a run for the tools: its directory and its newest checkpoint. */
struct pd_run_tier {
    char dir[4096];
    struct pd_store *store; /* between open and close; NULL: it is absent or unreadable */
    uint32_t count;         /* committed checkpoints; 0 if the directory is absent */
    uint64_t lineage, step;
    bool is_absent;
    pd_status status; /* why it cannot be read */
    char cause[512];
    uint64_t unusable_step; /* of the newest unusable checkpoint; `unusable` is empty if there is none */
    char unusable[64], flaw[384];
    uint32_t quarantined; /* damaged ones, kept beside the others */
    char unnamed[64];     /* the newest that lacks only its final name, which the next launch gives it; "": none */
};

struct pd_run_tiers {
    struct pd_run_tier tiers[PD_TIERS_MAX];
    uint32_t count;
    bool is_quiet;                /* do not log bad checkpoints: the command does, or the ranks that are about to start */
    const struct pd_notes *notes; /* borrowed; or NULL */
};

void pd_run_tiers_of_config(const struct pd_config *config, struct pd_run_tiers *ret_tiers);
/* Tiers named in config.yaml of a run directory, including a checkpoint.dir elsewhere. None if all checkpoints are in
 * <run.dir>/checkpoints, or it is not a run. */
void pd_run_tiers_of_run(const char *run_dir, struct pd_run_tiers *ret_tiers);
/* Reads the contents of each.   errors  of the first that cannot be read */
PD_MUST_USE pd_status pd_run_tiers_look(struct pd_run_tiers *tiers, struct pd_error *err);
/* errors PD_IO of the first that cannot be read: an answer about all tiers would be incomplete */
PD_MUST_USE pd_status pd_run_tiers_unread(const struct pd_run_tiers *tiers, struct pd_error *err);
/* If no tier has a usable checkpoint: says that there are some, what is wrong with the newest, and the command to examine
 * it. Empty if there are none and everything could be read. */
void pd_run_tiers_found(const struct pd_run_tiers *tiers, const char *run_dir, char *ret_text, size_t bytes);
/* Compares (lineage, step); the earlier tier wins ties. NULL: no tier has any. */
const struct pd_run_tier *pd_run_tiers_newest(const struct pd_run_tiers *tiers);
/* Reads the tiers and returns the newest. The caller must report unreadable ones. */
const struct pd_run_tier *pd_run_tiers_look_quietly(struct pd_run_tiers *tiers);
/* If PATH is a run, *ret_path is the directory (in `buffer`) of the tier with the newest checkpoint; else PATH. errors
 * PD_NOT_FOUND: there is no such directory */
PD_MUST_USE pd_status pd_run_tiers_checkpoints_of(const char *path, const struct pd_notes *notes, char buffer[4096],
                                                  const char **ret_path, struct pd_error *err);

struct pd_ckpt_place {
    struct pd_vfs *vfs;
    struct pd_group group;
    struct pd_run_tiers tiers; /* of the run, or the one directory; the stores that exist are open */
    uint32_t tier;             /* the tier of root and store */
    const char *root;          /* the directory of checkpoints */
    struct pd_store *store;
    char named[64]; /* the checkpoint named by PATH, or "" */
    uint32_t tried; /* bit set of tiers whose copy of the chosen checkpoint is bad */
};

/* Opens the stores read-only and selects the one with the newest checkpoint. If there are several tiers, notes absent or
 * unreadable ones. With `writable` (may be NULL) reopens the selected store with these options.
 *   errors  PD_NOT_FOUND: there is no such directory; PD_BUSY: writable, and a run is using it */
PD_MUST_USE pd_status pd_ckpt_place_open(const char *path, const struct pd_store_options *writable,
                                         const struct pd_notes *notes, struct pd_ckpt_place *ret_place,
                                         struct pd_error *err);
/* The same, read-only, for a command that reports damaged checkpoints itself: the store does not log them. */
PD_MUST_USE pd_status pd_ckpt_place_open_quiet(const char *path, const struct pd_notes *notes,
                                               struct pd_ckpt_place *ret_place, struct pd_error *err);
void pd_ckpt_place_close(struct pd_ckpt_place *place);
/* Selects a tier. False, with nothing changed, if it is absent. */
bool pd_ckpt_place_turn_to(struct pd_ckpt_place *place, uint32_t tier);
PD_MUST_USE pd_status pd_ckpt_place_reopen(struct pd_ckpt_place *place, const struct pd_store_options *options,
                                           struct pd_error *err);

/* Chooses the checkpoint named by PATH, else that of `step`, else (UINT64_MAX) the newest in any tier; selects that tier.
 *   errors  PD_CORRUPT (exit code 65): there is no such valid checkpoint; the message says what is wrong with it, or what
 *           there is */
PD_MUST_USE pd_status pd_ckpt_place_choose(struct pd_ckpt_place *place, uint64_t step,
                                           const struct pd_store_entry **ret_entry, struct pd_error *err);
/* Returns the error of choose for this tier alone. */
PD_MUST_USE pd_status pd_ckpt_place_fail_none(const struct pd_ckpt_place *place, uint64_t step, struct pd_error *err);
/* After reading the chosen checkpoint failed with `cause`: selects the same step in another tier and notes it.
 * False: no copy, PATH named one checkpoint, or a copy would not help. */
bool pd_ckpt_place_next_copy(struct pd_ckpt_place *place, const struct pd_error *cause, const struct pd_store_entry **entry);
/* Describes a place without checkpoints, with the same sentence in all commands, and what was begun there. */
PD_MUST_USE pd_status pd_ckpt_place_describe_empty(const struct pd_ckpt_place *place, char *ret_text, size_t bytes,
                                                   struct pd_error *err);
/* Returns `status`; adds what to do next to the message if a command found damaged data. */
pd_status pd_ckpt_add_advice(pd_status status, struct pd_error *err);

/* The output directory of an import or a reshard. After a failure or a stop it is as it was. */
struct pd_ckpt_target {
    struct pd_vfs *vfs; /* borrowed */
    const char *path;   /* borrowed */
    bool has_made;      /* this process created the directory */
    struct pd_ckpt_place place;
};

/* Creates the directory if absent.   errors  PD_USAGE: it is a file, or one checkpoint; PD_BUSY: a run is using it */
PD_MUST_USE pd_status pd_ckpt_target_open(struct pd_vfs *vfs, const char *path, const struct pd_notes *notes,
                                          struct pd_ckpt_target *ret_target, struct pd_error *err);
/* Returns the checkpoint committed there since open, or NULL. */
const struct pd_store_entry *pd_ckpt_target_written(const struct pd_ckpt_target *target);
/* Ends with `mine`. After a failure, adds what cannot be removed to the message of *err. NULL or zeroed: not opened. */
PD_MUST_USE pd_status pd_ckpt_target_close(struct pd_ckpt_target *target, pd_status mine, struct pd_error *err);
