/* What somebody meant who wrote a key that there is not. */
#include "ckpt/base/nearest.h"
#include "trainer/config/keys.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Last parts of keys as PyTorch, Hugging Face, Megatron and nanoGPT call them. */
static const struct meant {
    const char *words, *key; /* words: between spaces */
} meant[] = {
    {" learning_rate max_lr peak_lr base_lr ", "optimizer.lr"},
    {" warmup warmup_iters lr_warmup_iters num_warmup_steps ", "optimizer.warmup_steps"},
    {" lr_decay_iters lr_decay_steps ", "optimizer.decay_steps"},
    {" clip_grad grad_clip max_grad_norm gradient_clipping ", "optimizer.clip_norm"},
    {" adam_eps eps ", "optimizer.epsilon"},
    {" batch_size global_batch_size train_batch_size ", "batch.sequences"},
    {" micro_batch_size per_device_train_batch_size micro_batches ", "batch.micro_batch"},
    {" seq_len seq_length sequence_length max_seq_len context_length block_size ", "batch.context"},
    {" max_steps train_iters max_iters iterations num_steps ", "run.steps"},
    {" output_dir save_dir out_dir ", "run.dir"},
    {" n_layer n_layers num_layers num_hidden_layers ", "model.layers"},
    {" n_embd d_model hidden_size dim ", "model.hidden"},
    {" n_head n_heads num_heads num_attention_heads ", "model.heads"},
    {" n_kv_heads num_key_value_heads num_query_groups ", "model.kv_heads"},
    {" intermediate_size ffn_hidden_size d_ff ", "model.ffn"},
    {" vocab_size ", "model.vocab"},
    {" dtype ", "numerics.precision"},
    {" dataset data_path train_data train_file train_files ", "data.train"},
    {" world_size nproc_per_node num_gpus gpus ", "layout.ranks"},
    {" data_parallel data_parallel_size dp_size ", "layout.dp"},
    {" tensor_parallel tensor_model_parallel_size tp_size ", "layout.tp"},
    {" pipeline_parallel pipeline_model_parallel_size pp_size ", "layout.pp"},
    {" sequence_parallel context_parallel_size sp_size ", "layout.sp"},
    {" gradient_checkpointing activation_checkpointing checkpoint_activations ", "layout.recompute"},
    {" save_interval save_steps save_every checkpoint_interval ", "checkpoint.every"},
    {" save_total_limit ", "checkpoint.keep_last"},
    {" eval_interval eval_steps eval_every ", "validation.every"},
};

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static const char *key_meant(const char *path)
{
    char word[64];
    if ((size_t)snprintf(word, sizeof word, " %s ", last_part(path)) >= sizeof word) return NULL;
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
        if (strcasestr(meant[i].words, word)) return meant[i].key;
    return NULL;
}

/* Somebody who wrote "lr" or "optim.lr" means the key with that last part. */
static uint32_t distance_to(const char *path, const char *key)
{
    const uint32_t whole = pd_edit_distance(path, key) * 2, last = pd_edit_distance(last_part(path), last_part(key)) * 2 + 3;
    return whole < last ? whole : last;
}

static const char *key_nearest(const char *path)
{
    const char *nearest = NULL;
    uint32_t best = (uint32_t)strlen(path) + 4;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const uint32_t distance = distance_to(path, pd_keys[i].name);
        if (distance >= best) continue;
        best = distance;
        nearest = pd_keys[i].name;
    }
    return nearest;
}

static bool is_section(const char *path)
{
    const size_t length = strlen(path);
    for (uint32_t i = 0; i < pd_key_count; i++)
        if (strncmp(pd_keys[i].name, path, length) == 0 && pd_keys[i].name[length] == '.') return true;
    return false;
}

/* data.train.path: a member of a list without its index. */
static const struct pd_key *list_above(const char *path)
{
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const size_t length = strlen(pd_keys[i].name);
        if (pd_key_is_list(&pd_keys[i]) && strncmp(pd_keys[i].name, path, length) == 0 && path[length] == '.')
            return &pd_keys[i];
    }
    return NULL;
}

void pd_key_suggest(const char *path, char *ret, size_t bytes)
{
    const struct pd_key *list = list_above(path);
    const char *key = key_meant(path);
    if (!key) key = key_nearest(path);
    if (is_section(path))
        snprintf(ret, bytes, "%s is a section: its keys go below it, or are written %s.KEY", path, path);
    else if (list)
        snprintf(ret, bytes, "%s is a list: in a file write \"- %s: ...\" below it, on the command line %s[0].%s=...",
                 list->name, path + strlen(list->name) + 1, list->name, path + strlen(list->name) + 1);
    else if (key)
        snprintf(ret, bytes, "unknown key %s; did you mean %s?", path, key);
    else
        snprintf(ret, bytes, "unknown key %s; --print-config lists all keys", path);
}
