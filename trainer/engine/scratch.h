/* Scratch of a rank: files for what offload.parameters, gradients and activations put on a drive while a step runs.
 *
 * They lie in the pool of the first tier's store (without names: offload/spill.h), so that what a killed process leaves is
 * met by the next launch, and the drive that holds the state holds them too. On a GPU what these keys put on cpu lies in
 * memory of the host in place of files.
 *   threads  one caller
 */
#pragma once

#include "ckpt/store/store.h"
#include "trainer/engine/engine.h"

struct pd_scratch;

/* Makes what the configuration asks for and attaches it to the engine. All is borrowed until close, which detaches it.
 *   errors  PD_NO_SPACE */
PD_MUST_USE pd_status pd_scratch_open(struct pd_engine *engine, struct pd_vfs *vfs, struct pd_store *store,
                                      struct pd_scratch **ret_scratch, struct pd_error *err);
void pd_scratch_close(struct pd_scratch *scratch); /* NULL is fine */

/* On a GPU: pinned memory of the host that takes the place of files, or that spans pass on the way to them. */
PD_MUST_USE pd_status pd_scratch_take(struct pd_engine *engine, struct pd_arena *arena, struct pd_error *err);
/* By arithmetic, of an engine on any arena: heap, each part in whole pages so that plans may add parts, and bytes of the
 * files. */
PD_MUST_USE pd_status pd_scratch_plan(const struct pd_engine *engine, uint64_t *ret_heap_bytes, uint64_t *ret_file_bytes,
                                      struct pd_error *err);
