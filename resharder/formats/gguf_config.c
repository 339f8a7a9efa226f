/* GGUF's metadata as a config.json, with the keys of transformers. What has no key there is passed on under its own name, and
 * code that reads a model from it rejects it. */
#include "resharder/formats/gguf_file.h"

#include "resharder/catalog/family.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const struct pair *gguf_find_whole(const struct gguf *g, const char *key)
{
    for (uint32_t i = 0; i < g->pair_count; i++)
        if (strcmp(g->pairs[i].key, key) == 0) return &g->pairs[i];
    return NULL;
}

static const char *architecture_of(const struct gguf *g)
{
    const struct pair *architecture = gguf_find_whole(g, "general.architecture");
    return architecture ? architecture->text : "";
}

/* Returns what follows the architecture and a dot: "block_count" for "llama.block_count"; NULL for other keys. */
static const char *inner_key(const struct gguf *g, const char *key)
{
    const char *architecture = architecture_of(g);
    const size_t bytes = strlen(architecture);
    return bytes && strncmp(key, architecture, bytes) == 0 && key[bytes] == '.' ? key + bytes + 1 : NULL;
}

/* Finds a key of the architecture. */
static const struct pair *gguf_find(const struct gguf *g, const char *key)
{
    for (uint32_t i = 0; i < g->pair_count; i++) {
        const char *inner = inner_key(g, g->pairs[i].key);
        if (inner && strcmp(inner, key) == 0) return &g->pairs[i];
    }
    return NULL;
}

static void put_key(struct gguf *g, struct pd_json_writer *w, const char *ours, const char *theirs)
{
    const struct pair *p = gguf_find(g, theirs);
    if (!p || p->type == PD_GGUF_TEXT || p->type == PD_GGUF_ARRAY) return;
    if (p->number == floor(p->number) && fabs(p->number) < 9e15)
        pd_json_i64(w, ours, (int64_t)p->number);
    else
        pd_json_double(w, ours, p->number);
}

double gguf_number_of(const struct pair *p, double absent)
{
    return p && p->type != PD_GGUF_TEXT && p->type != PD_GGUF_ARRAY ? p->number : absent;
}

static double number_or(const struct gguf *g, const char *key, double absent)
{
    return gguf_number_of(gguf_find(g, key), absent);
}

static double ours_or(const struct gguf *g, const char *key, double absent)
{
    return gguf_number_of(gguf_find_whole(g, key), absent);
}

/* Writes the parameters that we stored, or the largest factor and published values; the factors must follow from them. */
static pd_status put_llama3_scaling(struct gguf *g, struct pd_json_writer *w, struct pd_error *err)
{
    const float *factors = g->rope_factors;
    double most = 1;
    for (uint64_t i = 0; i < g->rope_count; i++)
        if ((double)factors[i] > most) most = (double)factors[i];
    const struct pd_gguf_rope rope = {.theta = number_or(g, "rope.freq_base", 10000),
                                      .factor = ours_or(g, "perdure.rope_scaling.factor", most),
                                      .low = ours_or(g, "perdure.rope_scaling.low_freq_factor", 1),
                                      .high = ours_or(g, "perdure.rope_scaling.high_freq_factor", 4),
                                      .original = ours_or(g, "perdure.rope_scaling.original_context_length", 8192)};
    if (!(rope.original >= 1 && rope.original <= UINT32_MAX))
        PD_FAIL(err, PD_CORRUPT, "%s: perdure.rope_scaling.original_context_length is %g", g->path, rope.original);
    for (uint64_t i = 0; i < g->rope_count; i++) {
        const double expected = pd_gguf_rope_factor(&rope, i, g->rope_count);
        if (!(fabs((double)factors[i] - expected) <= 1e-3 * expected))
            PD_FAIL(err, PD_UNSUPPORTED,
                    "%s: " PD_GGUF_ROPE_FACTORS " is not a scaling of Llama 3: factor %" PRIu64 " is %g, not %g", g->path, i,
                    (double)factors[i], expected);
    }
    const struct pd_rope_factors scaling = {true, rope.factor, rope.low, rope.high, (uint64_t)rope.original};
    return pd_rope_factors_write(&scaling, w), PD_OK;
}

/* As in llama.cpp: a factor without a type is linear, `scale_linear` is the factor's old name, and 0 means 1. */
static pd_status put_scaling(struct gguf *g, struct pd_json_writer *w, struct pd_error *err)
{
    const struct pair *named = gguf_find(g, "rope.scaling.type");
    const char *type = named && named->type == PD_GGUF_TEXT ? named->text : "linear";
    const double factor = number_or(g, "rope.scaling.factor", number_or(g, "rope.scale_linear", 0));
    const bool is_linear = strcmp(type, "linear") == 0, is_none = strcmp(type, "none") == 0;
    if (is_none || (is_linear && (factor == 0 || factor == 1))) return g->rope_count ? put_llama3_scaling(g, w, err) : PD_OK;
    if (!is_linear) {
        char key[300];
        snprintf(key, sizeof key, "gguf.%s.rope.scaling.type", architecture_of(g));
        return pd_json_string(w, key, type), PD_OK;
    }
    if (g->rope_count)
        PD_FAIL(err, PD_UNSUPPORTED,
                "%s: it has " PD_GGUF_ROPE_FACTORS " and rope.scaling.factor %g; only one is computed here", g->path,
                factor);
    return pd_rope_factors_write(&(struct pd_rope_factors){.factor = factor}, w), PD_OK;
}

static bool has_tensor(const struct gguf *g, const char *name)
{
    for (uint32_t t = 0; t < g->catalog->tensor_count; t++)
        if (strcmp(g->catalog->tensors[t].name, name) == 0) return true;
    return false;
}

static uint64_t rows_of(const struct gguf *g, const char *name)
{
    for (uint32_t t = 0; t < g->catalog->tensor_count; t++)
        if (strcmp(g->catalog->tensors[t].name, name) == 0) return g->catalog->tensors[t].shape[0];
    return 0;
}

/* Keys that have no effect here at this value (NAN: at any). A key that is neither listed nor used goes into the
 * configuration, under its own name after "gguf.", and code that reads a model from it rejects it by name. */
static const struct neutral {
    const char *key;
    double value;
} neutral[] = {
    {"vocab_size", NAN}, /* compared with the embedding's rows */
    {"tensor_data_layout", NAN},
    {"rope.scaling.type", NAN}, /* used, like the next four */
    {"rope.scaling.factor", NAN},
    {"rope.scale_linear", NAN},
    {"rope.dimension_count", NAN},
    {"attention.value_length", NAN},
    {"rope.scaling.original_context_length", NAN}, /* for yarn and longrope, which are refused */
    {"rope.scaling.finetuned", NAN},
    {"rope.scaling.attn_factor", 1},
    {"attention.causal", 1},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.scale", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 0},
    {"embedding_scale", 0},
    {"residual_scale", 0},
    {"pooling_type", 0},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"leading_dense_block_count", 0},
    {"nextn_predict_layers", 0},
    {"use_parallel_residual", 0},
    {"attention.sliding_window", 0},
};

/* Used in families with experts. */
static const char *const of_router[] = {"expert_gating_func", "expert_weights_norm", "expert_weights_scale",
                                        "nextn_predict_layers"};

/* `family` NULL: unknown. */
static bool is_number_key(const struct pd_family *family, const char *inner)
{
    for (int i = 0; family && inner && i < PD_NUMBER_COUNT; i++)
        if (family->keys[i].gguf && strcmp(family->keys[i].gguf, inner) == 0) return true;
    return false;
}

/* As in llama.cpp, a number of the model may be a list with an entry per layer: if all are equal it is one number. */
static void settle_lists(struct gguf *g, const struct pd_family *family)
{
    const double layers = number_or(g, "block_count", 0);
    for (uint32_t i = 0; i < g->pair_count; i++) {
        struct pair *p = &g->pairs[i];
        if (p->type != PD_GGUF_ARRAY || p->text[0] || !is_number_key(family, inner_key(g, p->key))) continue;
        if (p->number == layers)
            p->type = PD_GGUF_F64, p->number = p->first;
        else
            snprintf(p->text, sizeof p->text, "has %.9g entries, and block_count is %.9g", p->number, layers);
    }
}

static bool is_taken(const struct gguf *g, const struct pd_family *family, const struct pair *p)
{
    const char *inner = inner_key(g, p->key);
    const bool is_number = p->type != PD_GGUF_TEXT && p->type != PD_GGUF_ARRAY;
    if (strcmp(p->key, "general.type") == 0) return strcmp(p->text, "model") == 0;
    if (inner && strcmp(inner, "attention.sliding_window") == 0 && is_number &&
        p->number >= number_or(g, "context_length", NAN))
        return true;
    if (!inner)
        return strncmp(p->key, "general.", 8) == 0 || strncmp(p->key, "perdure.rope_scaling.", 21) == 0 ||
               strncmp(p->key, "split.", 6) == 0;
    if (is_number_key(family, inner)) return is_number;
    for (size_t i = 0; family && family->router && i < sizeof of_router / sizeof *of_router; i++)
        if (strcmp(of_router[i], inner) == 0) return is_number;
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++)
        if (strcmp(neutral[i].key, inner) == 0)
            return isnan(neutral[i].value) ? p->type != PD_GGUF_ARRAY : is_number && p->number == neutral[i].value;
    return false;
}

/* For a number of the model that is a text or a list, writes what is wrong with it as the value. */
static void put_refused(struct pd_json_writer *w, const struct pair *p, bool is_number)
{
    char key[300];
    snprintf(key, sizeof key, "gguf.%s", p->key);
    if (is_number)
        pd_json_string(w, key, p->type == PD_GGUF_TEXT ? "is a text, not a number" : p->text);
    else if (p->type == PD_GGUF_TEXT)
        pd_json_string(w, key, p->text);
    else if (p->type == PD_GGUF_ARRAY)
        pd_json_string(w, key, "a list");
    else if (p->type == PD_GGUF_BOOL)
        pd_json_bool(w, key, p->number != 0);
    else
        pd_json_double(w, key, p->number);
}

/* Writes a number that contradicts the rest of the file. */
static void put_other(const struct gguf *g, struct pd_json_writer *w, const char *inner, double number)
{
    char key[300];
    snprintf(key, sizeof key, "gguf.%s.%s", architecture_of(g), inner);
    pd_json_double(w, key, number);
}

/* Values are as long as keys, and heads are rotated whole but in some classes: anything else is passed on, and refused later. */
static void put_head(struct gguf *g, const struct pd_model_class *class, struct pd_json_writer *w)
{
    const double heads = number_or(g, "attention.head_count", 0), hidden = number_or(g, "embedding_length", 0);
    const double head = number_or(g, "attention.key_length", heads > 0 ? hidden / heads : 0);
    if (!(head > 0)) return; /* a missing key gets its own error */
    const double rotated = number_or(g, "rope.dimension_count", head), value = number_or(g, "attention.value_length", head);
    if (class->rotated_part > 0)
        pd_json_double(w, "partial_rotary_factor", rotated / head);
    else if (rotated != head)
        put_other(g, w, "rope.dimension_count", rotated);
    if (value != head) put_other(g, w, "attention.value_length", value);
}

/* What a router computes beyond its sizes: the architecture decides it, or keys that config.json has under other names. What
 * contradicts the architecture is passed on. */
static void put_router(struct gguf *g, const struct pd_family *family, const struct pd_model_class *class,
                       struct pd_json_writer *w)
{
    const bool is_sigmoid = family->router == PD_ROUTER_SIGMOID;
    const double function = number_or(g, "expert_gating_func", is_sigmoid ? 2 : 1);
    const double normed = number_or(g, "expert_weights_norm", class->gguf_renormalises > 0 || class->renormalises);
    const double scale = number_or(g, "expert_weights_scale", 1);
    if (function != (is_sigmoid ? 2 : 1)) put_other(g, w, "expert_gating_func", function);
    if (class->has_renormalise_key)
        pd_json_bool(w, "norm_topk_prob", normed != 0);
    else if (!normed)
        put_other(g, w, "expert_weights_norm", normed);
    if (is_sigmoid) {
        pd_json_double(w, "routed_scaling_factor", scale == 0 ? 1 : scale);
        pd_json_bool(w, "use_qk_norm", has_tensor(g, "blk.0.attn_q_norm.weight"));
        pd_json_bool(w, "attention_bias", has_tensor(g, "blk.0.attn_q.bias"));
    } else if (scale != 0 && scale != 1) {
        put_other(g, w, "expert_weights_scale", scale);
    }
}

/* The blocks that predict further tokens come last, and are counted with the others. */
static void put_layers(struct gguf *g, const char *ours, const char *theirs, struct pd_json_writer *w)
{
    const double layers = number_or(g, theirs, -1), further = number_or(g, "nextn_predict_layers", 0);
    if (further > 0 && further < layers && layers < 1e9)
        pd_json_u64(w, ours, (uint64_t)(layers - further));
    else
        put_key(g, w, ours, theirs);
}

pd_status gguf_put_config(struct gguf *g, struct pd_json_writer *w, struct pd_error *err)
{
    uint32_t row = 0;
    const struct pd_model_class *class = pd_model_class_of_gguf(
        architecture_of(g), number_or(g, "expert_count", 0) > 0 && number_or(g, "expert_used_count", 0) > 0, &row);
    const struct pd_family *family = class ? pd_families[row] : NULL;
    settle_lists(g, family);
    pd_json_object_begin(w, NULL);
    if (class)
        pd_model_class_write(class, w);
    else
        pd_json_string(w, "model_type", architecture_of(g));
    for (int i = 0; family && i < PD_NUMBER_COUNT; i++)
        if (family->keys[i].gguf && i == PD_NUMBER_LAYERS && family->router)
            put_layers(g, family->keys[i].config, family->keys[i].gguf, w);
        else if (family->keys[i].gguf)
            put_key(g, w, family->keys[i].config, family->keys[i].gguf);
    pd_json_u64(w, family ? family->keys[PD_NUMBER_VOCAB].config : "vocab_size", rows_of(g, "token_embd.weight"));
    const double words = number_or(g, "vocab_size", -1);
    if (words >= 0 && words != (double)rows_of(g, "token_embd.weight")) put_other(g, w, "vocab_size", words);
    pd_json_bool(w, "tie_word_embeddings", !has_tensor(g, "output.weight"));
    if (g->bos >= 0 && g->bos <= INT32_MAX) pd_json_u64(w, "bos_token_id", (uint64_t)g->bos);
    if (g->eos >= 0 && g->eos <= INT32_MAX) pd_json_u64(w, "eos_token_id", (uint64_t)g->eos);
    for (uint32_t i = 0; i < g->pair_count; i++)
        if (!is_taken(g, family, &g->pairs[i]))
            put_refused(w, &g->pairs[i], is_number_key(family, inner_key(g, g->pairs[i].key)));
    const bool rotates = family && family->positions == PD_POSITIONS_ROPE;
    if (rotates) put_head(g, class, w);
    if (family && family->router) put_router(g, family, class, w);
    if (rotates) PD_TRY(put_scaling(g, w, err));
    pd_json_object_end(w);
    return PD_OK;
}
