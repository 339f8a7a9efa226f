/* A fixed ring of buffers through which extents of files stream: read, worked on, written, each always in flight.
 *
 *   extent 0   read ─▶ work ─▶ write
 *   extent 1          read ─▶ work ─▶ write
 *   extent 2                 read ─▶ work ─▶ write          work runs on the caller's thread (and its pool)
 *
 * A job is a sequence of extents, each a few pieces of files; all pieces of an extent lie in one slot of the ring while it
 * is worked on. Reads of the next extents and writes of those before are in flight meanwhile, batched, one queue.
 *
 *   memory   the caller's buffer, cut into slots at pd_ring_new; registered with the kernel where that works; pd_ring_bytes
 *   errors   of the first piece that failed, naming file and place; everything in flight was reaped before return
 *   threads  one caller; the queue belongs to the thread that runs jobs
 */
#pragma once

#include "ckpt/io/vfs.h"

#define PD_RING_PIECES_MAX 256u /* of one extent */
#define PD_RING_SLOTS 16u

struct pd_ring;

/* All multiples of PD_VFS_ALIGN, so that direct files take them. */
struct pd_ring_piece {
    struct pd_file *from; /* NULL: nothing is read, the work fills it */
    uint64_t from_offset;
    struct pd_file *to; /* NULL: nothing is written */
    uint64_t to_offset;
    uint64_t bytes;
    void *own;  /* NULL, or memory of the caller's that this piece is read into and written from, in place of the slot's */
    void *data; /* in the slot, or own: set by the ring before `work` */
};

struct pd_ring_extent {
    struct pd_ring_piece pieces[PD_RING_PIECES_MAX];
    uint32_t count;
    void *user; /* the job's */
};

struct pd_ring_job {
    uint64_t extent_count;
    void *context;
    /* Fills in pieces of extent i, in ascending order of i; together at most pd_ring_slot_bytes, own memory included. Extent
     * i is described when
     * extent i - PD_RING_SLOTS is done with. Neighbours in the list that are neighbours in a file travel as one. */
    void (*describe)(void *context, uint64_t i, struct pd_ring_extent *ret_extent);
    /* Everything of extent i was read. What it leaves in the pieces is written. Extents come in order. */
    pd_status (*work)(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err);
};

struct pd_ring_report {
    uint64_t bytes_read, bytes_written;
    double seconds; /* from begin to end */
};

/* `buffers` (buffer_bytes, aligned to PD_VFS_ALIGN): borrowed; at least PD_RING_SLOTS * 64 KiB, 16 x 12 MiB is fast. */
PD_MUST_USE pd_status pd_ring_new(struct pd_vfs *vfs, void *buffers, uint64_t buffer_bytes, struct pd_ring **ret_ring,
                                  struct pd_error *err);
void pd_ring_free(struct pd_ring *ring);       /* NULL is fine */
uint64_t pd_ring_bytes(uint64_t buffer_bytes); /* heap that a ring over so many bytes takes beside them */
uint64_t pd_ring_slot_bytes(const struct pd_ring *ring);
/* ret_report may be NULL. */
PD_MUST_USE pd_status pd_ring_run(struct pd_ring *ring, const struct pd_ring_job *job, struct pd_ring_report *ret_report,
                                  struct pd_error *err);
/* The same in two: begin describes the first extents and sends their reads, up to the depth of the queue, and waits for
 * nothing; end does the rest. The caller may work on something else meanwhile, but not with these buffers. After a begin
 * that succeeded comes end, or abandon, which waits for what is in flight and drops it; abandon without a begin is fine. */
PD_MUST_USE pd_status pd_ring_begin(struct pd_ring *ring, const struct pd_ring_job *job, struct pd_error *err);
PD_MUST_USE pd_status pd_ring_end(struct pd_ring *ring, struct pd_ring_report *ret_report, struct pd_error *err);
void pd_ring_abandon(struct pd_ring *ring);
