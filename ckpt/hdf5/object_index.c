#include "ckpt/hdf5/object_index.h"

#include <string.h>

#define ENTRY_BYTES_MAX 20u     /* address, up to 8 bytes of size, filter mask */
#define PAGE_ENTRIES_MAX 1024u  /* entries under one checksum of the library */
#define HEADER_BYTES_MAX 65536u /* most bytes examined of an object header's first part */
#define BLOCK_FIXED_BYTES 14u   /* of an array's data block: signature, version, client, address of the header */
#define MESSAGE_LAYOUT 8u
#define INDEX_SINGLE 1u
#define INDEX_FIXED_ARRAY 3u
#define SINGLE_IS_FILTERED 2u
#define SINGLE_ENTRY_BYTES 20u /* size, filter mask, address: a different order than in arrays */

static uint64_t little(const unsigned char *data, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t b = 0; b < bytes; b++)
        value |= (uint64_t)data[b] << 8 * b;
    return value;
}

static void put_little(unsigned char *data, uint64_t value, uint32_t bytes)
{
    for (uint32_t b = 0; b < bytes; b++)
        data[b] = (unsigned char)(value >> 8 * b);
}

/* ---- the checksum of HDF5's metadata: lookup3, hashlittle() with initial value 0 (Jenkins 2006, public domain) ---- */

static uint32_t rotate(uint32_t x, int bits)
{
    return x << bits | x >> (32 - bits);
}

static void mix(uint32_t v[3])
{
    static const int bits[6] = {4, 6, 8, 16, 19, 4};
    for (int i = 0; i < 6; i++) {
        const int a = i % 3, b = (i + 1) % 3, c = (i + 2) % 3;
        v[a] -= v[c];
        v[a] ^= rotate(v[c], bits[i]);
        v[c] += v[b];
    }
}

static void mix_last(uint32_t v[3])
{
    static const int bits[7] = {14, 11, 25, 16, 4, 14, 24};
    for (int i = 0; i < 7; i++) {
        const int c = (i + 2) % 3, b = (i + 1) % 3;
        v[c] ^= v[b];
        v[c] -= rotate(v[b], bits[i]);
    }
}

static uint32_t checksum(const unsigned char *data, uint64_t bytes)
{
    const uint32_t first = 0xdeadbeef + (uint32_t)bytes;
    uint32_t v[3] = {first, first, first};
    for (; bytes > 12; data += 12, bytes -= 12) {
        for (int i = 0; i < 3; i++)
            v[i] += (uint32_t)little(data + 4 * i, 4);
        mix(v);
    }
    if (bytes == 0) return v[2];
    unsigned char last[12] = {0};
    memcpy(last, data, bytes);
    for (int i = 0; i < 3; i++)
        v[i] += (uint32_t)little(last + 4 * i, 4);
    mix_last(v);
    return v[2];
}

/* Writes the checksum of `data`, located at `at`, after it. */
static pd_status put_sealed(struct pd_h5_pages *pages, uint64_t at, unsigned char *data, uint64_t bytes,
                            struct pd_error *err)
{
    put_little(data + bytes, checksum(data, bytes), 4);
    return pd_h5_pages_write(pages, at, data, bytes + 4, err);
}

static bool is_sealed(const unsigned char *data, uint64_t bytes)
{
    return little(data + bytes, 4) == checksum(data, bytes);
}

/* ---- finding ---- */

/* Range of the messages in the first part of a version 2 object header: [*ret_begin, *ret_end). */
static bool header_extent(const unsigned char *head, uint32_t *ret_begin, uint64_t *ret_end)
{
    if (memcmp(head, "OHDR", 4) != 0 || head[4] != 2) return false;
    const unsigned flags = head[5], size_bytes = 1u << (flags & 3);
    uint32_t at = 6 + (flags & 0x20 ? 16u : 0) + (flags & 0x10 ? 4u : 0);
    const uint64_t bytes = little(head + at, size_bytes);
    *ret_begin = at + size_bytes;
    *ret_end = *ret_begin + bytes;
    return *ret_end + 4 <= HEADER_BYTES_MAX;
}

/* Finds the index of the layout message inside the header of `bytes` bytes. */
static bool find_layout(const unsigned char *data, uint32_t begin, uint64_t end, uint64_t *ret_at)
{
    const uint32_t head_bytes = data[5] & 4 ? 6 : 4; /* type, size, flags, and possibly the creation order */
    for (uint64_t at = begin; at + head_bytes <= end;) {
        const uint64_t bytes = little(data + at + 1, 2);
        if (data[at] == MESSAGE_LAYOUT) {
            const unsigned char *m =
                data + at + head_bytes; /* version, class, flags, rank, bytes of a dimension, dimensions */
            *ret_at = at + head_bytes + 5 + (uint64_t)m[3] * m[4];
            if (m[0] != 4 || m[1] != 2 || *ret_at + 10 > end) return false;
            return data[*ret_at] != INDEX_SINGLE || (m[2] & SINGLE_IS_FILTERED && *ret_at + 1 + SINGLE_ENTRY_BYTES <= end);
        }
        at += head_bytes + bytes;
    }
    return false;
}

static uint64_t page_bitmap_bytes(uint64_t count, uint64_t page_entries)
{
    const uint64_t page_count = (count + page_entries - 1) / page_entries;
    return count > page_entries ? (page_count + 7) / 8 : 0;
}

static bool find_array(const struct pd_h5_pages *pages, uint64_t at, uint64_t count, struct pd_h5_index *ret_index)
{
    unsigned char head[28], block[BLOCK_FIXED_BYTES];
    pd_h5_pages_read(pages, at, head, sizeof head);
    if (memcmp(head, "FAHD", 4) != 0 || head[5] != 1 || !is_sealed(head, 24)) return false;
    const uint64_t page_entries = head[7] < 32 ? UINT64_C(1) << head[7] : 0;
    *ret_index = (struct pd_h5_index){.at = little(head + 16, 8), .bytes = head[6], .count = count};
    if (little(head + 8, 8) != count || page_entries == 0 || page_entries > PAGE_ENTRIES_MAX || head[6] < 13 ||
        head[6] > ENTRY_BYTES_MAX)
        return false;
    pd_h5_pages_read(pages, ret_index->at, block, sizeof block);
    if (memcmp(block, "FADB", 4) != 0 || little(block + 6, 8) != at) return false;
    ret_index->entries_at = ret_index->at + BLOCK_FIXED_BYTES;
    if (count <= page_entries) return true;
    ret_index->page_entries = page_entries;
    ret_index->entries_at += page_bitmap_bytes(count, page_entries) + 4;
    return true;
}

static bool object_index_find(const struct pd_h5_pages *pages, uint64_t header, uint64_t count,
                              struct pd_h5_index *ret_index)
{
    unsigned char data[HEADER_BYTES_MAX];
    uint32_t begin = 0;
    uint64_t end = 0, at = 0;
    pd_h5_pages_read(pages, header, data, 64);
    if (!header_extent(data, &begin, &end)) return false;
    pd_h5_pages_read(pages, header, data, end + 4);
    if (!is_sealed(data, end) || !find_layout(data, begin, end, &at)) return false;
    if (data[at] == INDEX_FIXED_ARRAY) return find_array(pages, little(data + at + 2, 8), count, ret_index);
    *ret_index = (struct pd_h5_index){.at = header, .bytes = end, .count = count, .entries_at = header + at + 1};
    return data[at] == INDEX_SINGLE && count == 1;
}

pd_status pd_h5_index_find(const struct pd_h5_pages *pages, uint64_t header, uint64_t count, struct pd_h5_index *ret_index,
                           struct pd_error *err)
{
    struct pd_h5_index index;
    if (!object_index_find(pages, header, count, &index))
        PD_FAIL(err, PD_BUG, "HDF5 laid out the index of %llu chunks in a way that is not known here",
                (unsigned long long)count);
    *ret_index = index;
    return PD_OK;
}

/* ---- patching ---- */

static pd_status set_single(struct pd_h5_pages *pages, const struct pd_h5_index *index, const struct pd_h5_chunk *chunk,
                            struct pd_error *err)
{
    unsigned char data[HEADER_BYTES_MAX];
    pd_h5_pages_read(pages, index->at, data, index->bytes);
    unsigned char *entry = data + (index->entries_at - index->at);
    put_little(entry, chunk->bytes, 8);
    put_little(entry + 8, chunk->filter_mask, 4);
    put_little(entry + 12, chunk->offset, 8);
    return put_sealed(pages, index->at, data, index->bytes, err);
}

static void put_entries(unsigned char *data, const struct pd_h5_index *index, const struct pd_h5_chunk *chunks,
                        uint64_t count)
{
    const uint32_t size_bytes = (uint32_t)index->bytes - 12;
    for (uint64_t c = 0; c < count; c++, data += index->bytes) {
        put_little(data, chunks[c].offset, 8);
        put_little(data + 8, chunks[c].bytes, size_bytes);
        put_little(data + 8 + size_bytes, chunks[c].filter_mask, 4);
    }
}

pd_status pd_h5_index_set(struct pd_h5_pages *pages, const struct pd_h5_index *index, const struct pd_h5_chunk *chunks,
                          struct pd_error *err)
{
    unsigned char data[BLOCK_FIXED_BYTES + PAGE_ENTRIES_MAX * ENTRY_BYTES_MAX + 4];
    if (index->bytes > ENTRY_BYTES_MAX) return set_single(pages, index, chunks, err);
    if (!index->page_entries) { /* one checksum covers the block with all entries */
        pd_h5_pages_read(pages, index->at, data, BLOCK_FIXED_BYTES);
        put_entries(data + BLOCK_FIXED_BYTES, index, chunks, index->count);
        return put_sealed(pages, index->at, data, BLOCK_FIXED_BYTES + index->count * index->bytes, err);
    }
    uint64_t at = index->entries_at;
    for (uint64_t c = 0; c < index->count; c += index->page_entries) {
        const uint64_t left = index->count - c, count = left < index->page_entries ? left : index->page_entries;
        put_entries(data, index, chunks + c, count);
        PD_TRY(put_sealed(pages, at, data, count * index->bytes, err));
        at += index->page_entries * index->bytes + 4;
    }
    return PD_OK;
}

pd_status pd_h5_end_set(struct pd_h5_pages *pages, uint64_t end, struct pd_error *err)
{
    unsigned char data[48]; /* signature, version, sizes, flags; base, extension, end, root group; checksum */
    pd_h5_pages_read(pages, 0, data, sizeof data);
    if (memcmp(data, "\211HDF\r\n\032\n", 8) != 0 || data[8] < 2 || !is_sealed(data, 44))
        PD_FAIL(err, PD_BUG, "HDF5 laid out the superblock in a way that is not known here");
    put_little(data + 28, end, 8);
    return put_sealed(pages, 0, data, 44, err);
}
