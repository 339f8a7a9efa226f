/* The private directory of a launch, .launch-XXXXXX in run.dir. `owner` names the launch; `secret` is what ranks must prove
 * to know (trainer/status/seal.h). mpirun uses the directory as home and for temporary files if the user has none. */
#pragma once

#include "trainer/status/seal.h"

#define PD_PRIVATE_DIR_BYTES 3072u

struct pd_private_dir {
    char path[PD_PRIVATE_DIR_BYTES]; /* absolute */
    uint8_t secret[PD_SEAL_SECRET_BYTES];
    char secret_text[2 * PD_SEAL_SECRET_BYTES + 2]; /* hexadecimal, one line */
};

/* Creates it in `run_dir` (NULL: none), or if that is not writable in TMPDIR or /tmp; ranks report a bad run.dir better.
 * Removes directories of killed launches.
 *   errors  PD_IO */
PD_MUST_USE pd_status pd_private_dir_make(const char *run_dir, struct pd_private_dir *ret_dir, struct pd_error *err);
void pd_private_dir_remove(struct pd_private_dir *dir);
/* Names the launch that uses `run_dir`: "process 77 of this host". */
void pd_private_dir_describe_owner(const char *run_dir, char *ret_text, size_t bytes);
