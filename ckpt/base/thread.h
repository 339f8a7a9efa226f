/* Starts threads that take no signals. Only the program's own threads handle those. */
#pragma once

#include <pthread.h>

/* As pthread_create. All signals are blocked from the thread's first instruction on, except for its own faults. */
int pd_thread_start(pthread_t *ret_thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context);
