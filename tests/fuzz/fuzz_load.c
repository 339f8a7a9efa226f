/* From a record to a plan to a load. The first bytes choose tensors, kinds and the wanted layout. Then comes a commit record,
 * or with an odd first byte a layout, a byte a field, so that inputs need no valid record to get far. Whatever passes the
 * check of records must plan; few and small shards are made as the layout says and loaded. */
#include "resharder/layout.h"
#include "resharder/load/load.h"
#include "resharder/plan.h"
#include "tests/fuzz/input/commit.h"
#include "tests/fuzz/input/disk.h"
#include "tests/fuzz/input/shard.h"
#include "tests/fuzz/target.h"

#include "ckpt/base/checked.h"
#include "ckpt/store/paths.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_MAX = 3, ELEMENTS_MAX = 1 << 14, PLANNED_SHARDS_MAX = 256, SHARDS_MAX = 8, READERS_MAX = 3 };
enum { PAGE = PD_SHARD_PAGE_BYTES, BUFFER_BYTES = 8 * PD_SHARD_BLOCK_BYTES };

struct scene {
    struct pd_tensor tensors[TENSORS_MAX];
    struct pd_tensor_table table;
    struct pd_commit commit;
    struct pd_layout wanted;
    uint32_t kinds, readers;
    enum pd_dtype moments; /* wanted */
};

static uint32_t take(const uint8_t **data, size_t *bytes)
{
    if (!*bytes) return 0;
    (*bytes)--;
    return *(*data)++;
}

static void take_tensors(struct scene *s, const uint8_t **data, size_t *bytes)
{
    static const uint64_t units[] = {1, 2, 8, 64};
    s->table = (struct pd_tensor_table){.tensors = s->tensors, .count = 1 + take(data, bytes) % TENSORS_MAX};
    for (uint32_t i = 0; i < s->table.count; i++) {
        const uint64_t rows = 1 + take(data, bytes), columns = take(data, bytes) % (ELEMENTS_MAX / rows);
        const uint32_t how = take(data, bytes);
        struct pd_tensor *t = &s->tensors[i];
        *t = (struct pd_tensor){.ndim = columns ? 2 : 1, .shape = {rows, columns ? columns : 1, 1, 1}, .dtype = PD_F32};
        t->tp_dim = (int32_t)(how % (t->ndim + 1)) - 1;
        t->tp_unit = units[how >> 2 & 3];
        t->unit = how >> 4;
        snprintf(t->name, sizeof t->name, "t%u", i);
    }
}

/* Of some readers; of one where the rest would be refused. */
static void take_wanted(struct scene *s, const uint8_t **data, size_t *bytes)
{
    struct pd_layout *w = &s->wanted;
    const uint32_t how = take(data, bytes);
    pd_layout_init_dp(w, 1 + how % READERS_MAX);
    w->virtual_tp = 1u << (how >> 2 & 7);
    w->zero_shard = 1 + (how >> 5) % w->dp;
    w->small_bytes = take(data, bytes) * 16;
    s->readers = w->dp;
}

static void take_layout(struct pd_layout *l, const uint8_t **data, size_t *bytes)
{
    uint32_t *const fields[] = {&l->dp,         &l->tp,         &l->pp,         &l->sp,         &l->virtual_tp,
                                &l->virtual_sp, &l->zero_shard, &l->interleave, &l->stage_count};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        *fields[i] = take(data, bytes);
    l->small_bytes = take(data, bytes) * 16;
    for (uint32_t i = 0; i < l->stage_count; i++)
        l->first_unit[i] = (uint16_t)take(data, bytes);
}

/* False: the record or the layout is refused. */
static bool take_commit(struct scene *s, bool is_record, const uint8_t *data, size_t bytes)
{
    struct pd_error err = {0};
    struct pd_commit *c = &s->commit;
    uint64_t whole = 0;
    if (is_record) {
        unsigned char *record = input_commit_make(data, bytes, &whole);
        if (!record) return false;
        const pd_status st = pd_commit_decode("commit.h5", record, whole, c, &err);
        free(record);
        if (st && !err.message[0]) abort();
        return !st;
    }
    c->state = (struct pd_run_state){.identity = {{1, 2}, 3, 4}, .loss_scale = 1};
    c->state.moments = take(&data, &bytes) % 2 ? PD_BF16 : PD_F32;
    take_layout(&c->state.layout, &data, &bytes);
    const struct pd_layout *l = &c->state.layout;
    const uint64_t world = (uint64_t)l->dp * l->tp * l->pp * l->sp;
    if (world > PLANNED_SHARDS_MAX) return false;
    c->shard_count = (uint32_t)world;
    c->shards = calloc(world + 1, sizeof *c->shards);
    for (uint64_t i = 0; i < world; i++)
        c->shards[i] = (struct pd_shard_summary){.file_bytes = 2 * PAGE, .table_bytes = PAGE, .writer_rank = (uint32_t)i};
    return pd_commit_check(c, &err) == PD_OK;
}

/* ---- plans ---- */

static void add_bytes(void *context, const struct pd_transfer_run *run)
{
    *(uint64_t *)context += run->bytes;
}

/* What one reader reads; every element of it has one owner. */
static uint64_t plan_one(const struct scene *s, uint32_t rank)
{
    struct pd_owner_run owners[PD_LAYOUT_CHUNKS_MAX];
    struct pd_error err = {0};
    struct pd_plan *plan = NULL;
    uint64_t bytes = 0;
    const struct pd_plan_input input = {.tensors = &s->table,
                                        .stored = &s->commit.state.layout,
                                        .wanted = &s->wanted,
                                        .moments = s->commit.state.moments,
                                        .kinds = s->kinds,
                                        .rank = rank,
                                        .readers = s->readers,
                                        .host_count = 1,
                                        .window_bytes = 2 * PD_SHARD_BLOCK_BYTES};
    if (pd_plan_new(&input, &plan, &err)) abort();
    for (uint64_t i = 0; i < plan->item_count; i++) {
        const struct pd_read_item *item = &plan->items[i];
        uint64_t moved = 0;
        if (item->shard >= s->commit.shard_count || item->reader != rank || item->round >= plan->round_count) abort();
        const uint32_t runs = pd_plan_owners(plan, item, owners);
        for (uint32_t r = 0; r < runs; r++)
            for (uint32_t k = 0; k < owners[r].count; k++)
                pd_plan_runs(plan, item, owners[r].first + k * owners[r].stride, add_bytes, &moved);
        if (moved != item->bytes) abort();
        bytes += moved;
    }
    pd_plan_free(plan);
    return bytes;
}

static void plan_all(const struct scene *s)
{
    uint64_t wanted = 0, planned = 0;
    for (uint32_t t = 0; t < s->table.count; t++)
        for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++)
            if (s->kinds >> kind & 1)
                wanted += pd_tensor_elements(&s->tensors[t]) * pd_tensor_element_bytes(&s->tensors[t], (enum pd_kind)kind);
    for (uint32_t rank = 0; rank < s->readers; rank++)
        planned += plan_one(s, rank);
    if (planned != wanted) abort();
}

/* ---- shards ---- */

/* What an element is, in all its bytes. */
static uint32_t element_at(uint32_t tensor, uint32_t kind, uint64_t index)
{
    return (uint32_t)(index * 12 + tensor * PD_KIND_COUNT + kind);
}

static void fill_box(const struct scene *s, const struct pd_shard_box *box, unsigned char *to)
{
    const struct pd_tensor *tensor = &s->tensors[box->tensor];
    const uint32_t width = pd_tensor_element_bytes(tensor, box->kind);
    for (uint64_t r = 0; r < box->box.count[0]; r++)
        for (uint64_t c = 0; c < box->box.count[1]; c++, to += width) {
            const uint64_t index = (box->box.start[0] + r) * tensor->shape[1] + box->box.start[1] + c;
            const uint32_t value = element_at(box->tensor, box->kind, index);
            memcpy(to, &value, width);
        }
}

/* Small boxes share the first pages, the others have pages of their own. Returns the end. */
static uint64_t place_boxes(const struct scene *s, const struct pd_shard_box *boxes, uint32_t count,
                            struct pd_shard_place *places, uint64_t *ret_blocks)
{
    uint64_t at = 8; /* a box at 0 would be one in chunks */
    for (int is_large = 0; is_large < 2; is_large++) {
        if (is_large) at = pd_round_up(at, PAGE);
        for (uint32_t b = 0; b < count; b++) {
            const uint64_t bytes =
                pd_box_elements(&boxes[b].box) * pd_tensor_element_bytes(&s->tensors[boxes[b].tensor], boxes[b].kind);
            if ((bytes >= PAGE) != is_large) continue;
            places[b] = (struct pd_shard_place){.offset = at, .bytes = bytes};
            at += is_large ? pd_round_up(bytes, PAGE) : bytes;
        }
    }
    *ret_blocks = 0;
    for (uint32_t b = 0; b < count; b++) {
        places[b].first_block = *ret_blocks;
        *ret_blocks += pd_shard_blocks_of(places[b].bytes);
    }
    return pd_round_up(at, PAGE);
}

static void make_shard(const struct scene *s, uint32_t number, struct input_shard *shard, struct pd_shard_summary *ret)
{
    struct pd_shard_box *boxes = NULL;
    uint32_t count = 0;
    if (pd_layout_shard_boxes(&s->commit.state.layout, &s->table, number, &boxes, &count, NULL)) abort();
    struct pd_shard_place *places = calloc(count + 1, sizeof *places);
    struct pd_shard_counts counts = {.version = s->tensors[0].moments == PD_F32 ? 1 : 3, .boxes = count};
    counts.tensors = s->table.count;
    shard->data_bytes = place_boxes(s, boxes, count, places, &counts.blocks);
    if (!pd_shard_table_size(&counts, &shard->table_bytes)) abort();
    shard->file_bytes = shard->data_bytes + shard->table_bytes + PAGE;
    shard->bytes = calloc(1, shard->file_bytes);
    if (!shard->bytes) abort();
    for (uint32_t b = 0; b < count; b++)
        fill_box(s, &boxes[b], shard->bytes + places[b].offset);
    struct pd_shard_head *head = (void *)(shard->bytes + shard->data_bytes);
    pd_shard_table_fill(head, shard->table_bytes, &counts, &s->table, boxes, places);
    memcpy(head->run_id, &s->commit.state.identity, sizeof s->commit.state.identity);
    head->writer_rank = number;
    input_shard_seal(shard);
    const struct pd_shard_trailer *trailer = (const void *)(shard->bytes + shard->file_bytes - PAGE);
    *ret = (struct pd_shard_summary){.file_bytes = shard->file_bytes,
                                     .table_offset = shard->data_bytes,
                                     .table_bytes = shard->table_bytes,
                                     .digest = trailer->table_digest,
                                     .data_bytes = head->data_bytes,
                                     .box_count = count,
                                     .writer_rank = number};
    free(places);
    free(boxes);
}

/* ---- the load, by one rank ---- */

struct loaded {
    const struct scene *scene;
    struct pd_box boxes[TENSORS_MAX][PD_LAYOUT_CHUNKS_MAX];
    uint32_t counts[TENSORS_MAX];
    char *data[TENSORS_MAX][PD_KIND_COUNT];
};

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    const struct loaded *l = context;
    uint64_t before = 0;
    for (uint32_t b = 0; b < box; b++)
        before += pd_box_elements(&l->boxes[tensor][b]);
    return l->data[tensor][kind] + before * pd_tensor_element_bytes(&l->scene->tensors[tensor], kind);
}

static void check_loaded(const struct loaded *l, uint32_t tensor, enum pd_kind kind)
{
    unsigned char expected[ELEMENTS_MAX * sizeof(float)];
    const uint32_t width = pd_tensor_element_bytes(&l->scene->tensors[tensor], kind);
    for (uint32_t b = 0; b < l->counts[tensor]; b++) {
        const struct pd_shard_box box = {tensor, kind, l->boxes[tensor][b]};
        fill_box(l->scene, &box, expected);
        if (memcmp(destination((void *)(uintptr_t)l, tensor, kind, b), expected, pd_box_elements(&box.box) * width)) abort();
    }
}

static void load(struct scene *s, struct pd_vfs *vfs)
{
    static _Alignas(PD_VFS_ALIGN) unsigned char buffers[BUFFER_BYTES];
    const enum pd_dtype stored = s->commit.state.moments;
    struct pd_group group = {0};
    struct pd_error err = {0};
    struct loaded l = {.scene = s};
    pd_group_init_single(&group);
    s->wanted.dp = s->wanted.zero_shard = 1;
    for (uint32_t t = 0; t < s->table.count; t++) {
        s->tensors[t].moments = s->moments;
        l.counts[t] = pd_layout_owned_boxes(&s->wanted, &s->tensors[t], t, 0, l.boxes[t], PD_LAYOUT_CHUNKS_MAX);
        for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++)
            l.data[t][kind] = malloc(pd_tensor_elements(&s->tensors[t]) * sizeof(float));
    }
    const struct pd_load_request request = {.directory = "/input",
                                            .commit = &s->commit,
                                            .tensors = &s->table,
                                            .wanted = &s->wanted,
                                            .kinds = s->kinds,
                                            .buffers = buffers,
                                            .buffer_bytes = BUFFER_BYTES,
                                            .destination = destination,
                                            .context = &l};
    if (pd_load(vfs, &group, &request, NULL, &err)) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    for (uint32_t t = 0; t < s->table.count; t++)
        for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++) {
            if (s->kinds >> kind & 1 && (kind == PD_PARAM || s->moments == stored)) check_loaded(&l, t, (enum pd_kind)kind);
            free(l.data[t][kind]);
        }
}

static void load_all(struct scene *s)
{
    static struct input_file files[SHARDS_MAX];
    static char names[SHARDS_MAX][64];
    struct input_shard shards[SHARDS_MAX] = {0};
    for (uint32_t i = 0; i < s->commit.shard_count; i++) {
        make_shard(s, i, &shards[i], &s->commit.shards[i]);
        snprintf(names[i], sizeof names[i], "/input/%s", pd_shard_name(i).text);
        files[i] = (struct input_file){.name = names[i], .is_there = true, .bytes = shards[i].file_bytes};
        files[i].extents[0] = (struct input_extent){0, shards[i].file_bytes, shards[i].bytes};
        files[i].extent_count = 1;
    }
    s->commit.state.tensor_count = s->table.count;
    load(s, input_disk(files, s->commit.shard_count));
    for (uint32_t i = 0; i < s->commit.shard_count; i++)
        free(shards[i].bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct scene s = {0};
    const uint32_t how = take(&data, &bytes);
    s.kinds = how >> 1 & 7;
    s.moments = how >> 4 & 1 ? PD_BF16 : PD_F32;
    take_tensors(&s, &data, &bytes);
    take_wanted(&s, &data, &bytes);
    if (take_commit(&s, how % 2 == 0, data, bytes) && s.commit.shard_count <= PLANNED_SHARDS_MAX) {
        for (uint32_t t = 0; t < s.table.count; t++)
            s.tensors[t].moments = s.commit.state.moments;
        plan_all(&s);
        if (s.commit.shard_count <= SHARDS_MAX) load_all(&s);
    }
    pd_commit_deinit(&s.commit);
    return 0;
}
