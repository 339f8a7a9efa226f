/* A whole file of GGUF. */
#include "resharder/formats/gguf.h"
#include "tests/fuzz/input/disk.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_catalog catalog;
    struct pd_error err = {0};
    pd_catalog_init(&catalog, "gguf");
    pd_status st = pd_format_gguf.read(input_disk_of(data, bytes), INPUT_PATH, &catalog, &err);
    if (!st) st = pd_catalog_finish(&catalog, &err);
    if (st && !err.message[0]) abort();
    for (uint32_t t = 0; !st && t < catalog.tensor_count; t++)
        for (uint64_t p = 0; p < catalog.tensors[t].piece_count; p++)
            if (catalog.pieces[catalog.tensors[t].piece_begin + p].offset > bytes) abort();
    pd_catalog_deinit(&catalog);
    return 0;
}
