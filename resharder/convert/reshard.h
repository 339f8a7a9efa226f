/* Rewrites one of our checkpoints under another layout: an import from our own format.
 *
 *   errors   PD_INVALID: a layout that would change the numerics; PD_CORRUPT: a block mismatched twice, or the shards do not
 *            hold the model; PD_NO_SPACE, PD_IO, PD_STOPPED. The target store is unchanged then */
#pragma once

#include "resharder/convert/import.h"

/* `request`: source is the directory of the committed checkpoint, ours its record; layout has the stored virtual_tp and
 * virtual_sp; catalog, links and state are ignored.   ret_report  may be NULL */
PD_MUST_USE pd_status pd_reshard(struct pd_vfs *vfs, const struct pd_import_request *request,
                                 struct pd_import_report *ret_report, struct pd_error *err);
