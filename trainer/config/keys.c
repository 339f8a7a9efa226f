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
static const char *const logits_words[] = {"rows", "columns", NULL};
static const char *const moments_words[] = {"fp32", "bf16", NULL};
static const char *const guard_words[] = {"stop", "skip", "rollback", NULL};
static const char *const grow_words[] = {"restart", "now", NULL};
static const char *const transport_words[] = {"auto", "local", "mpi", NULL};
static const char *const order_words[] = {"auto", "depth_first", "breadth_first", NULL};
static const char *const place_words[] = {"device", "cpu", "nvme", NULL};
static const char *const update_words[] = {"auto", "host", "device", NULL};
static const char *const recompute_words[] = {"none", "selective", "full", NULL};
static const char *const format_words[] = {"auto", "text", "nanogpt", "llmc", "megatron", NULL};

/* A key is called as its member is, but for two. What comes behind its meaning are further fields. */
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
    TIER(replicas, PD_KEY_U32, .high = 1e6),
    TIER(compression, PD_KEY_STRING),
};
static const struct pd_key rank_members[] = {{.name = "", .type = PD_KEY_U32, .low = 1, .high = 65536}};

static const struct pd_key_list sources = {"a data file is a path, or {path: FILE} with format and weight",
                                           MEMBERS(source_members), 65536, sizeof(struct pd_data_source)};
static const struct pd_key_list tiers = {
    "a tier is a directory, or {dir: DIR, every: STEPS} with keep_last, keep_every, bandwidth, replicas and compression",
    MEMBERS(tier_members), PD_TIERS_MAX, sizeof(struct pd_config_tier)};
static const struct pd_key_list ranks = {"an element is a number of ranks", MEMBERS(rank_members), 65536, sizeof(uint32_t)};

/* ---- all keys ---- */

const struct pd_key pd_keys[] = {
    STRING(run.dir, "", FREE, "where the run lives: metrics, log, checkpoints"),
    U64(run.seed, "1", 0, 9e15, LINEAGE, "initial values and order of samples"),
    U64(run.steps, "1000", 1, COUNT_MAX, FREE, "optimizer steps of the whole run", STEPS),
    U32(run.log_every, "1", 1, 1e6, FREE, "steps between lines of metrics.jsonl", STEPS),
    WORD(run.device, "auto", device_words, FREE, "auto: GPUs where there are any, or CPU ranks"),

    STRING(init.from, "", FREE, "a checkpoint of another system that a new run begins from; its config.json says the model"),

    KEY("model.preset", PD_KEY_STRING, model_preset, "byte-1m", FREE, "a named size; the keys below override it"),
    WORD(model.family, NULL, pd_family_names, REFUSED, pd_family_about),
    MODEL_U32(vocab, REFUSED, "tokens; 256 for bytes"),
    MODEL_U32(context, REFUSED, "longest sequence that positions exist for", TOKENS),
    MODEL_U32(layers, REFUSED, "transformer blocks"),
    MODEL_U32(hidden, REFUSED, "width of the residual stream"),
    MODEL_U32(heads, REFUSED, "query heads"),
    MODEL_U32(kv_heads, REFUSED, "key-value heads; 0: as many as heads"),
    MODEL_U32(head_size, REFUSED, "0: hidden / heads"),
    MODEL_U32(ffn, REFUSED, "width of the MLP; 0: 4 * hidden, or 8/3 * hidden where it has a gate"),
    SWITCH(model.qkv_bias, NULL, REFUSED, "biases at q, k and v (Qwen2.5)"),
    SWITCH(model.tie_embeddings, NULL, REFUSED, "the output matrix is the embedding"),
    MODEL_FLOAT(norm_epsilon, LINEAGE, "under the root of a norm"),
    MODEL_FLOAT(rope_theta, LINEAGE, "base of the RoPE frequencies"),
    WORD(model.rope_scaling, NULL, rope_words, LINEAGE, "none, linear, or llama3 (Llama 3.1)"),
    MODEL_FLOAT(rope_factor, LINEAGE, "how far wavelengths are stretched; llama3: long ones"),
    MODEL_FLOAT(rope_low_frequency_factor, LINEAGE, "llama3"),
    MODEL_FLOAT(rope_high_frequency_factor, LINEAGE, "llama3"),
    MODEL_U32(rope_original_context, LINEAGE, "llama3: context before stretching", TOKENS),
    MODEL_FLOAT(init_std, FREE, "standard deviation of initial weights"),

    LIST(data.train, sources, FREE, "files, directories, globs; a fingerprint guards their contents"),
    LIST(data.validation, sources, FREE, "files; none: a part of each train file"),
    F64(data.validation_fraction, "0", 0, 0.5, LINEAGE, "tail of each train file kept for validation"),
    SWITCH(data.separate_documents, "false", LINEAGE, "attention does not cross documents"),
    NUMBER(PD_KEY_I64, data.document_token, "-1", -1, 16777216, LINEAGE,
           "token that ends a document, where the format has no bounds; -1: none"),

    U32(batch.sequences, "32", 1, 1 << 24, LINEAGE, "sequences a step, whatever the layout: the global batch size", STEPS),
    U32(batch.micro_batch, "0", 0, 1 << 20, LINEAGE,
        "sequences a micro-batch, the unit of numerics; a rank accumulates gradients over sequences / (micro_batch * dp) of "
        "them; 0: "
        "sequences over their largest divisor up to 8",
        .automatic = true),
    U32(batch.context, "0", 0, 1 << 20, LINEAGE, "tokens a sequence; 0: model.context", TOKENS, .automatic = true),

    F64(optimizer.lr, "3e-4", 0, 100, FREE, "peak learning rate"),
    F64(optimizer.min_lr, "auto", 0, 100, FREE, "end of the cosine; auto: lr / 10", .automatic = true),
    U64(optimizer.warmup_steps, "auto", 0, COUNT_MAX, FREE,
        "linear rise; auto: a tenth of run.steps, at most 100, or of decay_steps where that is shorter", STEPS,
        .automatic = true),
    U64(optimizer.decay_steps, "0", 0, COUNT_MAX, FREE, "step where the cosine ends; 0: run.steps", STEPS,
        .automatic = true),
    F64(optimizer.beta1, "0.9", 0, 1, LINEAGE, "decay of the first moment", .high_open = true),
    F64(optimizer.beta2, "0.95", 0, 1, LINEAGE, "decay of the second moment", .high_open = true),
    F64(optimizer.epsilon, "1e-8", 0, 1, LINEAGE, "added to the root", .low_open = true),
    F64(optimizer.weight_decay, "0.1", 0, 10, FREE, "of matrices, embeddings included"),
    F64(optimizer.clip_norm, "1", 0, 1e9, FREE, "global gradient norm; 0: off"),
    WORD(optimizer.moments, "fp32", moments_words, LINEAGE,
         "both moments; bf16: 4 bytes a parameter less, rounded at random, right on average"),

    WORD(numerics.mode, "invariant", mode_words, LINEAGE,
         "invariant: the same bits under every layout; fast: vendor libraries choose"),
    WORD(numerics.precision, "bf16", dtype_words, LINEAGE, "of activations and working copies; the master is fp32"),
    WORD(numerics.linears, "precision", linears_words, LINEAGE,
         "fp8: operands of the linears of blocks have eight bits; precision: they are as activations are"),
    WORD(numerics.logits, "rows", logits_words, LINEAGE,
         "of the head that exist at once: all of some rows, or of some columns, in less memory; those are multiplied twice"),
    U32(numerics.lanes, "auto", 1, 1 << 24, LINEAGE,
        "lanes: each adds consecutive micro-batches in fp32, and sums of lanes are exact; dp is at most this; auto: "
        "one per micro-batch",
        .automatic = true),
    U32(numerics.virtual_tp, "1", 1, 256, LINEAGE, "chunks of tensor-parallel sums; tp divides it"),
    U32(numerics.virtual_sp, "1", 1, 256, LINEAGE, "half the token pieces of a micro-batch; sp divides it"),
    F64(numerics.loss_scale, "1024", 1.0 / 16777216, 16777216, FREE, "fp16: the first one, a power of two"),
    U32(numerics.loss_scale_interval, "1000", 1, 1e9, LINEAGE, "fp16: steps without overflow after which it doubles", STEPS),

    U32(layout.ranks, "0", 0, 65536, FREE, "worker processes; 0: one a device or socket of cores", .automatic = true),
    U32(layout.threads, "0", 0, 4096, FREE, "of a rank; 0: cores / ranks of a host", .automatic = true),
    U32(layout.ranks_per_host, "0", 0, 65536, FREE, "of a host, for layout.auto and plan; 0: all are on one",
        .automatic = true),
    WORD(layout.transport, "auto", transport_words, FREE,
         "local: ranks are threads of one process; mpi: processes, of several hosts too"),
    WORD(layout.recompute, "none", recompute_words, FREE,
         "selective: norms and activations again; full: keep a block's input only"),
    U32(layout.recompute_layers, "auto", 0, 65536, FREE,
        "blocks a rank recomputes so, its first ones; auto: all, or with layout.auto what fits", .automatic = true),
    KEY("layout.auto", PD_KEY_BOOL, layout.automatic, "false", FREE,
        "the planner chooses whichever of dp, tp, pp, sp, recompute and zero_stage is not set"),
    U32(layout.dp, "0", 0, 65536, FREE, "data parallel; 0: all remaining ranks", .automatic = true),
    U32(layout.tp, "0", 0, 4096, FREE, "tensor parallel; 0: 1", .automatic = true),
    U32(layout.pp, "0", 0, 4096, FREE, "pipeline parallel; 0: 1", .automatic = true),
    U32(layout.sp, "0", 0, 4096, FREE, "sequence parallel; 0: 1", .automatic = true),
    U32(layout.interleave, "1", 1, 256, FREE, "pipeline chunks a rank"),
    WORD(layout.order, "auto", order_words, FREE,
         "breadth_first: all micro-batches of a block before the next; auto: where parameters or gradients are on nvme"),
    WORD(
        layout.exchange, "auto", exchange_words, FREE,
        "of gradients: once a step, or as lanes end, in less memory; auto: step up to 8 GiB, or with layout.auto what fits"),
    WORD(layout.fp8_codes, "auto", codes_words, FREE,
         "of weights are made once a step and kept, two bytes each, or for every micro-batch; auto: step on a GPU"),
    U32(layout.zero_stage, "3", 0, 3, FREE, "what ranks hold while training"),
    U32(layout.zero_shard, "0", 0, 65536, FREE, "parts state is cut into; 0: dp * sp", .automatic = true),

    WORD(offload.optimizer, "device", place_words, FREE,
         "master weights and moments: device, cpu, or nvme (files beside the checkpoints)"),
    WORD(offload.update, "auto", update_words, FREE,
         "of state on cpu beside a GPU: by the host, or by the GPU, through which it streams; auto: what plan finds faster"),
    WORD(offload.parameters, "device", place_words, FREE, "working copies of blocks; nvme needs offload.optimizer=nvme"),
    WORD(offload.gradients, "device", place_words, FREE, "summed gradients of blocks; nvme needs offload.optimizer=nvme"),
    WORD(offload.activations, "device", place_words, FREE, "what a block keeps between forward and backward"),
    U64(offload.buffer_bytes, "192M", 1 << 20, 1e12, FREE, "memory that offloaded state streams through", TOKENS),
    U64(offload.optimizer_budget, "0", 0, 1e15, FREE,
        "bytes of state on nvme that a rank keeps in memory too, and does not read", TOKENS),
    U64(offload.parameters_budget, "0", 0, 1e15, FREE, "bytes of copies that a rank keeps in memory in place of nvme",
        TOKENS),
    U64(offload.gradients_budget, "0", 0, 1e15, FREE,
        "bytes of sums, 8 an element, that a rank keeps in memory in place of nvme", TOKENS),
    U64(offload.activations_budget, "0", 0, 1e15, FREE, "bytes of activations that stay in memory instead of nvme", TOKENS),

    STRING(checkpoint.dir, "", FREE, "empty: checkpoints, inside run.dir"),
    U64(checkpoint.every, "100", 0, COUNT_MAX, FREE, "steps; 0: only at the end and on a signal", STEPS),
    U32(checkpoint.keep_last, "3", 1, 1e6, FREE, "newest checkpoints that stay"),
    U64(checkpoint.keep_every, "0", 0, COUNT_MAX, FREE, "and also every step that this divides; 0: none", STEPS),
    U32(checkpoint.in_flight, "1", 1, 2, FREE,
        "saves under way at once; 2: one may be copied while the one before is made durable"),
    STRING(checkpoint.compression, "none", FREE, "of shards: none, or zstd:1 to zstd:19"),
    LIST(checkpoint.tiers, tiers, FREE, "directories to save into, the fastest first; none: checkpoint.dir alone"),
    F64(checkpoint.leave_seconds, "20", 0, 1e6, FREE,
        "asked to leave: for further tiers, once one that outlives a reboot has the last step"),
    F64(checkpoint.give_up_minutes, "60", 0, 1e6, FREE,
        "saves are tried again, ever more rarely, until they have failed for so long; 0: the first failure ends the run"),

    U64(validation.every, "0", 0, COUNT_MAX, FREE, "steps; 0: never", STEPS),
    U32(validation.sequences, "32", 1, 1 << 24, FREE, "of one pass", STEPS),

    SWITCH(metrics.tensorboard, "false", FREE, "event files in run.dir/tensorboard, beside metrics.jsonl"),
    STRING(metrics.prometheus_listen, "", FREE,
           "[ADDRESS:]PORT where rank 0 answers GET /metrics; without ADDRESS 127.0.0.1 alone; empty: nowhere"),

    U32(restart.limit, "3", 0, 1e6, FREE, "restarts without progress before giving up"),
    LIST(restart.ranks, ranks, FREE,
         "ranks of the first, second, ... restart; empty: all, or the remaining ones once a rank is lost twice"),
    F64(restart.begin_seconds, "120", 0, 1e6, FREE, "for mpirun or srun to start all ranks; then it is ended; 0: for ever"),
    F64(restart.join_seconds, "120", 0, 1e6, FREE, "after that, for all ranks to reach one another (MPI_Init); 0: for ever"),
    F64(restart.open_seconds, "300", 0, 1e6, FREE,
        "after that, until the second step: as hang_seconds, which is for the steps after it; 0: for ever"),
    F64(restart.hang_seconds, "30", 0, 1e6, FREE,
        "without a block, an exchange or a step done: the rank that holds up the others is named and ended; 0: never"),
    F64(restart.straggler_seconds, "20", 0, 1e6, FREE,
        "a window of comparing: a rank below three quarters of the median speed in three of them is named; 0: never"),

    STRING(launch.hosts, "", FREE, "a file of hosts (name, name:ranks), or a command that prints one; read at every start"),
    STRING(launch.agent, "ssh", FREE, "starts a command on a host: AGENT HOST COMMAND"),
    U32(launch.port, "0", 0, 65535, FREE,
        "on which the launcher hears ranks of other hosts, for packet filters to let through; 0: any that is free"),
    WORD(launch.grow, "restart", grow_words, FREE,
         "hosts that come back are taken in at the next restart; now: ranks save, leave and start again with them"),
    F64(launch.wait_seconds, "600", 0, 1e9, FREE,
        "for hosts to come back, where fewer than elastic.min ranks can run; then the launch ends with 75"),

    STRING(preempt.notice, "", FREE,
           "a command that is run every five seconds on every host; exit code 0 saves and leaves, as TERM; empty: none"),

    WORD(guard.non_finite, "stop", guard_words, FREE,
         "a loss or gradient that is NaN or infinite ends the run; skip: its batch is consumed and updates nothing; "
         "rollback: and "
         "so do the guard.rollback_steps - 1 before it"),
    F64(guard.spike_z, "0", 0, 1e6, FREE,
        "a loss so many standard deviations above the mean rolls back too; 6 is a sign, 0: none does"),
    U64(guard.spike_window, "128", 2, COUNT_MAX, FREE, "losses that mean and deviation remember; before, nothing is a spike",
        STEPS),
    U64(guard.rollback_steps, "8", 1, COUNT_MAX, FREE, "steps that a rollback undoes, the last one included", STEPS),
    U64(guard.replay_every, "0", 0, COUNT_MAX, FREE,
        "steps after which a micro-batch of every rank is computed again by another and compared; 16 is a sign, 0: never",
        STEPS),
    U32(guard.skips, "10", 1, 1e6, FREE, "in a row, or rollbacks in a row, before the run ends all the same"),

    U32(elastic.min, "1", 1, 65536, FREE, "ranks; with fewer no start is made"),
    U32(elastic.max, "0", 0, 65536, FREE, "ranks, if launch.hosts has enough slots; 0: layout.ranks, or all that fit"),

    SWITCH(accept_new_lineage, "false", FREE,
           "go on with changed numerics, batch or data, on purpose: other bits from there on"),
};
const uint32_t pd_key_count = sizeof pd_keys / sizeof pd_keys[0];
