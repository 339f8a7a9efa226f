/* Messages as lists of pieces. A rank sends to a peer the concatenation of the pieces that name this peer, in order; the
 * receiver cuts the same bytes in its own way. A cursor walks one such concatenation. It joins adjacent pieces, because a
 * copy to or from a device costs the same however short it is.
 *   threads  a cursor belongs to one thread at a time; it may be copied to hand the walk to another
 *   errors   only from copies through pd_comm_memory; plain memory has none
 */
#pragma once

#include "trainer/comm/comm.h"

struct pd_cursor {
    const struct pd_comm_piece *pieces; /* (count), borrowed */
    uint32_t count, peer, index;
    uint64_t offset;                     /* inside pieces[index] */
    uint64_t left;                       /* bytes left to walk */
    const struct pd_comm_memory *memory; /* memory of the pieces; NULL: host */
    bool adds;                           /* pd_cursor_write adds uint64 values to the pieces, which are in host memory */
    bool adds_narrow;                    /* or pairs of uint32 values */
};

/* Adds piece `index` to the cursor of its peer. Call with ascending indices. Skips empty pieces. */
void pd_cursor_add(struct pd_cursor *cursor, const struct pd_comm_piece *pieces, uint32_t count, uint32_t index);

/* All contiguous bytes at the cursor; left must not be 0. */
uint8_t *pd_cursor_span(struct pd_cursor *cursor, uint64_t *ret_bytes);
void pd_cursor_advance(struct pd_cursor *cursor, uint64_t bytes);

/* Copies `bytes` between a cursor and plain memory, or between two cursors, and advances. */
PD_MUST_USE pd_status pd_cursor_read(struct pd_cursor *source, void *target, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_cursor_write(struct pd_cursor *target, const void *source, uint64_t bytes, struct pd_error *err);
/* Flips a bit in the first byte that the cursor will write, for tests. */
PD_MUST_USE pd_status pd_cursor_damage(struct pd_cursor *target, struct pd_error *err);
PD_MUST_USE pd_status pd_cursor_copy(struct pd_cursor *target, struct pd_cursor *source, uint64_t bytes,
                                     struct pd_error *err);
