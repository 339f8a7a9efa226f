/* The history of a run from its directory: metrics.jsonl as columns, events.jsonl as starts. It only reads these files;
 * refresh continues where it stopped. Cut or damaged lines are skipped and counted.
 *
 *   threads  one caller */
#pragma once

#include "ckpt/base/json.h"
#include "ckpt/tiers/tiers.h"

enum pd_column {
    PD_COLUMN_STEP,
    PD_COLUMN_FENCE,
    PD_COLUMN_TIME,
    PD_COLUMN_LOSS,
    PD_COLUMN_VALIDATION_LOSS,
    PD_COLUMN_GRADIENT_NORM,
    PD_COLUMN_LEARNING_RATE,
    PD_COLUMN_SECONDS,
    PD_COLUMN_TOKENS_PER_SECOND,
    PD_COLUMN_GEMM_SHARE,
    PD_COLUMN_MEMORY,
    PD_COLUMN_CHECKPOINT, /* newest committed step */
    PD_COLUMN_SAVE_SECONDS,
    PD_COLUMN_STALL_SECONDS,
    PD_COLUMN_ETA,
    PD_COLUMN_SKIPPED,                    /* steps so far without an update */
    PD_COLUMN_STAGE,                      /* first of PD_HISTORY_STAGES columns */
    PD_COLUMN_TIER = PD_COLUMN_STAGE + 4, /* newest step in each tier; a run with one tier has one column */
    /* Experts: for each figure the worst block's, then the median over blocks. */
    PD_COLUMN_EXPERTS = PD_COLUMN_TIER + PD_TIERS_MAX,
    PD_COLUMNS = PD_COLUMN_EXPERTS + 8
};
#define PD_HISTORY_STAGES 4u
/* busiest, idlest: shares of a block's tokens; entropy of the choice in nats; range of the selection bias. */
#define PD_HISTORY_EXPERT_FIGURES 4u
#define PD_HISTORY_BLOCKS_MAX 256u
extern const char *const pd_history_expert_names[PD_HISTORY_EXPERT_FIGURES];
#define PD_HISTORY_LARGEST 1e15 /* larger times and seconds are treated as missing */
extern const char *const pd_history_stage_names[PD_HISTORY_STAGES];

/* One start of all ranks: from the events, and from the rows with its fence. */
struct pd_history_start {
    uint64_t fence;              /* 0: no rank got that far */
    double begun, opened, ended; /* times; NaN: unknown */
    uint32_t ranks, hosts, threads, dp, tp, pp, sp, zero_stage;
    char device[96], transport[16];
    uint64_t from_step;                 /* where it resumed */
    uint64_t first_row, last_row, rows; /* rows 0: no step; in file order */
    uint64_t last_step, lost_steps;     /* lost: computed again by a later start */
    uint64_t left_step;                 /* newest step it saved, from its leave event; 0: no event */
    double lost_seconds;
    uint64_t planned_bytes, checkpoint_bytes;
    int exit_code;   /* -1: unknown */
    bool is_over;    /* the last start of its launch */
    char cause[400]; /* "": unknown */
    /* Newest step in each tier when it opened and when it left; NaN: no event. */
    double tiers_opened[PD_TIERS_MAX], tiers_left[PD_TIERS_MAX];
};

struct pd_history_tier {
    char dir[1024], cause[256];
    bool in_memory, is_left_out;
    uint64_t newest, failures, skipped;
    uint64_t timed;              /* saves whose seconds are in a line */
    double seconds, seconds_max; /* of all of these; of the longest */
    uint64_t uploading;          /* a step on its way into a bucket; 0: none */
    double progress, bytes_per_second;
    double age; /* of its newest step, at the last line; NaN: unknown */
};

#define PD_HISTORY_PROCESSES_MAX 256u

struct pd_history {
    char dir[4096], name[256];
    uint64_t rows, damaged_lines;
    double *columns[PD_COLUMNS]; /* (rows), NaN if a line lacks the member; owned */
    bool *counts;                /* (rows) no later row repeats this step or an earlier one; owned */
    uint64_t start_count;
    struct pd_history_start *starts; /* (start_count), in time order; owned */
    uint64_t saved_step;             /* newest step known to be committed */
    uint32_t tier_count;
    struct pd_history_tier tiers[PD_TIERS_MAX];
    uint32_t process_count;
    struct pd_history_process {
        uint32_t rank;
        int32_t process;
    } processes[PD_HISTORY_PROCESSES_MAX]; /* (process_count) of the newest start, on the launcher's host */
    uint64_t launcher_process;
    char launcher_host[64];
    uint32_t block_count; /* with experts, in the newest line */
    struct pd_history_block {
        uint32_t block;
        double figures[PD_HISTORY_EXPERT_FIGURES]; /* NaN: not in the line */
    } blocks[PD_HISTORY_BLOCKS_MAX];

    /* Position of the reader. */
    uint64_t metrics_bytes, events_bytes;
};

/* errors PD_NOT_FOUND: not a run, and what is missing; errors of reading */
PD_MUST_USE pd_status pd_history_open(const char *dir, struct pd_history *ret_history, struct pd_error *err);
/* Reads what was appended since. */
PD_MUST_USE pd_status pd_history_refresh(struct pd_history *history, struct pd_error *err);
void pd_history_close(struct pd_history *history);

/* Where the time of a run went, in seconds; the parts add up to `whole`. */
struct pd_history_life {
    double begun, ended, whole;                              /* from the first start to the last recorded activity */
    double useful, lost, saving, opening, down, idle, other; /* idle: between launches */
    double goodput;                                          /* useful / (whole - idle) */
    uint64_t failures, lost_steps;
};
/* True if it ended badly. A start that was asked to stop, saved and reported so did not. */
bool pd_history_failed(const struct pd_history_start *start);
void pd_history_life(const struct pd_history *history, struct pd_history_life *ret_life);

/* "2026-11-23 13:19:33", or "–" if there is no time, or none that a calendar has. */
void pd_history_moment(double seconds, char *ret_text, size_t capacity);
/* Counts the checkpoints that arrived in a tier: how often its newest step grew, including those made superfluous by a
 * restart. Two between two lines of metrics.jsonl count as one.
 *   ret_steps  (rows + start_count) the step at which each appeared; may be NULL */
uint64_t pd_history_saves(const struct pd_history *history, uint32_t tier, double *ret_steps);
/* Returns the newest value of a column, or NaN. */
double pd_history_last(const struct pd_history *history, enum pd_column column);
/* Returns the step from which on all losses are not finite, and "not finite since step 2; 34 skipped"; 0 and "" if the
 * newest is finite, or there is none.   ret_text  (capacity) */
uint64_t pd_history_not_finite_since(const struct pd_history *history, char *ret_text, size_t capacity);
/* Quantile `share` over rows first..last (both included); NaN if none is finite. */
double pd_history_quantile(const struct pd_history *history, enum pd_column column, uint64_t first, uint64_t last,
                           double share);
