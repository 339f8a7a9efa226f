/* Files of torch.save (torch 1.6 and later): an archive of a pickle and the bytes of storages. Tensors in the pickle are
 * calls of torch._utils._rebuild_tensor_v2 on persistent storages; here they become places in the file. */
#pragma once

#include "resharder/catalog/catalog.h"
#include "resharder/torch/pickle.h"
#include "resharder/torch/pickle_write.h"
#include "resharder/torch/zip.h"

struct pd_torch_archive {
    struct pd_file *file;  /* borrowed, or `owned` */
    struct pd_file *owned; /* NULL: not owned */
    const char *path;      /* borrowed */
    struct pd_zip zip;
    struct pd_pickle *pickle;
};

/* Opens the archive in bytes [begin, end) of `file`. Both are borrowed until close.
 *   errors  PD_CORRUPT; PD_UNSUPPORTED: big-endian, compressed; PD_IO; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_torch_open(struct pd_file *file, const char *path, uint64_t begin, uint64_t end,
                                    struct pd_torch_archive *ret_archive, struct pd_error *err);
/* Opens a file that is one archive: zip.end is its size. path borrowed until close */
PD_MUST_USE pd_status pd_torch_open_file(struct pd_vfs *vfs, const char *path, struct pd_torch_archive *ret_archive,
                                         struct pd_error *err);
void pd_torch_close(struct pd_torch_archive *archive);

struct pd_torch_tensor {
    enum pd_element element;
    uint32_t ndim;
    uint64_t shape[PD_FOREIGN_DIMS_MAX], stride[PD_FOREIGN_DIMS_MAX]; /* in elements; unused: 1 and 0 */
    uint64_t offset;                                                  /* in the file, of the first element */
};
/* `name` identifies the tensor in messages.
 *   errors  PD_CORRUPT: it reaches beyond its storage; PD_UNSUPPORTED: an element type or dimensions that are not read */
PD_MUST_USE pd_status pd_torch_tensor(const struct pd_torch_archive *archive, const char *name,
                                      const struct pd_pickle_node *node, struct pd_torch_tensor *ret_tensor,
                                      struct pd_error *err);
/* Returns the tensor as a box of `file`, a number of the catalog; it starts at 0. */
struct pd_piece pd_torch_piece(const struct pd_torch_tensor *tensor, uint32_t file);
/* Reads a tensor of one element, or a plain number.   errors  as above; PD_CORRUPT: it is neither */
PD_MUST_USE pd_status pd_torch_number(const struct pd_torch_archive *archive, const char *name,
                                      const struct pd_pickle_node *node, double *ret, struct pd_error *err);
/* Converts steps or tokens, which torch stores as floats. False, with *ret unchanged: negative, not finite, or >= 2^63. */
bool pd_torch_is_count(double number, uint64_t *ret);

/* ---- writing: an archive of one dense, row-major tensor ---- */

enum { PD_TORCH_RECORDS = 4 }; /* data.pkl, byteorder, data/0, version */
struct pd_torch_output {
    struct pd_zip_record records[PD_TORCH_RECORDS];
    unsigned char *pickle; /* owned */
    uint64_t bytes;        /* of the archive */
    uint64_t data_offset;  /* of the tensor's bytes in the archive */
};
/* Plans all offsets. key of the dictionary that holds the tensor alone; NULL: no dictionary.   errors  PD_NO_MEMORY */
PD_MUST_USE pd_status pd_torch_plan(const struct pd_foreign_tensor *tensor, const char *key,
                                    struct pd_torch_output *ret_output, struct pd_error *err);
/* Writes all but the tensor's bytes, whose CRC-32 is `crc`, into `file` at `begin`. */
PD_MUST_USE pd_status pd_torch_write(struct pd_torch_output *output, uint32_t crc, struct pd_file *file, uint64_t begin,
                                     struct pd_error *err);
void pd_torch_output_deinit(struct pd_torch_output *output);

/* Makes a small archive in memory, as below.   ret_text  (*ret_bytes) malloc'ed, the caller's */
PD_MUST_USE pd_status pd_torch_make_small(const struct pd_pickle_writer *pickle, const void *data, uint64_t data_bytes,
                                          char **ret_text, uint64_t *ret_bytes, struct pd_error *err);
/* Writes a new small file with `pickle` (finished), and with `data` (data_bytes) as storage 0 of its one tensor; NULL: no
 * tensor. Synced. */
PD_MUST_USE pd_status pd_torch_write_small(struct pd_vfs *vfs, const char *path, const struct pd_pickle_writer *pickle,
                                           const void *data, uint64_t data_bytes, struct pd_error *err);
/* Appends the dense tensor over all of storage 0 to a pickle. */
void pd_torch_put_tensor(struct pd_pickle_writer *w, const struct pd_foreign_tensor *tensor);

/* Parses "torch.float32"; false: perdure has no such element. */
bool pd_torch_element(const char *global, enum pd_element *ret_element);
const char *pd_torch_dtype(enum pd_element element); /* "float32"; for types that torch has */
