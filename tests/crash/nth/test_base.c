/* Every call of what all modules stand on fails once, and from then on: JSON, traces, threads, memory. */
#include "ckpt/base/arena.h"
#include "ckpt/base/json.h"
#include "ckpt/base/memory_limit.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/base/trace.h"
#include "tests/helpers/failing_sweep.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct work {
    char path[64];
};

static void *set_up(const void *context)
{
    (void)context;
    struct work *w = calloc(1, sizeof *w);
    snprintf(w->path, sizeof w->path, "/tmp/perdure-nth-%d", (int)getpid());
    return w;
}

static void tear_down(void *state)
{
    struct work *w = state;
    unlink(w->path);
    free(w);
}

/* ---- JSON ---- */

static pd_status read_back(const char *text, size_t bytes, struct pd_error *err)
{
    struct pd_json_document *document = NULL;
    const char *name;
    size_t length;
    uint64_t step = 0;
    PD_TRY(pd_json_parse("a text", text, bytes, &document, err));
    const struct pd_json_value *value = pd_json_member(pd_json_root(document), "step");
    const bool has_step = value && pd_json_is_u64(value, &step) && step == 7;
    pd_json_document_free(document);
    if (!has_step) PD_FAIL(err, PD_BUG, "step %lu", step);
    PD_TRY(pd_json_parse_member(text, bytes, "name", &document, &name, &length, err));
    const bool has_name = length == 6 && memcmp(name, "a name", 6) == 0;
    pd_json_document_free(document);
    if (!has_name) PD_FAIL(err, PD_BUG, "another name");
    return PD_OK;
}

static pd_status json(void *state, struct pd_error *err)
{
    (void)state;
    struct pd_json_writer writer;
    const char *text;
    size_t bytes;
    pd_json_writer_init(&writer, 2);
    pd_json_object_begin(&writer, NULL);
    pd_json_string(&writer, "name", "a name");
    pd_json_u64(&writer, "step", 7);
    pd_json_array_begin(&writer, "values");
    for (int i = 0; i < 400; i++) /* more than a block of memory */
        pd_json_double(&writer, NULL, i * 0.1);
    pd_json_array_end(&writer);
    pd_json_object_end(&writer);
    pd_status st = pd_json_writer_finish(&writer, &text, &bytes, err);
    if (!st) st = read_back(text, bytes, err);
    pd_json_writer_deinit(&writer);
    return st;
}

/* ---- a trace ---- */

static pd_status trace(void *state, struct pd_error *err)
{
    const struct work *w = state;
    PD_TRY(pd_trace_open(w->path, err));
    for (int i = 0; i < 3; i++)
        pd_trace_end(pd_trace_begin(), "test", "a span", 1);
    pd_trace_record_lane("a lane", 1, 2, "test", "a span of a lane", 2);
    return pd_trace_close(err);
}

/* ---- threads ---- */

static void add(void *context, uint64_t index)
{
    atomic_fetch_add((atomic_ullong *)context, index);
}

static pd_status threads(void *state, struct pd_error *err)
{
    (void)state;
    struct pd_thread_pool *pool = NULL;
    atomic_ullong sum = 0;
    PD_TRY(pd_thread_pool_new(3, &pool, err));
    pd_parallel(pool, 100, add, &sum);
    pd_thread_pool_free(pool);
    if (sum != 4950) PD_FAIL(err, PD_BUG, "the sum is %llu", sum);
    return PD_OK;
}

/* ---- memory ---- */

static pd_status memory(void *state, struct pd_error *err)
{
    (void)state;
    struct pd_memory_plan plan = {0};
    struct pd_memory_limit limit;
    struct pd_arena *arena = NULL;
    plan.bytes[0] = 100;
    plan.bytes[1] = 9 << 20;
    PD_TRY(pd_arena_new_dry(&arena, err));
    pd_arena_free(arena);
    PD_TRY(pd_arena_new(&plan, &arena, err));
    memset(pd_arena_take(arena, (enum pd_memory_category)0, 100), 1, 100);
    memset(pd_arena_take(arena, (enum pd_memory_category)1, 9 << 20), 1, 9 << 20);
    pd_arena_free(arena);
    if (pd_memory_limit_read(NULL, &limit) && limit.limit_bytes == 0) PD_FAIL(err, PD_BUG, "a machine without memory");
    return PD_OK;
}

static void sweep(const char *name, pd_status (*act)(void *state, struct pd_error *err))
{
    failing_sweep(&(struct failing_case){name, false, set_up, act, NULL, tear_down, NULL, ""});
}

/* What Jansson allocates does not fail here. */
Test(nth_base, json)
{
    sweep("JSON", json);
}

Test(nth_base, trace)
{
    sweep("a trace", trace);
}

Test(nth_base, threads)
{
    sweep("threads", threads);
}

Test(nth_base, memory)
{
    sweep("memory", memory);
}
