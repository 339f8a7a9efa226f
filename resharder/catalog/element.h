/* Element types of foreign checkpoints: sizes, names, conversion. A quantised type stores blocks of elements. */
#pragma once

#include "ckpt/tensor/tensor.h"

#include <stdbool.h>
#include <stdint.h>

enum pd_element {
    PD_ELEMENT_F64,
    PD_ELEMENT_F32,
    PD_ELEMENT_F16,
    PD_ELEMENT_BF16,
    PD_ELEMENT_I64,
    PD_ELEMENT_I32,
    PD_ELEMENT_I16,
    PD_ELEMENT_I8,
    PD_ELEMENT_U8,
    PD_ELEMENT_U16,
    PD_ELEMENT_U32,
    PD_ELEMENT_U64,
    PD_ELEMENT_BOOL,
    PD_ELEMENT_C64, /* complex: real part, imaginary part */
    PD_ELEMENT_C128,
    PD_ELEMENT_F8_E4M3, /* without infinities */
    PD_ELEMENT_F8_E5M2,
    PD_ELEMENT_Q8_0, /* from here on GGUF's blocks */
    PD_ELEMENT_Q4_0,
    PD_ELEMENT_Q4_1,
    PD_ELEMENT_Q5_0,
    PD_ELEMENT_Q5_1,
    PD_ELEMENT_Q4_K,
    PD_ELEMENT_Q6_K,
    PD_ELEMENT_COUNT
};

struct pd_element_row {
    const char *name;        /* "fp32", "bf16", "q4_k" */
    uint32_t block_elements; /* 1 for plain types */
    uint32_t block_bytes;
    bool is_float; /* usable for weights; the others are counters and masks */
    /* Converts whole blocks, at any address; of complex numbers the real part.
     *   stored  (blocks * block_bytes), values (blocks * block_elements) */
    void (*to_f32)(const void *stored, uint64_t blocks, float *values);
    /* Rounds once, to nearest even; quantises as GGML's reference does. Types that are never written PD_CHECK here. */
    void (*from_f32)(const float *values, uint64_t blocks, void *stored);
};
extern const struct pd_element_row pd_elements[PD_ELEMENT_COUNT];
enum pd_element pd_element_of(enum pd_dtype dtype);
