/* Byte shuffle and zstd, the two filters of compressed shards. They produce the bytes of HDF5's filters 2 (shuffle) and
 * 32015 (zstd), so any HDF5 tool with that plugin reads them.
 *
 * The same bytes, level and library version give the same result in every thread.
 *   threads  any; a pd_zstd belongs to one at a time
 *   source   Masui et al. 2015 on shuffling before a general compressor; https://github.com/aparamon/HDF5Plugin-Zstandard */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_ZSTD_FILTER 32015u /* as registered with the HDF Group */

/* dst gets byte 0 of all elements, then byte 1, ...; copies bytes after the last whole element. Buffers must not overlap. */
void pd_byte_shuffle(void *dst, const void *src, uint64_t bytes, uint32_t element_bytes);
void pd_byte_unshuffle(void *dst, const void *src, uint64_t bytes, uint32_t element_bytes);

struct pd_zstd; /* working memory of one thread */

const char *pd_zstd_version(void); /* "1.5.4": compressed bytes may differ between versions, decompressed bytes never do */
PD_MUST_USE pd_status pd_zstd_new(struct pd_zstd **ret_zstd, struct pd_error *err);
void pd_zstd_free(struct pd_zstd *zstd);                 /* NULL is fine */
uint64_t pd_zstd_heap_bytes(const struct pd_zstd *zstd); /* allocated so far */

/* Makes one frame that states its size. It starts a new block every `plane_bytes`, so each plane of a shuffled chunk gets
 * its own statistics; small chunks compress well only with that.
 *   ret_bytes  written to dst, or 0 if `capacity` is too small
 *   errors     PD_NO_MEMORY */
PD_MUST_USE pd_status pd_zstd_compress(struct pd_zstd *zstd, int level, void *dst, uint64_t capacity, const void *src,
                                       uint64_t bytes, uint64_t plane_bytes, uint64_t *ret_bytes, struct pd_error *err);
/* Continues a stream of frames; the input may arrive in any pieces.
 *   src_bytes, dst_bytes  in: available; out: consumed, produced
 *   ret_frame_ended       the consumed bytes end with a whole frame: a stream may end here
 *   errors                PD_CORRUPT, PD_NO_MEMORY (a window of up to 2 GiB, as the frame asks) */
PD_MUST_USE pd_status pd_zstd_decompress_some(struct pd_zstd *zstd, const void *src, uint64_t *src_bytes, void *dst,
                                              uint64_t *dst_bytes, bool *ret_frame_ended, struct pd_error *err);
/* Fills exactly `bytes`. PD_CORRUPT if src is not a frame of that size; dst may have changed. */
PD_MUST_USE pd_status pd_zstd_decompress(struct pd_zstd *zstd, void *dst, uint64_t bytes, const void *src,
                                         uint64_t src_bytes, struct pd_error *err);
