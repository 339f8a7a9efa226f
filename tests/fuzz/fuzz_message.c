/* What anybody sends to the launcher's port: messages as it takes them apart, before and after the proof. */
#include "tests/fuzz/target.h"
#include "trainer/status/message.h"

#include <stdlib.h>
#include <string.h>

static void expect_text(const char *text, size_t bytes)
{
    const size_t length = strnlen(text, bytes);
    if (length == bytes) abort();
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~') abort();
}

static void take(const struct pd_message *m)
{
    struct pd_remote_heartbeat beat;
    struct pd_begun begun;
    struct pd_watched watched;
    struct pd_ended ended;
    struct pd_suspect suspect;
    struct pd_lost_gpu gpu;
    if (pd_message_parse_heartbeat(m, &beat)) {
        expect_text(beat.host, sizeof beat.host);
        expect_text(beat.kernel, sizeof beat.kernel);
        if (beat.process <= 0) abort();
    }
    if (pd_message_parse_begun(m, &begun)) {
        expect_text(begun.place, sizeof begun.place);
        expect_text(begun.build, sizeof begun.build);
        expect_text(begun.step, sizeof begun.step);
        if (begun.process <= 0 || begun.heartbeat < -1) abort();
    }
    if (pd_message_parse_watched(m, &watched) && (watched.process <= 0 || watched.heartbeat < 0)) abort();
    if (pd_message_parse_ended(m, &ended) &&
        (ended.status >= PD_STATUS_COUNT || strnlen(ended.message, sizeof ended.message) == sizeof ended.message))
        abort();
    if (pd_message_parse_suspect(m, &suspect)) expect_text(suspect.host, sizeof suspect.host);
    if (pd_message_parse_gpu(m, &gpu)) expect_text(gpu.identity, sizeof gpu.identity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_message m;
    struct pd_rank_table table;
    if (pd_rank_table_init(&table, 4, NULL)) return 0;
    for (int64_t taken; (taken = pd_message_take(data, bytes, PD_MESSAGE_BYTES_MAX, &m)) > 0;) {
        if ((size_t)taken > bytes || m.data + m.bytes > data + bytes || m.bytes > PD_MESSAGE_BYTES_MAX) abort();
        take(&m);
        (void)pd_rank_table_take(&table, &m);
        data += taken;
        bytes -= (size_t)taken;
    }
    if (table.begun > 4 || table.ended > 4 || table.ready > 4) abort();
    pd_rank_table_deinit(&table);
    return 0;
}
