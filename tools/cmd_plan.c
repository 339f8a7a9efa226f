#include "ckpt/base/clock.h"
#include "ckpt/base/parse.h"
#include "tools/command.h"
#include "tools/output.h"
#include "trainer/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORLDS_MAX 16u
enum { OPTION_WORLD = 'w', OPTION_THREADS = 't', OPTION_PRINT = 0x2001 };

struct options {
    const char *config_path;
    const char **overrides; /* (argc), owned */
    uint32_t override_count;
    uint32_t worlds[WORLDS_MAX], world_count, threads;
    bool print_config;
    struct pd_error *err;
};

/* Ranks that need the same bytes in every category, one after the other. */
struct group {
    uint32_t first_rank, ranks;
    struct pd_memory_plan plan;
};

struct world {
    uint32_t ranks, threads, slots, ghosts;
    struct group *groups; /* (group_count), owned */
    uint32_t group_count, worst;
    double mean_total;
    uint64_t gather_bytes, gradient_bytes; /* a step, received by a rank */
};

/* ---- arguments ---- */

static error_t parse_worlds(struct options *o, const char *text)
{
    char word[16];
    for (; *text; text += *text == ',') {
        size_t length = strcspn(text, ",");
        uint64_t value = 0;
        snprintf(word, sizeof word, "%.*s", (int)(length < 15 ? length : 15), text);
        if (!pd_parse_u64(word, &value) || value < 1 || value > 65536) {
            (void)pd_error_set(o->err, PD_USAGE, PD_WHERE, 0, "--world=%s: expected a number of ranks, 1 to 65536", word);
            return EINVAL;
        }
        if (o->world_count == WORLDS_MAX) {
            (void)pd_error_set(o->err, PD_USAGE, PD_WHERE, 0, "--world: more than %u world sizes", WORLDS_MAX);
            return EINVAL;
        }
        o->worlds[o->world_count++] = (uint32_t)value;
        text += length;
    }
    return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *o = state->input;
    uint64_t threads;
    switch (key) {
    case OPTION_WORLD:
        return parse_worlds(o, argument);
    case OPTION_PRINT:
        o->print_config = true;
        return 0;
    case OPTION_THREADS:
        if (pd_parse_u64(argument, &threads) && threads >= 1 && threads <= 4096) {
            o->threads = (uint32_t)threads;
            return 0;
        }
        (void)pd_error_set(o->err, PD_USAGE, PD_WHERE, 0, "--threads=%s: expected a number from 1 to 4096", argument);
        return EINVAL;
    case ARGP_KEY_ARG:
        if (!o->config_path && !strchr(argument, '='))
            o->config_path = argument;
        else
            o->overrides[o->override_count++] = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- arithmetic ---- */

static uint64_t unit_elements(const struct pd_model *model, uint32_t unit)
{
    uint64_t sum = 0;
    for (uint32_t i = model->unit_first[unit]; i < model->unit_first[unit + 1]; i++)
        sum += pd_tensor_elements(&model->tensors.tensors[i]);
    return sum;
}

/* What a slot gathers: every unit forward, the blocks again backward but for those that are still there; a tied head gathers
 * the token table once more. */
static uint64_t gathered_elements(const struct pd_model *model)
{
    uint64_t sum = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        bool block = unit > 0 && unit + 1 < model->unit_count;
        bool again = block && unit + PD_ZERO_BLOCK_BUFFERS + 1 < model->unit_count;
        sum += unit_elements(model, unit) * (again ? 2 : 1);
    }
    if (model->config.tie_embeddings) sum += pd_tensor_elements(&model->tensors.tensors[0]);
    return sum;
}

static void plan_traffic(const struct pd_config *config, const struct pd_model *model, struct world *w)
{
    if (w->ranks == 1) return;
    double others = (double)(w->ranks - 1) / w->ranks;
    double gathered = (double)gathered_elements(model) * pd_dtype_bytes(config->numerics.precision);
    uint64_t sums = model->parameter_count;
    if (model->config.tie_embeddings) sums += pd_tensor_elements(&model->tensors.tensors[0]);
    /* A rank receives its share of every leaf that another rank ran. */
    double leaves = config->batch.sequences / config->batch.leaf;
    w->gather_bytes = (uint64_t)(gathered * others * w->slots);
    w->gradient_bytes =
        (uint64_t)((double)sums / w->ranks * pd_dtype_bytes(config->numerics.gradient_type) * leaves * others);
}

static pd_status add_rank(struct world *w, uint32_t rank, const struct pd_memory_plan *plan, struct pd_error *err)
{
    struct group *last = w->group_count ? &w->groups[w->group_count - 1] : NULL;
    uint64_t total = pd_memory_plan_total(plan);
    w->mean_total += (double)total / w->ranks;
    if (last && memcmp(&last->plan, plan, sizeof *plan) == 0) {
        last->ranks++;
        return PD_OK;
    }
    struct group *grown = realloc(w->groups, (w->group_count + 1) * sizeof *grown);
    if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    w->groups = grown;
    w->groups[w->group_count] = (struct group){rank, 1, *plan};
    if (total > pd_memory_plan_total(&w->groups[w->worst].plan)) w->worst = w->group_count;
    w->group_count++;
    return PD_OK;
}

/* As a worker chooses when all ranks are on this machine. */
static uint32_t threads_of(const struct options *o, const struct pd_config *config, uint32_t ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (o->threads) return o->threads;
    if (config->layout.threads) return config->layout.threads;
    return cores > (long)ranks ? (uint32_t)(cores / (long)ranks) : 1;
}

static pd_status plan_world(const struct options *o, const struct pd_config *config, const struct pd_model *model,
                            uint32_t ranks, struct world *w, struct pd_error *err)
{
    uint32_t leaves = config->batch.sequences / config->batch.leaf;
    *w = (struct world){.ranks = ranks, .threads = threads_of(o, config, ranks), .slots = (leaves + ranks - 1) / ranks};
    w->ghosts = w->slots * ranks - leaves;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct pd_memory_plan plan = {0};
        PD_TRY(pd_engine_plan(config, model, ranks, rank, w->threads, &plan, err));
        PD_TRY(add_rank(w, rank, &plan, err));
    }
    plan_traffic(config, model, w);
    return PD_OK;
}

/* ---- words ---- */

static void describe(const struct pd_config *config, const struct pd_model *model)
{
    const struct pd_model_config *m = &model->config;
    uint64_t tokens = (uint64_t)config->batch.sequences * config->batch.context;
    uint64_t state = model->parameter_count * PD_KIND_COUNT * sizeof(float);
    printf("model       %s parameters: %s, %u blocks of %u, %u heads, vocabulary %u\n",
           pd_text_count(model->parameter_count).text, m->family == PD_FAMILY_GPT2 ? "gpt2" : "llama", m->layers, m->hidden,
           m->heads, m->vocab);
    printf("step        %u sequences of %u: %s tokens, %sFLOP; %u leaves of %u\n", config->batch.sequences,
           config->batch.context, pd_text_count(tokens).text,
           pd_text_short((double)tokens * pd_model_flops_per_token(model, config->batch.context)).text,
           config->batch.sequences / config->batch.leaf, config->batch.leaf);
    printf("checkpoint  %s; %u are kept and one is being written: %s\n", pd_text_bytes(state).text,
           config->checkpoint.keep_last, pd_text_bytes(state * (config->checkpoint.keep_last + 1)).text);
}

static pd_status print_groups(const struct world *w, struct pd_error *err)
{
    const char *headings[PD_MEMORY_CATEGORY_COUNT + 3] = {"RANKS"};
    char names[PD_MEMORY_CATEGORY_COUNT][32];
    struct pd_table table;
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        snprintf(names[c], sizeof names[c], ">%s", pd_memory_category_name((enum pd_memory_category)c));
        headings[c + 1] = names[c];
    }
    headings[PD_MEMORY_CATEGORY_COUNT + 1] = ">total";
    pd_table_init(&table, headings, PD_MEMORY_CATEGORY_COUNT + 2);
    for (uint32_t g = 0; g < w->group_count; g++) {
        const struct group *group = &w->groups[g];
        struct pd_text texts[PD_MEMORY_CATEGORY_COUNT + 1];
        const char *cells[PD_MEMORY_CATEGORY_COUNT + 2];
        char ranks[32];
        if (group->ranks == 1)
            snprintf(ranks, sizeof ranks, "%u", group->first_rank);
        else
            snprintf(ranks, sizeof ranks, "%u-%u", group->first_rank, group->first_rank + group->ranks - 1);
        cells[0] = ranks;
        for (int c = 0; c <= PD_MEMORY_CATEGORY_COUNT; c++) {
            texts[c] =
                pd_text_bytes(c == PD_MEMORY_CATEGORY_COUNT ? pd_memory_plan_total(&group->plan) : group->plan.bytes[c]);
            cells[c + 1] = texts[c].text;
        }
        pd_table_row(&table, cells);
    }
    return pd_table_print(&table, err);
}

static pd_status print_details(const struct world *w, struct pd_error *err)
{
    uint64_t worst = pd_memory_plan_total(&w->groups[w->worst].plan);
    printf("\nworld %u: ", w->ranks);
    printf("%u leaves a rank and step%s, %u threads a rank\n", w->slots, w->ghosts ? " at most" : "", w->threads);
    PD_TRY(print_groups(w, err));
    printf("worst rank %s, mean %s, all ranks %s\n", pd_text_bytes(worst).text, pd_text_bytes((uint64_t)w->mean_total).text,
           pd_text_bytes((uint64_t)(w->mean_total * w->ranks)).text);
    printf("a rank receives %s of parameters and %s of gradients a step\n", pd_text_bytes(w->gather_bytes).text,
           pd_text_bytes(w->gradient_bytes).text);
    printf("flags: layout.ranks=%u layout.threads=%u\n", w->ranks, w->threads);
    return PD_OK;
}

static pd_status print_summary(const struct world *worlds, uint32_t count, struct pd_error *err)
{
    static const char *const headings[] = {">WORLD", ">LEAVES A RANK", ">THREADS",       ">WORST RANK",
                                           ">MEAN",  ">ALL RANKS",     ">PARAMETERS IN", ">GRADIENTS IN"};
    struct pd_table table;
    printf("\n");
    pd_table_init(&table, headings, 8);
    for (uint32_t i = 0; i < count; i++) {
        const struct world *w = &worlds[i];
        char ranks[16], slots[16], threads[16];
        snprintf(ranks, sizeof ranks, "%u", w->ranks);
        snprintf(slots, sizeof slots, "%u", w->slots);
        snprintf(threads, sizeof threads, "%u", w->threads);
        pd_table_row(&table, (const char *const[]){
                                 ranks, slots, threads, pd_text_bytes(pd_memory_plan_total(&w->groups[w->worst].plan)).text,
                                 pd_text_bytes((uint64_t)w->mean_total).text,
                                 pd_text_bytes((uint64_t)(w->mean_total * w->ranks)).text,
                                 pd_text_bytes(w->gather_bytes).text, pd_text_bytes(w->gradient_bytes).text});
    }
    PD_TRY(pd_table_print(&table, err));
    printf("--world=N shows one by category\n");
    return PD_OK;
}

static void write_memory(struct pd_json_writer *w, const struct pd_memory_plan *plan)
{
    pd_json_object_begin(w, "memory_bytes");
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++)
        pd_json_u64(w, pd_memory_category_name((enum pd_memory_category)c), plan->bytes[c]);
    pd_json_u64(w, "total", pd_memory_plan_total(plan));
    pd_json_object_end(w);
}

static void write_world(struct pd_json_writer *w, const struct world *x)
{
    pd_json_object_begin(w, NULL);
    pd_json_u64(w, "world", x->ranks);
    pd_json_u64(w, "threads", x->threads);
    pd_json_u64(w, "slots", x->slots);
    pd_json_u64(w, "ghosts", x->ghosts);
    pd_json_array_begin(w, "groups");
    for (uint32_t g = 0; g < x->group_count; g++) {
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "first_rank", x->groups[g].first_rank);
        pd_json_u64(w, "ranks", x->groups[g].ranks);
        write_memory(w, &x->groups[g].plan);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    pd_json_u64(w, "worst_rank_bytes", pd_memory_plan_total(&x->groups[x->worst].plan));
    pd_json_u64(w, "mean_rank_bytes", (uint64_t)x->mean_total);
    pd_json_u64(w, "parameter_bytes_received", x->gather_bytes);
    pd_json_u64(w, "gradient_bytes_received", x->gradient_bytes);
    pd_json_object_end(w);
}

static pd_status print_json(const struct pd_config *config, const struct pd_model *model, const struct world *worlds,
                            uint32_t count, double seconds, struct pd_error *err)
{
    struct pd_json_writer w;
    uint64_t tokens = (uint64_t)config->batch.sequences * config->batch.context;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_u64(&w, "parameters", model->parameter_count);
    pd_json_u64(&w, "tensors", model->tensors.count);
    pd_json_u64(&w, "tokens_per_step", tokens);
    pd_json_double(&w, "flops_per_step", (double)tokens * pd_model_flops_per_token(model, config->batch.context));
    pd_json_u64(&w, "leaves", config->batch.sequences / config->batch.leaf);
    pd_json_u64(&w, "checkpoint_bytes", model->parameter_count * PD_KIND_COUNT * sizeof(float));
    pd_json_array_begin(&w, "worlds");
    for (uint32_t i = 0; i < count; i++)
        write_world(&w, &worlds[i]);
    pd_json_array_end(&w);
    pd_json_double(&w, "plan_seconds", seconds);
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

/* ---- the command ---- */

/* Without --world: what the configuration says, else powers of two up to the number of leaves. */
static void choose_worlds(struct options *o, const struct pd_config *config)
{
    uint32_t leaves = config->batch.sequences / config->batch.leaf,
             ranks = config->layout.dp ? config->layout.dp : config->layout.ranks;
    if (o->world_count) return;
    if (ranks) {
        o->worlds[o->world_count++] = ranks;
        return;
    }
    for (uint32_t w = 1; w <= leaves && o->world_count < 8; w *= 2)
        o->worlds[o->world_count++] = w;
}

static pd_status plan(struct options *o, const struct pd_config *config, const struct pd_model *model, bool json,
                      struct pd_error *err)
{
    struct world worlds[WORLDS_MAX] = {0};
    pd_status status = PD_OK;
    uint64_t start = pd_clock_monotonic_ns(NULL);
    choose_worlds(o, config);
    for (uint32_t i = 0; i < o->world_count && !status; i++)
        status = plan_world(o, config, model, o->worlds[i], &worlds[i], err);
    double seconds = pd_clock_seconds_since(NULL, start);
    if (!status && json) {
        status = print_json(config, model, worlds, o->world_count, seconds, err);
    } else if (!status) {
        describe(config, model);
        status = o->world_count == 1 ? print_details(&worlds[0], err) : print_summary(worlds, o->world_count, err);
    }
    for (uint32_t i = 0; i < o->world_count; i++)
        free(worlds[i].groups);
    return status;
}

static pd_status print_config(const struct pd_config *config, struct pd_error *err)
{
    char *text;
    PD_TRY(pd_config_print(config, &text, err));
    fputs(text, stdout);
    free(text);
    return PD_OK;
}

static pd_status load_and_plan(struct options *o, bool json, struct pd_error *err)
{
    struct pd_config config;
    struct pd_model *model = NULL;
    if (!o->config_path && !o->override_count) PD_FAIL(err, PD_USAGE, "name the configuration; see perdure plan --help");
    PD_TRY(pd_config_load(o->config_path, o->overrides, o->override_count, &config, err));
    pd_status status = o->print_config ? print_config(&config, err) : pd_model_new(&config.model, &model, err);
    if (!status && !o->print_config) status = plan(o, &config, model, json, err);
    pd_model_free(model);
    pd_config_deinit(&config);
    return status;
}

pd_status pd_cmd_plan(int argc, char **argv, struct pd_error *err)
{
    static const struct argp_option option_table[] = {
        {.name = "world", .key = OPTION_WORLD, .arg = "N[,N...]", .doc = "number of ranks; several give one line each"},
        {.name = "print-config",
         .key = OPTION_PRINT,
         .doc = "the resolved configuration, every key with its meaning, and nothing else"},
        {.name = "threads",
         .key = OPTION_THREADS,
         .arg = "N",
         .doc = "threads a rank (default: cores of this machine / ranks)"},
        {0},
    };
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "CONFIG [key=value...]",
        .doc = "What each rank needs of memory, by category, and what a step moves, without starting "
               "anything or looking at files. A run takes exactly these bytes."};
    struct options o = {.err = err, .overrides = calloc((size_t)argc, sizeof *o.overrides)};
    bool json = false, done = false;
    if (!o.overrides) PD_FAIL(err, PD_NO_MEMORY, "no memory for arguments");
    pd_status status = pd_command_parse(&argp, argc, argv, &o, &json, &done, err);
    if (!status && !done) status = load_and_plan(&o, json, err);
    free(o.overrides);
    return status;
}
