/* Sends the sum of each part to its owner, host by host:
 *
 *   inside   the ranks of a host divide the parts of a round: the owner's peer (hosts.h) adds the others' values to its own,
 *            in place
 *   outside  it sends that sum to the part's owner, which adds it
 *
 * Parts are cut into chunks of elements, and each chunk runs in rounds of some hosts: in a round each host sends to those
 * `from` to `to` after it. One exchange carries the inside of a round and the outside of the previous one, so links between
 * hosts are busy while sums are computed. A rank's own host is in a chunk's first round.
 *
 *   scratch  buffer for sums of device parts. Two halves, used by rounds in turn: (hosts, parts of a host that this rank sums,
 *         chunk), and at the end of each, used by chunks in turn, (chunk) of the own part
 */
#include "ckpt/base/checked.h"
#include "trainer/comm/progress.h"
#include "trainer/comm/staging.h"

#include <string.h>

/* Few, so that ranks seldom wait for each other, but enough to overlap inside and outside. */
#define CHUNKS 8u
#define CHUNK_COUNT_MIN (UINT64_C(1) << 14)
#define CHUNK_COUNT_MAX (UINT64_C(1) << 19)

static const char fault[] = "comm.reduce_scatter.flip";

struct walk {
    struct pd_progress *engine;
    const struct pd_comm_op *op;
    uint64_t count;   /* elements of a part */
    uint64_t chunk;   /* of them; equal on all ranks, as the two below */
    uint32_t hosts;   /* other hosts in a round */
    uint64_t rounds;  /* of a chunk */
    uint32_t columns; /* most parts of another host that this rank sums */
    uint64_t half;    /* elements in half of the scratch */
    struct pd_messages messages;
};

struct round {
    uint64_t first, count;  /* elements of each part */
    uint32_t from, to;      /* distances between hosts */
    bool is_first, is_last; /* of its chunk */
    uint64_t *sums;         /* (hosts, columns, chunk) */
    uint64_t *own;          /* (count) the sum of the own part */
};

static bool is_alone(const struct walk *w)
{
    return pd_hosts_ranks(&w->engine->hosts, w->engine->hosts.mine) == 1;
}

static struct walk walk_of(struct pd_progress *engine, const struct pd_comm_op *op)
{
    const struct pd_hosts *hosts = &engine->hosts;
    const uint32_t others = hosts->count - 1;
    /* Equal on all ranks: sized for the busiest host. */
    const uint64_t columns = pd_divide_up(hosts->largest, hosts->smallest);
    const uint64_t half = engine->scratch_bytes / 2 / sizeof(uint64_t);
    struct walk w = {.engine = engine, .op = op, .count = op->part_bytes / sizeof(uint64_t)};
    w.chunk = pd_max_u64(pd_min_u64(pd_divide_up(w.count, CHUNKS), CHUNK_COUNT_MAX), CHUNK_COUNT_MIN);
    if (op->memory)
        w.chunk = pd_min_u64(w.chunk, half / (columns + 1));
    else if (hosts->largest == 1 && others <= PD_STAGING_UNITS_MAX)
        w.chunk = pd_max_u64(w.count, 1); /* nothing is added inside; every rank has a lane */
    w.hosts = 1;
    while (w.hosts < others && (w.hosts + 1) * hosts->largest <= PD_ROUND_PARTS &&
           (!op->memory || ((w.hosts + 1) * columns + 1) * w.chunk <= half))
        w.hosts++;
    w.rounds = others ? pd_divide_up(others, w.hosts) : 1;
    w.half = half;
    w.columns = (uint32_t)pd_divide_up(hosts->largest, pd_hosts_ranks(hosts, hosts->mine));
    w.messages = (struct pd_messages){.sends = engine->sends,
                                      .recvs = engine->recvs,
                                      .inner = op->memory,
                                      .outer = is_alone(&w) ? op->memory : NULL,
                                      .adds = true,
                                      .adds_narrow = op->adds_narrow,
                                      .fault = fault};
    return w;
}

/* First element of a chunk. The first chunks are a quarter and a half as long, so that links soon have data to send. */
static uint64_t first_of(const struct walk *w, uint64_t chunk)
{
    const uint64_t quarter = w->chunk / 4;
    if (w->count <= w->chunk) return chunk * w->chunk;
    return chunk < 3 ? ((UINT64_C(1) << chunk) - 1) * quarter : (4 * chunk - 5) * quarter;
}

static struct round round_of(const struct walk *w, uint64_t number)
{
    const uint64_t chunk = number / w->rounds, others = w->engine->hosts.count - 1;
    uint64_t *scratch = (uint64_t *)w->engine->scratch;
    struct round r = {.first = first_of(w, chunk), .from = (uint32_t)(1 + number % w->rounds * w->hosts)};
    r.count = pd_min_u64(first_of(w, chunk + 1), w->count) - r.first;
    r.to = (uint32_t)pd_min_u64((uint64_t)r.from + w->hosts, others + 1);
    r.is_first = number % w->rounds == 0;
    r.is_last = (number + 1) % w->rounds == 0;
    r.sums = scratch + number % 2 * w->half;
    r.own = w->op->memory ? scratch + (chunk % 2 + 1) * w->half - w->chunk : (uint64_t *)w->op->sum + r.first;
    return r;
}

static uint64_t *part_of(const struct walk *w, uint32_t rank, const struct round *r)
{
    return (uint64_t *)w->op->parts + rank * w->count + r->first;
}

static void reduce_scatter_send(struct walk *w, uint32_t peer, uint64_t *data, uint64_t count)
{
    w->engine->sends[w->messages.send_count++] = (struct pd_comm_piece){peer, data, count * sizeof *data};
}

static void reduce_scatter_receive(struct walk *w, uint32_t peer, uint64_t *sum, uint64_t count)
{
    w->engine->recvs[w->messages.recv_count++] = (struct pd_comm_piece){peer, sum, count * sizeof *sum};
}

/* For a part that this rank sums for its host: adds its own value now, the others' in the exchange. */
static pd_status add_here(struct walk *w, uint32_t part, uint64_t *sum, const struct round *r, struct pd_error *err)
{
    const struct pd_hosts *hosts = &w->engine->hosts;
    const struct pd_comm_memory *memory = w->op->memory;
    const uint64_t *own = part_of(w, part, r);
    if (memory)
        PD_TRY(memory->copy(memory->context, sum, own, r->count * sizeof *own, err));
    else if (sum != own)
        memcpy(sum, own, r->count * sizeof *own);
    for (uint32_t i = hosts->first[hosts->mine]; i < hosts->first[hosts->mine + 1]; i++)
        if (hosts->ranks[i] != w->engine->comm.rank) reduce_scatter_receive(w, hosts->ranks[i], sum, r->count);
    return PD_OK;
}

/* The sum of a host's j-th part among those this rank forms. */
static uint64_t *sum_of(const struct walk *w, const struct round *r, uint32_t distance, uint32_t j)
{
    const struct pd_hosts *hosts = &w->engine->hosts;
    const uint32_t part = hosts->ranks[hosts->first[pd_hosts_after(hosts, distance)] + j];
    if (!w->op->memory || is_alone(w)) return part_of(w, part, r);
    return r->sums + ((distance - r->from) * w->columns + j / pd_hosts_ranks(hosts, hosts->mine)) * w->chunk;
}

/* A rank alone on its host has nothing to add for others. */
static pd_status add_inside(struct walk *w, const struct round *r, struct pd_error *err)
{
    const struct pd_hosts *hosts = &w->engine->hosts;
    const uint32_t ranks = pd_hosts_ranks(hosts, hosts->mine);
    for (uint32_t d = r->is_first ? 0 : r->from; d < r->to; d = d ? d + 1 : r->from) {
        const uint32_t host = pd_hosts_after(hosts, d);
        for (uint32_t j = 0; j < pd_hosts_ranks(hosts, host); j++) {
            const uint32_t part = hosts->ranks[hosts->first[host] + j];
            if (j % ranks != hosts->slot)
                reduce_scatter_send(w, hosts->ranks[hosts->first[hosts->mine] + j % ranks], part_of(w, part, r), r->count);
            else if (d == 0)
                PD_TRY(add_here(w, part, r->own, r, err));
            else if (!is_alone(w))
                PD_TRY(add_here(w, part, sum_of(w, r, d, j), r, err));
        }
    }
    return PD_OK;
}

static void add_outside(struct walk *w, const struct round *r)
{
    const struct pd_hosts *hosts = &w->engine->hosts;
    const uint32_t ranks = pd_hosts_ranks(hosts, hosts->mine);
    for (uint32_t d = r->from; d < r->to; d++) {
        const uint32_t host = pd_hosts_after(hosts, d);
        for (uint32_t j = hosts->slot; j < pd_hosts_ranks(hosts, host); j += ranks) {
            const uint32_t part = hosts->ranks[hosts->first[host] + j];
            reduce_scatter_send(w, part, sum_of(w, r, d, j), r->count);
        }
        reduce_scatter_receive(w, pd_hosts_column(hosts, pd_hosts_before(hosts, d), hosts->slot), r->own, r->count);
    }
}

static pd_status copy_own(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err)
{
    const uint8_t *own = op->parts + engine->comm.rank * op->part_bytes;
    if (op->memory) return op->memory->copy(op->memory->context, op->sum, own, op->part_bytes, err);
    memmove(op->sum, own, op->part_bytes);
    return PD_OK;
}

pd_status pd_reduce_scatter_run(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err)
{
    if (engine->comm.size == 1) return op->part_bytes ? copy_own(engine, op, err) : PD_OK;
    struct walk w = walk_of(engine, op);
    const struct pd_collective_header own = {op->kind, op->part_bytes}, *header;
    PD_TRY(pd_collective_agree(engine, &own, &header, err));
    const struct pd_comm_memory *memory = w.op->memory;
    uint64_t rounds = 0;
    while (first_of(&w, rounds / w.rounds) < w.count)
        rounds += w.rounds;
    struct round before = {.is_last = false};
    for (uint64_t number = 0; number <= rounds && rounds; number++) {
        w.messages.send_count = w.messages.recv_count = 0;
        if (number > 0) add_outside(&w, &before);
        w.messages.header = number > 0 && before.first == 0 ? header : NULL;
        const bool was_last = before.is_last;
        const struct round ended = before;
        if (number < rounds) {
            before = round_of(&w, number);
            PD_TRY(add_inside(&w, &before, err));
        }
        PD_TRY(pd_exchange_run(w.engine, &w.messages, err));
        if (was_last && memory)
            PD_TRY(memory->copy(memory->context, (uint64_t *)w.op->sum + ended.first, ended.own,
                                ended.count * sizeof *ended.own, err));
    }
    return PD_OK;
}
