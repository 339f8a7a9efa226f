#include "ckpt/shard/staging.h"

#include "ckpt/base/stream_copy.h"

#include <string.h>

void pd_shard_staging_init(struct pd_shard_staging *staging, struct pd_file *file, struct pd_queue *queue, void *buffers,
                           uint64_t buffer_bytes, uint64_t slot_bytes)
{
    const uint64_t most = buffer_bytes / slot_bytes;
    const uint32_t count = most < PD_STAGING_SLOTS_MAX ? (uint32_t)most : PD_STAGING_SLOTS_MAX;
    staging->file = file;
    staging->slot_bytes = slot_bytes;
    staging->current = NULL;
    staging->offset = staging->bytes = 0;
    pd_transfer_ring_init(&staging->ring, queue, staging->slots, count, buffers, slot_bytes);
}

bool pd_shard_staging_is_in_memory(const struct pd_shard_staging *staging)
{
    return !staging->ring.queue;
}

static pd_status staging_send(struct pd_shard_staging *s, struct pd_transfer_slot *slot, const void *data, uint64_t offset,
                              uint64_t bytes, struct pd_error *err)
{
    if (pd_shard_staging_is_in_memory(s)) {
        pd_status st = pd_file_write(s->file, offset, data, bytes, err);
        pd_transfer_ring_release(&s->ring, slot);
        return st;
    }
    const struct pd_transfer transfer = {.file = s->file,
                                         .data = (void *)(uintptr_t)data,
                                         .offset = offset,
                                         .bytes = bytes,
                                         .is_write = true,
                                         .what = "write of a shard"};
    return pd_transfer_ring_submit(&s->ring, slot, &transfer, err);
}

static pd_status staging_flush(struct pd_shard_staging *s, struct pd_error *err)
{
    struct pd_transfer_slot *slot = s->current;
    s->current = NULL;
    return slot ? staging_send(s, slot, slot->buffer, s->offset, s->bytes, err) : PD_OK;
}

pd_status pd_shard_staging_reserve(struct pd_shard_staging *s, uint64_t offset, uint64_t wanted, unsigned char **ret_space,
                                   uint64_t *ret_bytes, struct pd_error *err)
{
    const bool follows = s->current && s->offset + s->bytes == offset && s->bytes < s->slot_bytes;
    if (!follows) {
        PD_TRY(staging_flush(s, err));
        PD_TRY(pd_transfer_ring_take_written(&s->ring, &s->current, err));
        s->offset = offset;
        s->bytes = 0;
    }
    const uint64_t space = s->slot_bytes - s->bytes;
    *ret_space = s->current->buffer + s->bytes;
    *ret_bytes = wanted < space ? wanted : space;
    s->bytes += *ret_bytes;
    return PD_OK;
}

pd_status pd_shard_staging_put(struct pd_shard_staging *s, uint64_t offset, const void *data, uint64_t bytes,
                               struct pd_error *err)
{
    for (uint64_t done = 0; done < bytes;) {
        unsigned char *space = NULL;
        uint64_t piece = 0;
        PD_TRY(pd_shard_staging_reserve(s, offset + done, bytes - done, &space, &piece, err));
        if (data)
            pd_stream_copy(space, (const char *)data + done, piece);
        else
            memset(space, 0, piece);
        done += piece;
    }
    return PD_OK;
}

pd_status pd_shard_staging_write(struct pd_shard_staging *s, uint64_t offset, const void *data, uint64_t bytes,
                                 struct pd_error *err)
{
    struct pd_transfer_slot *slot = NULL;
    PD_TRY(staging_flush(s, err));
    PD_TRY(pd_transfer_ring_take_written(&s->ring, &slot, err));
    return staging_send(s, slot, data, offset, bytes, err);
}

pd_status pd_shard_staging_finish(struct pd_shard_staging *s, pd_status st, struct pd_error *err)
{
    if (!st) st = staging_flush(s, err);
    s->current = NULL;
    return pd_shard_staging_is_in_memory(s) ? st : pd_transfer_ring_drain(&s->ring, st, err);
}
