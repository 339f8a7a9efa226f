/* Prints the result of `perdure plan`, as text for people and JSON for programs. */
#pragma once

#include "trainer/plan/cost_model.h"
#include "trainer/plan/memory_plan.h"
#include "trainer/plan/offload_plan.h"

#define PD_PLAN_ALTERNATIVES_MAX 9u

struct pd_planned_world {
    uint32_t ranks, threads;
    bool threads_given; /* by the user, not from this machine's cores */
    char refusal[512];  /* why no layout of that many ranks is valid, leaving the rest empty; or "" */
    struct pd_laid_out laid_out;
    struct pd_world_memory memory;   /* owned; already split */
    struct pd_offload_plan *offload; /* (memory.group_count) of each group's first rank, owned; NULL: nothing is offloaded */
    uint64_t process_bytes;          /* on top of the memory of its ranks */
    struct pd_step_cost cost;
    struct pd_layout_choice alternatives[PD_PLAN_ALTERNATIVES_MAX]; /* the fastest that fit, other than this one */
    uint32_t alternative_count;
    struct pd_fewer_lanes fewer_lanes;
    char remedy[256];                    /* if it does not fit: what helps; or "" */
    uint32_t without_heads, without_ffn; /* tensor-parallel ranks of a stage without any */
};

struct pd_plan_subject {
    const struct pd_config *config;
    const struct pd_model *model;
    const struct pd_machine *machine;
};

/* True if this build can compute the memory of a GPU's rank (plan.c). */
bool pd_plan_counts_gpus(void);

/* With run.device gpu: subtracts host_bytes from bytes. Call it before printing. */
void pd_plan_split(const struct pd_config *config, struct pd_memory_plan *plan);

/* seconds: the time planning took */
PD_MUST_USE pd_status pd_plan_print(const struct pd_plan_subject *subject, const struct pd_planned_world *worlds,
                                    uint32_t count, double seconds, bool is_json, struct pd_error *err);
