/* The plan already knows the head of the file: metadata from config.json and tokenizer.gguf, tensors, and the data of
 * RoPE's factors, which are no model tensor. finish writes it. */
#include "resharder/formats/gguf.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/family.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    struct pd_vfs *vfs;
    char path[PD_FORMATS_PATH_MAX];
    char *head; /* (head_bytes) up to the first tensor's data; owned */
    size_t head_bytes;
};

/* The head being made. */
struct head {
    FILE *out;
    const struct pd_catalog *wanted;
    const struct pd_json_value *config, *tokenizer; /* tokenizer NULL: none */
    const struct pd_model_class *class;
    const struct pd_family *family;
    uint64_t pairs;
    bool is_refused; /* a number of the tokenizer has a type that is not written */
    struct pd_gguf_rope rope;
    uint64_t rope_count; /* number of factors; 0: none */
};

const struct pd_gguf_element pd_gguf_elements[] = {
    {0, PD_ELEMENT_F32},  {1, PD_ELEMENT_F16},  {2, PD_ELEMENT_Q4_0},  {3, PD_ELEMENT_Q4_1},  {6, PD_ELEMENT_Q5_0},
    {7, PD_ELEMENT_Q5_1}, {8, PD_ELEMENT_Q8_0}, {12, PD_ELEMENT_Q4_K}, {14, PD_ELEMENT_Q6_K}, {24, PD_ELEMENT_I8},
    {25, PD_ELEMENT_I16}, {26, PD_ELEMENT_I32}, {27, PD_ELEMENT_I64},  {28, PD_ELEMENT_F64},  {30, PD_ELEMENT_BF16}};
const uint32_t pd_gguf_element_count = sizeof pd_gguf_elements / sizeof pd_gguf_elements[0];

double pd_gguf_rope_factor(const struct pd_gguf_rope *r, uint64_t i, uint64_t count)
{
    const double length = 2 * M_PI * pow(r->theta, (double)i / (double)count),
                 smooth = (r->original / length - r->low) / (r->high - r->low);
    const double between = 1 / ((1 - smooth) / r->factor + smooth);
    return length < r->original / r->high ? 1 : length > r->original / r->low ? r->factor : between;
}

enum pd_element pd_gguf_element(const struct pd_foreign_tensor *t, enum pd_element wanted)
{
    if (t->ndim < 2 || strcmp(t->name, "position_embd.weight") == 0 || strstr(t->name, ".ffn_gate_inp."))
        return PD_ELEMENT_F32;
    return t->shape[t->ndim - 1] % pd_elements[wanted].block_elements ? PD_ELEMENT_F16 : wanted;
}

/* ---- values ---- */

/* Errors of the stream are checked once, at close. */
static void gguf_write_put(struct head *h, const void *data, size_t bytes)
{
    (void)fwrite(data, 1, bytes, h->out);
}

static void put_u32(struct head *h, uint32_t value)
{
    gguf_write_put(h, &value, sizeof value);
}

static void put_u64(struct head *h, uint64_t value)
{
    gguf_write_put(h, &value, sizeof value);
}

static void put_text(struct head *h, const char *text)
{
    put_u64(h, strlen(text));
    gguf_write_put(h, text, strlen(text));
}

static void begin_pair(struct head *h, const char *before, const char *key, enum pd_gguf_type type)
{
    char whole[300];
    snprintf(whole, sizeof whole, "%s%s", before, key);
    put_text(h, whole);
    put_u32(h, type);
    h->pairs++;
}

static void put_number(struct head *h, enum pd_gguf_type type, double number)
{
    const float single = (float)number;
    const bool fits = type == PD_GGUF_I32 ? fabs(number) <= INT32_MAX : number >= 0 && number <= UINT32_MAX;
    if (type != PD_GGUF_F32 && !fits) {
        h->is_refused = true;
        number = 0;
    }
    const uint32_t whole = type == PD_GGUF_I32 ? (uint32_t)(int32_t)number : (uint32_t)number;
    gguf_write_put(h, type == PD_GGUF_F32 ? (const void *)&single : &whole, 4);
}

static void put_pair_u32(struct head *h, const char *key, uint32_t value)
{
    begin_pair(h, "", key, PD_GGUF_U32);
    put_u32(h, value);
}

/* ---- the configuration ---- */

static uint32_t file_type(const struct pd_catalog *wanted)
{
    static const struct pd_gguf_element types[] = {{1, PD_ELEMENT_F16}, {7, PD_ELEMENT_Q8_0}, {32, PD_ELEMENT_BF16}};
    for (uint32_t t = 0; t < wanted->tensor_count; t++)
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
            if (wanted->tensors[t].ndim >= 2 && wanted->tensors[t].element == types[i].element) return types[i].type;
    return 0;
}

static void put_scaling(struct head *h, const char *before)
{
    const struct pd_json_value *scaling = pd_json_member(h->config, "rope_scaling");
    const char *type = pd_json_member_text(scaling, "rope_type");
    if (!type) return;
    const double factor = pd_json_number_or(scaling, "factor", 1);
    if (strcmp(type, "linear") == 0) {
        begin_pair(h, before, "rope.scaling.type", PD_GGUF_TEXT);
        put_text(h, "linear");
        begin_pair(h, before, "rope.scaling.factor", PD_GGUF_F32);
        put_number(h, PD_GGUF_F32, factor);
        return;
    }
    h->rope = (struct pd_gguf_rope){.theta = pd_json_number_or(h->config, "rope_theta", 10000),
                                    .factor = factor,
                                    .low = pd_json_number_or(scaling, "low_freq_factor", 1),
                                    .high = pd_json_number_or(scaling, "high_freq_factor", 4),
                                    .original = pd_json_number_or(scaling, "original_max_position_embeddings", 8192)};
    h->rope_count = (uint64_t)pd_json_number_or(h->config, h->family->keys[PD_NUMBER_HEAD_SIZE].config, 0) / 2;
    const struct {
        const char *key;
        double value;
    } own[] = {{"factor", h->rope.factor},
               {"low_freq_factor", h->rope.low},
               {"high_freq_factor", h->rope.high},
               {"original_context_length", h->rope.original}};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        begin_pair(h, "perdure.rope_scaling.", own[i].key, PD_GGUF_F32);
        put_number(h, PD_GGUF_F32, own[i].value);
    }
}

/* As llama.cpp's converter: it writes these for routers of sigmoids; what others compute follows from the architecture. */
static void put_router(struct head *h, const char *before)
{
    bool is_normed = h->class->renormalises;
    (void)pd_json_is_bool(pd_json_member(h->config, "norm_topk_prob"), &is_normed);
    if (h->family->router != PD_ROUTER_SIGMOID) return;
    begin_pair(h, before, "expert_gating_func", PD_GGUF_U32);
    put_u32(h, 2);
    begin_pair(h, before, "expert_weights_scale", PD_GGUF_F32);
    put_number(h, PD_GGUF_F32, pd_json_number_or(h->config, "routed_scaling_factor", 1));
    begin_pair(h, before, "expert_weights_norm", PD_GGUF_BOOL);
    gguf_write_put(h, &(unsigned char){is_normed}, 1);
}

/* llama.cpp computes some architectures in one way only. */
static pd_status check_router(const struct head *h, struct pd_error *err)
{
    bool is_normed = h->class->renormalises;
    (void)pd_json_is_bool(pd_json_member(h->config, "norm_topk_prob"), &is_normed);
    if (!h->class->gguf_renormalises || is_normed == (h->class->gguf_renormalises > 0)) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "config.json: norm_topk_prob is %s, and llama.cpp computes models of architecture %s as if it were %s",
            is_normed ? "true" : "false", h->class->gguf, is_normed ? "false" : "true");
}

static void put_config(struct head *h)
{
    char before[64];
    snprintf(before, sizeof before, "%s.", h->class->gguf);
    begin_pair(h, "", "general.architecture", PD_GGUF_TEXT);
    put_text(h, h->class->gguf);
    put_pair_u32(h, "general.file_type", file_type(h->wanted));
    put_pair_u32(h, "general.quantization_version", 2);
    for (int i = 0; i < PD_NUMBER_COUNT; i++) {
        const struct pd_number_keys *key = &h->family->keys[i];
        const enum pd_gguf_type type = i < PD_NUMBER_EPSILON ? PD_GGUF_U32 : PD_GGUF_F32;
        const struct pd_json_value *value = key->gguf ? pd_json_member(h->config, key->config) : NULL;
        double number = 0;
        if (!value || !pd_json_is_number(value, &number)) continue;
        begin_pair(h, before, key->gguf, type);
        put_number(h, type, number);
    }
    const double head = pd_json_number_or(h->config, h->family->keys[PD_NUMBER_HEAD_SIZE].config, 0);
    static const char *const like_head[] = {"attention.value_length", "rope.dimension_count"};
    for (int i = 0; head > 0 && i < 2; i++) {
        begin_pair(h, before, like_head[i], PD_GGUF_U32);
        put_number(h, PD_GGUF_U32, i ? head * pd_json_number_or(h->config, "partial_rotary_factor", 1) : head);
    }
    begin_pair(h, before, "vocab_size", PD_GGUF_U32);
    put_number(h, PD_GGUF_U32, pd_json_number_or(h->config, h->family->keys[PD_NUMBER_VOCAB].config, 0));
    if (h->family->router) put_router(h, before);
    put_scaling(h, before);
}

/* ---- the tokenizer ---- */

/* Numbers are ids, except in two arrays. */
static enum pd_gguf_type type_of(const char *key, const struct pd_json_value *value)
{
    if (strcmp(key, "ggml.scores") == 0) return PD_GGUF_F32;
    if (strcmp(key, "ggml.token_type") == 0) return PD_GGUF_I32;
    switch (pd_json_type(value)) {
    case PD_JSON_TEXT:
        return PD_GGUF_TEXT;
    case PD_JSON_BOOL:
        return PD_GGUF_BOOL;
    case PD_JSON_INTEGER:
        return PD_GGUF_U32;
    case PD_JSON_REAL:
        return PD_GGUF_F32;
    default:
        return PD_GGUF_TYPES;
    }
}

static void put_value(struct head *h, enum pd_gguf_type type, const struct pd_json_value *value)
{
    double number = 0;
    bool is_on = false;
    const char *text = pd_json_text(value);
    if (type == PD_GGUF_TEXT) {
        h->is_refused |= !text;
        put_text(h, text ? text : "");
    } else if (type == PD_GGUF_BOOL) {
        h->is_refused |= !pd_json_is_bool(value, &is_on);
        gguf_write_put(h, &(unsigned char){is_on}, 1);
    } else {
        h->is_refused |= !pd_json_is_number(value, &number);
        put_number(h, type, number);
    }
}

static pd_status put_array(struct head *h, const char *key, const struct pd_json_value *array, struct pd_error *err)
{
    const size_t count = pd_json_count(array);
    const enum pd_gguf_type type = count ? type_of(key, pd_json_at(array, 0)) : PD_GGUF_TEXT;
    if (type == PD_GGUF_TYPES) PD_FAIL(err, PD_UNSUPPORTED, "tokenizer.gguf: %s is neither numbers nor texts", key);
    begin_pair(h, "tokenizer.", key, PD_GGUF_ARRAY);
    put_u32(h, type);
    put_u64(h, count);
    for (size_t i = 0; i < count; i++)
        put_value(h, type, pd_json_at(array, i));
    return PD_OK;
}

/* ---- tensors ---- */

static pd_status type_of_element(const struct pd_foreign_tensor *t, uint32_t *ret, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_gguf_element_count; i++)
        if (pd_gguf_elements[i].element == t->element) return *ret = pd_gguf_elements[i].type, PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED, "GGUF has no type %s, which tensor %s would need", pd_elements[t->element].name, t->name);
}

static pd_status put_tensors(struct head *h, struct pd_error *err)
{
    const struct pd_catalog *c = h->wanted;
    uint64_t at = 0;
    if (h->rope_count) {
        put_text(h, PD_GGUF_ROPE_FACTORS);
        put_u32(h, 1);
        put_u64(h, h->rope_count);
        put_u32(h, 0);
        put_u64(h, at);
        at += pd_round_up(h->rope_count * sizeof(float), PD_GGUF_ALIGNMENT);
    }
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &c->tensors[t];
        uint32_t type = 0;
        PD_TRY(type_of_element(tensor, &type, err));
        if (tensor->kind != PD_PARAM || tensor->ndim > 4)
            PD_FAIL(err, PD_UNSUPPORTED, "GGUF has no place for %s of tensor %s", pd_kind_name(tensor->kind), tensor->name);
        put_text(h, tensor->name);
        put_u32(h, tensor->ndim);
        for (uint32_t d = tensor->ndim; d-- > 0;)
            put_u64(h, tensor->shape[d]);
        put_u32(h, type);
        put_u64(h, at);
        at += pd_round_up(pd_foreign_bytes(tensor), PD_GGUF_ALIGNMENT);
    }
    return PD_OK;
}

static void pad(struct head *h)
{
    static const char zeros[PD_GGUF_ALIGNMENT];
    const uint64_t at = (uint64_t)ftello(h->out);
    gguf_write_put(h, zeros, pd_round_up(at, PD_GGUF_ALIGNMENT) - at);
}

/* ---- the plan ---- */

static pd_status put_head(struct head *h, struct pd_error *err)
{
    gguf_write_put(h, "GGUF", 4);
    put_u32(h, PD_GGUF_VERSION);
    put_u64(h, 0); /* tensors and pairs are counted later */
    put_u64(h, 0);
    put_config(h);
    if (h->is_refused) PD_FAIL(err, PD_UNSUPPORTED, "config.json: a number does not fit into 32 bits, as GGUF needs");
    const char *key = NULL;
    const struct pd_json_value *value = NULL;
    for (void *cursor = NULL; h->tokenizer && pd_json_next(h->tokenizer, &cursor, &key, &value);) {
        if (strlen(key) > 200) PD_FAIL(err, PD_CORRUPT, "tokenizer.gguf: a key of %zu bytes", strlen(key));
        if (pd_json_type(value) == PD_JSON_ARRAY) {
            PD_TRY(put_array(h, key, value, err));
            continue;
        }
        const enum pd_gguf_type type = type_of(key, value);
        if (type == PD_GGUF_TYPES) PD_FAIL(err, PD_UNSUPPORTED, "tokenizer.gguf: %s is neither a number nor a text", key);
        begin_pair(h, "tokenizer.", key, type);
        put_value(h, type, value);
    }
    if (h->is_refused)
        PD_FAIL(err, PD_UNSUPPORTED,
                "tokenizer.gguf: a number does not fit into 32 bits, or an array has values of several types");
    if (h->rope_count > PD_GGUF_ROPE_FACTORS_MAX)
        PD_FAIL(err, PD_UNSUPPORTED, "heads of %d elements have more RoPE factors than GGUF's reader takes",
                (int)(2 * h->rope_count));
    PD_TRY(put_tensors(h, err));
    pad(h);
    for (uint64_t i = 0; i < h->rope_count; i++)
        put_number(h, PD_GGUF_F32, pd_gguf_rope_factor(&h->rope, i, h->rope_count));
    pad(h);
    const uint64_t counts[2] = {h->wanted->tensor_count + (h->rope_count > 0), h->pairs};
    const off_t end = ftello(h->out);
    (void)fseeko(h->out, 8, SEEK_SET);
    gguf_write_put(h, counts, sizeof counts);
    (void)fseeko(h->out, end, SEEK_SET);
    return PD_OK;
}

static pd_status find_class(struct head *h, struct pd_error *err)
{
    const char *type = pd_json_member_text(h->config, "model_type"), *name = type ? type : "";
    uint32_t family = 0;
    h->class = pd_model_class_find(NULL, name, NULL, &family);
    h->family = pd_families[family];
    if (h->class) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED, "config.json: models of type \"%s\" have no GGUF here", name);
}

static pd_status make_head(struct writer *w, struct head *h, struct pd_error *err)
{
    h->out = open_memstream(&w->head, &w->head_bytes);
    if (!h->out) PD_FAIL(err, PD_NO_MEMORY, "no memory for the head of a GGUF file");
    pd_status st = find_class(h, err);
    if (!st) st = check_router(h, err);
    if (!st) st = put_head(h, err);
    const bool failed = ferror(h->out);
    if ((fclose(h->out) || failed) && !st) PD_FAIL(err, PD_NO_MEMORY, "no memory for the head of a GGUF file");
    return st;
}

static pd_status gguf_write_parse(const struct pd_catalog *wanted, const char *name, struct pd_json_document **ret,
                                  struct pd_error *err)
{
    const struct pd_catalog_text *text = pd_catalog_text(wanted, name);
    return text ? pd_json_parse(name, text->text, text->bytes, ret, err) : PD_OK;
}

static pd_status parse_and_make(struct writer *w, const struct pd_catalog *wanted, struct pd_error *err)
{
    struct pd_json_document *config = NULL, *tokenizer = NULL;
    pd_status st = gguf_write_parse(wanted, "config.json", &config, err);
    if (!st && !config) st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "GGUF needs a config.json to say which model it is");
    if (!st) st = gguf_write_parse(wanted, "tokenizer.gguf", &tokenizer, err);
    struct head h = {.wanted = wanted};
    if (!st) h.config = pd_json_root(config);
    if (!st && tokenizer) h.tokenizer = pd_json_root(tokenizer);
    if (!st) st = make_head(w, &h, err);
    pd_json_document_free(config);
    pd_json_document_free(tokenizer);
    return st;
}

static pd_status place_tensors(const struct writer *w, struct pd_catalog *wanted, struct pd_error *err)
{
    uint64_t bytes = w->head_bytes;
    uint32_t file;
    for (uint32_t t = 0; t < wanted->tensor_count; t++)
        bytes += pd_round_up(pd_foreign_bytes(&wanted->tensors[t]), PD_GGUF_ALIGNMENT);
    PD_TRY(pd_catalog_add_file(wanted, w->path, bytes, &file, err));
    uint64_t offset = w->head_bytes;
    for (uint32_t t = 0; t < wanted->tensor_count; t++) {
        PD_TRY(pd_catalog_place(wanted, t, file, offset, err));
        offset += pd_round_up(pd_foreign_bytes(&wanted->tensors[t]), PD_GGUF_ALIGNMENT);
    }
    return PD_OK;
}

pd_status pd_gguf_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    struct writer *w = *ret_state = calloc(1, sizeof *w);
    if (!w) PD_FAIL(err, PD_NO_MEMORY, "no memory to plan a GGUF file");
    w->vfs = vfs;
    PD_TRY(pd_formats_path(plan->directory, pd_format_gguf.file, w->path, err));
    PD_TRY(parse_and_make(w, plan->wanted, err));
    return place_tensors(w, plan->wanted, err);
}

pd_status pd_gguf_finish(void *state, pd_status mine, struct pd_error *err)
{
    struct writer *w = state;
    const pd_status st = mine ? mine : pd_formats_patch(w->vfs, w->path, w->head, w->head_bytes, err);
    free(w->head);
    free(w);
    return st;
}
