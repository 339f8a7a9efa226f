/* One 32-bit word opens, joins and closes a job; it is also the futex everybody waits on.
 *
 *   state  = generation << 13 | active << 1 | open
 *   caller : write job, next = 0     -> open (generation + 1, active 0) -> claim indices -> close -> wait until active is 0
 *   worker : wait until open and new -> active + 1                      -> claim indices -> active - 1
 *
 *   invariants  1. job fields change only while the word is closed with active 0; they are read only between join and leave
 *               2. a worker that wakes late cannot join: the caller never waits for a thread that did not join
 *               3. indices are claimed from one counter, so each runs exactly once
 */
#include "ckpt/base/thread_pool.h"

#include "ckpt/base/cpu.h"
#include "ckpt/base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define STATE_OPEN 1u
#define STATE_ACTIVE_ONE 2u
#define STATE_ACTIVE_MASK 0x1ffeu
#define STATE_GENERATION_ONE 0x2000u
#define STATE_GENERATION_MASK (~(STATE_GENERATION_ONE - 1))
#define THREADS_MAX 4095u
#define SPINS_MIN 32 /* iterations of a waiting loop, tens of nanoseconds each */
#define SPINS_MAX 4096
#define WAITER_WORKER 1u
#define WAITER_CALLER 2u

struct pd_thread_pool {
    /* Written for every job. Each has its own cache line, so that claiming does not disturb waiting. */
    _Alignas(64) _Atomic uint32_t state;
    _Alignas(64) _Atomic uint64_t next;
    _Alignas(64) _Atomic uint32_t sleepers; /* workers asleep in the kernel, or about to be */
    _Alignas(64) uint64_t count;
    void (*body)(void *context, uint64_t index);
    void *context;
    _Atomic bool stopping;
    bool in_parallel; /* caller only: catches nesting */
    bool counted;     /* counted in threads_alive */
    unsigned thread_count, cpu_count, started;
    unsigned spins; /* caller only */
    pthread_t *threads;
};

/* Threads of all pools of this process: spinning helps only if each has a core to itself. */
static _Atomic uint32_t threads_alive;

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, uint32_t mask)
{
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, mask);
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Flush-to-zero and denormals-are-zero: bits must not depend on which thread meets a denormal. */
#if defined(__x86_64__)
#define MXCSR_FTZ_DAZ 0x8040u
typedef unsigned fp_control;
static fp_control fp_control_enter(void)
{
    fp_control before = _mm_getcsr();
    if ((before & MXCSR_FTZ_DAZ) != MXCSR_FTZ_DAZ) _mm_setcsr(before | MXCSR_FTZ_DAZ);
    return before;
}
static void fp_control_leave(fp_control before)
{
    if ((before & MXCSR_FTZ_DAZ) != MXCSR_FTZ_DAZ) _mm_setcsr((_mm_getcsr() & ~MXCSR_FTZ_DAZ) | (before & MXCSR_FTZ_DAZ));
}
#elif defined(__aarch64__)
#define FPCR_FZ (1ull << 24)
typedef uint64_t fp_control;
static fp_control fp_control_enter(void)
{
    fp_control before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | FPCR_FZ));
    return before;
}
static void fp_control_leave(fp_control before)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
}
#else
#error "flush-to-zero is not known for this processor: invariant numerics need it"
#endif

void pd_numerics_thread_init(void)
{
    (void)fp_control_enter();
}

static bool may_spin(const struct pd_thread_pool *pool)
{
    return atomic_load_explicit(&threads_alive, memory_order_relaxed) <= pool->cpu_count;
}

/* Spins longer next time if spinning succeeded, else shorter: other processes need the cores too, and their number is
 * unknown. */
static unsigned spins_adapted(unsigned spins, bool rewarded)
{
    spins = rewarded ? 2 * spins : spins / 2;
    return spins < SPINS_MIN ? SPINS_MIN : spins > SPINS_MAX ? SPINS_MAX : spins;
}

static void run_indices(struct pd_thread_pool *pool)
{
    uint64_t index;
    while ((index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count) {
        pool->body(pool->context, index);
    }
}

/* Joins an open job of a generation other than *seen and sets *seen to it. False if there is none. */
static bool worker_join(struct pd_thread_pool *pool, uint32_t *seen)
{
    uint32_t state = atomic_load_explicit(&pool->state, memory_order_acquire);
    while ((state & STATE_OPEN) && (state & STATE_GENERATION_MASK) != *seen) {
        if (atomic_compare_exchange_weak_explicit(&pool->state, &state, state + STATE_ACTIVE_ONE, memory_order_acquire,
                                                  memory_order_acquire)) {
            *seen = state & STATE_GENERATION_MASK;
            return true;
        }
    }
    return false;
}

static void worker_leave(struct pd_thread_pool *pool)
{
    uint32_t after = atomic_fetch_sub_explicit(&pool->state, STATE_ACTIVE_ONE, memory_order_seq_cst) - STATE_ACTIVE_ONE;
    if (!(after & (STATE_OPEN | STATE_ACTIVE_MASK))) futex(&pool->state, FUTEX_WAKE_BITSET, 1, WAITER_CALLER);
}

static bool is_joinable(uint32_t state, uint32_t seen)
{
    return (state & STATE_OPEN) && (state & STATE_GENERATION_MASK) != seen;
}

static bool worker_spin(struct pd_thread_pool *pool, uint32_t seen, unsigned spins)
{
    for (unsigned i = 0; i < spins; i++) {
        if (is_joinable(atomic_load_explicit(&pool->state, memory_order_relaxed), seen)) return true;
        cpu_relax();
    }
    return false;
}

/* Returns when there may be a job to join. */
static void worker_wait(struct pd_thread_pool *pool, uint32_t seen, unsigned *spins)
{
    if (may_spin(pool)) {
        bool rewarded = worker_spin(pool, seen, *spins);
        *spins = spins_adapted(*spins, rewarded);
        if (rewarded) return;
    }
    atomic_fetch_add_explicit(&pool->sleepers, 1, memory_order_seq_cst);
    uint32_t state = atomic_load_explicit(&pool->state, memory_order_seq_cst);
    if (!is_joinable(state, seen) && !atomic_load_explicit(&pool->stopping, memory_order_seq_cst)) {
        futex(&pool->state, FUTEX_WAIT_BITSET, state, WAITER_WORKER);
    }
    atomic_fetch_sub_explicit(&pool->sleepers, 1, memory_order_relaxed);
}

static void *worker_main(void *argument)
{
    struct pd_thread_pool *pool = argument;
    pd_numerics_thread_init();
    uint32_t seen = 0;
    unsigned spins = SPINS_MAX;
    while (!atomic_load_explicit(&pool->stopping, memory_order_acquire)) {
        if (worker_join(pool, &seen)) {
            run_indices(pool);
            worker_leave(pool);
        } else {
            worker_wait(pool, seen, &spins);
        }
    }
    return NULL;
}

static pd_status start_workers(struct pd_thread_pool *pool, struct pd_error *err)
{
    int failed = 0;
    while (!failed && pool->started + 1 < pool->thread_count) {
        failed = pd_thread_start(&pool->threads[pool->started], NULL, worker_main, pool);
        if (!failed) pool->started++;
    }
    if (!failed) return PD_OK;
    char what[80];
    snprintf(what, sizeof what, "thread %u of %u of layout.threads", pool->started + 2, pool->thread_count);
    PD_FAIL_THREAD(err, failed, what);
}

pd_status pd_thread_pool_new(unsigned thread_count, struct pd_thread_pool **ret_pool, struct pd_error *err)
{
    if (thread_count == 0 || thread_count > THREADS_MAX)
        PD_FAIL(err, PD_INVALID, "a pool of %u threads cannot be made: 1 to %u are possible", thread_count, THREADS_MAX);
    struct pd_thread_pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool) PD_FAIL(err, PD_NO_MEMORY, "no memory for a thread pool");
    memset(pool, 0, sizeof *pool);
    pool->thread_count = thread_count;
    pool->cpu_count = pd_cpu_cores();
    pool->spins = SPINS_MAX;
    pool->threads = calloc(thread_count, sizeof *pool->threads);
    pd_status status = PD_ALLOCATED(pool->threads, err, "no memory for %u threads", thread_count);
    if (!status) {
        atomic_fetch_add(&threads_alive, thread_count);
        pool->counted = true;
        status = start_workers(pool, err);
    }
    if (status)
        pd_thread_pool_free(pool);
    else
        *ret_pool = pool;
    return status;
}

void pd_thread_pool_free(struct pd_thread_pool *pool)
{
    if (!pool) return;
    PD_CHECK(!pool->in_parallel);
    atomic_store_explicit(&pool->stopping, true, memory_order_seq_cst);
    atomic_fetch_add_explicit(&pool->state, STATE_GENERATION_ONE, memory_order_seq_cst);
    futex(&pool->state, FUTEX_WAKE_BITSET, INT_MAX, WAITER_WORKER);
    for (unsigned i = 0; i < pool->started; i++)
        pthread_join(pool->threads[i], NULL);
    if (pool->counted) atomic_fetch_sub(&threads_alive, pool->thread_count);
    free(pool->threads);
    free(pool);
}

unsigned pd_thread_pool_size(const struct pd_thread_pool *pool)
{
    return pool ? pool->thread_count : 1;
}

static void job_open(struct pd_thread_pool *pool)
{
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    uint32_t generation = atomic_load_explicit(&pool->state, memory_order_relaxed) & STATE_GENERATION_MASK;
    generation += STATE_GENERATION_ONE;
    if (generation == 0) generation = STATE_GENERATION_ONE; /* a new worker starts with 0 as seen */
    atomic_store_explicit(&pool->state, generation | STATE_OPEN, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->sleepers, memory_order_seq_cst) == 0) return;
    uint64_t helpers = pool->count - 1 < pool->thread_count - 1 ? pool->count - 1 : pool->thread_count - 1;
    futex(&pool->state, FUTEX_WAKE_BITSET, (uint32_t)helpers, WAITER_WORKER);
}

static void job_close(struct pd_thread_pool *pool)
{
    uint32_t state = atomic_fetch_and_explicit(&pool->state, ~STATE_OPEN, memory_order_acq_rel) & ~STATE_OPEN;
    if (!(state & STATE_ACTIVE_MASK)) return;
    for (unsigned i = 0; may_spin(pool) && i < pool->spins && (state & STATE_ACTIVE_MASK); i++) {
        cpu_relax();
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
    }
    pool->spins = spins_adapted(pool->spins, !(state & STATE_ACTIVE_MASK));
    while (state & STATE_ACTIVE_MASK) {
        futex(&pool->state, FUTEX_WAIT_BITSET, state, WAITER_CALLER);
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
    }
}

void pd_parallel(struct pd_thread_pool *pool, uint64_t count, void (*body)(void *context, uint64_t index), void *context)
{
    fp_control before = fp_control_enter();
    if (!pool || pool->started == 0 || count <= 1) {
        for (uint64_t index = 0; index < count; index++)
            body(context, index);
    } else {
        PD_CHECK(!pool->in_parallel);
        pool->in_parallel = true;
        pool->count = count;
        pool->body = body;
        pool->context = context;
        job_open(pool);
        run_indices(pool);
        job_close(pool);
        pool->in_parallel = false;
    }
    fp_control_leave(before);
}
