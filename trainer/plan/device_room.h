/* Whether what a rank was planned to take fits its device. What does not is the configuration's fault, however often it is
 * tried: PD_INVALID, which no launcher repeats, with what is needed, what is free and what to change. */
#pragma once

#include "trainer/engine/engine.h"

/* An empty arena of what the engine of these options takes, in the memory of their device.   ret_plan: what it was made from
 *   errors  PD_INVALID: it does not fit, by the plan or when it is taken; what libraries take is not counted */
PD_MUST_USE pd_status pd_engine_arena(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan,
                                      struct pd_arena **ret_arena, struct pd_error *err);

/* Changes that keep a run's bits and with which this rank takes no more than so many bytes of its GPU: one where one is
 * enough, the cheapest of those; else several, none of which could be left out. False: none are known. Plans some thirty
 * times, at most. */
struct pd_device_remedy {
    char words[384]; /* "layout.recompute=full offload.activations=cpu"; with degrees where the planner chose them */
    uint64_t bytes;  /* what it takes then */
};
bool pd_device_room_remedy(const struct pd_engine_options *options, uint64_t bytes, struct pd_device_remedy *ret_remedy);
