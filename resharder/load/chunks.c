/* Memory of a load. Data from the disk waits in a ring, in the order in which it is needed. When a round's turn comes,
 * all threads decompress its chunks to where the round is verified and sent from; unchunked boxes are used in place.
 * Without chunks there is only the ring.
 *
 *   the caller's buffers:  | a round, decompressed | two chunks that continue in the next | scratch of threads | ring ... |
 *
 *   invariants  1. a round is in the ring as a whole or not at all, and leaves it when its exchange is over
 *               2. nothing is decompressed before its digest was checked; a mismatch is read once more
 *               3. a chunk that continues in the next round is read and decompressed once: it is kept. If it spans two
 *                  readers both read it */
#include "ckpt/base/checked.h"
#include "resharder/load/internal.h"

#include "ckpt/base/stream_copy.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/shard/decompress.h"

#include <stdatomic.h>
#include <stdlib.h>

#define THREADS_MAX 16u
#define SCRATCH_BYTES (2ull * PD_SHARD_CHUNK_MAX) /* of a thread: shuffled bytes; a chunk that an item has only a part of */
#define NOT_KEPT 2u
#define GAP_BYTES (UINT64_C(32) << 10) /* most bytes read and not used between two boxes: HDF5's pages among small boxes */

struct job { /* one chunk, for one item */
    const struct pd_read_item *item;
    struct pd_shard_chunk chunk;
    unsigned char *pages;
    uint32_t kept;   /* index of the kept chunk, or NOT_KEPT */
    bool was_before; /* kept for the previous item: not read */
    pd_status status;
};

struct round {
    struct job *jobs; /* (job_capacity) */
    uint32_t job_count;
    uint64_t ring_end; /* head of the ring when submitted */
};

struct decoder { /* of one thread */
    struct pd_shard_decoder *decoder;
    unsigned char *output;
};

struct load_chunks {
    unsigned char *decompressed; /* (window_bytes) */
    unsigned char *kept[2];      /* (a chunk) */
    struct decoder decoders[THREADS_MAX];
    uint32_t threads;
    unsigned char *ring;
    uint64_t ring_bytes, head, tail; /* monotonic positions */
    uint64_t largest;                /* most bytes of a round's unchunked boxes */
    uint64_t *needs;                 /* (rounds) ring bytes of each */
    uint64_t *at;                    /* (items) unchunked: position in the ring */
    uint32_t job_capacity;
    struct round rounds[LOAD_WINDOWS];
    struct job *last; /* last submitted chunk, if it continues after its item */
    struct job last_job;
    struct pd_transfer pending; /* grows while the next read is adjacent; bytes 0: none */
    uint64_t pending_at;        /* position of its data in the ring; unchunked boxes only */
    const struct loader *loader;
    const struct round *running;
    atomic_uint next_job; /* of it */
    void *own;            /* allocated if the caller's buffers are too small for chunks; or NULL */
};

static struct round *round_of(const struct load_chunks *c, uint32_t round)
{
    return (struct round *)&c->rounds[round % LOAD_WINDOWS];
}

static uint64_t item_begin(const struct pd_read_item *item)
{
    return item->first_block * PD_SHARD_BLOCK_BYTES;
}

/* Where the pages of an unchunked item begin in its file. */
static uint64_t item_offset(const struct loader *l, const struct pd_read_item *item)
{
    return pd_shard_box_offset(l->shards[item->shard], item->box) - load_item_skip(l, item) + item_begin(item);
}

static uint64_t index_of(const struct loader *l, const struct pd_read_item *item)
{
    return (uint64_t)(item - l->plan->items);
}

char *load_chunks_data(const struct loader *l, const struct pd_read_item *item)
{
    const struct load_chunks *c = l->chunks;
    if (load_is_in_chunks(l, item)) return (char *)c->decompressed + item->window_offset;
    if (l->direct[index_of(l, item)]) return l->direct[index_of(l, item)];
    return (char *)c->ring + c->at[index_of(l, item)] % c->ring_bytes + load_item_skip(l, item);
}

pd_status load_send(struct loader *l, struct load_window *w, const struct pd_transfer *transfer, struct pd_error *err)
{
    PD_CHECK(w->sent < l->window_transfers);
    struct pd_transfer *t = &w->transfers[w->sent++];
    *t = (struct pd_transfer){.file = transfer->file,
                              .data = transfer->data,
                              .offset = transfer->offset,
                              .bytes = transfer->bytes,
                              .what = "read of a load",
                              .user = w};
    if (!w->in_flight) pd_owner_acquire(&w->owner, "reads");
    w->in_flight++; /* before the queue sees it: it may be in flight even if submitting fails */
    return pd_queue_submit(l->queue, &t, 1, err);
}

/* ---- the ring ---- */

/* Position for the next `bytes`: contiguous, so the end of the ring may stay unused. */
static uint64_t next_place(const struct load_chunks *c, uint64_t bytes)
{
    const uint64_t place = c->head % c->ring_bytes;
    return place + bytes <= c->ring_bytes ? c->head : c->head + (c->ring_bytes - place);
}

static uint64_t chunks_take(struct load_chunks *c, uint64_t bytes)
{
    const uint64_t place = next_place(c, bytes);
    c->head = place + bytes;
    PD_CHECK(c->head - c->tail <= c->ring_bytes);
    return place;
}

bool load_chunks_fit(const struct loader *l, uint32_t round)
{
    const struct load_chunks *c = l->chunks;
    return c->head - c->tail + c->needs[round] + c->largest <= c->ring_bytes;
}

void load_chunks_done(struct loader *l, uint32_t round)
{
    struct load_chunks *c = l->chunks;
    c->tail = round_of(c, round)->ring_end;
}

/* ---- submitting ---- */

static pd_status chunks_flush(struct loader *l, struct load_window *w, struct pd_error *err)
{
    struct load_chunks *c = l->chunks;
    const struct pd_transfer transfer = c->pending;
    c->pending.bytes = 0;
    return transfer.bytes ? load_send(l, w, &transfer, err) : PD_OK;
}

/* Merges adjacent reads: chunks are usually in the same order in the file and here. */
static pd_status chunks_send(struct loader *l, struct load_window *w, struct pd_file *file, unsigned char *data,
                             uint64_t offset, uint64_t bytes, struct pd_error *err)
{
    struct load_chunks *c = l->chunks;
    const struct pd_transfer *p = &c->pending;
    l->report.bytes_read += bytes;
    if (p->bytes && p->file == file && p->offset + p->bytes == offset && (unsigned char *)p->data + p->bytes == data &&
        p->offset % LOAD_READ_BYTES_MAX + p->bytes + bytes <= LOAD_READ_BYTES_MAX) {
        c->pending.bytes += bytes;
        return PD_OK;
    }
    PD_TRY(chunks_flush(l, w, err));
    c->pending = (struct pd_transfer){.file = file, .data = data, .offset = offset, .bytes = bytes};
    return PD_OK;
}

static pd_status send_pieces(struct loader *l, struct load_window *w, struct pd_file *file, unsigned char *data,
                             uint64_t offset, uint64_t span, struct pd_error *err)
{
    for (uint64_t done = 0, bytes; done < span; done += bytes) {
        bytes = pd_min_u64(span - done, LOAD_READ_BYTES_MAX - (offset + done) % LOAD_READ_BYTES_MAX);
        PD_TRY(chunks_send(l, w, file, data + done, offset + done, bytes, err));
    }
    return PD_OK;
}

/* True if [offset, offset + span) of the file begins in the pending read, or close behind it, and the ring has its place
 * there. *ret_more: bytes to add to the pending read. */
static bool joins(const struct load_chunks *c, const struct pd_file *file, uint64_t offset, uint64_t span,
                  uint64_t *ret_more)
{
    const struct pd_transfer *p = &c->pending;
    const uint64_t end = p->offset + p->bytes;
    if (!p->bytes || p->file != file || offset < p->offset || offset > end + GAP_BYTES) return false;
    if ((unsigned char *)p->data != c->ring + c->pending_at % c->ring_bytes || c->pending_at + p->bytes != c->head)
        return false;
    *ret_more = offset + span > end ? offset + span - end : 0;
    return c->pending_at % c->ring_bytes + p->bytes + *ret_more <= c->ring_bytes &&
           p->offset / LOAD_READ_BYTES_MAX == (offset + span - 1) / LOAD_READ_BYTES_MAX;
}

static pd_status submit_plain(struct loader *l, struct load_window *w, const struct pd_read_item *item, struct pd_error *err)
{
    struct load_chunks *c = l->chunks;
    struct pd_shard *shard = l->shards[item->shard];
    struct pd_file *file = pd_shard_file(shard);
    const uint64_t skip = load_item_skip(l, item), span = pd_round_up(skip + item->bytes, PD_VFS_ALIGN);
    const uint64_t offset = item_offset(l, item);
    unsigned char *direct = (unsigned char *)l->direct[index_of(l, item)];
    uint64_t *at = &c->at[index_of(l, item)], more = 0;
    l->report.bytes_stored += item->bytes;
    if (direct) return send_pieces(l, w, file, direct, offset, span, err);
    if (joins(c, file, offset, span, &more)) {
        *at = c->pending_at + (offset - c->pending.offset);
        l->report.bytes_read += more;
        c->pending.bytes += more;
        (void)chunks_take(c, more);
        return PD_OK;
    }
    *at = chunks_take(c, span);
    PD_TRY(send_pieces(l, w, file, c->ring + *at % c->ring_bytes, offset, span, err));
    c->pending_at = *at + (c->pending.offset - offset);
    return PD_OK;
}

static bool continues(const struct load_chunks *c, const struct pd_read_item *item, const struct pd_shard_chunk *chunk)
{
    const struct job *last = c->last;
    return last && last->item->shard == item->shard && last->item->box == item->box && last->chunk.number == chunk->number;
}

static pd_status submit_chunk(struct loader *l, struct load_window *w, const struct pd_read_item *item,
                              const struct pd_shard_chunk *chunk, struct pd_error *err)
{
    struct load_chunks *c = l->chunks;
    struct round *round = round_of(c, item->round);
    struct pd_shard *shard = l->shards[item->shard];
    PD_CHECK(round->job_count < c->job_capacity);
    struct job *job = &round->jobs[round->job_count++];
    *job = (struct job){.item = item, .chunk = *chunk, .kept = NOT_KEPT, .was_before = continues(c, item, chunk)};
    const bool goes_on = chunk->begin + chunk->bytes > item_begin(item) + item->bytes;
    if (job->was_before)
        job->kept = c->last_job.kept;
    else if (goes_on)
        job->kept = c->last_job.kept == 0;
    if (goes_on) c->last_job = *job;
    c->last = goes_on ? &c->last_job : NULL;
    if (chunk->begin >= item_begin(item)) l->report.bytes_stored += chunk->page_bytes;
    if (job->was_before) return PD_OK;
    job->pages = c->ring + chunks_take(c, chunk->page_bytes) % c->ring_bytes;
    return chunks_send(l, w, pd_shard_file(shard), job->pages, chunk->offset, chunk->page_bytes, err);
}

pd_status load_chunks_submit(struct loader *l, struct load_window *w, const struct pd_read_item *item, struct pd_error *err)
{
    l->report.bytes_wanted += item->bytes;
    if (!load_is_in_chunks(l, item)) return submit_plain(l, w, item, err);
    struct pd_shard_chunk chunk;
    const uint64_t begin = item_begin(item), end = begin + item->bytes;
    for (uint64_t at = begin; at < end; at = chunk.begin + chunk.bytes) {
        pd_shard_chunk_at(l->shards[item->shard], item->box, at, &chunk);
        PD_TRY(submit_chunk(l, w, item, &chunk, err));
    }
    return PD_OK;
}

pd_status load_chunks_submit_rest(struct loader *l, struct load_window *w, uint32_t round, struct pd_error *err)
{
    round_of(l->chunks, round)->ring_end = l->chunks->head;
    return chunks_flush(l, w, err);
}

/* ---- decompressing ---- */

/* Copies the item's part of the whole chunk at `data`. */
static void copy_share(const struct loader *l, const struct job *job, const unsigned char *data)
{
    const uint64_t item = item_begin(job->item), item_end = item + job->item->bytes,
                   begin = job->chunk.begin > item ? job->chunk.begin : item,
                   end = pd_min_u64(job->chunk.begin + job->chunk.bytes, item_end);
    pd_stream_copy(l->chunks->decompressed + job->item->window_offset + (begin - item), data + (begin - job->chunk.begin),
                   end - begin);
}

/* True if the item has all of the chunk, which is then decompressed straight to its place. */
static bool is_whole(const struct job *job)
{
    return job->chunk.begin >= item_begin(job->item) && job->chunk.bytes == job->chunk.whole_bytes &&
           job->chunk.begin + job->chunk.bytes <= item_begin(job->item) + job->item->bytes;
}

static pd_status decode(const struct loader *l, const struct job *job, struct decoder *decoder, struct pd_error *err)
{
    struct load_chunks *c = l->chunks;
    const struct pd_read_item *item = job->item;
    unsigned char *place = job->kept != NOT_KEPT ? c->kept[job->kept] : decoder->output;
    if (is_whole(job)) place = c->decompressed + item->window_offset + (job->chunk.begin - item_begin(item));
    PD_TRY(pd_shard_chunk_decode(l->shards[item->shard], item->box, &job->chunk, job->pages, decoder->decoder, place, err));
    if (!is_whole(job)) copy_share(l, job, place);
    return PD_OK;
}

static void decode_some(void *context, uint64_t thread)
{
    struct load_chunks *c = context;
    for (uint32_t j; (j = atomic_fetch_add_explicit(&c->next_job, 1, memory_order_relaxed)) < c->running->job_count;) {
        struct job *job = &c->running->jobs[j];
        if (!job->was_before) job->status = decode(c->loader, job, &c->decoders[thread], NULL);
    }
}

/* Reads a mismatching chunk again: a second mismatch is damage. */
static pd_status read_again(struct loader *l, struct job *job, struct pd_error *err)
{
    struct pd_file *file = pd_shard_file(l->shards[job->item->shard]);
    PD_TRY(pd_file_read(file, job->chunk.offset, job->pages, job->chunk.page_bytes, err));
    return decode(l, job, &l->chunks->decoders[0], err);
}

pd_status load_chunks_decompress(struct loader *l, uint32_t number, struct pd_error *err)
{
    struct load_chunks *c = l->chunks;
    struct round *round = round_of(c, number);
    if (!round->job_count) return PD_OK;
    for (uint32_t j = 0; j < round->job_count; j++) /* before another chunk takes its place */
        if (round->jobs[j].was_before) copy_share(l, &round->jobs[j], c->kept[round->jobs[j].kept]);
    c->running = round;
    atomic_store_explicit(&c->next_job, 0, memory_order_relaxed);
    pd_parallel(l->request->pool, c->threads, decode_some, c);
    for (uint32_t j = 0; j < round->job_count; j++) {
        struct job *job = &round->jobs[j];
        const pd_status st = job->status == PD_CORRUPT ? read_again(l, job, err) : PD_OK;
        if (st) return load_blame(l, job->item->shard, st, err);
        if (job->status == PD_NO_MEMORY) PD_FAIL(err, PD_NO_MEMORY, "load: no memory to decompress");
    }
    round->job_count = 0;
    return PD_OK;
}

/* ---- memory ---- */

struct demand {
    uint64_t need, most, largest; /* for a round; for the largest; unchunked */
    uint32_t jobs, most_jobs, transfers, most_transfers;
    bool has_chunks;
    uint32_t shard; /* of the last unchunked item */
    uint64_t end;   /* and the end of its pages in the file; 0: none in this round */
};

static void count_item(const struct loader *l, const struct pd_read_item *item, struct demand *s)
{
    uint64_t largest = pd_round_up(load_item_skip(l, item) + item->bytes, PD_VFS_ALIGN);
    if (!load_is_in_chunks(l, item)) {
        s->transfers += (uint32_t)(largest / LOAD_READ_BYTES_MAX) + 2;
        if (l->direct[index_of(l, item)]) largest = 0;
        const uint64_t offset = item_offset(l, item);
        if (s->end && s->shard == item->shard && offset > s->end && offset <= s->end + GAP_BYTES) s->need += offset - s->end;
        s->shard = item->shard;
        s->end = offset + largest;
        s->need += largest;
    } else {
        struct pd_shard_chunk chunk;
        const uint64_t begin = item_begin(item), end = begin + item->bytes;
        s->has_chunks = true;
        largest = 0;
        for (uint64_t at = begin; at < end; at = chunk.begin + chunk.bytes) {
            pd_shard_chunk_at(l->shards[item->shard], item->box, at, &chunk);
            s->need += chunk.page_bytes;
            s->jobs++;
            s->transfers++;
            if (chunk.page_bytes > largest) largest = chunk.page_bytes;
        }
    }
    if (largest > s->largest) s->largest = largest;
}

static void end_round(struct demand *s)
{
    if (s->need > s->most) s->most = s->need;
    if (s->jobs > s->most_jobs) s->most_jobs = s->jobs;
    if (s->transfers > s->most_transfers) s->most_transfers = s->transfers;
    s->need = s->end = 0;
    s->jobs = s->transfers = 0;
}

/* Computes needs[round] for this rank's rounds, and the maximum of each size. */
static void count_rounds(const struct loader *l, uint64_t *needs, struct demand *s)
{
    const struct pd_plan *plan = l->plan;
    for (uint64_t i = 0; i < plan->item_count; i++) {
        count_item(l, &plan->items[i], s);
        needs[plan->items[i].round] = s->need;
        if (i + 1 == plan->item_count || plan->items[i + 1].round != plan->items[i].round) end_round(s);
    }
}

/* Divides the buffers. If they are too small for a round of chunks, allocates as much memory as that needs instead. */
static pd_status cut(struct loader *l, struct load_chunks *c, const struct demand *s, struct pd_error *err)
{
    const uint64_t fixed = s->has_chunks ? l->window_bytes + 2ull * PD_SHARD_CHUNK_MAX : 0, most = s->most + s->largest,
                   least = fixed + most + (s->has_chunks ? SCRATCH_BYTES : 0);
    const uint32_t size = pd_thread_pool_size(l->request->pool);
    uint64_t have = l->request->buffer_bytes / PD_VFS_ALIGN * PD_VFS_ALIGN;
    unsigned char *memory = l->request->buffers;
    if (have < least) {
        have = least;
        memory = c->own = aligned_alloc(PD_VFS_ALIGN, least);
        if (!memory) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for a round of chunks");
    }
    if (s->has_chunks) {
        const uint64_t affordable = (have - fixed - most) / SCRATCH_BYTES, share = pd_max_u64(have / 4 / SCRATCH_BYTES, 1);
        c->threads = (uint32_t)pd_min_u64(pd_min_u64(size, THREADS_MAX), pd_min_u64(affordable, share));
        c->decompressed = memory;
        c->kept[0] = memory + l->window_bytes;
        c->kept[1] = c->kept[0] + PD_SHARD_CHUNK_MAX;
    }
    unsigned char *at = memory + fixed;
    for (uint32_t t = 0; t < c->threads; t++, at += SCRATCH_BYTES) {
        c->decoders[t].output = at + PD_SHARD_CHUNK_MAX;
        PD_TRY(pd_shard_decoder_new(at, &c->decoders[t].decoder, err));
    }
    c->ring = at;
    c->ring_bytes = have - (uint64_t)(at - memory);
    return pd_queue_open(l->vfs, memory, have, &l->queue, err);
}

pd_status load_chunks_new(struct loader *l, struct pd_error *err)
{
    struct demand demand = {0};
    struct load_chunks *c = l->chunks = calloc(1, sizeof *c);
    if (c) c->needs = calloc(l->plan->round_count + 1ull, sizeof *c->needs);
    if (!c || !c->needs) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for %u rounds", l->plan->round_count);
    count_rounds(l, c->needs, &demand);
    l->window_transfers = demand.most_transfers;
    c->loader = l;
    c->largest = demand.largest;
    c->job_capacity = demand.most_jobs;
    c->at = calloc(l->plan->item_count + 1, sizeof *c->at);
    c->rounds[0].jobs = calloc((uint64_t)LOAD_WINDOWS * c->job_capacity + 1, sizeof *c->rounds[0].jobs);
    if (!c->at || !c->rounds[0].jobs)
        PD_FAIL(err, PD_NO_MEMORY, "load: no memory for the chunks of %u rounds", LOAD_WINDOWS);
    for (uint32_t r = 1; r < LOAD_WINDOWS; r++)
        c->rounds[r].jobs = c->rounds[0].jobs + (uint64_t)r * c->job_capacity;
    return cut(l, c, &demand, err);
}

void load_chunks_free(struct load_chunks *chunks)
{
    if (!chunks) return;
    for (uint32_t t = 0; t < chunks->threads; t++)
        pd_shard_decoder_free(chunks->decoders[t].decoder);
    free(chunks->rounds[0].jobs);
    free(chunks->needs);
    free(chunks->at);
    free(chunks->own);
    free(chunks);
}
