/* The launcher's socket, spoken to as ranks and strangers do. Time is that of the machine: nothing here depends on it. */
#include "trainer/launch/receiver.h"

#include "trainer/notes/sender.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS 3u
#define BEGUN "4711\n elsewhere\n\n8\n"

static struct pd_launch_receiver *receiver;
static char dir[] = "/tmp/perdure-receiver-XXXXXX", config[64];
static struct pd_wire_word heard;
static uint32_t heard_rank;

static void hear(void *context, uint32_t rank, const struct pd_wire_word *word)
{
    (void)context;
    heard_rank = rank;
    memcpy((void *)&heard, (const void *)word, sizeof heard);
}

static void set_up(void)
{
    struct pd_error err;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(config, sizeof config, "%s/config.yaml", dir);
    FILE *f = fopen(config, "w");
    cr_assert(f && fputs("run: {dir: there}\n", f) >= 0 && !fclose(f));
    const struct pd_launch_receiver_options options = {.addresses = "127.0.0.1",
                                                       .dir = dir,
                                                       .config_path = config,
                                                       .program = "/bin/perdure",
                                                       .ranks = RANKS,
                                                       .hear = hear};
    cr_assert_eq(pd_launch_receiver_open(&options, &receiver, &err), PD_OK, "%s", err.message);
    pd_launch_receiver_environment_set(receiver);
}

static void tear_down(void)
{
    pd_launch_receiver_free(receiver);
    unlink(config);
    pd_note_clear(dir);
    cr_expect_eq(rmdir(dir), 0, "what is no note was written");
}

static int dial(void)
{
    const char *port = strrchr(getenv(PD_SENDER_ENV_ADDRESSES), ':') + 1;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(port, NULL, 10)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void say(int fd, enum pd_wire_kind kind, uint32_t note, uint32_t rank, const void *data, uint32_t bytes)
{
    const struct pd_wire_frame frame = {.kind = kind, .note = note, .rank = rank, .data = data, .bytes = bytes};
    cr_assert(pd_wire_send(fd, &frame, 1000));
}

static void hello_of(int fd, const char *token, const char *build)
{
    uint8_t data[PD_WIRE_BYTES_MAX];
    struct pd_wire_hello hello = {.host = "c"};
    snprintf(hello.token, sizeof hello.token, "%s", token);
    snprintf(hello.build, sizeof hello.build, "%s", build);
    say(fd, PD_WIRE_HELLO, 0, 0, data, pd_wire_hello_print(&hello, data));
}

static int known(void)
{
    char build[PD_WIRE_BUILD_BYTES];
    const int fd = dial();
    pd_sender_build(build);
    hello_of(fd, getenv(PD_SENDER_ENV_TOKEN), build);
    return fd;
}

/* What comes back on `fd`, for as long as the receiver looks; 0: the connection is closed. */
static enum pd_wire_kind answer(int fd, uint32_t *ret_rank, char *ret_text, size_t bytes)
{
    uint8_t data[4096];
    size_t got = 0;
    struct pd_wire_frame frame;
    for (;;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        pd_launch_receiver_look(receiver);
        if (poll(&one, 1, 1) <= 0) continue;
        const ssize_t piece = recv(fd, data + got, sizeof data - got, 0);
        if (piece <= 0) return 0;
        got += (size_t)piece;
        if (pd_wire_take(data, got, sizeof data, &frame) <= 0) continue;
        if (ret_rank) *ret_rank = frame.rank;
        if (ret_text) snprintf(ret_text, bytes, "%.*s", (int)frame.bytes, (const char *)frame.data);
        return frame.kind;
    }
}

static enum pd_wire_kind note(enum pd_note kind, uint32_t rank, const char *text)
{
    const int fd = known();
    say(fd, PD_WIRE_NOTE, kind, rank, text, (uint32_t)strlen(text));
    const enum pd_wire_kind got = answer(fd, NULL, NULL, 0);
    close(fd);
    return got;
}

Test(receiver, a_rank_that_begins_gets_the_configuration_and_the_first_of_a_host_is_its_relay, .init = set_up,
     .fini = tear_down)
{
    char text[256];
    struct pd_note_begun begun;
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        uint32_t is_relay = 7;
        const int fd = known();
        say(fd, PD_WIRE_NOTE, PD_NOTE_BEGUN, rank, BEGUN, sizeof BEGUN - 1);
        cr_assert_eq(answer(fd, &is_relay, text, sizeof text), PD_WIRE_DONE);
        cr_expect_str_eq(text, "run: {dir: there}\n");
        cr_expect_eq(is_relay, rank == 1);
        cr_assert(pd_note_read_process(dir, PD_NOTE_BEGUN, rank, &begun));
        cr_expect(begun.process == 4711 && begun.pulse == 7 && !begun.is_here);
        cr_expect(pd_launch_receiver_has(receiver, rank));
        close(fd);
    }
    cr_expect_not(pd_launch_receiver_has(receiver, 0));
    cr_expect_eq(note(PD_NOTE_BEGUN, 1, BEGUN), 0, "it has begun already");
}

Test(receiver, notes_are_there_when_they_are_answered, .init = set_up, .fini = tear_down)
{
    uint64_t step = 0;
    struct pd_note_ended ended;
    cr_expect_eq(note(PD_NOTE_SAVED, 0, "17\n"), PD_WIRE_DONE);
    cr_expect(pd_note_read_saved(dir, &step) && step == 17);
    cr_expect_eq(note(PD_NOTE_ENDED, 2, "5\nits disk is full\n"), PD_WIRE_DONE);
    cr_expect(pd_note_read_ended(dir, 2, &ended) && !strcmp(ended.message, "its disk is full"));
    cr_expect_eq(note(PD_NOTE_OPENING, 0, ""), PD_WIRE_DONE);
    cr_expect(pd_note_has_mark(dir, PD_NOTE_OPENING, 0));
    const int fd = known();
    say(fd, PD_WIRE_NO_NOTE, PD_NOTE_OPENING, 0, NULL, 0);
    cr_expect_eq(answer(fd, NULL, NULL, 0), PD_WIRE_DONE);
    cr_expect_not(pd_note_has_mark(dir, PD_NOTE_OPENING, 0));
    close(fd);
}

Test(receiver, another_build_is_refused_in_words, .init = set_up, .fini = tear_down)
{
    char text[512];
    const int fd = dial();
    hello_of(fd, getenv(PD_SENDER_ENV_TOKEN), "0.1, build 77");
    say(fd, PD_WIRE_NOTE, PD_NOTE_BEGUN, 1, BEGUN, sizeof BEGUN - 1);
    cr_assert_eq(answer(fd, NULL, text, sizeof text), PD_WIRE_REFUSED);
    cr_expect(strstr(text, "host c has another build of /bin/perdure (0.1, build 77) than the launcher ("), "%s", text);
    cr_expect_not(pd_launch_receiver_has(receiver, 1));
    close(fd);
}

/* Each of these ends the connection, and leaves nothing. */
Test(receiver, what_is_hostile_is_not_listened_to, .init = set_up, .fini = tear_down)
{
    char place[PD_WIRE_PLACE_BYTES], here[256], large[PD_NOTE_BYTES];
    pd_note_place(0, RANKS, place);
    snprintf(here, sizeof here, "%d\n%s\n\n1\n", getpid(), place);
    memset(large, 'x', sizeof large);
    static const char wrong[] = "00000000000000000000000000000000";
    int fd = dial();
    hello_of(fd, wrong, "1");
    say(fd, PD_WIRE_NOTE, PD_NOTE_SAVED, 0, "9\n", 2);
    cr_expect_eq(answer(fd, NULL, NULL, 0), 0, "another token");
    close(fd);
    fd = dial();
    say(fd, PD_WIRE_NOTE, PD_NOTE_SAVED, 0, "9\n", 2);
    cr_expect_eq(answer(fd, NULL, NULL, 0), 0, "no token");
    close(fd);
    fd = dial();
    cr_assert_eq(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    cr_expect_eq(answer(fd, NULL, NULL, 0), 0, "another protocol");
    close(fd);
    cr_expect_eq(note(PD_NOTE_SAVED, RANKS, "9\n"), 0, "no such rank");
    cr_expect_eq(note(PD_NOTE_OWNER, 0, BEGUN), 0, "the launcher's own");
    cr_expect_eq(note(99, 0, ""), 0, "no such note");
    cr_expect_eq(note(PD_NOTE_BEGUN, 1, here), 0, "a process of this host, which would be signalled");
    cr_expect_eq(note(PD_NOTE_BEGUN, 1, "no number\n"), 0);
    fd = known();
    say(fd, PD_WIRE_NOTE, PD_NOTE_ENDED, 0, large, sizeof large);
    cr_expect_eq(answer(fd, NULL, NULL, 0), 0, "longer than notes are");
    close(fd);
    fd = known();
    say(fd, PD_WIRE_DONE, 0, 0, NULL, 0);
    cr_expect_eq(answer(fd, NULL, NULL, 0), 0, "what the launcher says");
    close(fd);
    cr_expect_eq(pd_note_find(dir, PD_NOTE_SAVED, RANKS, NULL), 0);
}

/* More strangers than are kept, who say nothing, keep no rank away. */
Test(receiver, strangers_keep_nobody_away, .init = set_up, .fini = tear_down)
{
    int strangers[100];
    for (int i = 0; i < 100; i++) {
        strangers[i] = dial();
        pd_launch_receiver_look(receiver);
    }
    cr_expect_eq(note(PD_NOTE_READY, 1, ""), PD_WIRE_DONE);
    for (int i = 0; i < 100; i++)
        close(strangers[i]);
}

Test(receiver, a_relay_is_told_of_the_ranks_of_its_host_and_heard_for_them_alone, .init = set_up, .fini = tear_down)
{
    uint32_t rank = 7;
    struct pd_wire_word word = {.process = 4711, .is_stopped = 1};
    const int relay = known(), other = known();
    say(relay, PD_WIRE_PLACE, 0, 1, " elsewhere", 10);
    pd_launch_receiver_look(receiver);
    cr_assert_eq(note(PD_NOTE_BEGUN, 1, BEGUN), PD_WIRE_DONE);
    cr_assert_eq(note(PD_NOTE_BEGUN, 2, "12\n further\n\n8\n"), PD_WIRE_DONE);
    cr_assert_eq(answer(relay, &rank, NULL, 0), PD_WIRE_WATCH);
    cr_expect_eq(rank, 1);
    say(relay, PD_WIRE_WORD, 0, 1, &word, sizeof word);
    for (heard_rank = 7; heard_rank == 7;)
        pd_launch_receiver_look(receiver);
    cr_expect(heard_rank == 1 && heard.is_stopped == 1 && heard.process == 4711);
    say(relay, PD_WIRE_WORD, 0, 2, &word, sizeof word);
    cr_expect_eq(answer(relay, NULL, NULL, 0), 0, "a rank of another host");
    say(other, PD_WIRE_WORD, 0, 1, &word, sizeof word);
    cr_expect_eq(answer(other, NULL, NULL, 0), 0, "no relay");
    const int again = known();
    say(again, PD_WIRE_PLACE, 0, 1, " elsewhere", 10);
    cr_expect_eq(answer(again, &rank, NULL, 0), PD_WIRE_WATCH, "all are named again");
    close(again);
    close(relay);
    close(other);
}
