/* What signals and the hosts ask of a launch. */
#pragma once

#include "ckpt/base/log.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the user asked for so far; lives as long as the launch. */
struct pd_launch_requests {
    int signals;                          /* signalfd */
    atomic_bool wants_leave, wants_abort; /* these two and `saves`: a thread of the job sets them while a start runs */
    _Atomic uint32_t saves;
    uint32_t interrupts;
    /* Ranks save and leave for a start with more of them; `has_grown`, called at every tick, says when. NULL: never. */
    bool wants_regroup;
    bool (*has_grown)(void *context);
    void (*has_lost)(void *context); /* the first rank of a start is gone without a word; NULL: nobody asks */
    /* Hosts are gone without a sign; called at every tick. NULL: nobody looks. */
    bool (*has_silent)(void *context, char *ret_names, size_t bytes);
    void *context;
};

/* Whoever passes a request on logs it afterwards: the log may lie on storage that does not answer. */
struct pd_launch_heard {
    enum pd_log_level level;
    char text[80]; /* "": nothing new */
};
struct pd_launch_heard pd_launch_requests_hear(struct pd_launch_requests *requests, int number);
void pd_launch_heard_log(const struct pd_launch_heard *heard);

/* Reads signals that arrived, waiting for one up to `timeout_ms`, and logs what they ask. */
void pd_launch_requests_poll(struct pd_launch_requests *requests, int timeout_ms);
