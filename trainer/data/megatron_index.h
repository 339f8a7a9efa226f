/* Megatron's .idx beside a .bin (format: ../../README of NVIDIA/Megatron-LM, indexed_dataset): little-endian, unaligned.
 *
 *   "MMIDIDX\0\0", u64 version 1, u8 type, u64 S, u64 D, i32[S] lengths in tokens, i64[S] byte offsets, i64[D] first
 *   sequence of each document and S, optional i8[S] modes */
#pragma once

#include "trainer/data/token_file.h"

#define PD_MEGATRON_MAGIC "MMIDIDX\0"
#define PD_MEGATRON_MAGIC_BYTES 9u /* including the literal's terminator */
#define PD_MEGATRON_HEADER_BYTES 34u

/* X, X.bin and X.idx name the pair. Returns X with `end`, malloc'ed; NULL: no memory. */
char *pd_megatron_path(const char *path, const char *end);
bool pd_megatron_is_pair(const char *path); /* there is an index for this name */
/* Reads type and counts from the index at file->index_fd and checks every entry against the .bin: sequences are contiguous
 * and fill it, documents ascend. */
PD_MUST_USE pd_status pd_megatron_index_open(struct pd_token_file *file, struct pd_error *err);
