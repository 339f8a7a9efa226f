/* Reads class, sizes, unsupported features, RoPE. Both directions use the family's row (resharder/catalog/families.c). */
#include "trainer/model/hugging_face.h"

#include "ckpt/base/json.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of the activation in config.json; the first is the one we write. */
static const char *const activations[][2] = {
    [PD_ACTIVATION_SWIGLU] = {"silu", "swish"}, [PD_ACTIVATION_GELU] = {"gelu_new", "gelu_pytorch_tanh"}};

#define AT(member) offsetof(struct pd_model_config, member)
static const size_t offsets[PD_NUMBER_EPSILON] = {
    AT(vocab),      AT(context),        AT(layers),       AT(hidden),        AT(heads),
    AT(kv_heads),   AT(head_size),      AT(ffn),          AT(experts),       AT(experts_per_token),
    AT(expert_ffn), AT(shared_experts), AT(dense_blocks), AT(router_groups), AT(router_groups_kept)};

static uint32_t *size_at(struct pd_model_config *config, int number)
{
    return (uint32_t *)(void *)((char *)config + offsets[number]);
}

#define ROTATED_PART "partial_rotary_factor"

/* ---- reading ---- */

struct reader {
    const char *name; /* of the file */
    bool is_gguf;     /* it holds metadata of GGUF */
    const struct pd_json_value *root;
    const struct pd_model_class *class;
    const struct pd_family *family;
    struct pd_model_config *config;
};

/* A member that exists and is not null. */
static const struct pd_json_value *member(const struct pd_json_value *object, const char *key)
{
    const struct pd_json_value *value = pd_json_member(object, key);
    return value && pd_json_type(value) != PD_JSON_NULL ? value : NULL;
}

/* A key as written in the file. */
static const char *shown(const struct reader *r, const char *key, char buffer[160])
{
    for (int i = 0; r->is_gguf && i < PD_NUMBER_COUNT; i++) {
        const struct pd_number_keys *keys = &r->family->keys[i];
        if (!keys->gguf || !keys->config || strcmp(keys->config, key) != 0) continue;
        snprintf(buffer, 160, "%s.%s", r->class->gguf, keys->gguf);
        return buffer;
    }
    return key;
}

static bool is_key(const struct reader *r, enum pd_number number, const char *key)
{
    return r->family->keys[number].config && strcmp(r->family->keys[number].config, key) == 0;
}

/* Each keeps *ret if the key is absent or null. */
static pd_status read_size(const struct reader *r, const struct pd_json_value *object, const char *key, uint32_t *ret,
                           struct pd_error *err)
{
    const struct pd_json_value *value = member(object, key);
    uint64_t number = 0;
    char buffer[160];
    if (!value) return PD_OK;
    const bool may_be_0 = is_key(r, PD_NUMBER_SHARED_EXPERTS, key) || is_key(r, PD_NUMBER_DENSE_BLOCKS, key);
    if (!pd_json_is_u64(value, &number) || (number == 0 && !may_be_0) || number > UINT32_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s: %s is not a whole number from %d to 4294967295", r->name, shown(r, key, buffer),
                may_be_0 ? 0 : 1);
    *ret = (uint32_t)number;
    return PD_OK;
}

static pd_status read_number(const struct reader *r, const struct pd_json_value *object, const char *key, float *ret,
                             struct pd_error *err)
{
    const struct pd_json_value *value = member(object, key);
    double number = 0;
    if (!value) return PD_OK;
    if (!pd_json_is_number(value, &number)) PD_FAIL(err, PD_CORRUPT, "%s: %s is not a number", r->name, key);
    *ret = (float)number;
    return PD_OK;
}

static pd_status read_switch(const struct reader *r, const char *key, bool *ret, struct pd_error *err)
{
    const struct pd_json_value *value = member(r->root, key);
    if (value && !pd_json_is_bool(value, ret)) PD_FAIL(err, PD_CORRUPT, "%s: %s is neither true nor false", r->name, key);
    return PD_OK;
}

/* Models with experts that compute something we do not have. */
static pd_status refuse_known(const char *file, const char *architecture, struct pd_error *err)
{
    static const char *const known[][2] = {
        {"DeepseekV", "latent attention (kv_lora_rank)"},
        {"deepseek_v", "latent attention (kv_lora_rank)"},
        {"GptOss", "attention sinks, biased experts and clamped SwiGLU"},
        {"gpt_oss", "attention sinks, biased experts and clamped SwiGLU"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(architecture, known[i][0], strlen(known[i][0])) == 0)
            PD_FAIL(err, PD_UNSUPPORTED, "%s: architecture %s has %s, which perdure does not compute", file, architecture,
                    known[i][1]);
    return PD_OK;
}

static pd_status find_class(struct reader *r, struct pd_error *err)
{
    const struct pd_json_value *list = member(r->root, "architectures");
    const char *name = list && pd_json_count(list) ? pd_json_text(pd_json_at(list, 0)) : NULL;
    const char *type = pd_json_member_text(r->root, "model_type");
    if (!name && !type)
        PD_FAIL(err, PD_CORRUPT, "%s: it has neither architectures nor model_type, so it is not a model's config.json",
                r->name);
    r->class = pd_model_class_find(name, name ? NULL : type, NULL, &r->config->family);
    if (r->class && type && strcmp(type, r->class->type) != 0)
        PD_FAIL(
            err, PD_UNSUPPORTED,
            "%s: architecture %s has the model_type %s, and model_type is %s, by which transformers chooses the model; keep "
            "the right one",
            r->name, name, r->class->type, type);
    if (r->class) return PD_OK;
    PD_TRY(refuse_known(r->name, name ? name : type, err));
    char known[320];
    size_t used = 0;
    for (const struct pd_family *const *f = pd_families; *f; f++)
        for (const struct pd_model_class *c = (*f)->classes; c->name && used < sizeof known; c++)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", c->name);
    PD_FAIL(err, PD_UNSUPPORTED, "%s: architecture %s; perdure converts %s", r->name, name ? name : type, known);
}

static pd_status read_sizes(const struct reader *r, struct pd_error *err)
{
    struct pd_model_config *c = r->config;
    char buffer[160];
    c->context = r->class->context;
    c->head_size = r->class->head_size;
    for (int i = 0; i < PD_NUMBER_EPSILON; i++) {
        const struct pd_number_keys *key = &r->family->keys[i];
        if (!key->config) continue;
        /* Version 5 of transformers writes num_local_experts for several classes. */
        if (i == PD_NUMBER_EXPERTS) PD_TRY(read_size(r, r->root, "num_local_experts", &c->experts, err));
        if (key->is_required && !(i == PD_NUMBER_EXPERTS && c->experts) && !member(r->root, key->config))
            PD_FAIL(err, PD_CORRUPT, "%s: %s is missing", r->name, shown(r, key->config, buffer));
        PD_TRY(read_size(r, r->root, key->config, size_at(c, i), err));
    }
    /* null means as many as heads; an absent key means the class's default. */
    const char *kv_heads = r->family->keys[PD_NUMBER_KV_HEADS].config;
    if (!c->kv_heads && kv_heads && !pd_json_member(r->root, kv_heads)) c->kv_heads = r->class->kv_heads;
    return PD_OK;
}

static pd_status check_activation(const struct reader *r, struct pd_error *err)
{
    const char *const *known = activations[r->family->activation], *key = r->family->activation_key;
    const char *name = pd_json_member_text(r->root, key);
    if (!name || strcmp(name, known[0]) == 0 || strcmp(name, known[1]) == 0) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED, "%s: %s is %s, and this family has %s here", r->name, key, name, known[0]);
}

/* Whether some block uses sliding-window attention: never or always in some classes, in others as use_sliding_window,
 * max_window_layers and layer_types say. */
static pd_status has_window(const struct reader *r, bool *ret, struct pd_error *err)
{
    const struct pd_json_value *types = member(r->root, "layer_types");
    uint32_t first = r->class->window_layers;
    const bool is_by_layer = first > 0;
    bool is_used = false, is_typed = false;
    for (size_t i = 0; types && i < pd_json_count(types); i++) {
        const char *type = pd_json_text(pd_json_at(types, i));
        if (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0))
            PD_FAIL(err, PD_UNSUPPORTED, "%s: layer_types[%zu] is %s, and blocks have full_attention here", r->name, i,
                    type ? type : "no text");
        is_typed |= strcmp(type, "sliding_attention") == 0;
    }
    PD_TRY(read_switch(r, "use_sliding_window", &is_used, err));
    if (is_by_layer) {
        /* A number of a block, which may be 0. */
        const struct pd_json_value *value = member(r->root, "max_window_layers");
        uint64_t number = 0;
        if (value && (!pd_json_is_u64(value, &number) || number > UINT32_MAX))
            PD_FAIL(err, PD_CORRUPT, "%s: %s is not a whole number from 0 to 4294967295", r->name, "max_window_layers");
        if (value) first = (uint32_t)number;
    } /* blocks before it see everything */
    *ret = is_typed || (is_by_layer ? is_used && !types && first < r->config->layers : r->class->window > 0);
    return PD_OK;
}

/* Refuses a key of rope_scaling that no supported kind has. */
static pd_status check_rope_keys(const struct reader *r, const char *name, const struct pd_json_value *scaling,
                                 bool is_llama3, struct pd_error *err)
{
    static const char *const known[] = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"},
                             *const llama3[] = {"low_freq_factor", "high_freq_factor"};
    const struct pd_json_value *value;
    const char *key;
    for (void *cursor = NULL; pd_json_next(scaling, &cursor, &key, &value);) {
        bool is_known = pd_json_type(value) == PD_JSON_NULL;
        double number = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= strcmp(known[i], key) == 0;
        for (size_t i = 0; is_llama3 && i < sizeof llama3 / sizeof *llama3; i++)
            is_known |= strcmp(llama3[i], key) == 0;
        is_known |= strcmp(key, ROTATED_PART) == 0 && pd_json_is_number(value, &number) &&
                    (number == 1 || r->class->rotated_part > 0);
        if (pd_json_type(value) == PD_JSON_OBJECT)
            PD_FAIL(err, PD_UNSUPPORTED, "%s: RoPE has parameters of its own for %s, and all blocks have the same here",
                    r->name, key);
        if (!is_known)
            PD_FAIL(err, PD_UNSUPPORTED, "%s: %s.%s is not computed here; if it changes nothing, take it out of config.json",
                    r->name, name, key);
    }
    return PD_OK;
}

static pd_status read_llama3(const struct reader *r, const char *name, const struct pd_json_value *scaling,
                             struct pd_model_config *c, struct pd_error *err)
{
    static const char original[] = "original_max_position_embeddings";
    c->rope_scaling = PD_ROPE_SCALING_LLAMA3;
    c->rope_original_context = c->context;
    PD_TRY(read_number(r, scaling, "low_freq_factor", &c->rope_low_frequency_factor, err));
    PD_TRY(read_number(r, scaling, "high_freq_factor", &c->rope_high_frequency_factor, err));
    PD_TRY(read_size(r, scaling, original, &c->rope_original_context, err));
    const uint32_t inner = c->rope_original_context;
    PD_TRY(read_size(r, r->root, original, &c->rope_original_context, err));
    if (member(scaling, original) && inner != c->rope_original_context)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %s is %u, and %u in %s; keep the one that the model was trained with", r->name,
                original, c->rope_original_context, inner, name);
    for (int i = 0; i < 2; i++)
        if (!member(scaling, i ? "low_freq_factor" : "high_freq_factor"))
            PD_FAIL(err, PD_CORRUPT, "%s: %s llama3 has no %s", r->name, name, i ? "low_freq_factor" : "high_freq_factor");
    return PD_OK;
}

/* `scaling` is the value of `name`, or NULL. */
static pd_status read_rope_of(const struct reader *r, const char *name, const struct pd_json_value *scaling,
                              struct pd_model_config *c, struct pd_error *err)
{
    float outer = 0;
    PD_TRY(read_number(r, r->root, "rope_theta", &outer, err));
    c->rope_theta = outer;
    PD_TRY(read_number(r, scaling, "rope_theta", &c->rope_theta, err));
    if (outer != 0 && outer != c->rope_theta)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: rope_theta is %g, and %g in %s; keep the one that the model was trained with",
                r->name, (double)outer, (double)c->rope_theta, name);
    if (!scaling) return PD_OK;
    const char *type = pd_json_member_text(scaling, "rope_type"), *old = pd_json_member_text(scaling, "type");
    if (type && old && strcmp(type, old) != 0)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: rope_type of %s is %s, and type %s; keep the right one", r->name, name, type, old);
    if (!type) type = old ? old : "default";
    const bool is_default = strcmp(type, "default") == 0, is_llama3 = strcmp(type, "llama3") == 0;
    if (!is_default && !is_llama3 && strcmp(type, "linear") != 0)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %s is %s; perdure supports linear and llama3", r->name, name, type);
    PD_TRY(check_rope_keys(r, name, scaling, is_llama3, err));
    PD_TRY(read_number(r, scaling, "factor", &c->rope_factor, err));
    if (is_default) {
        if (c->rope_factor != 0 && c->rope_factor != 1)
            PD_FAIL(err, PD_UNSUPPORTED,
                    "%s: %s has the factor %g without a rope_type; add rope_type linear, or remove the factor", r->name,
                    name, (double)c->rope_factor);
        c->rope_factor = 0;
        return PD_OK;
    }
    if (!member(scaling, "factor")) PD_FAIL(err, PD_CORRUPT, "%s: %s %s has no factor", r->name, name, type);
    if (is_llama3) return read_llama3(r, name, scaling, c, err);
    c->rope_scaling = PD_ROPE_SCALING_LINEAR;
    return PD_OK;
}

static bool is_same_rope(const struct pd_model_config *a, const struct pd_model_config *b)
{
    return a->rope_theta == b->rope_theta && a->rope_scaling == b->rope_scaling && a->rope_factor == b->rope_factor &&
           a->rope_low_frequency_factor == b->rope_low_frequency_factor &&
           a->rope_high_frequency_factor == b->rope_high_frequency_factor &&
           a->rope_original_context == b->rope_original_context;
}

/* Version 4 has rope_theta and rope_scaling, version 5 rope_parameters with both; a file may have all. */
static pd_status read_rope(const struct reader *r, struct pd_error *err)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const struct pd_json_value *found[] = {member(r->root, names[0]), member(r->root, names[1])};
    struct pd_model_config read[] = {*r->config, *r->config};
    if (r->family->positions != PD_POSITIONS_ROPE) return PD_OK;
    for (int i = 0; i < 2; i++) {
        if (found[i] && pd_json_type(found[i]) != PD_JSON_OBJECT)
            PD_FAIL(err, PD_CORRUPT, "%s: %s is not an object", r->name, names[i]);
        PD_TRY(read_rope_of(r, names[i], found[i], &read[i], err));
    }
    if (found[0] && found[1] && !is_same_rope(&read[0], &read[1]))
        PD_FAIL(err, PD_UNSUPPORTED,
                "%s: rope_scaling and rope_parameters do not say the same; keep the one that the model was trained with",
                r->name);
    *r->config = read[found[1] != NULL];
    return PD_OK;
}

static void read_tokens(const struct pd_json_value *root, struct pd_special_tokens *ret)
{
    const struct pd_json_value *bos = member(root, "bos_token_id"), *eos = member(root, "eos_token_id");
    const bool is_list = eos && pd_json_type(eos) == PD_JSON_ARRAY;
    const size_t count = !eos ? 0 : is_list ? pd_json_count(eos) : 1;
    uint64_t token = 0;
    *ret = (struct pd_special_tokens){.bos = bos && pd_json_is_u64(bos, &token) ? (int64_t)token : -1};
    for (size_t i = 0; i < count && ret->eos_count < PD_EOS_MAX; i++)
        if (pd_json_is_u64(is_list ? pd_json_at(eos, i) : eos, &token)) ret->eos[ret->eos_count++] = (int64_t)token;
}

static pd_status read_router(const struct reader *r, struct pd_error *err)
{
    struct pd_model_config *c = r->config;
    c->renormalise = r->class->renormalises;
    c->balance_loss = (float)r->class->balance_loss;
    PD_TRY(read_switch(r, "norm_topk_prob", &c->renormalise, err));
    PD_TRY(read_switch(r, "use_qk_norm", &c->qk_norm, err));
    PD_TRY(read_number(r, r->root, "router_aux_loss_coef", &c->balance_loss, err));
    if (r->family->router == PD_ROUTER_SIGMOID) c->balance_loss = 0; /* transformers computes none */
    return read_number(r, r->root, "routed_scaling_factor", &c->routed_scale, err);
}

/* The part of a head that RoPE rotates, here or with the other parameters of RoPE. transformers rounds the product down. */
static pd_status read_rotated(const struct reader *r, struct pd_error *err)
{
    const struct pd_json_value *places[] = {r->root, member(r->root, "rope_scaling"), member(r->root, "rope_parameters")};
    double part = r->class->rotated_part;
    for (int i = 0; i < 3; i++) {
        const struct pd_json_value *value = member(places[i], ROTATED_PART);
        if (value && !pd_json_is_number(value, &part))
            PD_FAIL(err, PD_CORRUPT, "%s: " ROTATED_PART " is not a number", r->name);
    }
    if (!(part > 0 && part <= 1))
        PD_FAIL(err, PD_UNSUPPORTED, "%s: " ROTATED_PART " is %g; it must be above 0 and at most 1", r->name, part);
    r->config->rotated = part == 1 ? 0 : (uint32_t)(part * r->config->head_size);
    return PD_OK;
}

/* The part whose product, rounded down, is `rotated`. */
static double hugging_face_part_of(uint32_t rotated, uint32_t head_size)
{
    const double part = rotated ? (double)rotated / head_size : 1;
    return rotated && (uint32_t)(part * head_size) < rotated ? nextafter(part, 1) : part;
}

static pd_status read_config(struct reader *r, struct pd_error *err)
{
    struct pd_model_config *c = r->config;
    if (pd_json_type(r->root) != PD_JSON_OBJECT) PD_FAIL(err, PD_CORRUPT, "%s: it is not a JSON object", r->name);
    PD_TRY(find_class(r, err));
    r->family = pd_families[c->family];
    *c = (struct pd_model_config){.family = c->family,
                                  .qkv_bias = r->class->qkv_bias,
                                  .tie_embeddings = r->class->is_tied,
                                  .norm_epsilon = (float)r->class->epsilon};
    PD_TRY(pd_hugging_face_check_keys(r->name, r->root, r->family, err));
    PD_TRY(read_sizes(r, err));
    PD_TRY(read_switch(r, "tie_word_embeddings", &c->tie_embeddings, err));
    PD_TRY(read_number(r, r->root, r->family->keys[PD_NUMBER_EPSILON].config, &c->norm_epsilon, err));
    PD_TRY(read_number(r, r->root, "initializer_range", &c->init_std, err));
    bool attention_bias = false;
    PD_TRY(read_switch(r, "attention_bias", &attention_bias, err));
    if (r->class->has_qkv_bias_key) c->qkv_bias = attention_bias;
    if (r->family->router) PD_TRY(read_router(r, err));
    if (attention_bias && r->class->has_attention_bias)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: attention_bias is true, and o_proj of this family has no bias here", r->name);
    PD_TRY(check_activation(r, err));
    /* A window as long as the longest sequence is no window. */
    /* null means no window; an absent key means the class's default. */
    uint32_t window = pd_json_member(r->root, "sliding_window") ? UINT32_MAX : r->class->window;
    bool is_used = false;
    PD_TRY(has_window(r, &is_used, err));
    PD_TRY(read_size(r, r->root, "sliding_window", &window, err));
    if (is_used && !window)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: layer_types has sliding_attention, and attention sees the whole sequence here",
                r->name);
    if (is_used && window < r->config->context)
        PD_FAIL(
            err, PD_UNSUPPORTED,
            "%s: sliding_window is %u%s, under max_position_embeddings %u, and attention sees the whole sequence here; with "
            "max_position_embeddings %u the two are the same",
            r->name, window, pd_json_member(r->root, "sliding_window") ? "" : " where the file does not say",
            r->config->context, window);
    PD_TRY(read_rope(r, err));
    if (c->rope_theta == 0) c->rope_theta = (float)r->class->theta;
    pd_model_config_resolve(c);
    if (r->class->rotated_part > 0) PD_TRY(read_rotated(r, err));
    const pd_status st = pd_model_config_check(c, err);
    return st ? pd_error_context(err, st, "%s", r->name) : PD_OK;
}

static pd_status read_text(struct reader r, const char *text, size_t bytes, struct pd_model_config *ret_config,
                           struct pd_special_tokens *ret_tokens, struct pd_error *err)
{
    struct pd_json_document *document = NULL;
    struct pd_model_config config;
    PD_TRY(pd_json_parse(r.name, text, bytes, &document, err));
    r.root = pd_json_root(document);
    r.config = &config;
    const pd_status st = read_config(&r, err);
    if (!st) *ret_config = config;
    if (!st && ret_tokens) read_tokens(r.root, ret_tokens);
    pd_json_document_free(document);
    return st;
}

pd_status pd_hugging_face_read(const char *name, const char *text, size_t bytes, struct pd_model_config *ret_config,
                               struct pd_special_tokens *ret_tokens, struct pd_error *err)
{
    return read_text((struct reader){.name = name}, text, bytes, ret_config, ret_tokens, err);
}

pd_status pd_hugging_face_read_gguf(const char *name, const char *text, size_t bytes, struct pd_model_config *ret_config,
                                    struct pd_error *err)
{
    return read_text((struct reader){.name = name, .is_gguf = true}, text, bytes, ret_config, NULL, err);
}

pd_status pd_hugging_face_read_tokens(const char *name, const char *text, size_t bytes, struct pd_special_tokens *ret,
                                      struct pd_error *err)
{
    struct pd_json_document *document = NULL;
    PD_TRY(pd_json_parse(name, text, bytes, &document, err));
    const struct pd_json_value *root = pd_json_root(document);
    read_tokens(pd_json_type(root) == PD_JSON_OBJECT ? root : NULL, ret);
    pd_json_document_free(document);
    return PD_OK;
}

/* ---- writing ---- */

/* The double with the shortest text that is this float. */
static double shortest(float value)
{
    char text[40];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return strtod(text, NULL);
}

static void write_token(struct pd_json_writer *w, const char *key, int64_t token)
{
    if (token < 0)
        pd_json_null(w, key);
    else
        pd_json_i64(w, key, token);
}

static void write_tokens(struct pd_json_writer *w, const struct pd_special_tokens *tokens)
{
    const uint32_t count = tokens ? tokens->eos_count : 0;
    write_token(w, "bos_token_id", tokens ? tokens->bos : -1);
    if (count < 2) {
        write_token(w, "eos_token_id", count ? tokens->eos[0] : -1);
        return;
    }
    pd_json_array_begin(w, "eos_token_id");
    for (uint32_t i = 0; i < count; i++)
        pd_json_i64(w, NULL, tokens->eos[i]);
    pd_json_array_end(w);
}

static void write_rope(struct pd_json_writer *w, const struct pd_model_config *c)
{
    pd_json_double(w, "rope_theta", shortest(c->rope_theta));
    if (c->rope_scaling == PD_ROPE_SCALING_NONE) {
        pd_json_null(w, "rope_scaling");
        return;
    }
    const struct pd_rope_factors scaling = {c->rope_scaling == PD_ROPE_SCALING_LLAMA3, shortest(c->rope_factor),
                                            shortest(c->rope_low_frequency_factor), shortest(c->rope_high_frequency_factor),
                                            c->rope_original_context};
    pd_rope_factors_write(&scaling, w);
}

static void write_router(struct pd_json_writer *w, const struct pd_model_config *c, const struct pd_model_class *class)
{
    if (class->has_renormalise_key) pd_json_bool(w, "norm_topk_prob", c->renormalise);
    if (class->rotated_part > 0) pd_json_fraction(w, ROTATED_PART, hugging_face_part_of(c->rotated, c->head_size));
    if (pd_families[c->family]->router == PD_ROUTER_SOFTMAX) {
        pd_json_fraction(w, "router_aux_loss_coef", shortest(c->balance_loss));
        return;
    }
    pd_json_fraction(w, "routed_scaling_factor", shortest(c->routed_scale));
    pd_json_bool(w, "use_qk_norm", c->qk_norm);
}

static const char *torch_name(enum pd_dtype dtype)
{
    static const char *const names[PD_DTYPE_COUNT] = {[PD_F32] = "float32", [PD_BF16] = "bfloat16", [PD_F16] = "float16"};
    return names[dtype];
}

static pd_status hugging_face_finish(struct pd_json_writer *w, char **ret_text, struct pd_error *err)
{
    const char *text;
    pd_status st = pd_json_writer_finish(w, &text, NULL, err);
    char *copy = st ? NULL : strdup(text);
    pd_json_writer_deinit(w);
    if (st) return st;
    if (!copy) PD_FAIL(err, PD_NO_MEMORY, "no memory for a config.json");
    *ret_text = copy;
    return PD_OK;
}

const struct pd_model_class *pd_model_class_of(const struct pd_model_config *config)
{
    const struct pd_model_class *c = pd_families[config->family]->classes;
    while (c->name && c->qkv_bias != config->qkv_bias && !c->has_qkv_bias_key)
        c++;
    return c->name ? c : NULL;
}

pd_status pd_hugging_face_write(const struct pd_model_config *config, enum pd_dtype dtype,
                                const struct pd_special_tokens *tokens, char **ret_config, char **ret_generation,
                                struct pd_error *err)
{
    const struct pd_model_class *class = pd_model_class_of(config);
    if (!class)
        PD_FAIL(err, PD_UNSUPPORTED, "no architecture of transformers is a %s with model.qkv_bias=%s",
                pd_family_names[config->family], config->qkv_bias ? "true" : "false");
    struct pd_json_writer w;
    char *text = NULL;
    pd_json_writer_init(&w, 2);
    struct pd_model_config c = *config;
    const struct pd_family *f = pd_families[c.family];
    pd_json_object_begin(&w, NULL);
    pd_model_class_write(class, &w);
    for (int i = 0; i < PD_NUMBER_EPSILON; i++)
        if (f->keys[i].config) pd_json_u64(&w, f->keys[i].config, *size_at(&c, i));
    pd_json_string(&w, f->activation_key, activations[f->activation][0]);
    pd_json_double(&w, f->keys[PD_NUMBER_EPSILON].config, shortest(c.norm_epsilon));
    if (f->positions == PD_POSITIONS_ROPE) write_rope(&w, &c);
    if (class->has_attention_bias || class->has_qkv_bias_key)
        pd_json_bool(&w, "attention_bias", class->has_qkv_bias_key && c.qkv_bias);
    if (f->router) write_router(&w, &c, class);
    if (class->window_layers) pd_json_bool(&w, "use_sliding_window", false);
    for (const char *const *key = f->zero_keys; *key; key++)
        pd_json_double(&w, *key, 0.0);
    pd_json_bool(&w, "tie_word_embeddings", c.tie_embeddings);
    pd_json_double(&w, "initializer_range", shortest(c.init_std));
    pd_json_string(&w, "torch_dtype", torch_name(dtype));
    write_tokens(&w, tokens);
    pd_json_object_end(&w);
    PD_TRY(hugging_face_finish(&w, &text, err));
    pd_json_writer_init_object(&w, 2);
    write_tokens(&w, tokens);
    pd_json_object_end(&w);
    const pd_status st = hugging_face_finish(&w, ret_generation, err);
    if (st)
        free(text);
    else
        *ret_config = text;
    return st;
}
