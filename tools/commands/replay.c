/* perdure replay: recomputes past steps of a run and compares them with what the run recorded. */
#include "trainer/run/replay.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/regular_file.h"
#include "tools/command.h"
#include "tools/commands/ckpt.h"
#include "tools/library/place.h"
#include "tools/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OVERRIDES_MAX 64

/* One rank with everything in memory: the bits are the same under any layout. */
static const char *const alone[] = {"layout.ranks=1",
                                    "layout.auto=false",
                                    "layout.dp=1",
                                    "layout.tp=1",
                                    "layout.pp=1",
                                    "layout.sp=1",
                                    "layout.zero_shard=0",
                                    "layout.interleave=1",
                                    "layout.order=auto",
                                    "offload.optimizer=device",
                                    "offload.parameters=device",
                                    "offload.gradients=device",
                                    "offload.activations=device",
                                    "guard.replay_every=0"};
#define ALONE (sizeof alone / sizeof *alone)

struct loss {
    uint64_t recorded, computed; /* bits */
    bool has_record;
};

struct audit {
    const char *words[OVERRIDES_MAX], *run;
    uint64_t step, last; /* last: step of the checkpoint to compare with, else `step` */
    uint32_t word_count, threads;
    bool json, loss_only;
    struct pd_ckpt_place place;
    char next[4096]; /* that checkpoint, or "" */
    struct pd_config config;
    struct loss *losses; /* (loss_count) from the checkpoint on */
    uint64_t loss_count, first;
    struct pd_replayed replayed;
    uint64_t recorded_digest;
};

/* ---- the run's records ---- */

static void take_line(struct audit *a, const char *line, size_t bytes, uint64_t *newest)
{
    struct pd_json_document *document = NULL;
    uint64_t step = 0;
    if (pd_json_parse("metrics.jsonl", line, bytes, &document, NULL)) return; /* a cut-off line */
    const char *bits = pd_json_text(pd_json_member(pd_json_root(document), "loss_bits"));
    if (bits && pd_json_is_u64(pd_json_member(pd_json_root(document), "step"), &step)) {
        if (step > *newest) *newest = step;
        if (step > a->first && step - a->first <= a->loss_count)
            a->losses[step - a->first - 1] =
                (struct loss){strtoull(bits, NULL, 16), a->losses[step - a->first - 1].computed, true};
    }
    pd_json_document_free(document);
}

/* For a step computed more than once the last line counts. Returns the newest step. */
static uint64_t read_metrics(struct audit *a)
{
    char path[4200], *line = NULL;
    size_t capacity = 0;
    uint64_t newest = 0;
    snprintf(path, sizeof path, "%.4000s/metrics.jsonl", a->run);
    FILE *f = pd_regular_fopen(path, false);
    if (!f) return 0;
    for (ssize_t bytes; (bytes = getline(&line, &capacity, f)) > 0;)
        take_line(a, line, (size_t)bytes, &newest);
    free(line);
    (void)fclose(f);
    return newest;
}

/* Returns the oldest checkpoint of `step` or later, in any tier, of the newest lineage; NULL: none. Selects its tier. */
static const struct pd_store_entry *find_next(struct audit *a)
{
    const struct pd_run_tier *newest = pd_run_tiers_newest(&a->place.tiers);
    const struct pd_store_entry *next = NULL;
    uint32_t tier = 0;
    for (uint32_t i = 0; newest && i < a->place.tiers.count; i++) {
        struct pd_store *store = a->place.tiers.tiers[i].store;
        for (uint32_t k = 0; store && k < pd_store_count(store); k++) {
            const struct pd_store_entry *entry = pd_store_entry_at(store, k);
            if (entry->lineage != newest->lineage || entry->step < a->step || (next && entry->step >= next->step)) continue;
            next = entry;
            tier = i;
        }
    }
    if (next) (void)pd_ckpt_place_turn_to(&a->place, tier);
    return next;
}

/* Chooses the configuration of the steps: that of the launch that made the next checkpoint, or the newest one. */
static pd_status replay_choose(struct audit *a, struct pd_error *err)
{
    struct pd_commit commit;
    const struct pd_store_entry *next = find_next(a), *entry = next;
    const uint64_t newest = read_metrics(a);
    if (!entry) PD_TRY(pd_ckpt_place_choose(&a->place, UINT64_MAX, &entry, err));
    if (!next && newest < a->step)
        PD_FAIL(err, PD_CORRUPT,
                "%s has no record of step %" PRIu64 ": its newest checkpoint is of step %" PRIu64
                ", and the newest line of its metrics.jsonl of step %" PRIu64 "; name an earlier step",
                a->run, a->step, entry->step, newest);
    a->last = a->step;
    if (next && !a->loss_only) {
        pd_store_entry_path(a->place.store, next, a->next);
        a->last = next->step;
    }
    PD_TRY(pd_store_read_commit(a->place.store, entry, &commit, err));
    const char *overrides[ALONE + OVERRIDES_MAX];
    memcpy(overrides, alone, sizeof alone);
    memcpy(overrides + ALONE, a->words, a->word_count * sizeof *a->words);
    pd_status st = pd_commit_check_is_run(&commit, err);
    if (!st) st = pd_config_parse_saved(commit.state.config, overrides, (uint32_t)ALONE + a->word_count, &a->config, err);
    pd_commit_deinit(&commit);
    return pd_error_context(err, st, "the configuration of step %" PRIu64, entry->step);
}

/* ---- recomputing ---- */

static pd_status take_step(void *context, uint64_t step, const struct pd_step_result *result, struct pd_error *err)
{
    struct audit *a = context;
    if (!a->loss_count) a->first = step - 1;
    if (step <= a->first) return PD_OK; /* a rollback to before it */
    const uint64_t count = step - a->first;
    struct loss *grown = count > a->loss_count ? realloc(a->losses, count * sizeof *grown) : a->losses;
    if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for the losses of %" PRIu64 " steps", count);
    a->losses = grown;
    for (; a->loss_count < count; a->loss_count++)
        a->losses[a->loss_count] = (struct loss){.recorded = 0};
    memcpy(&a->losses[count - 1].computed, &result->loss, sizeof result->loss);
    return PD_OK;
}

/* ---- comparing ---- */

static bool differs(const struct loss *l)
{
    return l->has_record && l->recorded != l->computed;
}

static double value_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void report_losses(struct pd_report *report, const struct audit *a, uint64_t *ret_different)
{
    uint64_t compared = 0, first = a->loss_count;
    *ret_different = 0;
    for (uint64_t i = a->loss_count; i-- > 0;) {
        compared += a->losses[i].has_record;
        *ret_different += differs(&a->losses[i]);
        if (differs(&a->losses[i])) first = i;
    }
    PD_REPORT_U64S(report, {"losses_compared", compared}, {"losses_different", *ret_different});
    if (first == a->loss_count) return;
    pd_report_u64(report, "first_different_step", a->first + first + 1, PD_UNIT_NONE);
    pd_report_double(report, "recorded_loss", value_of(a->losses[first].recorded), PD_UNIT_NONE);
    pd_report_double(report, "computed_loss", value_of(a->losses[first].computed), PD_UNIT_NONE);
    pd_report_text(report, "recorded_loss_bits", pd_text_hex(a->losses[first].recorded).text);
    pd_report_text(report, "computed_loss_bits", pd_text_hex(a->losses[first].computed).text);
}

static void report_state(struct pd_report *report, const struct audit *a)
{
    if (!a->next[0]) return;
    pd_report_text(report, "checkpoint", a->next);
    pd_report_text(report, "recorded_state_digest", pd_text_hex(a->recorded_digest).text);
    pd_report_text(report, "computed_state_digest", pd_text_hex(a->replayed.state_digest).text);
}

static pd_status audit(struct audit *a, struct pd_error *err)
{
    PD_TRY(replay_choose(a, err));
    if (a->next[0]) PD_TRY(pd_ckpt_state_digest(a->next, &a->recorded_digest, err));
    struct pd_tiers_options tiers = {.count = a->place.tiers.count};
    for (uint32_t i = 0; i < tiers.count; i++)
        tiers.tiers[i] = (struct pd_tier_options){.dir = a->place.tiers.tiers[i].dir, .keep_last = 1};
    const struct pd_replay replay = {.config = &a->config,
                                     .tiers = &tiers,
                                     .step = a->step,
                                     .last = a->last,
                                     .threads = a->threads ? a->threads : pd_cpu_cores(),
                                     .stepped = take_step,
                                     .context = a};
    PD_TRY(pd_replay(&replay, &a->replayed, err));
    (void)read_metrics(a);
    struct pd_report report;
    uint64_t different;
    pd_report_begin(&report, a->json);
    PD_REPORT_U64S(&report, {"step", a->step}, {"from_step", a->replayed.from_step}, {"to_step", a->last});
    report_losses(&report, a, &different);
    report_state(&report, a);
    const bool is_other = a->next[0] && a->recorded_digest != a->replayed.state_digest;
    pd_report_text(&report, "result", different || is_other ? "differs" : "agrees");
    PD_TRY(pd_report_end(&report, err));
    if (!different && !is_other) return PD_OK;
    PD_FAIL(err, PD_CORRUPT,
            "%s of steps %" PRIu64 " to %" PRIu64
            " %s not what the run wrote down: it or this machine computed wrongly; run this again on a third one, and where "
            "it agrees with this one continue from step %" PRIu64 " (move the checkpoints behind it away)",
            different ? "losses" : "the state behind the last", a->replayed.from_step + 1, a->last, different ? "are" : "is",
            a->replayed.from_step);
}

/* RUN is the only word that is not an override. */
pd_status pd_cmd_replay(int argc, char **argv, struct pd_error *err)
{
    struct audit a = {.run = NULL};
    struct pd_option options[] = {
        PD_OPTION("step", "N", "the step to compute again", PD_OPTION_U64, &a.step, 1, UINT64_C(1) << 53),
        PD_OPTION("loss-only", NULL, "stop after step N and compare its loss only, not the next checkpoint", PD_OPTION_FLAG,
                  &a.loss_only),
        PD_OPTION("threads", "T", "default: all cores", PD_OPTION_U32, &a.threads, 1, 1024),
        {0}};
    const struct pd_usage usage = {
        .arguments = "RUN --step=N [section.key=value...]",
        .doc = "Computes step N of a run again, on one rank of this machine, from the checkpoint before it to the one after "
               "it. Compares losses and state bit for bit with what the run recorded (metrics.jsonl and that checkpoint). "
               "If files have moved, set their keys, such as data.train[0].path=FILE. Exits with 65 if something differs.",
        .options = options,
        .json = &a.json,
        PD_WORDS(a.words, OVERRIDES_MAX, &a.word_count),
        .takes_keys = true};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    a.run = pd_command_take_config(a.words, &a.word_count);
    if (!a.run || !a.step) PD_FAIL(err, PD_USAGE, "replay needs a run and a step: perdure replay runs/mine --step=120");
    PD_TRY(pd_ckpt_place_open_quiet(a.run, &pd_ckpt_notes, &a.place, err));
    const pd_status st = audit(&a, err);
    pd_config_deinit(&a.config);
    pd_ckpt_place_close(&a.place);
    free(a.losses);
    return st;
}
