#include "resharder/formats/model_files.h"

#include "ckpt/base/words.h"
#include "resharder/catalog/model_directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_BYTES_MAX UINT64_C(100000000)

size_t pd_model_files_count(const struct pd_json_value *object)
{
    size_t count = 0;
    const char *key;
    const struct pd_json_value *value;
    for (void *at = NULL; pd_json_next(object, &at, &key, &value);)
        count++;
    return count;
}

/* ---- shards ---- */

struct mapped {
    const char *file, *tensor;
};

static int by_file(const void *a, const void *b)
{
    const struct mapped *x = a, *y = b;
    const int files = strcmp(x->file, y->file);
    return files ? files : strcmp(x->tensor, y->tensor);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that tensors [first, tensor_count), read from the file at `path`, are those in mapped[count]. */
static pd_status check_mapped(const struct pd_model_files *files, const struct pd_catalog *catalog, const char *path,
                              uint32_t first, const struct mapped *mapped, size_t count, struct pd_error *err)
{
    const uint32_t there = catalog->tensor_count - first;
    const char **names = malloc((there + 1) * sizeof *names);
    if (!names) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u names", there);
    for (uint32_t i = 0; i < there; i++)
        names[i] = catalog->tensors[first + i].name;
    qsort(names, there, sizeof *names, by_text);
    const char *missing = NULL;
    for (size_t i = 0; i < count && !missing; i++)
        if (!bsearch(&mapped[i].tensor, names, there, sizeof *names, by_text)) missing = mapped[i].tensor;
    free(names);
    if (missing) PD_FAIL(err, PD_CORRUPT, "%s should, by %s, have tensor %.200s, and does not", path, files->index, missing);
    return PD_OK;
}

static pd_status read_mapped(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory,
                             struct mapped *mapped, size_t count, struct pd_catalog *catalog, struct pd_error *err)
{
    qsort(mapped, count, sizeof *mapped, by_file);
    for (size_t begin = 0, end; begin < count; begin = end) {
        char path[PD_FORMATS_PATH_MAX];
        const uint32_t first = catalog->tensor_count;
        for (end = begin + 1; end < count && strcmp(mapped[end].file, mapped[begin].file) == 0;)
            end++;
        PD_TRY(pd_formats_path(directory, mapped[begin].file, path, err));
        const pd_status st = files->read(vfs, path, catalog, err);
        if (st == PD_NOT_FOUND)
            PD_FAIL(err, st, "%s does not exist, and %s names tensors in it: copy all files of the model", path,
                    files->index);
        PD_TRY(st);
        PD_TRY(check_mapped(files, catalog, path, first, &mapped[begin], end - begin, err));
    }
    return PD_OK;
}

static pd_status read_index(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory, const char *path,
                            const struct pd_json_value *root, struct pd_catalog *catalog, struct pd_error *err)
{
    const struct pd_json_value *map = pd_json_member(root, "weight_map"), *value;
    const char *name;
    if (!map || pd_json_type(map) != PD_JSON_OBJECT) PD_FAIL(err, PD_CORRUPT, "%s has no weight_map", path);
    struct mapped *mapped = malloc((pd_model_files_count(map) + 1) * sizeof *mapped);
    if (!mapped) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its weight_map", path);
    size_t count = 0;
    pd_status st = PD_OK;
    for (void *at = NULL; !st && pd_json_next(map, &at, &name, &value);) {
        mapped[count++] = (struct mapped){.file = pd_json_text(value), .tensor = name};
        if (!mapped[count - 1].file)
            st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s: tensor %.200s has no file", path, name);
    }
    if (!st) st = read_mapped(vfs, files, directory, mapped, count, catalog, err);
    free(mapped);
    return st;
}

static pd_status read_sharded(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory,
                              struct pd_catalog *catalog, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX], *text = NULL;
    uint64_t bytes = 0;
    struct pd_json_document *document = NULL;
    PD_TRY(pd_formats_path(directory, files->index, path, err));
    PD_TRY(pd_formats_read_text(vfs, path, INDEX_BYTES_MAX, &text, &bytes, err));
    pd_status st = pd_json_parse(path, text, bytes, &document, err);
    free(text);
    if (!st) st = read_index(vfs, files, directory, path, pd_json_root(document), catalog, err);
    pd_json_document_free(document);
    return st;
}

/* ---- resolving a path ---- */

static pd_status find_only(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory,
                           char ret_path[PD_FORMATS_PATH_MAX], struct pd_error *err)
{
    struct pd_listing listing;
    const char *found = NULL;
    uint32_t count = 0;
    PD_TRY(pd_vfs_list(vfs, directory, &listing, err));
    for (uint32_t i = 0; i < listing.count; i++)
        if (pd_ends_with(listing.names[i], files->ending)) {
            found = listing.names[i];
            count++;
        }
    pd_status st = PD_NOT_FOUND;
    if (count == 1)
        st = pd_formats_path(directory, found, ret_path, err);
    else
        pd_error_set(err, st, PD_WHERE, 0, "%s has %u files *%s and no %s", directory, count, files->ending, files->index);
    pd_listing_deinit(&listing);
    return st;
}

static pd_status find_single(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory,
                             char ret_path[PD_FORMATS_PATH_MAX], struct pd_error *err)
{
    if (pd_formats_has_file(vfs, directory, files->single) || !files->ending)
        return pd_formats_path(directory, files->single, ret_path, err);
    return find_only(vfs, files, directory, ret_path, err);
}

bool pd_model_files_are_in(struct pd_vfs *vfs, const struct pd_model_files *files, const char *directory)
{
    char single[PD_FORMATS_PATH_MAX];
    if (pd_formats_has_file(vfs, directory, files->index) || pd_formats_has_file(vfs, directory, files->single)) return true;
    return files->ending && !find_only(vfs, files, directory, single, NULL);
}

/* Reads a model's single file with the texts of its directory. */
static pd_status read_alone(struct pd_vfs *vfs, const struct pd_model_files *files, const char *path,
                            struct pd_catalog *catalog, struct pd_error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char directory[PD_FORMATS_PATH_MAX] = ".", single[PD_FORMATS_PATH_MAX];
    PD_TRY(files->read(vfs, path, catalog, err));
    if (slash && (size_t)snprintf(directory, sizeof directory, "%.*s", (int)(slash > path ? slash - path : 1), path) >=
                     sizeof directory)
        return PD_OK;
    const bool is_single = strcmp(files->single, name) == 0 || !pd_formats_has_file(vfs, directory, files->index);
    const bool is_model =
        is_single && !find_single(vfs, files, directory, single, NULL) && strcmp(strrchr(single, '/') + 1, name) == 0;
    return is_model ? pd_formats_add_texts(vfs, directory, catalog, err) : PD_OK;
}

pd_status pd_model_files_read(struct pd_vfs *vfs, const struct pd_model_files *files, const char *path,
                              struct pd_catalog *catalog, struct pd_error *err)
{
    char single[PD_FORMATS_PATH_MAX];
    if (!pd_formats_is_directory(vfs, path)) return read_alone(vfs, files, path, catalog, err);
    /* If both exist, transformers takes the single file; the index is listed as unmapped. */
    const bool has_index = pd_formats_has_file(vfs, path, files->index),
               has_both = has_index && pd_formats_has_file(vfs, path, files->single);
    if (has_both) PD_TRY(pd_catalog_add_unmapped(catalog, files->index, err));
    if (has_index && !has_both) {
        PD_TRY(read_sharded(vfs, files, path, catalog, err));
    } else {
        PD_TRY(find_single(vfs, files, path, single, err));
        PD_TRY(files->read(vfs, single, catalog, err));
    }
    static const char *const optimizers[] = {"optimizer.bin", "optimizer.pt"}; /* accelerate's, Trainer's */
    for (int i = 0; i < 2; i++)
        if (pd_formats_has_file(vfs, path, optimizers[i])) PD_TRY(pd_catalog_add_unmapped(catalog, optimizers[i], err));
    return pd_formats_add_texts(vfs, path, catalog, err);
}
