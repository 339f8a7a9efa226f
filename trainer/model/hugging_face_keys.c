/* Treatment of each key of a config.json. A key in no row is refused by name, because it may change what the model computes.
 * Sources: the configuration classes of transformers 4.57 and 5.24; tests/golden/keys lists their keys. */
#include "trainer/model/hugging_face.h"

#include "ckpt/base/json.h"

#include <stdio.h>
#include <string.h>

/* Lists of words, each with a blank on both sides. */
static const char used[] = " architectures model_type tie_word_embeddings initializer_range bos_token_id eos_token_id ";

/* Only one value is supported; "": only absence. */
static const struct only {
    const char *name;
    const char *value, *why;
} only[] = {
    {"mlp_bias", "false", "no MLP has biases by that key here"},
    {"partial_rotary_factor", "1", "RoPE rotates whole heads here"},
    {"router_jitter_noise", "0", "router inputs have no noise here"},
    {"decoder_sparse_step", "1", "every block has experts here"},
    {"mlp_only_layers", "", "every block has experts here"},
    {"clip_qkv", "", "q, k and v are not clipped here"},
    {"scoring_func", "sigmoid", "scores of this router are sigmoids here"},
    {"topk_method", "noaux_tc", "the router has a selection bias here"},
    {"rope_interleaved", "false", "RoPE rotates the halves of a head here"},
    {"use_mrope", "false", "positions have one dimension here"},
    {"scale_attn_weights", "true", "scores are always divided by the root of the head size here"},
    {"scale_attn_by_inverse_layer_idx", "false", "scores are not divided by the layer's number here"},
    {"add_cross_attention", "false", "there is no cross-attention here"},
    {"is_encoder_decoder", "false", "models have no encoder here"},
    {"tie_encoder_decoder", "false", "models have no encoder here"},
    {"quantization_config", "", "weights are stored quantized; take the model they were made of"},
    {"compression_config", "", "weights are stored compressed; take the model they were made of"},
    {"pruned_heads", "", "all blocks have the same heads here"},
    {"per_layer_config", "", "all blocks have the same configuration here"},
    {"auto_map", "", "the model brings code of its own, which may compute something else"},
};

/* For training, the program, classifiers, and generation (in old configurations): logits do not depend on them. */
static const char harmless[] =
    " _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash"
    " _experts_implementation_internal _flash_attn_2_enabled _name_or_path assistant_confidence_threshold"
    " assistant_lookbehind attention_dropout attn_implementation attn_pdrop bad_words_ids begin_suppress_tokens"
    " chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype"
    " early_stopping embd_pdrop encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff"
    " exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing"
    " hidden_dropout id2label is_decoder is_llama_config label2id length_penalty max_length max_new_tokens"
    " max_sequence_length min_length model_max_length n_ctx name_or_path no_repeat_ngram_size num_assistant_tokens"
    " num_assistant_tokens_schedule num_beam_groups num_beams num_labels num_mtp_layers num_nextn_predict_layers "
    "num_return_sequences output_attentions"
    " output_hidden_states output_past output_router_logits output_scores pad_token_id predict_special_tokens prefix "
    "pretraining_tp"
    " problem_type remove_invalid_values reorder_and_upcast_attn repetition_penalty resid_pdrop return_dict"
    " return_dict_in_generate sep_token_id summary_activation summary_first_dropout summary_proj_to_labels"
    " summary_type summary_use_proj suppress_tokens target_lookbehind task_specific_params temperature tf_legacy_loss"
    " tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version typical_p"
    " unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache ";

static bool is_among(const char *names, const char *name)
{
    const size_t bytes = strlen(name);
    for (const char *at = names; bytes && !strchr(name, ' ') && (at = strstr(at, name)); at++)
        if (at[-1] == ' ' && at[bytes] == ' ') return true;
    return false;
}

static bool is_used(const struct pd_family *f, const char *key)
{
    for (int i = 0; i < PD_NUMBER_COUNT; i++)
        if (f->keys[i].config && strcmp(f->keys[i].config, key) == 0) return true;
    for (const char *const *zero = f->zero_keys; *zero; zero++)
        if (strcmp(*zero, key) == 0) return true;
    return strcmp(f->activation_key, key) == 0 || is_among(f->other_keys, key) || is_among(used, key);
}

static const struct only *find_only(const char *name)
{
    for (size_t i = 0; i < sizeof only / sizeof *only; i++)
        if (strcmp(only[i].name, name) == 0) return &only[i];
    return NULL;
}

/* A value for messages; for an object or list only its kind. */
static const char *value_text(const struct pd_json_value *value, char buffer[64])
{
    bool is_on;
    double number;
    if (pd_json_is_bool(value, &is_on)) return is_on ? "true" : "false";
    if (pd_json_is_number(value, &number))
        snprintf(buffer, 64, "%.9g", number);
    else
        snprintf(buffer, 64, "%.60s", pd_json_text(value) ? pd_json_text(value) : "there");
    return buffer;
}

static bool is_empty(const struct pd_json_value *value)
{
    void *cursor = NULL;
    const char *key;
    const struct pd_json_value *inner;
    const enum pd_json_type type = pd_json_type(value);
    return type == PD_JSON_NULL || (type == PD_JSON_ARRAY && !pd_json_count(value)) ||
           (type == PD_JSON_OBJECT && !pd_json_next(value, &cursor, &key, &inner));
}

/* GGUF metadata that resharder/formats/gguf.c does not read, after "gguf.". */
static pd_status refuse_gguf(const char *name, const char *key, const char *text, const struct pd_family *f,
                             struct pd_error *err)
{
    for (int i = 0; i < PD_NUMBER_COUNT; i++) {
        const char *inner = strchr(key, '.');
        if (inner && f->keys[i].gguf && strcmp(f->keys[i].gguf, inner + 1) == 0)
            PD_FAIL(err, PD_UNSUPPORTED, "%s: %s %s, which perdure does not support", name, key, text);
    }
    PD_FAIL(
        err, PD_UNSUPPORTED,
        "%s: perdure does not compute the key %.200s (%s), which may change what the model computes; if it does not, say "
        "the model with its config.json: perdure ckpt import --config=FILE",
        name, key, text);
}

pd_status pd_hugging_face_check_keys(const char *name, const struct pd_json_value *root, const struct pd_family *family,
                                     struct pd_error *err)
{
    const struct pd_json_value *value;
    const char *key;
    char buffer[64];
    for (void *cursor = NULL; pd_json_next(root, &cursor, &key, &value);) {
        if (is_empty(value) || is_used(family, key) || is_among(harmless, key)) continue;
        const char *text = value_text(value, buffer);
        if (strncmp(key, "gguf.", 5) == 0) return refuse_gguf(name, key + 5, text, family, err);
        const struct only *known = find_only(key);
        if (!known)
            PD_FAIL(err, PD_UNSUPPORTED,
                    "%s: perdure does not know the key %.200s (%s), which may change what the model computes; if it does "
                    "not, take it out of config.json",
                    name, key, text);
        if (strcmp(text, known->value) != 0)
            PD_FAIL(err, PD_UNSUPPORTED, "%s: %s is %s, and %s", name, key, text, known->why);
    }
    return PD_OK;
}
