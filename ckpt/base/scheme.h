/* Paths that begin with scheme://. Taken for names of files they would make a directory called "s3:", and a run would say
 * that it is saved there. */
#pragma once

#include "ckpt/base/status.h"

/* `status` (PD_USAGE, PD_INVALID) where `path` begins with a scheme that perdure does not speak. `what`: the key, option or
 * argument that gave it, with nothing behind it. */
PD_MUST_USE pd_status pd_scheme_check(const char *what, const char *path, pd_status status, struct pd_error *err);
