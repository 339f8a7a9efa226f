/* What anybody sends to the launcher's port: frames as it takes them apart, before and behind the token. */
#include "tests/fuzz/target.h"
#include "trainer/notes/note.h"
#include "trainer/notes/wire.h"

#include <stdlib.h>
#include <string.h>

static void expect_text(const char *text, size_t bytes)
{
    const size_t length = strnlen(text, bytes);
    if (length == bytes) abort();
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~') abort();
}

static void take(const struct pd_wire_frame *frame)
{
    struct pd_wire_hello hello;
    struct pd_wire_word word;
    struct pd_note_begun begun;
    char text[PD_NOTE_BYTES];
    int32_t process, fd;
    if (pd_wire_hello_parse(frame, &hello)) {
        expect_text(hello.token, sizeof hello.token);
        expect_text(hello.build, sizeof hello.build);
        expect_text(hello.host, sizeof hello.host);
    }
    if (pd_wire_word_parse(frame, &word)) {
        expect_text(word.host, sizeof word.host);
        expect_text(word.kernel, sizeof word.kernel);
        if (word.process <= 0) abort();
    }
    if (pd_wire_watch_parse(frame, &process, &fd) && (process <= 0 || fd < 0)) abort();
    if (frame->kind != PD_WIRE_NOTE || frame->bytes >= PD_NOTE_BYTES) return;
    memcpy(text, frame->data, frame->bytes);
    text[frame->bytes] = '\0';
    if (pd_note_parse_process(text, &begun) && (begun.process < 0 || begun.pulse < -1)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_wire_frame frame;
    for (int64_t taken; (taken = pd_wire_take(data, bytes, PD_WIRE_BYTES_MAX, &frame)) > 0;) {
        if ((size_t)taken > bytes || frame.data + frame.bytes > data + bytes || frame.bytes > PD_WIRE_BYTES_MAX) abort();
        take(&frame);
        data += taken;
        bytes -= (size_t)taken;
    }
    return 0;
}
