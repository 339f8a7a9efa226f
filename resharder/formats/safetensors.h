/* safetensors, single or in shards, alone or in a model directory of transformers.
 *
 *   u64 N, N bytes of JSON, data: {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]},
 *   "__metadata__": {string: string}}; offsets count from the end of the JSON
 *
 * Besides the checks of every catalog: N is at most 100 MB, tensors fill the data without holes and overlaps, and an
 * index names files of its own directory and tensors that are in them.
 *
 *   sources  the format's specification and its Rust reader (huggingface/safetensors, lib.rs); transformers' shards and index */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_safetensors;

/* Adds the tensors in the header of one file. `file` is its number in the catalog, which knows its size.
 *   text  (bytes) the JSON, which begins at byte 8 */
PD_MUST_USE pd_status pd_safetensors_header(struct pd_catalog *catalog, uint32_t file, const char *text, uint64_t bytes,
                                            struct pd_error *err);

/* ---- safetensors_write.c ---- */
pd_status pd_safetensors_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err);
pd_status pd_safetensors_finish(void *state, pd_status mine, struct pd_error *err);

#define PD_SAFETENSORS_HEADER_MAX UINT64_C(100000000)
#define PD_SAFETENSORS_INDEX "model.safetensors.index.json"
extern const char *const pd_safetensors_dtypes[PD_ELEMENT_COUNT]; /* "BF16"; NULL: not in the format */
