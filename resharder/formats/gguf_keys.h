/* Shared by the reader and the writer of GGUF: types of values and elements, factors of RoPE. */
#pragma once

#include "resharder/catalog/element.h"

#define PD_GGUF_VERSION 3u
#define PD_GGUF_ALIGNMENT 32u /* unless general.alignment gives another */
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

/* Maps ggml's type numbers to elements. */
struct pd_gguf_element {
    uint32_t type;
    enum pd_element element;
};
extern const struct pd_gguf_element pd_gguf_elements[]; /* (pd_gguf_element_count) */
extern const uint32_t pd_gguf_element_count;

/* Llama 3.1 and later: GGUF stores no scaling parameters but a divisor for each of `count` frequencies (Llama 3's
 * apply_scaling). We also write the parameters, under keys of our own, which other readers skip. */
struct pd_gguf_rope {
    double theta, factor, low, high, original;
};
double pd_gguf_rope_factor(const struct pd_gguf_rope *rope, uint64_t i, uint64_t count);
