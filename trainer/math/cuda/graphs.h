/* Runs of operations that come again, kept as CUDA graphs: one launch for all of them.
 *
 * A run is known by its key: every address that its operations were given. What was kept under a key is queued again by
 * begin. Under a new key operations are queued as they come; under one that has come once they are recorded, and end keeps
 * them and queues them, unless the key is rare: then they are queued as they come always. A stream that a graph cannot be
 * recorded on, or more than PD_CUDA_GRAPHS_MAX runs: as without graphs. When the device has no memory for another graph,
 * that run and all new ones are queued as they come, and the graphs there are stay.
 *
 *   errors   PD_DEVICE_LOST
 *   threads  one caller; nobody waits for the stream between begin and end */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "ckpt/base/status.h"
#include "trainer/math/operations.h"

#define PD_CUDA_GRAPHS_MAX 4096u

struct pd_cuda_graphs;

struct pd_cuda_graphs_held {
    uint32_t count;
    uint64_t nodes; /* operations of all of them */
    uint64_t bytes; /* of the device that became taken while they were made and first launched */
};

PD_MUST_USE pd_status pd_cuda_graphs_new(void *stream, struct pd_cuda_graphs **ret_graphs, struct pd_error *err);
void pd_cuda_graphs_free(struct pd_cuda_graphs *graphs); /* NULL is fine; the stream has passed them */
PD_MUST_USE pd_status pd_cuda_graphs_begin(struct pd_cuda_graphs *graphs, const struct pd_math_key *key, bool *ret_done,
                                           struct pd_error *err);
/* After a begin that was not done. is_whole false: an operation failed, and nothing that was recorded is kept or queued.
 * *ret_again: there was no memory for the graph, so what was recorded did not happen; the caller queues it once more. */
PD_MUST_USE pd_status pd_cuda_graphs_end(struct pd_cuda_graphs *graphs, bool is_whole, bool *ret_again,
                                         struct pd_error *err);
/* All zero where graphs is NULL. */
struct pd_cuda_graphs_held pd_cuda_graphs_hold(const struct pd_cuda_graphs *graphs);

#ifdef __cplusplus
}
#endif
