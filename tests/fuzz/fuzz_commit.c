/* A commit record. */
#include "ckpt/store/commit.h"
#include "tests/fuzz/input/commit.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint64_t whole = 0;
    unsigned char *record = input_commit_make(data, bytes, &whole);
    struct pd_commit commit;
    struct pd_error err = {0};
    if (!record) return 0;
    const pd_status st = pd_commit_decode("commit.h5", record, whole, &commit, &err);
    if (st && !err.message[0]) abort();
    if (!st) pd_commit_deinit(&commit);
    free(record);
    return 0;
}
