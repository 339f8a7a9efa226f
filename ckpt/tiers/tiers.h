/* Tiers: the directories (and buckets) that hold one run's checkpoints, fastest first. Each has a pd_store.
 *
 *   memory --pd_tiers_save--> first tier that is due and works --one thread a later tier--> each later tier that is due
 *   (NVMe generations too)      (begin, write, seal, prune)        (copy this rank's shard, verified; seal, prune)
 *
 * A later tier has at most one running copy; a step that is due meanwhile waits, and a newer one replaces it. When a tier
 * fails we log it, save to the next one, and retry it: at the next save, then after seconds, finally after minutes. A launch
 * resumes from the newest (lineage, step) of all tiers; the earlier tier wins ties. With options.replicas, a separate worker
 * and group also copy every shard committed in the first tier to the next host (replicate.c). README.md has the invariants.
 *
 *   threads  pd_tiers_save and pd_tiers_finish: one caller, alike on every rank, with groups[0]; pd_tiers_report: any
 *   memory   PD_TIERS_STAGING_BYTES for each tier but the first, and for replicas; more if a rank keeps replicas of more
 *            than 63 ranks
 */
#pragma once

#include "ckpt/store/store.h"

#define PD_TIERS_MAX 8u
#define PD_TIERS_STAGING_BYTES (8ull << 20)

struct pd_tier_options {
    const char *dir;             /* durably created, unless `missing`; borrowed until pd_tiers_open returns */
    uint64_t every;              /* due at multiples of this step; 0: only when all tiers are due */
    uint32_t keep_last;          /* as in pd_store_options */
    uint64_t keep_every;         /* ignored in memory, which it would fill */
    uint64_t bandwidth;          /* bytes/s that all ranks of a host write in the background; 0: no limit */
    uint64_t upload_memory;      /* bucket only: send buffers of all ranks of a host; at least 8 MiB a rank */
    uint32_t replicas;           /* first tier only: 1: a replica of every shard on another host; 0: none */
    struct pd_shard_codec codec; /* of its shards; no pool: the thread that copies also compresses */
    /* Why this rank could not create the directory; PD_OK: it exists. PD_NOT_FOUND: it cannot hold a checkpoint of the run,
     * so the tier is left out until it can be created. Any other: it may hold the newest checkpoint. */
    pd_status missing;
    const char *missing_cause;
    bool missing_in_memory; /* the missing directory would be in memory */
};

struct pd_tiers_options {
    struct pd_tier_options tiers[PD_TIERS_MAX];
    uint32_t count;
    struct pd_group *groups[PD_TIERS_MAX]; /* (count) a separate group of the same ranks for each tier; borrowed */
    struct pd_group *replica_group;        /* another group of these ranks, for replicas of the first tier; borrowed */
    const struct pd_clock *clock;          /* used by the root to time retries; NULL: the system's; borrowed */
    uint64_t quarantine_bytes_max;
    uint32_t busy_wait_ms;
    double give_up_seconds; /* pd_tiers_finish retries a bucket for so long */
    const char *beside; /* copied into buckets beside the checkpoints, as in pd_bucket_store_options; borrowed until close */
    bool generations;   /* first tier only; as in pd_store_options */
    bool needs_first;   /* the run keeps files in the first tier's pool, which must be writable */
    bool is_host_away;  /* checkpoints of the run may be on a host that takes no part */
    bool read_only;     /* only list and load: change nothing on disk */
};

struct pd_tiers;

/* Opens every store, one after the other, in the caller's thread. If there are several tiers, one that cannot be written is
 * opened for reading; we log that and retry when it is due.
 *   errors  PD_BUSY: another launch has locked one of them; the storage error of a tier that cannot be read, since it may
 *           hold the newest checkpoint; PD_INVALID: they hold checkpoints of different runs, or replicas are requested but
 *           there is no other host or all share one directory. A run that lost its other hosts continues without replicas */
PD_MUST_USE pd_status pd_tiers_open(struct pd_vfs *vfs, const struct pd_tiers_options *options, struct pd_tiers **ret_tiers,
                                    struct pd_error *err);
/* Ends the threads, which give up their copies, and closes the stores. After a failure, abort the groups first. */
void pd_tiers_close(struct pd_tiers *tiers);

uint32_t pd_tiers_count(const struct pd_tiers *tiers);
/* How to compress shards saved into the tier; no pool. */
const struct pd_shard_codec *pd_tiers_codec(const struct pd_tiers *tiers, uint32_t tier);
/* For looking at, before pd_tiers_start and after pd_tiers_close alone; of the first tier always, by its caller. NULL: it
 * could not be opened at all, and holds nothing. */
struct pd_store *pd_tiers_store(struct pd_tiers *tiers, uint32_t tier);
uint64_t pd_tiers_fence(const struct pd_tiers *tiers);   /* the highest of any tier */
uint64_t pd_tiers_lineage(const struct pd_tiers *tiers); /* the highest of any tier; 0: no checkpoint */
/* Finds the newest checkpoint of all tiers by (lineage, step); the earlier tier wins ties. False: there is none. */
bool pd_tiers_newest(const struct pd_tiers *tiers, uint32_t *ret_tier, struct pd_store_entry *ret_entry);
/* Makes pd_tiers_newest skip this checkpoint, which cannot be read. Deletes nothing. Call it alike on every rank. */
void pd_tiers_pass_over(struct pd_tiers *tiers, uint32_t tier, const struct pd_store_entry *entry);

/* How many checkpoints of its own ranks a tier may hold at once: those that are kept, one being written, and one per later
 * tier, for the copy to it. The first tier with state in files (has_generations) also holds the one that is read while the
 * next is written. Replicas add two: the one being copied to other hosts and the one that they have. */
uint32_t pd_tiers_own_checkpoints(const struct pd_tier_options *tiers, uint32_t count, uint32_t tier, bool has_generations);
/* The same with other hosts' checkpoints: twice as many with replicas. */
uint32_t pd_tiers_checkpoints(const struct pd_tier_options *tiers, uint32_t count, uint32_t tier, bool has_generations);

/* Checks, before the first step, that each tier has space for what it will keep. A tier in memory must fit its file system
 * and the memory cgroups, along with `memory_to_come` more bytes of this rank. If it does not, we warn and leave it out of
 * saves, since a full tmpfs gets the job killed. A disk without space is logged and retried when due.
 *   errors  PD_NO_SPACE: no tier has space */
PD_MUST_USE pd_status pd_tiers_check_space(struct pd_tiers *tiers, uint64_t shard_bytes, uint64_t memory_to_come,
                                           struct pd_error *err);
/* As pd_store_set_index, for all tiers; before pd_tiers_start. */
void pd_tiers_set_index(struct pd_tiers *tiers, const void *data, uint64_t bytes);
/* Starts a thread for each tier but the first. */
PD_MUST_USE pd_status pd_tiers_start(struct pd_tiers *tiers, struct pd_error *err);

/* The directory of the tier that the running save writes to, or the last save wrote to. Any thread. */
const char *pd_tiers_saving_into(const struct pd_tiers *tiers);
bool pd_tiers_is_due(const struct pd_tiers *tiers, uint64_t step);

struct pd_tiers_save {
    const struct pd_run_state *state; /* borrowed; the root's is used */
    bool is_due_everywhere;           /* because of a signal, or at the last step */
    /* Begins a checkpoint in `store` and writes this rank's shard. Returns the status of pd_store_begin or
     * pd_store_begin_generation; if that fails the next tier is tried. *ret_written is the status of the write; if it fails
     * on one rank, the save fails on all. Runs in the caller's thread, or in a tier's thread while the caller waits. */
    pd_status (*prepare)(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                         struct pd_shard_summary *ret_summary, struct pd_error *err);
    /* Called when a save fails after its begin. Returns true if the state to save is unchanged and stays so until the save
     * ends. Only if it does on all ranks, the next tier is tried for the same step. */
    bool (*hold)(void *context);
    void *context;
};

/* Commits a checkpoint in the first tier that is due and works, prunes that tier, and starts copies to later tiers that are
 * due. *ret_tier: where it is committed. If no due tier works, another is used. If a tier fails, the next one is tried for
 * the same step, while the state to save is unchanged.
 *   errors  PD_BUSY, PD_PEER_LOST: stop. Others: no tier has the step; earlier checkpoints are untouched; the next save
 *           tries another tier first */
PD_MUST_USE pd_status pd_tiers_save(struct pd_tiers *tiers, const struct pd_tiers_save *save, uint32_t *ret_tier,
                                    struct pd_error *err);

/* Call it at the end of the run. Brings the step of `last`, which is saved in one tier or still in memory, to every tier
 * that is not left out, and waits. `leave_seconds` 0 or more: gives up older copies, and waits only so long once a tier that
 * survives a reboot has the step. Negative: no limit. If an upload fails, retries it for give_up_seconds.
 *   errors  of the first tier that survives a reboot and lacks the step; the message says where it is safe, other failures
 *           are logged. With leave_seconds only if no tier that survives a reboot has it */
PD_MUST_USE pd_status pd_tiers_finish(struct pd_tiers *tiers, const struct pd_tiers_save *last, double leave_seconds,
                                      struct pd_error *err);

/* State of a tier and its background copies, for metrics and logs. */
struct pd_tier_report {
    const char *dir;
    bool in_memory, is_left_out, is_remote;
    uint64_t newest_step;     /* committed there; 0: none */
    double seconds;           /* how long that took; 0: an earlier launch did it */
    double age_seconds;       /* since then */
    uint64_t upload_bytes;    /* of the newest step, in a bucket */
    uint64_t uploading_step;  /* being uploaded to a bucket; 0: none */
    double progress;          /* of that upload, 0 to 1, estimated from this rank's bytes */
    double bytes_per_second;  /* of all ranks, estimated from this one; if none is running, of the newest step's upload */
    uint32_t failures;        /* in a row */
    uint64_t skipped;         /* due steps that newer ones replaced */
    char cause[256];          /* of the last failure */
    bool has_replicas;        /* on other hosts; the fields below are about them */
    uint64_t replicated_step; /* newest step with all shards on another host too */
    uint32_t replica_failures;
    uint64_t replicas_skipped;
    char replica_cause[256];
};
void pd_tiers_report(struct pd_tiers *tiers, uint32_t tier, struct pd_tier_report *ret_report);
