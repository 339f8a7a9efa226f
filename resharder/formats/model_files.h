/* Model directories of transformers: one file of weights, or shards listed in an index, beside config.json. */
#pragma once

#include "ckpt/base/json.h"
#include "resharder/catalog/catalog.h"

struct pd_model_files {
    const char *index, *single; /* names: "model.safetensors.index.json", "model.safetensors" */
    const char *ending;         /* suffix of a file that replaces `single` if it is the only one; NULL: none does */
    pd_status (*read)(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err);
};

bool pd_model_files_are_in(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory);
/* `path` is such a directory, or a file; for a single-file model the texts beside it are read too.
 *   errors  PD_CORRUPT: the index names a missing tensor; PD_NOT_FOUND: a file; errors of `read` */
PD_MUST_USE pd_status pd_model_files_read(struct pd_vfs *vfs, const struct pd_model_files *files, const char *path,
                                          struct pd_catalog *catalog, struct pd_error *err);
size_t pd_model_files_count(const struct pd_json_value *object); /* number of members */
