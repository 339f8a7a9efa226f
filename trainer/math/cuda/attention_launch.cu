/* The slots. Which kernels a call goes to depends on dtype, head size and device alone, so that no layout changes it;
 * PERDURE_ATTENTION=mma, wgmma, onepass (wgmma, backward in one pass) or plain asks for others, in tests and
 * benchmarks. */
#include "ckpt/base/checked.h"
#include "trainer/math/cuda/architectures.h"
#include "trainer/math/cuda/attention_items.h"

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

/* Ways to compute one thing: attention_place.h. */
typedef pd_status pass(void *stream, const struct pd_attention *resolved, struct pd_cuda_workspace workspace,
                       struct pd_error *err);
struct kernels {
    pass *forward, *queries, *keys;
    uint64_t (*workspace)(const struct pd_attention *resolved);
};

#define KERNELS(name)                                                                             \
    {                                                                                             \
        pd_attention_##name##_forward, pd_attention_##name##_queries, pd_attention_##name##_keys, \
            pd_attention_##name##_workspace                                                       \
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

/* What is taken where nobody asks for another. On the host mma, as a simulated product of a warpgroup takes long. */
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
    return PD_OK;
}

/* ---- the keys pass ---- */

/* Where a key-value head has several query heads and its tiles are fewer than an H100 has multiprocessors, query heads are
 * items of their own: their terms are written, and a second kernel adds them up. README.md counts what that is worth. */
#define TERMS_KEYS 128u
#define TERMS_ITEMS 132u
#define TERMS_BYTES_MAX (128ull << 20)

/* Of dk and of dv. */
static uint64_t terms_each(const struct pd_attention *a)
{
    return (uint64_t)a->sequences * a->key_length * a->heads * a->head_size;
}

static bool terms_help(const struct pd_attention *a)
{
    return pd_attention_has_tree(a) && pd_attention_keys_items(a, TERMS_KEYS) < TERMS_ITEMS;
}

/* Of a whole sequence. Parts have memory of their own for what a query head has so far. */
static uint64_t terms_bytes(const struct pd_attention *a)
{
    const uint64_t bytes = 2 * terms_each(a) * sizeof(float);
    return terms_help(a) && bytes <= TERMS_BYTES_MAX ? bytes : 0;
}

static pd_status run_keys(const struct kernels *kernels, void *stream, const struct pd_attention *r, bool parts,
                          struct pd_cuda_workspace workspace, struct pd_error *err)
{
    struct pd_attention terms = *r;
    if (!terms_help(r)) return kernels->keys(stream, r, workspace, err);
    if (!parts) {
        if (!terms_bytes(r) || workspace.bytes < terms_bytes(r)) return kernels->keys(stream, r, workspace, err);
        terms.dk_acc = static_cast<float *>(workspace.data);
        terms.dv_acc = terms.dk_acc + terms_each(r);
    }
    terms.last_part = false;
    PD_TRY(kernels->keys(stream, &terms, workspace, err));
    return pd_attention_join(stream, &terms, err);
}

/* ---- one pass ---- */

/* Sums of dQ on their way, and the terms of query heads. Where it would be more than this, two passes have the same bits. */
#define ONCE_BYTES_MAX (384ull << 20)

static uint64_t once_terms_bytes(const struct pd_attention *a)
{
    return pd_attention_has_tree(a) ? 2 * terms_each(a) * sizeof(float) : 0;
}

/* Of a whole sequence; 0: two passes. */
static uint64_t once_bytes(const struct pd_attention *a)
{
    const uint64_t bytes = once_terms_bytes(a) + ONCE(_workspace)(a);
    return build_has_wgmma && is_once_asked_for() && has_tiles(a) && bytes <= ONCE_BYTES_MAX ? bytes : 0;
}

static pd_status run_once(void *stream, const struct pd_attention *r, struct pd_cuda_workspace workspace,
                          struct pd_error *err)
{
    struct pd_attention terms = *r;
    const uint64_t bytes = once_terms_bytes(r);
    if (!bytes) return ONCE()(stream, r, workspace, err);
    terms.dk_acc = static_cast<float *>(workspace.data);
    terms.dv_acc = terms.dk_acc + terms_each(r);
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

/* Enough for any device, so that it may be asked before there is one; and for parts, whatever their place. */
uint64_t pd_cuda_attention_workspace_bytes(const struct pd_attention *a)
{
    const bool parts = a->key_length > 0;
    struct pd_attention r = pd_attention_resolve(a, parts);
    r.last_part = true;
    const uint64_t terms = parts ? 0 : terms_bytes(&r);
    if (!has_tiles(&r) || strcmp(asked_for(), "plain") == 0) return pd_max_u64(terms, pd_attention_plain_workspace(&r));
    const uint64_t wgmma = build_has_wgmma ? kernels_of[PD_ATTENTION_WGMMA].workspace(&r) : 0;
    return pd_max_u64(pd_max_u64(terms, parts ? 0 : once_bytes(&r)), pd_max_u64(pd_attention_tiles_workspace(&r), wgmma));
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
