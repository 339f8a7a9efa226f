/* PyTorch's distributed checkpoint, as a row of the table of formats: see format.h. */
#ifndef PD_RESHARDER_FORMATS_DCP_H
#define PD_RESHARDER_FORMATS_DCP_H

#include "resharder/formats/format.h"

bool pd_dcp_recognizes(struct pd_vfs *vfs, const char *path);
PD_MUST_USE pd_status pd_dcp_read(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err);

#endif
