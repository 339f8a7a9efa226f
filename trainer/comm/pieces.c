#include "trainer/comm/pieces.h"

#include "ckpt/base/checked.h"
#include <string.h>

void pd_cursor_add(struct pd_cursor *cursor, const struct pd_comm_piece *pieces, uint32_t count, uint32_t index)
{
    const struct pd_comm_piece *piece = &pieces[index];
    if (piece->bytes == 0) return;
    if (cursor->left == 0)
        *cursor = (struct pd_cursor){.pieces = pieces, .count = count, .peer = piece->peer, .index = index};
    PD_CHECK(piece->bytes <= UINT64_MAX - cursor->left);
    cursor->left += piece->bytes;
}

/* The next piece of the cursor's peer after `index`, or count. */
static uint32_t piece_after(const struct pd_cursor *cursor, uint32_t index)
{
    do
        index++;
    while (index < cursor->count && (cursor->pieces[index].peer != cursor->peer || cursor->pieces[index].bytes == 0));
    return index;
}

uint8_t *pd_cursor_span(struct pd_cursor *cursor, uint64_t *ret_bytes)
{
    const struct pd_comm_piece *piece = &cursor->pieces[cursor->index];
    uint8_t *begin = (uint8_t *)piece->data + cursor->offset;
    uint64_t bytes = piece->bytes - cursor->offset;
    for (uint32_t i = cursor->index; cursor->memory && bytes < cursor->left;) {
        i = piece_after(cursor, i);
        PD_CHECK(i < cursor->count);
        if ((uint8_t *)cursor->pieces[i].data != begin + bytes) break;
        bytes += cursor->pieces[i].bytes;
    }
    *ret_bytes = bytes;
    return begin;
}

void pd_cursor_advance(struct pd_cursor *cursor, uint64_t bytes)
{
    PD_CHECK(bytes <= cursor->left);
    while (bytes > 0) {
        uint64_t step = pd_min_u64(bytes, cursor->pieces[cursor->index].bytes - cursor->offset);
        cursor->offset += step;
        cursor->left -= step;
        bytes -= step;
        if (cursor->left == 0 || cursor->offset < cursor->pieces[cursor->index].bytes) continue;
        cursor->index = piece_after(cursor, cursor->index);
        cursor->offset = 0;
        PD_CHECK(cursor->index < cursor->count);
    }
}

static pd_status pieces_copy(const struct pd_comm_memory *memory, void *dst, const void *src, uint64_t bytes,
                             struct pd_error *err)
{
    if (memory) return memory->copy(memory->context, dst, src, bytes, err);
    memcpy(dst, src, bytes);
    return PD_OK;
}

/* 64 bytes of integers, and a word. Neither side need be aligned. */
#define LANES __attribute__((vector_size(64), aligned(1), may_alias))
#define WORD __attribute__((vector_size(8), aligned(1), may_alias))
typedef uint64_t lanes LANES;
typedef uint32_t narrow_lanes LANES;
typedef uint64_t word WORD;
typedef uint32_t narrow_word WORD;

static void pieces_add(uint8_t *target, const uint8_t *more, uint64_t bytes)
{
    uint64_t i = 0;
    for (; i + sizeof(lanes) <= bytes; i += sizeof(lanes))
        *(lanes *)(target + i) += *(const lanes *)(more + i);
    for (; i < bytes; i += sizeof(word))
        *(word *)(target + i) += *(const word *)(more + i);
}

static void add_narrow(uint8_t *target, const uint8_t *more, uint64_t bytes)
{
    uint64_t i = 0;
    for (; i + sizeof(narrow_lanes) <= bytes; i += sizeof(narrow_lanes))
        *(narrow_lanes *)(target + i) += *(const narrow_lanes *)(more + i);
    for (; i < bytes; i += sizeof(narrow_word))
        *(narrow_word *)(target + i) += *(const narrow_word *)(more + i);
}

pd_status pd_cursor_read(struct pd_cursor *source, void *target, uint64_t bytes, struct pd_error *err)
{
    uint8_t *out = target;
    while (bytes > 0) {
        uint64_t span;
        const uint8_t *from = pd_cursor_span(source, &span);
        uint64_t step = pd_min_u64(span, bytes);
        PD_TRY(pieces_copy(source->memory, out, from, step, err));
        pd_cursor_advance(source, step);
        out += step;
        bytes -= step;
    }
    return PD_OK;
}

pd_status pd_cursor_write(struct pd_cursor *target, const void *source, uint64_t bytes, struct pd_error *err)
{
    const uint8_t *in = source;
    while (bytes > 0) {
        uint64_t span;
        uint8_t *to = pd_cursor_span(target, &span);
        uint64_t step = pd_min_u64(span, bytes);
        PD_CHECK(!target->adds || step % sizeof(word) == 0);
        if (target->adds)
            (target->adds_narrow ? add_narrow : pieces_add)(to, in, step);
        else
            PD_TRY(pieces_copy(target->memory, to, in, step, err));
        pd_cursor_advance(target, step);
        in += step;
        bytes -= step;
    }
    return PD_OK;
}

pd_status pd_cursor_copy(struct pd_cursor *target, struct pd_cursor *source, uint64_t bytes, struct pd_error *err)
{
    const struct pd_comm_memory *memory = target->memory ? target->memory : source->memory;
    while (bytes > 0) {
        uint64_t from_bytes, to_bytes;
        const uint8_t *from = pd_cursor_span(source, &from_bytes);
        uint8_t *to = pd_cursor_span(target, &to_bytes);
        uint64_t step = pd_min_u64(bytes, pd_min_u64(from_bytes, to_bytes));
        PD_TRY(pieces_copy(memory, to, from, step, err));
        pd_cursor_advance(source, step);
        pd_cursor_advance(target, step);
        bytes -= step;
    }
    return PD_OK;
}

pd_status pd_cursor_damage(struct pd_cursor *target, struct pd_error *err)
{
    uint64_t span;
    uint8_t *at = pd_cursor_span(target, &span), byte;
    PD_TRY(pieces_copy(target->memory, &byte, at, 1, err));
    byte ^= 1;
    return pieces_copy(target->memory, at, &byte, 1, err);
}
