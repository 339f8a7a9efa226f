#include "ckpt/base/stop.h"

#include "ckpt/base/fault.h"

pd_status pd_stop_check(pd_should_stop should_stop, const char *place, struct pd_error *err)
{
    pd_fault_point(place);
    if (pd_stop_asked(should_stop)) PD_FAIL(err, PD_STOPPED, "asked to leave");
    return PD_OK;
}
