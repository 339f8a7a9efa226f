/* Copies a shard and compresses it as another tier requires: same boxes, identity and block checksums.
 *   threads  one caller a copy
 *   memory   the request's buffers, here at least 8 MiB; tables of both files while it runs; zstd's for each thread */
#pragma once

#include "ckpt/shard/copy.h"

/* As pd_shard_copy_with. *ret_summary is the commit record's row of `to`, host as in request->expect. Copies byte for
 * byte if `codec` is NULL or none, or the source is already compressed. Otherwise it verifies every block it reads, and
 * the bandwidth cap counts bytes before compression.
 *   errors   as pd_shard_copy_with */
PD_MUST_USE pd_status pd_shard_transcode(struct pd_vfs *vfs, const struct pd_shard_copy *request,
                                         const struct pd_shard_codec *codec, struct pd_shard_summary *ret_summary,
                                         struct pd_error *err);
