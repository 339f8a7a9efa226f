/* Megatron-Core's distributed checkpoint: common.pt and metadata.json beside what a distributed checkpoint of torch has. */
#include "resharder/formats/megatron.h"
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {"/input/.metadata", INPUT_BYTES},     {"/input/common.pt", INPUT_PICKLE},
    {"/input/metadata.json", INPUT_BYTES}, {"/input/__0_0.distcp", INPUT_SPARSE},
    {"/input/__1_0.distcp", INPUT_SPARSE}, {"/input/latest_checkpointed_iteration.txt", INPUT_BYTES},
    {"/input/config.json", INPUT_BYTES},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_directory_read(data, bytes, parts, sizeof parts / sizeof parts[0], NULL, &pd_format_megatron);
    return 0;
}
