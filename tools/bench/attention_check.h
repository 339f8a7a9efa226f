/* Attention beside float64: some rows of each result, against the formula. Whole causal sequences. */
#pragma once

#include "trainer/math/operations.h"

/* Norm of the differences over the norm of what is wanted, of sequence 0; pointers of `attention` are host memory and its
 * rows dense. Forward: out of sixteen queries. Backward: dq of them, dk and dv of the last keys, all three together. */
struct pd_attention_errors {
    double forward, backward;
};
PD_MUST_USE pd_status pd_attention_errors_of(const struct pd_attention *attention, struct pd_attention_errors *ret_errors,
                                             struct pd_error *err);
