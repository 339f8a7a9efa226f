/* A read-only VFS over s3://bucket/key; writes fail with EROFS. "a" is a directory if some key begins with "a/". */
#pragma once

#include "ckpt/io/vfs.h"

PD_MUST_USE pd_status pd_vfs_new_objects(struct pd_vfs **ret_vfs, struct pd_error *err);
