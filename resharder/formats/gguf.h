/* GGUF (llama.cpp), as a row of the table of formats: see format.h.
 *
 * A catalog of GGUF has these texts:
 *   config.json      made of the metadata, in the keys of transformers
 *   tokenizer.gguf   metadata that begins with "tokenizer.", as one JSON object without that beginning: {"ggml.model": "gpt2",
 *                    "ggml.tokens": [..], "ggml.merges": [..], ..}; an import lays it beside the checkpoints, where
 *                    trainer/tokenizer reads it
 */
#ifndef PD_RESHARDER_FORMATS_GGUF_H
#define PD_RESHARDER_FORMATS_GGUF_H

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_gguf;

#endif
