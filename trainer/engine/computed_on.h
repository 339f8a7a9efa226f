/* What a run was computed on, as its checkpoints say (commit.h, environment): bits of a GPU are those of its kind and of the
 * libraries that multiply for it, where the CPU's are always the same.
 *
 * "" is the CPU; else one JSON object: {"device":"NVIDIA H100 80GB HBM3","cublaslt":"13.0.2"}, libraries that
 * compute, as far as this process has them open. */
#pragma once

#include "trainer/engine/rank_device.h"

/* malloc'ed; device NULL: the CPU. */
PD_MUST_USE pd_status pd_computed_on(const struct pd_rank_device *device, char **ret_text, struct pd_error *err);
/* For people: "NVIDIA H100 80GB HBM3, cublaslt 13.0.2", "a CPU". What is no such object is "another machine". ret (bytes) */
void pd_computed_on_describe(const char *text, char *ret, size_t bytes);
