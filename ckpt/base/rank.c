#include "ckpt/base/rank.h"

#include <stdatomic.h>

static atomic_int process_rank = -1;
static _Thread_local int thread_rank = -1;

void pd_rank_set_process(int rank)
{
    atomic_store_explicit(&process_rank, rank, memory_order_relaxed);
}

void pd_rank_set_thread(int rank)
{
    thread_rank = rank;
}

int pd_rank_current(void)
{
    return thread_rank >= 0 ? thread_rank : atomic_load_explicit(&process_rank, memory_order_relaxed);
}
