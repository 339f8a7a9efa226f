/* The catalog of a foreign checkpoint: its tensors and the places of their bytes. Readers of formats fill it, everything
 * else reads it. It holds no tensor data.
 *
 *   init -> add files, tensors with their pieces, texts, counters -> finish (checks and sorts) -> read -> deinit
 *
 *   threads  one while it is filled; any once it is finished
 *   memory   some hundred bytes a tensor, a piece, a file; texts in full, up to PD_CATALOG_TEXT_MAX each */
#pragma once

#include "ckpt/io/vfs.h"
#include "ckpt/tensor/tensor.h"
#include "resharder/catalog/element.h"

#define PD_FOREIGN_DIMS_MAX 8
#define PD_FOREIGN_NAME_MAX 512 /* terminator included */
#define PD_CATALOG_TENSORS_MAX (1u << 20)
#define PD_CATALOG_PIECES_MAX (1u << 24)
#define PD_CATALOG_TEXT_MAX (UINT64_C(64) << 20)

/* A dense range of a tensor's bytes in one file.
 *   a box     count[] from start[] on, row-major by `stride` (elements of the file; 0 everywhere: dense)
 *   a range   is_range: elements [start[0], start[0] + count[0]) of the tensor's row-major order (flat partitions) */
struct pd_piece {
    uint32_t file;
    uint64_t offset; /* in bytes, of element `start` in the file */
    bool is_range;
    uint64_t start[PD_FOREIGN_DIMS_MAX], count[PD_FOREIGN_DIMS_MAX], stride[PD_FOREIGN_DIMS_MAX];
};

struct pd_foreign_tensor {
    char *name;        /* as in the format, without the part that gives the kind; owned */
    enum pd_kind kind; /* PD_PARAM for anything but a moment */
    enum pd_element element;
    bool is_bytes;                       /* bytes that are no numbers */
    uint32_t ndim;                       /* 0: a scalar */
    uint64_t shape[PD_FOREIGN_DIMS_MAX]; /* unused dimensions are 1 */
    uint64_t piece_begin, piece_count;   /* index range in the catalog's pieces, set by pd_catalog_finish */
};

struct pd_catalog_file {
    char *path; /* owned */
    uint64_t bytes;
};

/* Small files beside tensors: "config.json", "generation_config.json", "tokenizer.json", "gguf" as JSON, ... */
struct pd_catalog_text {
    char *name; /* owned */
    char *text; /* (bytes), terminated after them; owned */
    uint64_t bytes;
};

/* Counters of a run that some formats store; has_* tells which ones are known. */
struct pd_catalog_counters {
    bool has_step, has_updates, has_samples, has_tokens, has_loss_scale;
    uint64_t step, updates, samples, tokens;
    double loss_scale;
};

/* AdamW settings of the run that saved it, for an export whose format stores them. */
struct pd_catalog_adam {
    bool is_known;
    double rate, beta1, beta2, epsilon, decay;
};

/* For a format whose bytes are verified or transformed on reading. Pieces are numbered as in the finished catalog.
 *   threads  any */
struct pd_catalog_source {
    void *context; /* freed with the catalog */
    /* True if the piece's bytes are in its file as they are: read them there, then call check. */
    bool (*is_plain)(void *context, uint64_t piece);
    /* Checks data: bytes [offset, offset + bytes) of the piece, up to the end of their last page. offset % 64 KiB == 0. */
    pd_status (*check)(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data, struct pd_error *err);
    /* Reads and checks the same bytes of a piece that is not plain; data has space for `bytes` rounded up to a page. */
    pd_status (*read)(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data, struct pd_error *err);
    void (*free)(void *context);
};

struct pd_catalog {
    const char *format;            /* its name, static */
    const char *prefix;            /* name prefix of the wanted model, if there are several; NULL: only one. Borrowed */
    struct pd_catalog_file *files; /* (file_count) */
    uint32_t file_count;
    struct pd_foreign_tensor *tensors; /* (tensor_count) in the order of the format; unique by (name, kind) */
    uint32_t tensor_count;
    struct pd_piece *pieces; /* (piece_count); after finish the pieces of a tensor are adjacent, ascending by start */
    uint64_t piece_count;
    struct pd_catalog_text *texts; /* (text_count) */
    uint32_t text_count;
    struct pd_catalog_counters counters;
    struct pd_catalog_adam adam;
    char **unmapped; /* (unmapped_count) items of the format that perdure does not use: "optimizer.param_groups.0.betas" */
    uint32_t unmapped_count;
    struct pd_catalog_source source; /* all NULL: read bytes from the files, unchecked */
    uint32_t *by_name;               /* (tensor_count) sorted by finish; internal */
    uint32_t *piece_tensors;         /* (piece_count) until finish: the tensor of each piece; internal */
};

void pd_catalog_init(struct pd_catalog *catalog, const char *format);
void pd_catalog_deinit(struct pd_catalog *catalog);

/* All copy their arguments.   errors  PD_NO_MEMORY; PD_CORRUPT: more than the maxima above, a name too long or empty, an
 * overflowing product: the message names tensor and file */
PD_MUST_USE pd_status pd_catalog_add_file(struct pd_catalog *catalog, const char *path, uint64_t bytes, uint32_t *ret_file,
                                          struct pd_error *err);
/* Ignores piece_begin and piece_count of `tensor`.   ret_tensor  may be NULL */
PD_MUST_USE pd_status pd_catalog_add_tensor(struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor,
                                            uint32_t *ret_tensor, struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_piece(struct pd_catalog *catalog, uint32_t tensor, const struct pd_piece *piece,
                                           struct pd_error *err);
/* Changes a tensor without pieces to what a format stores: another element, and shape[0] padded to `rows`. */
void pd_catalog_store_as(struct pd_catalog *catalog, uint32_t tensor, enum pd_element element, uint64_t rows);
/* Stores a tensor dense in one place, the most frequent case: place an existing one, or add a new one. */
PD_MUST_USE pd_status pd_catalog_place(struct pd_catalog *catalog, uint32_t tensor, uint32_t file, uint64_t offset,
                                       struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_dense(struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor, uint32_t file,
                                           uint64_t offset, struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_text(struct pd_catalog *catalog, const char *name, const char *text, uint64_t bytes,
                                          struct pd_error *err);
struct pd_json_writer;
/* Adds the writer's text, unless `mine` is an error; deinits the writer. */
PD_MUST_USE pd_status pd_catalog_add_json(struct pd_catalog *catalog, const char *name, struct pd_json_writer *writer,
                                          pd_status mine, struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_unmapped(struct pd_catalog *catalog, const char *name, struct pd_error *err);
/* Lists a tensor of an unsupported type, so that only a model that needs it is refused.   type  as the format names it */
PD_MUST_USE pd_status pd_catalog_add_unread(struct pd_catalog *catalog, const char *tensor, const char *type,
                                            struct pd_error *err);
/* Removes entries whose names contain `part` from the unmapped list. Returns how many. */
uint32_t pd_catalog_drop_unmapped(struct pd_catalog *catalog, const char *part);

/* Removes the prefixes of module wrappers from names (torch.compile, checkpointed activations, FSDP). Then checks: names
 * are unique, pieces lie inside their tensor and file, quantised types have whole blocks in the innermost dimension, and
 * the pieces of a tensor cover each element exactly once (of equal boxes, which are replicas, it keeps the first).
 *   errors  PD_CORRUPT names tensor, file and place */
PD_MUST_USE pd_status pd_catalog_finish(struct pd_catalog *catalog, struct pd_error *err);

/* Returns the tensor's index in a finished catalog, or -1. */
int64_t pd_catalog_find(const struct pd_catalog *catalog, const char *name, enum pd_kind kind);
const struct pd_catalog_text *pd_catalog_text(const struct pd_catalog *catalog, const char *name); /* NULL if absent */
uint64_t pd_foreign_elements(const struct pd_foreign_tensor *tensor);
uint64_t pd_foreign_bytes(const struct pd_foreign_tensor *tensor); /* as stored */
/* Bytes from the piece's offset to the end of its last element. */
uint64_t pd_piece_bytes(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece);
