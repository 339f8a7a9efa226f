/* UTF-8 and Unicode for tokenizers: repair, classes of code points, normal forms (by utf8proc), lower case.
 *   threads  any */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>
#include <stdint.h>

struct pd_unicode_range {
    uint32_t first, last;
    char category[3]; /* general category: "Lu" */
};

/* Code points newer than the libraries, ascending. */
const struct pd_unicode_range *pd_unicode_added(uint32_t *ret_count);

/* Number of bytes at the start of `text` that are valid UTF-8. */
size_t pd_unicode_valid_bytes(const char *text, size_t bytes);
/* Appends the text with one U+FFFD per maximal ill-formed part, like Python's errors="replace" (Unicode 15, section 3.9,
 * "U+FFFD Substitution of Maximal Subparts"). */
PD_MUST_USE pd_status pd_unicode_repair(const char *text, size_t bytes, struct pd_string *out, struct pd_error *err);

/* The code point at the start of valid UTF-8, and its length in bytes. */
uint32_t pd_unicode_at(const char *text, unsigned *ret_bytes);
/* Length of the code point that ends before `text` + `bytes` (bytes > 0), valid UTF-8. */
unsigned pd_unicode_last_bytes(const char *text, size_t bytes);
unsigned pd_unicode_put(uint32_t code, char out[4]); /* bytes written */

bool pd_unicode_is_space(uint32_t code);   /* White_Space */
bool pd_unicode_is_numeric(uint32_t code); /* Nd, Nl, No */
bool pd_unicode_is_word(uint32_t code);    /* \w of UTS #18: alphabetic, marks, decimal digits, connectors, joiners */

enum pd_normal_form { PD_NFC, PD_NFKC };
/* A quick check. True: the normal form does not change the text; false: it may. */
bool pd_unicode_is_normal(enum pd_normal_form form, const char *text, size_t bytes);
/* Appends the normal form of valid UTF-8. */
PD_MUST_USE pd_status pd_unicode_normalize(enum pd_normal_form form, const char *text, size_t bytes, struct pd_string *out,
                                           struct pd_error *err);
/* Appends the text in lower case (SpecialCasing only for U+0130: no context). */
PD_MUST_USE pd_status pd_unicode_lowercase(const char *text, size_t bytes, struct pd_string *out, struct pd_error *err);
