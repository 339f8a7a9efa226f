#include "tests/fuzz/input/commit.h"

#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = PD_SHARD_PAGE_BYTES };

static void seal(unsigned char *record, uint64_t bytes)
{
    unsigned char *trailer = record + bytes - PAGE;
    memcpy(trailer + 16, &bytes, sizeof bytes);
    const uint64_t body = pd_digest64(record, bytes - PAGE, PD_SHARD_SEED);
    memcpy(trailer + PAGE - 16, &body, sizeof body);
    const uint64_t self = pd_digest64(trailer, PAGE - 8, 0);
    memcpy(trailer + PAGE - 8, &self, sizeof self);
}

unsigned char *input_commit_make(const uint8_t *data, size_t bytes, uint64_t *ret_bytes)
{
    if (bytes <= INPUT_COMMIT_TRAILER) return NULL;
    const uint64_t body = bytes - INPUT_COMMIT_TRAILER, whole = (body + PAGE - 1) / PAGE * PAGE + PAGE;
    unsigned char *record = calloc(1, whole);
    if (!record) abort();
    memcpy(record, data + INPUT_COMMIT_TRAILER, body);
    memcpy(record + whole - PAGE, data, INPUT_COMMIT_TRAILER);
    seal(record, whole);
    *ret_bytes = whole;
    return record;
}
