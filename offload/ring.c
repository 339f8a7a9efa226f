/* Slots are used in turn: extent i has slot i % PD_RING_SLOTS from its description until its last write was reaped.
 *
 *   IDLE ──describe──▶ READING ──all read, its turn──▶ (work) ──▶ WRITING ──all written──▶ IDLE
 *
 *   invariants  1. the queue never holds more than `depth` transfers, so submitting never blocks: finished ones are reaped
 *                  before it waits for others
 *               2. requests are sent slot by slot, the oldest extent first; writes and reads alternate while both wait;
 *                  after work on each extent the queue is polled, so that reads do not wait for a pause
 *               3. after a failure nothing more is sent, and everything in flight is reaped before the job ends
 */
#include "offload/ring.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/owner.h"

#include <stdlib.h>

/* Requests of 1 MiB or more reach the full speed of the disk; adjacent smaller pieces are joined. */
#define REQUEST_BYTES (UINT64_C(1) << 20)
#define IN_FLIGHT_MAX 128u
#define BATCH 32u
#define SLOT_UNIT (UINT64_C(64) << 10)

enum slot_state { IDLE, READING, WRITING };

struct slot {
    enum slot_state state;
    unsigned char *data;   /* the kernel writes ("read") and reads ("write") it until reaped; "work" is in between */
    struct pd_owner owner; /* of data; the caller's thread goes through all states, in this order */
    struct pd_ring_extent extent;
    struct pd_transfer *transfers; /* (transfer_max) for the current state */
    uint32_t count, sent, done;
};

/* A job from begin to end. */
struct running {
    struct pd_ring *ring;
    struct pd_ring_job job;
    uint64_t described, worked, finished; /* number of extents that reached each stage */
    uint64_t start_ns;
    uint32_t in_flight;
    bool read_next; /* the last one sent was a write */
    struct pd_ring_report report;
    pd_status failed; /* first failed transfer or work; its message is in *err */
    struct pd_error *err;
};

struct pd_ring {
    struct pd_queue *queue;
    uint64_t slot_bytes;
    uint32_t depth, transfer_max;
    struct pd_transfer *transfers; /* (PD_RING_SLOTS * transfer_max) */
    struct slot slots[PD_RING_SLOTS];
    struct running running;
    bool is_running;
};

static uint64_t slot_bytes_of(uint64_t buffer_bytes)
{
    return buffer_bytes / PD_RING_SLOTS / SLOT_UNIT * SLOT_UNIT;
}

/* Most requests of a slot: every run of neighbours leaves at most one short request. */
static uint64_t transfers_of(uint64_t slot_bytes)
{
    return slot_bytes / REQUEST_BYTES + PD_RING_PIECES_MAX;
}

uint64_t pd_ring_bytes(uint64_t buffer_bytes)
{
    return sizeof(struct pd_ring) + PD_RING_SLOTS * transfers_of(slot_bytes_of(buffer_bytes)) * sizeof(struct pd_transfer);
}

pd_status pd_ring_new(struct pd_vfs *vfs, void *buffers, uint64_t buffer_bytes, struct pd_ring **ret_ring,
                      struct pd_error *err)
{
    PD_CHECK(slot_bytes_of(buffer_bytes) > 0 && (uintptr_t)buffers % PD_VFS_ALIGN == 0);
    struct pd_ring *ring = calloc(1, sizeof *ring);
    if (!ring) PD_FAIL(err, PD_NO_MEMORY, "no memory for a ring of buffers");
    ring->slot_bytes = slot_bytes_of(buffer_bytes);
    ring->transfer_max = (uint32_t)transfers_of(ring->slot_bytes);
    ring->transfers = calloc((size_t)PD_RING_SLOTS * ring->transfer_max, sizeof *ring->transfers);
    pd_status st = PD_OK;
    if (!ring->transfers) st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a ring of buffers");
    for (uint32_t i = 0; i < PD_RING_SLOTS; i++) {
        ring->slots[i].data = (unsigned char *)buffers + i * ring->slot_bytes;
        ring->slots[i].transfers = ring->transfers + (size_t)i * ring->transfer_max;
    }
    if (!st) st = pd_queue_open(vfs, buffers, PD_RING_SLOTS * ring->slot_bytes, &ring->queue, err);
    if (st) {
        pd_ring_free(ring);
        return st;
    }
    uint32_t depth = pd_queue_depth(ring->queue);
    ring->depth = depth < IN_FLIGHT_MAX ? depth : IN_FLIGHT_MAX;
    *ret_ring = ring;
    return PD_OK;
}

void pd_ring_free(struct pd_ring *ring)
{
    if (!ring) return;
    pd_ring_abandon(ring);
    pd_queue_close(ring->queue);
    free(ring->transfers);
    free(ring);
}

uint64_t pd_ring_slot_bytes(const struct pd_ring *ring)
{
    return ring->slot_bytes;
}

/* ---- one extent ---- */

struct run {
    struct pd_file *file;
    unsigned char *data;
    uint64_t offset, bytes;
};

static struct run side_of(const struct pd_ring_piece *piece, bool is_write)
{
    return (struct run){is_write ? piece->to : piece->from, piece->data, is_write ? piece->to_offset : piece->from_offset,
                        piece->bytes};
}

static bool follows(const struct run *run, const struct run *next)
{
    return run->file == next->file && run->data + run->bytes == next->data && run->offset + run->bytes == next->offset;
}

static void cut_run(struct slot *slot, uint32_t transfer_max, const struct run *run, bool is_write)
{
    for (uint64_t at = 0; at < run->bytes;) {
        PD_CHECK(slot->count < transfer_max);
        uint64_t left = run->bytes - at, bytes = left < REQUEST_BYTES ? left : REQUEST_BYTES;
        slot->transfers[slot->count++] = (struct pd_transfer){.file = run->file,
                                                              .data = run->data + at,
                                                              .offset = run->offset + at,
                                                              .bytes = bytes,
                                                              .is_write = is_write,
                                                              .what = is_write ? "write of state" : "read of state",
                                                              .user = slot};
        at += bytes;
    }
}

/* Makes the requests of one direction: pieces adjacent in memory and in the file become one. */
static void cut_requests(struct slot *slot, uint32_t transfer_max, bool is_write)
{
    struct run run = {0};
    slot->state = is_write ? WRITING : READING;
    slot->count = slot->sent = slot->done = 0;
    for (uint32_t p = 0; p < slot->extent.count; p++) {
        struct run next = side_of(&slot->extent.pieces[p], is_write);
        if (!next.file) continue;
        if (run.file && follows(&run, &next)) {
            run.bytes += next.bytes;
            continue;
        }
        if (run.file) cut_run(slot, transfer_max, &run, is_write);
        run = next;
    }
    if (run.file) cut_run(slot, transfer_max, &run, is_write);
}

static void ring_describe(struct running *r)
{
    struct slot *slot = &r->ring->slots[r->described % PD_RING_SLOTS];
    uint64_t bytes = 0;
    pd_owner_acquire(&slot->owner, "read");
    slot->extent.count = 0;
    slot->extent.user = NULL;
    r->job.describe(r->job.context, r->described, &slot->extent);
    PD_CHECK(slot->extent.count <= PD_RING_PIECES_MAX);
    for (uint32_t p = 0; p < slot->extent.count; p++) {
        struct pd_ring_piece *piece = &slot->extent.pieces[p];
        PD_CHECK(piece->bytes % PD_VFS_ALIGN == 0 && piece->bytes <= r->ring->slot_bytes - bytes);
        piece->data = piece->own ? piece->own : slot->data + bytes;
        bytes += piece->bytes;
    }
    cut_requests(slot, r->ring->transfer_max, false);
    r->described++;
}

/* ---- sending and reaping ---- */

/* Returns the oldest extent with an unsent request of that direction. */
static struct slot *next_slot(struct running *r, enum slot_state state)
{
    for (uint64_t i = r->finished; i < r->described; i++) {
        struct slot *slot = &r->ring->slots[i % PD_RING_SLOTS];
        if (slot->state == state && slot->sent < slot->count) return slot;
    }
    return NULL;
}

static struct pd_transfer *next_transfer(struct running *r)
{
    struct slot *reads = next_slot(r, READING), *writes = next_slot(r, WRITING);
    struct slot *slot = writes && !(reads && r->read_next) ? writes : reads;
    if (!slot) return NULL;
    r->read_next = slot == writes;
    return &slot->transfers[slot->sent++];
}

static pd_status ring_send(struct running *r)
{
    struct pd_transfer *batch[BATCH];
    for (uint32_t count = BATCH; count == BATCH;) {
        count = 0;
        while (count < BATCH && r->in_flight + count < r->ring->depth) {
            struct pd_transfer *transfer = next_transfer(r);
            if (!transfer) break;
            batch[count++] = transfer;
        }
        if (count == 0) return PD_OK;
        r->in_flight += count;
        PD_TRY(pd_queue_submit(r->ring->queue, batch, count, r->err));
    }
    return PD_OK;
}

/* Puts errors of transfers into r->failed; returns only errors of the queue itself. */
static pd_status ring_reap(struct running *r, bool wait, uint32_t *ret_count)
{
    struct pd_transfer *done[IN_FLIGHT_MAX];
    struct pd_error *err = r->failed ? NULL : r->err;
    PD_TRY(wait ? pd_queue_reap(r->ring->queue, done, IN_FLIGHT_MAX, ret_count, err)
                : pd_queue_poll(r->ring->queue, done, IN_FLIGHT_MAX, ret_count, err));
    r->in_flight -= *ret_count;
    for (uint32_t i = 0; i < *ret_count; i++) {
        *(done[i]->is_write ? &r->report.bytes_written : &r->report.bytes_read) += done[i]->bytes;
        ((struct slot *)done[i]->user)->done++;
        if (done[i]->status && !r->failed) r->failed = pd_transfer_error(done[i], r->err);
    }
    return PD_OK;
}

/* ---- a job ---- */

/* Starts reads as soon as finished writes make space: otherwise extents would be worked on, written and read in phases. */
static pd_status ring_work(struct running *r, struct slot *slot)
{
    uint32_t count;
    pd_owner_release(&slot->owner, "read");
    pd_owner_acquire(&slot->owner, "work");
    r->failed = r->job.work(r->job.context, r->worked, &slot->extent, r->err);
    pd_owner_release(&slot->owner, "work");
    pd_owner_acquire(&slot->owner, "write");
    cut_requests(slot, r->ring->transfer_max, true);
    r->worked++;
    return ring_reap(r, false, &count);
}

static pd_status wait_for_some(struct running *r)
{
    uint32_t count = 0;
    PD_TRY(ring_reap(r, true, &count));
    PD_CHECK(count > 0); /* otherwise nothing would ever progress */
    return PD_OK;
}

/* Releases extents whose writes are done, oldest first, and describes the next ones. */
static void turn(struct running *r)
{
    while (r->finished < r->worked) {
        struct slot *slot = &r->ring->slots[r->finished % PD_RING_SLOTS];
        if (slot->done < slot->count) break;
        slot->state = IDLE;
        pd_owner_release(&slot->owner, "write");
        r->finished++;
    }
    while (r->described < r->job.extent_count && r->described < r->finished + PD_RING_SLOTS)
        ring_describe(r);
}

static pd_status run_extents(struct running *r)
{
    for (turn(r); r->finished < r->job.extent_count && !r->failed; turn(r)) {
        PD_TRY(ring_send(r));
        struct slot *slot = &r->ring->slots[r->worked % PD_RING_SLOTS];
        const bool is_there = r->worked < r->described && slot->state == READING && slot->done == slot->count;
        PD_TRY(is_there ? ring_work(r, slot) : wait_for_some(r));
    }
    return r->failed;
}

/* The kernel has the buffers until reaped, whatever failed. */
static pd_status drain(struct running *r)
{
    for (uint32_t count = 1; count;)
        PD_TRY(ring_reap(r, true, &count));
    return PD_OK;
}

/* Reaps everything in flight; then the ring can take another job. */
static pd_status ring_leave(struct pd_ring *ring)
{
    pd_status drained = drain(&ring->running);
    ring->is_running = false;
    return drained;
}

pd_status pd_ring_begin(struct pd_ring *ring, const struct pd_ring_job *job, struct pd_error *err)
{
    PD_CHECK(!ring->is_running);
    ring->running = (struct running){.ring = ring, .job = *job, .start_ns = pd_clock_monotonic_ns(NULL), .err = err};
    ring->is_running = true;
    for (uint32_t i = 0; i < PD_RING_SLOTS; i++) {
        ring->slots[i].state = IDLE;
        ring->slots[i].owner = (struct pd_owner){NULL}; /* an abandoned job was drained */
    }
    turn(&ring->running);
    pd_status st = ring_send(&ring->running);
    if (!st) return PD_OK;
    ring->running.failed = st; /* the message is set */
    (void)!ring_leave(ring);
    return st;
}

pd_status pd_ring_end(struct pd_ring *ring, struct pd_ring_report *ret_report, struct pd_error *err)
{
    struct running *r = &ring->running;
    PD_CHECK(ring->is_running);
    r->err = err;
    pd_status st = run_extents(r);
    if (st) r->failed = st; /* the message is set */
    pd_status drained = ring_leave(ring);
    if (!st) st = drained ? drained : r->failed;
    r->report.seconds = pd_clock_seconds_since(r->start_ns);
    if (!st && ret_report) *ret_report = r->report;
    return st;
}

void pd_ring_abandon(struct pd_ring *ring)
{
    if (!ring->is_running) return;
    ring->running.err = NULL;
    ring->running.failed = PD_STOPPED; /* ignore other failures */
    (void)!ring_leave(ring);
}

pd_status pd_ring_run(struct pd_ring *ring, const struct pd_ring_job *job, struct pd_ring_report *ret_report,
                      struct pd_error *err)
{
    PD_TRY(pd_ring_begin(ring, job, err));
    return pd_ring_end(ring, ret_report, err);
}
