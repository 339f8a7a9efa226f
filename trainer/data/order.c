#include "trainer/data/order.h"

#include <assert.h>
#include <string.h>

#define ROUNDS 8

/* The finaliser of splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t feistel(uint64_t value, unsigned half_bits, uint64_t key)
{
    uint64_t mask = (1ull << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (mix64(key + (round << 32) + right * 0xd1342543de82ef95ull) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t pd_order_permute(uint64_t n, uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t i)
{
    PD_CHECK(i < n && n <= 1ull << 62);
    unsigned half_bits = 1;
    while (1ull << (2 * half_bits) < n)
        half_bits++;
    uint64_t key = mix64(mix64(mix64(seed) ^ stream) ^ epoch);
    do {
        i = feistel(i, half_bits, key);
    } while (i >= n);
    return i;
}

/* Largest remainders: shares are integers, at least one each, and sum to the cycle. */
static void shares_from_weights(struct pd_blend *blend, const double *weights, uint32_t count)
{
    static_assert(PD_BLEND_SOURCES_MAX < PD_BLEND_CYCLE, "each source has a slot");
    double largest = 0, total = 0;
    for (uint32_t s = 0; s < count; s++) {
        if (weights[s] > largest) largest = weights[s];
    }
    for (uint32_t s = 0; s < count; s++)
        total += weights[s] / largest; /* cannot overflow */
    uint32_t given = 0;
    for (uint32_t s = 0; s < count; s++) {
        uint32_t share = (uint32_t)(weights[s] / largest / total * PD_BLEND_CYCLE);
        blend->share[s] = share ? share : 1;
        given += blend->share[s];
    }
    while (given != PD_BLEND_CYCLE) { /* one more for the source most below its share, or one less for the most above */
        bool more = given < PD_BLEND_CYCLE;
        uint32_t chosen = UINT32_MAX;
        double best = 0;
        for (uint32_t s = 0; s < count; s++) {
            double missing = weights[s] / largest / total * PD_BLEND_CYCLE - blend->share[s];
            if (!more && blend->share[s] == 1) continue;
            if (chosen == UINT32_MAX || (more ? missing > best : missing < best)) {
                chosen = s;
                best = missing;
            }
        }
        PD_CHECK(chosen != UINT32_MAX);
        blend->share[chosen] += more ? 1 : UINT32_MAX;
        given += more ? 1 : UINT32_MAX;
    }
}

void pd_blend_init(struct pd_blend *blend, const double *weights, uint32_t count)
{
    PD_CHECK(count > 0 && count <= PD_BLEND_SOURCES_MAX);
    memset(blend, 0, sizeof *blend);
    shares_from_weights(blend, weights, count);
    uint32_t used[PD_BLEND_SOURCES_MAX] = {0};
    for (uint64_t slot = 0; slot < PD_BLEND_CYCLE; slot++) {
        /* The source furthest behind its line with slots left (Bresenham for many lines; ties to the first). */
        uint32_t chosen = UINT32_MAX;
        int64_t best = 0;
        for (uint32_t s = 0; s < count; s++) {
            int64_t behind = (int64_t)((slot + 1) * blend->share[s]) - (int64_t)used[s] * PD_BLEND_CYCLE;
            if (used[s] < blend->share[s] && (chosen == UINT32_MAX || behind > best)) {
                chosen = s;
                best = behind;
            }
        }
        blend->slots[slot].source = chosen;
        blend->slots[slot].before = used[chosen]++;
    }
}

void pd_blend_locate(const struct pd_blend *blend, uint64_t i, uint32_t *ret_source, uint64_t *ret_k)
{
    uint32_t slot = (uint32_t)(i % PD_BLEND_CYCLE), source = blend->slots[slot].source;
    *ret_source = source;
    *ret_k = i / PD_BLEND_CYCLE * blend->share[source] + blend->slots[slot].before;
}
