/* The disk without any of our code between: threads that call pwrite and pread on a direct file, the simplest program that
 * keeps several transfers in flight. The ceiling of `bench io`. threads  one caller */
#ifndef PD_TOOLS_BENCH_BARE_H
#define PD_TOOLS_BENCH_BARE_H

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct pd_bare;

/* `depth` threads, each with a buffer of `block_bytes` that is touched here. */
PD_MUST_USE pd_status pd_bare_new(uint64_t block_bytes, uint32_t depth, struct pd_bare **ret_bare, struct pd_error *err);
void pd_bare_free(struct pd_bare *bare);

/* Seconds from open to the end of fdatasync and close. `bytes` is a multiple of 4096. fresh: a file that was there is
 * removed before the clock starts, the new one is preallocated; otherwise the file that is there is overwritten. */
PD_MUST_USE pd_status pd_bare_write(struct pd_bare *bare, const char *path, uint64_t bytes, bool fresh, double *ret_seconds,
                                    struct pd_error *err);
PD_MUST_USE pd_status pd_bare_read(struct pd_bare *bare, const char *path, uint64_t bytes, double *ret_seconds,
                                   struct pd_error *err);

#endif
