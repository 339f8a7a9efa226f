/* A commit record whose digests are right: 512 bytes of its trailer, then its body. */
#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"
#include "ckpt/store/commit.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <string.h>

enum { TRAILER = 512, PAGE = PD_SHARD_PAGE_BYTES };

static void seal(unsigned char *record, uint64_t bytes)
{
    unsigned char *trailer = record + bytes - PAGE;
    memcpy(trailer + 16, &bytes, sizeof bytes);
    const uint64_t body = pd_digest64(record, bytes - PAGE, PD_SHARD_SEED);
    memcpy(trailer + PAGE - 16, &body, sizeof body);
    const uint64_t self = pd_digest64(trailer, PAGE - 8, 0);
    memcpy(trailer + PAGE - 8, &self, sizeof self);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes <= TRAILER) return 0;
    const uint64_t body = bytes - TRAILER, whole = (body + PAGE - 1) / PAGE * PAGE + PAGE;
    unsigned char *record = calloc(1, whole);
    struct pd_commit commit;
    struct pd_error err = {0};
    if (!record) abort();
    memcpy(record, data + TRAILER, body);
    memcpy(record + whole - PAGE, data, TRAILER);
    seal(record, whole);
    const pd_status st = pd_commit_decode("commit.h5", record, whole, &commit, &err);
    if (st && !err.message[0]) abort();
    if (!st) pd_commit_deinit(&commit);
    free(record);
    return 0;
}
