/* Threads that take no signals: these are for the threads of the program, which know what to do with them. */
#pragma once

#include <pthread.h>

/* As pthread_create; the thread has all signals blocked from its first instruction on, but for those of its own faults. */
int pd_thread_start(pthread_t *ret_thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context);
