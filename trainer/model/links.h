/* Which tensors of a foreign checkpoint are which of a model: the names and arrangements that other programs have.
 *
 *   dialect       names                                   arrangement
 *   hugging_face  those of transformers                   GPT-2: matrices [in, out], q, k and v one matrix
 *   torchtitan    layers.3.attention.wq.weight            Llama: RoPE rotates neighbours (below); moments of q, k, v may be one
 *   megatron      decoder.layers.mlp.linear_fc1.weight    layers stacked or numbered; q, k, v by key-value head; gate, up one
 *   gguf          blk.3.attn_q.weight                     Llama: RoPE rotates neighbours; GPT-2: q, k and v one matrix
 *   llmc          qkvw                                    layers stacked; q, k and v one matrix
 *
 * We and transformers rotate element i of a head with element i + D/2, Meta's Llama element 2i with 2i + 1. Where a dialect
 * does as Meta, row 2i + j of a head of q or k is our row i + j * D/2. That is so for Llama and Mistral; models with biases or
 * norms at q and k (Qwen) are the same everywhere.
 *
 *   sources  transformers; torchtitan's and Megatron-Core's state dicts; llama.cpp's convert_hf_to_gguf; llm.c */
#pragma once

#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"
#include "trainer/model/model.h"

extern const char *const pd_model_dialects[]; /* names, NULL-terminated */

/* Which moments are linked: none; all, and a missing one is an error; those that there are. */
enum pd_moments { PD_MOMENTS_NONE, PD_MOMENTS_ALL, PD_MOMENTS_FOUND };

/* A link for every tensor of the model and every moment of it that `moments` says, in the order of the model's table, kinds
 * innermost. Names may have anything before them that ends with a dot ("model.", "module."), the same for all.
 *   dialect    NULL: the one whose token embedding the catalog has
 *   ret_links  initialised by this; the caller deinits it (pd_links_deinit)
 *   errors     PD_INVALID: an unknown dialect; no dialect knows these names; tensors that are missing, by our names and those
 *              looked for; a shape that is not the model's. PD_NO_MEMORY */
PD_MUST_USE pd_status pd_model_links(const struct pd_model *model, const char *dialect, const struct pd_catalog *catalog,
                                     enum pd_moments moments, struct pd_links *ret_links, struct pd_error *err);

/* Tensors of the catalog that no link takes and that are no copy (a tied output matrix), mask or table that follows from the
 * configuration (attn.bias, rotary_emb.inv_freq, rope_freqs): what an import would lose.
 *   ret_is_beyond  (tensor_count) */
void pd_model_links_beyond(const struct pd_model *model, const struct pd_links *links, const struct pd_catalog *catalog,
                           bool *ret_is_beyond);

/* Rows of the foreign tensor behind those of the vocabulary, which Megatron and llm.c pad; 0 for all other tensors. Other systems
 * have as many rows as words, so a longer table is refused. */
uint64_t pd_model_links_padding(const struct pd_model *model, const struct pd_link *link, const struct pd_catalog *catalog);

/* `name` is that of an output matrix, and this model ties it to its token embedding: a copy, if the two are equal. */
bool pd_model_ties(const struct pd_model *model, const char *name);

/* Adds the tensors of an export to an initialised catalog: names and shapes of the dialect, stored as `element`, moments as
 * PD_ELEMENT_F32. pd_model_links of the finished catalog gives their views.
 *   errors  PD_INVALID: an unknown dialect, or one that has no names for this model; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_model_foreign(const struct pd_model *model, const char *dialect, enum pd_element element,
                                       bool with_moments, struct pd_catalog *catalog, struct pd_error *err);
