/* Parses numbers. The whole text must be the number. Returns true and sets *ret; returns false with *ret untouched for
 * empty text, stray characters, a misplaced sign, or a value out of range. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool pd_parse_u64(const char *text, uint64_t *ret); /* decimal digits only */
bool pd_parse_i64(const char *text, int64_t *ret);
bool pd_parse_double(const char *text, double *ret); /* finite */
/* "4096", "64k", "1.5G", "10MiB": powers of 1024, suffix in either case. The result must be a whole number of bytes. */
bool pd_parse_bytes(const char *text, uint64_t *ret);
/* Finds which of the names equals the first `length` characters. */
bool pd_parse_name(const char *text, size_t length, const char *const *names, unsigned count, unsigned *ret);
