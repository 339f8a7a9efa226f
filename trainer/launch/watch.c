#include "trainer/launch/watch.h"

#include "ckpt/base/parse.h"
#include "ckpt/base/process.h"
#include "trainer/run/launched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX
#define BUCKETS 64u
#define BUSY_FACTOR 10u
#define BUSY_SHARE 0.05 /* of a core: it computes or would, and waits for nothing else */

struct rank {
    int process; /* 0: unknown */
    const struct pd_heartbeat *heartbeat, *mapped;
    uint32_t mapped_count; /* of the first rank of a process */
    double busy_seconds;   /* at cpu_ns, and so is storage_done */
    uint64_t storage_done;
    struct pd_remote_heartbeat *heard; /* of another host, owned; NULL: never */
    uint64_t heard_ns, period_ns;
};

struct pd_launch_watch {
    struct rank *ranks;
    uint32_t count;
    uint64_t floor_ns, open_ns, longest_ns;
    uint64_t done, moved_ns;      /* of all ranks; when it last grew, or a hang was logged */
    uint64_t done_ns, stopped_ns; /* when it grew; since when a rank has been stopped before the second step; 0: none is */
    bool is_cpu_known;            /* since cpu_ns */
    bool counts;                  /* the second step has begun */
    uint64_t cpu_ns, now_ns;      /* now_ns: of the look */
    uint64_t gaps[BUCKETS], gap_count; /* by the power of two of their nanoseconds */
};

pd_status pd_launch_watch_new(uint32_t ranks, double floor_seconds, double open_seconds, struct pd_launch_watch **ret_watch,
                              struct pd_error *err)
{
    struct pd_launch_watch *w = calloc(1, sizeof *w);
    struct rank *all = calloc(ranks, sizeof *all);
    if (!w || !all) {
        free(w);
        free(all);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a watch over %u ranks", ranks);
    }
    *w = (struct pd_launch_watch){.ranks = all,
                                  .count = ranks,
                                  .floor_ns = (uint64_t)(floor_seconds * 1e9),
                                  .open_ns = (uint64_t)(open_seconds * 1e9)};
    *ret_watch = w;
    return PD_OK;
}

void pd_launch_watch_add(struct pd_launch_watch *w, uint32_t first, uint32_t count, int process,
                         const struct pd_heartbeat *heartbeats)
{
    for (uint32_t i = 0; i < count && first + i < w->count; i++) {
        w->ranks[first + i].process = process;
        w->ranks[first + i].heartbeat = heartbeats ? &heartbeats[i] : NULL;
    }
    w->ranks[first].mapped = heartbeats;
    w->ranks[first].mapped_count = count;
}

void pd_launch_watch_hear(struct pd_launch_watch *w, uint32_t rank, const struct pd_remote_heartbeat *beat,
                          uint64_t period_ns, uint64_t now_ns)
{
    struct rank *r = &w->ranks[rank];
    if (!r->heard && !(r->heard = aligned_alloc(_Alignof(struct pd_remote_heartbeat), sizeof *r->heard))) return;
    if (r->heartbeat && atomic_load(&r->heard->heartbeat.beats) == beat->heartbeat.beats) return;
    memcpy((void *)r->heard, (const void *)beat, sizeof *beat);
    r->heartbeat = &r->heard->heartbeat;
    r->heard_ns = now_ns;
    r->period_ns = period_ns;
}

void pd_launch_watch_free(struct pd_launch_watch *w)
{
    if (!w) return;
    for (uint32_t r = 0; r < w->count; r++) {
        pd_heartbeat_unmap(w->ranks[r].mapped, w->ranks[r].mapped_count);
        free(w->ranks[r].heard);
    }
    free(w->ranks);
    free(w);
}

#define GET(PULSE, MEMBER) atomic_load_explicit(&(PULSE)->MEMBER, memory_order_relaxed)

static uint64_t silence_ns(const struct pd_launch_watch *w, const struct rank *r)
{
    return r->heard && w->now_ns > r->heard_ns ? w->now_ns - r->heard_ns : 0;
}

/* Its current heartbeat; NULL: unknown, or silent for too long. */
static const struct pd_heartbeat *fresh(const struct pd_launch_watch *w, const struct rank *r)
{
    return silence_ns(w, r) < 3 * r->period_ns || !r->heard ? r->heartbeat : NULL;
}

/* By the kernel on this host, or by a relay's report. */
static bool is_stopped(const struct pd_launch_watch *w, const struct rank *r)
{
    return r->process ? pd_process_is_stopped(r->process) : r->heard && fresh(w, r) && r->heard->is_stopped;
}

static double busy_seconds(const struct rank *r)
{
    return r->process ? pd_process_busy_seconds(r->process) : r->heard ? (double)r->heard->busy_ms * 1e-3 : 0;
}

static bool is_process_known(const struct rank *r)
{
    return r->process || (r->heard && r->heard->process);
}

/* A heartbeat is due, and could arrive. */
static bool is_any_late(const struct pd_launch_watch *w)
{
    for (uint32_t r = 0; r < w->count; r++) {
        const uint64_t silence = silence_ns(w, &w->ranks[r]), period = w->ranks[r].period_ns;
        if (2 * silence > 3 * period && silence < 3 * period) return true;
    }
    return false;
}

/* ---- process state from the kernel ---- */

static bool rank_of(int process, uint32_t *ret_rank)
{
    char path[64], *line = NULL;
    size_t capacity = 0;
    uint64_t rank = UINT64_MAX;
    snprintf(path, sizeof path, "/proc/%d/environ", process);
    FILE *environment = fopen(path, "re");
    while (environment && rank > UINT32_MAX && getdelim(&line, &capacity, '\0', environment) > 0)
        for (size_t i = 0; i < PD_LAUNCHED_RANK_VARIABLES; i++) {
            const size_t bytes = strlen(pd_launched_rank_variables[i]);
            if (!strncmp(line, pd_launched_rank_variables[i], bytes) && line[bytes] == '=')
                (void)pd_parse_u64(line + bytes + 1, &rank);
        }
    free(line);
    if (environment) (void)fclose(environment);
    *ret_rank = (uint32_t)rank;
    return rank <= UINT32_MAX;
}

bool pd_launch_find_stopped(int starter, bool (*is_wanted)(const void *context, uint32_t rank), const void *context,
                            int *ret_process, uint32_t *ret_rank)
{
    char name[64], children[16384], *rest = children;
    uint64_t process;
    snprintf(name, sizeof name, "task/%d/children", starter);
    if (!pd_process_read(starter, name, children, sizeof children)) return false;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        if (!pd_parse_u64(word, &process) || !pd_process_is_stopped((int)process)) continue;
        *ret_process = (int)process;
        if (rank_of((int)process, ret_rank) && is_wanted(context, *ret_rank)) return true;
    }
    return false;
}

/* ---- which rank ---- */

static uint32_t find_stopped(const struct pd_launch_watch *w, bool *ret_all)
{
    uint32_t found = NO_RANK, stopped = 0, known = 0;
    for (uint32_t r = 0; r < w->count; r++) {
        if (!is_process_known(&w->ranks[r])) continue;
        known++;
        if (!is_stopped(w, &w->ranks[r])) continue;
        stopped++;
        if (found == NO_RANK) found = r;
    }
    *ret_all = stopped && stopped == known && known == w->count;
    return found;
}

static const struct pd_heartbeat_flights *flights_of(const struct pd_heartbeat *p, uint64_t communicator)
{
    for (uint32_t i = 0; p && i < PD_HEARTBEAT_COMMUNICATORS; i++)
        if (GET(&p->flights[i], communicator) == communicator) return &p->flights[i];
    return NULL;
}

static bool is_in_flight(const struct pd_heartbeat_flights *p)
{
    return GET(p, communicator) && GET(p, reached) > GET(p, ended);
}

static bool is_device_waiting(const struct pd_heartbeat *p)
{
    for (uint32_t i = 0; i < PD_HEARTBEAT_COMMUNICATORS; i++)
        if (is_in_flight(&p->flights[i])) return true;
    return false;
}

/* The operation in which the device of `rank` waits for a rank whose device has not come to it: for `*peer`, or if that is
 * NO_RANK for the first such, which it sets. NULL: it waits for none. */
static const struct pd_heartbeat_flights *find_late(const struct pd_launch_watch *w, uint32_t rank, uint32_t *peer)
{
    const struct pd_heartbeat *p = fresh(w, &w->ranks[rank]);
    const uint32_t first = *peer == NO_RANK ? 0 : *peer, end = *peer == NO_RANK ? w->count : *peer + 1;
    for (uint32_t i = 0; p && i < PD_HEARTBEAT_COMMUNICATORS; i++) {
        const struct pd_heartbeat_flights *in = &p->flights[i], *other;
        for (uint32_t r = is_in_flight(in) ? first : end; r < end; r++)
            if ((other = flights_of(w->ranks[r].heartbeat, GET(in, communicator))) &&
                GET(other, reached) < GET(in, reached)) {
                *peer = r;
                return in;
            }
    }
    return NULL;
}

/* The rank that `rank` waits for, on the host or on its device, plus 1; 0: none. */
static uint32_t next_of(const struct pd_launch_watch *w, uint32_t rank)
{
    const struct pd_heartbeat *p = fresh(w, &w->ranks[rank]);
    uint32_t late = NO_RANK;
    if (p && GET(p, waits_for)) return GET(p, waits_for);
    return find_late(w, rank, &late) ? late + 1 : 0;
}

/* Follows the chain from a rank whose device waits, else from the first waiting rank; a cycle ends where it began. */
static uint32_t follow(const struct pd_launch_watch *w)
{
    uint32_t at = 0, late = NO_RANK;
    while (at < w->count && !find_late(w, at, &late))
        at++;
    for (uint32_t r = 0; at == w->count && r < w->count; r++)
        if (fresh(w, &w->ranks[r]) && !GET(w->ranks[r].heartbeat, waits_for)) return r;
    at %= w->count;
    for (uint32_t hops = 0; hops < w->count; hops++) {
        const uint32_t next = next_of(w, at);
        if (!next || next > w->count) return at;
        at = next - 1;
    }
    return at;
}

static bool is_held(const struct pd_launch_watch *w)
{
    for (uint32_t r = 0; r < w->count; r++)
        if (w->ranks[r].heartbeat && GET(w->ranks[r].heartbeat, is_held)) return true;
    return false;
}

static void text_of(const _Atomic uint64_t *stored, uint32_t count, char *ret_text)
{
    uint64_t word;
    for (uint32_t i = 0; i < count; i++) {
        word = atomic_load_explicit(&stored[i], memory_order_relaxed);
        memcpy(ret_text + sizeof word * i, &word, sizeof word);
    }
    ret_text[sizeof word * count] = '\0';
}

static void describe_place(const struct pd_heartbeat *p, char *ret_text, size_t bytes)
{
    static const char *const places[PD_HEARTBEAT_PLACES] = {
        "opening",   "computing", "reading data", "waiting for a save", "updating its files", "waiting for storage",
        "exchanging"};
    char operation[8 * PD_HEARTBEAT_WORDS + 1], storage[8 * PD_HEARTBEAT_STORAGE_WORDS + 1];
    const uint32_t place = GET(p, place), block = GET(p, block);
    text_of(p->operation, PD_HEARTBEAT_WORDS, operation);
    text_of(p->storage, PD_HEARTBEAT_STORAGE_WORDS, storage);
    if (!GET(p, step)) {
        snprintf(ret_text, bytes, "%s%s%s%s", places[PD_HEARTBEAT_OPENING], GET(p, exchanges) ? ", in an exchange (" : "",
                 GET(p, exchanges) ? operation : "",
                 GET(p, exchanges)       ? ")"
                 : GET(p, storage_waits) ? ", waiting for storage"
                                         : "");
        return;
    }
    int used =
        snprintf(ret_text, bytes, "step %llu, micro-batch %u, ", (unsigned long long)GET(p, step), GET(p, micro_batch));
    used += block ? snprintf(ret_text + used, bytes - (size_t)used, "block %u, ", block - 1)
                  : snprintf(ret_text + used, bytes - (size_t)used, "embedding, ");
    if (GET(p, exchanges))
        snprintf(ret_text + used, bytes - (size_t)used, "in exchange %llu (%s)", (unsigned long long)GET(p, exchange),
                 operation);
    else
        snprintf(ret_text + used, bytes - (size_t)used, "%s%s%s", places[place < PD_HEARTBEAT_PLACES ? place : 0],
                 place == PD_HEARTBEAT_SAVING && storage[0] ? " into tier " : "",
                 place == PD_HEARTBEAT_SAVING ? storage : "");
}

/* Where the device of the named rank is missing, or in what it waits although nobody is missing; "" if it is in nothing. */
static void describe_flight(const struct pd_launch_watch *w, uint32_t rank, char *ret_text, size_t bytes)
{
    const struct pd_heartbeat *p = w->ranks[rank].heartbeat;
    const struct pd_heartbeat_flights *in = NULL;
    char operation[8 * PD_HEARTBEAT_WORDS + 1];
    uint32_t by = 0, late = rank;
    while (by < w->count && !(in = find_late(w, by, &late)))
        by++;
    for (uint32_t i = 0; !in && p && i < PD_HEARTBEAT_COMMUNICATORS; i++)
        if (is_in_flight(&p->flights[i])) in = &p->flights[i];
    ret_text[0] = '\0';
    if (!in) return;
    text_of(in->operation, PD_HEARTBEAT_WORDS, operation);
    int used = snprintf(ret_text, bytes, "; its GPU %s operation %llu (%s) of ranks",
                        by < w->count ? "has not come to" : "is in", (unsigned long long)GET(in, reached), operation);
    for (uint32_t r = 0, members = 0; r < w->count && members < 9; r++)
        if (flights_of(w->ranks[r].heartbeat, GET(in, communicator)))
            used += snprintf(ret_text + used, bytes - (size_t)used, members++ == 8 ? " ..." : " %u", r);
    if (by < w->count) snprintf(ret_text + used, bytes - (size_t)used, ", in which the GPU of rank %u waits", by);
}

/* A rank in one of these waits for a file system, and so would a restart. While a rank opens, all its threads count. */
static bool is_storage(const struct pd_heartbeat *p)
{
    const uint32_t place = GET(p, place);
    if (!GET(p, steps)) return GET(p, storage_waits) > 0;
    return place == PD_HEARTBEAT_READING || place == PD_HEARTBEAT_SAVING || place == PD_HEARTBEAT_UPDATING_FILES ||
           place == PD_HEARTBEAT_STORAGE;
}

/* Another thread of the rank waits for storage, perhaps holding a lock that training needs. Since cpu_ns its calls took more
 * than a second each: faster storage delays no one. */
static bool is_behind_storage(const struct pd_launch_watch *w, uint32_t rank)
{
    const struct pd_heartbeat *p = fresh(w, &w->ranks[rank]);
    if (!p || !GET(p, storage_waits)) return false;
    return (double)(GET(p, storage_done) - w->ranks[rank].storage_done) <= (double)(w->now_ns - w->cpu_ns) * 1e-9;
}

/* A rank that waits for its storage holds up all others, even if they seem to wait for each other. */
static uint32_t find_in_storage(const struct pd_launch_watch *w)
{
    bool all_wait = true; /* for one another */
    for (uint32_t r = 0; r < w->count; r++) {
        const struct pd_heartbeat *p = fresh(w, &w->ranks[r]);
        if (p && is_storage(p)) return r;
        all_wait = all_wait && next_of(w, r);
    }
    for (uint32_t r = 0; r < w->count; r++)
        if (is_behind_storage(w, r) && (all_wait || !next_of(w, r))) return r;
    return NO_RANK;
}

static void watch_describe(const struct pd_launch_watch *w, uint32_t rank, double seconds, bool stopped, bool is_in_storage,
                           struct pd_launch_hang *ret)
{
    char place[320] = "", kernel[240] = "", flight[256] = "", process[48 + PD_MESSAGE_HOST_BYTES] = "";
    const struct rank *r = &w->ranks[rank];
    snprintf(place, sizeof place, "%s", r->process ? "its beginning" : "on another host");
    *ret = (struct pd_launch_hang){.rank = rank, .is_known = r->process > 0, .is_storage = is_in_storage};
    const struct pd_heartbeat *said = fresh(w, r);
    if (r->heard && !said)
        snprintf(place, sizeof place, "on another host, and has said nothing for %.0f s", (double)silence_ns(w, r) * 1e-9);
    if (said) {
        describe_place(r->heartbeat, place, sizeof place);
        if (is_in_storage && !is_storage(said))
            strncat(place, ", while another thread of it waits for storage", sizeof place - strlen(place) - 1);
    }
    if (r->process) {
        if (!stopped)
            pd_process_kernel_place(r->process, kernel, sizeof kernel); /* for a stopped one: where signals are handled */
        snprintf(process, sizeof process, " (process %d)", r->process);
    } else if (is_process_known(r)) {
        if (said && !stopped) snprintf(kernel, sizeof kernel, "%s", r->heard->kernel);
        snprintf(process, sizeof process, " (process %d of host %s)", r->heard->process, r->heard->host);
    }
    describe_flight(w, rank, flight, sizeof flight);
    snprintf(ret->text, sizeof ret->text, "rank %u%s holds up the run: nothing was completed for %.0f s; it is %s%s%s%s%s",
             rank, process, seconds,
             stopped              ? "stopped (SIGSTOP), at "
             : said || r->process ? "at "
                                  : "",
             place, flight, kernel[0] ? "; in the kernel at " : "", kernel);
}

/* ---- when ---- */

static uint64_t percentile_99(const struct pd_launch_watch *w)
{
    uint64_t above = w->gap_count / 100;
    for (uint32_t b = BUCKETS; b-- > 0;) {
        if (w->gaps[b] > above) return UINT64_C(2) << b;
        above -= w->gaps[b];
    }
    return 0;
}

static uint64_t limit_ns(const struct pd_launch_watch *w)
{
    const uint64_t usual = 5 * percentile_99(w), longest = 2 * w->longest_ns;
    const uint64_t most = usual > longest ? usual : longest;
    const uint64_t floor = w->counts ? w->floor_ns : w->open_ns;
    return most > floor ? most : floor;
}

/* Whether there was progress since the last look. Times before the second step belong to the start and are not counted. */
static bool has_moved(struct pd_launch_watch *w, uint64_t now_ns)
{
    uint64_t done = 0;
    uint32_t steps = 0;
    for (uint32_t r = 0; r < w->count; r++) {
        if (!w->ranks[r].heartbeat) continue;
        done += GET(w->ranks[r].heartbeat, done);
        if (GET(w->ranks[r].heartbeat, steps) > steps) steps = GET(w->ranks[r].heartbeat, steps);
    }
    const bool counts = w->counts = steps > 1;
    if (done == w->done && (counts || w->moved_ns)) return false;
    const uint64_t gap = now_ns - w->moved_ns;
    if (w->done && counts) {
        w->gaps[63 - __builtin_clzll(gap | 1)]++;
        w->gap_count++;
        if (gap > w->longest_ns) w->longest_ns = gap;
    }
    w->done = done;
    return true;
}

/* Finds a stopped process early, even before the second step. */
static bool finds_stopped_at_start(struct pd_launch_watch *w, struct pd_launch_hang *ret_hang)
{
    bool are_all;
    const uint32_t rank = find_stopped(w, &are_all);
    if (rank == NO_RANK || are_all || is_held(w)) {
        w->stopped_ns = 0;
        return false;
    }
    if (!w->stopped_ns) w->stopped_ns = w->now_ns;
    const uint64_t waited_ns = w->now_ns - w->stopped_ns;
    if (waited_ns < w->floor_ns) return false;
    w->stopped_ns = 0;
    watch_describe(w, rank, (double)waited_ns * 1e-9, true, false, ret_hang);
    return true;
}

bool pd_launch_watch_look(struct pd_launch_watch *w, uint64_t now_ns, struct pd_launch_hang *ret_hang)
{
    bool are_all;
    w->now_ns = now_ns;
    if (has_moved(w, now_ns)) {
        w->moved_ns = w->done_ns = now_ns;
        w->is_cpu_known = false;
        return !w->counts && finds_stopped_at_start(w, ret_hang);
    }
    if (!w->counts && finds_stopped_at_start(w, ret_hang)) return true;
    if (!w->counts && !w->open_ns) return false;
    const uint64_t waited_ns = now_ns - w->moved_ns, limit = limit_ns(w);
    if (!w->is_cpu_known && waited_ns > limit / 2) { /* not at every completion, because reading it is slow */
        w->is_cpu_known = true;
        w->cpu_ns = now_ns;
        for (struct rank *r = w->ranks; r < w->ranks + w->count; r++) {
            r->busy_seconds = busy_seconds(r);
            if (r->heartbeat) r->storage_done = GET(r->heartbeat, storage_done);
        }
    }
    if (waited_ns < limit || is_any_late(w)) return false;
    const uint32_t stopped = find_stopped(w, &are_all);
    if (are_all || is_held(w)) {
        w->moved_ns = now_ns;
        return false;
    }
    const uint32_t storage = stopped != NO_RANK ? NO_RANK : find_in_storage(w);
    const uint32_t rank = stopped != NO_RANK ? stopped : storage != NO_RANK ? storage : follow(w);
    const struct rank *r = &w->ranks[rank];
    const double used = busy_seconds(r) - r->busy_seconds;
    /* A host that waits for its GPU spins. */
    const bool is_busy = r->heartbeat && !GET(r->heartbeat, exchanges) && !is_device_waiting(r->heartbeat) &&
                         used > BUSY_SHARE * (double)(now_ns - w->cpu_ns) * 1e-9;
    if (stopped == NO_RANK && storage == NO_RANK && is_busy && waited_ns < BUSY_FACTOR * limit) return false;
    watch_describe(w, rank, (double)(now_ns - w->done_ns) * 1e-9, stopped != NO_RANK, storage != NO_RANK, ret_hang);
    w->moved_ns = now_ns;
    w->is_cpu_known = false;
    return true;
}

const struct pd_heartbeat *pd_launch_watch_heartbeat(const struct pd_launch_watch *w, uint32_t rank)
{
    return rank < w->count ? w->ranks[rank].heartbeat : NULL;
}
