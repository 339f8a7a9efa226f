/* What a rank computes on: the CPU, or a GPU with its streams.
 *
 *   compute       every operation of the math table, in the order of calls
 *   parameters    in and out, of blocks whose working copies are elsewhere (trainer/engine/scratch.c)
 *   gradients     likewise sums, activations likewise
 *   optimizer     gradients out to an update on the host, and what it made in (offload/crossing.h)
 *   saves         the state for a checkpoint
 *   gathers       what the communicator of parameters moves, where it knows no device memory; exchanges: what others do
 *
 * Each but compute is made when it is first asked for, so that no stream waits behind another's work, and is ordered with
 * the others by events.
 *
 *   threads  opened, entered, asked for streams and closed by the rank's thread; a stream belongs to whoever its line names
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

/* What copies for communicators go by. */
struct pd_rank_way {
    struct pd_rank_device *device;
    struct pd_stream *stream;
    const char *lane, *name;
};

struct pd_rank_device {
    struct pd_dev *dev; /* NULL: the CPU; then all else is NULL too */
    struct pd_stream *compute;
    struct pd_stream *streams[PD_STREAM_COUNT]; /* NULL: nobody asked for it */
    struct pd_device_spans *spans;              /* where its time goes; NULL: nobody asks */
    struct pd_rank_way gathers, exchanges;
    _Atomic bool has_refused; /* to pin what exchanges go through: said once */
};

/* rank_here: the rank's number among those of its host; they take the GPUs in turn, but for those whose identity `left_out` has
 * (words between commas; NULL: none), unless that is all of them.
 *   errors  PD_UNSUPPORTED: a GPU was asked for and this process can open none; the message says why */
PD_MUST_USE pd_status pd_rank_device_open(enum pd_device_choice choice, uint32_t rank_here, const char *left_out,
                                          struct pd_rank_device *ret_device, struct pd_error *err);
/* Whether `ranks_here` ranks find as many GPUs as now when this one is left out as well, or none but this. */
bool pd_rank_device_is_spare(const struct pd_rank_device *device, uint32_t ranks_here, const char *left_out);
/* Borrowed, the same whenever it is asked for. */
PD_MUST_USE pd_status pd_rank_device_stream(struct pd_rank_device *device, enum pd_rank_stream which,
                                            struct pd_stream **ret_stream, struct pd_error *err);
/* Nothing of the rank uses it any more. */
void pd_rank_device_close(struct pd_rank_device *device);

/* From here on spans are noted: for traces and benchmarks. pd_engine_step collects them. */
PD_MUST_USE pd_status pd_rank_device_watch(struct pd_rank_device *device, struct pd_error *err);

/* Memory of its arenas: the device's, and pinned memory of the host. Borrows the device. */
struct pd_arena_source pd_rank_device_source(struct pd_rank_device *device);

/* Returns once all streams have passed what they were given, or failed: before memory that they use is freed, whatever the
 * reason. */
void pd_rank_device_quiet(struct pd_rank_device *device);
/* How a communicator that knows no device memory reaches it, by PD_STREAM_GATHERS or PD_STREAM_EXCHANGES. Borrows the
 * device.
 */
PD_MUST_USE pd_status pd_rank_device_memory(struct pd_rank_device *device, enum pd_rank_stream which,
                                            struct pd_comm_memory *ret_memory, struct pd_error *err);

/* What a rank ends with: of PD_DEVICE_LOST, which GPU that is, and where to look. Returns the status. */
pd_status pd_rank_device_explain_lost(const struct pd_rank_device *device, pd_status status, struct pd_error *err);

/* Returns once everything on compute has happened. */
PD_MUST_USE pd_status pd_rank_device_sync(struct pd_rank_device *device, struct pd_error *err);
