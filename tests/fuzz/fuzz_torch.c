/* A directory with what torch.save wrote of a model: shards and their index, one file, and a config.json. */
#include "resharder/formats/torch.h"
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {"/input/pytorch_model.bin.index.json", INPUT_BYTES},
    {"/input/pytorch_model-00001-of-00002.bin", INPUT_PICKLE},
    {"/input/pytorch_model-00002-of-00002.bin", INPUT_PICKLE},
    {"/input/pytorch_model.bin", INPUT_PICKLE},
    {"/input/config.json", INPUT_BYTES},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_directory_read(data, bytes, parts, sizeof parts / sizeof parts[0], NULL, &pd_format_torch);
    return 0;
}
