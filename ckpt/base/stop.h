/* Work that takes long asks between its pieces whether its caller wants it to end, and then undoes what it began. */
#pragma once

#include "ckpt/base/status.h"

/* NULL: never.   threads  the one that was given it */
typedef bool (*pd_should_stop)(void);

/* Passes `place` (fault.h), then asks.   errors  PD_STOPPED: "asked to leave" */
PD_MUST_USE pd_status pd_stop_check(pd_should_stop should_stop, const char *place, struct pd_error *err);
