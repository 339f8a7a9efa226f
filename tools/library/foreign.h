/* A checkpoint of any format, opened for import, export, show, stats and diff. */
#pragma once

#include "ckpt/store/commit.h"
#include "resharder/catalog/view.h"
#include "resharder/formats/format.h"
#include "tools/library/place.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

struct pd_ckpt_foreign {
    struct pd_vfs *vfs;
    const struct pd_format *format;
    struct pd_catalog catalog;          /* finished */
    char path[4096];                    /* path that was read; for a run its checkpoint */
    struct pd_ckpt_place place;         /* for a run or store; its vfs is NULL if there is none */
    const struct pd_store_entry *entry; /* of ours, which may have copies in other tiers; NULL: PATH named it */
};

/* True if PATH has a format other than perdure's. */
bool pd_ckpt_is_foreign(const char *path);
/* True for another program's, and for ours of tensors that a program listed: runs read them through an import. */
bool pd_ckpt_needs_import(const char *path);
/* Opens PATH of any format. One of ours may be a run, a store or a checkpoint: the newest, or that of `step`, is opened.
 *   errors  as of the format and of pd_ckpt_place */
PD_MUST_USE pd_status pd_ckpt_foreign_open(const char *path, uint64_t step, const struct pd_notes *notes,
                                           struct pd_ckpt_foreign *ret_foreign, struct pd_error *err);
/* After reading failed with `status` and *err: opens a copy of the same step in another tier. PD_OK: the copy is open. */
PD_MUST_USE pd_status pd_ckpt_foreign_take_copy(struct pd_ckpt_foreign *foreign, pd_status status, struct pd_error *err);
/* Reads the commit record of one of ours. */
PD_MUST_USE pd_status pd_ckpt_foreign_record(const struct pd_ckpt_foreign *foreign, struct pd_commit *ret_commit,
                                             struct pd_error *err);
void pd_ckpt_foreign_close(struct pd_ckpt_foreign *foreign);
/* True for a checkpoint of a run of perdure, whose record has its configuration. */
bool pd_ckpt_foreign_is_run(const struct pd_ckpt_foreign *foreign);
/* Makes the model of its config.json, or of our record. PD_NOT_FOUND, without a message: it has neither. */
PD_MUST_USE pd_status pd_ckpt_foreign_model(const struct pd_ckpt_foreign *foreign, struct pd_model **ret_model,
                                            struct pd_error *err);
/* Puts the model of its config.json, and a context that fits, into a configuration. *ret_is_said false: no such file */
PD_MUST_USE pd_status pd_ckpt_foreign_read_model(const struct pd_ckpt_foreign *foreign, struct pd_config *config,
                                                 bool *ret_is_said, struct pd_error *err);
/* True if `file` of --config is a config.json of transformers, which describes a model and no run. */
bool pd_ckpt_is_model_file(const char *file);
/* Makes a configuration for another program's checkpoint: from `file`, or the defaults if NULL, with the checkpoint's own
 * model, or the model of `file` if that is a config.json.
 *   errors  PD_INVALID: neither names a model; errors of the configuration */
PD_MUST_USE pd_status pd_ckpt_foreign_configure(const struct pd_ckpt_foreign *foreign, const char *file,
                                                struct pd_config *ret_config, struct pd_error *err);
/* Returns `status`; adds advice to the message about damage in `path` or a full drive. */
pd_status pd_ckpt_foreign_add_advice(pd_status status, const char *path, struct pd_error *err);
/* Fails if --step was given (not UINT64_MAX) for a checkpoint of another program, which has one step. */
PD_MUST_USE pd_status pd_ckpt_foreign_refuse_step(const struct pd_ckpt_foreign *foreign, uint64_t step,
                                                  struct pd_error *err);
/* Links its tensors to the model's, and its moments if it has any: all of them, or with `fresh_optimizer` those it has.
 * The error says what is missing and what to do.   errors  of pd_model_links; PD_UNSUPPORTED: fp8 with scales */
PD_MUST_USE pd_status pd_ckpt_foreign_link(const struct pd_ckpt_foreign *foreign, const struct pd_model *model,
                                           bool fresh_optimizer, struct pd_links *ret_links, struct pd_error *err);
/* Returns all its counters; if it counts only updates, their number is the step. */
struct pd_catalog_counters pd_ckpt_foreign_counters(const struct pd_ckpt_foreign *foreign, const struct pd_config *config);
/* Fails if the model ties its output matrix to the token embedding and the two differ here: an import would lose one.
 *   errors  PD_INVALID: names the tensor; PD_CORRUPT, PD_IO; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_ckpt_foreign_check_tied(const struct pd_ckpt_foreign *foreign, const struct pd_model *model,
                                                 const struct pd_links *links, struct pd_error *err);
/* Notes its tensors without a link, so that nothing is dropped silently; moments only if `with_moments`.
 *   verb  "not imported" */
PD_MUST_USE pd_status pd_ckpt_foreign_list_beyond(const struct pd_ckpt_foreign *foreign, const struct pd_model *model,
                                                  const struct pd_links *links, bool with_moments, const char *verb,
                                                  const struct pd_notes *notes, struct pd_error *err);
/* Opens the tokenizer among its texts; NULL if there is none. */
struct pd_tokenizer;
PD_MUST_USE pd_status pd_ckpt_foreign_open_tokenizer(const struct pd_catalog *catalog, struct pd_tokenizer **ret_tokenizer,
                                                     struct pd_error *err);
/* Digest of the tokenizer among its texts, to warn if another is used; 0: none that perdure reads. */
uint64_t pd_ckpt_foreign_tokenizer(const struct pd_catalog *catalog);
bool pd_ckpt_foreign_has_moments(const struct pd_ckpt_foreign *foreign);
/* True if it has neither moments nor a step: a model to start training from, not a run to continue. */
bool pd_ckpt_foreign_is_model(const struct pd_ckpt_foreign *foreign);
