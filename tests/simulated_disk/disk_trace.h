/* Traces of the simulated disk, replayed on another VFS to see whether the two agree.
 *
 * A line is an operation, its arguments, " = " and its results; handles are numbers, paths escape spaces as %20, written
 * data is x and hexadecimal digits, data that was read is its length and XXH3-64: open 1 7 /a/b = PD_OK               flags
 * of enum pd_open_flags write 1 4096 x00ff = PD_OK 2        bytes moved read 1 0 100 = PD_OK 100 <digest> stat /a/b = PD_OK
 * 0 4098 1          type, bytes, links; 0 0 for directories list /a = PD_OK b                   sorted names also: close
 * sync unlock file_stat (handle), preallocate truncate (handle, bytes), lock (handle, path), rename link symlink (two
 * paths), unlink mkdir rmdir sync_dir space (path) Only traces without faults can agree with anything.
 */
#pragma once

#include "ckpt/io/vfs.h"

/* Replays `text` below the empty directory `root` of `VFS`.
 *   errors   PD_CORRUPT: names the first line whose results differ, both results; PD_INVALID: not a trace */
PD_MUST_USE pd_status pd_disk_trace_replay(const char *text, struct pd_vfs *vfs, const char *root, uint64_t *ret_line_count,
                                           struct pd_error *err);
