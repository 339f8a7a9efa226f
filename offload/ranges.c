#include "offload/ranges.h"

#ifdef PERDURE_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>

void pd_range_push(const char *name, uint64_t value)
{
    const nvtxEventAttributes_t range = {.version = NVTX_VERSION,
                                         .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                         .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
                                         .payload.ullValue = value,
                                         .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                         .message.ascii = name};
    (void)nvtxRangePushEx(&range);
}

void pd_range_pop(void)
{
    (void)nvtxRangePop();
}

#else

void pd_range_push(const char *name, uint64_t value)
{
    (void)name, (void)value;
}

void pd_range_pop(void)
{
}

#endif
