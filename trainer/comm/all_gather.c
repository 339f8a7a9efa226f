/* Every rank gets the parts of all. A part enters each other host once, at its owner's peer there (hosts.h), directly in
 * place; the peer passes it on inside the host. Long parts are cut into chunks, hosts into rounds, as in reduce_scatter.c.
 * One exchange carries the outside of a round and the inside of the previous round. The inside of the last round overlaps
 * the outside of the next queued gather. */
#include "ckpt/base/checked.h"
#include "trainer/comm/progress.h"
#include "trainer/comm/staging.h"

/* A chunk ends when all of it has arrived: faster ranks then wait for slower ones, with idle links. */
#define CHUNK_BYTES_MAX (UINT64_C(4) << 20)

static const char fault[] = "comm.all_gather.flip";

struct walk {
    struct pd_progress *engine;
    const struct pd_comm_op *op;
    uint64_t chunk;  /* bytes of a part */
    uint32_t hosts;  /* other hosts in a round */
    uint64_t rounds; /* of a chunk */
    struct pd_comm_piece *sends, *recvs;
    struct pd_messages messages; /* of these */
};

struct round {
    uint64_t first, bytes; /* of each part */
    uint32_t from, to;     /* distances between hosts */
    bool is_first;         /* of its chunk */
};

static void all_gather_send(struct walk *w, uint32_t peer, uint32_t part, const struct round *r)
{
    uint8_t *data = w->op->parts + part * w->op->part_bytes + r->first;
    w->sends[w->messages.send_count++] = (struct pd_comm_piece){peer, data, r->bytes};
}

static void all_gather_receive(struct walk *w, uint32_t peer, uint32_t part, const struct round *r)
{
    uint8_t *data = w->op->parts + part * w->op->part_bytes + r->first;
    w->recvs[w->messages.recv_count++] = (struct pd_comm_piece){peer, data, r->bytes};
}

static void gather_outside(struct walk *w, const struct round *r)
{
    const struct pd_hosts *hosts = &w->engine->hosts;
    const uint32_t ranks = pd_hosts_ranks(hosts, hosts->mine), mine = w->engine->comm.rank;
    for (uint32_t d = r->from; d < r->to; d++) {
        const uint32_t host = pd_hosts_before(hosts, d);
        all_gather_send(w, pd_hosts_column(hosts, pd_hosts_after(hosts, d), hosts->slot), mine, r);
        for (uint32_t j = hosts->slot; j < pd_hosts_ranks(hosts, host); j += ranks)
            all_gather_receive(w, hosts->ranks[hosts->first[host] + j], hosts->ranks[hosts->first[host] + j], r);
    }
}

/* Passes the parts of a host that have arrived to the other ranks here, and receives theirs. */
static void pass_on(struct walk *w, uint32_t host, const struct round *r)
{
    const struct pd_hosts *hosts = &w->engine->hosts;
    const uint32_t ranks = pd_hosts_ranks(hosts, hosts->mine), *here = hosts->ranks + hosts->first[hosts->mine];
    for (uint32_t j = 0; j < pd_hosts_ranks(hosts, host); j++) {
        const uint32_t part = hosts->ranks[hosts->first[host] + j];
        if (j % ranks != hosts->slot) all_gather_receive(w, here[j % ranks], part, r);
        for (uint32_t i = 0; i < ranks && j % ranks == hosts->slot; i++)
            if (i != hosts->slot) all_gather_send(w, here[i], part, r);
    }
}

static struct round round_of(const struct walk *w, uint64_t number)
{
    const uint64_t others = w->engine->hosts.count - 1, first = number / w->rounds * w->chunk;
    const uint32_t from = (uint32_t)(1 + number % w->rounds * w->hosts);
    return (struct round){.first = first,
                          .bytes = pd_min_u64(w->chunk, w->op->part_bytes - first),
                          .from = from,
                          .to = (uint32_t)pd_min_u64((uint64_t)from + w->hosts, others + 1),
                          .is_first = number % w->rounds == 0};
}

static struct walk walk_of(struct pd_progress *engine, const struct pd_comm_op *op)
{
    const uint32_t others = engine->hosts.count - 1, most = PD_ROUND_PARTS / engine->hosts.largest;
    struct walk w = {.engine = engine, .op = op, .hosts = most ? most : 1, .sends = engine->sends, .recvs = engine->recvs};
    w.chunk = pd_max_u64(pd_min_u64(op->part_bytes, CHUNK_BYTES_MAX), 1);
    if (engine->hosts.largest == 1 && others <= PD_STAGING_UNITS_MAX) w.chunk = pd_max_u64(op->part_bytes, 1);
    w.rounds = others ? pd_divide_up(others, w.hosts) : 1;
    w.messages = (struct pd_messages){.sends = engine->sends,
                                      .recvs = engine->recvs,
                                      .inner = op->memory,
                                      .outer = op->memory,
                                      .arriving = op->memory,
                                      .fault = fault};
    return w;
}

/* ---- agreement ---- */

/* Each rank pairs with one rank on each other host, both ways, and has a lane for each; ranks of its own host need none. */
static bool headers_go_ahead(const struct pd_progress *engine)
{
    const struct pd_hosts *hosts = &engine->hosts;
    return hosts->largest == hosts->smallest && engine->segment->shape.slots == hosts->largest &&
           hosts->count - 1 <= pd_staging_lanes(engine->comm.size, hosts->largest);
}

/* Adds messages with the ranks this one exchanges with: the ranks of its host, and its peers on others. Their headers arrive in
 * the scratch buffer. */
static void add_headers(struct walk *w, const struct pd_collective_header *header, bool is_outside)
{
    const struct pd_hosts *hosts = &w->engine->hosts;
    const struct round all = {.bytes = sizeof *header, .from = 1, .to = hosts->count};
    struct pd_collective_header *headers = (struct pd_collective_header *)w->engine->scratch;
    if (is_outside) gather_outside(w, &all);
    for (uint32_t i = hosts->first[hosts->mine]; i < hosts->first[hosts->mine + 1]; i++) {
        if (hosts->ranks[i] == w->engine->comm.rank) continue;
        all_gather_send(w, hosts->ranks[i], 0, &all);
        all_gather_receive(w, hosts->ranks[i], 0, &all);
    }
    for (uint32_t i = 0; i < w->messages.send_count; i++)
        w->sends[i].data = (void *)header;
    for (uint32_t i = 0; i < w->messages.recv_count; i++)
        w->recvs[i].data = &headers[i];
}

static pd_status compare_headers(const struct walk *w, const struct pd_collective_header *header, struct pd_error *err)
{
    const struct pd_collective_header *headers = (const struct pd_collective_header *)w->engine->scratch;
    for (uint32_t i = 0; i < w->messages.recv_count; i++)
        PD_TRY(pd_collective_compare(w->engine, header, &headers[i], w->recvs[i].peer, err));
    return PD_OK;
}

static struct walk walk_of_headers(struct pd_progress *engine, uint32_t sends, uint32_t recvs)
{
    static const struct pd_comm_op none = {.kind = PD_COMM_EXCHANGE};
    struct walk w = {.engine = engine, .op = &none, .sends = engine->sends + sends, .recvs = engine->recvs + recvs};
    w.messages = (struct pd_messages){.sends = w.sends, .recvs = w.recvs};
    return w;
}

/* ---- overlapping two gathers ---- While a gather finishes inside hosts, links between hosts would be idle. So if the next
 * operation is a gather too, its first round starts between hosts. The finishing gather is then done, and the next one
 * agreed on, whatever happens to that round. This adds no waiting, and each rank may choose it on its own. */
struct next_gather {
    struct pd_collective_header header;
    struct walk headers;
    bool is_agreeing;
};

static pd_status inside_ended(struct pd_progress *engine, void *context, struct pd_error *err)
{
    struct next_gather *next = context;
    if (next->is_agreeing) return compare_headers(&next->headers, &next->header, err);
    pd_progress_end_current(engine);
    add_headers(&next->headers, &next->header, false);
    next->is_agreeing = true;
    pd_exchange_add(engine, &next->headers.messages);
    return PD_OK;
}

/* Two exchanges later between hosts: unless rounds are started early, the agreement is an exchange of its own. */
static void begin_next(struct walk *w, struct next_gather *next)
{
    const struct pd_comm_op *op = headers_go_ahead(w->engine) ? pd_progress_begin_next(w->engine, w->op) : NULL;
    if (!op) return;
    struct walk behind = walk_of(w->engine, op);
    const struct round first = round_of(&behind, 0);
    behind.messages = w->messages;
    gather_outside(&behind, &first);
    w->messages = behind.messages;
    *next = (struct next_gather){.header = {op->kind, op->part_bytes},
                                 .headers = walk_of_headers(w->engine, w->messages.send_count, w->messages.recv_count)};
    w->messages.header = &next->header;
    w->messages.inside_ended = inside_ended;
    w->messages.context = next;
    w->messages.remote_ahead = 2;
}

/* ---- all of it ---- */

pd_status pd_all_gather_run(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err)
{
    struct walk w = walk_of(engine, op);
    const struct pd_collective_header own = {op->kind, op->part_bytes}, *header;
    if (engine->comm.size == 1) return PD_OK;
    if (op->is_begun) {
        header = &own;
        engine->exchange.sequence++; /* the round that was started early */
    } else {
        PD_TRY(pd_collective_agree(engine, &own, &header, err));
    }
    const uint64_t rounds = pd_divide_up(w.op->part_bytes, w.chunk) * w.rounds;
    struct round before = round_of(&w, 0);
    struct next_gather next;
    for (uint64_t number = w.op->is_begun; number <= rounds && rounds; number++) {
        w.messages.send_count = w.messages.recv_count = 0;
        if (number > 0) {
            const struct pd_hosts *hosts = &w.engine->hosts;
            if (before.is_first) pass_on(&w, hosts->mine, &before);
            for (uint32_t d = before.from; d < before.to; d++)
                pass_on(&w, pd_hosts_before(hosts, d), &before);
        }
        if (number < rounds) {
            before = round_of(&w, number);
            gather_outside(&w, &before);
        }
        w.messages.header = number < rounds && before.first == 0 ? header : NULL;
        if (number == rounds) begin_next(&w, &next);
        PD_TRY(pd_exchange_run(w.engine, &w.messages, err));
    }
    return PD_OK;
}

pd_status pd_collective_compare(const struct pd_progress *engine, const struct pd_collective_header *own,
                                const struct pd_collective_header *other, uint32_t peer, struct pd_error *err)
{
    if (own->kind == other->kind && own->part_bytes == other->part_bytes) return PD_OK;
    const char *name = other->kind <= PD_COMM_ALL_GATHER ? pd_comm_kind_names[other->kind] : "unknown";
    PD_FAIL(err, PD_BUG, "rank %u begins a collective (%s) of %llu bytes a part, rank %u one (%s) of %llu",
            engine->members[engine->comm.rank].world, pd_comm_kind_names[own->kind], (unsigned long long)own->part_bytes,
            engine->members[peer].world, name, (unsigned long long)other->part_bytes);
}

pd_status pd_collective_agree(struct pd_progress *engine, const struct pd_collective_header *header,
                              const struct pd_collective_header **ret_header, struct pd_error *err)
{
    struct walk w = walk_of_headers(engine, 0, 0);
    *ret_header = headers_go_ahead(engine) ? header : NULL;
    add_headers(&w, header, !*ret_header);
    PD_TRY(pd_exchange_run(engine, &w.messages, err));
    return compare_headers(&w, header, err);
}
