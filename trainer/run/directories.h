/* The directories that a configuration names: each is made, and spoken of, under its key. */
#pragma once

#include "trainer/config/config.h"

#define PD_DIRECTORY_KEY_MAX 48u

/* Makes a directory with those above it and syncs their names; the message names the key, and what to do. Warns where one of
 * them is made in the root directory: its drive may not be mounted. */
PD_MUST_USE pd_status pd_directories_make(const char *key, const char *path, struct pd_error *err);
/* No directory of checkpoints is another one, or lies inside another one, symbolic links included: as this host sees it.
 * errors  PD_INVALID: both keys */
PD_MUST_USE pd_status pd_directories_check(const struct pd_config *config, struct pd_error *err);
/* Warns of tiers that lie on the file system of one before them, since they protect from nothing. Looks at those that are
 * there, on this host. */
void pd_directories_warn_shared(const struct pd_config *config);

/* The directories of a run's tiers, before they are opened: which are there, which can be made, which may hold something.
 *
 * A directory that is absent and cannot be made ends a start where it may hold the newest checkpoint. It may not where it
 * would lie in memory, which is lost with it, and where the record of the run (events.h) knows of no checkpoint in it. */
struct pd_tier_places {
    const struct pd_config *config; /* borrowed */
    uint32_t rank;
    uint64_t used, absent; /* bits of tiers: had a checkpoint; rank 0 did not find it when the launch began */
    char causes[PD_TIERS_MAX][700];
    struct {
        uint64_t device, inode; /* 0: not known */
    } parents[PD_TIERS_MAX];    /* the directories that hold them */
};

/* Rank 0 looks, before any rank makes anything. */
PD_MUST_USE pd_status pd_tier_places_find(struct pd_tier_places *places, const struct pd_config *config,
                                          struct pd_group *group, const struct pd_tiers_options *options,
                                          struct pd_error *err);
/* Makes those that are absent; where there are several and one cannot be made, fills in `missing` of that tier.
 *   errors  where there is one; PD_INVALID: something else lies there */
PD_MUST_USE pd_status pd_tier_places_make(struct pd_tier_places *places, struct pd_vfs *vfs,
                                          struct pd_tiers_options *options, struct pd_error *err);
/* Whether this rank sees all of them removed: the name is gone from the directory that held it. A file system that was
 * unmounted takes that directory along, or leaves the name. */
bool pd_tier_places_are_removed(const struct pd_tier_places *places);
