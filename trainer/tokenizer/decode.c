#include "trainer/tokenizer/parts.h"

#include "trainer/tokenizer/byte_level.h"
#include "trainer/tokenizer/unicode.h"

void pd_decoder_deinit(struct pd_decoder *decoder)
{
    for (uint32_t i = 0; i < decoder->count; i++) {
        pd_matcher_deinit(&decoder->steps[i].matcher);
        free(decoder->steps[i].content);
    }
    decoder->count = 0;
}

/* ---- pieces ---- */

void pd_pieces_deinit(struct pd_pieces *pieces)
{
    pd_string_deinit(&pieces->text);
    free(pieces->ends);
    *pieces = (struct pd_pieces){0};
}

/* The text added since the last piece becomes the next one. */
static pd_status end_piece(struct pd_pieces *pieces, struct pd_error *err)
{
    if (pieces->count == pieces->capacity) {
        const size_t capacity = 2 * pieces->capacity + 64;
        size_t *grown = realloc(pieces->ends, capacity * sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory to decode %zu tokens", pieces->count);
        pieces->ends = grown;
        pieces->capacity = capacity;
    }
    pieces->ends[pieces->count++] = pieces->text.count;
    return PD_OK;
}

pd_status pd_pieces_add(struct pd_pieces *pieces, const char *text, size_t bytes, struct pd_error *err)
{
    PD_TRY(pd_string_add(&pieces->text, text, bytes, err));
    return end_piece(pieces, err);
}

struct piece {
    const char *text;
    size_t bytes;
};

static struct piece piece_at(const struct pd_pieces *pieces, size_t index)
{
    const size_t start = index ? pieces->ends[index - 1] : 0;
    return (struct piece){pieces->text.bytes ? pieces->text.bytes + start : "", pieces->ends[index] - start};
}

/* ---- steps: in to out ---- */

static pd_status decode_byte_level(const struct pd_pieces *in, struct pd_pieces *out, struct pd_error *err)
{
    struct pd_string bytes = {0};
    pd_status status = PD_OK;
    for (size_t i = 0; !status && i < in->count; i++) {
        const struct piece piece = piece_at(in, i);
        bool all;
        status = pd_byte_level_decode(piece.text, piece.bytes, &bytes, &all, err);
        if (!status && !all) status = pd_string_add(&bytes, piece.text, piece.bytes, err);
    }
    if (!status && bytes.count) status = pd_unicode_repair(bytes.bytes, bytes.count, &out->text, err);
    pd_string_deinit(&bytes);
    return status ? status : end_piece(out, err);
}

static pd_status decode_replace(const struct pd_decoder_step *step, struct pd_pattern_scratch *patterns, size_t most,
                                const struct pd_pieces *in, struct pd_pieces *out, struct pd_error *err)
{
    for (size_t i = 0; i < in->count; i++) {
        const struct piece piece = piece_at(in, i);
        size_t start = SIZE_MAX, end;
        if (piece.bytes)
            PD_TRY(pd_matcher_replace(&step->matcher, patterns, piece.text, piece.bytes, step->content, most, &out->text,
                                      &start, &end, err));
        PD_TRY(start == SIZE_MAX ? pd_pieces_add(out, piece.text, piece.bytes, err) : end_piece(out, err));
    }
    return PD_OK;
}

static int hex_digit(char letter)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = letter ? strchr(digits, letter >= 'A' && letter <= 'F' ? letter + 32 : letter) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* The byte of <0xHH>; -1: not of this form. */
static int byte_of(struct piece piece)
{
    if (piece.bytes != 6 || memcmp(piece.text, "<0x", 3) != 0 || piece.text[5] != '>') return -1;
    if (piece.text[3] == '+') return hex_digit(piece.text[4]); /* Rust reads a sign */
    const int high = hex_digit(piece.text[3]), low = hex_digit(piece.text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* Consecutive bytes are text if they are UTF-8, else one U+FFFD each. */
static pd_status end_bytes(struct pd_string *bytes, struct pd_pieces *out, struct pd_error *err)
{
    if (!bytes->count) return PD_OK;
    const bool valid = pd_unicode_valid_bytes(bytes->bytes, bytes->count) == bytes->count;
    if (valid) PD_TRY(pd_pieces_add(out, bytes->bytes, bytes->count, err));
    for (size_t i = 0; !valid && i < bytes->count; i++)
        PD_TRY(pd_pieces_add(out, "\xef\xbf\xbd", 3, err));
    pd_string_cut(bytes, 0);
    return PD_OK;
}

static pd_status fall_back(const struct pd_pieces *in, struct pd_string *bytes, struct pd_pieces *out, struct pd_error *err)
{
    for (size_t i = 0; i < in->count; i++) {
        const struct piece piece = piece_at(in, i);
        const int byte = byte_of(piece);
        if (byte >= 0) {
            const char one = (char)byte;
            PD_TRY(pd_string_add(bytes, &one, 1, err));
            continue;
        }
        PD_TRY(end_bytes(bytes, out, err));
        PD_TRY(pd_pieces_add(out, piece.text, piece.bytes, err));
    }
    return end_bytes(bytes, out, err);
}

static pd_status decode_strip(const struct pd_decoder_step *step, const struct pd_pieces *in, struct pd_pieces *out,
                              struct pd_error *err)
{
    const size_t mark = step->matcher.source_bytes;
    for (size_t i = 0; i < in->count; i++) {
        struct piece piece = piece_at(in, i);
        size_t start = 0, end = piece.bytes;
        for (uint32_t n = 0; n < step->start && start + mark <= end; n++, start += mark)
            if (memcmp(piece.text + start, step->matcher.source, mark) != 0) break;
        for (uint32_t n = 0; n < step->stop && start + mark <= end; n++, end -= mark)
            if (memcmp(piece.text + end - mark, step->matcher.source, mark) != 0) break;
        PD_TRY(pd_pieces_add(out, piece.text + start, end - start, err));
    }
    return PD_OK;
}

static pd_status decode_metaspace(const struct pd_decoder_step *step, const struct pd_pieces *in, struct pd_pieces *out,
                                  struct pd_error *err)
{
    const size_t mark = step->matcher.source_bytes;
    for (size_t i = 0; i < in->count; i++) {
        const struct piece piece = piece_at(in, i);
        size_t done = 0;
        for (const char *found;
             done < piece.bytes && (found = memmem(piece.text + done, piece.bytes - done, step->matcher.source, mark));
             done = (size_t)(found - piece.text) + mark) {
            PD_TRY(pd_string_add(&out->text, piece.text + done, (size_t)(found - piece.text) - done, err));
            if (i || step->keeps_first) PD_TRY(pd_string_add(&out->text, " ", 1, err));
        }
        PD_TRY(pd_pieces_add(out, piece.text + done, piece.bytes - done, err));
    }
    return PD_OK;
}

static pd_status decode_run_step(const struct pd_decoder_step *step, struct pd_pattern_scratch *patterns, size_t most,
                                 const struct pd_pieces *in, struct pd_pieces *out, struct pd_error *err)
{
    switch (step->kind) {
    case PD_DECODE_BYTE_LEVEL:
        return decode_byte_level(in, out, err);
    case PD_DECODE_REPLACE:
        return decode_replace(step, patterns, most, in, out, err);
    case PD_DECODE_BYTE_FALLBACK:
        struct pd_string bytes = {0};
        pd_status status = fall_back(in, &bytes, out, err);
        pd_string_deinit(&bytes);
        return status;
    case PD_DECODE_STRIP:
        return decode_strip(step, in, out, err);
    case PD_DECODE_METASPACE:
        return decode_metaspace(step, in, out, err);
    case PD_DECODE_FUSE:
        break;
    }
    return pd_pieces_add(out, in->text.bytes, in->text.count, err);
}

pd_status pd_decoder_run(const struct pd_decoder *decoder, struct pd_pattern_scratch *patterns, struct pd_pieces *pieces,
                         struct pd_pieces *spare, struct pd_error *err)
{
    const size_t most = PD_STRING_GROWN_MAX(pieces->text.count);
    for (uint32_t i = 0; i < decoder->count; i++) {
        pd_string_cut(&spare->text, 0);
        spare->count = 0;
        PD_TRY(decode_run_step(&decoder->steps[i], patterns, most, pieces, spare, err));
        const struct pd_pieces made = *spare;
        *spare = *pieces;
        *pieces = made;
    }
    return PD_OK;
}
