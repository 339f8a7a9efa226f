/* The configuration of a run: YAML and section.key=value overrides, resolved into one plain struct.
 *
 * Keys are the member names: optimizer.lr, batch.sequences, data.train[0].path. One table (keys.c) drives reading,
 * overriding, printing, comparing and suggestions: type, default, range, what a change means on resume, and the comment that
 * --print-config shows. An unknown key is an error with line, column and the nearest key. Counts take k, M, G as powers of
 * 1000 (run.steps=10k), contexts as powers of 1024 (batch.context=8k).
 *
 * data.train is a file name, or a list of names and of {path, format, weight}; checkpoint.tiers a list of {dir, every,
 * keep_last, keep_every, bandwidth, replicas}. A list on the command line is written as in a file: data.train=[a.txt, b.txt].
 * Model sizes that follow from others (kv_heads, head_size, ffn) follow again when the others are changed and they are not
 * named.
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
enum pd_logits { PD_LOGITS_OF_ROWS, PD_LOGITS_OF_COLUMNS };
enum pd_guard { PD_GUARD_STOP, PD_GUARD_SKIP, PD_GUARD_ROLLBACK };
enum pd_grow { PD_GROW_RESTART, PD_GROW_NOW };
enum pd_transport { PD_TRANSPORT_AUTO, PD_TRANSPORT_LOCAL, PD_TRANSPORT_MPI };

/* What is left out is taken from checkpoint.*. */
struct pd_config_tier {
    char *dir;
    uint64_t every;
    uint32_t keep_last;
    uint64_t keep_every;
    uint64_t bandwidth; /* bytes a second of one host, in the background; 0: no cap */
    uint32_t replicas;  /* of the first tier, on another host: 0 or 1 */
    char *compression;  /* none, zstd:N */
};

struct pd_config {
    struct {
        char *dir;     /* run directory: metrics.jsonl, log, and by default the checkpoints */
        uint64_t seed; /* initialisation and sample order */
        uint64_t steps;
        uint32_t log_every;           /* steps between progress lines of metrics.jsonl; 1 */
        enum pd_device_choice device; /* auto: GPUs where there are any */
    } run;
    struct {
        char *from; /* a checkpoint of another program; "": initial values of run.seed */
    } init;
    char *model_preset; /* model.preset; other model keys override it */
    struct pd_model_config model;
    struct pd_data_options data; /* the keys of data.*; pd_config_data has the rest as well */
    struct {
        uint32_t sequences;   /* G: sequences a step, whatever the layout */
        uint32_t micro_batch; /* m: sequences a micro-batch; V = G/m micro-batches a step */
        uint32_t context;     /* T; 0: the model's context */
    } batch;
    struct {
        double lr, min_lr;                                     /* peak; end of the cosine */
        uint64_t warmup_steps, decay_steps;                    /* decay_steps 0: run.steps */
        double beta1, beta2, epsilon, weight_decay, clip_norm; /* clip_norm 0: off */
        enum pd_dtype moments;                                 /* PD_F32, PD_BF16: how both are kept */
    } optimizer;
    struct {
        enum pd_numerics_mode mode;
        enum pd_dtype precision; /* PD_F32, PD_BF16: activations and working copies; the master is fp32 */
        enum pd_linears linears; /* operands of the linears of blocks: as precision, or fp8 */
        enum pd_logits logits;   /* of the head: what exists of them at once */
        uint32_t lanes;          /* 0: of a record that knows none, from when gradients were summed in fp32 */
        uint32_t virtual_tp, virtual_sp;
        double loss_scale;            /* fp16: the first one, a power of two */
        uint32_t loss_scale_interval; /* fp16: steps without overflow after which it doubles */
    } numerics;
    struct {
        uint32_t ranks;          /* 0: as many as there are devices */
        uint32_t threads;        /* a rank; 0: cores / ranks on this host */
        uint32_t ranks_per_host; /* what is planned counts so many on a host; 0: all */
        enum pd_transport transport;
        enum pd_recompute recompute;
        uint32_t recompute_layers; /* of the first so many blocks of each rank; PD_LAYERS_ALL: not given */
        bool automatic; /* the planner chooses what is not given of degrees, recompute, its layers and zero_stage */
        bool recompute_given, zero_stage_given; /* by a value, not "auto" */
        bool chosen;                            /* it did: degrees, recompute and zero_stage below are its own */
        uint32_t dp, tp, pp, sp;                /* 0: dp what is left, the others 1 */
        uint32_t interleave;                    /* pipeline chunks a rank */
        enum pd_codes fp8_codes;                /* how long codes of weights are kept, where linears are fp8 */
        enum pd_order order;       /* breadth_first: every micro-batch of a block before the next block; one stage only */
        enum pd_exchange exchange; /* of gradients */
        uint32_t zero_stage, zero_shard; /* zero_shard 0: dp*sp */
    } layout;
    struct {
        enum pd_place optimizer;   /* master, both moments. nvme: generations in the pool of the checkpoint directory */
        enum pd_updates update;    /* who makes new state of what is on cpu beside a GPU */
        enum pd_place parameters;  /* working copies of blocks. nvme: scratch beside the generations */
        enum pd_place gradients;   /* sums of blocks; likewise */
        enum pd_place activations; /* what is kept of a block between forward and backward; likewise */
        uint64_t buffer_bytes;     /* of the ring that state streams through */
        /* Bytes a rank keeps in memory of what is on nvme: not read back; 0: none beyond what streaming takes */
        uint64_t optimizer_budget, parameters_budget, gradients_budget, activations_budget;
    } offload;
    struct {
        char *dir;      /* "": <run.dir>/checkpoints */
        uint64_t every; /* steps; 0: only at the end and on a signal */
        uint32_t keep_last;
        uint64_t keep_every;
        uint32_t in_flight;           /* saves under way at once */
        char *compression;            /* of shards: none, zstd:N */
        struct pd_config_tier *tiers; /* fastest first; none: one tier, made of the keys above */
        uint32_t tiers_count;
        double leave_seconds;   /* asked to leave: for further tiers, once one that outlives a reboot has the last step */
        double give_up_minutes; /* of saves that fail, before the run ends */
    } checkpoint;
    struct {
        uint64_t every;     /* steps; 0: never */
        uint32_t sequences; /* a validation pass */
    } validation;
    struct {
        bool tensorboard;        /* event files in <run.dir>/tensorboard */
        char *prometheus_listen; /* [ADDRESS:]PORT of rank 0's endpoint (check.h); "": none */
    } metrics;
    struct {
        uint32_t limit;  /* restarts without progress before giving up (93) */
        uint32_t *ranks; /* ranks of the 1st, 2nd, ... restart; empty: all, fewer when a rank is lost twice */
        uint32_t ranks_count;
        double begin_seconds, join_seconds, open_seconds; /* limits of a start, phase by phase; 0: none */
        double
            hang_seconds; /* in which some rank completes something; then the one that holds up the others is ended; 0: off */
        double straggler_seconds; /* a window in which ranks are compared; 0: nobody compares */
    } restart;
    struct {
        char *hosts;         /* a file of hosts, or a command that prints one; "": this host, or those of PERDURE_MPIRUN */
        char *agent;         /* runs a command on a host: AGENT HOST COMMAND */
        uint32_t port;       /* on which the launcher hears ranks of other hosts; 0: any */
        enum pd_grow grow;   /* when hosts that come back are taken in */
        double wait_seconds; /* for hosts, where fewer than elastic.min ranks can run */
    } launch;
    struct {
        char *notice; /* a command that exits with 0 once this host is about to be taken away; "": nobody asks */
    } preempt;
    struct {
        enum pd_guard non_finite; /* a loss or a gradient that is not finite: the run ends, or the step updates nothing */
        double spike_z;           /* deviations above the mean from which a loss is rolled back; 0: none is */
        uint64_t spike_window;    /* losses that mean and deviation remember */
        uint64_t rollback_steps;  /* that a rollback undoes */
        uint64_t replay_every;    /* steps after which ranks compare gradients; 0: never */
        uint32_t skips;           /* or rollbacks, in a row, before the run ends all the same */
    } guard;
    struct {
        uint32_t min, max; /* ranks of any start; max 0: layout.ranks */
    } elastic;
    bool accept_new_lineage; /* resume with changed numerics, batch or data on purpose */
};

/* `path` NULL: defaults only. overrides: "section.key=value". Everything is validated and resolved.
 *   errors  PD_INVALID with file, line, key, cause and the nearest admitted value; PD_NOT_FOUND for the file */
PD_MUST_USE pd_status pd_config_load(const char *path, const char *const *overrides, uint32_t override_count,
                                     struct pd_config *ret_config, struct pd_error *err);
PD_MUST_USE pd_status pd_config_parse(const char *name, const char *yaml, const char *const *overrides,
                                      uint32_t override_count, struct pd_config *ret_config, struct pd_error *err);
/* A configuration that pd_config_print wrote, perhaps in another version: what a checkpoint carries, or run.dir/config.yaml.
 * Renamed keys are translated, keys that no longer exist are ignored, and rules that came later are not asked, so that no
 * change of keys makes a checkpoint unreadable. With overrides (of ckpt reshard) the layout they make is checked.
 *   errors  PD_INVALID: no YAML; a value that is gone, of a key on which the bits depend; sizes of no model */
PD_MUST_USE pd_status pd_config_parse_saved(const char *yaml, const char *const *overrides, uint32_t override_count,
                                            struct pd_config *ret_config, struct pd_error *err);
PD_MUST_USE pd_status pd_config_load_saved(const char *path, struct pd_config *ret_config, struct pd_error *err);
void pd_config_deinit(struct pd_config *config);
/* The resolved whole as YAML that loads back to the same struct; malloc'ed. What --print-config shows and a commit keeps. */
PD_MUST_USE pd_status pd_config_print(const struct pd_config *config, char **ret_yaml, struct pd_error *err);
/* As a file: whole or not at all. */
PD_MUST_USE pd_status pd_config_write(const struct pd_config *config, const char *path, struct pd_error *err);

/* The tiers of a run, resolved; borrowed from the configuration. Returns their count, at least one. */
uint32_t pd_config_tiers(const struct pd_config *config, struct pd_tier_options ret_tiers[PD_TIERS_MAX]);

/* Directories and globs of data.train and data.validation become their files, as found on this host (trainer/data/sources.h);
 * *ret_notes: lines on what they are, "" or ending in a newline, malloc'ed. Once, before ranks are started: all of them, and
 * the checkpoints, then have one list. */
PD_MUST_USE pd_status pd_config_find_data(struct pd_config *config, char **ret_notes, struct pd_error *err);
/* What a run reads; borrowed from the configuration. */
struct pd_data_options pd_config_data(const struct pd_config *config);
/* What a configuration says of a transformer. Whoever builds one starts here and adds its memory and its ranks, so that
 * training, validation, replay, eval and sample compute the same model. */
struct pd_transformer_options pd_config_transformer(const struct pd_config *config);
/* pd_model_new, with moments as the configuration keeps them. */
PD_MUST_USE pd_status pd_config_model(const struct pd_config *config, struct pd_model **ret_model, struct pd_error *err);

enum pd_resume_effect { PD_RESUME_FREE, PD_RESUME_NEW_LINEAGE, PD_RESUME_REFUSED };
struct pd_resume_difference {
    const char *key; /* "batch.sequences", static */
    enum pd_resume_effect effect;
    char before[64], now[64];
};
/* All differences, worst first; at most `capacity` are written, the total is returned. Contents of data files are compared
 * by fingerprint (pd_data_check_fingerprint), not here. */
uint32_t pd_config_compare(const struct pd_config *saved, const struct pd_config *now, struct pd_resume_difference *ret,
                           uint32_t capacity);
