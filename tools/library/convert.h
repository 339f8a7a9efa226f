/* Conversions: an import, an export, another layout. Progress and notes, which a command prints and a library
 * passes to its caller, go through a pd_convert_watch. */
#pragma once

#include "ckpt/base/stop.h"
#include "resharder/convert/export.h"
#include "resharder/convert/import.h"
#include "tools/library/experts.h"
#include "tools/library/foreign.h"

struct pd_convert {
    const char *source, *destination;
    uint64_t step;                                            /* UINT64_MAX: the newest */
    const char *layout;                                       /* "dp=4,tp=2"; NULL: one rank, of an import */
    const char *compression;                                  /* "none", "zstd:3", or NULL: as in the source */
    const char *format, *dtype, *only, *config_file, *prefix; /* for import and export, or NULL */
    const char *experts;                                      /* for export: "separate", "fused", or NULL */
    bool dry_run, fresh_optimizer;
};

/* An import or a reshard. */
struct pd_ckpt_rewrite {
    struct pd_ckpt_target target;
    struct pd_shard_codec codec; /* the rewrite makes its pool */
    struct pd_import_report report;
    double seconds;
};
struct pd_rewritten {
    const struct pd_ckpt_rewrite *rewrite; /* its target is open */
    const char *format;                    /* of the source */
    const struct pd_layout *layout;
    const char *stored, *computed; /* types of an import's weights: in the source, and of numerics.precision; or NULL */
    const struct pd_expert_count *experts; /* of an import; NULL: there are none */
};
struct pd_exported {
    const char *path, *format;
    uint64_t step;
    const struct pd_export_report *report;
    const struct pd_expert_count *experts; /* NULL: there are none */
    double seconds;
};
/* For --dry-run. */
struct pd_ckpt_mapping {
    const struct pd_model *model;
    const struct pd_links *links;     /* between its tensors and the catalog's */
    const struct pd_catalog *catalog; /* of the other program's checkpoint */
    const char *only;                 /* part of the names in it, or NULL */
    const struct pd_links *sources;   /* source of an export's tensors; NULL: the model's own */
    bool is_import;
};

struct pd_convert_watch {
    const struct pd_notes *notes;       /* of places: copies, tiers; or NULL */
    const struct pd_notes *plain_notes; /* of what a conversion leaves out; or NULL */
    pd_should_stop should_stop;
    void *context;
    /* Any may be NULL. begin and end enclose the work that progress shows. */
    void (*begin)(void *context);
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void (*end)(void *context);
    /* Results; a failure becomes the conversion's. */
    pd_status (*rewritten)(void *context, const struct pd_rewritten *result, struct pd_error *err);
    pd_status (*exported)(void *context, const struct pd_exported *result, struct pd_error *err);
    pd_status (*mapping)(void *context, const struct pd_ckpt_mapping *mapping, struct pd_error *err);
};

/* Makes a checkpoint of a run of another program's, or of one whose tensors a program listed. */
PD_MUST_USE pd_status pd_convert_import(const struct pd_convert *convert, const struct pd_convert_watch *watch,
                                        struct pd_error *err);
/* Imports the checkpoint of init.from into the empty directory of a tier. Missing moments begin at zero. */
PD_MUST_USE pd_status pd_convert_import_for_run(const struct pd_config *config, const char *directory,
                                                const struct pd_convert_watch *watch, struct pd_error *err);
/* Opens another program's checkpoint for an import.   errors  PD_USAGE: it is a run of perdure */
PD_MUST_USE pd_status pd_convert_open_theirs(const char *path, const struct pd_notes *notes,
                                             struct pd_ckpt_foreign *ret_source, struct pd_error *err);
/* Writes a checkpoint, ours or another program's, in another program's format. */
PD_MUST_USE pd_status pd_convert_export(const struct pd_convert *convert, const struct pd_convert_watch *watch,
                                        struct pd_error *err);
/* Writes one of ours again under another layout. */
PD_MUST_USE pd_status pd_convert_reshard(const struct pd_convert *convert, const struct pd_convert_watch *watch,
                                         struct pd_error *err);

/* Parses --compression; NULL leaves *codec unchanged. */
PD_MUST_USE pd_status pd_ckpt_rewrite_codec(const char *text, struct pd_shard_codec *codec, struct pd_error *err);
/* The request needs no buffers, codec, target, stop or progress. */
PD_MUST_USE pd_status pd_ckpt_rewrite(struct pd_ckpt_rewrite *rewrite, struct pd_import_request request,
                                      const struct pd_convert_watch *watch, struct pd_error *err);
