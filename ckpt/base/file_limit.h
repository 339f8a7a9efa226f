/* The limit of file sizes that a shell gives its programs (ulimit -f): held against what will be written before hours of work
 * meet it.
 *   threads  any */
#pragma once

#include "ckpt/base/status.h"

/* `what` needs a file of so many bytes.
 *   errors  PD_UNSUPPORTED: "what needs a file of 6 MiB, and files are limited to 100 KiB: raise that with ulimit -f ..." */
PD_MUST_USE pd_status pd_file_limit_check(const char *what, uint64_t bytes, struct pd_error *err);
