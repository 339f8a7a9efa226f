#include "trainer/model/hugging_face.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As published, but for keys that nobody here reads. */
static const char llama32_1b[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0,"
    " \"bos_token_id\": 128000, \"eos_token_id\": [128001, 128008, 128009], \"head_dim\": 64, \"hidden_act\": \"silu\","
    " \"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": 8192, \"max_position_embeddings\": 131072,"
    " \"mlp_bias\": false, \"model_type\": \"llama\", \"num_attention_heads\": 32, \"num_hidden_layers\": 16,"
    " \"num_key_value_heads\": 8, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"factor\": 32.0,"
    " \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, \"original_max_position_embeddings\": 8192,"
    " \"rope_type\": \"llama3\"}, \"rope_theta\": 500000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\","
    " \"use_cache\": true, \"vocab_size\": 128256}";
static const char gpt2[] =
    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.1,"
    " \"bos_token_id\": 50256, \"eos_token_id\": 50256, \"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\","
    " \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 12, \"n_positions\": 1024, \"vocab_size\": 50257}";
static const char mistral_7b[] =
    "{\"architectures\": [\"MistralForCausalLM\"], \"hidden_act\": \"silu\", \"hidden_size\": 4096,"
    " \"intermediate_size\": 14336, \"max_position_embeddings\": 32768, \"model_type\": \"mistral\","
    " \"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05,"
    " \"rope_theta\": 10000.0, \"sliding_window\": null, \"tie_word_embeddings\": false, \"vocab_size\": 32000}";
static const char qwen25_7b[] =
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_act\": \"silu\", \"hidden_size\": 3584,"
    " \"intermediate_size\": 18944, \"max_position_embeddings\": 131072, \"max_window_layers\": 28,"
    " \"model_type\": \"qwen2\", \"num_attention_heads\": 28, \"num_hidden_layers\": 28, \"num_key_value_heads\": 4,"
    " \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, \"sliding_window\": 131072, \"tie_word_embeddings\": false,"
    " \"use_sliding_window\": false, \"vocab_size\": 152064}";

static const char qwen3_06b[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"head_dim\": 128, \"hidden_act\": \"silu\","
    " \"hidden_size\": 1024, \"initializer_range\": 0.02, \"intermediate_size\": 3072, \"max_position_embeddings\": 40960,"
    " \"max_window_layers\": 28, \"model_type\": \"qwen3\", \"num_attention_heads\": 16, \"num_hidden_layers\": 28,"
    " \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000,"
    " \"sliding_window\": null, \"tie_word_embeddings\": true, \"use_sliding_window\": false, \"vocab_size\": 151936}";

static struct pd_model_config read(const char *text, struct pd_special_tokens *ret_tokens)
{
    struct pd_model_config c;
    struct pd_error err;
    cr_assert_eq(pd_hugging_face_read("config.json", text, strlen(text), &c, ret_tokens, &err), PD_OK, "%s", err.message);
    return c;
}

static const char qwen3_moe_30b[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":"
    "151643,"
    "\"decoder_sparse_step\":1,\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
    "\"initializer_range\":0.02,\"intermediate_size\":6144,\"max_position_embeddings\":40960,\"max_window_layers\":48,"
    "\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\",\"moe_intermediate_size\":768,\"norm_topk_prob\":true,"
    "\"num_attention_heads\":32,\"num_experts\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":48,"
    "\"num_key_value_heads\":4,\"output_router_logits\":false,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,"
    "\"rope_theta\":1000000.0,\"router_aux_loss_coef\":0.001,\"sliding_window\":null,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.51.0\",\"use_cache\":true,\"use_sliding_window\":false,"
    "\"vocab_size\":151936}";
static const char glm45_air[] =
    "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"attention_bias\":true,\"attention_dropout\":0.0,\"pad_token_id\":151329,"
    "\"eos_token_id\":[151329,151336,151338],\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":4096,"
    "\"partial_rotary_factor\":0.5,\"initializer_range\":0.02,\"intermediate_size\":10944,"
    "\"max_position_embeddings\":131072,\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":1408,"
    "\"norm_topk_prob\":true,\"num_attention_heads\":96,\"n_group\":1,\"topk_group\":1,\"n_routed_experts\":128,"
    "\"n_shared_experts\":1,\"routed_scaling_factor\":1.0,\"num_experts_per_tok\":8,\"first_k_dense_replace\":1,"
    "\"num_hidden_layers\":46,\"num_key_value_heads\":8,\"num_nextn_predict_layers\":1,\"rms_norm_eps\":1e-05,"
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"use_cache\":true,\"use_qk_norm\":false,\"vocab_size\":151552}";

Test(hugging_face, experts_that_are_missing_something)
{
    static const char *const cases[][3] = {
        {"DeepseekV3ForCausalLM", "deepseek_v3", "has latent attention (kv_lora_rank), which perdure does not compute"},
        {"GptOssForCausalLM", "gpt_oss", "has attention sinks, biased experts and clamped SwiGLU"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_model_config config;
        struct pd_error err;
        char text[128];
        const int bytes =
            snprintf(text, sizeof text, "{\"architectures\":[\"%s\"],\"model_type\":\"%s\"}", cases[i][0], cases[i][1]);
        cr_assert_eq(pd_hugging_face_read("config.json", text, (size_t)bytes, &config, NULL, &err), PD_UNSUPPORTED);
        cr_expect(strstr(err.message, cases[i][0]) && strstr(err.message, cases[i][2]), "%s", err.message);
    }
}

static void expect_same(const struct pd_model_config *a, const struct pd_model_config *b, const char *what)
{
#define SAME(member) cr_expect(a->member == b->member, "%s: %s %g %g", what, #member, (double)a->member, (double)b->member)
    SAME(family);
    SAME(vocab);
    SAME(context);
    SAME(layers);
    SAME(hidden);
    SAME(heads);
    SAME(kv_heads);
    SAME(head_size);
    SAME(ffn);
    SAME(qkv_bias);
    SAME(tie_embeddings);
    SAME(norm_epsilon);
    SAME(rope_theta);
    SAME(rope_scaling);
    SAME(rope_factor);
    SAME(rope_low_frequency_factor);
    SAME(rope_high_frequency_factor);
    SAME(rope_original_context);
    SAME(init_std);
    SAME(qk_norm);
    SAME(rotated);
    SAME(experts);
    SAME(experts_per_token);
    SAME(expert_ffn);
    SAME(shared_experts);
    SAME(dense_blocks);
    SAME(router_groups);
    SAME(router_groups_kept);
    SAME(renormalise);
    SAME(routed_scale);
    SAME(balance_loss);
#undef SAME
}

Test(hugging_face, published_files_are_the_presets)
{
    static const struct {
        const char *preset, *text;
    } cases[] = {{"llama3.2-1b", llama32_1b}, {"gpt2-124m", gpt2},       {"mistral-7b", mistral_7b},
                 {"qwen2.5-7b", qwen25_7b},   {"qwen3-0.6b", qwen3_06b}, {"qwen3-moe-30b", qwen3_moe_30b},
                 {"glm4-moe-106b", glm45_air}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_model_config preset, got = read(cases[i].text, NULL);
        cr_assert_eq(pd_model_preset(cases[i].preset, &preset, NULL), PD_OK);
        expect_same(&got, &preset, cases[i].preset);
    }
}

Test(hugging_face, tokens)
{
    struct pd_special_tokens t;
    read(llama32_1b, &t);
    cr_expect(t.bos == 128000 && t.eos_count == 3 && t.eos[0] == 128001 && t.eos[2] == 128009);
    read(gpt2, &t);
    cr_expect(t.bos == 50256 && t.eos_count == 1 && t.eos[0] == 50256);
    read(mistral_7b, &t);
    cr_expect(t.bos == -1 && t.eos_count == 0);
}

/* Every preset, through both directions. */
Test(hugging_face, what_is_written_reads_back)
{
    const struct pd_special_tokens none = {.bos = -1}, some = {.bos = 1, .eos = {2, 7}, .eos_count = 2};
    for (const char *const *preset = pd_model_preset_names(); *preset; preset++) {
        struct pd_model_config c;
        struct pd_special_tokens back;
        struct pd_error err;
        char *config = NULL, *generation = NULL;
        cr_assert_eq(pd_model_preset(*preset, &c, &err), PD_OK);
        const struct pd_special_tokens *tokens = c.layers % 3 == 0 ? NULL : c.layers % 3 == 1 ? &none : &some;
        cr_assert_eq(pd_hugging_face_write(&c, PD_BF16, tokens, &config, &generation, &err), PD_OK, "%s", err.message);
        struct pd_model_config got = read(config, &back);
        expect_same(&got, &c, *preset);
        cr_expect_eq(back.bos, tokens ? tokens->bos : -1);
        cr_expect_eq(back.eos_count, tokens ? tokens->eos_count : 0);
        cr_expect(strstr(config, "\"torch_dtype\": \"bfloat16\""));
        cr_expect(strstr(generation, "eos_token_id"));
        free(config);
        free(generation);
    }
}

Test(hugging_face, linear_rope_in_both_spellings)
{
    char text[512];
    static const char *const rope[] = {
        "\"rope_theta\": 5000.0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}",
        "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 5000}",
    };
    for (size_t i = 0; i < 2; i++) {
        snprintf(text, sizeof text,
                 "{\"model_type\": \"llama\", \"vocab_size\": 96, \"hidden_size\": 32, \"num_hidden_layers\": 1,"
                 " \"num_attention_heads\": 4, \"intermediate_size\": 48, \"num_key_value_heads\": null, %s}",
                 rope[i]);
        struct pd_model_config c = read(text, NULL);
        cr_expect(c.rope_scaling == PD_ROPE_SCALING_LINEAR && c.rope_factor == 4 && c.rope_theta == 5000);
        cr_expect(c.kv_heads == 4 && c.context == 2048 && c.norm_epsilon == 1e-6f);
        char *config = NULL, *generation = NULL;
        cr_assert_eq(pd_hugging_face_write(&c, PD_F32, NULL, &config, &generation, NULL), PD_OK);
        struct pd_model_config got = read(config, NULL);
        expect_same(&got, &c, "linear");
        free(config);
        free(generation);
    }
}

/* `text` with `from` replaced by `to`. */
static void expect_refused(const char *text, const char *from, const char *to, pd_status expected, const char *message)
{
    char changed[2048];
    struct pd_model_config c;
    struct pd_error err;
    const char *at = strstr(text, from);
    cr_assert(at, "%s", from);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    cr_expect_eq(pd_hugging_face_read("dir/config.json", changed, strlen(changed), &c, NULL, &err), expected, "%s", to);
    cr_expect(strstr(err.message, message) && strstr(err.message, "dir/config.json"), "%s", err.message);
}

Test(hugging_face, what_changes_numbers_is_refused_by_name)
{
    expect_refused(llama32_1b, "LlamaForCausalLM", "LlamaForTokenClassification", PD_UNSUPPORTED,
                   "architecture LlamaForTokenClassification; perdure converts LlamaForCausalLM, ");
    expect_refused(llama32_1b, "\"attention_bias\": false", "\"attention_bias\": true", PD_UNSUPPORTED,
                   "attention_bias is true, and o_proj");
    expect_refused(llama32_1b, "\"mlp_bias\": false", "\"mlp_bias\": true", PD_UNSUPPORTED, "mlp_bias is true");
    expect_refused(llama32_1b, "\"silu\"", "\"gelu\"", PD_UNSUPPORTED, "hidden_act is gelu, and this family has silu");
    expect_refused(llama32_1b, "\"llama3\"", "\"yarn\"", PD_UNSUPPORTED, "rope_scaling is yarn");
    expect_refused(llama32_1b, "\"use_cache\": true", "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1.0}}",
                   PD_UNSUPPORTED, "RoPE has parameters of its own for full_attention");
    expect_refused(llama32_1b, "\"use_cache\": true", "\"quantization_config\": {\"bits\": 4}", PD_UNSUPPORTED,
                   "quantization_config");
    expect_refused(llama32_1b, "\"use_cache\": true", "\"partial_rotary_factor\": 0.5", PD_UNSUPPORTED,
                   "partial_rotary_factor is 0.5");
    expect_refused(qwen3_06b, "\"attention_bias\": false", "\"attention_bias\": true", PD_UNSUPPORTED,
                   "attention_bias is true");
    expect_refused(gpt2, "\"n_ctx\": 1024", "\"scale_attn_by_inverse_layer_idx\": true", PD_UNSUPPORTED,
                   "scale_attn_by_inverse_layer_idx is true");
    expect_refused(gpt2, "\"n_ctx\": 1024", "\"scale_attn_weights\": false", PD_UNSUPPORTED, "scale_attn_weights is false");
    expect_refused(gpt2, "gelu_new", "gelu", PD_UNSUPPORTED, "activation_function is gelu");
    expect_refused(mistral_7b, "\"sliding_window\": null", "\"sliding_window\": 4096", PD_UNSUPPORTED,
                   "sliding_window is 4096, under max_position_embeddings 32768");
    expect_refused(qwen25_7b, "\"sliding_window\": 131072",
                   "\"sliding_window\": 4096, \"layer_types\": "
                   "[\"full_attention\", \"sliding_attention\"]",
                   PD_UNSUPPORTED, "sliding_window is 4096");
    expect_refused(qwen25_7b, "\"max_window_layers\": 28", "\"layer_types\": [\"linear_attention\"]", PD_UNSUPPORTED,
                   "layer_types[0] is linear_attention");
}

/* Files of which one version of transformers makes another model than the other, or than we would. */
Test(hugging_face, what_rope_is_said_twice_or_half_is_refused)
{
    expect_refused(llama32_1b, "\"rope_theta\": 500000.0", "\"rope_parameters\": {\"rope_type\": \"default\"}",
                   PD_UNSUPPORTED, "rope_scaling and rope_parameters do not say the same");
    expect_refused(llama32_1b, "\"rope_type\": \"llama3\"", "\"rope_type\": \"llama3\", \"rope_theta\": 5000",
                   PD_UNSUPPORTED, "rope_theta is 500000, and 5000 in rope_scaling");
    expect_refused(llama32_1b, ", \"rope_type\": \"llama3\"", "", PD_UNSUPPORTED, "rope_scaling.high_freq_factor");
    expect_refused(qwen3_06b, "\"rope_scaling\": null", "\"rope_scaling\": {\"factor\": 4}", PD_UNSUPPORTED,
                   "rope_scaling has the factor 4 without a rope_type");
    expect_refused(llama32_1b, "\"rope_type\": \"llama3\"", "\"rope_type\": \"llama3\", \"attention_factor\": 2",
                   PD_UNSUPPORTED, "rope_scaling.attention_factor is not computed here");
    expect_refused(llama32_1b, "\"use_cache\": true", "\"original_max_position_embeddings\": 4096", PD_UNSUPPORTED,
                   "original_max_position_embeddings is 4096, and 8192 in rope_scaling");
    expect_refused(llama32_1b, "\"use_cache\": true", "\"logit_softcap\": 30.5", PD_UNSUPPORTED,
                   "perdure does not know the key logit_softcap (30.5)");
}

Test(hugging_face, theta_inside_of_scaling_is_taken)
{
    char text[1024];
    const char *at = strstr(qwen3_06b, "\"rope_scaling\": null, \"rope_theta\": 1000000");
    snprintf(text, sizeof text, "%.*s\"rope_scaling\": {\"rope_type\": \"default\", \"rope_theta\": 5000}%s",
             (int)(at - qwen3_06b), qwen3_06b, at + 43);
    cr_expect_eq(read(text, NULL).rope_theta, 5000);
}

/* Without the key the class of Mistral has a window of 4096, and that of Qwen where use_sliding_window says so. */
Test(hugging_face, a_window_that_the_class_takes_is_one)
{
    expect_refused(mistral_7b, " \"sliding_window\": null,", "", PD_UNSUPPORTED,
                   "sliding_window is 4096 where the file does not say, under max_position_embeddings 32768");
    expect_refused(mistral_7b, "\"sliding_window\": null", "\"use_sliding_window\": false, \"sliding_window\": 4096",
                   PD_UNSUPPORTED, "sliding_window is 4096");
    expect_refused(
        qwen3_06b,
        "\"max_window_layers\": 28, \"model_type\": \"qwen3\", \"num_attention_heads\": 16, \"num_hidden_layers\": 28,"
        " \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000,"
        " \"sliding_window\": null, \"tie_word_embeddings\": true, \"use_sliding_window\": false",
        "\"num_attention_heads\": 16, \"num_hidden_layers\": 29, \"num_key_value_heads\": 8, \"use_sliding_window\": true",
        PD_UNSUPPORTED, "sliding_window is 4096 where the file does not say");
}

/* The window begins behind the last block, or is as long as the longest sequence. */
Test(hugging_face, a_window_that_is_not_in_force_is_none)
{
    char text[1024];
    const char *at = strstr(qwen25_7b, "\"use_sliding_window\": false");
    snprintf(text, sizeof text, "%.*s\"use_sliding_window\": true%s", (int)(at - qwen25_7b), qwen25_7b, at + 27);
    read(text, NULL);
    at = strstr(mistral_7b, "null");
    snprintf(text, sizeof text, "%.*s32768%s", (int)(at - mistral_7b), mistral_7b, at + 4);
    read(text, NULL);
}

Test(hugging_face, damaged_files)
{
    expect_refused(llama32_1b, "{", "[", PD_CORRUPT, "not valid JSON");
    expect_refused(llama32_1b, "\"head_dim\": 64", "\"head_dim\": 0", PD_CORRUPT, "head_dim is not a whole number");
    expect_refused(llama32_1b, "\"hidden_size\": 2048,", "", PD_CORRUPT, "hidden_size is missing");
    expect_refused(llama32_1b, "\"vocab_size\": 128256", "\"vocab_size\": -1", PD_CORRUPT,
                   "vocab_size is not a whole number");
    expect_refused(llama32_1b, "500000.0", "\"many\"", PD_CORRUPT, "rope_theta is not a number");
    expect_refused(llama32_1b, "\"low_freq_factor\": 1.0,", "", PD_CORRUPT, "rope_scaling llama3 has no low_freq_factor");
    expect_refused(llama32_1b, "\"factor\": 32.0,", "", PD_CORRUPT, "rope_scaling llama3 has no factor");
    expect_refused(llama32_1b, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5", PD_INVALID, "kv_heads 5");
    expect_refused(llama32_1b, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1", PD_CORRUPT,
                   "tie_word_embeddings is neither true nor false");
    expect_refused(llama32_1b, "\"model_type\": \"llama\"", "\"model_type\": \"mistral\"", PD_UNSUPPORTED,
                   "LlamaForCausalLM has the model_type llama, and model_type is mistral");
    expect_refused(llama32_1b,
                   "\"model_type\":", "\"layer_types\": [\"sliding_attention\"], \"model_type\":", PD_UNSUPPORTED,
                   "layer_types has sliding_attention, and attention sees");
    expect_refused("[1]", "1", "2", PD_CORRUPT, "not a JSON object");
    expect_refused("{\"a\": 1}", "1", "2", PD_CORRUPT, "neither architectures nor model_type");
}

/* Every part of a head, through both directions: transformers rounds down, so a part may not be a little too small. */
Test(hugging_face, parts_of_a_head)
{
    struct pd_model_config c;
    struct pd_error err;
    cr_assert_eq(pd_model_preset("glm4-moe-1m", &c, NULL), PD_OK);
    for (c.head_size = 2; c.head_size <= 256; c.head_size += 2)
        for (c.rotated = 2; c.rotated < c.head_size; c.rotated += 2) {
            char *config = NULL, *generation = NULL;
            cr_assert_eq(pd_hugging_face_write(&c, PD_BF16, NULL, &config, &generation, &err), PD_OK, "%s", err.message);
            cr_assert_eq(read(config, NULL).rotated, c.rotated, "%u of %u", c.rotated, c.head_size);
            free(config);
            free(generation);
        }
}
