/* Requests to a launch from signals and from its hosts. */
#pragma once

#include "ckpt/base/log.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The user's requests so far; kept for the whole launch. */
struct pd_launch_requests {
    int signals;                          /* signalfd */
    atomic_bool wants_leave, wants_abort; /* these two and `saves` are set by a thread of the job while a start runs */
    _Atomic uint32_t saves;
    uint32_t interrupts;
    /* Ranks save and leave for a larger start once `has_grown`, called at every tick, returns true. NULL: never. */
    bool wants_regroup;
    bool (*has_grown)(void *context);
    void (*has_lost)(void *context); /* called when the first rank of a start disappears; may be NULL */
    /* Returns whether hosts disappeared; called at every tick. NULL: not checked. */
    bool (*has_silent)(void *context, char *ret_names, size_t bytes);
    void *context;
};

/* A request that was forwarded; logged afterwards, because the log's storage may hang. */
struct pd_launch_heard {
    enum pd_log_level level;
    char text[80]; /* "": nothing new */
};
struct pd_launch_heard pd_launch_requests_hear(struct pd_launch_requests *requests, int number);
void pd_launch_heard_log(const struct pd_launch_heard *heard);

/* Reads pending signals, waiting up to `timeout_ms` for one, and logs their requests. */
void pd_launch_requests_poll(struct pd_launch_requests *requests, int timeout_ms);
