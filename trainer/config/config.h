/* The configuration of a run: YAML and section.key=value overrides, resolved into one plain struct.
 *
 * Keys are the member names: optimizer.lr, batch.sequences, data.train[0].path. One table (keys.c) drives reading,
 * overriding, printing, comparing and suggestions: type, default, range, the effect of a change on resume, and the comment
 * in --print-config. An unknown key is an error with line, column and the nearest key. Counts take k, M, G as powers of 1000
 * (run.steps=10k), contexts as powers of 1024 (batch.context=8k).
 *
 * data.train is a file name, or a list of names and of {path, format, weight}; checkpoint.tiers a list of {dir, every,
 * keep_last, keep_every, bandwidth, upload_memory, replicas}. A list on the command line is written as in a file:
 * data.train=[a.txt, b.txt]. Model sizes that follow from others (kv_heads, head_size, ffn) follow again when the others
 * are changed and they are not named.
 */
#pragma once

#include "ckpt/tiers/tiers.h"
#include "offload/placement.h"
#include "trainer/data/data.h"
#include "trainer/math/math.h"
#include "trainer/model/model.h"
#include "trainer/model/transformer.h"

enum pd_codes { PD_CODES_AUTO, PD_CODES_STEP, PD_CODES_MICRO_BATCH };
enum pd_order { PD_ORDER_AUTO, PD_ORDER_DEPTH_FIRST, PD_ORDER_BREADTH_FIRST };
enum pd_updates { PD_UPDATES_AUTO, PD_UPDATES_HOST, PD_UPDATES_DEVICE };
enum pd_exchange { PD_EXCHANGE_AUTO, PD_EXCHANGE_STEP, PD_EXCHANGE_LANE };
enum pd_device_choice { PD_DEVICE_AUTO, PD_DEVICE_CPU, PD_DEVICE_GPU };
enum pd_linears { PD_LINEARS_PRECISION, PD_LINEARS_FP8 };
enum pd_terms_width { PD_TERMS_64, PD_TERMS_32 };
enum pd_logits { PD_LOGITS_OF_ROWS, PD_LOGITS_OF_COLUMNS };
enum pd_logits_type { PD_LOGITS_IN_F32, PD_LOGITS_IN_PRECISION };
enum pd_guard { PD_GUARD_STOP, PD_GUARD_SKIP, PD_GUARD_ROLLBACK };
enum pd_grow { PD_GROW_RESTART, PD_GROW_NOW };
enum pd_transport { PD_TRANSPORT_AUTO, PD_TRANSPORT_LOCAL, PD_TRANSPORT_MPI };

/* Missing members default to checkpoint.*. */
struct pd_config_tier {
    char *dir;
    uint64_t every;
    uint32_t keep_last;
    uint64_t keep_every;
    uint64_t bandwidth;     /* bytes a second of one host, in the background; 0: no cap */
    uint64_t upload_memory; /* of one host, to send to a bucket from; 0: 64 MiB */
    uint32_t replicas;      /* of the first tier, on another host: 0 or 1 */
    char *compression;      /* none, zstd:N */
};

struct pd_config {
    struct {
        char *dir;     /* run directory: metrics.jsonl, log, and by default the checkpoints */
        uint64_t seed; /* initialisation and sample order */
        uint64_t steps;
        uint32_t log_every;           /* steps between progress lines of metrics.jsonl; 1 */
        enum pd_device_choice device; /* auto: GPUs if there are any */
    } run;
    struct {
        char *from; /* another program's checkpoint; "": random values from run.seed */
    } init;
    char *model_preset; /* model.preset; other model keys override it */
    struct pd_model_config model;
    struct pd_data_options data; /* the keys of data.*; pd_config_data adds the rest */
    struct {
        uint32_t sequences;   /* G: sequences per step, under any layout */
        uint32_t micro_batch; /* m: sequences per micro-batch; V = G/m micro-batches per step */
        uint32_t context;     /* T; 0: the model's context */
    } batch;
    struct {
        double lr, min_lr;                                     /* peak; end of the cosine */
        uint64_t warmup_steps, decay_steps;                    /* decay_steps 0: run.steps */
        double beta1, beta2, epsilon, weight_decay, clip_norm; /* clip_norm 0: off */
        enum pd_dtype moments;                                 /* PD_F32, PD_BF16: type of both moments */
    } optimizer;
    struct {
        enum pd_numerics_mode mode;
        enum pd_dtype precision; /* PD_F32, PD_BF16: activations and working copies; the master is fp32 */
        enum pd_linears linears; /* operands of blocks' linear layers: as precision, or fp8 */
        enum pd_logits logits;   /* head logits held at once */
        enum pd_logits_type logits_type;
        enum pd_terms_width terms;
        enum pd_dtype gradients; /* PD_F32, PD_BF16: type of blocks' sums over micro-batches */
        uint32_t lanes;          /* 0: in old records, from before lanes existed */
        uint32_t virtual_tp, virtual_sp;
        double loss_scale;            /* fp16: initial value, a power of two */
        uint32_t loss_scale_interval; /* fp16: steps without overflow after which it doubles */
    } numerics;
    struct {
        uint32_t ranks;          /* 0: one per device */
        uint32_t threads;        /* per rank; 0: cores / ranks on this host */
        uint32_t ranks_per_host; /* assumed for planning; 0: all */
        enum pd_transport transport;
        enum pd_recompute recompute;
        uint32_t recompute_layers; /* for this many first blocks of each rank; PD_LAYERS_ALL: not given */
        bool automatic;            /* the planner chooses degrees, recompute, its layers and zero_stage, unless given */
        bool recompute_given, zero_stage_given; /* as a value, not "auto" */
        bool chosen;                            /* by the planner: degrees, recompute and zero_stage below */
        uint32_t dp, tp, pp, sp;                /* 0: dp gets the rest, the others 1 */
        uint32_t interleave;                    /* model chunks per rank */
        enum pd_codes fp8_codes;                /* how long codes of weights are kept, with fp8 linear layers */
        enum pd_order order;       /* breadth_first: every micro-batch of a block before the next block; one stage only */
        enum pd_exchange exchange; /* of gradients */
        uint32_t zero_stage, zero_shard; /* zero_shard 0: dp*sp */
        uint32_t ep;                     /* 0: 1 */
        uint32_t ep_rows;
    } layout;
    struct {
        enum pd_place optimizer;   /* master, both moments. nvme: generations in the pool of the checkpoint directory */
        enum pd_updates update;    /* where state on cpu is updated beside a GPU */
        enum pd_place parameters;  /* working copies of blocks. nvme: scratch beside the generations */
        enum pd_place gradients;   /* sums of blocks; likewise */
        enum pd_place activations; /* activations of blocks kept between forward and backward; likewise */
        uint64_t buffer_bytes;     /* of the ring for streamed state */
        /* Bytes per rank that stay in memory although placed on nvme, and are not read back; 0: only streaming buffers */
        uint64_t optimizer_budget, parameters_budget, gradients_budget, activations_budget;
    } offload;
    struct {
        char *dir;      /* "": <run.dir>/checkpoints */
        uint64_t every; /* steps; 0: only at the end and on a signal */
        uint32_t keep_last;
        uint64_t keep_every;
        uint32_t in_flight;           /* saves running at once */
        char *compression;            /* of shards: none, zstd:N */
        struct pd_config_tier *tiers; /* fastest first; none: one tier with the keys above */
        uint32_t tiers_count;
        double leave_seconds; /* after a request to leave: limit for more tiers once a reboot-proof one has the last step */
        double give_up_minutes; /* failing saves end the run after this */
    } checkpoint;
    struct {
        uint64_t every;     /* steps; 0: never */
        uint32_t sequences; /* per validation pass */
    } validation;
    struct {
        bool tensorboard;        /* event files in <run.dir>/tensorboard */
        char *prometheus_listen; /* [ADDRESS:]PORT of rank 0's endpoint (check.h); "": none */
    } metrics;
    struct {
        uint32_t limit;  /* restarts without progress before giving up (93) */
        uint32_t *ranks; /* ranks of the 1st, 2nd, ... restart; empty: all, or fewer if a rank is lost twice */
        uint32_t ranks_count;
        double begin_seconds, join_seconds, open_seconds; /* limits for the phases of a start; 0: none */
        double hang_seconds;      /* without any progress, the rank that holds up the others is killed; 0: off */
        double straggler_seconds; /* window for comparing ranks; 0: off */
    } restart;
    struct {
        char *hosts;       /* a file of hosts, or a command that prints one; "": this host, or the hosts of PERDURE_MPIRUN */
        char *agent;       /* runs a command on a host: AGENT HOST COMMAND */
        uint32_t port;     /* where the launcher listens for other hosts' ranks; 0: any */
        enum pd_grow grow; /* when returning hosts are used again */
        double wait_seconds; /* wait for hosts if fewer than elastic.min ranks can run */
    } launch;
    struct {
        char *notice; /* a command that exits with 0 once this host is about to be taken away; "": none */
    } preempt;
    struct {
        enum pd_guard non_finite; /* if a loss or gradient is not finite: end the run, or skip the update */
        double spike_z;           /* deviations above the mean at which a loss triggers a rollback; 0: off */
        uint64_t spike_window;    /* losses used for mean and deviation */
        uint64_t rollback_steps;  /* undone by a rollback */
        uint64_t replay_every;    /* steps between gradient comparisons of ranks; 0: off */
        uint32_t skips;           /* consecutive skips or rollbacks that end the run */
    } guard;
    struct {
        uint32_t min, max; /* ranks of every start; max 0: layout.ranks */
    } elastic;
    bool accept_new_lineage; /* resume despite changed numerics, batch or data */
};

/* `path` NULL: defaults only. overrides: "section.key=value". Validates and resolves everything.
 *   errors  PD_INVALID with file, line, key, cause and the nearest valid value; PD_NOT_FOUND for the file */
PD_MUST_USE pd_status pd_config_load(const char *path, const char *const *overrides, uint32_t override_count,
                                     struct pd_config *ret_config, struct pd_error *err);
PD_MUST_USE pd_status pd_config_parse(const char *name, const char *yaml, const char *const *overrides,
                                      uint32_t override_count, struct pd_config *ret_config, struct pd_error *err);
/* Parses the output of pd_config_print, perhaps of another version: from a checkpoint, or run.dir/config.yaml. Translates
 * renamed keys, ignores removed ones, and skips newer rules, so that changes of keys never make a checkpoint unreadable.
 * With overrides (of ckpt reshard) checks the resulting layout.
 *   errors  PD_INVALID: not YAML; a removed value of a key that affects the bits; impossible model sizes */
PD_MUST_USE pd_status pd_config_parse_saved(const char *yaml, const char *const *overrides, uint32_t override_count,
                                            struct pd_config *ret_config, struct pd_error *err);
PD_MUST_USE pd_status pd_config_load_saved(const char *path, struct pd_config *ret_config, struct pd_error *err);
void pd_config_deinit(struct pd_config *config);
/* Prints the resolved configuration as YAML that loads back to the same struct; malloc'ed. For --print-config and commits.
 */
PD_MUST_USE pd_status pd_config_print(const struct pd_config *config, char **ret_yaml, struct pd_error *err);
/* Writes it to a file, atomically. */
PD_MUST_USE pd_status pd_config_write(const struct pd_config *config, const char *path, struct pd_error *err);

/* The tiers of a run, resolved; borrowed from the configuration. Returns their count, at least one. */
uint32_t pd_config_tiers(const struct pd_config *config, struct pd_tier_options ret_tiers[PD_TIERS_MAX]);

/* Replaces directories and globs in data.train and data.validation by their files on this host (trainer/data/sources.h).
 * *ret_notes: lines about them, "" or ending in a newline, malloc'ed. Call once, before ranks start, so that all ranks and
 * checkpoints have one list. */
PD_MUST_USE pd_status pd_config_find_data(struct pd_config *config, char **ret_notes, struct pd_error *err);
/* The data of a run; borrowed from the configuration. */
struct pd_data_options pd_config_data(const struct pd_config *config);
/* The transformer options that the configuration determines. Every user starts from these and adds memory and ranks, so that
 * training, validation, replay, eval and sample compute the same model. */
struct pd_transformer_options pd_config_transformer(const struct pd_config *config);
/* pd_model_new, with the configured type of moments. */
PD_MUST_USE pd_status pd_config_model(const struct pd_config *config, struct pd_model **ret_model, struct pd_error *err);

enum pd_resume_effect { PD_RESUME_FREE, PD_RESUME_NEW_LINEAGE, PD_RESUME_REFUSED };
struct pd_resume_difference {
    const char *key; /* "batch.sequences", static */
    enum pd_resume_effect effect;
    char before[64], now[64];
};
/* All differences, worst first. Writes at most `capacity`, returns the total. Contents of data files are compared by
 * fingerprint (pd_data_check_fingerprint), not here. */
uint32_t pd_config_compare(const struct pd_config *saved, const struct pd_config *now, struct pd_resume_difference *ret,
                           uint32_t capacity);
