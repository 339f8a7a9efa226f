#include "ckpt/base/nearest.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

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
    const char *nearest = NULL;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t distance = pd_edit_distance(name, names[i]);
        if (distance >= least) continue;
        least = distance;
        nearest = names[i];
    }
    return nearest && pd_is_near(name, nearest) ? nearest : NULL;
}

static bool taken(const uint32_t *indices, uint32_t count, uint32_t index)
{
    for (uint32_t i = 0; i < count; i++)
        if (indices[i] == index) return true;
    return false;
}

/* Returns the next run of letters ("llama") or of digits with a unit's letter ("8b"), or NULL. */
static const char *next_part(const char *text, size_t *ret_length)
{
    size_t length = 0;
    while (*text && !isalnum((unsigned char)*text))
        text++;
    if (isdigit((unsigned char)*text)) {
        while (isdigit((unsigned char)text[length]))
            length++;
        if (isalpha((unsigned char)text[length]) && !isalnum((unsigned char)text[length + 1])) length++;
    }
    while (!length || (isalpha((unsigned char)*text) && isalpha((unsigned char)text[length])))
        if (!text[length++]) return NULL;
    *ret_length = length;
    return text;
}

/* Counts the parts of a that b lacks. */
static uint32_t parts_apart(const char *a, const char *b)
{
    uint32_t apart = 0;
    size_t length, other;
    for (const char *part = a; (part = next_part(part, &length)); part += length) {
        const char *same = b;
        while ((same = next_part(same, &other)) && (other != length || strncasecmp(part, same, length) != 0))
            same += other;
        apart += !same;
    }
    return apart;
}

void pd_nearest_names(const char *name, const char *const *names, uint32_t count, uint32_t *ret_indices, uint32_t wanted)
{
    for (uint32_t k = 0; k < wanted && k < count; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t parts = 2 * parts_apart(name, names[i]) + parts_apart(names[i], name);
            const uint32_t distance = 256 * parts + pd_edit_distance(name, names[i]);
            if (distance >= best || taken(ret_indices, k, i)) continue;
            best = distance;
            ret_indices[k] = i;
        }
    }
}
