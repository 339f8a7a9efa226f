#include "trainer/comm/nccl_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pd_nccl_library library;
static bool is_open;

static pd_status find_all(void *file, const char *path, struct pd_error *err)
{
    const struct {
        const char *name;
        void *place; /* of a pointer to a function */
    } all[] = {{"ncclGetVersion", &library.GetVersion},
               {"ncclGetUniqueId", &library.GetUniqueId},
               {"ncclCommInitRankConfig", &library.CommInitRankConfig},
               {"ncclCommFinalize", &library.CommFinalize},
               {"ncclCommDestroy", &library.CommDestroy},
               {"ncclCommAbort", &library.CommAbort},
               {"ncclCommGetAsyncError", &library.CommGetAsyncError},
               {"ncclGroupStart", &library.GroupStart},
               {"ncclGroupEnd", &library.GroupEnd},
               {"ncclSend", &library.Send},
               {"ncclRecv", &library.Recv},
               {"ncclReduceScatter", &library.ReduceScatter},
               {"ncclAllGather", &library.AllGather},
               {"ncclGetErrorString", &library.GetErrorString},
               {"ncclCommRegister", &library.CommRegister},
               {"ncclCommDeregister", &library.CommDeregister}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *found = dlsym(file, all[i].name);
        if (!found) PD_FAIL(err, PD_UNSUPPORTED, "%s has no %s: NCCL 2.19 or later is needed", path, all[i].name);
        memcpy(all[i].place, &found, sizeof found);
    }
    return PD_OK;
}

static pd_status nccl_library_open_file(struct pd_error *err)
{
    const char *path = getenv("PERDURE_NCCL");
    int version = 0;
    if (path && strcmp(path, "off") == 0) PD_FAIL(err, PD_UNSUPPORTED, "PERDURE_NCCL=off");
    if (!path || !*path) path = "libnccl.so.2";
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!file) PD_FAIL(err, PD_UNSUPPORTED, "%s", dlerror());
    pd_status st = find_all(file, path, err);
    if (!st && library.GetVersion(&version) != PD_NCCL_DONE)
        st = pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0, "%s does not say its version", path);
    if (!st && version < PD_NCCL_VERSION_MIN)
        st = pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0, "%s is version %d: NCCL 2.19 or later is needed", path, version);
    if (st) dlclose(file);
    library.version = version;
    return st;
}

pd_status pd_nccl_library_open(const struct pd_nccl_library **ret_library, struct pd_error *err)
{
    pthread_mutex_lock(&lock);
    pd_status st = is_open ? PD_OK : nccl_library_open_file(err);
    is_open = st == PD_OK;
    pthread_mutex_unlock(&lock);
    if (!st) *ret_library = &library;
    return st;
}

struct pd_nccl_config pd_nccl_config(void)
{
    return (struct pd_nccl_config){.size = sizeof(struct pd_nccl_config),
                                   .magic = 0xcafebeef,
                                   .version = PD_NCCL_VERSION_MIN,
                                   .blocking = 0,
                                   .cluster_size = INT_MIN,
                                   .blocks_min = INT_MIN,
                                   .blocks_max = INT_MIN,
                                   .share_split = INT_MIN};
}
