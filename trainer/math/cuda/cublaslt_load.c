#include "trainer/math/cuda/cublaslt_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define TEXT_OF(X) #X
#define TEXT(X) TEXT_OF(X)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

struct pd_cublaslt pd_cublaslt;
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
#define FIND(NAME) PD_TRY(find(library, #NAME, &pd_cublaslt.NAME, err));
    PD_CUBLASLT_FUNCTIONS(FIND)
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
