/* The table of foreign formats. A row reads metadata into a catalog, and plans the files of an export as a catalog. */
#pragma once

#include "resharder/catalog/catalog.h"

/* What to write: tensors (names, kinds, shapes, element types), texts and counters, without files and pieces. */
struct pd_format_plan {
    const char *directory; /* being prepared; exists and is empty */
    struct pd_catalog
        *wanted; /* borrowed; the writer adds files (under `directory`) and pieces, and adapts tensors to the format: a
                    padded shape[0], another element type */
    uint64_t shard_bytes_max; /* most bytes of a file, if the format has several; 0: as the format's own tools do */
};

struct pd_format {
    const char *name;   /* --format: "safetensors", "dcp", "torchtitan", "megatron", "universal", "gguf", .. */
    const char *about;  /* half a line for --help and errors */
    bool is_form;       /* a form of the format before it in the table, as which it is read; written by its own name */
    bool holds_moments; /* can write exp_avg and exp_avg_sq */
    const char *file;   /* for a one-file format: its name in a plan's directory; NULL: the directory is the checkpoint */
    /* Looks at names and first bytes only; `path` exists. False if it cannot tell. */
    bool (*recognizes)(struct pd_vfs *vfs, const char *path);
    /* Fills an initialised catalog; the caller finishes and deinits it, even after errors.
     *   errors  PD_CORRUPT names file and place; PD_UNSUPPORTED what the format has and perdure does not read; PD_IO */
    pd_status (*read)(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err);

    /* Writing takes three steps. A read-only format has pd_format_not_written here, which reports that. plan: chooses the
     * place of every tensor. ret_state: private to the writer, freed by `finish`, even if plan fails (NULL: out of
     * memory). */
    pd_status (*plan)(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
    /* Receives the bytes written to a piece's file, in ascending order for each tensor, for checksums inside the format.
     * One thread a tensor. */
    void (*observe)(void *state, uint32_t tensor, const void *data, uint64_t bytes);
    /* Called after all pieces are written. Writes headers, directories and metadata (in space left by plan, or own files)
     * unsynced: the caller syncs files and directory. If `mine` is not PD_OK, only frees. */
    pd_status (*finish)(void *state, pd_status mine, struct pd_error *err);
};

extern const struct pd_format *const pd_formats[];        /* NULL-terminated */
const struct pd_format *pd_format_find(const char *name); /* NULL if there is none */
/* "safetensors, megatron, ...": foreign formats that can be read, for messages. */
#define PD_FORMATS_NAMES_MAX 160
void pd_format_list_read(char ret_names[PD_FORMATS_NAMES_MAX]);
/* NULL: none recognises it; does not look why. */
const struct pd_format *pd_format_recognize(struct pd_vfs *vfs, const char *path);
/* Returns the format that recognises `path` (file or directory).   errors  PD_NOT_FOUND; PD_INVALID: none does; says what
 * was expected and found */
PD_MUST_USE pd_status pd_format_of(struct pd_vfs *vfs, const char *path, const struct pd_format **ret_format,
                                   struct pd_error *err);

#define PD_LEGACY_MEGATRON                                                                                               \
    "is Megatron's old form, a file for each rank; Megatron writes it again as torch_dist, which is read: its training " \
    "command with --ckpt-convert-format torch_dist --ckpt-convert-save OUT"

/* Slots of a read-only format. */
pd_status pd_format_not_written(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
void pd_format_observe_nothing(void *state, uint32_t tensor, const void *data, uint64_t bytes);
pd_status pd_format_finish_nothing(void *state, pd_status mine, struct pd_error *err);
