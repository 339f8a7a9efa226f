/* PyTorch's distributed checkpoint: .metadata, and the files that it says things lie in. */
#include "resharder/formats/dcp.h"
#include "tests/fuzz/read_directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {".metadata", INPUT_BYTES},
    {"__0_0.distcp", INPUT_BYTES},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read_directory(input_directory(data, bytes, parts, sizeof parts / sizeof parts[0]), NULL, &pd_format_dcp);
    return 0;
}
