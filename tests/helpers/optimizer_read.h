/* The current generation of an optimizer store, read through and verified, wherever it is: also where its files can be no
 * checkpoint any more. */
#pragma once

#include "ckpt/base/digest.h"
#include "offload/optimizer_pass.h"

typedef pd_status optimizer_visit(void *context, uint32_t box, uint64_t first, const void *data, uint64_t n, uint64_t bytes,
                                  struct pd_error *err);

/* A block of a box in its file, into `data`. */
static inline pd_status optimizer_read_block(const struct pd_optimizer_store *store, const struct pd_optimizer_generation *g,
                                             uint32_t box, uint64_t block, void *data, uint64_t bytes, struct pd_error *err)
{
    struct pd_file *from;
    const struct pd_optimizer_file *file = &g->file;
    const uint64_t offset = pd_shard_writer_box_offset(file->writer, box) + block * PD_SHARD_BLOCK_BYTES;
    PD_TRY(pd_file_open(store->options.vfs, file->path, PD_OPEN_READ, &from, err));
    pd_status st = pd_file_read(from, offset, data, bytes, err);
    if (!st) st = pd_shard_writer_verify_block(file->writer, box, block, data, bytes, err);
    pd_file_close_readonly(from);
    return st;
}

static inline pd_status optimizer_read(const struct pd_optimizer_store *store, void *context, optimizer_visit *visit,
                                       struct pd_error *err)
{
    const struct pd_optimizer_generation *g = &store->generations[store->current];
    _Alignas(64) char data[PD_SHARD_BLOCK_BYTES];
    PD_CHECK(store->has_current && !store->is_filling && !store->is_updating);
    for (uint32_t box = 0; box < store->options.box_count; box++) {
        const uint64_t elements = pd_box_elements(&store->options.boxes[box].box),
                       element_bytes =
                           pd_optimizer_element_bytes(store->groups.moments, (int)store->options.boxes[box].kind),
                       per_block = PD_SHARD_BLOCK_BYTES / element_bytes;
        const bool is_in_file = store->resident_at[box] == PD_OPTIMIZER_IN_FILE;
        const char *resident = is_in_file ? NULL : pd_optimizer_resident(store, g, box);
        for (uint64_t first = 0; first < elements; first += per_block) {
            const uint64_t n = elements - first < per_block ? elements - first : per_block;
            const uint64_t bytes = n * element_bytes;
            if (is_in_file) PD_TRY(optimizer_read_block(store, g, box, first / per_block, data, bytes, err));
            PD_TRY(visit(context, box, first, is_in_file ? data : resident + first * element_bytes, n, bytes, err));
        }
    }
    return PD_OK;
}

static inline pd_status optimizer_add_digest(void *context, uint32_t box, uint64_t first, const void *data, uint64_t n,
                                             uint64_t bytes, struct pd_error *err)
{
    uint64_t *digest = context;
    (void)n, (void)err;
    *digest ^= pd_digest64(data, bytes, first * 1000003u + box);
    return PD_OK;
}

/* Of all of it, wherever it lies. */
static inline pd_status optimizer_digest(const struct pd_optimizer_store *store, uint64_t *ret_digest, struct pd_error *err)
{
    *ret_digest = 0;
    return optimizer_read(store, ret_digest, optimizer_add_digest, err);
}
