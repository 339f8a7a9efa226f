/* GGUF (llama.cpp) as a row of the format table: see format.h.
 *
 * A GGUF catalog has these texts:
 *   config.json      from the metadata, with the keys of transformers
 *   tokenizer.gguf   metadata keys "tokenizer.*" as one JSON object, without that prefix: {"ggml.model": "gpt2",
 *                    "ggml.tokens": [..], "ggml.merges": [..], ..}; an import writes it beside the checkpoints, where
 *                    trainer/tokenizer reads it
 * An export is made from the same two. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_gguf;

/* Returns the type llama.cpp's own converter uses for a tensor when asked for `wanted`: vectors and position embeddings
 * stay fp32, and a matrix whose rows are not whole blocks becomes fp16. */
enum pd_element pd_gguf_element(const struct pd_foreign_tensor *tensor, enum pd_element wanted);

/* Returns the N of "model-00002-of-0000N.gguf", 0 for other names. *prefix_bytes: bytes before "-00002". */
uint32_t pd_gguf_parts_of(const char *path, size_t *prefix_bytes);
/* Finds the model in a directory: its file, or any part if it has several.
 *   ret_path  (PD_FORMATS_PATH_MAX); empty if there is none
 *   errors    PD_INVALID: several models */
PD_MUST_USE pd_status pd_gguf_find(struct pd_vfs *vfs, const char *directory, char *ret_path, struct pd_error *err);

pd_status pd_gguf_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
pd_status pd_gguf_finish(void *state, pd_status mine, struct pd_error *err);
