#include "resharder/convert/output_file.h"

#include "ckpt/base/checked.h"

#include <string.h>

pd_status pd_output_open(struct pd_vfs *vfs, const struct pd_catalog *wanted, void *buffers, struct pd_output *ret_output,
                         struct pd_error *err)
{
    *ret_output = (struct pd_output){.vfs = vfs, .wanted = wanted, .number = UINT32_MAX};
    uint64_t bytes = PD_OUTPUT_SLOT_BYTES, slots;
    for (uint32_t f = 0; f < wanted->file_count; f++)
        bytes += wanted->files[f].bytes;
    slots = pd_min_u64(bytes / PD_OUTPUT_SLOT_BYTES, PD_OUTPUT_SLOTS); /* memory that is touched first takes its time */
    PD_TRY(pd_queue_open(vfs, buffers, slots * PD_OUTPUT_SLOT_BYTES, &ret_output->queue, err));
    pd_transfer_ring_init(&ret_output->ring, ret_output->queue, ret_output->slots, (uint32_t)slots, buffers,
                          PD_OUTPUT_SLOT_BYTES);
    return PD_OK;
}

/* Whole pages; what is beyond the end is cut off when the file is closed. */
static pd_status send(struct pd_output *o, struct pd_error *err)
{
    struct pd_transfer_slot *slot = o->filling;
    if (!slot) return PD_OK;
    const uint64_t pages = pd_round_up(o->filled, PD_VFS_ALIGN);
    memset(slot->buffer + o->filled, 0, pages - o->filled);
    const struct pd_transfer transfer = {
        .file = o->file, .offset = o->at, .bytes = pages, .is_write = true, .what = "write of an export"};
    o->filling = NULL;
    o->at += o->filled;
    o->filled = 0;
    return pd_transfer_ring_submit(&o->ring, slot, &transfer, err);
}

/* `data` NULL: zeros. */
static pd_status append(struct pd_output *o, const unsigned char *data, uint64_t bytes, struct pd_error *err)
{
    while (bytes) {
        if (!o->filling) PD_TRY(pd_transfer_ring_take_written(&o->ring, &o->filling, err));
        const uint64_t room = PD_OUTPUT_SLOT_BYTES - o->filled, n = bytes < room ? bytes : room;
        if (data)
            memcpy(o->filling->buffer + o->filled, data, n);
        else
            memset(o->filling->buffer + o->filled, 0, n);
        o->filled += n;
        bytes -= n;
        if (data) data += n;
        if (o->filled == PD_OUTPUT_SLOT_BYTES) PD_TRY(send(o, err));
    }
    return PD_OK;
}

static pd_status end_file(struct pd_output *o, struct pd_error *err)
{
    if (!o->file) return PD_OK;
    const uint64_t bytes = o->wanted->files[o->number].bytes;
    PD_CHECK(o->at + o->filled <= bytes);
    PD_TRY(append(o, NULL, bytes - o->at - o->filled, err));
    PD_TRY(send(o, err));
    PD_TRY(pd_transfer_ring_drain(&o->ring, PD_OK, err));
    PD_TRY(pd_file_truncate(o->file, bytes, err));
    struct pd_file *file = o->file;
    o->file = NULL;
    return pd_file_close(file, err);
}

pd_status pd_output_write(struct pd_output *o, uint32_t file, uint64_t offset, const void *data, uint64_t bytes,
                          struct pd_error *err)
{
    if (file != o->number) {
        PD_TRY(end_file(o, err));
        o->number = file;
        o->at = 0;
        const unsigned flags = PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE | PD_OPEN_DIRECT;
        PD_TRY(pd_file_open(o->vfs, o->wanted->files[file].path, flags, &o->file, err));
        pd_status st = pd_file_preallocate(o->file, o->wanted->files[file].bytes, err);
        PD_TRY(st == PD_UNSUPPORTED ? PD_OK : st);
    }
    PD_CHECK(offset >= o->at + o->filled);
    PD_TRY(append(o, NULL, offset - o->at - o->filled, err));
    return append(o, data, bytes, err);
}

pd_status pd_output_close(struct pd_output *o, pd_status mine, struct pd_error *err)
{
    pd_status st = mine ? mine : end_file(o, err);
    if (o->filling) pd_transfer_ring_release(&o->ring, o->filling);
    st = pd_transfer_ring_drain(&o->ring, st, err);
    pd_file_close_readonly(o->file); /* of a failed export */
    pd_queue_close(o->queue);
    return st;
}
