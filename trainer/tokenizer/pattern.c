#include "trainer/tokenizer/pattern.h"
#include "trainer/tokenizer/unicode.h"
#include <ctype.h>
#include <stdio.h>

/* ---- Oniguruma's dialect ---- */

/* Oniguruma's dialect in PCRE2 syntax. Classes become lists of their members there, for two reasons: PCRE2's \s has U+180E
 * and its \w no marks, and code points newer than its Unicode are listed by number. */

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

static pd_status pattern_put(struct dialect *d, const char *text)
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
        PD_TRY(pattern_put(d, range));
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

/* \p{..} at d->at, just after the p. Inside a class there are brackets already; PCRE2 handles negation. */
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
    if (negated && in_class) return pattern_put(d, text);
    if (!in_class) PD_TRY(pattern_put(d, negated ? "[^" : "["));
    PD_TRY(pattern_put(d, !strcmp(name, "Han") ? HAN : text));
    if (category) PD_TRY(put_added(d, category));
    return in_class ? PD_OK : pattern_put(d, "]");
}

static pd_status put_list(struct dialect *d, char letter)
{
    switch (letter) {
    case 's':
        return pattern_put(d, SPACES);
    case 'S':
        return pattern_put(d, NO_SPACES);
    case 'h':
        return pattern_put(d, "0-9a-fA-F");
    case 'w':
        /* The list of a class, without brackets. */
        static const char *const categories[] = {"L", "M", "Nd", "Nl", "Pc"};
        PD_TRY(pattern_put(d, WORDS));
        for (unsigned i = 0; i < sizeof categories / sizeof categories[0]; i++)
            PD_TRY(put_added(d, categories[i]));
        return PD_OK;
    default: /* 'd' */
        PD_TRY(pattern_put(d, "\\p{Nd}"));
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
        return pattern_put(d, text);
    }
    if (letter == 'v') return pattern_put(d, "\\x0b");
    if (letter && strchr("sShwd", letter)) {
        if (!in_class) PD_TRY(pattern_put(d, "["));
        PD_TRY(put_list(d, letter));
        return in_class ? PD_OK : pattern_put(d, "]");
    }
    if (letter && strchr("WDH", letter) && !in_class) {
        PD_TRY(pattern_put(d, "[^"));
        PD_TRY(put_list(d, (char)tolower(letter)));
        return pattern_put(d, "]");
    }
    if (letter == 'D') return pattern_put(d, "\\P{Nd}");
    const bool is_letter = isalpha((unsigned char)letter);
    if (!letter || (is_letter && !strchr(in_class ? "ntrfaex" : "ntrfaexAzZG", letter))) {
        char words[64];
        snprintf(words, sizeof words, "\\%c%s is not supported", letter ? letter : ' ', in_class ? " in a class" : "");
        REFUSE(d, words);
    }
    return pattern_put(d, same);
}

static pd_status put_class(struct dialect *d)
{
    PD_TRY(pattern_put(d, "["));
    d->at++;
    if (*d->at == '^') {
        PD_TRY(pattern_put(d, "^"));
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
    return pattern_put(d, "]");
}

static pd_status put_group(struct dialect *d)
{
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    if (d->at[1] == '*') REFUSE(d, "a verb is not supported");
    if (d->at[1] != '?') return pd_string_add(d->out, d->at++, 1, d->err);
    for (unsigned i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (!strncmp(d->at, plain[i], strlen(plain[i]))) {
            d->at += strlen(plain[i]);
            return pattern_put(d, plain[i]);
        }
    /* Letters of (?imx-imx) up to : or ). Oniguruma's m is PCRE2's s. */
    const bool at_start = d->at == d->source;
    PD_TRY(pattern_put(d, "(?"));
    for (d->at += 2; *d->at && strchr("imx-", *d->at); d->at++) {
        const char letter[] = {*d->at == 'm' ? 's' : *d->at, '\0'};
        PD_TRY(pattern_put(d, letter));
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
    PD_TRY(pattern_put(d, is_count ? "{" : "\\{"));
    d->at++;
    if (!is_count) return PD_OK;
    if (end[1] == '+' || (end[1] == '?' && !memchr(d->at, ',', (size_t)(end - d->at))))
        REFUSE(d, "{n}+ and {n}? mean other things elsewhere and are not supported");
    if (*d->at == ',') PD_TRY(pattern_put(d, "0"));
    PD_TRY(pd_string_add(d->out, d->at, (size_t)(end + 1 - d->at), d->err));
    d->at = end + 1;
    return PD_OK;
}

/* Appends `source` translated for PCRE2, terminated. `added`: includes assignments of Unicode 15 and 16. */
static pd_status pattern_translate(const char *source, bool added, struct pd_string *out, struct pd_error *err)
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

/* ---- patterns ---- */

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MATCH_LIMIT 10000000u /* steps */
#define HEAP_LIMIT_KIB (64u << 10)
#define JIT_STACK_BYTES (1u << 20)
#define UNICODE_KNOWN 16 /* the latest version covered by pd_unicode_added */

struct pd_pattern {
    pcre2_code *code;
    bool compiled; /* to machine code */
};

struct pd_pattern_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static pd_status compile(const char *source, const char *text, struct pd_pattern *pattern, struct pd_error *err)
{
    int problem;
    PCRE2_SIZE offset;
    PCRE2_UCHAR words[160];
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) PD_FAIL(err, PD_NO_MEMORY, "no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 64);
    pattern->code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &problem, &offset, context);
    pcre2_compile_context_free(context);
    if (pattern->code) {
        pattern->compiled = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
        return PD_OK;
    }
    pcre2_get_error_message(problem, words, sizeof words);
    PD_FAIL(err, PD_CORRUPT, "regular expression \"%.200s\": %s", source, (const char *)words);
}

static bool knows_new_code_points(void)
{
    char version[32] = "";
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    return strtol(version, NULL, 10) >= UNICODE_KNOWN;
}

pd_status pd_pattern_new(const char *source, struct pd_pattern **ret_pattern, struct pd_error *err)
{
    struct pd_string text = {0};
    struct pd_pattern *pattern = calloc(1, sizeof *pattern);
    if (!pattern) PD_FAIL(err, PD_NO_MEMORY, "no memory for a regular expression");
    pd_status status = pattern_translate(source, !knows_new_code_points(), &text, err);
    if (!status) status = compile(source, text.bytes, pattern, err);
    pd_string_deinit(&text);
    if (status) {
        free(pattern);
        return status;
    }
    *ret_pattern = pattern;
    return PD_OK;
}

void pd_pattern_free(struct pd_pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

pd_status pd_pattern_scratch_new(struct pd_pattern_scratch **ret_scratch, struct pd_error *err)
{
    struct pd_pattern_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch) {
        scratch->data = pcre2_match_data_create(1, NULL);
        scratch->context = pcre2_match_context_create(NULL);
        scratch->stack = pcre2_jit_stack_create(32u << 10, JIT_STACK_BYTES, NULL);
    }
    if (!scratch || !scratch->data || !scratch->context) {
        pd_pattern_scratch_free(scratch);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to match regular expressions");
    }
    pcre2_set_match_limit(scratch->context, MATCH_LIMIT);
    pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    if (scratch->stack) pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    *ret_scratch = scratch;
    return PD_OK;
}

void pd_pattern_scratch_free(struct pd_pattern_scratch *scratch)
{
    if (!scratch) return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

pd_status pd_pattern_find(const struct pd_pattern *pattern, struct pd_pattern_scratch *scratch, const char *text,
                          size_t bytes, size_t from, size_t *ret_start, size_t *ret_end, struct pd_error *err)
{
    int found = pattern->compiled ? pcre2_jit_match(pattern->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK,
                                                    scratch->data, scratch->context)
                                  : pcre2_match(pattern->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK,
                                                scratch->data, scratch->context);
    if (found >= 0) {
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(scratch->data);
        if (bounds[1] < bounds[0]) PD_FAIL(err, PD_UNSUPPORTED, "a regular expression ends a match before its start (\\K)");
        *ret_start = bounds[0];
        *ret_end = bounds[1];
        return PD_OK;
    }
    *ret_start = SIZE_MAX;
    if (found == PCRE2_ERROR_NOMATCH) return PD_OK;
    PCRE2_UCHAR words[160];
    pcre2_get_error_message(found, words, sizeof words);
    PD_FAIL(err, PD_INVALID, "the tokenizer's regular expression cannot be matched at byte %zu of the text: %s", from,
            (const char *)words);
}
