/* A writer of perdure.h, over any disk and group. */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/io/vfs.h"
#include "tools/library/perdure.h"

/* vfs, group (NULL: one rank) and their functions are borrowed until perdure_writer_close. */
PD_MUST_USE pd_status pd_writer_open(struct pd_vfs *vfs, struct pd_group *group, const char *directory,
                                     const struct perdure_writer_options *options, struct perdure_writer **ret_writer,
                                     struct pd_error *err);
PD_MUST_USE pd_status pd_writer_save(struct perdure_writer *writer, const struct perdure_save *save, struct pd_error *err);
