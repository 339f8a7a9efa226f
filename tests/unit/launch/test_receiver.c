/* The launcher's sockets, spoken to as ranks and strangers do. Time is that of the machine: nothing here depends on it. */
#include "trainer/launch/receiver.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <search.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RANKS 3u

static struct pd_launch_receiver *receiver;
static struct pd_rank_table table;
static char dir[] = "/tmp/perdure-receiver-XXXXXX", config[64];
static uint8_t secret[PD_SEAL_SECRET_BYTES] = "what all ranks of a launch know";
static struct pd_remote_heartbeat heard;
static uint32_t heard_rank, begun_rank, closed_rank;

static void beat(void *context, uint32_t rank, const struct pd_remote_heartbeat *heartbeat)
{
    (void)context;
    heard_rank = rank;
    memcpy((void *)&heard, (const void *)heartbeat, sizeof heard);
}

static void note_begun(void *context, uint32_t rank)
{
    (void)context;
    begun_rank = rank;
}

static void note_closed(void *context, uint32_t rank)
{
    (void)context;
    closed_rank = rank;
}

static void open_for(uint32_t ranks)
{
    struct pd_error err;
    begun_rank = closed_rank = heard_rank = 70;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(config, sizeof config, "%s/config.yaml", dir);
    FILE *f = fopen(config, "w");
    cr_assert(f && fputs("run: {dir: there}\n", f) >= 0 && !fclose(f));
    cr_assert_eq(pd_rank_table_init(&table, ranks, &err), PD_OK);
    const struct pd_launch_receiver_options options = {.secret = secret,
                                                       .start = 4,
                                                       .addresses = "127.0.0.1",
                                                       .config_path = config,
                                                       .program = "/bin/perdure",
                                                       .table = &table,
                                                       .begun = note_begun,
                                                       .beat = beat,
                                                       .closed = note_closed,
                                                       .reopened = note_begun};
    cr_assert_eq(pd_launch_receiver_open(&options, &receiver, &err), PD_OK, "%s", err.message);
}

static uint64_t lookups;

int __real_hsearch_r(ENTRY item, ACTION action, ENTRY **ret, struct hsearch_data *names);
int __wrap_hsearch_r(ENTRY item, ACTION action, ENTRY **ret, struct hsearch_data *names);

int __wrap_hsearch_r(ENTRY item, ACTION action, ENTRY **ret, struct hsearch_data *names)
{
    lookups++;
    return __real_hsearch_r(item, action, ret, names);
}

static uint64_t steps; /* basic blocks of the receiver */

void __sanitizer_cov_trace_pc(void);

void __sanitizer_cov_trace_pc(void)
{
    steps++;
}

static void set_up(void)
{
    open_for(RANKS);
}

static void tear_down(void)
{
    pd_launch_receiver_free(receiver);
    pd_rank_table_deinit(&table);
    unlink(config);
    cr_expect_eq(rmdir(dir), 0, "something was written");
}

struct peer {
    int fd;
    struct pd_seal seal;
};

static int dial(void)
{
    const char *port = strrchr(pd_launch_receiver_addresses(receiver), ':') + 1;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(port, NULL, 10)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int dial_here(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *name = pd_launch_receiver_addresses(receiver);
    const size_t bytes = strcspn(name, ",");
    memcpy(to.sun_path + 1, name + 1, bytes - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes)), 0);
    return fd;
}

/* The next message, in a buffer that the next call uses again. 0: the connection is over. */
static int hear(struct peer *p, bool is_sealed, struct pd_message *ret)
{
    static uint8_t data[65536];
    size_t got = 0, want = PD_MESSAGE_HEADER_BYTES;
    while (got < want) {
        struct pollfd one = {.fd = p->fd, .events = POLLIN};
        pd_launch_receiver_look(receiver);
        if (poll(&one, 1, 1) <= 0) continue;
        const ssize_t piece = recv(p->fd, data + got, want - got, 0);
        if (piece <= 0) return 0;
        got += (size_t)piece;
        const int64_t taken = pd_message_take(data, got, sizeof data - 64, ret);
        cr_assert_geq(taken, 0);
        if (!taken) want = got < PD_MESSAGE_HEADER_BYTES ? PD_MESSAGE_HEADER_BYTES : got + 1;
        if (taken) want = (size_t)taken + (is_sealed ? PD_MESSAGE_MAC_BYTES : 0);
    }
    if (is_sealed)
        cr_assert(pd_seal_accepts(&p->seal, PD_SEAL_LAUNCHER, ret, data + want - PD_MESSAGE_MAC_BYTES), "its MAC is wrong");
    return (int)ret->kind;
}

static void say(struct peer *p, bool is_sealed, enum pd_message_kind kind, uint32_t rank, const void *data, uint32_t bytes)
{
    const struct pd_message m = {.kind = kind, .rank = rank, .data = data, .bytes = bytes};
    (void)pd_seal_send(p->fd, is_sealed ? &p->seal : NULL, PD_SEAL_RANK, &m, 1000);
}

/* Both prove what they know. */
static struct peer meet(int fd, const uint8_t *known, uint32_t start)
{
    struct peer p = {.fd = fd, .seal = {.start = start}};
    struct pd_message m;
    uint8_t proof[PD_MESSAGE_PROOF_BYTES];
    memcpy(p.seal.secret, known, sizeof p.seal.secret);
    cr_assert(pd_seal_random(p.seal.nonces[PD_SEAL_RANK], PD_MESSAGE_NONCE_BYTES));
    say(&p, false, PD_MESSAGE_HELLO, 0, p.seal.nonces[PD_SEAL_RANK], PD_MESSAGE_NONCE_BYTES);
    cr_assert_eq(hear(&p, false, &m), PD_MESSAGE_CHALLENGE);
    memcpy(p.seal.nonces[PD_SEAL_LAUNCHER], m.data, PD_MESSAGE_NONCE_BYTES);
    cr_expect_eq(pd_seal_is_proof(&p.seal, PD_SEAL_LAUNCHER, m.data + PD_MESSAGE_NONCE_BYTES, PD_MESSAGE_PROOF_BYTES),
                 !memcmp(known, secret, sizeof secret) && start == 4, "the launcher proves it, too");
    cr_assert(pd_seal_keys(&p.seal) && pd_seal_prove(&p.seal, PD_SEAL_RANK, proof));
    say(&p, false, PD_MESSAGE_PROOF, 0, proof, sizeof proof);
    return p;
}

static int32_t process = 4711; /* that begins */

static int begin(struct peer *p, uint32_t rank, const char *place, const char *build, struct pd_message *ret)
{
    uint8_t data[PD_MESSAGE_BYTES_MAX];
    struct pd_begun begun = {.process = process, .heartbeat = 7, .host = "c"};
    snprintf(begun.place, sizeof begun.place, "%s", place);
    pd_message_build("/bin/perdure", begun.build);
    if (build) snprintf(begun.build, sizeof begun.build, "%s", build);
    say(p, true, PD_MESSAGE_BEGUN, rank, data, pd_message_print_begun(&begun, data));
    return hear(p, true, ret);
}

static int end(struct peer *p, uint32_t rank, const char *message)
{
    struct pd_message m;
    struct pd_ended ended = {.status = PD_IO, .missed = PD_MESSAGE_NOBODY};
    snprintf(ended.message, sizeof ended.message, "%s", message);
    say(p, true, PD_MESSAGE_ENDED, rank, &ended, sizeof ended);
    return hear(p, true, &m);
}

Test(receiver, a_rank_that_begins_gets_the_configuration_and_the_first_of_a_host_is_its_relay, .init = set_up,
     .fini = tear_down)
{
    struct pd_message m;
    struct peer peers[RANKS];
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        peers[rank] = meet(dial(), secret, 4);
        cr_assert_eq(begin(&peers[rank], rank, " elsewhere", NULL, &m), PD_MESSAGE_CONFIG);
        cr_expect(m.bytes == 18 && !memcmp(m.data, "run: {dir: there}\n", 18));
        cr_expect_eq(m.rank, rank == 1);
        cr_expect(begun_rank == rank && table.ranks[rank].begun.process == 4711 && !table.ranks[rank].begun.is_here);
    }
    cr_expect_eq(table.begun, 2);
    process = 4712;
    struct peer again = meet(dial(), secret, 4);
    cr_expect_eq(begin(&again, 1, " elsewhere", NULL, &m), 0, "it has begun already");
    close(again.fd);
    close(peers[1].fd);
    close(peers[2].fd);
}

/* Its connection was cut before the answer came. */
Test(receiver, a_rank_begins_again_where_the_answer_was_lost, .init = set_up, .fini = tear_down)
{
    struct pd_message m;
    struct peer first = meet(dial(), secret, 4), again;
    cr_assert_eq(begin(&first, 2, " elsewhere", NULL, &m), PD_MESSAGE_CONFIG);
    again = meet(dial(), secret, 4);
    cr_assert_eq(begin(&again, 2, " elsewhere", NULL, &m), PD_MESSAGE_CONFIG);
    cr_expect(m.bytes == 18 && m.rank == 1 && table.begun == 1, "the same answer, and one rank");
    close(first.fd);
    for (int i = 0; i < 100; i++)
        pd_launch_receiver_look(receiver);
    cr_expect_eq(closed_rank, 70, "it has left that connection");
    close(again.fd);
    while (closed_rank == 70)
        pd_launch_receiver_look(receiver);
    cr_expect_eq(closed_rank, 2);
}

/* The launcher signals processes of this host by their numbers. */
Test(receiver, only_the_unix_socket_is_of_this_host, .init = set_up, .fini = tear_down)
{
    char place[PD_MESSAGE_PLACE_BYTES];
    struct pd_message m;
    pd_message_place(0, UINT32_MAX, place);
    struct peer far = meet(dial(), secret, 4), near = meet(dial_here(), secret, 4);
    cr_assert_eq(begin(&far, 1, place, NULL, &m), PD_MESSAGE_CONFIG);
    cr_expect_not(table.ranks[1].begun.is_here);
    cr_assert_eq(begin(&near, 0, place, NULL, &m), PD_MESSAGE_CONFIG);
    cr_expect(table.ranks[0].begun.is_here && m.bytes == 0 && m.rank == 0, "it reads the file, and its launcher sees it");
    close(far.fd);
    close(near.fd);
}

Test(receiver, what_is_answered_is_in_the_table, .init = set_up, .fini = tear_down)
{
    struct peer p = meet(dial(), secret, 4);
    const uint64_t step = 17;
    say(&p, true, PD_MESSAGE_SAVED, 0, &step, sizeof step);
    say(&p, true, PD_MESSAGE_TRAINING, 0, "", 0);
    cr_assert_eq(end(&p, 2, "its disk is full"), PD_MESSAGE_ACK);
    cr_expect(table.saved == 17 && table.is_training && table.ranks[2].ended->status == PD_IO);
    cr_expect_str_eq(table.ranks[2].ended->message, "its disk is full");
    close(p.fd);
}

/* The kernel of its host closes the connection of a process that is killed. */
Test(receiver, the_end_of_a_connection_is_the_end_of_a_rank_that_has_said_nothing, .init = set_up, .fini = tear_down)
{
    struct pd_message m;
    struct peer dies = meet(dial(), secret, 4), leaves = meet(dial(), secret, 4);
    cr_assert_eq(begin(&dies, 1, " elsewhere", NULL, &m), PD_MESSAGE_CONFIG);
    cr_assert_eq(begin(&leaves, 2, " elsewhere", NULL, &m), PD_MESSAGE_CONFIG);
    cr_assert_eq(end(&leaves, 2, "done"), PD_MESSAGE_ACK);
    close(leaves.fd);
    for (int i = 0; i < 100; i++)
        pd_launch_receiver_look(receiver);
    cr_expect_eq(closed_rank, 70);
    close(dies.fd);
    while (closed_rank == 70)
        pd_launch_receiver_look(receiver);
    cr_expect_eq(closed_rank, 1);
}

Test(receiver, another_build_is_refused_in_words, .init = set_up, .fini = tear_down)
{
    struct pd_message m;
    char text[512];
    struct peer p = meet(dial(), secret, 4);
    cr_assert_eq(begin(&p, 1, " elsewhere", "0.1, build 77", &m), PD_MESSAGE_REFUSED);
    snprintf(text, sizeof text, "%.*s", (int)m.bytes, (const char *)m.data);
    cr_expect(strstr(text, "host c has another build of /bin/perdure (0.1, build 77) than the launcher ("), "%s", text);
    cr_expect_eq(begun_rank, 70);
    close(p.fd);
}

static void expect_over(struct peer *p, bool is_sealed, const char *what)
{
    struct pd_message m;
    cr_expect_eq(hear(p, is_sealed, &m), 0, "%s", what);
    close(p->fd);
}

/* Each of these ends the connection, leaves nothing, and is counted. */
Test(receiver, what_is_hostile_is_not_listened_to, .init = set_up, .fini = tear_down)
{
    static const uint8_t wrong[PD_SEAL_SECRET_BYTES] = "what somebody else knows";
    static const char large[2 * PD_MESSAGE_BYTES_MAX];
    const uint64_t step = 9;
    struct peer p = meet(dial(), wrong, 4);
    expect_over(&p, true, "another secret");
    p = meet(dial(), secret, 3);
    expect_over(&p, true, "an earlier start");
    p = (struct peer){.fd = dial()};
    say(&p, false, PD_MESSAGE_SAVED, 0, &step, sizeof step);
    expect_over(&p, false, "no proof");
    p = (struct peer){.fd = dial()};
    cr_assert_eq(send(p.fd, "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    expect_over(&p, false, "another protocol");
    const uint64_t refused = pd_launch_receiver_refused(receiver);
    cr_expect_eq(refused, 4);
    p = meet(dial(), secret, 4);
    p.seal.keys[PD_SEAL_RANK][0] ^= 1;
    say(&p, true, PD_MESSAGE_SAVED, 0, &step, sizeof step);
    expect_over(&p, true, "a message that was changed on its way");
    cr_expect_eq(pd_launch_receiver_refused(receiver), refused + 1);
    p = meet(dial(), secret, 4);
    say(&p, true, PD_MESSAGE_SAVED, RANKS, &step, sizeof step);
    expect_over(&p, true, "no such rank");
    p = meet(dial(), secret, 4);
    say(&p, true, PD_MESSAGE_CONFIG, 0, "", 0);
    expect_over(&p, true, "what the launcher says");
    p = meet(dial(), secret, 4);
    say(&p, true, PD_MESSAGE_BEGUN, 1, "no number\n", 10);
    expect_over(&p, true, "no begun");
    p = meet(dial(), secret, 4);
    say(&p, false, PD_MESSAGE_ENDED, 0, large, sizeof large);
    expect_over(&p, true, "longer than messages are");
    cr_expect(!table.has_saved && !table.begun && !table.ended);
}

/* More strangers than are kept, who say nothing, keep no rank away. */
Test(receiver, strangers_keep_nobody_away, .init = set_up, .fini = tear_down)
{
    int strangers[1100];
    struct rlimit files; /* users may raise it from 1,024 */
    cr_assert(!getrlimit(RLIMIT_NOFILE, &files));
    files.rlim_cur = files.rlim_max;
    cr_assert(!setrlimit(RLIMIT_NOFILE, &files));
    for (int i = 0; i < 1100; i++) {
        strangers[i] = dial();
        pd_launch_receiver_look(receiver);
    }
    struct peer p = meet(dial(), secret, 4);
    cr_expect_eq(end(&p, 1, "done"), PD_MESSAGE_ACK);
    close(p.fd);
    for (int i = 0; i < 1100; i++)
        close(strangers[i]);
}

Test(receiver, a_relay_hears_of_the_ranks_of_its_host_and_speaks_for_them_alone, .init = set_up, .fini = tear_down)
{
    struct pd_message m;
    struct pd_remote_heartbeat heartbeat = {.process = 4711, .is_stopped = 1};
    struct peer relay = meet(dial(), secret, 4), other = meet(dial(), secret, 4), one = meet(dial(), secret, 4),
                two = meet(dial(), secret, 4);
    say(&relay, true, PD_MESSAGE_RELAY, 1, " elsewhere", 10);
    cr_assert_eq(begin(&one, 1, " elsewhere", NULL, &m), PD_MESSAGE_CONFIG);
    cr_assert_eq(begin(&two, 2, " further", NULL, &m), PD_MESSAGE_CONFIG);
    cr_assert_eq(hear(&relay, true, &m), PD_MESSAGE_WATCH);
    cr_expect_eq(m.rank, 1);
    say(&relay, true, PD_MESSAGE_HEARTBEAT, 1, &heartbeat, sizeof heartbeat);
    while (heard_rank == 70)
        pd_launch_receiver_look(receiver);
    cr_expect(heard_rank == 1 && heard.is_stopped == 1 && heard.process == 4711);
    say(&relay, true, PD_MESSAGE_HEARTBEAT, 2, &heartbeat, sizeof heartbeat);
    expect_over(&relay, true, "a rank of another host");
    say(&other, true, PD_MESSAGE_HEARTBEAT, 1, &heartbeat, sizeof heartbeat);
    expect_over(&other, true, "no relay");
    struct peer again = meet(dial(), secret, 4);
    say(&again, true, PD_MESSAGE_RELAY, 1, " elsewhere", 10);
    cr_expect_eq(hear(&again, true, &m), PD_MESSAGE_WATCH, "all are named again");
    close(again.fd);
    close(one.fd);
    close(two.fd);
}

static void set_up_many(void)
{
    open_for(16384);
}

/* One lookup a rank, of 16,384 on 512 hosts; the first of each is the relay. */
Test(receiver, a_rank_of_many_takes_one_step_in_the_table_of_places, .init = set_up_many, .fini = tear_down)
{
    uint32_t relays = 0;
    char place[16];
    struct pd_message m;
    struct peer p = meet(dial(), secret, 4);
    lookups = 0;
    for (uint32_t rank = 0; rank < 16384; rank++) {
        snprintf(place, sizeof place, " host %u", rank % 512);
        cr_assert_eq(begin(&p, rank, place, NULL, &m), PD_MESSAGE_CONFIG);
        cr_assert_eq(m.rank, rank < 512, "rank %u", rank);
        relays += m.rank;
    }
    cr_expect(relays == 512 && table.begun == 16384);
    cr_expect_eq(lookups, 16384);
    close(p.fd);
}

/* The same ranks on 128 hosts, whose relays come later. */
Test(receiver, relays_of_many_ranks_cost_a_few_steps_a_rank, .init = set_up_many, .fini = tear_down)
{
    enum { HOSTS = 128, A_HOST = 16384 / HOSTS };
    struct peer p = meet(dial(), secret, 4), relays[HOSTS];
    struct pd_message m;
    char place[16];
    for (uint32_t rank = 0; rank < 16384; rank++) {
        snprintf(place, sizeof place, " host %u", rank % HOSTS);
        cr_assert_eq(begin(&p, rank, place, NULL, &m), PD_MESSAGE_CONFIG);
    }
    for (uint32_t host = 0; host < HOSTS; host++)
        relays[host] = meet(dial(), secret, 4);
    steps = 0;
    for (uint32_t host = 0; host < HOSTS; host++) {
        snprintf(place, sizeof place, " host %u", host);
        say(&relays[host], true, PD_MESSAGE_RELAY, host, place, (uint32_t)strlen(place));
        for (uint32_t k = 0; k < A_HOST; k++) {
            cr_assert_eq(hear(&relays[host], true, &m), PD_MESSAGE_WATCH);
            cr_assert_eq(m.rank, host + k * HOSTS);
        }
    }
    cr_expect_leq(steps, 100 * 16384, "%llu steps", (unsigned long long)steps);
    steps = 0;
    for (int i = 0; i < 100; i++)
        pd_launch_receiver_look(receiver);
    cr_expect_leq(steps, 100 * 40, "%llu steps where nothing has come", (unsigned long long)steps);
    for (uint32_t host = 0; host < HOSTS; host++)
        close(relays[host].fd);
    close(p.fd);
}
