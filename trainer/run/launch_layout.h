/* The layout of one start, as its launcher tells it to the ranks. */
#pragma once

#include "trainer/config/config.h"

/* How the ranks of one start are laid out; chosen by the launcher, so that they agree. */
struct pd_launch_layout {
    uint32_t ranks;
    char summary[64];   /* for people: "dp=2 tp=4" */
    char settings[192]; /* for the ranks */
};

/* Ranks of each host, where `ranks` run: layout.ranks_per_host, or all. */
uint32_t pd_launch_ranks_of_a_host(const struct pd_config *config, uint32_t ranks);
/* Warns where the launcher chose for other hosts than there are: `most` ranks are on one. */
void pd_launch_layout_log_hosts(const struct pd_config *config, uint32_t ranks, uint32_t hosts, uint32_t most);
/* What the launcher said, on a rank: layout.* of the configuration, and offload.update, become that. */
PD_MUST_USE pd_status pd_launch_layout_apply(struct pd_config *config, const char *settings, uint32_t ranks,
                                             struct pd_error *err);
