/* UTF-8 as Unicode defines it (version 15, table 3-7): shortest forms, no surrogates, at most U+10FFFF. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The code point at the start of `bytes` bytes of text, and how many bytes it takes. UINT32_MAX: they are not UTF-8; then
 * *ret_length is untouched. bytes >= 1. */
uint32_t pd_utf8_decode(const char *text, size_t bytes, size_t *ret_length);
/* The code point at *text, a string, and *text moves on to the next; UINT32_MAX: no UTF-8, and *text stays. */
uint32_t pd_utf8_next(const char **text);
/* Whether a terminal can be given the code point: no control character but line feed and tab. */
bool pd_utf8_is_printable(uint32_t point);
/* What is not printable, or no UTF-8, becomes question marks, a byte each. */
void pd_utf8_clean(char *text);
