/* Checksum of everything perdure writes: XXH3-64 (Collet, https://github.com/Cyan4973/xxHash) behind our own names.
 * One-shot and streaming results of the same bytes and seed are equal, on every machine.
 *   threads  any; a stream belongs to one thread at a time */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t pd_digest64(const void *data, size_t bytes, uint64_t seed);

/* The caller provides the storage; no destructor. Move it only before init or after finish. */
struct pd_digest_stream {
    _Alignas(64) unsigned char storage[576];
};

void pd_digest_stream_init(struct pd_digest_stream *stream, uint64_t seed);
void pd_digest_stream_add(struct pd_digest_stream *stream, const void *data, size_t bytes);
uint64_t pd_digest_stream_value(const struct pd_digest_stream *stream); /* of what was added so far */

/* Derives a seed from words such as (run, lineage, step, tensor, block): the digest of their little-endian bytes. */
uint64_t pd_digest_words(const uint64_t *words, size_t count, uint64_t seed);

/* CRC-32 (ISO 3309) of data that continues `crc`; begin with 0. ZIP archives and uploads to a bucket have it. */
uint32_t pd_crc32(uint32_t crc, const void *data, uint64_t bytes);
