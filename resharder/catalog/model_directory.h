/* What formats that are directories share: small files as texts. */
#pragma once

#include "resharder/catalog/catalog.h"

#define PD_FORMATS_PATH_MAX 4096u

/* A whole small file, terminated beyond its bytes; malloc'ed, the caller's.
 *   errors  PD_NOT_FOUND; PD_CORRUPT: more than `bytes_max` */
PD_MUST_USE pd_status pd_formats_read_text(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, char **ret_text,
                                           uint64_t *ret_bytes, struct pd_error *err);
/* Adds those of transformers that lie in `directory`: config.json, generation_config.json, what belongs to the tokenizer. */
PD_MUST_USE pd_status pd_formats_add_texts(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog,
                                           struct pd_error *err);
/* The same, of another catalog. */
PD_MUST_USE pd_status pd_formats_copy_texts(const struct pd_catalog *from, struct pd_catalog *catalog, struct pd_error *err);
/* Writes them into a directory; those that lie there stay, and other texts of the catalog are not written. */
PD_MUST_USE pd_status pd_formats_write_texts(struct pd_vfs *vfs, const char *directory, const struct pd_catalog *catalog,
                                             struct pd_error *err);
/* A new small file.   errors  PD_EXISTS */
PD_MUST_USE pd_status pd_formats_write_text(struct pd_vfs *vfs, const char *path, const char *text, uint64_t bytes,
                                            struct pd_error *err);
/* The first bytes of a file, which may be there; unsynced. */
PD_MUST_USE pd_status pd_formats_patch(struct pd_vfs *vfs, const char *path, const void *data, uint64_t bytes,
                                       struct pd_error *err);
/* "<path>/<the name that the file `pointer` in it holds>". False: there is no such file, or it holds no name. */
bool pd_formats_follow(struct pd_vfs *vfs, const char *path, const char *pointer, char ret_path[PD_FORMATS_PATH_MAX]);
/* "<directory>/<name>" where `name` is one component of a path.   errors  PD_CORRUPT: it is none; PD_INVALID: too long */
PD_MUST_USE pd_status pd_formats_path(const char *directory, const char *name, char ret_path[PD_FORMATS_PATH_MAX],
                                      struct pd_error *err);
/* The same, of whatever lies below the directory.   errors  PD_INVALID: too long */
PD_MUST_USE pd_status pd_formats_join(const char *directory, const char *below, char ret_path[PD_FORMATS_PATH_MAX],
                                      struct pd_error *err);
/* `st` came of making something at `path`: says what is wrong with the directory above it, if that is what failed. */
PD_MUST_USE pd_status pd_formats_explain_above(pd_status st, const char *path, struct pd_error *err);
bool pd_formats_is_directory(struct pd_vfs *vfs, const char *path);
bool pd_formats_has_file(struct pd_vfs *vfs, const char *directory, const char *name);
