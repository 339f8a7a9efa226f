#include "tests/helpers/fake_nccl.h"

#include "trainer/comm/nccl_library.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLDS = 4096, RANKS = 8, GROUP = 512, INVALID = 4, INTERNAL = 3 };
enum { BLOCKS = 32, BLOCKS_UNSET = INT_MIN }; /* of a kernel, as long as nobody says how many */

struct post {
    const void *data;
    size_t bytes;
    bool is_taken;
    struct post *next;
};

/* Of one rank. Nobody writes what it gives or gets before all have read what they need. */
struct collective {
    const void *data;
    size_t bytes; /* of a part */
    bool is_sum;
    int posted, read; /* numbers of collectives, from 1 */
};

#define PLACES 512 /* collectives that a rank may be ahead by */
struct place {
    int collective;
    size_t place;
};

struct world {
    struct place places[PLACES];
    int size, joined;
    struct collective collectives[RANKS];
    bool has_called[RANKS];           /* a first collective */
    struct post *queue[RANKS][RANKS]; /* from, to: oldest first */
    bool is_asked[RANKS][RANKS][2];   /* from, to: by whoever sends, by whoever receives */
};

struct registration {
    const char *memory;
    size_t bytes;
    struct registration *next;
};

struct comm {
    struct world *world;
    struct registration *registered;
    int collectives;                          /* begun */
    bool is_joining;                          /* its first collective waits for the others' */
    int rank, polls, blocks;                  /* polls: how often it still says that it is in progress */
    bool is_aborted, is_connecting[RANKS][2]; /* peer: to it, from it */
    int error;
};

struct transfer {
    bool is_send;
    void *data;
    size_t bytes;
    int peer;
    struct post post;
};

struct group {
    struct comm *comm;
    void *stream;
    uint32_t count, next; /* next: of transfers, the first whose bytes have not come */
    bool has_entered, has_posted;
    int collective;         /* its number; 0: transfers */
    bool is_sum, is_narrow; /* of 32-bit integers */
    const void *parts;      /* or the own part */
    void *out, *result;     /* result: until all have read */
    size_t bytes;           /* of a part */
    struct transfer transfers[GROUP];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct world worlds[WORLDS];
static int room[RANKS]; /* multiprocessors of a device that have no block; set_room */
static bool is_roomy = true;
static int seed = 1, flipping = -1; /* flipping: -1: the environment says it */
static int world_count, version = 22809, failing_group, failing_result, async_result, abort_count, lone_abort_count;
static struct fake_nccl_counts counts;
static _Thread_local struct group *open_group;

#define EXPORT __attribute__((visibility("default")))

int ncclGetVersion(int *ret_version);
int ncclGetUniqueId(struct pd_nccl_id *ret_id);
int ncclCommInitRankConfig(void **ret_comm, int size, struct pd_nccl_id id, int rank, struct pd_nccl_config *config);
int ncclCommFinalize(void *comm);
int ncclCommDestroy(void *comm);
int ncclCommAbort(void *comm);
int ncclCommGetAsyncError(void *comm, int *ret_result);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *data, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *data, size_t count, int type, int peer, void *comm, void *stream);
int ncclReduceScatter(const void *parts, void *sum, size_t count, int type, int reduce, void *comm, void *stream);
int ncclAllGather(const void *part, void *parts, size_t count, int type, void *comm, void *stream);
int ncclCommRegister(void *comm, void *memory, size_t bytes, void **ret_handle);
int ncclCommDeregister(void *comm, void *handle);
const char *ncclGetErrorString(int result);
void fake_nccl_set_seed(int value);
void fake_nccl_flip(int from_now);
void fake_nccl_set_version(int value);
void fake_nccl_fail_group(int from_now, int result);
void fake_nccl_set_async(int result);
int fake_nccl_aborts(void);
int fake_nccl_lone_aborts(void);
void fake_nccl_set_room(int multiprocessors);
struct fake_nccl_counts fake_nccl_counts(void);

EXPORT void fake_nccl_set_version(int value)
{
    version = value;
}

EXPORT void fake_nccl_fail_group(int from_now, int result)
{
    pthread_mutex_lock(&lock);
    failing_group = from_now;
    failing_result = result;
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_nccl_set_async(int result)
{
    pthread_mutex_lock(&lock);
    async_result = result;
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_nccl_set_seed(int value)
{
    seed = value;
}

EXPORT void fake_nccl_flip(int from_now)
{
    pthread_mutex_lock(&lock);
    flipping = from_now;
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_nccl_set_room(int multiprocessors)
{
    is_roomy = false;
    for (int i = 0; i < RANKS; i++)
        room[i] = multiprocessors;
}

EXPORT int fake_nccl_aborts(void)
{
    pthread_mutex_lock(&lock);
    const int count = abort_count;
    pthread_mutex_unlock(&lock);
    return count;
}

EXPORT int fake_nccl_lone_aborts(void)
{
    pthread_mutex_lock(&lock);
    const int count = lone_abort_count;
    pthread_mutex_unlock(&lock);
    return count;
}

EXPORT struct fake_nccl_counts fake_nccl_counts(void)
{
    pthread_mutex_lock(&lock);
    const struct fake_nccl_counts now = counts;
    pthread_mutex_unlock(&lock);
    return now;
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("FAKE_NCCL_REPORT");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f,
            "{\"gathered_bytes\": %llu, \"scattered_bytes\": %llu, \"received_bytes\": %llu, \"collectives\": %llu, "
            "\"registered_collectives\": %llu, \"unequal_places\": %llu, \"registered\": %lld}\n",
            counts.gathered_bytes, counts.scattered_bytes, counts.received_bytes, counts.collectives,
            counts.registered_collectives, counts.unequal_places, counts.registered);
    fclose(f);
}

EXPORT int ncclGetVersion(int *ret_version)
{
    *ret_version = version;
    return PD_NCCL_DONE;
}

EXPORT const char *ncclGetErrorString(int result)
{
    if (result == 1) return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    return result == 6 ? "remote process exited" : result == INVALID ? "invalid argument" : "internal error";
}

EXPORT int ncclGetUniqueId(struct pd_nccl_id *ret_id)
{
    pthread_mutex_lock(&lock);
    const int number = ++world_count;
    pthread_mutex_unlock(&lock);
    memset(ret_id, 0x5a, sizeof *ret_id);
    memcpy(ret_id->bytes + 60, &number, sizeof number);
    return number < WORLDS ? PD_NCCL_DONE : INTERNAL;
}

EXPORT int ncclCommInitRankConfig(void **ret_comm, int size, struct pd_nccl_id id, int rank, struct pd_nccl_config *config)
{
    int number;
    memcpy(&number, id.bytes + 60, sizeof number);
    if (config->magic != 0xcafebeef || config->size < 40 || config->blocking || number <= 0 || number >= WORLDS)
        return INVALID;
    struct comm *c = calloc(1, sizeof *c);
    c->world = &worlds[number];
    c->rank = rank;
    c->blocks = config->blocks_max == BLOCKS_UNSET ? BLOCKS : config->blocks_max;
    pthread_mutex_lock(&lock);
    c->world->size = size;
    c->world->joined++;
    pthread_mutex_unlock(&lock);
    *ret_comm = c;
    return PD_NCCL_IN_PROGRESS;
}

/* As NCCL does at the first transfer of a pair in a direction: the group is not launched before its peer has asked too. */
static bool is_connecting(struct comm *c)
{
    bool waits = false;
    for (int r = 0; c->is_joining && r < c->world->size; r++)
        waits = waits || !c->world->has_called[r];
    c->is_joining = waits;
    for (int peer = 0; peer < RANKS; peer++)
        for (int in = 0; in < 2; in++) {
            const bool *asked = in ? c->world->is_asked[peer][c->rank] : c->world->is_asked[c->rank][peer];
            c->is_connecting[peer][in] = c->is_connecting[peer][in] && !(asked[0] && asked[1]);
            waits = waits || c->is_connecting[peer][in];
        }
    return waits;
}

static void connect_group(struct group *g)
{
    struct comm *c = g->comm;
    for (uint32_t i = 0; i < g->count; i++) {
        const int peer = g->transfers[i].peer, in = !g->transfers[i].is_send;
        bool *asked = in ? c->world->is_asked[peer][c->rank] : c->world->is_asked[c->rank][peer];
        asked[in] = true;
        c->is_connecting[peer][in] = true;
    }
}

EXPORT int ncclCommGetAsyncError(void *comm, int *ret_result)
{
    struct comm *c = comm;
    pthread_mutex_lock(&lock);
    *ret_result = async_result ? async_result : c->error;
    if (!*ret_result && (c->world->joined < c->world->size || c->polls > 0 || is_connecting(c))) {
        *ret_result = PD_NCCL_IN_PROGRESS;
        c->polls--;
    }
    pthread_mutex_unlock(&lock);
    return PD_NCCL_DONE;
}

EXPORT int ncclCommFinalize(void *comm)
{
    ((struct comm *)comm)->polls = 3;
    return PD_NCCL_IN_PROGRESS;
}

/* Work that names it may still be on a stream: it stays. */
EXPORT int ncclCommDestroy(void *comm)
{
    (void)comm;
    return PD_NCCL_DONE;
}

EXPORT int ncclCommAbort(void *comm)
{
    pthread_mutex_lock(&lock);
    ((struct comm *)comm)->is_aborted = true;
    abort_count++;
    lone_abort_count += !open_group;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
    return PD_NCCL_DONE;
}

EXPORT int ncclCommRegister(void *comm, void *memory, size_t bytes, void **ret_handle)
{
    struct comm *c = comm;
    struct registration *r = malloc(sizeof *r);
    if (!r || !memory || !bytes) abort();
    pthread_mutex_lock(&lock);
    *r = (struct registration){memory, bytes, c->registered};
    c->registered = r;
    counts.registered++;
    pthread_mutex_unlock(&lock);
    *ret_handle = r;
    return PD_NCCL_DONE;
}

EXPORT int ncclCommDeregister(void *comm, void *handle)
{
    struct registration **at = &((struct comm *)comm)->registered;
    pthread_mutex_lock(&lock);
    while (*at != handle)
        at = &(*at)->next; /* a handle of another is a fault here */
    *at = (*at)->next;
    counts.registered--;
    pthread_mutex_unlock(&lock);
    free(handle);
    return PD_NCCL_DONE;
}

static bool is_registered(const struct comm *c, const void *memory, size_t bytes)
{
    const char *first = memory;
    for (const struct registration *r = c->registered; r; r = r->next)
        if (first >= r->memory && first + bytes <= r->memory + r->bytes) return true;
    return false;
}

/* Of the buffer of all parts in registered memory; 0: it is not. */
static size_t place_of(const struct group *g)
{
    const char *whole = g->is_sum ? g->parts : g->out;
    for (const struct registration *r = g->comm->registered; r; r = r->next)
        if (whole >= r->memory && whole < r->memory + r->bytes) return (size_t)(whole - r->memory) + 1;
    return 0;
}

/* The first rank that calls a collective says where it should lie. */
static bool is_elsewhere(const struct group *g)
{
    struct place *p = &g->comm->world->places[g->collective % PLACES];
    const size_t place = place_of(g);
    if (p->collective != g->collective) *p = (struct place){g->collective, place};
    return p->place != place;
}

/* What a rank receives of it, as by a ring. */
static void count_collective(const struct group *g)
{
    const size_t size = (size_t)g->comm->world->size, others = (size - 1) * g->bytes;
    *(g->is_sum ? &counts.scattered_bytes : &counts.gathered_bytes) += others;
    counts.collectives++;
    counts.unequal_places += is_elsewhere(g);
    counts.registered_collectives += is_registered(g->comm, g->parts, g->is_sum ? size * g->bytes : g->bytes) &&
                                     is_registered(g->comm, g->out, g->is_sum ? g->bytes : size * g->bytes);
}

EXPORT int ncclGroupStart(void)
{
    open_group = calloc(1, sizeof *open_group);
    return PD_NCCL_DONE;
}

static int add(bool is_send, void *data, size_t count, int type, int peer, void *comm, void *stream)
{
    struct group *g = open_group;
    struct comm *c = comm;
    if (!g || type != PD_NCCL_UINT8 || g->count == GROUP || peer < 0 || peer >= c->world->size || (g->comm && g->comm != c))
        return INVALID;
    g->comm = c;
    g->stream = stream;
    g->transfers[g->count++] = (struct transfer){.is_send = is_send, .data = data, .bytes = count, .peer = peer};
    return PD_NCCL_DONE;
}

EXPORT int ncclSend(const void *data, size_t count, int type, int peer, void *comm, void *stream)
{
    return add(true, (void *)(uintptr_t)data, count, type, peer, comm, stream);
}

EXPORT int ncclRecv(void *data, size_t count, int type, int peer, void *comm, void *stream)
{
    return add(false, data, count, type, peer, comm, stream);
}

/* ---- on a stream ---- */

/* Whether this rank's next sum is the one with a wrong bit. */
static bool flips_now(void)
{
    const char *set = getenv("FAKE_NCCL_FLIP");
    if (flipping < 0) flipping = set ? (int)strtol(set, NULL, 10) : 0;
    return flipping > 0 && --flipping == 0;
}

/* Ranks in an order of its own for every rank and collective. */
static void sum_parts(const struct group *g, void *to)
{
    uint64_t *sum = to;
    uint32_t *narrow = to;
    const struct world *w = g->comm->world;
    const size_t count = g->bytes / sizeof *sum;
    int order[RANKS];
    uint64_t dice = (uint64_t)seed * 7919 + (uint64_t)g->comm->rank * 104729 + (uint64_t)g->collective;
    for (int r = 0; r < w->size; r++) {
        dice = dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const int at = (int)((dice >> 33) % (uint64_t)(r + 1));
        order[r] = order[at];
        order[at] = r;
    }
    memset(sum, 0, g->bytes);
    for (int r = 0; r < w->size; r++) {
        const uint64_t *part = (const uint64_t *)w->collectives[order[r]].data + (size_t)g->comm->rank * count;
        for (size_t i = 0; i < count && !g->is_narrow; i++)
            sum[i] += part[i];
        for (size_t i = 0; i < 2 * count && g->is_narrow; i++)
            narrow[i] += ((const uint32_t *)part)[i];
    }
    if (flips_now()) sum[0] ^= 1;
}

static void read_parts(struct group *g)
{
    const struct world *w = g->comm->world;
    g->result = malloc(g->is_sum ? g->bytes : g->bytes * (size_t)w->size);
    for (int r = 0; r < w->size; r++)
        if (w->collectives[r].bytes != g->bytes || w->collectives[r].is_sum != g->is_sum) g->comm->error = INVALID;
    if (g->comm->error) return;
    if (g->is_sum) sum_parts(g, g->result);
    for (int r = 0; r < w->size && !g->is_sum; r++)
        memcpy((char *)g->result + (size_t)r * g->bytes, w->collectives[r].data, g->bytes);
}

/* Whether all are as far: have posted, or have read. */
static bool are_at(const struct group *g, bool is_read)
{
    const struct world *w = g->comm->world;
    for (int r = 0; r < w->size; r++)
        if ((is_read ? w->collectives[r].read : w->collectives[r].posted) < g->collective) return false;
    return true;
}

static bool try_collective(struct group *g)
{
    struct world *w = g->comm->world;
    struct collective *mine = &w->collectives[g->comm->rank];
    if (g->comm->is_aborted) return true;
    if (mine->posted < g->collective) {
        *mine = (struct collective){g->parts, g->bytes, g->is_sum, g->collective, g->collective - 1};
        pthread_cond_broadcast(&change);
    }
    if (!are_at(g, false)) return false;
    if (mine->read < g->collective) {
        read_parts(g);
        mine->read = g->collective;
        pthread_cond_broadcast(&change);
    }
    if (!are_at(g, true)) return false;
    if (!g->comm->error) memcpy(g->out, g->result, g->is_sum ? g->bytes : g->bytes * (size_t)w->size);
    return true;
}

static void post_sends(struct group *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        struct transfer *t = &g->transfers[i];
        if (!t->is_send) continue;
        struct post **at = &g->comm->world->queue[g->comm->rank][t->peer];
        while (*at)
            at = &(*at)->next;
        t->post = (struct post){.data = t->data, .bytes = t->bytes};
        *at = &t->post;
    }
    g->has_posted = true;
    pthread_cond_broadcast(&change);
}

/* Whether there was something to take. */
static bool take(struct group *g, const struct transfer *t)
{
    struct post **queue = &g->comm->world->queue[t->peer][g->comm->rank], *post = *queue;
    if (!post) return false;
    if (post->bytes != t->bytes)
        g->comm->error = INVALID;
    else
        memcpy(t->data, post->data, t->bytes);
    counts.received_bytes += t->bytes;
    *queue = post->next;
    post->is_taken = true;
    pthread_cond_broadcast(&change);
    return true;
}

static void unpost(struct group *g, struct transfer *t)
{
    for (struct post **at = &g->comm->world->queue[g->comm->rank][t->peer]; *at; at = &(*at)->next)
        if (*at == &t->post) {
            *at = t->post.next;
            return;
        }
}

#ifdef FAKE_NCCL_SIMT
/* Of the executable that opens this (tests/simt/streams.cc). */
int simt_enqueue_attempt(void *stream, bool (*attempt)(void *argument), void *argument);

static unsigned device_of(const struct group *g)
{
    (void)g;
    return 0;
}
#else
static unsigned device_of(const struct group *g)
{
    return ((struct fake_stream *)g->stream)->device;
}
#endif

/* A kernel is at work once all its blocks are, and makes no room before it has ended. */
static bool enter_device(struct group *g)
{
    int *free_here = &room[device_of(g)];
    if (g->has_entered) return true;
    if (!is_roomy && *free_here < g->comm->blocks && !g->comm->is_aborted) return false;
    *free_here -= g->comm->blocks;
    g->has_entered = true;
    return true;
}

static bool leave_device(struct group *g)
{
    room[device_of(g)] += g->comm->blocks;
    pthread_cond_broadcast(&change);
    return true;
}

/* With the lock. Whether it has ended; otherwise it is waited for `change`, and tried again. */
static bool try_locked(struct group *g)
{
    if (!enter_device(g)) return false;
    if (g->collective) return try_collective(g) && leave_device(g);
    if (!g->has_posted && !g->comm->is_aborted) post_sends(g);
    for (; g->next < g->count && !g->comm->is_aborted; g->next++)
        if (!g->transfers[g->next].is_send && !take(g, &g->transfers[g->next])) return false;
    for (uint32_t i = 0; i < g->count && g->has_posted; i++) {
        struct transfer *t = &g->transfers[i];
        if (!t->is_send || t->post.is_taken) continue;
        if (!g->comm->is_aborted) return false;
        unpost(g, t);
    }
    return leave_device(g);
}

static void free_group(struct group *g)
{
    free(g->result);
    free(g);
}

#ifdef FAKE_NCCL_SIMT
static bool try_group(void *argument)
{
    struct group *g = argument;
    pthread_mutex_lock(&lock);
    const bool is_over = try_locked(g);
    pthread_mutex_unlock(&lock);
    if (is_over) free_group(g);
    return is_over;
}

static int put_group(struct group *g)
{
    return simt_enqueue_attempt(g->stream, try_group, g) ? INTERNAL : PD_NCCL_IN_PROGRESS;
}
#else
static void run_group(void *argument)
{
    struct group *g = argument;
    pthread_mutex_lock(&lock);
    while (!try_locked(g))
        pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
    free_group(g);
}

static int put_group(struct group *g)
{
    ((struct fake_stream *)g->stream)->put(g->stream, run_group, g);
    return PD_NCCL_IN_PROGRESS;
}
#endif

/* Its call ends when all ranks have made their first: NCCL connects them then. */
static int put_collective(struct group collective)
{
    struct comm *c = collective.comm;
    if (open_group || !collective.bytes) return INVALID;
    struct group *g = malloc(sizeof *g);
    *g = collective;
    pthread_mutex_lock(&lock);
    g->collective = ++c->collectives;
    count_collective(g);
    c->world->has_called[c->rank] = c->is_joining = true;
    c->polls = 2;
    pthread_mutex_unlock(&lock);
    return put_group(g);
}

EXPORT int ncclReduceScatter(const void *parts, void *sum, size_t count, int type, int reduce, void *comm, void *stream)
{
    const bool is_narrow = type == PD_NCCL_UINT32;
    const size_t bytes = count * (is_narrow ? sizeof(uint32_t) : sizeof(uint64_t));
    if ((!is_narrow && type != PD_NCCL_UINT64) || reduce != PD_NCCL_SUM || bytes % sizeof(uint64_t)) return INVALID;
    return put_collective((struct group){
        .comm = comm, .stream = stream, .is_sum = true, .is_narrow = is_narrow, .parts = parts, .out = sum, .bytes = bytes});
}

EXPORT int ncclAllGather(const void *part, void *parts, size_t count, int type, void *comm, void *stream)
{
    if (type != PD_NCCL_UINT8) return INVALID;
    return put_collective((struct group){.comm = comm, .stream = stream, .parts = part, .out = parts, .bytes = count});
}

EXPORT int ncclGroupEnd(void)
{
    struct group *g = open_group;
    open_group = NULL;
    pthread_mutex_lock(&lock);
    const bool fails = failing_group > 0 && --failing_group == 0;
    if (g->comm) {
        g->comm->polls = 2;
        connect_group(g);
    }
    pthread_mutex_unlock(&lock);
    if (fails) return failing_result;
    if (!g->count) {
        free(g);
        return PD_NCCL_DONE;
    }
    return put_group(g);
}
