/* Measures what the disk can do: direct transfers of whole blocks, many in flight, no checksums, no format. This is the
 * ceiling of saving, loading and converting. Compare with
 *   fio --ioengine=io_uring --direct=1 --bs=4M --iodepth=8 --rw=write --fsync_on_close=1
 *
 *   memory   depth * block_bytes, mapped and touched when the bench is created, registered with the queue
 *   threads  one caller, the one that created it
 */
#pragma once

#include "ckpt/io/vfs.h"

#define PD_RAW_BLOCK_BYTES (UINT64_C(4) << 20)
#define PD_RAW_DEPTH 8u

struct pd_raw_bench;

/* block_bytes 0: PD_RAW_BLOCK_BYTES; depth 0: PD_RAW_DEPTH; at most the depth of the VFS's queues. */
PD_MUST_USE pd_status pd_raw_bench_new(struct pd_vfs *vfs, uint64_t block_bytes, uint32_t depth,
                                       struct pd_raw_bench **ret_bench, struct pd_error *err);
void pd_raw_bench_free(struct pd_raw_bench *bench);

enum pd_raw_state {
    PD_RAW_FRESH,    /* a new file: created, preallocated, written (an old one is removed before the clock starts) */
    PD_RAW_RECYCLED, /* overwrites a file of at least this size in place (written before the clock starts) */
};

/* Returns the time from open to the end of fdatasync and close. `bytes` is rounded up to PD_VFS_ALIGN; the file stays. */
PD_MUST_USE pd_status pd_raw_bench_write(struct pd_raw_bench *bench, const char *path, uint64_t bytes,
                                         enum pd_raw_state state, double *ret_seconds, struct pd_error *err);
/* Returns the time to open, read the first `bytes` of an existing file, and close.   errors  PD_CORRUPT: it is shorter */
PD_MUST_USE pd_status pd_raw_bench_read(struct pd_raw_bench *bench, const char *path, uint64_t bytes, double *ret_seconds,
                                        struct pd_error *err);
/* Returns the time to read the first `bytes` of one file while overwriting as many of another, half of the depth each,
 * open to close, without a sync: the I/O of an update of state in files. If needed, both files are written before the
 * clock starts. */
PD_MUST_USE pd_status pd_raw_bench_mixed(struct pd_raw_bench *bench, const char *read_path, const char *write_path,
                                         uint64_t bytes, double *ret_seconds, struct pd_error *err);
