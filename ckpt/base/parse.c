#include "ckpt/base/parse.h"

#include "ckpt/base/checked.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool pd_parse_u64(const char *text, uint64_t *ret)
{
    if (!*text) return false;
    uint64_t value = 0;
    for (; *text; text++) {
        if (!isdigit((unsigned char)*text)) return false;
        if (!pd_checked_mul_u64(value, 10, &value) || !pd_checked_add_u64(value, (uint64_t)(*text - '0'), &value))
            return false;
    }
    *ret = value;
    return true;
}

bool pd_parse_i64(const char *text, int64_t *ret)
{
    bool negative = *text == '-';
    uint64_t magnitude;
    if (!pd_parse_u64(text + negative, &magnitude)) return false;
    if (magnitude > (uint64_t)INT64_MAX + negative) return false;
    *ret = (int64_t)(negative ? 0 - magnitude : magnitude);
    return true;
}

bool pd_parse_double(const char *text, double *ret)
{
    if (!*text || isspace((unsigned char)*text)) return false;
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (*end || end == text || !isfinite(value)) return false;
    *ret = value;
    return true;
}

static bool suffix_shift(const char *suffix, int *ret_shift)
{
    static const char letters[] = "kmgtp";
    if (!*suffix || strcasecmp(suffix, "b") == 0) {
        *ret_shift = 0;
        return true;
    }
    const char *found = strchr(letters, tolower((unsigned char)*suffix));
    if (!found) return false;
    const char *rest = suffix + 1;
    if (*rest && strcasecmp(rest, "b") != 0 && strcasecmp(rest, "ib") != 0) return false;
    *ret_shift = 10 * (int)(found - letters + 1);
    return true;
}

bool pd_parse_bytes(const char *text, uint64_t *ret)
{
    size_t digits = strspn(text, "0123456789.");
    char number[32];
    int shift;
    if (digits == 0 || digits >= sizeof number || !suffix_shift(text + digits, &shift)) return false;
    memcpy(number, text, digits);
    number[digits] = '\0';
    uint64_t whole;
    if (pd_parse_u64(number, &whole)) return pd_checked_mul_u64(whole, 1ull << shift, ret);
    double value;
    if (!pd_parse_double(number, &value)) return false;
    value *= (double)(1ull << shift);
    if (!(value < 0x1p63) || value != floor(value)) return false;
    *ret = (uint64_t)value;
    return true;
}

bool pd_parse_name(const char *text, size_t length, const char *const *names, unsigned count, unsigned *ret)
{
    for (unsigned i = 0; i < count; i++) {
        if (strlen(names[i]) != length || strncmp(names[i], text, length) != 0) continue;
        *ret = i;
        return true;
    }
    return false;
}
