#include "resharder/plan.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/grow.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_PAGES (PD_SHARD_BLOCK_BYTES / PD_VFS_ALIGN)

/* ---- lines ---- */

struct line {
    uint64_t pages;
    uint32_t members; /* readers that share it */
};

struct pd_plan_lines {
    struct line *lines;      /* (host_count + 1): one a host, then the one for all */
    uint32_t *shard_line;    /* (shards), or NULL: all are in the last */
    uint64_t *shard_first;   /* (shards) position of its first wanted page */
    uint32_t *member;        /* (readers) by host, or NULL */
    uint32_t *host_first;    /* (host_count + 1) into member */
    uint32_t *stage_first;   /* (pp + 1) into stage_tensors */
    uint32_t *stage_tensors; /* (tensors) ascending within the stage that stores them */
    uint64_t window_pages;
};

static bool kind_is_wanted(const struct pd_plan *plan, uint32_t kind)
{
    return plan->input.kinds >> kind & 1;
}

static bool tensor_is_wanted(const struct pd_plan *plan, uint32_t tensor)
{
    return !plan->input.tensor_wanted || plan->input.tensor_wanted[tensor];
}

/* Pages that reading a box takes: whole ones; a box of less than a page may span two. */
static uint64_t pages_of(uint64_t bytes)
{
    return bytes < PD_VFS_ALIGN ? 2 : pd_divide_up(bytes, PD_VFS_ALIGN);
}

static uint32_t line_of(const struct pd_plan *plan, uint32_t shard)
{
    return plan->lines->shard_line ? plan->lines->shard_line[shard] : plan->input.host_count;
}

/* Sorts tensors by the stage of the layout that stores them: each is in one list. */
static void sort_tensors(struct pd_plan *plan)
{
    struct pd_plan_lines *lines = plan->lines;
    const struct pd_tensor_table *tensors = plan->input.tensors;
    const struct pd_layout *stored = plan->input.stored;
    for (uint32_t t = 0; t < tensors->count; t++)
        lines->stage_first[pd_layout_unit_pp(stored, tensors->tensors[t].unit) + 1]++;
    for (uint32_t p = 0; p < stored->pp; p++)
        lines->stage_first[p + 1] += lines->stage_first[p];
    for (uint32_t t = 0; t < tensors->count; t++)
        lines->stage_tensors[lines->stage_first[pd_layout_unit_pp(stored, tensors->tensors[t].unit)]++] = t;
    for (uint32_t p = stored->pp; p > 0; p--)
        lines->stage_first[p] = lines->stage_first[p - 1];
    lines->stage_first[0] = 0;
}

/* Elements of one row of a box, without dimension 1. */
static uint64_t inner_elements(const struct pd_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t d = 2; d < tensor->ndim; d++)
        elements *= tensor->shape[d];
    return elements;
}

/* Pages of one kind of a part of `rows` rows: one box a tp chunk. */
static uint64_t part_pages(const struct pd_plan *plan, uint32_t t, enum pd_kind kind, const struct pd_layout_cut *cut,
                           uint64_t rows)
{
    const struct pd_tensor *tensor = &plan->input.tensors->tensors[t];
    const uint64_t column = inner_elements(tensor) * pd_plan_element_bytes(plan, t, kind);
    uint64_t pages = 0;
    for (uint32_t chunk = cut->chunk_begin; chunk < cut->chunk_end; chunk++) {
        uint64_t begin, end;
        pd_layout_chunk_columns(plan->input.stored, tensor, chunk, &begin, &end);
        if (begin == end) break;
        pages += pages_of(rows * (end - begin) * column);
    }
    return pages;
}

/* Pages of all wanted kinds of a part of `rows` rows. */
static uint64_t rows_pages(const struct pd_plan *plan, uint32_t t, const struct pd_layout_cut *cut, uint64_t rows)
{
    uint64_t pages = 0;
    for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++)
        if (kind_is_wanted(plan, kind)) pages += part_pages(plan, t, (enum pd_kind)kind, cut, rows);
    return pages;
}

/* Rows of the last part of a cut. */
static uint64_t rest_rows(const struct pd_layout_cut *cut)
{
    return cut->row_end - cut->row_begin - (cut->part_count - 1) * cut->part_rows;
}

/* Adds a tensor's pages to the shards of its stage, as differences from one data rank to the next that may have some of it:
 * add[q * tp + tp rank]. */
static void count_tensor(const struct pd_plan *plan, uint32_t t, uint64_t *add)
{
    const struct pd_tensor *tensor = &plan->input.tensors->tensors[t];
    const uint32_t tp = plan->input.stored->tp;
    for (uint32_t p = 0; p < tp; p++) {
        struct pd_layout_cut cut;
        if (!pd_layout_cut_of(plan->input.stored, tensor, t, p, &cut)) continue;
        const uint64_t rest = rest_rows(&cut), first = (uint64_t)cut.q_first * tp + p, step = (uint64_t)cut.q_stride * tp;
        const uint64_t last = rows_pages(plan, t, &cut, rest),
                       full = rest == cut.part_rows ? last : rows_pages(plan, t, &cut, cut.part_rows);
        add[first] += full;
        add[first + (cut.part_count - 1) * step] += last - full;
        add[first + cut.part_count * step] -= last;
    }
}

/* Counts the pages of every shard into shard_first. */
static pd_status count_pages(struct pd_plan *plan, struct pd_error *err)
{
    struct pd_plan_lines *lines = plan->lines;
    const struct pd_layout *stored = plan->input.stored;
    const uint64_t row = stored->tp, step = row * pd_layout_ep(stored), stage = row * stored->dp * stored->sp;
    uint64_t *add = calloc(2 * (stage + step), sizeof *add), *spread = add + stage + step; /* spread: of tensors of experts */
    if (!add) PD_FAIL(err, PD_NO_MEMORY, "load: no memory to count %u shards", plan->shard_count);
    for (uint32_t pp = 0; pp < stored->pp; pp++) {
        memset(add, 0, 2 * (stage + step) * sizeof *add);
        for (uint32_t i = lines->stage_first[pp]; i < lines->stage_first[pp + 1]; i++) {
            const uint32_t t = lines->stage_tensors[i];
            const bool is_spread = pd_layout_is_spread(stored, &plan->input.tensors->tensors[t]);
            if (tensor_is_wanted(plan, t)) count_tensor(plan, t, is_spread ? spread : add);
        }
        for (uint64_t s = 0; s < stage; s++) {
            if (s >= row) add[s] += add[s - row];
            if (s >= step) spread[s] += spread[s - step];
            lines->shard_first[pp * stage + s] = add[s] + spread[s];
        }
    }
    free(add);
    return PD_OK;
}

static bool host_has(const struct pd_plan *plan, uint32_t host, uint32_t shard)
{
    return plan->input.host_has[(uint64_t)host * plan->shard_count + shard];
}

static pd_status find_line(const struct pd_plan *plan, uint32_t shard, uint32_t *ret_line, struct pd_error *err)
{
    const uint32_t hosts = plan->input.host_count;
    uint32_t first = hosts, count = 0;
    for (uint32_t h = 0; h < hosts; h++) { /* of several the one with the fewest pages so far */
        if (!host_has(plan, h, shard)) continue;
        if (!count++ || plan->lines->lines[h].pages < plan->lines->lines[first].pages) first = h;
    }
    if (!count)
        PD_FAIL(
            err, PD_NOT_FOUND,
            "shard-%05u.h5 cannot be opened on any host: bring back the host or the file, or resume from another checkpoint",
            shard);
    *ret_line = count == hosts ? hosts : first;
    return PD_OK;
}

/* Puts the shards into their lines, one after the other. */
static pd_status line_up(struct pd_plan *plan, struct pd_error *err)
{
    struct pd_plan_lines *lines = plan->lines;
    for (uint32_t s = 0; s < plan->shard_count; s++) {
        if (lines->shard_line) PD_TRY(find_line(plan, s, &lines->shard_line[s], err));
        struct line *line = &lines->lines[line_of(plan, s)];
        uint64_t pages = lines->shard_first[s];
        lines->shard_first[s] = line->pages;
        line->pages += pages;
    }
    return PD_OK;
}

static void assign_members(struct pd_plan *plan)
{
    struct pd_plan_lines *lines = plan->lines;
    const struct pd_plan_input *in = &plan->input;
    lines->lines[in->host_count].members = in->readers;
    if (!lines->member) return;
    for (uint32_t r = 0; r < in->readers; r++)
        lines->lines[in->reader_host[r]].members++;
    for (uint32_t h = 0; h < in->host_count; h++)
        lines->host_first[h + 1] = lines->host_first[h] + lines->lines[h].members;
    for (uint32_t r = 0; r < in->readers; r++)
        lines->member[lines->host_first[in->reader_host[r]]++] = r;
    for (uint32_t h = in->host_count; h > 0; h--)
        lines->host_first[h] = lines->host_first[h - 1];
    lines->host_first[0] = 0;
}

static pd_status make_lines(struct pd_plan *plan, struct pd_error *err)
{
    const struct pd_plan_input *in = &plan->input;
    struct pd_plan_lines *lines = calloc(1, sizeof *lines);
    plan->lines = lines;
    if (!lines) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for a plan");
    const bool has_hosts = in->host_has && in->reader_host;
    lines->lines = calloc(in->host_count + 2ull, sizeof *lines->lines);
    lines->shard_first = calloc(plan->shard_count + 1ull, sizeof *lines->shard_first);
    lines->stage_first = calloc(in->stored->pp + 2ull, sizeof *lines->stage_first);
    lines->stage_tensors = calloc(in->tensors->count + 1ull, sizeof *lines->stage_tensors);
    bool ready = lines->lines && lines->shard_first && lines->stage_first && lines->stage_tensors;
    if (has_hosts) {
        lines->shard_line = calloc(plan->shard_count + 1ull, sizeof *lines->shard_line);
        lines->member = calloc(in->readers + 1ull, sizeof *lines->member);
        lines->host_first = calloc(in->host_count + 2ull, sizeof *lines->host_first);
        ready = ready && lines->shard_line && lines->member && lines->host_first;
    }
    if (!ready) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for a plan over %u shards", plan->shard_count);
    /* Leave space: a round's last block may begin in its last page. */
    lines->window_pages = in->window_bytes / PD_VFS_ALIGN - (BLOCK_PAGES - 1);
    sort_tensors(plan);
    PD_TRY(count_pages(plan, err));
    PD_TRY(line_up(plan, err));
    assign_members(plan);
    return PD_OK;
}

static void free_lines(struct pd_plan_lines *lines)
{
    if (!lines) return;
    free(lines->lines);
    free(lines->shard_line);
    free(lines->shard_first);
    free(lines->member);
    free(lines->host_first);
    free(lines->stage_first);
    free(lines->stage_tensors);
    free(lines);
}

/* ---- ranges: which reader has which part of a line ---- */

struct range {
    uint64_t begin, end; /* positions */
    uint64_t base;       /* pages before it in the reader's windows */
    uint32_t reader;
};

/* Returns the range of member `m` of a line. A reader begins with its host's line; its last block may extend further. */
static struct range plan_range_of(const struct pd_plan *plan, uint32_t line_number, uint32_t m)
{
    const struct pd_plan_lines *lines = plan->lines;
    const struct line *line = &lines->lines[line_number];
    struct range s = {.begin = line->pages * m / line->members, .end = line->pages * (m + 1ull) / line->members};
    s.reader = m;
    if (!lines->member) return s;
    if (line_number < plan->input.host_count) {
        s.reader = lines->member[lines->host_first[line_number] + m];
        return s;
    }
    const uint32_t host = plan->input.reader_host[m], first = lines->host_first[host];
    uint32_t place = 0, count = lines->lines[host].members;
    while (count > 1) { /* members are ascending */
        uint32_t half = count / 2;
        if (lines->member[first + place + half] <= m) place += half;
        count -= half;
    }
    const struct range before = plan_range_of(plan, host, place);
    if (before.end > before.begin) s.base = before.end - before.begin + BLOCK_PAGES - 1;
    return s;
}

static uint32_t member_at(const struct line *line, uint64_t position)
{
    return (uint32_t)(((position + 1) * line->members - 1) / line->pages);
}

/* Finds the number of rounds from every reader's ranges, which differ by at most one page within a line. */
static uint32_t count_rounds(const struct pd_plan *plan)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < plan->input.readers; r++) {
        const struct range all = plan_range_of(plan, plan->input.host_count, r);
        uint64_t pages = all.base + (all.end - all.begin);
        if (pages > most) most = pages;
    }
    return (uint32_t)pd_divide_up(most, plan->lines->window_pages);
}

/* ---- boxes of a shard, in file order ---- */

struct place {
    struct pd_read_item item; /* shard, box, tensor, kind, stored */
    uint64_t position, bytes;
};

struct walk {
    const struct pd_plan *plan;
    struct place place;
    uint64_t begin, end; /* positions: only boxes that touch [begin, end) are visited */
    pd_status (*visit)(void *context, const struct place *place, struct pd_error *err);
    void *context;
};

/* Visits the boxes of one tensor: rows [row_begin, row_end) of the cut, for each kind, for each tp chunk. */
static pd_status walk_boxes(struct walk *w, const struct pd_layout_cut *cut, uint64_t row_begin, uint64_t row_end,
                            uint32_t boxes, struct pd_error *err)
{
    struct place *p = &w->place;
    const struct pd_tensor *tensor = &w->plan->input.tensors->tensors[p->item.tensor];
    for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++) {
        if (!kind_is_wanted(w->plan, kind)) {
            p->item.box += boxes;
            continue;
        }
        for (uint32_t b = 0; b < boxes; b++, p->item.box++) {
            uint64_t begin, end;
            pd_layout_chunk_columns(w->plan->input.stored, tensor, cut->chunk_begin + b, &begin, &end);
            p->item.stored = pd_box_part(tensor, row_begin, row_end, begin, end);
            p->item.kind = (enum pd_kind)kind;
            p->bytes = pd_box_elements(&p->item.stored) * pd_plan_element_bytes(w->plan, p->item.tensor, (enum pd_kind)kind);
            const uint64_t pages = pages_of(p->bytes);
            if (p->position < w->end && p->position + pages > w->begin) PD_TRY(w->visit(w->context, p, err));
            p->position += pages;
        }
    }
    return PD_OK;
}

static uint32_t count_chunks(const struct pd_plan *plan, const struct pd_tensor *tensor, const struct pd_layout_cut *cut)
{
    uint32_t count = 0;
    for (uint32_t chunk = cut->chunk_begin; chunk < cut->chunk_end; chunk++) {
        uint64_t begin, end;
        pd_layout_chunk_columns(plan->input.stored, tensor, chunk, &begin, &end);
        if (begin == end) break;
        count++;
    }
    return count;
}

static pd_status walk_tensor(struct walk *w, uint32_t t, const struct pd_rank_place *rank, struct pd_error *err)
{
    const struct pd_layout *stored = w->plan->input.stored;
    const struct pd_tensor *tensor = &w->plan->input.tensors->tensors[t];
    const uint32_t q = rank->dp * stored->sp + rank->sp;
    struct pd_layout_cut cut;
    if (!pd_layout_cut_of(stored, tensor, t, rank->tp, &cut)) return PD_OK;
    const uint32_t part = pd_layout_part_of(&cut, q);
    if (part == PD_LAYOUT_NO_PART) return PD_OK;
    uint64_t begin = cut.row_begin + part * cut.part_rows;
    uint64_t end = begin + cut.part_rows < cut.row_end ? begin + cut.part_rows : cut.row_end;
    if (begin == end) return PD_OK;
    const uint32_t boxes = count_chunks(w->plan, tensor, &cut);
    if (!tensor_is_wanted(w->plan, t)) {
        w->place.item.box += boxes * PD_KIND_COUNT;
        return PD_OK;
    }
    w->place.item.tensor = t;
    return walk_boxes(w, &cut, begin, end, boxes, err);
}

static pd_status walk_shard(struct walk *w, uint32_t shard, struct pd_error *err)
{
    const struct pd_plan_lines *lines = w->plan->lines;
    const struct pd_rank_place rank = pd_layout_place(w->plan->input.stored, shard);
    w->place = (struct place){.item = {.shard = shard}, .position = lines->shard_first[shard]};
    for (uint32_t i = lines->stage_first[rank.pp]; i < lines->stage_first[rank.pp + 1]; i++) {
        if (w->place.position >= w->end) break;
        PD_TRY(walk_tensor(w, lines->stage_tensors[i], &rank, err));
    }
    return PD_OK;
}

/* ---- items ---- */

/* Returns the first block of a box at or after a position. */
static uint64_t block_at(const struct place *place, uint64_t position)
{
    return position <= place->position ? 0 : pd_divide_up(position - place->position, BLOCK_PAGES);
}

/* Returns the item of `range` with the block: the blocks of its box read in the same round. */
static struct pd_read_item item_with(const struct pd_plan *plan, const struct place *place, const struct range *range,
                                     uint64_t block)
{
    struct pd_read_item item = place->item;
    const uint64_t window = plan->lines->window_pages, blocks = pd_divide_up(place->bytes, PD_SHARD_BLOCK_BYTES);
    const uint64_t page = range->base + (place->position + block * BLOCK_PAGES - range->begin);
    const uint64_t round = page / window;
    uint64_t begin = range->begin, end = range->begin + (round + 1) * window - range->base;
    if (round * window > range->base) begin += round * window - range->base;
    if (end > range->end) end = range->end;
    uint64_t last = block_at(place, end);
    if (last > blocks) last = blocks;
    item.first_block = block_at(place, begin);
    item.block_count = last - item.first_block;
    const uint64_t offset = item.first_block * PD_SHARD_BLOCK_BYTES, length = item.block_count * PD_SHARD_BLOCK_BYTES;
    item.bytes = place->bytes - offset < length ? place->bytes - offset : length;
    item.reader = range->reader;
    item.round = (uint32_t)round;
    const uint64_t first = range->base + (place->position + item.first_block * BLOCK_PAGES - range->begin);
    item.window_offset = first % window * PD_VFS_ALIGN;
    return item;
}

static pd_status plan_append(struct pd_read_item **items, uint64_t *count, const struct pd_read_item *item,
                             struct pd_error *err)
{
    if (!pd_grow(items, *count, sizeof **items))
        PD_FAIL(err, PD_NO_MEMORY, "load: no memory for a plan of %llu items", (unsigned long long)*count + 1);
    (*items)[(*count)++] = *item;
    return PD_OK;
}

/* ---- what this rank reads ---- */

struct reading {
    struct pd_plan *plan;
    struct range range;
};

static pd_status visit_own(void *context, const struct place *place, struct pd_error *err)
{
    struct reading *r = context;
    struct pd_plan *plan = r->plan;
    const uint64_t blocks = pd_divide_up(place->bytes, PD_SHARD_BLOCK_BYTES);
    for (uint64_t block = block_at(place, r->range.begin);
         block < blocks && place->position + block * BLOCK_PAGES < r->range.end;) {
        struct pd_read_item item = item_with(plan, place, &r->range, block);
        PD_TRY(plan_append(&plan->items, &plan->item_count, &item, err));
        block = item.first_block + item.block_count;
    }
    return PD_OK;
}

static pd_status read_range(struct pd_plan *plan, uint32_t line, uint32_t member, struct pd_error *err)
{
    struct reading r = {plan, plan_range_of(plan, line, member)};
    struct walk w = {.plan = plan, .begin = r.range.begin, .end = r.range.end, .visit = visit_own, .context = &r};
    if (r.range.begin == r.range.end) return PD_OK;
    uint32_t previous = UINT32_MAX; /* the shard whose end the next one of this line gives */
    for (uint32_t s = 0; s < plan->shard_count; s++) {
        if (line_of(plan, s) != line) continue;
        if (plan->lines->shard_first[s] > w.begin && previous != UINT32_MAX) PD_TRY(walk_shard(&w, previous, err));
        previous = s;
        if (plan->lines->shard_first[s] >= w.end) return PD_OK;
    }
    return previous == UINT32_MAX ? PD_OK : walk_shard(&w, previous, err);
}

/* ---- what this rank receives ---- */

struct receiving {
    struct pd_plan *plan;
    bool *wants;        /* (tensors) this rank owns something of it */
    bool *is_marked;    /* (stored shards) holds some of it */
    uint32_t *marked;   /* (stored shards) space for the shards of one stage and tensor-parallel rank */
    uint64_t *position; /* (stored shards) position of the next tensor, if marked */
    uint32_t *box;      /* (stored shards) box number of it */
    uint32_t tensor, box_count;
    struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX]; /* this rank's, of `tensor` */
};

static void mark_shards(struct receiving *r, uint32_t t)
{
    const struct pd_plan_input *in = &r->plan->input;
    struct pd_owner_run runs[PD_LAYOUT_CHUNKS_MAX];
    for (uint32_t b = 0; b < r->box_count; b++) {
        uint32_t count = pd_layout_owners(in->stored, &in->tensors->tensors[t], t, &r->boxes[b], runs);
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t k = 0; k < runs[i].count; k++)
                r->is_marked[runs[i].first + k * runs[i].stride] = true;
    }
}

static void own_boxes(struct receiving *r, uint32_t t)
{
    const struct pd_plan_input *in = &r->plan->input;
    r->tensor = t;
    r->box_count = pd_layout_owned_boxes(in->wanted, &in->tensors->tensors[t], t, in->rank, r->boxes, PD_LAYOUT_CHUNKS_MAX);
}

/* Finds blocks [*ret_begin, *ret_end) of a stored box that hold everything it shares with `mine`. */
static bool shared_blocks(const struct pd_plan *plan, const struct place *place, const struct pd_box *mine,
                          uint64_t *ret_begin, uint64_t *ret_end)
{
    struct pd_box part, last;
    if (!pd_box_intersect(&place->item.stored, mine, &part)) return false;
    last = part;
    for (uint32_t d = 0; d < PD_TENSOR_DIMS_MAX; d++) {
        last.start[d] += part.count[d] - 1;
        last.count[d] = 1;
    }
    const uint32_t bytes = pd_plan_element_bytes(plan, place->item.tensor, place->item.kind);
    *ret_begin = pd_box_offset(&place->item.stored, &part) * bytes / PD_SHARD_BLOCK_BYTES;
    *ret_end = pd_box_offset(&place->item.stored, &last) * bytes / PD_SHARD_BLOCK_BYTES + 1;
    return true;
}

static bool is_mine(const struct receiving *r, const struct place *place, const struct pd_read_item *item)
{
    for (uint32_t b = 0; b < r->box_count; b++) {
        uint64_t begin, end;
        if (!shared_blocks(r->plan, place, &r->boxes[b], &begin, &end)) continue;
        if (begin < item->first_block + item->block_count && end > item->first_block) return true;
    }
    return false;
}

static pd_status visit_coming(void *context, const struct place *place, struct pd_error *err)
{
    struct receiving *r = context;
    struct pd_plan *plan = r->plan;
    const uint32_t number = line_of(plan, place->item.shard);
    uint64_t first = UINT64_MAX, end = 0;
    if (r->tensor != place->item.tensor) own_boxes(r, place->item.tensor);
    for (uint32_t b = 0; b < r->box_count; b++) {
        uint64_t from, to;
        if (!shared_blocks(plan, place, &r->boxes[b], &from, &to)) continue;
        if (from < first) first = from;
        if (to > end) end = to;
    }
    for (uint64_t block = first; block < end;) {
        const uint32_t m = member_at(&plan->lines->lines[number], place->position + block * BLOCK_PAGES);
        const struct range range = plan_range_of(plan, number, m);
        struct pd_read_item item = item_with(plan, place, &range, block);
        block = item.first_block + item.block_count;
        if (item.reader == plan->input.rank || !is_mine(r, place, &item)) continue;
        PD_TRY(plan_append(&plan->coming, &plan->coming_count, &item, err));
    }
    return PD_OK;
}

static int by_round(const void *left, const void *right)
{
    const struct pd_read_item *a = left, *b = right;
    if (a->round != b->round) return a->round < b->round ? -1 : 1;
    if (a->reader != b->reader) return a->reader < b->reader ? -1 : 1;
    return a->window_offset < b->window_offset ? -1 : a->window_offset > b->window_offset;
}

/* A peer set: marked shards of one stage and tensor-parallel rank, by data rank. */
struct column {
    const uint32_t *shards;
    uint32_t count, tp_rank;
};

/* Advances past the tensor in each shard of a peer set, after visiting what this rank wants of it. */
static pd_status step_over(struct receiving *r, uint32_t t, const struct column *column, struct pd_error *err)
{
    const struct pd_plan *plan = r->plan;
    const struct pd_layout *stored = plan->input.stored;
    const struct pd_tensor *tensor = &plan->input.tensors->tensors[t];
    const uint32_t group = stored->dp * stored->sp, row = stored->tp;
    struct walk w = {.plan = plan, .end = UINT64_MAX, .visit = visit_coming, .context = r};
    struct pd_layout_cut cut;
    if (!pd_layout_cut_of(stored, tensor, t, column->tp_rank, &cut)) return PD_OK;
    const uint32_t boxes = count_chunks(plan, tensor, &cut);
    uint64_t full_pages = 0, last_pages = 0;
    if (tensor_is_wanted(plan, t)) {
        full_pages = rows_pages(plan, t, &cut, cut.part_rows);
        last_pages = rows_pages(plan, t, &cut, rest_rows(&cut));
    }
    for (uint32_t i = 0; i < column->count; i++) {
        const uint32_t s = column->shards[i], part = pd_layout_part_of(&cut, s / row % group);
        if (part == PD_LAYOUT_NO_PART) continue;
        const bool is_last = part + 1 == cut.part_count;
        uint64_t begin = cut.row_begin + part * cut.part_rows, end = is_last ? cut.row_end : begin + cut.part_rows;
        if (begin == end) continue;
        w.place = (struct place){.item = {.shard = s, .box = r->box[s], .tensor = t}, .position = r->position[s]};
        if (r->wants[t]) PD_TRY(walk_boxes(&w, &cut, begin, end, boxes, err));
        r->position[s] += is_last ? last_pages : full_pages;
        r->box[s] += boxes * PD_KIND_COUNT;
    }
    return PD_OK;
}

static pd_status receive_column(struct receiving *r, uint32_t pp, const struct column *column, struct pd_error *err)
{
    const struct pd_plan_lines *lines = r->plan->lines;
    for (uint32_t i = lines->stage_first[pp]; column->count && i < lines->stage_first[pp + 1]; i++)
        PD_TRY(step_over(r, lines->stage_tensors[i], column, err));
    return PD_OK;
}

static pd_status plan_receive(struct receiving *r, struct pd_error *err)
{
    const struct pd_layout *stored = r->plan->input.stored;
    const uint32_t group = stored->dp * stored->sp, row = stored->tp;
    struct pd_plan *plan = r->plan;
    for (uint32_t t = 0; t < r->plan->input.tensors->count; t++) {
        if (!tensor_is_wanted(r->plan, t)) continue;
        own_boxes(r, t);
        r->wants[t] = r->box_count > 0;
        mark_shards(r, t);
    }
    r->tensor = UINT32_MAX;
    memcpy(r->position, r->plan->lines->shard_first, r->plan->shard_count * sizeof *r->position);
    for (uint32_t pp = 0; pp < stored->pp; pp++)
        for (uint32_t i = 0; i < row; i++) {
            struct column column = {.shards = r->marked, .tp_rank = i};
            for (uint32_t q = 0; q < group; q++) {
                const uint32_t s = (pp * group + q) * row + i;
                if (r->is_marked[s]) r->marked[column.count++] = s;
            }
            PD_TRY(receive_column(r, pp, &column, err));
        }
    if (plan->coming_count) qsort(plan->coming, plan->coming_count, sizeof *plan->coming, by_round);
    return PD_OK;
}

/* ---- the plan ---- */

static pd_status plan_build(struct pd_plan *plan, struct pd_error *err)
{
    PD_TRY(make_lines(plan, err));
    plan->round_count = count_rounds(plan);
    const uint32_t rank = plan->input.rank, hosts = plan->input.host_count;
    if (plan->lines->member) {
        const uint32_t host = plan->input.reader_host[rank];
        uint32_t place = 0;
        while (plan->lines->member[plan->lines->host_first[host] + place] != rank)
            place++;
        PD_TRY(read_range(plan, host, place, err));
    }
    PD_TRY(read_range(plan, hosts, rank, err));
    if (plan->input.readers == 1) return PD_OK; /* nobody else reads */
    const uint64_t shards = plan->shard_count;
    struct receiving r = {.plan = plan,
                          .wants = calloc(plan->input.tensors->count + 1ull, sizeof *r.wants),
                          .is_marked = calloc(shards, sizeof *r.is_marked),
                          .marked = calloc(shards, sizeof *r.marked),
                          .position = calloc(shards, sizeof *r.position),
                          .box = calloc(shards, sizeof *r.box)};
    const bool has_all = r.wants && r.is_marked && r.marked && r.position && r.box;
    pd_status st = PD_ALLOCATED(has_all, err, "load: no memory for a plan over %u shards", plan->shard_count);
    if (!st) st = plan_receive(&r, err);
    free(r.wants);
    free(r.is_marked);
    free(r.marked);
    free(r.position);
    free(r.box);
    return st;
}

pd_status pd_plan_new(const struct pd_plan_input *input, struct pd_plan **ret_plan, struct pd_error *err)
{
    PD_CHECK(input->window_bytes >= PD_SHARD_BLOCK_BYTES && input->rank < input->readers && input->host_count > 0);
    struct pd_plan *plan = calloc(1, sizeof *plan);
    if (!plan) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for a plan");
    plan->input = *input;
    plan->shard_count = pd_layout_world(input->stored);
    pd_status st = plan_build(plan, err);
    if (st)
        pd_plan_free(plan);
    else
        *ret_plan = plan;
    return st;
}

void pd_plan_free(struct pd_plan *plan)
{
    if (!plan) return;
    free_lines(plan->lines);
    free(plan->items);
    free(plan->coming);
    free(plan);
}

uint32_t pd_plan_owners(const struct pd_plan *plan, const struct pd_read_item *item,
                        struct pd_owner_run ret_runs[PD_LAYOUT_CHUNKS_MAX])
{
    const struct pd_tensor *tensor = &plan->input.tensors->tensors[item->tensor];
    struct pd_box part = item->stored;
    uint64_t width = pd_plan_element_bytes(plan, item->tensor, item->kind);
    for (uint32_t d = 1; d < PD_TENSOR_DIMS_MAX; d++)
        width *= part.count[d];
    const uint64_t begin = item->first_block * PD_SHARD_BLOCK_BYTES, end = begin + item->bytes;
    part.start[0] += begin / width;
    part.count[0] = (end - 1) / width + 1 - begin / width;
    return pd_layout_owners(plan->input.wanted, tensor, item->tensor, &part, ret_runs);
}
