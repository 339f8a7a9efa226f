/* A checkpoint of ours, written again under another layout: an import from our own format.
 *
 *   errors   PD_INVALID: a layout that the numerics do not admit; PD_CORRUPT: a block mismatched twice, or the shards do not hold
 *            the model; PD_NO_SPACE, PD_IO, PD_STOPPED. The target store is then as before */
#pragma once

#include "resharder/convert/import.h"

/* `request`: source is the directory of the committed checkpoint, ours its record; layout has virtual_tp and virtual_sp as
 * stored; catalog, links and state are not looked at.   ret_report  may be NULL */
PD_MUST_USE pd_status pd_reshard(struct pd_vfs *vfs, const struct pd_import_request *request,
                                 struct pd_import_report *ret_report, struct pd_error *err);
