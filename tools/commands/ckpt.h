/* The parts of `perdure ckpt`. */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/inspect/inspect.h"
#include "tools/library/convert.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_ckpt_options {
    const char *paths[2];
    uint64_t step;           /* UINT64_MAX: the newest */
    const char *tensor;      /* part of a name, or NULL */
    const char *layout;      /* "dp=4,tp=2", or NULL */
    const char *compression; /* "none", "zstd:3", or NULL: as in the source */
    bool config, json, quiet;
    const char *format, *dtype, *only, *config_file, *prefix; /* for import and export, or NULL */
    const char *experts;                                      /* "separate", "fused", or NULL */
    bool dry_run, fresh_optimizer;
    uint32_t keep_last;
    uint64_t keep_every, memory, bandwidth;
};

/* Checks every byte of one checkpoint or of all: ckpt_verify.c. */
pd_status pd_ckpt_verify(const struct pd_ckpt_options *options, struct pd_error *err);
/* Shows the record: ckpt_show.c. */
pd_status pd_ckpt_show(const struct pd_ckpt_options *options, struct pd_error *err);
/* Tensors: ckpt_tensors.c. */
pd_status pd_ckpt_diff(const struct pd_ckpt_options *options, struct pd_error *err);
pd_status pd_ckpt_stats(const struct pd_ckpt_options *options, struct pd_error *err);
/* Digest of the state of one of our checkpoints. */
PD_MUST_USE pd_status pd_ckpt_state_digest(const char *path, uint64_t *ret_digest, struct pd_error *err);

/* Print to stderr: with "perdure: " before each line, and without. */
extern const struct pd_notes pd_ckpt_notes, pd_ckpt_plain_notes;

/* Conversions: ckpt_convert.c. */
pd_status pd_ckpt_import(const struct pd_ckpt_options *options, struct pd_error *err);
struct pd_config;
/* With init.from, takes the model from the run's newest checkpoint, or else from init.from (pd_ckpt_import_model), which
 * may be gone when the run continues. Call it after loading a configuration for training or planning. */
pd_status pd_ckpt_take_model(struct pd_config *config, struct pd_error *err);
/* Takes the model of init.from, and limits batch.context to what it allows. */
pd_status pd_ckpt_import_model(struct pd_config *config, struct pd_error *err);
/* Imports the checkpoint of init.from into the empty directory of a tier. Missing moments begin at zero. */
pd_status pd_ckpt_import_for_run(const struct pd_config *config, const char *directory, pd_should_stop should_stop,
                                 struct pd_error *err);
pd_status pd_ckpt_export(const struct pd_ckpt_options *options, struct pd_error *err);

pd_status pd_ckpt_send(const struct pd_ckpt_options *options, struct pd_error *err); /* into a bucket */
pd_status pd_ckpt_reshard(const struct pd_ckpt_options *options, struct pd_error *err);
struct pd_json_writer;
/* Writes a layout as a JSON object, for show, import and reshard. */
void pd_ckpt_json_layout(struct pd_json_writer *writer, const struct pd_layout *layout);

/* For sample and eval: a temporary directory below TMPDIR with another program's checkpoint, converted to ours. */
/* --precision of both, an index into pd_precisions. */
#define PD_PRECISION_ROW(place)                                                                                  \
    {                                                                                                            \
        .name = "precision", "TYPE", "fp32, bf16, fp16, or saved: as the weights are (default: as in training)", \
        PD_OPTION_CHOICE, place, .expected = "saved, fp32, bf16 or fp16"                                         \
    }
extern const enum pd_dtype pd_precisions[4];

struct pd_temporary {
    char folder[4000], checkpoints[4100]; /* folder "": none exists */
};

/* `temporary` is zeroed or already made. From here on the command stops cleanly on TERM. */
PD_MUST_USE pd_status pd_temporary_make(struct pd_temporary *temporary, struct pd_error *err);
/* Converts PATH of another program to the one checkpoint in `checkpoints`, with its texts beside it, as init.from does,
 * but computes in the type of its weights. */
PD_MUST_USE pd_status pd_temporary_import(struct pd_temporary *temporary, const char *path, struct pd_error *err);
/* Removes the directory. Returns `mine`. */
pd_status pd_temporary_remove(struct pd_temporary *temporary, pd_status mine, struct pd_error *err);

PD_MUST_USE pd_status pd_ckpt_print_mapping(const struct pd_ckpt_mapping *mapping, bool is_json, struct pd_error *err);
