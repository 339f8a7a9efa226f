/* Maps the tensors of a foreign checkpoint to those of a model: the names and layouts that other programs use.
 *
 *   dialect       names                                   arrangement
 *   hugging_face  those of transformers                   GPT-2: matrices [in, out], q, k and v one matrix
 *   torchtitan    layers.3.attention.wq.weight            Llama: RoPE rotates neighbours (below); moments of q, k, v may be one
 *   megatron      decoder.layers.mlp.linear_fc1.weight    layers stacked or numbered; q, k, v by key-value head; gate, up one
 *   gguf          blk.3.attn_q.weight                     Llama: RoPE rotates neighbours; GPT-2: q, k and v one matrix
 *   llmc          qkvw                                    layers stacked; q, k and v one matrix
 *
 * We and transformers rotate element i of a head with element i + D/2; Meta's Llama rotates element 2i with 2i + 1. In
 * Meta's layout, row 2i + j of a head of q or k is our row i + j * D/2. This affects Llama and Mistral only; models with
 * biases or norms at q and k (Qwen) have one layout everywhere.
 *
 *   sources  transformers; torchtitan's and Megatron-Core's state dicts; llama.cpp's convert_hf_to_gguf; llm.c */
#pragma once

#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"
#include "trainer/model/model.h"

extern const char *const pd_model_dialects[]; /* names, NULL-terminated */

/* Which moments to link: none; all, where a missing one is an error; those found. */
enum pd_moments { PD_MOMENTS_NONE, PD_MOMENTS_ALL, PD_MOMENTS_FOUND };

/* Links every tensor of the model, and its moments as `moments` says, in the order of the model's table, kinds innermost.
 * All names may share a prefix that ends with a dot ("model.", "module.").
 *   dialect    NULL: the one whose token embedding is in the catalog
 *   ret_links  initialised here; the caller calls pd_links_deinit
 *   errors     PD_INVALID: an unknown dialect; names no dialect has; missing tensors, by our names and the names sought; a
 *              shape that differs from the model's; experts in two forms, or more than the model has. PD_NO_MEMORY */
PD_MUST_USE pd_status pd_model_links(const struct pd_model *model, const char *dialect, const struct pd_catalog *catalog,
                                     enum pd_moments moments, struct pd_links *ret_links, struct pd_error *err);

/* Marks tensors of the catalog that an import would lose: no link uses them, and they are not a copy (a tied output matrix),
 * a mask or a table that follows from the configuration (attn.bias, rotary_emb.inv_freq, rope_freqs).
 *   ret_is_beyond  (tensor_count) */
void pd_model_links_beyond(const struct pd_model *model, const struct pd_links *links, const struct pd_catalog *catalog,
                           bool *ret_is_beyond);

/* Padding rows after the vocabulary in the foreign tensor (Megatron and llm.c pad it); 0 for all other tensors. Other
 * systems store exactly one row per word, so we refuse a longer table. */
uint64_t pd_model_links_padding(const struct pd_model *model, const struct pd_link *link, const struct pd_catalog *catalog);

/* Whether `name` is an output matrix that this model ties to its token embedding: a copy, if the two are equal. */
bool pd_model_ties(const struct pd_model *model, const char *name);

/* How an export stores experts: as the dialect usually does, or in two tensors a block, as version 5 of transformers. */
enum pd_expert_form { PD_EXPERTS_USUAL, PD_EXPERTS_FUSED };

/* Adds the tensors of an export to an initialised catalog: names and shapes of the dialect, stored as `element`, moments as
 * PD_ELEMENT_F32. pd_model_links of the finished catalog returns their views.
 *   errors  PD_INVALID: an unknown dialect, or one without names for this model; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_model_foreign(const struct pd_model *model, const char *dialect, enum pd_element element,
                                       enum pd_expert_form form, bool with_moments, struct pd_catalog *catalog,
                                       struct pd_error *err);
bool pd_model_has_dialect(const struct pd_model *model, const char *name);
