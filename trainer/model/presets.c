/* Named models. Published ones have the shapes of papers or model cards; byte-*, *-1m and llama-{0.5,1.5,3}b are our own. */
#include "trainer/model/model.h"

#include "ckpt/base/nearest.h"

#include <string.h>

#define GPT2(V, T, L, C, H)                                                                                                 \
    "gpt2",                                                                                                                 \
    {                                                                                                                       \
        .vocab = (V), .context = (T), .layers = (L), .hidden = (C), .heads = (H), .qkv_bias = true, .tie_embeddings = true, \
        .norm_epsilon = 1e-5f                                                                                               \
    }
#define LLAMA(V, T, L, C, H, K, F, ...)                                                                                    \
    "llama",                                                                                                               \
    {                                                                                                                      \
        .vocab = (V), .context = (T), .layers = (L), .hidden = (C), .heads = (H), .kv_heads = (K), .ffn = (F), __VA_ARGS__ \
    }
#define QWEN3(L, C, H, K, F, ...)                                                                                         \
    "qwen3",                                                                                                              \
    {                                                                                                                     \
        .vocab = 151936, .context = 40960, .layers = (L), .hidden = (C), .heads = (H), .kv_heads = (K), .head_size = 128, \
        .ffn = (F), .norm_epsilon = 1e-6f, .rope_theta = 1000000.0f, __VA_ARGS__                                          \
    }
#define MIXTRAL(V, T, L, C, H, F, ...)                                                                                     \
    "mixtral",                                                                                                             \
    {                                                                                                                      \
        .vocab = (V), .context = (T), .layers = (L), .hidden = (C), .heads = (H), .kv_heads = 8, .ffn = (F), .experts = 8, \
        .rope_theta = 1000000.0f, .balance_loss = 0.02f, __VA_ARGS__                                                       \
    }
#define QWEN3_MOE(V, T, L, C, H, D, F, EF, E, K, ...)                                                              \
    "qwen3_moe",                                                                                                   \
    {                                                                                                              \
        .vocab = (V), .context = (T), .layers = (L), .hidden = (C), .heads = (H), .kv_heads = 4, .head_size = (D), \
        .ffn = (F), .expert_ffn = (EF), .experts = (E), .experts_per_token = (K), .renormalise = true,             \
        .norm_epsilon = 1e-6f, .rope_theta = 1000000.0f, .balance_loss = 0.001f, __VA_ARGS__                       \
    }
#define OLMOE(V, T, L, C, H, F, E, K, ...)                                                                    \
    "olmoe",                                                                                                  \
    {                                                                                                         \
        .vocab = (V), .context = (T), .layers = (L), .hidden = (C), .heads = (H), .ffn = (F), .experts = (E), \
        .experts_per_token = (K), .balance_loss = 0.01f, .z_loss = 0.001f, __VA_ARGS__                        \
    }
#define GLM4_MOE(V, T, L, C, H, KV, D, F, EF, E, K, DENSE, ...)                                                       \
    "glm4_moe",                                                                                                       \
    {                                                                                                                 \
        .vocab = (V), .context = (T), .layers = (L), .hidden = (C), .heads = (H), .kv_heads = (KV), .head_size = (D), \
        .ffn = (F), .expert_ffn = (EF), .experts = (E), .experts_per_token = (K), .dense_blocks = (DENSE),            \
        .shared_experts = 1, .renormalise = true, .qkv_bias = true, .rotated = (D) / 2, .rope_theta = 1000000.0f,     \
        .bias_step = 0.001f, __VA_ARGS__                                                                              \
    }
#define LLAMA31(FACTOR) \
    .norm_epsilon = 1e-5f, .rope_theta = 500000.0f, .rope_scaling = PD_ROPE_SCALING_LLAMA3, .rope_factor = (FACTOR)
#define QWEN25 .norm_epsilon = 1e-6f, .rope_theta = 1000000.0f, .qkv_bias = true

static const struct preset {
    const char *name, *family;
    struct pd_model_config config;
} presets[] = {
    {"byte-1m", LLAMA(256, 256, 4, 128, 4, 2, 512, .tie_embeddings = true)},
    {"byte-10m", LLAMA(256, 512, 8, 320, 5, 5, 896, .tie_embeddings = true)},
    {"gpt2-124m", GPT2(50257, 1024, 12, 768, 12)},
    {"gpt2-355m", GPT2(50257, 1024, 24, 1024, 16)},
    {"gpt2-774m", GPT2(50257, 1024, 36, 1280, 20)},
    {"gpt2-1.5b", GPT2(50257, 1024, 48, 1600, 25)},
    {"gpt3-2.7b", GPT2(50257, 2048, 32, 2560, 32)},
    {"gpt3-6.7b", GPT2(50257, 2048, 32, 4096, 32)},
    {"gpt3-13b", GPT2(50257, 2048, 40, 5120, 40)},
    {"gpt3-175b", GPT2(50257, 2048, 96, 12288, 96)},
    {"llama-0.5b", LLAMA(32000, 2048, 20, 1280, 20, 20, 3456)},
    {"llama-1.5b", LLAMA(32000, 2048, 26, 2048, 16, 16, 5632)},
    {"llama-3b", LLAMA(32000, 2048, 32, 2560, 20, 20, 8704)},
    {"llama-7b", LLAMA(32000, 2048, 32, 4096, 32, 32, 11008, .norm_epsilon = 1e-6f)},
    {"llama-13b", LLAMA(32000, 2048, 40, 5120, 40, 40, 13824, .norm_epsilon = 1e-6f)},
    {"llama-33b", LLAMA(32000, 2048, 60, 6656, 52, 52, 17920, .norm_epsilon = 1e-6f)},
    {"llama-65b", LLAMA(32000, 2048, 80, 8192, 64, 64, 22016, .norm_epsilon = 1e-5f)},
    {"llama2-7b", LLAMA(32000, 4096, 32, 4096, 32, 32, 11008)},
    {"llama2-13b", LLAMA(32000, 4096, 40, 5120, 40, 40, 13824)},
    {"llama2-70b", LLAMA(32000, 4096, 80, 8192, 64, 8, 28672)},
    {"llama3.1-8b", LLAMA(128256, 131072, 32, 4096, 32, 8, 14336, LLAMA31(8.0f))},
    {"llama3.1-70b", LLAMA(128256, 131072, 80, 8192, 64, 8, 28672, LLAMA31(8.0f))},
    {"llama3.1-405b", LLAMA(128256, 131072, 126, 16384, 128, 8, 53248, LLAMA31(8.0f))},
    {"llama3.2-1b", LLAMA(128256, 131072, 16, 2048, 32, 8, 8192, LLAMA31(32.0f), .tie_embeddings = true)},
    {"llama3.2-3b", LLAMA(128256, 131072, 28, 3072, 24, 8, 8192, LLAMA31(32.0f), .tie_embeddings = true)},
    {"mistral-7b", LLAMA(32000, 32768, 32, 4096, 32, 8, 14336)},
    {"qwen2.5-0.5b", LLAMA(151936, 32768, 24, 896, 14, 2, 4864, QWEN25, .tie_embeddings = true)},
    {"qwen2.5-1.5b", LLAMA(151936, 32768, 28, 1536, 12, 2, 8960, QWEN25, .tie_embeddings = true)},
    {"qwen2.5-3b", LLAMA(151936, 32768, 36, 2048, 16, 2, 11008, QWEN25, .tie_embeddings = true)},
    {"qwen2.5-7b", LLAMA(152064, 131072, 28, 3584, 28, 4, 18944, QWEN25)},
    {"qwen2.5-14b", LLAMA(152064, 131072, 48, 5120, 40, 8, 13824, QWEN25)},
    {"qwen2.5-32b", LLAMA(152064, 131072, 64, 5120, 40, 8, 27648, QWEN25)},
    {"qwen2.5-72b", LLAMA(152064, 131072, 80, 8192, 64, 8, 29568, QWEN25)},
    {"qwen3-0.6b", QWEN3(28, 1024, 16, 8, 3072, .tie_embeddings = true)},
    {"qwen3-1.7b", QWEN3(28, 2048, 16, 8, 6144, .tie_embeddings = true)},
    {"qwen3-4b", QWEN3(36, 2560, 32, 8, 9728, .tie_embeddings = true)},
    {"qwen3-8b", QWEN3(36, 4096, 32, 8, 12288, .tie_embeddings = false)},
    {"mixtral-1m", MIXTRAL(256, 256, 4, 64, 8, 128, .tie_embeddings = true)},
    {"mixtral-8x7b", MIXTRAL(32000, 32768, 32, 4096, 32, 14336, .norm_epsilon = 1e-5f)},
    {"mixtral-8x22b", MIXTRAL(32000, 65536, 56, 6144, 48, 16384, .norm_epsilon = 1e-5f)},
    {"qwen3-moe-1m", QWEN3_MOE(256, 256, 4, 64, 8, 16, 256, 128, 8, 2, .tie_embeddings = true)},
    {"qwen3-moe-30b", QWEN3_MOE(151936, 40960, 48, 2048, 32, 128, 6144, 768, 128, 8, .tie_embeddings = false)},
    {"qwen3-moe-235b", QWEN3_MOE(151936, 40960, 94, 4096, 64, 128, 12288, 1536, 128, 8, .tie_embeddings = false)},
    {"olmoe-1m", OLMOE(256, 256, 4, 64, 4, 128, 8, 2, .tie_embeddings = true)},
    {"olmoe-7b", OLMOE(50304, 4096, 16, 2048, 16, 1024, 64, 8, .norm_epsilon = 1e-5f)},
    {"glm4-moe-1m", GLM4_MOE(256, 256, 4, 64, 8, 2, 16, 256, 128, 8, 2, 1, .qk_norm = true, .tie_embeddings = true)},
    {"glm4-moe-106b", GLM4_MOE(151552, 131072, 46, 4096, 96, 8, 128, 10944, 1408, 128, 8, 1, .norm_epsilon = 1e-5f)},
    {"glm4-moe-355b",
     GLM4_MOE(151552, 131072, 92, 5120, 96, 8, 128, 12288, 1536, 160, 8, 3, .qk_norm = true, .routed_scale = 2.5f)},
};
#define PRESET_COUNT (sizeof presets / sizeof presets[0])

const char *const *pd_model_preset_names(void)
{
    static const char *names[PRESET_COUNT + 1];
    /* Every caller writes the same addresses, so a race is harmless. */
    for (size_t i = 0; i < PRESET_COUNT; i++)
        names[i] = presets[i].name;
    return names;
}

pd_status pd_model_preset(const char *name, struct pd_model_config *ret_config, struct pd_error *err)
{
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) != 0) continue;
        struct pd_model_config config = presets[i].config;
        while (strcmp(pd_family_names[config.family], presets[i].family) != 0)
            config.family++;
        pd_model_config_resolve(&config);
        *ret_config = config;
        return PD_OK;
    }
    const char *const *names = pd_model_preset_names();
    uint32_t near[3];
    pd_nearest_names(name, names, PRESET_COUNT, near, 3);
    PD_FAIL(err, PD_INVALID, "model.preset %s is unknown; the nearest are %s, %s and %s", name, names[near[0]],
            names[near[1]], names[near[2]]);
}
