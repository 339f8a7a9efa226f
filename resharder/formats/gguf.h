/* GGUF (llama.cpp), as a row of the table of formats: see format.h.
 *
 * A catalog of GGUF has these texts:
 *   config.json      made of the metadata, in the keys of transformers
 *   tokenizer.gguf   metadata that begins with "tokenizer.", as one JSON object without that beginning: {"ggml.model": "gpt2",
 *                    "ggml.tokens": [..], "ggml.merges": [..], ..}; an import lays it beside the checkpoints, where
 *                    trainer/tokenizer reads it
 * An export is made of the same two. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_gguf;

/* What llama.cpp's own converter makes of a tensor that is asked for as `wanted`: vectors and position embeddings stay fp32, and
 * a matrix whose rows are no whole blocks becomes fp16. */
enum pd_element pd_gguf_element(const struct pd_foreign_tensor *tensor, enum pd_element wanted);

/* "model-00002-of-00003.gguf": how many parts, 0 where the name is no part's. *prefix_bytes: of what stands before. */
uint32_t pd_gguf_parts_of(const char *path, size_t *prefix_bytes);
/* The model in a directory: a file, or any part of one that has several.
 *   ret_path  (PD_FORMATS_PATH_MAX); empty where there is none
 *   errors    PD_INVALID: several models */
PD_MUST_USE pd_status pd_gguf_find(struct pd_vfs *vfs, const char *directory, char *ret_path, struct pd_error *err);

pd_status pd_gguf_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
pd_status pd_gguf_finish(void *state, pd_status mine, struct pd_error *err);
