/* What somebody meant who wrote a key that there is not. */
#include "ckpt/base/nearest.h"
#include "trainer/config/keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64, MISSPELT_MIN = 5 /* letters: shorter words are near too much */ };

/* Sections as other trainers call them. */
static const struct alias {
    const char *words, *section;
} aliases[] = {
    {"train training trainer general experiment", "run"},
    {"network net transformer architecture model_args", "model"},
    {"dataset datasets dataloader", "data"},
    {"batching", "batch"},
    {"optim adam adamw scheduler lr_scheduler", "optimizer"},
    {"amp", "numerics"},
    {"parallel parallelism distributed dist", "layout"},
    {"offloading", "offload"},
    {"ckpt save saving checkpointing checkpoints", "checkpoint"},
    {"eval evaluation val valid validate", "validation"},
    {"log logging logger monitoring", "metrics"},
    {"retry fault_tolerance", "restart"},
};

/* Keys as PyTorch, Lightning, torchtitan, Hugging Face, DeepSpeed, Megatron and nanoGPT call them: a word is a last part, the
 * last two, or the whole; case and the marks between parts do not count. */
static const struct meant {
    const char *words;
    struct pd_key_meaning meaning;
} meant[] = {
    {"output_dir save_dir out_dir log_dir run_path run_directory run_name run_output default_root_dir", {"run.dir", NULL}},
    {"max_steps train_iters max_iters iters iterations num_steps num_train_steps total_steps num_iterations",
     {"run.steps", NULL}},
    {"random_seed manual_seed data_seed", {"run.seed", NULL}},
    {"log_interval logging_steps log_every log_every_n_steps log_freq steps_per_print metrics_every",
     {"run.log_every", NULL}},
    {"accelerator use_gpu device_type use_cpu no_cuda", {"run.device", NULL}},
    {"gpu cuda", {"run.device=gpu", NULL}},
    {"cpu", {"run.device=cpu", NULL}},
    {"epochs epoch num_epochs max_epochs num_train_epochs n_epochs train_samples max_tokens train_tokens total_tokens",
     {NULL, "a run is counted in run.steps, each of batch.sequences sequences"}},
    {"resume resume_from resume_from_checkpoint auto_resume",
     {NULL, "the same command always resumes, from the newest checkpoint of run.dir"}},

    {"init_from pretrained pretrained_model pretrained_path model_name_or_path base_model from_pretrained load_from "
     "init_path init_checkpoint init_model",
     {"init.from", NULL}},

    {"model_size preset_name model_model", {"model.preset", NULL}},
    {"arch model_arch model_class model_name model_type", {"model.family", NULL}},
    {"n_layer n_layers num_layers num_hidden_layers depth n_blocks num_blocks", {"model.layers", NULL}},
    {"n_embd d_model hidden_size hidden_dim dim embed_dim embedding_size model_dim width n_embed", {"model.hidden", NULL}},
    {"n_head n_heads num_heads num_attention_heads attention_heads", {"model.heads", NULL}},
    {"n_kv_heads num_key_value_heads num_query_groups n_kv_head num_kv_heads", {"model.kv_heads", NULL}},
    {"head_dim kv_channels d_head", {"model.head_size", NULL}},
    {"intermediate_size ffn_hidden_size d_ff ffn_dim mlp_dim mlp_hidden n_inner", {"model.ffn", NULL}},
    {"vocab_size vocabulary vocabulary_size padded_vocab_size n_vocab", {"model.vocab", NULL}},
    {"max_position_embeddings n_positions n_ctx max_seq_length", {"model.context", NULL}},
    {"tie_word_embeddings tied_embeddings weight_tying share_embeddings tie_weights", {"model.tie_embeddings", NULL}},
    {"attention_bias add_qkv_bias use_bias bias", {"model.qkv_bias", NULL}},
    {"rms_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps layer_norm_eps", {"model.norm_epsilon", NULL}},
    {"rotary_base rope_base rotary_emb_base", {"model.rope_theta", NULL}},
    {"initializer_range init_method_std init_std", {"model.init_std", NULL}},
    {"dropout attention_dropout hidden_dropout attn_pdrop resid_pdrop embd_pdrop attn_dropout",
     {NULL, "no model has dropout"}},
    {"experts num_experts n_experts moe expert_parallel expert_model_parallel_size",
     {NULL, "no model is a mixture of experts"}},
    {"model_activation hidden_act activation_function act_fn", {NULL, "model.family says it"}},

    {"dataset dataset_path data_path data_paths data_dir data_file data_files train_data train_file train_files "
     "training_data "
     "train_path dataset_name train_dataset data_input data_text data_source data_sources data_tokens",
     {"data.train", NULL}},
    {"val_data val_file validation_file eval_data eval_file valid_data validation_data eval_dataset val_path test_data "
     "data_val data_valid data_eval data_test validation_path",
     {"data.validation", NULL}},
    {"val_split split validation_split val_fraction eval_fraction", {"data.validation_fraction", NULL}},
    {"eos_token eod_token eos_token_id eod bos_token_id eos_id eot_token", {"data.document_token", NULL}},
    {"reset_attention_mask document_mask packing_mask intra_document_masking", {"data.separate_documents", NULL}},
    {"tokenizer tokenizer_path tokenizer_model vocab_file merge_file",
     {NULL, "perdure data pack --tokenizer=FILE makes the token files that data.train names"}},
    {"chat_template apply_chat_template template prompt_template messages conversation_template",
     {NULL, "training reads tokens: write conversations as text with their template, and pack that with perdure data pack"}},
    {"num_workers dataloader_num_workers n_workers shuffle prefetch_factor",
     {NULL, "data is read in a fixed random order by each rank"}},

    {"batch_size global_batch_size train_batch_size total_batch_size bsz sequences batch_global batch_total gbs train_batch "
     "run_batch",
     {"batch.sequences", NULL}},
    {"micro_batch_size per_device_train_batch_size micro_batches train_micro_batch_size_per_gpu local_batch_size mbs "
     "per_gpu_batch_size batch_micro device_batch_size",
     {"batch.micro_batch", NULL}},
    {"gradient_accumulation_steps grad_accum accumulate_grad_batches grad_accum_steps gradient_accumulation "
     "accumulation_steps",
     {NULL, "it follows: batch.sequences (the global batch size) / (batch.micro_batch * layout.dp)"}},
    {"seq_len seq_length sequence_length max_seq_len context_length block_size context max_length context_window "
     "batch_length batch_tokens",
     {"batch.context", NULL}},

    {"learning_rate max_lr peak_lr base_lr initial_lr lr_max", {"optimizer.lr", NULL}},
    {"lr_min final_lr min_learning_rate eta_min end_lr", {"optimizer.min_lr", NULL}},
    {"warmup warmup_iters lr_warmup_iters num_warmup_steps lr_warmup_steps lr_warmup warm_up warmup_updates warmup_ratio "
     "lr_warmup_fraction",
     {"optimizer.warmup_steps", NULL}},
    {"lr_decay_iters lr_decay_steps lr_decay cosine_steps", {"optimizer.decay_steps", NULL}},
    {"clip_grad grad_clip max_grad_norm gradient_clipping clip gradient_clip_val max_norm clip_gradients grad_norm_clip",
     {"optimizer.clip_norm", NULL}},
    {"adam_eps eps adam_epsilon", {"optimizer.epsilon", NULL}},
    {"adam_beta1 momentum betas beta beta_1", {"optimizer.beta1", NULL}},
    {"adam_beta2 beta_2", {"optimizer.beta2", NULL}},
    {"wd l2 decay weightdecay", {"optimizer.weight_decay", NULL}},
    {"optim optimizer_type optimizer_name optimizer_class", {NULL, "the optimizer is AdamW"}},
    {"lr_scheduler_type lr_decay_style lr_schedule decay_lr optimizer_schedule",
     {NULL, "the learning rate rises for optimizer.warmup_steps and falls to optimizer.min_lr along a cosine"}},

    {"dtype amp torch_dtype mixed_precision", {"numerics.precision", NULL}},
    {"bf16 bfloat16 bf16_enabled", {"numerics.precision=bf16", NULL}},
    {"fp16 float16 half fp16_enabled", {"numerics.precision=fp16", NULL}},
    {"fp32 float32", {"numerics.precision=fp32", NULL}},
    {"fp8 float8 fp8_enabled enable_fp8", {"numerics.linears=fp8", NULL}},
    {"cut_cross_entropy linear_cross_entropy fused_linear_cross_entropy chunked_cross_entropy chunked_loss",
     {"numerics.logits=columns", NULL}},
    {"deterministic use_deterministic_algorithms", {"numerics.mode=invariant", NULL}},
    {"initial_loss_scale init_scale", {"numerics.loss_scale", NULL}},
    {"loss_scale_window growth_interval", {"numerics.loss_scale_interval", NULL}},
    {"compile torch_compile flash_attention use_flash_attn flash_attn",
     {NULL, "perdure has kernels of its own; leave it out"}},

    {"ranks world world_size nproc_per_node num_gpus gpus n_gpus nproc num_processes devices n_devices num_devices",
     {"layout.ranks", NULL}},
    {"num_threads n_threads omp_num_threads cpus_per_task", {"layout.threads", NULL}},
    {"gpus_per_node ranks_per_node", {"layout.ranks_per_host", NULL}},
    {"backend ddp_backend", {"layout.transport", NULL}},
    {"ddp data_parallel data_parallel_size dp_size data_parallel_degree data_parallel_shard_degree dp_degree",
     {"layout.dp", NULL}},
    {"tensor_parallel tensor_model_parallel_size tp_size tensor_parallel_size tensor_parallel_degree model_parallel_size",
     {"layout.tp", NULL}},
    {"pipeline_parallel pipeline_model_parallel_size pp_size pipeline_parallel_size pipeline_parallel_degree num_stages",
     {"layout.pp", NULL}},
    {"sequence_parallel context_parallel_size sp_size cp context_parallel sequence_parallel_size context_parallel_degree",
     {"layout.sp", NULL}},
    {"virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage", {"layout.interleave", NULL}},
    {"pipeline_schedule pipeline_parallel_schedule", {"layout.interleave", NULL}},
    {"gradient_checkpointing activation_checkpointing checkpoint_activations recompute_activations recompute_granularity "
     "activation_checkpoint activation_checkpoint_mode",
     {"layout.recompute", NULL}},
    {"recompute_num_layers", {"layout.recompute_layers", NULL}},
    {"zero zero_optimization zero_optimization_stage fsdp fsdp_stage use_distributed_optimizer strategy sharding_strategy",
     {"layout.zero_stage", NULL}},

    {"offload_cpu offload_to_cpu", {"offload.optimizer=cpu", NULL}},
    {"offload_nvme offload_disk offload_dir", {"offload.optimizer=nvme", NULL}},
    {"cpu_offload optimizer_offload offload_optimizer optimizer_cpu_offload offload_state "
     "zero_optimization_offload_optimizer "
     "offload_optimizer_device",
     {"offload.optimizer", NULL}},
    {"offload_param offload_params param_offload offload_weights offload_param_device", {"offload.parameters", NULL}},
    {"offload_grads offload_grad", {"offload.gradients", NULL}},
    {"activation_offload cpu_checkpointing", {"offload.activations", NULL}},

    {"checkpoint_path ckpt_dir ckpt_path checkpoint_folder", {"checkpoint.dir", NULL}},
    {"save_interval save_steps save_every checkpoint_interval checkpoint_steps checkpoint_freq checkpoint_frequency "
     "every_n_train_steps",
     {"checkpoint.every", NULL}},
    {"save_total_limit checkpoint_keep keep_last_n save_top_k max_checkpoints keep_latest_k max_to_keep checkpoint_max",
     {"checkpoint.keep_last", NULL}},
    {"async_save async_checkpoint checkpoint_async async_mode", {NULL, "saves always go on beside training"}},

    {"eval_interval eval_steps validation_interval val_check_interval validation_steps validation_freq eval_freq",
     {"validation.every", NULL}},
    {"eval_iters eval_batches limit_val_batches validation_batches eval_batch_size validation_batch_size eval_samples",
     {"validation.sequences", NULL}},

    {"tensorboard_dir enable_tensorboard use_tensorboard metrics_tb", {"metrics.tensorboard", NULL}},
    {"metrics_port prometheus_port metrics_prometheus", {"metrics.prometheus_listen", NULL}},
    {"mfu log_mfu report_mfu peak_flops flops_promised gpu_peak_flops",
     {NULL,
      "the progress line and metrics.jsonl have the share of the time that matrix products at this machine's own speed "
      "would take (gemm_share); perdure plan counts the FLOPs of a step"}},
    {"wandb wandb_log wandb_project report_to mlflow enable_wandb use_wandb",
     {NULL, "trackers read metrics.jsonl in run.dir; metrics.tensorboard and metrics.prometheus_listen are built in"}},

    {"max_restarts restart_max restart_count max_retries num_retries", {"restart.limit", NULL}},
    {"distributed_timeout_minutes nccl_timeout dist_timeout ddp_timeout", {"restart.hang_seconds", NULL}},
    {"hang_timeout watchdog_timeout", {"restart.hang_seconds", NULL}},
    {"hostfile host_file nodes nnodes num_nodes nodelist", {"launch.hosts", NULL}},
    {"max_nodes max_ranks", {"elastic.max", NULL}},
    {"min_nodes min_ranks", {"elastic.min", NULL}},
    {"accept_lineage new_lineage", {"accept_new_lineage", NULL}},
    {"guard_nan skip_nan nan_guard guard_nans", {"guard.non_finite", NULL}},
};

/* ---- names ---- */

/* "Warmup-Steps", "warmup_steps" and "warmupSteps" are the same: without marks, in small letters. */
struct plain {
    char text[NAME_BYTES];
};

static struct plain plain_of(const char *name, size_t bytes)
{
    struct plain p = {""};
    size_t length = 0;
    for (size_t i = 0; i < bytes && name[i] && length + 1 < NAME_BYTES; i++)
        if (name[i] != '.' && name[i] != '_' && name[i] != '-') p.text[length++] = (char)tolower((unsigned char)name[i]);
    return p;
}

static struct plain plain(const char *name)
{
    return plain_of(name, SIZE_MAX);
}

static bool is_same(const struct plain *a, const struct plain *b)
{
    return a->text[0] == b->text[0] && strcmp(a->text, b->text) == 0;
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static struct plain section_of(const char *path)
{
    return plain_of(path, (size_t)(last_part(path) - path));
}

/* The words of a row, one after the other; NULL: that was the last. */
static const char *next_word(const char *words, struct plain *ret_word)
{
    words += strspn(words, " ");
    const size_t length = strcspn(words, " ");
    *ret_word = plain_of(words, length);
    return length ? words + length : NULL;
}

static bool has_word(const char *words, const struct plain *name)
{
    for (struct plain word; (words = next_word(words, &word));)
        if (is_same(&word, name)) return true;
    return false;
}

/* ---- what is written ---- */

struct written {
    const char *path;
    struct plain section, last;     /* section: one that there is, if that can be told; of a bare word "run" */
    struct plain whole, two, known; /* all of it; its last two parts; section and last */
};

/* By spelling, or as others call it. */
static struct plain find_section(const struct plain *name)
{
    struct plain nearest = *name;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (has_word(aliases[i].words, name)) return plain(aliases[i].section);
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain section = section_of(pd_keys[i].name);
        if (is_same(&section, name)) return section;
        if (pd_is_near(section.text, name->text)) nearest = section;
    }
    return nearest;
}

static struct written read_path(const char *path)
{
    struct written w = {.path = path, .last = plain(last_part(path)), .whole = plain(path)};
    const char *dot = strrchr(path, '.'), *before = dot ? memrchr(path, '.', (size_t)(dot - path)) : NULL;
    char known[2 * NAME_BYTES];
    const struct plain section = plain_of(path, strcspn(path, "."));
    w.section = dot ? find_section(&section) : plain("run");
    w.two = plain(before ? before + 1 : path);
    snprintf(known, sizeof known, "%s%s", w.section.text, w.last.text);
    w.known = plain(known);
    return w;
}

/* ---- what is meant ---- */

/* UINT32_MAX: it is not near. */
static uint32_t distance_if_near(const struct plain *name, const struct plain *given)
{
    if (is_same(name, given)) return 0;
    if (strlen(given->text) < MISSPELT_MIN || !pd_is_near(name->text, given->text)) return UINT32_MAX;
    return pd_edit_distance(name->text, given->text);
}

static const struct pd_key *find_spelt(const struct written *w)
{
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain key = plain(pd_keys[i].name);
        if (is_same(&key, &w->known) || is_same(&key, &w->whole)) return &pd_keys[i];
    }
    return NULL;
}

static const struct meant *find_meant(const struct written *w)
{
    const struct plain *const texts[] = {&w->whole, &w->two, &w->known, &w->last};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
            if (has_word(meant[i].words, texts[t])) return &meant[i];
    return NULL;
}

/* keep_last begins with keep, and hang_seconds ends with seconds. */
static bool is_part(const char *part, const char *whole)
{
    const size_t length = strlen(part), all = strlen(whole);
    if (!length || length >= all) return false;
    return (strncmp(whole, part, length) == 0 && whole[length] == '_') ||
           (strcmp(whole + all - length, part) == 0 && whole[all - length - 1] == '_');
}

/* The nearest of the section; otherwise the only one of which it is a part, or which is a part of it. */
static const struct pd_key *find_in_section(const struct written *w)
{
    const struct pd_key *nearest = NULL, *part = NULL;
    uint32_t best = UINT32_MAX, parts = 0;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain section = section_of(pd_keys[i].name), last = plain(last_part(pd_keys[i].name));
        if (!is_same(&section, &w->section)) continue;
        if (pd_is_near(last.text, w->last.text) && pd_edit_distance(last.text, w->last.text) < best) {
            best = pd_edit_distance(last.text, w->last.text);
            nearest = &pd_keys[i];
        }
        const char *name = last_part(pd_keys[i].name), *given = last_part(w->path);
        if (given == w->path || (!is_part(given, name) && !is_part(name, given))) continue; /* "every" may be anything's */
        part = &pd_keys[i];
        parts++;
    }
    return nearest ? nearest : parts == 1 ? part : NULL;
}

/* The only one that is called so in another section, or nearly so. */
static const struct pd_key *find_elsewhere(const struct written *w)
{
    const struct pd_key *found = NULL;
    uint32_t best = UINT32_MAX;
    bool is_only = false;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain last = plain(last_part(pd_keys[i].name));
        const uint32_t distance = distance_if_near(&last, &w->last);
        if (distance > best || distance == UINT32_MAX) continue;
        is_only = distance < best;
        best = distance;
        found = &pd_keys[i];
    }
    return is_only ? found : NULL;
}

static const struct meant *find_misspelt(const struct written *w)
{
    const struct meant *nearest = NULL;
    struct plain word;
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
        for (const char *rest = meant[i].words; (rest = next_word(rest, &word));) {
            const uint32_t distance = distance_if_near(&word, &w->last);
            if (distance >= best) continue;
            best = distance;
            nearest = &meant[i];
        }
    return nearest;
}

struct pd_key_meaning pd_key_meant(const char *path)
{
    const struct written w = read_path(path);
    const struct pd_key *key = find_spelt(&w);
    const struct meant *row = key ? NULL : find_meant(&w);
    if (!key && !row) key = find_in_section(&w);
    if (!key && !row) key = find_elsewhere(&w);
    if (!key && !row) row = find_misspelt(&w);
    return row ? row->meaning : (struct pd_key_meaning){.key = key ? key->name : NULL};
}

/* ---- what is said ---- */

bool pd_key_is_section(const char *path)
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
    const struct pd_key_meaning answer = pd_key_meant(path);
    if (pd_key_is_section(path))
        snprintf(ret, bytes, "%s is a section: its keys go below it, or are written %s.KEY", path, path);
    else if (list)
        snprintf(ret, bytes, "%s is a list: in a file write \"- %s: ...\" below it, on the command line %s[0].%s=...",
                 list->name, path + strlen(list->name) + 1, list->name, path + strlen(list->name) + 1);
    else if (answer.key)
        snprintf(ret, bytes, "unknown key %s; did you mean %s?", path, answer.key);
    else if (answer.said)
        snprintf(ret, bytes, "unknown key %s: %s", path, answer.said);
    else
        snprintf(ret, bytes, "unknown key %s; perdure train --print-config lists all keys", path);
}
