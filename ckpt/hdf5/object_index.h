/* The chunk indexes of HDF5 files that were built in memory, patched in place: a file is laid out once, by the library, and
 * each save then says where its chunks came to lie and how long they are.
 *
 * Only what h5.c makes is understood: datasets of one chunk (the index is part of the object header) and fixed arrays of
 * filtered chunks. Everything that is read here was written by the library a moment ago; what does not look as expected is a
 * bug, found when a file is planned and never later.
 *   threads  one per pages
 *   source   HDF5 File Format Specification 3.0: III.B, IV.A.2.i (version 4 layout), VII.C (fixed array) */
#pragma once

#include "ckpt/hdf5/pages.h"

struct pd_h5_chunk {
    uint64_t offset, bytes; /* in the file, as stored */
    uint32_t filter_mask;   /* bit f: filter f of the pipeline was not applied */
};

/* Where the index of one dataset lies. */
struct pd_h5_index {
    uint64_t at;           /* of the first sealed stretch: object header, or data block of the array */
    uint64_t bytes;        /* of the object header without its checksum; of an entry of the array */
    uint64_t count;        /* chunks */
    uint64_t entries_at;   /* of the entry in the object header, or of the array's first */
    uint64_t page_entries; /* entries between checksums; 0: one stretch */
};

/* `header`: file offset of a chunked dataset's object header, `count`: its chunks.  PD_BUG when it is none of ours. */
PD_MUST_USE pd_status pd_h5_index_find(const struct pd_h5_pages *pages, uint64_t header, uint64_t count,
                                       struct pd_h5_index *ret_index, struct pd_error *err);
/* All chunks of the dataset, in row-major order of the grid of chunks. */
PD_MUST_USE pd_status pd_h5_index_set(struct pd_h5_pages *pages, const struct pd_h5_index *index,
                                      const struct pd_h5_chunk *chunks, struct pd_error *err);
/* The end of the file in the superblock: chunks lie before it. */
PD_MUST_USE pd_status pd_h5_end_set(struct pd_h5_pages *pages, uint64_t end, struct pd_error *err);
