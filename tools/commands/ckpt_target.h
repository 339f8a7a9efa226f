/* The directory that an import or a reshard puts its checkpoint into. Who fails, or is asked to leave, leaves it as it was. */
#pragma once

#include "tools/commands/ckpt_place.h"

struct pd_ckpt_target {
    struct pd_vfs *vfs; /* borrowed */
    const char *path;   /* borrowed */
    bool has_made;      /* the directory */
    struct pd_ckpt_place place;
};

/* Makes the directory where there is none.   errors  PD_USAGE: it is a file, or one checkpoint; PD_BUSY: a run is using it */
PD_MUST_USE pd_status pd_ckpt_target_open(struct pd_vfs *vfs, const char *path, struct pd_ckpt_target *ret_target,
                                          struct pd_error *err);
/* Ends with `mine`. What cannot be removed after a failure is named behind what *err says. NULL, zeroed: not opened. */
PD_MUST_USE pd_status pd_ckpt_target_close(struct pd_ckpt_target *target, pd_status mine, struct pd_error *err);
