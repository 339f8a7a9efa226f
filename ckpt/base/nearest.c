#include "ckpt/base/nearest.h"

#include <string.h>

#define LENGTH_MAX 63u

static uint32_t minimum(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* source  Damerau 1964, in the restricted form: no part is edited twice */
uint32_t pd_edit_distance(const char *a, const char *b)
{
    uint32_t rows[3][LENGTH_MAX + 1];
    uint32_t m = (uint32_t)strnlen(a, LENGTH_MAX), n = (uint32_t)strnlen(b, LENGTH_MAX);
    uint32_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (uint32_t j = 0; j <= n; j++)
        last[j] = j;
    memset(before, 0, sizeof rows[0]);
    for (uint32_t i = 1; i <= m; i++) {
        now[0] = i;
        for (uint32_t j = 1; j <= n; j++) {
            uint32_t cost = last[j - 1] + (a[i - 1] != b[j - 1]);
            cost = minimum(cost, minimum(last[j], now[j - 1]) + 1);
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            now[j] = swapped ? minimum(cost, before[j - 2] + 1) : cost;
        }
        uint32_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[n];
}

bool pd_is_near(const char *a, const char *b)
{
    const uint32_t m = (uint32_t)strlen(a), n = (uint32_t)strlen(b), longer = m > n ? m : n;
    const uint32_t most = minimum((longer + 1) / 4, 2);
    return longer - minimum(m, n) <= most && pd_edit_distance(a, b) <= most;
}

const char *pd_nearest_name(const char *name, const char *const *names, uint32_t count)
{
    uint32_t near;
    pd_nearest_names(name, names, count, &near, 1);
    return count && pd_is_near(name, names[near]) ? names[near] : NULL;
}

static bool taken(const uint32_t *indices, uint32_t count, uint32_t index)
{
    for (uint32_t i = 0; i < count; i++)
        if (indices[i] == index) return true;
    return false;
}

void pd_nearest_names(const char *name, const char *const *names, uint32_t count, uint32_t *ret_indices, uint32_t wanted)
{
    for (uint32_t k = 0; k < wanted && k < count; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t distance = pd_edit_distance(name, names[i]);
            if (distance >= best || taken(ret_indices, k, i)) continue;
            best = distance;
            ret_indices[k] = i;
        }
    }
}
