/* The entry points of libnccl that the trainer uses, loaded on first use. Linking would map the library into every process,
 * and not every machine has it. These are NCCL's own declarations, as of 2.19. */
#pragma once

#include "offload/device.h"
#include "trainer/comm/comm.h"

enum { PD_NCCL_DONE = 0, PD_NCCL_IN_PROGRESS = 7 }; /* results; others are failures */
enum { PD_NCCL_UINT8 = 1, PD_NCCL_UINT32 = 3, PD_NCCL_UINT64 = 5, PD_NCCL_SUM = 0, PD_NCCL_VERSION_MIN = 21900 };
enum { PD_NCCL_VERSION_GROUP_ABORT = 22200 }; /* from this version on, several aborts may form one group */

struct pd_nccl_id {
    char bytes[128];
};

/* The layout of NCCL 2.17; later versions fill in the fields that it lacks. */
struct pd_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, blocks_min, blocks_max;
    const char *network;
    int share_split;
};

struct pd_nccl_library {
    int version;
    int (*GetVersion)(int *);
    int (*GetUniqueId)(struct pd_nccl_id *);
    int (*CommInitRankConfig)(void **comm, int size, struct pd_nccl_id, int rank, struct pd_nccl_config *);
    int (*CommFinalize)(void *comm);
    int (*CommDestroy)(void *comm);
    int (*CommAbort)(void *comm);
    int (*CommGetAsyncError)(void *comm, int *ret_result);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*Send)(const void *data, size_t count, int type, int peer, void *comm, void *stream);
    int (*Recv)(void *data, size_t count, int type, int peer, void *comm, void *stream);
    int (*ReduceScatter)(const void *parts, void *sum, size_t count, int type, int reduce, void *comm, void *stream);
    int (*AllGather)(const void *part, void *parts, size_t count, int type, void *comm, void *stream);
    const char *(*GetErrorString)(int);
    int (*CommRegister)(void *comm, void *memory, size_t bytes, void **ret_handle);
    int (*CommDeregister)(void *comm, void *handle);
};

/* Loads the library once per process and keeps it. PERDURE_NCCL names a file other than libnccl.so.2, or is "off".
 *   errors   PD_UNSUPPORTED: not found, switched off, or too old */
PD_MUST_USE pd_status pd_nccl_library_open(const struct pd_nccl_library **ret_library, struct pd_error *err);

/* Collective: succeeds if every rank could open the library and no two ranks share a device.
 *   errors   PD_UNSUPPORTED on all ranks alike, with what the first rank lacks (nccl_agree.c); ret_is_meant: nccl.h */
PD_MUST_USE pd_status pd_nccl_agree(struct pd_comm *control, const struct pd_dev *dev,
                                    const struct pd_nccl_library **ret_library, bool *ret_is_meant, struct pd_error *err);

/* NCCL_CONFIG_INITIALIZER with non-blocking calls. */
struct pd_nccl_config pd_nccl_config(void);
