#include "trainer/comm/pieces.h"

#include <string.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void pd_cursor_add(struct pd_cursor *cursor, const struct pd_comm_piece *pieces, uint32_t count, uint32_t index)
{
    const struct pd_comm_piece *piece = &pieces[index];
    if (piece->bytes == 0) return;
    if (cursor->left == 0)
        *cursor = (struct pd_cursor){.pieces = pieces, .count = count, .peer = piece->peer, .index = index};
    PD_CHECK(piece->bytes <= UINT64_MAX - cursor->left);
    cursor->left += piece->bytes;
}

uint8_t *pd_cursor_span(struct pd_cursor *cursor, uint64_t *ret_bytes)
{
    const struct pd_comm_piece *piece = &cursor->pieces[cursor->index];
    *ret_bytes = piece->bytes - cursor->offset;
    return (uint8_t *)piece->data + cursor->offset;
}

static void to_next_piece(struct pd_cursor *cursor)
{
    cursor->offset = 0;
    do {
        cursor->index++;
        PD_CHECK(cursor->index < cursor->count);
    } while (cursor->pieces[cursor->index].peer != cursor->peer || cursor->pieces[cursor->index].bytes == 0);
}

void pd_cursor_advance(struct pd_cursor *cursor, uint64_t bytes)
{
    PD_CHECK(bytes <= cursor->left);
    while (bytes > 0) {
        uint64_t step = least(bytes, cursor->pieces[cursor->index].bytes - cursor->offset);
        cursor->offset += step;
        cursor->left -= step;
        bytes -= step;
        if (cursor->left > 0 && cursor->offset == cursor->pieces[cursor->index].bytes) to_next_piece(cursor);
    }
}

void pd_cursor_read(struct pd_cursor *source, void *target, uint64_t bytes)
{
    uint8_t *out = target;
    while (bytes > 0) {
        uint64_t span;
        const uint8_t *from = pd_cursor_span(source, &span);
        uint64_t step = least(span, bytes);
        memcpy(out, from, step);
        pd_cursor_advance(source, step);
        out += step;
        bytes -= step;
    }
}

void pd_cursor_write(struct pd_cursor *target, const void *source, uint64_t bytes)
{
    const uint8_t *in = source;
    while (bytes > 0) {
        uint64_t span;
        uint8_t *to = pd_cursor_span(target, &span);
        uint64_t step = least(span, bytes);
        memcpy(to, in, step);
        pd_cursor_advance(target, step);
        in += step;
        bytes -= step;
    }
}

void pd_cursor_copy(struct pd_cursor *target, struct pd_cursor *source, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t span;
        uint8_t *to = pd_cursor_span(target, &span);
        uint64_t step = least(span, bytes);
        pd_cursor_read(source, to, step);
        pd_cursor_advance(target, step);
        bytes -= step;
    }
}
