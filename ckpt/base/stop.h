/* Long operations ask between pieces of work whether their caller wants them to stop, and then undo what they began. */
#pragma once

#include "ckpt/base/status.h"

/* Zeros: never stops. Only the thread that received it may ask. */
typedef struct pd_should_stop {
    bool (*ask)(void *context);
    void *context;
} pd_should_stop;
static inline bool pd_stop_asked(pd_should_stop should_stop)
{
    return should_stop.ask && should_stop.ask(should_stop.context);
}

/* Passes the fault point `place` (fault.h), then asks.   errors  PD_STOPPED: "asked to leave" */
PD_MUST_USE pd_status pd_stop_check(pd_should_stop should_stop, const char *place, struct pd_error *err);
