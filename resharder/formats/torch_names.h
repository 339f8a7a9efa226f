/* What the names of optimizer state say: PyTorch's "optimizer.state.<parameter>.exp_avg" and Megatron's
 * "optimizer.state.exp_avg.<parameter>", with or without what stands before "state." and however the run's own dictionary wraps
 * it. */
#ifndef PD_RESHARDER_FORMATS_TORCH_NAMES_H
#define PD_RESHARDER_FORMATS_TORCH_NAMES_H

#include "resharder/formats/catalog.h"

enum pd_torch_role {
    PD_TORCH_PARAM, /* or a buffer: all that is no optimizer's */
    PD_TORCH_EXP_AVG,
    PD_TORCH_EXP_AVG_SQ,
    PD_TORCH_MASTER, /* the parameter in fp32, where the model has it rounded */
    PD_TORCH_STEP,
    PD_TORCH_OTHER, /* of an optimizer */
};
/* The parameter's name inside `name`: *ret_name (*ret_bytes), not terminated; all of it for PD_TORCH_PARAM. */
enum pd_torch_role pd_torch_role(const char *name, const char **ret_name, size_t *ret_bytes);

/* Of a catalog that is not finished: takes "model." or whatever a run's dictionary put before its parameters off their names,
 * so that they are the optimizer's names for them. Without moments names stay. */
void pd_torch_strip_wrapper(struct pd_catalog *catalog);

#endif
