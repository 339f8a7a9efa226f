/* A shard once more, compressed as another tier wants it: same boxes, same identity, same checksums of blocks.
 *   threads  one caller a copy
 *   memory   the request's buffers, here at least 8 MiB; tables of both files while it runs; zstd's for each thread */
#pragma once

#include "ckpt/shard/copy.h"

/* As pd_shard_copy_with; what a commit record says of `to` is *ret_summary, host as in request->expect. Copies byte for byte
 * where `codec` is NULL or none, and where the source is compressed already. Otherwise every block is verified when it is
 * read, and the cap counts bytes before compression.
 *   errors   as pd_shard_copy_with */
PD_MUST_USE pd_status pd_shard_transcode(struct pd_vfs *vfs, const struct pd_shard_copy *request,
                                         const struct pd_shard_codec *codec, struct pd_shard_summary *ret_summary,
                                         struct pd_error *err);
