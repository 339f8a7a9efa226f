/* Rejects paths that begin with scheme://. Used as file names they would create a directory called "s3:", and the run
 * would report that it saved there. */
#pragma once

#include "ckpt/base/status.h"

/* Fails with `status` (PD_USAGE, PD_INVALID) if `path` begins with a scheme that perdure does not support. `what`: the
 * key, option or argument that gave it, with nothing after it. */
PD_MUST_USE pd_status pd_scheme_check(const char *what, const char *path, pd_status status, struct pd_error *err);
