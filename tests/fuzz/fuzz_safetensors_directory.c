/* A directory of safetensors: the index, two files of it, and a config.json. */
#include "resharder/formats/safetensors.h"
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {"/input/model.safetensors.index.json", INPUT_BYTES},
    {"/input/model-00001-of-00002.safetensors", INPUT_SPARSE},
    {"/input/model-00002-of-00002.safetensors", INPUT_SPARSE},
    {"/input/model.safetensors", INPUT_SPARSE},
    {"/input/config.json", INPUT_BYTES},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_directory_read(data, bytes, parts, sizeof parts / sizeof parts[0], NULL, &pd_format_safetensors);
    return 0;
}
