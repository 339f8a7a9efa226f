/* UTF-8 as Unicode defines it (version 15, table 3-7): shortest forms, no surrogates, at most U+10FFFF. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the first code point of `bytes` >= 1 bytes of text; *ret_length is its size. UINT32_MAX if they are not UTF-8;
 * *ret_length is then untouched. */
uint32_t pd_utf8_decode(const char *text, size_t bytes, size_t *ret_length);
/* Decodes the code point at *text, a string, and advances *text. UINT32_MAX if it is not UTF-8; *text then stays. */
uint32_t pd_utf8_next(const char **text);
/* True unless the code point is a control character other than line feed and tab: safe to send to a terminal. */
bool pd_utf8_is_printable(uint32_t point);
/* Replaces each byte that is unprintable or not UTF-8 by a question mark. */
void pd_utf8_clean(char *text);
