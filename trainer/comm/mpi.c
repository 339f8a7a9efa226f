/* Ranks as processes. MPI starts and numbers them, and carries bytes between hosts. Ranks of one host use pipes in shared
 * memory, without MPI.
 *
 *   calls     MPI_THREAD_SERIALIZED: several communicators have threads, one lock admits one of them to MPI. After start-up
 *             only nonblocking calls are made
 *   order     in step k a rank sends to rank+k and receives from rank-k. Each side has a window of steps open, one per lane
 *             (staging.h), lowest first. The lowest unfinished step of all ranks is open at both ends, so something always
 *             moves
 *   chunks    a message is sent in chunks of CHUNK_BYTES of its concatenation; a chunk inside one piece is not copied
 *   tags      (communicator, operation mod OPERATIONS): a message never ends up in another operation */
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/pretended_host.h"
#include "ckpt/base/rank.h"
#include "trainer/comm/progress.h"
#include "trainer/comm/staging.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LANE_CHUNKS 8u
/* Equal on all ranks, so that sender and receiver cut alike. Below 64 KiB with MPI's header: Open MPI then sends it over TCP
 * at once. A larger one would first ask the receiver, and the answer would queue behind the receiver's own data. */
#define CHUNK_BYTES (UINT64_C(63) << 10)
_Static_assert(2 * LANE_CHUNKS * CHUNK_BYTES <= PD_STAGING_UNIT_BYTES, "a lane's chunks, either way, are in its unit");
#define OPERATIONS 128u
#define CANCEL_SECONDS 1
#define LEAVE_SECONDS 3 /* after a failure; enough for peers that can still arrive */

#define CHUNKS_MAX (2u * PD_STAGING_UNITS_MAX * LANE_CHUNKS)

struct chunk {
    bool is_staged, is_header;
    struct pd_cursor target; /* destination of a staged chunk */
    uint64_t bytes;
};

struct lane {
    bool is_used;
    bool has_header; /* must be sent, or arrive, before all else */
    uint64_t posted; /* chunks posted after it */
    uint32_t peer;
    struct pd_cursor walk; /* what MPI has not been given yet */
};

struct side {
    bool is_send;
    uint32_t *peers; /* (size) in the order of steps */
    uint32_t count, next;
};

/* Lanes of `sides[0]`, then of `sides[1]`; chunks lane by lane. */
struct remote {
    struct side sides[2]; /* receives, sends */
    uint32_t lane_count;  /* of a side */
    struct lane lanes[2 * PD_STAGING_UNITS_MAX];
    struct chunk chunks[CHUNKS_MAX];
    MPI_Request requests[CHUNKS_MAX]; /* of chunks; MPI_REQUEST_NULL: not busy */
    uint8_t *staging;                 /* two units per lane, in its own pages because they may be pinned */
};

/* One MPI per process. */
static pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER;
static MPI_Comm mpi_world = MPI_COMM_NULL;
static int mpi_tag_max;
static bool mpi_has_leftovers; /* transfers that never ended: MPI_Finalize could wait for them */
static bool mpi_is_over;

static pd_status fail_mpi(int code, const char *what, uint32_t peer, struct pd_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    PD_FAIL(err, PD_PEER_LOST, "%s rank %u: %s", what, peer, text);
}

static int tag_of(const struct pd_progress *engine)
{
    return (int)(engine->id * OPERATIONS + engine->exchange.remote_sequence % OPERATIONS);
}

static bool has_remote_members(const struct pd_progress *engine)
{
    return engine->segment->shape.slots < engine->comm.size;
}

static void remote_release(struct remote *remote)
{
    if (!remote) return;
    free(remote->sides[0].peers);
    free(remote->sides[1].peers);
    free(remote->staging);
    free(remote);
}

static uint32_t chunk_count(const struct remote *remote)
{
    return 2 * remote->lane_count * LANE_CHUNKS;
}

static pd_status remote_open(struct pd_progress *engine, struct pd_error *err)
{
    if (!has_remote_members(engine)) return PD_OK;
    if (engine->id >= (uint32_t)mpi_tag_max / OPERATIONS)
        PD_FAIL(err, PD_UNSUPPORTED, "this MPI has tags up to %d only: too few for communicator %u", mpi_tag_max,
                engine->id);
    uint32_t lanes = pd_staging_lanes(engine->comm.size, engine->segment->shape.slots);
    uint64_t bytes = lanes * PD_STAGING_UNIT_BYTES;
    struct remote *remote = calloc(1, sizeof *remote);
    if (remote) {
        remote->sides[0].peers = calloc(engine->comm.size, sizeof *remote->sides->peers);
        remote->sides[1].peers = calloc(engine->comm.size, sizeof *remote->sides->peers);
        remote->staging = aligned_alloc(4096, bytes);
    }
    if (!remote || !remote->sides[0].peers || !remote->sides[1].peers || !remote->staging) {
        remote_release(remote);
        PD_FAIL(err, PD_NO_MEMORY, "buffers to ranks on other hosts");
    }
    remote->sides[1].is_send = true;
    remote->lane_count = lanes;
    for (uint32_t c = 0; c < chunk_count(remote); c++)
        remote->requests[c] = MPI_REQUEST_NULL;
    engine->remote.state = remote;
    engine->remote.staging = remote->staging;
    engine->remote.staging_bytes = bytes;
    engine->comm.bytes += bytes;
    return PD_OK;
}

static void remote_close(struct pd_progress *engine)
{
    remote_release(engine->remote.state);
    engine->remote.state = NULL;
    engine->remote.staging = NULL;
}

static struct pd_cursor *cursor_of(struct pd_progress *engine, uint32_t peer, bool is_send)
{
    return is_send ? &engine->exchange.links[peer].send : &engine->exchange.links[peer].recv;
}

static void side_begin(struct pd_progress *engine, struct side *side)
{
    const struct pd_exchange *x = &engine->exchange;
    side->count = side->next = 0;
    for (uint32_t i = 0; i < x->peer_count; i++) {
        const uint32_t peer = x->peers[side->is_send ? i : x->peer_count - 1 - i];
        if (x->links[peer].slot == PD_NO_SLOT && cursor_of(engine, peer, side->is_send)->left)
            side->peers[side->count++] = peer;
    }
}

static void remote_begin(struct pd_progress *engine)
{
    struct remote *remote = engine->remote.state;
    side_begin(engine, &remote->sides[0]);
    side_begin(engine, &remote->sides[1]);
}

static uint8_t *staging_of(const struct remote *remote, uint32_t c)
{
    return remote->staging + c * CHUNK_BYTES;
}

static pd_status fail_transfer(int code, bool is_send, uint32_t world, struct pd_error *err)
{
    return fail_mpi(code, is_send ? "sending to" : "receiving from", world, err);
}

static pd_status transfer(struct pd_progress *engine, const struct lane *lane, uint32_t c, bool is_send, void *memory,
                          struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    const int world = (int)engine->members[lane->peer].world, count = (int)remote->chunks[c].bytes, tag = tag_of(engine);
    const int code = is_send ? MPI_Isend(memory, count, MPI_BYTE, world, tag, mpi_world, &remote->requests[c])
                             : MPI_Irecv(memory, count, MPI_BYTE, world, tag, mpi_world, &remote->requests[c]);
    return code == MPI_SUCCESS ? PD_OK : fail_transfer(code, is_send, (uint32_t)world, err);
}

static pd_status header_post(struct pd_progress *engine, struct lane *lane, uint32_t c, bool is_send, struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    remote->chunks[c] = (struct chunk){.is_header = true, .bytes = sizeof(struct pd_collective_header)};
    if (is_send) memcpy(staging_of(remote, c), engine->exchange.header, sizeof(struct pd_collective_header));
    lane->has_header = false;
    return transfer(engine, lane, c, is_send, staging_of(remote, c), err);
}

static pd_status chunk_post(struct pd_progress *engine, struct lane *lane, uint32_t c, bool is_send, struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    struct chunk *chunk = &remote->chunks[c];
    uint64_t span;
    if (lane->has_header) return header_post(engine, lane, c, is_send, err);
    void *memory = pd_cursor_span(&lane->walk, &span);
    chunk->is_header = false;
    lane->posted++;
    chunk->bytes = pd_min_u64(lane->walk.left, CHUNK_BYTES);
    chunk->is_staged = span < chunk->bytes || lane->walk.memory || lane->walk.adds;
    chunk->target = lane->walk;
    if (chunk->is_staged) memory = staging_of(remote, c);
    if (chunk->is_staged && is_send)
        PD_TRY(pd_cursor_read(&lane->walk, memory, chunk->bytes, err));
    else
        pd_cursor_advance(&lane->walk, chunk->bytes);
    return transfer(engine, lane, c, is_send, memory, err);
}

static pd_status chunk_damage(const struct remote *remote, uint32_t c, struct pd_error *err)
{
    struct chunk *chunk = (struct chunk *)&remote->chunks[c];
    if (!chunk->is_staged) return pd_cursor_damage(&chunk->target, err);
    staging_of(remote, c)[0] ^= 1;
    return PD_OK;
}

static pd_status chunk_arrived(struct pd_progress *engine, const struct lane *lane, uint32_t c, const MPI_Status *status,
                               struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    struct chunk *chunk = &remote->chunks[c];
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    if ((uint64_t)count != chunk->bytes)
        PD_FAIL(err, PD_BUG, "operation %llu: rank %u expects %llu bytes of rank %u and got %d",
                (unsigned long long)engine->exchange.remote_sequence, engine->members[engine->comm.rank].world,
                (unsigned long long)chunk->bytes, engine->members[lane->peer].world, count);
    if (chunk->is_header) {
        struct pd_collective_header header;
        engine->exchange.links[lane->peer].awaits_header = false;
        memcpy(&header, staging_of(remote, c), sizeof header);
        return pd_collective_compare(engine, engine->exchange.header, &header, lane->peer, err);
    }
    bool *is_damaged = &engine->exchange.links[lane->peer].is_damaged;
    if (*is_damaged) PD_TRY(chunk_damage(remote, c, err));
    *is_damaged = false;
    return chunk->is_staged ? pd_cursor_write(&chunk->target, staging_of(remote, c), chunk->bytes, err) : PD_OK;
}

/* One call for all transfers in flight, since a call that finds nothing polls all of MPI's connections. */
static pd_status chunks_finish(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    int done = 0, indices[CHUNKS_MAX];
    MPI_Status statuses[CHUNKS_MAX];
    const int code = MPI_Testsome((int)chunk_count(remote), remote->requests, &done, indices, statuses);
    for (int i = 0; done != MPI_UNDEFINED && i < done; i++) {
        const uint32_t c = (uint32_t)indices[i], l = c / LANE_CHUNKS;
        const bool is_send = l >= remote->lane_count;
        const struct lane *lane = &remote->lanes[l];
        *ret_has_moved = true;
        if (code == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR != MPI_SUCCESS)
            return fail_transfer(statuses[i].MPI_ERROR, is_send, engine->members[lane->peer].world, err);
        if (!is_send) PD_TRY(chunk_arrived(engine, lane, c, &statuses[i], err));
    }
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return fail_mpi(code, "transfers of", engine->comm.rank, err);
    return PD_OK;
}

static bool may_post(const struct pd_progress *engine, const struct lane *lane, bool is_send)
{
    const bool is_ahead = is_send && engine->exchange.links[lane->peer].awaits_header;
    return lane->has_header || (lane->walk.left && (!is_ahead || lane->posted < LANE_CHUNKS));
}

static pd_status lane_progress(struct pd_progress *engine, uint32_t l, bool is_send, struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    struct lane *lane = &remote->lanes[l];
    bool is_busy = false;
    for (uint32_t c = l * LANE_CHUNKS; c < (l + 1) * LANE_CHUNKS; c++) {
        if (remote->requests[c] == MPI_REQUEST_NULL && may_post(engine, lane, is_send))
            PD_TRY(chunk_post(engine, lane, c, is_send, err));
        is_busy |= remote->requests[c] != MPI_REQUEST_NULL;
    }
    if (is_busy || lane->walk.left) return PD_OK;
    cursor_of(engine, lane->peer, is_send)->left = 0;
    lane->is_used = false;
    return PD_OK;
}

static pd_status side_progress(struct pd_progress *engine, struct side *side, struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    const uint32_t first = side->is_send ? remote->lane_count : 0;
    for (uint32_t l = first; l < first + remote->lane_count; l++) {
        struct lane *lane = &remote->lanes[l];
        if (!lane->is_used && side->next < side->count) {
            lane->peer = side->peers[side->next++];
            lane->walk = *cursor_of(engine, lane->peer, side->is_send);
            lane->is_used = true;
            lane->has_header = engine->exchange.header != NULL;
            lane->posted = 0;
        }
        if (lane->is_used) PD_TRY(lane_progress(engine, l, side->is_send, err));
    }
    return PD_OK;
}

static bool is_idle(const struct remote *remote)
{
    return remote->sides[0].count == 0 && remote->sides[1].count == 0;
}

static pd_status remote_progress(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err)
{
    struct remote *remote = engine->remote.state;
    if (is_idle(remote)) return PD_OK;
    pthread_mutex_lock(&mpi_lock);
    pd_status st = chunks_finish(engine, ret_has_moved, err);
    if (!st) st = side_progress(engine, &remote->sides[0], err);
    if (!st) st = side_progress(engine, &remote->sides[1], err);
    pthread_mutex_unlock(&mpi_lock);
    return st;
}

static bool cancel_all(struct remote *remote, bool is_first)
{
    bool is_busy = false;
    for (uint32_t c = 0; c < chunk_count(remote); c++) {
        MPI_Request *request = &remote->requests[c];
        if (*request == MPI_REQUEST_NULL) continue;
        int is_done = 0;
        if (is_first && c < chunk_count(remote) / 2) MPI_Cancel(request);
        if (MPI_Test(request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || is_done) *request = MPI_REQUEST_NULL;
        is_busy |= *request != MPI_REQUEST_NULL;
    }
    memset(remote->lanes, 0, sizeof remote->lanes);
    return is_busy;
}

/* Transfers are pending here only after a failure. MPI may keep one to a lost host for ever: after a moment leave it until
 * the process ends, which is soon. */
static void remote_end(struct pd_progress *engine)
{
    struct remote *remote = engine->remote.state;
    if (is_idle(remote)) return;
    for (int tries = 0; tries < CANCEL_SECONDS * 1000; tries++) {
        pthread_mutex_lock(&mpi_lock);
        const bool is_busy = cancel_all(remote, tries == 0);
        pthread_mutex_unlock(&mpi_lock);
        if (!is_busy) return;
        pd_clock_sleep_ns(1000000);
    }
    pthread_mutex_lock(&mpi_lock);
    mpi_has_leftovers = true;
    pthread_mutex_unlock(&mpi_lock);
}

static const struct pd_remote_ops remote_ops = {
    .open = remote_open, .close = remote_close, .begin = remote_begin, .progress = remote_progress, .end = remote_end};

/* MPI_Finalize waits for every rank, for ever, so call it only when all have arrived here. That includes failures known to
 * all: a process that leaves MPI out makes mpirun end the job with its own message. A rank that fails and frees its
 * communicator must not wait; its peers learn that it left. */
static bool leave_together(struct pd_progress *engine)
{
    MPI_Request request;
    const uint64_t tries = engine->broken ? LEAVE_SECONDS * UINT64_C(1000) : UINT64_MAX;
    pd_progress_leave(&engine->comm);
    pthread_mutex_lock(&mpi_lock);
    bool is_asked = !mpi_has_leftovers && MPI_Ibarrier(mpi_world, &request) == MPI_SUCCESS;
    pthread_mutex_unlock(&mpi_lock);
    for (uint64_t n = 0; is_asked && n < tries; n++) {
        int is_done = 0;
        pthread_mutex_lock(&mpi_lock);
        is_asked = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS;
        pthread_mutex_unlock(&mpi_lock);
        if (is_asked && is_done) return true;
        if (n % 64 == 0 && pd_segment_has_lost(engine->segment, engine->slot)) return false;
        pd_clock_sleep_ns(1000000);
    }
    return false;
}

static void mpi_free(struct pd_comm *comm)
{
    struct pd_progress *engine = pd_progress_of(comm);
    bool is_root = engine->root == engine;
    bool can_finalize = is_root && leave_together(engine);
    pd_progress_free(comm);
    if (can_finalize && !mpi_has_leftovers) mpi_is_over = MPI_Finalize() == MPI_SUCCESS;
}

bool pd_comm_has_mpi(void)
{
    return true;
}

bool pd_comm_mpi_is_over(void)
{
    return mpi_is_over;
}

static const struct pd_comm_ops mpi_ops = {.name = "mpi", PD_PROGRESS_SLOTS, .free = mpi_free};

static const struct pd_comm_transport transport_mpi = {.ops = &mpi_ops, .remote = &remote_ops, .is_processes = true};

/* Properties that two processes share if they share memory and a local file system. */
struct place {
    char text[256];
};

static void append_file(struct place *place, const char *path, bool is_link)
{
    char text[80] = "?";
    int fd = is_link ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = is_link ? readlink(path, text, sizeof text - 1) : fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    if (got > 0) text[got] = '\0';
    size_t used = strlen(place->text);
    snprintf(place->text + used, sizeof place->text - used, "%.*s ", (int)strcspn(text, "\n"), text);
}

static pd_status place_make(uint32_t rank, uint32_t size, struct place *place, struct pd_error *err)
{
    *place = (struct place){""};
    char pretended[64];
    if (!pd_pretended_host(rank, size, pretended))
        PD_FAIL(err, PD_INVALID, "PERDURE_TEST_HOSTS=%s: give a number of hosts from 1 to %u", getenv("PERDURE_TEST_HOSTS"),
                size);
    snprintf(place->text, sizeof place->text, "%s ", pretended);
    append_file(place, "/proc/sys/kernel/random/boot_id", false);
    append_file(place, "/proc/self/ns/pid", true);
    append_file(place, "/proc/self/ns/mnt", true);
    return PD_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct place *x = *(const struct place *const *)a, *y = *(const struct place *const *)b;
    const int order = strcmp(x->text, y->text);
    return order ? order : (x > y) - (x < y);
}

static bool agree(bool mine)
{
    int value = mine, all = 0;
    return MPI_Allreduce(&value, &all, 1, MPI_INT, MPI_LAND, mpi_world) == MPI_SUCCESS && all;
}

static pd_status segment_open(const struct pd_member_info *members, uint32_t rank, uint32_t size,
                              struct pd_segment_ticket *tickets, struct pd_segment **ret_segment, struct pd_error *err)
{
    struct pd_segment_ticket mine = {0};
    struct pd_segment *segment = NULL;
    uint32_t slots, slot = pd_progress_slot_of(members, size, rank, &slots), leader = 0;
    while (members[leader].domain != members[rank].domain)
        leader++;
    const struct pd_segment_shape shape = pd_progress_shape(&transport_mpi, size, slots);
    pd_status st = PD_OK;
    if (leader == rank) st = pd_segment_make(&shape, &mine, &segment, err);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, tickets, sizeof mine, MPI_BYTE, mpi_world);
    if (leader != rank) st = pd_segment_attach(&tickets[leader], &shape, &segment, err);
    if (segment) pd_segment_enter(segment, slot);
    if (!agree(st == PD_OK)) {
        pd_segment_free(segment);
        if (st) return st;
        PD_FAIL(err, PD_UNSUPPORTED, "another rank has no shared memory");
    }
    pd_segment_close_ticket(segment);
    pd_segment_watch(segment, slot);
    *ret_segment = segment;
    return PD_OK;
}

/* If memory cannot be shared (a container may forbid it), every rank has its own domain and MPI carries everything. */
static pd_status segment_open_or_alone(struct pd_member_info *members, uint32_t rank, uint32_t size,
                                       struct pd_segment_ticket *tickets, struct pd_segment **ret_segment,
                                       struct pd_error *err)
{
    struct pd_error why;
    if (segment_open(members, rank, size, tickets, ret_segment, &why) == PD_OK) return PD_OK;
    pd_log(PD_LOG_WARN, "comm", "ranks of one host talk through MPI, which is slower: %s", why.message);
    for (uint32_t r = 0; r < size; r++)
        members[r].domain = r;
    return segment_open(members, rank, size, tickets, ret_segment, err);
}

static pd_status world_open(struct place *places, struct pd_member_info *members, struct pd_segment_ticket *tickets,
                            uint32_t rank, uint32_t size, struct pd_comm **ret_comm, struct pd_error *err)
{
    struct place mine;
    pd_status st = place_make(rank, size, &mine, err);
    if (!agree(st == PD_OK)) {
        if (st) return st;
        PD_FAIL(err, PD_PEER_LOST, "another rank could not join");
    }
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, places, sizeof mine, MPI_BYTE, mpi_world);
    /* A host is identified by its first rank. */
    const struct place **sorted = calloc(size, sizeof *sorted);
    if (!sorted) PD_FAIL(err, PD_NO_MEMORY, "a job of %u ranks", size);
    for (uint32_t r = 0; r < size; r++)
        sorted[r] = &places[r];
    qsort(sorted, size, sizeof *sorted, by_place);
    for (uint32_t i = 0, first = 0; i < size; i++) {
        const uint32_t r = (uint32_t)(sorted[i] - places);
        if (i == 0 || strcmp(sorted[i - 1]->text, sorted[i]->text)) first = r;
        members[r] = (struct pd_member_info){.world = r, .host = first, .domain = first};
    }
    free(sorted);
    struct pd_segment *segment;
    PD_TRY(segment_open_or_alone(members, rank, size, tickets, &segment, err));
    struct pd_progress *engine;
    st = pd_progress_new(&transport_mpi, NULL, 0, rank, size, members, segment, &engine, err);
    if (st) {
        pd_segment_free(segment);
        return st;
    }
    *ret_comm = &engine->comm;
    return PD_OK;
}

static pd_status mpi_join(uint32_t *ret_rank, uint32_t *ret_size, struct pd_error *err)
{
    int provided, rank, size, has_tags, *tag_max, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (code != MPI_SUCCESS) PD_FAIL(err, PD_UNSUPPORTED, "MPI_Init_thread failed with %d: start ranks with mpirun", code);
    if (provided < MPI_THREAD_SERIALIZED)
        PD_FAIL(err, PD_UNSUPPORTED, "this MPI was built without threads: MPI_THREAD_SERIALIZED is needed");
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi_world);
    MPI_Comm_set_errhandler(mpi_world, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(mpi_world, MPI_TAG_UB, &tag_max, &has_tags);
    mpi_tag_max = has_tags ? *tag_max : 32767;
    MPI_Comm_rank(mpi_world, &rank);
    MPI_Comm_size(mpi_world, &size);
    pd_rank_set_process(rank);
    *ret_rank = (uint32_t)rank;
    *ret_size = (uint32_t)size;
    return PD_OK;
}

pd_status pd_comm_open_mpi(struct pd_comm **ret_comm, struct pd_error *err)
{
    int is_initialized;
    MPI_Initialized(&is_initialized);
    if (is_initialized) PD_FAIL(err, PD_BUG, "MPI was joined before");
    uint32_t rank = 0, size = 0;
    PD_TRY(mpi_join(&rank, &size, err));
    struct place *places = calloc(size, sizeof *places);
    struct pd_member_info *members = calloc(size, sizeof *members);
    struct pd_segment_ticket *tickets = calloc(size, sizeof *tickets);
    pd_status st = places && members && tickets ? world_open(places, members, tickets, rank, size, ret_comm, err)
                                                : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "a job of %u ranks", size);
    free(places);
    free(members);
    free(tickets);
    return st;
}
