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
    bool writable;                 /* takes a fence; false: look only, changes nothing on disk */
    bool quiet;                    /* what is not good is not logged: somebody else does */
    uint32_t keep_last;            /* newest k committed checkpoints stay; at least 1 */
    uint64_t keep_every;           /* and every step divisible by n; 0: none */
    uint64_t quarantine_bytes_max; /* beyond it all but the newest go; 0: all, at once */
    uint32_t busy_wait_ms; /* how long to wait for a launch that may be dying to let go of the store; 0: not at all */
    bool generations;      /* state lives in generations, below: as many files are free as they need */
    uint32_t later_tiers;  /* that may copy from here: each keeps one from being removed, and the file of its generation */
    bool replicas;         /* other hosts get replicas of shards, below */
    bool leaves_nothing;   /* closed without a committed checkpoint of its own: as if it had not been opened. Of one rank */
};

/* Lists, unites the listings of all hosts, rolls forward or clears leftovers (writable only), takes the next fence, probes
 * what a save will need.
 *   errors  PD_BUSY: another launch holds this store; PD_IO: says who we are and what was denied; PD_INVALID: two runs lie
 *           there, with as many checkpoints each (writable only) */
PD_MUST_USE pd_status pd_store_open(struct pd_vfs *vfs, const char *root, const struct pd_store_options *options,
                                    struct pd_group *group, struct pd_store **ret_store, struct pd_error *err);
void pd_store_close(struct pd_store *store);
uint64_t pd_store_fence(const struct pd_store *store); /* 0 when not writable */

/* Committed checkpoints, newest first by (lineage, step, fence). Valid until the next collective call on the store. */
struct pd_store_entry {
    char name[64]; /* directory name under root */
    uint64_t lineage, step, fence;
    uint64_t bytes; /* of all shards, wherever they lie */
    uint32_t shard_count;
    uint32_t hosts; /* that had every shard when the store was opened, each shard counted by itself: the fewest */
};
uint32_t pd_store_count(const struct pd_store *store);
const struct pd_store_entry *pd_store_entry_at(const struct pd_store *store, uint32_t newest_first);
/* Absolute path of an entry's directory; ret_path has room for 4096 bytes. */
void pd_store_entry_path(const struct pd_store *store, const struct pd_store_entry *entry, char *ret_path);
/* A pinned checkpoint is not pruned: whoever reads one while saves go on pins it, alike on every rank. */
void pd_store_pin(struct pd_store *store, const struct pd_store_entry *entry);
void pd_store_unpin(struct pd_store *store, const char *name);
PD_MUST_USE pd_status pd_store_read_commit(struct pd_store *store, const struct pd_store_entry *entry,
                                           struct pd_commit *ret_commit, struct pd_error *err);
/* Collective: whether its record, or one of its shards, has gone from every host since the open. */
PD_MUST_USE pd_status pd_store_has_gone(struct pd_store *store, const struct pd_store_entry *entry, bool *ret_has_gone,
                                        struct pd_error *err);

/* What the open saw that is not a checkpoint to go on from, the same on every rank. A fresh start beside any of it would bury a
 * run that may still be saved. */
enum pd_store_flaw {
    PD_STORE_INCOMPLETE,     /* committed, and shards are absent or of another size */
    PD_STORE_DAMAGED,        /* in quarantine by now, when the store is writable */
    PD_STORE_UNRECORDED,     /* shards under a final name without commit.h5 */
    PD_STORE_UNREADABLE,     /* a storage error */
    PD_STORE_OF_ANOTHER_RUN, /* its run_id is not that of most checkpoints here: never chosen, removed or moved */
    PD_STORE_MISNAMED,       /* a valid record in a directory of another name: never chosen, removed or moved */
};
struct pd_store_unusable {
    char name[64], right_name[64]; /* they differ in a misnamed one alone */
    uint64_t step;
    enum pd_store_flaw flaw;
    char cause[384]; /* names the file; in full on rank 0 */
};
uint32_t pd_store_unusable_count(const struct pd_store *store);
const struct pd_store_unusable *pd_store_unusable_at(const struct pd_store *store, uint32_t index); /* by step, ascending */
/* Of a store that is only read: the newest whole one whose save ended before it had its final name, under which the next
 * launch goes on from it. False: none. */
bool pd_store_unnamed(const struct pd_store *store, struct pd_store_entry *ret_entry);
/* Checkpoints that lie in the quarantine now, of the host that has most. Collective. */
PD_MUST_USE pd_status pd_store_count_quarantined(struct pd_store *store, uint32_t *ret_count, struct pd_error *err);

/* Free space for `copies` checkpoints at once, of `bytes_here` from this rank, summed over the ranks that share the
 * directory. Committed ones that are there already count as theirs, since retention lets them go as
 * new ones come; room for one new one must be free in any case. With options.generations at least as many files as those
 * need, less what is free in the pool.
 *   errors  PD_NO_SPACE says what is needed, what is there, and what to delete or set */
PD_MUST_USE pd_status pd_store_check_space(struct pd_store *store, uint64_t bytes_here, uint32_t copies,
                                           struct pd_error *err);
/* The bytes that it looks for. Collective. */
PD_MUST_USE pd_status pd_store_needed_bytes(struct pd_store *store, uint64_t bytes_here, uint32_t copies,
                                            uint64_t *ret_bytes, struct pd_error *err);

/* ---- saving: begin, write the shard at the given path, commit or abort ---- */

/* Path of this rank's shard file inside the directory being prepared (room for 4096 bytes); a recycled file may already lie
 * there. After PD_OK pd_store_commit must follow.   errors  PD_EXISTS: this launch has committed this step already */
PD_MUST_USE pd_status pd_store_begin(struct pd_store *store, const struct pd_identity *identity, char *ret_shard_path,
                                     struct pd_error *err);
/* `mine` is this rank's outcome of writing its shard: any failure aborts the save on every rank (PD_OK
 * here means committed on every host). state.layout etc. are taken from the root's copy, identity and fence from the store. A
 * failed save leaves the checkpoints before it as they were, and the next one can begin.
 *   errors  PD_BUSY: another launch has taken over; stop. PD_PEER_LOST: some hosts may have committed; the next open decides */
PD_MUST_USE pd_status pd_store_commit(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summary,
                                      const struct pd_run_state *state, struct pd_error *err);
/* As pd_store_commit when one rank has written the shards of all `count` ranks of state.layout, beside the one that begin
 * named: the store's group has this rank alone. An index that was set since begin goes into this checkpoint too. */
PD_MUST_USE pd_status pd_store_commit_all(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summaries,
                                          uint32_t count, const struct pd_run_state *state, struct pd_error *err);
/* index.h5 is static for a launch: its bytes, built with pd_index_build, are written once and linked (or copied) into every
 * checkpoint. Borrowed; root of each host only; may be NULL until it is ready. */
void pd_store_set_index(struct pd_store *store, const void *data, uint64_t bytes);
/* Deletes what retention does not keep (record first); files go to the pool for reuse. Called by the trainer after a commit.
 * What cannot be deleted stays, and the rest goes; returns the first failure. */
PD_MUST_USE pd_status pd_store_prune(struct pd_store *store, struct pd_error *err);
/* Where the store lies in memory: sees that a written file is free for this rank's next shard of `bytes`; once as many are
 * committed as are kept, pruning leaves one. `buffer` is overwritten with zeros. Of this rank alone, between saves; a failure
 * only makes the next save slower. */
void pd_store_keep_ready(struct pd_store *store, uint64_t bytes, void *buffer, uint64_t buffer_bytes);
/* Moves a damaged checkpoint aside, within the cap (the oldest quarantined go first). It is no longer offered, also where it
 * cannot be moved or the store is only read from. */
PD_MUST_USE pd_status pd_store_quarantine(struct pd_store *store, const struct pd_store_entry *entry, const char *reason,
                                          struct pd_error *err);
/* True on every rank while this launch still owns the store (checked again before every commit). */
PD_MUST_USE pd_status pd_store_check_fence(struct pd_store *store, struct pd_error *err);

/* ---- generations: state that lives in files of this rank's pool; a checkpoint links the current one ----
 *
 * A file in use is pool-<fence>/generation-<rank>-<slot>.h5; a free one is recycle-<rank>-<k>, as after a plain save. Only a
 * free file is taken, and only while its link count is one (no checkpoint, quarantine or backup knows it by another name). A
 * committed checkpoint keeps its file by its link; retention frees it by removing the record first, and only after a newer
 * one is durable on every host. Take and release may run while another thread commits or prunes. */
#define PD_STORE_GENERATIONS_MAX 4096u

/* Files a rank needs, for plans and start-up: the one that is read, the one that is written, and one for each checkpoint
 * that is kept and for each later tier; without links one more, with replicas two. Milestones of keep_every come on top. */
uint32_t pd_store_generations_needed(const struct pd_store_options *options, bool has_links);
/* Sees at start-up that as many lie here, of `file_bytes` each, less what committed checkpoints will give back: a full disk
 * shows before the first step. Of this rank alone, between saves. Does nothing where space cannot be preallocated.
 *   errors  PD_NO_SPACE */
PD_MUST_USE pd_status pd_store_generations_reserve(struct pd_store *store, uint64_t file_bytes, struct pd_error *err);
uint64_t pd_store_free_bytes(struct pd_store *store); /* what this rank's free files in the root's pool take of the disk */
/* A file of this rank that may be written now, in use from here on; made anew when none is free. Of this rank alone.
 *   errors  PD_NO_SPACE; PD_BUSY, PD_IO: the pool is gone, since another launch has taken over or with its file system */
PD_MUST_USE pd_status pd_store_generation_take(struct pd_store *store, uint32_t *ret_slot, char *ret_path,
                                               struct pd_error *err);
/* No longer read or written by its user, nothing of it in flight. `is_bad`: a sync or write of it failed; it is unlinked and
 * never used again. */
void pd_store_generation_release(struct pd_store *store, uint32_t slot, bool is_bad);
/* As pd_store_begin, where the shard of this rank is the finished and synced generation `slot`: linked into the
 * directory being prepared. Where the file system refuses links it is copied (through `buffers`, at least 1 MiB, aligned to
 * PD_VFS_ALIGN), which pd_store_links_generations tells beforehand.   errors  as pd_store_begin; a rank's failure to link
 * is agreed: no rank goes on */
PD_MUST_USE pd_status pd_store_begin_generation(struct pd_store *store, const struct pd_identity *identity, uint32_t slot,
                                                void *buffers, uint64_t buffer_bytes, struct pd_error *err);
bool pd_store_links_generations(const struct pd_store *store);

/* ---- replicas: this rank's shard of a committed checkpoint once more, in the directory of another host ----
 *
 * Under the name that its commit record gives the shard, so it proves itself, counts as in sight, and goes with the
 * directory. What is replicated is pinned. Replicas may be made while another thread saves and prunes. */
struct pd_store_replicas {       /* in a ring of hosts, where hosts have disks of their own */
    uint32_t replica_host;       /* rank that keeps this rank's replicas */
    uint32_t *sources;           /* (source_count) ranks whose replicas this one keeps */
    uint32_t source_count, most; /* most: of any rank */
};
/* NULL: options.replicas is not set, nothing may be written, or all ranks see one directory. */
const struct pd_store_replicas *pd_store_replicas(const struct pd_store *store);
bool pd_store_is_shared(const struct pd_store *store); /* all ranks see one directory; known of a writable store */
/* A file (room for 4096 bytes) for a replica of `rank`'s shard, made or overwritten; a free one may lie there. Of this rank
 * alone, one at a time a source. After PD_OK pd_store_replica_end must follow. */
PD_MUST_USE pd_status pd_store_replica_begin(struct pd_store *store, uint32_t rank, char *ret_path, struct pd_error *err);
/* `mine` is PD_OK: the file is whole and synced, and gets its place in checkpoint `name`, durably. Otherwise it goes. */
PD_MUST_USE pd_status pd_store_replica_end(struct pd_store *store, const char *name, uint32_t rank, pd_status mine,
                                           struct pd_error *err);
/* Whether checkpoint `name` is still one, as far as this host can tell. */
bool pd_store_has_record(const struct pd_store *store, const char *name);
