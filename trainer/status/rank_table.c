#include "trainer/status/rank_table.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pd_status pd_rank_table_init(struct pd_rank_table *t, uint32_t count, struct pd_error *err)
{
    *t = (struct pd_rank_table){.ranks = calloc(count, sizeof *t->ranks), .count = count};
    if (!t->ranks) PD_FAIL(err, PD_NO_MEMORY, "no memory for a table of %u ranks", count);
    return PD_OK;
}

void pd_rank_table_deinit(struct pd_rank_table *t)
{
    for (uint32_t r = 0; t->ranks && r < t->count; r++) {
        free(t->ranks[r].ended);
        free(t->ranks[r].lost);
    }
    free(t->ranks);
    *t = (struct pd_rank_table){.ranks = NULL};
}

static bool take_begun(struct pd_rank_table *t, const struct pd_message *m)
{
    struct pd_begun begun;
    struct pd_rank_entry *r = &t->ranks[m->rank];
    if (r->has_begun || !pd_message_parse_begun(m, &begun)) return false;
    r->begun = begun;
    r->has_begun = true;
    t->begun++;
    return true;
}

static bool take_ended(struct pd_rank_table *t, const struct pd_message *m)
{
    struct pd_rank_entry *r = &t->ranks[m->rank];
    struct pd_ended ended;
    if (!pd_message_parse_ended(m, &ended)) return false;
    if (!r->ended) r->ended = malloc(sizeof *r->ended);
    if (!r->ended) return false;
    *r->ended = ended;
    t->ended += !r->has_ended;
    r->has_ended = true;
    return true;
}

static bool take_lost(struct pd_rank_table *t, const struct pd_message *m)
{
    struct pd_rank_entry *r = &t->ranks[m->rank];
    struct pd_lost_gpu lost;
    if (!pd_message_parse_gpu(m, &lost)) return false;
    if (!r->lost) r->lost = malloc(sizeof *r->lost);
    if (!r->lost) return false;
    *r->lost = lost;
    return true;
}

bool pd_rank_table_take(struct pd_rank_table *t, const struct pd_message *m)
{
    if (m->rank >= t->count) return false;
    struct pd_rank_entry *r = &t->ranks[m->rank];
    switch (m->kind) {
    case PD_MESSAGE_BEGUN:
        return take_begun(t, m);
    case PD_MESSAGE_READY:
        t->ready += !r->is_ready;
        return r->is_ready = true;
    case PD_MESSAGE_TRAINING:
        return t->is_training = true;
    case PD_MESSAGE_SAVED:
        return t->has_saved = pd_message_parse_saved(m, &t->saved);
    case PD_MESSAGE_GPU:
        return take_lost(t, m);
    case PD_MESSAGE_SUSPECT:
        return t->has_suspect = pd_message_parse_suspect(m, &t->suspect);
    case PD_MESSAGE_TAKEN:
        return r->is_taken = true;
    case PD_MESSAGE_ENDED:
        return take_ended(t, m);
    default:
        return false;
    }
}

/* Named by host, user, number of the job and rank. */
void pd_rank_table_remove_memory(const struct pd_rank_table *t)
{
    uint32_t last = 0;
    for (uint32_t r = 0; r < t->count; r++) {
        const struct pd_begun *b = &t->ranks[r].begun;
        char pattern[128];
        glob_t found;
        if (!t->ranks[r].has_begun || !b->is_here || !b->mpi_job || b->mpi_job == last) continue;
        last = b->mpi_job;
        snprintf(pattern, sizeof pattern, "/dev/shm/vader_segment.*.%u.%x.*", (unsigned)geteuid(), b->mpi_job);
        if (glob(pattern, GLOB_NOSORT, NULL, &found)) continue;
        for (size_t i = 0; i < found.gl_pathc; i++)
            unlink(found.gl_pathv[i]);
        globfree(&found);
    }
}
