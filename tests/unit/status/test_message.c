/* Messages of ranks: what is whole, what is cut off, what is something else; proofs and MACs. */
#include "trainer/status/message.h"
#include "trainer/status/seal.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t print(uint8_t *data, const struct pd_message *m)
{
    pd_message_header(m, data);
    if (m->bytes) memcpy(data + PD_MESSAGE_HEADER_BYTES, m->data, m->bytes);
    return PD_MESSAGE_HEADER_BYTES + m->bytes;
}

Test(message, a_message_is_taken_once_all_of_it_is_there)
{
    uint8_t data[64];
    struct pd_message got;
    const struct pd_message m = {.kind = PD_MESSAGE_SAVED, .rank = 70000, .bytes = 5, .data = (const uint8_t *)"words"};
    const size_t bytes = print(data, &m);
    for (size_t part = 0; part < bytes; part++)
        cr_expect_eq(pd_message_take(data, part, 5, &got), 0, "%zu bytes", part);
    cr_assert_eq(pd_message_take(data, sizeof data, 5, &got), (int64_t)bytes);
    cr_expect(got.kind == PD_MESSAGE_SAVED && got.rank == 70000 && !memcmp(got.data, "words", 5));
    cr_expect_eq(pd_message_take(data, bytes, 4, &got), -1, "longer than is taken, seen before it is there");
    for (int kind = 0; kind < 2; kind++) {
        data[4] = kind ? PD_MESSAGE_KINDS : 0;
        cr_expect_eq(pd_message_take(data, PD_MESSAGE_HEADER_BYTES, 5, &got), -1, "no kind");
    }
}

static struct pd_message of(enum pd_message_kind kind, const uint8_t *data, uint32_t bytes)
{
    return (struct pd_message){.kind = kind, .rank = 1, .data = data, .bytes = bytes};
}

Test(message, payloads_come_back_as_they_were)
{
    uint8_t data[PD_MESSAGE_BYTES_MAX];
    struct pd_begun begun = {.process = 4711,
                             .mpi_job = 9,
                             .heartbeat = 7,
                             .place = " elsewhere",
                             .host = "c",
                             .build = "1",
                             .step = "12.3"},
                    b;
    struct pd_message m = of(PD_MESSAGE_BEGUN, data, pd_message_print_begun(&begun, data));
    cr_assert(pd_message_parse_begun(&m, &b));
    cr_expect(b.process == 4711 && b.mpi_job == 9 && b.heartbeat == 7 && !b.is_here);
    cr_expect(!strcmp(b.place, begun.place) && !strcmp(b.host, "c") && !strcmp(b.build, "1") && !strcmp(b.step, "12.3"));
    data[0] = '-';
    cr_expect_not(pd_message_parse_begun(&m, &b), "no number of a process");
    const struct pd_ended ended = {.status = PD_PEER_LOST, .missed = 3, .message = "rank 3 is gone"};
    struct pd_ended e;
    m = of(PD_MESSAGE_ENDED, (const uint8_t *)&ended, sizeof ended);
    cr_assert(pd_message_parse_ended(&m, &e));
    cr_expect(e.status == PD_PEER_LOST && e.missed == 3 && !strcmp(e.message, ended.message));
    const struct pd_ended no_status = {.status = (pd_status)99};
    m = of(PD_MESSAGE_ENDED, (const uint8_t *)&no_status, sizeof no_status);
    cr_expect_not(pd_message_parse_ended(&m, &e));
    const struct pd_suspect suspect = {.rank = 2, .host = "h\x1b", .gpu = "GPU-1", .is_spare = 1};
    struct pd_suspect s;
    m = of(PD_MESSAGE_SUSPECT, (const uint8_t *)&suspect, sizeof suspect);
    cr_assert(pd_message_parse_suspect(&m, &s));
    cr_expect(s.rank == 2 && !strcmp(s.host, "h?") && !strcmp(s.gpu, "GPU-1") && s.is_spare);
}

Test(message, texts_of_a_heartbeat_end)
{
    struct pd_remote_heartbeat beat, got;
    struct pd_message m = of(PD_MESSAGE_HEARTBEAT, (const uint8_t *)&beat, sizeof beat);
    memset((void *)&beat, 'x', sizeof beat);
    cr_assert(pd_message_parse_heartbeat(&m, &got));
    cr_expect_eq(strlen(got.host), sizeof got.host - 1);
    cr_expect_eq(strlen(got.kernel), sizeof got.kernel - 1);
    beat.process = 0;
    cr_expect_not(pd_message_parse_heartbeat(&m, &got), "of no process");
    beat.process = 1;
    m.bytes--;
    cr_expect_not(pd_message_parse_heartbeat(&m, &got));
}

Test(message, a_peer_that_reads_nothing_is_given_up)
{
    int ends[2];
    static uint8_t much[1 << 22];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const struct pd_message m = of(PD_MESSAGE_CONFIG, much, sizeof much);
    cr_expect_not(pd_seal_send(ends[0], NULL, PD_SEAL_LAUNCHER, &m, 1));
    close(ends[1]);
    cr_expect_not(pd_seal_send(ends[0], NULL, PD_SEAL_LAUNCHER, &m, 1), "nobody is there");
    close(ends[0]);
}

static struct pd_seal seal_of(uint8_t secret, uint32_t start)
{
    struct pd_seal s = {.start = start};
    memset(s.secret, secret, sizeof s.secret);
    memset(s.nonces[0], 1, sizeof s.nonces[0]);
    memset(s.nonces[1], 2, sizeof s.nonces[1]);
    cr_assert(pd_seal_keys(&s));
    return s;
}

Test(seal, a_proof_is_of_one_secret_one_start_and_one_side)
{
    uint8_t proof[PD_MESSAGE_PROOF_BYTES];
    const struct pd_seal right = seal_of(7, 1), other = seal_of(8, 1), later = seal_of(7, 2);
    struct pd_seal again = seal_of(7, 1);
    cr_assert(pd_seal_prove(&right, PD_SEAL_RANK, proof));
    cr_expect(pd_seal_is_proof(&right, PD_SEAL_RANK, proof, sizeof proof));
    cr_expect_not(pd_seal_is_proof(&right, PD_SEAL_RANK, proof, sizeof proof - 1));
    cr_expect_not(pd_seal_is_proof(&right, PD_SEAL_LAUNCHER, proof, sizeof proof), "sent back to where it came from");
    cr_expect_not(pd_seal_is_proof(&other, PD_SEAL_RANK, proof, sizeof proof));
    cr_expect_not(pd_seal_is_proof(&later, PD_SEAL_RANK, proof, sizeof proof), "of a start before");
    again.nonces[PD_SEAL_LAUNCHER][5] ^= 1;
    cr_expect_not(pd_seal_is_proof(&again, PD_SEAL_RANK, proof, sizeof proof), "heard before, and said again");
}

Test(seal, a_message_that_is_changed_repeated_or_moved_is_seen)
{
    uint8_t mac[PD_MESSAGE_MAC_BYTES], second[PD_MESSAGE_MAC_BYTES];
    struct pd_seal sender = seal_of(7, 1), receiver = seal_of(7, 1);
    struct pd_message m = of(PD_MESSAGE_SAVED, (const uint8_t *)"12345678", 8), changed = m;
    cr_assert(pd_seal_next(&sender, PD_SEAL_RANK, &m, mac) && pd_seal_next(&sender, PD_SEAL_RANK, &m, second));
    cr_expect_not(pd_seal_accepts(&receiver, PD_SEAL_RANK, &m, second), "out of order");
    cr_expect_not(pd_seal_accepts(&receiver, PD_SEAL_LAUNCHER, &m, mac), "of the other side");
    changed.rank = 2;
    cr_expect_not(pd_seal_accepts(&receiver, PD_SEAL_RANK, &changed, mac));
    changed = of(PD_MESSAGE_SAVED, (const uint8_t *)"12345679", 8);
    cr_expect_not(pd_seal_accepts(&receiver, PD_SEAL_RANK, &changed, mac));
    cr_assert(pd_seal_accepts(&receiver, PD_SEAL_RANK, &m, mac));
    cr_expect_not(pd_seal_accepts(&receiver, PD_SEAL_RANK, &m, mac), "a second time");
    cr_expect(pd_seal_accepts(&receiver, PD_SEAL_RANK, &m, second));
}

Test(rank_table, holds_what_ranks_say)
{
    struct pd_rank_table t;
    struct pd_error err;
    const uint64_t step = 17;
    const struct pd_ended ended = {.status = PD_IO, .missed = PD_MESSAGE_NOBODY, .message = "the disk is gone"};
    const struct pd_lost_gpu gpu = {.identity = "GPU-0123", .is_spare = 1};
    struct pd_message m = of(PD_MESSAGE_SAVED, (const uint8_t *)&step, sizeof step);
    cr_assert_eq(pd_rank_table_init(&t, 3, &err), PD_OK);
    cr_expect(pd_rank_table_take(&t, &m) && t.has_saved && t.saved == 17);
    m = of(PD_MESSAGE_ENDED, (const uint8_t *)&ended, sizeof ended);
    cr_expect(pd_rank_table_take(&t, &m) && pd_rank_table_take(&t, &m));
    cr_expect(t.ended == 1 && t.ranks[1].has_ended && !strcmp(t.ranks[1].ended->message, "the disk is gone"));
    m = of(PD_MESSAGE_GPU, (const uint8_t *)&gpu, sizeof gpu);
    cr_expect(pd_rank_table_take(&t, &m) && !strcmp(t.ranks[1].lost->identity, "GPU-0123"));
    m = of(PD_MESSAGE_READY, NULL, 0);
    cr_expect(pd_rank_table_take(&t, &m) && pd_rank_table_take(&t, &m) && t.ready == 1);
    m.rank = 3;
    cr_expect_not(pd_rank_table_take(&t, &m), "no such rank");
    m = of(PD_MESSAGE_CONFIG, NULL, 0);
    cr_expect_not(pd_rank_table_take(&t, &m), "what the launcher says");
    pd_rank_table_deinit(&t);
}
