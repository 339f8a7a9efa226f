#include "ckpt/tensor/codec_zstd.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

/* ---- shuffle ---- */

/* With -O3 and a known width the compiler vectorises these loops. */
static inline __attribute__((always_inline)) void shuffle(unsigned char *restrict dst, const unsigned char *restrict src,
                                                          uint64_t count, uint32_t width)
{
    for (uint64_t i = 0; i < count; i++)
        for (uint32_t b = 0; b < width; b++)
            dst[b * count + i] = src[i * width + b];
}

static inline __attribute__((always_inline)) void unshuffle(unsigned char *restrict dst, const unsigned char *restrict src,
                                                            uint64_t count, uint32_t width)
{
    for (uint64_t i = 0; i < count; i++)
        for (uint32_t b = 0; b < width; b++)
            dst[i * width + b] = src[b * count + i];
}

void pd_byte_shuffle(void *dst, const void *src, uint64_t bytes, uint32_t element_bytes)
{
    const uint64_t count = bytes / element_bytes, whole = count * element_bytes;
    if (element_bytes == 4)
        shuffle(dst, src, count, 4);
    else if (element_bytes == 2)
        shuffle(dst, src, count, 2);
    else
        shuffle(dst, src, count, element_bytes);
    memcpy((char *)dst + whole, (const char *)src + whole, bytes - whole);
}

void pd_byte_unshuffle(void *dst, const void *src, uint64_t bytes, uint32_t element_bytes)
{
    const uint64_t count = bytes / element_bytes, whole = count * element_bytes;
    if (element_bytes == 4)
        unshuffle(dst, src, count, 4);
    else if (element_bytes == 2)
        unshuffle(dst, src, count, 2);
    else
        unshuffle(dst, src, count, element_bytes);
    memcpy((char *)dst + whole, (const char *)src + whole, bytes - whole);
}

/* ---- zstd ---- */

/* Exponents have few values in no order: short matches among them are chance, and cost more than coding the bytes. */
#define MATCH_BYTES_MIN 7

struct pd_zstd {
    ZSTD_CCtx *out; /* made when first used */
    ZSTD_DCtx *in;
};

const char *pd_zstd_version(void)
{
    return ZSTD_versionString();
}

pd_status pd_zstd_new(struct pd_zstd **ret_zstd, struct pd_error *err)
{
    struct pd_zstd *zstd = calloc(1, sizeof *zstd);
    if (!zstd) PD_FAIL(err, PD_NO_MEMORY, "no memory for zstd");
    *ret_zstd = zstd;
    return PD_OK;
}

void pd_zstd_free(struct pd_zstd *zstd)
{
    if (!zstd) return;
    ZSTD_freeCCtx(zstd->out);
    ZSTD_freeDCtx(zstd->in);
    free(zstd);
}

uint64_t pd_zstd_heap_bytes(const struct pd_zstd *zstd)
{
    return sizeof *zstd + ZSTD_sizeof_CCtx(zstd->out) + ZSTD_sizeof_DCtx(zstd->in);
}

/* Returns 0 on success, else zstd's own error, or that dst is too small. */
static size_t compress_planes(ZSTD_CCtx *out, ZSTD_outBuffer *dst, const void *src, uint64_t bytes, uint64_t plane_bytes)
{
    ZSTD_inBuffer in = {src, 0, 0};
    for (;;) {
        in.size = bytes - in.size > plane_bytes ? in.size + plane_bytes : bytes;
        const bool is_last = in.size == bytes;
        const size_t left = ZSTD_compressStream2(out, dst, &in, is_last ? ZSTD_e_end : ZSTD_e_flush);
        if (ZSTD_isError(left)) return left;
        if (left) return (size_t)-ZSTD_error_dstSize_tooSmall;
        if (is_last) return 0;
    }
}

pd_status pd_zstd_compress(struct pd_zstd *zstd, int level, void *dst, uint64_t capacity, const void *src, uint64_t bytes,
                           uint64_t plane_bytes, uint64_t *ret_bytes, struct pd_error *err)
{
    if (!zstd->out) zstd->out = ZSTD_createCCtx();
    if (!zstd->out) PD_FAIL(err, PD_NO_MEMORY, "no memory to compress");
    ZSTD_outBuffer output = {dst, capacity, 0};
    ZSTD_CCtx_reset(zstd->out, ZSTD_reset_session_only);
    ZSTD_CCtx_setParameter(zstd->out, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(zstd->out, ZSTD_c_minMatch, MATCH_BYTES_MIN);
    ZSTD_CCtx_setPledgedSrcSize(zstd->out, bytes);
    const size_t failed = compress_planes(zstd->out, &output, src, bytes, plane_bytes);
    const ZSTD_ErrorCode code = ZSTD_getErrorCode(failed);
    if (failed && code != ZSTD_error_dstSize_tooSmall)
        PD_FAIL(err, code == ZSTD_error_memory_allocation ? PD_NO_MEMORY : PD_BUG, "zstd, level %d: %s", level,
                ZSTD_getErrorName(failed));
    *ret_bytes = failed ? 0 : output.pos;
    return PD_OK;
}

#define WINDOW_LOG_MAX 31 /* as zstd --long=31, used to publish large text collections */

pd_status pd_zstd_decompress_some(struct pd_zstd *zstd, const void *src, uint64_t *src_bytes, void *dst, uint64_t *dst_bytes,
                                  bool *ret_frame_ended, struct pd_error *err)
{
    if (!zstd->in) {
        zstd->in = ZSTD_createDCtx();
        if (!zstd->in) PD_FAIL(err, PD_NO_MEMORY, "no memory to decompress");
        ZSTD_DCtx_setParameter(zstd->in, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
    }
    ZSTD_inBuffer in = {src, *src_bytes, 0};
    ZSTD_outBuffer out = {dst, *dst_bytes, 0};
    const size_t left = ZSTD_decompressStream(zstd->in, &out, &in);
    if (ZSTD_isError(left))
        PD_FAIL(err, ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation ? PD_NO_MEMORY : PD_CORRUPT, "zstd: %s",
                ZSTD_getErrorName(left));
    *src_bytes = in.pos;
    *dst_bytes = out.pos;
    *ret_frame_ended = left == 0;
    return PD_OK;
}

pd_status pd_zstd_decompress(struct pd_zstd *zstd, void *dst, uint64_t bytes, const void *src, uint64_t src_bytes,
                             struct pd_error *err)
{
    if (!zstd->in) zstd->in = ZSTD_createDCtx();
    if (!zstd->in) PD_FAIL(err, PD_NO_MEMORY, "no memory to decompress");
    const size_t made = ZSTD_decompressDCtx(zstd->in, dst, bytes, src, src_bytes);
    if (ZSTD_isError(made)) PD_FAIL(err, PD_CORRUPT, "zstd: %s", ZSTD_getErrorName(made));
    if (made != bytes)
        PD_FAIL(err, PD_CORRUPT, "zstd: %llu bytes came out of a frame where %llu are expected", (unsigned long long)made,
                (unsigned long long)bytes);
    return PD_OK;
}
