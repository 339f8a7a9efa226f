/* Tests that a bucket supports what checkpoints need, before any are saved there. */
#pragma once

#include "ckpt/objects/bucket.h"

struct pd_bucket_rates {
    double upload_bytes_per_second, download_bytes_per_second;
};

/* Lists, puts, reads, begins and aborts an upload, and deletes, all under `prefix`. Eight threads put the same name at once,
 * and exactly one must succeed. Leaves nothing behind.
 *   ret_rates  measured with `rate_bytes` each way, four requests at a time; NULL: not measured
 *   errors     PD_UNSUPPORTED: conditional PUTs do not exclude each other; others: of the first pd_bucket_* call that
 *              failed, whose message names the action to allow */
PD_MUST_USE pd_status pd_bucket_probe(struct pd_bucket *bucket, const char *prefix, uint64_t rate_bytes,
                                      struct pd_bucket_rates *ret_rates, struct pd_error *err);
