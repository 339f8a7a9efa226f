/* What the reader and the writer of GGUF share: types of values and elements, factors of RoPE. */
#pragma once

#include "resharder/catalog/element.h"

#define PD_GGUF_VERSION 3u
#define PD_GGUF_ALIGNMENT 32u /* where general.alignment does not say another */
#define PD_GGUF_ROPE_FACTORS "rope_freqs.weight"
#define PD_GGUF_ROPE_FACTORS_MAX 1024u

enum pd_gguf_type {
    PD_GGUF_U8,
    PD_GGUF_I8,
    PD_GGUF_U16,
    PD_GGUF_I16,
    PD_GGUF_U32,
    PD_GGUF_I32,
    PD_GGUF_F32,
    PD_GGUF_BOOL,
    PD_GGUF_TEXT,
    PD_GGUF_ARRAY,
    PD_GGUF_U64,
    PD_GGUF_I64,
    PD_GGUF_F64,
    PD_GGUF_TYPES
};

/* Element types by ggml's number. */
struct pd_gguf_element {
    uint32_t type;
    enum pd_element element;
};
extern const struct pd_gguf_element pd_gguf_elements[]; /* (pd_gguf_element_count) */
extern const uint32_t pd_gguf_element_count;

/* Llama 3.1 and later: GGUF has no parameters of the scaling but a factor for each of `count` frequencies, by which it is divided
 * (Llama 3's apply_scaling). We write the parameters too, under keys of our own, which others pass over. */
struct pd_gguf_rope {
    double theta, factor, low, high, original;
};
double pd_gguf_rope_factor(const struct pd_gguf_rope *rope, uint64_t i, uint64_t count);
