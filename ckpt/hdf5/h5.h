/* Builds HDF5 files in memory: groups, contiguous datasets whose file offset is known at once, chunked datasets whose
 * chunks lie where the caller says, virtual datasets, static text attributes. It hides the HDF5 library from everything
 * else.
 *
 * Creating a dataset reserves its bytes but writes none: the caller writes them at the returned offset. Paths are
 * absolute; missing groups are created. The same calls always give the same bytes.
 *   errors   PD_INVALID: a name HDF5 cannot hold; PD_NO_MEMORY; PD_BUG with the library's own text for anything else
 *   threads  any; calls into the library take turns
 */
#pragma once

#include "ckpt/hdf5/object_index.h"
#include "ckpt/tensor/tensor.h"

enum pd_h5_type {
    PD_H5_F32,
    PD_H5_BF16,
    PD_H5_F16,
    PD_H5_F64,
    PD_H5_U64,
    PD_H5_TEXT, /* one byte */
    PD_H5_F8_E5M2,
    PD_H5_I8,
    PD_H5_I16,
    PD_H5_I32,
    PD_H5_I64,
    PD_H5_U8,
    PD_H5_U16,
    PD_H5_U32,
    PD_H5_BOOL, /* an enumeration of a byte, FALSE and TRUE, as h5py writes it */
    PD_H5_C64,  /* a compound of r and i, as h5py writes it */
    PD_H5_C128,
    PD_H5_TYPE_COUNT
};
/* As it lies in a file. HDF5 has no floats like fp8_e4m3, whose largest exponent is of numbers: those are bytes. */
enum pd_h5_type pd_h5_type_of(enum pd_dtype dtype);
/* As people see whole tensors: fp32 for what it holds exactly, else as it is. */
enum pd_h5_type pd_h5_view_type_of(enum pd_dtype dtype);

struct pd_h5_field { /* a field of a record; fields are 8 bytes each, in this order, without gaps */
    const char *name;
    enum pd_h5_type type; /* PD_H5_U64 or PD_H5_F64 */
};

/* One source of a virtual dataset: all of dataset `dataset` in file `file_name` appears as `box`. */
struct pd_h5_source {
    const char *file_name, *dataset; /* borrowed for the call */
    struct pd_box box;
};

struct pd_h5_file;

/* Version of the library in use: "1.10.8". The same calls and version give the same metadata bytes. */
const char *pd_h5_version(void);

PD_MUST_USE pd_status pd_h5_new(struct pd_h5_file **ret_file, struct pd_error *err);
void pd_h5_free(struct pd_h5_file *file); /* abandons the file being built; NULL is fine */

PD_MUST_USE pd_status pd_h5_note(struct pd_h5_file *file, const char *object, const char *name, const char *text,
                                 struct pd_error *err);
PD_MUST_USE pd_status pd_h5_note_u64(struct pd_h5_file *file, const char *object, const char *name, uint64_t value,
                                     struct pd_error *err);
/* ret_offset: file offset of the dataset's bytes. A dataset of 4096 bytes or more has pages of its own. */
PD_MUST_USE pd_status pd_h5_dataset(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                                    const uint64_t *shape, uint64_t *ret_offset, struct pd_error *err);
/* Adds a dataset in chunks of shape `chunk_shape`, declared with the filters shuffle and zstd; neither runs here. Chunk c
 * of the grid, in row-major order, lies at chunks[c]. Chunks must follow everything that this library allocates
 * (pd_h5_end_set), so a file is planned with offsets far away and patched later (object_index.h). ret_header: the
 * dataset's object header, for pd_h5_index_find. */
#define PD_H5_FAR_AWAY (UINT64_C(1) << 56)
PD_MUST_USE pd_status pd_h5_chunked(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                                    const uint64_t *shape, const uint64_t *chunk_shape, int zstd_level,
                                    const struct pd_h5_chunk *chunks, uint64_t *ret_header, struct pd_error *err);
/* `rows` records as a one-dimensional dataset of a compound type. */
PD_MUST_USE pd_status pd_h5_records(struct pd_h5_file *file, const char *path, const struct pd_h5_field *fields,
                                    uint32_t field_count, uint64_t rows, uint64_t *ret_offset, struct pd_error *err);
/* Fill value: NaN of floats, else 0. ndim may be PD_SHAPE_DIMS_MAX: the sources have the last dimensions joined. */
PD_MUST_USE pd_status pd_h5_virtual(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                                    const uint64_t *shape, const struct pd_h5_source *sources, uint64_t source_count,
                                    struct pd_error *err);
/* Closes the file and gives *ret_pages to the caller. `file` is freed even on failure. */
PD_MUST_USE pd_status pd_h5_finish(struct pd_h5_file *file, struct pd_h5_pages *ret_pages, struct pd_error *err);

/* Dataset path of a box in the shard format: "/param/model.norm.weight[0:64]". ret_path holds PD_H5_PATH_MAX bytes.
 *   errors  PD_INVALID: the tensor's name is empty, too long, or has a character that HDF5 reserves */
#define PD_H5_PATH_MAX 384
PD_MUST_USE pd_status pd_h5_box_path(const struct pd_tensor *tensor, enum pd_kind kind, const struct pd_box *box,
                                     char *ret_path, struct pd_error *err);
/* Dataset path of a whole tensor in the index: "/param/model.norm.weight". */
PD_MUST_USE pd_status pd_h5_tensor_path(const struct pd_tensor *tensor, enum pd_kind kind, char *ret_path,
                                        struct pd_error *err);
