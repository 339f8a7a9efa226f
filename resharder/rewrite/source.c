/* Reading ahead. A cursor runs in front of the one that writes, over the same stretches, and places what they need in
 * windows of the source shards; a window is sent for when it is full, when somebody waits for it, or when nothing else is on
 * its way.
 *
 *   invariants  1. no byte leaves a window before its block verified in that window
 *               2. pieces are placed in windows and come out of them in the same order
 *               3. a source shard stays open while it has windows */
#include "ckpt/base/checked.h"
#include "resharder/rewrite/internal.h"

#include "ckpt/shard/decompress.h"

#include <stdio.h>
#include <stdlib.h>

#define SOURCE_SHARDS_MAX 512u                /* files open for reading */
#define SOURCE_BYTES_MAX (UINT64_C(48) << 20) /* heap of their tables */
#define SMALL_WINDOWS 128u
#define SMALL_BYTES (2 * PD_VFS_ALIGN) /* a box of less than a page may lie on two */
#define WINDOW_BYTES_MAX (UINT64_C(2) << 20)
#define WINDOW_BYTES_MIN ((uint64_t)PD_SHARD_BLOCK_BYTES)
#define WINDOWS_A_SOURCE 3u            /* one that is used, one on its way, one that fills */
#define GAP_BYTES (UINT64_C(32) << 10) /* read over rather than torn: HDF5's pages between data */

/* ---- source shards ---- */

static void close_source(struct rewriter *r, struct rewrite_source *s)
{
    if (!s->shard && !s->boxes) return;
    pd_shard_close(s->shard);
    free(s->boxes);
    if (s->bytes) r->open_sources--;
    r->source_bytes -= s->bytes;
    *s = (struct rewrite_source){0};
}

void rewrite_close_sources(struct rewriter *r)
{
    for (uint32_t i = 0; r->sources && i < r->request->commit->shard_count; i++)
        close_source(r, &r->sources[i]);
    rewrite_decompressor_free(r->decompressor);
}

/* The least recently used ones go until there is room for one more. */
static void make_room(struct rewriter *r)
{
    while (r->open_sources >= SOURCE_SHARDS_MAX || r->source_bytes > SOURCE_BYTES_MAX) {
        struct rewrite_source *oldest = NULL;
        for (uint32_t i = 0; i < r->request->commit->shard_count; i++) {
            struct rewrite_source *s = &r->sources[i];
            if (s->bytes && !s->windows && (!oldest || s->used_at < oldest->used_at)) oldest = s;
        }
        if (!oldest) return;
        close_source(r, oldest);
    }
}

static pd_status open_shard(const struct rewriter *r, struct rewrite_source *s, uint32_t number, struct pd_error *err)
{
    PD_TRY(pd_stored_open_shard(r->vfs, r->request->directory, r->request->commit, number, &s->shard, err));
    PD_TRY(pd_layout_shard_boxes(r->stored, r->request->tensors, number, &s->boxes, &s->box_count, err));
    if (pd_stored_has_boxes(s->shard, r->request->tensors, s->boxes, s->box_count)) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "shard-%05u.h5 does not hold what its layout and its configuration give it", number);
}

static uint64_t heap_of(const struct rewriter *r, uint32_t number)
{
    const struct pd_shard_summary *row = &r->request->commit->shards[number];
    return 2 * row->table_bytes + row->box_count * sizeof(struct pd_shard_box);
}

bool rewrite_sources_fit(const struct rewriter *r)
{
    const uint32_t count = r->request->commit->shard_count;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += heap_of(r, i);
    return count <= REWRITE_OPEN_FIRST && bytes <= SOURCE_BYTES_MAX;
}

pd_status rewrite_open_ahead(struct rewriter *r, uint32_t number, struct pd_error *err)
{
    return open_shard(r, &r->sources[number], number, err);
}

pd_status rewrite_open_source(struct rewriter *r, uint32_t number, struct pd_error *err)
{
    struct rewrite_source *s = &r->sources[number];
    s->used_at = ++r->clock;
    if (s->is_awaited) {
        PD_TRY(rewrite_workers_wait(r, &s->is_opened, err));
        s->is_awaited = false;
    } else {
        if (s->shard) return PD_OK;
        make_room(r);
        PD_TRY(open_shard(r, s, number, err));
    }
    s->bytes = heap_of(r, number);
    r->source_bytes += s->bytes;
    r->open_sources++;
    return PD_OK;
}

/* ---- windows ---- */

static enum rewrite_class class_of(const struct rewrite_source *s, uint32_t box)
{
    return pd_shard_box_bytes(s->shard, box) < PD_VFS_ALIGN ? REWRITE_SMALL : REWRITE_LARGE;
}

static pd_status send_for(struct rewriter *r, struct rewrite_window *w, struct pd_error *err)
{
    w->is_sent = true;
    r->report.bytes_read += w->end - w->begin;
    return rewrite_send(r, &w->slot, pd_shard_file(r->sources[w->shard].shard), w->begin, w->end - w->begin, false, err);
}

/* The window grows no more, and waits for its turn. */
static void set_full(struct rewriter *r, struct rewrite_window *w)
{
    struct rewrite_window **end = &r->full;
    if (!w || w->is_full) return;
    while (*end)
        end = &(*end)->later;
    *end = w;
    w->later = NULL;
    w->is_full = true;
}

/* Somebody waits for it, whoever's turn it is. */
static pd_status send_for_now(struct rewriter *r, struct rewrite_window *w, struct pd_error *err)
{
    struct rewrite_window **place = &r->full;
    if (w->is_sent) return PD_OK;
    while (*place && *place != w)
        place = &(*place)->later;
    if (*place) *place = w->later;
    w->is_full = true;
    return send_for(r, w, err);
}

pd_status rewrite_read_more(struct rewriter *r, struct pd_error *err)
{
    while (r->full && r->reads_in_flight < REWRITE_READS_IN_FLIGHT) {
        struct rewrite_window *w = r->full;
        r->full = w->later;
        PD_TRY(send_for(r, w, err));
    }
    return PD_OK;
}

/* The disk has nothing to read and there is no room to plan further: what was planned goes as it is. */
static void set_all_full(struct rewriter *r)
{
    for (uint32_t i = 0; i < r->request->commit->shard_count; i++)
        for (int c = 0; r->sources[i].windows && c < REWRITE_CLASSES; c++)
            set_full(r, r->sources[i].last[c]);
}

static struct rewrite_window *take_window(struct rewriter *r, struct rewrite_source *s, enum rewrite_class class)
{
    const struct rewrite_pool *pool = &r->pools[class];
    for (uint32_t i = 0; i < pool->count; i++) {
        struct rewrite_window *w = &pool->windows[i];
        if (w->pieces) continue;
        w->is_sent = w->is_full = false;
        w->shard = (uint32_t)(s - r->sources);
        w->verified_end = 0;
        w->next = NULL;
        if (s->last[class])
            s->last[class]->next = w;
        else
            s->first[class] = w;
        s->last[class] = w;
        s->windows++;
        return w;
    }
    return NULL;
}

/* How many of `blocks` blocks, the first at `at` of the file and the last ending at `end`, lie before `limit`. */
static uint64_t count_fitting(uint64_t at, uint64_t end, uint64_t blocks, uint64_t limit)
{
    const uint64_t whole = limit > at ? (limit - at) / PD_SHARD_BLOCK_BYTES : 0;
    return whole + 1 >= blocks && pd_round_up(end, PD_VFS_ALIGN) <= limit ? blocks : whole < blocks ? whole : blocks - 1;
}

/* Blocks of the stretch being placed, as far as one window takes them; false: there is no window. */
static pd_status place_blocks(struct rewriter *r, bool *ret_placed, struct pd_error *err)
{
    const uint32_t shard = r->reading.source.shard;
    PD_TRY(rewrite_open_source(r, shard, err)); /* it may have been let go */
    struct rewrite_source *s = &r->sources[shard];
    const enum rewrite_class class = class_of(s, r->read_box);
    const uint64_t box = pd_shard_box_offset(s->shard, r->read_box), bytes = pd_shard_box_bytes(s->shard, r->read_box),
                   at = box + r->next_block * PD_SHARD_BLOCK_BYTES, blocks = r->end_block - r->next_block,
                   stop = r->end_block * PD_SHARD_BLOCK_BYTES, end = box + (stop < bytes ? stop : bytes);
    struct rewrite_window *w = s->last[class];
    const bool goes_on = w && !w->is_full && at >= w->begin && at <= w->end + GAP_BYTES;
    uint64_t fitting = goes_on ? count_fitting(at, end, blocks, w->begin + r->pools[class].bytes) : 0;
    if (!fitting) {
        set_full(r, w);
        w = take_window(r, s, class);
        *ret_placed = w != NULL;
        if (!w) return PD_OK;
        w->begin = w->end = at / PD_VFS_ALIGN * PD_VFS_ALIGN;
        fitting = count_fitting(at, end, blocks, w->begin + r->pools[class].bytes);
        PD_CHECK(fitting);
    }
    const uint64_t last = fitting == blocks ? pd_round_up(end, PD_VFS_ALIGN) : at + fitting * PD_SHARD_BLOCK_BYTES;
    if (last > w->end) w->end = last;
    w->pieces++;
    r->next_block += fitting;
    *ret_placed = true;
    return PD_OK;
}

bool rewrite_has_chunk_windows(const struct rewriter *r)
{
    return r->pools[REWRITE_LARGE].bytes >= PD_SHARD_CHUNK_MAX;
}

static bool takes(const struct rewriter *r, const struct rewrite_window *w, uint64_t at, uint64_t bytes)
{
    if (!w || at < w->begin) return false;
    if (at + bytes <= w->end) return true; /* the stretch before ended in that chunk */
    return !w->is_full && at <= w->end + GAP_BYTES && at + bytes <= w->begin + r->pools[REWRITE_LARGE].bytes;
}

/* The next chunk of the stretch being placed; false: there is no window. */
static pd_status place_chunk(struct rewriter *r, bool *ret_placed, struct pd_error *err)
{
    struct pd_shard_chunk chunk;
    PD_TRY(rewrite_open_source(r, r->reading.source.shard, err)); /* it may have been let go */
    struct rewrite_source *s = &r->sources[r->reading.source.shard];
    pd_shard_chunk_at(s->shard, r->read_box, r->next_byte, &chunk);
    struct rewrite_window *w = s->last[REWRITE_LARGE];
    if (!takes(r, w, chunk.offset, chunk.page_bytes)) {
        set_full(r, w);
        w = take_window(r, s, REWRITE_LARGE);
        *ret_placed = w != NULL;
        if (!w) return PD_OK;
        w->begin = w->end = chunk.offset;
        r->piece_window = NULL;
    }
    if (chunk.offset + chunk.page_bytes > w->end) w->end = chunk.offset + chunk.page_bytes;
    if (r->piece_window != w) w->pieces++;
    r->piece_window = w;
    r->next_byte = chunk.begin + chunk.bytes;
    *ret_placed = true;
    return PD_OK;
}

static pd_status next_stretch(struct rewriter *r, struct pd_error *err)
{
    const struct pd_stretch *s = &r->reading;
    r->is_reading = pd_chunk_stream_next(&r->ahead, &r->reading);
    if (!r->is_reading) return PD_OK;
    PD_TRY(rewrite_open_source(r, s->source.shard, err));
    r->read_box = rewrite_find_box(r->sources[s->source.shard].boxes, r->sources[s->source.shard].box_count, s);
    r->next_block = s->source.offset / PD_SHARD_BLOCK_BYTES;
    r->end_block = (s->source.offset + s->bytes - 1) / PD_SHARD_BLOCK_BYTES + 1;
    r->next_byte = r->end_byte = 0;
    r->piece_window = NULL;
    const struct pd_shard *shard = r->sources[s->source.shard].shard;
    if (!pd_shard_box_is_in_chunks(shard, r->read_box)) return PD_OK;
    if (rewrite_has_chunk_windows(r)) { /* all of the blocks it touches */
        const uint64_t box_bytes = pd_shard_box_bytes(shard, r->read_box), end = r->end_block * PD_SHARD_BLOCK_BYTES;
        r->next_byte = r->next_block * PD_SHARD_BLOCK_BYTES;
        r->end_byte = end < box_bytes ? end : box_bytes;
    }
    r->next_block = r->end_block;
    return PD_OK;
}

static pd_status read_ahead(struct rewriter *r, struct pd_error *err)
{
    for (bool placed = true; placed && r->is_reading;) {
        if (r->next_block < r->end_block)
            PD_TRY(place_blocks(r, &placed, err));
        else if (r->next_byte < r->end_byte)
            PD_TRY(place_chunk(r, &placed, err));
        else
            PD_TRY(next_stretch(r, err));
    }
    if (!r->reads_in_flight && !r->full) set_all_full(r);
    return rewrite_read_more(r, err);
}

/* Shards of one checkpoint are compressed alike; where they are not, those that are do without windows. */
void rewrite_look_at_source(struct rewriter *r)
{
    const struct pd_commit *commit = r->request->commit;
    struct pd_shard *shard = NULL;
    char path[4096 + 32];
    r->window_bytes_min = WINDOW_BYTES_MIN;
    snprintf(path, sizeof path, "%s/shard-00000.h5", r->request->directory);
    if (pd_shard_open(r->vfs, path, &commit->state.identity, &commit->shards[0], &shard, NULL)) return;
    if (pd_shard_is_compressed(shard)) r->window_bytes_min = PD_SHARD_CHUNK_MAX;
    pd_shard_close(shard);
}

void rewrite_cut_windows(struct rewriter *r, void *buffers, uint64_t bytes)
{
    unsigned char *memory = buffers;
    const uint32_t stage = pd_layout_world(r->stored) / r->stored->pp; /* that hold rows of the same tensor */
    struct rewrite_pool *small = &r->pools[REWRITE_SMALL], *large = &r->pools[REWRITE_LARGE];
    *small = (struct rewrite_pool){r->windows, SMALL_WINDOWS, SMALL_BYTES};
    for (uint32_t i = 0; i < small->count; i++, memory += SMALL_BYTES, bytes -= SMALL_BYTES)
        small->windows[i].slot.data = memory;
    large->windows = r->windows + SMALL_WINDOWS;
    large->bytes = bytes / WINDOWS_A_SOURCE / stage / r->window_bytes_min * r->window_bytes_min;
    if (large->bytes < r->window_bytes_min) large->bytes = r->window_bytes_min;
    if (large->bytes > WINDOW_BYTES_MAX) large->bytes = WINDOW_BYTES_MAX;
    const uint64_t count = bytes / large->bytes, most = REWRITE_SLOTS_MAX - SMALL_WINDOWS;
    large->count = (uint32_t)(count < most ? count : most);
    for (uint32_t i = 0; i < large->count; i++)
        large->windows[i].slot.data = memory + i * large->bytes;
}

pd_status rewrite_read_begin(struct rewriter *r, struct pd_error *err)
{
    r->is_reading = true;
    r->next_block = r->end_block = r->next_byte = r->end_byte = 0;
    return read_ahead(r, err);
}

/* ---- what comes out of them ---- */

static pd_status wait_for(struct rewriter *r, const struct rewrite_slot *slot, struct pd_error *err)
{
    while (slot->in_flight)
        PD_TRY(rewrite_reap(r, err));
    return PD_OK;
}

/* The piece that is read is done with, and with the last one its window. */
static pd_status end_piece(struct rewriter *r, struct rewrite_source *s, enum rewrite_class class, struct pd_error *err)
{
    struct rewrite_window *w = s->first[class];
    PD_CHECK(w && w->pieces > 0);
    if (--w->pieces || !w->is_full) return PD_OK;
    s->first[class] = w->next;
    if (!w->next) s->last[class] = NULL;
    s->windows--;
    return read_ahead(r, err);
}

bool rewrite_take_chunk(struct rewriter *r, uint64_t number)
{
    if (number < r->next_chunk) return false;
    r->next_chunk = number + 1;
    return true;
}

pd_status rewrite_read_done(struct rewriter *r, uint32_t shard, uint32_t box, struct pd_error *err)
{
    struct rewrite_source *s = &r->sources[shard];
    r->next_chunk = 0;
    if (pd_shard_box_is_in_chunks(s->shard, box) && !rewrite_has_chunk_windows(r)) return PD_OK;
    return end_piece(r, s, class_of(s, box), err);
}

static pd_status verify(struct rewrite_source *s, struct rewrite_window *w, uint32_t box, uint64_t block,
                        unsigned char *data, struct pd_error *err)
{
    if (w->verified_end > block && w->verified_box == box) return PD_OK;
    PD_TRY(pd_stored_verify_block(s->shard, box, block, data, err));
    w->verified_box = box;
    w->verified_end = block + 1;
    return PD_OK;
}

pd_status rewrite_need_window(struct rewriter *r, struct rewrite_source *s, enum rewrite_class class, uint64_t at,
                              uint64_t bytes, struct rewrite_window **ret_window, struct pd_error *err)
{
    struct rewrite_window *w = s->first[class];
    if (w && (at < w->begin || at + bytes > w->end)) { /* the stretch goes on in the next one */
        PD_TRY(end_piece(r, s, class, err));
        w = s->first[class];
    }
    if (!w) PD_TRY(read_ahead(r, err));
    w = s->first[class];
    PD_CHECK(w && at >= w->begin && at + bytes <= w->end);
    PD_TRY(send_for_now(r, w, err));
    PD_TRY(wait_for(r, &w->slot, err));
    *ret_window = w;
    return PD_OK;
}

pd_status rewrite_read(struct rewriter *r, uint32_t shard, uint32_t box, uint64_t offset, const unsigned char **ret_data,
                       uint64_t *ret_bytes, struct pd_error *err)
{
    struct rewrite_source *s = &r->sources[shard];
    const uint64_t block = offset / PD_SHARD_BLOCK_BYTES, begin = block * PD_SHARD_BLOCK_BYTES;
    const uint64_t bytes = pd_shard_block_length(pd_shard_box_bytes(s->shard, box), block),
                   at = pd_shard_box_offset(s->shard, box) + begin;
    struct rewrite_window *w = NULL;
    *ret_bytes = bytes - (offset - begin);
    if (pd_shard_box_is_in_chunks(s->shard, box)) {
        PD_TRY(rewrite_read_chunked(r, shard, box, block, bytes, ret_data, err));
        *ret_data += offset - begin;
        return PD_OK;
    }
    PD_TRY(rewrite_need_window(r, s, class_of(s, box), at, bytes, &w, err));
    unsigned char *data = w->slot.data + (at - w->begin);
    PD_TRY(verify(s, w, box, block, data, err));
    *ret_data = data + (offset - begin);
    return PD_OK;
}
