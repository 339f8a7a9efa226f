/* Executes a transfer plan. Rounds k+1, k+2, ... are being read from the disk while round k is verified and exchanged, so
 * that the disk never waits for us.
 *
 *   invariants  1. nothing of a block leaves its window, or the place it was read to, before its checksum verified
 *               2. every rank takes part in every round's agreement and exchange, with or without data of its own
 *               3. pieces between two ranks are named in the same order on both sides: by item, then by element */
#include "ckpt/base/checked.h"
#include "ckpt/base/grow.h"
#include "resharder/load/internal.h"

#include "ckpt/base/stream_copy.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/inspect/inspect.h"
#include "ckpt/shard/decompress.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART_BLOCKS UINT64_C(4) /* of an item, verified and then copied by one thread: they stay in its cache */

static void append_piece(struct load_pieces *p, uint32_t peer, void *data, uint64_t bytes)
{
    p->failed = p->failed || !pd_grow(&p->data, p->count, sizeof *p->data);
    if (!p->failed) p->data[p->count++] = (struct pd_group_piece){peer, data, bytes};
}

/* ---- comparing with the model ---- */

static void shape_text(const struct pd_tensor *tensor, char *ret, size_t capacity)
{
    size_t used = 0;
    for (uint32_t d = 0; d < tensor->ndim && used < capacity; d++)
        used +=
            (size_t)snprintf(ret + used, capacity - used, "%s%llu", d ? " x " : "", (unsigned long long)tensor->shape[d]);
}

/* Shards have tensors in model order, so the search starts after the last hit. */
static const struct pd_tensor *find_next(const struct pd_tensor_table *model, const char *name, uint32_t *cursor)
{
    for (uint32_t i = 0; i < model->count; i++) {
        const uint32_t t = (*cursor + i) % model->count;
        if (strcmp(model->tensors[t].name, name) != 0) continue;
        *cursor = t;
        return &model->tensors[t];
    }
    return NULL;
}

/* Finds tensors of the checkpoint, or of a shard, that the model lacks or has differently. */
static pd_status check_stored(const struct pd_tensor_table *stored, const struct pd_tensor_table *model,
                              struct pd_error *err)
{
    uint32_t cursor = 0;
    for (uint32_t t = 0; t < stored->count; t++) {
        const struct pd_tensor *have = &stored->tensors[t], *want = find_next(model, have->name, &cursor);
        if (!want)
            PD_FAIL(err, PD_INVALID, "the checkpoint is of another model: it holds %s, which this model does not have",
                    have->name);
        char is[100], shall[100];
        if (have->ndim == want->ndim && !memcmp(have->shape, want->shape, sizeof have->shape)) continue;
        shape_text(have, is, sizeof is);
        shape_text(want, shall, sizeof shall);
        PD_FAIL(err, PD_INVALID, "the checkpoint is of another model: %s is %s there and %s here", have->name, is, shall);
    }
    return PD_OK;
}

/* Looks at all shards to describe the difference in one sentence. */
static pd_status explain(const struct loader *l, struct pd_error *err)
{
    const struct pd_tensor_table *model = l->request->tensors;
    struct pd_inspect *inspect = NULL;
    PD_TRY(pd_inspect_open(l->vfs, l->request->directory, &inspect, err));
    const struct pd_tensor_table *stored = pd_inspect_tensors(inspect);
    pd_status st = check_stored(stored, model, err);
    for (uint32_t t = 0; !st && t < model->count; t++)
        if (pd_tensor_table_find(stored, model->tensors[t].name) < 0)
            st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                              "the checkpoint is of another model: it lacks %s, which this model has",
                              model->tensors[t].name);
    pd_inspect_close(inspect);
    return st;
}

/* Checks that the shard's table matches the layout function. */
static pd_status check_table(struct loader *l, uint32_t shard, struct pd_error *err)
{
    const struct pd_tensor_table *model = l->request->tensors;
    struct pd_shard_box *expected = NULL;
    uint32_t count = 0;
    PD_TRY(check_stored(pd_shard_tensors(l->shards[shard]), model, err));
    PD_TRY(pd_layout_shard_boxes(&l->request->commit->state.layout, model, shard, &expected, &count, err));
    const bool same = pd_stored_has_boxes(l->shards[shard], model, expected, count);
    free(expected);
    if (same) return PD_OK;
    PD_TRY(explain(l, err));
    PD_FAIL(err, PD_CORRUPT, "shard-%05u.h5: its boxes are not where the layout puts them", shard);
}

static pd_status open_shard(struct loader *l, uint32_t shard, struct pd_error *err)
{
    if (l->shards[shard]) return PD_OK;
    const struct pd_commit *commit = l->request->commit;
    pd_status st = pd_stored_open_shard(l->vfs, l->request->directory, commit, shard, &l->shards[shard], err);
    if (!st) st = check_table(l, shard, err);
    return st ? load_blame(l, shard, st, err) : PD_OK;
}

/* Opens all shards that this rank reads, so that errors appear before any work. */
static pd_status open_shards(struct loader *l, struct pd_error *err)
{
    for (uint64_t i = 0; i < l->plan->item_count; i++)
        PD_TRY(open_shard(l, l->plan->items[i].shard, err));
    return PD_OK;
}

/* ---- where items go ---- */

/* Pieces of an item to or from `peer`; those that this rank owns itself are copied without the group. */
struct runs {
    struct loader *l;
    const struct pd_read_item *item;
    uint32_t peer;
    char *data; /* of the item */
};

/* Moments stored in another type than wanted are sent as bf16: the reader narrows an item after verifying it, the owner
 * widens what it received. */
static bool converts(const struct loader *l, const struct pd_read_item *item)
{
    return item->kind != PD_PARAM && l->request->tensors->tensors[item->tensor].moments != l->request->commit->state.moments;
}

static bool narrows(const struct loader *l, const struct pd_read_item *item)
{
    return converts(l, item) && l->request->commit->state.moments == PD_F32;
}

static bool widens(const struct loader *l, const struct pd_read_item *item)
{
    return converts(l, item) && !narrows(l, item);
}

/* Converts stored bytes to sent bytes. */
static uint64_t travelling(const struct loader *l, const struct pd_read_item *item, uint64_t bytes)
{
    return narrows(l, item) ? bytes / 2 : bytes;
}

static char *load_place_of(const struct loader *l, const struct pd_read_item *item, const struct pd_transfer_run *run)
{
    const struct pd_load_request *r = l->request;
    char *box = r->destination(r->context, item->tensor, item->kind, run->wanted_box);
    return box + (widens(l, item) ? 2 * run->wanted_offset : travelling(l, item, run->wanted_offset));
}

static void visit_whole(void *context, const struct pd_transfer_run *run)
{
    struct runs *own = context;
    if (run->bytes == own->item->bytes) own->data = load_place_of(own->l, own->item, run);
}

/* An item is read straight to its place if all of it lies there and the file takes any address. Whole pages only: the next
 * read then adjoins this one. */
static pd_status find_direct(struct loader *l, struct pd_error *err)
{
    l->direct = calloc(l->plan->item_count + 1, sizeof *l->direct);
    PD_TRY(PD_ALLOCATED(l->direct, err, "load: no memory for the places of a plan"));
    for (uint64_t i = 0; i < l->plan->item_count; i++) {
        const struct pd_read_item *item = &l->plan->items[i];
        struct runs own = {.l = l, .item = item};
        if (pd_file_is_direct(pd_shard_file(l->shards[item->shard])) || load_is_in_chunks(l, item) || converts(l, item) ||
            load_item_skip(l, item) || item->bytes % PD_VFS_ALIGN)
            continue;
        pd_plan_runs(l->plan, item, l->group->rank, visit_whole, &own);
        l->direct[i] = own.data;
    }
    return PD_OK;
}

static struct load_window *window_of(struct loader *l, uint32_t round)
{
    return &l->windows[round % LOAD_WINDOWS];
}

/* ---- reading ---- */

static pd_status submit_round(struct loader *l, uint32_t round, struct pd_error *err)
{
    struct load_window *w = window_of(l, round);
    w->begin = w->end = l->next_item;
    w->sent = 0;
    w->failed = NULL;
    while (w->end < l->plan->item_count && l->plan->items[w->end].round == round)
        PD_TRY(load_chunks_submit(l, w, &l->plan->items[w->end++], err));
    l->next_item = w->end;
    return load_chunks_submit_rest(l, w, round, err);
}

/* Submits reads for every round with a free window, while `round` and later ones occupy theirs: without the ring twice as
 * many bytes as it holds. */
static pd_status submit_ahead(struct loader *l, uint32_t round, struct pd_error *err)
{
    const uint64_t ahead = pd_min_u64(2 * l->request->buffer_bytes / l->window_bytes, LOAD_WINDOWS);
    while (l->next_round < l->plan->round_count && l->next_round < round + ahead && load_chunks_fit(l, l->next_round))
        PD_TRY(submit_round(l, l->next_round++, err));
    return PD_OK;
}

static pd_status reap_some(struct loader *l, struct pd_error *err)
{
    struct pd_transfer *done[64];
    uint32_t count = 0;
    PD_TRY(pd_queue_reap(l->queue, done, 64, &count, err));
    PD_CHECK(count > 0);
    for (uint32_t i = 0; i < count; i++) {
        struct load_window *w = done[i]->user;
        if (!--w->in_flight) pd_owner_release(&w->owner, "reads");
        if (done[i]->status && !w->failed) w->failed = done[i];
    }
    return PD_OK;
}

static pd_status reap_round(struct loader *l, uint32_t round, struct pd_error *err)
{
    struct load_window *w = window_of(l, round);
    while (w->in_flight)
        PD_TRY(reap_some(l, err));
    if (!w->failed) return PD_OK;
    pd_status st = pd_transfer_error(w->failed, err);
    for (uint32_t s = 0; s < l->request->commit->shard_count; s++)
        if (l->shards[s] && pd_shard_file(l->shards[s]) == w->failed->file) st = load_blame(l, s, st, err);
    return st;
}

/* The kernel may use buffers and transfers until all have been reaped. */
static void drain(struct loader *l)
{
    struct pd_transfer *done[64];
    for (uint32_t count = 1; count;) {
        const pd_status reaped = pd_queue_reap(l->queue, done, 64, &count, NULL);
        PD_CHECK(reaped == PD_OK);
    }
}

/* ---- verifying ---- */

static void visit_copy(void *context, const struct pd_transfer_run *run)
{
    const struct runs *own = context;
    char *place = load_place_of(own->l, own->item, run);
    const char *data = own->data + travelling(own->l, own->item, run->item_offset);
    if (widens(own->l, own->item))
        pd_widen_bf16(place, data, run->bytes / sizeof(uint16_t));
    else if (place != data)
        pd_stream_copy(place, data, travelling(own->l, own->item, run->bytes));
}

/* Copies what this rank itself wants of an item, or of some of its blocks. */
static void copy_own(struct loader *l, const struct pd_read_item *item, char *data)
{
    struct runs own = {.l = l, .item = item, .data = data};
    pd_plan_runs(l->plan, item, l->group->rank, visit_copy, &own);
}

/* Verifies the blocks from the first bad one on, then copies them while they are in the cache. Narrowing moves the data of
 * the item, so it waits until all threads have verified. */
static pd_status verify_part(struct loader *l, struct load_part *part, bool reads_again, struct pd_error *err)
{
    const struct pd_read_item *item = &part->item;
    struct pd_shard *shard = l->shards[item->shard];
    for (; part->good < item->block_count; part->good++) {
        char *block = part->data + part->good * PD_SHARD_BLOCK_BYTES;
        const uint64_t number = item->first_block + part->good;
        PD_TRY(reads_again ? pd_stored_verify_block(shard, item->box, number, block, err)
                           : pd_shard_verify_block(shard, item->box, number, block, err));
    }
    if (!narrows(l, item)) copy_own(l, item, part->data);
    return PD_OK;
}

static void verify_some(void *context, uint64_t index)
{
    struct loader *l = context;
    l->parts[index].status = verify_part(l, &l->parts[index], false, NULL);
}

static pd_status add_parts(struct loader *l, const struct pd_read_item *item, struct pd_error *err)
{
    for (uint64_t at = 0; at < item->block_count; at += PART_BLOCKS) {
        const uint64_t begin = at * PD_SHARD_BLOCK_BYTES;
        struct load_part part = {.item = *item, .data = load_chunks_data(l, item) + begin};
        part.item.first_block += at;
        part.item.block_count = pd_min_u64(item->block_count - at, PART_BLOCKS);
        part.item.bytes = pd_min_u64(item->bytes - begin, PART_BLOCKS * PD_SHARD_BLOCK_BYTES);
        PD_TRY(PD_ALLOCATED(pd_grow(&l->parts, l->part_count, sizeof part), err, "load: no memory to verify a round"));
        l->parts[l->part_count++] = part;
    }
    return PD_OK;
}

/* All threads verify and copy. Then this one reads again what mismatched, in the order of the file. */
static pd_status verify_round(struct loader *l, const struct load_window *w, struct pd_error *err)
{
    l->part_count = 0;
    for (uint64_t i = w->begin; i < w->end; i++)
        PD_TRY(add_parts(l, &l->plan->items[i], err));
    pd_parallel(l->request->pool, l->part_count, verify_some, l);
    for (uint32_t i = 0; i < l->part_count; i++) {
        struct load_part *part = &l->parts[i];
        const pd_status st = part->status ? verify_part(l, part, true, err) : PD_OK;
        if (st) return load_blame(l, part->item.shard, st, err);
    }
    for (uint64_t i = w->begin; i < w->end; i++) {
        const struct pd_read_item *item = &l->plan->items[i];
        char *data = load_chunks_data(l, item);
        if (!narrows(l, item)) continue;
        pd_narrow_bf16(data, data, item->bytes / sizeof(float));
        copy_own(l, item, data);
    }
    return PD_OK;
}

/* ---- exchange ---- */

static void visit_send(void *context, const struct pd_transfer_run *run)
{
    struct runs *c = context;
    char *data = load_chunks_data(c->l, c->item) + travelling(c->l, c->item, run->item_offset);
    append_piece(&c->l->sends, c->peer, data, travelling(c->l, c->item, run->bytes));
}

static void visit_recv(void *context, const struct pd_transfer_run *run)
{
    struct runs *c = context;
    const uint64_t skip = widens(c->l, c->item) ? run->bytes : 0; /* ends where the fp32 will end */
    append_piece(&c->l->recvs, c->peer, load_place_of(c->l, c->item, run) + skip, travelling(c->l, c->item, run->bytes));
}

static void visit_widen(void *context, const struct pd_transfer_run *run)
{
    struct runs *c = context;
    char *place = load_place_of(c->l, c->item, run);
    pd_widen_bf16(place, place + run->bytes, run->bytes / sizeof(uint16_t));
}

static void name_sends(struct loader *l, const struct pd_read_item *item)
{
    struct pd_owner_run owners[PD_LAYOUT_CHUNKS_MAX];
    struct runs c = {.l = l, .item = item};
    uint32_t count = pd_plan_owners(l->plan, item, owners);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < owners[i].count; k++) {
            c.peer = owners[i].first + k * owners[i].stride;
            if (c.peer != l->group->rank) pd_plan_runs(l->plan, item, c.peer, visit_send, &c);
        }
}

/* Names a round's pieces: what goes to whom, and what comes from whom. */
static pd_status name_pieces(struct loader *l, uint32_t round, struct pd_error *err)
{
    const struct pd_plan *plan = l->plan;
    const struct load_window *w = window_of(l, round);
    l->sends.count = l->recvs.count = 0;
    for (uint64_t i = w->begin; i < w->end; i++)
        name_sends(l, &plan->items[i]);
    for (; l->next_coming < plan->coming_count && plan->coming[l->next_coming].round == round; l->next_coming++) {
        const struct pd_read_item *item = &plan->coming[l->next_coming];
        struct runs c = {.l = l, .item = item, .peer = item->reader};
        pd_plan_runs(plan, item, l->group->rank, visit_recv, &c);
    }
    if (l->sends.failed || l->recvs.failed) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for the pieces of a round");
    return PD_OK;
}

static pd_status run_round(struct loader *l, uint32_t round, struct pd_error *err)
{
    struct pd_owner *owner = &window_of(l, round)->owner;
    const uint64_t first_coming = l->next_coming;
    pd_status st = submit_ahead(l, round, err);
    if (!st) st = reap_round(l, round, err);
    if (!st) pd_owner_acquire(owner, "round");
    if (!st) st = load_chunks_decompress(l, round, err);
    if (!st) st = verify_round(l, window_of(l, round), err);
    if (!st) st = name_pieces(l, round, err);
    PD_TRY(pd_group_agree(l->group, st, err));
    PD_TRY(pd_group_exchange(l->group, l->sends.data, l->sends.count, l->recvs.data, l->recvs.count, err));
    /* Widens what arrived in a round, for items from `first` on. */
    for (uint64_t i = first_coming; i < l->next_coming; i++) {
        struct runs c = {.l = l, .item = &l->plan->coming[i]};
        if (widens(l, c.item)) pd_plan_runs(l->plan, c.item, l->group->rank, visit_widen, &c);
    }
    load_chunks_done(l, round);
    pd_owner_release(owner, "round");
    return PD_OK;
}

static pd_status run_rounds(struct loader *l, struct pd_error *err)
{
    pd_status st = PD_OK;
    for (uint32_t round = 0; !st && round < l->plan->round_count; round++)
        st = run_round(l, round, err);
    drain(l);
    return st;
}

static pd_status check_record(const struct loader *l, struct pd_error *err)
{
    const struct pd_load_request *r = l->request;
    const struct pd_commit *commit = r->commit;
    if (pd_layout_world(r->wanted) != l->group->size)
        PD_FAIL(err, PD_BUG, "a layout of %u ranks cannot be loaded by %u", pd_layout_world(r->wanted), l->group->size);
    PD_TRY(pd_commit_check_is_run(commit, err));
    if (commit->state.tensor_count == r->tensors->count || l->group->rank) return PD_OK;
    PD_TRY(explain(l, err));
    PD_FAIL(err, PD_INVALID, "the checkpoint is of another model: it counts %llu tensors where this one has %u",
            (unsigned long long)commit->state.tensor_count, r->tensors->count);
}

/* The same on all ranks, as the record and the group are. */
static uint64_t round_bytes(const struct loader *l)
{
    const struct pd_load_request *r = l->request;
    const uint64_t large = r->buffer_bytes / LOAD_WINDOWS_LARGE / PD_VFS_ALIGN * PD_VFS_ALIGN,
                   small = r->buffer_bytes / LOAD_WINDOWS_SMALL / PD_VFS_ALIGN * PD_VFS_ALIGN;
    if (l->group->host_count > 1) return large;
    for (uint32_t s = 0; s < r->commit->shard_count; s++)
        if (r->commit->shards[s].file_bytes < r->commit->shards[s].data_bytes) return large; /* compressed */
    return pd_max_u64(small, pd_min_u64(large, LOAD_ROUND_BYTES_MIN));
}

static pd_status load_prepare(struct loader *l, struct pd_error *err)
{
    const struct pd_load_request *r = l->request;
    l->window_bytes = round_bytes(l);
    PD_CHECK(l->window_bytes >= PD_SHARD_BLOCK_BYTES);
    struct pd_plan_input input = {.tensors = r->tensors,
                                  .stored = &r->commit->state.layout,
                                  .wanted = r->wanted,
                                  .moments = r->commit->state.moments,
                                  .kinds = r->kinds,
                                  .tensor_wanted = r->tensor_wanted,
                                  .rank = l->group->rank,
                                  .readers = l->group->size,
                                  .reader_host = l->reader_host,
                                  .host_count = l->group->host_count,
                                  .host_has = l->host_has,
                                  .window_bytes = l->window_bytes};
    PD_TRY(pd_plan_new(&input, &l->plan, err));
    l->report.rounds = l->plan->round_count;
    l->shards = calloc(r->commit->shard_count, sizeof *l->shards);
    if (!l->shards) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for %u shards", r->commit->shard_count);
    PD_TRY(open_shards(l, err));
    PD_TRY(find_direct(l, err));
    PD_TRY(load_chunks_new(l, err));
    struct pd_transfer *transfers = calloc(LOAD_WINDOWS * l->window_transfers + 1, sizeof *transfers);
    for (uint32_t i = 0; i < LOAD_WINDOWS; i++)
        l->windows[i].transfers = transfers + i * l->window_transfers;
    if (!transfers) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for the transfers of %u windows", LOAD_WINDOWS);
    return PD_OK;
}

/* Releases one attempt's resources; knowledge about hosts stays. */
static void load_release(struct loader *l)
{
    if (l->queue) pd_queue_close(l->queue);
    for (uint32_t s = 0; l->shards && s < l->request->commit->shard_count; s++)
        pd_shard_close(l->shards[s]);
    free(l->shards);
    load_chunks_free(l->chunks);
    free(l->windows[0].transfers);
    free(l->direct);
    free(l->parts);
    free(l->sends.data);
    free(l->recvs.data);
    pd_plan_free(l->plan);
    *l = (struct loader){
        .vfs = l->vfs, .group = l->group, .request = l->request, .host_has = l->host_has, .reader_host = l->reader_host};
}

/* *ret_again: a shard was unusable where it was read, and other hosts have it. */
static pd_status attempt(struct loader *l, struct pd_load_report *ret_report, bool *ret_again, struct pd_error *err)
{
    struct pd_error own = {0};
    *ret_again = false;
    l->blamed = LOAD_NO_SHARD;
    pd_status st = pd_group_agree(l->group, load_prepare(l, &own), &own);
    if (!st) st = run_rounds(l, &own);
    *ret_report = l->report;
    if (st && st != PD_PEER_LOST && l->request->has_replicas) {
        pd_status turned = load_turn_to_replicas(l, ret_again, &own);
        if (turned) st = turned;
    }
    load_release(l);
    return pd_error_pass(err, st, &own);
}

pd_status pd_load(struct pd_vfs *vfs, struct pd_group *group, const struct pd_load_request *request,
                  struct pd_load_report *ret_report, struct pd_error *err)
{
    struct loader l = {.vfs = vfs, .group = group, .request = request};
    struct pd_load_report report = {0};
    pd_status st = pd_group_agree(group, check_record(&l, err), err);
    if (!st) st = load_find_shards(&l, err);
    for (bool again = !st; again;)
        st = attempt(&l, &report, &again, err);
    free(l.host_has);
    free(l.reader_host);
    if (st) return pd_error_context(err, st, "loading %s", request->directory);
    if (ret_report) *ret_report = report;
    return PD_OK;
}
