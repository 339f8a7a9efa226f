/* A rank's scratch files: what offload.parameters, gradients and activations put on a drive during a step.
 *
 * They are in the pool of the first tier's store, unnamed (offload/spill.h): the next launch reclaims what a killed process
 * leaves, and the drive that holds the state holds them too. On a GPU, data that these keys put on cpu is in host memory
 * instead of files.
 *   threads  one caller
 */
#pragma once

#include "ckpt/store/store.h"
#include "trainer/engine/engine.h"

struct pd_scratch;

/* Creates the files the configuration asks for and attaches them to the engine. Borrows all until close detaches.
 *   errors  PD_NO_SPACE */
PD_MUST_USE pd_status pd_scratch_open(struct pd_engine *engine, struct pd_vfs *vfs, struct pd_store *store,
                                      struct pd_scratch **ret_scratch, struct pd_error *err);
void pd_scratch_close(struct pd_scratch *scratch); /* NULL is fine */

/* On a GPU: allocates the pinned host memory that replaces files, or that data passes through on the way to them. */
PD_MUST_USE pd_status pd_scratch_take(struct pd_engine *engine, struct pd_arena *arena, struct pd_error *err);
/* Computes the heap and file bytes for an engine on any arena. Each heap part is in whole pages, so that plans may add
 * parts. */
PD_MUST_USE pd_status pd_scratch_plan(const struct pd_engine *engine, uint64_t *ret_heap_bytes, uint64_t *ret_file_bytes,
                                      struct pd_error *err);
