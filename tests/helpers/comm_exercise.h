/* What every transport must do, as code that runs on each rank: shared by the unit tests (ranks as threads) and by the
 * program that runs under mpirun. A failure returns PD_BUG with the seed and the place. Where the communicator has a
 * far_hook, pieces lie in its memory and are cut alike on both sides. */
#pragma once

#include "tests/helpers/device_memory.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline uint64_t exercise_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t exercise_mix4(uint64_t seed, uint64_t round, uint64_t a, uint64_t b)
{
    return exercise_mix(exercise_mix(exercise_mix(exercise_mix(seed) ^ round) ^ a) ^ b);
}

/* Bytes that rank a sends to rank b in a round: often none, mostly few, sometimes many. */
static inline uint64_t exercise_bytes(uint64_t seed, uint64_t round, uint32_t a, uint32_t b, uint64_t bytes_max)
{
    uint64_t dice = exercise_mix4(seed, round, a, b);
    switch (dice % 8) {
    case 0:
    case 1:
        return 0;
    case 2:
        return 1 + dice / 8 % 7;
    case 3:
        return dice / 8 % bytes_max;
    default:
        return dice / 8 % (bytes_max < 2000 ? bytes_max : 2000);
    }
}

static inline uint8_t exercise_byte(uint64_t key, uint64_t at)
{
    return (uint8_t)((key >> (at % 57)) + at * 131);
}

#define EXERCISE_PIECES_MAX 6u /* of one message */

struct exercise_side {
    uint8_t *memory, *far;
    uint64_t bytes;
    struct pd_comm_piece *pieces;
    uint32_t count;
};

struct exercise_flight {
    struct exercise_side sends, recvs;
    struct pd_comm_op op;
    uint64_t round;
};

/* Messages between this rank and all others, each cut at random; pieces of different peers interleave. */
static inline void exercise_side_make(struct exercise_side *side, uint64_t seed, uint64_t round, uint32_t rank,
                                      uint32_t size, uint64_t bytes_max, bool is_send, bool is_alike)
{
    uint64_t total = 0;
    for (uint32_t p = 0; p < size; p++)
        total += is_send ? exercise_bytes(seed, round, rank, p, bytes_max) : exercise_bytes(seed, round, p, rank, bytes_max);
    side->memory = malloc(total + 1);
    side->far = NULL;
    side->bytes = total;
    side->pieces = calloc((size_t)size * EXERCISE_PIECES_MAX, sizeof *side->pieces);
    side->count = 0;
    uint64_t *left = calloc(size, sizeof *left), at = 0, live = 0;
    for (uint32_t p = 0; p < size; p++) {
        left[p] =
            is_send ? exercise_bytes(seed, round, rank, p, bytes_max) : exercise_bytes(seed, round, p, rank, bytes_max);
        live += left[p] > 0;
    }
    for (uint32_t k = 0; live > 0; k++) {
        for (uint32_t p = 0; p < size; p++) {
            if (left[p] == 0) continue;
            uint64_t from = is_send ? rank : p, to = is_send ? p : rank;
            uint64_t dice = exercise_mix4(seed ^ (is_send || is_alike ? 77 : 99), round * 64 + k, from, to);
            uint64_t take = k + 1 == EXERCISE_PIECES_MAX ? left[p] : dice % (left[p] + 1); /* may be empty */
            side->pieces[side->count++] = (struct pd_comm_piece){.peer = p, .data = side->memory + at, .bytes = take};
            at += take;
            left[p] -= take;
            live -= left[p] == 0;
        }
    }
    free(left);
}

/* Walks all messages of a side: fills sends, or counts wrong bytes of receives. */
static inline uint64_t exercise_side_walk(struct exercise_side *side, uint64_t seed, uint64_t round, uint32_t rank,
                                          uint32_t size, bool is_send)
{
    uint64_t wrong = 0, *at = calloc(size, sizeof *at);
    for (uint32_t i = 0; i < side->count; i++) {
        uint32_t p = side->pieces[i].peer;
        uint64_t key = exercise_mix4(seed + 5, round, is_send ? rank : p, is_send ? p : rank);
        uint8_t *bytes = side->pieces[i].data;
        for (uint64_t b = 0; b < side->pieces[i].bytes; b++, at[p]++) {
            if (is_send)
                bytes[b] = exercise_byte(key, at[p]);
            else
                wrong += bytes[b] != exercise_byte(key, at[p]);
        }
    }
    free(at);
    return wrong;
}

/* Pieces lie in `to` from now on, and what is in them too. */
static inline void exercise_side_move(struct exercise_side *side, struct device_memory *far, uint8_t *to)
{
    uint8_t *from = to == side->far ? side->memory : side->far;
    far_open(far);
    memcpy(to, from, side->bytes);
    far_close(far);
    for (uint32_t i = 0; i < side->count; i++)
        side->pieces[i].data = to + ((uint8_t *)side->pieces[i].data - from);
}

static inline void exercise_side_free(struct exercise_side *side, struct device_memory *far)
{
    if (far && side->far) far_delete(far, side->far);
    free(side->memory);
    free(side->pieces);
}

static inline pd_status exercise_land(struct pd_comm *comm, uint64_t seed, struct exercise_flight *flight,
                                      struct pd_error *err)
{
    struct device_memory *far = comm->memory.context;
    pd_status st = pd_comm_wait(comm, &flight->op, err);
    if (far) exercise_side_move(&flight->recvs, far, flight->recvs.memory);
    uint64_t wrong = st ? 0 : exercise_side_walk(&flight->recvs, seed, flight->round, comm->rank, comm->size, false);
    exercise_side_free(&flight->sends, far);
    exercise_side_free(&flight->recvs, far);
    if (wrong)
        PD_FAIL(err, PD_BUG, "seed %llu round %llu: rank %u of %u received %llu wrong bytes", (unsigned long long)seed,
                (unsigned long long)flight->round, comm->rank, comm->size, (unsigned long long)wrong);
    return st;
}

#define EXERCISE_FLIGHTS 3u

static inline void exercise_flight_make(struct pd_comm *comm, uint64_t seed, uint64_t round, uint64_t bytes_max,
                                        struct exercise_flight *flight)
{
    struct device_memory *far = comm->memory.context;
    struct exercise_side *sides[] = {&flight->sends, &flight->recvs};
    flight->round = round;
    exercise_side_make(&flight->sends, seed, round, comm->rank, comm->size, bytes_max, true, far);
    exercise_side_make(&flight->recvs, seed, round, comm->rank, comm->size, bytes_max, false, far);
    exercise_side_walk(&flight->sends, seed, round, comm->rank, comm->size, true);
    for (int i = 0; far && i < 2; i++) {
        sides[i]->far = far_new(far, sides[i]->bytes);
        exercise_side_move(sides[i], far, sides[i]->far);
    }
    flight->op = (struct pd_comm_op){.sends = flight->sends.pieces,
                                     .send_count = flight->sends.count,
                                     .recvs = flight->recvs.pieces,
                                     .recv_count = flight->recvs.count};
}

/* Random exchanges, several in flight, with collectives between them. After a failure, or before round `fail_round`, what is
 * in flight is ended and its memory freed at once, which a peer must not notice. */
static inline pd_status exercise_exchanges_until(struct pd_comm *comm, uint64_t seed, uint64_t rounds, uint64_t bytes_max,
                                                 uint64_t fail_round, struct pd_error *err)
{
    struct exercise_flight flights[EXERCISE_FLIGHTS];
    uint64_t begun = 0, landed = 0;
    pd_status st = PD_OK;
    while (landed < rounds && !st) {
        if (begun == fail_round) {
            st = pd_error_set(err, PD_IO, PD_WHERE, 0, "this rank fails as planned");
        } else if (begun < rounds && begun < landed + EXERCISE_FLIGHTS) {
            struct exercise_flight *flight = &flights[begun % EXERCISE_FLIGHTS];
            exercise_flight_make(comm, seed, begun++, bytes_max, flight);
            st = pd_comm_start(comm, &flight->op, err);
            if (!st && exercise_mix4(seed, begun, 1, 2) % 5 == 0) st = pd_comm_barrier(comm, err);
        } else {
            st = exercise_land(comm, seed, &flights[landed % EXERCISE_FLIGHTS], err);
            landed++;
        }
    }
    if (st && landed < begun) pd_comm_abort(comm);
    for (; landed < begun; landed++) {
        pd_status ignored = exercise_land(comm, seed, &flights[landed % EXERCISE_FLIGHTS], NULL);
        (void)ignored;
    }
    return st;
}

static inline pd_status exercise_exchanges(struct pd_comm *comm, uint64_t seed, uint64_t rounds, uint64_t bytes_max,
                                           struct pd_error *err)
{
    return exercise_exchanges_until(comm, seed, rounds, bytes_max, UINT64_MAX, err);
}

#define EXERCISE_EXPECT(condition)                                                                       \
    do {                                                                                                 \
        if (!(condition)) PD_FAIL(err, PD_BUG, "rank %u of %u: %s", comm->rank, comm->size, #condition); \
    } while (0)

static inline pd_status exercise_reductions(struct pd_comm *comm, struct pd_error *err)
{
    uint64_t values[150];
    uint32_t n = comm->size;
    for (uint32_t i = 0; i < 150; i++)
        values[i] = exercise_mix4(1, i, comm->rank, 0);
    PD_TRY(pd_comm_all_reduce(comm, values, 150, PD_REDUCE_SUM_U64, err));
    for (uint32_t i = 0; i < 150; i++) {
        uint64_t sum = 0;
        for (uint32_t r = 0; r < n; r++)
            sum += exercise_mix4(1, i, r, 0);
        EXERCISE_EXPECT(values[i] == sum);
    }
    uint64_t bits = UINT64_C(1) << (comm->rank % 64), most = 10 + comm->rank, least = 1000 - comm->rank, all = 0;
    for (uint32_t r = 0; r < n; r++)
        all |= UINT64_C(1) << (r % 64);
    PD_TRY(pd_comm_all_reduce(comm, &bits, 1, PD_REDUCE_OR_U64, err));
    PD_TRY(pd_comm_all_reduce(comm, &most, 1, PD_REDUCE_MAX_U64, err));
    PD_TRY(pd_comm_all_reduce(comm, &least, 1, PD_REDUCE_MIN_U64, err));
    EXERCISE_EXPECT(bits == all && most == 9 + n && least == 1001 - n);
    return PD_OK;
}

/* ---- sums and gathers of many bytes ---- */

/* What a rank adds to element i of a part, and what it gives to a gather. */
static inline uint64_t exercise_term(uint64_t seed, uint64_t round, uint64_t rank, uint64_t part, uint64_t i)
{
    return exercise_mix(seed * 31 + round * 1009 + rank * 7919 + part * 104729 + (i << 20));
}

struct exercise_parts {
    uint64_t round, count;
    uint64_t *parts, *sum, *gathered;             /* (size, count); (count), may be the own part; (size, count) */
    uint64_t *far_parts, *far_sum, *far_gathered; /* where the communicator has a far_hook */
    struct pd_comm_op reduce, gather;
};

static inline uint64_t exercise_count(uint64_t seed, uint64_t round, uint64_t count_max)
{
    const uint64_t dice = exercise_mix4(seed, round, 3, 4);
    return dice % 6 == 0 ? 0 : dice % 3 == 0 ? dice / 8 % 20 : dice / 8 % count_max;
}

static inline void exercise_parts_carry(struct exercise_parts *p, struct device_memory *far, uint32_t size, bool is_out)
{
    struct {
        uint64_t *near, *far, count;
    } all[3] = {{p->parts, p->far_parts, size * p->count},
                {p->sum, p->far_sum, p->count},
                {p->gathered, p->far_gathered, size * p->count}};
    far_open(far);
    for (int i = 0; i < 3; i++)
        memcpy(is_out ? all[i].far : all[i].near, is_out ? all[i].near : all[i].far, all[i].count * sizeof(uint64_t));
    far_close(far);
}

static inline void exercise_parts_make(struct pd_comm *comm, uint64_t seed, uint64_t round, uint64_t count_max,
                                       struct exercise_parts *p)
{
    const uint64_t n = exercise_count(seed, round, count_max), all = comm->size * n;
    struct device_memory *far = comm->memory.context;
    *p = (struct exercise_parts){.round = round, .count = n};
    p->parts = malloc((all + 1) * sizeof *p->parts);
    p->gathered = calloc(all + 1, sizeof *p->gathered);
    for (uint64_t i = 0; i < all; i++)
        p->parts[i] = exercise_term(seed, round, comm->rank, i / n, i % n);
    for (uint64_t i = 0; i < n; i++)
        p->gathered[comm->rank * n + i] = exercise_term(seed + 1, round, comm->rank, 0, i);
    const bool is_in_place = exercise_mix4(seed, round, 5, 6) % 2;
    p->sum = is_in_place ? p->parts + comm->rank * n : calloc(n + 1, sizeof *p->sum);
    if (!far) return;
    p->far_parts = far_new(far, all * sizeof *p->parts);
    p->far_gathered = far_new(far, all * sizeof *p->parts);
    p->far_sum = is_in_place ? p->far_parts + comm->rank * n : far_new(far, n * sizeof *p->sum);
    exercise_parts_carry(p, far, comm->size, true);
}

static inline pd_status exercise_parts_start(struct pd_comm *comm, struct exercise_parts *p, struct pd_error *err)
{
    const bool is_far = p->far_parts;
    p->reduce.what = "terms";
    uint64_t *parts = is_far ? p->far_parts : p->parts, *sum = is_far ? p->far_sum : p->sum;
    PD_TRY(p->round % 2
               ? pd_comm_start_reduce_scatter_narrow(comm, &p->reduce, (void *)parts, 2 * p->count, (void *)sum, err)
               : pd_comm_start_reduce_scatter(comm, &p->reduce, parts, p->count, sum, err));
    return pd_comm_start_all_gather(comm, &p->gather, is_far ? p->far_gathered : p->gathered, p->count * sizeof *p->gathered,
                                    err);
}

/* Odd rounds add pairs of 32-bit integers. */
static inline uint64_t exercise_sum(uint64_t round, uint64_t a, uint64_t b)
{
    if (round % 2 == 0) return a + b;
    const uint64_t low = (uint32_t)a + (uint64_t)(uint32_t)b, high = (a >> 32) + (b >> 32);
    return high << 32 | (uint32_t)low;
}

static inline uint64_t exercise_parts_check(const struct pd_comm *comm, uint64_t seed, const struct exercise_parts *p)
{
    const uint64_t n = p->count;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t sum = 0;
        for (uint32_t r = 0; r < comm->size; r++)
            sum = exercise_sum(p->round, sum, exercise_term(seed, p->round, r, comm->rank, i));
        wrong += p->sum[i] != sum;
    }
    for (uint64_t i = 0; i < comm->size * n; i++)
        wrong += p->gathered[i] != exercise_term(seed + 1, p->round, i / n, 0, i % n);
    return wrong;
}

static inline void exercise_parts_free(struct pd_comm *comm, struct exercise_parts *p)
{
    struct device_memory *far = comm->memory.context;
    if (p->sum != p->parts + comm->rank * p->count) {
        free(p->sum);
        if (p->far_sum) far_delete(far, p->far_sum);
    }
    if (p->far_parts) far_delete(far, p->far_parts);
    if (p->far_gathered) far_delete(far, p->far_gathered);
    free(p->parts);
    free(p->gathered);
}

typedef uint64_t exercise_check(const struct pd_comm *comm, uint64_t seed, const struct exercise_parts *p);

/* Nothing is on its way any more: what came is compared, where `st` is PD_OK, and freed. */
static inline pd_status exercise_parts_end(struct pd_comm *comm, uint64_t seed, struct exercise_parts *p,
                                           exercise_check *check, pd_status st, struct pd_error *err)
{
    if (comm->memory.context) exercise_parts_carry(p, comm->memory.context, comm->size, false);
    const uint64_t wrong = st ? 0 : check(comm, seed, p);
    exercise_parts_free(comm, p);
    if (wrong)
        PD_FAIL(err, PD_BUG, "seed %llu round %llu: rank %u of %u has %llu wrong integers of %llu a part",
                (unsigned long long)seed, (unsigned long long)p->round, comm->rank, comm->size, (unsigned long long)wrong,
                (unsigned long long)p->count);
    return st;
}

/* Waits for both, whatever became of the first: their memory is freed here. */
static inline pd_status exercise_parts_land(struct pd_comm *comm, uint64_t seed, struct exercise_parts *p,
                                            struct pd_error *err)
{
    struct pd_error other;
    const pd_status st = p->reduce.parts ? pd_comm_wait(comm, &p->reduce, err) : PD_PEER_LOST;
    const pd_status second = p->gather.parts ? pd_comm_wait(comm, &p->gather, st ? &other : err) : PD_PEER_LOST;
    return exercise_parts_end(comm, seed, p, exercise_parts_check, st ? st : second, err);
}

/* Sums and gathers in flight together, with values between them, up to round `fail_round`, which this rank does not begin. */
static inline pd_status exercise_collectives_until(struct pd_comm *comm, uint64_t seed, uint64_t rounds, uint64_t count_max,
                                                   uint64_t fail_round, struct pd_error *err)
{
    struct exercise_parts flights[EXERCISE_FLIGHTS];
    uint64_t begun = 0, landed = 0;
    pd_status st = PD_OK;
    while (landed < rounds && !st) {
        if (begun == fail_round) {
            st = pd_error_set(err, PD_IO, PD_WHERE, 0, "this rank fails as planned");
        } else if (begun < rounds && begun < landed + EXERCISE_FLIGHTS) {
            struct exercise_parts *p = &flights[begun % EXERCISE_FLIGHTS];
            exercise_parts_make(comm, seed, begun++, count_max, p);
            st = exercise_parts_start(comm, p, err);
            if (!st && exercise_mix4(seed, begun, 1, 2) % 5 == 0) st = pd_comm_barrier(comm, err);
        } else {
            st = exercise_parts_land(comm, seed, &flights[landed % EXERCISE_FLIGHTS], err);
            landed++;
        }
    }
    if (st && landed < begun) pd_comm_abort(comm);
    for (; landed < begun; landed++) {
        pd_status ignored = exercise_parts_land(comm, seed, &flights[landed % EXERCISE_FLIGHTS], NULL);
        (void)ignored;
    }
    return st;
}

static inline pd_status exercise_collectives(struct pd_comm *comm, uint64_t seed, uint64_t rounds, uint64_t count_max,
                                             struct pd_error *err)
{
    return exercise_collectives_until(comm, seed, rounds, count_max, UINT64_MAX, err);
}

static inline uint64_t exercise_gathered_check(const struct pd_comm *comm, uint64_t seed, const struct exercise_parts *p)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < comm->size * p->count; i++)
        wrong += p->gathered[i] != exercise_term(seed + 1, p->round, i / p->count, 0, i % p->count);
    return wrong;
}

static inline pd_status exercise_gather_end(struct pd_comm *comm, uint64_t seed, struct exercise_parts *p,
                                            struct pd_error *err)
{
    const pd_status st = pd_comm_wait(comm, &p->gather, err);
    return exercise_parts_end(comm, seed, p, exercise_gathered_check, st, err);
}

/* Gathers one behind the other, two or three at a time. Now one rank comes late and now another, so that some begin the next one
 * while others have not got it yet; and nobody goes on before all have the one before. */
static inline pd_status exercise_gathers(struct pd_comm *comm, uint64_t seed, uint64_t rounds, uint64_t count_max,
                                         struct pd_error *err)
{
    struct exercise_parts turns[3];
    struct pd_comm *control;
    PD_TRY(pd_comm_split(comm, 0, comm->rank, &control, err));
    pd_status st = PD_OK;
    uint64_t begun = 0, ended = 0;
    while (ended < rounds && !st) {
        const uint64_t most = 2 + exercise_mix4(seed, begun, 7, 8) % 2;
        if (begun < rounds && begun < ended + most) {
            struct exercise_parts *p = &turns[begun % 3];
            exercise_parts_make(comm, seed, begun, count_max, p);
            if (exercise_mix4(seed, begun, comm->rank, 9) % 3 == 0)
                usleep((useconds_t)(exercise_mix4(seed, begun, comm->rank, 10) % 2000));
            st = pd_comm_start_all_gather(comm, &p->gather, p->far_gathered ? p->far_gathered : p->gathered,
                                          p->count * sizeof *p->gathered, err);
            begun++;
        } else {
            st = exercise_gather_end(comm, seed, &turns[ended % 3], err);
            ended++;
            if (!st && exercise_mix4(seed, ended, 1, 2) % 2) st = pd_comm_barrier(control, err);
        }
    }
    if (ended < begun) pd_comm_abort(comm);
    for (; ended < begun; ended++)
        (void)!exercise_gather_end(comm, seed, &turns[ended % 3], NULL);
    pd_comm_free(control);
    return st;
}

/* The last rank gives another count. */
static inline pd_status exercise_mismatch(struct pd_comm *comm, bool is_gather, struct pd_error *err)
{
    const uint64_t count = 1000 + (comm->rank + 1 == comm->size);
    uint64_t *parts = calloc(comm->size * count, sizeof *parts);
    struct pd_comm_op op = {.what = "terms"};
    pd_status st = is_gather ? pd_comm_start_all_gather(comm, &op, parts, count * sizeof *parts, err)
                             : pd_comm_start_reduce_scatter(comm, &op, parts, count, parts + comm->rank * count, err);
    if (!st) st = pd_comm_wait(comm, &op, err);
    free(parts);
    return st;
}

static inline pd_status exercise_broadcasts(struct pd_comm *comm, struct pd_error *err)
{
    for (uint32_t root = 0; root < comm->size; root++) {
        uint64_t bytes = root % 3 == 0 ? 3 : root % 3 == 1 ? 100000 : 0;
        uint8_t *data = calloc(1, bytes + 1);
        for (uint64_t i = 0; comm->rank == root && i < bytes; i++)
            data[i] = exercise_byte(root * 7919 + 1, i);
        pd_status st = pd_comm_broadcast(comm, root, data, bytes, err);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < bytes; i++)
            wrong += data[i] != exercise_byte(root * 7919 + 1, i);
        free(data);
        PD_TRY(st);
        EXERCISE_EXPECT(wrong == 0);
    }
    return PD_OK;
}

/* Parts by remainder, in reverse order; a part of the part; everything at once; parts and whole used in turn. */
static inline pd_status exercise_splits(struct pd_comm *comm, uint64_t seed, struct pd_error *err)
{
    struct pd_comm *part, *twin, *pair;
    uint32_t n = comm->size, color = comm->rank % 3, part_size = (n - color + 2) / 3;
    PD_TRY(pd_comm_split(comm, color, n - comm->rank, &part, err));
    EXERCISE_EXPECT(part->size == part_size && part->rank == part_size - 1 - comm->rank / 3);
    PD_TRY(pd_comm_split(comm, 5, 0, &twin, err));
    EXERCISE_EXPECT(twin->size == n && twin->rank == comm->rank);
    EXERCISE_EXPECT(twin->host == comm->host && twin->host_count == comm->host_count);
    PD_TRY(pd_comm_split(part, part->rank / 2, 0, &pair, err));
    EXERCISE_EXPECT(pair->size <= 2);
    for (uint32_t round = 0; round < 3; round++) {
        PD_TRY(exercise_exchanges(part, seed + color, 4, 3000, err));
        PD_TRY(exercise_exchanges(pair, seed + color * 100 + part->rank / 2, 4, 3000, err));
        PD_TRY(exercise_collectives(pair, seed + color * 100 + part->rank / 2, 3, 3000, err));
        PD_TRY(exercise_collectives(part, seed + color, 3, 3000, err));
        PD_TRY(exercise_exchanges(twin, seed, 4, 3000, err));
        PD_TRY(exercise_exchanges(comm, seed, 4, 3000, err));
    }
    uint64_t sum = 1;
    PD_TRY(pd_comm_all_reduce(part, &sum, 1, PD_REDUCE_SUM_U64, err));
    EXERCISE_EXPECT(sum == part_size);
    pd_comm_free(pair);
    pd_comm_free(part);
    PD_TRY(pd_comm_barrier(twin, err));
    pd_comm_free(twin);
    return PD_OK;
}

/* The group adaptor: gather, agreement, exchange with matching pieces. */
static inline pd_status exercise_group(struct pd_comm *comm, struct pd_error *err)
{
    struct pd_group group;
    pd_comm_group(comm, &group);
    EXERCISE_EXPECT(group.rank == comm->rank && group.size == comm->size && group.host == comm->host);
    uint64_t mine[2] = {comm->rank, comm->rank * 3 + 1}, *all = calloc(comm->size, sizeof mine);
    uint32_t root = comm->size - 1;
    pd_status st = pd_group_gather(&group, root, mine, sizeof mine, comm->rank == root ? all : NULL, err);
    uint64_t wrong = 0;
    for (uint32_t r = 0; comm->rank == root && r < comm->size; r++)
        wrong += all[2 * r] != r || all[2 * r + 1] != r * 3 + 1;
    free(all);
    PD_TRY(st);
    EXERCISE_EXPECT(wrong == 0);
    PD_TRY(pd_group_barrier(&group, err));
    uint64_t token = comm->rank + 1, got = 0;
    struct pd_group_piece send = {.peer = (comm->rank + 1) % comm->size, .data = &token, .bytes = sizeof token};
    struct pd_group_piece recv = {.peer = (comm->rank + comm->size - 1) % comm->size, .data = &got, .bytes = sizeof got};
    PD_TRY(pd_group_exchange(&group, &send, 1, &recv, 1, err));
    EXERCISE_EXPECT(got == recv.peer + 1);
    PD_TRY(pd_group_agree(&group, PD_OK, err));
    return PD_OK;
}
