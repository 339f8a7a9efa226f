#include "ckpt/base/json.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *finish(struct pd_json_writer *writer)
{
    const char *text = NULL;
    cr_assert_eq(pd_json_writer_finish(writer, &text, NULL, NULL), PD_OK);
    return text;
}

Test(json, exact_text)
{
    struct pd_json_writer w;
    pd_json_writer_init(&w, 0);
    pd_json_object_begin(&w, NULL);
    pd_json_string(&w, "s", "a\"b\\c\n\x01\xc3\xa9");
    pd_json_array_begin(&w, "a");
    pd_json_u64(&w, NULL, 3);
    pd_json_i64(&w, NULL, -3);
    pd_json_bool(&w, NULL, true);
    pd_json_null(&w, NULL);
    pd_json_array_end(&w);
    pd_json_object_begin(&w, "o");
    pd_json_object_end(&w);
    pd_json_hex64(&w, "h", 0xab);
    pd_json_u64(&w, "big", UINT64_MAX);
    pd_json_string(&w, "none", NULL);
    pd_json_object_end(&w);
    cr_assert_str_eq(finish(&w), "{\"s\":\"a\\\"b\\\\c\\n\\u0001\xc3\xa9\",\"a\":[3,-3,true,null],\"o\":{},"
                                 "\"h\":\"00000000000000ab\",\"big\":\"18446744073709551615\",\"none\":null}\n");
    pd_json_writer_deinit(&w);
}

Test(json, indented_text)
{
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_array_begin(&w, "a");
    pd_json_u64(&w, NULL, 1);
    pd_json_u64(&w, NULL, 2);
    pd_json_array_end(&w);
    pd_json_array_begin(&w, "e");
    pd_json_array_end(&w);
    pd_json_object_end(&w);
    cr_assert_str_eq(finish(&w), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"e\": []\n}\n");
    pd_json_writer_deinit(&w);
}

Test(json, finish_ends_what_is_open)
{
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 0);
    PD_JSON_U64S(&w, {"a", 1}, {"b", 2});
    pd_json_array_begin(&w, "c");
    pd_json_object_begin(&w, NULL);
    PD_JSON_DOUBLES(&w, {"d", 0.5});
    cr_assert_str_eq(finish(&w), "{\"a\":1,\"b\":2,\"c\":[{\"d\":0.5}]}\n");
    pd_json_writer_deinit(&w);
}

Test(json, stray_bytes_become_replacement_characters)
{
    struct pd_json_writer w;
    pd_json_writer_init(&w, 0);
    pd_json_string(&w, NULL, "\xff-\xc3-\xe2\x82-\xed\xa0\x80-\xf4\x90\x80\x80-\xe2\x82\xac-\xf0\x9f\x98\x80-\xc0\x80");
    const char *text = finish(&w);
    struct pd_json_document *document = NULL;
    struct pd_error err;
    cr_assert_eq(pd_json_parse("t", text, strlen(text), &document, &err), PD_OK, "%s", err.message);
    const char *back = pd_json_text(pd_json_root(document));
#define R "\xef\xbf\xbd"
    cr_assert_str_eq(back, R "-" R "-" R R "-" R R R "-" R R R R "-\xe2\x82\xac-\xf0\x9f\x98\x80-" R R);
    pd_json_document_free(document);
    pd_json_writer_deinit(&w);
}

static void round_trip(double value)
{
    struct pd_json_writer w;
    pd_json_writer_init(&w, 0);
    pd_json_double(&w, NULL, value);
    const char *text = finish(&w);
    const double back = strtod(text + (text[0] == '"'), NULL);
    cr_assert(memcmp(&back, &value, sizeof back) == 0 || (isnan(back) && isnan(value)), "%s", text);
    pd_json_writer_deinit(&w);
}

Test(json, doubles_come_back_with_the_same_bits)
{
    static const double special[] = {0.0,
                                     -0.0,
                                     1.0,
                                     -1.0,
                                     0.1,
                                     1.0 / 3,
                                     5e-324,
                                     2.2250738585072014e-308,
                                     1.7976931348623157e308,
                                     1e22,
                                     1e23,
                                     123456789012345680.0,
                                     INFINITY,
                                     -INFINITY,
                                     NAN};
    for (unsigned i = 0; i < sizeof special / sizeof special[0]; i++)
        round_trip(special[i]);
    uint64_t state = 88172645463325252ull;
    for (int i = 0; i < 20000; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        double value;
        memcpy(&value, &state, sizeof value);
        round_trip(value);
    }
}

Test(json, floats_are_as_short_as_they_can_be)
{
    struct pd_json_writer w;
    pd_json_writer_init(&w, 0);
    pd_json_array_begin(&w, NULL);
    pd_json_double(&w, NULL, 0.1);
    pd_json_double(&w, NULL, -0.0);
    pd_json_array_end(&w);
    cr_assert_str_eq(finish(&w), "[0.1,-0.0]\n");
    pd_json_writer_deinit(&w);
}

Test(json, measurements_are_numbers_or_null)
{
    struct pd_json_writer w;
    pd_json_writer_init(&w, 0);
    pd_json_object_begin(&w, NULL);
    pd_json_measured(&w, "norm", 0.1);
    pd_json_measured(&w, "skipped", (double)NAN);
    pd_json_measured(&w, "low", -(double)INFINITY);
    pd_json_object_end(&w);
    cr_assert_str_eq(finish(&w), "{\"norm\":0.1,\"skipped\":null,\"low\":null}\n");
    pd_json_writer_deinit(&w);
}

Test(json, reading_members_in_order)
{
    const char *text = "{\"z\": 1, \"a\": {\"k\": [1, 2.5, \"x\"]}, \"m\": \"word\"}";
    struct pd_json_document *document = NULL;
    struct pd_error err;
    cr_assert_eq(pd_json_parse("t", text, strlen(text), &document, &err), PD_OK, "%s", err.message);
    const struct pd_json_value *root = pd_json_root(document), *value = NULL;
    const char *key = NULL, *order[] = {"z", "a", "m"};
    void *cursor = NULL;
    for (int i = 0; i < 3; i++) {
        cr_assert(pd_json_next(root, &cursor, &key, &value));
        cr_assert_str_eq(key, order[i]);
    }
    cr_assert_not(pd_json_next(root, &cursor, &key, &value));
    cr_assert_str_eq(pd_json_text(value), "word");
    cr_assert_null(pd_json_text(root));
    pd_json_document_free(document);
    pd_json_document_free(NULL);
}

Test(json, bad_text_is_refused_with_its_place)
{
    static const char *const bad[] = {"",     "{",     "{\"a\":1,\"a\":2}",   "[1,]", "{\"a\":01}",
                                      "\xff", "[1] x", "{\"a\":\"\\u0000\"}", "nan"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pd_json_document *document = NULL;
        struct pd_error err;
        cr_assert_eq(pd_json_parse("header of x", bad[i], strlen(bad[i]), &document, &err), PD_CORRUPT, "%s", bad[i]);
        cr_assert_not_null(strstr(err.message, "header of x: line 1"), "%s", err.message);
        cr_assert_null(document);
    }
    size_t deep = 100000;
    char *text = malloc(deep);
    memset(text, '[', deep);
    struct pd_json_document *document = NULL;
    cr_assert_eq(pd_json_parse("deep", text, deep, &document, NULL), PD_CORRUPT);
    free(text);
}

Test(json, values_by_type)
{
    static const char text[] = "{\"n\": 7, \"minus\": -1, \"x\": 0.5, \"yes\": true, \"list\": [1, \"two\", null, {}]}";
    struct pd_json_document *document = NULL;
    cr_assert_eq(pd_json_parse("t", text, strlen(text), &document, NULL), PD_OK);
    const struct pd_json_value *root = pd_json_root(document), *list = pd_json_member(root, "list");
    uint64_t n = 0;
    double x = 0;
    bool yes = false;
    cr_assert_eq(pd_json_type(root), PD_JSON_OBJECT);
    cr_assert(pd_json_is_u64(pd_json_member(root, "n"), &n) && n == 7);
    cr_assert_not(pd_json_is_u64(pd_json_member(root, "minus"), &n));
    cr_assert_not(pd_json_is_u64(pd_json_member(root, "x"), &n));
    cr_assert(pd_json_is_number(pd_json_member(root, "minus"), &x) && x == -1);
    cr_assert(pd_json_is_number(pd_json_member(root, "x"), &x) && x == 0.5);
    cr_assert_not(pd_json_is_number(pd_json_member(root, "yes"), &x));
    cr_assert(pd_json_is_bool(pd_json_member(root, "yes"), &yes) && yes);
    cr_assert_not(pd_json_is_bool(list, &yes));
    cr_assert_null(pd_json_member(root, "absent"));
    cr_assert_null(pd_json_member(list, "n"));
    cr_assert_eq(pd_json_count(root), 0);
    cr_assert_eq(pd_json_count(list), 4);
    static const enum pd_json_type types[] = {PD_JSON_INTEGER, PD_JSON_TEXT, PD_JSON_NULL, PD_JSON_OBJECT};
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(pd_json_type(pd_json_at(list, i)), types[i]);
    cr_assert_str_eq(pd_json_text(pd_json_at(list, 1)), "two");
    pd_json_document_free(document);
}

static void member_refused(const char *text, pd_status expected, const char *words)
{
    struct pd_json_document *document = NULL;
    struct pd_error err;
    const char *found;
    size_t bytes;
    cr_expect_eq(pd_json_parse_member(text, strlen(text), "text", &document, &found, &bytes, &err), expected, "%s", text);
    cr_expect_str_eq(err.message, words, "%s: %s", text, err.message);
    cr_expect_null(document);
}

Test(json, one_member_of_a_line)
{
    static const char line[] = "{\"id\": 1, \"text\": \"a\\u0000b\", \"text\": \"c\\u0000d\"}";
    struct pd_json_document *document;
    struct pd_error err;
    const char *found;
    size_t bytes;
    cr_assert_eq(pd_json_parse_member(line, sizeof line - 1, "text", &document, &found, &bytes, &err), PD_OK, "%s",
                 err.message);
    cr_expect_eq(bytes, 3);
    cr_expect_eq(memcmp(found, "c\0d", 3), 0, "of one that comes twice the last counts, as in other readers");
    pd_json_document_free(document);
    member_refused("[\"text\"]", PD_CORRUPT, "the line is an array, not an object");
    member_refused("{\"text\": 1.5}", PD_CORRUPT, "\"text\" is a number, not a string");
    member_refused("{\"a\": 1, \"b\": 2}", PD_NOT_FOUND, "the object has no \"text\", it has a, b");
    member_refused("{\"text\": \"x\"", PD_CORRUPT, "no valid JSON at column 12: '}' expected near end of file");
    char many[4000] = "{", *end = many + 1;
    for (unsigned i = 0; i < 100; i++)
        end += snprintf(end, 40, "%s\"name%u\": 0", i ? "," : "", i);
    memcpy(end, "}", 2);
    cr_expect_eq(pd_json_parse_member(many, strlen(many), "text", &document, &found, &bytes, &err), PD_NOT_FOUND);
    cr_expect(strstr(err.message, "name18, name19 and more"), "%s", err.message);
}
