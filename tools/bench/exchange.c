/* perdure bench exchange: what gradients and parameters cost between hosts, over whole steps.
 *
 * Ranks are processes, started as perdure train starts them; hosts are pretended, or network namespaces of
 * tools/bench/hosts.sh. With P parameters on H hosts each must send at least (8 + 2) * P * (H - 1) / H bytes under ZeRO-1
 * and 2, and (8 + 4) * P * (H - 1) / H under ZeRO-3: gradient terms of 8 bytes (or 4) to their owners, and bf16 parameters back,
 * which ZeRO-3 gathers twice. Each measurement lies between two barriers, whose bytes count too. */
#include "ckpt/base/clock.h"
#include "ckpt/base/parse.h"
#include "tools/bench/bench.h"
#include "trainer/launch/starter.h"
#include "trainer/plan/cost_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARAMETER_BYTES = 2, RUNS_MAX = PD_BENCH_PAIRS_MAX, WORDS_MAX = 64, CONTEXT_MAX = 64 };

struct exchange_bench {
    uint32_t hosts, ranks, runs;
    uint32_t zero_stage, micro_batches, tokens; /* in a step; 0 in the first two: all values */
    double gbit;                                /* of a host's link; 0: unknown */
    const char *interface;
    bool json, is_rank;
    const char *words[WORDS_MAX]; /* settings of the runs */
    uint32_t word_count;
    struct pd_comm *comm;
    struct pd_report report;
    double worst_bytes, worst_wire, worst_time, worst_plan; /* ratios; for the plan the one furthest from 1 */
};

/* Cost of one measurement, summed over ranks. */
struct sample {
    double seconds;
    uint64_t leaving_bytes, wire_bytes;
};

/* ---- counters ---- */

/* Reads the bytes this host has sent over its interface; one of its ranks reports them. */
static pd_status read_wire(const struct exchange_bench *b, uint64_t *ret_bytes, struct pd_error *err)
{
    char path[256], text[32] = "";
    *ret_bytes = 0;
    if (!b->interface || b->comm->rank_here) return PD_OK;
    snprintf(path, sizeof path, "/sys/class/net/%.100s/statistics/tx_bytes", b->interface);
    FILE *f = fopen(path, "re");
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: the counter of a host's link", path);
    const bool is_read = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    text[strcspn(text, "\n")] = '\0';
    if (!is_read || !pd_parse_u64(text, ret_bytes)) PD_FAIL(err, PD_IO, "%s is not a number", path);
    return PD_OK;
}

static pd_status look(const struct exchange_bench *b, uint64_t ret_now[3], struct pd_error *err)
{
    struct pd_comm_traffic traffic;
    PD_TRY(pd_comm_barrier(b->comm, err));
    pd_comm_traffic(b->comm, &traffic);
    PD_TRY(read_wire(b, &ret_now[1], err));
    ret_now[0] = traffic.leaving_bytes;
    ret_now[2] = pd_clock_monotonic_ns(NULL);
    return PD_OK;
}

/* ---- results ---- */

static void report_one(struct exchange_bench *b, const char *name, const char *what, double value, enum pd_unit unit)
{
    char key[96];
    snprintf(key, sizeof key, "%s_%s", name, what);
    if (b->comm->rank == 0) pd_report_double(&b->report, key, value, unit);
}

/* The measured steps. Bytes are summed over all hosts. */
struct steps {
    struct pd_bench_run run;
    double ideal, planned;                /* bytes; 0: unknown */
    double compute_seconds;               /* without any exchange */
    double stage_seconds[PD_STEP_STAGES]; /* of this rank, all steps except the first */
};

static pd_status exchange_run_step(struct steps *steps, uint64_t number, struct pd_error *err)
{
    struct pd_step_result result;
    PD_TRY(pd_engine_step(steps->run.whole.engine, number * steps->run.config.batch.sequences, number, &result, err));
    for (uint32_t s = 0; s < PD_STEP_STAGES && number; s++)
        steps->stage_seconds[s] += result.stage_seconds[s];
    return PD_OK;
}

/* If links are not the bottleneck, the time says nothing about them, so it has no ratio. */
static void report_time(struct exchange_bench *b, const char *name, const struct steps *steps, double seconds)
{
    const double least = steps->ideal / b->comm->host_count * 8e-9 / b->gbit;
    report_one(b, name, "wire_seconds", least, PD_UNIT_SECONDS);
    if (steps->compute_seconds > 0) report_one(b, name, "compute_seconds", steps->compute_seconds, PD_UNIT_SECONDS);
    if (steps->compute_seconds > least / 2) {
        if (b->comm->rank == 0) pd_report_say(&b->report, "%s is bound by compute, so it has no wire_ratio", name);
        return;
    }
    report_one(b, name, "wire_ratio", seconds / least, PD_UNIT_NONE);
    b->worst_time = fmax(b->worst_time, seconds / least);
}

static pd_status exchange_measure(const struct exchange_bench *b, struct steps *steps, uint64_t number,
                                  struct sample *ret_sample, struct pd_error *err)
{
    uint64_t before[3], after[3];
    PD_TRY(look(b, before, err));
    PD_TRY(exchange_run_step(steps, number, err));
    PD_TRY(look(b, after, err));
    uint64_t sums[2] = {after[0] - before[0], after[1] - before[1]}, longest = after[2] - before[2];
    PD_TRY(pd_comm_all_reduce(b->comm, sums, 2, PD_REDUCE_SUM_U64, err));
    PD_TRY(pd_comm_all_reduce(b->comm, &longest, 1, PD_REDUCE_MAX_U64, err));
    *ret_sample = (struct sample){(double)longest * 1e-9, sums[0], sums[1]};
    return PD_OK;
}

/* Ignores the first run, which creates links. */
static pd_status exchange_measure_all(struct exchange_bench *b, const char *name, struct steps *steps, struct pd_error *err)
{
    double seconds[RUNS_MAX], leaving = 0, wire = 0;
    struct sample sample;
    for (uint32_t i = 0; i <= b->runs; i++) {
        PD_TRY(exchange_measure(b, steps, i, &sample, err));
        if (i == 0) continue;
        seconds[i - 1] = sample.seconds;
        leaving += (double)sample.leaving_bytes / b->runs;
        wire += (double)sample.wire_bytes / b->runs;
    }
    const double median = pd_bench_quantile(seconds, b->runs, 0.5);
    report_one(b, name, "seconds", median, PD_UNIT_SECONDS);
    if (steps->ideal <= 0) return PD_OK;
    report_one(b, name, "host_bytes_ratio", leaving / steps->ideal, PD_UNIT_NONE);
    b->worst_bytes = fmax(b->worst_bytes, leaving / steps->ideal);
    if (steps->planned > 0) {
        report_one(b, name, "plan_ratio", leaving / steps->planned, PD_UNIT_NONE);
        if (fabs(leaving / steps->planned - 1) >= fabs(b->worst_plan - 1)) b->worst_plan = leaving / steps->planned;
    }
    if (b->interface) {
        report_one(b, name, "host_wire_bytes", wire / b->hosts, PD_UNIT_BYTES);
        report_one(b, name, "host_wire_bytes_ratio", wire / steps->ideal, PD_UNIT_NONE);
        b->worst_wire = fmax(b->worst_wire, wire / steps->ideal);
    }
    if (b->gbit > 0) report_time(b, name, steps, median);
    return PD_OK;
}

/* ---- steps ---- */

/* comm NULL: this rank alone. */
static pd_status open_run(struct exchange_bench *b, struct pd_comm *comm, const char *tokens, uint32_t zero_stage,
                          uint32_t micro_batches, struct pd_bench_run *run, struct pd_error *err)
{
    char sections[256];
    const uint32_t ranks = comm ? comm->size : 1;
    snprintf(sections, sizeof sections,
             "numerics: {precision: bf16, virtual_tp: 1}\nlayout: {recompute: none, dp: %u, zero_stage: %u, order: %s}\n",
             ranks, zero_stage, zero_stage == 3 ? "breadth_first" : "depth_first");
    const struct pd_bench_run_options options = {
        .model = "preset: gpt2-124m, hidden: 512, heads: 8, layers: 4, vocab: 4096, context: 64",
        .tokens = tokens,
        .sequences = (uint64_t)micro_batches * ranks,
        .micro_batch = 1,
        .context = b->tokens,
        .sections = sections,
        .overrides = b->words,
        .override_count = b->word_count};
    PD_TRY(pd_bench_run_configure(run, &options, err));
    run->comm = comm;
    return pd_bench_run_open(run, 1, err);
}

static pd_status planned_bytes(const struct exchange_bench *b, const struct pd_bench_run *run, double *ret_bytes,
                               struct pd_error *err)
{
    struct pd_machine machine;
    struct pd_laid_out laid_out;
    struct pd_step_cost cost;
    PD_TRY(pd_machine_preset("cpu", &machine, err));
    PD_TRY(pd_lay_out(&run->config, run->whole.model, b->comm->size, &laid_out, err));
    machine.ranks_per_host = b->comm->ranks_here_max;
    pd_step_cost(&run->config, run->whole.model, &laid_out, &machine, &cost);
    *ret_bytes = (double)(cost.parameter_bytes_host + cost.gradient_bytes_host) * b->hosts;
    return PD_OK;
}

/* Times a step without exchange: all ranks at once, each with its own micro-batches and the update of all. */
static pd_status compute_alone(struct exchange_bench *b, const char *tokens, uint32_t micro_batches, double *ret_seconds,
                               struct pd_error *err)
{
    struct steps steps = {.ideal = 0};
    struct sample sample = {0};
    pd_status st = open_run(b, NULL, tokens, 0, micro_batches, &steps.run, err);
    for (uint64_t i = 0; i < 2 && !st; i++)
        st = exchange_measure(b, &steps, i, &sample, err);
    pd_bench_run_close(&steps.run);
    *ret_seconds = sample.seconds;
    return st;
}

static pd_status bench_step(struct exchange_bench *b, const char *tokens, uint32_t stage, uint32_t micro_batches,
                            struct pd_error *err)
{
    struct steps steps = {.ideal = 0};
    char name[64];
    snprintf(name, sizeof name, "zero%u_micro_batches%u", stage, micro_batches);
    if (b->gbit > 0) PD_TRY(compute_alone(b, tokens, micro_batches, &steps.compute_seconds, err));
    pd_status st = open_run(b, b->comm, tokens, stage, micro_batches, &steps.run, err);
    if (!st) st = planned_bytes(b, &steps.run, &steps.planned, err);
    if (!st) {
        const size_t term = steps.run.config.numerics.terms == PD_TERMS_32 ? sizeof(int32_t) : sizeof(int64_t);
        steps.ideal = (double)(term + PARAMETER_BYTES * (stage == 3 ? 2u : 1u)) * (b->hosts - 1.0) *
                      (double)steps.run.whole.model->parameter_count;
        st = exchange_measure_all(b, name, &steps, err);
    }
    for (uint32_t s = 0; s < PD_STEP_STAGES && !st; s++) {
        char what[32];
        snprintf(what, sizeof what, "%s_seconds", pd_step_stage_names[s]);
        report_one(b, name, what, steps.stage_seconds[s] / b->runs, PD_UNIT_SECONDS);
    }
    pd_bench_run_close(&steps.run);
    return st;
}

static pd_status bench_steps(struct exchange_bench *b, const char *tokens, struct pd_error *err)
{
    static const uint32_t micro_batches[] = {1, 4, 16};
    for (uint32_t stage = 1; stage <= 3; stage++) {
        if (b->zero_stage && b->zero_stage != stage) continue;
        for (uint32_t m = 0; m < (b->micro_batches ? 1 : sizeof micro_batches / sizeof *micro_batches); m++)
            PD_TRY(bench_step(b, tokens, stage, b->micro_batches ? b->micro_batches : micro_batches[m], err));
    }
    return PD_OK;
}

static pd_status bench_on_tokens(struct exchange_bench *b, struct pd_error *err)
{
    char path[4096];
    PD_TRY(pd_bench_temporary(path, err));
    pd_status st = pd_bench_write_tokens(path, 1 << 16, 4096, false, err);
    if (!st) st = bench_steps(b, path, err);
    unlink(path);
    return st;
}

/* ---- ranks ---- */

static pd_status bench_rank(struct exchange_bench *b, struct pd_error *err)
{
    if (b->comm->host_count != b->hosts)
        PD_FAIL(err, PD_INVALID, "%u ranks are on %u hosts, not on %u", b->comm->size, b->comm->host_count, b->hosts);
    if (b->comm->rank == 0) {
        pd_report_begin(&b->report, b->json);
        pd_report_say(&b->report, "%u ranks on %u hosts%s", b->comm->size, b->hosts, b->interface ? "" : ", pretended ones");
        PD_REPORT_U64S(&b->report, {"hosts", b->hosts}, {"ranks", b->comm->size});
    }
    PD_TRY(bench_on_tokens(b, err));
    if (b->comm->rank) return PD_OK;
    if (b->hosts > 1) pd_report_double(&b->report, "host_bytes_ratio", b->worst_bytes, PD_UNIT_NONE);
    if (b->hosts > 1) pd_report_double(&b->report, "plan_ratio", b->worst_plan, PD_UNIT_NONE);
    if (b->interface) pd_report_double(&b->report, "host_wire_bytes_ratio", b->worst_wire, PD_UNIT_NONE);
    if (b->worst_time > 0) pd_report_double(&b->report, "wire_ratio", b->worst_time, PD_UNIT_NONE);
    return pd_report_end(&b->report, err);
}

static pd_status run_rank(struct exchange_bench *b, struct pd_error *err)
{
    const char *gbit = getenv("PERDURE_BENCH_GBIT");
    b->interface = getenv("PERDURE_BENCH_INTERFACE");
    if (gbit && !pd_parse_double(gbit, &b->gbit)) PD_FAIL(err, PD_INVALID, "PERDURE_BENCH_GBIT=%s: give a number", gbit);
    PD_TRY(pd_comm_open_mpi(&b->comm, err));
    const pd_status st = bench_rank(b, err);
    pd_comm_free(b->comm);
    return st;
}

/* Execs the program that starts the ranks. */
static pd_status start_ranks(const struct exchange_bench *b, int argc, char **argv, struct pd_error *err)
{
    char self[4096], hosts[16];
    const char *worker[WORDS_MAX + 8] = {self, "bench", "exchange", "--rank"};
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) PD_FAIL_ERRNO(err, errno, "/proc/self/exe: where this program lies");
    self[length] = '\0';
    for (int i = 1; i < argc && i < WORDS_MAX; i++)
        worker[3 + i] = argv[i];
    const struct pd_start start = {.transport = PD_TRANSPORT_MPI, .ranks = b->ranks, .dir = "", .worker = worker};
    struct pd_starter_command command;
    PD_TRY(pd_starter_command_make(&start, &command, err));
    pd_starter_environment_set(&start, (int)getpid());
    snprintf(hosts, sizeof hosts, "%u", b->hosts);
    if (!getenv("PERDURE_BENCH_INTERFACE")) setenv("PERDURE_TEST_HOSTS", hosts, 1);
    execvp(command.argv[0], command.argv);
    PD_FAIL_ERRNO(err, errno, "starting %s", command.argv[0]);
}

pd_status pd_bench_exchange(int argc, char **argv, struct pd_error *err)
{
    struct exchange_bench b = {.hosts = 4, .ranks = 8, .runs = 5, .tokens = 16, .worst_plan = 1};
    const char *terms = NULL;
    char terms_word[64];
    struct pd_option options[] = {
        PD_OPTION("hosts", "N", "over which ranks are spread (4)", PD_OPTION_U32, &b.hosts, 1, 1024),
        PD_OPTION("ranks", "N", "processes in all (8)", PD_OPTION_U32, &b.ranks, 1, 4096),
        PD_OPTION("runs", "N", "steps that are measured, after one that is not, 1 to 99 (5)", PD_OPTION_U32, &b.runs, 1,
                  RUNS_MAX),
        PD_OPTION("zero", "STAGE", "1, 2 or 3; 0: all (0)", PD_OPTION_U32, &b.zero_stage, 0, 3),
        PD_OPTION("micro-batches", "N", "of a rank in a step; 0: 1, 4 and 16 (0)", PD_OPTION_U32, &b.micro_batches, 0, 1024),
        PD_OPTION("tokens", "N", "of a micro-batch, 1 to 64 (16)", PD_OPTION_U32, &b.tokens, 1, CONTEXT_MAX),
        PD_OPTION("terms", "BITS", "64 or 32 of a gradient: numerics.terms", PD_OPTION_TEXT, &terms),
        PD_OPTION("rank", NULL, "this is one of the ranks, which the starter adds", PD_OPTION_FLAG, &b.is_rank),
        {0}};
    const struct pd_usage usage = {
        .arguments = "[section.key=value...]",
        .doc =
            "Bytes that leave a host in a step of training, over (8 + 2) bytes a parameter under ZeRO-1 and (8 + 4) under "
            "ZeRO-3 (4 for 8 with --terms=32), times the share of other hosts, for 1, 4 and 16 micro-batches a "
            "rank.\vWith tools/bench/hosts.sh hosts "
            "are network namespaces, their interfaces count bytes too, and links may have a rate: wire_ratio is the "
            "time of a step over the time of the bytes on the link, if compute alone takes less than half of that.",
        .options = options,
        .json = &b.json,
        PD_WORDS(b.words, WORDS_MAX, &b.word_count)};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (terms && b.word_count < WORDS_MAX) {
        snprintf(terms_word, sizeof terms_word, "numerics.terms=%.32s", terms);
        b.words[b.word_count++] = terms_word;
    }
    if (b.hosts > b.ranks) PD_FAIL(err, PD_USAGE, "--hosts=%u: there are %u ranks only", b.hosts, b.ranks);
    return b.is_rank ? run_rank(&b, err) : start_ranks(&b, argc, argv, err);
}
