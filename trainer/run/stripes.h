/* The drives that a rank's state in files is cut over, and how much each of them gets. Weights are shares of bandwidth,
 * measured once when a run first starts on these directories, or given; they are part of the layout and go into every
 * record. Another count of drives, or other weights, is another layout: what is there is loaded as under any other. The
 * measurement is kept beside the checkpoints, so that a restart has the files of the launch before. */
#pragma once

#include "ckpt/group/group.h"
#include "trainer/config/stripes.h"

#define PD_STRIPES_WEIGHT_MAX 16u /* of the fastest drive */

/* Directories of checkpoint.stripes that are not to be taken, by bit: pd_store_absent_stripes. Of this host. */
PD_MUST_USE pd_status pd_stripes_find_absent(struct pd_vfs *vfs, const struct pd_config *config, uint64_t *ret_bits,
                                             struct pd_error *err);
void pd_stripes_log_absent(const struct pd_config *config, uint64_t absent);
/* Settles the weights of a launch, on every rank alike; the directories are there. Collective. */
PD_MUST_USE pd_status pd_stripes_settle(struct pd_vfs *vfs, struct pd_group *group, const struct pd_config *config,
                                        struct pd_layout *layout, struct pd_error *err);
