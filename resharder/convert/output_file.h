/* Files of an export, written from front to back with direct I/O, several transfers on their way. What nobody writes is zeros.
 *   threads  one, the first that writes */
#pragma once

#include "ckpt/io/transfer_ring.h"
#include "resharder/catalog/catalog.h"

#define PD_OUTPUT_SLOTS 8u
#define PD_OUTPUT_SLOT_BYTES (UINT64_C(2) << 20)

struct pd_output {
    struct pd_vfs *vfs;
    const struct pd_catalog *wanted; /* whose files they are */
    struct pd_queue *queue;
    struct pd_transfer_ring ring;
    struct pd_transfer_slot slots[PD_OUTPUT_SLOTS];
    struct pd_transfer_slot *filling;
    uint64_t filled, at; /* bytes in it; where in the file it begins */
    struct pd_file *file;
    uint32_t number; /* of the file that is open */
};

/* buffers (PD_OUTPUT_SLOTS * PD_OUTPUT_SLOT_BYTES) on PD_VFS_ALIGN, borrowed. */
PD_MUST_USE pd_status pd_output_open(struct pd_vfs *vfs, const struct pd_catalog *wanted, void *buffers,
                                     struct pd_output *ret_output, struct pd_error *err);
/* Offsets of a file ascend, and a file that was left is not written again. */
PD_MUST_USE pd_status pd_output_write(struct pd_output *output, uint32_t file, uint64_t offset, const void *data,
                                      uint64_t bytes, struct pd_error *err);
/* Ends what is open, after failures too. Nothing is synced. */
PD_MUST_USE pd_status pd_output_close(struct pd_output *output, pd_status mine, struct pd_error *err);
