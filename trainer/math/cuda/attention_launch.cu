/* The attention slots. Only dtype, head size and device select the kernels, so the layout does not. PERDURE_ATTENTION=mma,
 * wgmma, onepass (wgmma, backward in one pass) or plain overrides this, for tests and benchmarks. */
#include "ckpt/base/checked.h"
#include "trainer/math/cuda/architectures.h"
#include "trainer/math/cuda/attention_items.h"
#include "trainer/math/cuda/element.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_tiles(const struct pd_attention *a)
{
    return a->dtype != PD_F32 && (a->head_size == 64 || a->head_size == 128);
}

static const char *asked_for(void)
{
    const char *name = getenv("PERDURE_ATTENTION");
    return name && *name ? name : "auto";
}

static bool is_once_asked_for(void)
{
    return strcmp(asked_for(), "onepass") == 0;
}

/* Alternative kernels for one computation: attention_place.h. */
typedef pd_status pass(void *stream, const struct pd_attention *resolved, struct pd_cuda_workspace workspace,
                       struct pd_error *err);
struct kernels {
    pass *forward, *queries, *keys;
};

#define KERNELS(name)                                                                            \
    {                                                                                            \
        pd_attention_##name##_forward, pd_attention_##name##_queries, pd_attention_##name##_keys \
    }
#if defined(PD_SIMT) || defined(PERDURE_HAVE_SM_90A)
#define WGMMA KERNELS(wgmma)
static const bool build_has_wgmma = true;
#define ONCE(call) pd_attention_wgmma_once##call
#else
#define WGMMA \
    {         \
    }
static const bool build_has_wgmma = false;
#define ONCE(call) pd_attention_no_once##call
static uint64_t pd_attention_no_once_workspace(const struct pd_attention *)
{
    return 0;
}
static pd_status pd_attention_no_once(void *, const struct pd_attention *, struct pd_cuda_workspace, struct pd_error *err)
{
    return pd_error_set(err, PD_BUG, PD_WHERE, 0, "attention in one pass: not in this build");
}
#endif
static const struct kernels kernels_of[] = {KERNELS(plain), KERNELS(tiles), WGMMA}; /* by enum pd_attention_kernels */

/* Whether a GPU of this capability runs wgmma kernels of this build. On the host all kernels run. */
static bool runs_wgmma(uint32_t capability)
{
#ifdef PD_SIMT
    (void)capability;
    return build_has_wgmma;
#else
    return pd_attention_kernels_of(capability, build_has_wgmma) == PD_ATTENTION_WGMMA;
#endif
}

/* The default. On the host mma, because simulated warpgroup products are slow. */
static enum pd_attention_kernels automatic(uint32_t capability)
{
#ifdef PD_SIMT
    (void)capability;
    return PD_ATTENTION_MMA;
#else
    return pd_attention_kernels_of(capability, build_has_wgmma);
#endif
}

static uint32_t capability_here(void)
{
#ifdef PD_SIMT
    return 0;
#else
    int device, major, minor;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        (void)cudaGetLastError(); /* the next kernel's launch would meet it */
        return 0;
    }
    return static_cast<uint32_t>(10 * major + minor);
#endif
}

static pd_status choose(const struct pd_attention *resolved, uint32_t capability, enum pd_attention_kernels *ret_kernels,
                        struct pd_error *err)
{
    const char *name = asked_for();
    const bool is_auto = strcmp(name, "auto") == 0, wants_wgmma = strcmp(name, "wgmma") == 0 || is_once_asked_for();
    if (!is_auto && !wants_wgmma && strcmp(name, "mma") != 0 && strcmp(name, "plain") != 0)
        return pd_error_set(err, PD_USAGE, PD_WHERE, 0, "PERDURE_ATTENTION=%s: expected mma, wgmma, onepass or plain", name);
    if (!has_tiles(resolved) || strcmp(name, "plain") == 0) {
        *ret_kernels = PD_ATTENTION_PLAIN;
        return PD_OK;
    }
    if (wants_wgmma && !runs_wgmma(capability))
        return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0,
                            "PERDURE_ATTENTION=%s needs a GPU of compute capability 9.0 and a build for it: unset it", name);
    *ret_kernels = is_auto ? automatic(capability) : wants_wgmma ? PD_ATTENTION_WGMMA : PD_ATTENTION_MMA;
    return PD_OK;
}

void pd_cuda_attention_name(const struct pd_attention *sizes, uint32_t capability, char *ret_name, size_t bytes)
{
    static const char *const names[] = {"plain", "mma.sync", "wgmma"};
    const struct pd_architecture *a = pd_architecture_of(capability);
    enum pd_attention_kernels kernels = PD_ATTENTION_PLAIN;
    struct pd_error ignored;
    if (choose(sizes, capability, &kernels, &ignored)) return (void)snprintf(ret_name, bytes, "none");
    if (kernels == PD_ATTENTION_WGMMA)
        snprintf(ret_name, bytes, "wgmma%s (sm_90a)", is_once_asked_for() ? ", backward in one pass" : "");
    else if (a)
        snprintf(ret_name, bytes, "%s (sm_%u)", names[kernels], a->code);
    else
        snprintf(ret_name, bytes, "%s (not listed: PTX, or code of its major number)", names[kernels]);
}

/* The kernels of a call of this table's sizes. */
static pd_status find(const struct pd_attention *resolved, const struct kernels **ret_kernels, struct pd_error *err)
{
    enum pd_attention_kernels which;
    if (resolved->head_size > PD_ATTENTION_HEAD_MAX)
        PD_FAIL(err, PD_UNSUPPORTED,
                "attention on CUDA: heads of %u; kernels exist up to %u: take more heads, or device: cpu",
                resolved->head_size, PD_ATTENTION_HEAD_MAX);
    if (resolved->group > PD_ATTENTION_GROUP_MAX)
        PD_FAIL(err, PD_UNSUPPORTED,
                "attention on CUDA: %u query heads a key-value head; kernels exist up to %u: take more key-value heads, or "
                "device: cpu",
                resolved->group, PD_ATTENTION_GROUP_MAX);
    PD_TRY(choose(resolved, capability_here(), &which, err));
    *ret_kernels = &kernels_of[which];
    if (which == PD_ATTENTION_PLAIN) return PD_OK;
    /* Tiles are copied in 16-byte units: heads of 64 and 128 are aligned if the arrays are. */
    const void *const all[] = {resolved->q,    resolved->k,  resolved->v,  resolved->out,
                               resolved->dout, resolved->dq, resolved->dk, resolved->dv};
    for (const void *data : all)
        PD_CHECK(pd_is_16_aligned(data));
    PD_CHECK((resolved->ld_qkv | resolved->ld_kv | resolved->ld_dq | resolved->ld_dkv) % 8 == 0);
    return PD_OK;
}

/* ---- the keys pass ---- */

/* If a key-value head has several query heads, each leaves a term of its gradient, and pd_attention_join adds them up. For a
 * whole sequence they are in the workspace, for as many keys at a time as fit. */
#define TERMS_BYTES_MAX (128ull << 20)
#define TERMS_KEYS 128u /* a multiple of a block's keys */

static bool has_terms(const struct pd_attention *a)
{
    return a->last_part && a->heads > a->kv_heads;
}

/* For one key in one sequence, dk and dv. */
static uint64_t term_bytes(const struct pd_attention *a)
{
    return 2 * (uint64_t)a->heads * a->head_size * sizeof(float);
}

static uint64_t terms_bytes(const struct pd_attention *a)
{
    return has_terms(a) ? a->sequences * (uint64_t)a->key_length * term_bytes(a) : 0;
}

/* At least enough bytes for some keys. */
static uint64_t slice_bytes(const struct pd_attention *a)
{
    const uint64_t least = term_bytes(a) * TERMS_KEYS, most = TERMS_BYTES_MAX > least ? TERMS_BYTES_MAX : least;
    return terms_bytes(a) < most ? terms_bytes(a) : most;
}

static void *shift(const void *data, uint64_t elements, uint64_t element_bytes)
{
    return static_cast<char *>(const_cast<void *>(data)) + elements * element_bytes;
}

/* `count` sequences from `sequence` on, and of their keys those from `key` on. */
static struct pd_attention slice_of(const struct pd_attention *a, uint32_t sequence, uint32_t count, uint32_t key,
                                    uint32_t keys)
{
    const uint64_t bytes = pd_dtype_bytes(a->dtype), kv_bytes = a->kv_partial ? sizeof(float) : bytes;
    const uint64_t row = static_cast<uint64_t>(sequence) * a->length,
                   key_row = sequence * static_cast<uint64_t>(a->key_length) + key;
    struct pd_attention s = *a;
    s.sequences = count;
    s.key_start += key;
    s.key_length = keys;
    s.q = shift(a->q, row * a->ld_qkv, bytes);
    s.dout = shift(a->dout, row * a->heads * a->head_size, bytes);
    s.lse += row * a->heads;
    s.delta += row * a->heads;
    if (a->first) s.first += row;
    s.k = shift(a->k, key_row * a->ld_kv, bytes);
    s.v = shift(a->v, key_row * a->ld_kv, bytes);
    s.dk = shift(a->dk, key_row * a->ld_dkv, kv_bytes);
    s.dv = shift(a->dv, key_row * a->ld_dkv, kv_bytes);
    return s;
}

static pd_status run_terms(const struct kernels *kernels, void *stream, struct pd_attention terms,
                           struct pd_cuda_workspace workspace, struct pd_error *err)
{
    terms.last_part = false;
    PD_TRY(kernels->keys(stream, &terms, workspace, err));
    return pd_attention_join(stream, &terms, err);
}

/* Parts have their own memory for a query head's partial sums. */
static pd_status run_keys(const struct kernels *kernels, void *stream, const struct pd_attention *r, bool parts,
                          struct pd_cuda_workspace workspace, struct pd_error *err)
{
    if (!has_terms(r)) return kernels->keys(stream, r, workspace, err);
    if (parts) return run_terms(kernels, stream, *r, workspace, err);
    const uint64_t rows = workspace.bytes / term_bytes(r);
    uint32_t keys = rows < r->key_length ? static_cast<uint32_t>(rows) : r->key_length;
    if (keys < r->key_length && keys > TERMS_KEYS) keys -= keys % TERMS_KEYS;
    PD_CHECK(keys > 0);
    const uint32_t together = keys < r->key_length ? 1 : static_cast<uint32_t>(pd_min_u64(rows / keys, r->sequences));
    for (uint32_t sequence = 0; sequence < r->sequences; sequence += together)
        for (uint32_t key = 0; key < r->key_length; key += keys) {
            const uint32_t left = r->sequences - sequence, keys_left = r->key_length - key;
            struct pd_attention terms =
                slice_of(r, sequence, left < together ? left : together, key, keys_left < keys ? keys_left : keys);
            terms.dk_acc = static_cast<float *>(workspace.data);
            terms.dv_acc =
                terms.dk_acc + static_cast<uint64_t>(terms.sequences) * terms.key_length * r->heads * r->head_size;
            PD_TRY(run_terms(kernels, stream, terms, workspace, err));
        }
    return PD_OK;
}

/* ---- one pass ---- */

/* Partial sums of dQ, and terms of query heads. If they need more than this, two passes give the same bits. */
#define ONCE_BYTES_MAX (384ull << 20)

/* For a whole sequence; 0: two passes. */
static uint64_t once_bytes(const struct pd_attention *a)
{
    const uint64_t bytes = terms_bytes(a) + ONCE(_workspace)(a);
    return build_has_wgmma && is_once_asked_for() && has_tiles(a) && bytes <= ONCE_BYTES_MAX ? bytes : 0;
}

static pd_status run_once(void *stream, const struct pd_attention *r, struct pd_cuda_workspace workspace,
                          struct pd_error *err)
{
    struct pd_attention terms = *r;
    const uint64_t bytes = terms_bytes(r);
    if (!bytes) return ONCE()(stream, r, workspace, err);
    terms.dk_acc = static_cast<float *>(workspace.data);
    terms.dv_acc = terms.dk_acc + bytes / 2 / sizeof(float);
    terms.last_part = false;
    workspace.data = static_cast<unsigned char *>(workspace.data) + bytes;
    PD_TRY(ONCE()(stream, &terms, workspace, err));
    return pd_attention_join(stream, &terms, err);
}

static __global__ void attention_counter(uint32_t *begun)
{
    *begun = 0;
}

pd_status pd_cuda_attention_counter(void *stream, struct pd_cuda_workspace workspace, struct pd_error *err)
{
    return PD_LAUNCH(err, attention_counter, 1, 1, 0, stream, workspace.begun);
}

/* Enough for any device, so that it can be called without one. Parts need none. */
uint64_t pd_cuda_attention_workspace_bytes(const struct pd_attention *a)
{
    const struct pd_attention r = pd_attention_resolve(a, false);
    return a->key_length > 0 ? 0 : pd_max_u64(slice_bytes(&r), once_bytes(&r));
}

pd_status pd_cuda_attention_forward(void *stream, const struct pd_attention *attention, struct pd_cuda_workspace workspace,
                                    struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolve(attention, attention->acc != NULL);
    const struct kernels *kernels;
    PD_TRY(find(&r, &kernels, err));
    return kernels->forward(stream, &r, workspace, err);
}

pd_status pd_cuda_attention_backward(void *stream, const struct pd_attention *attention, struct pd_cuda_workspace workspace,
                                     struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolve(attention, false);
    const struct kernels *kernels;
    PD_TRY(find(&r, &kernels, err));
    PD_TRY(pd_attention_plain_delta(stream, &r, err));
    if (once_bytes(&r) && workspace.bytes >= once_bytes(&r)) return run_once(stream, &r, workspace, err);
    PD_TRY(kernels->queries(stream, &r, workspace, err));
    return run_keys(kernels, stream, &r, false, workspace, err);
}

pd_status pd_cuda_attention_delta(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    return pd_attention_plain_delta(stream, attention, err);
}

pd_status pd_cuda_attention_backward_queries(void *stream, const struct pd_attention *attention,
                                             struct pd_cuda_workspace workspace, struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolve(attention, true);
    const struct kernels *kernels;
    PD_TRY(find(&r, &kernels, err));
    return kernels->queries(stream, &r, workspace, err);
}

pd_status pd_cuda_attention_backward_keys(void *stream, const struct pd_attention *attention,
                                          struct pd_cuda_workspace workspace, struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolve(attention, true);
    const struct kernels *kernels;
    PD_TRY(find(&r, &kernels, err));
    return run_keys(kernels, stream, &r, true, workspace, err);
}
