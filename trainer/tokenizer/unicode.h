/* UTF-8 and what tokenizers ask of Unicode: repair, classes of code points, normal forms (over utf8proc), lower case.
 *   threads  any */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>
#include <stdint.h>

struct pd_unicode_range {
    uint32_t first, last;
    char category[3]; /* general category: "Lu" */
};

/* Ascending; code points that are newer than the libraries. */
const struct pd_unicode_range *pd_unicode_added(uint32_t *ret_count);

/* Bytes at the start of `text` that are UTF-8. */
size_t pd_unicode_valid_bytes(const char *text, size_t bytes);
/* Appends the text with one U+FFFD for each maximal part that is ill-formed, as Python's errors="replace" (Unicode 15,
 * section 3.9, "U+FFFD Substitution of Maximal Subparts"). */
PD_MUST_USE pd_status pd_unicode_repair(const char *text, size_t bytes, struct pd_string *out, struct pd_error *err);

/* The code point at the start of valid UTF-8, and its bytes. */
uint32_t pd_unicode_at(const char *text, unsigned *ret_bytes);
/* Bytes of the code point that ends before `text` + `bytes` (bytes > 0), valid UTF-8. */
unsigned pd_unicode_last_bytes(const char *text, size_t bytes);
unsigned pd_unicode_put(uint32_t code, char out[4]); /* bytes written */

bool pd_unicode_is_space(uint32_t code);   /* White_Space */
bool pd_unicode_is_numeric(uint32_t code); /* Nd, Nl, No */
bool pd_unicode_is_word(uint32_t code);    /* \w of UTS #18: alphabetic, marks, decimal digits, connectors, joiners */

enum pd_normal_form { PD_NFC, PD_NFKC };
/* True for text that the normal form leaves as it is, by a quick look; false: it may change. */
bool pd_unicode_is_normal(enum pd_normal_form form, const char *text, size_t bytes);
/* Appends the normal form of valid UTF-8. */
PD_MUST_USE pd_status pd_unicode_normalize(enum pd_normal_form form, const char *text, size_t bytes, struct pd_string *out,
                                           struct pd_error *err);
/* Appends the text with every code point in lower case (SpecialCasing for U+0130 alone: no context). */
PD_MUST_USE pd_status pd_unicode_lowercase(const char *text, size_t bytes, struct pd_string *out, struct pd_error *err);
