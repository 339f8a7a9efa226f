#include "ckpt/shard/transcode.h"

#include "ckpt/base/clock.h"
#include "ckpt/shard/compress.h"

#define NAP_NS UINT64_C(20000000)

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

static bool must_stop(const struct transcode *r)
{
    return r->request->stop && atomic_load_explicit(r->request->stop, memory_order_relaxed);
}

static pd_status pace(void *context, uint64_t bytes, struct pd_error *err)
{
    struct transcode *r = context;
    const double rate = (double)r->request->bytes_per_second;
    while (rate > 0 && !must_stop(r)) {
        const double left = (double)r->begun_bytes / rate - pd_clock_seconds_since(NULL, r->start_ns);
        if (left <= 0) break;
        pd_clock_sleep_ns(NULL, left * 1e9 < (double)NAP_NS ? (uint64_t)(left * 1e9) + 1 : NAP_NS);
    }
    r->begun_bytes += bytes;
    if (must_stop(r)) PD_FAIL(err, PD_STOPPED, "copying %s was given up", r->request->from);
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
    PD_TRY(pd_shard_writer_new_compressed(vfs, pd_shard_tensors(r->source), pd_shard_boxes(r->source),
                                          pd_shard_box_count(r->source), request->buffers, request->buffer_bytes, codec,
                                          &writer, err));
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
