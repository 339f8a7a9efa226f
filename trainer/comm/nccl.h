/* Communicators over NCCL: pieces move from GPU to GPU, on a stream of the communicator's own.
 *
 *   start     the communicator's stream waits for the work queued on the compute stream, then runs the operation
 *   wait      the compute stream waits for the operation; the host does not. The host must call pd_math_sync before it reads
 *             results
 *   pieces    of start and exchange: device memory, cut alike on both sides (comm.h). Groups, values, splits and notices of
 *             dead peers use `control`
 *   memory    kernels of all communicators of a rank must fit on its device at once (trainer/comm/README.md), so we set
 *             ncclConfig_t.maxCTAs. NCCL_MAX_CTAS in the environment overrides it, as usual in NCCL
 *   failures  a thread polls NCCL, the peers and the clock every WATCH_NS (nccl.c). On any failure it aborts everything in
 *             flight (ncclCommAbort), so no stream waits for ever. Every later call fails here, and so does the next call of
 *             each peer
 *   threads   one caller per communicator: the thread of the compute stream
 */
#pragma once

#include "offload/device_spans.h"
#include "trainer/comm/comm.h"

/* Collective over `control`. Borrows control, device and stream; control stays usable on its own. A split creates its own
 * NCCL and control communicators. Do not call pd_comm_use_memory on the result. spans (or NULL): records each operation, in
 * a lane per communicator. is_used: false if the communicator is only split, as with several stages.
 *   errors   PD_UNSUPPORTED on all ranks alike, with the cause: no library, or two ranks on one device. The caller then uses
 *            control with pd_comm_use_memory. *ret_is_meant: NCCL is off or ranks share a GPU; the machine is fine
 */
PD_MUST_USE pd_status pd_comm_new_nccl(struct pd_comm *control, struct pd_dev *dev, struct pd_stream *compute,
                                       struct pd_device_spans *spans, bool is_used, struct pd_comm **ret_comm,
                                       bool *ret_is_meant, struct pd_error *err);

/* Estimates the device memory that NCCL uses for a communicator of `size` ranks; not measured on a GPU. For every channel of
 * every peer it has talked to, NCCL keeps a ring of NCCL_BUFFSIZE (default 4 MiB) and two smaller ones for short messages.
 * It chooses the number of channels by the links it finds. Peers behind a network share one pool, unless
 * NCCL_NET_SHARED_BUFFERS=0. We count up to 15 peers as near; more add no memory.
 *   source   NVIDIA/nccl: NCCL_BUFFSIZE and NCCL_NET_SHARED_BUFFERS in the user's guide, issues 391, 864, 986, 1424; the
 *            pool: 16 steps of 128 KiB a channel and direction (transport/net.cc) */
uint64_t pd_comm_nccl_bytes(uint32_t size, bool is_link);
/* Most blocks of a communicator's kernel, each on a multiprocessor of its own, on a GPU with this many (0: unknown). */
uint32_t pd_comm_nccl_blocks(uint32_t multiprocessors);
#define PD_COMM_NCCL_IDLE_BYTES (UINT64_C(16) << 20) /* the share of it in use before anything is sent */
