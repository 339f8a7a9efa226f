#include "ckpt/base/thread.h"

#include <signal.h>
#include <stddef.h>

int pd_thread_start(pthread_t *ret_thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t mask, before;
    sigfillset(&mask);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&mask, faults[i]);
    pthread_sigmask(SIG_SETMASK, &mask, &before);
    const int number = pthread_create(ret_thread, attributes, body, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return number;
}
