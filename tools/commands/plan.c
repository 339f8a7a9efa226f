#include "ckpt/base/clock.h"
#include "ckpt/base/memory_limit.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/words.h"
#include "tools/command.h"
#include "tools/commands/ckpt.h"
#include "tools/commands/plan_report.h"
#include "tools/output.h"
#include "trainer/config/check.h"
#include "trainer/engine/gpus.h"
#include "trainer/math/math_cuda.h"
#include "trainer/run/directories.h"
#include "trainer/run/launched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORLDS_MAX 16u
#define RATE_MAX 1e20

struct options {
    const char *config_path;
    const char **overrides; /* (argc), owned */
    uint32_t override_count;
    uint32_t worlds[WORLDS_MAX], world_count, threads, alternatives, ranks_per_host;
    bool print_config;
    const char *device;
    uint64_t device_bytes;
    double flops, link, network, nvme; /* 0: the device's values */
    struct pd_machine machine;
    char card[160]; /* name of a device without a preset */
    bool json;
};

/* ---- arguments ---- */

static pd_status set_worlds(const struct pd_option *option, const char *text, struct pd_error *err)
{
    struct options *o = option->value;
    char word[16];
    const size_t bytes = strlen(text);
    if (!bytes || text[0] == ',' || text[bytes - 1] == ',' || strstr(text, ",,"))
        return pd_option_refuse(option, text, "a number of ranks, or several such as 4,8", err);
    for (; *text; text += *text == ',') {
        size_t length = strcspn(text, ",");
        uint64_t value = 0;
        snprintf(word, sizeof word, "%.*s", (int)(length < 15 ? length : 15), text);
        if (!pd_parse_u64(word, &value) || value < 1 || value > 65536)
            return pd_option_refuse(option, word, "a number of ranks, 1 to 65536", err);
        if (o->world_count == WORLDS_MAX)
            PD_FAIL(err, PD_USAGE, "--world: more than %u world sizes; ask for fewer at a time", WORLDS_MAX);
        o->worlds[o->world_count++] = (uint32_t)value;
        text += length;
    }
    return PD_OK;
}

/* "312T": powers of 1000. */
static pd_status set_rate(const struct pd_option *option, const char *text, struct pd_error *err)
{
    static const char letters[] = "kMGTP";
    char number[32];
    const size_t length = strlen(text);
    const char *letter = length > 1 ? strchr(letters, text[length - 1]) : NULL;
    double value = 0;
    snprintf(number, sizeof number, "%.*s", (int)(length - (letter != NULL)), text);
    const bool is_number = length < sizeof number && pd_parse_double(number, &value) && value > 0;
    if (letter) value *= pow(1000, (double)(letter - letters + 1));
    if (!is_number || value < 1 || value > RATE_MAX)
        return pd_option_refuse(option, text, "a rate such as 25G or 312T, 1 to 1e20", err);
    *(double *)option->value = value;
    return PD_OK;
}

/* With run.device gpu and no --device: this machine's GPU, else a common one. */
static pd_status find_machine(struct options *o, const struct pd_config *config, struct pd_error *err)
{
    struct pd_gpus gpus = {.count = 0};
    const bool asks = !o->device && config->run.device == PD_DEVICE_GPU;
    if (asks) pd_gpus_find(&gpus);
    if (!gpus.count) return pd_machine_preset(asks ? "h100-80g" : o->device ? o->device : "cpu", &o->machine, err);
    const struct pd_gpu *gpu = &gpus.gpus[0];
    if (pd_machine_of_gpu(gpu, &o->machine)) return PD_OK;
    fprintf(stderr, "perdure: plan: rates of %s are not known; %s's are used instead, with its own memory, %s\n", gpu->name,
            o->machine.name, pd_bytes_text((double)gpu->bytes).text);
    snprintf(o->card, sizeof o->card, "%s (rates of %s)", gpu->name, o->machine.name);
    o->machine.name = o->card;
    return PD_OK;
}

static pd_status resolve_machine(struct options *o, const struct pd_config *config, struct pd_error *err)
{
    PD_TRY(find_machine(o, config, err));
    if (o->device_bytes) o->machine.device_bytes = (double)o->device_bytes;
    if (o->flops > 0) pd_machine_set_flops(&o->machine, o->flops);
    if (o->link > 0) o->machine.link = o->link;
    if (o->network > 0) o->machine.network = o->network;
    if (o->nvme > 0) o->machine.nvme = o->nvme;
    if (config->layout.ranks_per_host) o->machine.ranks_per_host = config->layout.ranks_per_host;
    if (o->ranks_per_host) o->machine.ranks_per_host = o->ranks_per_host;
    return PD_OK;
}

/* ---- arithmetic ---- */

/* As a worker chooses on this machine. */
static uint32_t threads_of(const struct options *o, const struct pd_config *config, uint32_t ranks)
{
    return pd_launched_threads(o->threads ? o->threads : config->layout.threads, pd_launch_ranks_of_a_host(config, ranks));
}

/* Without --device a CPU is this machine: if a cgroup limits it, the host's ranks share that limit. */
static void limit_memory(struct options *o, const struct pd_config *config, const struct pd_model *model)
{
    struct pd_memory_limit limit;
    if (o->device || o->device_bytes || o->world_count != 1 || strcmp(o->machine.name, "cpu") != 0) return;
    if (!pd_memory_limit_read(NULL, &limit) || !limit.is_most_of_group) return;
    const uint32_t threads = threads_of(o, config, o->worlds[0]), here = pd_launch_ranks_of_a_host(config, o->worlds[0]);
    const double rest = (double)limit.most_bytes / here - (double)pd_process_bytes(model, threads);
    o->machine.device_bytes = rest > 1 ? rest : 1;
}

static bool is_same(const struct pd_laid_out *a, const struct pd_laid_out *b)
{
    const struct pd_layout *k = &a->layout, *l = &b->layout;
    return k->dp == l->dp && k->tp == l->tp && k->pp == l->pp && k->sp == l->sp && k->interleave == l->interleave &&
           pd_layout_ep(k) == pd_layout_ep(l) && k->zero_stage == l->zero_stage && k->zero_shard == l->zero_shard &&
           a->recompute == b->recompute && a->recompute_layers == b->recompute_layers && a->by_lane == b->by_lane;
}

/* Finds the fastest of all layouts of the world, ignoring those in the configuration, except for layout.ep: with 160 experts
 * on 1,024 ranks other values of it take 20 s. */
static pd_status find_alternatives(const struct options *o, const struct pd_config *config, const struct pd_model *model,
                                   struct pd_planned_world *w, struct pd_error *err)
{
    struct pd_config free_config = *config; /* borrows its pointers */
    struct pd_layout_choice choices[PD_PLAN_ALTERNATIVES_MAX + 1];
    uint32_t count = 0;
    if (!o->alternatives) return PD_OK;
    free_config.layout.dp = free_config.layout.tp = free_config.layout.pp = free_config.layout.sp = 0;
    free_config.layout.recompute_given = free_config.layout.zero_stage_given = false;
    free_config.layout.recompute_layers = PD_LAYERS_ALL;
    pd_status st =
        pd_choose_layouts(&free_config, model, w->ranks, w->threads, &o->machine, o->alternatives + 1, choices, &count, err);
    if (st == PD_INVALID) return PD_OK; /* nothing fits: the plan itself reports it */
    PD_TRY(st);
    for (uint32_t i = 0; i < count && w->alternative_count < o->alternatives; i++)
        if (!is_same(&choices[i].laid_out, &w->laid_out)) w->alternatives[w->alternative_count++] = choices[i];
    return PD_OK;
}

static void count_idle(const struct pd_model *model, struct pd_planned_world *w)
{
    const struct pd_layout *l = &w->laid_out.layout;
    for (uint32_t tp = 0; tp < l->tp; tp++) {
        const struct pd_partition p = {.tp = l->tp, .tp_rank = tp, .virtual_tp = l->virtual_tp, .sp = 1, .virtual_sp = 1};
        const struct pd_range heads = pd_partition_units(&p, model->config.heads),
                              ffn = pd_partition_units(&p, model->config.ffn);
        w->without_heads += heads.begin >= heads.end;
        w->without_ffn += ffn.begin >= ffn.end;
    }
}

static pd_status plan_lay_out(const struct options *o, const struct pd_config *config, const struct pd_model *model,
                              struct pd_planned_world *w, struct pd_error *err)
{
    struct pd_layout_choice best;
    uint32_t count;
    if (!config->layout.automatic) {
        PD_TRY(pd_lay_out(config, model, w->ranks, &w->laid_out, err));
        pd_lay_out_update(config, model, &o->machine, &w->laid_out);
        return PD_OK;
    }
    PD_TRY(pd_choose_layouts(config, model, w->ranks, w->threads, &o->machine, 1, &best, &count, err));
    w->laid_out = best.laid_out;
    return PD_OK;
}

static pd_status plan_offload(const struct pd_config *config, const struct pd_model *model, struct pd_planned_world *w,
                              struct pd_error *err)
{
    struct pd_engine_options options = {
        .config = config, .model = model, .world = w->ranks, .threads = w->threads, .laid_out = &w->laid_out};
    options.is_gpu = config->run.device == PD_DEVICE_GPU;
    w->process_bytes = pd_process_bytes(model, w->threads);
    if (!pd_config_offloads(config, options.is_gpu)) return PD_OK;
    w->offload = calloc(w->memory.group_count, sizeof *w->offload);
    if (!w->offload) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    for (uint32_t g = 0; g < w->memory.group_count; g++) {
        options.rank = w->memory.groups[g].first_rank;
        PD_TRY(pd_offload_plan_of(&options, &w->offload[g], err));
    }
    return PD_OK;
}

/* Finds a change that makes a world fit; or that makes it smaller. */
static void find_remedy(const struct options *o, const struct pd_config *config, const struct pd_model *model,
                        struct pd_planned_world *w)
{
    char advice[PD_LAYOUT_ADVICE_BYTES];
    if (o->machine.device_bytes <= 0 || (double)w->memory.worst_bytes <= o->machine.device_bytes) return;
    const struct pd_fewer_lanes *fewer = &w->fewer_lanes;
    if (fewer->lanes && (double)fewer->worst_bytes <= o->machine.device_bytes) {
        snprintf(w->remedy, sizeof w->remedy, "with numerics.lanes=%u it does (other bits, and never more than %s)",
                 fewer->lanes, pd_counted(fewer->lanes, "data rank").text);
        return;
    }
    const bool any = pd_layouts_fit(config, model, w->ranks, w->threads, &o->machine, advice);
    snprintf(w->remedy, sizeof w->remedy, "%s",
             any                    ? "with layout=auto it does"
             : w->alternative_count ? "an alternative below does"
                                    : advice);
}

static pd_status plan_world(const struct options *o, const struct pd_config *config, const struct pd_model *model,
                            uint32_t ranks, bool is_alone, struct pd_planned_world *w, struct pd_error *err)
{
    *w = (struct pd_planned_world){
        .ranks = ranks, .threads = threads_of(o, config, ranks), .threads_given = o->threads || config->layout.threads};
    PD_TRY(plan_lay_out(o, config, model, w, err));
    PD_TRY(pd_world_memory_plan(config, model, w->threads, &w->laid_out, NULL, &w->memory, err));
    for (uint32_t g = 0; g < w->memory.group_count; g++)
        pd_plan_split(config, &w->memory.groups[g].plan);
    PD_TRY(plan_offload(config, model, w, err));
    pd_step_cost(config, model, &w->laid_out, &o->machine, &w->cost);
    count_idle(model, w);
    if (!is_alone) return PD_OK;
    PD_TRY(pd_plan_fewer_lanes(config, model, w->threads, &w->laid_out, &o->machine, &w->fewer_lanes, err));
    PD_TRY(find_alternatives(o, config, model, w, err));
    find_remedy(o, config, model, w);
    return PD_OK;
}

/* ---- the command ---- */

/* Without --world: the configuration's ranks, else powers of two up to the number of micro-batches. */
static void choose_worlds(struct options *o, const struct pd_config *config)
{
    if (o->world_count) return;
    if (config->layout.ranks || config->layout.dp) {
        o->worlds[o->world_count++] = pd_degrees_first_world(config, 1);
        return;
    }
    const uint32_t least = config->layout.automatic ? 1 : pd_degrees_first_world(config, 1),
                   micro_batches = config->batch.sequences / config->batch.micro_batch;
    for (uint32_t w = 1; w <= micro_batches && o->world_count < 8; w *= 2)
        o->worlds[o->world_count++] = least * w;
}

/* If one of several worlds has no layout, its row says so; the others are planned. */
static pd_status plan_each(const struct options *o, const struct pd_plan_subject *subject, struct pd_planned_world *worlds,
                           uint32_t *ret_refused, struct pd_error *err)
{
    const bool is_alone = o->world_count == 1;
    for (uint32_t i = 0; i < o->world_count; i++) {
        pd_status st = plan_world(o, subject->config, subject->model, o->worlds[i], is_alone, &worlds[i], err);
        if (st != PD_INVALID || is_alone) {
            PD_TRY(st);
            continue;
        }
        snprintf(worlds[i].refusal, sizeof worlds[i].refusal, "%.511s", err->message);
        (*ret_refused)++;
    }
    return PD_OK;
}

static pd_status plan(struct options *o, const struct pd_config *config, const struct pd_model *model, struct pd_error *err)
{
    const struct pd_plan_subject subject = {config, model, &o->machine};
    struct pd_planned_world worlds[WORLDS_MAX] = {0};
    uint32_t refused = 0;
    choose_worlds(o, config);
    limit_memory(o, config, model);
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_status status = plan_each(o, &subject, worlds, &refused, err);
    const double seconds = pd_clock_seconds_since(start);
    if (!status) status = pd_plan_print(&subject, worlds, o->world_count, seconds, o->json, err);
    if (!status && refused == o->world_count)
        status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "none of the %u worlds asked for has a layout; %s: %s", refused,
                              pd_counted(worlds[0].ranks, "rank").text, worlds[0].refusal);
    for (uint32_t i = 0; i < o->world_count; i++) {
        pd_world_memory_deinit(&worlds[i].memory);
        free(worlds[i].offload);
    }
    return status;
}

bool pd_plan_counts_gpus(void)
{
    const struct pd_math_cuda_options options = {.mode = PD_NUMERICS_INVARIANT};
    struct pd_arena *dry;
    struct pd_math *math = NULL;
    if (pd_arena_new_dry(&dry, NULL)) return false;
    const bool can = !pd_math_cuda_new(&options, dry, &math, NULL);
    pd_arena_free(dry);
    return can;
}

/* A GPU's memory is counted apart from the host's. */
static pd_status plan_for_device(const struct options *o, struct pd_config *config, struct pd_error *err)
{
    const bool is_gpu = strcmp(o->machine.name, "cpu") != 0 && config->run.device != PD_DEVICE_CPU;
    if (is_gpu) PD_TRY(pd_check_fp8(config, o->machine.name, o->machine.capability, err));
    const bool is_counted = is_gpu && pd_plan_counts_gpus();
    if (is_gpu && !is_counted)
        fprintf(stderr, "perdure: plan: this build has no CUDA and counts what a rank takes on a CPU; a GPU's takes more\n");
    config->run.device = is_counted ? PD_DEVICE_GPU : PD_DEVICE_CPU;
    return PD_OK;
}

static pd_status load_and_plan(struct options *o, struct pd_error *err)
{
    struct pd_config config;
    struct pd_model *model = NULL;
    if (!o->config_path && !o->override_count) PD_FAIL(err, PD_USAGE, "name the configuration; see perdure plan --help");
    if (o->world_count && !o->print_config)
        o->overrides[o->override_count++] = "layout.ranks=0"; /* because --world gives the ranks */
    PD_TRY(pd_config_load(o->config_path, o->overrides, o->override_count, &config, err));
    pd_status status = pd_ckpt_take_model(&config, err);
    if (!status) status = resolve_machine(o, &config, err);
    if (!status) status = o->print_config ? pd_output_config(&config, o->json, err) : pd_config_model(&config, &model, err);
    if (!status && !o->print_config) status = plan_for_device(o, &config, err);
    if (!status && !o->print_config) status = pd_directories_check(&config, err);
    if (!status && !o->print_config) status = plan(o, &config, model, err);
    pd_model_free(model);
    pd_config_deinit(&config);
    return status;
}

static pd_status plan_parse(struct options *o, int argc, char **argv, bool *ret_done, struct pd_error *err)
{
    struct pd_option options[] = {
        PD_OPTION("world", "N[,N...]", "number of ranks; several print a line each", PD_OPTION_SET, o, .set = set_worlds,
                  .letter = 'w'),
        PD_OPTION("print-config", NULL, "print the resolved configuration, with the meaning of each key, and nothing else",
                  PD_OPTION_FLAG, &o->print_config),
        PD_OPTION("threads", "N", "threads a rank (default: cores of this machine / ranks)", PD_OPTION_U32, &o->threads, 1,
                  4096, .letter = 't'),
        PD_OPTION("device", "NAME",
                  "memory and rates of a rank: cpu, a100-40g, a100-80g, h100-80g or h200-141g; default: cpu, or with "
                  "run.device=gpu this machine's GPU or else h100-80g",
                  PD_OPTION_TEXT, &o->device),
        PD_OPTION("device-memory", "SIZE", "memory of a rank, such as 40G; default for cpu: no limit", PD_OPTION_BYTES,
                  &o->device_bytes, 1, .expected = "a size such as 40G"),
        PD_OPTION("flops", "RATE", "FLOP/s a rank reaches in training, such as 150T", PD_OPTION_SET, &o->flops,
                  .set = set_rate),
        PD_OPTION("link", "RATE", "bytes per second and rank inside a host, such as 250G", PD_OPTION_SET, &o->link,
                  .set = set_rate),
        PD_OPTION("network", "RATE", "bytes per second and rank between hosts", PD_OPTION_SET, &o->network, .set = set_rate),
        PD_OPTION("nvme", "RATE",
                  "bytes per second and rank that drives read and write together (default: 2G for cpu, else 3G)",
                  PD_OPTION_SET, &o->nvme, .set = set_rate),
        PD_OPTION("ranks-per-host", "N", "ranks of a host", PD_OPTION_U32, &o->ranks_per_host, 1, 65536),
        PD_OPTION("alternatives", "N", "how many of the fastest other layouts to show (default: 3)", PD_OPTION_U32,
                  &o->alternatives, 0, PD_PLAN_ALTERNATIVES_MAX),
        {0}};
    const struct pd_usage usage = {
        .arguments = "CONFIG [key=value...]",
        .doc =
            "Shows how much memory each rank needs, how many bytes a step moves, and how long a cost model expects it to "
            "take. It starts nothing and reads no data. A run takes exactly these bytes; use the times to compare layouts.",
        .options = options,
        .json = &o->json,
        PD_WORDS(o->overrides, (uint32_t)argc, &o->override_count),
        .takes_keys = true};
    PD_TRY(pd_command_parse(&usage, argc, argv, ret_done, err));
    o->config_path = pd_command_take_config(o->overrides, &o->override_count);
    return PD_OK;
}

pd_status pd_cmd_plan(int argc, char **argv, struct pd_error *err)
{
    struct options o = {.alternatives = 3, .overrides = calloc((size_t)argc, sizeof *o.overrides)};
    bool done = false;
    if (!o.overrides) PD_FAIL(err, PD_NO_MEMORY, "no memory for arguments");
    pd_status status = plan_parse(&o, argc, argv, &done, err);
    if (!status && !done) status = load_and_plan(&o, err);
    free(o.overrides);
    return status;
}
