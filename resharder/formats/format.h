/* The table of foreign formats. A row reads metadata into a catalog, and plans the files of an export as a catalog. */
#pragma once

#include "resharder/catalog/catalog.h"

/* What is to be written: tensors (names, kinds, shapes, element types), texts and counters, without files and pieces. */
struct pd_format_plan {
    const char *directory; /* being prepared; exists and is empty */
    struct pd_catalog
        *wanted; /* borrowed; the writer fills in files (under `directory`) and pieces, and where the format pads or
                                * has one type it says so: a longer shape[0], another element */
    uint64_t shard_bytes_max; /* of a file, where the format has several; 0: as the format's own tools do */
};

struct pd_format {
    const char *name;  /* of --format: "safetensors", "dcp", "megatron", "deepspeed", "universal", "gguf", "llmc", "torch" */
    const char *about; /* half a line for --help and errors */
    bool holds_moments; /* what is written may have exp_avg and exp_avg_sq */
    const char *file;   /* where a checkpoint is one file: its name in the directory of a plan; NULL: it is the directory */
    /* Looks at names and first bytes only; `path` exists. False where it cannot be told. */
    bool (*recognizes)(struct pd_vfs *vfs, const char *path);
    /* Fills an initialised catalog; the caller finishes and deinits it, after errors too.
     *   errors  PD_CORRUPT names the file and the place; PD_UNSUPPORTED what the format has and perdure does not read; PD_IO */
    pd_status (*read)(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err);

    /* Writing, in three steps; a format that is only read has pd_format_not_written here, which says so.
     * plan: where every tensor will lie. ret_state: the writer's own, freed by `finish`, after a failure of plan too (NULL: there
     * was no memory for it). */
    pd_status (*plan)(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
    /* Bytes as they go to the file of a piece, in ascending order for each tensor, for checksums inside the format. One
     * thread a tensor. */
    void (*observe)(void *state, uint32_t tensor, const void *data, uint64_t bytes);
    /* All pieces are written. Writes headers, directories and metadata (what the plan left room for, or files of its own),
     * unsynced: the caller syncs files and directory. PD_OK handed in as `mine`; after a failure only frees. */
    pd_status (*finish)(void *state, pd_status mine, struct pd_error *err);
};

extern const struct pd_format *const pd_formats[];        /* NULL-terminated */
const struct pd_format *pd_format_find(const char *name); /* NULL: none has it */
/* "safetensors, megatron, ...": those of other programs, for messages. */
#define PD_FORMATS_NAMES_MAX 160
void pd_format_list_read(char ret_names[PD_FORMATS_NAMES_MAX]);
/* The one that recognises `path` (file or directory).   errors  PD_NOT_FOUND; PD_INVALID: none does, with what was looked
 * for and seen */
PD_MUST_USE pd_status pd_format_of(struct pd_vfs *vfs, const char *path, const struct pd_format **ret_format,
                                   struct pd_error *err);

#define PD_LEGACY_MEGATRON                                                                                               \
    "is Megatron's old form, a file for each rank; Megatron writes it again as torch_dist, which is read: its training " \
    "command with --ckpt-convert-format torch_dist --ckpt-convert-save OUT"

/* The slots of a format that is only read. */
pd_status pd_format_not_written(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
void pd_format_observe_nothing(void *state, uint32_t tensor, const void *data, uint64_t bytes);
pd_status pd_format_finish_nothing(void *state, pd_status mine, struct pd_error *err);
