#include "ckpt/base/trace.h"

#include "ckpt/base/json.h"
#include "ckpt/base/rank.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64];

static void open_trace(void)
{
    struct pd_error err;
    snprintf(path, sizeof path, "%s", "/tmp/perdure-trace-XXXXXX");
    close(mkstemp(path));
    cr_assert_eq(pd_trace_open(path, &err), PD_OK, "%s", err.message);
}

static char *text_of_file(void)
{
    struct stat st;
    FILE *f = fopen(path, "re");
    cr_assert(f && !stat(path, &st));
    char *text = calloc(1, (size_t)st.st_size + 1);
    cr_assert_eq(fread(text, 1, (size_t)st.st_size, f), (size_t)st.st_size);
    fclose(f);
    return text;
}

/* Closes the trace and gives its text; the caller frees it. */
static char *closed(void)
{
    struct pd_error err;
    cr_assert_eq(pd_trace_close(&err), PD_OK, "%s", err.message);
    char *text = text_of_file();
    unlink(path);
    return text;
}

static uint32_t times(const char *text, const char *what)
{
    uint32_t count = 0;
    while ((text = strstr(text, what))) {
        count++;
        text += strlen(what);
    }
    return count;
}

Test(trace, off_nothing_is_recorded)
{
    cr_assert_eq(pd_trace_begin(), 0);
    pd_trace_end(pd_trace_begin(), "a", "off", 1);
    open_trace();
    char *text = closed();
    cr_assert_null(strstr(text, "off"));
    free(text);
    cr_assert_eq(pd_trace_close(NULL), PD_OK, "closing what is closed");
}

/* A span that began before the trace has no beginning to show. */
Test(trace, a_span_that_began_before_is_left_out)
{
    const uint64_t before = pd_trace_begin();
    open_trace();
    pd_trace_end(before, "a", "early", 1);
    char *text = closed();
    cr_assert_null(strstr(text, "early"));
    free(text);
}

static void *other_thread(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "second");
    pd_trace_end(pd_trace_begin(), "test", "elsewhere", 3);
    return NULL;
}

Test(trace, threads_have_their_names_and_transfers_two_ends)
{
    pthread_t thread;
    open_trace();
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    const uint64_t outer = pd_trace_begin();
    pd_trace_end(pd_trace_begin(), "test", "inner", 7);
    pd_trace_end(outer, "test", "outer", 8);
    pd_trace_end_async(outer, "io", "read", 4096);
    char *text = closed();
    cr_assert(strstr(text, "\"second\"") && strstr(text, "\"elsewhere\""));
    cr_assert(strstr(text, "\"inner\"") && strstr(text, "\"value\":8"));
    cr_assert_eq(times(text, "\"ph\":\"b\""), 1);
    cr_assert_eq(times(text, "\"ph\":\"e\""), 1);
    struct pd_json_document *json = NULL;
    struct pd_error err;
    cr_assert_eq(pd_json_parse("trace", text, strlen(text), &json, &err), PD_OK, "%s", err.message);
    pd_json_document_free(json);
    free(text);
}

Test(trace, more_than_a_buffer_holds_is_written_on_the_way)
{
    const uint32_t count = 2 * PD_TRACE_BUFFER_EVENTS + 5;
    open_trace();
    for (uint32_t i = 0; i < count; i++)
        pd_trace_end(pd_trace_begin(), "test", "many", i);
    char *text = closed();
    cr_assert_eq(times(text, "\"many\""), count);
    free(text);
}

/* What is on the disk while the trace is open, as after a kill: an array that lacks its end alone. */
Test(trace, what_is_older_than_a_second_is_written_without_a_close)
{
    struct pd_json_document *json = NULL;
    struct pd_error err;
    open_trace();
    char *text = text_of_file();
    cr_assert_str_eq(text, "[\n");
    free(text);
    pd_trace_end(pd_trace_begin(), "test", "early", 1);
    const uint64_t later = pd_trace_now() + PD_TRACE_WRITE_NS;
    pd_trace_record_lane("lane", later, later + 1, "test", "late", 2);
    text = text_of_file();
    const size_t length = strlen(text);
    cr_assert(strstr(text, "\"early\"") && strstr(text, "\"late\""), "%s", text);
    cr_assert_str_eq(text + length - 2, ",\n");
    memcpy(text + length - 2, "]", 2);
    cr_assert_eq(pd_json_parse("trace", text, strlen(text), &json, &err), PD_OK, "%s", err.message);
    pd_json_document_free(json);
    free(text);
    free(closed());
}

Test(trace, the_count_of_what_is_missing_is_the_ranks)
{
    pd_rank_set_process(3);
    open_trace();
    char *text = closed();
    cr_assert_not_null(strstr(text, "\"pid\":3,\"name\":\"dropped_events\""), "%s", text);
    free(text);
}

Test(trace, a_second_trace_begins_empty)
{
    open_trace();
    pd_trace_end(pd_trace_begin(), "test", "first", 1);
    free(closed());
    open_trace();
    pd_trace_end(pd_trace_begin(), "test", "second", 1);
    char *text = closed();
    cr_assert_null(strstr(text, "first"));
    cr_assert_not_null(strstr(text, "second"));
    free(text);
}

Test(trace, a_place_that_cannot_be_written_is_named)
{
    struct pd_error err;
    cr_assert_neq(pd_trace_open("/nowhere/trace.json", &err), PD_OK);
    cr_assert_not_null(strstr(err.message, "/nowhere/trace.json"));
    cr_assert_eq(pd_trace_begin(), 0);
}

Test(trace, lanes_are_no_threads)
{
    char lane[2][16] = {"GPU compute", "GPU copies out"};
    open_trace();
    pd_trace_record_lane(lane[0], 5000, 9000, "gpu", "product", 1);
    pd_trace_record_lane(lane[1], 6000, 7000, "gpu", "state", 2);
    pd_trace_record_lane(lane[0], 9000, 9500, "gpu", "norm", 3);
    char *text = closed();
    cr_assert_eq(times(text, "\"name\":\"GPU compute\""), 1);
    cr_assert_eq(times(text, "\"name\":\"GPU copies out\""), 1);
    cr_assert_eq(times(text, "\"ph\":\"X\",\"pid\":0,\"tid\":8388608,"), 2, "%s", text);
    cr_assert(strstr(text, "\"tid\":8388609,\"ts\":6.000,\"dur\":1.000,"), "%s", text);
    free(text);
}

Test(trace, a_full_disk_is_said_of_the_file)
{
    struct pd_error err;
    if (access("/dev/full", W_OK)) cr_skip_test("no /dev/full");
    cr_assert_eq(pd_trace_open("/dev/full", &err), PD_OK, "%s", err.message);
    cr_assert_neq(pd_trace_close(&err), PD_OK);
    cr_assert(strstr(err.message, "/dev/full"), "%s", err.message);
}
