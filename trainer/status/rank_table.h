/* What the ranks of one start have said so far, in the launcher's memory. The receiver writes it, the launcher reads it: one
 * thread. A start begins with an empty table. */
#pragma once

#include "trainer/status/message.h"

struct pd_rank_entry {
    bool has_begun, is_ready, has_ended, is_taken;
    struct pd_begun begun;
    struct pd_ended *ended;   /* owned; NULL: it has not ended, or not said so */
    struct pd_lost_gpu *lost; /* owned; NULL: it lost none */
};

struct pd_rank_table {
    struct pd_rank_entry *ranks;         /* (count) */
    uint32_t count, begun, ready, ended; /* count: processes; the others of them */
    bool is_training;                    /* rank 0 has begun its first step: there may be something to save */
    bool has_saved, has_suspect;
    uint64_t saved; /* the newest step that was committed */
    struct pd_suspect suspect;
};

PD_MUST_USE pd_status pd_rank_table_init(struct pd_rank_table *table, uint32_t count, struct pd_error *err);
void pd_rank_table_deinit(struct pd_rank_table *table);
/* Takes a message of a rank but BEGUN's answer. False: its payload is wrong, its rank is none, or it has begun already. */
bool pd_rank_table_take(struct pd_rank_table *table, const struct pd_message *message);
/* Files that Open MPI leaves in /dev/shm when a rank of this host is killed, 4 MiB each. */
void pd_rank_table_remove_memory(const struct pd_rank_table *table);
