#include "trainer/data/token_format.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read without swapping"
#endif

/* If the compiler can, also builds the loops for AVX2; the processor selects at start. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

#define DEFINE_TYPE(code, name, type)                                                                       \
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

PD_TOKEN_TYPES(DEFINE_TYPE)

static const struct {
    const char *name;
    uint32_t bytes;
    void (*widen)(const unsigned char *bytes, uint32_t count, int32_t *tokens);
    void (*range)(const unsigned char *bytes, uint64_t count, int64_t *min, int64_t *max);
} types[] = {
#define ROW(code, name, type) [PD_TOKEN_##code] = {#name, sizeof(type), widen_##name, range_##name},
    PD_TOKEN_TYPES(ROW)};

const char *pd_token_type_name(enum pd_token_type type)
{
    return types[type].name;
}

uint32_t pd_token_bytes(enum pd_token_type type)
{
    return types[type].bytes;
}

void pd_token_widen(enum pd_token_type type, const unsigned char *bytes, uint32_t count, int32_t *tokens)
{
    types[type].widen(bytes, count, tokens);
}

void pd_token_range(enum pd_token_type type, const unsigned char *bytes, uint64_t count, int64_t *min, int64_t *max)
{
    types[type].range(bytes, count, min, max);
}

int64_t pd_token_load(enum pd_token_type type, const unsigned char *bytes)
{
    int64_t low = INT64_MAX, high = INT64_MIN;
    pd_token_range(type, bytes, 1, &low, &high);
    return low;
}
