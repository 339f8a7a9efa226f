/* s3://bucket/key through the table of ckpt/io, read only: what would write is EROFS. A key that is the beginning of others,
 * with a slash behind it, is a directory. */
#pragma once

#include "ckpt/io/vfs.h"

PD_MUST_USE pd_status pd_vfs_new_objects(struct pd_vfs **ret_vfs, struct pd_error *err);
