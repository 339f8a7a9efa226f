/* One rank's optimizer state in files: fp32 master, exp_avg and exp_avg_sq (both fp32 or both bf16) of its boxes,
 * generation after generation.
 *
 * A generation is a shard file in the making (ckpt/shard/shard.h). An update reads generation g, verifies every block
 * against its checksum, and writes g+1 out of place with its own checksums. A checkpoint finishes the file of the newest
 * generation (metadata, tables, fdatasync) and links it; no byte of state is written twice.
 *
 *   invariants  1. the result has the same bits as pd_update over the same elements in memory
 *               2. a failed update leaves the previous generation unchanged and current
 *               3. boxes of less than PD_SHARD_BLOCK_BYTES are resident and are written when a generation is finished
 *               4. 12 bytes read and 12 written an element (8 and 8 with moments in bf16); checksums and tables are under
 *                  0.1% on top
 *   memory      the ring's buffers; resident boxes, twice; two writers (8 bytes a block and metadata pages each):
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
    struct pd_store *store; /* keeps generations in its pool; NULL: files of their own in `directory` */
    const char *directory;
    const struct pd_tensor_table *tensors;
    /* (box_count) of this rank's shard, all three kinds: pd_layout_shard_boxes */
    const struct pd_shard_box *boxes;
    uint32_t box_count, rank;
    struct pd_thread_pool *pool;
    enum pd_isa isa;
    void *buffers; /* (buffer_bytes) of the ring, aligned to PD_VFS_ALIGN; at least PD_OPTIMIZER_STORE_BUFFERS_MIN */
    uint64_t buffer_bytes;
    /* (kept_bytes, aligned to PD_VFS_ALIGN) keeps some state in memory as well as in its files: only the first update
     * reads it, every update writes it. NULL: none */
    void *kept;
    uint64_t kept_bytes;
};
#define PD_OPTIMIZER_STORE_BUFFERS_MIN (UINT64_C(4) << 20)
#define PD_OPTIMIZER_STORE_BUFFERS_FAST (UINT64_C(192) << 20)

/* All pointers in `options` are borrowed for its life. */
PD_MUST_USE pd_status pd_optimizer_store_new(const struct pd_optimizer_store_options *options,
                                             struct pd_optimizer_store **ret_store, struct pd_error *err);
void pd_optimizer_store_free(struct pd_optimizer_store *store);
/* Returns the file size of one generation, for plans. Computes the file's metadata once. */
PD_MUST_USE pd_status pd_optimizer_store_plan(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                              uint32_t box_count, uint64_t *ret_file_bytes, struct pd_error *err);
/* Upper bound on the heap that new takes beyond the ring's buffers (new checks it): a sum over boxes. */
uint64_t pd_optimizer_store_most_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                       uint32_t box_count, uint64_t buffer_bytes);
/* Returns how many bytes of `budget` a store over these boxes can use as `kept`, and so need not read. */
PD_MUST_USE pd_status pd_optimizer_store_kept_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                                    uint32_t box_count, uint64_t budget, uint64_t *ret_bytes,
                                                    struct pd_error *err);
/* File size of one generation. */
uint64_t pd_optimizer_store_file_bytes(const struct pd_optimizer_store *store);

/* Writes the first generation, or replaces all: begin, put every element of every box once, end. `box` indexes
 * options.boxes. Put ranges of a box in ascending order and, except for its last, in multiples of a block.
 *   data (elements) fp32, or bf16 if the box's kind is stored so */
PD_MUST_USE pd_status pd_optimizer_store_begin(struct pd_optimizer_store *store, const struct pd_identity *identity,
                                               struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_store_put(struct pd_optimizer_store *store, uint32_t box, uint64_t first_element,
                                             const void *data, uint64_t elements, struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_store_end(struct pd_optimizer_store *store, struct pd_error *err);

/* Supplies an update. meet returns, for elements [first, first + n) of a `param` box, the summed gradient and the buffer
 * for the new parameter rounded to copy_dtype (NULL: none). It is called once for every element, in the caller's thread,
 * in the order of tensors, and not at all without an update. The store uses both buffers until it meets a range in
 * another extent; with by_unit, in another pipeline unit at the latest. */
struct pd_optimizer_store_step {
    struct pd_identity identity;         /* of the new generation */
    const struct pd_update_step *update; /* NULL: no update; keep the state under a new identity (a skipped step) */
    enum pd_dtype copy_dtype;
    void *context;
    bool by_unit; /* an extent holds parts of one pipeline unit only */
    pd_status (*meet)(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient, void **ret_copy,
                      struct pd_error *err);
    /* Set both for gradients that must be fetched, else NULL. expect announces a part that will be met, in that order,
     * while the previous extent is in work; `begins` an extent. left: everything met since the last call is updated.
     * Resident boxes are not expected, and left one by one. */
    pd_status (*expect)(void *context, uint32_t box, uint64_t first, uint64_t n, bool begins, struct pd_error *err);
    pd_status (*left)(void *context, struct pd_error *err);
};
/* Most elements of an extent, each part rounded up to pages of a kind. */
uint64_t pd_optimizer_store_extent_elements(uint64_t buffer_bytes, enum pd_dtype moments);
PD_MUST_USE pd_status pd_optimizer_store_update(struct pd_optimizer_store *store, const struct pd_optimizer_store_step *step,
                                                struct pd_ring_report *ret_report, struct pd_error *err);
/* The same in two calls, so that reads start while the factors are still being computed: begin copies the step except
 * `update`, which end takes. Call nothing else of the store in between. After a successful begin call end or abandon,
 * which keeps the state and leaves nothing in flight. abandon without a begin is fine. */
PD_MUST_USE pd_status pd_optimizer_store_update_begin(struct pd_optimizer_store *store,
                                                      const struct pd_optimizer_store_step *step, struct pd_error *err);
PD_MUST_USE pd_status pd_optimizer_store_update_end(struct pd_optimizer_store *store, const struct pd_update_step *update,
                                                    struct pd_ring_report *ret_report, struct pd_error *err);
void pd_optimizer_store_update_abandon(struct pd_optimizer_store *store);

/* Identity of the current generation. */
const struct pd_identity *pd_optimizer_store_identity(const struct pd_optimizer_store *store);
const char *pd_optimizer_store_path(const struct pd_optimizer_store *store); /* of the current generation's file */
/* Writes what the current generation's file still lacks, except metadata and tables. Once: later calls return the same
 * result. A failure makes the file useless for checkpoints; training goes on. */
PD_MUST_USE pd_status pd_optimizer_store_complete(struct pd_optimizer_store *store, struct pd_error *err);
/* Completes that file: metadata, tables, fdatasync; once, as above. Pass *ret_slot to pd_store_begin_generation. After
 * pd_optimizer_store_complete it may run in another thread, while nobody else calls this store. */
PD_MUST_USE pd_status pd_optimizer_store_finish(struct pd_optimizer_store *store, struct pd_shard_summary *ret_summary,
                                                uint32_t *ret_slot, struct pd_error *err);
