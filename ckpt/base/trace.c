/* One buffer a thread, filled by that thread alone. One lock guards the list of buffers, the file and the counts. */
#include "ckpt/base/trace.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/rank.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct event {
    uint64_t begin, end, value;
    const char *category, *name;
    bool is_async;
    int lane; /* 0: the thread's own */
};

struct lane {
    const char *name;
    int rank;
};

/* Its thread fills it without the lock and empties it under the lock. Closing the trace empties and frees all buffers; no
 * other thread ends spans then. */
struct buffer {
    struct buffer *next; /* under the lock */
    int rank, thread;
    uint32_t count;
    uint64_t emptied; /* time of the last emptying */
    struct event events[PD_TRACE_BUFFER_EVENTS];
};

atomic_bool pd_trace_is_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static FILE *file;
static char file_name[4096];
static struct buffer *buffers;
static uint64_t written, dropped, asyncs, opened_at;
static struct lane lanes[PD_TRACE_LANES];
static uint32_t lane_count;
static int failure; /* errno of the first write that failed */

static atomic_uint generation; /* incremented by open: a buffer of an earlier trace is gone */
static _Thread_local struct buffer *mine;
static _Thread_local unsigned my_generation;

uint64_t pd_trace_now(void)
{
    return pd_clock_monotonic_ns(NULL);
}

pd_status pd_trace_open(const char *path, struct pd_error *err)
{
    FILE *opened = fopen(path, "we");
    if (!opened) PD_FAIL_ERRNO(err, errno, "--trace %s: making the file; choose another place", path);
    pthread_mutex_lock(&lock);
    PD_CHECK(!file);
    file = opened;
    snprintf(file_name, sizeof file_name, "%s", path);
    opened_at = pd_trace_now();
    written = dropped = asyncs = lane_count = 0;
    failure = fputs("[\n", file) < 0 || fflush(file) ? errno : 0;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&generation, 1);
    atomic_store(&pd_trace_is_on, true);
    return PD_OK;
}

/* ---- with the lock ---- */

static void trace_put(const char *format, ...) PD_PRINTF(1, 2);
static void trace_put(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (vfprintf(file, format, arguments) < 0 && !failure) failure = errno;
    va_end(arguments);
}

static double microseconds(uint64_t ns)
{
    return (double)ns / 1e3;
}

static void put_event(const struct buffer *b, const struct event *e)
{
    const double begin = microseconds(e->begin);
    if (!e->is_async) {
        trace_put("{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":\"%s\","
                  "\"args\":{\"value\":%" PRIu64 "}},\n",
                  b->rank, e->lane ? e->lane : b->thread, begin, microseconds(e->end - e->begin), e->category, e->name,
                  e->value);
        return;
    }
    const uint64_t id = asyncs++;
    trace_put("{\"ph\":\"b\",\"id\":%" PRIu64
              ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"cat\":\"%s\",\"name\":\"%s\",\"args\":{\"value\":%" PRIu64 "}},\n",
              id, b->rank, b->thread, begin, e->category, e->name, e->value);
    trace_put("{\"ph\":\"e\",\"id\":%" PRIu64 ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"cat\":\"%s\",\"name\":\"%s\"},\n", id,
              b->rank, b->thread, microseconds(e->end), e->category, e->name);
}

static void empty(struct buffer *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        if (written == PD_TRACE_EVENTS_MAX || failure) {
            dropped++;
            continue;
        }
        put_event(b, &b->events[i]);
        written++;
    }
    b->count = 0;
}

/* Thread names here are letters, digits and dashes. */
static void put_names(int rank, int thread, const char *name)
{
    trace_put("{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}},\n", rank, thread,
              name);
    trace_put("{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}},\n", rank,
              thread, rank);
}

/* Lane numbers start above thread numbers, which end at 2^22. 0: too many lanes. */
static int lane_of(const char *name, int rank)
{
    enum { FIRST = 1 << 23 };
    uint32_t i = 0;
    while (i < lane_count && (lanes[i].rank != rank || strcmp(lanes[i].name, name) != 0))
        i++;
    if (i == PD_TRACE_LANES) return 0;
    if (i == lane_count) {
        lanes[lane_count++] = (struct lane){name, rank};
        if (file) put_names(rank, FIRST + (int)i, name);
    }
    return FIRST + (int)i;
}

/* ---- a span ---- */

static struct buffer *join(void)
{
    char name[16] = "thread";
    struct buffer *b = malloc(sizeof *b);
    if (!b) return NULL;
    const int rank = pd_rank_current();
    *b = (struct buffer){.rank = rank < 0 ? 0 : rank, .thread = (int)gettid(), .emptied = opened_at};
    (void)pthread_getname_np(pthread_self(), name, sizeof name);
    pthread_mutex_lock(&lock);
    b->next = buffers;
    buffers = b;
    if (file) put_names(b->rank, b->thread, name);
    pthread_mutex_unlock(&lock);
    return b;
}

static void record(const struct event *event)
{
    const unsigned now = atomic_load_explicit(&generation, memory_order_relaxed);
    if (my_generation != now) {
        mine = join();
        my_generation = now;
    }
    if (!mine) return;
    mine->events[mine->count++] = *event;
    const bool is_due = event->end > mine->emptied && event->end - mine->emptied >= PD_TRACE_WRITE_NS;
    if (!is_due && mine->count < PD_TRACE_BUFFER_EVENTS) return;
    pthread_mutex_lock(&lock);
    empty(mine);
    if (file && is_due && fflush(file) && !failure) failure = errno;
    pthread_mutex_unlock(&lock);
    mine->emptied = event->end;
}

void pd_trace_record(uint64_t begin, const char *category, const char *name, uint64_t value, bool is_async)
{
    if (!atomic_load_explicit(&pd_trace_is_on, memory_order_relaxed)) return;
    record(&(struct event){begin, pd_trace_now(), value, category, name, is_async, 0});
}

void pd_trace_record_lane(const char *lane, uint64_t begin, uint64_t end, const char *category, const char *name,
                          uint64_t value)
{
    if (!atomic_load_explicit(&pd_trace_is_on, memory_order_relaxed)) return;
    const int rank = pd_rank_current();
    pthread_mutex_lock(&lock);
    const int number = lane_of(lane, rank < 0 ? 0 : rank);
    pthread_mutex_unlock(&lock);
    record(&(struct event){begin, end, value, category, name, false, number});
}

pd_status pd_trace_close(struct pd_error *err)
{
    if (!atomic_exchange(&pd_trace_is_on, false)) return PD_OK;
    pthread_mutex_lock(&lock);
    while (buffers) {
        struct buffer *b = buffers;
        buffers = b->next;
        empty(b);
        free(b);
    }
    const int rank = pd_rank_current();
    trace_put("{\"ph\":\"M\",\"pid\":%d,\"name\":\"dropped_events\",\"args\":{\"value\":%" PRIu64 "}}\n]\n",
              rank < 0 ? 0 : rank, dropped);
    if (fclose(file) && !failure) failure = errno;
    file = NULL;
    const int number = failure;
    pthread_mutex_unlock(&lock);
    if (number) PD_FAIL_ERRNO(err, number, "--trace %s: writing the file", file_name);
    return PD_OK;
}
