#include "trainer/data/byte_stream.h"

#include "ckpt/tensor/codec_zstd.h"
#include "trainer/data/data_file.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define STORED_BYTES (256u << 10)
#define FIRST_BYTES (16u << 10) /* enough to know what the file is: directories hold many */
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
    bool frame_ended;      /* the stored bytes so far end with a whole member or frame */
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

/* ---- decompression: takes of the stored bytes, makes up to *bytes; out: what it made ---- */

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

/* Zero bytes behind the last member fill up a tape's block; gzip passes over them too. */
static bool is_padding(const struct pd_byte_stream *s)
{
    if (!s->frame_ended || s->compression != PD_INPUT_GZIP) return false;
    for (size_t i = s->stored_at; i < s->stored_end; i++)
        if (s->stored[i]) return false;
    return true;
}

static pd_status end_early(const struct pd_byte_stream *s, struct pd_error *err)
{
    char word[512];
    pd_shell_word(s->path, word, sizeof word);
    PD_FAIL(err, PD_CORRUPT, "%s ends in the midst of its compressed data: it was cut off; copy it again (%s -t %s looks)",
            s->path, s->compression == PD_INPUT_GZIP ? "gzip" : "zstd", word);
}

/* Some bytes; none at the end. */
static pd_status take(struct pd_byte_stream *s, void *data, size_t *bytes, struct pd_error *err)
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
        PD_TRY(take(s, (char *)data + got, &more, err));
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

static pd_status begin(struct pd_byte_stream *s, struct pd_error *err)
{
    s->stored = malloc(s->file_bytes < STORED_BYTES ? s->file_bytes : STORED_BYTES);
    if (!s->stored) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read it", s->path);
    PD_TRY(refill(s, err));
    const size_t head = s->stored_end < PD_INPUT_HEAD_BYTES ? s->stored_end : PD_INPUT_HEAD_BYTES;
    const struct pd_input_kind outer = pd_input_kind_of(s->path, s->stored, head);
    if (is_compressed(outer)) s->compression = outer.form;
    PD_TRY(begin_decompression(s, err));
    PD_TRY(pd_byte_stream_read(s, s->head, sizeof s->head, &s->head_end, err));
    s->head_at = 0;
    s->kind = pd_input_kind_of(s->path, s->head, s->head_end);
    if (is_compressed(s->kind)) {
        static const struct pd_input_kind twice = {PD_INPUT_OTHER, "compressed twice", "unpack it once: gunzip or unzstd"};
        return pd_input_refuse(s->path, &twice, err);
    }
    return PD_OK;
}

pd_status pd_byte_stream_open(const char *path, struct pd_byte_stream **ret_stream, struct pd_error *err)
{
    struct pd_byte_stream *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read it", path);
    s->fd = -1;
    s->kind = (struct pd_input_kind){PD_INPUT_TEXT, "text", NULL};
    s->path = strdup(path);
    pd_status status = s->path ? pd_data_file_open(path, true, &s->fd, &s->file_bytes, err)
                               : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory to read it", path);
    if (!status && s->file_bytes) status = begin(s, err);
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
