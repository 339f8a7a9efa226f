/* Numbers out of text: the whole text or nothing. Each returns true and sets *ret, or false with *ret untouched on an empty
 * text, stray characters, a sign where none belongs, or a value out of range. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool pd_parse_u64(const char *text, uint64_t *ret); /* decimal digits only */
bool pd_parse_i64(const char *text, int64_t *ret);
bool pd_parse_double(const char *text, double *ret); /* finite */
/* "4096", "64k", "1.5G", "10MiB": powers of 1024, the suffix in either case, the result a whole number of bytes. */
bool pd_parse_bytes(const char *text, uint64_t *ret);
/* Which of the names the first `length` characters are. */
bool pd_parse_name(const char *text, size_t length, const char *const *names, unsigned count, unsigned *ret);
