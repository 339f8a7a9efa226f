/* The commit record: the small file that makes a directory a checkpoint.
 *
 * commit.h5 holds the run state, the layout parameters and one row a shard, in contiguous datasets, and ends with its own
 * digest (ckpt/FORMAT.md). Its size does not depend on tensors times ranks: under 512 KiB for 4096 ranks, under 64 KiB
 * for hundreds.
 */
#pragma once

#include "ckpt/shard/shard.h"

#define PD_LAYOUT_STAGES_MAX 256u
#define PD_LAYOUT_EP_MAX 256u
#define PD_COMMIT_BYTES_MAX (UINT64_C(64) << 20) /* largest record, written or read: about a million shards */

/* How tensors were cut into boxes: the input of the layout function (resharder/layout.h), stored by value. */
struct pd_layout {
    uint32_t dp, tp, pp, sp; /* world = dp*tp*pp*sp */
    uint32_t ep; /* data ranks over which experts are spread: q has the experts e with e % ep = q % ep; 0 means 1 */
    uint32_t virtual_tp, virtual_sp;
    uint32_t zero_shard;  /* shards of dimension 0, at most dp*sp */
    uint32_t zero_stage;  /* 0..3: what each rank holds while training; never changes a box */
    uint32_t interleave;  /* model chunks a rank, 1 without interleaving */
    uint64_t small_bytes; /* a tensor whose shards would be smaller is not cut (64 KiB) */
    uint32_t stage_count; /* pp * interleave */
    /* First pipeline unit of each stage; stage_count entries, ascending, [0] = 0. */
    uint16_t first_unit[PD_LAYOUT_STAGES_MAX];
    /* Boxes are no arithmetic: the shards' own tables list them. dp is the number of shards, all other degrees are 1. */
    bool is_listed;
};

/* State of the run's guards; zeros: nothing yet. */
struct pd_guard_state {
    double mean, variance; /* of recent losses */
    uint64_t losses;       /* number of losses in them */
    uint64_t rolled_back;  /* last step that was rolled back; 0: none */
    uint64_t rollbacks;    /* in a row, including that one */
    uint64_t skips;        /* in a row */
};

/* Everything a run saves that is not a tensor. */
struct pd_run_state {
    struct pd_identity identity; /* run id, lineage, step */
    uint64_t fence;              /* of the launch that wrote it */
    uint64_t updates;            /* updates applied; fewer than steps, since fp16 skips some */
    uint64_t samples;            /* sequences consumed */
    uint64_t tokens;             /* valid target tokens consumed */
    double loss_scale;
    uint64_t loss_scale_good_steps, skipped_steps;
    uint64_t seed;
    uint64_t data_fingerprint[2];
    uint64_t tokenizer_digest; /* of the tokenizer that made the tokens; 0: unknown */
    struct pd_guard_state guard;
    uint64_t agreed_step;        /* last step at which all ranks computed the same gradients; 0: none */
    uint64_t index_digest;       /* of index.h5, set by the store; 0: no index, or unknown */
    int8_t gradient_sizes[64];   /* of a run with 32-bit terms, else zeros: trainer/math/terms.h */
    double last_loss;            /* of this step */
    double best_validation_loss; /* before this step; NaN if there was none */
    struct pd_layout layout;
    enum pd_dtype moments; /* of exp_avg and exp_avg_sq in the shards: PD_F32, PD_BF16 */
    uint64_t tensor_count; /* of the whole model */
    uint64_t parameter_count;
    char created_by[64]; /* "perdure 0.1.0" */
    char *config;        /* resolved configuration, YAML text, terminated; listed: any text of the writer's. Owned */
    char *environment;   /* versions of libraries and devices, JSON text; owned */
};

struct pd_commit {
    struct pd_run_state state;
    uint32_t shard_count;
    struct pd_shard_summary *shards; /* (shard_count), row s is for file "shard-%05u.h5" of s; owned */
};

void pd_run_state_deinit(struct pd_run_state *state);
void pd_commit_deinit(struct pd_commit *commit);

/* Of `shards` shards that list their boxes. */
void pd_layout_init_listed(struct pd_layout *ret_layout, uint32_t shards);
/* Checks that every field is within bounds and consistent; PD_INVALID names the nearest valid value. */
PD_MUST_USE pd_status pd_layout_check(const struct pd_layout *layout, struct pd_error *err);
/* Fails if the layout is listed: for whoever needs a run's model and configuration.   errors  PD_UNSUPPORTED */
PD_MUST_USE pd_status pd_commit_check_is_run(const struct pd_commit *commit, struct pd_error *err);
/* Checks layout, run state and rows of shards, alone and against each other: PD_INVALID. Every decoded record has passed
 * it, so a reader may use its numbers as sizes, indexes and divisors. */
PD_MUST_USE pd_status pd_commit_check(const struct pd_commit *commit, struct pd_error *err);
/* Runs pd_commit_check and encodes the record, always to the same bytes. *ret_bytes is malloc'ed, the caller's. */
PD_MUST_USE pd_status pd_commit_encode(const struct pd_commit *commit, void **ret_data, uint64_t *ret_bytes,
                                       struct pd_error *err);
/* PD_CORRUPT unless it is a complete record that passes pd_commit_check; `path` is only for messages. */
PD_MUST_USE pd_status pd_commit_decode(const char *path, const void *data, uint64_t bytes, struct pd_commit *ret_commit,
                                       struct pd_error *err);
PD_MUST_USE pd_status pd_commit_read(struct pd_vfs *vfs, const char *path, struct pd_commit *ret_commit,
                                     struct pd_error *err);
