/* Looking at a checkpoint directory (commit.h5 and its shards) from outside: what lies where, and whether it is whole.
 * For the offline tools; works on any layout, changes nothing, needs memory for one staging buffer and a few rows a box.
 *
 *   threads   one caller per pd_inspect
 *   errors    PD_NOT_FOUND: no commit record, or a shard is absent; PD_CORRUPT; PD_IO, also of a drive that is not there
 */
#pragma once

#include "ckpt/store/commit.h"

struct pd_inspect;

/* Reads and verifies the commit record, then the table of every shard. `path` may be the directory or its commit.h5.
 * A shard that cannot be opened is damage, noted for pd_inspect_verify; the others are still there to look at. */
PD_MUST_USE pd_status pd_inspect_open(struct pd_vfs *vfs, const char *path, struct pd_inspect **ret_inspect,
                                      struct pd_error *err);
void pd_inspect_close(struct pd_inspect *inspect);
const struct pd_commit *pd_inspect_commit(const struct pd_inspect *inspect); /* borrowed */
/* PD_OK when every shard could be opened, else the first failure. Everything but verify should look here first. */
PD_MUST_USE pd_status pd_inspect_check_complete(const struct pd_inspect *inspect, struct pd_error *err);

/* Every tensor of the model, united over the shards, in the order of the first shard that has it. Borrowed. */
const struct pd_tensor_table *pd_inspect_tensors(const struct pd_inspect *inspect);

/* Where the boxes are. `tensor` numbers pd_inspect_tensors. */
struct pd_inspect_box {
    uint32_t shard, box; /* file shard-<shard>, its box number */
    uint32_t tensor;
    enum pd_kind kind;
    struct pd_box place;
    uint64_t file_offset, bytes;
};
uint64_t pd_inspect_box_count(const struct pd_inspect *inspect);
const struct pd_inspect_box *pd_inspect_boxes(const struct pd_inspect *inspect); /* by tensor, kind, start; borrowed */

/* Called now and then with bytes done of bytes in all; may be NULL. */
typedef void (*pd_inspect_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* ---- verify ---- */

struct pd_damage {
    char file[64];                   /* "shard-00003.h5", "commit.h5" */
    char tensor[PD_TENSOR_NAME_MAX]; /* empty when no tensor is concerned */
    enum pd_kind kind;
    uint64_t block;   /* number in the box */
    char text[512];   /* the whole sentence */
    pd_status status; /* PD_CORRUPT, PD_NOT_FOUND (absent), or what kept the file from being read: no proof of damage */
};
bool pd_damage_is_proven(const struct pd_damage *damage);

struct pd_damage_list {
    struct pd_damage *items; /* (count), owned */
    uint32_t count;
    uint64_t bytes_checked, blocks_checked;
};
void pd_damage_list_deinit(struct pd_damage_list *list);

/* index.h5 against the digest in the record; whole, too, where the record has none. It is for people: no state lies in it.
 *   errors  PD_NOT_FOUND: it is absent; PD_CORRUPT: other bytes; PD_IO: it cannot be read */
PD_MUST_USE pd_status pd_inspect_check_index(struct pd_inspect *inspect, struct pd_error *err);

/* Every byte of every shard, and that the boxes cover every tensor exactly once. Goes on after damage; at most 1000 items
 * are kept. The status is about the work itself: a checkpoint full of damage is PD_OK with a long list. */
PD_MUST_USE pd_status pd_inspect_verify(struct pd_inspect *inspect, pd_inspect_progress progress, void *context,
                                        struct pd_damage_list *ret_list, struct pd_error *err);

/* XXH3 over (name, kind, digest) sorted by name and kind: "same state" as one number. digests[tensor * PD_KIND_COUNT +
 * kind]. Ranks that hold boxes in memory sum pd_tensor_digest over ranks and get the same.   memory  8 bytes a tensor errors
 * PD_NO_MEMORY */
PD_MUST_USE pd_status pd_state_digest(const struct pd_tensor_table *tensors, const uint64_t *digests, uint64_t *ret_digest,
                                      struct pd_error *err);
