/* Operations of the math table as rows of a table: what goes in, what comes out, and the formula in float64. The operands of
 * a row are arrays of its sizes; `run` gets them where the table's device has them, `exact` in float64 on the host. */
#ifndef PD_TESTS_GPU_OPERATION_CASES_H
#define PD_TESTS_GPU_OPERATION_CASES_H

#include "trainer/math/math.h"

#define OPERANDS_MAX 9

/* Rows R = sequences * length; columns C, vocabulary V, heads H of D, key-value heads K, F columns of an MLP. */
struct sizes {
    uint64_t sequences, length, columns, vocab, heads, kv_heads, head_size, ffn;
};

enum kind { NO_OPERAND, ACT, F32, TOKENS, TARGETS, POSITIONS, FIRST };
enum role { IN, OUT, BOTH };

struct operand {
    enum kind kind;
    enum role role;
    uint64_t (*count)(const struct sizes *);
    double deviation; /* of random values; negative: their sizes */
};

struct value {
    double *exact;    /* of ACT and F32 */
    int32_t *numbers; /* of the others, the host's */
};

struct operation {
    const char *name;
    struct operand operands[OPERANDS_MAX]; /* NO_OPERAND ends them */
    pd_status (*run)(struct pd_math *, const struct sizes *, enum pd_dtype act, void *const *, struct pd_error *);
    void (*exact)(const struct sizes *, const struct value *);
    double slack; /* times the tolerance of the dtype; 0: 1 */
};

extern const struct operation operations[]; /* ends with a NULL name */

#endif
