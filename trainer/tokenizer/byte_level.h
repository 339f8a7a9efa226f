/* GPT-2's alphabet: a printable character for each byte, so that any bytes are text (Radford et al. 2019, encoder.py:
 * bytes_to_unicode). Printable bytes of Latin-1 stand for themselves, the others for U+0100 and on, in their order. */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>
#include <stdint.h>

uint32_t pd_byte_level_char(unsigned char byte);
/* Appends the bytes that valid UTF-8 stands for; *ret_all: every character stood for one, else nothing is appended. */
PD_MUST_USE pd_status pd_byte_level_decode(const char *text, size_t bytes, struct pd_string *out, bool *ret_all,
                                           struct pd_error *err);
