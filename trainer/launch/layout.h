/* The layout of each start: the launcher chooses it once for all ranks and passes it to them as text.
 *
 *   first start   as configured (trainer/config/laid_out.h). With layout.auto the fastest that fits hosts like this one,
 *                 each with layout.ranks_per_host. The memory is what is free on GPUs now, minus a twentieth of the total;
 *                 on CPUs the machine's or the smallest cgroup limit, minus a tenth
 *   restart       tp, pp and sp of the first start if they divide the remaining ranks; otherwise the best possible layout of
 *                 the largest world that has one. With layout.auto it is chosen anew */
#pragma once

#include "ckpt/base/memory_limit.h"
#include "offload/device.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/run/launched.h"

/* The GPU with least free memory at the first start. Later starts use it too: dead ranks may free theirs late. */
struct pd_launch_gpu {
    uint32_t gpu;
    char name[96];
    struct pd_dev_memory memory; /* all zero: not measured, or no GPU reports it */
};

struct pd_launch_chooser {
    const struct pd_config *config;
    struct pd_model *model;    /* owned */
    struct pd_degrees degrees; /* of the first start */
    struct pd_launch_gpu fullest;
    struct pd_memory_limit memory; /* of this host, if ranks use CPUs; zero: not measured */
};

PD_MUST_USE pd_status pd_launch_chooser_init(const struct pd_config *config, struct pd_launch_chooser *ret_chooser,
                                             struct pd_error *err);
void pd_launch_chooser_deinit(struct pd_launch_chooser *chooser);

/* For struct pd_launch.
 *   errors  PD_INVALID: not possible, or it cannot fit this host's memory */
PD_MUST_USE pd_status pd_launch_choose(struct pd_launch_chooser *chooser, uint32_t ranks, bool is_restart,
                                       struct pd_launch_layout *ret_layout, struct pd_error *err);
