#include "trainer/tokenizer/unicode.h"
#include "ckpt/base/utf8.h"
#include <utf8proc.h>

/* Code points assigned by Unicode 15.0, 15.1 and 16.0, with their general category (DerivedGeneralCategory.txt). Debian 12's
 * PCRE2 has Unicode 14, its utf8proc 15, the reference 16: a letter that one takes for a symbol would be split elsewhere. */

/* clang-format off */
static const struct pd_unicode_range unicode_added[] = {
    {0x897, 0x897, "Mn"}, {0xcf3, 0xcf3, "Mc"}, {0xece, 0xece, "Mn"}, {0x1b4e, 0x1b4f, "Po"}, {0x1b7f, 0x1b7f, "Po"},
    {0x1c89, 0x1c89, "Lu"}, {0x1c8a, 0x1c8a, "Ll"}, {0x2427, 0x2429, "So"}, {0x2ffc, 0x2fff, "So"}, {0x31e4, 0x31e5, "So"},
    {0x31ef, 0x31ef, "So"}, {0xa7cb, 0xa7cc, "Lu"}, {0xa7cd, 0xa7cd, "Ll"}, {0xa7da, 0xa7da, "Lu"}, {0xa7db, 0xa7db, "Ll"},
    {0xa7dc, 0xa7dc, "Lu"}, {0x105c0, 0x105f3, "Lo"}, {0x10d40, 0x10d49, "Nd"}, {0x10d4a, 0x10d4d, "Lo"},
    {0x10d4e, 0x10d4e, "Lm"}, {0x10d4f, 0x10d4f, "Lo"}, {0x10d50, 0x10d65, "Lu"}, {0x10d69, 0x10d6d, "Mn"},
    {0x10d6e, 0x10d6e, "Pd"}, {0x10d6f, 0x10d6f, "Lm"}, {0x10d70, 0x10d85, "Ll"}, {0x10d8e, 0x10d8f, "Sm"},
    {0x10ec2, 0x10ec4, "Lo"}, {0x10efc, 0x10eff, "Mn"}, {0x1123f, 0x11240, "Lo"}, {0x11241, 0x11241, "Mn"},
    {0x11380, 0x11389, "Lo"}, {0x1138b, 0x1138b, "Lo"}, {0x1138e, 0x1138e, "Lo"}, {0x11390, 0x113b5, "Lo"},
    {0x113b7, 0x113b7, "Lo"}, {0x113b8, 0x113ba, "Mc"}, {0x113bb, 0x113c0, "Mn"}, {0x113c2, 0x113c2, "Mc"},
    {0x113c5, 0x113c5, "Mc"}, {0x113c7, 0x113ca, "Mc"}, {0x113cc, 0x113cd, "Mc"}, {0x113ce, 0x113ce, "Mn"},
    {0x113cf, 0x113cf, "Mc"}, {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo"}, {0x113d2, 0x113d2, "Mn"},
    {0x113d3, 0x113d3, "Lo"}, {0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"}, {0x113e1, 0x113e2, "Mn"},
    {0x116d0, 0x116e3, "Nd"}, {0x11b00, 0x11b09, "Po"}, {0x11bc0, 0x11be0, "Lo"}, {0x11be1, 0x11be1, "Po"},
    {0x11bf0, 0x11bf9, "Nd"}, {0x11f00, 0x11f01, "Mn"}, {0x11f02, 0x11f02, "Lo"}, {0x11f03, 0x11f03, "Mc"},
    {0x11f04, 0x11f10, "Lo"}, {0x11f12, 0x11f33, "Lo"}, {0x11f34, 0x11f35, "Mc"}, {0x11f36, 0x11f3a, "Mn"},
    {0x11f3e, 0x11f3f, "Mc"}, {0x11f40, 0x11f40, "Mn"}, {0x11f41, 0x11f41, "Mc"}, {0x11f42, 0x11f42, "Mn"},
    {0x11f43, 0x11f4f, "Po"}, {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"}, {0x1342f, 0x1342f, "Lo"},
    {0x13439, 0x1343f, "Cf"}, {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"}, {0x13447, 0x13455, "Mn"},
    {0x13460, 0x143fa, "Lo"}, {0x16100, 0x1611d, "Lo"}, {0x1611e, 0x16129, "Mn"}, {0x1612a, 0x1612c, "Mc"},
    {0x1612d, 0x1612f, "Mn"}, {0x16130, 0x16139, "Nd"}, {0x16d40, 0x16d42, "Lm"}, {0x16d43, 0x16d6a, "Lo"},
    {0x16d6b, 0x16d6c, "Lm"}, {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"}, {0x18cff, 0x18cff, "Lo"},
    {0x1b132, 0x1b132, "Lo"}, {0x1b155, 0x1b155, "Lo"}, {0x1cc00, 0x1ccef, "So"}, {0x1ccf0, 0x1ccf9, "Nd"},
    {0x1cd00, 0x1ceb3, "So"}, {0x1d2c0, 0x1d2d3, "No"}, {0x1df25, 0x1df2a, "Ll"}, {0x1e030, 0x1e06d, "Lm"},
    {0x1e08f, 0x1e08f, "Mn"}, {0x1e4d0, 0x1e4ea, "Lo"}, {0x1e4eb, 0x1e4eb, "Lm"}, {0x1e4ec, 0x1e4ef, "Mn"},
    {0x1e4f0, 0x1e4f9, "Nd"}, {0x1e5d0, 0x1e5ed, "Lo"}, {0x1e5ee, 0x1e5ef, "Mn"}, {0x1e5f0, 0x1e5f0, "Lo"},
    {0x1e5f1, 0x1e5fa, "Nd"}, {0x1e5ff, 0x1e5ff, "Po"}, {0x1f6dc, 0x1f6dc, "So"}, {0x1f774, 0x1f776, "So"},
    {0x1f77b, 0x1f77f, "So"}, {0x1f7d9, 0x1f7d9, "So"}, {0x1f8b2, 0x1f8bb, "So"}, {0x1f8c0, 0x1f8c1, "So"},
    {0x1fa75, 0x1fa77, "So"}, {0x1fa87, 0x1fa89, "So"}, {0x1fa8f, 0x1fa8f, "So"}, {0x1faad, 0x1faaf, "So"},
    {0x1fabb, 0x1fabf, "So"}, {0x1fac6, 0x1fac6, "So"}, {0x1face, 0x1facf, "So"}, {0x1fada, 0x1fadc, "So"},
    {0x1fadf, 0x1fadf, "So"}, {0x1fae8, 0x1fae9, "So"}, {0x1faf7, 0x1faf8, "So"}, {0x1fbcb, 0x1fbef, "So"},
    {0x2b739, 0x2b739, "Lo"}, {0x2ebf0, 0x2ee5d, "Lo"}, {0x31350, 0x323af, "Lo"}
};
/* clang-format on */

const struct pd_unicode_range *pd_unicode_added(uint32_t *ret_count)
{
    *ret_count = sizeof unicode_added / sizeof unicode_added[0];
    return unicode_added;
}

/* ---- UTF-8 ---- */

size_t pd_unicode_valid_bytes(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t word;
        while (bytes - at >= sizeof word) {
            memcpy(&word, text + at, sizeof word);
            if (word & 0x8080808080808080u) break;
            at += sizeof word;
        }
        if (at == bytes) break;
        size_t length;
        if (pd_utf8_decode(text + at, bytes - at, &length) == UINT32_MAX) return at;
        at += length;
    }
    return at;
}

/* Length of the maximal subpart at the start of ill-formed text: as many bytes as could begin a code point, at least one. */
static size_t ill_formed_bytes(const unsigned char *text, size_t bytes)
{
    const unsigned char lead = text[0];
    if (lead < 0xc2 || lead > 0xf4) return 1;
    const size_t wanted = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    const unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (bytes < 2 || text[1] < least || text[1] > most) return 1;
    size_t length = 2;
    while (length < wanted && length < bytes && (text[length] & 0xc0) == 0x80)
        length++;
    return length;
}

pd_status pd_unicode_repair(const char *text, size_t bytes, struct pd_string *out, struct pd_error *err)
{
    while (bytes) {
        size_t valid = pd_unicode_valid_bytes(text, bytes);
        PD_TRY(pd_string_add(out, text, valid, err));
        text += valid;
        bytes -= valid;
        if (!bytes) break;
        size_t bad = ill_formed_bytes((const unsigned char *)text, bytes);
        PD_TRY(pd_string_add(out, "\xef\xbf\xbd", 3, err));
        text += bad;
        bytes -= bad;
    }
    return PD_OK;
}

uint32_t pd_unicode_at(const char *text, unsigned *ret_bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *ret_bytes = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *ret_bytes = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *ret_bytes = 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *ret_bytes = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

unsigned pd_unicode_last_bytes(const char *text, size_t bytes)
{
    unsigned length = 1;
    while (length < bytes && length < 4 && ((unsigned char)text[bytes - length] & 0xc0) == 0x80)
        length++;
    return length;
}

unsigned pd_unicode_put(uint32_t code, char out[4])
{
    return (unsigned)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)out);
}

/* ---- classes ---- */

bool pd_unicode_is_space(uint32_t code)
{
    if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

static const char *category_of(uint32_t code)
{
    const char *category = utf8proc_category_string((utf8proc_int32_t)code);
    if (strcmp(category, "Cn") != 0) return category;
    uint32_t low = 0, high;
    const struct pd_unicode_range *added = pd_unicode_added(&high);
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (code > added[middle].last)
            low = middle + 1;
        else if (code < added[middle].first)
            high = middle;
        else
            return added[middle].category;
    }
    return category;
}

bool pd_unicode_is_numeric(uint32_t code)
{
    if (code < 0x80) return code >= '0' && code <= '9';
    return category_of(code)[0] == 'N';
}

bool pd_unicode_is_word(uint32_t code)
{
    if (code < 0x80) return (code >= '0' && code <= '9') || ((code | 32) >= 'a' && (code | 32) <= 'z') || code == '_';
    const char *category = category_of(code);
    if (category[0] == 'L' || category[0] == 'M') return true;
    if (!strcmp(category, "Nd") || !strcmp(category, "Nl") || !strcmp(category, "Pc")) return true;
    return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
           (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
}

/* ---- normal forms ---- */

/* Starters that the form keeps and that never join what precedes them; most text is of these. The first row is ASCII. */
static const struct {
    uint32_t first, last;
    bool compatible; /* in NFKC too */
} inert[] = {
    {0x0, 0x7f, true},        {0x80, 0x2ff, false},     {0x400, 0x482, true},    {0x48a, 0x52f, true},
    {0x5d0, 0x5ea, true},     {0x620, 0x64a, true},     {0x2010, 0x2010, true},  {0x2012, 0x2016, true},
    {0x2018, 0x2023, true},   {0x2460, 0x24ff, false},  {0x2500, 0x27ff, true},  {0x3001, 0x3029, true},
    {0x3041, 0x3096, true},   {0x30a0, 0x30fe, true},   {0x3400, 0x4dbf, true},  {0x4e00, 0x9fff, true},
    {0xac00, 0xd7a3, true},   {0xfe00, 0xfe0f, true},   {0xff01, 0xff9d, false}, {0x1f000, 0x1f0ff, true},
    {0x1f300, 0x1faff, true}, {0x20000, 0x2a6df, true},
};

static bool is_inert(enum pd_normal_form form, uint32_t code)
{
    if (code < 0x80) return true;
    for (unsigned i = 1; i < sizeof inert / sizeof inert[0]; i++)
        if (code <= inert[i].last) return code >= inert[i].first && (form == PD_NFC || inert[i].compatible);
    return false;
}

/* Bytes up to the first code point that may change, or up to the first that is inert. */
static size_t run_bytes(enum pd_normal_form form, const char *text, size_t bytes, bool of_inert)
{
    size_t at = 0;
    while (at < bytes) {
        unsigned length;
        uint32_t code = pd_unicode_at(text + at, &length);
        if (is_inert(form, code) != of_inert) break;
        at += length;
    }
    return at;
}

bool pd_unicode_is_normal(enum pd_normal_form form, const char *text, size_t bytes)
{
    return run_bytes(form, text, bytes, true) == bytes;
}

static pd_status normalize_run(enum pd_normal_form form, const char *text, size_t bytes, struct pd_string *out,
                               struct pd_error *err)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE | (form == PD_NFKC ? UTF8PROC_COMPAT : 0);
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &made, options);
    if (length == UTF8PROC_ERROR_NOMEM) PD_FAIL(err, PD_NO_MEMORY, "no memory to normalize %zu bytes", bytes);
    if (length < 0) PD_FAIL(err, PD_BUG, "normalizing %zu bytes: %s", bytes, utf8proc_errmsg(length));
    pd_status status = pd_string_add(out, (const char *)made, (size_t)length, err);
    free(made);
    return status;
}

pd_status pd_unicode_normalize(enum pd_normal_form form, const char *text, size_t bytes, struct pd_string *out,
                               struct pd_error *err)
{
    while (bytes) {
        size_t same = run_bytes(form, text, bytes, true);
        if (same < bytes && same) same -= pd_unicode_last_bytes(text, same); /* the next may combine with the last one */
        PD_TRY(pd_string_add(out, text, same, err));
        text += same;
        bytes -= same;
        if (!bytes) break;
        unsigned first;
        (void)pd_unicode_at(text, &first);
        size_t run = first + run_bytes(form, text + first, bytes - first, false);
        PD_TRY(normalize_run(form, text, run, out, err));
        text += run;
        bytes -= run;
    }
    return PD_OK;
}

pd_status pd_unicode_lowercase(const char *text, size_t bytes, struct pd_string *out, struct pd_error *err)
{
    for (size_t at = 0; at < bytes;) {
        char lower[4];
        unsigned length;
        uint32_t code = pd_unicode_at(text + at, &length);
        at += length;
        if (code == 0x130) {
            PD_TRY(pd_string_add(out, "i\xcc\x87", 3, err));
            continue;
        }
        length = pd_unicode_put((uint32_t)utf8proc_tolower((utf8proc_int32_t)code), lower);
        PD_TRY(pd_string_add(out, lower, length, err));
    }
    return PD_OK;
}
