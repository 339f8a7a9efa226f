/* Records in checkpoints which hardware a run was computed on (commit.h, environment). Results of a GPU have the bits of its
 * model and of its matrix libraries; the CPU's are always the same.
 *
 * "" is the CPU. Otherwise one JSON object, {"device":"NVIDIA H100 80GB HBM3","cublaslt":"13.0.2"}, with the compute
 * libraries that this process has loaded. */
#pragma once

#include "trainer/engine/rank_device.h"

/* malloc'ed; device NULL: the CPU. */
PD_MUST_USE pd_status pd_computed_on(const struct pd_rank_device *device, char **ret_text, struct pd_error *err);
/* For people: "NVIDIA H100 80GB HBM3, cublaslt 13.0.2" or "a CPU"; "another machine" for other texts. ret (bytes) */
void pd_computed_on_describe(const char *text, char *ret, size_t bytes);
