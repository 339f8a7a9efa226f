/* Megatron's arguments of models with experts, in both directions.
 *
 *   here                       Megatron
 *   norm_topk_prob             not moe_router_pre_softmax: a softmax over the chosen; scores of sigmoids are always renormalised
 *   routed_scaling_factor      moe_router_topk_scaling_factor
 *   n_shared_experts           moe_shared_expert_intermediate_size, columns of all together
 *   first_k_dense_replace      moe_layer_freq, a list with 0 for each dense block
 *   partial_rotary_factor      rotary_percent
 *
 * Source: megatron/core/transformer/moe, megatron/training/arguments.py. */
#include "resharder/formats/megatron.h"

#include "ckpt/base/json.h"

#include <stdio.h>
#include <string.h>

static bool router_is_on(const struct pd_pickle_node *args, const char *name)
{
    const struct pd_pickle_node *node = pd_pickle_field(args, name);
    return node && node->type == PD_PICKLE_BOOL && node->boolean;
}

static double number_of(const struct pd_pickle_node *args, const char *name, double absent)
{
    double number = absent;
    (void)pd_pickle_is_number(pd_pickle_field(args, name), &number);
    return number;
}

bool pd_megatron_is_router(const struct pd_pickle_node *args, const struct pd_family *family)
{
    const char *score = pd_pickle_text(pd_pickle_field(args, "moe_router_score_function"));
    const bool is_sigmoid = score && strcmp(score, "sigmoid") == 0;
    if (!(number_of(args, "num_experts", 0) > 0)) return family->router == PD_ROUTER_NONE;
    return family->router == (is_sigmoid ? PD_ROUTER_SIGMOID : PD_ROUTER_SOFTMAX);
}

/* Leading dense blocks of moe_layer_freq, 1 or a list of 0 and 1. False: experts come and go. */
static bool dense_blocks(const struct pd_pickle_node *frequency, uint64_t *ret)
{
    uint64_t one = 1;
    *ret = 0;
    if (!frequency || frequency->type != PD_PICKLE_LIST) return !pd_pickle_is_u64(frequency, &one) || one == 1;
    for (uint32_t i = 0; i < frequency->count; i++) {
        if (!pd_pickle_is_u64(frequency->items[i], &one) || one > 1) return false;
        if (!one && *ret != i) return false;
        *ret += !one;
    }
    return true;
}

/* What our routers do not compute goes into config.json under its own name, and is refused there. */
static void write_unknown(struct pd_json_writer *w, const struct pd_pickle_node *args)
{
    static const char *const off[] = {"moe_shared_expert_gate", "moe_apply_probs_on_input"};
    static const char *const absent[] = {"moe_expert_capacity_factor", "moe_latent_size"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        char key[80];
        snprintf(key, sizeof key, "megatron.%s", off[i]);
        if (router_is_on(args, off[i])) pd_json_bool(w, key, true);
        snprintf(key, sizeof key, "megatron.%s", absent[i]);
        const double number = number_of(args, absent[i], 0);
        if (number > 0) pd_json_double(w, key, number);
    }
}

void pd_megatron_read_router(struct pd_json_writer *w, const struct pd_pickle_node *args, const struct pd_family *family,
                             const struct pd_model_class *class)
{
    const bool is_sigmoid = family->router == PD_ROUTER_SIGMOID, is_normed = !router_is_on(args, "moe_router_pre_softmax");
    const double ffn = number_of(args, "moe_ffn_hidden_size", number_of(args, "ffn_hidden_size", 0));
    const double shared = number_of(args, "moe_shared_expert_intermediate_size", 0);
    const char *expert_ffn = family->keys[PD_NUMBER_EXPERT_FFN].config, *dense = family->keys[PD_NUMBER_DENSE_BLOCKS].config;
    uint64_t first = 0;
    if (ffn > 0) pd_json_u64(w, expert_ffn ? expert_ffn : family->keys[PD_NUMBER_FFN].config, (uint64_t)ffn);
    if (class->has_renormalise_key) pd_json_bool(w, "norm_topk_prob", is_sigmoid || is_normed);
    if (!class->has_renormalise_key && !is_normed) pd_json_bool(w, "megatron.moe_router_pre_softmax", true);
    if (!dense_blocks(pd_pickle_field(args, "moe_layer_freq"), &first) || (first && !dense))
        pd_json_string(w, "megatron.moe_layer_freq", "set");
    else if (dense)
        pd_json_u64(w, dense, first);
    if (is_sigmoid) {
        pd_json_double(w, "routed_scaling_factor", number_of(args, "moe_router_topk_scaling_factor", 1));
        pd_json_u64(w, family->keys[PD_NUMBER_SHARED_EXPERTS].config, ffn > 0 ? (uint64_t)(shared / ffn) : 0);
        pd_json_bool(w, "use_qk_norm", router_is_on(args, "qk_layernorm"));
        pd_json_bool(w, "attention_bias", router_is_on(args, "add_qkv_bias"));
    } else if (shared > 0) {
        pd_json_double(w, "megatron.moe_shared_expert_intermediate_size", shared);
    }
    if (family->router == PD_ROUTER_SOFTMAX)
        pd_json_double(w, "router_aux_loss_coef", number_of(args, "moe_aux_loss_coeff", 0));
    if (class->rotated_part > 0) pd_json_double(w, "partial_rotary_factor", number_of(args, "rotary_percent", 1));
    write_unknown(w, args);
}

void pd_megatron_put_router(struct pd_pickle_writer *p, const struct pd_json_value *config, const struct pd_family *family,
                            const struct pd_model_class *class)
{
    const struct pd_number_keys *keys = family->keys;
    const bool is_sigmoid = family->router == PD_ROUTER_SIGMOID;
    const char *expert_ffn = keys[PD_NUMBER_EXPERT_FFN].config;
    const double ffn = pd_json_number_or(config, expert_ffn ? expert_ffn : keys[PD_NUMBER_FFN].config, 0);
    const double shared = is_sigmoid ? pd_json_number_or(config, keys[PD_NUMBER_SHARED_EXPERTS].config, 0) : 0;
    const uint64_t layers = (uint64_t)pd_json_number_or(config, keys[PD_NUMBER_LAYERS].config, 0),
                   dense = is_sigmoid ? (uint64_t)pd_json_number_or(config, keys[PD_NUMBER_DENSE_BLOCKS].config, 0) : 0;
    bool is_normed = class->renormalises;
    (void)pd_json_is_bool(pd_json_member(config, "norm_topk_prob"), &is_normed);
    if (!expert_ffn) pd_pickle_put_u64(p, "moe_ffn_hidden_size", (uint64_t)ffn);
    pd_pickle_put_text(p, "moe_router_score_function", is_sigmoid ? "sigmoid" : "softmax");
    pd_pickle_put_bool(p, "moe_router_pre_softmax", !is_sigmoid && !is_normed);
    pd_pickle_put_bool(p, "moe_router_enable_expert_bias", is_sigmoid);
    if (is_sigmoid) {
        pd_pickle_put_double(p, "moe_router_topk_scaling_factor", pd_json_number_or(config, "routed_scaling_factor", 1));
        if (shared > 0) pd_pickle_put_u64(p, "moe_shared_expert_intermediate_size", (uint64_t)(shared * ffn));
    } else {
        pd_pickle_put_double(p, "moe_aux_loss_coeff", pd_json_number_or(config, "router_aux_loss_coef", 0));
    }
    if (!dense) pd_pickle_put_u64(p, "moe_layer_freq", 1); /* a list would number the layers */
    if (!dense) return;
    pd_pickle_put(p, "moe_layer_freq", "](");
    for (uint64_t l = 0; l < layers; l++)
        pd_pickle_put_u64(p, NULL, l >= dense);
    pd_pickle_do(p, "e");
}
