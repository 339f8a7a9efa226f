/* What the user means by PATH: a run directory, a directory of checkpoints, or one checkpoint. */
#pragma once

#include "ckpt/store/store.h"
#include "tools/commands/run_tiers.h"

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
/* The same, read only, for a command that tells itself what is wrong with checkpoints: the store does not log it too. */
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
/* Whether another copy may help: damage, a shard that is absent, a storage error. */
bool pd_ckpt_is_of_copy(pd_status status);
/* `cause` came of reading the chosen checkpoint: turns to the same step in another tier and says so on stderr. False: there
 * is none, PATH named one checkpoint, or another copy would not help. */
bool pd_ckpt_place_next_copy(struct pd_ckpt_place *place, const struct pd_error *cause, const struct pd_store_entry **entry);
/* The sentence for a place without checkpoints, alike in all commands: says what was begun there. */
PD_MUST_USE pd_status pd_ckpt_place_describe_empty(const struct pd_ckpt_place *place, char *ret_text, size_t bytes,
                                                   struct pd_error *err);
/* Returns `status`; to the message of damage that a command met in the bytes it adds what to do next. */
pd_status pd_ckpt_add_advice(pd_status status, struct pd_error *err);
