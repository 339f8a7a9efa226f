/* What is said of a thread that could not be started. */
#pragma once

#include "ckpt/base/status.h"

/* `number`: what pthread_create returned. The message names the limits to raise. PD_UNSUPPORTED: a limit does not pass. */
pd_status pd_error_thread(struct pd_error *err, const char *where, int number, const char *what);
#define PD_FAIL_THREAD(err, number, what) return pd_error_thread((err), PD_WHERE, (number), (what))
