#include "trainer/config/keys.h"

#define AT(member) offsetof(struct pd_config, member)
#define FREE .effect = PD_RESUME_FREE
#define LINEAGE .effect = PD_RESUME_NEW_LINEAGE
#define REFUSED .effect = PD_RESUME_REFUSED
#define U32_MAX 4294967295.0
#define COUNT_MAX 1e15

static const char *const device_words[] = {"auto", "cpu", "gpu", NULL};
static const char *const rope_words[] = {"none", "llama3", "linear", NULL};
static const char *const mode_words[] = {"invariant", "fast", NULL};
static const char *const dtype_words[] = {"fp32", "bf16", "fp16", NULL};
static const char *const exchange_words[] = {"auto", "step", "lane", NULL};
static const char *const codes_words[] = {"auto", "step", "micro_batch", NULL};
static const char *const linears_words[] = {"precision", "fp8", NULL};
static const char *const terms_words[] = {"64", "32", NULL};
static const char *const logits_words[] = {"rows", "columns", NULL};
static const char *const logits_type_words[] = {"fp32", "precision", NULL};
static const char *const moments_words[] = {"fp32", "bf16", NULL};
static const char *const guard_words[] = {"stop", "skip", "rollback", NULL};
static const char *const grow_words[] = {"restart", "now", NULL};
static const char *const transport_words[] = {"auto", "local", "mpi", NULL};
static const char *const order_words[] = {"auto", "depth_first", "breadth_first", NULL};
static const char *const place_words[] = {"device", "cpu", "nvme", NULL};
static const char *const update_words[] = {"auto", "host", "device", NULL};
static const char *const recompute_words[] = {"none", "selective", "full", NULL};
static const char *const format_words[] = {"auto", "text", "nanogpt", "llmc", "megatron", NULL};

/* A key has its member's name, with two exceptions. Further fields follow the meaning. */
#define KEY(NAME, TYPE, MEMBER, INITIAL, EFFECT, MEANING, ...)                                                        \
    {                                                                                                                 \
        .name = NAME, .type = TYPE, .offset = AT(MEMBER), .initial = INITIAL, EFFECT, .meaning = MEANING, __VA_ARGS__ \
    }
#define STRING(MEMBER, INITIAL, EFFECT, MEANING) KEY(#MEMBER, PD_KEY_STRING, MEMBER, INITIAL, EFFECT, MEANING)
#define SWITCH(MEMBER, INITIAL, EFFECT, MEANING) KEY(#MEMBER, PD_KEY_BOOL, MEMBER, INITIAL, EFFECT, MEANING)
#define WORD(MEMBER, INITIAL, WORDS, EFFECT, MEANING) \
    KEY(#MEMBER, PD_KEY_WORD, MEMBER, INITIAL, EFFECT, MEANING, .words = WORDS)
#define NUMBER(TYPE, MEMBER, INITIAL, LOW, HIGH, EFFECT, MEANING, ...) \
    KEY(#MEMBER, TYPE, MEMBER, INITIAL, EFFECT, MEANING, .low = LOW, .high = HIGH, __VA_ARGS__)
#define U32(...) NUMBER(PD_KEY_U32, __VA_ARGS__)
#define U64(...) NUMBER(PD_KEY_U64, __VA_ARGS__)
#define F64(...) NUMBER(PD_KEY_DOUBLE, __VA_ARGS__)
#define LIST(MEMBER, LIST_OF, EFFECT, MEANING) \
    KEY(#MEMBER, PD_KEY_LIST, MEMBER, NULL, EFFECT, MEANING, .count_offset = AT(MEMBER##_count), .list = &(LIST_OF))
#define MODEL_U32(NAME, EFFECT, MEANING, ...) NUMBER(PD_KEY_U32, model.NAME, NULL, 0, U32_MAX, EFFECT, MEANING, __VA_ARGS__)
#define MODEL_FLOAT(NAME, EFFECT, MEANING) NUMBER(PD_KEY_FLOAT, model.NAME, NULL, 0, 1e12, EFFECT, MEANING)
#define STEPS .suffix = PD_SUFFIX_COUNT
#define TOKENS .suffix = PD_SUFFIX_SIZE

/* ---- lists ---- */

#define MEMBER(OF, NAME, TYPE, ...)                                                   \
    {                                                                                 \
        .name = #NAME, .type = TYPE, .offset = offsetof(struct OF, NAME), __VA_ARGS__ \
    }
#define SOURCE(NAME, TYPE, ...) MEMBER(pd_data_source, NAME, TYPE, __VA_ARGS__)
#define TIER(NAME, TYPE, ...) MEMBER(pd_config_tier, NAME, TYPE, __VA_ARGS__)
#define MEMBERS(LIST) LIST, sizeof(LIST) / sizeof *(LIST)
#define LEFT_OUT .initial = "auto", .automatic = true

static const struct pd_key source_members[] = {
    SOURCE(path, PD_KEY_STRING),
    SOURCE(format, PD_KEY_WORD, .words = format_words),
    SOURCE(weight, PD_KEY_DOUBLE, .high = 1e9, .low_open = true),
};
static const struct pd_key tier_members[] = {
    TIER(dir, PD_KEY_STRING),
    TIER(every, PD_KEY_U64, .high = COUNT_MAX, STEPS, LEFT_OUT),
    TIER(keep_last, PD_KEY_U32, .low = 1, .high = 1e6),
    TIER(keep_every, PD_KEY_U64, .high = COUNT_MAX, STEPS, LEFT_OUT),
    TIER(bandwidth, PD_KEY_U64, .high = 1e15, STEPS),
    TIER(upload_memory, PD_KEY_U64, .high = 1e12, TOKENS),
    TIER(replicas, PD_KEY_U32, .high = 1e6),
    TIER(compression, PD_KEY_STRING),
};
static const struct pd_key rank_members[] = {{.name = "", .type = PD_KEY_U32, .low = 1, .high = 65536}};

static const struct pd_key_list sources = {"a data file is a path, or {path: FILE} with format and weight",
                                           MEMBERS(source_members), 65536, sizeof(struct pd_data_source)};
static const struct pd_key_list tiers = {
    "a tier is a directory, or {dir: DIR, every: STEPS} with keep_last, keep_every, bandwidth, upload_memory, replicas and "
    "compression",
    MEMBERS(tier_members), PD_TIERS_MAX, sizeof(struct pd_config_tier)};
static const struct pd_key_list ranks = {"an element is a number of ranks", MEMBERS(rank_members), 65536, sizeof(uint32_t)};

/* ---- all keys ---- */

const struct pd_key pd_keys[] = {
    STRING(run.dir, "", FREE, "directory of the run: metrics, logs and checkpoints"),
    U64(run.seed, "1", 0, 9e15, LINEAGE, "seeds the initial weights and the order of samples"),
    U64(run.steps, "1000", 1, COUNT_MAX, FREE, "optimizer steps of the whole run", STEPS),
    U32(run.log_every, "1", 1, 1e6, FREE, "write a line to metrics.jsonl every so many steps", STEPS),
    WORD(run.device, "auto", device_words, FREE, "auto: GPUs if there are any, else the CPU"),

    STRING(init.from, "", FREE,
           "start a new run from the weights of this checkpoint or model of another program; s3:// works too"),

    KEY("model.preset", PD_KEY_STRING, model_preset, "byte-1m", FREE, "a named size; the keys below override it"),
    WORD(model.family, NULL, pd_family_names, REFUSED, pd_family_about),
    MODEL_U32(vocab, REFUSED, "number of tokens; 256 for bytes"),
    MODEL_U32(context, REFUSED, "longest sequence the positions cover", TOKENS),
    MODEL_U32(layers, REFUSED, "transformer blocks"),
    MODEL_U32(hidden, REFUSED, "width of the residual stream"),
    MODEL_U32(heads, REFUSED, "query heads"),
    MODEL_U32(kv_heads, REFUSED, "key-value heads; 0: as many as heads"),
    MODEL_U32(head_size, REFUSED, "size of a head; 0: hidden / heads"),
    MODEL_U32(ffn, REFUSED, "width of the MLP; 0: 4 * hidden, or 8/3 * hidden if the MLP has a gate"),
    SWITCH(model.qkv_bias, NULL, REFUSED, "biases on q, k and v (Qwen2.5)"),
    SWITCH(model.tie_embeddings, NULL, REFUSED, "use the embedding as the output matrix too"),
    MODEL_FLOAT(norm_epsilon, LINEAGE, "added under the root of each norm"),
    MODEL_FLOAT(rope_theta, LINEAGE, "base of the RoPE frequencies"),
    WORD(model.rope_scaling, NULL, rope_words, LINEAGE, "none, linear, or llama3 (Llama 3.1)"),
    MODEL_FLOAT(rope_factor, LINEAGE, "stretch wavelengths by this factor; llama3: long ones only"),
    MODEL_FLOAT(rope_low_frequency_factor, LINEAGE,
                "llama3: wavelengths above original context / this are stretched in full"),
    MODEL_FLOAT(rope_high_frequency_factor, LINEAGE, "llama3: wavelengths below original context / this are not stretched"),
    MODEL_U32(rope_original_context, LINEAGE, "llama3: context before stretching", TOKENS),
    SWITCH(model.qk_norm, NULL, REFUSED, "norms on q and k (GLM-4.5; other families always or never have them)"),
    MODEL_U32(rotated, REFUSED, "elements of a head that RoPE rotates (GLM-4.5: half); 0: head_size"),
    MODEL_U32(experts, REFUSED, "experts of a block; 0: the family has none"),
    MODEL_U32(experts_per_token, REFUSED, "experts that compute each token; 0: 2"),
    MODEL_U32(expert_ffn, REFUSED, "width of an expert; 0: ffn"),
    MODEL_U32(shared_experts, REFUSED, "experts that compute every token (GLM-4.5)"),
    MODEL_U32(dense_blocks, REFUSED, "first blocks, without experts (GLM-4.5)"),
    MODEL_U32(router_groups, REFUSED, "groups of experts (GLM-4.5); 0: 1"),
    MODEL_U32(router_groups_kept, REFUSED, "groups from which a token chooses; 0: all"),
    SWITCH(model.renormalise, NULL, LINEAGE, "divide the weights of a token's experts by their sum"),
    MODEL_FLOAT(routed_scale, LINEAGE, "factor on the weights of experts (GLM-4.5); 0: 1"),
    MODEL_FLOAT(balance_loss, LINEAGE,
                "coefficient of the loss that balances experts (Switch Transformer), mean of all blocks"),
    MODEL_FLOAT(z_loss, LINEAGE, "coefficient of the loss that keeps router logits small (ST-MoE), mean of all blocks"),
    MODEL_FLOAT(bias_step, LINEAGE, "how far an update moves the selection bias of an expert to balance its load (GLM-4.5)"),
    MODEL_FLOAT(init_std, FREE, "standard deviation of initial weights"),

    LIST(data.train, sources, FREE,
         "files, directories or globs, also in a bucket (s3://); a changed file is refused on resume"),
    LIST(data.validation, sources, FREE, "files to validate on; empty: validation_fraction of each train file"),
    F64(data.validation_fraction, "0", 0, 0.5, LINEAGE, "keep this part of each train file, its end, for validation"),
    SWITCH(data.separate_documents, "false", LINEAGE, "attention does not cross documents"),
    NUMBER(PD_KEY_I64, data.document_token, "-1", -1, 16777216, LINEAGE,
           "the token that ends a document, if the file does not mark them; -1: none"),
    STRING(data.cache_dir, "", FREE, "where each host keeps copies of data in a bucket; empty: ~/.cache/perdure"),
    U64(data.cache_bytes, "100G", 1 << 20, 1e15, FREE, "how much data in a bucket a host may copy there", TOKENS),

    U32(batch.sequences, "32", 1, 1 << 24, LINEAGE, "global batch size: sequences a step, under every layout", STEPS),
    U32(batch.micro_batch, "0", 0, 1 << 20, LINEAGE,
        "sequences a rank computes at once; it accumulates gradients over sequences / (micro_batch * dp) of them. Changes "
        "the bits. 0: sequences divided by its largest divisor up to 8",
        .automatic = true),
    U32(batch.context, "0", 0, 1 << 20, LINEAGE, "tokens a sequence; 0: model.context", TOKENS, .automatic = true),

    F64(optimizer.lr, "3e-4", 0, 100, FREE, "peak learning rate"),
    F64(optimizer.min_lr, "auto", 0, 100, FREE, "learning rate at the end of the cosine; auto: lr / 10", .automatic = true),
    U64(optimizer.warmup_steps, "auto", 0, COUNT_MAX, FREE,
        "steps of linear warmup; auto: a tenth of run.steps, at most 100 and less than decay_steps", STEPS,
        .automatic = true),
    U64(optimizer.decay_steps, "0", 0, COUNT_MAX, FREE, "step at which the cosine ends; 0: run.steps", STEPS,
        .automatic = true),
    F64(optimizer.beta1, "0.9", 0, 1, LINEAGE, "decay of the first moment", .high_open = true),
    F64(optimizer.beta2, "0.95", 0, 1, LINEAGE, "decay of the second moment", .high_open = true),
    F64(optimizer.epsilon, "1e-8", 0, 1, LINEAGE, "added to the root of the second moment", .low_open = true),
    F64(optimizer.weight_decay, "0.1", 0, 10, FREE, "applies to matrices and embeddings, not to norms and biases"),
    F64(optimizer.clip_norm, "1", 0, 1e9, FREE, "clip the global gradient norm to this; 0: off"),
    WORD(optimizer.moments, "fp32", moments_words, LINEAGE,
         "type of both moments; bf16 saves 4 bytes a parameter and rounds stochastically"),

    WORD(numerics.mode, "invariant", mode_words, LINEAGE,
         "invariant: the same bits under every layout; fast: the vendor's libraries choose the order of sums"),
    WORD(numerics.precision, "bf16", dtype_words, LINEAGE,
         "type of activations and working copies of weights; master weights are fp32"),
    WORD(numerics.linears, "precision", linears_words, LINEAGE,
         "fp8: the linear layers of blocks multiply in 8 bits; precision: in numerics.precision"),
    WORD(numerics.logits, "rows", logits_words, LINEAGE,
         "rows: all logits of a few tokens at a time; columns: a part of the vocabulary at a time, which needs less memory "
         "and one more matrix multiplication"),
    WORD(numerics.logits_type, "fp32", logits_type_words, LINEAGE,
         "type of the logits that the loss reads; precision: numerics.precision, a third less memory traffic at the head"),
    U32(numerics.lanes, "auto", 1, 1 << 24, LINEAGE,
        "a lane adds consecutive micro-batches in fp32; sums of lanes are exact, so dp may be anything up to the number of "
        "lanes, and each rank with several holds 8 bytes a parameter of sums; auto: elastic.max, or 8, but at most the "
        "micro-batches of a step",
        .automatic = true),
    WORD(numerics.terms, "64", terms_words, LINEAGE,
         "bits of a gradient in sums of lanes; 32: half the memory and traffic, for 23 bits below the largest gradient of "
         "all "
         "tensors of a kind"),
    WORD(numerics.gradients, "fp32", moments_words, LINEAGE,
         "type in which blocks sum gradients of micro-batches; bf16 saves 2 bytes a parameter, and needs one lane"),
    U32(numerics.virtual_tp, "1", 1, 256, LINEAGE,
        "largest tp of this run: tensor-parallel sums have so many terms under every layout; tp must divide it"),
    U32(numerics.virtual_sp, "1", 1, 256, LINEAGE,
        "largest sp of this run: each micro-batch is cut into twice so many pieces under every layout; sp must divide it"),
    F64(numerics.loss_scale, "1024", 1.0 / 16777216, 16777216, FREE, "fp16: initial loss scale, a power of two"),
    U32(numerics.loss_scale_interval, "1000", 1, 1e9, LINEAGE,
        "fp16: double the loss scale after so many steps without overflow", STEPS),

    U32(layout.ranks, "0", 0, 65536, FREE, "worker processes; 0: one per GPU, or per CPU socket", .automatic = true),
    U32(layout.threads, "0", 0, 4096, FREE, "threads of a rank; 0: cores / ranks of the host", .automatic = true),
    U32(layout.ranks_per_host, "0", 0, 65536, FREE, "ranks of a host, for layout.auto and plan; 0: all on one host",
        .automatic = true),
    WORD(layout.transport, "auto", transport_words, FREE,
         "local: ranks are threads of one process, on CPUs or one GPU; mpi: processes, on one host or several"),
    WORD(
        layout.recompute, "none", recompute_words, FREE,
        "activation checkpointing. selective: recompute norms and activation functions; full: keep only each block's input"),
    U32(layout.recompute_layers, "auto", 0, 65536, FREE,
        "how many blocks of a rank do so, from its first; auto: all, or what fits with layout.auto", .automatic = true),
    KEY("layout.auto", PD_KEY_BOOL, layout.automatic, "false", FREE,
        "the planner chooses dp, tp, pp, sp, recompute and zero_stage where they are not set"),
    U32(layout.dp, "0", 0, 65536, FREE, "data parallel degree; 0: all remaining ranks", .automatic = true),
    U32(layout.tp, "0", 0, 4096, FREE, "tensor parallel degree; 0: 1", .automatic = true),
    U32(layout.pp, "0", 0, 4096, FREE, "pipeline parallel degree; 0: 1", .automatic = true),
    U32(layout.sp, "0", 0, 4096, FREE, "sequence (context) parallel degree; 0: 1", .automatic = true),
    U32(layout.ep, "0", 0, PD_LAYOUT_EP_MAX, FREE, "data parallel ranks over which the experts of a model are spread; 0: 1",
        .automatic = true),
    U32(layout.ep_rows, "2", 1, PD_LAYOUT_EP_MAX, FREE,
        "a rank's experts compute at once this many times the tokens that it sends; more come in slices, made twice"),
    U32(layout.interleave, "1", 1, 256, FREE, "model chunks per pipeline rank (virtual pipeline stages)"),
    WORD(layout.order, "auto", order_words, FREE,
         "breadth_first: run all micro-batches through a block before the next block; auto: if parameters or gradients are "
         "on nvme"),
    WORD(layout.exchange, "auto", exchange_words, FREE,
         "when gradients are reduced. step: once a step; lane: after each lane, which needs less memory; auto: step up to 8 "
         "GiB, or what fits with layout.auto"),
    WORD(layout.fp8_codes, "auto", codes_words, FREE,
         "when weights are converted to fp8. step: once a step, two more bytes a weight; micro_batch: each time; auto: step "
         "on a GPU"),
    U32(layout.zero_stage, "3", 0, 3, FREE,
        "what data parallel ranks shard. 1: optimizer state; 2: gradients too; 3: parameters too; 0: nothing"),
    U32(layout.zero_shard, "0", 0, 65536, FREE, "into how many parts the optimizer state is cut; 0: dp * sp",
        .automatic = true),

    WORD(offload.optimizer, "device", place_words, FREE,
         "where master weights and moments live: device, cpu, or nvme (files beside the checkpoints)"),
    WORD(offload.update, "auto", update_words, FREE,
         "with a GPU and state on cpu: host: the CPU updates it; device: it streams through the GPU; auto: whichever plan "
         "finds faster"),
    WORD(offload.parameters, "device", place_words, FREE,
         "where working copies of blocks live; nvme needs offload.optimizer=nvme"),
    WORD(offload.gradients, "device", place_words, FREE,
         "where summed gradients of blocks live; nvme needs offload.optimizer=nvme"),
    WORD(offload.activations, "device", place_words, FREE, "where activations wait between forward and backward"),
    U64(offload.buffer_bytes, "192M", 1 << 20, 1e12, FREE, "memory of a rank through which offloaded state streams", TOKENS),
    U64(offload.optimizer_budget, "0", 0, 1e15, FREE, "bytes of state on nvme that a rank also caches in memory", TOKENS),
    U64(offload.parameters_budget, "0", 0, 1e15, FREE, "bytes of working copies a rank keeps in memory instead of nvme",
        TOKENS),
    U64(offload.gradients_budget, "0", 0, 1e15, FREE,
        "bytes of gradient sums, 8 per element, a rank keeps in memory instead of nvme", TOKENS),
    U64(offload.activations_budget, "0", 0, 1e15, FREE, "bytes of activations a rank keeps in memory instead of nvme",
        TOKENS),

    STRING(checkpoint.dir, "", FREE, "where checkpoints go; empty: run.dir/checkpoints"),
    U64(checkpoint.every, "100", 0, COUNT_MAX, FREE, "save every so many steps; 0: only at the end and on a signal", STEPS),
    U32(checkpoint.keep_last, "3", 1, 1e6, FREE, "keep the newest so many checkpoints"),
    U64(checkpoint.keep_every, "0", 0, COUNT_MAX, FREE, "also keep every checkpoint whose step this divides; 0: none",
        STEPS),
    U32(checkpoint.in_flight, "1", 1, 2, FREE,
        "saves in progress at once; 2: copy the next while the one before is still being written"),
    STRING(checkpoint.compression, "none", FREE, "none, or zstd:1 to zstd:19"),
    LIST(checkpoint.tiers, tiers, FREE, "directories to save to, fastest first; empty: checkpoint.dir alone"),
    F64(checkpoint.leave_seconds, "20", 0, 1e6, FREE,
        "on TERM: how long to wait for slower tiers once one tier that survives a reboot has the last step"),
    F64(checkpoint.give_up_minutes, "60", 0, 1e6, FREE,
        "retry failed saves for so long, then end the run; 0: end it at the first failure"),

    U64(validation.every, "0", 0, COUNT_MAX, FREE, "validate every so many steps; 0: never", STEPS),
    U32(validation.sequences, "32", 1, 1 << 24, FREE, "sequences of one validation", STEPS),

    SWITCH(metrics.tensorboard, "false", FREE, "also write event files to run.dir/tensorboard"),
    STRING(metrics.prometheus_listen, "", FREE,
           "[ADDRESS:]PORT on which rank 0 serves GET /metrics; without ADDRESS: 127.0.0.1 only; empty: off"),

    U32(restart.limit, "3", 0, 1e6, FREE, "give up after so many restarts in a row without a newer checkpoint"),
    LIST(restart.ranks, ranks, FREE,
         "ranks of the first, second, ... restart; empty: all, or those that remain once a rank is lost twice"),
    F64(restart.begin_seconds, "120", 0, 1e6, FREE, "how long mpirun or srun may take to start all ranks; 0: no limit"),
    F64(restart.join_seconds, "120", 0, 1e6, FREE,
        "how long ranks may then take to connect to each other (MPI_Init); 0: no limit"),
    F64(restart.open_seconds, "300", 0, 1e6, FREE,
        "like hang_seconds, but before the second step, while ranks read data and checkpoints; 0: no limit"),
    F64(restart.hang_seconds, "30", 0, 1e6, FREE,
        "if no block and no exchange completes for so long, end the rank that the others wait for; 0: never"),
    F64(restart.straggler_seconds, "20", 0, 1e6, FREE,
        "compare ranks over windows of this length; report a rank below 3/4 of the median speed in three of them; 0: never"),

    STRING(launch.hosts, "", FREE, "a file of hosts (name, name:ranks), or a command that prints one; read at every start"),
    STRING(launch.agent, "ssh", FREE, "the command that runs another on a host, as in: AGENT HOST COMMAND"),
    U32(launch.port, "0", 0, 65535, FREE,
        "port on which the launcher listens for ranks of other hosts; open it in firewalls; 0: any free port"),
    WORD(launch.grow, "restart", grow_words, FREE,
         "when to use hosts that came back. restart: at the next restart; now: save, stop and start again with them"),
    F64(launch.wait_seconds, "600", 0, 1e9, FREE,
        "with fewer than elastic.min ranks: wait so long for hosts to come back, then exit with 75"),

    STRING(preempt.notice, "", FREE,
           "a command each host runs every five seconds; when it exits with 0 the run saves and leaves, as on TERM; empty: "
           "none"),

    WORD(guard.non_finite, "stop", guard_words, FREE,
         "what to do if the loss or gradient is NaN or infinite. stop: end the run; skip: skip this batch; rollback: undo "
         "and skip the last guard.rollback_steps steps"),
    F64(guard.spike_z, "0", 0, 1e6, FREE,
        "also roll back if the loss is so many standard deviations above its mean; try 6; 0: off"),
    U64(guard.spike_window, "128", 2, COUNT_MAX, FREE,
        "compute mean and deviation over so many losses; before that nothing is a spike", STEPS),
    U64(guard.rollback_steps, "8", 1, COUNT_MAX, FREE, "steps a rollback undoes, including the last", STEPS),
    U64(guard.replay_every, "0", 0, COUNT_MAX, FREE,
        "every so many steps, recompute one micro-batch of each rank on another rank and compare the bits; try 16; 0: off",
        STEPS),
    U32(guard.skips, "10", 1, 1e6, FREE, "end the run after so many skips or rollbacks in a row"),

    U32(elastic.min, "1", 1, 65536, FREE, "do not start with fewer ranks than this"),
    U32(elastic.max, "0", 0, 65536, FREE, "most ranks, if launch.hosts has the slots; 0: layout.ranks, or all that fit"),

    SWITCH(accept_new_lineage, "false", FREE,
           "resume although numerics, batch or data changed; the bits differ from there on"),
};
const uint32_t pd_key_count = sizeof pd_keys / sizeof pd_keys[0];
