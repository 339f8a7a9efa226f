#include "ckpt/shard/transcode.h"

#include "ckpt/base/clock.h"
#include "ckpt/shard/compress.h"

struct transcode {
    const struct pd_shard_copy *request;
    struct pd_shard *source;
    uint64_t start_ns, begun_bytes;
};

static pd_status read_blocks(void *context, uint32_t box, uint64_t first_block, uint64_t block_count, void *dst,
                             struct pd_error *err)
{
    struct transcode *r = context;
    return pd_shard_read_blocks(r->source, box, first_block, block_count, dst, err);
}

static pd_status pace(void *context, uint64_t bytes, struct pd_error *err)
{
    struct transcode *r = context;
    if (!pd_clock_pace(r->start_ns, r->begun_bytes, r->request->bytes_per_second, r->request->stop))
        PD_FAIL(err, PD_STOPPED, "copying %s was given up", r->request->from);
    r->begun_bytes += bytes;
    return PD_OK;
}

static pd_status compress_into(struct pd_shard_stream *stream, const struct pd_shard_source *source,
                               struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    pd_status st = pd_shard_compress_boxes(stream, NULL, source, err);
    if (!st) return pd_shard_stream_finish(stream, ret_summary, err);
    pd_shard_stream_abort(stream);
    return st;
}

static pd_status write_compressed(struct pd_vfs *vfs, struct transcode *r, const struct pd_shard_codec *codec,
                                  struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    const struct pd_shard_copy *request = r->request;
    const struct pd_shard_source source = {r, read_blocks, pace};
    struct pd_shard_writer *writer = NULL;
    PD_TRY(pd_shard_writer_new(vfs, pd_shard_tensors(r->source), pd_shard_boxes(r->source), pd_shard_box_count(r->source),
                               request->buffers, request->buffer_bytes, codec, &writer, err));
    r->start_ns = pd_clock_monotonic_ns(NULL);
    struct pd_shard_stream *stream = NULL;
    pd_status st = pd_shard_stream_begin(writer, request->to, pd_shard_identity(r->source), pd_shard_writer_rank(r->source),
                                         &stream, err);
    if (!st) st = compress_into(stream, &source, ret_summary, err);
    pd_shard_writer_free(writer);
    return st;
}

pd_status pd_shard_transcode(struct pd_vfs *vfs, const struct pd_shard_copy *request, const struct pd_shard_codec *codec,
                             struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct transcode r = {.request = request};
    struct pd_shard_summary summary;
    PD_TRY(pd_shard_open(vfs, request->from, request->identity, request->expect, &r.source, err));
    pd_shard_summary_of(r.source, &summary);
    const bool as_it_is = !codec || codec->codec == PD_CODEC_NONE || pd_shard_is_compressed(r.source);
    pd_status st = as_it_is ? PD_OK : write_compressed(vfs, &r, codec, &summary, err);
    pd_shard_close(r.source);
    if (!st && as_it_is) st = pd_shard_copy_with(vfs, request, err);
    if (st) return st;
    if (request->expect) summary.host = request->expect->host;
    *ret_summary = summary;
    return PD_OK;
}
