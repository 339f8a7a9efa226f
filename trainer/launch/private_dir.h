/* The private directory of a launch, .launch-XXXXXX in run.dir: `owner` says whose it is, `secret` is what ranks prove that
 * they know (trainer/status/seal.h), and mpirun finds a home and a place for temporary files in it where the user has none.
 * */
#pragma once

#include "trainer/status/seal.h"

#define PD_PRIVATE_DIR_BYTES 3072u

struct pd_private_dir {
    char path[PD_PRIVATE_DIR_BYTES]; /* absolute */
    uint8_t secret[PD_SEAL_SECRET_BYTES];
    char secret_text[2 * PD_SEAL_SECRET_BYTES + 2]; /* in hexadecimal, a line */
};

/* In `run_dir` (NULL: none), or where that cannot be written in TMPDIR or /tmp: ranks complain about run.dir in better
 * words. Directories that killed launches left there are removed.
 *   errors  PD_IO */
PD_MUST_USE pd_status pd_private_dir_make(const char *run_dir, struct pd_private_dir *ret_dir, struct pd_error *err);
void pd_private_dir_remove(struct pd_private_dir *dir);
/* Whose launch uses `run_dir`: "process 77 of this host". */
void pd_private_dir_describe_owner(const char *run_dir, char *ret_text, size_t bytes);
