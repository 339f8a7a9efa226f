/* The communication tests as a program: `comm_program mpi CASE` under mpirun, `comm_program local:N CASE` alone, so that
 * both tables pass the same test. Exit code 0: passed on this rank; otherwise that of the status. */
#include "ckpt/base/fault.h"
#include "ckpt/base/parse.h"
#include "tests/helpers/comm_exercise.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#define SOON_SECONDS 120.0 /* on any machine; the time limit is 600 */

static uint64_t scale(void)
{
    uint64_t value;
    const char *text = getenv("PERDURE_TEST_SCALE");
    return text && pd_parse_u64(text, &value) && value > 0 ? value : 1;
}

static pd_status case_all(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    PD_TRY(exercise_exchanges(comm, 1, 150 * scale(), 40000, err));
    PD_TRY(exercise_exchanges(comm, 2, 4, 5000000, err));
    PD_TRY(exercise_collectives(comm, 1, 60 * scale(), 3000, err));
    PD_TRY(exercise_collectives(comm, 2, 4, 300000, err));
    PD_TRY(exercise_gathers(comm, 1, 200 * scale(), 3000, err));
    PD_TRY(exercise_gathers(comm, 2, 30 * scale(), 150000, err));
    PD_TRY(exercise_reductions(comm, err));
    PD_TRY(exercise_broadcasts(comm, err));
    PD_TRY(exercise_group(comm, err));
    PD_TRY(exercise_splits(comm, 3, err));
    return pd_comm_barrier(comm, err);
}

/* What bytes of a device pass on their way to another process was locked, and is not when the memory is taken away; where
 * locking is refused they pass all the same. */
static pd_status check_locks(struct pd_comm *comm, struct device_memory *far, struct pd_error *err)
{
    const struct pd_comm_memory none = {.copy = NULL}, hook = far_hook(far);
    const bool stages = comm->size > 1 && strcmp(comm->ops->name, "mpi") == 0;
    EXERCISE_EXPECT(stages ? far->locked > 0 && far->locked_most > far->locked : !far->locked_most); /* most: with splits */
    pd_comm_use_memory(comm, &none);
    EXERCISE_EXPECT(far->locked == 0);
    far->refuses = true;
    pd_comm_use_memory(comm, &hook);
    PD_TRY(exercise_exchanges(comm, 5, 2, 40000, err));
    EXERCISE_EXPECT(far->locked == 0);
    return pd_comm_barrier(comm, err);
}

/* Pieces in memory that this process cannot touch; values and groups are in the host's. */
static pd_status case_device_memory(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    static struct device_memory far = DEVICE_MEMORY_INIT;
    const struct pd_comm_memory hook = far_hook(&far);
    pd_comm_use_memory(comm, &hook);
    PD_TRY(exercise_exchanges(comm, 1, 100 * scale(), 40000, err));
    PD_TRY(exercise_exchanges(comm, 2, 3, 5000000, err));
    PD_TRY(exercise_collectives(comm, 1, 40 * scale(), 3000, err));
    PD_TRY(exercise_collectives(comm, 2, 3, 300000, err));
    PD_TRY(exercise_gathers(comm, 1, 60 * scale(), 3000, err));
    PD_TRY(exercise_gathers(comm, 2, 6 * scale(), 150000, err));
    PD_TRY(exercise_reductions(comm, err));
    PD_TRY(exercise_broadcasts(comm, err));
    PD_TRY(exercise_group(comm, err));
    PD_TRY(exercise_splits(comm, 3, err));
    EXERCISE_EXPECT(comm->size == 1 || far.copies > 100);
    PD_TRY(pd_comm_barrier(comm, err));
    return check_locks(comm, &far, err);
}

/* A copy of one rank fails in the middle of traffic. */
static pd_status case_lost_device(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    static struct device_memory far = DEVICE_MEMORY_INIT;
    struct pd_comm_memory hook = far_hook(&far);
    if (comm->rank == 1) far.fail_at = 300;
    pd_comm_use_memory(comm, &hook);
    struct pd_error lost;
    pd_status st = exercise_exchanges_until(comm, 9, 1000000, 60000, UINT64_MAX, &lost);
    if (st != (comm->rank == 1 ? PD_DEVICE_LOST : PD_PEER_LOST))
        PD_FAIL(err, PD_BUG, "rank %u: %s", comm->rank, lost.message);
    printf("rank %u noticed: %s\n", comm->rank, lost.message);
    fflush(stdout);
    PD_FAIL(err, st, "%s", lost.message);
}

static pd_status case_hosts(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    uint64_t hosts;
    const char *text = getenv("PERDURE_TEST_HOSTS");
    EXERCISE_EXPECT(text && pd_parse_u64(text, &hosts));
    EXERCISE_EXPECT(comm->host_count == hosts && comm->host == comm->rank * hosts / comm->size);
    return pd_comm_barrier(comm, err);
}

/* Of hosts 0, 1, 1, 0, 1: ranks that are not beside each other, and more of them on one host than on the other. */
static pd_status case_places(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    static const struct {
        uint32_t host, rank_here, ranks_here;
    } places[] = {{0, 0, 2}, {1, 0, 3}, {1, 1, 3}, {0, 1, 2}, {1, 2, 3}};
    EXERCISE_EXPECT(comm->size == 5 && comm->host_count == 2 && comm->ranks_here_max == 3);
    EXERCISE_EXPECT(comm->host == places[comm->rank].host && comm->rank_here == places[comm->rank].rank_here);
    EXERCISE_EXPECT(comm->ranks_here == places[comm->rank].ranks_here);
    return pd_comm_barrier(comm, err);
}

/* The last rank is killed. The others must know soon, and who it was. */
static pd_status case_kill(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    uint32_t victim = comm->size - 1;
    char says[64];
    snprintf(says, sizeof says, "rank %u is gone", victim);
    PD_TRY(pd_comm_barrier(comm, err));
    if (comm->rank == victim) raise(SIGKILL);
    double began = seconds_now();
    struct pd_error lost;
    pd_status st = pd_comm_barrier(comm, &lost);
    if (st != PD_PEER_LOST || !strstr(lost.message, says)) PD_FAIL(err, PD_BUG, "not noticed: %s", st ? lost.message : "ok");
    if (seconds_now() - began > SOON_SECONDS) PD_FAIL(err, PD_BUG, "noticed after %g s", seconds_now() - began);
    printf("rank %u noticed: %s\n", comm->rank, lost.message);
    fflush(stdout);
    PD_FAIL(err, PD_PEER_LOST, "%s", lost.message);
}

/* The last rank is killed in the middle of traffic. */
static pd_status storm(struct pd_comm *comm, void *context, struct pd_error *err)
{
    uint32_t victim = comm->size - 1;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t rounds = comm->rank == victim ? (uint64_t)now.tv_nsec / 1000 % 200 : 1000000;
    struct pd_error lost;
    const uint64_t until = comm->rank == victim ? rounds : UINT64_MAX;
    pd_status st = context ? exercise_collectives_until(comm, 9, 1000000, 4000, until, &lost)
                           : exercise_exchanges_until(comm, 9, 1000000, 60000, until, &lost);
    if (comm->rank == victim) raise(SIGKILL);
    if (st != PD_PEER_LOST) PD_FAIL(err, PD_BUG, "not noticed: %s", st ? lost.message : "ok");
    printf("rank %u noticed: %s\n", comm->rank, lost.message);
    fflush(stdout);
    PD_FAIL(err, PD_PEER_LOST, "%s", lost.message);
}

static pd_status case_storm(struct pd_comm *comm, void *context, struct pd_error *err)
{
    return storm(comm, context, err);
}

static pd_status case_storm_of_sums(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    return storm(comm, comm, err);
}

/* The last rank gives another count than the others: all fail, and whoever sees it names both. */
static pd_status case_mismatch(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    struct pd_error own;
    pd_status st = exercise_mismatch(comm, false, &own);
    if (st != PD_BUG && st != PD_PEER_LOST) PD_FAIL(err, PD_IO, "not noticed");
    printf("rank %u noticed: %s\n", comm->rank, own.message);
    fflush(stdout);
    PD_FAIL(err, PD_PEER_LOST, "%s", own.message);
}

/* Likewise of the second of two gathers, which begins while the first one ends: either may fail. */
static pd_status case_mismatch_behind(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    enum { COUNT = 1000 };
    const uint64_t second = COUNT + (comm->rank + 1 == comm->size);
    uint64_t *parts = calloc(comm->size * COUNT, sizeof *parts), *others = calloc(comm->size * second, sizeof *others);
    struct pd_comm_op ops[2] = {{.what = "parameters"}, {.what = "parameters"}};
    struct pd_error own;
    PD_TRY(pd_comm_start_all_gather(comm, &ops[0], parts, COUNT * sizeof *parts, err));
    PD_TRY(pd_comm_start_all_gather(comm, &ops[1], others, second * sizeof *others, err));
    usleep(20000); /* what a caller carries out while it waits has nothing begun behind it: leave it to the thread */
    const pd_status first = pd_comm_wait(comm, &ops[0], &own), st = pd_comm_wait(comm, &ops[1], first ? NULL : &own);
    free(parts);
    free(others);
    if (st != PD_BUG && st != PD_PEER_LOST) PD_FAIL(err, PD_IO, "not noticed");
    printf("rank %u noticed: %s\n", comm->rank, own.message);
    fflush(stdout);
    PD_FAIL(err, PD_PEER_LOST, "%s", own.message);
}

/* What leaves hosts, over all ranks: each part but those of the host itself once, whatever ranks a host has. */
static pd_status case_traffic(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    enum { COUNT = 50000, CLAIM_BYTES = 16 };
    const uint64_t part = COUNT * sizeof(uint64_t), size = comm->size, others = comm->host_count - 1;
    uint64_t *parts = calloc(size, part);
    struct pd_comm_traffic before, between, after;
    struct pd_comm_op op = {.what = "terms"};
    PD_TRY(pd_comm_barrier(comm, err));
    pd_comm_traffic(comm, &before);
    PD_TRY(pd_comm_start_reduce_scatter(comm, &op, parts, COUNT, parts + comm->rank * COUNT, err));
    PD_TRY(pd_comm_wait(comm, &op, err));
    pd_comm_traffic(comm, &between);
    PD_TRY(pd_comm_start_all_gather(comm, &op, parts, part, err));
    PD_TRY(pd_comm_wait(comm, &op, err));
    pd_comm_traffic(comm, &after);
    free(parts);
    uint64_t sums[3] = {between.leaving_bytes - before.leaving_bytes, after.leaving_bytes - between.leaving_bytes,
                        comm->rank_here == 0 ? (size - comm->ranks_here) * part : 0};
    PD_TRY(pd_comm_all_reduce(comm, sums, 3, PD_REDUCE_SUM_U64, err));
    EXERCISE_EXPECT(sums[0] == sums[2] + size * others * CLAIM_BYTES);
    EXERCISE_EXPECT(sums[1] == size * others * (part + CLAIM_BYTES));
    EXERCISE_EXPECT((comm->ranks_here > 1) == (after.inside_bytes > before.inside_bytes));
    return pd_comm_barrier(comm, err);
}

/* A message of each kind is damaged on its way to rank 1. */
static pd_status case_flip(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    static const char *const places[] = {"comm.reduce_scatter.flip@1:1", "comm.all_gather.flip@1:1",
                                         "comm.exchange.flip@1:1"};
    for (int i = 0; i < 3; i++) {
        PD_TRY(pd_fault_configure(places[i], NULL, err));
        uint64_t parts[64] = {0}, seen = 0, sent = 0;
        struct pd_comm_op op = {.what = "terms"};
        struct pd_comm_piece to = {(comm->rank + 1) % comm->size, &sent, sizeof sent},
                             from = {(comm->rank + comm->size - 1) % comm->size, parts, sizeof sent};
        if (i == 1)
            PD_TRY(pd_comm_start_all_gather(comm, &op, parts, 8, err));
        else if (!i)
            PD_TRY(pd_comm_start_reduce_scatter(comm, &op, parts, 1, parts + comm->rank, err));
        else {
            op = (struct pd_comm_op){.sends = &to, .recvs = &from, .send_count = 1, .recv_count = 1, .what = "rows"};
            PD_TRY(pd_comm_start(comm, &op, err));
        }
        PD_TRY(pd_comm_wait(comm, &op, err));
        for (uint32_t r = 0; r < comm->size; r++)
            seen += parts[r] != 0;
        PD_TRY(pd_fault_configure(NULL, NULL, err));
        PD_TRY(pd_comm_all_reduce(comm, &seen, 1, PD_REDUCE_SUM_U64, err));
        EXERCISE_EXPECT(i == 1 ? seen > 0 : seen == 1); /* what is gathered is passed on */
    }
    return pd_comm_barrier(comm, err);
}

/* One rank fails alone, and frees its communicator while the others wait for it: nobody hangs. */
static pd_status case_alone(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    PD_TRY(pd_comm_barrier(comm, err));
    if (comm->rank == 1) PD_FAIL(err, PD_IO, "the disk of this rank is gone");
    double began = seconds_now();
    struct pd_error lost;
    pd_status st = pd_comm_barrier(comm, &lost);
    if (st != PD_PEER_LOST || seconds_now() - began > SOON_SECONDS) PD_FAIL(err, PD_BUG, "not noticed");
    printf("rank %u noticed: %s\n", comm->rank, lost.message);
    fflush(stdout);
    PD_FAIL(err, PD_PEER_LOST, "%s", lost.message);
}

static pd_status case_speed(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    enum { ROUNDS = 20, BARRIERS = 2000 };
    uint64_t bytes = 16 << 20, each = bytes / comm->size;
    uint8_t *out = malloc(bytes), *in = malloc(bytes);
    memset(out, 1, bytes);
    memset(in, 2, bytes);
    struct pd_comm_piece sends[64], recvs[64];
    for (uint32_t p = 0; p < comm->size; p++) {
        sends[p] = (struct pd_comm_piece){.peer = p, .data = out + p * each, .bytes = each};
        recvs[p] = (struct pd_comm_piece){.peer = p, .data = in + p * each, .bytes = each};
    }
    PD_TRY(pd_comm_barrier(comm, err));
    double began = seconds_now();
    for (int i = 0; i < ROUNDS; i++) {
        struct pd_comm_op op = {.sends = sends, .send_count = comm->size, .recvs = recvs, .recv_count = comm->size};
        PD_TRY(pd_comm_start(comm, &op, err));
        PD_TRY(pd_comm_wait(comm, &op, err));
    }
    double exchange = (seconds_now() - began) / ROUNDS;
    began = seconds_now();
    for (int i = 0; i < BARRIERS; i++)
        PD_TRY(pd_comm_barrier(comm, err));
    double barrier = (seconds_now() - began) / BARRIERS;
    free(out);
    free(in);
    if (comm->rank == 0)
        printf("%s ranks %u: all to all %.2f GB/s over all ranks (self left out), barrier %.1f us\n", comm->ops->name,
               comm->size, (double)each * comm->size * (comm->size - 1) / exchange * 1e-9, barrier * 1e6);
    return PD_OK;
}

/* Small messages to everybody, as the sums of tensor parallelism are: waited for by the caller, and through the queue. */
static pd_status case_latency(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    enum { ROUNDS = 4000 };
    const uint64_t sizes[] = {8, 4096, 65536};
    struct pd_comm_piece sends[64], recvs[64];
    uint8_t *out = calloc(64, 65536), *in = calloc(64, 65536);
    for (uint32_t s = 0; s < 3; s++) {
        uint32_t count = 0;
        for (uint32_t p = 0; p < comm->size; p++) {
            if (p == comm->rank) continue;
            sends[count] = (struct pd_comm_piece){.peer = p, .data = out + 65536 * p, .bytes = sizes[s]};
            recvs[count++] = (struct pd_comm_piece){.peer = p, .data = in + 65536 * p, .bytes = sizes[s]};
        }
        PD_TRY(pd_comm_barrier(comm, err));
        const double began = seconds_now();
        for (int i = 0; i < ROUNDS; i++) {
            struct pd_comm_op op = {.sends = sends, .send_count = count, .recvs = recvs, .recv_count = count};
            PD_TRY(pd_comm_start(comm, &op, err));
            PD_TRY(pd_comm_wait(comm, &op, err));
        }
        if (comm->rank == 0)
            printf("%s ranks %u: %llu bytes to each other rank: start and wait %.1f us\n", comm->ops->name, comm->size,
                   (unsigned long long)sizes[s], (seconds_now() - began) / ROUNDS * 1e6);
    }
    free(out);
    free(in);
    return PD_OK;
}

static const struct {
    const char *name;
    pd_status (*rank_main)(struct pd_comm *, void *, struct pd_error *);
} cases[] = {{"all", case_all},
             {"hosts", case_hosts},
             {"places", case_places},
             {"kill", case_kill},
             {"speed", case_speed},
             {"storm", case_storm},
             {"storm_of_sums", case_storm_of_sums},
             {"mismatch", case_mismatch},
             {"flip", case_flip},
             {"mismatch_behind", case_mismatch_behind},
             {"traffic", case_traffic},
             {"alone", case_alone},
             {"latency", case_latency},
             {"device_memory", case_device_memory},
             {"lost_device", case_lost_device}};

static pd_status run_mpi(pd_status (*rank_main)(struct pd_comm *, void *, struct pd_error *), struct pd_error *err)
{
    struct pd_comm *comm;
    PD_TRY(pd_comm_open_mpi(&comm, err));
    pd_status st = rank_main(comm, NULL, err);
    st = pd_error_context(err, st, "rank %u of %u", comm->rank, comm->size);
    pd_comm_free(comm);
    return st;
}

int main(int argc, char **argv)
{
    struct pd_error err;
    uint64_t size = 0;
    for (size_t c = 0; argc == 3 && c < sizeof cases / sizeof *cases; c++) {
        if (strcmp(argv[2], cases[c].name)) continue;
        pd_status st;
        if (strncmp(argv[1], "local:", 6) == 0 && pd_parse_u64(argv[1] + 6, &size))
            st = pd_comm_run_local((uint32_t)size, 1, cases[c].rank_main, NULL, &err);
        else
            st = run_mpi(cases[c].rank_main, &err);
        if (st) fprintf(stderr, "comm_program: %s: %s (%s)\n", pd_status_name(st), err.message, err.where);
        return pd_status_exit_code(st);
    }
    fprintf(stderr, "usage: comm_program mpi|local:RANKS "
                    "all|hosts|kill|storm|storm_of_sums|mismatch|flip|traffic|alone|speed|latency|"
                    "device_memory|lost_device\n");
    return 64;
}
