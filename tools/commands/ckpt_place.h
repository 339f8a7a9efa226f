/* What the user means by PATH: a run directory, a directory of checkpoints, or one checkpoint. */
#ifndef PD_TOOLS_COMMANDS_CKPT_PLACE_H
#define PD_TOOLS_COMMANDS_CKPT_PLACE_H

#include "ckpt/store/store.h"
#include "tools/commands/run_tiers.h"

struct pd_ckpt_place {
    struct pd_vfs *vfs;
    struct pd_group group;
    struct pd_store *store;
    char root[4096];           /* the directory of checkpoints */
    char named[64];            /* the checkpoint that PATH named, or "" */
    struct pd_run_tiers tiers; /* of a run that has several; otherwise none */
    uint32_t tried;            /* bits of those whose copy of the chosen checkpoint is no good */
};

/* Opens the store without changing it (of a run with several tiers that which holds the newest; those that are absent or
 * cannot be read are said), or with `prune` to delete from it. errors  PD_NOT_FOUND: there is no such directory; PD_BUSY:
 * prune, and a run is using it */
PD_MUST_USE pd_status pd_ckpt_place_open(const char *path, const struct pd_store_options *prune,
                                         struct pd_ckpt_place *ret_place, struct pd_error *err);
void pd_ckpt_place_close(struct pd_ckpt_place *place);

/* The checkpoint that PATH named, else that of `step`, else (UINT64_MAX) the newest. Of a run with several tiers that of
 * any: root and store are then those of its tier. errors  PD_CORRUPT (exit code 65): there is no such valid checkpoint; the
 * message says what is wrong with it, or what there is */
PD_MUST_USE pd_status pd_ckpt_place_choose(struct pd_ckpt_place *place, uint64_t step,
                                           const struct pd_store_entry **ret_entry, struct pd_error *err);
/* Whether another copy may help: damage, a shard that is absent, a storage error. */
bool pd_ckpt_is_of_copy(pd_status status);
/* `cause` came of reading the chosen checkpoint: the same step in another tier, which is said on stderr. False: there is
 * none, or PATH named one checkpoint. */
bool pd_ckpt_place_next_copy(struct pd_ckpt_place *place, const struct pd_error *cause, const struct pd_store_entry **entry);
/* The sentence for a place without checkpoints, alike in all commands: says what was begun there. */
PD_MUST_USE pd_status pd_ckpt_place_describe_empty(const struct pd_ckpt_place *place, char *ret_text, size_t bytes,
                                                   struct pd_error *err);
/* Returns `status`; to the message of damage that a command met in the bytes it adds what to do next. */
pd_status pd_ckpt_add_advice(pd_status status, struct pd_error *err);

#endif
