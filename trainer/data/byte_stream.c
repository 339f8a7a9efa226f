#include "trainer/data/byte_stream.h"
#include "ckpt/tensor/codec_zstd.h"
#include "trainer/data/data_file.h"
#include "trainer/data/token_format.h"
#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* ---- detecting the kind of a file ---- */

struct signature {
    size_t offset, bytes;
    const char *magic;
    struct pd_input_kind kind;
};

#define MAGIC(offset, text) (offset), sizeof(text) - 1, (text)
/* If two begin alike, the longer one comes first. */
static const struct signature signatures[] = {
    {MAGIC(0, "\x1f\x8b\x08"), {PD_INPUT_GZIP, "compressed with gzip"}},
    {MAGIC(0, "\x28\xb5\x2f\xfd"), {PD_INPUT_ZSTD, "compressed with zstd"}},
    {MAGIC(1, "\x2a\x4d\x18"), {PD_INPUT_ZSTD, "compressed with zstd"}}, /* starts with a skippable frame */
    {MAGIC(0, "PAR1"), {PD_INPUT_OTHER, "a Parquet file"}},
    {MAGIC(0, "ARROW1"), {PD_INPUT_OTHER, "an Arrow file"}},
    {MAGIC(0, "\xff\xff\xff\xff"), {PD_INPUT_OTHER, "an Arrow stream"}},
    {MAGIC(0, "PK\x03\x04"), {PD_INPUT_OTHER, "a zip archive"}},
    {MAGIC(257, "ustar"), {PD_INPUT_OTHER, "a tar archive"}},
    {MAGIC(4, "1AY&SY"), {PD_INPUT_OTHER, "compressed with bzip2"}},
    {MAGIC(0, "\xfd"
              "7zXZ"),
     {PD_INPUT_OTHER, "compressed with xz"}},
    {MAGIC(0, "\x04\x22\x4d\x18"), {PD_INPUT_OTHER, "compressed with lz4"}},
    {MAGIC(0, "7z\xbc\xaf"), {PD_INPUT_OTHER, "a 7z archive"}},
    {MAGIC(0, "\xff\xfe\0\0"), {PD_INPUT_OTHER, "text in UTF-32"}},
    {MAGIC(0, "\0\0\xfe\xff"), {PD_INPUT_OTHER, "text in UTF-32"}},
    {MAGIC(0, "\xff\xfe"), {PD_INPUT_OTHER, "text in UTF-16"}},
    {MAGIC(0, "\xfe\xff"), {PD_INPUT_OTHER, "text in UTF-16"}},
    {MAGIC(0, "\x93NUMPY"), {PD_INPUT_OTHER, "an array of NumPy"}},
    {MAGIC(0, "\x89HDF"), {PD_INPUT_OTHER, "an HDF5 file"}},
    {MAGIC(0, "%PDF-"), {PD_INPUT_OTHER, "a PDF"}},
    {MAGIC(0, "SQLite format 3"), {PD_INPUT_OTHER, "an SQLite database"}},
};

static bool ends_with(const char *text, size_t length, const char *end)
{
    const size_t bytes = strlen(end);
    return length >= bytes && strncmp(text + length - bytes, end, bytes) == 0;
}

/* The name's length without a compressor's suffix. */
static size_t bare_length(const char *path)
{
    const size_t length = strlen(path);
    return ends_with(path, length, ".gz") ? length - 3 : ends_with(path, length, ".zst") ? length - 4 : length;
}

static bool is_tokens(const char *path, const unsigned char *head, size_t bytes)
{
    uint32_t magic = 0;
    if (bytes >= sizeof magic) memcpy(&magic, head, sizeof magic);
    magic = le32toh(magic);
    return magic == PD_LLMC_MAGIC_U16 || magic == PD_LLMC_MAGIC_U32 || ends_with(path, strlen(path), ".bin");
}

/* { or [ and then what JSON allows next: written text hardly ever begins so. */
static struct pd_input_kind json_or_text(const char *path, size_t length, const unsigned char *head, size_t bytes)
{
    static const struct pd_input_kind text = {PD_INPUT_TEXT, "text"}, lines = {PD_INPUT_JSON_LINES, "JSON lines"},
                                      array = {PD_INPUT_DOUBTFUL, "one JSON array, not JSON lines (jq -c '.[]' makes them)"},
                                      value = {PD_INPUT_DOUBTFUL,
                                               "one JSON value over several lines (jq -c . makes it one)"};
    if (bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0) head += 3, bytes -= 3;
    size_t at = 0;
    while (at < bytes && strchr(" \t\r\n", head[at]))
        at++;
    const unsigned char opener = at < bytes ? head[at++] : 0;
    const size_t inside = at;
    while (at < bytes && head[at] && strchr(" \t\r\n", head[at]))
        at++;
    const unsigned char next = at < bytes ? head[at] : 0;
    const bool broken = memchr(head + inside, '\n', at - inside) != NULL;
    const bool named = ends_with(path, length, ".jsonl") || ends_with(path, length, ".ndjson");
    if (opener == '[' && (next == '{' || (named && next))) return array;
    if (opener == '{' && next == '"') return broken ? value : lines;
    return named ? lines : text;
}

static size_t count_zeros(const unsigned char *head, size_t bytes)
{
    size_t zeros = 0;
    for (size_t i = 0; i < bytes; i++)
        zeros += head[i] == 0;
    return zeros;
}

/* head (bytes): the start of the file, or of its decompressed content; all of a file shorter than PD_INPUT_HEAD_BYTES. */
static struct pd_input_kind input_kind_of(const char *path, const unsigned char *head, size_t bytes)
{
    const size_t length = bare_length(path);
    /* First, because tokens may begin like anything. */
    if (is_tokens(path, head, bytes)) return (struct pd_input_kind){PD_INPUT_TOKENS, "a token file"};
    for (size_t i = 0; i < sizeof signatures / sizeof signatures[0]; i++) {
        const struct signature *s = &signatures[i];
        if (bytes >= s->offset + s->bytes && memcmp(head + s->offset, s->magic, s->bytes) == 0) return s->kind;
    }
    if (ends_with(path, length, ".idx")) return (struct pd_input_kind){PD_INPUT_OTHER, "the index of a token file"};
    const size_t zeros = count_zeros(head, bytes);
    const bool is_named_text = ends_with(path, length, ".txt");
    if (is_named_text && zeros > bytes / 4) return (struct pd_input_kind){PD_INPUT_OTHER, "text in UTF-16, it seems"};
    if (zeros && !is_named_text) return (struct pd_input_kind){PD_INPUT_DOUBTFUL, "not text: it has zero bytes"};
    return json_or_text(path, length, head, bytes);
}

pd_status pd_input_refuse(const char *path, const char *what, struct pd_error *err)
{
    PD_FAIL(
        err, PD_INVALID,
        "%s is %s; give text in UTF-8 or JSON lines, which data pack also reads compressed with gzip or zstd, or a token "
        "file and its format",
        path, what);
}

/* ---- its bytes ---- */

#define STORED_BYTES (256u << 10)
#define FIRST_BYTES (16u << 10) /* enough to detect the kind: a directory may hold many files */
#define GZIP_WINDOW (15 + 16)   /* the largest window, and gzip's header */

struct pd_byte_stream {
    char *path;
    int fd;
    uint64_t file_bytes, taken;
    enum pd_input_form compression;
    struct pd_input_kind kind;
    struct pd_zstd *zstd;
    z_stream gzip;
    bool has_gzip;
    bool frame_ended;      /* the stored bytes so far end with a complete member or frame */
    unsigned char *stored; /* (STORED_BYTES, or the file's) read and not yet decompressed: [stored_at, stored_end) */
    size_t stored_at, stored_end;
    unsigned char head[PD_INPUT_HEAD_BYTES]; /* decompressed and not yet given: [head_at, head_end) */
    size_t head_at, head_end;
};

static pd_status refill(struct pd_byte_stream *s, struct pd_error *err)
{
    const uint64_t left = s->file_bytes - s->taken;
    const size_t most = s->taken ? STORED_BYTES : FIRST_BYTES, bytes = left < most ? (size_t)left : most;
    PD_TRY(pd_data_file_read(s->fd, s->path, s->taken, s->stored, bytes, err));
    s->taken += bytes;
    s->stored_at = 0;
    s->stored_end = bytes;
    return PD_OK;
}

/* ---- decompression: consumes stored bytes, produces up to *bytes; out: the number produced ---- */

static pd_status take_gzip(struct pd_byte_stream *s, void *data, size_t *bytes, struct pd_error *err)
{
    const size_t there = s->stored_end - s->stored_at;
    if (s->frame_ended && inflateReset(&s->gzip) != Z_OK) PD_FAIL(err, PD_BUG, "zlib does not begin anew");
    s->gzip.next_in = s->stored + s->stored_at;
    s->gzip.avail_in = (uInt)there;
    s->gzip.next_out = data;
    s->gzip.avail_out = (uInt)*bytes;
    const int code = inflate(&s->gzip, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) PD_FAIL(err, PD_NO_MEMORY, "no memory to decompress");
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
        PD_FAIL(err, PD_CORRUPT, "gzip: %s", s->gzip.msg ? s->gzip.msg : "damaged");
    s->stored_at += there - s->gzip.avail_in;
    *bytes -= s->gzip.avail_out;
    s->frame_ended = code == Z_STREAM_END;
    return PD_OK;
}

static pd_status take_zstd(struct pd_byte_stream *s, void *data, size_t *bytes, struct pd_error *err)
{
    uint64_t taken = s->stored_end - s->stored_at, made = *bytes;
    PD_TRY(pd_zstd_decompress_some(s->zstd, s->stored + s->stored_at, &taken, data, &made, &s->frame_ended, err));
    s->stored_at += taken;
    *bytes = made;
    return PD_OK;
}

/* Zero bytes after the last member pad a tape block; gzip skips them too. */
static bool is_padding(const struct pd_byte_stream *s)
{
    if (!s->frame_ended || s->compression != PD_INPUT_GZIP) return false;
    for (size_t i = s->stored_at; i < s->stored_end; i++)
        if (s->stored[i]) return false;
    return true;
}

static pd_status end_early(const struct pd_byte_stream *s, struct pd_error *err)
{
    PD_FAIL(err, PD_CORRUPT, "%s ends in the middle of its compressed data: it was cut off; copy it again (%s -t %s looks)",
            s->path, s->compression == PD_INPUT_GZIP ? "gzip" : "zstd", s->path);
}

/* Some bytes; none at the end. */
static pd_status byte_stream_take(struct pd_byte_stream *s, void *data, size_t *bytes, struct pd_error *err)
{
    for (size_t made = 0;; made = 0) {
        if (s->stored_at == s->stored_end && s->taken < s->file_bytes) PD_TRY(refill(s, err));
        const bool at_end = s->stored_at == s->stored_end;
        if (at_end && s->compression == PD_INPUT_TEXT) break;
        if (s->compression == PD_INPUT_TEXT) {
            made = s->stored_end - s->stored_at < *bytes ? s->stored_end - s->stored_at : *bytes;
            memcpy(data, s->stored + s->stored_at, made);
            s->stored_at += made;
        } else {
            if ((at_end && s->frame_ended) || is_padding(s)) {
                s->stored_at = s->stored_end;
                if (s->taken < s->file_bytes) continue;
                break;
            }
            made = *bytes;
            pd_status status = (s->has_gzip ? take_gzip : take_zstd)(s, data, &made, err);
            if (status) return pd_error_context(err, status, "%s, before byte %" PRIu64, s->path, s->taken);
            if (at_end && !made && !s->frame_ended) return end_early(s, err);
        }
        if (!made) continue;
        *bytes = made;
        return PD_OK;
    }
    *bytes = 0;
    return PD_OK;
}

pd_status pd_byte_stream_read(struct pd_byte_stream *s, void *data, size_t bytes, size_t *ret_got, struct pd_error *err)
{
    const size_t held = s->head_end - s->head_at;
    size_t got = held < bytes ? held : bytes;
    memcpy(data, s->head + s->head_at, got);
    s->head_at += got;
    while (got < bytes) {
        size_t more = bytes - got < UINT32_MAX ? bytes - got : UINT32_MAX; /* zlib counts in 32 bits */
        PD_TRY(byte_stream_take(s, (char *)data + got, &more, err));
        if (!more) break;
        got += more;
    }
    *ret_got = got;
    return PD_OK;
}

/* ---- opening ---- */

static pd_status begin_decompression(struct pd_byte_stream *s, struct pd_error *err)
{
    if (s->compression == PD_INPUT_ZSTD) return pd_zstd_new(&s->zstd, err);
    if (s->compression != PD_INPUT_GZIP) return PD_OK;
    if (inflateInit2(&s->gzip, GZIP_WINDOW) != Z_OK) PD_FAIL(err, PD_NO_MEMORY, "no memory to decompress");
    s->has_gzip = true;
    return PD_OK;
}

static bool is_compressed(struct pd_input_kind kind)
{
    return kind.form == PD_INPUT_GZIP || kind.form == PD_INPUT_ZSTD;
}

static pd_status byte_stream_begin(struct pd_byte_stream *s, struct pd_error *err)
{
    s->stored = malloc(s->file_bytes < STORED_BYTES ? s->file_bytes : STORED_BYTES);
    if (!s->stored) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read it", s->path);
    PD_TRY(refill(s, err));
    const size_t head = s->stored_end < PD_INPUT_HEAD_BYTES ? s->stored_end : PD_INPUT_HEAD_BYTES;
    const struct pd_input_kind outer = input_kind_of(s->path, s->stored, head);
    if (is_compressed(outer)) s->compression = outer.form;
    PD_TRY(begin_decompression(s, err));
    PD_TRY(pd_byte_stream_read(s, s->head, sizeof s->head, &s->head_end, err));
    s->head_at = 0;
    s->kind = input_kind_of(s->path, s->head, s->head_end);
    if (is_compressed(s->kind)) {
        return pd_input_refuse(s->path, "compressed twice", err);
    }
    return PD_OK;
}

pd_status pd_byte_stream_open(const char *path, struct pd_byte_stream **ret_stream, struct pd_error *err)
{
    struct pd_byte_stream *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read it", path);
    s->fd = -1;
    s->kind = (struct pd_input_kind){PD_INPUT_TEXT, "text"};
    s->path = strdup(path);
    pd_status status = s->path ? pd_data_file_open(path, true, &s->fd, &s->file_bytes, err)
                               : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory to read it", path);
    if (!status && s->file_bytes) status = byte_stream_begin(s, err);
    if (status) {
        pd_byte_stream_close(s);
        return status;
    }
    *ret_stream = s;
    return PD_OK;
}

void pd_byte_stream_close(struct pd_byte_stream *s)
{
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    if (s->has_gzip) inflateEnd(&s->gzip);
    pd_zstd_free(s->zstd);
    free(s->stored);
    free(s->path);
    free(s);
}

struct pd_input_kind pd_byte_stream_kind(const struct pd_byte_stream *s)
{
    return s->kind;
}

enum pd_input_form pd_byte_stream_compression(const struct pd_byte_stream *s)
{
    return s->compression;
}

uint64_t pd_byte_stream_taken(const struct pd_byte_stream *s)
{
    return s->taken - (s->stored_end - s->stored_at);
}

bool pd_byte_stream_drop_mark(struct pd_byte_stream *s)
{
    const bool is_marked = s->head_at == 0 && s->head_end >= 3 && memcmp(s->head, "\xef\xbb\xbf", 3) == 0;
    if (is_marked) s->head_at = 3;
    return is_marked;
}
