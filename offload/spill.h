/* Swaps spans of a rank's memory out to a scratch file and back, asynchronously, while others are computed on.
 *
 * The data is worthless to another launch: the file is unlinked once it is open and disappears with the process. Each
 * block of a span is hashed on its way out (XXH3-64, seeded with span, block and the number of times the span was
 * written) and verified on its way in; a block that mismatches is read once more.
 *
 *   invariants  1. a span is read only after it was written; at most one operation of a span is in flight
 *               2. memory of a span belongs to the spill from write or read until wait
 *   memory      8 bytes a block, 96 a MiB: pd_spill_bytes; nothing later
 *
 * Spans in device memory go through the host: into a file through staging, or into host memory in place of the file,
 * which is neither hashed nor written. A wait then makes the device's `compute` stream wait, not the host.
 *
 *   errors      PD_NO_SPACE at once, since the whole file is preallocated; PD_CORRUPT: a block mismatched twice
 *   threads     one caller
 */
#pragma once

#include "ckpt/base/thread_pool.h"
#include "ckpt/io/vfs.h"
#include "offload/device_spans.h"

struct pd_spill;

/* For spans in device memory. All pointers are borrowed. */
struct pd_spill_device {
    struct pd_dev *dev;
    struct pd_stream *compute, *copies_in, *copies_out;
    struct pd_stream *others;      /* stream on which other code fills memory that is written later; NULL: none */
    void *memory;                  /* (pd_spill_memory_bytes) host memory used in place of a file; NULL: use a file */
    void *staging;                 /* (pd_spill_staging_bytes) host memory, pinned, page-aligned: bounce buffers for the
                                      file */
    struct pd_device_spans *spans; /* NULL: do not measure times */
    /* Names for device spans: lanes of the two copy streams, and the content of the spilled memory. */
    const char *lane_in, *lane_out, *name;
};
#define PD_SPILL_STAGING_SLOTS 6u

struct pd_spill_options {
    struct pd_vfs *vfs;
    const char *path;           /* file to create, open and unlink */
    uint64_t block_bytes;       /* covered by one checksum: a multiple of PD_VFS_ALIGN */
    const uint64_t *span_bytes; /* (span_count), read by new alone; 0: a span never used */
    uint32_t span_count;
    const char *what_in, *what_out;       /* names of transfers in traces (pd_transfer.what) */
    struct pd_thread_pool *pool;          /* hashes; NULL: the caller does */
    const struct pd_spill_device *device; /* NULL: spans are in host memory. Read by new alone */
};

PD_MUST_USE pd_status pd_spill_new(const struct pd_spill_options *options, struct pd_spill **ret_spill,
                                   struct pd_error *err);
/* Waits for all transfers. NULL is fine. */
void pd_spill_free(struct pd_spill *spill);
/* Memory and disk that a spill takes. */
uint64_t pd_spill_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes);
uint64_t pd_spill_file_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes);
uint64_t pd_spill_memory_bytes(const uint64_t *span_bytes, uint32_t span_count);
uint64_t pd_spill_staging_bytes(const uint64_t *span_bytes, uint32_t span_count);

/* Starts the transfer and returns. `data`: aligned to PD_VFS_ALIGN, with space up to the next multiple of it, whose
 * content is ignored. Neither is needed for device memory. */
PD_MUST_USE pd_status pd_spill_write(struct pd_spill *spill, uint32_t span, void *data, struct pd_error *err);
PD_MUST_USE pd_status pd_spill_read(struct pd_spill *spill, uint32_t span, void *data, struct pd_error *err);
/* Waits until nothing of the span is in flight; a read is then verified. Fine if nothing was in flight. */
PD_MUST_USE pd_status pd_spill_wait(struct pd_spill *spill, uint32_t span, struct pd_error *err);
