/* Chunks of an open compressed shard, for who reads ahead: where their stored bytes lie, and what comes out of them.
 *
 *   threads  any, since a shard is only looked at; a decoder belongs to one at a time
 *   memory   a decoder: zstd's, and the scratch that it borrows */
#pragma once

#include "ckpt/shard/shard.h"

struct pd_shard_chunk {
    uint64_t number;             /* in its box */
    uint64_t begin, bytes;       /* of the box's data that it holds */
    uint64_t whole_bytes;        /* that decoding makes: zeros behind the data included */
    uint64_t offset, page_bytes; /* of the file: stored bytes, in whole pages */
};
/* The chunk that holds byte `at` of a box in chunks; chunks are ascending in `at`, and mostly in the file. */
void pd_shard_chunk_at(const struct pd_shard *shard, uint32_t box, uint64_t at, struct pd_shard_chunk *ret_chunk);

struct pd_shard_decoder;
/* `scratch`: PD_SHARD_CHUNK_MAX bytes, borrowed for life. */
PD_MUST_USE pd_status pd_shard_decoder_new(void *scratch, struct pd_shard_decoder **ret_decoder, struct pd_error *err);
void pd_shard_decoder_free(struct pd_shard_decoder *decoder); /* NULL is fine */

/* Checks the digest of what is stored at `pages`, decompresses it into dst (whole_bytes), and checks the zeros. Blocks are
 * the caller's to verify: of a chunk that is stored as it is nothing else covers the data.
 *   errors  PD_CORRUPT: it is damaged or was misread; names file, tensor, kind and chunk */
PD_MUST_USE pd_status pd_shard_chunk_decode(const struct pd_shard *shard, uint32_t box, const struct pd_shard_chunk *chunk,
                                            const void *pages, struct pd_shard_decoder *decoder, void *dst,
                                            struct pd_error *err);
/* How the shard is compressed, with the level that was asked for; PD_CODEC_NONE: it is not. */
struct pd_shard_codec pd_shard_codec_of(const struct pd_shard *shard);
/* Lets go of the chunks that pd_shard_read_blocks keeps, 4 MiB; it takes them anew when it needs them. */
void pd_shard_forget(struct pd_shard *shard);
