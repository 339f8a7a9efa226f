/* The basic types of perdure: dtype, kind, tensor, box.
 *
 * A tensor is a named global array, as if nothing were sharded. For each tensor of a run three arrays ("kinds") of the same
 * shape are stored: the master parameter in fp32 and the two Adam moments, both in fp32 or both in bf16. A listed
 * checkpoint has tensors of any type and any of the kinds. A box is a rectangle of a
 * tensor in element indices; its elements are dense and row-major wherever they lie in memory or in a file.
 */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_TENSOR_DIMS_MAX 4
#define PD_TENSOR_NAME_MAX 160 /* terminator included */

/* Numbers are on disk. Runs compute with and save the first three; the others occur in listed checkpoints. */
enum pd_dtype {
    PD_F32,
    PD_BF16,
    PD_F16,
    PD_F64,
    PD_F8_E4M3, /* without infinities */
    PD_F8_E5M2,
    PD_I8,
    PD_I16,
    PD_I32,
    PD_I64,
    PD_U8,
    PD_U16,
    PD_U32,
    PD_U64,
    PD_BOOL, /* a byte, 0 or 1 */
    PD_C64,  /* complex: real part, imaginary part */
    PD_C128,
    PD_DTYPE_COUNT
};
#define PD_DTYPE_RUN_COUNT 3 /* the first ones */
enum pd_kind { PD_PARAM = 0, PD_EXP_AVG = 1, PD_EXP_AVG_SQ = 2, PD_KIND_COUNT = 3 };

/* Stored arrays of each parameter, one row a kind. Numbers and names are on disk. */
enum pd_initial { PD_INITIAL_MODEL, PD_INITIAL_ZERO }; /* random, from (seed, name, index); zeros */
struct pd_kind_row {
    const char *name;
    enum pd_initial initial;
};
extern const struct pd_kind_row pd_kinds[PD_KIND_COUNT];

struct pd_box {
    uint64_t start[PD_TENSOR_DIMS_MAX]; /* unused dimensions: start 0, count 1 */
    uint64_t count[PD_TENSOR_DIMS_MAX];
};

struct pd_tensor {
    char name[PD_TENSOR_NAME_MAX];      /* Hugging Face name: "model.layers.3.self_attn.q_proj.weight" */
    uint32_t ndim;                      /* 1 or 2; in listed checkpoints 0 to PD_TENSOR_DIMS_MAX */
    uint64_t shape[PD_TENSOR_DIMS_MAX]; /* unused dimensions are 1 */
    enum pd_dtype dtype;                /* stored type of the parameter: PD_F32 in a run */
    enum pd_dtype moments;              /* stored type of the other kinds: PD_F32 or PD_BF16 in a run */
    int32_t tp_dim;                     /* dimension that tensor parallelism splits: 0, 1, or -1 */
    uint64_t tp_unit;                   /* rows (or columns) that stay together: 1, head size, ... */
    uint32_t unit;                      /* pipeline unit: 0 embedding, 1..L blocks, L+1 head */
    uint32_t expert;                    /* 1 + the number of its expert; 0: not of an expert. Not stored: the name has it */
    bool decay;                         /* weight decay applies */
    bool by_sign;                       /* an update moves elements by sign_step against the gradient's sign; no moments */
    float sign_step;
    uint32_t kinds; /* of a listed checkpoint: bit k: kind k is stored. 0: all are */
    bool is_bytes;  /* listed, PD_U8: bytes that are no numbers, such as a pickled object */
};

struct pd_tensor_table {
    struct pd_tensor *tensors; /* (count), owned */
    uint32_t count;
    bool is_listed;                 /* of a listed checkpoint */
    struct pd_tensor_shape *shapes; /* (shape_count) that rows cannot hold (shapes.h), owned */
    uint32_t shape_count;
};

const char *pd_dtype_name(enum pd_dtype dtype); /* "fp32", "bf16", "int64" */
uint32_t pd_dtype_bytes(enum pd_dtype dtype);
const char *pd_kind_name(enum pd_kind kind); /* "param", "exp_avg", "exp_avg_sq" */

/* Stored type, and bytes of an element. */
enum pd_dtype pd_tensor_dtype(const struct pd_tensor *tensor, enum pd_kind kind);
uint32_t pd_tensor_element_bytes(const struct pd_tensor *tensor, enum pd_kind kind);
uint32_t pd_tensor_file_dims(const struct pd_tensor *tensor); /* a scalar is one element of one dimension in HDF5 */
bool pd_tensor_has_kind(const struct pd_tensor *tensor, enum pd_kind kind);
uint32_t pd_kinds_bytes(enum pd_dtype moments); /* bytes of an element, summed over all kinds */

uint64_t pd_tensor_elements(const struct pd_tensor *tensor);
uint64_t pd_box_elements(const struct pd_box *box); /* 0 for an empty box */
struct pd_box pd_box_whole(const struct pd_tensor *tensor);
/* Rows [row_begin, row_end) and columns [begin, end) of the tensor. */
struct pd_box pd_box_part(const struct pd_tensor *tensor, uint64_t row_begin, uint64_t row_end, uint64_t begin,
                          uint64_t end);
/* The common part of a and b; false and *ret_box untouched when it is empty. */
bool pd_box_intersect(const struct pd_box *a, const struct pd_box *b, struct pd_box *ret_box);
/* Row-major element index inside `outer` of the first element of `inner`, which must lie within it. */
uint64_t pd_box_offset(const struct pd_box *outer, const struct pd_box *inner);

/* pd_tensor.expert of a name: "model.layers.3.mlp.experts.7.up_proj.weight" is of expert 7. */
uint32_t pd_tensor_expert_of(const char *name);
void pd_tensor_table_deinit(struct pd_tensor_table *table);
/* Returns the index of the tensor called `name`, or -1. */
int64_t pd_tensor_table_find(const struct pd_tensor_table *table, const char *name);

/* Layout-independent digest: the sum modulo 2^64 over elements of mix(global index, bits). Digests of disjoint boxes of
 * one tensor add up to the digest of their union, however it is cut. bf16 elements count as their fp32 value.
 *   data (box elements) fp32 or bf16, host */
uint64_t pd_tensor_digest(const struct pd_tensor *tensor, const struct pd_box *box, enum pd_dtype dtype, const void *data);
/* Digest of elements [first, first + count) of the box, in row-major order.   data  (count) fp32 or bf16, host */
uint64_t pd_tensor_digest_part(const struct pd_tensor *tensor, const struct pd_box *box, uint64_t first, uint64_t count,
                               enum pd_dtype dtype, const void *data);

/* Convert between bf16 and fp32: exactly, or rounded to nearest even. Both work in place: to narrow, both arrays begin at
 * the same byte; to widen, both end at the same byte. */
void pd_widen_bf16(void *to, const void *from, uint64_t count);
void pd_narrow_bf16(void *to, const void *from, uint64_t count);
