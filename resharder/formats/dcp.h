/* PyTorch's distributed checkpoint as a row of the format table: see format.h. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_dcp;
extern const struct pd_format pd_format_torchtitan; /* the same with torchtitan's keys, to be written; it is read as dcp */

/* dcp.c: the read slot, also for formats that wrap such a checkpoint. */
PD_MUST_USE pd_status pd_dcp_read(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err);

/* dcp_write.c: the slots for writing. */
PD_MUST_USE pd_status pd_torchtitan_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state,
                                         struct pd_error *err);
PD_MUST_USE pd_status pd_dcp_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
void pd_dcp_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_dcp_finish(void *state, pd_status mine, struct pd_error *err);

/* Names of tensors in a system's checkpoint: <before><name><after>. */
#define PD_DCP_KEYS_MAX 3
struct pd_dcp_key {
    const char *before, *after; /* NULL: none */
};
struct pd_dcp_style {
    struct pd_dcp_key keys[PD_KIND_COUNT][PD_DCP_KEYS_MAX]; /* several keys: the same bytes under each */
    struct pd_dcp_key step;                                 /* a number for each parameter, or none */
    bool has_paths;                                         /* store the paths of the dictionaries behind the keys */
};
/* As pd_dcp_plan, into `directory`, with the names of `style`; continue with pd_dcp_observe and pd_dcp_finish. The keys
 * in `objects` (object_count) hold torch.save([None]). directory, style and objects are borrowed until pd_dcp_finish. */
PD_MUST_USE pd_status pd_dcp_plan_as(struct pd_vfs *vfs, struct pd_format_plan *plan, const char *directory,
                                     const struct pd_dcp_style *style, const char *const *objects, uint32_t object_count,
                                     void **ret_state, struct pd_error *err);
