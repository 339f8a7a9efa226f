/* Tiers: the directories that hold the checkpoints of one run, the fastest first; a pd_store each.
 *
 *   memory --pd_tiers_save--> first tier that is due and works --one thread a later tier--> each later tier that is due
 *   (NVMe generations too)      (begin, write, seal, prune)        (copy this rank's shard, verified; seal, prune)
 *
 * A later tier has at most one copy on its way; a step that comes meanwhile waits, and gives way to a newer one. When a tier
 * fails we log it, save to the next one, and ask it again: at the next save, then after seconds, at last after minutes. On
 * the way in the newest (lineage, step) over all tiers counts, of equal ones the earlier tier's. With options.replicas every
 * shard that is committed in the first tier goes to the next host too (replicate.c), by a worker and a group of its own.
 * README.md has the invariants.
 *
 *   threads  pd_tiers_save and pd_tiers_finish: one caller, alike on every rank, with groups[0]; pd_tiers_report: any
 *   memory   PD_TIERS_STAGING_BYTES for each tier but the first, and for replicas; more where a rank keeps the shards of
 *            more than 63
 */
#pragma once

#include "ckpt/store/store.h"

#define PD_TIERS_MAX 8u
#define PD_TIERS_STAGING_BYTES (8ull << 20)

struct pd_tier_options {
    const char *dir;             /* exists, durably, unless `missing`; borrowed until pd_tiers_open returns */
    uint64_t every;              /* due at steps that this divides; 0: only where all tiers are due */
    uint32_t keep_last;          /* as in pd_store_options */
    uint64_t keep_every;         /* not in memory, where it would grow without bound */
    uint64_t bandwidth;          /* bytes a second that the ranks of one host write together in the background; 0: no cap */
    uint64_t upload_memory;      /* that the ranks of one host send from, of a bucket; 8 MiB a rank at least */
    uint32_t replicas;           /* of the first tier: 1 for a replica of every shard on another host; 0: none */
    struct pd_shard_codec codec; /* of its shards; without a pool: copies are compressed by the thread that makes them */
    /* Why this rank has no directory and could not make it; PD_OK: it has. PD_NOT_FOUND: nothing of the run can have been
     * lying there, so the tier may be left out until it can be made. Any other: it may hold the newest checkpoint. */
    pd_status missing;
    const char *missing_cause;
    bool missing_in_memory; /* where it would lie */
};

struct pd_tiers_options {
    struct pd_tier_options tiers[PD_TIERS_MAX];
    uint32_t count;
    struct pd_group *groups[PD_TIERS_MAX]; /* (count) the same ranks, a group of its own for each tier; borrowed */
    struct pd_group *replica_group;        /* the same ranks once more, where the first tier has replicas; borrowed */
    const struct pd_clock *clock;          /* of the root, for when to try again; NULL: the system's; borrowed */
    uint64_t quarantine_bytes_max;
    uint32_t busy_wait_ms;
    bool generations;  /* of the first tier, as in pd_store_options */
    bool needs_first;  /* the run keeps files in the pool of the first tier, which must be writable */
    bool is_host_away; /* checkpoints of the run may lie on a host that takes no part */
    bool read_only;    /* to look at and load from: nothing is changed on disk */
};

struct pd_tiers;

/* Opens every store: one after the other, in the caller's thread. Where there are several, one that cannot be written is
 * opened to be read; we log it and try again when it is due.
 *   errors  PD_BUSY: another launch holds one of them; the storage error of a tier that cannot be read, since it may hold
 *           the newest checkpoint; PD_INVALID: they hold checkpoints of different runs, or replicas are asked for where there
 *           is no other host or all share one directory. A run that goes on with one host goes on without replicas */
PD_MUST_USE pd_status pd_tiers_open(struct pd_vfs *vfs, const struct pd_tiers_options *options, struct pd_tiers **ret_tiers,
                                    struct pd_error *err);
/* Ends the threads (what they copy is given up), closes the stores. After a failure the groups must have been aborted. */
void pd_tiers_close(struct pd_tiers *tiers);

uint32_t pd_tiers_count(const struct pd_tiers *tiers);
/* How a shard that is saved into the tier is to be compressed; no pool. */
const struct pd_shard_codec *pd_tiers_codec(const struct pd_tiers *tiers, uint32_t tier);
/* For looking at, before pd_tiers_start and after pd_tiers_close alone; of the first tier always, by its caller. NULL: it
 * could not be opened at all, and holds nothing. */
struct pd_store *pd_tiers_store(struct pd_tiers *tiers, uint32_t tier);
uint64_t pd_tiers_fence(const struct pd_tiers *tiers);   /* the highest of any tier */
uint64_t pd_tiers_lineage(const struct pd_tiers *tiers); /* the highest of any tier; 0: no checkpoint */
/* The newest checkpoint over all tiers, by (lineage, step), then the earlier tier. False: there is none. */
bool pd_tiers_newest(const struct pd_tiers *tiers, uint32_t *ret_tier, struct pd_store_entry *ret_entry);
/* Not offered any more by pd_tiers_newest: it cannot be read where it lies. It stays there. Alike on every rank. */
void pd_tiers_pass_over(struct pd_tiers *tiers, uint32_t tier, const struct pd_store_entry *entry);

/* Checkpoints of its own ranks that a tier may hold at once: what is kept, one that is being written, and one for each later
 * tier that may be copied from it; in the first, with state in files (has_generations), the one that is read while the next
 * is written. With replicas two more, the one on its way to other hosts and the one before it that they have. */
uint32_t pd_tiers_own_checkpoints(const struct pd_tier_options *tiers, uint32_t count, uint32_t tier, bool has_generations);
/* All of them: with replicas twice as many, since hosts have those of others. */
uint32_t pd_tiers_checkpoints(const struct pd_tier_options *tiers, uint32_t count, uint32_t tier, bool has_generations);

/* Before the first step: room for what each tier will keep. A tier in memory is held against its file system and the memory
 * cgroups, which have to hold `memory_to_come` more bytes of this rank too, and is left out of saves, with a warning, when
 * it does not fit: a full tmpfs gets the job killed. A disk without room is logged and tried again when due.
 *   errors  PD_NO_SPACE: no tier has room */
PD_MUST_USE pd_status pd_tiers_check_room(struct pd_tiers *tiers, uint64_t shard_bytes, uint64_t memory_to_come,
                                          struct pd_error *err);
/* As pd_store_set_index, for all tiers; before pd_tiers_start. */
void pd_tiers_set_index(struct pd_tiers *tiers, const void *data, uint64_t bytes);
/* Starts a thread for each tier but the first. */
PD_MUST_USE pd_status pd_tiers_start(struct pd_tiers *tiers, struct pd_error *err);

/* The directory of the tier that a save under way writes to, or the last one wrote to. Any thread. */
const char *pd_tiers_saving_into(const struct pd_tiers *tiers);
bool pd_tiers_is_due(const struct pd_tiers *tiers, uint64_t step);

struct pd_tiers_save {
    const struct pd_run_state *state; /* borrowed; the root's copy counts */
    bool is_due_everywhere;           /* a signal, or the last step */
    /* Begins a checkpoint in `store` (pd_store_begin or pd_store_begin_generation, whose failure it returns: nothing was
     * read yet, and the next tier is asked) and writes this rank's shards, ret_summaries (shards): *ret_written is what came
     * of it, a failure of one rank ends the save on all. Called by the caller's thread or, while that waits, by a tier's. */
    pd_status (*prepare)(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                         struct pd_shard_summary *ret_summary, struct pd_error *err);
    /* A save that had begun has failed: true where what is saved is still as it was, and stays so until the save has ended.
     * Only then, on all ranks, the next tier is asked for the same step. */
    bool (*hold)(void *context);
    void *context;
};

/* Seals a checkpoint in the first tier that is due and works, prunes it, and hands it to the later tiers that are due.
 * *ret_tier: where it is sealed. A tier that is not due is taken where no other works. Where one fails the next is asked for
 * the same step, as long as what is saved is still there.
 *   errors  PD_BUSY, PD_PEER_LOST: stop. Others: no tier has it, checkpoints before it are as they were; the next save asks
 *           another tier first */
PD_MUST_USE pd_status pd_tiers_save(struct pd_tiers *tiers, const struct pd_tiers_save *save, uint32_t *ret_tier,
                                    struct pd_error *err);

/* The way out: every tier that is not left out gets the step of `last`, which is saved in one of them or still in memory.
 * Older copies on their way are given up. `leave_seconds` 0 or more: tiers that do not have it so long after the first one
 * that survives a reboot got it are given up too; negative: all are waited for.
 *   errors  of the first tier that outlives a reboot and did not get it, where it is safe meanwhile, and what became of the
 *           others is logged; with leave_seconds only where none that outlives a reboot got it */
PD_MUST_USE pd_status pd_tiers_finish(struct pd_tiers *tiers, const struct pd_tiers_save *last, double leave_seconds,
                                      struct pd_error *err);

/* What came of the background, for metrics and logs. */
struct pd_tier_report {
    const char *dir;
    bool in_memory, is_left_out;
    uint64_t newest_step;     /* sealed there; 0: none */
    double seconds;           /* that it took to get there; 0: an earlier launch put it there */
    double age_seconds;       /* since then */
    uint64_t upload_bytes;    /* of the newest step, where it went into a bucket */
    uint64_t uploading_step;  /* on its way into a bucket; 0: none */
    double progress;          /* of that, 0 to 1, by what this rank has sent */
    double bytes_per_second;  /* of all ranks, as far as this one tells */
    uint32_t failures;        /* in a row */
    uint64_t skipped;         /* steps that were due and gave way to newer ones */
    char cause[256];          /* of the last failure */
    bool has_replicas;        /* on other hosts; what follows is of them */
    uint64_t replicated_step; /* the newest whose every shard another host has too */
    uint32_t replica_failures;
    uint64_t replicas_skipped;
    char replica_cause[256];
};
void pd_tiers_report(struct pd_tiers *tiers, uint32_t tier, struct pd_tier_report *ret_report);
