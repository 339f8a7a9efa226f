#include "trainer/tokenizer/byte_level.h"

#include "trainer/tokenizer/unicode.h"

static bool is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

uint32_t pd_byte_level_char(unsigned char byte)
{
    if (is_printable(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xa0) return 0x100u + 0x21 + (byte - 0x7fu);
    return 0x143; /* 0xad */
}

/* False: the code point stands for no byte. */
static bool byte_level_byte(uint32_t code, unsigned char *ret_byte)
{
    if (code < 0x100 && !is_printable(code)) return false;
    if (code > 0x143) return false;
    if (code < 0x100)
        *ret_byte = (unsigned char)code;
    else if (code == 0x143)
        *ret_byte = 0xad;
    else
        *ret_byte = (unsigned char)(code - 0x100 <= 0x20 ? code - 0x100 : code - 0x121 + 0x7f);
    return true;
}

pd_status pd_byte_level_decode(const char *text, size_t bytes, struct pd_string *out, bool *ret_all, struct pd_error *err)
{
    const size_t before = out->count;
    PD_TRY(pd_string_reserve(out, bytes, err));
    *ret_all = true;
    for (size_t at = 0; at < bytes;) {
        unsigned length;
        unsigned char byte;
        if (!byte_level_byte(pd_unicode_at(text + at, &length), &byte)) {
            pd_string_cut(out, before);
            *ret_all = false;
            return PD_OK;
        }
        PD_TRY(pd_string_add(out, (const char *)&byte, 1, err));
        at += length;
    }
    return PD_OK;
}
