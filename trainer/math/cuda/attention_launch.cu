/* The slots: which kernels a call goes to depends on dtype and head size alone, so that no layout changes it. */
#include "trainer/math/cuda/attention_place.h"

#define HEAD_SIZE_MAX 256u

static bool has_tiles(const struct pd_attention *a)
{
    return a->dtype != PD_F32 && (a->head_size == 64 || a->head_size == 128);
}

static pd_status check(const struct pd_attention *resolved, struct pd_error *err)
{
    if (resolved->head_size > HEAD_SIZE_MAX)
        return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0,
                            "attention on CUDA: heads of %u; kernels exist up to %u: take more heads, or device: cpu",
                            resolved->head_size, HEAD_SIZE_MAX);
    if (resolved->group > PD_ATTENTION_GROUP_MAX)
        return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0,
                            "attention on CUDA: %u query heads a key-value head; kernels exist up to %u: take more "
                            "key-value heads, or device: cpu",
                            resolved->group, PD_ATTENTION_GROUP_MAX);
    return PD_OK;
}

static uint64_t workspace_bytes(const struct pd_attention *resolved)
{
    return has_tiles(resolved) ? pd_attention_tiles_workspace(resolved) : pd_attention_plain_workspace(resolved);
}

/* Enough for parts too, whatever their place. */
uint64_t pd_cuda_attention_workspace_bytes(const struct pd_attention *a)
{
    struct pd_attention r = pd_attention_resolved(a, a->key_length > 0);
    r.last_part = true;
    return workspace_bytes(&r);
}

static pd_status forward(void *stream, const struct pd_attention *resolved, struct pd_error *err)
{
    return has_tiles(resolved) ? pd_attention_tiles_forward(stream, resolved, err)
                               : pd_attention_plain_forward(stream, resolved, err);
}

static pd_status backward_queries(void *stream, const struct pd_attention *resolved, struct pd_error *err)
{
    return has_tiles(resolved) ? pd_attention_tiles_queries(stream, resolved, err)
                               : pd_attention_plain_queries(stream, resolved, err);
}

static pd_status backward_keys(void *stream, const struct pd_attention *resolved, struct pd_cuda_workspace workspace,
                               struct pd_error *err)
{
    return has_tiles(resolved) ? pd_attention_tiles_keys(stream, resolved, workspace, err)
                               : pd_attention_plain_keys(stream, resolved, workspace, err);
}

pd_status pd_cuda_attention_forward(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolved(attention, attention->acc != NULL);
    PD_TRY(check(&r, err));
    return forward(stream, &r, err);
}

pd_status pd_cuda_attention_backward(void *stream, const struct pd_attention *attention, struct pd_cuda_workspace workspace,
                                     struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolved(attention, false);
    PD_TRY(check(&r, err));
    PD_TRY(pd_attention_plain_delta(stream, &r, err));
    PD_TRY(backward_queries(stream, &r, err));
    return backward_keys(stream, &r, workspace, err);
}

pd_status pd_cuda_attention_delta(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    return pd_attention_plain_delta(stream, attention, err);
}

pd_status pd_cuda_attention_backward_queries(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolved(attention, true);
    PD_TRY(check(&r, err));
    return backward_queries(stream, &r, err);
}

pd_status pd_cuda_attention_backward_keys(void *stream, const struct pd_attention *attention,
                                          struct pd_cuda_workspace workspace, struct pd_error *err)
{
    const struct pd_attention r = pd_attention_resolved(attention, true);
    PD_TRY(check(&r, err));
    return backward_keys(stream, &r, workspace, err);
}
