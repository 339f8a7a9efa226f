/* What the user means by PATH: a run directory, a directory of checkpoints, or one checkpoint. */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/store/store.h"
#include "trainer/config/config.h"

/* The tiers of a run, as the tools look at them: where they lie and what is newest. */
struct pd_run_tier {
    char dir[4096];
    struct pd_store *store; /* between open and close; NULL: it is absent or cannot be read */
    uint32_t count;         /* committed checkpoints; 0 too where the directory is absent */
    uint64_t lineage, step;
    bool is_absent;
    pd_status status; /* why it cannot be looked at */
    char cause[512];
    uint64_t unusable_step; /* of the newest that lies there and is not whole; its name is empty where there is none */
    char unusable[64], flaw[384];
    uint32_t quarantined; /* were damaged, and lie beside the others */
    char unnamed[64];     /* the newest that is whole but for its final name, which a launch gives it; "": none */
};

struct pd_run_tiers {
    struct pd_run_tier tiers[PD_TIERS_MAX];
    uint32_t count;
    bool is_quiet; /* somebody else says what is wrong with checkpoints: the command, or ranks that are about to start */
};

void pd_run_tiers_of_config(const struct pd_config *config, struct pd_run_tiers *ret_tiers);
/* Those that config.yaml of a run directory names, a checkpoint.dir elsewhere among them; none where checkpoints lie in
 * <run.dir>/checkpoints alone, or where it is no run. */
void pd_run_tiers_of_run(const char *run_dir, struct pd_run_tiers *ret_tiers);
/* Fills in what lies in each.   errors  of the first that cannot be looked at */
PD_MUST_USE pd_status pd_run_tiers_look(struct pd_run_tiers *tiers, struct pd_error *err);
/* errors  PD_IO of the first that cannot be looked at: an answer about all of them is not complete */
PD_MUST_USE pd_status pd_run_tiers_unread(const struct pd_run_tiers *tiers, struct pd_error *err);
/* Where no tier holds any: that checkpoints lie there all the same, what is wrong with the newest, and the command to look
 * closer. Empty where there is nothing, and nothing that cannot be read. */
void pd_run_tiers_found(const struct pd_run_tiers *tiers, const char *run_dir, char *ret_text, size_t bytes);
/* By (lineage, step), of equal ones the earlier; NULL: no tier holds any. */
const struct pd_run_tier *pd_run_tiers_newest(const struct pd_run_tiers *tiers);
/* Looks, and returns the newest. Whoever goes on from it reports what cannot be read. */
const struct pd_run_tier *pd_run_tiers_look_quietly(struct pd_run_tiers *tiers);
/* PATH may be a run: *ret_path is then the directory of the tier that holds the newest checkpoint, in `buffer`; else PATH.
 * errors  PD_NOT_FOUND: there is no such directory */
PD_MUST_USE pd_status pd_run_tiers_checkpoints_of(const char *path, char buffer[4096], const char **ret_path,
                                                  struct pd_error *err);

struct pd_ckpt_place {
    struct pd_vfs *vfs;
    struct pd_group group;
    struct pd_run_tiers tiers; /* of the run, or the one directory; the stores of those that are there are open */
    uint32_t tier;             /* which of them root and store are */
    const char *root;          /* the directory of checkpoints */
    struct pd_store *store;
    char named[64]; /* the checkpoint that PATH named, or "" */
    uint32_t tried; /* bits of the tiers whose copy of the chosen checkpoint is no good */
};

/* Opens the stores without changing them and turns to the one that holds the newest checkpoint; tiers of several that are
 * absent or cannot be read are named on stderr. With `writable`, which may be NULL, that store is opened again with these
 * options.
 *   errors  PD_NOT_FOUND: there is no such directory; PD_BUSY: writable, and a run is using it */
PD_MUST_USE pd_status pd_ckpt_place_open(const char *path, const struct pd_store_options *writable,
                                         struct pd_ckpt_place *ret_place, struct pd_error *err);
/* The same, read only, for a command that reports damaged checkpoints itself: the store does not log them. */
PD_MUST_USE pd_status pd_ckpt_place_open_quiet(const char *path, struct pd_ckpt_place *ret_place, struct pd_error *err);
void pd_ckpt_place_close(struct pd_ckpt_place *place);
/* False: it is not there, and nothing changes. */
bool pd_ckpt_place_turn_to(struct pd_ckpt_place *place, uint32_t tier);
PD_MUST_USE pd_status pd_ckpt_place_reopen(struct pd_ckpt_place *place, const struct pd_store_options *options,
                                           struct pd_error *err);

/* The checkpoint that PATH named, else that of `step`, else (UINT64_MAX) the newest, in any tier, to which the place turns.
 *   errors  PD_CORRUPT (exit code 65): there is no such valid checkpoint; the message says what is wrong with it, or what
 *           there is */
PD_MUST_USE pd_status pd_ckpt_place_choose(struct pd_ckpt_place *place, uint64_t step,
                                           const struct pd_store_entry **ret_entry, struct pd_error *err);
/* The error of choose, about this tier alone. */
PD_MUST_USE pd_status pd_ckpt_place_fail_none(const struct pd_ckpt_place *place, uint64_t step, struct pd_error *err);
/* `cause` came of reading the chosen checkpoint: turns to the same step in another tier and says so on stderr. False: there
 * is none, PATH named one checkpoint, or another copy would not help. */
bool pd_ckpt_place_next_copy(struct pd_ckpt_place *place, const struct pd_error *cause, const struct pd_store_entry **entry);
/* The sentence for a place without checkpoints, alike in all commands: says what was begun there. */
PD_MUST_USE pd_status pd_ckpt_place_describe_empty(const struct pd_ckpt_place *place, char *ret_text, size_t bytes,
                                                   struct pd_error *err);
/* Returns `status`; to the message of damage that a command met in the bytes it adds what to do next. */
pd_status pd_ckpt_add_advice(pd_status status, struct pd_error *err);

/* The directory that an import or a reshard puts its checkpoint into. Who fails, or is asked to leave, leaves it as it was. */
struct pd_ckpt_target {
    struct pd_vfs *vfs; /* borrowed */
    const char *path;   /* borrowed */
    bool has_made;      /* the directory */
    struct pd_ckpt_place place;
};

/* Makes the directory where there is none.   errors  PD_USAGE: it is a file, or one checkpoint; PD_BUSY: a run is using it */
PD_MUST_USE pd_status pd_ckpt_target_open(struct pd_vfs *vfs, const char *path, struct pd_ckpt_target *ret_target,
                                          struct pd_error *err);
/* What was committed there since it was opened, or NULL. */
const struct pd_store_entry *pd_ckpt_target_written(const struct pd_ckpt_target *target);
/* Ends with `mine`. What cannot be removed after a failure is named behind what *err says. NULL, zeroed: not opened. */
PD_MUST_USE pd_status pd_ckpt_target_close(struct pd_ckpt_target *target, pd_status mine, struct pd_error *err);

/* --layout=dp=4,tp=2: degrees as overrides of a configuration. */
#define PD_CKPT_LAYOUT_TEXTS 9

struct pd_ckpt_layout {
    uint64_t world, dp, tp, sp;
    char texts[PD_CKPT_LAYOUT_TEXTS][48]; /* "layout.dp=4" and so on */
};
/*   errors  PD_USAGE, PD_INVALID: the message begins with --layout */
PD_MUST_USE pd_status pd_ckpt_layout_parse(const char *text, struct pd_ckpt_layout *ret_layout, struct pd_error *err);
