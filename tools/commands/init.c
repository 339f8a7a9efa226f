/* perdure init: turns three answers into a configuration that fits, using the planner. */
#include "ckpt/base/memory_limit.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/words.h"
#include "tools/command.h"
#include "tools/commands/ckpt.h"
#include "tools/commands/plan_report.h"
#include "tools/library/foreign.h"
#include "tools/output.h"
#include "trainer/engine/gpus.h"
#include "trainer/run/launched.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_BYTES 1024u
#define CPU_DATA_RANKS 8u
#define TEXT_VOCAB_MAX 512u /* for a model over bytes */

struct init {
    char data[ANSWER_BYTES], model[ANSWER_BYTES], machine[ANSWER_BYTES], most[ANSWER_BYTES];
    const char *dir, *output;
    uint32_t ranks, data_ranks; /* data_ranks: the most that the run may ever use: numerics.lanes */
    uint64_t memory;
    bool asks, json;

    bool is_from; /* the model is a checkpoint to start from */
    struct pd_machine planned;
    struct pd_config config; /* of the step in `steps` that fits */
    struct pd_layout_choice choice;
    uint32_t step;
    uint64_t parameters;
};

/* Steps to try, each replacing the previous one, until it fits. layout.auto chooses recomputation and degrees itself. */
static const struct {
    const char *overrides[6], *why;
    bool is_for_gpus;
} steps[] = {
    {{NULL}, "all of it fits into memory", false},
    {{"batch.micro_batch=1", NULL}, "one sequence at a time, since more do not fit", false},
    {{"batch.micro_batch=1", "offload.optimizer=cpu", NULL},
     "the optimizer's state lies in the host's memory, since it does not fit beside the rest",
     true},
    {{"batch.micro_batch=1", "offload.optimizer=nvme", NULL},
     "the optimizer's state streams from the drive, since it does not fit into memory",
     false},
    {{"batch.micro_batch=1", "offload.optimizer=nvme", "offload.parameters=nvme", "offload.gradients=nvme",
      "offload.activations=nvme", NULL},
     "state, copies, gradients and activations stream from the drive, since they do not fit into memory",
     false},
};
enum { STEPS = sizeof steps / sizeof *steps };

/* ---- an answer ---- */

static pd_status ask_once(struct init *in, const char *question, const char *otherwise, char *answer, const char *flag,
                          struct pd_error *err)
{
    if (answer[0]) return PD_OK;
    if (in->asks) {
        (void)fprintf(stderr, otherwise ? "%s [%s]: " : "%s: ", question, otherwise);
        (void)fflush(stderr);
        if (!fgets(answer, ANSWER_BYTES, stdin)) answer[0] = '\0';
        answer[strcspn(answer, "\n")] = '\0';
    }
    if (!answer[0] && otherwise) snprintf(answer, ANSWER_BYTES, "%s", otherwise);
    if (!answer[0])
        PD_FAIL(err, PD_USAGE, "init asks \"%s\" and got no answer: give --%s (see perdure init --help)", question, flag);
    return PD_OK;
}

/* ---- the machine ---- */

static pd_status find_machine(struct init *in, struct pd_error *err)
{
    struct pd_gpus gpus = {.count = 0};
    struct pd_memory_limit limit;
    const bool is_here = strcmp(in->machine, "auto") == 0;
    if (is_here) pd_gpus_find(&gpus);
    if (gpus.count)
        (void)pd_machine_of_gpu(&gpus.gpus[0], &in->planned);
    else
        PD_TRY(pd_machine_preset(is_here ? "cpu" : in->machine, &in->planned, err));
    if (!in->ranks) in->ranks = gpus.count ? gpus.count : 1;
    const bool is_cpu = strcmp(in->planned.name, "cpu") == 0;
    if (in->memory)
        in->planned.device_bytes = (double)in->memory;
    else if (is_cpu && pd_memory_limit_read(NULL, &limit))
        in->planned.device_bytes = 0.8 * (double)limit.free_bytes / in->ranks;
    return PD_OK;
}

/* ---- the three answers ---- */

static pd_status check_model(struct init *in, struct pd_error *err)
{
    struct pd_model_config ignored;
    struct pd_error unknown = {.status = PD_OK};
    in->is_from = pd_ckpt_needs_import(in->model);
    if (in->is_from || !pd_model_preset(in->model, &ignored, &unknown)) return PD_OK;
    PD_FAIL(err, PD_INVALID, "--model=%s: no checkpoint of another program lies there, and %s", in->model, unknown.message);
}

static pd_status check_data_ranks(struct init *in, struct pd_error *err)
{
    uint64_t most;
    if (!pd_parse_u64(in->most, &most) || most < 1 || most > 65536)
        PD_FAIL(err, PD_USAGE, "--data-ranks=%s: give a number from 1 to 65536", in->most);
    in->data_ranks = (uint32_t)most;
    return PD_OK;
}

/* Asks again after a wrong answer on a terminal; a wrong option ends the command. check NULL: accepts any answer. */
static pd_status ask(struct init *in, const char *question, const char *otherwise, char *answer, const char *flag,
                     pd_status (*check)(struct init *in, struct pd_error *err), struct pd_error *err)
{
    const bool is_asked = in->asks && !answer[0];
    for (;;) {
        pd_status st = ask_once(in, question, otherwise, answer, flag, err);
        if (!st && check) st = check(in, err);
        if (!st || !is_asked || feof(stdin)) return st;
        (void)fprintf(stderr, "%s\n", err->message);
        pd_error_clear(err);
        answer[0] = '\0';
    }
}

/* ---- what fits ---- */

static pd_status init_load(struct init *in, uint32_t step, struct pd_config *ret_config, struct pd_error *err)
{
    char dir[ANSWER_BYTES + 16], data[ANSWER_BYTES + 24], model[ANSWER_BYTES + 24];
    char lanes[32], micro_batch[40];
    const char *overrides[16] = {
        dir, data, model, "layout.auto=true", "data.validation_fraction=0.01", "validation.every=100"};
    uint32_t count = 6;
    snprintf(dir, sizeof dir, "run.dir=%.1000s", in->dir);
    snprintf(data, sizeof data, "data.train[0].path=%s", in->data);
    snprintf(model, sizeof model, in->is_from ? "init.from=%s" : "model.preset=%s", in->model);
    for (uint32_t i = 0; steps[step].overrides[i]; i++)
        overrides[count++] = steps[step].overrides[i];
    snprintf(lanes, sizeof lanes, "numerics.lanes=%u", in->data_ranks);
    PD_TRY(pd_config_load(NULL, overrides, count, ret_config, err));
    const uint32_t sequences = ret_config->batch.sequences;
    uint32_t size = ret_config->batch.micro_batch;
    if (in->data_ranks > sequences) {
        pd_config_deinit(ret_config);
        PD_FAIL(err, PD_INVALID, "--data-ranks=%u: a step has %s, and a data rank computes at least one; give at most %u",
                in->data_ranks, pd_counted(sequences, "sequence").text, sequences);
    }
    while (sequences / size < in->data_ranks || sequences % size)
        size--;
    snprintf(micro_batch, sizeof micro_batch, "batch.micro_batch=%u", size);
    overrides[count++] = lanes;
    overrides[count++] = micro_batch;
    pd_config_deinit(ret_config);
    PD_TRY(pd_config_load(NULL, overrides, count, ret_config, err));
    pd_status st = in->is_from ? pd_ckpt_import_model(ret_config, err) : PD_OK;
    if (ret_config->batch.context > 1024) ret_config->batch.context = 1024;
    if (ret_config->batch.context > ret_config->model.context) ret_config->batch.context = ret_config->model.context;
    const bool is_gpu = strcmp(in->planned.name, "cpu") != 0;
    ret_config->run.device = is_gpu && pd_plan_counts_gpus() ? PD_DEVICE_GPU : PD_DEVICE_CPU;
    if (st) pd_config_deinit(ret_config);
    return st;
}

static pd_status try_step(struct init *in, uint32_t step, struct pd_error *err)
{
    struct pd_model *model = NULL;
    uint32_t count;
    pd_status st = pd_config_model(&in->config, &model, err);
    if (!st)
        st = pd_choose_layouts(&in->config, model, in->ranks, pd_launched_threads(0, in->ranks), &in->planned, 1,
                               &in->choice, &count, err);
    if (model) in->parameters = model->parameter_count;
    pd_model_free(model);
    in->step = step;
    return st;
}

/* If the first configuration does not load, the answers are wrong. */
static pd_status fit(struct init *in, struct pd_error *err)
{
    const bool is_cpu = strcmp(in->planned.name, "cpu") == 0;
    struct pd_error why = {0};
    for (uint32_t step = 0; step < STEPS; step++) {
        if (is_cpu && steps[step].is_for_gpus) continue;
        PD_TRY(init_load(in, step, &in->config, err));
        const pd_status st = try_step(in, step, &why);
        if (!st) return PD_OK;
        pd_config_deinit(&in->config);
        if (st != PD_INVALID) return pd_error_pass(err, st, &why);
    }
    PD_FAIL(err, PD_INVALID, "no configuration of %s fits %s of %s; take more ranks or a smaller model: %.600s", in->model,
            pd_counted(in->ranks, "rank").text, in->planned.name, why.message);
}

/* ---- the file ---- */

/* Writes a YAML string in double quotes. */
static void put_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++)
        fprintf(out, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    fputc('"', out);
}

static void put_config(FILE *out, const struct init *in)
{
    const struct pd_layout *l = &in->choice.laid_out.layout;
    fprintf(
        out,
        "# %s parameters, planned for %s of %s: %s of memory each;\n# %s.\n# %.3g s a step by the planner's model (dp %u, "
        "tp %u, pp %u, sp %u).\n"
        "# Keys that are not here have defaults, which perdure train CONFIG --print-config shows.\n",
        pd_text_count(in->parameters).text, pd_counted(in->ranks, "rank").text, in->planned.name,
        pd_bytes_text((double)in->choice.worst_bytes).text, steps[in->step].why, in->choice.step_seconds, l->dp, l->tp,
        l->pp, l->sp);
    fputs("run:\n  dir: ", out);
    put_text(out, in->dir);
    fputs("  # checkpoints and metrics\n  steps: 1000            # more may be given at any restart\n", out);
    fputs(in->is_from ? "\ninit:\n  from: " : "\nmodel:\n  preset: ", out);
    put_text(out, in->model);
    fputs("\n\ndata:\n  train: [", out);
    put_text(out, in->data);
    fputs("]\n  validation_fraction: 0.01 # the end of each file is kept apart\n", out);
    const struct pd_config *c = &in->config;
    fprintf(out, "\nbatch:\n  sequences: %-10u # of a step, on one rank or many: bits do not depend on ranks\n",
            c->batch.sequences);
    fprintf(out, "  micro_batch: %-8u # sequences computed at once; memory follows it\n", c->batch.micro_batch);
    fprintf(out, "  context: %-12u # tokens a sequence\n", c->batch.context);
    fprintf(out, "\nnumerics:\n  lanes: %-14u # the most data ranks the run may ever use; another number gives other bits\n",
            c->numerics.lanes);
    fputs("\noptimizer:\n  lr: 3e-4              # at its peak: a warm-up leads there, a cosine to a tenth\n", out);
    fprintf(out,
            "\nlayout:\n  auto: true            # the planner chooses degrees and recomputation, at every restart\n  ranks: "
            "%-14u # may change at any restart\n",
            in->ranks);
    bool is_first = true;
    for (uint32_t i = 0; steps[in->step].overrides[i]; i++) {
        const char *text = steps[in->step].overrides[i];
        if (strncmp(text, "offload.", 8) != 0) continue;
        if (is_first) fprintf(out, "\noffload: # %s;\n  # the bits are the same\n", steps[in->step].why);
        is_first = false;
        const char *equals = strchr(text, '=');
        fprintf(out, "  %.*s: %s\n", (int)(equals - text - 8), text + 8, equals + 1);
    }
    fputs("\ncheckpoint:\n  every: 100\n\nvalidation:\n  every: 100\n", out);
}

/* Never overwrites an existing file. */
static pd_status write_config(const struct init *in, struct pd_error *err)
{
    if (strcmp(in->output, "-") == 0) {
        put_config(stdout, in);
        return PD_OK;
    }
    const int file = open(in->output, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const int number = errno;
    if (file < 0)
        PD_FAIL(err, number == EEXIST ? PD_INVALID : pd_status_from_errno(number), "%s: %s; name another file with -o FILE",
                in->output, strerror(number));
    FILE *out = fdopen(file, "w");
    if (!out) PD_FAIL_ERRNO(err, errno, "%s: writing it", in->output);
    put_config(out, in);
    if (fclose(out)) PD_FAIL_ERRNO(err, errno, "%s: writing it", in->output);
    return PD_OK;
}

static void say_next(struct init *in)
{
    const size_t length = strlen(in->data);
    const bool is_text = length > 4 && strcmp(in->data + length - 4, ".txt") == 0;
    /* Notes files a run would not start with: absent, empty or shorter than a sample. */
    char *notes = NULL;
    struct pd_error wrong = {.status = PD_OK};
    pd_status st = pd_config_find_data(&in->config, &notes, &wrong);
    free(notes);
    const struct pd_data_options data = pd_config_data(&in->config);
    if (!st) st = pd_data_check(&data, &wrong);
    if (st) (void)fprintf(stderr, "the data is not ready yet: %s\n", wrong.message);
    if (is_text && in->config.model.vocab > TEXT_VOCAB_MAX)
        (void)fprintf(stderr,
                      "%s is text, and the model has %u tokens: pack it first, and name the packed file as data.train\n"
                      "  perdure data pack %s -o tokens.bin --tokenizer=%s\n",
                      in->data, in->config.model.vocab, in->data, in->is_from ? in->model : "tokenizer.json");
    if (strcmp(in->output, "-") == 0) return;
    (void)fprintf(stderr, "%s: %s\nnext: perdure train %s\n", in->output, steps[in->step].why, in->output);
}

static pd_status print_json(const struct init *in, struct pd_error *err)
{
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 0);
    PD_JSON_STRINGS(&w, {"config", in->output}, {"run_dir", in->dir}, {"why", steps[in->step].why});
    PD_JSON_U64S(&w, {"parameters", in->parameters}, {"ranks", in->ranks}, {"memory_bytes", in->choice.worst_bytes});
    pd_json_double(&w, "step_seconds", in->choice.step_seconds);
    return pd_output_json(&w, err);
}

/* Call before asking: otherwise the answers would be lost. */
static pd_status check_output(const struct init *in, struct pd_error *err)
{
    if (strcmp(in->output, "-") == 0 || access(in->output, F_OK)) return PD_OK;
    PD_FAIL(err, PD_INVALID, "%s: %s; name another file with -o FILE", in->output, strerror(EEXIST));
}

static pd_status init_run(struct init *in, struct pd_error *err)
{
    if (in->asks) PD_TRY(check_output(in, err));
    PD_TRY(ask(in, "What text or tokens? A file or a directory", NULL, in->data, "data=FILE", NULL, err));
    PD_TRY(ask(in, "Which model? A size such as byte-1m, gpt2-124m or llama-1.5b, or a directory to start from", "byte-1m",
               in->model, "model=NAME", check_model, err));
    PD_TRY(ask(in, "Which machine? auto for this one, cpu, or a GPU such as h100-80g", "auto", in->machine, "machine=NAME",
               find_machine, err));
    char otherwise[16];
    const bool is_cpu = strcmp(in->planned.name, "cpu") == 0; /* where sums of lanes cost little beside the rest */
    snprintf(otherwise, sizeof otherwise, "%u", is_cpu && in->ranks < CPU_DATA_RANKS ? CPU_DATA_RANKS : in->ranks);
    PD_TRY(ask(in, "How many data ranks may the run ever use? Each more costs memory and can never be added later",
               otherwise, in->most, "data-ranks=N", check_data_ranks, err));
    PD_TRY(fit(in, err));
    pd_status st = write_config(in, err);
    if (!st) say_next(in);
    if (!st && in->json) st = print_json(in, err);
    pd_config_deinit(&in->config);
    return st;
}

pd_status pd_cmd_init(int argc, char **argv, struct pd_error *err)
{
    struct init in = {.dir = "runs/first", .output = "run.yaml", .asks = isatty(STDIN_FILENO) && isatty(STDERR_FILENO)};
    const char *data = "", *model = "", *machine = "", *most = "";
    struct pd_option options[] = {
        PD_OPTION("data", "FILE", "a text or token file, or a directory of them; s3:// works too", PD_OPTION_TEXT, &data,
                  .may_be_in_bucket = true),
        PD_OPTION("model", "NAME", "a size (model.preset), or a checkpoint of another program to start from", PD_OPTION_TEXT,
                  &model),
        PD_OPTION("machine", "NAME", "auto: this machine; cpu; or a GPU's name as in perdure plan --device", PD_OPTION_TEXT,
                  &machine),
        PD_OPTION("ranks", "N", "number of ranks (default: one per device)", PD_OPTION_U32, &in.ranks, 1, 65536),
        PD_OPTION("data-ranks", "N", "most data-parallel ranks the run may ever use (default: --ranks; on CPUs at least 8)",
                  PD_OPTION_TEXT, &most),
        PD_OPTION("memory", "BYTES", "memory of each device, such as 40G (default: what the machine has)", PD_OPTION_BYTES,
                  &in.memory),
        PD_OPTION("dir", "DIR", "run.dir (default: runs/first)", PD_OPTION_TEXT, &in.dir),
        PD_OPTION("output", "FILE", "file to write (default: run.yaml), - for stdout", PD_OPTION_TEXT, &in.output,
                  .letter = 'o'),
        {0}};
    const struct pd_usage usage = {
        .arguments = "[--data=FILE] [--model=NAME] [--machine=NAME]",
        .doc = "Writes a commented configuration that fits this machine, by perdure plan. What does not fit is recomputed "
               "or offloaded to the host's memory or a drive. On a terminal it asks for what you did not give.",
        .options = options,
        .json = &in.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    snprintf(in.data, sizeof in.data, "%s", data);
    snprintf(in.model, sizeof in.model, "%s", model);
    snprintf(in.machine, sizeof in.machine, "%s", machine);
    snprintf(in.most, sizeof in.most, "%s", most);
    if (!in.asks && !machine[0]) snprintf(in.machine, sizeof in.machine, "auto");
    return init_run(&in, err);
}
