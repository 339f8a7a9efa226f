#include "trainer/data/token_file.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/regular_file.h"
#include "ckpt/base/words.h"
#include "trainer/data/data_file.h"
#include "trainer/data/input_list.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/token_format.h"
#include "trainer/data/token_loss.h"
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- cached scan results ---- */

#define KEY_WORDS 19u
#define RECORDS_MAX 65536u
#define SETTLED_NS UINT64_C(1000000000) /* a file changed more recently may change again within one tick of its timestamps */

struct record {
    uint64_t key[KEY_WORDS];
    struct pd_token_scan scan;
    uint64_t check; /* of everything before it, to detect a torn record */
};

struct pd_scan_cache {
    int fd;          /* -1: nothing is kept */
    bool is_partial; /* a scan failed: keep other files' records */
    struct record *known, *used;
    uint32_t known_count, used_count;
};

static uint64_t check_of(const struct record *record)
{
    return pd_digest64(record, offsetof(struct record, check), 1);
}

static void read_known(struct pd_scan_cache *cache)
{
    struct stat st;
    if (fstat(cache->fd, &st) || st.st_size <= 0) return;
    const uint64_t count = (uint64_t)st.st_size / sizeof *cache->known;
    if (count > RECORDS_MAX || !(cache->known = calloc(count + 1, sizeof *cache->known))) return;
    const ssize_t got = pread(cache->fd, cache->known, count * sizeof *cache->known, 0);
    if (got > 0) cache->known_count = (uint32_t)((size_t)got / sizeof *cache->known);
}

struct pd_scan_cache *pd_scan_cache_open(const char *path)
{
    struct pd_scan_cache *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    if (!path || pd_regular_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, &cache->fd)) cache->fd = -1;
    if (cache->fd < 0) return cache;
    while (flock(cache->fd, LOCK_EX) && errno == EINTR) /* without locks all scan at once, as without a cache */
        ;
    read_known(cache);
    return cache;
}

static uint64_t nanoseconds(struct timespec t)
{
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* False: it cannot be recognised again. */
static bool token_file_key_of(const struct pd_token_file *file, uint64_t key[KEY_WORDS])
{
    struct timespec now;
    struct stat st;
    const int fds[] = {file->fd, file->index_fd, file->loss_fd};
    memset(key, 0, KEY_WORDS * sizeof *key);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < 3; i++) {
        if (fds[i] < 0) continue;
        if (fstat(fds[i], &st)) return false;
        const uint64_t words[] = {st.st_dev, st.st_ino, (uint64_t)st.st_size, nanoseconds(st.st_mtim),
                                  nanoseconds(st.st_ctim)};
        memcpy(key + 5 * i, words, sizeof words);
        if (nanoseconds(now) < nanoseconds(st.st_ctim) + SETTLED_NS) return false;
    }
    key[15] = file->format;
    key[16] = file->type;
    key[17] = file->data_offset;
    key[18] = file->token_count;
    return true;
}

static const struct record *token_file_find(const struct pd_scan_cache *cache, const uint64_t key[KEY_WORDS])
{
    for (uint32_t i = 0; i < cache->known_count; i++)
        if (!memcmp(cache->known[i].key, key, sizeof cache->known[i].key) &&
            check_of(&cache->known[i]) == cache->known[i].check)
            return &cache->known[i];
    return NULL;
}

/* Searches again for tokens outside the vocabulary, to name the first in the error. */
static bool serves(const struct record *record, uint32_t vocab)
{
    return record && (!vocab || (record->scan.min >= 0 && record->scan.max < (int64_t)vocab));
}

pd_status pd_scan_cache_scan(struct pd_scan_cache *cache, const struct pd_token_file *file, uint32_t vocab,
                             struct pd_thread_pool *pool, struct pd_token_scan *ret_scan, struct pd_error *err)
{
    struct record record = {0};
    uint64_t after[KEY_WORDS];
    bool is_settled = cache && cache->fd >= 0 && token_file_key_of(file, record.key);
    const struct record *known = is_settled ? token_file_find(cache, record.key) : NULL;
    if (serves(known, vocab)) {
        record.scan = known->scan;
    } else {
        const pd_status st = pd_token_file_scan(file, vocab, pool, &record.scan, err);
        if (st && cache) cache->is_partial = true;
        PD_TRY(st);
        is_settled = is_settled && token_file_key_of(file, after) && !memcmp(after, record.key, sizeof after);
    }
    *ret_scan = record.scan;
    record.check = check_of(&record);
    if (is_settled && pd_grow(&cache->used, cache->used_count, sizeof *cache->used))
        cache->used[cache->used_count++] = record;
    return PD_OK;
}

/* A failure here only costs the next start a scan. */
void pd_scan_cache_close(struct pd_scan_cache *cache)
{
    if (!cache) return;
    const size_t bytes = cache->used_count * sizeof *cache->used;
    const bool is_same = cache->used_count == cache->known_count && (!bytes || !memcmp(cache->used, cache->known, bytes));
    if (cache->fd >= 0 && !is_same && !cache->is_partial && pwrite(cache->fd, cache->used, bytes, 0) == (ssize_t)bytes)
        (void)!ftruncate(cache->fd, (off_t)bytes);
    if (cache->fd >= 0) close(cache->fd);
    free(cache->known);
    free(cache->used);
    free(cache);
}

/* ---- a file of tokens ---- */

#define SCAN_BLOCK_BYTES (4ull << 20) /* digested on its own, so that blocks can be read side by side */
#define SCAN_PIECE_BYTES (64u << 10)  /* stays in the nearest cache between reading, digesting and looking */

const char *pd_data_format_name(enum pd_data_format format)
{
    static const char *const names[] = {
        [PD_DATA_AUTO] = "auto", [PD_DATA_TEXT] = "text",         [PD_DATA_NANOGPT] = "nanogpt",
        [PD_DATA_LLMC] = "llmc", [PD_DATA_MEGATRON] = "megatron",
    };
    PD_CHECK((unsigned)format < sizeof names / sizeof names[0]);
    return names[format];
}

/* ---- opening ---- */

static bool is_llmc_magic(uint32_t magic)
{
    return magic == PD_LLMC_MAGIC_U16 || magic == PD_LLMC_MAGIC_U32;
}

static pd_status guess_format(struct pd_token_file *file, struct pd_error *err)
{
    uint32_t magic = 0;
    if (file->file_bytes >= sizeof magic) {
        PD_TRY(pd_data_file_read(file->fd, file->path, 0, &magic, sizeof magic, err));
        magic = le32toh(magic);
    }
    if (is_llmc_magic(magic)) {
        file->format = PD_DATA_LLMC;
    } else if (pd_ends_with(file->path, ".bin")) {
        file->format = PD_DATA_NANOGPT;
    } else {
        file->format = PD_DATA_TEXT;
    }
    return PD_OK;
}

static pd_status open_nanogpt(struct pd_token_file *file, struct pd_error *err)
{
    file->type = PD_TOKEN_U16;
    if (file->file_bytes % 2)
        PD_FAIL(err, PD_INVALID,
                "%s has %" PRIu64 " bytes, an odd number: tokens of nanoGPT have two each; the file is truncated or "
                "of another format",
                file->path, file->file_bytes);
    uint32_t magic = 0;
    if (file->file_bytes >= sizeof magic) PD_TRY(pd_data_file_read(file->fd, file->path, 0, &magic, sizeof magic, err));
    if (is_llmc_magic(le32toh(magic)))
        PD_FAIL(err, PD_INVALID, "%s begins with the header of llm.c and not with tokens; write `format: llmc`", file->path);
    file->token_count = file->file_bytes / 2;
    return PD_OK;
}

static pd_status open_llmc(struct pd_token_file *file, struct pd_error *err)
{
    uint32_t header[3];
    const char *path = file->path;
    if (file->file_bytes < PD_LLMC_HEADER_BYTES)
        PD_FAIL(err, PD_INVALID,
                "%s has %" PRIu64 " bytes, less than the header of llm.c (%u): truncated or of another format", path,
                file->file_bytes, PD_LLMC_HEADER_BYTES);
    PD_TRY(pd_data_file_read(file->fd, path, 0, header, sizeof header, err));
    uint32_t magic = le32toh(header[0]), version = le32toh(header[1]), count = le32toh(header[2]);
    if (!is_llmc_magic(magic))
        PD_FAIL(err, PD_INVALID, "%s: its first word %" PRIu32 " is not a magic of llm.c", path, magic);
    bool wide = magic == PD_LLMC_MAGIC_U32;
    if (version != (wide ? PD_LLMC_VERSION_U32 : PD_LLMC_VERSION_U16))
        PD_FAIL(err, PD_INVALID, "%s: version %" PRIu32 " of llm.c is not known for magic %" PRIu32 "; %u is", path, version,
                magic, wide ? PD_LLMC_VERSION_U32 : PD_LLMC_VERSION_U16);
    file->type = wide ? PD_TOKEN_U32 : PD_TOKEN_U16;
    file->data_offset = PD_LLMC_HEADER_BYTES;
    uint64_t expected = PD_LLMC_HEADER_BYTES + (uint64_t)count * pd_token_bytes(file->type);
    if (file->file_bytes != expected)
        PD_FAIL(err, PD_INVALID,
                "%s has %" PRIu64 " bytes and its header promises %" PRIu32 " tokens, which take %" PRIu64 ": %s", path,
                file->file_bytes, count, expected,
                file->file_bytes < expected ? "truncated" : "damaged or of another version");
    file->token_count = count;
    return PD_OK;
}

static pd_status open_text(struct pd_token_file *file, enum pd_data_format asked, struct pd_error *err)
{
    unsigned char head[3];
    PD_TRY(pd_source_check_text(file->path, asked, NULL, err));
    if (file->file_bytes >= sizeof head) {
        PD_TRY(pd_data_file_read(file->fd, file->path, 0, head, sizeof head, err));
        if (memcmp(head, "\xef\xbb\xbf", sizeof head) == 0) file->data_offset = sizeof head;
    }
    file->type = PD_TOKEN_U8;
    file->token_count = file->file_bytes - file->data_offset;
    return PD_OK;
}

static pd_status open_as(struct pd_token_file *file, struct pd_error *err)
{
    const enum pd_data_format asked = file->format;
    PD_TRY(pd_data_file_open(file->path, false, &file->fd, &file->file_bytes, err));
    if (file->format == PD_DATA_AUTO) PD_TRY(guess_format(file, err));
    switch (file->format) {
    case PD_DATA_NANOGPT:
        return open_nanogpt(file, err);
    case PD_DATA_LLMC:
        return open_llmc(file, err);
    case PD_DATA_MEGATRON:
        pd_status status = pd_data_file_open(file->index_path, false, &file->index_fd, &file->index_bytes, err);
        if (status) return pd_error_context(err, status, "the index of %s", file->path);
        PD_TRY(pd_megatron_index_open(file, err));
        file->token_count = file->file_bytes / pd_token_bytes(file->type);
        return PD_OK;
    default:
        return open_text(file, asked, err);
    }
}

pd_status pd_token_file_open(const char *path, enum pd_data_format format, struct pd_token_file *ret_file,
                             struct pd_error *err)
{
    struct pd_token_file file = {.format = format, .fd = -1, .index_fd = -1, .loss_fd = -1};
    if (format == PD_DATA_AUTO && pd_megatron_is_pair(path)) file.format = PD_DATA_MEGATRON;
    if (file.format == PD_DATA_MEGATRON) {
        file.path = pd_megatron_path(path, ".bin");
        file.index_path = pd_megatron_path(path, ".idx");
    } else {
        file.path = strdup(path);
    }
    pd_status status = PD_OK;
    if (!file.path || (file.format == PD_DATA_MEGATRON && !file.index_path))
        status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory for its name", path);
    if (!status) status = open_as(&file, err);
    if (!status && file.token_count == 0)
        status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s holds no tokens", file.path);
    if (!status) status = pd_token_loss_open(&file, err);
    if (status) {
        pd_token_file_close(&file);
        return status;
    }
    *ret_file = file;
    return PD_OK;
}

void pd_token_file_close(struct pd_token_file *file)
{
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    if (file->index_fd >= 0) close(file->index_fd);
    if (file->loss_fd >= 0) close(file->loss_fd);
    free(file->path);
    free(file->index_path);
    *file = (struct pd_token_file){.fd = -1, .index_fd = -1, .loss_fd = -1};
}

/* ---- scanning ---- */

struct block {
    uint64_t digest;
    int64_t min, max;
    pd_status status;
};

struct scan {
    const struct pd_token_file *file;
    struct block *blocks;
};

static pd_status scan_block(const struct pd_token_file *file, uint64_t index, struct block *block, struct pd_error *err)
{
    _Alignas(64) unsigned char piece[SCAN_PIECE_BYTES];
    struct pd_digest_stream stream;
    uint64_t at = index * SCAN_BLOCK_BYTES, end = at + SCAN_BLOCK_BYTES;
    if (end > file->file_bytes) end = file->file_bytes;
    *block = (struct block){.min = INT64_MAX, .max = INT64_MIN};
    pd_digest_stream_init(&stream, index);
    while (at < end) {
        uint64_t bytes = end - at < sizeof piece ? end - at : sizeof piece;
        PD_TRY(pd_data_file_read(file->fd, file->path, at, piece, bytes, err));
        pd_digest_stream_add(&stream, piece, bytes);
        uint64_t header = at < file->data_offset ? file->data_offset - at : 0;
        if (header < bytes) {
            pd_token_range(file->type, piece + header, (bytes - header) / pd_token_bytes(file->type), &block->min,
                           &block->max);
        }
        at += bytes;
    }
    block->digest = pd_digest_stream_value(&stream);
    return PD_OK;
}

static void scan_body(void *context, uint64_t index)
{
    struct scan *scan = context;
    scan->blocks[index].status = scan_block(scan->file, index, &scan->blocks[index], NULL);
}

/* The first token outside [0, vocab) in a block known to have one. */
static pd_status name_bad_token(const struct pd_token_file *file, uint32_t vocab, uint64_t block, struct pd_error *err)
{
    unsigned char piece[4096];
    uint32_t width = pd_token_bytes(file->type);
    uint64_t at = block * SCAN_BLOCK_BYTES;
    if (at < file->data_offset) at = file->data_offset;
    while (at < file->file_bytes) {
        uint64_t left = file->file_bytes - at, bytes = left < sizeof piece ? left : sizeof piece;
        PD_TRY(pd_data_file_read(file->fd, file->path, at, piece, bytes, err));
        for (uint64_t i = 0; i < bytes / width; i++) {
            int64_t token = pd_token_load(file->type, piece + i * width);
            if (token >= 0 && token < vocab) continue;
            uint64_t offset = at + i * width;
            PD_FAIL(err, PD_INVALID,
                    "%s: token %" PRId64 " at position %" PRIu64 " (byte %" PRIu64 ") is out of range: the model's "
                    "vocabulary has %" PRIu32 " (0 to %" PRIu32
                    "); use the tokenizer's vocabulary size in model.vocab, or check `format`",
                    file->path, token, (offset - file->data_offset) / width, offset, vocab, vocab - 1);
        }
        at += bytes;
    }
    PD_FAIL(err, PD_IO, "%s changed while it was read", file->path);
}

static pd_status digest_index(const struct pd_token_file *file, struct pd_digest_stream *stream, struct pd_error *err)
{
    unsigned char piece[SCAN_PIECE_BYTES];
    for (uint64_t at = 0; at < file->index_bytes;) {
        uint64_t left = file->index_bytes - at, bytes = left < sizeof piece ? left : sizeof piece;
        PD_TRY(pd_data_file_read(file->index_fd, file->index_path, at, piece, bytes, err));
        pd_digest_stream_add(stream, piece, bytes);
        at += bytes;
    }
    return PD_OK;
}

static pd_status combine_blocks(const struct pd_token_file *file, uint32_t vocab, const struct block *blocks, uint64_t count,
                                struct pd_token_scan *ret_scan, struct pd_error *err)
{
    struct pd_digest_stream stream;
    struct pd_token_scan scan = {.min = INT64_MAX, .max = INT64_MIN};
    struct block again;
    pd_digest_stream_init(&stream, file->file_bytes);
    for (uint64_t b = 0; b < count; b++) {
        if (blocks[b].status) {
            PD_TRY(scan_block(file, b, &again, err)); /* again, to describe the error */
            PD_FAIL(err, PD_IO, "%s: reading failed near byte %" PRIu64 " and then did not; check the disk", file->path,
                    (uint64_t)(b * SCAN_BLOCK_BYTES));
        }
        bool bad = vocab && blocks[b].min <= blocks[b].max && (blocks[b].min < 0 || blocks[b].max >= vocab);
        if (bad) return name_bad_token(file, vocab, b, err);
        if (blocks[b].min < scan.min) scan.min = blocks[b].min;
        if (blocks[b].max > scan.max) scan.max = blocks[b].max;
        pd_digest_stream_add(&stream, &blocks[b].digest, sizeof blocks[b].digest);
    }
    if (file->index_path) PD_TRY(digest_index(file, &stream, err));
    PD_TRY(pd_token_loss_scan(file, &stream, &scan.learned, err));
    scan.digest = pd_digest_stream_value(&stream);
    *ret_scan = scan;
    return PD_OK;
}

pd_status pd_token_file_scan(const struct pd_token_file *file, uint32_t vocab, struct pd_thread_pool *pool,
                             struct pd_token_scan *ret_scan, struct pd_error *err)
{
    uint64_t count = (file->file_bytes - 1) / SCAN_BLOCK_BYTES + 1;
    struct block *blocks = calloc(count, sizeof *blocks);
    if (!blocks) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to look through %" PRIu64 " blocks", file->path, count);
    struct scan scan = {file, blocks};
    pd_parallel(pool, count, scan_body, &scan);
    pd_status status = combine_blocks(file, vocab, blocks, count, ret_scan, err);
    free(blocks);
    return status;
}

/* ---- reading ---- */

pd_status pd_token_file_read(const struct pd_token_file *file, uint64_t start, uint32_t count, int32_t *tokens,
                             struct pd_error *err)
{
    PD_CHECK(pd_checked_range(start, count, file->token_count));
    unsigned char piece[16384];
    uint32_t width = pd_token_bytes(file->type);
    while (count) {
        uint32_t part = count < sizeof piece / width ? count : (uint32_t)(sizeof piece / width);
        PD_TRY(
            pd_data_file_read(file->fd, file->path, file->data_offset + start * width, piece, (uint64_t)part * width, err));
        pd_token_widen(file->type, piece, part, tokens);
        tokens += part;
        start += part;
        count -= part;
    }
    return PD_OK;
}
