/* NCCL behind the table of communicators: pieces go from device to device, on a stream of the communicator's own.
 *
 *   start     the communicator's stream waits for what the compute stream was given, then has the operation
 *   wait      the compute stream waits for the operation; the host does not. What the host reads behind it, it reads after
 *             pd_math_sync as always
 *   pieces    of start and exchange: memory of the device, cut alike on both sides (comm.h). Groups, values, agreements of
 *             splits and deaths of peers go over `control`
 *   room      kernels of all communicators of a rank are on its device at once (trainer/comm/README.md), whatever NCCL would
 *             take: ncclConfig_t.maxCTAs. NCCL_MAX_CTAS in the environment overrides it, as NCCL does it
 *   failures  a thread looks at NCCL, at the peers and at the clock every WATCH_NS (nccl.c). Whatever it finds wrong ends
 *             everything in flight (ncclCommAbort), so that no stream waits for ever; every later call fails, and so does
 *             the next one of each peer
 *   threads   one caller a communicator, the compute stream's
 */
#pragma once

#include "offload/device_spans.h"
#include "trainer/comm/comm.h"

/* Collective over `control`, which is borrowed, as device and stream are; it keeps serving on its own. Splits come with
 * communicators of NCCL and of control of their own. pd_comm_use_memory is not for it: it knows the memory. spans (NULL:
 * nobody asks): of each operation, in a lane of its communicator. is_used: not only split, as with several stages.
 *   errors   PD_UNSUPPORTED on all ranks alike, with what is missing: no library, two ranks on one device. Pieces then go
 *            over control with pd_comm_use_memory. ret_is_meant: it is switched off, or ranks share a GPU: no fault of the
 *            machine's */
PD_MUST_USE pd_status pd_comm_new_nccl(struct pd_comm *control, struct pd_dev *dev, struct pd_stream *compute,
                                       struct pd_device_spans *spans, bool is_used, struct pd_comm **ret_comm,
                                       bool *ret_is_meant, struct pd_error *err);

/* What NCCL takes of a device for a communicator of `size` ranks: an estimate, not measured on a GPU. NCCL keeps a ring of
 * NCCL_BUFFSIZE (4 MiB unless set) and two smaller ones for short messages for each channel of each peer that was ever sent
 * to or received from; how many channels, it decides by the links it finds. Peers behind a network share one pool, unless
 * NCCL_NET_SHARED_BUFFERS=0: up to 15 peers are taken for near, so memory does not grow with ranks beyond.
 *   source   NVIDIA/nccl: NCCL_BUFFSIZE and NCCL_NET_SHARED_BUFFERS in the user's guide, issues 391, 864, 986, 1424; the pool:
 *            16 steps of 128 KiB a channel and direction (transport/net.cc) */
uint64_t pd_comm_nccl_bytes(uint32_t size, bool is_link);
#define PD_COMM_NCCL_IDLE_BYTES (UINT64_C(16) << 20) /* of that, before anything is sent */
