/* What the disk can do: direct transfers of whole blocks, many in flight, no checksums, no format. The ceiling of
 * saving, loading and converting, and the numbers to compare with
 *   fio --ioengine=io_uring --direct=1 --bs=4M --iodepth=8 --rw=write --fsync_on_close=1
 *
 *   memory   depth * block_bytes, mapped and touched when the bench is made, registered with the queue
 *   threads  one caller, the one that made it
 */
#pragma once

#include "ckpt/io/vfs.h"

#define PD_RAW_BLOCK_BYTES (UINT64_C(4) << 20)
#define PD_RAW_DEPTH 8u

struct pd_raw_bench;

/* block_bytes 0: PD_RAW_BLOCK_BYTES; depth 0: PD_RAW_DEPTH; at most what the VFS's queues hold. */
PD_MUST_USE pd_status pd_raw_bench_new(struct pd_vfs *vfs, uint64_t block_bytes, uint32_t depth,
                                       struct pd_raw_bench **ret_bench, struct pd_error *err);
void pd_raw_bench_free(struct pd_raw_bench *bench);

enum pd_raw_state {
    PD_RAW_FRESH,    /* no file before; created, preallocated, written (an older one is removed before the clock starts) */
    PD_RAW_RECYCLED, /* a file of at least this size, written before, is overwritten in place (made before the clock starts)
                      */
};

/* Seconds from open to the end of fdatasync and close. `bytes` is rounded up to PD_VFS_ALIGN; the file stays. */
PD_MUST_USE pd_status pd_raw_bench_write(struct pd_raw_bench *bench, const char *path, uint64_t bytes,
                                         enum pd_raw_state state, double *ret_seconds, struct pd_error *err);
/* Seconds to read the first `bytes` of an existing file, open and close included.  errors  PD_CORRUPT: it is shorter */
PD_MUST_USE pd_status pd_raw_bench_read(struct pd_raw_bench *bench, const char *path, uint64_t bytes, double *ret_seconds,
                                        struct pd_error *err);
/* Seconds to read the first `bytes` of one file and to overwrite as many of another at once, half of the depth each, open to
 * close, without a sync: what an update of state in files moves. Both files were written before, or are before the clock
 * starts. */
PD_MUST_USE pd_status pd_raw_bench_mixed(struct pd_raw_bench *bench, const char *read_path, const char *write_path,
                                         uint64_t bytes, double *ret_seconds, struct pd_error *err);
