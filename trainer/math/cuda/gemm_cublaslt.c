/* A row-major GEMM is a column-major one with exchanged operands: C^T (n,m) = B^T A^T. cuBLASLt's A is our B. */
#include "ckpt/base/checked.h"
#include "ckpt/base/log.h"
#include "trainer/math/cuda/cublaslt_load.h"
#include "trainer/math/cuda/gemm.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 512u /* a power of two; a model has some tens of shapes */
#define CANDIDATES 16
/* When splitting k, cuBLASLt 12.8 and 13.1 drop the remainder after whole steps (facebookexperimental/triton, pull request
 * 2767). Steps are 128 bytes; in fp8 128 elements. */
#define SPLIT_STEP 128u
#define TILE 128u /* assumed side of a tile of C; cuBLASLt's may differ */
#define PARTS_MAX 4u
#define VARYING_ROWS_MIN 16u
#define PARTS_K 4096u /* the least k in parts: README.md, "What is expected" */

/* All inputs to the choice of an algorithm. Compared bytewise: zeroed before it is filled. */
struct key {
    uint64_t m, n, k, ld_a, ld_b, ld_c, ld_residual;
    uint32_t align_a, align_b, align_c, align_residual, align_bias;
    uint16_t multiprocessors; /* 0: all */
    uint8_t is_refused;       /* unsuitable for cuBLASLt: operands of two types, alignment */
    uint8_t parts;            /* 1, or products over this many parts of `k`, consecutive in C */
    uint8_t a, b, result, trans_a, trans_b, accumulate, bias, residual; /* a, b, result: cudaDataType_t */
};
_Static_assert(sizeof(struct key) == 88, "no bytes that nobody sets");

struct plan {
    struct key key;
    bool is_used, is_plain; /* cuBLASLt has nothing for it */
    bool is_told;           /* that a GEMM of this key was multiplied by our plain kernel */
    cublasLtMatmulAlgo_t algorithm;
};

struct pd_cuda_gemms {
    cublasLtHandle_t handle;
    struct pd_cuda_gemms_options options;
    struct plan plans[SLOTS];
    uint32_t plain_shapes;
};

/* One GEMM described for cuBLASLt: storage, no allocation. */
struct description {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, c, d; /* a: our B; c: addend; d: output */
};

static pd_status status_of(cublasStatus_t code)
{
    return code == CUBLAS_STATUS_ALLOC_FAILED ? PD_NO_MEMORY : PD_DEVICE_LOST;
}

#define LT_TRY(err, call, what)                                                                                           \
    do {                                                                                                                  \
        cublasStatus_t lt_code_ = (call);                                                                                 \
        if (lt_code_ != CUBLAS_STATUS_SUCCESS)                                                                            \
            PD_FAIL((err), status_of(lt_code_), "cuBLASLt: %s: %s", (what), pd_cublaslt.cublasLtGetStatusName(lt_code_)); \
    } while (0)

pd_status pd_cuda_gemms_new(const struct pd_cuda_gemms_options *options, struct pd_cuda_gemms **ret_gemms,
                            struct pd_error *err)
{
    PD_TRY(pd_cublaslt_load(err));
    struct pd_cuda_gemms *p = calloc(1, sizeof *p);
    if (!p) PD_FAIL(err, PD_NO_MEMORY, "cuBLASLt: no memory for the table of algorithms");
    p->options = *options;
    cublasStatus_t code = pd_cublaslt.cublasLtCreate(&p->handle);
    if (code != CUBLAS_STATUS_SUCCESS) {
        free(p);
        PD_FAIL(err, status_of(code), "cuBLASLt: starting it: %s", pd_cublaslt.cublasLtGetStatusName(code));
    }
    *ret_gemms = p;
    return PD_OK;
}

void pd_cuda_gemms_free(struct pd_cuda_gemms *gemms)
{
    if (!gemms) return;
    pd_cublaslt.cublasLtDestroy(gemms->handle);
    free(gemms);
}

/* ---- which GEMM ---- */

/* With a single row ld may be anything. */
static uint64_t row_of(const struct pd_matrix *matrix, uint64_t rows, uint64_t columns)
{
    return rows > 1 ? matrix->ld : columns;
}

/* A residual that is C does not count: a sum that continues in C uses the algorithm of one that starts there. */
static bool has_residual(const struct pd_gemm *g)
{
    return g->residual.data && g->residual.data != g->c.data;
}

static void set_shape(struct key *key, const struct pd_gemm *g)
{
    key->m = g->m;
    key->n = g->n;
    key->ld_a = row_of(&g->a, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k);
    key->ld_b = row_of(&g->b, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n);
    key->ld_c = row_of(&g->c, g->m, g->n);
    key->ld_residual = has_residual(g) ? row_of(&g->residual, g->m, g->n) : key->ld_c;
}

static cudaDataType_t type_of(enum pd_dtype dtype)
{
    return dtype == PD_BF16 ? CUDA_R_16BF : dtype == PD_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static cudaDataType_t operand_type(enum pd_dtype dtype, enum pd_fp8 format)
{
    return format == PD_FP8_E4M3 ? CUDA_R_8F_E4M3 : format == PD_FP8_E5M2 ? CUDA_R_8F_E5M2 : type_of(dtype);
}

/* Largest power of two up to 16 that divides an address and its row bytes: limits vector loads. */
static uint32_t alignment_at(const void *data, uint64_t row_bytes)
{
    const uint64_t all = (uint64_t)(uintptr_t)data | row_bytes | 16;
    return (uint32_t)(all & -all);
}

static uint32_t alignment_of(const struct pd_matrix *matrix, uint64_t element_bytes)
{
    return alignment_at(matrix->data, matrix->ld * element_bytes);
}

static uint32_t operand_alignment(const struct pd_matrix *matrix, enum pd_fp8 format)
{
    return alignment_of(matrix, format ? 1 : pd_dtype_bytes(matrix->dtype));
}

static bool is_for_cublaslt(const struct pd_gemm *g)
{
    if (g->a_format) {
        /* With codes, rows must be multiples of 16 and bias not fp32. */
        if (g->k == 0 || g->k % 16 || g->n % 16 || (g->bias && g->c.dtype == PD_F32)) return false;
        if (operand_alignment(&g->a, g->a_format) < 16 || operand_alignment(&g->b, g->b_format) < 16) return false;
        if (alignment_of(&g->c, pd_dtype_bytes(g->c.dtype)) < 16) return false;
        if (g->residual.data && alignment_of(&g->residual, pd_dtype_bytes(g->residual.dtype)) < 16) return false;
        if (g->bias && g->bias_dtype != g->c.dtype) return false;
        return !g->residual.data || (!g->accumulate && g->residual.dtype == g->c.dtype);
    }
    if (g->k == 0 || g->a.dtype != g->b.dtype) return false;
    if (g->c.dtype != PD_F32 && g->c.dtype != g->a.dtype) return false;
    if (g->bias && g->bias_dtype != g->c.dtype) return false;
    return !g->residual.data || (!g->accumulate && g->residual.dtype == g->c.dtype);
}

/* The GEMM whose algorithm this one takes: of rows that data decides as many as the next power of two. So there are few keys,
 * all known before the first token, and the number of rows alone decides about bits. */
static struct pd_gemm rounded_up(const struct pd_gemm *g)
{
    struct pd_gemm rounded = *g;
    uint64_t *rows = g->varies == PD_VARIES_K ? &rounded.k : &rounded.m, most = VARYING_ROWS_MIN;
    while (most < *rows)
        most *= 2;
    if (g->varies && *rows) *rows = most;
    return rounded;
}

static struct key key_of(const struct pd_cuda_gemms *p, const struct pd_gemm *g, uint32_t parts)
{
    struct key key;
    memset(&key, 0, sizeof key);
    key.k = g->k;
    key.a = (uint8_t)operand_type(g->a.dtype, g->a_format);
    key.b = (uint8_t)operand_type(g->b.dtype, g->b_format);
    key.result = (uint8_t)type_of(g->c.dtype);
    key.trans_a = g->trans_a;
    key.trans_b = g->trans_b;
    key.accumulate = g->accumulate;
    key.bias = g->bias != NULL;
    key.residual = has_residual(g);
    key.align_a = operand_alignment(&g->a, g->a_format);
    key.align_b = operand_alignment(&g->b, g->b_format);
    key.align_c = alignment_of(&g->c, pd_dtype_bytes(g->c.dtype));
    key.align_residual = has_residual(g) ? alignment_of(&g->residual, pd_dtype_bytes(g->residual.dtype)) : key.align_c;
    key.align_bias = alignment_at(g->bias, 0);
    key.is_refused = !is_for_cublaslt(g);
    key.parts = (uint8_t)parts;
    key.multiprocessors = (uint16_t)p->options.multiprocessors;
    key.m = key.n = PD_CUDA_CANONICAL;
    key.ld_a = g->trans_a ? key.m : g->k;
    key.ld_b = g->trans_b ? g->k : key.n;
    key.ld_c = key.ld_residual = key.n;
    if (!p->options.any_shape) set_shape(&key, g);
    return key;
}

/* ---- its description ---- */

static pd_status set(struct description *d, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes,
                     struct pd_error *err)
{
    LT_TRY(err, pd_cublaslt.cublasLtMatmulDescSetAttribute(&d->operation, attribute, value, bytes), "describing a GEMM");
    return PD_OK;
}

/* Codes of a forward pass; a gradient has E5M2. Tensor cores of capability 9.0 then keep some 14 bits of a sum,
 * which they otherwise pass on to fp32 now and then. */
static bool sums_fast(const struct pd_cuda_gemms *p, const struct key *key)
{
    return !p->options.invariant && key->a == CUDA_R_8F_E4M3 && key->b == CUDA_R_8F_E4M3;
}

/* `stride`: elements from a part's matrix to the next one's. */
static pd_status repeat(cublasLtMatrixLayoutOpaque_t *layout, const struct key *key, uint64_t stride, struct pd_error *err)
{
    const int32_t count = key->parts;
    const int64_t offset = (int64_t)stride;
    if (count == 1) return PD_OK;
    LT_TRY(err,
           pd_cublaslt.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
           "describing parts");
    LT_TRY(err,
           pd_cublaslt.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                                        sizeof offset),
           "describing parts");
    return PD_OK;
}

static pd_status describe(const struct pd_cuda_gemms *p, struct description *d, const struct key *key, struct pd_error *err)
{
    const cudaDataType_t out = (cudaDataType_t)key->result;
    const uint64_t m = key->m, n = key->n, k = key->k;
    const uint64_t b_rows = key->trans_b ? k : n, b_columns = key->trans_b ? n : k;
    const uint64_t a_rows = key->trans_a ? m : k, a_columns = key->trans_a ? k : m;
    bool fast = sums_fast(p, key);
    const cublasOperation_t a = key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, b = key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const cudaDataType_t bias = (cudaDataType_t)key->result;
    const int8_t sums = fast;
    const int32_t multiprocessors = key->multiprocessors;
    LT_TRY(err,
           pd_cublaslt.cublasLtMatmulDescInit_internal(&d->operation, sizeof d->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "describing a GEMM");
    PD_TRY(set(d, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a, err));
    PD_TRY(set(d, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b, err));
    PD_TRY(set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err));
    if (fast) PD_TRY(set(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &sums, sizeof sums, err));
    if (multiprocessors) PD_TRY(set(d, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &multiprocessors, sizeof multiprocessors, err));
    PD_TRY(key->bias ? set(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias, sizeof bias, err) : PD_OK);
    LT_TRY(err,
           pd_cublaslt.cublasLtMatrixLayoutInit_internal(&d->a, sizeof d->a, (cudaDataType_t)key->b, b_rows, b_columns,
                                                         (int64_t)key->ld_b),
           "describing B");
    LT_TRY(err,
           pd_cublaslt.cublasLtMatrixLayoutInit_internal(&d->b, sizeof d->b, (cudaDataType_t)key->a, a_rows, a_columns,
                                                         (int64_t)key->ld_a),
           "describing A");
    LT_TRY(err, pd_cublaslt.cublasLtMatrixLayoutInit_internal(&d->c, sizeof d->c, out, n, m, (int64_t)key->ld_residual),
           "describing the residual");
    LT_TRY(err, pd_cublaslt.cublasLtMatrixLayoutInit_internal(&d->d, sizeof d->d, out, n, m, (int64_t)key->ld_c),
           "describing C");
    PD_TRY(repeat(&d->a, key, key->trans_b ? k : k * key->ld_b, err));
    PD_TRY(repeat(&d->b, key, key->trans_a ? k * key->ld_a : k, err));
    PD_TRY(repeat(&d->c, key, m * key->ld_c, err));
    return repeat(&d->d, key, m * key->ld_c, err);
}

/* Pointers that are neither operand nor result; the heuristic looks at them too. */
static pd_status point(struct description *d, const struct pd_gemm *g, struct pd_error *err)
{
    if (g->a_format) {
        PD_TRY(set(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b_scale, sizeof g->b_scale, err));
        PD_TRY(set(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a_scale, sizeof g->a_scale, err));
    }
    return g->bias ? set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias, err) : PD_OK;
}

/* ---- its algorithm ---- */

static bool may_split_k(const struct pd_cuda_gemms *p, const struct key *key)
{
    return !p->options.invariant && key->k % SPLIT_STEP == 0;
}

/* Partial sums in fp32. INPLACE adds them in the type of the result (cublasLt.h). */
static uint32_t reductions_of(const struct pd_cuda_gemms *p, const struct key *key)
{
    if (!may_split_k(p, key)) return CUBLASLT_REDUCTION_SCHEME_NONE;
    const bool is_fp32 = key->result == CUDA_R_32F;
    return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | (is_fp32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0);
}

static pd_status prefer(cublasLtMatmulPreferenceOpaque_t *preference, const struct pd_cuda_gemms *p, const struct key *key,
                        struct pd_error *err)
{
    const uint32_t reductions = reductions_of(p, key);
    const uint64_t workspace_bytes = PD_CUDA_GEMM_LIBRARY_BYTES;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof key->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof key->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_residual, sizeof key->align_residual},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_c, sizeof key->align_c},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
    };
    LT_TRY(err, pd_cublaslt.cublasLtMatmulPreferenceInit_internal(preference, sizeof *preference), "stating a preference");
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++)
        LT_TRY(err,
               pd_cublaslt.cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].attribute, wishes[i].value,
                                                                wishes[i].bytes),
               "stating a preference");
    return PD_OK;
}

/* Checks an algorithm by its own properties, whatever the preference was. */
static bool is_admitted(const struct pd_cuda_gemms *p, const struct key *key, const cublasLtMatmulAlgo_t *algorithm)
{
    int32_t parts = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t written;
    if (pd_cublaslt.cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts,
                                                         &written))
        return false;
    if (pd_cublaslt.cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                         sizeof scheme, &written))
        return false;
    if (parts > 1 && !may_split_k(p, key)) return false;
    return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || (scheme & reductions_of(p, key)) != 0;
}

/* The heuristic's first choice that this mode accepts. */
static pd_status choose(const struct pd_cuda_gemms *p, const struct pd_gemm *g, struct plan *plan, struct pd_error *err)
{
    struct description d;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    int count = 0;
    plan->is_used = plan->is_plain = true;
    plan->is_told = false;
    if (plan->key.is_refused) return PD_OK;
    PD_TRY(describe(p, &d, &plan->key, err));
    PD_TRY(point(&d, g, err));
    PD_TRY(prefer(&preference, p, &plan->key, err));
    cublasStatus_t code = pd_cublaslt.cublasLtMatmulAlgoGetHeuristic(p->handle, &d.operation, &d.a, &d.b, &d.c, &d.d,
                                                                     &preference, CANDIDATES, results, &count);
    if (code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE) return PD_OK;
    LT_TRY(err, code, "asking its heuristic");
    for (int i = 0; i < count && plan->is_plain; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
        if (!is_admitted(p, &plan->key, &results[i].algo)) continue;
        plan->algorithm = results[i].algo;
        plan->is_plain = false;
    }
    return PD_OK;
}

/* FNV-1a, 64 bits, over the words of the key. */
static uint64_t hash_of(const struct key *key)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = UINT64_C(0xcbf29ce484222325);
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 32;
}

/* If all nearby places are taken, replaces the last one; the heuristic would give its key the same answer again. */
static pd_status find(struct pd_cuda_gemms *p, const struct key *key, const struct pd_gemm *g, struct plan **ret_plan,
                      struct pd_error *err)
{
    const uint64_t start = hash_of(key);
    struct plan *plan = NULL;
    for (uint64_t i = 0; i < 16; i++) {
        plan = &p->plans[(start + i) % SLOTS];
        if (!plan->is_used) break;
        if (!memcmp(&plan->key, key, sizeof *key)) {
            *ret_plan = plan;
            return PD_OK;
        }
    }
    plan->key = *key;
    const pd_status st = choose(p, g, plan, err);
    plan->is_used = !st;
    *ret_plan = plan;
    return st;
}

/* ---- running it ---- */

/* Describes this GEMM, whatever shape the algorithm was chosen for. */
static pd_status describe_gemm(const struct pd_cuda_gemms *p, struct description *d, const struct key *chosen,
                               const struct pd_gemm *g, struct pd_error *err)
{
    struct key key = *chosen;
    key.k = g->k;
    set_shape(&key, g);
    PD_TRY(describe(p, d, &key, err));
    return point(d, g, err);
}

/* Whether the algorithm, chosen for another shape, accepts this one within the workspace. */
static bool is_taken(struct pd_cuda_gemms *p, struct description *d, const struct pd_gemm *g, const struct plan *plan)
{
    cublasLtMatmulHeuristicResult_t result;
    if (!p->options.any_shape && !g->varies) return true;
    return pd_cublaslt.cublasLtMatmulAlgoCheck(p->handle, &d->operation, &d->a, &d->b, &d->c, &d->d, &plan->algorithm,
                                               &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= PD_CUDA_GEMM_LIBRARY_BYTES;
}

static pd_status multiply(struct pd_cuda_gemms *p, void *stream, const struct pd_gemm *g, const struct plan *plan,
                          struct description *d, struct pd_error *err)
{
    const float alpha = 1.0f, beta = g->accumulate || g->residual.data ? 1.0f : 0.0f;
    const void *added = g->residual.data ? g->residual.data : g->c.data;
    cublasStatus_t code = pd_cublaslt.cublasLtMatmul(p->handle, &d->operation, &alpha, g->b.data, &d->a, g->a.data, &d->b,
                                                     &beta, added, &d->c, g->c.data, &d->d, &plan->algorithm,
                                                     p->options.workspace, PD_CUDA_GEMM_LIBRARY_BYTES, (cudaStream_t)stream);
    if (code == CUBLAS_STATUS_SUCCESS) return PD_OK;
    PD_FAIL(err, status_of(code), "cuBLASLt: GEMM of (%llu, %llu) and (%llu, %llu): %s", (unsigned long long)g->m,
            (unsigned long long)g->k, (unsigned long long)g->k, (unsigned long long)g->n,
            pd_cublaslt.cublasLtGetStatusName(code));
}

static pd_status multiply_plainly(struct pd_cuda_gemms *p, void *stream, const struct pd_gemm *g, struct plan *plan,
                                  struct pd_error *err)
{
    const char *why = plan->key.is_refused ? "does not take operands of such types or alignment" : "has no algorithm for it";
    if (!plan->is_told && g->k > 0) {
        pd_log_warn("math",
                    "GEMM (%llu, %llu) by (%llu, %llu) of %s into %s: cuBLASLt %s, so our plain kernel multiplies it, many "
                    "times slower",
                    (unsigned long long)g->m, (unsigned long long)g->k, (unsigned long long)g->k, (unsigned long long)g->n,
                    g->a_format ? "fp8" : pd_dtype_name(g->a.dtype), pd_dtype_name(g->c.dtype), why);
        p->plain_shapes++;
        plan->is_told = true;
    }
    return pd_cuda_gemm_plain(stream, g, err);
}

/* By the algorithm for `chosen`, if the library has one. */
static pd_status run_chosen(struct pd_cuda_gemms *p, void *stream, const struct pd_gemm *g, const struct pd_gemm *chosen,
                            struct plan **ret_plan, bool *ret_done, struct pd_error *err)
{
    struct description d;
    const struct key key = key_of(p, chosen, 1);
    PD_TRY(find(p, &key, chosen, ret_plan, err));
    *ret_done = false;
    if ((*ret_plan)->is_plain) return PD_OK;
    PD_TRY(describe_gemm(p, &d, &key, g, err));
    *ret_done = is_taken(p, &d, g, *ret_plan);
    return *ret_done ? multiply(p, stream, g, *ret_plan, &d, err) : PD_OK;
}

/* An algorithm for more rows that refuses these gives way to their own. */
static pd_status run_whole(struct pd_cuda_gemms *p, void *stream, const struct pd_gemm *g, struct pd_error *err)
{
    const struct pd_gemm rounded = rounded_up(g);
    struct plan *plan;
    bool is_done;
    PD_TRY(run_chosen(p, stream, g, &rounded, &plan, &is_done, err));
    if (!is_done && g->varies) PD_TRY(run_chosen(p, stream, g, g, &plan, &is_done, err));
    return is_done ? PD_OK : multiply_plainly(p, stream, g, plan, err);
}

/* ---- in parts of k ---- */

/* Depends only on the shape: as many parts as give each tile of each a multiprocessor. Only if nothing cuts the shape. */
static uint32_t parts_of(const struct pd_cuda_gemms *p, const struct pd_gemm *g)
{
    const uint64_t tiles = (g->m + TILE - 1) / TILE * ((g->n + TILE - 1) / TILE);
    uint32_t parts = PARTS_MAX;
    if (!p->options.invariant || p->options.any_shape || g->varies) return 1;
    if (g->a_format || g->c.dtype != PD_F32 || g->bias) return 1;
    if (g->accumulate && g->residual.data) return 1; /* one of the two is added */
    if (g->k < PARTS_K || g->k % (PARTS_MAX * SPLIT_STEP)) return 1;
    while (parts > 1 && parts * tiles > PD_CUDA_GEMM_TILES)
        parts /= 2;
    return parts;
}

/* Products over the parts in one call, so that they run concurrently; then their sum in the order of pd_finish, and the
 * addend of C. *ret_done false: the library has no algorithm. */
static pd_status run_parts(struct pd_cuda_gemms *p, void *stream, const struct pd_gemm *g, uint32_t parts, bool *ret_done,
                           struct pd_error *err)
{
    float *const sums = (float *)((char *)p->options.workspace + PD_CUDA_GEMM_LIBRARY_BYTES);
    const uint64_t ld = pd_round_up(g->n, 4);
    const float *each[PARTS_MAX];
    struct description d;
    struct plan *plan;
    struct pd_gemm part = *g;
    part.k = g->k / parts;
    part.c = (struct pd_matrix){sums, PD_F32, ld};
    part.accumulate = false;
    part.residual.data = NULL;
    const struct key key = key_of(p, &part, parts);
    PD_TRY(find(p, &key, &part, &plan, err));
    *ret_done = !plan->is_plain;
    if (plan->is_plain) return PD_OK;
    PD_TRY(describe_gemm(p, &d, &key, &part, err));
    PD_TRY(multiply(p, stream, &part, plan, &d, err));
    for (uint32_t i = 0; i < parts; i++)
        each[i] = sums + i * g->m * ld;
    const struct pd_finish finish = {.rows = g->m,
                                     .columns = g->n,
                                     .part_count = parts,
                                     .parts = each,
                                     .ld_parts = ld,
                                     .scale = 1,
                                     .residual = g->accumulate ? g->c : g->residual,
                                     .out = g->c};
    return pd_cuda_finish(stream, &finish, err);
}

pd_status pd_cuda_gemms_run(struct pd_cuda_gemms *p, void *stream, const struct pd_gemm *g, struct pd_error *err)
{
    bool is_done = false;
    if (g->m == 0 || g->n == 0) return PD_OK;
    const uint32_t parts = parts_of(p, g);
    if (parts > 1) PD_TRY(run_parts(p, stream, g, parts, &is_done, err));
    return is_done ? PD_OK : run_whole(p, stream, g, err);
}

uint32_t pd_cuda_gemms_plain_shapes(const struct pd_cuda_gemms *p)
{
    return p->plain_shapes;
}

const char *pd_cuda_gemms_name(void)
{
    return "cuBLASLt";
}
