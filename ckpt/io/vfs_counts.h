/* What went through a VFS, counted; and flushes as slow as those of a drive that is not here. For benches and tests.
 *
 *   threads  the VFS's; pd_vfs_counts_begin before anybody else uses it, pd_vfs_counts_end after everybody has stopped
 */
#ifndef PD_IO_VFS_COUNTS_H
#define PD_IO_VFS_COUNTS_H

#include "ckpt/io/vfs.h"

struct pd_vfs_counts; /* of one VFS */

struct pd_vfs_counted {
    uint64_t bytes_written; /* of files, handed to the implementation */
    uint64_t flushes;       /* syncs of files and of directories, failed ones too */
    uint64_t bytes_read;    /* of files, asked of the implementation */
};

PD_MUST_USE pd_status pd_vfs_counts_begin(struct pd_vfs *vfs, struct pd_vfs_counts **ret_counts, struct pd_error *err);
/* The VFS stays open, uncounted; its queues are closed. NULL is fine. */
void pd_vfs_counts_end(struct pd_vfs_counts *counts);
/* So far. */
struct pd_vfs_counted pd_vfs_counts_now(struct pd_vfs_counts *counts);
/* From here on every flush takes so much longer, in the thread that asked for it. */
void pd_vfs_counts_slow_flushes(struct pd_vfs_counts *counts, uint32_t milliseconds);

#endif
