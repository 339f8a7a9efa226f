/* Attention as graphs of cuDNN's backend, in the pattern its attention engines know (cuDNN 9 documentation, "Fused flash
 * attention"): forward S = Q K^T, scaled, -infinity above the diagonal, softmax with max and sum apart, O = P V; backward
 * remakes P from the log-sum-exp, which is ours: the natural logarithm, scale included.
 *
 *   invariant  what was built for a stream and sizes is used by one call at a time: under the mutex, in the stream's order
 */
#include "trainer/math/cuda/attention_cudnn.h"

#include "trainer/math/cuda/cudnn_graph.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define KEPT_MAX 16
#define INT CUDNN_DATA_INT32
#define FP32 CUDNN_DATA_FLOAT

enum { Q = 1, K, V, OUT, LSE, DOUT, DELTA, DQ, DK, DV, SCALE, LOWEST, ONE };

/* What a graph depends on. */
struct sizes {
    int64_t sequences, length, heads, kv_heads, head_size, ld_q, ld_kv, ld_dq, ld_dkv;
    enum pd_dtype dtype;
};

struct kept {
    void *stream;
    int device;
    struct sizes sizes;
    struct pd_cudnn_graph forward, backward;
    void *workspace;
};

static struct kept *kept[KEPT_MAX];
static uint32_t kept_count;
static cudnnHandle_t handle;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

bool pd_cudnn_attention_takes(const struct pd_attention *a)
{
    const bool whole = !a->acc && !a->key_length && !a->first && !a->kv_partial;
    const bool all_heads = a->group_offset == 0 && (!a->group || a->group * a->kv_heads == a->heads);
    return whole && all_heads && a->dtype != PD_F32 && a->kv_heads > 0 && a->heads % a->kv_heads == 0;
}

static struct sizes sizes_of(const struct pd_attention *attention)
{
    const struct pd_attention a = pd_attention_resolve(attention, false);
    return (struct sizes){a.sequences,       a.length,         a.heads,          a.kv_heads,        a.head_size,
                          (int64_t)a.ld_qkv, (int64_t)a.ld_kv, (int64_t)a.ld_dq, (int64_t)a.ld_dkv, a.dtype};
}

static bool same_sizes(const struct sizes *a, const struct sizes *b)
{
    return a->sequences == b->sequences && a->length == b->length && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->ld_q == b->ld_q && a->ld_kv == b->ld_kv && a->ld_dq == b->ld_dq &&
           a->ld_dkv == b->ld_dkv && a->dtype == b->dtype;
}

/* ---- pieces of both graphs ---- */

struct building {
    struct pd_cudnn_graph *g;
    struct sizes s;
    cudnnDataType_t type;
    int64_t scores[4], row[4]; /* sizes: (sequences, heads, T, T), (sequences, heads, T, 1) */
};

static struct building building_of(struct pd_cudnn_graph *g, const struct sizes *s)
{
    return (struct building){.g = g,
                             .s = *s,
                             .type = s->dtype == PD_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                             .scores = {s->sequences, s->heads, s->length, s->length},
                             .row = {s->sequences, s->heads, s->length, 1}};
}

/* (sequences, heads, T, D) of rows ld apart. */
static struct pd_cudnn_tensor operand(const struct building *b, int64_t uid, int64_t heads, int64_t ld)
{
    const int64_t sizes[4] = {b->s.sequences, heads, b->s.length, b->s.head_size};
    const int64_t strides[4] = {b->s.length * ld, b->s.head_size, ld, 1};
    return pd_cudnn_tensor(b->g, uid, b->type, sizes, strides);
}

/* (sequences, heads, D, T) of rows ld apart. */
static struct pd_cudnn_tensor operand_turned(const struct building *b, int64_t uid, int64_t heads, int64_t ld)
{
    const int64_t sizes[4] = {b->s.sequences, heads, b->s.head_size, b->s.length};
    const int64_t strides[4] = {b->s.length * ld, b->s.head_size, 1, ld};
    return pd_cudnn_tensor(b->g, uid, b->type, sizes, strides);
}

static struct pd_cudnn_tensor rows(const struct building *b, int64_t uid)
{
    const int64_t strides[4] = {b->s.heads * b->s.length, b->s.length, 1, 1};
    return pd_cudnn_tensor(b->g, uid, FP32, b->row, strides);
}

static struct pd_cudnn_tensor apply(const struct building *b, cudnnPointwiseMode_t mode, const struct pd_cudnn_tensor *x,
                                    const struct pd_cudnn_tensor *y)
{
    const struct pd_cudnn_tensor out = pd_cudnn_inside(b->g, FP32, x->sizes);
    pd_cudnn_pointwise(b->g,
                       &(struct pd_cudnn_pointwise){.mode = mode, .precision = FP32, .axis = -1, .x = x, .b = y, .y = &out});
    return out;
}

/* -infinity where the key comes after the query. */
static struct pd_cudnn_tensor causal(const struct building *b, const struct pd_cudnn_tensor *x)
{
    const struct pd_cudnn_tensor row = pd_cudnn_inside(b->g, INT, b->scores), column = pd_cudnn_inside(b->g, INT, b->scores);
    const struct pd_cudnn_tensor sees = pd_cudnn_inside(b->g, CUDNN_DATA_BOOLEAN, b->scores);
    const struct pd_cudnn_tensor lowest = pd_cudnn_scalar(b->g, LOWEST), out = pd_cudnn_inside(b->g, FP32, b->scores);
    const struct pd_cudnn_pointwise operations[] = {
        {CUDNN_POINTWISE_GEN_INDEX, FP32, 2, x, NULL, NULL, &row},
        {CUDNN_POINTWISE_GEN_INDEX, FP32, 3, x, NULL, NULL, &column},
        {CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, &row, &column, NULL, &sees},
        {CUDNN_POINTWISE_BINARY_SELECT, FP32, -1, x, &lowest, &sees, &out},
    };
    for (int i = 0; i < 4; i++)
        pd_cudnn_pointwise(b->g, &operations[i]);
    return out;
}

/* ---- forward ---- */

static pd_status build_forward(struct pd_cudnn_graph *g, const struct sizes *s)
{
    const struct building b = building_of(g, s);
    const struct pd_cudnn_tensor q = operand(&b, Q, s->heads, s->ld_q), k = operand_turned(&b, K, s->kv_heads, s->ld_kv);
    const struct pd_cudnn_tensor v = operand(&b, V, s->kv_heads, s->ld_kv), scale = pd_cudnn_scalar(g, SCALE);
    const struct pd_cudnn_tensor out = operand(&b, OUT, s->heads, s->heads * s->head_size), lse = rows(&b, LSE);
    const struct pd_cudnn_tensor product = pd_cudnn_inside(g, FP32, b.scores),
                                 weights = pd_cudnn_inside(g, b.type, b.scores);
    const struct pd_cudnn_tensor max = pd_cudnn_inside(g, FP32, b.row), sum = pd_cudnn_inside(g, FP32, b.row);
    pd_cudnn_matmul(g, &q, &k, &product);
    const struct pd_cudnn_tensor scaled = apply(&b, CUDNN_POINTWISE_MUL, &product, &scale), masked = causal(&b, &scaled);
    pd_cudnn_reduction(g, CUDNN_REDUCE_TENSOR_MAX, &masked, &max);
    const struct pd_cudnn_tensor shifted = apply(&b, CUDNN_POINTWISE_SUB, &masked, &max);
    const struct pd_cudnn_tensor exponentials = apply(&b, CUDNN_POINTWISE_EXP, &shifted, NULL);
    pd_cudnn_reduction(g, CUDNN_REDUCE_TENSOR_ADD, &exponentials, &sum);
    const struct pd_cudnn_tensor logarithm = apply(&b, CUDNN_POINTWISE_LOG, &sum, NULL);
    const struct pd_cudnn_pointwise ends[] = {
        {CUDNN_POINTWISE_ADD, FP32, -1, &max, &logarithm, NULL, &lse},
        {CUDNN_POINTWISE_DIV, FP32, -1, &exponentials, &sum, NULL, &weights},
    };
    pd_cudnn_pointwise(g, &ends[0]);
    pd_cudnn_pointwise(g, &ends[1]);
    pd_cudnn_matmul(g, &weights, &v, &out);
    return pd_cudnn_graph_build(g, "attention forward");
}

/* ---- backward ---- */

/* Of all query heads, summed over those of a key-value head. */
static void gradient(const struct building *b, const struct pd_cudnn_tensor *weights, const struct pd_cudnn_tensor *with,
                     int64_t uid)
{
    const struct sizes *s = &b->s;
    const int64_t all[4] = {s->sequences, s->heads, s->length, s->head_size};
    const struct pd_cudnn_tensor out = operand(b, uid, s->kv_heads, s->ld_dkv),
                                 turned = pd_cudnn_turned(b->g, 0, b->type, weights);
    pd_cudnn_reshape(b->g, weights, &turned);
    if (s->heads == s->kv_heads) {
        pd_cudnn_matmul(b->g, &turned, with, &out);
        return;
    }
    const struct pd_cudnn_tensor each = pd_cudnn_inside(b->g, b->type, all);
    pd_cudnn_matmul(b->g, &turned, with, &each);
    pd_cudnn_reduction(b->g, CUDNN_REDUCE_TENSOR_ADD, &each, &out);
}

/* dQ straight from dS: the engine then keeps dS in its workspace, and adds without atomics. */
static pd_status build_backward(struct pd_cudnn_graph *g, const struct sizes *s)
{
    const struct building b = building_of(g, s);
    const int64_t all[4] = {s->sequences, s->heads, s->length, s->head_size}, ld_out = s->heads * s->head_size;
    const struct pd_cudnn_tensor q = operand(&b, Q, s->heads, s->ld_q), k = operand_turned(&b, K, s->kv_heads, s->ld_kv);
    const struct pd_cudnn_tensor v = operand_turned(&b, V, s->kv_heads, s->ld_kv), scale = pd_cudnn_scalar(g, SCALE);
    const struct pd_cudnn_tensor out = operand(&b, OUT, s->heads, ld_out), dout = operand(&b, DOUT, s->heads, ld_out);
    const struct pd_cudnn_tensor lse = rows(&b, LSE), delta = rows(&b, DELTA), one = pd_cudnn_scalar(g, ONE);
    const struct pd_cudnn_tensor dq = operand(&b, DQ, s->heads, s->ld_dq), both = pd_cudnn_inside(g, FP32, all);
    const struct pd_cudnn_tensor sum = pd_cudnn_inside(g, FP32, b.row), product = pd_cudnn_inside(g, FP32, b.scores);
    const struct pd_cudnn_tensor dp = pd_cudnn_inside(g, FP32, b.scores), k_rows = pd_cudnn_turned(g, 0, b.type, &k);
    pd_cudnn_pointwise(g, &(struct pd_cudnn_pointwise){CUDNN_POINTWISE_MUL, FP32, -1, &dout, &out, NULL, &both});
    pd_cudnn_reduction(g, CUDNN_REDUCE_TENSOR_ADD, &both, &sum);
    pd_cudnn_pointwise(g, &(struct pd_cudnn_pointwise){CUDNN_POINTWISE_MUL, FP32, -1, &sum, &one, NULL, &delta});
    pd_cudnn_matmul(g, &q, &k, &product);
    const struct pd_cudnn_tensor scaled = apply(&b, CUDNN_POINTWISE_MUL, &product, &scale);
    const struct pd_cudnn_tensor shifted = apply(&b, CUDNN_POINTWISE_SUB, &scaled, &lse), masked = causal(&b, &shifted);
    const struct pd_cudnn_tensor weights = apply(&b, CUDNN_POINTWISE_EXP, &masked, NULL);
    gradient(&b, &weights, &dout, DV);
    pd_cudnn_matmul(g, &dout, &v, &dp);
    const struct pd_cudnn_tensor difference = apply(&b, CUDNN_POINTWISE_SUB, &dp, &delta);
    const struct pd_cudnn_tensor unscaled = apply(&b, CUDNN_POINTWISE_MUL, &difference, &weights);
    const struct pd_cudnn_tensor ds = apply(&b, CUDNN_POINTWISE_MUL, &unscaled, &scale);
    gradient(&b, &ds, &q, DK);
    pd_cudnn_reshape(g, &k, &k_rows);
    pd_cudnn_matmul(g, &ds, &k_rows, &dq);
    return pd_cudnn_graph_build(g, "attention backward");
}

/* ---- what is kept ---- */

static void drop(struct kept *x)
{
    pd_cudnn_graph_deinit(&x->forward);
    pd_cudnn_graph_deinit(&x->backward);
    free(x);
}

static pd_status make_workspace(struct kept *x, struct pd_error *err)
{
    const int64_t f = x->forward.workspace_bytes, b = x->backward.workspace_bytes, bytes = f > b ? f : b;
    if (bytes <= 0) return PD_OK;
    const cudaError_t code = cudaMalloc(&x->workspace, (size_t)bytes);
    if (code == cudaSuccess) return PD_OK;
    (void)cudaGetLastError();
    PD_FAIL(err, PD_NO_MEMORY, "attention by cuDNN: %lld bytes of workspace: %s: unset PERDURE_ATTENTION", (long long)bytes,
            cudaGetErrorString(code));
}

static pd_status keep(void *stream, int device, const struct sizes *sizes, struct kept **ret_kept, struct pd_error *err)
{
    if (kept_count == KEPT_MAX)
        PD_FAIL(err, PD_UNSUPPORTED, "attention by cuDNN: more than %d sizes and streams: unset PERDURE_ATTENTION",
                KEPT_MAX);
    if (!handle) PD_TRY(pd_cudnn_open(&handle, err));
    struct kept *x = calloc(1, sizeof *x);
    if (!x) PD_FAIL(err, PD_NO_MEMORY, "no memory for attention by cuDNN");
    x->stream = stream;
    x->device = device;
    x->sizes = *sizes;
    pd_cudnn_graph_init(&x->forward, handle, err);
    pd_cudnn_graph_init(&x->backward, handle, err);
    pd_status st = build_forward(&x->forward, sizes);
    if (!st) st = build_backward(&x->backward, sizes);
    if (!st) st = make_workspace(x, err);
    if (st) {
        drop(x);
        return st;
    }
    kept[kept_count++] = *ret_kept = x;
    return PD_OK;
}

/* Memory and modules are also asked for while the stream is captured, which does not go into the graph. */
static pd_status keep_aside(void *stream, int device, const struct sizes *sizes, struct kept **ret_kept,
                            struct pd_error *err)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    const pd_status st = keep(stream, device, sizes, ret_kept, err);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return st;
}

static pd_status find(void *stream, const struct sizes *sizes, struct kept **ret_kept, struct pd_error *err)
{
    int device;
    const cudaError_t code = cudaGetDevice(&device);
    if (code != cudaSuccess) PD_FAIL(err, PD_DEVICE_LOST, "which GPU: %s", cudaGetErrorString(code));
    for (uint32_t i = 0; i < kept_count; i++)
        if (kept[i]->stream == stream && kept[i]->device == device && same_sizes(&kept[i]->sizes, sizes)) {
            *ret_kept = kept[i];
            return PD_OK;
        }
    return keep_aside(stream, device, sizes, ret_kept, err);
}

static pd_status run(void *stream, const struct pd_attention *a, bool backward, struct pd_error *err)
{
    static const int64_t uids[] = {Q, K, V, OUT, LSE, SCALE, LOWEST, DOUT, DELTA, DQ, DK, DV, ONE};
    const struct sizes sizes = sizes_of(a);
    float scale = a->scale, lowest = -INFINITY, one = 1.0f;
    void *data[] = {(void *)(uintptr_t)a->q,
                    (void *)(uintptr_t)a->k,
                    (void *)(uintptr_t)a->v,
                    a->out,
                    a->lse,
                    &scale,
                    &lowest,
                    (void *)(uintptr_t)a->dout,
                    a->delta,
                    a->dq,
                    a->dk,
                    a->dv,
                    &one};
    struct kept *x = NULL;
    pthread_mutex_lock(&mutex);
    pd_status st = find(stream, &sizes, &x, err);
    if (!st)
        st = pd_cudnn_graph_run(backward ? &x->backward : &x->forward, stream, backward ? 13 : 7, uids, data, x->workspace,
                                err);
    pthread_mutex_unlock(&mutex);
    return st;
}

pd_status pd_cudnn_attention_forward(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    return run(stream, attention, false, err);
}

pd_status pd_cudnn_attention_backward(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    return run(stream, attention, true, err);
}
