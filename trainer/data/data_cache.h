/* Copies of data files that are in a bucket (s3://bucket/key), in a directory of this host.
 *
 * The order of samples is a permutation of all files together, and weights spread every file over the run, so training reads
 * from all files from the first step on. All copies are therefore made before it.
 *
 *   DIR/lock              held (flock) by the process that fetches or evicts; the others of the host wait for it
 *   DIR/URL-VERSION/      a whole copy: the file, and its .idx and .tokenizer.json if the bucket has them. VERSION is a
 *                         digest of names, sizes and ETags, so a replaced object is another copy
 *   DIR/fetching/         a copy in the making; the next process removes what a killed one left
 *   DIR/use-XXXXXX        the copies that one process uses; it holds a flock on it until it ends
 *
 *   invariants  1. a copy gets its name after all its files are synced, and is used only with the sizes in the bucket
 *               2. nothing that a living process uses is evicted; else the copy that was used longest ago goes first
 *   threads     any */
#pragma once

#include "ckpt/base/stop.h"

#include <stdint.h>

#define PD_DATA_CACHE_BYTES (UINT64_C(100) << 30)

struct pd_data_cache;

struct pd_data_cache_options {
    const char *dir; /* "" or NULL: perdure below XDG_CACHE_HOME or ~/.cache */
    uint64_t bytes;  /* limit of all copies in `dir` */
    pd_should_stop should_stop;
};

/* Makes copies of what of `paths` (count) is in a bucket. A path on disk stands for itself. If the bucket does not answer
 * and there are copies from before, warns and takes those.
 *   errors  PD_INVALID: the copies are larger than the limit or the disk, or other runs use too much of it; the message
 *           has the numbers. PD_NOT_FOUND: no such object. Errors of ckpt/objects/download.h */
PD_MUST_USE pd_status pd_data_cache_open(const struct pd_data_cache_options *options, const char *const *paths,
                                         uint32_t count, struct pd_data_cache **ret_cache, struct pd_error *err);
const char *pd_data_cache_path(const struct pd_data_cache *cache, uint32_t i); /* borrowed until close */
void pd_data_cache_close(struct pd_data_cache *cache); /* its copies may be evicted from now on; NULL is fine */

/* For one file, with the defaults. *ret_path is borrowed from the cache. */
PD_MUST_USE pd_status pd_data_cache_open_one(const char *path, struct pd_data_cache **ret_cache, const char **ret_path,
                                             struct pd_error *err);

/* The same checks of what is in the bucket, without a copy. PD_OK if the bucket does not answer. */
PD_MUST_USE pd_status pd_data_cache_check(const struct pd_data_cache_options *options, const char *const *paths,
                                          uint32_t count, struct pd_error *err);

bool pd_data_is_remote(const char *path);
struct pd_remote_list { /* zeroed: empty */
    char **urls;        /* (count), owned, by name */
    uint64_t *bytes;    /* (count) */
    uint32_t count;
};
/* Appends the objects that `url` stands for: of a glob its matches; of a prefix that ends in a slash, or is the whole bucket,
 * those directly below; else `url` itself, without asking. Leaves out empty and hidden ones and what belongs to a token file.
 * A path on disk stands for itself.
 *   errors  PD_NOT_FOUND: none; errors of pd_bucket_list */
PD_MUST_USE pd_status pd_data_cache_list(const char *url, struct pd_remote_list *list, struct pd_error *err);
void pd_remote_list_deinit(struct pd_remote_list *list);
