#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES (size_t{256} << 10)
#else
#define STACK_BYTES (size_t{128} << 10)
#endif
#define PAGE_BYTES \
    size_t         \
    {              \
        4096       \
    }

#define COLOURS 16u
#define COLOUR_BYTES \
    size_t           \
    {                \
        256          \
    }

#if defined(__x86_64__)
#include <xmmintrin.h>
#define FLUSH_TO_ZERO_DENORMALS_ARE_ZERO 0x8040u
#endif

#ifdef SIMT_OWN_SWITCH
/* Pushes what a call preserves, swaps stack pointers, pops. */
extern "C" void simt_swap_stacks(void **save, void *load);
asm(".text\n"
    ".globl simt_swap_stacks\n"
    ".hidden simt_swap_stacks\n"
    ".type simt_swap_stacks,@function\n"
    "simt_swap_stacks:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size simt_swap_stacks, .-simt_swap_stacks\n");
#endif

static simt_fiber *leaving, *starting;

/* The stack of the thread itself becomes known when it is left for the first time. */
static void arrived(simt_fiber *fiber)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &bottom, &bytes);
    if (leaving->stack) return;
    leaving->stack = const_cast<void *>(bottom);
    leaving->stack_bytes = bytes;
#else
    (void)fiber;
#endif
}

static void first_frame(void)
{
    simt_fiber *fiber = starting;
    arrived(fiber);
    fiber->entry(nullptr);
    abort(); /* an entry does not return */
}

/* Stacks that all began at the same byte of a page would share a few lines of the first cache. */
void simt_fiber_init(simt_fiber *fiber)
{
    static unsigned taken;
    void *memory = mmap(nullptr, STACK_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, PAGE_BYTES, PROT_NONE)) abort();
    fiber->stack = static_cast<char *>(memory) + PAGE_BYTES;
    fiber->stack_bytes = STACK_BYTES - taken++ % COLOURS * COLOUR_BYTES;
}

void simt_fiber_start(simt_fiber *fiber, void (*entry)(void *))
{
#if defined(__SANITIZE_ADDRESS__)
    if (fiber->abandoned) __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
    fiber->fake_stack = nullptr;
#endif
    fiber->abandoned = true;
    fiber->entry = entry;
#ifdef SIMT_OWN_SWITCH
    void **top = reinterpret_cast<void **>(static_cast<char *>(fiber->stack) + fiber->stack_bytes);
    *--top = nullptr; /* where a call leaves the stack pointer: 8 beyond a multiple of 16 */
    *--top = reinterpret_cast<void *>(first_frame);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    fiber->stack_pointer = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, first_frame, 0);
#endif
}

static void go(simt_fiber *from, simt_fiber *to, bool for_good)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from->fake_stack, to->stack, to->stack_bytes);
#else
    (void)for_good;
#endif
    leaving = from;
    starting = to;
#ifdef SIMT_OWN_SWITCH
    simt_swap_stacks(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived(from);
}

void simt_fiber_switch(simt_fiber *from, simt_fiber *to)
{
    go(from, to, false);
}

void simt_fiber_leave(simt_fiber *from, simt_fiber *to)
{
    from->abandoned = false;
    go(from, to, true);
    abort();
}

unsigned simt_flush_denormals(void)
{
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_TO_ZERO_DENORMALS_ARE_ZERO);
    return before;
#elif defined(__aarch64__)
    uint64_t before, bits;
    asm volatile("mrs %0, fpcr" : "=r"(before));
    bits = before | UINT64_C(1) << 24;
    asm volatile("msr fpcr, %0" ::"r"(bits));
    return static_cast<unsigned>(before);
#else
    return 0;
#endif
}

void simt_restore_denormals(unsigned before)
{
#if defined(__x86_64__)
    _mm_setcsr(before);
#elif defined(__aarch64__)
    const uint64_t bits = before;
    asm volatile("msr fpcr, %0" ::"r"(bits));
#else
    (void)before;
#endif
}
