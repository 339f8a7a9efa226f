/* Computes the digest of the whole state. */
#include "ckpt/base/digest.h"
#include "ckpt/inspect/inspect.h"
#include "ckpt/shard/table.h"

#include <stdlib.h>
#include <string.h>

static int digest_compare_names(const void *left, const void *right)
{
    const struct pd_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

pd_status pd_state_digest(const struct pd_tensor_table *tensors, const uint64_t *digests, uint64_t *ret_digest,
                          struct pd_error *err)
{
    const struct pd_tensor **sorted = malloc(((size_t)tensors->count + 1) * sizeof *sorted);
    if (!sorted) PD_FAIL(err, PD_NO_MEMORY, "no memory to sort %u tensors", tensors->count);
    for (uint32_t t = 0; t < tensors->count; t++)
        sorted[t] = &tensors->tensors[t];
    if (tensors->count) qsort(sorted, tensors->count, sizeof *sorted, digest_compare_names);
    struct pd_digest_stream stream;
    pd_digest_stream_init(&stream, PD_SHARD_SEED);
    for (uint32_t t = 0; t < tensors->count; t++) {
        const uint64_t first = (uint64_t)(sorted[t] - tensors->tensors) * PD_KIND_COUNT;
        for (uint64_t kind = 0; kind < PD_KIND_COUNT; kind++) {
            const uint64_t words[2] = {kind, digests[first + kind]};
            pd_digest_stream_add(&stream, sorted[t]->name, strlen(sorted[t]->name) + 1);
            pd_digest_stream_add(&stream, words, sizeof words);
        }
    }
    *ret_digest = pd_digest_stream_value(&stream);
    free(sorted);
    return PD_OK;
}
