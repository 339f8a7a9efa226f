/* What the files of the tiers share. Decisions (all below "decided") are made by the saver's thread, alike on every rank. */
#ifndef PD_CKPT_TIERS_INTERNAL_H
#define PD_CKPT_TIERS_INTERNAL_H

#include "ckpt/tiers/tiers.h"

#include <pthread.h>
#include <stdatomic.h>

#define TIERS_MODULE "tiers"
#define TIERS_PATH_MAX 4096u

enum tier_task { TIER_IDLE, TIER_SAVE, TIER_COPY, TIER_PEER };

struct tier_names {
    char names[PD_TIERS_MAX][64];
    uint32_t count;
};

/* One save or copy into a tier; written by the saver's thread, then the owner's until it is done. */
struct tier_job {
    enum tier_task task;
    const struct pd_tiers_save *save; /* TIER_SAVE */
    char source[TIERS_PATH_MAX];      /* TIER_COPY, TIER_PEER: directory of the checkpoint */
    uint64_t step;
    uint32_t pins;           /* copies that will be made of what it seals */
    struct tier_names unpin; /* in this tier, copied by now */
    /* of the owner */
    bool has_begun; /* the failure came after begin: what was to be saved may have changed since */
    char name[64];  /* what was sealed; TIER_PEER, given: what is copied */
};

struct tier {
    struct pd_tiers *tiers;
    uint32_t number;
    char dir[TIERS_PATH_MAX];
    struct pd_tier_options options;
    struct pd_group *group;
    struct pd_store *store; /* its owner's: the saver's thread for the first tier, `thread` for the others */
    bool is_writable, in_memory, is_left_out; /* not writable: only read from so far, or without a store */
    bool was_absent;                          /* when the launch began: what lies there later was not looked at yet */
    uint32_t passed_over;                     /* newest checkpoints that cannot be read */
    bool is_copier;                           /* no tier: what copies the first one to other hosts; it has no store */
    bool is_awaited;                          /* a copier: the save under way will be handed to it, and is pinned for it */
    uint64_t bytes_per_second;                /* this rank's share of the cap */
    uint64_t fence;

    /* decided */
    bool is_busy; /* with a copy, on some rank at least */
    bool is_owed; /* was due while busy */
    bool said_skip;
    uint64_t owed_step, newest_lineage, newest_step;
    char newest_name[64]; /* where newest_step was sealed by this launch; "": by an earlier one */
    uint32_t failures;    /* in a row */
    uint32_t passes;      /* times that it is passed over when due */
    bool is_passed;       /* at this save */
    uint64_t copied_lineage;
    uint32_t source;        /* tier that the copy on its way comes from */
    char source_name[64];   /* and what is pinned there */
    char kept_name[64];     /* a copier: copied last, pinned until a newer one is */
    struct tier_names free; /* pins that the owner may let go */

    /* between the saver's thread and the owner */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, is_closing;
    uint64_t issued, done;
    pd_status status; /* of the job done last */
    struct pd_error error;
    struct tier_job job;
    atomic_bool stop; /* give up the copy */
    void *staging;    /* (staging_bytes) */
    uint64_t staging_bytes;
    struct pd_tier_report report;
};

struct tiers_told { /* what a rank says about one tier's jobs */
    uint64_t done;
    uint64_t status;
};

struct pd_tiers {
    struct pd_vfs *vfs;
    struct pd_group *group; /* groups[0] */
    struct pd_tiers_options options;
    struct tier tiers[PD_TIERS_MAX];
    uint32_t count;
    struct tier *copier;     /* NULL: there are no second copies */
    struct tiers_told *told; /* (size, PD_TIERS_MAX) */
    const void *index;       /* borrowed */
    uint64_t index_bytes;
    uint64_t lineage;   /* the highest that was seen */
    uint64_t run_id[2]; /* of what is saved; set by the first save */
    bool is_started;
};

static inline bool tiers_is_fatal(pd_status st)
{
    return st == PD_PEER_LOST || st == PD_BUSY;
}

/* ---- tiers_job.c: what is done in one tier, by the thread that owns its store ---- */

/* Opens a store that could only be read so far. Collective over the tier's group. */
PD_MUST_USE pd_status tier_make_writable(struct tier *tier, struct pd_error *err);
/* The record of what is to be copied. */
PD_MUST_USE pd_status tier_read_source(const struct tier *tier, const struct tier_job *job, struct pd_commit *ret_commit,
                                       struct pd_error *err);
PD_MUST_USE pd_status tier_run_job(struct tier *tier, struct tier_job *job, struct pd_error *err);
void tier_report_result(struct tier *tier, uint64_t step, pd_status st, const struct pd_error *err);
PD_MUST_USE pd_status tier_start_thread(struct tier *tier, struct pd_error *err);
void tier_end_thread(struct tier *tier);
/* The saver's thread: hands a job over; the one before must be done. */
void tier_post(struct tier *tier, const struct tier_job *job);
/* Until the job is done, or `seconds` have passed (negative: no limit). True: it is done. */
bool tier_wait(struct tier *tier, double seconds);

/* ---- tiers_peer.c: second copies, on other hosts ---- */

/* After the stores were opened: makes tiers->copier where copies are asked for and possible. */
PD_MUST_USE pd_status tier_copier_open(struct pd_tiers *tiers, struct pd_error *err);
/* Before the first save: what other hosts have a copy of stays until they have a newer one. */
void tier_copier_start(struct pd_tiers *tiers);
/* There are other hosts to copy to, as far as is known. */
bool tier_copier_works(const struct pd_tiers *tiers);
PD_MUST_USE pd_status tier_copy_to_peers(struct tier *tier, struct tier_job *job, struct pd_error *err);

/* ---- tiers.c ---- */

void tier_init(struct tier *tier, struct pd_tiers *tiers);

PD_MUST_USE pd_status tier_open_store(struct tier *tier, bool writable, struct pd_error *err);

#endif
