/* Writes Megatron-Core's distributed checkpoints: latest_checkpointed_iteration.txt names iter_<iteration>, which holds a
 * distributed checkpoint of torch (dcp_write.c) with Megatron's names, fully reshardable, metadata.json and common.pt.
 *
 * Parameters are stored once, in fp32, under three names: the model's, its distributed optimizer's and its other
 * optimizers'. common.pt has what Megatron's loader needs: the iteration, arguments that describe the model, parameter
 * groups with the count of updates. Rates come from the loading command line (--override-opt_param-scheduler); generators
 * start anew. A strict load asks for each module's _extra_state (of fp8), which is empty here.
 * Source: megatron/core/dist_checkpointing, megatron/core/optimizer, megatron/training/checkpointing.py. */
#include "resharder/formats/megatron.h"

#include "ckpt/base/json.h"
#include "resharder/catalog/family.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/dcp.h"
#include "resharder/torch/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pd_dcp_style style = {
    .keys = {[PD_PARAM] = {{"", ""}, {"optimizer.state.param.", ""}, {"optimizer.state.fp32_param.", ""}},
             [PD_EXP_AVG] = {{"optimizer.state.exp_avg.", ""}},
             [PD_EXP_AVG_SQ] = {{"optimizer.state.exp_avg_sq.", ""}}}};

struct writer {
    struct pd_vfs *vfs;
    const struct pd_format_plan *plan;
    char name[32], directory[PD_FORMATS_PATH_MAX]; /* of the iteration */
    char **objects;                                /* (object_count) */
    uint32_t object_count;
    void *dcp; /* state of dcp_write.c; NULL once it has finished */
};

/* ---- the plan ---- */

/* For the whole model, for every layer, for the MLP of a dense layer, of shared experts, and of each expert: the version and
 * Transformer Engine decide whether a module has one. */
static const char *const modules[] = {"output_layer", "decoder.final_layernorm"};
static const char *const layer_modules[] = {"self_attention.linear_qkv", "self_attention.linear_proj",
                                            "self_attention.core_attention", "self_attention.q_layernorm",
                                            "self_attention.k_layernorm"};
static const char *const mlp_modules[] = {"mlp.linear_fc1", "mlp.linear_fc2"};
static const char *const shared_modules[] = {"mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2"};
static const char *const expert_modules[] = {"mlp.experts.experts.linear_fc1", "mlp.experts.experts.linear_fc2"};
enum { MODULES = 2, LAYER_MODULES = 5, MLP_MODULES = 2 };

static const char before_layer[] = "decoder.layers.";

/* Layers of the model, and whether they have numbers in names or lie on a leading axis. */
static uint64_t count_layers(const struct pd_catalog *wanted, bool *ret_numbered)
{
    uint64_t layers = 0;
    *ret_numbered = false;
    for (uint32_t t = 0; t < wanted->tensor_count; t++) {
        const char *name = wanted->tensors[t].name, *number = name + sizeof before_layer - 1;
        if (strncmp(name, before_layer, sizeof before_layer - 1) != 0) continue;
        const bool is_numbered = *number >= '0' && *number <= '9';
        const uint64_t count = is_numbered ? strtoull(number, NULL, 10) + 1 : wanted->tensors[t].shape[0];
        *ret_numbered |= is_numbered;
        if (count > layers) layers = count;
    }
    return layers;
}

/* Experts of a layer: 0 if it is dense. */
static uint64_t experts_of(const struct pd_catalog *wanted, bool is_numbered, uint64_t layer)
{
    char name[96], number[24] = "";
    if (is_numbered) snprintf(number, sizeof number, "%" PRIu64 ".", layer);
    snprintf(name, sizeof name, "%s%smlp.experts.experts.linear_fc2.weight", before_layer, number);
    for (uint32_t t = 0; t < wanted->tensor_count; t++)
        if (strcmp(wanted->tensors[t].name, name) == 0) return wanted->tensors[t].shape[is_numbered ? 0 : 1];
    return 0;
}

/* A layer being named. */
struct layer {
    struct writer *w;
    bool is_numbered;
    uint64_t number, layers, experts;
};

static pd_status add_object(const struct layer *l, const char *module, uint64_t expert, struct pd_error *err)
{
    char number[24] = "", at[48] = "0", of[48] = "1";
    const bool is_of_expert = expert < l->experts;
    if (l->is_numbered) {
        snprintf(number, sizeof number, "%" PRIu64 ".", l->number);
        if (is_of_expert) snprintf(at, sizeof at, "%" PRIu64, expert);
        if (is_of_expert) snprintf(of, sizeof of, "%" PRIu64, l->experts);
    } else {
        const int used = snprintf(at, sizeof at, "%" PRIu64, l->number),
                  used_of = snprintf(of, sizeof of, "%" PRIu64, l->layers);
        if (is_of_expert) snprintf(at + used, sizeof at - (size_t)used, ".%" PRIu64, expert);
        if (is_of_expert) snprintf(of + used_of, sizeof of - (size_t)used_of, ".%" PRIu64, l->experts);
    }
    if (asprintf(&l->w->objects[l->w->object_count], "%s%s%s._extra_state/shard_%s_%s", before_layer, number, module, at,
                 of) < 0)
        PD_FAIL(err, PD_NO_MEMORY, "no memory for names of modules");
    l->w->object_count++;
    return PD_OK;
}

static pd_status name_layer(const struct layer *l, struct pd_error *err)
{
    for (int m = 0; m < LAYER_MODULES; m++)
        PD_TRY(add_object(l, layer_modules[m], UINT64_MAX, err));
    for (int m = 0; m < MLP_MODULES; m++)
        PD_TRY(add_object(l, l->experts ? shared_modules[m] : mlp_modules[m], UINT64_MAX, err));
    for (uint64_t e = 0; e < l->experts; e++)
        for (int m = 0; m < MLP_MODULES; m++)
            PD_TRY(add_object(l, expert_modules[m], e, err));
    return PD_OK;
}

static pd_status name_objects(struct writer *w, struct pd_error *err)
{
    struct layer l = {.w = w};
    uint64_t most = 0;
    l.layers = count_layers(w->plan->wanted, &l.is_numbered);
    for (uint64_t n = 0; n < l.layers; n++)
        most += LAYER_MODULES + MLP_MODULES * (1 + experts_of(w->plan->wanted, l.is_numbered, n));
    w->objects = calloc(MODULES + most, sizeof *w->objects);
    if (!w->objects) PD_FAIL(err, PD_NO_MEMORY, "no memory for names of %" PRIu64 " layers", l.layers);
    for (int m = 0; m < MODULES; m++)
        if (asprintf(&w->objects[w->object_count++], "%s._extra_state/shard_0_1", modules[m]) < 0)
            PD_FAIL(err, PD_NO_MEMORY, "no memory for names of modules");
    for (l.number = 0; l.number < l.layers; l.number++) {
        l.experts = experts_of(w->plan->wanted, l.is_numbered, l.number);
        PD_TRY(name_layer(&l, err));
    }
    return PD_OK;
}

pd_status pd_megatron_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    struct writer *w = *ret_state = calloc(1, sizeof *w);
    if (!w) PD_FAIL(err, PD_NO_MEMORY, "no memory to write a checkpoint of Megatron");
    *w = (struct writer){.vfs = vfs, .plan = plan};
    for (uint32_t t = 0; t < plan->wanted->tensor_count; t++)
        if (plan->wanted->tensors[t].element != PD_ELEMENT_F32)
            PD_FAIL(err, PD_UNSUPPORTED,
                    "Megatron keeps parameters in fp32, for its optimizer, and rounds them itself: leave out --dtype");
    snprintf(w->name, sizeof w->name, "iter_%07" PRIu64, plan->wanted->counters.step);
    PD_TRY(pd_formats_path(plan->directory, w->name, w->directory, err));
    PD_TRY(pd_vfs_mkdir(w->vfs, w->directory, err));
    PD_TRY(name_objects(w, err));
    return pd_dcp_plan_as(w->vfs, plan, w->directory, &style, (const char *const *)w->objects, w->object_count, &w->dcp,
                          err);
}

void pd_megatron_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes)
{
    pd_dcp_observe(((struct writer *)state)->dcp, tensor, data, bytes);
}

/* ---- common.pt ---- */

static void put_rope(struct pd_pickle_writer *p, const struct pd_json_value *config)
{
    const struct pd_json_value *scaling = pd_json_member(config, "rope_scaling");
    const char *name = pd_json_member_text(scaling, "rope_type");
    pd_pickle_put_double(p, "rotary_base", pd_json_number_or(config, "rope_theta", 10000));
    pd_pickle_put_double(p, "rotary_percent", pd_json_number_or(config, "partial_rotary_factor", 1));
    if (!name) return;
    const bool is_llama3 = strcmp(name, "llama3") == 0;
    pd_pickle_put_bool(p, "use_rope_scaling", is_llama3);
    pd_pickle_put_double(p, is_llama3 ? "rope_scaling_factor" : "rotary_seq_len_interpolation_factor",
                         pd_json_number_or(scaling, "factor", 1));
}

/* Writes the command line arguments that define the model; the loading run sets the others. */
static void put_model(struct pd_pickle_writer *p, const struct pd_json_value *config)
{
    const char *name = pd_json_member_text(config, "model_type");
    uint32_t row = 0;
    const struct pd_model_class *class = name ? pd_model_class_find(NULL, name, NULL, &row) : NULL;
    const struct pd_family *f = pd_families[row];
    bool is_tied = false;
    if (!class) return;
    for (int i = 0; i < PD_NUMBER_EPSILON; i++) {
        const uint64_t number = (uint64_t)pd_json_number_or(config, f->keys[i].config, 0);
        if (number && f->keys[i].megatron) pd_pickle_put_u64(p, f->keys[i].megatron, number);
    }
    pd_pickle_put_u64(p, "padded_vocab_size", (uint64_t)pd_json_number_or(config, f->keys[PD_NUMBER_VOCAB].config, 0));
    pd_pickle_put_u64(p, "seq_length", (uint64_t)pd_json_number_or(config, f->keys[PD_NUMBER_CONTEXT].config, 0));
    pd_pickle_put_bool(p, "group_query_attention", !f->heads_make_hidden);
    pd_pickle_put_bool(p, "swiglu", f->activation == PD_ACTIVATION_SWIGLU);
    pd_pickle_put_bool(p, "add_bias_linear", f->has_linear_biases);
    bool has_bias = class->qkv_bias && !f->has_linear_biases, has_norms = f->qk_norm == PD_QK_NORM_HEADS;
    if (class->has_qkv_bias_key) (void)pd_json_is_bool(pd_json_member(config, "attention_bias"), &has_bias);
    if (f->qk_norm == PD_QK_NORM_OPTIONAL) (void)pd_json_is_bool(pd_json_member(config, "use_qk_norm"), &has_norms);
    pd_pickle_put_bool(p, "add_qkv_bias", has_bias);
    pd_pickle_put_bool(p, "qk_layernorm", has_norms);
    pd_pickle_put_text(p, "normalization", f->norm == PD_NORM_RMS ? "RMSNorm" : "LayerNorm");
    pd_pickle_put_text(p, "position_embedding_type", f->positions == PD_POSITIONS_ROPE ? "rope" : "learned_absolute");
    pd_pickle_put_double(p, "norm_epsilon", pd_json_number_or(config, f->keys[PD_NUMBER_EPSILON].config, 1e-5));
    (void)pd_json_is_bool(pd_json_member(config, "tie_word_embeddings"), &is_tied);
    pd_pickle_put_bool(p, "untie_embeddings_and_output_weights", !is_tied);
    if (f->positions == PD_POSITIONS_ROPE) put_rope(p, config);
    if (f->router) pd_megatron_put_router(p, config, f, class);
}

static pd_status put_arguments(struct pd_pickle_writer *p, const struct pd_catalog *wanted, struct pd_error *err)
{
    const struct pd_catalog_text *text = pd_catalog_text(wanted, "config.json");
    struct pd_json_document *document = NULL;
    if (text) PD_TRY(pd_json_parse("config.json", text->text, text->bytes, &document, err));
    pd_pickle_put_text(p, NULL, "args");
    pd_pickle_object_begin(p, "argparse", "Namespace");
    if (document) put_model(p, pd_json_root(document));
    pd_json_document_free(document);
    pd_pickle_put_bool(p, "add_position_embedding", true);
    pd_pickle_put_u64(p, "tensor_model_parallel_size", 1);
    pd_pickle_put_u64(p, "pipeline_model_parallel_size", 1);
    pd_pickle_put_u64(p, "consumed_train_samples", wanted->counters.samples);
    pd_pickle_put_u64(p, "consumed_valid_samples", 0);
    pd_pickle_put_bool(p, "no_save_rng", true);
    pd_pickle_object_end(p);
    return PD_OK;
}

/* Megatron identifies a group by the first four members, and uses the others until it sets its own rates and decay. */
static void put_group(struct pd_pickle_writer *p, const struct pd_catalog *wanted, bool decays)
{
    const struct pd_catalog_counters *c = &wanted->counters;
    const struct pd_catalog_adam adam =
        wanted->adam.is_known ? wanted->adam : (struct pd_catalog_adam){.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    pd_pickle_do(p, "}(");
    pd_pickle_put_double(p, "wd_mult", decays);
    pd_pickle_put_double(p, "lr_mult", 1);
    pd_pickle_put_bool(p, "is_expert_parallel", false);
    pd_pickle_put_bool(p, "is_decoupled_lr", false);
    pd_pickle_put_u64(p, "step", c->has_updates ? c->updates : c->step);
    pd_pickle_put_double(p, "lr", adam.rate);
    pd_pickle_put(p, "betas", "(");
    pd_pickle_put_double(p, NULL, adam.beta1);
    pd_pickle_put_double(p, NULL, adam.beta2);
    pd_pickle_do(p, "t");
    pd_pickle_put_double(p, "eps", adam.epsilon);
    pd_pickle_put_double(p, "weight_decay", decays ? adam.decay : 0);
    pd_pickle_put_bool(p, "bias_correction", true);
    pd_pickle_put(p, "params", "]u");
}

static pd_status write_common(const struct writer *w, struct pd_error *err)
{
    const struct pd_catalog *wanted = w->plan->wanted;
    struct pd_pickle_writer p = {0};
    char path[PD_FORMATS_PATH_MAX];
    pd_pickle_begin(&p);
    pd_pickle_do(&p, "}(");
    pd_pickle_put_u64(&p, "iteration", wanted->counters.step);
    pd_pickle_put_double(&p, "checkpoint_version", 3);
    pd_pickle_put_u64(&p, "num_floating_point_operations_so_far", 0);
    pd_pickle_put(&p, "content_metadata", "}(");
    pd_pickle_put_text(&p, "distrib_optim_sharding_type", "fully_reshardable");
    pd_pickle_put_bool(&p, "distrib_optim_fully_reshardable_mem_efficient", false);
    pd_pickle_put_bool(&p, "singleton_local_shards", false);
    pd_pickle_put_bool(&p, "chained_optim_avoid_prefix", true);
    pd_pickle_do(&p, "u");
    pd_pickle_put(&p, "optimizer", "}(");
    pd_pickle_put_text(&p, "param_state_sharding_type", "fully_reshardable");
    pd_pickle_put(&p, "optimizer", "}(");
    pd_pickle_put(&p, "param_groups", "](");
    put_group(&p, wanted, true);
    put_group(&p, wanted, false);
    pd_pickle_do(&p, "euu");
    pd_pickle_put(&p, "opt_param_scheduler", "}(");
    pd_pickle_put_double(&p, "max_lr", wanted->adam.rate);
    pd_pickle_put_double(&p, "min_lr", 0);
    pd_pickle_put_u64(&p, "lr_warmup_steps", 0);
    pd_pickle_put_u64(&p, "lr_decay_steps", 0);
    pd_pickle_put_text(&p, "lr_decay_style", "constant");
    pd_pickle_put_u64(&p, "num_steps", wanted->counters.samples);
    pd_pickle_do(&p, "u");
    pd_status st = put_arguments(&p, wanted, err);
    pd_pickle_do(&p, "u");
    if (!st) st = pd_pickle_finish(&p, err);
    if (!st) st = pd_formats_path(w->directory, "common.pt", path, err);
    if (!st) st = pd_torch_write_small(w->vfs, path, &p, NULL, 0, err);
    pd_pickle_writer_deinit(&p);
    return st;
}

/* ---- the end ---- */

static pd_status write_rest(const struct writer *w, struct pd_error *err)
{
    static const char metadata[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                                   "\"common_backend\": \"torch\", \"common_backend_version\": 1}";
    char path[PD_FORMATS_PATH_MAX], text[24];
    PD_TRY(write_common(w, err));
    PD_TRY(pd_formats_path(w->directory, "metadata.json", path, err));
    PD_TRY(pd_formats_write_text(w->vfs, path, metadata, sizeof metadata - 1, err));
    PD_TRY(pd_formats_path(w->plan->directory, PD_MEGATRON_TRACKER, path, err));
    snprintf(text, sizeof text, "%" PRIu64, w->plan->wanted->counters.step);
    return pd_formats_write_text(w->vfs, path, text, strlen(text), err);
}

pd_status pd_megatron_finish(void *state, pd_status mine, struct pd_error *err)
{
    struct writer *w = state;
    pd_status st = w->dcp ? pd_dcp_finish(w->dcp, mine, err) : mine;
    if (!st) st = write_rest(w, err);
    for (uint32_t i = 0; w->objects && i < w->object_count; i++)
        free(w->objects[i]);
    free(w->objects);
    free(w);
    return st;
}
