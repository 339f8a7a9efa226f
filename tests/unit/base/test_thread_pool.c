#include "ckpt/base/thread_pool.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define COUNT_MAX 1000

static struct pd_thread_pool *pool_of(unsigned threads)
{
    struct pd_thread_pool *pool = NULL;
    cr_assert_eq(pd_thread_pool_new(threads, &pool, NULL), PD_OK);
    return pool;
}

static void add_one(void *context, uint64_t index)
{
    ((unsigned *)context)[index]++; /* not atomic: an index has one owner, and pd_parallel orders it before its return */
}

Test(thread_pool, every_index_runs_exactly_once)
{
    for (unsigned threads = 1; threads <= 7; threads++) {
        struct pd_thread_pool *pool = pool_of(threads);
        cr_assert_eq(pd_thread_pool_size(pool), threads);
        for (uint64_t round = 0; round < 400; round++) {
            unsigned hits[COUNT_MAX] = {0};
            uint64_t count = (round * 37) % COUNT_MAX;
            pd_parallel(pool, count, add_one, hits);
            for (uint64_t i = 0; i < COUNT_MAX; i++)
                cr_assert_eq(hits[i], i < count, "threads %u, count %lu, index %lu", threads, count, i);
        }
        pd_thread_pool_free(pool);
    }
}

/* A worker that wakes late for job n must not run with the body of job n + 1. */
Test(thread_pool, tiny_jobs_in_a_row_do_not_mix)
{
    struct pd_thread_pool *pool = pool_of(4);
    unsigned a[3] = {0}, b[5] = {0};
    for (unsigned round = 1; round <= 20000; round++) {
        pd_parallel(pool, 3, add_one, a);
        pd_parallel(pool, 5, add_one, b);
        for (int i = 0; i < 3; i++)
            cr_assert_eq(a[i], round);
        for (int i = 0; i < 5; i++)
            cr_assert_eq(b[i], round);
    }
    pd_thread_pool_free(pool);
}

struct rendezvous {
    atomic_uint arrived;
    unsigned wanted;
};

/* Returns only when `wanted` threads are inside at the same time. */
static void meet(void *context, uint64_t index)
{
    (void)index;
    struct rendezvous *r = context;
    atomic_fetch_add(&r->arrived, 1);
    while (atomic_load(&r->arrived) < r->wanted)
        usleep(50);
}

Test(thread_pool, all_threads_take_part, .timeout = 600)
{
    struct pd_thread_pool *pool = pool_of(5);
    for (int round = 0; round < 20; round++) {
        struct rendezvous r = {.wanted = 5};
        pd_parallel(pool, 5, meet, &r);
        cr_assert_eq(atomic_load(&r.arrived), 5);
        usleep(round % 2 ? 2000 : 0); /* workers asleep, workers spinning */
    }
    pd_thread_pool_free(pool);
}

static volatile float denormal = 1e-40f, tiny = 1e-30f;

static bool flushes(void)
{
    return denormal * 1.0f == 0.0f && tiny * 1e-10f == 0.0f;
}

/* Emulators of processors (valgrind) know no such mode. */
static bool machine_can_flush(void)
{
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);
    bool can = flushes();
    _mm_setcsr(before);
    return can;
#else
    return true;
#endif
}

static void check_flush(void *context, uint64_t index)
{
    ((bool *)context)[index] = flushes();
    usleep(200);
}

Test(thread_pool, denormals_are_flushed_inside_and_the_caller_is_left_as_it_was)
{
    if (!machine_can_flush()) cr_skip_test("this processor does not flush denormals to zero");
    struct pd_thread_pool *pool = pool_of(3);
    bool flushed[30] = {0};
    cr_assert_not(flushes());
    pd_parallel(pool, 30, check_flush, flushed);
    for (int i = 0; i < 30; i++)
        cr_assert(flushed[i]);
    cr_assert_not(flushes());
    memset(flushed, 0, sizeof flushed);
    pd_parallel(NULL, 1, check_flush, flushed);
    cr_assert(flushed[0]);
    cr_assert_not(flushes());
    pd_numerics_thread_init();
    cr_assert(flushes());
    pd_parallel(pool, 30, check_flush, flushed);
    cr_assert(flushes());
    pd_thread_pool_free(pool);
}

static void note_mask(void *context, uint64_t index)
{
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    ((int *)context)[index] = sigismember(&mask, SIGTERM);
    usleep(300);
}

struct self {
    pthread_t caller;
    int blocked[16];
};

static void note_worker_mask(void *context, uint64_t index)
{
    struct self *self = context;
    self->blocked[index] = 1;
    if (!pthread_equal(self->caller, pthread_self())) note_mask(self->blocked, index);
    usleep(300);
}

Test(thread_pool, workers_take_no_signals)
{
    struct pd_thread_pool *pool = pool_of(4);
    struct self self = {.caller = pthread_self()};
    pd_parallel(pool, 16, note_worker_mask, &self);
    for (int i = 0; i < 16; i++)
        cr_assert_eq(self.blocked[i], 1);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    cr_assert_eq(sigismember(&mask, SIGTERM), 0);
    pd_thread_pool_free(pool);
}

static void *run_own_pool(void *unused)
{
    (void)unused;
    struct pd_thread_pool *pool = pool_of(3);
    unsigned hits[64] = {0};
    for (int round = 0; round < 1000; round++)
        pd_parallel(pool, 64, add_one, hits);
    for (int i = 0; i < 64; i++)
        cr_assert_eq(hits[i], 1000);
    pd_thread_pool_free(pool);
    return NULL;
}

Test(thread_pool, pools_are_independent)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, run_own_pool, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

Test(thread_pool, edges)
{
    struct pd_thread_pool *pool = NULL;
    struct pd_error err;
    cr_assert_eq(pd_thread_pool_new(0, &pool, &err), PD_INVALID);
    cr_assert_eq(pd_thread_pool_new(5000, &pool, &err), PD_INVALID);
    cr_assert_null(pool);
    cr_assert_eq(pd_thread_pool_size(NULL), 1);
    pd_thread_pool_free(NULL);
    unsigned hits[4] = {0};
    pd_parallel(NULL, 4, add_one, hits);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(hits[i], 1);
}

static void nest(void *context, uint64_t index)
{
    unsigned hits[2] = {0};
    (void)index;
    pd_parallel(context, 2, add_one, hits);
}

Test(thread_pool, nesting_is_a_bug, .signal = SIGABRT)
{
    struct pd_thread_pool *pool = pool_of(2);
    pd_parallel(pool, 2, nest, pool);
}
