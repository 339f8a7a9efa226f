/* What tests ask of cublaslt.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct simt_cublaslt_counts {
    uint32_t asked;                                   /* for an algorithm */
    uint32_t gemms;                                   /* that were made */
    uint32_t split;                                   /* of these with k split */
    uint32_t fast;                                    /* of these with fast accumulation */
    int32_t multiprocessors_min, multiprocessors_max; /* that a call was given; 0: all */
    uint32_t parts;                                   /* products in all: the products of a call lie a stride apart */
};

/* Of the process so far. */
struct simt_cublaslt_counts simt_cublaslt_counted(void);
/* What the heuristic names from now on. in_place_alone: of ways to split k only the one that adds up in the result's type, as
 * a mask that admits it may get. nothing: no algorithm. */
void simt_cublaslt_offer(bool in_place_alone, bool nothing);

/* No algorithm for several products in one call. */
void simt_cublaslt_refuse_parts(bool refuse);
