/* What stands in for libnccl in tests: ranks are threads of the process, and a group of sends and receives is one piece of
 * work on a stream, which waits there for its peers; so is a reduce-scatter, which adds in a random order, or an all-gather. As fake_nccl its streams are those of late_device.h, as simt_nccl
 * (FAKE_NCCL_SIMT) those of simulated GPUs: the host never waits for an exchange. */
#pragma once

/* Of all ranks and communicators. Bytes of a collective are those of others that a rank gets, as by a ring.
 * FAKE_NCCL_REPORT=FILE: a line of JSON behind it, when the process ends. */
struct fake_nccl_counts {
    unsigned long long gathered_bytes, scattered_bytes, received_bytes, collectives;
    unsigned long long registered_collectives; /* both of whose buffers ncclCommRegister was given */
    unsigned long long unequal_places;         /* of these, a rank's whose buffer lies elsewhere in it than the first's */
    long long registered;                      /* and is not yet to forget */
};

/* What a stream handle points to. */
struct fake_stream {
    void (*put)(void *stream, void (*call)(void *argument), void *argument);
    unsigned device;
};

/* Entry points of the fake beside NCCL's own, for tests.
 *   fake_nccl_set_version(int)        what GetVersion says
 *   fake_nccl_fail_group(int, int)    the n-th group from now on ends with this result; 0: none
 *   fake_nccl_set_async(int)          what every communicator says of itself; 0: nothing wrong
 *   fake_nccl_set_room(int)           multiprocessors of a device, of which a kernel at work takes its communicator's
 *                                     blocks; without it there is no end of them
 *   fake_nccl_set_seed(int)           of the orders in which integers are added
 *   fake_nccl_flip(int)               the n-th reduce-scatter of a rank from now on, over all ranks, has a wrong bit; 0: none.
 *                                     FAKE_NCCL_FLIP=n in the environment says it at the start
 *   fake_nccl_counts()                what was asked of it so far
 *   fake_nccl_aborts()                communicators that were aborted
 *   fake_nccl_lone_aborts()           of these, outside of a group */
