/* What tests ask of cublaslt.c. */
#ifndef PD_TESTS_SIMT_CUBLASLT_H
#define PD_TESTS_SIMT_CUBLASLT_H

#include <stdint.h>

struct simt_cublaslt_counts {
    uint32_t asked;    /* for an algorithm */
    uint32_t products; /* that were made */
};

/* Of the process so far. */
struct simt_cublaslt_counts simt_cublaslt_counted(void);

#endif
