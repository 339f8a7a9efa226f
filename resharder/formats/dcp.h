/* PyTorch's distributed checkpoint, as a row of the table of formats: see format.h. */
#ifndef PD_RESHARDER_FORMATS_DCP_H
#define PD_RESHARDER_FORMATS_DCP_H

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_dcp;

/* dcp_write.c: its slots. */
PD_MUST_USE pd_status pd_dcp_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
void pd_dcp_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_dcp_finish(void *state, pd_status mine, struct pd_error *err);

#endif
