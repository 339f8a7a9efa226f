/* Operations of the math table as rows of a table: what goes in, what comes out, and the formula in float64. The operands of
 * a row are arrays of its sizes; `run` gets them where the table's device has them, `exact` in float64 on the host. */
#pragma once

#include "trainer/math/math.h"

#define OPERANDS_MAX 10

/* Rows R = sequences * length; columns C, vocabulary V, heads H of D, key-value heads K, F columns of an MLP. */
struct sizes {
    uint64_t sequences, length, columns, vocab, heads, kv_heads, head_size, ffn;
};

/* E4M3, E5M2: codes, worth what they stand for without a scale. */
enum kind { NO_OPERAND, ACT, F32, F64, BF16, E4M3, E5M2, TOKENS, TARGETS, POSITIONS, FIRST };
enum role { IN, OUT, BOTH };

struct operand {
    enum kind kind;
    enum role role;
    uint64_t (*count)(const struct sizes *);
    double deviation; /* of random values; negative: their sizes */
};

struct value {
    double *exact;    /* of all but the numbers */
    int32_t *numbers; /* of the others, the host's */
};

struct operation {
    const char *name;
    struct operand operands[OPERANDS_MAX]; /* NO_OPERAND ends them */
    pd_status (*run)(struct pd_math *, const struct sizes *, enum pd_dtype act, void *const *, struct pd_error *);
    void (*exact)(const struct sizes *, const struct value *);
    double slack;        /* times the tolerance of the dtype; 0: 1 */
    double tolerance;    /* not 0: instead, whatever the dtype */
    uint32_t capability; /* compute capability that it needs; 0: any */
};

/* Each ends with a NULL name: what every step is made of; what parts of sequences, cut vocabularies, numbers of eight bits,
 * terms and replayed runs add. */
extern const struct operation operations[], more_operations[];

#define COUNT(NAME, EXPRESSION)                        \
    static inline uint64_t NAME(const struct sizes *s) \
    {                                                  \
        return EXPRESSION;                             \
    }
#define RUN(NAME)                                                                                               \
    static pd_status run_##NAME(struct pd_math *math, const struct sizes *s, enum pd_dtype act, void *const *p, \
                                struct pd_error *err)
#define EXACT(NAME) static void exact_##NAME(const struct sizes *s, const struct value *v)
#define FORMULA(NAME) .run = run_##NAME, .exact = exact_##NAME
#define SCALE 0.25

COUNT(rows, s->sequences * s->length)
COUNT(columns, s->columns)
COUNT(rows_columns, s->sequences * s->length * s->columns)
COUNT(rows_ffn, s->sequences * s->length * s->ffn)
COUNT(ffn_columns, s->ffn * s->columns)
COUNT(rows_vocab, s->sequences * s->length * s->vocab)

/* Operands that most rows have. */
#define IN_ROWS ACT, IN, rows_columns, 1
#define OUT_ROWS ACT, OUT, rows_columns, 0
#define IN_ROWS_F32 F32, IN, rows_columns, 1
#define IN_COLUMNS ACT, IN, columns, 1
#define ROW_SUMS F32, OUT, rows, 0
#define COLUMN_SUMS F32, OUT, columns, 0
#define IN_FFN ACT, IN, rows_ffn, 1
#define OUT_FFN ACT, OUT, rows_ffn, 0
#define IN_WEIGHT ACT, IN, ffn_columns, 0.1
#define OUT_WEIGHT F32, OUT, ffn_columns, 0
