/* A directory as a format's reader sees it: an error says why, or the catalog holds together. */
#ifndef PD_TESTS_FUZZ_READ_DIRECTORY_H
#define PD_TESTS_FUZZ_READ_DIRECTORY_H

#include "resharder/formats/format.h"
#include "tests/fuzz/input_directory.h"

static inline void read_directory(const struct input_directory *input, const char *file, const struct pd_format *format)
{
    struct pd_catalog catalog;
    struct pd_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s%s%s", input->path, file ? "/" : "", file ? file : "");
    (void)format->recognizes(input->vfs, path);
    pd_catalog_init(&catalog, format->name);
    pd_status st = format->read(input->vfs, path, &catalog, &err);
    if (!st) st = pd_catalog_finish(&catalog, &err);
    if (st && !err.message[0]) abort();
    for (uint32_t t = 0; !st && t < catalog.tensor_count; t++)
        for (uint64_t p = 0; p < catalog.tensors[t].piece_count; p++) {
            const struct pd_piece *piece = &catalog.pieces[catalog.tensors[t].piece_begin + p];
            if (piece->offset > catalog.files[piece->file].bytes) abort();
        }
    pd_catalog_deinit(&catalog);
}

#endif
