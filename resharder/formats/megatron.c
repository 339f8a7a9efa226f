/* Megatron-Core's distributed checkpoints (torch_dist): a directory whose latest_checkpointed_iteration.txt names
 * iter_<iteration>, or the latter. It holds a distributed checkpoint of torch (dcp.c reads it), metadata.json and
 * common.pt, a dictionary with the iteration, Megatron's arguments and parameter groups.
 *
 * Source: megatron/core/dist_checkpointing. */
#include "resharder/formats/megatron.h"

#include "ckpt/base/json.h"
#include "resharder/catalog/family.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/dcp.h"
#include "resharder/torch/archive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the directory ---- */

/* Finds `path`, or the iteration that its tracker names; false: neither is a distributed checkpoint of Megatron. */
static bool megatron_find_directory(struct pd_vfs *vfs, const char *path, char ret[PD_FORMATS_PATH_MAX])
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

static void note_group(const struct pd_torch_archive *common, const struct pd_pickle_node *group,
                       struct pd_catalog_counters *n)
{
    double value = 0;
    if (pd_torch_number(common, "step", pd_pickle_member(group, "step"), &value, NULL)) return;
    if (pd_torch_is_count(value, &n->updates)) n->has_updates = true;
}

static void note_counters(const struct pd_torch_archive *common, struct pd_catalog_counters *n)
{
    const struct pd_pickle_node *root = pd_pickle_root(common->pickle), *args = pd_pickle_member(root, "args");
    const struct pd_pickle_node *outer = pd_pickle_member(root, "optimizer"), *inner = pd_pickle_member(outer, "optimizer");
    const struct pd_pickle_node *groups = pd_pickle_member(inner, "param_groups");
    n->has_step = pd_pickle_is_u64(pd_pickle_member(root, "iteration"), &n->step);
    if (pd_pickle_is_u64(pd_pickle_field(args, "consumed_train_samples"), &n->samples)) n->has_samples = true;
    note_group(common, pd_pickle_at(groups ? groups : pd_pickle_member(outer, "param_groups"), 0), n);
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

/* True if the arguments describe a class, as put_model of megatron_write.c writes them. */
static bool is_class(const struct pd_pickle_node *args, const struct pd_family *f, const struct pd_model_class *class)
{
    return says(args, "position_embedding_type", f->positions == PD_POSITIONS_ROPE ? "rope" : "learned_absolute") &&
           says(args, "normalization", f->norm == PD_NORM_RMS ? "RMSNorm" : "LayerNorm") &&
           is_on(args, "swiglu") == (f->activation == PD_ACTIVATION_SWIGLU) &&
           is_on(args, "add_bias_linear") == f->has_linear_biases &&
           (f->qk_norm == PD_QK_NORM_OPTIONAL || is_on(args, "qk_layernorm") == (f->qk_norm == PD_QK_NORM_HEADS)) &&
           pd_megatron_is_router(args, f) &&
           (class->has_qkv_bias_key || f->has_linear_biases || is_on(args, "add_qkv_bias") == class->qkv_bias);
}

static void write_rope(struct pd_json_writer *w, const struct pd_pickle_node *args)
{
    double number = 0;
    if (pd_pickle_is_number(pd_pickle_field(args, "rotary_base"), &number)) pd_json_double(w, "rope_theta", number);
    if (is_on(args, "use_rope_scaling") && pd_pickle_is_number(pd_pickle_field(args, "rope_scaling_factor"), &number)) {
        pd_rope_factors_write(&(struct pd_rope_factors){true, number, 1, 4, 8192}, w); /* Megatron fixes the others */
    } else if (pd_pickle_is_number(pd_pickle_field(args, "rotary_seq_len_interpolation_factor"), &number) && number != 1) {
        pd_rope_factors_write(&(struct pd_rope_factors){.factor = number}, w);
    }
}

/* Arguments that change the model beyond what a config.json here can express go into it under their own names, so that
 * code that reads a model from it rejects them. */
static void write_refused(struct pd_json_writer *w, const struct pd_pickle_node *args, const struct pd_family *family,
                          const struct pd_model_class *class)
{
    static const struct {
        const char *name;
        double neutral;
    } keys[] = {{"rotary_percent", 1}, {"rotary_interleaved", 0}, {"apply_layernorm_1p", 0},
                {"squared_relu", 0},   {"num_experts", 0},        {"multi_latent_attention", 0},
                {"mtp_num_layers", 0}, {"is_hybrid_model", 0},    {"attention_output_gate", 0},
                {"window_size", 0},    {"no_rope_freq", 0},       {"heterogeneous_layers_config_path", 0}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct pd_pickle_node *node = pd_pickle_field(args, keys[i].name);
        char key[80];
        double number = NAN;
        if (!node || node->type == PD_PICKLE_NONE) continue;
        if (node->type == PD_PICKLE_BOOL)
            number = node->boolean;
        else
            (void)pd_pickle_is_number(node, &number);
        const bool is_router = family->router && strcmp(keys[i].name, "num_experts") == 0;
        const bool is_partial = class->rotated_part > 0 && strcmp(keys[i].name, "rotary_percent") == 0;
        if (number == keys[i].neutral || is_router || is_partial) continue;
        snprintf(key, sizeof key, "megatron.%s", keys[i].name);
        if (isnan(number))
            pd_json_string(w, key, "set");
        else
            pd_json_double(w, key, number);
    }
}

/* Arguments of a supported model become its config.json, if there is none. */
static pd_status add_config(const struct pd_torch_archive *common, struct pd_catalog *catalog, struct pd_error *err)
{
    const struct pd_pickle_node *args = pd_pickle_member(pd_pickle_root(common->pickle), "args");
    const struct pd_family *const *family = pd_families;
    const struct pd_model_class *c = NULL;
    struct pd_json_writer w;
    if (!args || pd_catalog_text(catalog, "config.json")) return PD_OK;
    for (; *family; family++) {
        c = (*family)->classes;
        while (c->name && !is_class(args, *family, c))
            c++;
        if (c->name) break;
    }
    if (!*family) return PD_OK;
    pd_json_writer_init(&w, 2);
    const struct pd_family *f = *family;
    double epsilon = 1e-5;
    uint64_t number = 0;
    pd_json_object_begin(&w, NULL);
    pd_model_class_write(c, &w);
    for (int i = 0; i < PD_NUMBER_EPSILON; i++) {
        const bool has_groups = i != PD_NUMBER_KV_HEADS || is_on(args, "group_query_attention");
        const char *argument = f->keys[has_groups ? i : PD_NUMBER_HEADS].megatron;
        const bool is_router =
            f->router && (i == PD_NUMBER_EXPERT_FFN || (i == PD_NUMBER_FFN && !f->keys[PD_NUMBER_EXPERT_FFN].config));
        if (!f->keys[i].config || is_router) continue;
        if (pd_pickle_is_u64(pd_pickle_field(args, argument), &number) ||
            (i == PD_NUMBER_VOCAB && pd_pickle_is_u64(pd_pickle_field(args, "padded_vocab_size"), &number)))
            pd_json_u64(&w, f->keys[i].config, number);
    }
    (void)pd_pickle_is_number(pd_pickle_field(args, "norm_epsilon"), &epsilon);
    pd_json_double(&w, f->keys[PD_NUMBER_EPSILON].config, epsilon);
    pd_json_bool(&w, "tie_word_embeddings", !is_on(args, "untie_embeddings_and_output_weights"));
    if (f->positions == PD_POSITIONS_ROPE) write_rope(&w, args);
    if (f->router) pd_megatron_read_router(&w, args, f, c);
    write_refused(&w, args, f, c);
    pd_json_object_end(&w);
    return pd_catalog_add_json(catalog, "config.json", &w, PD_OK, err);
}

static pd_status read_common(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog, struct pd_error *err)
{
    struct pd_torch_archive common = {0};
    char path[PD_FORMATS_PATH_MAX];
    PD_TRY(pd_formats_path(directory, "common.pt", path, err));
    PD_TRY(pd_torch_open_file(vfs, path, &common, err));
    note_counters(&common, &catalog->counters);
    const pd_status st = add_config(&common, catalog, err);
    pd_torch_close(&common);
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

static pd_status megatron_read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog,
                                          struct pd_error *err)
{
    char directory[PD_FORMATS_PATH_MAX];
    if (!megatron_find_directory(vfs, path, directory))
        PD_FAIL(err, PD_NOT_FOUND, "%s: no %s that names a distributed checkpoint", path, PD_MEGATRON_TRACKER);
    PD_TRY(check_backend(vfs, directory, err));
    PD_TRY(pd_dcp_read(vfs, directory, catalog, err));
    PD_TRY(read_common(vfs, directory, catalog, err));
    /* One line for all modules, and none for the metadata of buckets. */
    const uint32_t modules = pd_catalog_drop_unmapped(catalog, "._extra_state/");
    char text[64];
    (void)pd_catalog_drop_unmapped(catalog, ".per_bucket_numel");
    snprintf(text, sizeof text, "_extra_state (of fp8) of %u modules", modules);
    PD_TRY(modules ? pd_catalog_add_unmapped(catalog, text, err) : PD_OK);
    return pd_megatron_spread_buckets(vfs, directory, catalog, err);
}

static bool megatron_recognizes(struct pd_vfs *vfs, const char *path)
{
    char directory[PD_FORMATS_PATH_MAX];
    return megatron_find_directory(vfs, path, directory);
}

const struct pd_format pd_format_megatron = {
    .name = "megatron",
    .about = "Megatron-Core's torch_dist: directory with latest_checkpointed_iteration.txt, or its iter_*",
    .holds_moments = true,
    .recognizes = megatron_recognizes,
    .read = megatron_read_checkpoint,
    .plan = pd_megatron_plan,
    .observe = pd_megatron_observe,
    .finish = pd_megatron_finish,
};
