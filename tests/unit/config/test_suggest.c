/* What is advised for a key that there is not: the right one, or none. */
#include "trainer/config/keys.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* wanted NULL: no key, and no reason why there is none. */
static const struct advice {
    const char *path, *wanted;
} advices[] = {
    /* misspelt */
    {"lrr", NULL},
    {"optimizer.lrr", "optimizer.lr"},
    {"optimiser.lr", "optimizer.lr"},
    {"optmizer.weight_decay", "optimizer.weight_decay"},
    {"optimizer.weigth_decay", "optimizer.weight_decay"},
    {"weigth_decay", "optimizer.weight_decay"},
    {"optimizer.warmup_step", "optimizer.warmup_steps"},
    {"optimizer.clipnorm", "optimizer.clip_norm"},
    {"optimizer.espilon", "optimizer.epsilon"},
    {"Optimizer.LR", "optimizer.lr"},
    {"optimizer_lr", "optimizer.lr"},
    {"batch.seqences", "batch.sequences"},
    {"batch.microbatch", "batch.micro_batch"},
    {"batch.micro-batch", "batch.micro_batch"},
    {"batch.contxt", "batch.context"},
    {"bacth.sequences", "batch.sequences"},
    {"run.step", "run.steps"},
    {"run.sed", "run.seed"},
    {"step", "run.steps"},
    {"modle.layers", "model.layers"},
    {"model.layer", "model.layers"},
    {"model.hiden", "model.hidden"},
    {"model.prest", "model.preset"},
    {"model.kvheads", "model.kv_heads"},
    {"model.rope_thetta", "model.rope_theta"},
    {"data.trian", "data.train"},
    {"data.validaton", "data.validation"},
    {"layout.rank", "layout.ranks"},
    {"layot.tp", "layout.tp"},
    {"layout.thread", "layout.threads"},
    {"layout.zerostage", "layout.zero_stage"},
    {"layout.recompte", "layout.recompute"},
    {"numerics.precison", "numerics.precision"},
    {"numeric.mode", "numerics.mode"},
    {"offload.optimiser", "offload.optimizer"},
    {"offload.activation", "offload.activations"},
    {"checkpoint.evry", "checkpoint.every"},
    {"checkpoints.every", "checkpoint.every"},
    {"checkpoint.keeplast", "checkpoint.keep_last"},
    {"checkpoint.tier", "checkpoint.tiers"},
    {"validation.sequnces", "validation.sequences"},
    {"restart.limits", "restart.limit"},
    {"metrics.tensorbord", "metrics.tensorboard"},
    {"accept_lineage", "accept_new_lineage"},
    {"accept_new_linage", "accept_new_lineage"},
    {"hiden_size", "model.hidden"},
    {"learnig_rate", "optimizer.lr"},
    {"gradient_cliping", "optimizer.clip_norm"},
    /* a key's name cut short or made longer, in another section, or without one */
    {"lr", "optimizer.lr"},
    {"dir", "run.dir"},
    {"steps", "run.steps"},
    {"model.lr", "optimizer.lr"},
    {"model.seed", "run.seed"},
    {"data.context", "batch.context"},
    {"data.seed", "run.seed"},
    {"training.steps", "run.steps"},
    {"precision", "numerics.precision"},
    {"layers", "model.layers"},
    {"zero_stage", "layout.zero_stage"},
    {"layout.tp_size", "layout.tp"},
    {"restart.hang", "restart.hang_seconds"},
    {"optimizer.warmup", "optimizer.warmup_steps"},
    {"checkpoint.keep", "checkpoint.keep_last"},
    {"layout.zero", "layout.zero_stage"},
    /* sections that others have */
    {"eval.every", "validation.every"},
    {"val.sequences", "validation.sequences"},
    {"log.every", "run.log_every"},
    {"ckpt.every", "checkpoint.every"},
    {"ckpt.dir", "checkpoint.dir"},
    {"save.every", "checkpoint.every"},
    {"parallel.tp", "layout.tp"},
    {"parallelism.tensor_parallel_degree", "layout.tp"},
    {"train.seed", "run.seed"},
    {"train.lr", "optimizer.lr"},
    {"train.micro_batch", "batch.micro_batch"},
    {"scheduler.warmup_steps", "optimizer.warmup_steps"},
    {"dataset.train", "data.train"},
    {"dataset.path", "data.train"},
    {"transformer.layers", "model.layers"},
    /* nanoGPT */
    {"out_dir", "run.dir"},
    {"eval_interval", "validation.every"},
    {"eval_iters", "validation.sequences"},
    {"log_interval", "run.log_every"},
    {"init_from", "init.from"},
    {"dataset", "data.train"},
    {"batch_size", "batch.sequences"},
    {"block_size", "batch.context"},
    {"n_layer", "model.layers"},
    {"n_head", "model.heads"},
    {"n_embd", "model.hidden"},
    {"learning_rate", "optimizer.lr"},
    {"max_iters", "run.steps"},
    {"grad_clip", "optimizer.clip_norm"},
    {"warmup_iters", "optimizer.warmup_steps"},
    {"lr_decay_iters", "optimizer.decay_steps"},
    {"min_lr", "optimizer.min_lr"},
    {"device", "run.device"},
    {"dtype", "numerics.precision"},
    {"backend", "layout.transport"},
    /* Megatron */
    {"num_layers", "model.layers"},
    {"global-batch-size", "batch.sequences"},
    {"layout.tensor_model_parallel_size", "layout.tp"},
    {"pipeline_model_parallel_size", "layout.pp"},
    {"context_parallel_size", "layout.sp"},
    {"num_query_groups", "model.kv_heads"},
    {"train_iters", "run.steps"},
    {"data_path", "data.train"},
    {"recompute_granularity", "layout.recompute"},
    {"use_distributed_optimizer", "layout.zero_stage"},
    {"bf16", "numerics.precision=bf16"},
    {"clip_grad", "optimizer.clip_norm"},
    {"distributed_timeout_minutes", "restart.hang_seconds"},
    {"init_method_std", "model.init_std"},
    /* Hugging Face */
    {"output_dir", "run.dir"},
    {"max_steps", "run.steps"},
    {"Max_Steps", "run.steps"},
    {"per_device_train_batch_size", "batch.micro_batch"},
    {"logging_steps", "run.log_every"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"gradient_checkpointing", "layout.recompute"},
    {"num_hidden_layers", "model.layers"},
    {"model.num_key_value_heads", "model.kv_heads"},
    {"max_position_embeddings", "model.context"},
    {"rms_norm_eps", "model.norm_epsilon"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"adam_beta2", "optimizer.beta2"},
    {"eval_steps", "validation.every"},
    /* DeepSpeed, Lightning, torchtitan */
    {"train_micro_batch_size_per_gpu", "batch.micro_batch"},
    {"optimizer.params.lr", "optimizer.lr"},
    {"zero_optimization.stage", "layout.zero_stage"},
    {"zero_optimization.offload_optimizer.device", "offload.optimizer"},
    {"bf16.enabled", "numerics.precision=bf16"},
    {"fp16.loss_scale_window", "numerics.loss_scale_interval"},
    {"trainer.max_steps", "run.steps"},
    {"trainer.devices", "layout.ranks"},
    {"trainer.val_check_interval", "validation.every"},
    {"training.global_batch_size", "batch.sequences"},
    {"training.save_interval", "checkpoint.every"},
    {"training.seq_len", "batch.context"},
    {"activation_checkpoint.mode", "layout.recompute"},
    {"checkpoint.interval", "checkpoint.every"},
    {"checkpoint.folder", "checkpoint.dir"},
    {"checkpoint.path", "checkpoint.dir"},
    {"metrics.enable_tensorboard", "metrics.tensorboard"},
    {"nproc_per_node", "layout.ranks"},
    {"nnodes", "launch.hosts"},
    /* within a section, a word of its own */
    {"batch.size", "batch.sequences"},
    {"batch.length", "batch.context"},
    {"data.files", "data.train"},
    {"data.path", "data.train"},
    {"data.val", "data.validation"},
    {"numerics.bf16", "numerics.precision=bf16"},
    {"numerics.dtype", "numerics.precision"},
    {"layout.world", "layout.ranks"},
    {"layout.gpus", "layout.ranks"},
    {"model.name", "model.family"},
    {"model.dim", "model.hidden"},
    {"optimizer.betas", "optimizer.beta1"},
    {"guard.nan", "guard.non_finite"},
    /* nothing of the kind */
    {"nokey.x", NULL},
    {"foo", NULL},
    {"foo.bar", NULL},
    {"qwertyuiop", NULL},
    {"batch.colour", NULL},
    {"model.rope", NULL},
    {"run.colour", NULL},
    {"optimizer.decay", "optimizer.weight_decay"},
    {"validation.dir", NULL},
    {"validation.path", "data.validation"},
    {"run.user", NULL},
    {"run.iters", "run.steps"},
    {"init.checkpoint", "init.from"},
    {"init.std", "model.init_std"},
    {"restart.max", "restart.limit"},
    {"offload.cpu", "offload.optimizer=cpu"},
    {"gpu", "run.device=gpu"},
    {"layout.cost", NULL},
    {"checkpoint.colour", NULL},
    {"evrey", NULL},
    {"every", NULL},
    {"x", NULL},
    {".", NULL},
    {"", NULL},
    {"..", NULL},
    {"a.very.long.path.of.words.that.nobody.would.write.into.a.configuration.but.somebody.did", NULL},
};

/* What perdure has not, and what it does instead. */
static const char *const explained[] = {"epochs",
                                        "train.num_train_epochs",
                                        "model.dropout",
                                        "optimizer.type",
                                        "tokenizer",
                                        "resume",
                                        "gradient_accumulation_steps",
                                        "wandb_log",
                                        "mfu",
                                        "chat_template",
                                        "num_workers",
                                        "compile",
                                        "lr_scheduler_type",
                                        "epohcs",
                                        "train.max_tokens",
                                        "expert_model_parallel_size",
                                        "model.activation"};

Test(suggest, the_right_key_or_none)
{
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        const struct advice *a = &advices[i];
        const struct pd_key_meaning found = pd_key_meant(a->path);
        const char *key = found.key    ? found.key
                          : found.said ? found.said
                                       : "nothing",
                   *wanted = a->wanted ? a->wanted : "nothing";
        cr_expect_str_eq(key, wanted, "%s: expected %s, found %s", a->path, wanted, key);
    }
}

Test(suggest, what_there_is_not_is_explained)
{
    for (size_t i = 0; i < sizeof explained / sizeof *explained; i++) {
        const struct pd_key_meaning found = pd_key_meant(explained[i]);
        cr_expect(!found.key && found.said, "%s: found %s", explained[i], found.key ? found.key : "nothing");
    }
}

/* Advice that is itself refused helps nobody. */
Test(suggest, every_key_that_is_advised_is_one)
{
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        char name[64];
        if (!advices[i].wanted) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(advices[i].wanted, "="), advices[i].wanted);
        cr_expect(pd_key_find(name), "%s", name);
    }
}

Test(suggest, a_key_is_its_own_answer)
{
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct pd_key_meaning found = pd_key_meant(pd_keys[i].name);
        cr_expect(found.key && strcmp(found.key, pd_keys[i].name) == 0, "%s: found %s", pd_keys[i].name,
                  found.key ? found.key : "nothing");
    }
}

Test(suggest, where_the_list_is)
{
    char said[320];
    pd_key_suggest("nokey.x", said, sizeof said);
    cr_expect_str_eq(said, "unknown key nokey.x; perdure train --print-config lists all keys");
    pd_key_suggest("numerics.bf16", said, sizeof said);
    cr_expect_str_eq(said, "unknown key numerics.bf16; did you mean numerics.precision=bf16?");
    pd_key_suggest("epochs", said, sizeof said);
    cr_expect_str_eq(said, "unknown key epochs: a run is counted in run.steps, each of batch.sequences sequences");
}
