/* Helpers for formats that are directories: small text files and paths. */
#pragma once

#include "resharder/catalog/catalog.h"

#define PD_FORMATS_PATH_MAX 4096u

/* Reads a whole small file and terminates it; malloc'ed, the caller's.
 *   errors  PD_NOT_FOUND; PD_CORRUPT: more than `bytes_max` */
PD_MUST_USE pd_status pd_formats_read_text(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, char **ret_text,
                                           uint64_t *ret_bytes, struct pd_error *err);
/* Adds the text files of transformers in `directory`: config.json, generation_config.json, the tokenizer's files. */
PD_MUST_USE pd_status pd_formats_add_texts(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog,
                                           struct pd_error *err);
/* Copies the same texts from another catalog. */
PD_MUST_USE pd_status pd_formats_copy_texts(const struct pd_catalog *from, struct pd_catalog *catalog, struct pd_error *err);
/* Writes those texts into a directory. Keeps files that exist there; does not write other texts of the catalog. */
PD_MUST_USE pd_status pd_formats_write_texts(struct pd_vfs *vfs, const char *directory, const struct pd_catalog *catalog,
                                             struct pd_error *err);
/* Writes a new small file.   errors  PD_EXISTS */
PD_MUST_USE pd_status pd_formats_write_text(struct pd_vfs *vfs, const char *path, const char *text, uint64_t bytes,
                                            struct pd_error *err);
/* Overwrites the first bytes of a file, created if absent; unsynced. */
PD_MUST_USE pd_status pd_formats_patch(struct pd_vfs *vfs, const char *path, const void *data, uint64_t bytes,
                                       struct pd_error *err);
/* Returns "<path>/<name>", where the file `pointer` in `path` contains the name. False: no such file, or no name in it. */
bool pd_formats_follow(struct pd_vfs *vfs, const char *path, const char *pointer, char ret_path[PD_FORMATS_PATH_MAX]);
/* Returns "<directory>/<name>" for `name` of one component.   errors  PD_CORRUPT: it is not one; PD_INVALID: too long */
PD_MUST_USE pd_status pd_formats_path(const char *directory, const char *name, char ret_path[PD_FORMATS_PATH_MAX],
                                      struct pd_error *err);
/* Returns "<directory>/<below>" for any relative path.   errors  PD_INVALID: too long */
PD_MUST_USE pd_status pd_formats_join(const char *directory, const char *below, char ret_path[PD_FORMATS_PATH_MAX],
                                      struct pd_error *err);
/* `st` is the result of creating something at `path`. If the parent directory is at fault, adds what is wrong with it. */
PD_MUST_USE pd_status pd_formats_explain_above(pd_status st, const char *path, struct pd_error *err);
bool pd_formats_is_directory(struct pd_vfs *vfs, const char *path);
bool pd_formats_has_file(struct pd_vfs *vfs, const char *directory, const char *name);
