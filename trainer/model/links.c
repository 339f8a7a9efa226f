/* A dialect is a table of sources, one for each role that a tensor has in its model: a name, and how the tensor lies in what
 * has it. An import looks the names up in a catalog, an export makes a catalog of them. */
#include "trainer/model/links.h"

#include "trainer/model/family.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum role {
    TOKENS,
    POSITIONS,
    NORM1,
    NORM1_BIAS,
    Q,
    K,
    V,
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    Q_NORM,
    K_NORM,
    OUT,
    OUT_BIAS,
    NORM2,
    NORM2_BIAS,
    GATE,
    UP,
    GATE_BIAS,
    UP_BIAS,
    DOWN,
    DOWN_BIAS,
    FINAL,
    FINAL_BIAS,
    HEAD,
    ROLE_COUNT
};

/* How a tensor of the model lies in the foreign one; some go together. */
enum {
    ACROSS = 1,      /* the foreign matrix is [in, out] */
    THIRDS = 2,      /* rows of q, then of k, then of v */
    BY_KV_HEAD = 4,  /* for each key-value head the rows of its q heads, its k, its v */
    HALVES = 8,      /* rows of gate, where there is one, then of up */
    NEIGHBOURS = 16, /* Meta's order of the rows of a head, where the model has it */
    LONGER = 32,     /* the foreign one may have more rows: a vocabulary that its system pads */
    OUTSIDE = 64,    /* stands beside the base model: lm_head */
};

struct source {
    const char *name; /* %u: the layer; NULL: ours in a dialect of own names, or else there is none */
    unsigned how;
    const char *other; /* of another version, or NULL */
    const char *fused; /* a third, and how it lies there; only read */
    unsigned fused_how;
};

struct dialect {
    const char *name;
    unsigned families; /* bits */
    const char *base;  /* what is written before names of the base model */
    bool has_own_names;
    bool is_stacked; /* layers on a leading axis and names without number, or numbered; we write the first */
    struct source sources[ROLE_COUNT];
};

#define LLAMA (1u << PD_FAMILY_LLAMA)
#define QWEN3 (1u << PD_FAMILY_QWEN3)
#define GPT2 (1u << PD_FAMILY_GPT2)
/* torchtitan saves parameters apart and their moments as they are: one matrix where the model has one. */
#define FUSED "layers.%u.attention.qkv_linear.wqkv.weight"
#define FUSED_BIAS "layers.%u.attention.qkv_linear.wqkv.bias"
#define ATTENTION "decoder.layers.%u.self_attention."
#define MLP "decoder.layers.%u.mlp."
#define LAYER "decoder.layers.%u."

static const struct dialect dialects[] = {
    {.name = "hugging_face",
     .families = LLAMA | QWEN3,
     .base = "model.",
     .has_own_names = true,
     .sources = {[HEAD] = {NULL, OUTSIDE}}},
    {.name = "hugging_face",
     .families = GPT2,
     .base = "transformer.",
     .has_own_names = true,
     .sources = {[Q] = {"h.%u.attn.c_attn.weight", ACROSS | THIRDS},
                 [K] = {"h.%u.attn.c_attn.weight", ACROSS | THIRDS},
                 [V] = {"h.%u.attn.c_attn.weight", ACROSS | THIRDS},
                 [Q_BIAS] = {"h.%u.attn.c_attn.bias", THIRDS},
                 [K_BIAS] = {"h.%u.attn.c_attn.bias", THIRDS},
                 [V_BIAS] = {"h.%u.attn.c_attn.bias", THIRDS},
                 [OUT] = {NULL, ACROSS},
                 [UP] = {NULL, ACROSS},
                 [DOWN] = {NULL, ACROSS},
                 [HEAD] = {NULL, OUTSIDE}}},
    {.name = "torchtitan",
     .families = LLAMA | QWEN3,
     .base = "",
     .sources = {[TOKENS] = {"tok_embeddings.weight"},
                 [NORM1] = {"layers.%u.attention_norm.weight"},
                 [Q] = {"layers.%u.attention.wq.weight", NEIGHBOURS, "layers.%u.attention.qkv_linear.wq.weight", FUSED,
                        BY_KV_HEAD | NEIGHBOURS},
                 [K] = {"layers.%u.attention.wk.weight", NEIGHBOURS, "layers.%u.attention.qkv_linear.wk.weight", FUSED,
                        BY_KV_HEAD | NEIGHBOURS},
                 [V] = {"layers.%u.attention.wv.weight", 0, "layers.%u.attention.qkv_linear.wv.weight", FUSED, BY_KV_HEAD},
                 [Q_BIAS] = {"layers.%u.attention.wq.bias", NEIGHBOURS, "layers.%u.attention.qkv_linear.wq.bias", FUSED_BIAS,
                             BY_KV_HEAD | NEIGHBOURS},
                 [K_BIAS] = {"layers.%u.attention.wk.bias", NEIGHBOURS, "layers.%u.attention.qkv_linear.wk.bias", FUSED_BIAS,
                             BY_KV_HEAD | NEIGHBOURS},
                 [V_BIAS] = {"layers.%u.attention.wv.bias", 0, "layers.%u.attention.qkv_linear.wv.bias", FUSED_BIAS,
                             BY_KV_HEAD},
                 [Q_NORM] = {"layers.%u.attention.q_norm.weight"},
                 [K_NORM] = {"layers.%u.attention.k_norm.weight"},
                 [OUT] = {"layers.%u.attention.wo.weight"},
                 [NORM2] = {"layers.%u.ffn_norm.weight"},
                 [GATE] = {"layers.%u.feed_forward.w1.weight"},
                 [UP] = {"layers.%u.feed_forward.w3.weight"},
                 [DOWN] = {"layers.%u.feed_forward.w2.weight"},
                 [FINAL] = {"norm.weight"},
                 [HEAD] = {"output.weight", 0, "lm_head.weight"}}},
    {.name = "megatron",
     .families = LLAMA | QWEN3 | GPT2,
     .base = "",
     .is_stacked = true,
     .sources = {[TOKENS] = {"embedding.word_embeddings.weight", LONGER},
                 [POSITIONS] = {"embedding.position_embeddings.weight"},
                 [NORM1] = {ATTENTION "linear_qkv.layer_norm_weight", 0, LAYER "input_layernorm.weight"},
                 [NORM1_BIAS] = {ATTENTION "linear_qkv.layer_norm_bias", 0, LAYER "input_layernorm.bias"},
                 [Q] = {ATTENTION "linear_qkv.weight", BY_KV_HEAD},
                 [K] = {ATTENTION "linear_qkv.weight", BY_KV_HEAD},
                 [V] = {ATTENTION "linear_qkv.weight", BY_KV_HEAD},
                 [Q_BIAS] = {ATTENTION "linear_qkv.bias", BY_KV_HEAD},
                 [K_BIAS] = {ATTENTION "linear_qkv.bias", BY_KV_HEAD},
                 [V_BIAS] = {ATTENTION "linear_qkv.bias", BY_KV_HEAD},
                 [Q_NORM] = {ATTENTION "q_layernorm.weight"},
                 [K_NORM] = {ATTENTION "k_layernorm.weight"},
                 [OUT] = {ATTENTION "linear_proj.weight"},
                 [OUT_BIAS] = {ATTENTION "linear_proj.bias"},
                 [NORM2] = {MLP "linear_fc1.layer_norm_weight", 0, LAYER "pre_mlp_layernorm.weight"},
                 [NORM2_BIAS] = {MLP "linear_fc1.layer_norm_bias", 0, LAYER "pre_mlp_layernorm.bias"},
                 [GATE] = {MLP "linear_fc1.weight", HALVES},
                 [UP] = {MLP "linear_fc1.weight", HALVES},
                 [UP_BIAS] = {MLP "linear_fc1.bias", HALVES},
                 [DOWN] = {MLP "linear_fc2.weight"},
                 [DOWN_BIAS] = {MLP "linear_fc2.bias"},
                 [FINAL] = {"decoder.final_layernorm.weight"},
                 [FINAL_BIAS] = {"decoder.final_layernorm.bias"},
                 [HEAD] = {"output_layer.weight", LONGER}}},
    {.name = "gguf",
     .families = LLAMA | QWEN3,
     .base = "",
     .sources = {[TOKENS] = {"token_embd.weight"},
                 [NORM1] = {"blk.%u.attn_norm.weight"},
                 [Q] = {"blk.%u.attn_q.weight", NEIGHBOURS},
                 [K] = {"blk.%u.attn_k.weight", NEIGHBOURS},
                 [V] = {"blk.%u.attn_v.weight"},
                 [Q_BIAS] = {"blk.%u.attn_q.bias", NEIGHBOURS},
                 [K_BIAS] = {"blk.%u.attn_k.bias", NEIGHBOURS},
                 [V_BIAS] = {"blk.%u.attn_v.bias"},
                 [Q_NORM] = {"blk.%u.attn_q_norm.weight"},
                 [K_NORM] = {"blk.%u.attn_k_norm.weight"},
                 [OUT] = {"blk.%u.attn_output.weight"},
                 [NORM2] = {"blk.%u.ffn_norm.weight"},
                 [GATE] = {"blk.%u.ffn_gate.weight"},
                 [UP] = {"blk.%u.ffn_up.weight"},
                 [DOWN] = {"blk.%u.ffn_down.weight"},
                 [FINAL] = {"output_norm.weight"},
                 [HEAD] = {"output.weight"}}},
    {.name = "gguf",
     .families = GPT2,
     .base = "",
     .sources = {[TOKENS] = {"token_embd.weight"},
                 [POSITIONS] = {"position_embd.weight"},
                 [NORM1] = {"blk.%u.attn_norm.weight"},
                 [NORM1_BIAS] = {"blk.%u.attn_norm.bias"},
                 [Q] = {"blk.%u.attn_qkv.weight", THIRDS},
                 [K] = {"blk.%u.attn_qkv.weight", THIRDS},
                 [V] = {"blk.%u.attn_qkv.weight", THIRDS},
                 [Q_BIAS] = {"blk.%u.attn_qkv.bias", THIRDS},
                 [K_BIAS] = {"blk.%u.attn_qkv.bias", THIRDS},
                 [V_BIAS] = {"blk.%u.attn_qkv.bias", THIRDS},
                 [OUT] = {"blk.%u.attn_output.weight"},
                 [OUT_BIAS] = {"blk.%u.attn_output.bias"},
                 [NORM2] = {"blk.%u.ffn_norm.weight"},
                 [NORM2_BIAS] = {"blk.%u.ffn_norm.bias"},
                 [UP] = {"blk.%u.ffn_up.weight"},
                 [UP_BIAS] = {"blk.%u.ffn_up.bias"},
                 [DOWN] = {"blk.%u.ffn_down.weight"},
                 [DOWN_BIAS] = {"blk.%u.ffn_down.bias"},
                 [FINAL] = {"output_norm.weight"},
                 [FINAL_BIAS] = {"output_norm.bias"},
                 [HEAD] = {"output.weight"}}},
    {.name = "llmc", .families = GPT2, .base = "", .is_stacked = true, .sources = {[TOKENS] = {"wte", LONGER},
                                                                                   [POSITIONS] = {"wpe"},
                                                                                   [NORM1] = {"%u.ln1w"},
                                                                                   [NORM1_BIAS] = {"%u.ln1b"},
                                                                                   [Q] = {"%u.qkvw", THIRDS},
                                                                                   [K] = {"%u.qkvw", THIRDS},
                                                                                   [V] = {"%u.qkvw", THIRDS},
                                                                                   [Q_BIAS] = {"%u.qkvb", THIRDS},
                                                                                   [K_BIAS] = {"%u.qkvb", THIRDS},
                                                                                   [V_BIAS] = {"%u.qkvb", THIRDS},
                                                                                   [OUT] = {"%u.attprojw"},
                                                                                   [OUT_BIAS] = {"%u.attprojb"},
                                                                                   [NORM2] = {"%u.ln2w"},
                                                                                   [NORM2_BIAS] = {"%u.ln2b"},
                                                                                   [UP] = {"%u.fcw"},
                                                                                   [UP_BIAS] = {"%u.fcb"},
                                                                                   [DOWN] = {"%u.fcprojw"},
                                                                                   [DOWN_BIAS] = {"%u.fcprojb"},
                                                                                   [FINAL] = {"lnfw"},
                                                                                   [FINAL_BIAS] = {"lnfb"}}},
};
#define DIALECT_COUNT (sizeof dialects / sizeof dialects[0])

const char *const pd_model_dialects[] = {"hugging_face", "torchtitan", "megatron", "gguf", "llmc", NULL};

/* ---- the role of a tensor ---- */

static enum role role_in_block(const struct pd_model *model, int at)
{
    const struct pd_block_roles r = pd_block_roles_of(&model->config);
    const bool has_gate = pd_family_properties(model->config.family)->up_matrices == 2;
    const struct {
        int first, count;
        enum role role;
    } places[] = {
        {r.norm1, 1, NORM1},
        {r.norm1_bias, 1, NORM1_BIAS},
        {r.qkv, 3, Q},
        {r.qkv_bias, 3, Q_BIAS},
        {r.head_norms, 2, Q_NORM},
        {r.out, 1, OUT},
        {r.out_bias, 1, OUT_BIAS},
        {r.norm2, 1, NORM2},
        {r.norm2_bias, 1, NORM2_BIAS},
        {r.up, 1 + has_gate, has_gate ? GATE : UP},
        {r.up_bias, 1 + has_gate, has_gate ? GATE_BIAS : UP_BIAS},
        {r.down, 1, DOWN},
        {r.down_bias, 1, DOWN_BIAS},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (places[i].first >= 0 && at >= places[i].first && at < places[i].first + places[i].count)
            return places[i].role + (enum role)(at - places[i].first);
    return ROLE_COUNT;
}

static enum role role_of(const struct pd_model *model, uint32_t tensor)
{
    const struct pd_tensor *t = &model->tensors.tensors[tensor];
    const uint32_t at = tensor - model->unit_first[t->unit];
    enum role role;
    if (t->unit == 0)
        role = at ? POSITIONS : TOKENS;
    else if (t->unit + 1 == model->unit_count)
        role = t->ndim == 2 ? HEAD : at ? FINAL_BIAS : FINAL;
    else
        role = role_in_block(model, (int)at);
    PD_CHECK(role < ROLE_COUNT);
    return role;
}

/* ---- where a tensor lies ---- */

/* A tensor of the model in a foreign one. */
struct place {
    char name[PD_FOREIGN_NAME_MAX];
    uint32_t ndim;
    uint64_t shape[PD_FOREIGN_DIMS_MAX];
    bool may_be_longer;
    struct pd_view view;
};

/* One tensor in one dialect. */
struct search {
    const struct pd_model *model;
    const struct dialect *dialect;
    const struct pd_tensor *tensor;
    enum role role;
    const char *prefix; /* before names of the base model */
};

/* Rows of the foreign matrix, and the first of the tensor's. */
static uint64_t foreign_rows(const struct search *s, unsigned how, uint64_t *ret_first)
{
    const struct pd_model_config *c = &s->model->config;
    const uint64_t head = c->head_size, rows = s->tensor->shape[0], group = c->heads / c->kv_heads;
    const bool is_q = s->role == Q || s->role == Q_BIAS, is_k = s->role == K || s->role == K_BIAS;
    *ret_first = 0;
    if (how & THIRDS) *ret_first = is_q ? 0 : (c->heads + (is_k ? 0 : c->kv_heads)) * head;
    if (how & BY_KV_HEAD) *ret_first = is_q ? 0 : (group + (is_k ? 0 : 1)) * head;
    if (how & (THIRDS | BY_KV_HEAD)) return (c->heads + 2ull * c->kv_heads) * head;
    const uint32_t matrices = pd_family_properties(c->family)->up_matrices;
    if (how & HALVES) *ret_first = matrices == 2 && (s->role == UP || s->role == UP_BIAS) ? rows : 0;
    return how & HALVES ? matrices * rows : rows;
}

static void add_dimension(struct pd_view *view, uint64_t count, uint64_t stride)
{
    view->count[view->ndim] = count;
    view->stride[view->ndim++] = stride;
}

/* Rows [first, first + rows) of a matrix of `foreign` rows: strides of a row and of a column. */
static struct pd_view view_of(const struct search *s, unsigned how, uint64_t foreign, uint64_t first)
{
    const struct pd_model_config *c = &s->model->config;
    const uint64_t rows = s->tensor->shape[0], columns = s->tensor->shape[1], head = c->head_size;
    const uint64_t row = how & ACROSS ? 1 : columns, column = how & ACROSS ? foreign : 1;
    struct pd_view view = {.offset = first * row};
    const uint64_t groups = how & BY_KV_HEAD ? c->kv_heads : 1;
    if (how & BY_KV_HEAD) add_dimension(&view, groups, foreign / groups * row);
    /* Meta's models; Qwen is the same everywhere. */
    if (how & NEIGHBOURS && c->family == PD_FAMILY_LLAMA && !c->qkv_bias) {
        add_dimension(&view, rows / groups / head, head * row);
        add_dimension(&view, 2, row);
        add_dimension(&view, head / 2, 2 * row);
    } else {
        add_dimension(&view, rows / groups, row);
    }
    if (s->tensor->ndim == 2) add_dimension(&view, columns, column);
    return view;
}

/* The pattern with or without its number. */
static void name_of(const struct search *s, const struct source *source, const char *pattern, bool is_stacked, char *ret)
{
    const char *prefix = s->prefix, *base = s->dialect->base;
    size_t length = strlen(prefix);
    const size_t known = strlen(base);
    if (source->how & OUTSIDE && length >= known && strcmp(prefix + length - known, base) == 0) length -= known;
    if (!pattern) pattern = s->tensor->name + (source->how & OUTSIDE ? 0 : known);
    const char *number = strstr(pattern, "%u");
    if (!number)
        snprintf(ret, PD_FOREIGN_NAME_MAX, "%.*s%s", (int)length, prefix, pattern);
    else if (is_stacked)
        snprintf(ret, PD_FOREIGN_NAME_MAX, "%.*s%.*s%s", (int)length, prefix, (int)(number - pattern), pattern, number + 3);
    else
        snprintf(ret, PD_FOREIGN_NAME_MAX, "%.*s%.*s%u%s", (int)length, prefix, (int)(number - pattern), pattern,
                 s->tensor->unit - 1, number + 2);
}

enum variant { FIRST, OTHER, AS_FUSED, VARIANTS };

/* False: the dialect has no such name. */
static bool place_of(const struct search *s, bool is_stacked, enum variant variant, struct place *ret)
{
    const struct source *source = &s->dialect->sources[s->role];
    const char *const patterns[VARIANTS] = {source->name, source->other, source->fused};
    const char *pattern = patterns[variant];
    const unsigned how = variant == AS_FUSED ? source->fused_how : source->how;
    const bool in_block = s->tensor->unit > 0 && s->tensor->unit + 1 < s->model->unit_count;
    if (!pattern && (variant != FIRST || !s->dialect->has_own_names)) return false;
    *ret = (struct place){.may_be_longer = (how & LONGER) != 0};
    name_of(s, source, pattern, is_stacked, ret->name);
    uint64_t first;
    const uint64_t columns = s->tensor->shape[1], rows = foreign_rows(s, how, &first);
    ret->view = view_of(s, how, rows, first);
    if (is_stacked && in_block) {
        ret->shape[ret->ndim++] = s->model->config.layers;
        ret->view.offset += (s->tensor->unit - 1) * rows * columns;
    }
    ret->shape[ret->ndim++] = how & ACROSS ? columns : rows;
    if (s->tensor->ndim == 2) ret->shape[ret->ndim++] = how & ACROSS ? rows : columns;
    return true;
}

/* ---- the dialect of a catalog ---- */

static bool fits(const struct dialect *d, const struct pd_model *model, const char *name)
{
    return (!name || strcmp(d->name, name) == 0) && (d->families & (1u << model->config.family));
}

static struct search search_of(const struct pd_model *model, const struct dialect *d, uint32_t tensor, const char *prefix)
{
    return (struct search){model, d, &model->tensors.tensors[tensor], role_of(model, tensor), prefix};
}

/* What stands before the token embedding. Two of them are two models, of which the catalog's prefix names one: with or without
 * what the dialect itself puts before names.
 *   *ret_is_there  whether there is any
 *   errors  PD_INVALID: several */
static pd_status find_prefix(const struct pd_model *model, const struct dialect *d, const struct pd_catalog *catalog,
                             char *ret_prefix, bool *ret_is_there, struct pd_error *err)
{
    const struct search s = search_of(model, d, 0, "");
    struct place place;
    *ret_is_there = false;
    if (!place_of(&s, false, FIRST, &place)) return PD_OK;
    const size_t length = strlen(place.name), of_base = strlen(d->base);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const char *name = catalog->tensors[i].name, *wanted = catalog->prefix;
        const size_t before = strlen(name) - length;
        if (strlen(name) < length || strcmp(name + before, place.name) != 0 || catalog->tensors[i].kind != PD_PARAM)
            continue;
        if (before && name[before - 1] != '.') continue;
        const bool is_based = before >= of_base && strncmp(name + before - of_base, d->base, of_base) == 0;
        const size_t outside = is_based ? before - of_base : before;
        if (wanted && (strlen(wanted) != before || strncmp(wanted, name, before) != 0) &&
            (strlen(wanted) != outside || strncmp(wanted, name, outside) != 0))
            continue;
        if (*ret_is_there)
            PD_FAIL(err, PD_INVALID,
                    "it holds several models, whose names begin with \"%s\" and \"%.*s\"; import one: perdure ckpt import "
                    "--prefix=%s",
                    ret_prefix, (int)before, name, ret_prefix);
        *ret_is_there = true;
        snprintf(ret_prefix, PD_FOREIGN_NAME_MAX, "%.*s", (int)before, name);
    }
    return PD_OK;
}

static pd_status check_name(const char *name, struct pd_error *err)
{
    for (const char *const *known = pd_model_dialects; *known; known++)
        if (!name || strcmp(name, *known) == 0) return PD_OK;
    PD_FAIL(err, PD_INVALID, "dialect %s is unknown; there are hugging_face, torchtitan, megatron, gguf and llmc", name);
}

static pd_status find_dialect(const struct pd_model *model, const char *name, const struct pd_catalog *catalog,
                              const struct dialect **ret, char *ret_prefix, struct pd_error *err)
{
    PD_TRY(check_name(name, err));
    for (size_t i = 0; i < DIALECT_COUNT; i++) {
        bool is_there = false;
        if (fits(&dialects[i], model, name)) PD_TRY(find_prefix(model, &dialects[i], catalog, ret_prefix, &is_there, err));
        if (!is_there) continue;
        *ret = &dialects[i];
        return PD_OK;
    }
    if (catalog->prefix)
        PD_FAIL(err, PD_INVALID, "--prefix=%s: no token embedding has a name with that before it", catalog->prefix);
    PD_FAIL(err, PD_INVALID,
            "no tensor is a token embedding of a %s by %s's names; it has %" PRIu32 " tensors, the first is %s",
            pd_family_properties(model->config.family)->name, name ? name : "any known system", catalog->tensor_count,
            catalog->tensor_count ? catalog->tensors[0].name : "none");
}

/* ---- import ---- */

/* What was not found, for one message. */
struct missing {
    uint32_t count;
    size_t used;
    char text[640];
};

static void note_missing(struct missing *m, const struct search *s, enum pd_kind kind)
{
    struct place place = {.name = "no name of its"};
    (void)place_of(s, s->dialect->is_stacked, FIRST, &place);
    if (m->count++ >= 3) return;
    m->used += (size_t)snprintf(m->text + m->used, sizeof m->text - m->used, "%s%s%s (looked for %s)", m->used ? ", " : "",
                                kind == PD_PARAM     ? ""
                                : kind == PD_EXP_AVG ? "exp_avg of "
                                                     : "exp_avg_sq of ",
                                s->tensor->name, place.name);
    if (m->used >= sizeof m->text) m->used = sizeof m->text - 1;
}

static void shape_text(uint32_t ndim, const uint64_t *shape, char *ret, size_t bytes)
{
    size_t used = (size_t)snprintf(ret, bytes, "[");
    for (uint32_t i = 0; i < ndim && used < bytes; i++)
        used += (size_t)snprintf(ret + used, bytes - used, "%s%" PRIu64, i ? ", " : "", shape[i]);
    if (used < bytes) snprintf(ret + used, bytes - used, "]");
}

static pd_status check_shape(const struct search *s, const struct place *p, const struct pd_foreign_tensor *found,
                             struct pd_error *err)
{
    bool is_same = found->ndim == p->ndim;
    for (uint32_t i = 0; i < p->ndim && is_same; i++)
        is_same = found->shape[i] == p->shape[i] || (i == 0 && p->may_be_longer && found->shape[i] > p->shape[i]);
    if (is_same) return PD_OK;
    char has[192], wanted[192];
    shape_text(found->ndim, found->shape, has, sizeof has);
    shape_text(p->ndim, p->shape, wanted, sizeof wanted);
    const bool is_vocabulary = s->role == TOKENS || s->role == HEAD;
    PD_FAIL(err, PD_INVALID, "tensor %s is %s, and for %s it must be %s%s", found->name, has, s->tensor->name, wanted,
            is_vocabulary && found->ndim == p->ndim && found->shape[0] > p->shape[0]
                ? ": where the further rows are words, say so as vocab_size in config.json"
                : "");
}

/* Numbered names first: a stacked one has none. */
static pd_status link_one(const struct search *s, const struct pd_catalog *catalog, enum pd_kind kind, bool may_lack,
                          struct pd_links *links, struct missing *missing, struct pd_error *err)
{
    for (int way = 0; way < 2 * VARIANTS; way++) {
        struct place place;
        const bool is_stacked = way >= VARIANTS;
        if ((is_stacked && !s->dialect->is_stacked) || !place_of(s, is_stacked, (enum variant)(way % VARIANTS), &place))
            continue;
        const int64_t at = pd_catalog_find(catalog, place.name, kind);
        if (at < 0) continue;
        PD_TRY(check_shape(s, &place, &catalog->tensors[at], err));
        const struct pd_link link = {.tensor = (uint32_t)(s->tensor - s->model->tensors.tensors),
                                     .kind = kind,
                                     .name = place.name,
                                     .view = place.view};
        return pd_links_add(links, &link, err);
    }
    if (!may_lack) note_missing(missing, s, kind);
    return PD_OK;
}

static pd_status link_all(const struct pd_model *model, const struct dialect *dialect, const char *prefix,
                          const struct pd_catalog *catalog, enum pd_moments moments, struct pd_links *links,
                          struct pd_error *err)
{
    struct missing missing = {0};
    for (uint32_t i = 0; i < model->tensors.count; i++) {
        const struct search s = search_of(model, dialect, i, prefix);
        for (int kind = PD_PARAM; kind < (moments ? PD_KIND_COUNT : 1); kind++)
            PD_TRY(link_one(&s, catalog, (enum pd_kind)kind, kind != PD_PARAM && moments == PD_MOMENTS_FOUND, links,
                            &missing, err));
    }
    if (missing.count > 3)
        PD_FAIL(err, PD_INVALID, "by %s's names these are missing: %s, and %" PRIu32 " more", dialect->name, missing.text,
                missing.count - 3);
    if (missing.count) PD_FAIL(err, PD_INVALID, "by %s's names these are missing: %s", dialect->name, missing.text);
    return PD_OK;
}

pd_status pd_model_links(const struct pd_model *model, const char *dialect, const struct pd_catalog *catalog,
                         enum pd_moments moments, struct pd_links *ret_links, struct pd_error *err)
{
    const struct dialect *found = NULL;
    char prefix[PD_FOREIGN_NAME_MAX] = "";
    struct pd_links links = {0};
    PD_TRY(find_dialect(model, dialect, catalog, &found, prefix, err));
    const pd_status st = link_all(model, found, prefix, catalog, moments, &links, err);
    if (st)
        pd_links_deinit(&links);
    else
        *ret_links = links;
    return st;
}

static bool ends_with(const char *text, const char *ending)
{
    const size_t length = strlen(text), of_ending = strlen(ending);
    return length >= of_ending && strcmp(text + length - of_ending, ending) == 0;
}

uint64_t pd_model_links_padding(const struct pd_model *model, const struct pd_link *link, const struct pd_catalog *catalog)
{
    const struct pd_tensor *t = &model->tensors.tensors[link->tensor];
    const enum role role = role_of(model, link->tensor);
    const int64_t found = pd_catalog_find(catalog, link->name, link->kind);
    if ((role != TOKENS && role != HEAD) || found < 0) return 0;
    const uint64_t rows = catalog->tensors[found].shape[0];
    return rows > t->shape[0] ? rows - t->shape[0] : 0;
}

bool pd_model_ties(const struct pd_model *model, const char *name)
{
    static const char *const heads[] = {"lm_head.weight", "output.weight", "output_layer.weight"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && model->config.tie_embeddings; i++)
        if (ends_with(name, heads[i]) &&
            (strlen(name) == strlen(heads[i]) || name[strlen(name) - strlen(heads[i]) - 1] == '.'))
            return true;
    return false;
}

static bool follows_from_configuration(const struct pd_model *model, const char *name)
{
    static const char *const tables[] = {".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq", "rope_freqs.weight"};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (ends_with(name, tables[i])) return true;
    return pd_model_ties(model, name);
}

void pd_model_links_beyond(const struct pd_model *model, const struct pd_links *links, const struct pd_catalog *catalog,
                           bool *ret_is_beyond)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        ret_is_beyond[i] = !follows_from_configuration(model, catalog->tensors[i].name);
    for (uint32_t i = 0; i < links->count; i++) {
        const int64_t at = pd_catalog_find(catalog, links->items[i].name, links->items[i].kind);
        if (at >= 0) ret_is_beyond[at] = false;
    }
}

/* ---- export ---- */

pd_status pd_model_foreign(const struct pd_model *model, const char *dialect, enum pd_element element, bool with_moments,
                           struct pd_catalog *catalog, struct pd_error *err)
{
    const struct dialect *d = NULL;
    PD_TRY(check_name(dialect, err));
    for (size_t i = 0; i < DIALECT_COUNT && !d; i++)
        if (fits(&dialects[i], model, dialect)) d = &dialects[i];
    for (uint32_t i = 0; i < model->tensors.count; i++) {
        struct place p;
        if (!d) break;
        const struct search s = search_of(model, d, i, d->base);
        /* Several tensors of the model may lie in one, which is added with the first. */
        if (!place_of(&s, d->is_stacked, FIRST, &p))
            PD_FAIL(err, PD_INVALID, "%s has no name for %s", dialect, s.tensor->name);
        for (int kind = PD_PARAM; kind < (with_moments ? PD_KIND_COUNT : 1) && p.view.offset == 0; kind++) {
            struct pd_foreign_tensor t = {
                .name = p.name, .kind = (enum pd_kind)kind, .element = kind ? PD_ELEMENT_F32 : element, .ndim = p.ndim};
            for (uint32_t k = 0; k < PD_FOREIGN_DIMS_MAX; k++)
                t.shape[k] = k < p.ndim ? p.shape[k] : 1;
            PD_TRY(pd_catalog_add_tensor(catalog, &t, NULL, err));
        }
    }
    if (!d)
        PD_FAIL(err, PD_INVALID, "%s has no names for models of family %s; take another format", dialect,
                pd_family_properties(model->config.family)->name);
    return PD_OK;
}
