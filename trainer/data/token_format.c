#include "trainer/data/token_format.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read without swapping"
#endif

/* Where the compiler can, the loops also exist for AVX2 and the processor chooses at start. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

#define DEFINE_TYPE(name, type)                                                                             \
    CLONES static void widen_##name(const unsigned char *bytes, uint32_t count, int32_t *tokens)            \
    {                                                                                                       \
        for (uint32_t i = 0; i < count; i++) {                                                              \
            type value;                                                                                     \
            memcpy(&value, bytes + i * sizeof value, sizeof value);                                         \
            tokens[i] = (int32_t)value;                                                                     \
        }                                                                                                   \
    }                                                                                                       \
    CLONES static void range_##name(const unsigned char *bytes, uint64_t count, int64_t *min, int64_t *max) \
    {                                                                                                       \
        if (count == 0) return;                                                                             \
        type low, high;                                                                                     \
        memcpy(&low, bytes, sizeof low);                                                                    \
        high = low;                                                                                         \
        for (uint64_t i = 0; i < count; i++) {                                                              \
            type value;                                                                                     \
            memcpy(&value, bytes + i * sizeof value, sizeof value);                                         \
            low = value < low ? value : low;                                                                \
            high = value > high ? value : high;                                                             \
        }                                                                                                   \
        if ((int64_t)low < *min) *min = (int64_t)low;                                                       \
        if ((int64_t)high > *max) *max = (int64_t)high;                                                     \
    }

DEFINE_TYPE(u8, uint8_t)
DEFINE_TYPE(i8, int8_t)
DEFINE_TYPE(u16, uint16_t)
DEFINE_TYPE(i16, int16_t)
DEFINE_TYPE(i32, int32_t)
DEFINE_TYPE(u32, uint32_t)
DEFINE_TYPE(i64, int64_t)

void pd_token_widen(enum pd_token_type type, const unsigned char *bytes, uint32_t count, int32_t *tokens)
{
    switch (type) {
    case PD_TOKEN_U8:
        widen_u8(bytes, count, tokens);
        break;
    case PD_TOKEN_I8:
        widen_i8(bytes, count, tokens);
        break;
    case PD_TOKEN_U16:
        widen_u16(bytes, count, tokens);
        break;
    case PD_TOKEN_I16:
        widen_i16(bytes, count, tokens);
        break;
    case PD_TOKEN_I32:
        widen_i32(bytes, count, tokens);
        break;
    case PD_TOKEN_U32:
        widen_u32(bytes, count, tokens);
        break;
    case PD_TOKEN_I64:
        widen_i64(bytes, count, tokens);
        break;
    }
}

void pd_token_range(enum pd_token_type type, const unsigned char *bytes, uint64_t count, int64_t *min, int64_t *max)
{
    switch (type) {
    case PD_TOKEN_U8:
        range_u8(bytes, count, min, max);
        break;
    case PD_TOKEN_I8:
        range_i8(bytes, count, min, max);
        break;
    case PD_TOKEN_U16:
        range_u16(bytes, count, min, max);
        break;
    case PD_TOKEN_I16:
        range_i16(bytes, count, min, max);
        break;
    case PD_TOKEN_I32:
        range_i32(bytes, count, min, max);
        break;
    case PD_TOKEN_U32:
        range_u32(bytes, count, min, max);
        break;
    case PD_TOKEN_I64:
        range_i64(bytes, count, min, max);
        break;
    }
}

int64_t pd_token_load(enum pd_token_type type, const unsigned char *bytes)
{
    int64_t low = INT64_MAX, high = INT64_MIN;
    pd_token_range(type, bytes, 1, &low, &high);
    return low;
}
