/* The directories that a configuration names: each is made, and spoken of, under its key. */
#pragma once

#include "trainer/config/config.h"

#define PD_DIRECTORY_KEY_MAX 48u

/* "checkpoint.tiers[1].dir"; without tiers "checkpoint.dir", or "run.dir" where that follows from it. */
void pd_directories_tier_key(const struct pd_config *config, uint32_t tier, char ret_key[PD_DIRECTORY_KEY_MAX]);
/* Makes a directory with those above it and syncs their names; the message names the key, and what to do. Warns where one of
 * them is made in the root directory: its drive may not be mounted. */
PD_MUST_USE pd_status pd_directories_make(const char *key, const char *path, struct pd_error *err);
/* No directory of checkpoints is another one, or lies inside another one, symbolic links included: as this host sees it.
 * errors  PD_INVALID: both keys */
PD_MUST_USE pd_status pd_directories_check(const struct pd_config *config, struct pd_error *err);
/* Warns of tiers that lie on the file system of one before them, since they protect from nothing. Looks at those that are
 * there, on this host. */
void pd_directories_warn_shared(const struct pd_config *config);
