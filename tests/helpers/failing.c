/* Linked with --wrap=NAME for each name that FAILS has below (tests/crash/CMakeLists.txt reads them here). */
#include "tests/helpers/failing.h"

#include "ckpt/base/digest.h"
#include "ckpt/group/group.h"

#include <errno.h>
#include <execinfo.h>
#include <hdf5.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH = 48, BLOCK_DEPTH = 8, PLACES_MAX = 1 << 16, BLOCKS_MAX = 1 << 18 };

struct chain {
    void *calls[DEPTH];
    int depth;
};
struct block {
    void *data; /* NULL: free */
    void *from[BLOCK_DEPTH];
    int depth;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static enum { OFF, RECORDS, FAILS } mode;
static uint64_t places[PLACES_MAX];     /* in the order in which they were passed */
static const void *callers[PLACES_MAX]; /* who calls there; NULL: not known */
static bool leads[PLACES_MAX];          /* through a call that is on the way to no place before it */
static uint32_t place_count, next_place;
static uint64_t seen[2 * PLACES_MAX], wanted;
static const void *wanted_caller;
static const void *calls_seen[PLACES_MAX];
static bool persists, has_fired;
static const char *only; /* or NULL */
static const char *fired_what;
static bool fired_in_group;
static struct chain fired_from;
static struct block *blocks; /* (BLOCKS_MAX), by address */
static uint64_t block_count;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *data, size_t bytes);
void *__real_reallocarray(void *data, size_t count, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t bytes);
void __real_free(void *data);

static pthread_t caller;
static int caller_depth;            /* calls around what fails, in that thread */
static _Thread_local bool in_group; /* in a collective of several ranks */

void failing_from_here(void)
{
    void *calls[DEPTH];
    caller = pthread_self();
    caller_depth = backtrace(calls, DEPTH) - 1;
}

static struct chain chain_here(void)
{
    struct chain chain = {0};
    chain.depth = backtrace(chain.calls, DEPTH);
    if (pthread_equal(caller, pthread_self()) && chain.depth > caller_depth) chain.depth -= caller_depth;
    return chain;
}

/* True the first time. */
static bool note_call(const void *call)
{
    uint64_t at = ((uintptr_t)call * 11400714819323198485u >> 40) % PLACES_MAX;
    while (calls_seen[at] && calls_seen[at] != call)
        at = (at + 1) % PLACES_MAX;
    const bool is_new = !calls_seen[at];
    calls_seen[at] = call;
    return is_new;
}

static void note(uint64_t place, const struct chain *chain, const void *from)
{
    uint64_t at = place % (2 * PLACES_MAX);
    while (seen[at] && seen[at] != place)
        at = (at + 1) % (2 * PLACES_MAX);
    if (seen[at] == place || place_count == PLACES_MAX) return;
    seen[at] = place;
    leads[place_count] = false;
    for (int i = 0; i < chain->depth; i++)
        leads[place_count] |= note_call(chain->calls[i]);
    callers[place_count] = from;
    places[place_count++] = place;
}

/* A walk up the calls takes longer than most of what is called, so there is none where another caller already tells. */
static bool may_be_wanted(const void *from)
{
    return mode == RECORDS ||
           (__atomic_load_n(&has_fired, __ATOMIC_RELAXED) ? persists : !from || !wanted_caller || from == wanted_caller);
}

static bool fails_for(const char *what, const void *from)
{
    if (__atomic_load_n(&mode, __ATOMIC_RELAXED) == OFF || (only && strcmp(what, only) != 0)) return false;
    if (!may_be_wanted(from)) return false;
    struct chain chain = {0};
    uint64_t place = 0;
    if (!__atomic_load_n(&has_fired, __ATOMIC_RELAXED)) {
        chain = chain_here();
        place = pd_digest64(chain.calls, (size_t)chain.depth * sizeof *chain.calls, what[0]) | 1;
    }
    pthread_mutex_lock(&mutex);
    if (mode == RECORDS) note(place, &chain, from);
    const bool fails = mode == FAILS && (has_fired ? persists && strcmp(what, fired_what) == 0 : place == wanted);
    if (fails && !has_fired) {
        fired_what = what;
        fired_in_group = in_group;
        fired_from = chain;
    }
    if (fails) __atomic_store_n(&has_fired, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
    return fails;
}

bool failing_here(const char *what)
{
    return fails_for(what, NULL);
}

bool failing_on_disk(enum pd_disk_operation operation)
{
    return failing_here(pd_disk_operation_name(operation));
}

static void begin(int as)
{
    if (!blocks) blocks = __real_calloc(BLOCKS_MAX, sizeof *blocks);
    (void)chain_here(); /* the first one allocates */
    pthread_mutex_lock(&mutex);
    if (block_count) memset(blocks, 0, BLOCKS_MAX * sizeof *blocks);
    block_count = 0;
    has_fired = false;
    __atomic_store_n(&mode, as, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
}

void failing_only(const char *what)
{
    only = what;
}

void failing_record(void)
{
    memset(seen, 0, sizeof seen);
    memset(calls_seen, 0, sizeof calls_seen);
    place_count = 0;
    failing_rewind();
    begin(RECORDS);
}

void failing_rewind(void)
{
    next_place = 0;
}

static bool has_turn(uint32_t place, bool from_then_on, uint64_t day)
{
    return leads[place] && (place + day) % (from_then_on ? 8 : 2) == 0;
}

bool failing_next(bool some, bool from_then_on, uint64_t day)
{
    while (next_place < place_count && some && !has_turn(next_place, from_then_on, day))
        next_place++;
    if (next_place == place_count) return false;
    wanted_caller = callers[next_place];
    wanted = places[next_place++];
    persists = from_then_on;
    begin(FAILS);
    return true;
}

void failing_stop(void)
{
    pthread_mutex_lock(&mutex);
    __atomic_store_n(&mode, OFF, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
}

bool failing_has_fired(void)
{
    return has_fired;
}

uint32_t failing_places(void)
{
    return place_count;
}

static void describe(void *const *calls, int depth, char text[1024])
{
    char **names = backtrace_symbols(calls, depth);
    size_t used = 0;
    for (int i = 0; names && i < depth && used < 960; i++) {
        const char *slash = strrchr(names[i], '/');
        used += (size_t)snprintf(text + used, 1024 - used, " %s", slash ? slash + 1 : names[i]);
    }
    __real_free(names);
}

bool failing_breaks_group(void)
{
    return fired_in_group;
}

void failing_what(char ret_text[1024])
{
    snprintf(ret_text, 1024, "%s:", fired_what ? fired_what : "nothing");
    char calls[1024] = "";
    describe(fired_from.calls, fired_from.depth, calls);
    strncat(ret_text, calls, 1023 - strlen(ret_text));
}

/* ---- allocations, and what is not free again ---- */

static uint64_t slot_of(const void *data)
{
    uint64_t at = ((uintptr_t)data >> 4) * 11400714819323198485u >> 40;
    while (blocks[at % BLOCKS_MAX].data && blocks[at % BLOCKS_MAX].data != data)
        at++;
    return at % BLOCKS_MAX;
}

static void *keep(void *data)
{
    if (!data || __atomic_load_n(&mode, __ATOMIC_RELAXED) == OFF) return data;
    struct block block = {.data = data};
    block.depth = backtrace(block.from, BLOCK_DEPTH);
    pthread_mutex_lock(&mutex);
    if (block_count < BLOCKS_MAX / 2) {
        blocks[slot_of(data)] = block;
        block_count++;
    }
    pthread_mutex_unlock(&mutex);
    return data;
}

/* What came behind it in its row moves up. */
static void forget(const void *data)
{
    if (!data || !blocks) return;
    pthread_mutex_lock(&mutex);
    uint64_t at = slot_of(data);
    if (blocks[at].data) {
        block_count--;
        blocks[at].data = NULL;
        for (at = (at + 1) % BLOCKS_MAX; blocks[at].data; at = (at + 1) % BLOCKS_MAX) {
            const struct block moved = blocks[at];
            blocks[at].data = NULL;
            blocks[slot_of(moved.data)] = moved;
        }
    }
    pthread_mutex_unlock(&mutex);
}

uint64_t failing_leaks(char ret_where[1024])
{
    ret_where[0] = '\0';
    for (uint64_t i = 0; block_count && i < BLOCKS_MAX; i++)
        if (blocks[i].data) {
            describe(blocks[i].from, blocks[i].depth, ret_where);
            break;
        }
    return block_count;
}

/* A call that does not happen. */
#define FAILS(type, name, failure, parameters, arguments)                                         \
    type __real_##name parameters;                                                                \
    type __wrap_##name parameters;                                                                \
    type __wrap_##name parameters                                                                 \
    {                                                                                             \
        return fails_for(#name, __builtin_return_address(0)) ? failure : __real_##name arguments; \
    }
/* A call that happens, and says that it did not. */
#define FAILS_AFTER(type, name, failure, parameters, arguments)                  \
    type __real_##name parameters;                                               \
    type __wrap_##name parameters;                                               \
    type __wrap_##name parameters                                                \
    {                                                                            \
        const type result = __real_##name arguments;                             \
        return fails_for(#name, __builtin_return_address(0)) ? failure : result; \
    }
#define FAILS_MEMORY(type, name, parameters, arguments)                                       \
    type __wrap_##name parameters;                                                            \
    type __wrap_##name parameters                                                             \
    {                                                                                         \
        return fails_for(#name, __builtin_return_address(0)) ? (errno = ENOMEM, (type)NULL)   \
                                                             : keep(__real_##name arguments); \
    }

FAILS_MEMORY(void *, malloc, (size_t bytes), (bytes))
FAILS_MEMORY(void *, calloc, (size_t count, size_t bytes), (count, bytes))
FAILS_MEMORY(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
FAILS_MEMORY(char *, strdup, (const char *text), (text))
FAILS_MEMORY(char *, strndup, (const char *text, size_t bytes), (text, bytes))

void *__wrap_realloc(void *data, size_t bytes);
void *__wrap_realloc(void *data, size_t bytes)
{
    if (fails_for("realloc", __builtin_return_address(0))) return errno = ENOMEM, NULL;
    forget(data);
    return keep(__real_realloc(data, bytes));
}

void *__wrap_reallocarray(void *data, size_t count, size_t bytes);
void *__wrap_reallocarray(void *data, size_t count, size_t bytes)
{
    if (fails_for("reallocarray", __builtin_return_address(0))) return errno = ENOMEM, NULL;
    forget(data);
    return keep(__real_reallocarray(data, count, bytes));
}

void __wrap_free(void *data);
void __wrap_free(void *data)
{
    forget(data);
    __real_free(data);
}

/* ---- threads and peers ---- */

FAILS(int, pthread_create, EAGAIN,
      (pthread_t * thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context),
      (thread, attributes, body, context))
/* Of a rank that is alone: among several one would go on with a group in which the others have stopped. */
#define FAILS_GROUP(name, parameters, arguments)                               \
    pd_status __real_##name parameters;                                        \
    pd_status __wrap_##name parameters;                                        \
    pd_status __wrap_##name parameters                                         \
    {                                                                          \
        if (group->size == 1 && fails_for(#name, __builtin_return_address(0))) \
            PD_FAIL(err, PD_PEER_LOST, "a peer is gone");                      \
        in_group = group->size > 1;                                            \
        const pd_status st = __real_##name arguments;                          \
        in_group = false;                                                      \
        return st;                                                             \
    }
FAILS_GROUP(pd_group_barrier, (struct pd_group * group, struct pd_error *err), (group, err))
FAILS_GROUP(pd_group_gather,
            (struct pd_group * group, uint32_t root, const void *send, uint64_t bytes, void *recv, struct pd_error *err),
            (group, root, send, bytes, recv, err))
FAILS_GROUP(pd_group_broadcast, (struct pd_group * group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err),
            (group, root, data, bytes, err))
FAILS_GROUP(pd_group_exchange,
            (struct pd_group * group, const struct pd_group_piece *sends, uint32_t send_count,
             const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err),
            (group, sends, send_count, recvs, recv_count, err))
FAILS_GROUP(pd_group_agree, (struct pd_group * group, pd_status mine, struct pd_error *err), (group, mine, err))

/* ---- the system, under the real disk ---- */

#define FAILS_ERRNO(type, name, failure, number, parameters, arguments)                                             \
    type __real_##name parameters;                                                                                  \
    type __wrap_##name parameters;                                                                                  \
    type __wrap_##name parameters                                                                                   \
    {                                                                                                               \
        return fails_for(#name, __builtin_return_address(0)) ? (errno = number, failure) : __real_##name arguments; \
    }
/* Once by a signal, where such calls are made again. */
#define INTERRUPTED_OR(number) (persists ? (number) : EINTR)
FAILS_ERRNO(int, open64, -1, INTERRUPTED_OR(EMFILE), (const char *path, int flags, mode_t bits), (path, flags, bits))
FAILS_ERRNO(int, fcntl64, -1, EIO, (int fd, int command, long value), (fd, command, value))
FAILS_ERRNO(int, fstat64, -1, EIO, (int fd, void *st), (fd, st))
FAILS_ERRNO(int, stat64, -1, EIO, (const char *path, void *st), (path, st))
FAILS_ERRNO(int, statfs64, -1, INTERRUPTED_OR(EIO), (const char *path, void *fs), (path, fs))
FAILS_ERRNO(ssize_t, pread64, -1, INTERRUPTED_OR(EIO), (int fd, void *data, size_t bytes, long at), (fd, data, bytes, at))
FAILS_ERRNO(ssize_t, pwrite64, -1, INTERRUPTED_OR(ENOSPC), (int fd, const void *data, size_t bytes, long at),
            (fd, data, bytes, at))
FAILS_ERRNO(ssize_t, writev, -1, ENOSPC, (int fd, const void *parts, int count), (fd, parts, count))
FAILS_ERRNO(int, fallocate64, -1, INTERRUPTED_OR(ENOSPC), (int fd, int how, long at, long bytes), (fd, how, at, bytes))
FAILS_ERRNO(int, ftruncate64, -1, INTERRUPTED_OR(EIO), (int fd, long bytes), (fd, bytes))
FAILS_ERRNO(int, fdatasync, -1, EIO, (int fd), (fd))
FAILS_ERRNO(int, fsync, -1, EIO, (int fd), (fd))
FAILS_ERRNO(int, flock, -1, INTERRUPTED_OR(ENOLCK), (int fd, int how), (fd, how))
FAILS_ERRNO(int, rename, -1, EIO, (const char *from, const char *to), (from, to))
FAILS_ERRNO(int, link, -1, EMLINK, (const char *from, const char *to), (from, to))
FAILS_ERRNO(int, symlink, -1, EIO, (const char *target, const char *path), (target, path))
FAILS_ERRNO(ssize_t, readlink, -1, EIO, (const char *path, char *target, size_t bytes), (path, target, bytes))
FAILS_ERRNO(int, unlink, -1, EIO, (const char *path), (path))
FAILS_ERRNO(int, mkdir, -1, EIO, (const char *path, mode_t bits), (path, bits))
FAILS_ERRNO(int, rmdir, -1, EIO, (const char *path), (path))
FAILS_ERRNO(void *, opendir, NULL, EMFILE, (const char *path), (path))
FAILS_ERRNO(void *, readdir64, NULL, EIO, (void *directory), (directory))
FAILS_ERRNO(void *, fopen64, NULL, EMFILE, (const char *path, const char *how), (path, how))
FAILS_ERRNO(void *, open_memstream, NULL, ENOMEM, (char **text, size_t *bytes), (text, bytes))
FAILS_ERRNO(int, fflush, -1, ENOSPC, (void *file), (file))
FAILS_AFTER(int, fclose, (errno = ENOSPC, -1), (void *file), (file))
FAILS_ERRNO(void *, fdopen, NULL, ENOMEM, (int fd, const char *how), (fd, how))
FAILS_ERRNO(void *, mmap64, (void *)-1, ENOMEM, (void *at, size_t bytes, int may, int flags, int fd, long offset),
            (at, bytes, may, flags, fd, offset))
FAILS(int, io_uring_queue_init, -ENOMEM, (unsigned depth, void *ring, unsigned flags), (depth, ring, flags))
FAILS(int, io_uring_register_buffers, -ENOMEM, (void *ring, const void *parts, unsigned count), (ring, parts, count))
/* One that is final leaves transfers with the kernel, which ends the process (ckpt/io/transfer_ring.h). */
FAILS(int, io_uring_submit, -INTERRUPTED_OR(EAGAIN), (void *ring), (ring))
FAILS(int, io_uring_submit_and_wait, -INTERRUPTED_OR(EAGAIN), (void *ring, unsigned count), (ring, count))

FAILS_AFTER(int, close, (errno = EIO, -1), (int fd), (fd))

/* ---- zstd ---- */

FAILS(void *, ZSTD_createCCtx, NULL, (void), ())
FAILS(void *, ZSTD_createDCtx, NULL, (void), ())
FAILS(size_t, ZSTD_compressStream2, (size_t)-64 /* ZSTD_error_memory_allocation */,
      (void *zstd, void *out, void *in, int how), (zstd, out, in, how))

/* ---- HDF5 ---- */

FAILS(hid_t, H5Pcreate, -1, (hid_t list), (list))
FAILS(herr_t, H5Pset_driver, -1, (hid_t list, hid_t driver, const void *info), (list, driver, info))
FAILS(herr_t, H5Pset_libver_bounds, -1, (hid_t list, H5F_libver_t low, H5F_libver_t high), (list, low, high))
FAILS(herr_t, H5Pset_obj_track_times, -1, (hid_t list, hbool_t tracks), (list, tracks))
FAILS(herr_t, H5Pset_file_space_page_size, -1, (hid_t list, hsize_t bytes), (list, bytes))
FAILS(herr_t, H5Pset_file_space_strategy, -1,
      (hid_t list, H5F_fspace_strategy_t strategy, hbool_t persist, hsize_t threshold), (list, strategy, persist, threshold))
FAILS(herr_t, H5Pset_layout, -1, (hid_t list, H5D_layout_t layout), (list, layout))
FAILS(herr_t, H5Pset_alloc_time, -1, (hid_t list, H5D_alloc_time_t time), (list, time))
FAILS(herr_t, H5Pset_fill_time, -1, (hid_t list, H5D_fill_time_t time), (list, time))
FAILS(herr_t, H5Pset_fill_value, -1, (hid_t list, hid_t type, const void *value), (list, type, value))
FAILS(herr_t, H5Pset_create_intermediate_group, -1, (hid_t list, unsigned makes), (list, makes))
FAILS(herr_t, H5Pset_chunk, -1, (hid_t list, int ndim, const hsize_t dims[]), (list, ndim, dims))
FAILS(herr_t, H5Pset_shuffle, -1, (hid_t list), (list))
FAILS(herr_t, H5Pset_filter, -1, (hid_t list, H5Z_filter_t filter, unsigned flags, size_t count, const unsigned values[]),
      (list, filter, flags, count, values))
FAILS(herr_t, H5Pset_virtual, -1, (hid_t list, hid_t space, const char *file, const char *dataset, hid_t source),
      (list, space, file, dataset, source))
FAILS(hid_t, H5Tcopy, -1, (hid_t type), (type))
FAILS(hid_t, H5Tcreate, -1, (H5T_class_t class, size_t bytes), (class, bytes))
FAILS(herr_t, H5Tinsert, -1, (hid_t type, const char *name, size_t offset, hid_t member), (type, name, offset, member))
FAILS(herr_t, H5Tset_fields, -1, (hid_t type, size_t s, size_t epos, size_t esize, size_t mpos, size_t msize),
      (type, s, epos, esize, mpos, msize))
FAILS(herr_t, H5Tset_precision, -1, (hid_t type, size_t bits), (type, bits))
FAILS(herr_t, H5Tset_size, -1, (hid_t type, size_t bytes), (type, bytes))
FAILS(herr_t, H5Tset_ebias, -1, (hid_t type, size_t bias), (type, bias))
FAILS(herr_t, H5Tset_strpad, -1, (hid_t type, H5T_str_t pad), (type, pad))
FAILS(hid_t, H5Screate, -1, (H5S_class_t class), (class))
FAILS(hid_t, H5Screate_simple, -1, (int ndim, const hsize_t dims[], const hsize_t most[]), (ndim, dims, most))
FAILS(herr_t, H5Sselect_hyperslab, -1,
      (hid_t space, H5S_seloper_t op, const hsize_t start[], const hsize_t stride[], const hsize_t count[],
       const hsize_t block[]),
      (space, op, start, stride, count, block))
FAILS(herr_t, H5Oget_info2, -1, (hid_t object, void *info, unsigned fields), (object, info, fields))
FAILS(herr_t, H5Sselect_all, -1, (hid_t space), (space))
FAILS(hid_t, H5Fcreate, -1, (const char *name, unsigned flags, hid_t creation, hid_t access),
      (name, flags, creation, access))
FAILS_AFTER(herr_t, H5Fclose, -1, (hid_t file), (file))
FAILS(hid_t, H5Dcreate2, -1,
      (hid_t at, const char *name, hid_t type, hid_t space, hid_t links, hid_t creation, hid_t access),
      (at, name, type, space, links, creation, access))
FAILS(haddr_t, H5Dget_offset, HADDR_UNDEF, (hid_t dataset), (dataset))
FAILS(herr_t, H5Dwrite_chunk, -1,
      (hid_t dataset, hid_t list, uint32_t filters, const hsize_t *offset, size_t bytes, const void *data),
      (dataset, list, filters, offset, bytes, data))
FAILS_AFTER(herr_t, H5Dclose, -1, (hid_t dataset), (dataset))
FAILS(hid_t, H5Acreate_by_name, -1,
      (hid_t at, const char *object, const char *name, hid_t type, hid_t space, hid_t creation, hid_t access, hid_t links),
      (at, object, name, type, space, creation, access, links))
FAILS(herr_t, H5Awrite, -1, (hid_t attribute, hid_t type, const void *data), (attribute, type, data))
FAILS_AFTER(herr_t, H5Aclose, -1, (hid_t attribute), (attribute))
