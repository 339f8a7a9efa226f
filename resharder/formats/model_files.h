/* Directories of models of transformers: one file of weights, or shards that an index names, beside config.json. */
#pragma once

#include "ckpt/base/json.h"
#include "resharder/catalog/catalog.h"

struct pd_model_files {
    const char *index, *single; /* names: "model.safetensors.index.json", "model.safetensors" */
    const char *ending;         /* of a file that counts as `single` where it is the only one with it; NULL: none does */
    pd_status (*read)(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err);
};

bool pd_model_files_are_in(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory);
/* `path` is such a directory, or a file; beside the one file of a model its texts are read too.
 *   errors  PD_CORRUPT: the index names a tensor that is not there; PD_NOT_FOUND: a file; those of `read` */
PD_MUST_USE pd_status pd_model_files_read(struct pd_vfs *vfs, const struct pd_model_files *files, const char *path,
                                          struct pd_catalog *catalog, struct pd_error *err);
size_t pd_model_files_count(const struct pd_json_value *object); /* of its members */
