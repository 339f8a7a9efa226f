/* cuBLASLt on the host, as far as perdure calls it: products over host memory, and what NVIDIA's documentation says that the
 * library refuses. Compiled in the place of cublaslt_load.c, with NVIDIA's headers.
 *
 *   it refuses     shapes that do not fit together, types that the table of cublasLtMatmul has not, fp8 but in its one form,
 * an algorithm for another product, pointers less aligned than the preference said, a small workspace algorithms     the
 * heuristic names one that splits k where it may, one that it cannot do, and one that does not split k. Who splits k loses
 * what is left over after steps of 64, and rounds partial sums when they are of the result's type: both were seen of the
 * library (facebookexperimental/triton 2767, TransformerEngine 3440) source         cuBLAS 13.0, "cublasLtMatmul()",
 * cublasLt.h */
#include "tests/simt/cublaslt.h"

#include "ckpt/base/half.h"
#include "trainer/math/cuda/cublaslt_load.h"
#include "trainer/math/fp8.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define SPLIT_STEP 64u
#define SPLIT_WORKSPACE (UINT64_C(1) << 20)

struct layout {
    uint64_t type, rows, columns, ld; /* type: cudaDataType */
    int64_t stride;                   /* from a product of a call to the next */
    int32_t count;
};

struct operation {
    cublasComputeType_t compute;
    cudaDataType_t scale, bias_type;
    cublasOperation_t a_turned, b_turned;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    const float *a_scale, *b_scale;
    int8_t sums_fast;
    int32_t multiprocessors;
};

struct preference {
    uint64_t workspace_bytes;
    uint32_t align[4], reductions; /* align: of a, b, c, d */
};

struct algorithm {
    int32_t parts, products, multiprocessors;
    uint32_t scheme, align[4];
    uint8_t types[4], turned[2]; /* of a, b, d and the bias */
};

_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "storage of the caller's");
_Static_assert(sizeof(struct operation) <= sizeof(cublasLtMatmulDescOpaque_t), "storage of the caller's");
_Static_assert(sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "storage of the caller's");
_Static_assert(sizeof(struct algorithm) <= sizeof(cublasLtMatmulAlgo_t), "storage of the caller's");

static struct simt_cublaslt_counts counts;
static bool in_place_alone, has_nothing, has_no_parts;

void simt_cublaslt_offer(bool in_place, bool nothing)
{
    in_place_alone = in_place;
    has_nothing = nothing;
}

void simt_cublaslt_refuse_parts(bool refuse)
{
    has_no_parts = refuse;
}

struct simt_cublaslt_counts simt_cublaslt_counted(void)
{
    return counts;
}

#define ENTRY(NAME) .NAME = NAME,
struct pd_cublaslt pd_cublaslt = {PD_CUBLASLT_FUNCTIONS(ENTRY)};

pd_status pd_cublaslt_load(struct pd_error *err)
{
    (void)err;
    return PD_OK;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)(void *)&counts;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
}

/* ---- descriptions ---- */

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t to, size_t bytes, cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t ld)
{
    const struct layout l = {type, rows, columns, (uint64_t)ld, 0, 1};
    if (bytes < sizeof l || ld < 0) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t to, size_t bytes, cublasComputeType_t compute,
                                               cudaDataType_t scale)
{
    const struct operation o = {.compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    if (bytes < sizeof o) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, &o, sizeof o);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t put(void *to, size_t bytes, const void *value, size_t given)
{
    if (bytes != given) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t to, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    struct layout *l = (struct layout *)to;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return put(&l->count, sizeof l->count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return put(&l->stride, sizeof l->stride, value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    struct operation *o = (struct operation *)to;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return put(&o->a_turned, sizeof o->a_turned, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return put(&o->b_turned, sizeof o->b_turned, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return put(&o->epilogue, sizeof o->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return put(&o->bias, sizeof o->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return put(&o->bias_type, sizeof o->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        return put(&o->sums_fast, sizeof o->sums_fast, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return put(&o->multiprocessors, sizeof o->multiprocessors, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return put(&o->a_scale, sizeof o->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return put(&o->b_scale, sizeof o->b_scale, value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t to, size_t bytes)
{
    const struct preference p = {.align = {256, 256, 256, 256}, .reductions = CUBLASLT_REDUCTION_SCHEME_MASK};
    if (bytes < sizeof p) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    struct preference *p = (struct preference *)to;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return put(&p->workspace_bytes, sizeof p->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return put(&p->reductions, sizeof p->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return put(&p->align[0], sizeof p->align[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return put(&p->align[1], sizeof p->align[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return put(&p->align[2], sizeof p->align[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return put(&p->align[3], sizeof p->align[3], value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

/* ---- what it takes ---- */

struct product {
    struct operation o;
    struct layout a, b, c, d;
    uint64_t m, n, k;
};

static bool is_fp8(uint64_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static uint64_t bytes_of(uint64_t type)
{
    return is_fp8(type) ? 1 : type == CUDA_R_32F ? 4 : 2;
}

static cublasStatus_t check_shapes(struct product *p)
{
    const struct layout *const all[] = {&p->a, &p->b, &p->c, &p->d};
    const bool a_turned = p->o.a_turned != CUBLAS_OP_N, b_turned = p->o.b_turned != CUBLAS_OP_N;
    p->m = p->d.rows;
    p->n = p->d.columns;
    p->k = a_turned ? p->a.rows : p->a.columns;
    for (int i = 0; i < 4; i++)
        if (!all[i]->rows || !all[i]->columns || all[i]->ld < all[i]->rows || all[i]->count != p->d.count)
            return CUBLAS_STATUS_INVALID_VALUE;
    if ((a_turned ? p->a.columns : p->a.rows) != p->m || (b_turned ? p->b.rows : p->b.columns) != p->n ||
        (b_turned ? p->b.columns : p->b.rows) != p->k || p->c.rows != p->m || p->c.columns != p->n)
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_fp8(const struct product *p)
{
    const cudaDataType bias = p->d.type == CUDA_R_16F ? CUDA_R_16F : CUDA_R_16BF;
    if (p->o.a_turned != CUBLAS_OP_T || p->o.b_turned != CUBLAS_OP_N || !is_fp8(p->a.type) || !is_fp8(p->b.type) ||
        (p->a.type == CUDA_R_8F_E5M2 && p->b.type == CUDA_R_8F_E5M2) || p->m % 16 || p->k % 16 || p->a.ld % 16 ||
        p->b.ld % 16 || p->d.ld * bytes_of(p->d.type) % 16 || p->c.ld * bytes_of(p->c.type) % 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!p->o.a_scale || !p->o.b_scale) return CUBLAS_STATUS_INVALID_VALUE;
    return p->o.bias && p->o.bias_type != bias ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check(struct product *p)
{
    const cublasStatus_t shapes = check_shapes(p);
    const bool has_bias = p->o.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (shapes) return shapes;
    if (p->o.compute != CUBLAS_COMPUTE_32F || p->o.scale != CUDA_R_32F || p->c.type != p->d.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_bias != (p->o.bias != NULL) || (!has_bias && p->o.epilogue != CUBLASLT_EPILOGUE_DEFAULT))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_fp8(p->a.type) || is_fp8(p->b.type)) return check_fp8(p);
    if (p->a.type != p->b.type || (p->d.type != p->a.type && p->d.type != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return has_bias && p->o.bias_type != p->d.type ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

static struct product product_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    struct product p;
    memcpy(&p.o, operation, sizeof p.o);
    memcpy(&p.a, a, sizeof p.a);
    memcpy(&p.b, b, sizeof p.b);
    memcpy(&p.c, c, sizeof p.c);
    memcpy(&p.d, d, sizeof p.d);
    return p;
}

/* ---- algorithms ---- */

static struct algorithm algorithm_of(const struct product *p, const struct preference *wishes)
{
    struct algorithm a = {.parts = 1, .scheme = CUBLASLT_REDUCTION_SCHEME_NONE};
    const uint64_t types[4] = {p->a.type, p->b.type, p->d.type, p->o.bias ? p->o.bias_type : CUDA_R_32F};
    for (int i = 0; i < 4; i++) {
        a.types[i] = (uint8_t)types[i];
        a.align[i] = wishes ? wishes->align[i] : 0;
    }
    a.turned[0] = p->o.a_turned != CUBLAS_OP_N;
    a.turned[1] = p->o.b_turned != CUBLAS_OP_N;
    a.products = p->d.count;
    a.multiprocessors = p->o.multiprocessors;
    return a;
}

static void name(cublasLtMatmulHeuristicResult_t *to, const struct algorithm *a, cublasStatus_t state, size_t workspace)
{
    memset(to, 0, sizeof *to);
    memcpy(&to->algo, a, sizeof *a);
    to->state = state;
    to->workspaceSize = workspace;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    struct product p = product_of(operation, a, b, c, d);
    struct preference wishes;
    const cublasStatus_t refused = check(&p);
    (void)handle;
    memcpy(&wishes, preference, sizeof wishes);
    counts.asked++;
    *count = 0;
    if (refused) return refused;
    if (has_nothing || (has_no_parts && p.d.count > 1)) return CUBLAS_STATUS_NOT_SUPPORTED;
    struct algorithm one = algorithm_of(&p, &wishes), split = one;
    split.parts = 4;
    if (in_place_alone) wishes.reductions &= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    split.scheme = wishes.reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE    ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                   : wishes.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                   : wishes.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE      ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                                                                : CUBLASLT_REDUCTION_SCHEME_NONE;
    const bool may_split = !in_place_alone || split.scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
    if (may_split && wishes.workspace_bytes >= SPLIT_WORKSPACE && *count < wanted)
        name(&results[(*count)++], &split, CUBLAS_STATUS_SUCCESS, SPLIT_WORKSPACE);
    if (*count < wanted) name(&results[(*count)++], &split, CUBLAS_STATUS_NOT_SUPPORTED, 0);
    if (*count < wanted) name(&results[(*count)++], &one, CUBLAS_STATUS_SUCCESS, 0);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written)
{
    struct algorithm a;
    memcpy(&a, algorithm, sizeof a);
    *written = bytes;
    if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) return put(value, bytes, &a.parts, sizeof a.parts);
    if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) return put(value, bytes, &a.scheme, sizeof a.scheme);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Types and transposes are those that it was named for. */
static bool is_for(const struct algorithm *a, const struct product *p)
{
    const struct algorithm own = algorithm_of(p, NULL);
    return !memcmp(a->types, own.types, sizeof own.types) && !memcmp(a->turned, own.turned, sizeof own.turned) &&
           a->products == own.products && a->multiprocessors == own.multiprocessors;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result)
{
    struct product p = product_of(operation, a, b, c, d);
    struct algorithm named;
    (void)handle;
    memcpy(&named, algorithm, sizeof named);
    const cublasStatus_t refused = check(&p);
    if (refused) return refused;
    if (!is_for(&named, &p)) return CUBLAS_STATUS_INVALID_VALUE;
    name(result, &named, CUBLAS_STATUS_SUCCESS, named.parts > 1 ? SPLIT_WORKSPACE : 0);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

static float get(uint64_t type, const void *data, uint64_t i)
{
    if (type == CUDA_R_32F) return ((const float *)data)[i];
    if (is_fp8(type)) return pd_f32_of_fp8(type == CUDA_R_8F_E4M3 ? PD_FP8_E4M3 : PD_FP8_E5M2, ((const uint8_t *)data)[i]);
    const uint16_t half = ((const uint16_t *)data)[i];
    return type == CUDA_R_16BF ? pd_f32_from_bf16(half) : pd_f32_from_f16(half);
}

static float rounded(uint64_t type, float x)
{
    if (type == CUDA_R_32F) return x;
    return type == CUDA_R_16BF ? pd_f32_from_bf16(pd_bf16_from_f32(x)) : pd_f32_from_f16(pd_f16_from_f32(x));
}

static void store(uint64_t type, void *data, uint64_t i, float x)
{
    if (type == CUDA_R_32F)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = type == CUDA_R_16BF ? pd_bf16_from_f32(x) : pd_f16_from_f32(x);
}

/* Columns are contiguous; element (row, k) of op(A), (k, column) of op(B). */
static float chain(const struct product *p, const struct algorithm *way, const void *a, const void *b, uint64_t row,
                   uint64_t column)
{
    const uint64_t k_end = way->parts > 1 ? p->k / SPLIT_STEP * SPLIT_STEP : p->k;
    const bool rounds =
        way->scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE || way->scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
    float sum = 0;
    for (uint64_t k = 0; k < k_end; k++) {
        const uint64_t at_a = p->o.a_turned == CUBLAS_OP_N ? k * p->a.ld + row : row * p->a.ld + k;
        const uint64_t at_b = p->o.b_turned == CUBLAS_OP_N ? column * p->b.ld + k : k * p->b.ld + column;
        sum = fmaf(get(p->a.type, a, at_a), get(p->b.type, b, at_b), sum);
        if (rounds && k % SPLIT_STEP == SPLIT_STEP - 1) sum = rounded(p->d.type, sum);
    }
    return is_fp8(p->a.type) ? sum * (*p->o.a_scale * *p->o.b_scale) : sum;
}

static const void *at(const struct layout *l, const void *data, int64_t product)
{
    return (const char *)data + product * l->stride * (int64_t)bytes_of(l->type);
}

static void one(const struct product *p, const struct algorithm *way, float scale, float old, const void *const abc[3],
                void *d)
{
    for (uint64_t column = 0; column < p->n; column++)
        for (uint64_t row = 0; row < p->m; row++) {
            float x = scale * chain(p, way, abc[0], abc[1], row, column);
            if (old != 0) x += old * get(p->c.type, abc[2], column * p->c.ld + row);
            if (p->o.bias) x += get(p->o.bias_type, p->o.bias, row);
            store(p->d.type, d, column * p->d.ld + row, x);
        }
}

static cublasStatus_t check_memory(const struct product *p, const struct algorithm *way, const void *const pointers[4],
                                   const void *workspace, size_t workspace_bytes)
{
    const struct layout *const layouts[] = {&p->a, &p->b, &p->c, &p->d};
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)pointers[i] % way->align[i] ||
            (p->d.count > 1 && (uintptr_t)at(layouts[i], pointers[i], 1) % way->align[i]))
            return CUBLAS_STATUS_INVALID_VALUE;
    if (pointers[2] == pointers[3] && memcmp(&p->c, &p->d, sizeof p->c) != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (way->parts > 1 && (workspace_bytes < SPLIT_WORKSPACE || (uintptr_t)workspace % 256))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    struct product p = product_of(operation, a_layout, b_layout, c_layout, d_layout);
    struct algorithm way;
    const void *const pointers[4] = {a, b, c, d};
    const float scale = *(const float *)alpha, old = *(const float *)beta;
    (void)handle, (void)stream;
    memcpy(&way, algorithm, sizeof way);
    cublasStatus_t refused = check(&p);
    if (!refused && !is_for(&way, &p)) refused = CUBLAS_STATUS_INVALID_VALUE;
    if (!refused) refused = check_memory(&p, &way, pointers, workspace, workspace_bytes);
    if (refused) return refused;
    if (!counts.gemms++ || p.o.multiprocessors < counts.multiprocessors_min)
        counts.multiprocessors_min = p.o.multiprocessors;
    if (p.o.multiprocessors > counts.multiprocessors_max) counts.multiprocessors_max = p.o.multiprocessors;
    counts.split += way.parts > 1;
    counts.fast += p.o.sums_fast != 0;
    counts.parts += (uint32_t)p.d.count;
    for (int64_t i = 0; i < p.d.count; i++) {
        const void *const each[3] = {at(&p.a, a, i), at(&p.b, b, i), at(&p.c, c, i)};
        one(&p, &way, scale, old, each, (void *)(uintptr_t)at(&p.d, d, i));
    }
    return CUBLAS_STATUS_SUCCESS;
}
