#include "tools/commands/plan_report.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/words.h"
#include "resharder/catalog/family.h"
#include "tools/output.h"
#include "trainer/plan/ladder.h"

#include <stdlib.h>
#include <string.h>

#define GROUPS_SHOWN 12u

static const char *const recompute_names[] = {"none", "selective", "full"};

static bool is_on_gpu(const struct pd_config *config)
{
    return config->run.device == PD_DEVICE_GPU;
}

void pd_plan_split(const struct pd_config *config, struct pd_memory_plan *plan)
{
    for (int c = 0; is_on_gpu(config) && c < PD_MEMORY_CATEGORY_COUNT; c++)
        plan->bytes[c] -= plan->host_bytes[c];
}

/* Pinned host memory of one rank. */
static uint64_t pinned_of(const struct pd_config *config, const struct pd_memory_plan *plan)
{
    return is_on_gpu(config) ? pd_memory_plan_host(plan) : 0;
}

static const char *exchange_name(const struct pd_laid_out *laid_out)
{
    return laid_out->by_lane ? "lane" : "step";
}

/* "dp=2 tp=4 ep=2" */
static void plan_report_shape_text(const struct pd_layout *l, char *ret, size_t bytes)
{
    const struct pd_degrees degrees = {.dp = l->dp, .tp = l->tp, .pp = l->pp, .sp = l->sp, .interleave = l->interleave};
    pd_degrees_text(&degrees, ret, bytes);
    const size_t used = strlen(ret);
    if (l->ep > 1) snprintf(ret + used, bytes - used, " ep=%u", l->ep);
}

/* "dp=2 tp=4 zero_stage=3 recompute=none exchange=step" */
static void layout_text(const struct pd_laid_out *laid_out, char *ret, size_t bytes)
{
    char recompute[48];
    plan_report_shape_text(&laid_out->layout, ret, bytes);
    pd_recompute_text(laid_out->recompute, laid_out->recompute_layers, " ", recompute, sizeof recompute);
    size_t used = strlen(ret);
    snprintf(ret + used, bytes - used, " zero_stage=%u %s exchange=%s", laid_out->layout.zero_stage, recompute,
             exchange_name(laid_out));
}

static struct pd_text seconds_text(double seconds)
{
    struct pd_text t;
    if (seconds < 1)
        snprintf(t.text, sizeof t.text, "%.3g ms", seconds * 1e3);
    else
        snprintf(t.text, sizeof t.text, "%.4g s", seconds);
    return t;
}

static bool fits(const struct pd_machine *machine, uint64_t bytes)
{
    return machine->device_bytes <= 0 || (double)bytes <= machine->device_bytes;
}

/* ---- text ---- */

struct tiers {
    struct pd_tier_options options[PD_TIERS_MAX];
    uint32_t count, checkpoints[PD_TIERS_MAX]; /* simultaneous ones, as the check before the first step counts them */
    uint64_t state;                            /* bytes of a checkpoint */
};

static struct tiers tiers_of(const struct pd_plan_subject *s)
{
    struct tiers t = {.state = s->model->parameter_count * pd_kinds_bytes(s->config->optimizer.moments)};
    t.count = pd_config_tiers(s->config, t.options);
    for (uint32_t i = 0; i < t.count; i++)
        t.checkpoints[i] = pd_tiers_checkpoints(t.options, t.count, i, s->config->offload.optimizer == PD_PLACE_NVME);
    return t;
}

static void write_tiers(struct pd_json_writer *w, const struct tiers *t)
{
    pd_json_array_begin(w, "tiers");
    for (uint32_t i = 0; i < t->count; i++) {
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "dir", t->options[i].dir);
        PD_JSON_U64S(w, {"checkpoints", t->checkpoints[i]}, {"bytes", t->state * t->checkpoints[i]});
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void plan_report_describe(const struct pd_plan_subject *s)
{
    const struct pd_model_config *m = &s->model->config;
    const struct pd_config *c = s->config;
    const uint64_t tokens = (uint64_t)c->batch.sequences * c->batch.context;
    const struct tiers tiers = tiers_of(s);
    printf("model       %s parameters", pd_text_count(s->model->parameter_count).text);
    if (m->experts) printf(", %s of them for a token", pd_text_count(s->model->active_count).text);
    printf(": %s, %s of %u, %s, vocabulary %u\n", pd_family_names[m->family], pd_counted(m->layers, "block").text, m->hidden,
           pd_counted(m->heads, "head").text, m->vocab);
    const struct pd_data_options data = pd_config_data(c);
    const double learned = pd_data_learned_share(&data);
    if (learned < 1) printf("data        %.1f%% of the tokens have a loss\n", 100 * learned);
    printf("step        %s of %u: %s tokens, %sFLOP; %s of %u\n", pd_counted(c->batch.sequences, "sequence").text,
           c->batch.context, pd_text_count(tokens).text,
           pd_text_short((double)tokens * pd_model_flops_per_token(s->model, c->batch.context)).text,
           pd_counted(c->batch.sequences / c->batch.micro_batch, "micro-batch").text, c->batch.micro_batch);
    const struct pd_text state = pd_text_bytes(tiers.state);
    if (!c->checkpoint.tiers_count)
        printf("checkpoint  %s; %u are kept%s and one is being written: %s\n", state.text, c->checkpoint.keep_last,
               c->offload.optimizer == PD_PLACE_NVME ? ", one is read" : "",
               pd_text_bytes(tiers.state * tiers.checkpoints[0]).text);
    else
        printf("checkpoint  %s\n", state.text);
    for (uint32_t i = 0; c->checkpoint.tiers_count && i < tiers.count; i++)
        printf("tier %u      %s: %s at once: %s%s\n", i, tiers.options[i].dir,
               pd_counted(tiers.checkpoints[i], "checkpoint").text, pd_text_bytes(tiers.state * tiers.checkpoints[i]).text,
               tiers.options[i].replicas ? ", half of it replicas of other hosts' shards" : "");
}

static int by_ranks(const void *a, const void *b, void *groups)
{
    const struct pd_memory_group *x = (struct pd_memory_group *)groups + *(const uint32_t *)a,
                                 *y = (struct pd_memory_group *)groups + *(const uint32_t *)b;
    if (x->ranks != y->ranks) return x->ranks > y->ranks ? -1 : 1;
    return (x->first_rank > y->first_rank) - (x->first_rank < y->first_rank);
}

/* The groups to show: all, or those with the most ranks. */
struct shown {
    uint32_t groups[GROUPS_SHOWN], count;
};

/* Prints the places of state, and what moves in a step: on NVMe, and over the bus. */
static pd_status print_places(const struct pd_plan_subject *s, const struct pd_planned_world *w, const struct shown *shown,
                              struct pd_error *err)
{
    struct pd_table table;
    PD_TABLE_INIT(&table, ">RANKS", ">FIRST", ">device", ">pinned", ">NVMe", ">files of state", ">NVMe a step",
                  ">bus in a step", ">bus out", ">NCCL, estimated");
    for (uint32_t i = 0; i < shown->count; i++) {
        const uint32_t g = shown->groups[i];
        const struct pd_memory_group *group = &w->memory.groups[g];
        const struct pd_offload_plan none = {0}, *p = w->offload ? &w->offload[g] : &none;
        PD_TABLE_ROW(&table, pd_text_plain(group->ranks).text, pd_text_plain(group->first_rank).text,
                     pd_text_bytes(pd_memory_plan_total(&group->plan)).text,
                     pd_text_bytes(pinned_of(s->config, &group->plan)).text, pd_text_bytes(p->nvme_bytes).text,
                     pd_text_plain(p->generations).text, pd_text_bytes(p->step_bytes).text,
                     pd_text_bytes(p->bus_in_bytes).text, pd_text_bytes(p->bus_out_bytes).text,
                     pd_text_bytes(group->plan.library_bytes).text);
    }
    return pd_table_print(&table, err);
}

static pd_status print_groups(const struct pd_world_memory *m, const struct shown *shown, struct pd_error *err)
{
    enum { FIRST = 2, TOTAL = FIRST + PD_MEMORY_CATEGORY_COUNT, COLUMNS };
    const char *cells[COLUMNS] = {">RANKS", ">FIRST", [TOTAL] = ">total"};
    struct pd_text texts[COLUMNS];
    struct pd_table table;
    uint32_t rest = 0;
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        snprintf(texts[c].text, sizeof texts[c].text, ">%s", pd_memory_category_name((enum pd_memory_category)c));
        cells[FIRST + c] = texts[c].text;
    }
    pd_table_init(&table, cells, COLUMNS);
    for (uint32_t g = 0; g < m->group_count; g++)
        rest += m->groups[g].ranks;
    for (uint32_t i = 0; i < shown->count; i++) {
        const struct pd_memory_group *group = &m->groups[shown->groups[i]];
        rest -= group->ranks;
        texts[0] = pd_text_plain(group->ranks);
        texts[1] = pd_text_plain(group->first_rank);
        for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++)
            texts[FIRST + c] = pd_text_bytes(group->plan.bytes[c]);
        texts[TOTAL] = pd_text_bytes(pd_memory_plan_total(&group->plan));
        for (int c = 0; c < COLUMNS; c++)
            cells[c] = texts[c].text;
        pd_table_row(&table, cells);
    }
    PD_TRY(pd_table_print(&table, err));
    if (rest)
        printf("and %s with %s in all; --json lists them\n", pd_counted(m->group_count - shown->count, "smaller group").text,
               pd_counted(rest, "rank").text);
    return PD_OK;
}

/* State on the host beside GPUs can be updated by either. */
static bool has_choice_of_update(const struct pd_config *c)
{
    return is_on_gpu(c) && c->offload.optimizer == PD_PLACE_CPU;
}

static const char *update_name(const struct pd_laid_out *laid_out)
{
    return laid_out->updates_on_device ? "device" : "host";
}

static pd_status print_alternatives(const struct pd_planned_world *w, struct pd_error *err)
{
    struct pd_table table;
    if (!w->alternative_count) return PD_OK;
    PD_TABLE_INIT(&table, "ALTERNATIVE", ">STEP", ">WORST RANK");
    for (uint32_t i = 0; i < w->alternative_count; i++) {
        char text[128];
        layout_text(&w->alternatives[i].laid_out, text, sizeof text);
        PD_TABLE_ROW(&table, text, seconds_text(w->alternatives[i].step_seconds).text,
                     pd_text_bytes(w->alternatives[i].worst_bytes).text);
    }
    return pd_table_print(&table, err);
}

static void print_flags(const struct pd_plan_subject *s, const struct pd_planned_world *w)
{
    const struct pd_layout *l = &w->laid_out.layout;
    const struct {
        const char *name;
        uint32_t value;
    } more[] = {{"tp", l->tp}, {"pp", l->pp}, {"sp", l->sp}, {"ep", l->ep}, {"interleave", l->interleave}};
    printf("flags: layout.ranks=%u", w->ranks);
    if (w->threads_given) printf(" layout.threads=%u", w->threads);
    printf(" layout.dp=%u", l->dp);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i].value > 1) printf(" layout.%s=%u", more[i].name, more[i].value);
    printf(" layout.zero_stage=%u", l->zero_stage);
    if (l->zero_shard != l->dp * l->sp) printf(" layout.zero_shard=%u", l->zero_shard);
    char recompute[64];
    pd_recompute_text(w->laid_out.recompute, w->laid_out.recompute_layers, " layout.", recompute, sizeof recompute);
    printf(" layout.%s%s\n", recompute, s->config->layout.automatic ? " layout.auto=false" : "");
}

/* The same rows for people and programs. The text omits rows that are 0. */
static void report_u64s(struct pd_report *r, enum pd_unit unit, const struct pd_json_u64_member *rows)
{
    for (; rows->key; rows++)
        if (rows->value || r->is_json) pd_report_u64(r, rows->key, rows->value, unit);
}

static void report_doubles(struct pd_report *r, enum pd_unit unit, const struct pd_json_double_member *rows)
{
    for (; rows->key; rows++)
        if (rows->value != 0 || r->is_json) pd_report_double(r, rows->key, rows->value, unit);
}
#define U64S(...) ((const struct pd_json_u64_member[]){__VA_ARGS__, {0}})
#define DOUBLES(...) ((const struct pd_json_double_member[]){__VA_ARGS__, {0}})

static void report_world(struct pd_report *r, const struct pd_plan_subject *s, const struct pd_planned_world *w)
{
    const struct pd_step_cost *c = &w->cost;
    report_u64s(r, PD_UNIT_BYTES,
                U64S({"process_bytes", w->process_bytes}, {"worst_rank_bytes", w->memory.worst_bytes},
                     {"mean_rank_bytes", (uint64_t)w->memory.mean_bytes}));
    report_u64s(r, PD_UNIT_NONE,
                U64S({"ranks_without_heads", w->without_heads}, {"ranks_without_ffn", w->without_ffn}, {"slots", c->slots},
                     {"padding_micro_batches", c->padding}));
    report_u64s(r, PD_UNIT_BYTES,
                U64S({"padding_bytes", c->padding_bytes}, {"parameter_bytes_received", c->parameter_bytes},
                     {"gradient_bytes_received", c->gradient_bytes}, {"gradient_bytes_by_step", c->gradient_bytes_step},
                     {"gradient_bytes_by_lane", c->gradient_bytes_lane},
                     {"host_parameter_bytes_sent", c->parameter_bytes_host},
                     {"host_gradient_bytes_sent", c->gradient_bytes_host},
                     {"host_gradient_bytes_by_step", c->gradient_bytes_step_host},
                     {"host_gradient_bytes_by_lane", c->gradient_bytes_lane_host},
                     {"tensor_bytes_received", c->tensor_bytes}, {"tensor_bytes_beside_compute", c->tensor_beside_bytes},
                     {"sequence_bytes_received", c->sequence_bytes}, {"pipeline_bytes_received", c->pipeline_bytes},
                     {"expert_bytes_received", c->expert_bytes}, {"host_expert_bytes_sent", c->expert_bytes_host}));
    report_doubles(r, PD_UNIT_SHARE, DOUBLES({"bubble", c->bubble}));
    report_doubles(r, PD_UNIT_SECONDS,
                   DOUBLES({"compute_seconds", c->compute_seconds}, {"recompute_seconds", c->recompute_seconds},
                           {"exposed_seconds", c->exposed_seconds}, {"bubble_seconds", c->bubble_seconds},
                           {"optimizer_seconds", c->optimizer_seconds}, {"terms_seconds", c->terms_seconds},
                           {"nvme_seconds", c->nvme_seconds}, {"bus_seconds", c->bus_seconds},
                           {"step_seconds", c->step_seconds}));
    if (!has_choice_of_update(s->config)) return;
    struct pd_laid_out other = w->laid_out;
    struct pd_step_cost otherwise;
    other.updates_on_device = !other.updates_on_device;
    pd_step_cost(s->config, s->model, &other, s->machine, &otherwise);
    pd_report_text(r, "update", update_name(&w->laid_out));
    report_doubles(r, PD_UNIT_SECONDS, DOUBLES({"optimizer_seconds_otherwise", otherwise.optimizer_seconds}));
}

static pd_status print_details(struct pd_report *r, const struct pd_plan_subject *s, const struct pd_planned_world *w,
                               struct pd_error *err)
{
    char text[128];
    layout_text(&w->laid_out, text, sizeof text);
    printf("\nworld %u: %s%s; %s a rank and step%s, %s a rank; a rank on %s\n", w->ranks, text,
           pd_is_breadth_first(s->config, &w->laid_out.layout) ? " order=breadth_first" : "",
           pd_counted(w->cost.slots, "micro-batch").text, w->cost.padding ? " at most" : "",
           pd_counted(w->threads, "thread").text, s->machine->name);
    struct shown shown;
    const struct pd_world_memory *m = &w->memory;
    uint32_t *order = malloc(m->group_count * sizeof *order);
    if (!order) PD_FAIL(err, PD_NO_MEMORY, "no memory for a table");
    for (uint32_t g = 0; g < m->group_count; g++)
        order[g] = g;
    shown.count = m->group_count < GROUPS_SHOWN ? m->group_count : GROUPS_SHOWN;
    if (shown.count < m->group_count) qsort_r(order, m->group_count, sizeof *order, by_ranks, m->groups);
    memcpy(shown.groups, order, shown.count * sizeof *order);
    free(order);
    PD_TRY(print_groups(&w->memory, &shown, err));
    if (w->offload || is_on_gpu(s->config)) PD_TRY(print_places(s, w, &shown, err));
    report_world(r, s, w);
    const enum pd_place places[] = {s->config->offload.optimizer, s->config->offload.parameters,
                                    s->config->offload.gradients, s->config->offload.activations};
    bool any = false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        any = any || places[i] == PD_PLACE_CPU;
    if (any && !is_on_gpu(s->config)) printf("note: the device is the CPU, where offload.*=cpu is the same as device\n");
    if (!fits(s->machine, w->memory.worst_bytes)) {
        printf("note: this does not fit the %s of %s%s%s\n", pd_text_bytes((uint64_t)s->machine->device_bytes).text,
               s->machine->name, w->remedy[0] ? ": " : "", w->remedy);
        PD_TRY(pd_plan_ladder_print(s->config, s->model, w->ranks, w->threads, s->machine->device_bytes, stdout, err));
    }
    if (w->without_heads)
        printf("note: %u of %u tensor-parallel ranks have no attention head, since a tp chunk is a whole number of heads; a "
               "smaller layout.tp wastes nothing\n",
               w->without_heads, w->laid_out.layout.tp);
    if (w->fewer_lanes.lanes)
        printf("note: numerics.lanes is %u, and a rank with several lanes holds integer sums; with numerics.lanes=%u a rank "
               "needs %s and a step %s, but the run never uses more than %s\n",
               s->config->numerics.lanes, w->fewer_lanes.lanes, pd_text_bytes(w->fewer_lanes.worst_bytes).text,
               seconds_text(w->fewer_lanes.step_seconds).text, pd_counted(w->fewer_lanes.lanes, "data rank").text);
    PD_TRY(print_alternatives(w, err));
    print_flags(s, w);
    return PD_OK;
}

static pd_status print_summary(const struct pd_planned_world *worlds, uint32_t count, struct pd_error *err)
{
    struct pd_table table;
    printf("\n");
    PD_TABLE_INIT(&table, ">WORLD", "LAYOUT", ">MICRO-BATCHES A RANK", ">WORST RANK", ">MEAN", ">PARAMETERS IN",
                  ">GRADIENTS IN", ">STEP");
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_planned_world *w = &worlds[i];
        const struct pd_text ranks = pd_text_plain(w->ranks);
        char layout[64];
        if (w->refusal[0]) {
            PD_TABLE_ROW(&table, ranks.text, "none, see below", "-", "-", "-", "-", "-", "-");
            continue;
        }
        plan_report_shape_text(&w->laid_out.layout, layout, sizeof layout);
        PD_TABLE_ROW(&table, ranks.text, layout, pd_text_plain(w->cost.slots).text,
                     pd_text_bytes(w->memory.worst_bytes).text, pd_text_bytes((uint64_t)w->memory.mean_bytes).text,
                     pd_text_bytes(w->cost.parameter_bytes).text, pd_text_bytes(w->cost.gradient_bytes).text,
                     seconds_text(w->cost.step_seconds).text);
    }
    PD_TRY(pd_table_print(&table, err));
    for (uint32_t i = 0; i < count; i++)
        if (worlds[i].refusal[0]) printf("world %u: %s\n", worlds[i].ranks, worlds[i].refusal);
    printf("--world=N shows one by category\n");
    return PD_OK;
}

/* ---- JSON ---- */

static void write_memory(struct pd_json_writer *w, const struct pd_memory_plan *plan)
{
    pd_json_object_begin(w, "memory_bytes");
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++)
        pd_json_u64(w, pd_memory_category_name((enum pd_memory_category)c), plan->bytes[c]);
    pd_json_u64(w, "total", pd_memory_plan_total(plan));
    pd_json_object_end(w);
}

static void write_groups(struct pd_json_writer *w, const struct pd_config *config, const struct pd_planned_world *x)
{
    const struct pd_offload_plan none = {0};
    const struct pd_world_memory *m = &x->memory;
    pd_json_array_begin(w, "groups");
    for (uint32_t g = 0; g < m->group_count; g++) {
        pd_json_object_begin(w, NULL);
        PD_JSON_U64S(w, {"first_rank", m->groups[g].first_rank}, {"ranks", m->groups[g].ranks});
        write_memory(w, &m->groups[g].plan);
        PD_JSON_U64S(w, {"device_bytes", pd_memory_plan_total(&m->groups[g].plan)},
                     {"nccl_bytes_estimated", m->groups[g].plan.library_bytes});
        const struct pd_offload_plan *p = x->offload ? &x->offload[g] : &none;
        uint64_t pinned = pinned_of(config, &m->groups[g].plan);
        PD_JSON_U64S(w, {"host_bytes", pinned}, {"pinned_bytes", pinned}, {"nvme_bytes", p->nvme_bytes},
                     {"nvme_generations", p->generations}, {"nvme_generation_bytes", p->generation_bytes},
                     {"nvme_scratch_bytes", p->scratch_bytes}, {"nvme_step_bytes", p->step_bytes},
                     {"nvme_state_bytes", p->state_traffic}, {"nvme_parameter_bytes", p->parameter_traffic},
                     {"nvme_gradient_bytes", p->gradient_traffic}, {"nvme_activation_bytes", p->activation_traffic},
                     {"bus_in_bytes", p->bus_in_bytes}, {"bus_out_bytes", p->bus_out_bytes});
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

/* Recomputed blocks of the rank with most blocks. */
static uint32_t recomputed_blocks(const struct pd_laid_out *laid_out, const struct pd_model *model)
{
    const uint32_t blocks = pd_laid_out_blocks(laid_out, model);
    if (laid_out->recompute == PD_RECOMPUTE_NONE) return 0;
    return laid_out->recompute_layers < blocks ? laid_out->recompute_layers : blocks;
}

static void write_layout(struct pd_json_writer *w, const struct pd_laid_out *laid_out, const struct pd_model *model)
{
    const struct pd_layout *l = &laid_out->layout;
    pd_json_object_begin(w, "layout");
    PD_JSON_U64S(w, {"dp", l->dp}, {"tp", l->tp}, {"pp", l->pp}, {"sp", l->sp}, {"interleave", l->interleave},
                 {"ep", pd_layout_ep(l)}, {"zero_stage", l->zero_stage}, {"zero_shard", l->zero_shard});
    pd_json_string(w, "recompute", recompute_names[laid_out->recompute]);
    pd_json_u64(w, "recompute_layers", recomputed_blocks(laid_out, model));
    pd_json_string(w, "exchange", exchange_name(laid_out));
    pd_json_object_end(w);
}

static void write_world(struct pd_report *r, const struct pd_plan_subject *s, const struct pd_planned_world *x)
{
    struct pd_json_writer *w = &r->writer;
    pd_json_object_begin(w, NULL);
    PD_JSON_U64S(w, {"world", x->ranks}, {"threads", x->threads});
    pd_json_string(w, "refusal", x->refusal[0] ? x->refusal : NULL);
    if (x->refusal[0]) {
        pd_json_object_end(w);
        return;
    }
    write_layout(w, &x->laid_out, s->model);
    write_groups(w, s->config, x);
    report_world(r, s, x);
    PD_JSON_U64S(w, {"fewer_lanes", x->fewer_lanes.lanes}, {"fewer_lanes_worst_rank_bytes", x->fewer_lanes.worst_bytes});
    pd_json_double(w, "fewer_lanes_step_seconds", x->fewer_lanes.step_seconds);
    pd_json_array_begin(w, "alternatives");
    for (uint32_t i = 0; i < x->alternative_count; i++) {
        pd_json_object_begin(w, NULL);
        write_layout(w, &x->alternatives[i].laid_out, s->model);
        pd_json_double(w, "step_seconds", x->alternatives[i].step_seconds);
        pd_json_u64(w, "worst_rank_bytes", x->alternatives[i].worst_bytes);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    pd_json_object_end(w);
}

static void write_all(struct pd_report *r, const struct pd_plan_subject *s, const struct pd_planned_world *worlds,
                      uint32_t count, double seconds)
{
    const struct pd_config *c = s->config;
    const uint64_t tokens = (uint64_t)c->batch.sequences * c->batch.context;
    const struct tiers tiers = tiers_of(s);
    struct pd_json_writer *w = &r->writer;
    PD_JSON_U64S(w, {"parameters", s->model->parameter_count}, {"active_parameters", s->model->active_count},
                 {"tensors", s->model->tensors.count}, {"tokens_per_step", tokens});
    const struct pd_data_options data = pd_config_data(c);
    pd_json_double(w, "learned_share", pd_data_learned_share(&data));
    pd_json_double(w, "flops_per_step", (double)tokens * pd_model_flops_per_token(s->model, c->batch.context));
    PD_JSON_U64S(w, {"micro_batches", c->batch.sequences / c->batch.micro_batch}, {"checkpoint_bytes", tiers.state});
    write_tiers(w, &tiers);
    pd_json_array_begin(w, "worlds");
    for (uint32_t i = 0; i < count; i++)
        write_world(r, s, &worlds[i]);
    pd_json_array_end(w);
    if (count == 1) { /* repeated for programs that expect one world */
        write_groups(w, c, &worlds[0]);
        pd_json_double(w, "step_seconds", worlds[0].cost.step_seconds);
    }
    pd_json_double(w, "plan_seconds", seconds);
}

pd_status pd_plan_print(const struct pd_plan_subject *s, const struct pd_planned_world *worlds, uint32_t count,
                        double seconds, bool is_json, struct pd_error *err)
{
    struct pd_report r;
    pd_report_begin(&r, is_json);
    if (is_json) {
        write_all(&r, s, worlds, count, seconds);
        return pd_report_end(&r, err);
    }
    plan_report_describe(s);
    const pd_status st = count == 1 ? print_details(&r, s, &worlds[0], err) : print_summary(worlds, count, err);
    const pd_status ended = pd_report_end(&r, st ? NULL : err);
    return st ? st : ended;
}
