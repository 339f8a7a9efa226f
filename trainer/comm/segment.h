/* Memory shared by the ranks of one domain: threads of one process, or processes of one host.
 *
 *   head      one
 *   members   one cache line per rank: bell, state, progress, process
 *   pairs     (slots, slots) of the channel's own type, row = sender; zero at the start
 *   mailboxes staging buffers, one per rank
 *
 *   invariants  1. a member's state changes once, away from PD_MEMBER_ALIVE
 *               2. a rank that changes what member m may be waiting for rings m's bell afterwards. A sleeper reads its bell
 *                  before it looks for work, so it misses no change
 *   memory      threads: anonymous memory. Processes: a memfd, which the others open through /proc/<pid>/fd, because
 *               /dev/shm is 64 MB in many containers and a memfd has no such limit
 */
#pragma once

#include "ckpt/base/status.h"
#include <stdalign.h>
#include <stdatomic.h>

#define PD_CACHE_LINE 64u

enum pd_member_state { PD_MEMBER_ALIVE, PD_MEMBER_LEFT, PD_MEMBER_BROKEN, PD_MEMBER_DEAD };

struct pd_member {
    alignas(PD_CACHE_LINE) _Atomic uint32_t bell; /* futex */
    _Atomic uint32_t sleeping;
    _Atomic uint32_t state;  /* enum pd_member_state */
    _Atomic uint32_t blamed; /* PD_MEMBER_BROKEN: the world rank that it found missing, plus 1 */
    _Atomic int32_t process;
};

struct pd_segment_head {
    uint64_t magic, bytes;
    _Atomic uint32_t users; /* threads only */
    uint32_t slots;
};

struct pd_segment_shape {
    uint32_t slots;
    bool is_processes;
    uint64_t pair_bytes, mailbox_bytes; /* mailbox_bytes: a multiple of 4096, 0 for none */
};

struct pd_segment {
    struct pd_segment_shape shape;
    struct pd_segment_head *head;
    struct pd_member *members; /* (slots) */
    uint8_t *pairs;            /* (slots, slots) of pair_bytes */
    uint8_t *mailboxes;        /* (slots, mailbox_bytes) */
    int descriptor;            /* memfd of the creator until pd_segment_close_ticket, else -1 */
    int *watches;              /* (slots) pidfd of the other processes, or -1 */
};

/* Tells another rank of the same domain how to find the segment. Plain data, sent between ranks. */
struct pd_segment_ticket {
    uint64_t address; /* threads */
    int32_t process, descriptor;
    uint64_t made; /* 0: creating it failed */
};

/* Bytes of a segment divided by its slots: the share of each rank. */
uint64_t pd_segment_share_bytes(const struct pd_segment_shape *shape);
PD_MUST_USE pd_status pd_segment_make(const struct pd_segment_shape *shape, struct pd_segment_ticket *ret_ticket,
                                      struct pd_segment **ret_segment, struct pd_error *err);
PD_MUST_USE pd_status pd_segment_attach(const struct pd_segment_ticket *ticket, const struct pd_segment_shape *shape,
                                        struct pd_segment **ret_segment, struct pd_error *err);
void pd_segment_close_ticket(struct pd_segment *segment); /* all others are attached */
void pd_segment_free(struct pd_segment *segment);

/* Makes this rank member `slot`. All ranks call it once, then synchronise, then call watch. */
void pd_segment_enter(struct pd_segment *segment, uint32_t slot);
void pd_segment_watch(struct pd_segment *segment, uint32_t own_slot);

static inline void *pd_segment_pair(const struct pd_segment *segment, uint32_t sender, uint32_t receiver)
{
    return segment->pairs + ((uint64_t)sender * segment->shape.slots + receiver) * segment->shape.pair_bytes;
}

void pd_segment_ring(struct pd_segment *segment, uint32_t slot);
/* Sleeps until slot's bell differs from `seen` or `timeout_ns` passed; may wake early. */
void pd_segment_sleep(struct pd_segment *segment, uint32_t slot, uint32_t seen, uint64_t timeout_ns);

/* Marks members as dead if their processes have ended. Costs system calls. */
void pd_segment_look(struct pd_segment *segment);
/* Returns whether the process of another member has ended, whatever its state says. */
bool pd_segment_has_lost(const struct pd_segment *segment, uint32_t own_slot);

/* Sets the state, once, and wakes all members. blamed_rank: the world rank found missing, or PD_NOBODY. */
#define PD_NOBODY UINT32_MAX
void pd_segment_depart(struct pd_segment *segment, uint32_t slot, enum pd_member_state state, uint32_t blamed_rank);
