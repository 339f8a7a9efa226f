/* Stacks that take turns on one thread: a few instructions a switch on x86-64, ucontext elsewhere or where
 * PD_SIMT_UCONTEXT is defined. AddressSanitizer is told
 * of every switch. */
#pragma once

#include <stddef.h>

#if defined(__x86_64__) && !defined(PD_SIMT_UCONTEXT)
#define SIMT_OWN_SWITCH
#else
#include <ucontext.h>
#endif

struct simt_fiber {
    void *stack; /* NULL: the thread's own */
    size_t stack_bytes;
    void *stack_pointer; /* while it does not run */
    void (*entry)(void *);
    bool abandoned; /* its frames were never left */
    void *fake_stack;
#ifndef SIMT_OWN_SWITCH
    ucontext_t context;
#endif
};

void simt_fiber_init(simt_fiber *fiber); /* takes a stack, for good */
/* The next switch to it calls entry, which must end in simt_fiber_leave. */
void simt_fiber_start(simt_fiber *fiber, void (*entry)(void *));
void simt_fiber_switch(simt_fiber *from, simt_fiber *to);
void simt_fiber_leave(simt_fiber *from, simt_fiber *to) __attribute__((noreturn));

/* As kernels have it; returns what was. */
unsigned simt_flush_denormals(void);
void simt_restore_denormals(unsigned before);
