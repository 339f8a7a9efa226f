/* The device of a rank: the CPU, or a GPU with its streams.
 *
 *   compute       every operation of the math table, in the order of calls
 *   parameters    in and out: blocks whose working copies are off the device (trainer/engine/scratch.c)
 *   gradients     likewise sums; activations likewise
 *   optimizer     gradients out to an update on the host, updated copies in (offload/staged_copy.h)
 *   saves         the state for a checkpoint
 *   gathers       copies of the parameter communicator, if it cannot reach device memory; exchanges: of the others
 *
 * Each stream except compute is created on first use, so no stream waits for unrelated work. Events order the streams.
 *
 *   threads  the rank's thread opens, enters and closes the device and requests streams; each stream belongs to the user
 *            named above
 */
#pragma once

#include "ckpt/base/arena.h"
#include "offload/device_spans.h"
#include "trainer/comm/comm.h"
#include "trainer/config/config.h"

enum pd_rank_stream {
    PD_STREAM_PARAMETERS_IN,
    PD_STREAM_PARAMETERS_OUT,
    PD_STREAM_GRADIENTS_IN,
    PD_STREAM_GRADIENTS_OUT,
    PD_STREAM_ACTIVATIONS_IN,
    PD_STREAM_ACTIVATIONS_OUT,
    PD_STREAM_OPTIMIZER_IN,
    PD_STREAM_OPTIMIZER_OUT,
    PD_STREAM_SAVES,
    PD_STREAM_GATHERS,
    PD_STREAM_EXCHANGES,
    PD_STREAM_COUNT
};

struct pd_rank_device;

/* How communicators copy to and from the device. */
struct pd_rank_way {
    struct pd_rank_device *device;
    struct pd_stream *stream;
    const char *lane, *name;
};

struct pd_rank_device {
    struct pd_dev *dev; /* NULL: the CPU; all other fields are NULL too */
    struct pd_stream *compute;
    struct pd_stream *streams[PD_STREAM_COUNT]; /* NULL: not requested yet */
    struct pd_device_spans *spans;              /* records where time goes; NULL: not recorded */
    struct pd_rank_way gathers, exchanges;
    _Atomic bool has_refused; /* pinning exchange buffers failed; logged once */
};

/* rank_here: the rank's index on its host. Ranks take the host's GPUs in turn, except those whose identity is in `left_out`
 * (comma-separated; NULL: none), unless it names all of them.
 *   errors  PD_UNSUPPORTED: a GPU was requested and this process can open none; the message says why */
PD_MUST_USE pd_status pd_rank_device_open(enum pd_device_choice choice, uint32_t rank_here, const char *left_out,
                                          struct pd_rank_device *ret_device, struct pd_error *err);
/* Whether `ranks_here` ranks get as many GPUs as now if this one is left out too, or this is the only one. */
bool pd_rank_device_is_spare(const struct pd_rank_device *device, uint32_t ranks_here, const char *left_out);
/* Borrowed; repeated calls return the same stream. */
PD_MUST_USE pd_status pd_rank_device_stream(struct pd_rank_device *device, enum pd_rank_stream which,
                                            struct pd_stream **ret_stream, struct pd_error *err);
/* Call when the rank no longer uses it. */
void pd_rank_device_close(struct pd_rank_device *device);

/* Starts recording spans, for traces and benchmarks. pd_engine_step collects them. */
PD_MUST_USE pd_status pd_rank_device_watch(struct pd_rank_device *device, struct pd_error *err);

/* The source of the rank's arenas: device memory and pinned host memory. Borrows the device. */
struct pd_arena_source pd_rank_device_source(struct pd_rank_device *device);

/* Fills `numbers` with numbers of either sign in [0.5, 1), the same every 1 MiB, and waits. Operands of one value cost a GPU
 * less power, so that products would look faster than they are in a step. */
PD_MUST_USE pd_status pd_rank_device_randomize(struct pd_rank_device *device, struct pd_span numbers, enum pd_dtype dtype,
                                               struct pd_error *err);

/* Waits until all streams are idle or failed. Call before freeing memory that they use, on every path. */
void pd_rank_device_quiet(struct pd_rank_device *device);
/* Lets a communicator that knows no device memory reach it, through PD_STREAM_GATHERS or PD_STREAM_EXCHANGES. Borrows the
 * device. */
PD_MUST_USE pd_status pd_rank_device_memory(struct pd_rank_device *device, enum pd_rank_stream which,
                                            struct pd_comm_memory *ret_memory, struct pd_error *err);

/* Adds to a final PD_DEVICE_LOST error which GPU it was and where to look. Returns the status. */
pd_status pd_rank_device_explain_lost(const struct pd_rank_device *device, pd_status status, struct pd_error *err);

/* Waits until compute is idle. */
PD_MUST_USE pd_status pd_rank_device_sync(struct pd_rank_device *device, struct pd_error *err);
