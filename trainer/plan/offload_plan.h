/* What a rank puts on drives, and what a step transfers: computed before anything exists.
 *
 *   state        24 bytes per streamed element (16 with moments in bf16): master and both moments, read and written; half
 *                for elements that the budget also keeps in memory. Boxes under a checksum block stay in memory and are
 *                written at a checkpoint
 *   parameters   working copies of blocks: written once by the update, read once per pass (two passes a step breadth first,
 *                else two a micro-batch), except the two blocks still there when passes turn
 *   gradients    written and read once, except two blocks that stay until the update
 *   activations  written and read once, for every block and micro-batch
 *
 * Copies, sums and activations kept in memory by a budget are not transferred. On a GPU, data on drives or on the host (cpu)
 * crosses the bus; of an optimizer's state only gradients and new copies. */
#pragma once

#include "trainer/engine/engine.h"

struct pd_offload_plan {
    uint64_t generation_bytes; /* one file of this rank's optimizer state */
    uint32_t generations;      /* number of such files if the file system has links; one more if not */
    uint64_t scratch_bytes;
    uint64_t nvme_bytes;                                                             /* total */
    uint64_t state_traffic, parameter_traffic, gradient_traffic, activation_traffic; /* per step */
    uint64_t step_bytes;                                                             /* total per step */
    uint64_t bus_in_bytes, bus_out_bytes; /* per step, into and out of a GPU, spans in whole pages; without saves */
};

/* Whether any data of a rank is placed off its compute device. */
bool pd_config_offloads(const struct pd_config *config, bool is_gpu);
/* All zero if nothing is offloaded. Computes a file's metadata once. */
PD_MUST_USE pd_status pd_offload_plan_of(const struct pd_engine_options *options, struct pd_offload_plan *ret_plan,
                                         struct pd_error *err);

/* Memory of a worker process outside its ranks' arenas: program and libraries, stacks, tables, HDF5's leftovers on the heap.
 * Measured (trainer/plan/README.md). */
uint64_t pd_process_bytes(const struct pd_model *model, uint32_t threads);
