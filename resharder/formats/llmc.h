/* llm.c's checkpoints as a row of the format table: see format.h. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_llmc;

/* llmc_write.c: the slots for writing. */
PD_MUST_USE pd_status pd_llmc_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
void pd_llmc_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_llmc_finish(void *state, pd_status mine, struct pd_error *err);

/* ---- shared by reader and writer ---- */

#define PD_LLMC_MODEL_MAGIC 20240326
#define PD_LLMC_STATE_MAGIC 20240527
#define PD_LLMC_HEADER_BYTES (256 * sizeof(int32_t))
enum { PD_LLMC_TENSORS = 16, PD_LLMC_VOCAB_UNIT = 128 /* rows of wte are padded to a multiple */ };

/* Header fields 2 to 7 of a model. */
struct pd_llmc_sizes {
    int32_t context, vocab, layers, heads, width, padded_vocab;
};
/* Returns tensor t in fp32, for all layers.   ret_layers  1: not stacked */
struct pd_foreign_tensor pd_llmc_tensor(const struct pd_llmc_sizes *sizes, int t, uint64_t *ret_layers);
uint64_t pd_llmc_elements(const struct pd_llmc_sizes *sizes); /* of the model */
extern const enum pd_kind pd_llmc_kinds[PD_KIND_COUNT];       /* in the order of a state file */
/* Adds what rank `rank` of `parts` has of tensor t, layer by layer; element 0 of that kind is at `base` in its file. */
PD_MUST_USE pd_status pd_llmc_add_parts(struct pd_catalog *catalog, const struct pd_llmc_sizes *sizes, int t,
                                        uint32_t number, uint32_t rank, uint64_t parts, uint32_t file, uint64_t base,
                                        struct pd_error *err);
