/* Frames of ranks on other hosts: what is whole, what is cut off, what is none. */
#include "trainer/notes/wire.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t print(uint8_t *data, const struct pd_wire_frame *frame)
{
    pd_wire_header(frame, data);
    if (frame->bytes) memcpy(data + PD_WIRE_HEADER_BYTES, frame->data, frame->bytes);
    return PD_WIRE_HEADER_BYTES + frame->bytes;
}

Test(wire, a_frame_is_taken_once_all_of_it_is_there)
{
    uint8_t data[64];
    struct pd_wire_frame got;
    const struct pd_wire_frame frame = {
        .kind = PD_WIRE_NOTE, .note = 3, .rank = 70000, .bytes = 5, .data = (const uint8_t *)"words"};
    const size_t bytes = print(data, &frame);
    for (size_t part = 0; part < bytes; part++)
        cr_expect_eq(pd_wire_take(data, part, 5, &got), 0, "%zu bytes", part);
    cr_assert_eq(pd_wire_take(data, sizeof data, 5, &got), (int64_t)bytes);
    cr_expect(got.kind == PD_WIRE_NOTE && got.note == 3 && got.rank == 70000 && !memcmp(got.data, "words", 5));
    cr_expect_eq(pd_wire_take(data, bytes, 4, &got), -1, "longer than is taken, told before it is there");
    for (int kind = 0; kind < 2; kind++) {
        data[4] = kind ? PD_WIRE_KINDS : 0;
        cr_expect_eq(pd_wire_take(data, PD_WIRE_HEADER_BYTES, 5, &got), -1, "no kind");
    }
}

Test(wire, a_hello_is_a_token_and_two_lines)
{
    uint8_t data[PD_WIRE_BYTES_MAX];
    struct pd_wire_hello got, hello = {.token = "0123456789abcdef0123456789abcdef", .build = "1.0, build 1", .host = "c"};
    struct pd_wire_frame frame = {.kind = PD_WIRE_HELLO, .data = data, .bytes = pd_wire_hello_print(&hello, data)};
    cr_assert(pd_wire_hello_parse(&frame, &got));
    cr_expect(!strcmp(got.build, "1.0, build 1") && !strcmp(got.host, "c") && pd_wire_token_is(got.token, hello.token));
    got.token[31] ^= 1;
    cr_expect_not(pd_wire_token_is(got.token, hello.token));
    data[PD_WIRE_TOKEN_BYTES] = 0x1b;
    cr_assert(pd_wire_hello_parse(&frame, &got));
    cr_expect_eq(got.build[0], '?', "what a terminal would obey is not handed on");
    frame.bytes--;
    cr_expect_not(pd_wire_hello_parse(&frame, &got), "a line is not ended");
    frame.bytes = PD_WIRE_TOKEN_BYTES - 1;
    cr_expect_not(pd_wire_hello_parse(&frame, &got));
}

Test(wire, texts_of_a_word_end)
{
    struct pd_wire_word word, got;
    struct pd_wire_frame frame = {.kind = PD_WIRE_WORD, .data = (const uint8_t *)&word, .bytes = sizeof word};
    memset((void *)&word, 'x', sizeof word);
    cr_assert(pd_wire_word_parse(&frame, &got));
    cr_expect_eq(strlen(got.host), sizeof got.host - 1);
    cr_expect_eq(strlen(got.kernel), sizeof got.kernel - 1);
    word.process = 0;
    cr_expect_not(pd_wire_word_parse(&frame, &got), "of no process");
    word.process = 1;
    frame.bytes--;
    cr_expect_not(pd_wire_word_parse(&frame, &got));
}

Test(wire, a_peer_that_reads_nothing_is_given_up)
{
    int ends[2];
    static uint8_t much[1 << 22];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const struct pd_wire_frame frame = {.kind = PD_WIRE_DONE, .data = much, .bytes = sizeof much};
    cr_expect_not(pd_wire_send(ends[0], &frame, 1));
    close(ends[1]);
    cr_expect_not(pd_wire_send(ends[0], &frame, 1), "nobody is there");
    close(ends[0]);
}
