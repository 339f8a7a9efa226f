/* PyTorch's distributed checkpoint: .metadata, and the files that it says things lie in. */
#include "resharder/formats/dcp.h"
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {"/input/.metadata", INPUT_BYTES},
    {"/input/__0_0.distcp", INPUT_BYTES},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_directory_read(data, bytes, parts, sizeof parts / sizeof parts[0], NULL, &pd_format_dcp);
    return 0;
}
