/* A fixed ring of buffers that streams extents of files: read, work, write, each always in flight.
 *
 *   extent 0   read ─▶ work ─▶ write
 *   extent 1          read ─▶ work ─▶ write
 *   extent 2                 read ─▶ work ─▶ write          work runs on the caller's thread (and its pool)
 *
 * A job is a sequence of extents, each a few pieces of files. All pieces of an extent are in one slot of the ring during
 * work. Meanwhile reads of later extents and writes of earlier ones are in flight, batched, in one queue.
 *
 *   memory   the caller's buffer, cut into slots at pd_ring_new; registered with the kernel if possible; pd_ring_bytes
 *   errors   of the first piece that failed, naming file and offset; nothing is in flight on return
 *   threads  one caller; the queue belongs to the thread that runs jobs
 */
#pragma once

#include "ckpt/io/vfs.h"

#define PD_RING_PIECES_MAX 256u /* in one extent */
#define PD_RING_SLOTS 16u

struct pd_ring;

/* All values are multiples of PD_VFS_ALIGN, as direct I/O requires. */
struct pd_ring_piece {
    struct pd_file *from; /* NULL: not read, work fills it */
    uint64_t from_offset;
    struct pd_file *to; /* NULL: not written */
    uint64_t to_offset;
    uint64_t bytes;
    void *own;  /* NULL, or the caller's memory, used for this piece instead of the slot */
    void *data; /* in the slot, or own; set by the ring before `work` */
};

struct pd_ring_extent {
    struct pd_ring_piece pieces[PD_RING_PIECES_MAX];
    uint32_t count;
    void *user; /* for the job */
};

struct pd_ring_job {
    uint64_t extent_count;
    void *context;
    /* Fills in the pieces of extent i, in ascending order of i; together at most pd_ring_slot_bytes, own memory included.
     * Called when extent i - PD_RING_SLOTS is done. Pieces next to each other in the list and in a file become one
     * transfer. */
    void (*describe)(void *context, uint64_t i, struct pd_ring_extent *ret_extent);
    /* All of extent i has been read. The ring writes what `work` leaves in the pieces. Extents come in order. */
    pd_status (*work)(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err);
};

struct pd_ring_report {
    uint64_t bytes_read, bytes_written;
    double seconds; /* from begin to end */
};

/* `buffers` (buffer_bytes, aligned to PD_VFS_ALIGN): borrowed; at least PD_RING_SLOTS * 64 KiB; 16 x 12 MiB is fast. */
PD_MUST_USE pd_status pd_ring_new(struct pd_vfs *vfs, void *buffers, uint64_t buffer_bytes, struct pd_ring **ret_ring,
                                  struct pd_error *err);
void pd_ring_free(struct pd_ring *ring);       /* NULL is fine */
uint64_t pd_ring_bytes(uint64_t buffer_bytes); /* heap of a ring over that many bytes */
uint64_t pd_ring_slot_bytes(const struct pd_ring *ring);
/* ret_report may be NULL. */
PD_MUST_USE pd_status pd_ring_run(struct pd_ring *ring, const struct pd_ring_job *job, struct pd_ring_report *ret_report,
                                  struct pd_error *err);
/* The same in two calls. begin describes the first extents and submits their reads, up to the queue's depth, without
 * waiting; end does the rest. In between the caller may do other work, but not with these buffers. After a successful
 * begin call end or abandon, which waits for what is in flight and drops it; abandon without a begin is fine. */
PD_MUST_USE pd_status pd_ring_begin(struct pd_ring *ring, const struct pd_ring_job *job, struct pd_error *err);
PD_MUST_USE pd_status pd_ring_end(struct pd_ring *ring, struct pd_ring_report *ret_report, struct pd_error *err);
void pd_ring_abandon(struct pd_ring *ring);
