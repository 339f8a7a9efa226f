/* Rejects paths that begin with scheme://. Used as file names they would create a directory called "s3:", and the run
 * would report that it saved there. */
#pragma once

#include "ckpt/base/status.h"

/* `status` (PD_USAGE, PD_INVALID) where `path` begins with a scheme. `what`: the key, option or argument that gave it, with
 * nothing behind it. */
PD_MUST_USE pd_status pd_scheme_check(const char *what, const char *path, pd_status status, struct pd_error *err);
/* The same for a path that checkpoints or data are read from, which may be in a bucket: s3:// is no failure. */
PD_MUST_USE pd_status pd_scheme_check_source(const char *what, const char *path, pd_status status, struct pd_error *err);
