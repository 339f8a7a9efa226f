#include "ckpt/base/digest.h"

#include "ckpt/base/status.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

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

/* ---- CRC-32 ---- */

/* Eight bytes a step, with a table for each (Kounavis and Berry 2005, "slicing by 8"). */
static uint32_t crc_tables[8][256];

__attribute__((constructor)) static void crc_make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
        crc_tables[0][i] = value;
    }
    for (int t = 1; t < 8; t++)
        for (uint32_t i = 0; i < 256; i++)
            crc_tables[t][i] = crc_tables[t - 1][i] >> 8 ^ crc_tables[0][crc_tables[t - 1][i] & 255];
}

static uint32_t crc_by_table(uint32_t crc, const unsigned char *p, uint64_t bytes)
{
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        word ^= crc;
        crc = 0;
        for (int t = 0; t < 8; t++)
            crc ^= crc_tables[7 - t][word >> (8 * t) & 255];
    }
    for (; bytes; bytes--, p++)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *p) & 255];
    return crc;
}

#ifdef __x86_64__
/* Moves 128 bits by x^d: multiplies their halves by x^(d + 32) and x^(d - 32), reduced. The constants are these powers
 * modulo the polynomial, bits reversed, shifted left by one since a reversed product is one bit short.
 * Source: Gopal et al. 2009, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction. */
#define FOLD(x, by, next) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next)
#define LOAD(at) _mm_loadu_si128((const __m128i *)(const void *)(at))

__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_by_folding(uint32_t crc, const unsigned char *p, uint64_t bytes)
{
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i x[4];
    unsigned char rest[16];
    for (int i = 0; i < 4; i++)
        x[i] = LOAD(p + 16 * i);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)crc));
    for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = FOLD(x[i], by_512, LOAD(p + 16 * i));
    for (int i = 1; i < 4; i++)
        x[i] = FOLD(x[i - 1], by_128, x[i]);
    memcpy(rest, &x[3], sizeof rest);
    return crc_by_table(crc_by_table(0, rest, sizeof rest), p, bytes);
}

/* The same with four such words to a register. */
#define FOLD_WIDE(x, by, next) \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00), _mm512_clmulepi64_epi128(x, by, 0x11), next, 0x96)
#define LOAD_WIDE(at) _mm512_loadu_si512((const void *)(at))

__attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq"))) static uint32_t
crc_by_wide_folding(uint32_t crc, const unsigned char *p, uint64_t bytes)
{
    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430, 0x11542778a)),
                  by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
    __m512i x[4];
    unsigned char rest[64];
    for (int i = 0; i < 4; i++)
        x[i] = LOAD_WIDE(p + 64 * i);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, bytes -= 256; bytes >= 256; p += 256, bytes -= 256)
        for (int i = 0; i < 4; i++)
            x[i] = FOLD_WIDE(x[i], by_2048, LOAD_WIDE(p + 64 * i));
    for (int i = 1; i < 4; i++)
        x[i] = FOLD_WIDE(x[i - 1], by_512, x[i]);
    memcpy(rest, &x[3], sizeof rest);
    crc = crc_by_folding(0, rest, sizeof rest);
    return bytes >= 64 ? crc_by_folding(crc, p, bytes) : crc_by_table(crc, p, bytes);
}
#endif

uint32_t pd_crc32(uint32_t crc, const void *data, uint64_t bytes)
{
#ifdef __x86_64__
    if (bytes >= 256 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        return ~crc_by_wide_folding(~crc, data, bytes);
    if (bytes >= 64 && __builtin_cpu_supports("pclmul")) return ~crc_by_folding(~crc, data, bytes);
#endif
    return ~crc_by_table(~crc, data, bytes);
}
