/* GPT-2's alphabet: a printable character for each byte, so that any bytes form text (Radford et al. 2019, encoder.py:
 * bytes_to_unicode). Printable Latin-1 bytes map to themselves, the others in order to U+0100 and on. */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>
#include <stdint.h>

uint32_t pd_byte_level_char(unsigned char byte);
/* Decodes valid UTF-8 to bytes and appends them. *ret_all: every character stood for a byte; otherwise appends nothing. */
PD_MUST_USE pd_status pd_byte_level_decode(const char *text, size_t bytes, struct pd_string *out, bool *ret_all,
                                           struct pd_error *err);
