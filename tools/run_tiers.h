/* The tiers of a run, as the tools look at them: where they lie and what is newest. */
#ifndef PD_TOOLS_RUN_TIERS_H
#define PD_TOOLS_RUN_TIERS_H

#include "trainer/config.h"

struct pd_run_tier {
    char dir[4096];
    uint32_t count; /* sealed checkpoints; 0 too where the directory is absent */
    uint64_t lineage, step;
};

struct pd_run_tiers {
    struct pd_run_tier tiers[PD_TIERS_MAX];
    uint32_t count;
};

void pd_run_tiers_of_config(const struct pd_config *config, struct pd_run_tiers *ret_tiers);
/* Those that config.yaml of a run directory names and that are there; none where it names none, or is no run. */
void pd_run_tiers_of_run(const char *run_dir, struct pd_run_tiers *ret_tiers);
/* Fills in what lies there. */
PD_MUST_USE pd_status pd_run_tiers_look(struct pd_run_tiers *tiers, struct pd_error *err);
/* By (lineage, step), of equal ones the earlier; NULL: no tier holds any. */
const struct pd_run_tier *pd_run_tiers_newest(const struct pd_run_tiers *tiers);

#endif
