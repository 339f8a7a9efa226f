/* Four bytes say how much data follows the header, the rest is the header. */
#include "resharder/formats/safetensors.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_catalog catalog;
    struct pd_error err = {0};
    uint32_t file, data_bytes;
    if (bytes < sizeof data_bytes) return 0;
    memcpy(&data_bytes, data, sizeof data_bytes);
    const uint64_t header = bytes - sizeof data_bytes;
    pd_catalog_init(&catalog, "safetensors");
    pd_status st = pd_catalog_add_file(&catalog, "input", 8 + header + data_bytes, &file, &err);
    if (!st) st = pd_safetensors_header(&catalog, file, (const char *)data + sizeof data_bytes, header, &err);
    if (!st) st = pd_catalog_finish(&catalog, &err);
    if (st && !err.message[0]) abort();
    for (uint32_t t = 0; !st && t < catalog.tensor_count; t++)
        if (pd_catalog_find(&catalog, catalog.tensors[t].name, PD_PARAM) != (int64_t)t) abort();
    pd_catalog_deinit(&catalog);
    return 0;
}
