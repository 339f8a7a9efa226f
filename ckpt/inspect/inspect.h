/* Examines a checkpoint directory (commit.h5 and its shards) from outside: where its data lies, and whether it is intact.
 * For the offline tools. Works on any layout, changes nothing, needs one staging buffer and a few rows per box.
 *
 *   threads   one caller per pd_inspect
 *   errors    PD_NOT_FOUND: no commit record, or a shard is absent; PD_CORRUPT; PD_IO, also if the drive is gone
 */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/store/commit.h"

struct pd_inspect;

/* Reads and verifies the commit record, then the table of every shard. `path` is the directory or its commit.h5. A shard
 * that cannot be opened counts as damage and is kept for pd_inspect_verify; the other shards remain usable. */
PD_MUST_USE pd_status pd_inspect_open(struct pd_vfs *vfs, const char *path, struct pd_inspect **ret_inspect,
                                      struct pd_error *err);
void pd_inspect_close(struct pd_inspect *inspect);
const struct pd_commit *pd_inspect_commit(const struct pd_inspect *inspect); /* borrowed */
/* PD_OK if every shard could be opened, else the first failure. Everybody except verify should call this first. */
PD_MUST_USE pd_status pd_inspect_check_complete(const struct pd_inspect *inspect, struct pd_error *err);

/* All tensors of the model, merged over the shards, in the order of the first shard that has each. Borrowed. */
const struct pd_tensor_table *pd_inspect_tensors(const struct pd_inspect *inspect);

/* The place of one box. `tensor` indexes pd_inspect_tensors. */
struct pd_inspect_box {
    uint32_t shard, box; /* file shard-<shard>, its box number */
    uint32_t tensor;
    enum pd_kind kind;
    struct pd_box place;
    uint64_t file_offset, bytes;
};
uint64_t pd_inspect_box_count(const struct pd_inspect *inspect);
const struct pd_inspect_box *pd_inspect_boxes(const struct pd_inspect *inspect); /* by tensor, kind, start; borrowed */

/* Called from time to time with the bytes done and the total; may be NULL. */
typedef void (*pd_inspect_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* ---- verify ---- */

struct pd_damage {
    char file[64];                   /* "shard-00003.h5", "commit.h5" */
    char tensor[PD_TENSOR_NAME_MAX]; /* empty when no tensor is concerned */
    enum pd_kind kind;
    uint64_t block;   /* number in the box */
    char text[512];   /* the whole sentence */
    pd_status status; /* PD_CORRUPT, PD_NOT_FOUND (absent), or why the file could not be read, which does not prove damage */
};
bool pd_damage_is_proven(const struct pd_damage *damage);

struct pd_damage_list {
    struct pd_damage *items; /* (count), owned */
    uint32_t count;
    uint64_t bytes_checked, blocks_checked;
};
void pd_damage_list_deinit(struct pd_damage_list *list);

/* Checks index.h5 against the digest in the record; PD_OK if that has none. The index holds no state.
 *   errors  PD_NOT_FOUND: it is absent; PD_CORRUPT: other bytes; PD_IO: it cannot be read */
PD_MUST_USE pd_status pd_inspect_check_index(struct pd_inspect *inspect, struct pd_error *err);

/* Checks every byte of every shard, and that the boxes cover every tensor exactly once. Continues after damage; keeps at
 * most 1000 items. The status is about the check itself: a badly damaged checkpoint gives PD_OK with a long list.
 *   errors  PD_STOPPED */
PD_MUST_USE pd_status pd_inspect_verify(struct pd_inspect *inspect, pd_inspect_progress progress, void *context,
                                        pd_should_stop should_stop, struct pd_damage_list *ret_list, struct pd_error *err);

/* One number for "same state": XXH3 over (name, kind, digest) sorted by name and kind. digests[tensor * PD_KIND_COUNT +
 * kind]. Ranks with boxes in memory get the same by summing pd_tensor_digest over ranks.
 *   memory  8 bytes a tensor   errors  PD_NO_MEMORY */
PD_MUST_USE pd_status pd_state_digest(const struct pd_tensor_table *tensors, const uint64_t *digests, uint64_t *ret_digest,
                                      struct pd_error *err);
