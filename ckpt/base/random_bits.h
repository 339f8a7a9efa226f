/* Stateless random bits, a function of a key and an index alone, and stochastic rounding: the same on every rank, thread,
 * instruction set and device.
 *
 * The host makes a key from the numbers that identify what is rounded; an element costs two 32-bit finalisers.
 *   sources  Appleby, MurmurHash3 (the finaliser); Steele et al. 2014, "Fast splittable pseudorandom number generators" */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define PD_RANDOM_INLINE static __device__ __forceinline__
#else
#define PD_RANDOM_INLINE static inline __attribute__((unused))
#endif

PD_RANDOM_INLINE uint32_t pd_mix_32(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

PD_RANDOM_INLINE uint32_t pd_random_bits(uint64_t key, uint64_t index)
{
    const uint32_t low = pd_mix_32((uint32_t)index ^ (uint32_t)key);
    return pd_mix_32(low + (uint32_t)(index >> 32) * 0x9e3779b9u + (uint32_t)(key >> 32));
}

/* Rounds x stochastically to one of the two neighbouring bf16 numbers: x on average. Infinities and NaN are kept. */
PD_RANDOM_INLINE uint16_t pd_bf16_at_random(float x, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t quiet = (bits & 0x7fffffffu) > 0x7f800000u ? 0x40u : 0, kept = bits >> 16 | quiet;
    const uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
    return (uint16_t)((bits & 0x7f800000u) == 0x7f800000u ? kept : rounded);
}

/* Host only. */
static inline __attribute__((unused)) uint64_t pd_random_key(uint64_t key, uint64_t part)
{
    uint64_t x = key + UINT64_C(0x9e3779b97f4a7c15) * (part + 1);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
