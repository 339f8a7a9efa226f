/* Scratch of a rank on a drive: spans of memory that leave it and come back later, in flight while others are computed on.
 *
 * What lies there is worth nothing to another launch: the file has no name once it is open and goes with the process. Each
 * block of a span is hashed on its way out (XXH3-64, seeded with span, block and how often the span was written) and
 * verified on its way in; a block that mismatches is read once more.
 *
 *   invariants  1. a span is read only after it was written; at most one operation of a span is in flight
 *               2. memory of a span belongs to the spill from write or read until wait
 *   memory      8 bytes a block, 96 a MiB: pd_spill_bytes; nothing later
 *
 * Spans of a device leave it by way of the host: into a file through staging, or into memory of the host
 * that takes the file's place and is neither hashed nor written anywhere. A wait then orders the device's `compute`, and not
 * the host.
 *
 *   errors      PD_NO_SPACE at once, since all of the file is preallocated; PD_CORRUPT: a block mismatched twice
 *   threads     one caller
 */
#pragma once

#include "ckpt/base/thread_pool.h"
#include "ckpt/io/vfs.h"
#include "offload/device_spans.h"

struct pd_spill;

/* Of spans that are a device's memory. All is borrowed. */
struct pd_spill_device {
    struct pd_dev *dev;
    struct pd_stream *compute, *copies_in, *copies_out;
    struct pd_stream *others;      /* on which others bring in what is written later; NULL: nobody does */
    void *memory;                  /* (pd_spill_memory_bytes) of the host, in place of a file; NULL: there is one */
    void *staging;                 /* (pd_spill_staging_bytes) of the host, pinned, at a page: on the way to a file */
    struct pd_device_spans *spans; /* NULL: nobody asks where the time goes */
    /* For spans of time: of the two streams, and of what lies in spans of memory. */
    const char *lane_in, *lane_out, *name;
};
#define PD_SPILL_STAGING_SLOTS 6u

struct pd_spill_options {
    struct pd_vfs *vfs;
    const char *path;           /* of a file that is made, opened and unlinked */
    uint64_t block_bytes;       /* of one checksum: a multiple of PD_VFS_ALIGN */
    const uint64_t *span_bytes; /* (span_count), read by new alone; 0: a span that is never used */
    uint32_t span_count;
    const char *what_in, *what_out;       /* of transfers, in traces (pd_transfer.what) */
    struct pd_thread_pool *pool;          /* that hashes; NULL: the caller alone */
    const struct pd_spill_device *device; /* NULL: spans are memory of the host. Read by new alone */
};

PD_MUST_USE pd_status pd_spill_new(const struct pd_spill_options *options, struct pd_spill **ret_spill,
                                   struct pd_error *err);
/* Waits for what is in flight. NULL is fine. */
void pd_spill_free(struct pd_spill *spill);
/* Of memory and of disk that a spill takes. */
uint64_t pd_spill_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes);
uint64_t pd_spill_file_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes);
uint64_t pd_spill_memory_bytes(const uint64_t *span_bytes, uint32_t span_count);
uint64_t pd_spill_staging_bytes(const uint64_t *span_bytes, uint32_t span_count);

/* `data`: aligned to PD_VFS_ALIGN, with room (zeros or anything) to the next multiple of it; a device's has neither to be.
 * Starts and returns. */
PD_MUST_USE pd_status pd_spill_write(struct pd_spill *spill, uint32_t span, void *data, struct pd_error *err);
PD_MUST_USE pd_status pd_spill_read(struct pd_spill *spill, uint32_t span, void *data, struct pd_error *err);
/* Nothing of the span is in flight any more; what was read is verified. Fine where nothing was. */
PD_MUST_USE pd_status pd_spill_wait(struct pd_spill *spill, uint32_t span, struct pd_error *err);
