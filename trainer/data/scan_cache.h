/* What a scan of data files found, kept in a file: one scan a host, and none where the files are what they were. A file is
 * known by device, inode, size, mtime and ctime.
 *   threads  one; processes take turns: who opens it second waits until the first has scanned */
#pragma once

#include "trainer/data/token_file.h"

#define PD_SCAN_CACHE_PREFIX ".data-scan-" /* in run.dir, then the host's name */

struct pd_scan_cache;

/* `path` NULL, or a place where nothing can be written: a cache that knows nothing and keeps nothing. */
struct pd_scan_cache *pd_scan_cache_open(const char *path);
/* From the cache, or by reading the file; arguments as pd_token_file_scan. */
PD_MUST_USE pd_status pd_scan_cache_scan(struct pd_scan_cache *cache, const struct pd_token_file *file, uint32_t vocab,
                                         struct pd_thread_pool *pool, struct pd_token_scan *ret_scan, struct pd_error *err);
/* Keeps what was asked for since the open, and lets the next one in. */
void pd_scan_cache_close(struct pd_scan_cache *cache);
