/* A store: a directory of checkpoints shared by the ranks of a run.
 *
 *   <root>/step-000000001200-<fence>/{shard-00000.h5, ..., index.h5, commit.h5}   committed: holds a valid commit record
 *   <root>/step-000000001200-<fence>.tmp/                                         being prepared
 *   <root>/fence-<N>                                                              one a launch, created exclusively
 *   <root>/lock, <root>/owner                                                     held by the living launch; who it is
 *   <root>/pool-<fence>/                                                          files of that launch:
 *       lock-<rank>                       held by each of its workers
 *       recycle-<rank>-<k>                free: to be reused
 *       generation-<rank>-<slot>.h5       in use: state while steps go on, or a replica being written, below
 *       index-<version>, trash-<name>/    linked into checkpoints; being emptied
 *   <root>/quarantine/                    damaged checkpoints; space capped
 *
 * The protocol (prepare, commit, choose, remove) with its invariants and state diagram opens store.c. Every call is collective
 * over the group given at open. No decision uses wall clock or mtime.
 */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/store/commit.h"

struct pd_store;

struct pd_store_options {
    bool writable;                 /* takes a fence; false: read-only, changes nothing on disk */
    bool quiet;                    /* do not log problems: the caller does */
    uint32_t keep_last;            /* keep the newest k committed checkpoints; at least 1 */
    uint64_t keep_every;           /* and every step divisible by n; 0: none */
    uint64_t quarantine_bytes_max; /* above it all but the newest are deleted; 0: delete all at once */
    uint32_t busy_wait_ms;         /* how long to wait for a launch that may be dying to release the store; 0: do not wait */
    bool generations;              /* state lives in generations, see below: keep as many files free as they need */
    uint32_t later_tiers; /* that copy from here: each keeps one checkpoint, and its generation's file, from removal */
    bool replicas;        /* other hosts keep replicas of shards, see below */
    bool leaves_nothing;  /* if it commits nothing, closing leaves no trace of it. For one rank */
};

/* Lists the checkpoints of all hosts, rolls forward or clears leftovers (writable only), takes the next fence, and probes
 * the operations of a save.
 *   errors  PD_BUSY: another launch holds this store; PD_IO: says who we are and what was denied; PD_INVALID: it holds two
 *           runs with equally many checkpoints (writable only) */
PD_MUST_USE pd_status pd_store_open(struct pd_vfs *vfs, const char *root, const struct pd_store_options *options,
                                    struct pd_group *group, struct pd_store **ret_store, struct pd_error *err);
void pd_store_close(struct pd_store *store);
uint64_t pd_store_fence(const struct pd_store *store); /* 0 when not writable */

/* Committed checkpoints, newest first by (lineage, step, fence). Valid until the next collective call on the store. */
struct pd_store_entry {
    char name[64]; /* directory name under root */
    uint64_t lineage, step, fence;
    uint64_t bytes; /* of all shards, on any host */
    uint32_t shard_count;
    uint32_t hosts; /* copies of each shard on different hosts when the store was opened; minimum over shards */
};
uint32_t pd_store_count(const struct pd_store *store);
const struct pd_store_entry *pd_store_entry_at(const struct pd_store *store, uint32_t newest_first);
/* Absolute path of an entry's directory; ret_path has room for 4096 bytes. */
void pd_store_entry_path(const struct pd_store *store, const struct pd_store_entry *entry, char *ret_path);
/* A pinned checkpoint is not pruned. To read one while saves go on, pin it on every rank alike. */
void pd_store_pin(struct pd_store *store, const struct pd_store_entry *entry);
void pd_store_unpin(struct pd_store *store, const char *name);
PD_MUST_USE pd_status pd_store_read_commit(struct pd_store *store, const struct pd_store_entry *entry,
                                           struct pd_commit *ret_commit, struct pd_error *err);
/* Collective: whether its record, or one of its shards, has disappeared from every host since the open. */
PD_MUST_USE pd_status pd_store_has_gone(struct pd_store *store, const struct pd_store_entry *entry, bool *ret_has_gone,
                                        struct pd_error *err);

/* Checkpoints that the open found but cannot resume from, the same on every rank. Do not start fresh beside one: that
 * would bury a run that can still be rescued. */
enum pd_store_flaw {
    PD_STORE_INCOMPLETE,     /* committed, but shards are absent or of another size */
    PD_STORE_DAMAGED,        /* already in quarantine, if the store is writable */
    PD_STORE_UNRECORDED,     /* shards under a final name without commit.h5 */
    PD_STORE_UNREADABLE,     /* a storage error */
    PD_STORE_OF_ANOTHER_RUN, /* most checkpoints here have another run_id: never chosen, removed or moved */
    PD_STORE_MISNAMED,       /* a valid record in a directory of another name: never chosen, removed or moved */
};
struct pd_store_unusable {
    char name[64], right_name[64]; /* differ only for PD_STORE_MISNAMED */
    uint64_t step;
    enum pd_store_flaw flaw;
    char cause[384]; /* names the file; complete on rank 0 */
};
uint32_t pd_store_unusable_count(const struct pd_store *store);
const struct pd_store_unusable *pd_store_unusable_at(const struct pd_store *store, uint32_t index); /* by step, ascending */
/* For a read-only store: the newest complete checkpoint whose save ended before it got its final name. The next launch
 * resumes from it. False: none. */
bool pd_store_unnamed(const struct pd_store *store, struct pd_store_entry *ret_entry);
/* Collective: number of quarantined checkpoints, on the host that has most. */
PD_MUST_USE pd_status pd_store_count_quarantined(struct pd_store *store, uint32_t *ret_count, struct pd_error *err);

/* Checks free space for `copies` checkpoints at once, `bytes_here` each from this rank, summed over the ranks that share
 * the directory. Existing committed ones count, since retention removes them as new ones come, but one new one must fit
 * in any case. With options.generations there must be enough for the files those need, less what is free in the pool.
 *   errors  PD_NO_SPACE says what is needed, what is there, and what to delete or set */
PD_MUST_USE pd_status pd_store_check_space(struct pd_store *store, uint64_t bytes_here, uint32_t copies,
                                           struct pd_error *err);
/* Collective: returns the bytes that pd_store_check_space requires. */
PD_MUST_USE pd_status pd_store_needed_bytes(struct pd_store *store, uint64_t bytes_here, uint32_t copies,
                                            uint64_t *ret_bytes, struct pd_error *err);

/* ---- saving: begin, write the shard at the given path, commit or abort ---- */

/* Returns the path of this rank's shard file in the directory being prepared (ret_shard_path: 4096 bytes); a recycled
 * file may be there. After PD_OK call pd_store_commit.   errors  PD_EXISTS: this launch has already committed this step */
PD_MUST_USE pd_status pd_store_begin(struct pd_store *store, const struct pd_identity *identity, char *ret_shard_path,
                                     struct pd_error *err);
/* `mine` is this rank's result of writing its shard: any failure aborts the save on every rank. PD_OK: committed on every
 * host. state.layout etc. come from the root's copy, identity and fence from the store. A failed save leaves the earlier
 * checkpoints as they were, and the next one can begin.
 *   errors  PD_BUSY: another launch has taken over; stop. PD_PEER_LOST: some hosts may have committed; next open decides */
PD_MUST_USE pd_status pd_store_commit(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summary,
                                      const struct pd_run_state *state, struct pd_error *err);
/* As pd_store_commit, when this rank alone (the store's group) has written the shards of all `count` ranks of
 * state.layout, next to the path from begin. An index set since begin goes into this checkpoint too. */
PD_MUST_USE pd_status pd_store_commit_all(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summaries,
                                          uint32_t count, const struct pd_run_state *state, struct pd_error *err);
/* Sets index.h5, which does not change during a launch: its bytes, from pd_index_build, are written once and linked (or
 * copied) into every checkpoint. Borrowed; root of each host only; may be NULL until it is ready. */
void pd_store_set_index(struct pd_store *store, const void *data, uint64_t bytes);
/* Deletes what retention does not keep (record first); files go to the pool for reuse. The trainer calls it after a
 * commit. If something cannot be deleted, deletes the rest and returns the first failure. */
PD_MUST_USE pd_status pd_store_prune(struct pd_store *store, struct pd_error *err);
/* In a memory file system: keeps a written file free for this rank's next shard of `bytes`; once retention is full,
 * pruning provides one. Overwrites `buffer` with zeros. For this rank alone, between saves; a failure only slows the next
 * save. */
void pd_store_keep_ready(struct pd_store *store, uint64_t bytes, void *buffer, uint64_t buffer_bytes);
/* Moves a damaged checkpoint to the quarantine, within the cap (oldest go first). It is not offered again, even if it
 * cannot be moved or the store is read-only. */
PD_MUST_USE pd_status pd_store_quarantine(struct pd_store *store, const struct pd_store_entry *entry, const char *reason,
                                          struct pd_error *err);
/* True on every rank while this launch still owns the store (checked again before every commit). */
PD_MUST_USE pd_status pd_store_check_fence(struct pd_store *store, struct pd_error *err);

/* ---- generations: state that lives in files of this rank's pool; a checkpoint links the current one ----
 *
 * A file in use is pool-<fence>/generation-<rank>-<slot>.h5; a free one is recycle-<rank>-<k>, as after a plain save.
 * Only a free file is taken, and only if its link count is one (no checkpoint, quarantine or backup has another name for
 * it). A committed checkpoint keeps its file by its link. Retention frees the file by removing the record first, and only
 * after a newer one is durable on every host. Take and release may run while another thread commits or prunes. */
#define PD_STORE_GENERATIONS_MAX 4096u

/* Files a rank needs, for plans and start-up: one being read, one being written, one for each kept checkpoint, one for
 * each later tier; one more without links, two more with replicas. Milestones of keep_every come on top. */
uint32_t pd_store_generations_needed(const struct pd_store_options *options, bool has_links);
/* Preallocates that many files of `file_bytes` at start-up, less those that committed checkpoints will free: a full disk
 * shows before the first step. For this rank alone, between saves. Does nothing if space cannot be preallocated.
 *   errors  PD_NO_SPACE */
PD_MUST_USE pd_status pd_store_generations_reserve(struct pd_store *store, uint64_t file_bytes, struct pd_error *err);
uint64_t pd_store_free_bytes(struct pd_store *store); /* disk space of this rank's free files in the root's pool */
/* Takes a free file of this rank for writing, or creates one if none is free. For this rank alone.
 *   errors  PD_NO_SPACE; PD_BUSY, PD_IO: the pool is gone, because another launch took over or its file system is gone */
PD_MUST_USE pd_status pd_store_generation_take(struct pd_store *store, uint32_t *ret_slot, char *ret_path,
                                               struct pd_error *err);
/* The user no longer reads or writes it, and no I/O is in flight. `is_bad`: a sync or write failed; the file is unlinked
 * and never used again. */
void pd_store_generation_release(struct pd_store *store, uint32_t slot, bool is_bad);
/* As pd_store_begin, when this rank's shard is the finished and synced generation `slot`: links it into the directory
 * being prepared. If the file system refuses links it is copied (through `buffers`, at least 1 MiB, aligned to
 * PD_VFS_ALIGN); pd_store_links_generations tells in advance.   errors  as pd_store_begin; if one rank fails to link, all
 * ranks return an error */
PD_MUST_USE pd_status pd_store_begin_generation(struct pd_store *store, const struct pd_identity *identity, uint32_t slot,
                                                void *buffers, uint64_t buffer_bytes, struct pd_error *err);
bool pd_store_links_generations(const struct pd_store *store);

/* ---- replicas: a second copy of this rank's shard of a committed checkpoint, on another host ----
 *
 * It has the name that the commit record gives the shard, so it can be verified, counts as visible, and is removed with
 * the directory. Pin a checkpoint while replicating it. Replicas may be made while another thread saves and prunes. */
struct pd_store_replicas {       /* hosts form a ring, if they have disks of their own */
    uint32_t replica_host;       /* rank that keeps this rank's replicas */
    uint32_t *sources;           /* (source_count) ranks whose replicas this one keeps */
    uint32_t source_count, most; /* most: maximum of source_count over ranks */
};
/* NULL: options.replicas is not set, the store is read-only, or all ranks see one directory. */
const struct pd_store_replicas *pd_store_replicas(const struct pd_store *store);
bool pd_store_is_shared(const struct pd_store *store); /* all ranks see one directory; known only for a writable store */
/* Returns the path (4096 bytes) for a replica of `rank`'s shard, to create or overwrite; a free file may be there. For
 * this rank alone, one at a time for each source. After PD_OK call pd_store_replica_end. */
PD_MUST_USE pd_status pd_store_replica_begin(struct pd_store *store, uint32_t rank, char *ret_path, struct pd_error *err);
/* If `mine` is PD_OK, the file is complete and synced: moves it into checkpoint `name`, durably. Otherwise deletes it. */
PD_MUST_USE pd_status pd_store_replica_end(struct pd_store *store, const char *name, uint32_t rank, pd_status mine,
                                           struct pd_error *err);
/* Whether `name` is still a checkpoint, as far as this host can tell. */
bool pd_store_has_record(const struct pd_store *store, const char *name);
