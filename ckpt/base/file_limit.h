/* Checks the shell's file size limit (ulimit -f) against the files that will be written, before hours of work run into
 * it.
 *   threads  any */
#pragma once

#include "ckpt/base/status.h"

/* `what` needs a file of `bytes` bytes.
 *   errors  PD_UNSUPPORTED: "what needs a file of 6 MiB, and files are limited to 100 KiB: raise that with ulimit -f ..." */
PD_MUST_USE pd_status pd_file_limit_check(const char *what, uint64_t bytes, struct pd_error *err);
