#include "resharder/catalog/model_directory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const texts[] = {
    "config.json",       "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "added_tokens.json", "special_tokens_map.json", "tokenizer.gguf", NULL,
};

static pd_status read_open_file(struct pd_file *file, const char *path, uint64_t bytes_max, char **ret_text,
                                uint64_t *ret_bytes, struct pd_error *err)
{
    struct pd_stat stat;
    PD_TRY(pd_file_stat(file, &stat, err));
    if (stat.bytes > bytes_max)
        PD_FAIL(err, PD_CORRUPT, "%s has %" PRIu64 " bytes; perdure reads at most %" PRIu64, path, stat.bytes, bytes_max);
    char *text = malloc(stat.bytes + 1);
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its %" PRIu64 " bytes", path, stat.bytes);
    const pd_status st = pd_file_read(file, 0, text, stat.bytes, err);
    if (st) {
        free(text);
        return st;
    }
    text[stat.bytes] = '\0';
    *ret_text = text;
    *ret_bytes = stat.bytes;
    return PD_OK;
}

pd_status pd_formats_read_text(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, char **ret_text,
                               uint64_t *ret_bytes, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    const pd_status st = read_open_file(file, path, bytes_max, ret_text, ret_bytes, err);
    pd_file_close_readonly(file);
    return st;
}

pd_status pd_formats_add_texts(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog, struct pd_error *err)
{
    for (const char *const *name = texts; *name; name++) {
        char path[PD_FORMATS_PATH_MAX], *text = NULL;
        uint64_t bytes = 0;
        if (!pd_formats_has_file(vfs, directory, *name)) continue;
        PD_TRY(pd_formats_path(directory, *name, path, err));
        PD_TRY(pd_formats_read_text(vfs, path, PD_CATALOG_TEXT_MAX, &text, &bytes, err));
        const pd_status st = pd_catalog_add_text(catalog, *name, text, bytes, err);
        free(text);
        if (st) return st;
    }
    return PD_OK;
}

pd_status pd_formats_copy_texts(const struct pd_catalog *from, struct pd_catalog *catalog, struct pd_error *err)
{
    for (const char *const *name = texts; *name; name++) {
        const struct pd_catalog_text *text = pd_catalog_text(from, *name);
        if (text) PD_TRY(pd_catalog_add_text(catalog, *name, text->text, text->bytes, err));
    }
    return PD_OK;
}

pd_status pd_formats_write_text(struct pd_vfs *vfs, const char *path, const char *text, uint64_t bytes, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err));
    pd_status st = pd_file_write(file, 0, text, bytes, err);
    if (!st) st = pd_file_sync(file, err);
    const pd_status closed = pd_file_close(file, st ? NULL : err);
    return st ? st : closed;
}

pd_status pd_formats_patch(struct pd_vfs *vfs, const char *path, const void *data, uint64_t bytes, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    const pd_status st = pd_file_write(file, 0, data, bytes, err);
    const pd_status closed = pd_file_close(file, st ? NULL : err);
    return st ? st : closed;
}

bool pd_formats_follow(struct pd_vfs *vfs, const char *path, const char *pointer, char ret_path[PD_FORMATS_PATH_MAX])
{
    char file[PD_FORMATS_PATH_MAX], *name = NULL;
    uint64_t bytes = 0;
    if (pd_formats_path(path, pointer, file, NULL) || pd_formats_read_text(vfs, file, 255, &name, &bytes, NULL))
        return false;
    name[strcspn(name, "\r\n")] = '\0';
    const bool is_plain = pd_formats_path(path, name, ret_path, NULL) == PD_OK;
    free(name);
    return is_plain;
}

pd_status pd_formats_write_texts(struct pd_vfs *vfs, const char *directory, const struct pd_catalog *catalog,
                                 struct pd_error *err)
{
    for (const char *const *name = texts; *name; name++) {
        char path[PD_FORMATS_PATH_MAX];
        const struct pd_catalog_text *text = pd_catalog_text(catalog, *name);
        if (!text || pd_formats_has_file(vfs, directory, *name)) continue;
        PD_TRY(pd_formats_path(directory, *name, path, err));
        PD_TRY(pd_formats_write_text(vfs, path, text->text, text->bytes, err));
    }
    return PD_OK;
}

pd_status pd_formats_join(const char *directory, const char *below, char ret_path[PD_FORMATS_PATH_MAX], struct pd_error *err)
{
    if (strlen(directory) + strlen(below) + 2 > PD_FORMATS_PATH_MAX)
        PD_FAIL(err, PD_INVALID, "the path of %.200s in %.200s... is too long", below, directory);
    snprintf(ret_path, PD_FORMATS_PATH_MAX, "%s/%s", directory, below);
    return PD_OK;
}

pd_status pd_formats_path(const char *directory, const char *name, char ret_path[PD_FORMATS_PATH_MAX], struct pd_error *err)
{
    const bool is_plain = name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    if (!is_plain) PD_FAIL(err, PD_CORRUPT, "%s: \"%.200s\" is not the name of a file in it", directory, name);
    return pd_formats_join(directory, name, ret_path, err);
}

pd_status pd_formats_explain_above(pd_status st, const char *path, struct pd_error *err)
{
    if (st == PD_IO && err && err->sys_errno == ENOTDIR)
        PD_FAIL(err, PD_INVALID, "the parent of %s is not a directory; name another place", path);
    if (st != PD_NOT_FOUND) return st;
    PD_FAIL(err, st, "the directory above %s does not exist; make it first: mkdir -p \"$(dirname \"%s\")\"", path, path);
}

bool pd_formats_is_directory(struct pd_vfs *vfs, const char *path)
{
    struct pd_stat stat;
    return !pd_vfs_stat(vfs, path, &stat, NULL) && stat.type == PD_ENTRY_DIRECTORY;
}

bool pd_formats_has_file(struct pd_vfs *vfs, const char *directory, const char *name)
{
    char path[PD_FORMATS_PATH_MAX];
    struct pd_stat stat;
    if (pd_formats_path(directory, name, path, NULL)) return false;
    return !pd_vfs_stat(vfs, path, &stat, NULL) && stat.type == PD_ENTRY_FILE;
}
