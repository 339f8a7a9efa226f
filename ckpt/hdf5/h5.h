/* HDF5 files built in memory: groups, contiguous datasets whose place in the file is known at once, chunked datasets whose
 * chunks lie wherever the caller says, virtual datasets, static text attributes. The only way to the HDF5 library; nothing
 * of it appears here.
 *
 * A dataset reserves its bytes and writes none: the caller puts them at the returned offset. Paths are absolute; groups that
 * are missing are made. The same calls give the same bytes, whenever and wherever they are made.
 *   errors   PD_INVALID: a name HDF5 cannot hold; PD_NO_MEMORY; PD_BUG with the library's own text for anything else
 *   threads  any; calls into the library take turns
 */
#pragma once

#include "ckpt/hdf5/object_index.h"
#include "ckpt/tensor/tensor.h"

enum pd_h5_type { PD_H5_F32, PD_H5_BF16, PD_H5_F16, PD_H5_F64, PD_H5_U64, PD_H5_TEXT /* one byte */, PD_H5_TYPE_COUNT };

struct pd_h5_field { /* of a record; 8 bytes each, in this order, without gaps */
    const char *name;
    enum pd_h5_type type; /* PD_H5_U64 or PD_H5_F64 */
};

/* One source of a virtual dataset: the whole of dataset `dataset` in file `file_name` appears as `box`. */
struct pd_h5_source {
    const char *file_name, *dataset; /* borrowed for the call */
    struct pd_box box;
};

struct pd_h5_file;

/* "1.10.8": of the library in use. Metadata bytes are the same for the same calls and the same version. */
const char *pd_h5_version(void);

PD_MUST_USE pd_status pd_h5_new(struct pd_h5_file **ret_file, struct pd_error *err);
void pd_h5_free(struct pd_h5_file *file); /* abandons what was built; NULL is fine */

PD_MUST_USE pd_status pd_h5_note(struct pd_h5_file *file, const char *object, const char *name, const char *text,
                                 struct pd_error *err);
PD_MUST_USE pd_status pd_h5_note_u64(struct pd_h5_file *file, const char *object, const char *name, uint64_t value,
                                     struct pd_error *err);
/* ret_offset: of the dataset's bytes in the file. 4096 bytes and more: whole pages of its own. */
PD_MUST_USE pd_status pd_h5_dataset(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                                    const uint64_t *shape, uint64_t *ret_offset, struct pd_error *err);
/* A dataset in chunks of shape `chunk_shape`, through the filters shuffle and zstd, of which neither runs here: chunk c of
 * the grid, in row-major order, lies at chunks[c]. They must lie behind everything that this library allocates
 * (pd_h5_end_set), so a file is planned with places far away and patched later (object_index.h). ret_header: the
 * dataset's object header, which pd_h5_index_find takes. */
#define PD_H5_FAR_AWAY (UINT64_C(1) << 56)
PD_MUST_USE pd_status pd_h5_chunked(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                                    const uint64_t *shape, const uint64_t *chunk_shape, int zstd_level,
                                    const struct pd_h5_chunk *chunks, uint64_t *ret_header, struct pd_error *err);
/* `rows` records as a one-dimensional dataset of a compound type. */
PD_MUST_USE pd_status pd_h5_records(struct pd_h5_file *file, const char *path, const struct pd_h5_field *fields,
                                    uint32_t field_count, uint64_t rows, uint64_t *ret_offset, struct pd_error *err);
/* fp32 with fill value NaN. */
PD_MUST_USE pd_status pd_h5_virtual(struct pd_h5_file *file, const char *path, uint32_t ndim, const uint64_t *shape,
                                    const struct pd_h5_source *sources, uint64_t source_count, struct pd_error *err);
/* Closes the file: *ret_pages is the caller's. `file` is freed in any case. */
PD_MUST_USE pd_status pd_h5_finish(struct pd_h5_file *file, struct pd_h5_pages *ret_pages, struct pd_error *err);

/* How the shard format names the dataset of a box: "/param/model.norm.weight[0:64]". Room for PD_H5_PATH_MAX bytes.
 *   errors  PD_INVALID: the tensor's name is empty, too long or has a character that HDF5 takes for its own */
#define PD_H5_PATH_MAX 384
PD_MUST_USE pd_status pd_h5_box_path(const struct pd_tensor *tensor, enum pd_kind kind, const struct pd_box *box,
                                     char *ret_path, struct pd_error *err);
/* "/param/model.norm.weight": of the whole tensor, in the index. */
PD_MUST_USE pd_status pd_h5_tensor_path(const struct pd_tensor *tensor, enum pd_kind kind, char *ret_path,
                                        struct pd_error *err);
