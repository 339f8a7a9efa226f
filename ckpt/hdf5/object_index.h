/* Patches the chunk indexes of HDF5 files built in memory. The library lays a file out once; each save then fills in the
 * offset and size of every chunk.
 *
 * It understands only files made by h5.c: datasets of one chunk (the index is in the object header) and fixed arrays of
 * filtered chunks. The library has just written everything that is read here, so anything unexpected is a bug, found when
 * a file is planned and never later.
 *   threads  one per pages
 *   source   HDF5 File Format Specification 3.0: III.B, IV.A.2.i (version 4 layout), VII.C (fixed array) */
#pragma once

#include "ckpt/hdf5/pages.h"

struct pd_h5_chunk {
    uint64_t offset, bytes; /* in the file, as stored */
    uint32_t filter_mask;   /* bit f: filter f of the pipeline was not applied */
};

/* Location of one dataset's chunk index. */
struct pd_h5_index {
    uint64_t at;           /* of the first checksummed range: object header, or data block of the array */
    uint64_t bytes;        /* size of the object header without its checksum, or of one array entry */
    uint64_t count;        /* chunks */
    uint64_t entries_at;   /* of the entry in the object header, or of the first array entry */
    uint64_t page_entries; /* entries between checksums; 0: one checksum for all */
};

/* `header`: file offset of a chunked dataset's object header; `count`: its chunks. PD_BUG if h5.c did not make it. */
PD_MUST_USE pd_status pd_h5_index_find(const struct pd_h5_pages *pages, uint64_t header, uint64_t count,
                                       struct pd_h5_index *ret_index, struct pd_error *err);
/* Sets all chunks of the dataset, in row-major order of the chunk grid. */
PD_MUST_USE pd_status pd_h5_index_set(struct pd_h5_pages *pages, const struct pd_h5_index *index,
                                      const struct pd_h5_chunk *chunks, struct pd_error *err);
/* Sets the end of file in the superblock: chunks lie before it. */
PD_MUST_USE pd_status pd_h5_end_set(struct pd_h5_pages *pages, uint64_t end, struct pd_error *err);
