/* The functions of cuBLASLt that perdure calls, under their own names, each handed on to the library once it is open. */
#include "trainer/math/cuda/cublaslt_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define TEXT_OF(X) #X
#define TEXT(X) TEXT_OF(X)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

#define FUNCTIONS(X)                         \
    X(cublasLtCreate)                        \
    X(cublasLtDestroy)                       \
    X(cublasLtGetStatusName)                 \
    X(cublasLtMatmul)                        \
    X(cublasLtMatmulAlgoCheck)               \
    X(cublasLtMatmulAlgoConfigGetAttribute)  \
    X(cublasLtMatmulAlgoGetHeuristic)        \
    X(cublasLtMatmulDescInit_internal)       \
    X(cublasLtMatmulDescSetAttribute)        \
    X(cublasLtMatmulPreferenceInit_internal) \
    X(cublasLtMatmulPreferenceSetAttribute)  \
    X(cublasLtMatrixLayoutInit_internal)

static struct {
#define MEMBER(NAME) __typeof__(NAME) *NAME##_;
    FUNCTIONS(MEMBER)
#undef MEMBER
} loaded;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool is_loaded;

static pd_status find(void *library, const char *name, void *ret_function, struct pd_error *err)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        PD_FAIL(err, PD_UNSUPPORTED, "%s has no %s: install the cuBLAS that this program was built with", LIBRARY, name);
    *(void **)ret_function = symbol;
    return PD_OK;
}

static pd_status load(struct pd_error *err)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    char why[160];
    if (!library) snprintf(why, sizeof why, "%s", dlerror());
    if (!library) library = dlopen(PERDURE_CUBLAS_DIR "/" LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        PD_FAIL(err, PD_UNSUPPORTED, "products on a GPU need %s: %s; install cuBLAS, or put its folder on LD_LIBRARY_PATH",
                LIBRARY, why);
#define FIND(NAME) PD_TRY(find(library, #NAME, &loaded.NAME##_, err));
    FUNCTIONS(FIND)
#undef FIND
    is_loaded = true;
    return PD_OK;
}

pd_status pd_cublaslt_load(struct pd_error *err)
{
    pthread_mutex_lock(&mutex);
    pd_status st = is_loaded ? PD_OK : load(err);
    pthread_mutex_unlock(&mutex);
    return st;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return loaded.cublasLtCreate_(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return loaded.cublasLtDestroy_(handle);
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return loaded.cublasLtGetStatusName_(status);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    return loaded.cublasLtMatmul_(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                                  algorithm, workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result)
{
    return loaded.cublasLtMatmulAlgoCheck_(handle, operation, a, b, c, d, algorithm, result);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written)
{
    return loaded.cublasLtMatmulAlgoConfigGetAttribute_(algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    return loaded.cublasLtMatmulAlgoGetHeuristic_(handle, operation, a, b, c, d, preference, wanted, results, count);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t bytes, cublasComputeType_t compute,
                                               cudaDataType_t scale)
{
    return loaded.cublasLtMatmulDescInit_internal_(operation, bytes, compute, scale);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    return loaded.cublasLtMatmulDescSetAttribute_(operation, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t bytes)
{
    return loaded.cublasLtMatmulPreferenceInit_internal_(preference, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    return loaded.cublasLtMatmulPreferenceSetAttribute_(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t ld)
{
    return loaded.cublasLtMatrixLayoutInit_internal_(layout, bytes, type, rows, columns, ld);
}
