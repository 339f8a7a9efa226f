#include "resharder/formats/safetensors.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/model_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const pd_safetensors_dtypes[PD_ELEMENT_COUNT] = {
    [PD_ELEMENT_F64] = "F64",   [PD_ELEMENT_F32] = "F32",         [PD_ELEMENT_F16] = "F16",
    [PD_ELEMENT_BF16] = "BF16", [PD_ELEMENT_I64] = "I64",         [PD_ELEMENT_I32] = "I32",
    [PD_ELEMENT_I16] = "I16",   [PD_ELEMENT_I8] = "I8",           [PD_ELEMENT_U8] = "U8",
    [PD_ELEMENT_U16] = "U16",   [PD_ELEMENT_U32] = "U32",         [PD_ELEMENT_U64] = "U64",
    [PD_ELEMENT_BOOL] = "BOOL", [PD_ELEMENT_F8_E4M3] = "F8_E4M3", [PD_ELEMENT_F8_E5M2] = "F8_E5M2",
    [PD_ELEMENT_C64] = "C64",
};

/* ---- one header ---- */

struct extent {
    uint64_t begin, end;
    const char *name; /* name of the document */
};

/* *ret_unread: name of an unsupported type, else NULL */
static pd_status parse_dtype(const char *path, const char *name, const struct pd_json_value *value, enum pd_element *ret,
                             const char **ret_unread, struct pd_error *err)
{
    const char *text = *ret_unread = value ? pd_json_text(value) : NULL;
    if (!text) PD_FAIL(err, PD_CORRUPT, "%s: tensor %.200s has no dtype", path, name);
    for (int e = 0; e < PD_ELEMENT_COUNT && *ret_unread; e++)
        if (pd_safetensors_dtypes[e] && strcmp(pd_safetensors_dtypes[e], text) == 0) {
            *ret = (enum pd_element)e;
            *ret_unread = NULL;
        }
    return PD_OK;
}

static pd_status parse_tensor(const char *path, const char *name, const struct pd_json_value *value,
                              struct pd_foreign_tensor *ret_tensor, struct extent *ret_extent, const char **ret_unread,
                              struct pd_error *err)
{
    if (pd_json_type(value) != PD_JSON_OBJECT) PD_FAIL(err, PD_CORRUPT, "%s: tensor %.200s is not an object", path, name);
    const struct pd_json_value *shape = pd_json_member(value, "shape"), *offsets = pd_json_member(value, "data_offsets");
    PD_TRY(parse_dtype(path, name, pd_json_member(value, "dtype"), &ret_tensor->element, ret_unread, err));
    if (!shape || pd_json_type(shape) != PD_JSON_ARRAY || pd_json_count(shape) > PD_FOREIGN_DIMS_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s: tensor %.200s has no shape, or one of more than %d dimensions", path, name,
                PD_FOREIGN_DIMS_MAX);
    ret_tensor->ndim = (uint32_t)pd_json_count(shape);
    for (uint32_t d = 0; d < ret_tensor->ndim; d++)
        if (!pd_json_is_u64(pd_json_at(shape, d), &ret_tensor->shape[d]))
            PD_FAIL(err, PD_CORRUPT, "%s: dimension %u of tensor %.200s is not a size", path, d, name);
    if (!offsets || pd_json_count(offsets) != 2 || !pd_json_is_u64(pd_json_at(offsets, 0), &ret_extent->begin) ||
        !pd_json_is_u64(pd_json_at(offsets, 1), &ret_extent->end) || ret_extent->end < ret_extent->begin)
        PD_FAIL(err, PD_CORRUPT, "%s: tensor %.200s has no data_offsets [begin, end]", path, name);
    ret_extent->name = name;
    return PD_OK;
}

/* Metadata other than "format" has no place in our checkpoints. */
static pd_status add_metadata(struct pd_catalog *catalog, const struct pd_json_value *value, struct pd_error *err)
{
    const char *key;
    const struct pd_json_value *member;
    for (void *at = NULL; pd_json_next(value, &at, &key, &member);) {
        char name[PD_FOREIGN_NAME_MAX];
        snprintf(name, sizeof name, "__metadata__.%.200s", key);
        if (strcmp(key, "format") != 0) PD_TRY(pd_catalog_add_unmapped(catalog, name, err));
    }
    return PD_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static pd_status check_extents(const char *path, struct extent *extents, size_t count, uint64_t data_bytes,
                               struct pd_error *err)
{
    uint64_t at = 0;
    if (count) qsort(extents, count, sizeof *extents, by_begin);
    for (size_t i = 0; i < count; i++) {
        if (extents[i].begin != at)
            PD_FAIL(err, PD_CORRUPT, "%s: tensor %.200s begins at byte %" PRIu64 " of the data, where byte %" PRIu64 "%s",
                    path, extents[i].name, extents[i].begin, at,
                    extents[i].begin < at ? " is the next free one" : " is nobody's");
        at = extents[i].end;
    }
    if (at != data_bytes)
        PD_FAIL(err, PD_CORRUPT, "%s: its tensors end at byte %" PRIu64 " of the data, and there are %" PRIu64, path, at,
                data_bytes);
    return PD_OK;
}

static pd_status add_tensors(struct pd_catalog *catalog, uint32_t file, const struct pd_json_value *root,
                             uint64_t data_begin, struct extent *extents, struct pd_error *err)
{
    const char *path = catalog->files[file].path, *name;
    const struct pd_json_value *value;
    size_t count = 0;
    for (void *at = NULL; pd_json_next(root, &at, &name, &value);) {
        if (strcmp(name, "__metadata__") == 0) {
            PD_TRY(add_metadata(catalog, value, err));
            continue;
        }
        struct pd_foreign_tensor tensor = {.name = (char *)(uintptr_t)name};
        struct extent *extent = &extents[count++];
        const char *unread = NULL;
        PD_TRY(parse_tensor(path, name, value, &tensor, extent, &unread, err));
        if (unread) {
            PD_TRY(pd_catalog_add_unread(catalog, name, unread, err));
            continue;
        }
        pd_status st = pd_catalog_add_dense(catalog, &tensor, file, data_begin + extent->begin, err);
        if (st) return pd_error_context(err, st, "%s", path);
        const uint64_t bytes = pd_foreign_bytes(&catalog->tensors[catalog->tensor_count - 1]);
        if (bytes != extent->end - extent->begin)
            PD_FAIL(err, PD_CORRUPT, "%s: tensor %s has %" PRIu64 " bytes where its shape takes %" PRIu64, path, name,
                    extent->end - extent->begin, bytes);
    }
    return check_extents(path, extents, count, catalog->files[file].bytes - data_begin, err);
}

pd_status pd_safetensors_header(struct pd_catalog *catalog, uint32_t file, const char *text, uint64_t bytes,
                                struct pd_error *err)
{
    const char *path = catalog->files[file].path;
    struct pd_json_document *document = NULL;
    PD_TRY(pd_json_parse(path, text, bytes, &document, err));
    const struct pd_json_value *root = pd_json_root(document);
    struct extent *extents = NULL;
    pd_status st = PD_OK;
    if (pd_json_type(root) != PD_JSON_OBJECT)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s: its header is not a JSON object", path);
    else if (!(extents = malloc((pd_model_files_count(root) + 1) * sizeof *extents)))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory for its header", path);
    if (!st) st = add_tensors(catalog, file, root, 8 + bytes, extents, err);
    free(extents);
    pd_json_document_free(document);
    return st;
}

/* ---- files ---- */

static pd_status read_header(struct pd_file *file, const char *path, uint64_t file_bytes, char **ret_text,
                             uint64_t *ret_bytes, struct pd_error *err)
{
    uint64_t bytes = 0;
    if (file_bytes < 8) PD_FAIL(err, PD_CORRUPT, "%s has %" PRIu64 " bytes and is not a safetensors file", path, file_bytes);
    PD_TRY(pd_file_read(file, 0, &bytes, 8, err));
    if (bytes > PD_SAFETENSORS_HEADER_MAX || bytes > file_bytes - 8)
        PD_FAIL(err, PD_CORRUPT, "%s: its header has %" PRIu64 " bytes, the file %" PRIu64 "; at most %" PRIu64 " are read",
                path, bytes, file_bytes, PD_SAFETENSORS_HEADER_MAX);
    char *text = malloc(bytes + 1);
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", path, bytes);
    const pd_status st = pd_file_read(file, 8, text, bytes, err);
    if (st) {
        free(text);
        return st;
    }
    *ret_text = text;
    *ret_bytes = bytes;
    return PD_OK;
}

static pd_status read_file(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    char *text = NULL;
    uint64_t bytes = 0;
    uint32_t number = 0;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    pd_status st = pd_file_stat(file, &stat, err);
    if (!st) st = read_header(file, path, stat.bytes, &text, &bytes, err);
    pd_file_close_readonly(file);
    if (!st) st = pd_catalog_add_file(catalog, path, stat.bytes, &number, err);
    if (!st) st = pd_safetensors_header(catalog, number, text, bytes, err);
    free(text);
    return st;
}

/* ---- resolving a path ---- */

static const struct pd_model_files model_files = {PD_SAFETENSORS_INDEX, "model.safetensors", ".safetensors", read_file};

static bool is_safetensors(struct pd_vfs *vfs, const char *path)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    unsigned char head[9] = {0};
    uint64_t bytes;
    const size_t length = strlen(path), ending = strlen(model_files.ending);
    if (length > ending && strcmp(path + length - ending, model_files.ending) == 0) return true;
    if (pd_file_open(vfs, path, PD_OPEN_READ, &file, NULL)) return false;
    const bool has_head =
        !pd_file_stat(file, &stat, NULL) && stat.bytes > sizeof head && !pd_file_read(file, 0, head, sizeof head, NULL);
    pd_file_close_readonly(file);
    memcpy(&bytes, head, sizeof bytes);
    return has_head && head[8] == '{' && bytes <= PD_SAFETENSORS_HEADER_MAX && bytes <= stat.bytes - 8;
}

static bool safetensors_recognizes(struct pd_vfs *vfs, const char *path)
{
    return pd_formats_is_directory(vfs, path) ? pd_model_files_are_in(vfs, &model_files, path) : is_safetensors(vfs, path);
}

static pd_status read_any(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    return pd_model_files_read(vfs, &model_files, path, catalog, err);
}

const struct pd_format pd_format_safetensors = {
    .name = "safetensors",
    .about = "Hugging Face: model.safetensors or shards with an index, beside config.json",
    .recognizes = safetensors_recognizes,
    .read = read_any,
    .plan = pd_safetensors_plan,
    .observe = pd_format_observe_nothing,
    .finish = pd_safetensors_finish,
};
