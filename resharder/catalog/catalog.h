/* The catalog of a foreign checkpoint: what there is and where its bytes lie. Readers of formats fill it, everything else
 * reads it. It holds no data of tensors.
 *
 *   init -> add files, tensors with their pieces, texts, counters -> finish (checks and sorts) -> read -> deinit
 *
 *   threads  one while it is filled; any once it is finished
 *   memory   some hundred bytes a tensor, a piece, a file; texts as they are, up to PD_CATALOG_TEXT_MAX each */
#pragma once

#include "ckpt/io/vfs.h"
#include "ckpt/tensor/tensor.h"
#include "resharder/catalog/element.h"

#define PD_FOREIGN_DIMS_MAX 8
#define PD_FOREIGN_NAME_MAX 512 /* terminator included */
#define PD_CATALOG_TENSORS_MAX (1u << 20)
#define PD_CATALOG_PIECES_MAX (1u << 24)
#define PD_CATALOG_TEXT_MAX (UINT64_C(64) << 20)

/* Bytes of a tensor that lie dense in one file.
 *   a box     count[] from start[] on, row-major by `stride` (elements of the file; 0 everywhere: dense)
 *   a range   is_range: elements [start[0], start[0] + count[0]) of the tensor's row-major order (flat partitions) */
struct pd_piece {
    uint32_t file;
    uint64_t offset; /* bytes in the file, of element `start` */
    bool is_range;
    uint64_t start[PD_FOREIGN_DIMS_MAX], count[PD_FOREIGN_DIMS_MAX], stride[PD_FOREIGN_DIMS_MAX];
};

struct pd_foreign_tensor {
    char *name;        /* as the format has it, without what says the kind; owned */
    enum pd_kind kind; /* PD_PARAM for all that is neither moment */
    enum pd_element element;
    uint32_t ndim;                       /* 0: a scalar */
    uint64_t shape[PD_FOREIGN_DIMS_MAX]; /* unused dimensions are 1 */
    uint64_t piece_begin, piece_count;   /* in the catalog's pieces, set by pd_catalog_finish */
};

struct pd_catalog_file {
    char *path; /* owned */
    uint64_t bytes;
};

/* Small things beside tensors: "config.json", "generation_config.json", "tokenizer.json", "gguf" as JSON, ... */
struct pd_catalog_text {
    char *name; /* owned */
    char *text; /* (bytes), terminated beyond them; owned */
    uint64_t bytes;
};

/* Numbers of a run that formats may have; has_* says whether this one did. */
struct pd_catalog_counters {
    bool has_step, has_updates, has_samples, has_tokens, has_loss_scale;
    uint64_t step, updates, samples, tokens;
    double loss_scale;
};

/* AdamW of the run that saved it, for an export whose format keeps that. */
struct pd_catalog_adam {
    bool is_known;
    double rate, beta1, beta2, epsilon, decay;
};

/* Of a format whose bytes are checked, or are not in the file as they are. Pieces are counted as in the finished catalog. */
struct pd_catalog_source {
    void *context; /* freed with the catalog */
    /* Whether the piece's bytes lie in its file; then they are read from there and checked. */
    bool (*is_plain)(void *context, uint64_t piece);
    /* data: bytes [offset, offset + bytes) of the piece, up to the end of their last page; offset is a multiple of 64 KiB. */
    pd_status (*check)(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data, struct pd_error *err);
    /* The same bytes, read and checked, for pieces that are not plain; room for `bytes` rounded up to a page. */
    pd_status (*read)(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data, struct pd_error *err);
    void (*free)(void *context);
};

struct pd_catalog {
    const char *format; /* its name, static */
    const char *prefix; /* of the names of the one model that is wanted among several; NULL: there is one. Borrowed */
    struct pd_catalog_file *files; /* (file_count) */
    uint32_t file_count;
    struct pd_foreign_tensor *tensors; /* (tensor_count) in the order of the format; by (name, kind) unique */
    uint32_t tensor_count;
    struct pd_piece *pieces; /* (piece_count); once it is finished those of a tensor lie side by side, ascending by start */
    uint64_t piece_count;
    struct pd_catalog_text *texts; /* (text_count) */
    uint32_t text_count;
    struct pd_catalog_counters counters;
    struct pd_catalog_adam adam;
    char **
        unmapped; /* (unmapped_count) what the format holds and perdure has no place for: "optimizer.param_groups.0.betas" */
    uint32_t unmapped_count;
    struct pd_catalog_source source; /* all NULL: bytes lie in the files, and nobody checks them */
    uint32_t *by_name;               /* (tensor_count) sorted once it is finished; the catalog's own */
    uint32_t *piece_tensors;         /* (piece_count) until it is finished: the tensor of each; the catalog's own */
};

void pd_catalog_init(struct pd_catalog *catalog, const char *format);
void pd_catalog_deinit(struct pd_catalog *catalog);

/* All copy what they are given.   errors  PD_NO_MEMORY; PD_CORRUPT: more than the maxima above, a name too long or empty, a
 * product that overflows: the message names tensor and file */
PD_MUST_USE pd_status pd_catalog_add_file(struct pd_catalog *catalog, const char *path, uint64_t bytes, uint32_t *ret_file,
                                          struct pd_error *err);
/* piece_begin and piece_count of `tensor` are ignored.   ret_tensor  may be NULL */
PD_MUST_USE pd_status pd_catalog_add_tensor(struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor,
                                            uint32_t *ret_tensor, struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_piece(struct pd_catalog *catalog, uint32_t tensor, const struct pd_piece *piece,
                                           struct pd_error *err);
/* What a format makes of a tensor that has no pieces yet: another element, and shape[0] that is padded to `rows`. */
void pd_catalog_store_as(struct pd_catalog *catalog, uint32_t tensor, enum pd_element element, uint64_t rows);
/* A tensor lies dense and whole at one place, the most frequent case: one that is there, or a new one. */
PD_MUST_USE pd_status pd_catalog_place(struct pd_catalog *catalog, uint32_t tensor, uint32_t file, uint64_t offset,
                                       struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_dense(struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor, uint32_t file,
                                           uint64_t offset, struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_text(struct pd_catalog *catalog, const char *name, const char *text, uint64_t bytes,
                                          struct pd_error *err);
struct pd_json_writer;
/* Adds what was written, unless `mine` is an error already; deinits the writer. */
PD_MUST_USE pd_status pd_catalog_add_json(struct pd_catalog *catalog, const char *name, struct pd_json_writer *writer,
                                          pd_status mine, struct pd_error *err);
PD_MUST_USE pd_status pd_catalog_add_unmapped(struct pd_catalog *catalog, const char *name, struct pd_error *err);
/* A tensor of a type that is not read is listed too: only a model that needs it is refused.   type  as the format names it */
PD_MUST_USE pd_status pd_catalog_add_unread(struct pd_catalog *catalog, const char *tensor, const char *type,
                                            struct pd_error *err);
/* Takes those whose names contain `part` off the list again. Returns how many. */
uint32_t pd_catalog_drop_unmapped(struct pd_catalog *catalog, const char *part);

/* Takes out of names what wrappers of modules put there (torch.compile, checkpointed activations, FSDP), then checks the whole:
 * names are unique, every piece lies inside its tensor and its file, blocks of quantised types are whole in the innermost
 * dimension, the pieces of a tensor cover each element exactly once (replicas that are equal boxes count as one: the first is
 * kept).   errors  PD_CORRUPT names tensor, file and place */
PD_MUST_USE pd_status pd_catalog_finish(struct pd_catalog *catalog, struct pd_error *err);

/* Of a finished catalog: number of the tensor, or -1. */
int64_t pd_catalog_find(const struct pd_catalog *catalog, const char *name, enum pd_kind kind);
const struct pd_catalog_text *pd_catalog_text(const struct pd_catalog *catalog, const char *name); /* NULL: there is none */
uint64_t pd_foreign_elements(const struct pd_foreign_tensor *tensor);
uint64_t pd_foreign_bytes(const struct pd_foreign_tensor *tensor); /* as stored */
/* From the piece's offset to behind its last element. */
uint64_t pd_piece_bytes(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece);
