/* One group per rank: the outermost communicator, its splits, and the watcher thread.
 *
 *   invariants  1. while is_launching is set the caller uses the handle; otherwise whoever holds the lock
 *               2. the first failure is final for the group. One NCCL group call aborts all its handles once no member is
 *                  launching: by the thread that broke it, or by the launch that ends last. Then no stream wait can hang
 *               3. an operation ends with an event on the communicator's stream; a flight is reused only after its event has
 *                  passed */
#include "trainer/comm/nccl_internal.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define WATCH_NS UINT64_C(50000000)
#define GRACE_NS UINT64_C(1000000000) /* to receive what a peer sent before it died */
#define POLL_NS 20000

static uint64_t now_ns(void)
{
    return pd_clock_monotonic_ns(NULL);
}

/* ---- memory ---- */

/* For all communicators of a rank: four, and five links with half their blocks (trainer/parallel/grid.h). */
enum { LINKS_WORTH = 4 * 2 + 5, LINK_BLOCKS_MAX = 8 };

/* Most blocks per kernel on a device with this many multiprocessors (0: many), assuming one block each: a power of two, as
 * NCCL's channels. */
static uint32_t blocks_max(uint32_t multiprocessors, bool is_link)
{
    uint32_t blocks = LINK_BLOCKS_MAX;
    while (multiprocessors && blocks > 1 && blocks * LINKS_WORTH > multiprocessors)
        blocks /= 2;
    return is_link ? blocks : 2 * blocks;
}

uint32_t pd_comm_nccl_blocks(uint32_t multiprocessors)
{
    return blocks_max(multiprocessors, false);
}

/* Memory that peers share beyond the peers of a host, in either direction. */
static uint64_t pool_bytes(uint32_t blocks)
{
    enum { DIRECTIONS = 2, STEPS = 16 };
    const uint64_t chunk = UINT64_C(128) << 10;
    return blocks * DIRECTIONS * STEPS * chunk;
}

uint64_t pd_comm_nccl_bytes(uint32_t size, bool is_link)
{
    enum { CHANNELS_OF_A_PEER = 2, NEAR_PEERS_MAX = 15 };
    const uint64_t short_messages = UINT64_C(6) << 20;
    const char *shares = getenv("NCCL_NET_SHARED_BUFFERS");
    const char *set = getenv("NCCL_BUFFSIZE");
    uint64_t buffer;
    if (size < 2) return 0;
    if (!set || !pd_parse_u64(set, &buffer) || buffer > UINT64_C(1) << 32) buffer = UINT64_C(4) << 20;
    const bool has_pool = size - 1 > NEAR_PEERS_MAX && !(shares && strcmp(shares, "0") == 0);
    const uint32_t peers = has_pool ? NEAR_PEERS_MAX : size - 1, least = blocks_max(0, is_link);
    uint64_t channels = (uint64_t)CHANNELS_OF_A_PEER * peers;
    if (channels < least) channels = least;
    return PD_COMM_NCCL_IDLE_BYTES + channels * (buffer + short_messages) + (has_pool ? pool_bytes(least) : 0);
}

/* ---- failure ---- */

/* NCCL's result codes: 2 is a system call, mostly of a connection; 6 a peer. */
static pd_status fail_nccl(const struct nccl_comm *c, int code, const char *what, struct pd_error *err)
{
    const pd_status st = code == 2 || code == 6 ? PD_PEER_LOST : PD_DEVICE_LOST;
    const char *said = c->group->nccl->GetErrorString(code); /* some messages include the advice */
    const bool is_said = st == PD_PEER_LOST || strstr(said, "NCCL_DEBUG");
    pd_error_set(err, st, PD_WHERE, 0, "NCCL, rank %u of %u: %s: %s%s", c->comm.rank, c->comm.size, what, said,
                 is_said ? "" : "; with NCCL_DEBUG=WARN in the environment it says why");
    return st;
}

static void end_handle(struct nccl_comm *c)
{
    if (c->handle) c->group->nccl->CommAbort(c->handle);
    c->handle = NULL;
}

/* Call with the lock held. Aborted one by one, the first abort would wait for kernels whose peers wait for the second
 * communicator's. */
static void end_members(struct comm_group *f)
{
    const bool as_group = f->nccl->version >= PD_NCCL_VERSION_GROUP_ABORT;
    for (struct nccl_comm *c = f->members; c; c = c->next)
        if (c->is_launching) return;
    if (as_group) f->nccl->GroupStart();
    for (struct nccl_comm *c = f->members; c; c = c->next)
        end_handle(c);
    if (as_group) f->nccl->GroupEnd();
}

/* With the lock. */
static void break_locked(struct comm_group *f, pd_status st, const struct pd_error *error)
{
    if (f->broken) return;
    f->broken = st;
    f->error = *error;
    end_members(f);
}

/* Peers learn it from control, where this rank is now gone. */
void nccl_break_group(struct comm_group *f, pd_status st, const struct pd_error *error)
{
    pthread_mutex_lock(&f->lock);
    break_locked(f, st, error);
    pthread_mutex_unlock(&f->lock);
    pd_comm_abort(f->control);
}

pd_status nccl_state_of(struct comm_group *f, struct pd_error *err)
{
    pthread_mutex_lock(&f->lock);
    const pd_status st = f->broken;
    if (st && err) *err = f->error;
    pthread_mutex_unlock(&f->lock);
    return st;
}

static const char a_launch[] = "a launch", the_watcher[] = "the watcher";

bool nccl_begin_launch(struct nccl_comm *c)
{
    struct comm_group *f = c->group;
    pthread_mutex_lock(&f->lock);
    const bool may = !f->broken;
    if (may) pd_owner_acquire(&c->flights_owner, a_launch);
    c->is_launching = may;
    pthread_mutex_unlock(&f->lock);
    return may;
}

/* If the group broke meanwhile, the last launch to end aborts its handles. */
void nccl_end_launch(struct nccl_comm *c)
{
    struct comm_group *f = c->group;
    pthread_mutex_lock(&f->lock);
    c->is_launching = false;
    pd_owner_release(&c->flights_owner, a_launch);
    if (f->broken) end_members(f);
    pthread_mutex_unlock(&f->lock);
}

/* ---- waiting for NCCL, whose calls return at once and continue in the background ---- */

static pd_status look(struct nccl_comm *c, uint64_t *gone_ns, struct pd_error *err)
{
    struct pd_error gone;
    if (pd_comm_look(c->group->control, &gone) == PD_OK) return PD_OK;
    if (*gone_ns == 0) *gone_ns = now_ns();
    if (now_ns() - *gone_ns < GRACE_NS) return PD_OK;
    *err = gone;
    return PD_PEER_LOST;
}

pd_status nccl_poll_until_done(struct nccl_comm *c, int code, const char *what, struct pd_error *err)
{
    struct pd_error why;
    uint64_t looked = now_ns(), gone = 0;
    while (code == PD_NCCL_IN_PROGRESS) {
        pd_clock_sleep_ns(POLL_NS);
        const uint64_t now = now_ns();
        PD_TRY(nccl_state_of(c->group, err));
        if (now - looked > WATCH_NS) {
            looked = now;
            /* A call waits for the peers' calls as a kernel does for their kernels. */
            pthread_mutex_lock(&c->group->lock);
            pd_heartbeat_flight(c->number, what, c->operations + 1, c->ended);
            pthread_mutex_unlock(&c->group->lock);
            if (look(c, &gone, &why)) PD_FAIL(err, PD_PEER_LOST, "%s", why.message);
        }
        const int asked = c->group->nccl->CommGetAsyncError(c->handle, &code);
        if (asked != PD_NCCL_DONE) code = asked;
    }
    return code == PD_NCCL_DONE ? PD_OK : fail_nccl(c, code, what, err);
}

/* ---- the thread that watches ---- */

/* Looks for the oldest operation that has not ended; ones before it have. Records where the stream is. */
static pd_status watch_flights(struct nccl_comm *c, bool *ret_waits, struct pd_error *err)
{
    struct pd_dev *dev = c->group->dev;
    struct flight *flight = NULL;
    bool has_begun = false;
    if (c->operations - c->ended > FLIGHTS) c->ended = c->operations - FLIGHTS;
    for (; c->ended < c->operations; c->ended++) {
        flight = &c->flights[c->ended % FLIGHTS];
        if (!flight->is_over) PD_TRY(pd_dev_event_passed(dev, flight->ended, &flight->is_over, err));
        if (!flight->is_over) break;
    }
    if (c->ended < c->operations) {
        *ret_waits = true;
        PD_TRY(pd_dev_event_passed(dev, flight->begun, &has_begun, err));
    }
    pd_heartbeat_flight(c->number, flight ? flight->what : "", c->ended + has_begun, c->ended);
    return PD_OK;
}

static pd_status watch_member(struct nccl_comm *c, bool *ret_waits, struct pd_error *err)
{
    int code = PD_NCCL_DONE;
    if (c->is_launching || !c->handle) return PD_OK;
    pd_owner_acquire(&c->flights_owner, the_watcher);
    const pd_status st = watch_flights(c, ret_waits, err);
    pd_owner_release(&c->flights_owner, the_watcher);
    PD_TRY(st);
    const int asked = c->group->nccl->CommGetAsyncError(c->handle, &code);
    if (asked != PD_NCCL_DONE) code = asked;
    return code == PD_NCCL_DONE || code == PD_NCCL_IN_PROGRESS ? PD_OK : fail_nccl(c, code, "what was in flight", err);
}

/* With the lock. */
static pd_status watch(struct comm_group *f, uint64_t *gone_ns, struct pd_error *err)
{
    bool waits = false;
    for (struct nccl_comm *c = f->members; c; c = c->next)
        PD_TRY(watch_member(c, &waits, err));
    if (waits && f->members) return look(f->members, gone_ns, err);
    *gone_ns = 0;
    return PD_OK;
}

static void *watcher_main(void *argument)
{
    struct comm_group *f = argument;
    struct pd_error err;
    uint64_t gone_ns = 0;
    pd_rank_set_thread(f->rank);
    pd_status st = pd_dev_enter(f->dev, &err);
    pthread_mutex_lock(&f->lock);
    while (!f->is_closing && !f->broken) {
        struct timespec until;
        if (!st) st = watch(f, &gone_ns, &err);
        if (st) {
            break_locked(f, st, &err);
            pthread_mutex_unlock(&f->lock);
            pd_comm_abort(f->control);
            return NULL;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        const uint64_t at = (uint64_t)until.tv_nsec + WATCH_NS;
        until = (struct timespec){until.tv_sec + (time_t)(at / 1000000000), (long)(at % 1000000000)};
        pthread_cond_timedwait(&f->wake, &f->lock, &until);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static pd_status watcher_start(struct comm_group *f, struct pd_error *err)
{
    const int number = pd_thread_start(&f->watcher, NULL, watcher_main, f);
    if (number) PD_FAIL_ERRNO(err, number, "starting the thread that watches NCCL");
    f->is_watched = true;
    return PD_OK;
}
/* ---- operations over control ---- */

static pd_status nccl_exchange(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    struct pd_comm *control = nccl_of(comm)->control;
    return control->ops->exchange(control, op, err);
}

static pd_status nccl_all_reduce(struct pd_comm *comm, uint64_t *values, uint32_t count, enum pd_reduce reduce,
                                 struct pd_error *err)
{
    PD_TRY(nccl_state_of(nccl_of(comm)->group, err));
    return pd_comm_all_reduce(nccl_of(comm)->control, values, count, reduce, err);
}

static pd_status nccl_broadcast(struct pd_comm *comm, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    PD_TRY(nccl_state_of(nccl_of(comm)->group, err));
    return pd_comm_broadcast(nccl_of(comm)->control, root, data, bytes, err);
}

static pd_status nccl_gather(struct pd_comm *comm, uint32_t root, const void *send, uint64_t bytes, void *recv,
                             struct pd_error *err)
{
    struct pd_comm *control = nccl_of(comm)->control;
    PD_TRY(nccl_state_of(nccl_of(comm)->group, err));
    return control->ops->gather(control, root, send, bytes, recv, err);
}

static pd_status nccl_look(struct pd_comm *comm, struct pd_error *err)
{
    PD_TRY(nccl_state_of(nccl_of(comm)->group, err));
    return pd_comm_look(nccl_of(comm)->control, err);
}

static void nccl_traffic(struct pd_comm *comm, struct pd_comm_traffic *ret_traffic)
{
    struct comm_group *f = nccl_of(comm)->group;
    pd_comm_traffic(f->control, ret_traffic);
    ret_traffic->library_bytes = atomic_load(&f->sent_bytes);
}

static void nccl_abort(struct pd_comm *comm)
{
    struct pd_error left;
    const pd_status st = pd_error_set(&left, PD_PEER_LOST, PD_WHERE, 0, "this rank left the communicator");
    nccl_break_group(nccl_of(comm)->group, st, &left);
}

/* ---- life ---- */

static void nccl_will_use(struct pd_comm *comm, void *memory, uint64_t bytes)
{
    struct nccl_comm *c = nccl_of(comm);
    const struct pd_nccl_library *nccl = c->group->nccl;
    if (c->registered_count == REGISTERED_MAX || !nccl_begin_launch(c)) return;
    void **handle = &c->registered[c->registered_count];
    if (c->handle && nccl->CommRegister(c->handle, memory, bytes, handle) == PD_NCCL_DONE) c->registered_count++;
    nccl_end_launch(c);
}

/* Before the communicator ends, and after its last operation has. */
static void forget_registered(struct nccl_comm *c)
{
    for (uint32_t i = 0; i < c->registered_count; i++)
        (void)c->group->nccl->CommDeregister(c->handle, c->registered[i]);
    c->registered_count = 0;
}

/* NCCL's own buffers may still hold data to send: only finalize waits for that. */
static void close_handle(struct nccl_comm *c)
{
    const struct pd_nccl_library *nccl = c->group->nccl;
    struct pd_error ignored;
    if (!c->handle || !nccl_begin_launch(c)) return;
    pd_status st = pd_dev_stream_sync(c->group->dev, c->stream, &ignored);
    if (!st) forget_registered(c);
    if (!st) st = nccl_poll_until_done(c, nccl->CommFinalize(c->handle), "finalize", &ignored);
    if (!st && nccl->CommDestroy(c->handle) == PD_NCCL_DONE) c->handle = NULL;
    end_handle(c);
    nccl_end_launch(c);
}

static void comm_group_free(struct comm_group *f)
{
    pthread_mutex_lock(&f->lock);
    PD_CHECK(!f->members);
    f->is_closing = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    if (f->is_watched) pthread_join(f->watcher, NULL);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static void comm_release(struct nccl_comm *c)
{
    struct pd_dev *dev = c->group->dev;
    end_handle(c);
    pthread_mutex_lock(&c->group->lock);
    pd_heartbeat_flights_end(c->number);
    pthread_mutex_unlock(&c->group->lock);
    pd_dev_free(dev, &c->greeting);
    for (uint32_t i = 0; i < FLIGHTS; i++) {
        pd_dev_event_free(dev, c->flights[i].begun);
        pd_dev_event_free(dev, c->flights[i].ended);
    }
    pd_dev_event_free(dev, c->given);
    if (c->stream) pd_dev_stream_free(dev, c->stream);
    free(c);
}

static void nccl_free(struct pd_comm *comm)
{
    struct nccl_comm *c = nccl_of(comm);
    struct comm_group *f = c->group;
    struct pd_comm *control = c->control;
    close_handle(c);
    struct nccl_comm **at = &c->group->members;
    pthread_mutex_lock(&c->group->lock);
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at) *at = c->next;
    pthread_mutex_unlock(&c->group->lock);
    comm_release(c);
    if (control == f->control)
        comm_group_free(f);
    else
        pd_comm_free(control);
}

static pd_status nccl_split(struct pd_comm *comm, const struct pd_comm_part *mine, struct pd_comm **ret_comm,
                            struct pd_error *err);

/* It has no staging. */
static void nccl_unlock(struct pd_comm *comm)
{
    (void)comm;
}

static const struct pd_comm_ops nccl_ops = {
    .name = "nccl",
    .start = nccl_start,
    .wait = nccl_wait,
    .exchange = nccl_exchange,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .gather = nccl_gather,
    .split = nccl_split,
    .look = nccl_look,
    .abort = nccl_abort,
    .unlock = nccl_unlock,
    .will_use = nccl_will_use,
    .traffic = nccl_traffic,
    .free = nccl_free,
};

/* Device memory needs no preparation: streams keep the order. */
static pd_status always_ready(void *context, struct pd_error *err)
{
    (void)context, (void)err;
    return PD_OK;
}

static pd_status never_copied(void *context, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    (void)context, (void)dst, (void)src, (void)bytes;
    PD_FAIL(err, PD_BUG, "pieces of NCCL are not copied by the host");
}

/* A rank of a grid is in at most ten (trainer/parallel/grid.c). */
static const char lane_of_rest[] = "NCCL others";

static const char *next_lane(struct comm_group *f)
{
    static const char *const lanes[] = {"NCCL 1", "NCCL 2", "NCCL 3", "NCCL 4", "NCCL 5",
                                        "NCCL 6", "NCCL 7", "NCCL 8", "NCCL 9", "NCCL 10"};
    return f->named < sizeof lanes / sizeof *lanes ? lanes[f->named++] : lane_of_rest;
}

static pd_status take_streams(struct nccl_comm *c, struct pd_error *err)
{
    struct pd_dev *dev = c->group->dev;
    c->lane = c->comm.size > 1 ? next_lane(c->group) : lane_of_rest;
    PD_TRY(pd_dev_stream_new_first(dev, &c->stream, err)); /* compute waits for it */
    PD_TRY(pd_dev_event_new(dev, &c->given, err));
    for (uint32_t i = 0; i < FLIGHTS; i++) {
        c->flights[i].is_over = true;
        PD_TRY(pd_dev_event_new(dev, &c->flights[i].begun, err));
        PD_TRY(pd_dev_event_new(dev, &c->flights[i].ended, err));
    }
    return PD_OK;
}

/* The id goes from rank 0 to all over control. */
static pd_status take_handle(struct nccl_comm *c, struct pd_error *err)
{
    const struct pd_nccl_library *nccl = c->group->nccl;
    struct {
        int code;
        struct pd_nccl_id id;
    } first = {0};
    if (c->comm.size == 1) return PD_OK;
    if (c->comm.rank == 0) first.code = nccl->GetUniqueId(&first.id);
    PD_TRY(pd_comm_broadcast(c->control, 0, &first, sizeof first, err));
    if (first.code != PD_NCCL_DONE) return fail_nccl(c, first.code, "an id", err);
    c->number = pd_digest64(&first.id, sizeof first.id, 0) | 1;
    struct pd_nccl_config config = pd_nccl_config();
    config.blocks_max = (int)blocks_max(c->group->dev->multiprocessors, c->is_link);
    const int code = nccl->CommInitRankConfig(&c->handle, (int)c->comm.size, first.id, (int)c->comm.rank, &config);
    if (code != PD_NCCL_DONE && code != PD_NCCL_IN_PROGRESS) c->handle = NULL;
    return nccl_poll_until_done(c, code, "joining", err);
}

/* Whether all ranks succeeded, even if this one failed. */
static pd_status join_agreed(struct nccl_comm *c, pd_status st, struct pd_error *err)
{
    struct pd_error other;
    uint64_t failed = st != PD_OK;
    const pd_status agreed = pd_comm_all_reduce(c->control, &failed, 1, PD_REDUCE_SUM_U64, st ? &other : err);
    if (!st) st = agreed;
    if (!st && failed)
        PD_FAIL(err, PD_DEVICE_LOST, "NCCL: %llu of %u ranks could not join", (unsigned long long)failed, c->comm.size);
    return st;
}

/* NCCL connects two ranks for a direction at their first transfer, and that call returns when both have made it. Pipeline
 * stages that each begin by receiving would deadlock, so links connect here. Ranks of other communicators always arrive
 * together. No wait for the bytes is needed: later work follows on the stream. */
static pd_status connect_link(struct nccl_comm *c, struct pd_error *err)
{
    if (!c->is_link || c->comm.size == 1) return PD_OK;
    PD_TRY(pd_dev_alloc(c->group->dev, PD_DEV_DEVICE, 2, &c->greeting, err));
    unsigned char *bytes = c->greeting.data;
    struct pd_comm_piece out = {.peer = 1 - c->comm.rank, .data = bytes, .bytes = 1}, in = out;
    in.data = bytes + 1;
    const struct pd_comm_op op = {.sends = &out, .send_count = 1, .recvs = &in, .recv_count = 1};
    return nccl_launch(c, &op, err);
}

/* Every rank takes part in all agreements, even after an error. */
static pd_status comm_join(struct nccl_comm *c, struct pd_error *err)
{
    struct pd_error other;
    pd_status st = take_streams(c, err);
    const pd_status joined = take_handle(c, st ? &other : err);
    PD_TRY(join_agreed(c, st ? st : joined, err));
    return join_agreed(c, connect_link(c, err), err);
}

static pd_status comm_new(struct comm_group *f, struct pd_comm *control, bool is_link, bool is_used,
                          struct pd_comm **ret_comm, struct pd_error *err)
{
    struct nccl_comm *c = calloc(1, sizeof *c);
    if (!c) PD_FAIL(err, PD_NO_MEMORY, "NCCL: no memory");
    c->comm = *control;
    c->comm.ops = &nccl_ops;
    c->comm.bytes = control->bytes + sizeof *c;
    c->comm.memory = (struct pd_comm_memory){.ready = always_ready, .copy = never_copied};
    c->group = f;
    c->control = control;
    c->is_link = is_link;
    c->is_used = is_used;
    pd_status st = is_used ? comm_join(c, err) : PD_OK;
    if (st) {
        comm_release(c);
        return st;
    }
    pthread_mutex_lock(&f->lock);
    c->next = f->members;
    f->members = c;
    pthread_mutex_unlock(&f->lock);
    *ret_comm = &c->comm;
    return PD_OK;
}

static pd_status nccl_split(struct pd_comm *comm, const struct pd_comm_part *mine, struct pd_comm **ret_comm,
                            struct pd_error *err)
{
    struct pd_comm *part;
    PD_TRY(nccl_state_of(nccl_of(comm)->group, err));
    PD_TRY(pd_comm_split(nccl_of(comm)->control, mine->color, mine->key, &part, err));
    pd_status st = comm_new(nccl_of(comm)->group, part, mine->is_link, true, ret_comm, err);
    if (st) pd_comm_free(part);
    return st;
}

/* ---- the outermost ---- */

static pd_status comm_group_new(struct pd_comm *control, struct pd_dev *dev, struct pd_stream *compute,
                                const struct pd_nccl_library *nccl, struct comm_group **ret_group, struct pd_error *err)
{
    struct comm_group *f = calloc(1, sizeof *f);
    pthread_condattr_t monotonic;
    if (!f) PD_FAIL(err, PD_NO_MEMORY, "NCCL: no memory");
    f->nccl = nccl;
    f->dev = dev;
    f->compute = compute;
    f->control = control;
    f->rank = pd_rank_current();
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *ret_group = f;
    return PD_OK;
}

pd_status pd_comm_new_nccl(struct pd_comm *control, struct pd_dev *dev, struct pd_stream *compute,
                           struct pd_device_spans *spans, bool is_used, struct pd_comm **ret_comm, bool *ret_is_meant,
                           struct pd_error *err)
{
    const struct pd_nccl_library *nccl;
    struct comm_group *f = NULL;
    PD_TRY(pd_nccl_agree(control, dev, &nccl, ret_is_meant, err));
    PD_TRY(comm_group_new(control, dev, compute, nccl, &f, err));
    f->spans = spans;
    pd_status st = watcher_start(f, err);
    if (!st) st = comm_new(f, control, false, is_used, ret_comm, err);
    if (!st) return PD_OK;
    comm_group_free(f);
    return st == PD_DEVICE_LOST ? PD_UNSUPPORTED : st;
}
