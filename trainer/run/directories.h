/* Creates and checks the directories of a configuration. Messages name the key of each. */
#pragma once

#include "trainer/config/config.h"

#define PD_DIRECTORY_KEY_MAX 48u

/* Creates a directory and its parents, and syncs their entries. The error names the key and what to do. Warns if it creates
 * one in the root directory: the drive may not be mounted. */
PD_MUST_USE pd_status pd_directories_make(const char *key, const char *path, struct pd_error *err);
/* Checks that no checkpoint directory equals or is inside another one, as seen by this host with symbolic links resolved.
 * errors PD_INVALID: both keys */
PD_MUST_USE pd_status pd_directories_check(const struct pd_config *config, struct pd_error *err);
/* Warns about tiers on the same file system as an earlier tier, since they add no protection. Looks only at existing
 * directories of this host. */
void pd_directories_warn_shared(const struct pd_config *config);

/* Whether both exist and are one, as this host sees them. */
bool pd_directories_are_same(const char *a, const char *b);

/* State of a run's tier directories before they are opened: which exist, which can be created, which may hold checkpoints.
 *
 * If a directory is absent and cannot be created, the start fails if that directory may hold the newest checkpoint. It
 * cannot hold it if it would be in memory, which loses it, and the run's record (events.h) has no checkpoint there. */
struct pd_tier_places {
    const struct pd_config *config; /* borrowed */
    uint32_t rank;
    uint64_t used, absent; /* bit per tier: had a checkpoint; rank 0 did not find it at launch */
    char causes[PD_TIERS_MAX][700];
    struct {
        uint64_t device, inode; /* 0: unknown */
    } parents[PD_TIERS_MAX];    /* their parent directories */
};

/* Rank 0 looks, before any rank creates anything. */
PD_MUST_USE pd_status pd_tier_places_find(struct pd_tier_places *places, const struct pd_config *config,
                                          struct pd_group *group, const struct pd_tiers_options *options,
                                          struct pd_error *err);
/* Creates absent directories. If there are several tiers and one cannot be created, sets `missing` of that tier.
 *   errors  if there is only one; PD_INVALID: the path is not a directory */
PD_MUST_USE pd_status pd_tier_places_make(struct pd_tier_places *places, struct pd_vfs *vfs,
                                          struct pd_tiers_options *options, struct pd_error *err);
/* Whether this rank sees that all were removed: the parent directory no longer has the name. Unmounting a file system
 * removes the parent too, or keeps the name. */
bool pd_tier_places_are_removed(const struct pd_tier_places *places);
