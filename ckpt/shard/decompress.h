/* Locates and decodes chunks of an open compressed shard, for readers that read ahead.
 *
 *   threads  any, since the shard is not changed; a decoder belongs to one at a time
 *   memory   a decoder: zstd's, and the scratch that it borrows */
#pragma once

#include "ckpt/shard/shard.h"

struct pd_shard_chunk {
    uint64_t number;             /* in its box */
    uint64_t begin, bytes;       /* range of the box's data in this chunk */
    uint64_t whole_bytes;        /* decoded size, including the zeros after the data */
    uint64_t offset, page_bytes; /* file range of the stored bytes, in whole pages */
};
/* Finds the chunk with byte `at` of a chunked box. A higher `at` gives a later chunk, usually later in the file too. */
void pd_shard_chunk_at(const struct pd_shard *shard, uint32_t box, uint64_t at, struct pd_shard_chunk *ret_chunk);

struct pd_shard_decoder;
/* `scratch`: PD_SHARD_CHUNK_MAX bytes, borrowed for life. */
PD_MUST_USE pd_status pd_shard_decoder_new(void *scratch, struct pd_shard_decoder **ret_decoder, struct pd_error *err);
void pd_shard_decoder_free(struct pd_shard_decoder *decoder); /* NULL is fine */

/* Checks the digest of the stored bytes at `pages`, decompresses them into dst (whole_bytes), and checks the zeros. The
 * caller must verify blocks: nothing else covers the data of a chunk stored uncompressed.
 *   errors  PD_CORRUPT: it is damaged or was misread; names file, tensor, kind and chunk */
PD_MUST_USE pd_status pd_shard_chunk_decode(const struct pd_shard *shard, uint32_t box, const struct pd_shard_chunk *chunk,
                                            const void *pages, struct pd_shard_decoder *decoder, void *dst,
                                            struct pd_error *err);
/* Returns the shard's codec and the level it was written with; PD_CODEC_NONE if it is not compressed. */
struct pd_shard_codec pd_shard_codec_of(const struct pd_shard *shard);
/* Frees the chunks cached by pd_shard_read_blocks, 4 MiB; the next read allocates them again. */
void pd_shard_forget(struct pd_shard *shard);
