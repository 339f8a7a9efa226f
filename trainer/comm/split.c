/* Splits a communicator. Three agreements on the parent: each rank's colour, where each part's shared memory is, and whether
 * all ranks succeeded. */
#include "trainer/comm/progress.h"

#include <stdlib.h>

struct split_request {
    uint32_t color, key;
};

struct split_plan {
    uint32_t *ranks; /* (size) of the parent, in the order of the new communicator */
    struct pd_member_info *members;
    uint32_t rank, size;
};

/* Insertion keeps ranks of equal key in rank order. */
static void plan_make(const struct pd_progress *parent, const struct split_request *requests, struct split_plan *plan)
{
    uint32_t mine = parent->comm.rank;
    for (uint32_t r = 0; r < parent->comm.size; r++) {
        if (requests[r].color != requests[mine].color) continue;
        uint32_t at = plan->size++;
        for (; at > 0 && requests[r].key < requests[plan->ranks[at - 1]].key; at--)
            plan->ranks[at] = plan->ranks[at - 1];
        plan->ranks[at] = r;
    }
    for (uint32_t i = 0; i < plan->size; i++) {
        plan->members[i] = parent->members[plan->ranks[i]];
        if (plan->ranks[i] == mine) plan->rank = i;
    }
}

/* Creates the segment, or attaches to the leader's. All ranks of the parent take part, even after an error; *ret_peers: the
 * common result. */
static pd_status segment_share(struct pd_progress *parent, const struct split_plan *plan, struct pd_segment_ticket *tickets,
                               struct pd_segment **ret_segment, pd_status *ret_peers, struct pd_error *err)
{
    struct pd_segment_ticket mine = {0};
    struct pd_segment *segment = NULL;
    uint32_t slots, slot = pd_progress_slot_of(plan->members, plan->size, plan->rank, &slots), leader = 0;
    while (plan->members[leader].domain != plan->members[plan->rank].domain)
        leader++;
    const struct pd_segment_shape shape = pd_progress_shape(parent->transport, plan->size, slots);
    pd_status st = PD_OK;
    if (leader == plan->rank) st = pd_segment_make(&shape, &mine, &segment, err);
    *ret_peers = pd_progress_all_gather(parent, &mine, sizeof mine, tickets, st ? NULL : err);
    if (!st && *ret_peers) st = *ret_peers;
    if (!st && leader != plan->rank) st = pd_segment_attach(&tickets[plan->ranks[leader]], &shape, &segment, err);
    if (segment) pd_segment_enter(segment, slot);
    *ret_segment = segment;
    return st;
}

/* Whether all ranks of the parent have what they need, threads included. */
static pd_status agree(struct pd_progress *parent, pd_status st, pd_status peers, struct pd_error *err)
{
    uint64_t failed = st != PD_OK;
    if (!peers) peers = pd_progress_all_reduce(&parent->comm, &failed, 1, PD_REDUCE_SUM_U64, st ? NULL : err);
    if (st || peers) return st ? st : peers;
    if (failed)
        PD_FAIL(err, PD_PEER_LOST, "%llu of %u ranks could not join a new communicator", (unsigned long long)failed,
                parent->comm.size);
    return PD_OK;
}

static pd_status split_with(struct pd_progress *parent, struct split_plan *plan, struct split_request *requests,
                            struct pd_segment_ticket *tickets, struct pd_comm **ret_comm, struct pd_error *err)
{
    struct split_request mine = requests[parent->comm.rank];
    PD_TRY(pd_progress_all_gather(parent, &mine, sizeof mine, requests, err));
    uint64_t id = parent->root->next_id;
    PD_TRY(pd_progress_all_reduce(&parent->comm, &id, 1, PD_REDUCE_MAX_U64, err));
    parent->root->next_id = (uint32_t)id + 1;
    plan_make(parent, requests, plan);
    struct pd_segment *segment = NULL;
    struct pd_progress *engine = NULL;
    pd_status peers, st = segment_share(parent, plan, tickets, &segment, &peers, err);
    if (!st)
        st = pd_progress_new(parent->transport, parent->root, (uint32_t)id, plan->rank, plan->size, plan->members, segment,
                             &engine, err);
    st = agree(parent, st, peers, err);
    if (st) {
        if (engine)
            pd_progress_free(&engine->comm); /* with the segment */
        else
            pd_segment_free(segment);
        return st;
    }
    pd_segment_close_ticket(segment);
    pd_segment_watch(segment, engine->slot);
    engine->comm.is_background = parent->comm.is_background;
    *ret_comm = &engine->comm;
    return PD_OK;
}

pd_status pd_progress_split(struct pd_comm *comm, const struct pd_comm_part *part, struct pd_comm **ret_comm,
                            struct pd_error *err)
{
    struct pd_progress *parent = pd_progress_of(comm);
    struct split_request *requests = calloc(comm->size, sizeof *requests);
    struct pd_segment_ticket *tickets = calloc(comm->size, sizeof *tickets);
    struct split_plan plan = {.ranks = calloc(comm->size, sizeof *plan.ranks),
                              .members = calloc(comm->size, sizeof *plan.members)};
    pd_status st;
    if (requests && tickets && plan.ranks && plan.members) {
        requests[comm->rank] = (struct split_request){.color = part->color, .key = part->key};
        st = split_with(parent, &plan, requests, tickets, ret_comm, err);
    } else {
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "splitting a communicator of %u ranks", comm->size);
    }
    free(requests);
    free(tickets);
    free(plan.ranks);
    free(plan.members);
    if (st) pd_progress_abort(comm); /* the others do not know how many operations this rank has completed */
    return pd_error_context(err, st, "splitting a communicator of %u ranks", comm->size);
}
