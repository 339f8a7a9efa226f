#include "tests/helpers/turns.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define TURNS_MAX 128u
#define STACK_BYTES ((size_t)1 << 20)

struct turn {
    ucontext_t context;
    char *stack; /* kept for the next one */
    void *(*entry)(void *);
    void *argument, *fake_stack;
    bool is_ready, has_ended;
};

static struct turn turns[TURNS_MAX];
static uint32_t turn_count;
static struct turn *now; /* NULL: outside */
static ucontext_t outside;
#if defined(__SANITIZE_ADDRESS__)
static void *outside_fake;
static const void *outside_stack;
static size_t outside_bytes;
#endif

static void leave(bool for_good)
{
    struct turn *me = now;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? NULL : &me->fake_stack, outside_stack, outside_bytes);
#else
    (void)for_good;
#endif
    swapcontext(&me->context, &outside);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(me->fake_stack, &outside_stack, &outside_bytes);
#endif
}

static void take(struct turn *turn)
{
    now = turn;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&outside_fake, turn->stack, STACK_BYTES);
#endif
    swapcontext(&outside, &turn->context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(outside_fake, NULL, NULL);
#endif
    now = NULL;
}

static void first_frame(void)
{
    struct turn *me = now;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &outside_stack, &outside_bytes);
#endif
    me->entry(me->argument);
    me->has_ended = true;
    turns_news();
    leave(true);
}

static uint32_t begin(void *(*entry)(void *), void *argument)
{
    struct turn *turn = &turns[turn_count];
    PD_CHECK(turn_count < TURNS_MAX);
    char *stack = turn->stack;
    if (!stack) stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    PD_CHECK(stack != MAP_FAILED);
    *turn = (struct turn){.stack = stack, .entry = entry, .argument = argument, .is_ready = true};
    getcontext(&turn->context);
    turn->context.uc_stack.ss_sp = stack;
    turn->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&turn->context, first_frame, 0);
    return turn_count++;
}

bool turns_run(uint64_t *dice, void *(*entry)(void *), void *const *arguments, uint32_t count)
{
    turn_count = 0;
    for (uint32_t i = 0; i < count; i++)
        begin(entry, arguments[i]);
    for (;;) {
        uint32_t ready[TURNS_MAX], ready_count = 0, left = 0;
        for (uint32_t i = 0; i < turn_count; i++) {
            left += !turns[i].has_ended;
            if (!turns[i].has_ended && turns[i].is_ready) ready[ready_count++] = i;
        }
        if (!left) return true;
        if (!ready_count) return false;
        take(&turns[ready[turns_roll(dice, ready_count)]]);
    }
}

void turns_wait(void)
{
    now->is_ready = false;
    leave(false);
}

void turns_news(void)
{
    for (uint32_t i = 0; i < turn_count; i++)
        turns[i].is_ready = true;
}

/* ---- threads ---- */

__typeof__(pthread_create) __real_pthread_create, __wrap_pthread_create;
__typeof__(pthread_join) __real_pthread_join, __wrap_pthread_join;
__typeof__(pthread_setname_np) __real_pthread_setname_np, __wrap_pthread_setname_np;
__typeof__(pthread_cond_wait) __real_pthread_cond_wait, __wrap_pthread_cond_wait;
__typeof__(pthread_cond_timedwait) __real_pthread_cond_timedwait, __wrap_pthread_cond_timedwait;
__typeof__(pthread_cond_broadcast) __real_pthread_cond_broadcast, __wrap_pthread_cond_broadcast;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*entry)(void *), void *argument)
{
    if (!now) return __real_pthread_create(thread, attributes, entry, argument);
    *thread = (pthread_t)begin(entry, argument);
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **ret)
{
    if (!now) return __real_pthread_join(thread, ret);
    while (!turns[thread].has_ended)
        turns_wait();
    return 0;
}

int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    return now ? 0 : __real_pthread_setname_np(thread, name);
}

static int wait_unlocked(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex);
    turns_wait();
    return pthread_mutex_lock(mutex);
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    return now ? wait_unlocked(mutex) : __real_pthread_cond_wait(condition, mutex);
}

/* What is waited for comes in time. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    return now ? wait_unlocked(mutex) : __real_pthread_cond_timedwait(condition, mutex, until);
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    if (!now) return __real_pthread_cond_broadcast(condition);
    turns_news();
    return 0;
}

/* ---- groups ---- */

enum { CALL_BARRIER, CALL_GATHER, CALL_BROADCAST, CALL_EXCHANGE };

static void carry_pieces(struct turn_team *team)
{
    for (uint32_t to = 0; to < team->size; to++) {
        uint32_t cursor[TURN_RANKS_MAX] = {0};
        const struct turn_offer *mine = &team->offers[to];
        for (uint32_t i = 0; i < mine->recv_count; i++) {
            const struct pd_group_piece *into = &mine->recvs[i];
            const struct turn_offer *from = &team->offers[into->peer];
            uint32_t *at = &cursor[into->peer];
            while (*at < from->send_count && from->sends[*at].peer != to)
                ++*at;
            PD_CHECK(*at < from->send_count && from->sends[*at].bytes == into->bytes);
            if (into->bytes) memmove(into->data, from->sends[*at].data, into->bytes);
            ++*at;
        }
    }
}

/* By the last one who came. */
static void carry(struct turn_team *team)
{
    const struct turn_offer *first = &team->offers[0];
    for (uint32_t r = 0; r < team->size; r++) {
        const struct turn_offer *o = &team->offers[r];
        team->is_at_odds |= o->call != first->call || o->root != first->root || o->bytes != first->bytes;
    }
    if (team->is_at_odds) return;
    const struct turn_offer *root = &team->offers[first->root];
    for (uint32_t r = 0; r < team->size && first->bytes; r++) {
        if (first->call == CALL_GATHER)
            memmove((char *)root->receive + r * first->bytes, team->offers[r].send, first->bytes);
        if (first->call == CALL_BROADCAST && r != first->root) memcpy(team->offers[r].receive, root->receive, first->bytes);
    }
    if (first->call == CALL_EXCHANGE) carry_pieces(team);
}

static bool lacks_one(const struct turn_team *team, uint64_t meeting)
{
    for (uint32_t r = 0; r < team->size; r++)
        if (*team->gone[r] && team->reached[r] < meeting) return true;
    return false;
}

static pd_status meet(struct pd_group *group, const struct turn_offer *offer, struct pd_error *err)
{
    struct turn_team *team = group->context;
    const uint64_t meeting = team->met + 1;
    team->look(team->context, group->rank);
    if (*team->gone[group->rank]) PD_FAIL(err, PD_PEER_LOST, "this rank is gone");
    team->offers[group->rank] = *offer;
    team->reached[group->rank] = meeting;
    if (++team->arrived == team->size) {
        carry(team);
        team->arrived = 0;
        team->met = meeting;
        turns_news();
    }
    while (team->met < meeting && !lacks_one(team, meeting) && !*team->gone[group->rank])
        turns_wait();
    if (team->met < meeting) { /* what it offers may go */
        team->arrived--;
        team->reached[group->rank] = 0;
        PD_FAIL(err, PD_PEER_LOST, "a rank is gone");
    }
    if (team->is_at_odds) PD_FAIL(err, PD_BUG, "ranks do not make the same collective call");
    return PD_OK;
}

static pd_status turn_barrier(struct pd_group *group, struct pd_error *err)
{
    return meet(group, &(struct turn_offer){.call = CALL_BARRIER}, err);
}

static pd_status turn_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *receive,
                             struct pd_error *err)
{
    return meet(group,
                &(struct turn_offer){.call = CALL_GATHER, .root = root, .send = send, .bytes = bytes, .receive = receive},
                err);
}

static pd_status turn_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    return meet(group, &(struct turn_offer){.call = CALL_BROADCAST, .root = root, .bytes = bytes, .receive = data}, err);
}

static pd_status turn_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                               const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    return meet(
        group,
        &(struct turn_offer){
            .call = CALL_EXCHANGE, .sends = sends, .send_count = send_count, .recvs = recvs, .recv_count = recv_count},
        err);
}

void turn_group_init(struct turn_team *team, uint32_t rank, uint32_t host, uint32_t host_count, struct pd_group *ret_group)
{
    static const struct pd_group_ops ops = {"turns", turn_barrier, turn_gather, turn_broadcast, turn_exchange};
    *ret_group = (struct pd_group){
        .ops = &ops, .rank = rank, .size = team->size, .host = host, .host_count = host_count, .context = team};
}
