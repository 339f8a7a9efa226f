/* Boxes are copied by the scan that verifies them; what lies between them goes across as it is, and is verified where it
 * arrived, by opening the copy. */
#include "ckpt/shard_copy.h"

#include "ckpt/shard_open.h"

#include <string.h>

struct copying {
    const struct pd_shard *shard;
    struct pd_file *to;
    unsigned char *bounce; /* (PD_SHARD_BLOCK_BYTES) aligned: the last block of a box with its padding */
};

static pd_status copy_block(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes,
                            pd_status verified, const struct pd_error *damage, struct pd_error *err)
{
    const struct copying *c = context;
    const struct pd_shard_place *place = &c->shard->contents.places[box];
    if (verified) {
        if (err) *err = *damage;
        return verified;
    }
    if (place->bytes < PD_SHARD_PAGE_BYTES) return PD_OK; /* lies in a shared page */
    uint64_t rest = bytes % PD_SHARD_PAGE_BYTES, span = rest ? bytes - rest + PD_SHARD_PAGE_BYTES : bytes;
    if (rest) {
        memcpy(c->bounce, data, bytes);
        memset(c->bounce + bytes, 0, span - bytes);
        data = c->bounce;
    }
    return pd_file_write(c->to, place->offset + block * PD_SHARD_BLOCK_BYTES, data, span, err);
}

static pd_status copy_between(const struct copying *c, void *buffers, uint64_t buffer_bytes, struct pd_error *err)
{
    uint64_t piece_max = buffer_bytes / PD_SHARD_PAGE_BYTES * PD_SHARD_PAGE_BYTES;
    for (uint32_t i = 0; i < c->shard->map.segment_count; i++) {
        const struct pd_shard_segment *segment = &c->shard->map.segments[i];
        if (segment->type == PD_SEGMENT_BOX) continue;
        for (uint64_t done = 0; done < segment->bytes;) {
            uint64_t left = segment->bytes - done, piece = left < piece_max ? left : piece_max;
            PD_TRY(pd_file_read(c->shard->file, segment->offset + done, buffers, piece, err));
            PD_TRY(pd_file_write(c->to, segment->offset + done, buffers, piece, err));
            done += piece;
        }
    }
    return PD_OK;
}

/* Space at once where the file system can, so that a full disk shows before anything is copied. */
static pd_status make_room(struct pd_file *to, uint64_t bytes, struct pd_error *err)
{
    struct pd_stat stat;
    PD_TRY(pd_file_stat(to, &stat, err));
    if (stat.bytes > bytes) return pd_file_truncate(to, bytes, err);
    pd_status st = stat.bytes < bytes ? pd_file_preallocate(to, bytes, err) : PD_OK;
    return st == PD_UNSUPPORTED ? PD_OK : st;
}

static pd_status copy_contents(struct pd_shard *shard, struct pd_file *to, unsigned char *buffers, uint64_t buffer_bytes,
                               struct pd_error *err)
{
    uint64_t scan_bytes = buffer_bytes - PD_SHARD_BLOCK_BYTES;
    struct copying copying = {.shard = shard, .to = to, .bounce = buffers + scan_bytes};
    const struct pd_shard_visitor visitor = {&copying, copy_block};
    PD_TRY(make_room(to, shard->file_bytes, err));
    PD_TRY(pd_shard_scan(shard, buffers, scan_bytes, &visitor, err));
    PD_TRY(copy_between(&copying, buffers, scan_bytes, err));
    return pd_file_sync(to, err);
}

pd_status pd_shard_copy(struct pd_door *door, const char *from, const char *to, const struct pd_identity *identity,
                        void *buffers, uint64_t buffer_bytes, struct pd_error *err)
{
    PD_CHECK(buffer_bytes >= (1u << 20) && buffer_bytes % PD_DOOR_ALIGN == 0 && (uintptr_t)buffers % PD_DOOR_ALIGN == 0);
    struct pd_shard *shard = NULL, *copy = NULL;
    struct pd_file *file = NULL;
    PD_TRY(pd_shard_open(door, from, identity, NULL, &shard, err));
    pd_status st = pd_file_open(door, to, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &file, err);
    if (st == PD_OK) {
        st = copy_contents(shard, file, buffers, buffer_bytes, err);
        pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
        if (st == PD_OK) st = closed;
    }
    pd_shard_close(shard);
    PD_TRY(st);
    PD_TRY(pd_shard_open(door, to, identity, NULL, &copy, err));
    pd_shard_close(copy);
    return PD_OK;
}
