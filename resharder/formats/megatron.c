/* Megatron-Core's distributed checkpoints (torch_dist): a directory whose latest_checkpointed_iteration.txt names
 * iter_<iteration>, or that one. It holds a distributed checkpoint of torch (dcp.c reads it), metadata.json and common.pt, a
 * dictionary with the iteration, Megatron's arguments and groups of parameters.
 *
 * An optimizer that was saved dp_reshardable lies in buckets: parameters of a data-parallel group in reverse of the order in
 * which their modules have them, each on a multiple of 64 elements. No file says that order. It is one of two (Transformer
 * Engine's modules or Megatron's own), and is believed where the fp32 parameters in the buckets, rounded, are the model's:
 * some elements of each are compared.
 * Source: megatron/core/dist_checkpointing; distributed/param_and_grad_buffer.py; optimizer/distrib_optimizer.py. */
#include "resharder/formats/megatron.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/dcp.h"
#include "resharder/torch/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct pd_megatron_size pd_megatron_sizes[] = {
    {"num_layers", "num_hidden_layers", "n_layer"},
    {"hidden_size", "hidden_size", "n_embd"},
    {"num_attention_heads", "num_attention_heads", "n_head"},
    {"num_query_groups", "num_key_value_heads", NULL},
    {"kv_channels", "head_dim", NULL},
    {"ffn_hidden_size", "intermediate_size", "n_inner"},
    {"max_position_embeddings", "max_position_embeddings", "n_positions"},
    {"vocab_size", "vocab_size", "vocab_size"},
    {NULL, NULL, NULL},
};
const struct pd_megatron_family pd_megatron_families[] = {
    {"LlamaForCausalLM", "llama", .is_gpt2 = false},     {"Qwen2ForCausalLM", "qwen2", .qkv_bias = true},
    {"Qwen3ForCausalLM", "qwen3", .head_norms = true},   {"GPT2LMHeadModel", "gpt2", .is_gpt2 = true},
    {"MistralForCausalLM", "mistral", .is_gpt2 = false}, {NULL, NULL, .is_gpt2 = false},
};

/* ---- the directory ---- */

/* `path`, or the iteration that its tracker names; false: neither is a distributed checkpoint of Megatron. */
static bool find_directory(struct pd_vfs *vfs, const char *path, char ret[PD_FORMATS_PATH_MAX])
{
    char tracker[PD_FORMATS_PATH_MAX], name[40], *text = NULL;
    uint64_t bytes = 0;
    unsigned long iteration = 0;
    if (pd_formats_path(path, PD_MEGATRON_TRACKER, tracker, NULL)) return false;
    if (pd_formats_read_text(vfs, tracker, 31, &text, &bytes, NULL) == PD_OK) {
        int used = 0;
        snprintf(name, sizeof name, "release");
        if (sscanf(text, " %10lu %n", &iteration, &used) == 1 && !text[used])
            snprintf(name, sizeof name, "iter_%07lu", iteration);
        free(text);
        if (pd_formats_path(path, name, ret, NULL)) return false;
    } else {
        snprintf(ret, PD_FORMATS_PATH_MAX, "%s", path);
    }
    return pd_formats_has_file(vfs, ret, ".metadata") && pd_formats_has_file(vfs, ret, "common.pt");
}

/* ---- common.pt ---- */

struct common {
    struct pd_file *file;
    struct pd_torch_archive archive;
};

static pd_status open_common(struct pd_vfs *vfs, const char *directory, char path[PD_FORMATS_PATH_MAX], struct common *ret,
                             struct pd_error *err)
{
    struct pd_stat stat;
    PD_TRY(pd_formats_path(directory, "common.pt", path, err));
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &ret->file, err));
    PD_TRY(pd_file_stat(ret->file, &stat, err));
    return pd_torch_open(ret->file, path, 0, stat.bytes, &ret->archive, err);
}

static void note_group(const struct common *c, const struct pd_pickle_node *group, struct pd_catalog_counters *n)
{
    double value = 0;
    const struct pd_pickle_node *step = pd_pickle_member(group, "step"), *rate = pd_pickle_member(group, "lr");
    if (step && !pd_torch_number(&c->archive, "step", step, &value, NULL) && value >= 0)
        n->has_updates = true, n->updates = (uint64_t)value;
    if (rate && !pd_torch_number(&c->archive, "lr", rate, &value, NULL) && value > 0)
        n->has_learning_rate = true, n->learning_rate = value;
}

static void note_counters(const struct common *c, struct pd_catalog_counters *n)
{
    const struct pd_pickle_node *root = pd_pickle_root(c->archive.pickle), *args = pd_pickle_member(root, "args");
    const struct pd_pickle_node *outer = pd_pickle_member(root, "optimizer"), *inner = pd_pickle_member(outer, "optimizer");
    const struct pd_pickle_node *groups = pd_pickle_member(inner, "param_groups");
    n->has_step = pd_pickle_is_u64(pd_pickle_member(root, "iteration"), &n->step);
    if (pd_pickle_is_u64(pd_pickle_field(args, "consumed_train_samples"), &n->samples)) n->has_samples = true;
    note_group(c, pd_pickle_at(groups ? groups : pd_pickle_member(outer, "param_groups"), 0), n);
}

static bool is_on(const struct pd_pickle_node *args, const char *name)
{
    const struct pd_pickle_node *node = pd_pickle_field(args, name);
    return node && node->type == PD_PICKLE_BOOL && node->boolean;
}

static bool says(const struct pd_pickle_node *args, const char *name, const char *value)
{
    const char *text = pd_pickle_text(pd_pickle_field(args, name));
    return text && strcmp(text, value) == 0;
}

/* NULL: a model that we do not have, as far as its arguments say. */
static const struct pd_megatron_family *family_of(const struct pd_pickle_node *args)
{
    const bool is_llama = says(args, "position_embedding_type", "rope") && says(args, "normalization", "RMSNorm") &&
                          is_on(args, "swiglu") && !is_on(args, "add_bias_linear");
    const bool is_gpt2 = says(args, "position_embedding_type", "learned_absolute") &&
                         says(args, "normalization", "LayerNorm") && !is_on(args, "swiglu") &&
                         is_on(args, "add_bias_linear");
    for (const struct pd_megatron_family *f = pd_megatron_families; f->architecture; f++)
        if (f->is_gpt2
                ? is_gpt2
                : is_llama && f->qkv_bias == is_on(args, "add_qkv_bias") && f->head_norms == is_on(args, "qk_layernorm"))
            return f;
    return NULL;
}

static void write_rope(struct pd_json_writer *w, const struct pd_pickle_node *args)
{
    double number = 0;
    if (pd_pickle_is_number(pd_pickle_field(args, "rotary_base"), &number)) pd_json_double(w, "rope_theta", number);
    if (is_on(args, "use_rope_scaling") && pd_pickle_is_number(pd_pickle_field(args, "rope_scaling_factor"), &number)) {
        pd_json_object_begin(w, "rope_scaling"); /* the rest of it is fixed in Megatron */
        pd_json_string(w, "rope_type", "llama3");
        pd_json_double(w, "factor", number);
        pd_json_double(w, "low_freq_factor", 1);
        pd_json_double(w, "high_freq_factor", 4);
        pd_json_u64(w, "original_max_position_embeddings", 8192);
        pd_json_object_end(w);
    } else if (pd_pickle_is_number(pd_pickle_field(args, "rotary_seq_len_interpolation_factor"), &number) && number != 1) {
        pd_json_object_begin(w, "rope_scaling");
        pd_json_string(w, "rope_type", "linear");
        pd_json_double(w, "factor", number);
        pd_json_object_end(w);
    }
}

static void write_config(struct pd_json_writer *w, const struct pd_megatron_family *f, const struct pd_pickle_node *args)
{
    double epsilon = 1e-5;
    uint64_t number = 0;
    pd_json_object_begin(w, NULL);
    pd_json_array_begin(w, "architectures");
    pd_json_string(w, NULL, f->architecture);
    pd_json_array_end(w);
    pd_json_string(w, "model_type", f->type);
    for (const struct pd_megatron_size *s = pd_megatron_sizes; s->argument; s++) {
        const char *key = f->is_gpt2 ? s->gpt2 : s->key;
        const bool is_vocab = strcmp(s->argument, "vocab_size") == 0,
                   is_groups = strcmp(s->argument, "num_query_groups") == 0;
        const char *argument = is_groups && !is_on(args, "group_query_attention") ? "num_attention_heads" : s->argument;
        if (!key) continue;
        if (pd_pickle_is_u64(pd_pickle_field(args, argument), &number) ||
            (is_vocab && pd_pickle_is_u64(pd_pickle_field(args, "padded_vocab_size"), &number)))
            pd_json_u64(w, key, number);
    }
    (void)pd_pickle_is_number(pd_pickle_field(args, "norm_epsilon"), &epsilon);
    pd_json_double(w, f->is_gpt2 ? "layer_norm_epsilon" : "rms_norm_eps", epsilon);
    pd_json_bool(w, "tie_word_embeddings", !is_on(args, "untie_embeddings_and_output_weights"));
    if (!f->is_gpt2) write_rope(w, args);
    pd_json_object_end(w);
}

/* Arguments that are a model of ours become its config.json, where none lies beside. */
static pd_status add_config(const struct common *c, struct pd_catalog *catalog, struct pd_error *err)
{
    const struct pd_pickle_node *args = pd_pickle_member(pd_pickle_root(c->archive.pickle), "args");
    const struct pd_megatron_family *family = args ? family_of(args) : NULL;
    struct pd_json_writer w;
    const char *text = NULL;
    size_t bytes = 0;
    if (!family || pd_catalog_text(catalog, "config.json")) return PD_OK;
    pd_json_writer_init(&w, 2);
    write_config(&w, family, args);
    pd_status st = pd_json_writer_finish(&w, &text, &bytes, err);
    if (!st) st = pd_catalog_add_text(catalog, "config.json", text, bytes, err);
    pd_json_writer_deinit(&w);
    return st;
}

static pd_status read_common(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog, struct pd_error *err)
{
    struct common c = {0};
    char path[PD_FORMATS_PATH_MAX];
    pd_status st = open_common(vfs, directory, path, &c, err);
    if (!st) note_counters(&c, &catalog->counters);
    if (!st) st = add_config(&c, catalog, err);
    pd_torch_close(&c.archive);
    pd_file_close_readonly(c.file);
    return st;
}

/* ---- buckets ---- */

#define ALIGNMENT 64
#define SAMPLES 8
#define BUCKET_PREFIX "optimizer.distributed.dp_group_idx_"

/* A parameter of a module: a tensor of the catalog, or a layer of it. */
struct slot {
    uint32_t tensor;
    uint64_t first, count; /* elements of it */
    uint32_t bucket;
    uint64_t at; /* element of the bucket */
};

struct buckets {
    struct pd_vfs *vfs;
    const struct pd_catalog *raw;       /* finished */
    const char *path;                   /* for messages */
    uint32_t (*tensors)[PD_KIND_COUNT]; /* (count) of raw */
    uint32_t count;
    struct slot *slots; /* (slot_count) in the order of the buckets */
    uint32_t slot_count, slot_capacity;
    bool *is_taken;       /* (raw's tensors) by a slot or as a bucket */
    struct pd_file *file; /* that was read last */
    uint32_t file_number;
};

/* ".._<group>.gbuf_idx_<buffer>.dtype_<..>.bucket_idx_<bucket>.<kind>" */
static bool parse_bucket(const char *name, unsigned long *ret_group, unsigned long *ret_buffer, unsigned long *ret_bucket,
                         int *ret_kind)
{
    static const char *const kinds[PD_KIND_COUNT] = {
        [PD_PARAM] = "param", [PD_EXP_AVG] = "exp_avg", [PD_EXP_AVG_SQ] = "exp_avg_sq"};
    if (strncmp(name, BUCKET_PREFIX, sizeof BUCKET_PREFIX - 1) != 0) return false;
    const char *bucket = strstr(name, ".bucket_idx_"), *last = strrchr(name, '.');
    if (!bucket || sscanf(name + sizeof BUCKET_PREFIX - 1, "%9lu.gbuf_idx_%9lu.", ret_group, ret_buffer) != 2 ||
        sscanf(bucket, ".bucket_idx_%9lu.", ret_bucket) != 1)
        return false;
    for (*ret_kind = 0; *ret_kind < PD_KIND_COUNT; ++*ret_kind)
        if (strcmp(last + 1, kinds[*ret_kind]) == 0) return true;
    return false;
}

static pd_status find_buckets(struct buckets *b, struct pd_error *err)
{
    unsigned long group = 0, buffer = 0, bucket = 0;
    int kind = 0;
    b->tensors = malloc((size_t)b->raw->tensor_count * sizeof *b->tensors);
    b->is_taken = calloc((size_t)b->raw->tensor_count, sizeof *b->is_taken);
    if (!b->tensors || !b->is_taken) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its buckets", b->path);
    memset(b->tensors, 0xff, (size_t)b->raw->tensor_count * sizeof *b->tensors);
    for (uint32_t t = 0; t < b->raw->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &b->raw->tensors[t];
        if (!parse_bucket(tensor->name, &group, &buffer, &bucket, &kind)) continue;
        if (group || buffer)
            PD_FAIL(
                err, PD_UNSUPPORTED,
                "%s: its optimizer lies in buckets (dp_reshardable) of several model-parallel ranks or types; save it with "
                "--dist-ckpt-optim-fully-reshardable",
                b->path);
        if (bucket >= b->raw->tensor_count || tensor->ndim != 1)
            PD_FAIL(err, PD_CORRUPT, "%s: %s is no bucket", b->path, tensor->name);
        b->tensors[bucket][kind] = t;
        b->is_taken[t] = true;
        if (bucket >= b->count) b->count = (uint32_t)bucket + 1;
    }
    for (uint32_t i = 0; i < b->count; i++)
        for (int k = 0; k < PD_KIND_COUNT; k++)
            if (b->tensors[i][k] == UINT32_MAX ||
                b->raw->tensors[b->tensors[i][k]].shape[0] != b->raw->tensors[b->tensors[i][0]].shape[0])
                PD_FAIL(err, PD_CORRUPT, "%s: bucket %u has not all of param, exp_avg and exp_avg_sq", b->path, i);
    return PD_OK;
}

/* Names of a layer's parameters in the order of its modules; '|' is another name for the same. */
static const char *const transformer_engine[] = {
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm.weight",
    "self_attention.k_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
    NULL,
};
static const char *const local[] = {
    "self_attention.linear_qkv.layer_norm_weight",
    "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "input_layernorm.bias",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm.weight",
    "self_attention.k_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight",
    "pre_mlp_layernorm.weight",
    "mlp.linear_fc1.layer_norm_bias",
    "pre_mlp_layernorm.bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
    NULL,
};
static const char *const in_front[] = {"embedding.word_embeddings.weight", "embedding.position_embeddings.weight", NULL};
static const char *const behind[] = {"decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight",
                                     NULL};

static pd_status take(struct buckets *b, const char *name, uint64_t layer, uint64_t layers, struct pd_error *err)
{
    const int64_t found = pd_catalog_find(b->raw, name, PD_PARAM);
    if (found < 0) return PD_OK;
    if (b->slot_count == b->slot_capacity) {
        const uint32_t larger = 2 * b->slot_capacity + 64;
        struct slot *fresh = realloc(b->slots, larger * sizeof *fresh);
        if (!fresh) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %u parameters", b->path, larger);
        b->slots = fresh;
        b->slot_capacity = larger;
    }
    const uint64_t count = pd_foreign_elements(&b->raw->tensors[found]) / layers;
    b->slots[b->slot_count++] = (struct slot){.tensor = (uint32_t)found, .first = layer * count, .count = count};
    b->is_taken[found] = true;
    return PD_OK;
}

static uint64_t count_layers(const struct pd_catalog *raw)
{
    uint64_t layers = 0;
    for (uint32_t t = 0; t < raw->tensor_count; t++) {
        unsigned long number = 0;
        if (sscanf(raw->tensors[t].name, "decoder.layers.%6lu.", &number) == 1)
            layers = pd_max_u64(layers, pd_min_u64(number + 1, raw->tensor_count)); /* each has tensors of its own */
        else if (strncmp(raw->tensors[t].name, "decoder.layers.", 15) == 0)
            layers = pd_max_u64(layers, pd_min_u64(raw->tensors[t].shape[0], 1000000));
    }
    return layers;
}

/* All parameters in the order of their modules, then reversed: so lie their gradients, and what belongs to them. */
static pd_status list_slots(struct buckets *b, const char *const *order, struct pd_error *err)
{
    const uint64_t layers = count_layers(b->raw);
    char name[PD_FOREIGN_NAME_MAX];
    b->slot_count = 0;
    for (int i = 0; in_front[i]; i++)
        PD_TRY(take(b, in_front[i], 0, 1, err));
    for (uint64_t l = 0; l < layers; l++)
        for (const char *const *suffix = order; *suffix; suffix++) {
            snprintf(name, sizeof name, "decoder.layers.%s", *suffix);
            const int64_t stacked = pd_catalog_find(b->raw, name, PD_PARAM);
            if (stacked >= 0 && b->raw->tensors[stacked].shape[0] == layers) PD_TRY(take(b, name, l, layers, err));
            snprintf(name, sizeof name, "decoder.layers.%" PRIu64 ".%s", l, *suffix);
            PD_TRY(take(b, name, 0, 1, err));
        }
    for (int i = 0; behind[i]; i++)
        PD_TRY(take(b, behind[i], 0, 1, err));
    for (uint32_t i = 0; i < b->slot_count / 2; i++) {
        const struct slot other = b->slots[i];
        b->slots[i] = b->slots[b->slot_count - 1 - i];
        b->slots[b->slot_count - 1 - i] = other;
    }
    return PD_OK;
}

/* False: they do not fill the buckets. */
static bool place_slots(struct buckets *b)
{
    uint64_t at = 0;
    uint32_t bucket = 0;
    for (uint32_t i = 0; i < b->slot_count; i++) {
        struct slot *s = &b->slots[i];
        at = pd_round_up(at, ALIGNMENT);
        if (bucket < b->count && at && at >= b->raw->tensors[b->tensors[bucket][0]].shape[0]) {
            bucket++;
            at = 0;
        }
        if (bucket == b->count || !pd_checked_range(at, s->count, b->raw->tensors[b->tensors[bucket][0]].shape[0]))
            return false;
        s->bucket = bucket;
        s->at = at;
        at += s->count;
        if (at == b->raw->tensors[b->tensors[bucket][0]].shape[0]) {
            bucket++;
            at = 0;
        }
    }
    return bucket == b->count;
}

/* Where element `i` of a tensor lies; NULL: in no piece. */
static const struct pd_piece *find_element(const struct pd_catalog *raw, const struct pd_foreign_tensor *t, uint64_t i,
                                           uint64_t *ret_offset)
{
    for (uint64_t n = t->piece_begin; n < t->piece_begin + t->piece_count; n++) {
        const struct pd_piece *p = &raw->pieces[n];
        uint64_t left = i, offset = 0, dense = 1;
        bool is_inside = true;
        if (p->is_range) {
            is_inside = i >= p->start[0] && i - p->start[0] < p->count[0];
            offset = i - p->start[0];
        }
        for (uint32_t d = t->ndim; d-- > 0 && !p->is_range; dense *= p->count[d]) {
            const uint64_t place = left % t->shape[d];
            left /= t->shape[d];
            is_inside = is_inside && place >= p->start[d] && place - p->start[d] < p->count[d];
            offset += (place - p->start[d]) * (p->stride[d] ? p->stride[d] : dense);
        }
        if (!is_inside) continue;
        *ret_offset = p->offset + offset * pd_elements[t->element].block_bytes;
        return p;
    }
    return NULL;
}

static pd_status read_element(struct buckets *b, uint32_t tensor, uint64_t i, float *ret, struct pd_error *err)
{
    const struct pd_foreign_tensor *t = &b->raw->tensors[tensor];
    unsigned char stored[16];
    uint64_t offset = 0;
    const struct pd_piece *piece = find_element(b->raw, t, i, &offset);
    if (!piece || pd_elements[t->element].block_elements != 1)
        PD_FAIL(err, PD_CORRUPT, "%s: element %" PRIu64 " of %s is nowhere", b->path, i, t->name);
    if (!b->file || piece->file != b->file_number) {
        pd_file_close_readonly(b->file);
        b->file = NULL;
        b->file_number = piece->file;
        PD_TRY(pd_file_open(b->vfs, b->raw->files[piece->file].path, PD_OPEN_READ, &b->file, err));
    }
    PD_TRY(pd_file_read(b->file, offset, stored, pd_elements[t->element].block_bytes, err));
    pd_elements[t->element].to_f32(stored, 1, ret);
    return PD_OK;
}

/* Whether the parameters in the buckets are the model's, rounded. */
static pd_status check_slot(struct buckets *b, const struct slot *s, bool *ret_is_same, struct pd_error *err)
{
    const struct pd_element_row *element = &pd_elements[b->raw->tensors[s->tensor].element];
    for (uint64_t k = 0; k < SAMPLES && *ret_is_same; k++) {
        const uint64_t i = s->count / SAMPLES * k + k % pd_max_u64(s->count / SAMPLES, 1);
        unsigned char stored[16];
        float model = 0, master = 0;
        if (i >= s->count) break;
        PD_TRY(read_element(b, s->tensor, s->first + i, &model, err));
        PD_TRY(read_element(b, b->tensors[s->bucket][PD_PARAM], s->at + i, &master, err));
        element->from_f32(&master, 1, stored);
        element->to_f32(stored, 1, &master);
        *ret_is_same = memcmp(&model, &master, sizeof model) == 0;
    }
    return PD_OK;
}

static pd_status find_order(struct buckets *b, struct pd_error *err)
{
    const char *const *const orders[] = {transformer_engine, local};
    for (int o = 0; o < 2; o++) {
        bool is_same = true;
        PD_TRY(list_slots(b, orders[o], err));
        is_same = place_slots(b);
        for (uint32_t i = 0; i < b->slot_count && is_same; i++)
            PD_TRY(check_slot(b, &b->slots[i], &is_same, err));
        if (is_same) return PD_OK;
    }
    PD_FAIL(
        err, PD_UNSUPPORTED,
        "%s: its optimizer lies in buckets (dp_reshardable), and its parameters in them in no order that we know; save it "
        "with --dist-ckpt-optim-fully-reshardable",
        b->path);
}

/* ---- the catalog without buckets ---- */

static pd_status copy_tensor(const struct pd_catalog *raw, uint32_t t, struct pd_catalog *to, struct pd_error *err)
{
    const struct pd_foreign_tensor *tensor = &raw->tensors[t];
    uint32_t number = 0;
    PD_TRY(pd_catalog_add_tensor(to, tensor, &number, err));
    for (uint64_t p = tensor->piece_begin; p < tensor->piece_begin + tensor->piece_count; p++)
        PD_TRY(pd_catalog_add_piece(to, number, &raw->pieces[p], err));
    return PD_OK;
}

static pd_status copy_rest(const struct buckets *b, struct pd_catalog *to, struct pd_error *err)
{
    for (uint32_t f = 0; f < b->raw->file_count; f++)
        PD_TRY(pd_catalog_add_file(to, b->raw->files[f].path, b->raw->files[f].bytes, NULL, err));
    for (uint32_t i = 0; i < b->raw->text_count; i++)
        PD_TRY(pd_catalog_add_text(to, b->raw->texts[i].name, b->raw->texts[i].text, b->raw->texts[i].bytes, err));
    for (uint32_t i = 0; i < b->raw->unmapped_count; i++)
        PD_TRY(pd_catalog_add_unmapped(to, b->raw->unmapped[i], err));
    for (uint32_t t = 0; t < b->raw->tensor_count; t++)
        if (!b->is_taken[t]) PD_TRY(copy_tensor(b->raw, t, to, err));
    return PD_OK;
}

/* What a slot has of its bucket's pieces, as ranges of its tensor. */
static pd_status add_ranges(const struct buckets *b, const struct slot *s, int kind, uint32_t number, struct pd_catalog *to,
                            struct pd_error *err)
{
    const struct pd_foreign_tensor *bucket = &b->raw->tensors[b->tensors[s->bucket][kind]];
    for (uint64_t n = bucket->piece_begin; n < bucket->piece_begin + bucket->piece_count; n++) {
        const struct pd_piece *p = &b->raw->pieces[n];
        const uint64_t low = pd_max_u64(p->start[0], s->at), high = pd_min_u64(p->start[0] + p->count[0], s->at + s->count);
        if (low >= high) continue;
        if (p->stride[0] > 1) PD_FAIL(err, PD_UNSUPPORTED, "%s: pieces of %s have strides", b->path, bucket->name);
        struct pd_piece range = {.file = p->file, .is_range = true};
        range.offset = p->offset + (low - p->start[0]) * pd_elements[bucket->element].block_bytes;
        range.start[0] = s->first + (low - s->at);
        range.count[0] = high - low;
        PD_TRY(pd_catalog_add_piece(to, number, &range, err));
    }
    return PD_OK;
}

static pd_status add_slots(const struct buckets *b, struct pd_catalog *to, struct pd_error *err)
{
    uint32_t(*numbers)[PD_KIND_COUNT] = malloc(((size_t)b->raw->tensor_count + 1) * sizeof *numbers);
    pd_status st = PD_OK;
    if (!numbers) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its tensors", b->path);
    memset(numbers, 0xff, ((size_t)b->raw->tensor_count + 1) * sizeof *numbers);
    for (uint32_t i = 0; i < b->slot_count && !st; i++)
        for (int k = 0; k < PD_KIND_COUNT && !st; k++) {
            const struct slot *s = &b->slots[i];
            struct pd_foreign_tensor tensor = b->raw->tensors[s->tensor];
            tensor.kind = (enum pd_kind)k;
            tensor.element = b->raw->tensors[b->tensors[s->bucket][k]].element;
            if (numbers[s->tensor][k] == UINT32_MAX) st = pd_catalog_add_tensor(to, &tensor, &numbers[s->tensor][k], err);
            if (!st) st = add_ranges(b, s, k, numbers[s->tensor][k], to, err);
        }
    free(numbers);
    return st;
}

static bool has_buckets(const struct pd_catalog *catalog)
{
    for (uint32_t t = 0; t < catalog->tensor_count; t++)
        if (strncmp(catalog->tensors[t].name, BUCKET_PREFIX, sizeof BUCKET_PREFIX - 1) == 0) return true;
    return false;
}

static pd_status spread_buckets(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog, struct pd_error *err)
{
    struct pd_catalog raw = *catalog;
    struct buckets b = {.vfs = vfs, .raw = &raw, .path = directory};
    pd_catalog_init(catalog, raw.format);
    catalog->counters = raw.counters;
    pd_status st = pd_catalog_finish(&raw, err);
    if (!st) st = find_buckets(&b, err);
    if (!st) st = find_order(&b, err);
    if (!st) st = copy_rest(&b, catalog, err);
    if (!st) st = add_slots(&b, catalog, err);
    pd_file_close_readonly(b.file);
    free(b.slots);
    free(b.tensors);
    free(b.is_taken);
    pd_catalog_deinit(&raw);
    return st;
}

/* ---- the whole ---- */

static pd_status check_backend(struct pd_vfs *vfs, const char *directory, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX], *text = NULL;
    uint64_t bytes = 0;
    if (!pd_formats_has_file(vfs, directory, "metadata.json")) return PD_OK;
    PD_TRY(pd_formats_path(directory, "metadata.json", path, err));
    PD_TRY(pd_formats_read_text(vfs, path, 1 << 16, &text, &bytes, err));
    const bool is_torch = strstr(text, "\"torch_dist\"") != NULL;
    free(text);
    if (!is_torch)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: its sharded_backend is not torch_dist; save it with --ckpt-format torch_dist",
                path);
    return PD_OK;
}

/* A line for all modules, and none for what says how buckets are cut. */
static pd_status shorten_unmapped(struct pd_catalog *catalog, struct pd_error *err)
{
    const uint32_t modules = pd_catalog_drop_unmapped(catalog, "._extra_state/");
    char text[64];
    (void)pd_catalog_drop_unmapped(catalog, ".per_bucket_numel");
    snprintf(text, sizeof text, "_extra_state (of fp8) of %u modules", modules);
    return modules ? pd_catalog_add_unmapped(catalog, text, err) : PD_OK;
}

static pd_status read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    char directory[PD_FORMATS_PATH_MAX];
    if (!find_directory(vfs, path, directory))
        PD_FAIL(err, PD_NOT_FOUND, "%s: no %s that names a distributed checkpoint", path, PD_MEGATRON_TRACKER);
    PD_TRY(check_backend(vfs, directory, err));
    PD_TRY(pd_dcp_read(vfs, directory, catalog, err));
    PD_TRY(read_common(vfs, directory, catalog, err));
    PD_TRY(shorten_unmapped(catalog, err));
    return has_buckets(catalog) ? spread_buckets(vfs, directory, catalog, err) : PD_OK;
}

static bool recognizes(struct pd_vfs *vfs, const char *path)
{
    char directory[PD_FORMATS_PATH_MAX];
    return find_directory(vfs, path, directory);
}

const struct pd_format pd_format_megatron = {
    .name = "megatron",
    .about = "Megatron-Core's torch_dist: a directory with latest_checkpointed_iteration.txt, or that of an iteration",
    .holds_moments = true,
    .recognizes = recognizes,
    .read = read_checkpoint,
    .plan = pd_megatron_plan,
    .observe = pd_megatron_observe,
    .finish = pd_megatron_finish,
};
