/* Oniguruma's dialect, as PCRE2 writes it. Classes become lists of what they hold there, for two reasons: PCRE2's \s has
 * U+180E and its \w no marks, and code points newer than its Unicode are listed by number. */
#include "trainer/tokenizer/pattern.h"

#include "trainer/tokenizer/unicode.h"
#include <ctype.h>
#include <stdio.h>

#define SPACES "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACES                                                                                                          \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}" \
    "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
/* Oniguruma counts the numerals of Latin-1 as word characters. */
#define WORDS                                                                                             \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}" \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define HAN "\\p{sc:Han}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"

struct dialect {
    const char *source, *at;
    bool added;
    struct pd_string *out;
    struct pd_error *err;
};

#define REFUSE(d, what) PD_FAIL((d)->err, PD_UNSUPPORTED, "regular expression \"%.200s\": %s", (d)->source, what)

static pd_status put(struct dialect *d, const char *text)
{
    return pd_string_add(d->out, text, strlen(text), d->err);
}

/* Newer code points of a category: "L" or "Lu". */
static pd_status put_added(struct dialect *d, const char *category)
{
    uint32_t count;
    const struct pd_unicode_range *added = pd_unicode_added(&count);
    for (uint32_t i = 0; d->added && i < count; i++) {
        char range[40];
        if (strncmp(added[i].category, category, strlen(category)) != 0) continue;
        snprintf(range, sizeof range, "\\x{%x}-\\x{%x}", added[i].first, added[i].last);
        PD_TRY(put(d, range));
    }
    return PD_OK;
}

static const char *short_category(const char *name)
{
    static const char *const names[][2] = {{"Letter", "L"}, {"Mark", "M"},   {"Number", "N"}, {"Punctuation", "P"},
                                           {"Symbol", "S"}, {"Digit", "Nd"}, {"Other", "C"},  {"Separator", "Z"},
                                           {"Punct", "P"},  {"Upper", "Lu"}, {"Lower", "Ll"}};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcasecmp(name, names[i][0])) return names[i][1];
    return strlen(name) <= 2 ? name : NULL;
}

/* \p{..} at d->at, which stands behind the p. In a class brackets are there already; a negation is PCRE2's own. */
static pd_status put_property(struct dialect *d, bool negated, bool in_class)
{
    char name[32];
    const char *end = *d->at == '{' ? strchr(d->at, '}') : NULL;
    if (!end || end - d->at - 1 >= (ptrdiff_t)sizeof name || end == d->at + 1) REFUSE(d, "a property is written \\p{Name}");
    const char *first = d->at + 1;
    if (*first == '^') {
        negated = !negated;
        first++;
    }
    snprintf(name, sizeof name, "%.*s", (int)(end - first), first);
    d->at = end + 1;
    const char *category = short_category(name);
    char text[48];
    snprintf(text, sizeof text, category ? "\\%c{%s}" : "\\%c{sc:%s}", negated && in_class ? 'P' : 'p',
             category ? category : name);
    if (negated && in_class) return put(d, text);
    if (!in_class) PD_TRY(put(d, negated ? "[^" : "["));
    PD_TRY(put(d, !strcmp(name, "Han") ? HAN : text));
    if (category) PD_TRY(put_added(d, category));
    return in_class ? PD_OK : put(d, "]");
}

static pd_status put_list(struct dialect *d, char letter)
{
    switch (letter) {
    case 's':
        return put(d, SPACES);
    case 'S':
        return put(d, NO_SPACES);
    case 'h':
        return put(d, "0-9a-fA-F");
    case 'w':
        /* The list of a class, without brackets. */
        static const char *const categories[] = {"L", "M", "Nd", "Nl", "Pc"};
        PD_TRY(put(d, WORDS));
        for (unsigned i = 0; i < sizeof categories / sizeof categories[0]; i++)
            PD_TRY(put_added(d, categories[i]));
        return PD_OK;
    default: /* 'd' */
        PD_TRY(put(d, "\\p{Nd}"));
        return put_added(d, "Nd");
    }
}

static pd_status put_escape(struct dialect *d, bool in_class)
{
    const char letter = d->at[1], same[] = {'\\', letter, '\0'};
    d->at += letter ? 2 : 1;
    if (letter == 'p' || letter == 'P') return put_property(d, letter == 'P', in_class);
    if (letter == 'u') {
        char text[16];
        for (unsigned i = 0; i < 4; i++)
            if (!isxdigit((unsigned char)d->at[i])) REFUSE(d, "\\u takes four hexadecimal digits");
        snprintf(text, sizeof text, "\\x{%.4s}", d->at);
        d->at += 4;
        return put(d, text);
    }
    if (letter == 'v') return put(d, "\\x0b");
    if (letter && strchr("sShwd", letter)) {
        if (!in_class) PD_TRY(put(d, "["));
        PD_TRY(put_list(d, letter));
        return in_class ? PD_OK : put(d, "]");
    }
    if (letter && strchr("WDH", letter) && !in_class) {
        PD_TRY(put(d, "[^"));
        PD_TRY(put_list(d, (char)tolower(letter)));
        return put(d, "]");
    }
    if (letter == 'D') return put(d, "\\P{Nd}");
    const bool is_letter = isalpha((unsigned char)letter);
    if (!letter || (is_letter && !strchr(in_class ? "ntrfaex" : "ntrfaexAzZG", letter))) {
        char words[64];
        snprintf(words, sizeof words, "\\%c%s is not supported", letter ? letter : ' ', in_class ? " in a class" : "");
        REFUSE(d, words);
    }
    return put(d, same);
}

static pd_status put_class(struct dialect *d)
{
    PD_TRY(put(d, "["));
    d->at++;
    if (*d->at == '^') {
        PD_TRY(put(d, "^"));
        d->at++;
    }
    if (*d->at == ']') REFUSE(d, "a class begins with ]; write \\]");
    while (*d->at && *d->at != ']') {
        if (*d->at == '\\') {
            PD_TRY(put_escape(d, true));
            continue;
        }
        if (*d->at == '[') REFUSE(d, "a class in a class is not supported");
        if (d->at[0] == '&' && d->at[1] == '&') REFUSE(d, "an intersection of classes (&&) is not supported");
        PD_TRY(pd_string_add(d->out, d->at++, 1, d->err));
    }
    if (!*d->at) REFUSE(d, "a class has no end");
    d->at++;
    return put(d, "]");
}

static pd_status put_group(struct dialect *d)
{
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    if (d->at[1] == '*') REFUSE(d, "a verb is not supported");
    if (d->at[1] != '?') return pd_string_add(d->out, d->at++, 1, d->err);
    for (unsigned i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (!strncmp(d->at, plain[i], strlen(plain[i]))) {
            d->at += strlen(plain[i]);
            return put(d, plain[i]);
        }
    /* Letters of (?imx-imx) up to : or ). Oniguruma's m is PCRE2's s. */
    const bool at_start = d->at == d->source;
    PD_TRY(put(d, "(?"));
    for (d->at += 2; *d->at && strchr("imx-", *d->at); d->at++) {
        const char letter[] = {*d->at == 'm' ? 's' : *d->at, '\0'};
        PD_TRY(put(d, letter));
    }
    if (*d->at != ':' && *d->at != ')') REFUSE(d, "this kind of group is not supported");
    if (*d->at == ')' && !at_start) REFUSE(d, "options stand at the start, or before a colon");
    return pd_string_add(d->out, d->at++, 1, d->err);
}

/* {n}, {n,}, {n,m}, and {,m} which PCRE2 writes {0,m}; anything else is text. */
static pd_status put_count(struct dialect *d)
{
    const char *end = d->at + 1;
    while (isdigit((unsigned char)*end) || *end == ',')
        end++;
    const bool is_count = *end == '}' && end > d->at + 1;
    PD_TRY(put(d, is_count ? "{" : "\\{"));
    d->at++;
    if (!is_count) return PD_OK;
    if (end[1] == '+' || (end[1] == '?' && !memchr(d->at, ',', (size_t)(end - d->at))))
        REFUSE(d, "{n}+ and {n}? mean other things elsewhere and are not supported");
    if (*d->at == ',') PD_TRY(put(d, "0"));
    PD_TRY(pd_string_add(d->out, d->at, (size_t)(end + 1 - d->at), d->err));
    d->at = end + 1;
    return PD_OK;
}

pd_status pd_pattern_translate(const char *source, bool added, struct pd_string *out, struct pd_error *err)
{
    struct dialect d = {source, source, added, out, err};
    while (*d.at) {
        if (*d.at == '\\')
            PD_TRY(put_escape(&d, false));
        else if (*d.at == '[')
            PD_TRY(put_class(&d));
        else if (*d.at == '(')
            PD_TRY(put_group(&d));
        else if (*d.at == '{')
            PD_TRY(put_count(&d));
        else
            PD_TRY(pd_string_add(out, d.at++, 1, err));
    }
    return pd_string_add(out, "", 1, err);
}
