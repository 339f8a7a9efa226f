/* The tiers of a run, as the tools look at them: where they lie and what is newest. */
#pragma once

#include "trainer/config/config.h"

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
/* Opens the store of each for reading and fills in what lies there; close them, after a failure too.
 * errors  of the first that cannot be looked at */
PD_MUST_USE pd_status pd_run_tiers_open(struct pd_run_tiers *tiers, struct pd_vfs *vfs, struct pd_group *group,
                                        struct pd_error *err);
void pd_run_tiers_close(struct pd_run_tiers *tiers);
/* Opens and closes them. */
PD_MUST_USE pd_status pd_run_tiers_look(struct pd_run_tiers *tiers, struct pd_error *err);
bool pd_run_tier_is_there(const struct pd_run_tier *tier); /* and can be looked at */
/* On stderr, those that are not. False: none is there. */
bool pd_run_tiers_warn(const struct pd_run_tiers *tiers);
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
