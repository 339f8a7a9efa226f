/* What a bucket has to do for checkpoints, tried before they are trusted to it. */
#pragma once

#include "ckpt/objects/bucket.h"

struct pd_bucket_rates {
    double upload_bytes_per_second, download_bytes_per_second;
};

/* Lists, puts, reads, begins and aborts an upload, and deletes, all under `prefix`; and puts one name from eight threads at
 * once, which must go well for exactly one of them. Nothing is left behind.
 *   ret_rates  of `rate_bytes` up and down, four requests at a time; NULL: not measured
 *   errors     PD_UNSUPPORTED: conditional puts do not exclude each other there; else as pd_bucket_*, for the first call that
 *              fails, with the action that has to be allowed */
PD_MUST_USE pd_status pd_bucket_probe(struct pd_bucket *bucket, const char *prefix, uint64_t rate_bytes,
                                      struct pd_bucket_rates *ret_rates, struct pd_error *err);
