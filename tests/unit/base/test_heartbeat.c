/* What a watcher reads out of a process's memory is what its threads said last. */
#include "ckpt/base/heartbeat.h"

#include "ckpt/base/rank.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RANKS = 3 };

static const struct pd_heartbeat *watch(uint32_t ranks)
{
    int fd = -1;
    cr_assert(pd_heartbeat_open(ranks, &fd));
    const struct pd_heartbeat *seen = pd_heartbeat_map(getpid(), fd, ranks);
    cr_assert_not_null(seen);
    return seen;
}

Test(heartbeat, without_one_nothing_happens)
{
    uint64_t spent[PD_HEARTBEAT_PLACES] = {[PD_HEARTBEAT_SAVING] = 7};
    pd_heartbeat_step(1);
    pd_heartbeat_micro_batch(1);
    pd_heartbeat_block(1);
    cr_assert_eq(pd_heartbeat_enter(PD_HEARTBEAT_SAVING), PD_HEARTBEAT_SAVING);
    pd_heartbeat_exchange_begin("sum");
    pd_heartbeat_waits_for(1);
    pd_heartbeat_exchange_end();
    pd_heartbeat_tier("/disk");
    pd_heartbeat_hold();
    pd_heartbeat_spent(spent);
    cr_assert_eq(spent[PD_HEARTBEAT_SAVING], 0);
    cr_assert_null(pd_heartbeat_map(getpid(), -1, 1));
    pd_heartbeat_unmap(NULL, 1);
}

/* As old seccomp profiles of containers do. */
Test(heartbeat, without_memfd_create_there_is_one_all_the_same)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof *program, program};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    const struct pd_heartbeat *seen = watch(RANKS);
    pd_heartbeat_hold();
    cr_assert_eq(seen[RANKS - 1].is_held, 1);
    pd_heartbeat_unmap(seen, RANKS);
}

Test(heartbeat, where_a_rank_is)
{
    const struct pd_heartbeat *seen = watch(1);
    uint64_t spent[PD_HEARTBEAT_PLACES];
    cr_assert_eq(pd_heartbeat_enter(PD_HEARTBEAT_READING), PD_HEARTBEAT_READING); /* this thread does not train yet */
    cr_assert_eq(seen->place, PD_HEARTBEAT_OPENING);
    pd_heartbeat_micro_batch(9);
    pd_heartbeat_step(4);
    cr_assert(seen->step == 4 && seen->steps == 1 && seen->micro_batch == 0 && seen->place == PD_HEARTBEAT_COMPUTING);
    pd_heartbeat_micro_batch(2);
    pd_heartbeat_block(5);
    cr_assert(seen->micro_batch == 2 && seen->block == 5 && seen->done == 2);
    cr_assert_eq(pd_heartbeat_enter(PD_HEARTBEAT_SAVING), PD_HEARTBEAT_COMPUTING);
    pd_heartbeat_spent(spent);
    cr_assert(spent[PD_HEARTBEAT_COMPUTING] > 0 && spent[PD_HEARTBEAT_SAVING] == 0);
    const enum pd_heartbeat_place before = pd_heartbeat_storage_begin();
    cr_assert(before == PD_HEARTBEAT_SAVING && seen->place == PD_HEARTBEAT_SAVING && seen->storage_waits == 1);
    pd_heartbeat_storage_end(before);
    cr_assert(seen->step == 4 && seen->place == PD_HEARTBEAT_SAVING && seen->storage_waits == 0 && seen->storage_done == 1);
    pd_heartbeat_enter(PD_HEARTBEAT_COMPUTING);
    PD_ON_STORAGE(cr_assert_eq(seen->place, PD_HEARTBEAT_STORAGE));
    cr_assert(seen->place == PD_HEARTBEAT_COMPUTING && seen->storage_done == 2);
    cr_assert_eq(seen->is_ended_by_parent, 0);
    pd_heartbeat_ended_by_parent();
    cr_assert_eq(seen->is_ended_by_parent, 1);
    pd_heartbeat_hold();
    cr_assert_eq(seen->is_held, 1);
    pd_heartbeat_unmap(seen, 1);
}

Test(heartbeat, what_a_rank_waits_for)
{
    const struct pd_heartbeat *seen = watch(1);
    pd_heartbeat_exchange_begin("an operation whose name is longer than its room");
    pd_heartbeat_waits_for(6);
    cr_assert(seen->exchange == 1 && seen->exchanges == 1 && seen->waits_for == 7 && seen->done == 0);
    cr_assert_str_eq((const char *)seen->operation, "an operation whose name is long");
    pd_heartbeat_exchange_end();
    cr_assert(seen->exchanges == 0 && seen->waits_for == 0 && seen->done == 1);
    pd_heartbeat_unmap(seen, 1);
}

/* Of a long one the end, where directories differ. */
Test(heartbeat, where_a_save_writes)
{
    const struct pd_heartbeat *seen = watch(1);
    char dir[300];
    memset(dir, 'a', sizeof dir);
    memcpy(dir + sizeof dir - 8, "/tier-1", 8);
    pd_heartbeat_tier("/shm/run");
    cr_assert_str_eq((const char *)seen->storage, "/shm/run");
    pd_heartbeat_tier(dir);
    cr_assert_str_eq((const char *)seen->storage, dir + strlen(dir) - 8 * PD_HEARTBEAT_STORAGE_WORDS + 1);
    pd_heartbeat_tier("");
    cr_assert_str_eq((const char *)seen->storage, "");
    pd_heartbeat_unmap(seen, 1);
}

Test(heartbeat, ranks_that_are_threads_have_one_each)
{
    const struct pd_heartbeat *seen = watch(RANKS);
    pd_rank_set_thread(-1);
    pd_heartbeat_block(1); /* of no rank */
    for (int rank = 0; rank <= RANKS; rank++) {
        pd_rank_set_thread(rank);
        pd_heartbeat_block(10 + (uint32_t)rank);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        cr_assert(seen[rank].block == 10 + rank && seen[rank].done == 1, "rank %u", rank);
    pd_heartbeat_hold();
    cr_assert(seen[0].is_held && seen[RANKS - 1].is_held);
    pd_heartbeat_unmap(seen, RANKS);
}

/* Then nobody looks, and whoever trains goes on. */
Test(heartbeat, without_files_or_memory_there_is_none)
{
    struct rlimit none = {0, RLIM_INFINITY}, before;
    int fd = -1;
    for (int i = 0; i < 2; i++) {
        const __rlimit_resource_t resource = i ? RLIMIT_AS : RLIMIT_NOFILE;
        cr_assert_eq(getrlimit(resource, &before), 0);
        none.rlim_max = before.rlim_max;
        cr_assert_eq(setrlimit(resource, &none), 0);
        const bool is_open = pd_heartbeat_open(1, &fd);
        cr_assert_eq(setrlimit(resource, &before), 0);
        cr_assert(!is_open && fd == -1);
    }
    pd_heartbeat_step(1);
}

/* A file that is no heartbeat's, and a process that is gone. */
Test(heartbeat, what_cannot_be_seen_is_not_mapped)
{
    int pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    cr_assert_null(pd_heartbeat_map(getpid(), pipes[0], 1));
    cr_assert_null(pd_heartbeat_map(-1, pipes[0], 1));
}
