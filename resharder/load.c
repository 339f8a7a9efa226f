/* Carries out a transfer plan. Round k+1 is on its way from the disk while round k is verified and exchanged.
 *
 *   invariants  1. nothing of a block is sent before its checksum verified
 *               2. every rank takes part in every round's agreement and exchange, with or without data of its own
 *               3. pieces between two ranks are named in the same order on both sides: by item, then by element */
#include "resharder/load.h"

#include "resharder/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pieces {
    struct pd_group_piece *data;
    uint32_t count, capacity;
    bool failed;
};

struct loader {
    struct pd_door *door;
    struct pd_group *group;
    const struct pd_load_request *request;
    struct pd_plan *plan;
    struct pd_queue *queue;
    struct pd_shard **shards;      /* (stored shards) those this rank reads */
    struct pd_transfer *transfers; /* (items of this reader) */
    uint64_t window_bytes;
    uint64_t next_item[2]; /* first item of the round in each window; read-ahead position */
    uint32_t in_flight;
    struct pieces sends, recvs;
    struct pd_load_report report;
};

static void append_piece(struct pieces *p, uint32_t peer, void *data, uint64_t bytes)
{
    if (p->count == p->capacity) {
        uint32_t capacity = p->capacity ? p->capacity * 2 : 256;
        struct pd_group_piece *grown = realloc(p->data, capacity * sizeof *grown);
        if (!grown) {
            p->failed = true;
            return;
        }
        p->data = grown;
        p->capacity = capacity;
    }
    p->data[p->count++] = (struct pd_group_piece){peer, data, bytes};
}

/* ---- shards ---- */

static void shard_path(const struct loader *l, uint32_t shard, char *ret_path, size_t room)
{
    snprintf(ret_path, room, "%s/shard-%05u.h5", l->request->directory, shard);
}

/* host_has for the plan: the first rank of each host looks, everybody learns. */
static pd_status find_shards(struct loader *l, uint8_t **ret_host_has, uint32_t **ret_reader_host, struct pd_error *err)
{
    const uint32_t shards = l->request->commit->shard_count, size = l->group->size, hosts = l->group->host_count;
    uint64_t row = shards + sizeof(uint32_t);
    uint8_t *mine = calloc(1, row), *all = calloc(size, row), *host_has = calloc(hosts, shards);
    uint32_t *reader_host = calloc(size, sizeof *reader_host);
    pd_status st = mine && all && host_has && reader_host
                       ? PD_OK
                       : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "load: no memory to list %u shards", shards);
    if (!st) {
        memcpy(mine, &l->group->host, sizeof(uint32_t));
        for (uint32_t s = 0; s < shards; s++) {
            char path[4096];
            struct pd_stat stat;
            shard_path(l, s, path, sizeof path);
            mine[sizeof(uint32_t) + s] = pd_door_stat(l->door, path, &stat, NULL) == PD_OK;
        }
    }
    st = pd_group_agree(l->group, st, err);
    if (!st) st = pd_group_gather(l->group, 0, mine, row, all, err);
    if (!st) st = pd_group_broadcast(l->group, 0, all, size * row, err);
    for (uint32_t r = 0; !st && r < size; r++) {
        memcpy(&reader_host[r], all + r * row, sizeof(uint32_t));
        for (uint32_t s = 0; s < shards; s++)
            if (all[r * row + sizeof(uint32_t) + s]) host_has[(uint64_t)reader_host[r] * shards + s] = 1;
    }
    free(mine);
    free(all);
    if (st) {
        free(host_has);
        free(reader_host);
        return st;
    }
    *ret_host_has = host_has;
    *ret_reader_host = reader_host;
    return PD_OK;
}

static bool same_box(const struct pd_box *a, const struct pd_box *b)
{
    return !memcmp(a, b, sizeof *a);
}

/* The shard's own table must say what the layout function says. */
static pd_status check_table(struct loader *l, uint32_t shard, struct pd_error *err)
{
    const struct pd_shard *s = l->shards[shard];
    const struct pd_tensor_table *stored = pd_shard_tensors(s), *tensors = l->request->tensors;
    const struct pd_shard_box *boxes = pd_shard_boxes(s), *expected = l->plan->shard_boxes[shard];
    if (pd_shard_box_count(s) != l->plan->shard_box_count[shard])
        PD_FAIL(err, PD_INVALID, "shard-%05u.h5 holds %u boxes where its layout gives %u: it belongs to another model",
                shard, pd_shard_box_count(s), l->plan->shard_box_count[shard]);
    for (uint32_t b = 0; b < pd_shard_box_count(s); b++) {
        const struct pd_tensor *have = &stored->tensors[boxes[b].tensor], *want = &tensors->tensors[expected[b].tensor];
        if (strcmp(have->name, want->name) || have->ndim != want->ndim ||
            memcmp(have->shape, want->shape, sizeof have->shape))
            PD_FAIL(err, PD_INVALID,
                    "shard-%05u.h5 holds %s (%llu x %llu) where the model has %s (%llu x %llu): the checkpoint is of "
                    "another model",
                    shard, have->name, (unsigned long long)have->shape[0], (unsigned long long)have->shape[1], want->name,
                    (unsigned long long)want->shape[0], (unsigned long long)want->shape[1]);
        if (boxes[b].kind != expected[b].kind || !same_box(&boxes[b].box, &expected[b].box))
            PD_FAIL(err, PD_CORRUPT, "shard-%05u.h5: box %u of %s is not where the layout puts it", shard, b, have->name);
    }
    return PD_OK;
}

static pd_status open_shard(struct loader *l, uint32_t shard, struct pd_error *err)
{
    if (l->shards[shard]) return PD_OK;
    const struct pd_commit *commit = l->request->commit;
    char path[4096];
    shard_path(l, shard, path, sizeof path);
    PD_TRY(pd_shard_open(l->door, path, &commit->state.identity, &commit->shards[shard], &l->shards[shard], err));
    return check_table(l, shard, err);
}

/* ---- reading ---- */

static uint64_t first_item(const struct loader *l)
{
    return l->plan->reader_first[l->group->rank];
}

static uint64_t end_item(const struct loader *l)
{
    return l->plan->reader_first[l->group->rank + 1];
}

static char *window(const struct loader *l, uint32_t round)
{
    return (char *)l->request->buffers + (round & 1) * l->window_bytes;
}

static bool is_direct_read(const struct loader *l, const struct pd_read_item *item)
{
    return pd_shard_box_offset(l->shards[item->shard], item->box) % PD_DOOR_ALIGN == 0 &&
           pd_shard_box_bytes(l->shards[item->shard], item->box) >= PD_DOOR_ALIGN;
}

/* Whole pages of the item: a box of a page or more owns the pages it ends in. */
static pd_status submit_item(struct loader *l, uint64_t index, struct pd_error *err)
{
    const struct pd_read_item *item = &l->plan->items[index];
    PD_TRY(open_shard(l, item->shard, err));
    struct pd_transfer *t = &l->transfers[index - first_item(l)];
    *t = (struct pd_transfer){.file = pd_shard_file(l->shards[item->shard]),
                              .data = window(l, item->round) + item->window_offset,
                              .offset = pd_shard_box_offset(l->shards[item->shard], item->box) +
                                        item->first_block * PD_SHARD_BLOCK_BYTES,
                              .bytes = (item->bytes + PD_DOOR_ALIGN - 1) / PD_DOOR_ALIGN * PD_DOOR_ALIGN};
    l->report.bytes_wanted += item->bytes;
    l->report.bytes_read += t->bytes;
    if (!is_direct_read(l, item))
        return pd_shard_read_blocks(l->shards[item->shard], item->box, item->first_block, item->block_count, t->data, err);
    t->user = t;
    PD_TRY(pd_queue_submit(l->queue, &t, 1, err));
    l->in_flight++;
    return PD_OK;
}

static pd_status submit_round(struct loader *l, uint32_t round, struct pd_error *err)
{
    uint64_t i = l->next_item[1];
    l->next_item[0] = i;
    for (; i < end_item(l) && l->plan->items[i].round == round; i++) {
        pd_status st = submit_item(l, i, err);
        if (st) return st;
    }
    l->next_item[1] = i;
    return PD_OK;
}

/* Waits for every transfer in flight; the first failure is returned after all are back, since buffers are lent until then.
 */
static pd_status reap_all(struct loader *l, struct pd_error *err)
{
    pd_status first = PD_OK;
    while (l->in_flight) {
        struct pd_transfer *done[64];
        uint32_t count = 0;
        PD_TRY(pd_queue_reap(l->queue, done, 64, &count, err));
        PD_CHECK(count > 0);
        l->in_flight -= count;
        for (uint32_t i = 0; i < count; i++)
            if (done[i]->status && !first)
                first = pd_error_set(err, done[i]->status, PD_WHERE, done[i]->sys_errno, "%s: reading %llu bytes at %llu",
                                     pd_file_path(done[i]->file), (unsigned long long)done[i]->bytes,
                                     (unsigned long long)done[i]->offset);
    }
    return first;
}

static pd_status verify_item(struct loader *l, const struct pd_read_item *item, struct pd_error *err)
{
    struct pd_shard *shard = l->shards[item->shard];
    if (!is_direct_read(l, item)) return PD_OK; /* verified while it was read */
    char *data = window(l, item->round) + item->window_offset;
    for (uint64_t b = 0; b < item->block_count; b++) {
        char *block = data + b * PD_SHARD_BLOCK_BYTES;
        if (pd_shard_verify_block(shard, item->box, item->first_block + b, block, NULL) == PD_OK) continue;
        PD_TRY(pd_shard_read_blocks(shard, item->box, item->first_block + b, 1, block, err));
    }
    return PD_OK;
}

static pd_status verify_round(struct loader *l, uint64_t begin, uint64_t end, struct pd_error *err)
{
    for (uint64_t i = begin; i < end; i++)
        PD_TRY(verify_item(l, &l->plan->items[i], err));
    return PD_OK;
}

/* ---- exchange ---- */

struct run_context {
    struct loader *l;
    const struct pd_read_item *item;
    uint32_t peer;
};

static void visit_send(void *context, const struct pd_transfer_run *run)
{
    struct run_context *c = context;
    append_piece(&c->l->sends, c->peer, window(c->l, c->item->round) + c->item->window_offset + run->item_offset,
                 run->bytes);
}

static void visit_recv(void *context, const struct pd_transfer_run *run)
{
    struct run_context *c = context;
    const struct pd_shard_box *stored = &c->l->plan->shard_boxes[c->item->shard][c->item->box];
    char *box = c->l->request->destination(c->l->request->context, stored->tensor, stored->kind, run->wanted_box);
    append_piece(&c->l->recvs, c->peer, box + run->wanted_offset, run->bytes);
}

static pd_status exchange_round(struct loader *l, uint32_t round, uint64_t *reader_position, struct pd_error *err)
{
    const struct pd_plan *plan = l->plan;
    const uint32_t me = l->group->rank;
    l->sends.count = l->recvs.count = 0;
    for (uint32_t reader = 0; reader < l->group->size; reader++) {
        uint64_t i = reader_position[reader];
        for (; i < plan->reader_first[reader + 1] && plan->items[i].round == round; i++) {
            struct run_context c = {l, &plan->items[i], reader};
            pd_plan_runs(plan, &plan->items[i], me, visit_recv, &c);
            for (uint32_t to = 0; reader == me && to < l->group->size; to++) {
                c.peer = to;
                pd_plan_runs(plan, &plan->items[i], to, visit_send, &c);
            }
        }
        reader_position[reader] = i;
    }
    pd_status st = l->sends.failed || l->recvs.failed
                       ? pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "load: no memory for the pieces of a round")
                       : PD_OK;
    PD_TRY(pd_group_agree(l->group, st, err));
    return pd_group_exchange(l->group, l->sends.data, l->sends.count, l->recvs.data, l->recvs.count, err);
}

static pd_status run_rounds(struct loader *l, uint64_t *reader_position, struct pd_error *err)
{
    l->next_item[1] = first_item(l);
    pd_status st = submit_round(l, 0, err);
    for (uint32_t round = 0; round < l->plan->round_count; round++) {
        uint64_t begin = l->next_item[0], end = l->next_item[1];
        pd_status reaped = reap_all(l, st ? NULL : err);
        if (!st) st = reaped;
        if (!st && round + 1 < l->plan->round_count) st = submit_round(l, round + 1, err);
        if (!st) st = verify_round(l, begin, end, err);
        st = pd_group_agree(l->group, st, err);
        if (!st) st = exchange_round(l, round, reader_position, err);
        if (st) {
            reaped = reap_all(l, NULL);
            return st;
        }
    }
    return PD_OK;
}

static pd_status prepare(struct loader *l, const uint8_t *host_has, const uint32_t *reader_host, struct pd_error *err)
{
    const struct pd_load_request *r = l->request;
    l->window_bytes = r->buffer_bytes / 2 / PD_DOOR_ALIGN * PD_DOOR_ALIGN;
    PD_CHECK(l->window_bytes >= 2 * PD_SHARD_BLOCK_BYTES);
    if (pd_layout_world(&r->commit->state.layout) != r->commit->shard_count)
        PD_FAIL(err, PD_CORRUPT, "%s: the record lists %u shards where its layout has %u ranks", r->directory,
                r->commit->shard_count, pd_layout_world(&r->commit->state.layout));
    struct pd_plan_input input = {.tensors = r->tensors,
                                  .stored = &r->commit->state.layout,
                                  .wanted = r->wanted,
                                  .kinds = r->kinds,
                                  .tensor_wanted = r->tensor_wanted,
                                  .readers = l->group->size,
                                  .reader_host = reader_host,
                                  .host_count = l->group->host_count,
                                  .host_has = host_has,
                                  .window_bytes = l->window_bytes};
    PD_TRY(pd_plan_new(&input, &l->plan, err));
    l->report.rounds = l->plan->round_count;
    l->shards = calloc(r->commit->shard_count, sizeof *l->shards);
    l->transfers = calloc(end_item(l) - first_item(l) + 1, sizeof *l->transfers);
    if (!l->shards || !l->transfers) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for %u shards", r->commit->shard_count);
    return pd_queue_open(l->door, r->buffers, r->buffer_bytes, &l->queue, err);
}

static void release(struct loader *l)
{
    if (l->queue) pd_queue_close(l->queue);
    for (uint32_t s = 0; l->shards && s < l->request->commit->shard_count; s++)
        pd_shard_close(l->shards[s]);
    free(l->shards);
    free(l->transfers);
    free(l->sends.data);
    free(l->recvs.data);
    pd_plan_free(l->plan);
}

pd_status pd_load(struct pd_door *door, struct pd_group *group, const struct pd_load_request *request,
                  struct pd_load_report *ret_report, struct pd_error *err)
{
    struct loader l = {.door = door, .group = group, .request = request};
    uint8_t *host_has = NULL;
    uint32_t *reader_host = NULL;
    uint64_t *reader_position = NULL;
    pd_status st = find_shards(&l, &host_has, &reader_host, err);
    if (!st) {
        st = pd_group_agree(group, prepare(&l, host_has, reader_host, err), err);
        reader_position = calloc(group->size, sizeof *reader_position);
        for (uint32_t r = 0; !st && r < group->size; r++)
            reader_position[r] = l.plan->reader_first[r];
    }
    if (!st) st = run_rounds(&l, reader_position, err);
    release(&l);
    free(host_has);
    free(reader_host);
    free(reader_position);
    if (st) return pd_error_context(err, st, "loading %s", request->directory);
    if (ret_report) *ret_report = l.report;
    return PD_OK;
}
