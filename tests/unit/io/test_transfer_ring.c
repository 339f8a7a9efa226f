#include "ckpt/io/transfer_ring.h"
#include "tests/helpers/failing_submit.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(expression)                                                             \
    do {                                                                           \
        struct pd_error ok_err_ = {0}, *err = &ok_err_;                            \
        cr_assert_eq((expression), PD_OK, "%s: %s", #expression, ok_err_.message); \
    } while (0)
#define SLOTS 4u
#define SLOT_BYTES 8192u

struct fixture {
    struct pd_vfs *vfs;
    struct pd_file *file;
    struct pd_queue *queue;
    struct pd_transfer_slot slots[SLOTS];
    struct pd_transfer_ring ring;
    unsigned char *buffers;
    char path[64];
};

static void open_fixture(struct fixture *r)
{
    memset(r, 0, sizeof *r);
    snprintf(r->path, sizeof r->path, "/tmp/perdure-ring-%d", (int)getpid());
    r->buffers = aligned_alloc(PD_VFS_ALIGN, SLOTS * SLOT_BYTES);
    OK(pd_vfs_new_threads(8, 2, &r->vfs, err));
    OK(pd_file_open(r->vfs, r->path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE, &r->file, err));
    OK(pd_vfs_unlink(r->vfs, r->path, err)); /* tests end in the middle */
}

static void open_ring(struct fixture *r)
{
    OK(pd_queue_open(r->vfs, r->buffers, SLOTS * SLOT_BYTES, &r->queue, err));
    pd_transfer_ring_init(&r->ring, r->queue, r->slots, SLOTS, r->buffers, SLOT_BYTES);
}

static void close_fixture(struct fixture *r)
{
    pd_queue_close(r->queue); /* ends the process when anything is in flight */
    OK(pd_file_close(r->file, err));
    pd_vfs_free(r->vfs);
    free(r->buffers);
}

/* A ring that forgets a transfer waits for good, or ends with the pool's threads still waiting for it. */
TestSuite(transfer_ring, .timeout = 120);

static struct pd_transfer piece(const struct fixture *r, uint64_t i, bool is_write)
{
    return (struct pd_transfer){.file = r->file, .offset = i * SLOT_BYTES, .bytes = SLOT_BYTES, .is_write = is_write};
}

Test(transfer_ring, many_pieces_through_few_slots)
{
    struct fixture r;
    const uint64_t pieces = 37;
    open_fixture(&r);
    open_ring(&r);
    for (uint64_t i = 0; i < pieces; i++) {
        struct pd_transfer_slot *slot = NULL;
        const struct pd_transfer transfer = piece(&r, i, true);
        OK(pd_transfer_ring_take_written(&r.ring, &slot, err));
        memset(slot->buffer, (int)i, SLOT_BYTES);
        OK(pd_transfer_ring_submit(&r.ring, slot, &transfer, err));
    }
    OK(pd_transfer_ring_drain(&r.ring, PD_OK, err));
    for (uint64_t i = 0, next = 0; next < pieces;) { /* read back, waited for in the order in which they were sent */
        struct pd_transfer_slot *sent[SLOTS] = {NULL};
        uint32_t count = 0;
        for (; count < SLOTS && i < pieces; count++, i++) {
            const struct pd_transfer transfer = piece(&r, i, false);
            sent[count] = pd_transfer_ring_take(&r.ring);
            OK(pd_transfer_ring_submit(&r.ring, sent[count], &transfer, err));
        }
        cr_assert(count < SLOTS || !pd_transfer_ring_take(&r.ring));
        for (uint32_t s = 0; s < count; s++, next++) {
            OK(pd_transfer_ring_wait(&r.ring, sent[s], err));
            OK(pd_transfer_error(&sent[s]->transfer, err));
            cr_assert(sent[s]->buffer[0] == next && sent[s]->buffer[SLOT_BYTES - 1] == next);
            pd_transfer_ring_release(&r.ring, sent[s]);
        }
    }
    struct pd_transfer_slot *none = &r.slots[0];
    OK(pd_transfer_ring_next(&r.ring, &none, err));
    cr_assert_null(none);
    close_fixture(&r);
}

/* One that came while another was waited for is not lost, and its failure neither. */
Test(transfer_ring, what_came_meanwhile_is_kept)
{
    struct fixture r;
    struct pd_error error = {0};
    open_fixture(&r);
    open_ring(&r);
    struct pd_transfer_slot *first = pd_transfer_ring_take(&r.ring), *second = pd_transfer_ring_take(&r.ring), *came = NULL;
    const struct pd_transfer behind = piece(&r, 100, false), write = piece(&r, 0, true);
    OK(pd_transfer_ring_submit(&r.ring, first, &behind, err)); /* the file ends before it */
    OK(pd_transfer_ring_submit(&r.ring, second, &write, err));
    OK(pd_transfer_ring_wait(&r.ring, second, err));
    cr_assert_eq(pd_transfer_ring_drain(&r.ring, PD_OK, &error), PD_CORRUPT);
    cr_assert_not_null(strstr(error.message, "the file ends"), "%s", error.message);
    cr_assert(first->state == PD_SLOT_FREE && second->state == PD_SLOT_FREE);
    OK(pd_transfer_ring_next(&r.ring, &came, err));
    cr_assert_null(came);
    close_fixture(&r);
}

/* The hazard: submitting fails, and the transfer is on its way all the same. */
Test(transfer_ring, a_submit_that_fails_leaves_a_slot_in_flight)
{
    struct fixture r;
    struct failing_submit failing;
    struct pd_error error = {0};
    open_fixture(&r);
    failing_submit_begin(&failing, r.vfs);
    open_ring(&r);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        failing_submit_arm(&failing, nth);
        for (uint64_t i = 1; i <= nth; i++) {
            const struct pd_transfer transfer = piece(&r, i, true);
            struct pd_transfer_slot *slot = pd_transfer_ring_take(&r.ring);
            cr_assert_eq(pd_transfer_ring_submit(&r.ring, slot, &transfer, &error), i == nth ? PD_IO : PD_OK);
            cr_assert_eq(slot->state, PD_SLOT_IN_FLIGHT);
        }
        OK(pd_transfer_ring_drain(&r.ring, PD_OK, err));
        for (uint32_t s = 0; s < SLOTS; s++)
            cr_assert_eq(r.slots[s].state, PD_SLOT_FREE);
        cr_assert_eq(r.queue->in_flight, 0);
    }
    failing_submit_end(&failing);
    close_fixture(&r);
}

Test(transfer_ring, a_slot_in_flight_is_nobodys_to_release, .signal = SIGABRT)
{
    struct fixture r;
    open_fixture(&r);
    open_ring(&r);
    struct pd_transfer_slot *slot = pd_transfer_ring_take(&r.ring);
    const struct pd_transfer transfer = piece(&r, 0, true);
    OK(pd_transfer_ring_submit(&r.ring, slot, &transfer, err));
    pd_transfer_ring_release(&r.ring, slot);
}
