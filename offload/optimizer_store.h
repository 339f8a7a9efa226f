/* Optimizer state of one rank in files: fp32 master, exp_avg and exp_avg_sq (both fp32 or both bf16) of its boxes,
 * generation after generation.
 *
 * A generation is a shard file in the making (ckpt/shard/shard.h). An update reads
 * generation g, verifies every block against what was hashed when it was written, and writes g+1 out of place with its own
 * checksums. A checkpoint finishes the file of the newest one (metadata, tables, fdatasync) and links it; no byte of state
 * is written twice.
 *
 *   invariants  1. bits equal those of pd_update over the same elements in memory
 *               2. an update that fails leaves the generation before it as it was, and current
 *               3. boxes of less than PD_SHARD_BLOCK_BYTES stay in memory and are written when a generation is finished
 *               4. 12 bytes read and 12 written an element (8 and 8 with moments in bf16); checksums and tables are under
 *                  0.1% on top
 *   memory      the ring's buffers; boxes that stay, twice; two writers (8 bytes a block and metadata pages each):
 *               pd_optimizer_store_most_bytes
 *   threads     one caller
 */
#pragma once

#include "ckpt/store/store.h"
#include "offload/ring.h"
#include "offload/update_rule.h"

struct pd_optimizer_store;

struct pd_optimizer_store_options {
    struct pd_vfs *vfs;
    struct pd_store *store; /* where generations lie: its pool. NULL: files of their own in `directory` */
    const char *directory;
    const struct pd_tensor_table *tensors;
    /* (box_count) of this rank's shard, all three kinds: pd_layout_shard_boxes */
    const struct pd_shard_box *boxes;
    uint32_t box_count, rank;
    struct pd_thread_pool *pool;
    enum pd_isa isa;
    void *buffers; /* (buffer_bytes) of the ring, aligned to PD_VFS_ALIGN; PD_OPTIMIZER_STORE_BUFFERS_MIN or more */
    uint64_t buffer_bytes;
    /* (kept_bytes, aligned to PD_VFS_ALIGN) state that stays here beside its files: read by the first update alone, written
     * by every one. NULL: none */
    void *kept;
    uint64_t kept_bytes;
};
#define PD_OPTIMIZER_STORE_BUFFERS_MIN (UINT64_C(4) << 20)
#define PD_OPTIMIZER_STORE_BUFFERS_FAST (UINT64_C(192) << 20)

/* Everything is borrowed for its life. */
PD_MUST_USE pd_status pd_optimizer_store_new(const struct pd_optimizer_store_options *options,
                                             struct pd_optimizer_store **ret_store, struct pd_error *err);
void pd_optimizer_store_free(struct pd_optimizer_store *store);
/* Bytes of one generation's file, for plans. Computes the file's metadata once. */
PD_MUST_USE pd_status pd_optimizer_store_plan(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                              uint32_t box_count, uint64_t *ret_file_bytes, struct pd_error *err);
/* Heap beyond the ring's buffers: a sum over boxes, and never less than what new takes (it checks). */
uint64_t pd_optimizer_store_most_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                       uint32_t box_count, uint64_t buffer_bytes);
/* Bytes of `kept` that a store over these boxes makes use of, of a budget: what an update does not read. */
PD_MUST_USE pd_status pd_optimizer_store_kept_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                                    uint32_t box_count, uint64_t budget, uint64_t *ret_bytes,
                                                    struct pd_error *err);
/* Of one generation. */
uint64_t pd_optimizer_store_file_bytes(const struct pd_optimizer_store *store);

/* The first generation, or one that replaces all: begin, every element of every box put once, end. `box` counts in
 * options.boxes. Ranges of a box come in ascending order and, but for its last, in multiples of a block.
 *   data (elements) fp32, or bf16 where the box's kind is kept so */
PD_MUST_USE pd_status pd_optimizer_store_begin(struct pd_optimizer_store *store, const struct pd_identity *identity,
                                               struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_store_put(struct pd_optimizer_store *store, uint32_t box, uint64_t first_element,
                                             const void *data, uint64_t elements, struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_store_end(struct pd_optimizer_store *store, struct pd_error *err);

/* What an update needs of elements [first, first + n) of a `param` box: the summed gradient, and where the new parameter
 * goes rounded to copy_dtype (NULL: nowhere). Asked once for every element, by the caller's thread, in the order of tensors;
 * not asked for when there is no update. What was given is used until the first range is asked for that lies in another
 * extent: with by_unit, in another pipeline unit at the latest. */
struct pd_optimizer_store_step {
    struct pd_identity identity;         /* of the new generation */
    const struct pd_update_step *update; /* NULL: no update, the state as it is under another identity (a skipped step) */
    enum pd_dtype copy_dtype;
    void *context;
    bool by_unit; /* extents hold parts of one pipeline unit only */
    pd_status (*meet)(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient, void **ret_copy,
                      struct pd_error *err);
    /* NULL, or both, for gradients that come from afar. expect: a part that will be asked for, in that order, while the
     * extent before its own is worked on; `begins` an extent. left: all that was asked for since the last call is updated.
     * Boxes that stay in memory are not expected, and left one by one. */
    pd_status (*expect)(void *context, uint32_t box, uint64_t first, uint64_t n, bool begins, struct pd_error *err);
    pd_status (*left)(void *context, struct pd_error *err);
};
/* Elements of an extent at most, each part of it rounded up to pages of a kind. */
uint64_t pd_optimizer_store_extent_elements(uint64_t buffer_bytes, enum pd_dtype moments);
PD_MUST_USE pd_status pd_optimizer_store_update(struct pd_optimizer_store *store, const struct pd_optimizer_store_step *step,
                                                struct pd_ring_report *ret_report, struct pd_error *err);
/* The same in two, for factors that are worked out while the first reads are on their way: begin takes a copy of the step
 * but for `update`, which end is given. Nothing else of the store is called between. After a begin that succeeded comes end,
 * or abandon: the state is as it was, nothing is in flight. Abandon without a begin is fine. */
PD_MUST_USE pd_status pd_optimizer_store_update_begin(struct pd_optimizer_store *store,
                                                      const struct pd_optimizer_store_step *step, struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_store_update_end(struct pd_optimizer_store *store, const struct pd_update_step *update,
                                                    struct pd_ring_report *ret_report, struct pd_error *err);
void pd_optimizer_store_update_abandon(struct pd_optimizer_store *store);

/* Identity of the current generation. */
const struct pd_identity *pd_optimizer_store_identity(const struct pd_optimizer_store *store);
const char *pd_optimizer_store_path(const struct pd_optimizer_store *store); /* of its file */
/* What of the current generation is not in its file yet, but for metadata and tables; once, later calls return the same. A
 * failure makes the file worthless for checkpoints; state goes on. */
PD_MUST_USE pd_status pd_optimizer_store_complete(struct pd_optimizer_store *store, struct pd_error *err);
/* Completes that file: metadata, tables, fdatasync; once, as above. pd_store_begin_generation takes *ret_slot. After
 * pd_optimizer_store_complete this may run in another thread, while nobody else calls anything of this store. */
PD_MUST_USE pd_status pd_optimizer_store_finish(struct pd_optimizer_store *store, struct pd_shard_summary *ret_summary,
                                                uint32_t *ret_slot, struct pd_error *err);
