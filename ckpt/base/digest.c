#include "ckpt/base/digest.h"

#include "ckpt/base/status.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#ifdef PERDURE_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* replaces the XXH3 names by those that choose SSE2, AVX2 or AVX-512 at run time */
#endif

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct pd_digest_stream), "the stream's storage holds the state of XXH3");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct pd_digest_stream), "and is aligned for it");

uint64_t pd_digest64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

void pd_digest_stream_init(struct pd_digest_stream *stream, uint64_t seed)
{
    XXH3_state_t *state = (XXH3_state_t *)(void *)stream->storage;
    XXH3_INITSTATE(state);
    PD_CHECK(XXH3_64bits_reset_withSeed(state, seed) == XXH_OK);
}

void pd_digest_stream_add(struct pd_digest_stream *stream, const void *data, size_t bytes)
{
    if (bytes == 0) return;
    PD_CHECK(XXH3_64bits_update((XXH3_state_t *)(void *)stream->storage, data, bytes) == XXH_OK);
}

uint64_t pd_digest_stream_value(const struct pd_digest_stream *stream)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)stream->storage);
}

uint64_t pd_digest_words(const uint64_t *words, size_t count, uint64_t seed)
{
    struct pd_digest_stream stream;
    pd_digest_stream_init(&stream, seed);
    for (size_t i = 0; i < count; i++) {
        unsigned char bytes[8];
        for (int b = 0; b < 8; b++)
            bytes[b] = (unsigned char)(words[i] >> (8 * b));
        pd_digest_stream_add(&stream, bytes, sizeof bytes);
    }
    return pd_digest_stream_value(&stream);
}
