/* Kernels that test tests/simt itself: each uses one thing that kernels may use, or breaks one rule. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "ckpt/base/status.h"
#include "ckpt/tensor/tensor.h"

pd_status exercise_places(unsigned *out, struct pd_error *err); /* (2*3*4 blocks of 2*5*3 threads, 12) */
pd_status exercise_reverse(unsigned n, const float *x, float *out, struct pd_error *err); /* in blocks of 64 */
pd_status exercise_warp(int *out, struct pd_error *err);                                  /* (64, 8) */
pd_status exercise_half_warps(int *out, struct pd_error *err);                            /* (32) */
pd_status exercise_atomics(unsigned n, unsigned long long *out, struct pd_error *err);    /* (2) */
/* c (16,8) = a (16,16) b (16,8), a and b row-major through shared memory, cp.async and ldmatrix */
pd_status exercise_mma(enum pd_dtype dtype, const uint16_t *a, const uint16_t *b, float *c, struct pd_error *err);
pd_status exercise_async(unsigned wait, const uint16_t *from, uint16_t *out, struct pd_error *err); /* (2 * 8) */
pd_status exercise_denormal(float x, float *out, struct pd_error *err);

pd_status exercise_barrier_in_branch(struct pd_error *err);
pd_status exercise_barrier_after_return(struct pd_error *err);
pd_status exercise_warp_in_branch(struct pd_error *err);
pd_status exercise_two_operations(struct pd_error *err);
pd_status exercise_unwritten(float *out, struct pd_error *err);
pd_status exercise_beyond(float *out, struct pd_error *err);          /* ends the process under AddressSanitizer */
pd_status exercise_missing_barrier(float *out, struct pd_error *err); /* (64) */
pd_status exercise_never_waits(const uint16_t *from, struct pd_error *err);
pd_status exercise_crooked_row(struct pd_error *err);
pd_status exercise_too_much_shared(struct pd_error *err);
pd_status exercise_too_much_shared_together(float *out, struct pd_error *err); /* (32) */
pd_status exercise_too_many_threads(struct pd_error *err);

#ifdef __cplusplus
}
#endif
