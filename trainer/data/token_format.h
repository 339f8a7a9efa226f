/* Constants of token formats, and decoding of tokens (little-endian on disk, unaligned). */
#pragma once

#include "trainer/data/token_file.h"

/* llm.c: int32[256] with magic, version, token count; then tokens. */
#define PD_LLMC_HEADER_BYTES 1024u
#define PD_LLMC_MAGIC_U16 20240520u
#define PD_LLMC_VERSION_U16 1u
#define PD_LLMC_MAGIC_U32 20240801u
#define PD_LLMC_VERSION_U32 7u

/* clang-format off */
/* For enum pd_token_type: code, name, C type. */
#define PD_TOKEN_TYPES(X) \
    X(U8, u8, uint8_t) X(I8, i8, int8_t) X(I16, i16, int16_t) X(I32, i32, int32_t) X(I64, i64, int64_t) \
    X(U16, u16, uint16_t) X(U32, u32, uint32_t)
/* clang-format on */

int64_t pd_token_load(enum pd_token_type type, const unsigned char *bytes);
/* tokens (count) from bytes; truncates tokens beyond int32 (a scan with a vocabulary has refused them) */
void pd_token_widen(enum pd_token_type type, const unsigned char *bytes, uint32_t count, int32_t *tokens);
/* Lowers *min and raises *max to include the tokens. */
void pd_token_range(enum pd_token_type type, const unsigned char *bytes, uint64_t count, int64_t *min, int64_t *max);
