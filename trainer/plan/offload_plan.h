/* What a rank puts on drives, and what a step moves to and from them: by arithmetic, before anything exists.
 *
 *   state        24 bytes an element that streams (16 with moments in bf16): master and both, read and written; half of one
 *                that its budget keeps in memory too. Boxes under a checksum block stay in memory and are written when a
 *                checkpoint is
 *   parameters   blocks' working copies: written once by the update; read once a pass (breadth first two passes a step, else two
 *                a micro-batch) but for the two blocks that are still there when passes turn
 *   gradients    written once and read once, but for two blocks that stay until the update
 *   activations  written once and read once, for every block and micro-batch
 *
 * Of copies, sums and activations that a budget keeps in memory nothing moves. On a GPU what is away, on drives or on the
 * host (cpu), crosses the bus, of an optimizer's state the gradients and new copies. */
#pragma once

#include "trainer/engine/engine.h"

struct pd_offload_plan {
    uint64_t generation_bytes; /* one file of optimizer state, of this very rank */
    uint32_t generations;      /* files of it, where the file system has links; one more where it refuses them */
    uint64_t scratch_bytes;
    uint64_t nvme_bytes;                                                             /* all of it */
    uint64_t state_traffic, parameter_traffic, gradient_traffic, activation_traffic; /* of a step */
    uint64_t step_bytes;                                                             /* all of it */
    uint64_t bus_in_bytes, bus_out_bytes; /* of a step, into a GPU and out of it, spans in whole pages; saves apart */
};

/* Something of a rank is elsewhere than where it computes. */
bool pd_config_offloads(const struct pd_config *config, bool is_gpu);
/* All zero where everything is where it is computed with. Computes a file's metadata once. */
PD_MUST_USE pd_status pd_offload_plan_of(const struct pd_engine_options *options, struct pd_offload_plan *ret_plan,
                                         struct pd_error *err);

/* Memory of a worker process beyond the arenas of its ranks: program and libraries, stacks, tables, what HDF5 leaves in the
 * heap. Measured, not counted (trainer/plan/README.md). */
uint64_t pd_process_bytes(const struct pd_model *model, uint32_t threads);
