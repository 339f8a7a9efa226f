/* cuDNN's backend, opened with dlopen: its libraries take hundreds of megabytes, and few runs need them. */
#include "trainer/math/cuda/cudnn_graph.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF(X) #X
#define TEXT(X) TEXT_OF(X)
#define LIBRARY "libcudnn.so." TEXT(CUDNN_MAJOR)
#define CONFIGS_MAX 16

#define FUNCTIONS(X)                 \
    X(cudnnCreate)                   \
    X(cudnnSetStream)                \
    X(cudnnGetErrorString)           \
    X(cudnnBackendCreateDescriptor)  \
    X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendSetAttribute)      \
    X(cudnnBackendGetAttribute)      \
    X(cudnnBackendFinalize)          \
    X(cudnnBackendExecute)

static struct {
#define MEMBER(NAME) __typeof__(NAME) *NAME;
    FUNCTIONS(MEMBER)
#undef MEMBER
} lib;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool is_loaded;

static pd_status find(void *library, const char *name, void *ret_function, struct pd_error *err)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        PD_FAIL(err, PD_UNSUPPORTED, "%s has no %s: install the cuDNN that this program was built with", LIBRARY, name);
    *(void **)ret_function = symbol;
    return PD_OK;
}

static pd_status load(struct pd_error *err)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    char why[160];
    if (!library) snprintf(why, sizeof why, "%s", dlerror());
    if (!library) library = dlopen(PERDURE_CUDNN_DIR "/" LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        PD_FAIL(err, PD_UNSUPPORTED, "attention by cuDNN needs %s: %s; install it, or put its folder on LD_LIBRARY_PATH",
                LIBRARY, why);
#define FIND(NAME) PD_TRY(find(library, #NAME, &lib.NAME, err));
    FUNCTIONS(FIND)
#undef FIND
    is_loaded = true;
    return PD_OK;
}

static pd_status check(cudnnStatus_t code, const char *what, struct pd_error *err)
{
    if (code == CUDNN_STATUS_SUCCESS) return PD_OK;
    const bool unsupported = code >= CUDNN_STATUS_NOT_SUPPORTED && code < CUDNN_STATUS_INTERNAL_ERROR;
    return pd_error_set(err, unsupported ? PD_UNSUPPORTED : PD_DEVICE_LOST, PD_WHERE, 0, "cuDNN, %s: %s", what,
                        lib.cudnnGetErrorString(code));
}

pd_status pd_cudnn_open(cudnnHandle_t *ret_handle, struct pd_error *err)
{
    pthread_mutex_lock(&mutex);
    pd_status st = is_loaded ? PD_OK : load(err);
    pthread_mutex_unlock(&mutex);
    return st ? st : check(lib.cudnnCreate(ret_handle), "a handle", err);
}

/* ---- descriptors ---- */

void pd_cudnn_graph_init(struct pd_cudnn_graph *g, cudnnHandle_t handle, struct pd_error *err)
{
    *g = (struct pd_cudnn_graph){.handle = handle, .next_uid = 1000, .err = err};
}

static void drop_made(struct pd_cudnn_graph *g)
{
    while (g->made_count > 0)
        (void)lib.cudnnBackendDestroyDescriptor(g->made[--g->made_count]);
}

void pd_cudnn_graph_deinit(struct pd_cudnn_graph *g)
{
    drop_made(g);
    if (g->plan) (void)lib.cudnnBackendDestroyDescriptor(g->plan);
    g->plan = NULL;
}

static void note(struct pd_cudnn_graph *g, cudnnStatus_t code, const char *what)
{
    if (!g->st) g->st = check(code, what, g->err);
}

static cudnnBackendDescriptor_t make(struct pd_cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (g->st) return NULL;
    PD_CHECK(g->made_count < PD_CUDNN_MADE_MAX);
    note(g, lib.cudnnBackendCreateDescriptor(type, &descriptor), "a descriptor");
    if (!g->st) g->made[g->made_count++] = descriptor;
    return descriptor;
}

static void set(struct pd_cudnn_graph *g, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    char what[48];
    snprintf(what, sizeof what, "attribute %d", (int)name);
    if (!g->st) note(g, lib.cudnnBackendSetAttribute(descriptor, name, type, count, values), what);
}

static void set_descriptor(struct pd_cudnn_graph *g, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value)
{
    set(g, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(struct pd_cudnn_graph *g, cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (!g->st) note(g, lib.cudnnBackendFinalize(descriptor), what);
}

static void operation_end(struct pd_cudnn_graph *g, cudnnBackendDescriptor_t operation, const char *what)
{
    finalize(g, operation, what);
    PD_CHECK(g->operation_count < PD_CUDNN_OPERATIONS_MAX);
    g->operations[g->operation_count++] = operation;
}

/* ---- tensors ---- */

static struct pd_cudnn_tensor tensor(struct pd_cudnn_graph *g, int64_t uid, cudnnDataType_t type, const int64_t sizes[4],
                                     const int64_t strides[4], bool by_value)
{
    struct pd_cudnn_tensor t = {.descriptor = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR)};
    const int64_t alignment = by_value ? 4 : 16;
    const bool inside = uid == 0;
    if (inside) uid = g->next_uid++;
    memcpy(t.sizes, sizes, sizeof t.sizes);
    memcpy(t.strides, strides, sizeof t.strides);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(g, t.descriptor, "a tensor");
    return t;
}

struct pd_cudnn_tensor pd_cudnn_tensor(struct pd_cudnn_graph *g, int64_t uid, cudnnDataType_t type, const int64_t sizes[4],
                                       const int64_t strides[4])
{
    return tensor(g, uid, type, sizes, strides, false);
}

struct pd_cudnn_tensor pd_cudnn_scalar(struct pd_cudnn_graph *g, int64_t uid)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, uid, CUDNN_DATA_FLOAT, one, one, true);
}

struct pd_cudnn_tensor pd_cudnn_inside(struct pd_cudnn_graph *g, cudnnDataType_t type, const int64_t sizes[4])
{
    const int64_t strides[4] = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
    return tensor(g, 0, type, sizes, strides, false);
}

struct pd_cudnn_tensor pd_cudnn_turned(struct pd_cudnn_graph *g, int64_t uid, cudnnDataType_t type,
                                       const struct pd_cudnn_tensor *of)
{
    const int64_t sizes[4] = {of->sizes[0], of->sizes[1], of->sizes[3], of->sizes[2]};
    const int64_t strides[4] = {of->strides[0], of->strides[1], of->strides[3], of->strides[2]};
    return tensor(g, uid, type, sizes, strides, false);
}

/* ---- operations ---- */

void pd_cudnn_matmul(struct pd_cudnn_graph *g, const struct pd_cudnn_tensor *a, const struct pd_cudnn_tensor *b,
                     const struct pd_cudnn_tensor *c)
{
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    finalize(g, how, "a product");
    cudnnBackendDescriptor_t operation = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a->descriptor);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b->descriptor);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c->descriptor);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    operation_end(g, operation, "a product's operands");
}

void pd_cudnn_pointwise(struct pd_cudnn_graph *g, const struct pd_cudnn_pointwise *o)
{
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &o->mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &o->precision);
    if (o->axis >= 0) set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &o->axis);
    finalize(g, how, "a pointwise operation");
    cudnnBackendDescriptor_t operation = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, o->x->descriptor);
    if (o->b) set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, o->b->descriptor);
    if (o->t) set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, o->t->descriptor);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, o->y->descriptor);
    operation_end(g, operation, "a pointwise operation's operands");
}

void pd_cudnn_reduction(struct pd_cudnn_graph *g, cudnnReduceTensorOp_t operator, const struct pd_cudnn_tensor * x,
                        const struct pd_cudnn_tensor *y)
{
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    finalize(g, how, "a reduction");
    cudnnBackendDescriptor_t operation = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x->descriptor);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y->descriptor);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    operation_end(g, operation, "a reduction's operands");
}

void pd_cudnn_reshape(struct pd_cudnn_graph *g, const struct pd_cudnn_tensor *x, const struct pd_cudnn_tensor *y)
{
    cudnnBackendDescriptor_t operation = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x->descriptor);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y->descriptor);
    operation_end(g, operation, "a reshape");
}

/* ---- engines ---- */

/* A plan of the first engine that takes the graph, of those that one kind of heuristic proposes. */
static void plan_by(struct pd_cudnn_graph *g, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode)
{
    cudnnBackendDescriptor_t configs[CONFIGS_MAX], heuristic = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t count = 0;
    set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (g->st || lib.cudnnBackendFinalize(heuristic) != CUDNN_STATUS_SUCCESS) return;
    for (uint32_t i = 0; i < CONFIGS_MAX; i++)
        configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->st || lib.cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                              CONFIGS_MAX, &count, configs) != CUDNN_STATUS_SUCCESS)
        return;
    for (int64_t i = 0; i < count && i < CONFIGS_MAX && !g->plan; i++) {
        cudnnBackendDescriptor_t plan = NULL;
        if (lib.cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS) return;
        const bool set_up =
            lib.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle) ==
                CUDNN_STATUS_SUCCESS &&
            lib.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                         &configs[i]) == CUDNN_STATUS_SUCCESS;
        if (set_up && lib.cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS)
            g->plan = plan;
        else
            (void)lib.cudnnBackendDestroyDescriptor(plan);
    }
}

pd_status pd_cudnn_graph_build(struct pd_cudnn_graph *g, const char *what)
{
    cudnnBackendDescriptor_t graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    int64_t count = 0;
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count, g->operations);
    finalize(g, graph, what);
    plan_by(g, graph, CUDNN_HEUR_MODE_A);
    if (!g->st && !g->plan) plan_by(g, graph, CUDNN_HEUR_MODE_FALLBACK);
    if (!g->st && !g->plan)
        g->st = pd_error_set(g->err, PD_UNSUPPORTED, PD_WHERE, 0,
                             "cuDNN has no engine for %s of these sizes on this GPU: unset PERDURE_ATTENTION", what);
    if (!g->st)
        note(g,
             lib.cudnnBackendGetAttribute(g->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                          &g->workspace_bytes),
             "the size of a workspace");
    drop_made(g);
    return g->st;
}

pd_status pd_cudnn_graph_run(struct pd_cudnn_graph *g, void *stream, uint32_t count, const int64_t *uids, void *const *data,
                             void *workspace, struct pd_error *err)
{
    g->err = err;
    g->st = PD_OK;
    note(g, lib.cudnnSetStream(g->handle, stream), "a stream");
    cudnnBackendDescriptor_t pack = make(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(g, pack, "operands");
    if (!g->st) note(g, lib.cudnnBackendExecute(g->handle, g->plan, pack), "running");
    drop_made(g);
    return g->st;
}
