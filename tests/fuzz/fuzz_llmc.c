/* The headers of llm.c's model and of the states of two ranks, in files as long as the input says. */
#include "resharder/formats/llmc.h"
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {"/input/model_00000002.bin", INPUT_SPARSE},
    {"/input/state_00000002_00000.bin", INPUT_SPARSE},
    {"/input/state_00000002_00001.bin", INPUT_SPARSE},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_directory_read(data, bytes, parts, sizeof parts / sizeof parts[0], "model_00000002.bin", &pd_format_llmc);
    return 0;
}
