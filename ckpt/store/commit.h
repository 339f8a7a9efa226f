/* The commit record: the small file that makes a directory a checkpoint.
 *
 * commit.h5 holds the run state, the layout parameters and one row a shard, in contiguous datasets, with its own digest as a
 * trailer (ckpt/FORMAT.md). Nothing in it grows with tensors times ranks: 4096 ranks stay under 512 KiB, hundreds under 64
 * KiB.
 */
#pragma once

#include "ckpt/shard/shard.h"

#define PD_LAYOUT_STAGES_MAX 256u
#define PD_COMMIT_BYTES_MAX (UINT64_C(64) << 20) /* of a record, written or read: about a million shards */

/* How tensors were cut into boxes: the input of the layout function (resharder/layout.h), stored by value. */
struct pd_layout {
    uint32_t dp, tp, pp, sp; /* world = dp*tp*pp*sp */
    uint32_t virtual_tp, virtual_sp;
    uint32_t zero_shard;  /* parts of dimension 0, at most dp*sp */
    uint32_t zero_stage;  /* 0..3: what ranks hold while training; never changes a box */
    uint32_t interleave;  /* pipeline chunks a rank, 1 without interleaving */
    uint64_t small_bytes; /* a part under this many bytes: the tensor is not cut (64 KiB) */
    uint32_t stage_count; /* pp * interleave */
    /* First pipeline unit of each stage; stage_count entries, ascending, [0] = 0. */
    uint16_t first_unit[PD_LAYOUT_STAGES_MAX];
};

/* What the run's guards go by; zeros: nothing yet. */
struct pd_guard_state {
    double mean, variance; /* of the losses of late */
    uint64_t losses;       /* that are in them */
    uint64_t rolled_back;  /* the step that was rolled back last; 0: none */
    uint64_t rollbacks;    /* in a row, that one included */
    uint64_t skips;        /* in a row */
};

/* Everything of a run that is not a tensor. */
struct pd_run_state {
    struct pd_identity identity; /* run id, lineage, step */
    uint64_t fence;              /* of the launch that wrote it */
    uint64_t updates;            /* applied updates: not the step, fp16 skips some */
    uint64_t samples;            /* sequences consumed */
    uint64_t tokens;             /* valid target tokens consumed */
    double loss_scale;
    uint64_t loss_scale_good_steps, skipped_steps;
    uint64_t seed;
    uint64_t data_fingerprint[2];
    uint64_t tokenizer_digest; /* of what made the tokens; 0: not known */
    struct pd_guard_state guard;
    uint64_t agreed_step;        /* the last one at which ranks came to the same gradients; 0: none */
    uint64_t index_digest;       /* of index.h5, the store's to set; 0: there is none, or not known */
    double last_loss;            /* of this step */
    double best_validation_loss; /* before this step; NaN when there was none */
    struct pd_layout layout;
    enum pd_dtype moments; /* of exp_avg and exp_avg_sq in the shards: PD_F32, PD_BF16 */
    uint64_t tensor_count; /* of the whole model */
    uint64_t parameter_count;
    char created_by[64]; /* "perdure 0.1.0" */
    char *config;        /* resolved configuration, YAML text, terminated; owned */
    char *environment;   /* versions of libraries and devices, JSON text; owned */
};

struct pd_commit {
    struct pd_run_state state;
    uint32_t shard_count;
    struct pd_shard_summary *shards; /* (shard_count), row s: file name "shard-%05u.h5" of s; owned */
};

void pd_run_state_deinit(struct pd_run_state *state);
void pd_commit_deinit(struct pd_commit *commit);

/* Every field within its bounds and consistent; PD_INVALID names the nearest admitted value. */
PD_MUST_USE pd_status pd_layout_check(const struct pd_layout *layout, struct pd_error *err);
/* Layout, run state and rows of shards make sense, each by itself and with the others: PD_INVALID. Every record that was
 * decoded has passed it, so a reader may use its numbers as sizes, indexes and divisors. */
PD_MUST_USE pd_status pd_commit_check(const struct pd_commit *commit, struct pd_error *err);
/* The record as bytes, identical for identical input; pd_commit_check comes first. *ret_bytes is malloc'ed, the caller's. */
PD_MUST_USE pd_status pd_commit_encode(const struct pd_commit *commit, void **ret_data, uint64_t *ret_bytes,
                                       struct pd_error *err);
/* PD_CORRUPT for anything but a complete record that passes pd_commit_check; `path` only names it in messages. */
PD_MUST_USE pd_status pd_commit_decode(const char *path, const void *data, uint64_t bytes, struct pd_commit *ret_commit,
                                       struct pd_error *err);
PD_MUST_USE pd_status pd_commit_read(struct pd_vfs *vfs, const char *path, struct pd_commit *ret_commit,
                                     struct pd_error *err);
