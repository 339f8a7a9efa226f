/* The layout of each start of a launch: the launcher chooses, once for all ranks, and tells them in words.
 *
 *   first start   what the configuration says (trainer/config/laid_out.h); with layout.auto the fastest that fits hosts that
 *                 are as this one is, with layout.ranks_per_host each. Of GPUs that is what is free on them now, less a
 *                 twentieth of what they have; of CPUs the machine's memory or the smallest cgroup limit, less a tenth
 *   restart       tp, pp and sp of the first start where they divide the ranks that are left; otherwise the best admitted
 *                 layout of the largest world that has one. With layout.auto it is chosen anew */
#pragma once

#include "ckpt/base/memory_limit.h"
#include "offload/device.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/run/launched.h"

/* The GPU that had least room at the first start. Later ones go by it: what ranks that died held may take a while to go. */
struct pd_launch_room {
    uint32_t gpu;
    char name[96];
    struct pd_dev_memory memory; /* of nothing: nobody looked, or no GPU says */
};

struct pd_launch_chooser {
    const struct pd_config *config;
    struct pd_model *model;    /* owned */
    struct pd_degrees degrees; /* of the first start */
    struct pd_launch_room room;
    struct pd_memory_limit memory; /* of this host, where ranks are CPUs; zero: nobody looked */
};

PD_MUST_USE pd_status pd_launch_chooser_init(const struct pd_config *config, struct pd_launch_chooser *ret_chooser,
                                             struct pd_error *err);
void pd_launch_chooser_deinit(struct pd_launch_chooser *chooser);

/* As struct pd_launch asks for it.
 *   errors  PD_INVALID: not admitted, or it cannot fit the memory of this host */
PD_MUST_USE pd_status pd_launch_choose(struct pd_launch_chooser *chooser, uint32_t ranks, bool is_restart,
                                       struct pd_launch_layout *ret_layout, struct pd_error *err);
