/* Compressed files for the tests of data. */
#pragma once

#include "ckpt/tensor/codec_zstd.h"
#include "files.h"
#include <zlib.h>

/* One member of gzip, or one frame of zstd; malloc'ed. */
static inline unsigned char *gzipped(const void *data, size_t bytes, size_t *ret_bytes)
{
    z_stream z = {0};
    unsigned char *out = malloc(bytes + bytes / 1000 + 128);
    cr_assert_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)bytes;
    z.next_out = out;
    z.avail_out = (uInt)(bytes + bytes / 1000 + 128);
    cr_assert_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    *ret_bytes = z.total_out;
    deflateEnd(&z);
    return out;
}

static inline unsigned char *zstd_framed(const void *data, size_t bytes, size_t *ret_bytes)
{
    struct pd_zstd *zstd;
    const size_t capacity = bytes + bytes / 100 + 1024;
    unsigned char *out = malloc(capacity);
    uint64_t made;
    cr_assert_eq(pd_zstd_new(&zstd, NULL), PD_OK);
    cr_assert_eq(pd_zstd_compress(zstd, 3, out, capacity, data, bytes, 1u << 20, &made, NULL), PD_OK);
    pd_zstd_free(zstd);
    *ret_bytes = made;
    return out;
}

typedef unsigned char *(*compressor)(const void *, size_t, size_t *);

/* `parts` members or frames of equal size, the last `cut` bytes missing. */
static inline char *write_compressed(const char *name, compressor compress, const char *text, size_t bytes, unsigned parts,
                                     size_t cut)
{
    unsigned char *all = NULL;
    size_t total = 0;
    for (unsigned i = 0; i < parts; i++) {
        const size_t from = bytes * i / parts, to = bytes * (i + 1) / parts;
        size_t part;
        unsigned char *made = compress(text + from, to - from, &part);
        all = realloc(all, total + part);
        memcpy(all + total, made, part);
        total += part;
        free(made);
    }
    char *path = test_write(name, all, total - cut);
    free(all);
    return path;
}
