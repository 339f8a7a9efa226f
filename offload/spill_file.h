/* Spans of the host's memory that leave for a file and come back; offload/spill.h says what holds. Other callers use that.
 *
 *   threads  one caller; blocks are hashed by the pool
 */
#pragma once

#include "offload/spill.h"

struct pd_spill_file;

/* options->device is not looked at. */
PD_MUST_USE pd_status pd_spill_file_new(const struct pd_spill_options *options, struct pd_spill_file **ret_spill,
                                        struct pd_error *err);
void pd_spill_file_free(struct pd_spill_file *spill); /* waits for what is in flight; NULL is fine */
uint64_t pd_spill_file_heap_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes);

PD_MUST_USE pd_status pd_spill_file_write(struct pd_spill_file *spill, uint32_t span, void *data, struct pd_error *err);
PD_MUST_USE pd_status pd_spill_file_read(struct pd_spill_file *spill, uint32_t span, void *data, struct pd_error *err);
PD_MUST_USE pd_status pd_spill_file_wait(struct pd_spill_file *spill, uint32_t span, struct pd_error *err);
void pd_spill_file_sync(struct pd_spill_file *spill);
