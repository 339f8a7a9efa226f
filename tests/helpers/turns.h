/* Threads that take turns: the threads of what is tested are stacks of one thread, and a seed decides whose turn is next, so that
 * a whole run of many ranks repeats exactly. A turn ends where a thread waits: for a condition, for another's end, for its group.
 *
 * turns.c stands before pthread_create, pthread_join, pthread_cond_* and pthread_setname_np (ld --wrap); outside of turns_run
 * these are the real ones. A mutex is never waited for, since nobody waits while he holds one. */
#pragma once

#include "ckpt/group/group.h"

#define TURN_RANKS_MAX 16u

/* Runs until all that have begun have ended. False: nobody can go on. */
bool turns_run(uint64_t *dice, void *(*entry)(void *), void *const *arguments, uint32_t count);
void turns_wait(void); /* until there is news; may return without */
void turns_news(void);

static inline uint64_t turns_roll(uint64_t *dice, uint64_t below)
{
    uint64_t x = *dice += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) % below;
}

/* ---- groups of such threads ---- */

struct turn_offer {
    const void *send;
    void *receive; /* NULL: gets nothing */
    uint64_t bytes;
    uint32_t root;
    int call;
    const struct pd_group_piece *sends, *recvs;
    uint32_t send_count, recv_count;
};

/* A meeting fails on all others when a member that has not reached it is gone. */
struct turn_team {
    uint32_t size, arrived;
    uint64_t met;
    uint64_t reached[TURN_RANKS_MAX];
    const bool *gone[TURN_RANKS_MAX]; /* of each rank's process */
    struct turn_offer offers[TURN_RANKS_MAX];
    void (*look)(void *, uint32_t rank); /* called before every meeting: may find out that its process is gone */
    void *context;
    bool is_at_odds;
};

void turn_group_init(struct turn_team *team, uint32_t rank, uint32_t host, uint32_t host_count, struct pd_group *ret_group);
