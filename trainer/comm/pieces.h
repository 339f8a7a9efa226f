/* Messages as lists of pieces. What a rank sends to one peer is the concatenation of the pieces that name this peer, in
 * their order; the receiver cuts the same bytes in its own way. A cursor walks one such concatenation.
 *   threads  a cursor belongs to one thread at a time; it may be copied to hand the walk to another
 */
#ifndef PD_TRAINER_COMM_PIECES_H
#define PD_TRAINER_COMM_PIECES_H

#include "trainer/comm/comm.h"

struct pd_cursor {
    const struct pd_comm_piece *pieces; /* (count), borrowed */
    uint32_t count, peer, index;
    uint64_t offset; /* inside pieces[index] */
    uint64_t left;   /* bytes of the concatenation not walked yet */
};

/* Adds piece `index` to the cursor of its peer; called for ascending indices. Pieces without bytes are skipped. */
void pd_cursor_add(struct pd_cursor *cursor, const struct pd_comm_piece *pieces, uint32_t count, uint32_t index);

/* The contiguous bytes at the cursor; left must not be 0. */
uint8_t *pd_cursor_span(struct pd_cursor *cursor, uint64_t *ret_bytes);
void pd_cursor_advance(struct pd_cursor *cursor, uint64_t bytes);

/* Copies `bytes` between a cursor and plain memory, or between two cursors, and advances. */
void pd_cursor_read(struct pd_cursor *source, void *target, uint64_t bytes);
void pd_cursor_write(struct pd_cursor *target, const void *source, uint64_t bytes);
void pd_cursor_copy(struct pd_cursor *target, struct pd_cursor *source, uint64_t bytes);

#endif
