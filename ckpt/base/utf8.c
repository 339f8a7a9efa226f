#include "ckpt/base/utf8.h"

#include <string.h>

uint32_t pd_utf8_decode(const char *text, size_t bytes, size_t *ret_length)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000}; /* longer encodings of smaller values are invalid */
    const unsigned char *at = (const unsigned char *)text;
    const uint32_t more = *at < 0x80 ? 0 : *at >= 0xf0 ? 3 : *at >= 0xe0 ? 2 : 1;
    uint32_t point = more ? *at & (0x3fu >> more) : *at;
    if ((*at >= 0x80 && *at < 0xc2) || *at > 0xf4 || more >= bytes) return UINT32_MAX;
    for (uint32_t i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80) return UINT32_MAX;
        point = point << 6 | (at[i] & 0x3f);
    }
    if (point < least[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return UINT32_MAX;
    *ret_length = more + 1;
    return point;
}

uint32_t pd_utf8_next(const char **text)
{
    size_t length = 0;
    const uint32_t point = pd_utf8_decode(*text, strnlen(*text, 4) + 1, &length);
    *text += length;
    return point;
}

bool pd_utf8_is_printable(uint32_t point)
{
    return point == '\n' || point == '\t' || (point >= 0x20 && point < 0x7f) || (point >= 0xa0 && point != UINT32_MAX);
}

void pd_utf8_clean(char *text)
{
    for (size_t length; *text; text += length) {
        length = 1;
        if (!pd_utf8_is_printable(pd_utf8_decode(text, strnlen(text, 4), &length))) memset(text, '?', length);
    }
}
