/* A family's dialects (resharder/catalog/families.c) give each tensor role its name and layout. An import looks the names up
 * in a catalog; an export builds a catalog from them. */
#include "trainer/model/links.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/words.h"
#include "trainer/model/hugging_face.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const pd_model_dialects[] = {"hugging_face", "torchtitan", "megatron", "gguf", "llmc", NULL};

/* ---- where a tensor is ---- */

/* A tensor of the model in a foreign one. */
struct place {
    char name[PD_FOREIGN_NAME_MAX];
    uint32_t ndim;
    uint64_t shape[PD_FOREIGN_DIMS_MAX];
    bool may_be_longer;
    bool has_all; /* a tensor of all experts of a block */
    struct pd_view view;
};

/* One tensor in one dialect. */
struct search {
    const struct pd_model *model;
    const struct pd_dialect *dialect;
    const struct pd_tensor *tensor;
    enum pd_role role;
    bool is_bias;
    const char *prefix; /* before names of the base model */
};

/* Rows of the foreign matrix, and the first of the tensor's. */
static uint64_t foreign_rows(const struct search *s, unsigned how, uint64_t *ret_first)
{
    const struct pd_model_config *c = &s->model->config;
    const uint64_t head = c->head_size, rows = s->tensor->shape[0], group = c->heads / c->kv_heads;
    const bool is_q = s->role == PD_ROLE_Q, is_k = s->role == PD_ROLE_K;
    *ret_first = 0;
    if (how & PD_THIRDS) *ret_first = is_q ? 0 : (c->heads + (is_k ? 0 : c->kv_heads)) * head;
    if (how & PD_BY_KV_HEAD) *ret_first = is_q ? 0 : (group + (is_k ? 0 : 1)) * head;
    if (how & (PD_THIRDS | PD_BY_KV_HEAD)) return (c->heads + 2ull * c->kv_heads) * head;
    const uint32_t matrices = pd_families[c->family]->up_matrices;
    if (how & PD_HALVES) *ret_first = matrices == 2 && pd_role_is_up(s->role) ? rows : 0;
    return how & PD_HALVES ? matrices * rows : rows;
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
    const uint64_t row = how & PD_ACROSS ? 1 : columns, column = how & PD_ACROSS ? foreign : 1;
    struct pd_view view = {.offset = first * row};
    const uint64_t groups = how & PD_BY_KV_HEAD ? c->kv_heads : 1;
    if (how & PD_BY_KV_HEAD) add_dimension(&view, groups, foreign / groups * row);
    const struct pd_model_class *class = pd_model_class_of(c);
    if (how & PD_NEIGHBOURS && class && class->has_meta_order) {
        add_dimension(&view, rows / groups / head, head * row);
        add_dimension(&view, 2, row);
        add_dimension(&view, head / 2, 2 * row);
    } else {
        add_dimension(&view, rows / groups, row);
    }
    if (s->tensor->ndim == 2) add_dimension(&view, columns, column);
    return view;
}

/* Appends to a name of PD_FOREIGN_NAME_MAX; cuts what does not fit. */
static void name_put(char *name, const char *text, size_t bytes)
{
    const size_t used = strlen(name), left = PD_FOREIGN_NAME_MAX - 1 - used;
    const size_t count = bytes < left ? bytes : left;
    memcpy(name + used, text, count);
    name[used + count] = '\0';
}

/* Fills a pattern in, with or without the layer's number. */
static void name_of(const struct search *s, unsigned how, const char *pattern, bool is_stacked, char *ret)
{
    const char *prefix = s->prefix, *base = s->dialect->base;
    size_t length = strlen(prefix);
    const size_t known = strlen(base);
    if (how & PD_OUTSIDE && length >= known && strcmp(prefix + length - known, base) == 0) length -= known;
    *ret = '\0';
    name_put(ret, prefix, length);
    if (!pattern) { /* ours, which may be one with a number */
        pattern = s->tensor->name + (how & PD_OUTSIDE ? 0 : known);
        name_put(ret, pattern, strlen(pattern));
        return;
    }
    const char *end = s->dialect->ends[s->is_bias] ? s->dialect->ends[s->is_bias] : s->is_bias ? "bias" : "weight";
    while (*pattern) {
        char number[16];
        const size_t plain = strcspn(pattern, "%*");
        name_put(ret, pattern, plain);
        pattern += plain;
        if (*pattern == '*') {
            name_put(ret, end, strlen(end));
            pattern++;
        } else if (*pattern && pattern[1] == 'u' && is_stacked) {
            pattern += 3; /* and the dot */
        } else if (*pattern) {
            const uint32_t value = pattern[1] == 'u' ? s->tensor->unit - 1 : s->tensor->expert - 1;
            snprintf(number, sizeof number, "%" PRIu32, value);
            name_put(ret, number, strlen(number));
            pattern += 2;
        }
    }
}

/* Names of a tensor in a dialect, in the order in which an import tries them. */
enum variant { FIRST, OTHER, AS_FUSED, LAST, VARIANTS };

static const struct pd_source *source_of(const struct search *s)
{
    /* If q's matrix has all three, K and V are in it. */
    const struct pd_source *sources = s->dialect->sources, *q = &sources[PD_ROLE_Q];
    const bool is_in_q = (s->role == PD_ROLE_K || s->role == PD_ROLE_V) && q->how & (PD_THIRDS | PD_BY_KV_HEAD);
    if (s->role == PD_ROLE_ROUTER && s->is_bias) return &s->dialect->selection_bias;
    return is_in_q ? q : &sources[s->role];
}

static enum variant swapped(const struct search *s, unsigned how, enum variant variant)
{
    const bool is_dense = how & PD_BY_MLP && !pd_model_has_experts(&s->model->config, s->tensor->unit - 1);
    return !is_dense || variant > OTHER ? variant : variant == FIRST ? OTHER : FIRST;
}

/* Whether the dialect may have this model's layers on a leading axis: they are alike then. */
static bool links_may_stack(const struct search *s)
{
    return s->dialect->is_stacked && !s->model->config.dense_blocks;
}

/* False: the dialect has no such name. */
static bool links_place_of(const struct search *s, bool is_stacked, enum variant variant, struct place *ret)
{
    const struct pd_source *source = source_of(s);
    const char *const patterns[VARIANTS] = {source->name, source->other, source->fused, source->last};
    const unsigned hows[VARIANTS] = {source->how, source->how, source->fused_how, source->last_how};
    const char *pattern = patterns[swapped(s, source->how, variant)];
    const unsigned across = s->tensor->ndim == 2 ? 0 : PD_ACROSS; /* a vector is not */
    const unsigned how = hows[variant] & ~across;
    const bool in_block = s->tensor->unit > 0 && s->tensor->unit + 1 < s->model->unit_count;
    if (!pattern && (variant != FIRST || !s->dialect->has_own_names)) return false;
    *ret = (struct place){.may_be_longer = (how & PD_LONGER) != 0};
    name_of(s, source->how, pattern, is_stacked, ret->name);
    uint64_t first;
    const uint64_t columns = s->tensor->shape[1], rows = foreign_rows(s, how, &first);
    const bool has_all = s->tensor->expert && pattern && !strstr(pattern, "%e");
    const uint64_t experts = has_all ? s->model->config.experts : 1, expert = has_all ? s->tensor->expert - 1 : 0;
    ret->view = view_of(s, how, rows, first);
    ret->view.offset += expert * rows * columns;
    if (is_stacked && in_block) {
        ret->shape[ret->ndim++] = s->model->config.layers;
        ret->view.offset += (s->tensor->unit - 1) * experts * rows * columns;
    }
    if (has_all) ret->shape[ret->ndim++] = experts;
    ret->has_all = has_all;
    ret->shape[ret->ndim++] = how & PD_ACROSS ? columns : rows;
    if (s->tensor->ndim == 2) ret->shape[ret->ndim++] = how & PD_ACROSS ? rows : columns;
    return true;
}

/* ---- the dialect of a catalog ---- */

static struct search search_of(const struct pd_model *model, const struct pd_dialect *d, uint32_t tensor, const char *prefix)
{
    const struct pd_tensor_init *init = &model->init[tensor];
    return (struct search){model, d, &model->tensors.tensors[tensor], init->role, init->is_bias, prefix};
}

/* Finds the prefix before the token embedding. Two prefixes are two models; the catalog's prefix selects one, with or
 * without the dialect's own prefix.
 *   *ret_is_there  whether there is any
 *   errors  PD_INVALID: several */
static pd_status find_prefix(const struct pd_model *model, const struct pd_dialect *d, const struct pd_catalog *catalog,
                             char *ret_prefix, bool *ret_is_there, struct pd_error *err)
{
    const struct search s = search_of(model, d, 0, "");
    struct place place;
    *ret_is_there = false;
    if (!links_place_of(&s, false, FIRST, &place)) return PD_OK;
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

static pd_status links_check_name(const char *name, struct pd_error *err)
{
    for (const char *const *known = pd_model_dialects; *known; known++)
        if (!name || strcmp(name, *known) == 0) return PD_OK;
    PD_FAIL(err, PD_INVALID, "dialect %s is unknown; there are hugging_face, torchtitan, megatron, gguf and llmc", name);
}

static pd_status find_dialect(const struct pd_model *model, const char *name, const struct pd_catalog *catalog,
                              const struct pd_dialect **ret, char *ret_prefix, struct pd_error *err)
{
    PD_TRY(links_check_name(name, err));
    for (const struct pd_dialect *const *d = pd_families[model->config.family]->dialects; *d; d++) {
        bool is_there = false;
        if (!name || strcmp((*d)->name, name) == 0) PD_TRY(find_prefix(model, *d, catalog, ret_prefix, &is_there, err));
        if (!is_there) continue;
        *ret = *d;
        return PD_OK;
    }
    if (catalog->prefix)
        PD_FAIL(err, PD_INVALID, "--prefix=%s: no token embedding has a name with that before it", catalog->prefix);
    PD_FAIL(err, PD_INVALID,
            "no tensor is a token embedding of a %s by %s's names; it has %" PRIu32 " tensors, the first is %s",
            pd_family_names[model->config.family], name ? name : "any known system", catalog->tensor_count,
            catalog->tensor_count ? catalog->tensors[0].name : "none");
}

/* ---- import ---- */

/* A name of a tensor: the variants with the layer's number, then those without. */
#define WAYS (2 * VARIANTS)
#define WAY_NONE WAYS

/* An import being linked. */
struct linking {
    const struct pd_catalog *catalog;
    struct pd_links links;
    /* How experts are stored, by the first one found of a kind, and its name there. */
    int expert_way[PD_KIND_COUNT];
    char expert_name[PD_KIND_COUNT][PD_FOREIGN_NAME_MAX];
    /* Tensors that were not found, for one message. */
    uint32_t missing;
    size_t used;
    char text[640];
};

static bool place_by_way(const struct search *s, int way, struct place *ret)
{
    const bool is_stacked = way >= VARIANTS;
    return (!is_stacked || links_may_stack(s)) && links_place_of(s, is_stacked, (enum variant)(way % VARIANTS), ret);
}

/* Experts are looked for in the form in which the others are. */
static void note_missing(struct linking *m, const struct search *s, enum pd_kind kind)
{
    struct place place = {.name = "no name of its"};
    const int way = s->tensor->expert ? m->expert_way[kind] : WAY_NONE;
    if (way == WAY_NONE || !place_by_way(s, way, &place)) (void)links_place_of(s, links_may_stack(s), FIRST, &place);
    if (m->missing++ >= 3) return;
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
    char has[192], wanted[192], why[96] = "";
    shape_text(found->ndim, found->shape, has, sizeof has);
    shape_text(p->ndim, p->shape, wanted, sizeof wanted);
    const bool is_vocabulary = s->role == PD_ROLE_TOKENS || s->role == PD_ROLE_HEAD;
    const uint32_t axis = p->ndim - 3; /* of experts, if it has all */
    if (is_vocabulary && found->ndim == p->ndim && found->shape[0] > p->shape[0])
        snprintf(why, sizeof why, ": where the further rows are words, say so as vocab_size in config.json");
    else if (p->has_all && found->ndim == p->ndim && found->shape[axis] != p->shape[axis])
        snprintf(why, sizeof why, ": it has %" PRIu64 " experts, and the model has %" PRIu64, found->shape[axis],
                 p->shape[axis]);
    PD_FAIL(err, PD_INVALID, "tensor %s is %s, and for %s it must be %s%s", found->name, has, s->tensor->name, wanted, why);
}

/* A file whose experts have two forms may hold some of them twice, and it is unclear which ones a program would take. */
static pd_status check_form(struct linking *l, int way, enum pd_kind kind, const char *name, struct pd_error *err)
{
    if (l->expert_way[kind] == WAY_NONE) {
        l->expert_way[kind] = way;
        snprintf(l->expert_name[kind], sizeof l->expert_name[kind], "%s", name);
    }
    if (l->expert_way[kind] == way) return PD_OK;
    PD_FAIL(err, PD_INVALID, "experts are stored in two forms, as %s and as %s; keep one of them", l->expert_name[kind],
            name);
}

/* Numbered names first: a stacked one has none. */
static pd_status link_one(struct linking *l, const struct search *s, enum pd_kind kind, bool may_lack, struct pd_error *err)
{
    for (int way = 0; way < WAYS; way++) {
        struct place place;
        if (!place_by_way(s, way, &place)) continue;
        const int64_t at = pd_catalog_find(l->catalog, place.name, kind);
        if (at < 0) continue;
        PD_TRY(check_shape(s, &place, &l->catalog->tensors[at], err));
        if (s->tensor->expert) PD_TRY(check_form(l, way, kind, place.name, err));
        const struct pd_link link = {.tensor = (uint32_t)(s->tensor - s->model->tensors.tensors),
                                     .kind = kind,
                                     .name = place.name,
                                     .view = place.view};
        return pd_links_add(&l->links, &link, err);
    }
    if (!may_lack) note_missing(l, s, kind);
    return PD_OK;
}

/* Numbers of a layer and an expert in a name that is made by the pattern; UINT32_MAX: the pattern has no such number. False:
 * the name is not made by it. */
static bool parse_name(const char *pattern, const char *name, uint32_t *ret_layer, uint32_t *ret_expert)
{
    *ret_layer = *ret_expert = UINT32_MAX;
    while (*pattern) {
        uint64_t value = 0;
        if (pattern[0] == '*') {
            if (strncmp(name, "weight", 6) != 0) return false;
            name += 6;
            pattern++;
        } else if (pattern[0] == '%') {
            if (*name < '0' || *name > '9') return false;
            for (; *name >= '0' && *name <= '9'; name++)
                value = value < UINT32_MAX ? 10 * value + (uint64_t)(*name - '0') : value;
            *(pattern[1] == 'u' ? ret_layer : ret_expert) = (uint32_t)pd_min_u64(value, UINT32_MAX - 1);
            pattern += 2;
        } else if (*pattern++ != *name++) {
            return false;
        }
    }
    return !*name;
}

/* True if the name, without its prefix, is an expert's tensor (in any form) in a layer that the model has. */
static bool is_of_expert(const struct pd_model *model, const struct pd_dialect *d, const char *name, uint32_t *ret_expert)
{
    const struct pd_family *f = pd_families[model->config.family];
    uint32_t layer;
    for (int role = PD_ROLE_EXPERT_GATE; role <= PD_ROLE_EXPERT_DOWN; role++) {
        char own[PD_FOREIGN_NAME_MAX];
        snprintf(own, sizeof own, "%s%s.weight", f->block + strlen(d->base), f->names[role]);
        char *expert = strrchr(own, '%');
        if (expert) expert[1] = 'e';
        const struct pd_source *source = &d->sources[role];
        const char *const patterns[] = {source->name ? source->name : own, source->other, source->fused, source->last};
        for (int i = 0; i < VARIANTS; i++)
            if (patterns[i] && parse_name(patterns[i], name, &layer, ret_expert) && layer < model->config.layers)
                return true;
    }
    return false;
}

/* No expert is left out in silence: the model has fewer than the file, or the file has some twice. */
static pd_status check_no_more_experts(const struct pd_model *model, const struct pd_dialect *d, const char *prefix,
                                       const struct linking *l, struct pd_error *err)
{
    const struct pd_catalog *c = l->catalog;
    uint32_t expert = 0;
    if (!model->config.experts) return PD_OK;
    bool *is_beyond = calloc((size_t)c->tensor_count + 1, sizeof *is_beyond);
    if (!is_beyond) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u names", c->tensor_count);
    pd_model_links_beyond(model, &l->links, c, is_beyond);
    uint32_t t = 0;
    const size_t before = strlen(prefix);
    while (t < c->tensor_count &&
           !(is_beyond[t] && c->tensors[t].kind == PD_PARAM && strncmp(c->tensors[t].name, prefix, before) == 0 &&
             is_of_expert(model, d, c->tensors[t].name + before, &expert)))
        t++;
    free(is_beyond);
    if (t == c->tensor_count) return PD_OK;
    if (expert != UINT32_MAX && expert >= model->config.experts)
        PD_FAIL(err, PD_INVALID, "tensor %s is of expert %u, and the model has %u, the first of which is 0",
                c->tensors[t].name, expert, model->config.experts);
    return pd_error_set(err, PD_INVALID, PD_WHERE, 0, "experts are stored in two forms, as %s and as %s; keep one of them",
                        l->expert_name[PD_PARAM], c->tensors[t].name);
}

static pd_status link_all(const struct pd_model *model, const struct pd_dialect *dialect, const char *prefix,
                          enum pd_moments moments, struct linking *l, struct pd_error *err)
{
    for (uint32_t i = 0; i < model->tensors.count; i++) {
        const struct search s = search_of(model, dialect, i, prefix);
        for (int kind = PD_PARAM; kind < (moments ? PD_KIND_COUNT : 1); kind++)
            PD_TRY(link_one(l, &s, (enum pd_kind)kind, kind != PD_PARAM && moments == PD_MOMENTS_FOUND, err));
    }
    if (l->missing > 3)
        PD_FAIL(err, PD_INVALID, "by %s's names these are missing: %s, and %" PRIu32 " more", dialect->name, l->text,
                l->missing - 3);
    if (l->missing) PD_FAIL(err, PD_INVALID, "by %s's names these are missing: %s", dialect->name, l->text);
    return check_no_more_experts(model, dialect, prefix, l, err);
}

pd_status pd_model_links(const struct pd_model *model, const char *dialect, const struct pd_catalog *catalog,
                         enum pd_moments moments, struct pd_links *ret_links, struct pd_error *err)
{
    const struct pd_dialect *found = NULL;
    char prefix[PD_FOREIGN_NAME_MAX] = "";
    struct linking linking = {.catalog = catalog, .expert_way = {WAY_NONE, WAY_NONE, WAY_NONE}};
    PD_TRY(find_dialect(model, dialect, catalog, &found, prefix, err));
    const pd_status st = link_all(model, found, prefix, moments, &linking, err);
    if (st)
        pd_links_deinit(&linking.links);
    else
        *ret_links = linking.links;
    return st;
}

uint64_t pd_model_links_padding(const struct pd_model *model, const struct pd_link *link, const struct pd_catalog *catalog)
{
    const struct pd_tensor *t = &model->tensors.tensors[link->tensor];
    const enum pd_role role = model->init[link->tensor].role;
    const int64_t found = pd_catalog_find(catalog, link->name, link->kind);
    if ((role != PD_ROLE_TOKENS && role != PD_ROLE_HEAD) || found < 0) return 0;
    const uint64_t rows = catalog->tensors[found].shape[0];
    return rows > t->shape[0] ? rows - t->shape[0] : 0;
}

bool pd_model_ties(const struct pd_model *model, const char *name)
{
    static const char *const heads[] = {"lm_head.weight", "output.weight", "output_layer.weight"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && model->config.tie_embeddings; i++)
        if (pd_ends_with(name, heads[i]) &&
            (strlen(name) == strlen(heads[i]) || name[strlen(name) - strlen(heads[i]) - 1] == '.'))
            return true;
    return false;
}

static bool follows_from_configuration(const struct pd_model *model, const char *name)
{
    static const char *const tables[] = {".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq", "rope_freqs.weight"};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (pd_ends_with(name, tables[i])) return true;
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

/* The name that is written. Fused experts take the third name of the experts, and of the router where it has one. */
static enum variant written(const struct search *s, enum pd_expert_form form)
{
    const bool is_of_experts = s->role >= PD_ROLE_ROUTER && s->role <= PD_ROLE_EXPERT_DOWN && !s->is_bias;
    return form == PD_EXPERTS_FUSED && is_of_experts && s->dialect->sources[s->role].fused ? AS_FUSED : FIRST;
}

static const struct pd_dialect *named_dialect(const struct pd_model *model, const char *name)
{
    const struct pd_dialect *const *known = pd_families[model->config.family]->dialects;
    while (*known && strcmp((*known)->name, name) != 0)
        known++;
    return *known;
}

bool pd_model_has_dialect(const struct pd_model *model, const char *name)
{
    return named_dialect(model, name) != NULL;
}

pd_status pd_model_foreign(const struct pd_model *model, const char *dialect, enum pd_element element,
                           enum pd_expert_form form, bool with_moments, struct pd_catalog *catalog, struct pd_error *err)
{
    PD_TRY(links_check_name(dialect, err));
    const struct pd_dialect *d = named_dialect(model, dialect);
    for (uint32_t i = 0; i < model->tensors.count; i++) {
        struct place p;
        if (!d) break;
        const struct search s = search_of(model, d, i, d->base);
        /* Several tensors may be in one foreign tensor, which is added with the first. */
        if (!links_place_of(&s, links_may_stack(&s), written(&s, form), &p))
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
                pd_family_names[model->config.family]);
    return PD_OK;
}
