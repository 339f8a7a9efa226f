/* What torch.save may have written: an archive, its pickle, and the tensors in the dictionary at its root. */
#include "resharder/torch/archive.h"
#include "tests/fuzz/input/disk.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_torch_archive archive;
    struct pd_error err = {0};
    struct pd_file *file = NULL;
    if (pd_file_open(input_disk_of(data, bytes), INPUT_PATH, PD_OPEN_READ, &file, NULL)) abort();
    const pd_status st = pd_torch_open(file, "input", 0, bytes, &archive, &err);
    if (st && !err.message[0]) abort();
    const struct pd_pickle_node *root = st ? NULL : pd_pickle_root(archive.pickle);
    for (uint32_t i = 0; root && root->type == PD_PICKLE_DICT && i < root->count && i < 64; i += 2) {
        struct pd_torch_tensor t;
        double x = 0;
        (void)!pd_torch_number(&archive, "a number", root->items[i + 1], &x, &err);
        if (pd_torch_tensor(&archive, "a tensor", root->items[i + 1], &t, &err)) continue;
        if (t.offset > bytes) abort();
    }
    if (!st) pd_torch_close(&archive);
    pd_file_close_readonly(file);
    return 0;
}
