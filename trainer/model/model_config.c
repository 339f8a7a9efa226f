/* Fills in and checks a model's configuration. */
#include "trainer/math/operations.h"
#include "trainer/model/model.h"

#include <math.h>

/* A gated MLP has three matrices instead of two: 8/3 of hidden gives as many parameters as 4 (Shazeer 2020). */
static uint32_t default_ffn(const struct pd_model_config *c)
{
    const struct pd_family *f = pd_family_at(c->family);
    uint64_t ffn = f && f->up_matrices == 1 ? 4 * (uint64_t)c->hidden : ((uint64_t)c->hidden * 8 / 3 + 63) / 64 * 64;
    return ffn > UINT32_MAX ? 0 : (uint32_t)ffn;
}

void pd_model_config_resolve(struct pd_model_config *config)
{
    if (!config->kv_heads) config->kv_heads = config->heads;
    if (!config->head_size && config->heads && config->hidden % config->heads == 0)
        config->head_size = config->hidden / config->heads;
    if (!config->ffn) config->ffn = default_ffn(config);
    if (config->norm_epsilon == 0) config->norm_epsilon = 1e-5f;
    if (config->rope_theta == 0) config->rope_theta = 10000.0f;
    if (config->init_std == 0) config->init_std = 0.02f;
    if (config->rope_scaling != PD_ROPE_SCALING_NONE && config->rope_factor == 0) config->rope_factor = 8.0f;
    if (config->rope_scaling == PD_ROPE_SCALING_LLAMA3) {
        if (config->rope_low_frequency_factor == 0) config->rope_low_frequency_factor = 1.0f;
        if (config->rope_high_frequency_factor == 0) config->rope_high_frequency_factor = 4.0f;
        if (!config->rope_original_context) config->rope_original_context = 8192;
    }
    const struct pd_family *f = pd_family_at(config->family);
    if (f && f->has_linear_biases) config->qkv_bias = true;
    if (f && f->qk_norm != PD_QK_NORM_OPTIONAL) config->qk_norm = f->qk_norm != PD_QK_NORM_NONE;
    if (!config->experts) return;
    if (f && !f->classes->has_renormalise_key) config->renormalise = f->classes->renormalises;
    if (!config->experts_per_token) config->experts_per_token = 2;
    const bool has_own_ffn = f && f->keys[PD_NUMBER_EXPERT_FFN].config;
    if (!config->expert_ffn || !has_own_ffn) config->expert_ffn = config->ffn;
    if (!config->router_groups) config->router_groups = 1;
    if (!config->router_groups_kept) config->router_groups_kept = config->router_groups;
    if (config->routed_scale == 0) config->routed_scale = 1;
}

static pd_status check_range(const char *key, uint32_t value, uint32_t low, uint32_t high, struct pd_error *err)
{
    if (value < low || value > high)
        PD_FAIL(err, PD_INVALID, "model.%s is %u; it must be between %u and %u", key, value, low, high);
    return PD_OK;
}

static uint32_t nearest_divisor(uint32_t of, uint32_t wanted)
{
    for (uint32_t distance = 0; distance < of; distance++) {
        if (wanted > distance && of % (wanted - distance) == 0) return wanted - distance;
        if (wanted + distance <= of && of % (wanted + distance) == 0) return wanted + distance;
    }
    return of;
}

/* Negations, so that NaN is refused too. */
static pd_status check_floats(const struct pd_model_config *c, struct pd_error *err)
{
    if (!(c->norm_epsilon > 0 && c->norm_epsilon < 1))
        PD_FAIL(err, PD_INVALID, "model.norm_epsilon is %g; it must be positive and under 1, such as 1e-5", c->norm_epsilon);
    if (!(c->init_std > 0 && c->init_std < 10))
        PD_FAIL(err, PD_INVALID, "model.init_std is %g; it must be positive and under 10, such as 0.02", c->init_std);
    if (pd_family_at(c->family)->positions != PD_POSITIONS_ROPE) return PD_OK;
    if (!(c->rope_theta >= 1 && c->rope_theta <= 1e12f))
        PD_FAIL(err, PD_INVALID, "model.rope_theta is %g; it must be between 1 and 1e12, such as 10000", c->rope_theta);
    if (c->rope_scaling == PD_ROPE_SCALING_NONE) return PD_OK;
    if (!(c->rope_factor >= 1 && c->rope_factor <= 1e6f))
        PD_FAIL(err, PD_INVALID, "model.rope_factor is %g; it must be between 1 and 1e6, such as 8", c->rope_factor);
    if (c->rope_scaling == PD_ROPE_SCALING_LINEAR) return PD_OK;
    if (!(c->rope_low_frequency_factor > 0 && c->rope_low_frequency_factor < c->rope_high_frequency_factor &&
          isfinite(c->rope_high_frequency_factor)))
        PD_FAIL(
            err, PD_INVALID,
            "model.rope_low_frequency_factor is %g and model.rope_high_frequency_factor %g; they must be positive and the "
            "first the smaller, such as 1 and 4",
            c->rope_low_frequency_factor, c->rope_high_frequency_factor);
    return check_range("rope_original_context", c->rope_original_context, 1, 1u << 20, err);
}

static pd_status refuse_if(bool is_set, const char *key, const struct pd_model_config *c, struct pd_error *err)
{
    if (is_set) PD_FAIL(err, PD_INVALID, "family %s has no model.%s; leave it out", pd_family_names[c->family], key);
    return PD_OK;
}

static pd_status check_router_floats(const struct pd_model_config *c, struct pd_error *err)
{
    if (!(c->routed_scale > 0 && c->routed_scale <= 1000))
        PD_FAIL(err, PD_INVALID, "model.routed_scale is %g; it must be positive and at most 1000", c->routed_scale);
    if (!(c->balance_loss >= 0 && c->balance_loss <= 100 && c->z_loss >= 0 && c->z_loss <= 100))
        PD_FAIL(err, PD_INVALID, "model.balance_loss is %g and model.z_loss %g; they must be between 0 and 100",
                c->balance_loss, c->z_loss);
    if (!(c->bias_step >= 0 && c->bias_step <= 1))
        PD_FAIL(err, PD_INVALID, "model.bias_step is %g; it must be between 0 and 1, such as 0.001", c->bias_step);
    return PD_OK;
}

static pd_status check_experts(const struct pd_model_config *c, const struct pd_family *f, struct pd_error *err)
{
    const bool is_sigmoid = f->router == PD_ROUTER_SIGMOID;
    if (!f->router) return refuse_if(c->experts > 0, "experts", c, err);
    PD_TRY(check_range("experts", c->experts, 2, PD_EXPERTS_MAX, err));
    PD_TRY(check_range("experts_per_token", c->experts_per_token, 1, c->experts < 64 ? c->experts : 64, err));
    PD_TRY(check_range("expert_ffn", c->expert_ffn, 1, 1u << 22, err));
    PD_TRY(refuse_if(!is_sigmoid && c->shared_experts, "shared_experts", c, err));
    PD_TRY(refuse_if(!is_sigmoid && c->dense_blocks, "dense_blocks", c, err));
    PD_TRY(refuse_if(!is_sigmoid && c->router_groups > 1, "router_groups", c, err));
    PD_TRY(refuse_if(!is_sigmoid && c->bias_step != 0, "bias_step", c, err));
    PD_TRY(refuse_if(is_sigmoid && c->balance_loss != 0, "balance_loss", c, err));
    PD_TRY(check_range("shared_experts", c->shared_experts, 0, 64, err));
    PD_TRY(check_range("dense_blocks", c->dense_blocks, 0, c->layers - 1, err));
    PD_TRY(check_range("router_groups", c->router_groups, 1, c->experts / 2, err));
    PD_TRY(check_range("router_groups_kept", c->router_groups_kept, 1, c->router_groups, err));
    if (c->experts % c->router_groups)
        PD_FAIL(err, PD_INVALID, "model.router_groups %u does not divide model.experts %u; the nearest that does is %u",
                c->router_groups, c->experts, nearest_divisor(c->experts, c->router_groups));
    const uint32_t to_choose_from = c->experts / c->router_groups * c->router_groups_kept;
    if (to_choose_from < c->experts_per_token)
        PD_FAIL(err, PD_INVALID, "model.router_groups_kept %u leaves a token %u experts, and model.experts_per_token is %u",
                c->router_groups_kept, to_choose_from, c->experts_per_token);
    return check_router_floats(c, err);
}

pd_status pd_model_config_check(const struct pd_model_config *config, struct pd_error *err)
{
    if (!pd_family_at(config->family))
        PD_FAIL(err, PD_INVALID, "model.family is %u, and there are fewer families", config->family);
    PD_TRY(check_range("vocab", config->vocab, 2, 1u << 24, err));
    PD_TRY(check_range("context", config->context, 1, 1u << 20, err));
    PD_TRY(check_range("layers", config->layers, 1, 4096, err));
    PD_TRY(check_range("hidden", config->hidden, 1, 1u << 20, err));
    PD_TRY(check_range("heads", config->heads, 1, 4096, err));
    PD_TRY(check_range("kv_heads", config->kv_heads, 1, config->heads, err));
    if (!config->head_size)
        PD_FAIL(err, PD_INVALID,
                "model.hidden %u is not a multiple of model.heads %u; take model.heads %u, or name model.head_size",
                config->hidden, config->heads, nearest_divisor(config->hidden, config->heads));
    PD_TRY(check_range("head_size", config->head_size, 1, 256, err));
    PD_TRY(check_range("ffn", config->ffn, 1, 1u << 22, err));
    const struct pd_family *f = pd_family_at(config->family);
    if (config->heads % config->kv_heads)
        PD_FAIL(err, PD_INVALID, "model.kv_heads %u does not divide model.heads %u; the nearest that does is %u",
                config->kv_heads, config->heads, nearest_divisor(config->heads, config->kv_heads));
    if (config->heads / config->kv_heads > 64)
        PD_FAIL(err, PD_INVALID, "model.kv_heads %u would serve %u query heads each, at most 64 can share one; set it to %u",
                config->kv_heads, config->heads / config->kv_heads,
                nearest_divisor(config->heads, (config->heads + 63) / 64));
    if (f->positions == PD_POSITIONS_ROPE && config->head_size % 2)
        PD_FAIL(err, PD_INVALID, "model.head_size %u is odd, and RoPE rotates pairs; set model.head_size to %u",
                config->head_size, config->head_size + 1);
    if (f->heads_make_hidden && config->kv_heads != config->heads)
        PD_FAIL(err, PD_INVALID, "model.kv_heads is %u, but family %s has as many as heads: %u", config->kv_heads,
                pd_family_names[config->family], config->heads);
    if (f->heads_make_hidden && (uint64_t)config->heads * config->head_size != config->hidden)
        PD_FAIL(
            err, PD_INVALID,
            "model.heads %u times model.head_size %u is not model.hidden %u; take model.heads %u, which divides hidden, and "
            "leave head_size out",
            config->heads, config->head_size, config->hidden, nearest_divisor(config->hidden, config->heads));
    if (config->rotated % 2 || config->rotated > config->head_size)
        PD_FAIL(err, PD_INVALID, "model.rotated is %u; it must be even and at most model.head_size: %u", config->rotated,
                config->head_size);
    if (config->rotated && f->router != PD_ROUTER_SIGMOID)
        PD_FAIL(err, PD_INVALID, "model.rotated is %u, but family %s rotates whole heads", config->rotated,
                pd_family_names[config->family]);
    PD_TRY(check_experts(config, f, err));
    return check_floats(config, err);
}
