#include "trainer/tokenizer/unicode.h"

#include "trainer/tokenizer/pattern.h"
#include <criterion/criterion.h>
#include <stdio.h>

static struct pd_error err;

static void check_repaired(const char *text, size_t bytes, const char *expected)
{
    struct pd_string out = {0};
    cr_assert_eq(pd_unicode_repair(text, bytes, &out, &err), PD_OK);
    cr_assert_eq(out.count, strlen(expected), "%s: %zu", expected, out.count);
    cr_assert_eq(memcmp(out.bytes, expected, out.count), 0, "%s", expected);
    pd_string_deinit(&out);
}

#define R "\xef\xbf\xbd"

Test(unicode, each_maximal_ill_formed_part_is_one_replacement)
{
    check_repaired("a\xff"
                   "b",
                   3, "a" R "b");
    check_repaired("\xe4\xb8", 2, R);
    check_repaired("\xe4\xb8"
                   "a",
                   3, R "a");
    check_repaired("\xf0\x9f\x98 ", 4, R " ");
    check_repaired("\xed\xa0\x80", 3, R R R);
    check_repaired("\xc0\xaf", 2, R R);
    check_repaired("\xf5\x80", 2, R R);
    check_repaired("\xf4\x90\x80\x80", 4, R R R R);
    check_repaired("\xe0\x80\x80", 3, R R R);
    check_repaired("12345678\xe4\xb8\xad", 11, "12345678\xe4\xb8\xad");
}

static void check_normal(enum pd_normal_form form, const char *text, const char *expected)
{
    struct pd_string out = {0};
    cr_assert_eq(pd_unicode_normalize(form, text, strlen(text), &out, &err), PD_OK);
    cr_assert_eq(out.count, strlen(expected), "%s", text);
    cr_assert_eq(memcmp(out.bytes, expected, out.count), 0, "%s", text);
    cr_assert(strcmp(text, expected) == 0 || !pd_unicode_is_normal(form, text, strlen(text)), "%s", text);
    pd_string_deinit(&out);
}

Test(unicode, normal_forms)
{
    check_normal(PD_NFC, "e\u0301x", "\u00e9x");
    check_normal(PD_NFC, "abc e\u0301", "abc \u00e9");
    check_normal(PD_NFC, "\u1100\u1161\u11a8", "\uac01");
    check_normal(PD_NFC, "\uac00\u11a8", "\uac01");
    check_normal(PD_NFC, "\u304b\u3099", "\u304c");
    check_normal(PD_NFC, "q\u0307\u0323", "q\u0323\u0307");
    check_normal(PD_NFC, "\u212b", "\u00c5");
    check_normal(PD_NFC, "\ufb01\uff21", "\ufb01\uff21");
    check_normal(PD_NFKC, "\ufb01\uff21\u2460\u3000", "fiA1 ");
    check_normal(PD_NFKC, "\u00bd", "1\u20442");
}

/* What is passed over by a quick look is what normalizing leaves, alone and behind every letter that could be a base. */
Test(unicode, inert_code_points_do_not_change_and_join_nothing)
{
    static const char *const bases[] = {"a", "\u0995", "\u1100", "\uac00", "\u304b", "\u0627", "\u00e9", "\u0b47", "\u1025"};
    for (unsigned form = PD_NFC; form <= PD_NFKC; form++)
        for (uint32_t code = 0x80; code < 0x2f000; code++) {
            char text[16], one[8] = "";
            if (code >= 0xd800 && code < 0xe000) continue;
            const unsigned length = pd_unicode_put(code, one);
            one[length] = '\0';
            if (!pd_unicode_is_normal(form, one, length)) continue;
            for (unsigned base = 0; base < sizeof bases / sizeof bases[0]; base++) {
                struct pd_string out = {0};
                snprintf(text, sizeof text, "\u0301%s%s\u0301", bases[base],
                         one); /* the marks keep the look from being quick */
                const size_t bytes = strlen(text);
                cr_assert_eq(pd_unicode_normalize(form, text, bytes, &out, &err), PD_OK);
                cr_assert(memmem(out.bytes, out.count, one, length) || code < 0x530 || (code > 0x3040 && code < 0x30ff) ||
                              (code > 0x61f && code < 0x64b),
                          "U+%04X", code);
                pd_string_deinit(&out);
            }
        }
}

static void check_classes(const char *pattern, uint32_t code, bool expected)
{
    struct pd_pattern *p;
    struct pd_pattern_scratch *scratch;
    char text[8] = "";
    size_t start, end;
    cr_assert_eq(pd_pattern_new(pattern, &p, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_pattern_scratch_new(&scratch, &err), PD_OK);
    const unsigned bytes = pd_unicode_put(code, text);
    cr_assert_eq(pd_pattern_find(p, scratch, text, bytes, 0, &start, &end, &err), PD_OK);
    cr_assert_eq(start != SIZE_MAX, expected, "%s and U+%04X", pattern, code);
    pd_pattern_free(p);
    pd_pattern_scratch_free(scratch);
}

Test(unicode, classes_are_those_of_the_reference)
{
    check_classes("\\s", 0x180e, false);
    check_classes("[\\s]", 0x180e, false);
    check_classes("\\S", 0x180e, true);
    check_classes("[^\\S]", 0x3000, true);
    check_classes("\\s", 0x85, true);
    check_classes("\\w", 0x301, true);
    check_classes("\\w", 0x203f, true);
    check_classes("\\w", 0xbd, true);
    check_classes("\\W", 0x301, false);
    check_classes("\\p{L}", 0x323af, true);    /* Unicode 15 */
    check_classes("[^\\p{L}]", 0x1c89, false); /* Unicode 16 */
    check_classes("\\P{L}", 0x1c89, false);
    check_classes("\\p{^L}", 0x61, false);
    check_classes("\\p{Han}", 0x4e00, true);
    check_classes("\\p{Han}", 0x3001, false); /* shared by scripts */
    check_classes("\\h", 'f', true);
    check_classes("\\v", '\n', false);
    check_classes("(?m:.)", '\n', true);
    check_classes("\\u0061", 'a', true);
    check_classes("a{,2}$", 'b', true);
    check_classes("{", '{', true);
}

Test(unicode, expressions_that_mean_other_things_elsewhere_are_refused)
{
    static const char *const refused[] = {"[a[b]]", "[a&&b]", "a{2}+", "a{2}?", "\\b",  "\\X",      "(?~a)", "(*FAIL)",
                                          "\\g<1>", "a(?i)b", "\\p{",  "[a",    "[]a]", "(?P<n>a)", "\\",    "[\\W]"};
    for (unsigned i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct pd_pattern *p;
        cr_assert_eq(pd_pattern_new(refused[i], &p, &err), PD_UNSUPPORTED, "%s: %s", refused[i], err.message);
    }
}

Test(unicode, matching_that_never_ends_ends)
{
    struct pd_pattern *p;
    struct pd_pattern_scratch *scratch;
    size_t start, end;
    cr_assert_eq(pd_pattern_new("(a*)*(a*)*b", &p, &err), PD_OK);
    cr_assert_eq(pd_pattern_scratch_new(&scratch, &err), PD_OK);
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac";
    pd_status status = pd_pattern_find(p, scratch, text, strlen(text), 0, &start, &end, &err);
    cr_assert(status == PD_INVALID || start == SIZE_MAX, "%s", err.message);
    pd_pattern_free(p);
    pd_pattern_scratch_free(scratch);
}
