/* The inner loops of the CPU GEMM: one constant table per instruction set, all built from cpu_gemm_kernel.c.
 *
 * A panel holds `width` rows of op(A) (width mr) or columns of op(B) (width nr) as fp32, interleaved: panel[k*width + w].
 * Elements outside the matrix are zero. Panels of one k-block are panel_stride floats apart. */
#pragma once

#include "ckpt/base/cpu.h"
#include "trainer/math/operations.h"

/* Rows of op(A), or columns of op(B): `width` vectors of length k. */
struct pd_gemm_operand {
    const void *data;
    enum pd_dtype dtype;
    uint64_t ld;
    uint64_t width;      /* m for A, n for B */
    bool k_contiguous;   /* consecutive k are adjacent in memory: A not transposed, B transposed */
    const float *values; /* (256) values of one-byte codes, or NULL; if set, dtype is ignored */
};

/* Applied after the chain: C = round(tile + bias + residual). */
struct pd_gemm_finish {
    void *c; /* first element of the block */
    enum pd_dtype c_dtype, bias_dtype, residual_dtype;
    uint64_t c_ld, residual_ld;
    const void *bias;     /* first column of the block, or NULL */
    const void *residual; /* first element of the block, or NULL */
};

struct pd_gemm_kernel {
    uint32_t mr, nr;
    /* Packs panels of vectors [first, first + count) and k in [k0, k0 + kc); `count` need not be a multiple of the width. */
    void (*pack_a)(const struct pd_gemm_operand *a, uint64_t first, uint64_t count, uint64_t k0, uint64_t kc, float *panels,
                   uint64_t panel_stride);
    void (*pack_b)(const struct pd_gemm_operand *b, uint64_t first, uint64_t count, uint64_t k0, uint64_t kc, float *panels,
                   uint64_t panel_stride);
    /* tile (mc,nc) = [tile +] A panels * B panels: kc more links of every element's chain. */
    void (*multiply)(uint64_t mc, uint64_t nc, uint64_t kc, const float *a, uint64_t a_stride, const float *b,
                     uint64_t b_stride, float *tile, uint64_t tile_ld, bool load);
    void (*finish)(const struct pd_gemm_finish *finish, uint64_t mc, uint64_t nc, const float *tile, uint64_t tile_ld);
    /* converts `count` elements of `from`, starting at index, to fp32 */
    void (*convert)(enum pd_dtype dtype, const void *from, uint64_t index, uint64_t count, float *to);
};

extern const struct pd_gemm_kernel pd_gemm_kernel_portable;
#if defined(__x86_64__)
extern const struct pd_gemm_kernel pd_gemm_kernel_avx2;
extern const struct pd_gemm_kernel pd_gemm_kernel_avx512;
#endif
/* Whether partial sums can be kept in C: it is fp32 and overlaps nothing still to be read. */
bool pd_gemm_sums_in_c(const struct pd_gemm *gemm);
/* For a block of C whose first element is (row, column). False: nothing to add or round, sums in C are the result. */
bool pd_gemm_finish_of(const struct pd_gemm *gemm, uint64_t row, uint64_t column, struct pd_gemm_finish *ret_finish);
/* isa resolved. */
const struct pd_gemm_kernel *pd_gemm_kernel_of(enum pd_isa isa);
