#include "tools/commands/plan_report.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/words.h"
#include "resharder/catalog/family.h"
#include "tools/output.h"

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

/* Pinned memory of the host, of one rank. */
static uint64_t pinned_of(const struct pd_config *config, const struct pd_memory_plan *plan)
{
    return is_on_gpu(config) ? pd_memory_plan_host(plan) : 0;
}

static struct pd_degrees degrees_of(const struct pd_layout *l)
{
    return (struct pd_degrees){.dp = l->dp, .tp = l->tp, .pp = l->pp, .sp = l->sp, .interleave = l->interleave};
}

/* "dp=2 tp=4 zero_stage=3 recompute=none" */
static void layout_text(const struct pd_laid_out *laid_out, char *ret, size_t bytes)
{
    const struct pd_degrees degrees = degrees_of(&laid_out->layout);
    char recompute[48];
    pd_degrees_text(&degrees, ret, bytes);
    pd_recompute_text(laid_out->recompute, laid_out->recompute_layers, " ", recompute, sizeof recompute);
    size_t used = strlen(ret);
    snprintf(ret + used, bytes - used, " zero_stage=%u %s", laid_out->layout.zero_stage, recompute);
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

/* A library's own buffers lie beside what the plan adds up. */
static bool rung_fits(const struct pd_machine *machine, const struct pd_plan_rung *rung)
{
    return fits(machine, pd_memory_plan_total(&rung->worst) + rung->worst.library_bytes);
}

/* ---- text ---- */

struct tiers {
    struct pd_tier_options options[PD_TIERS_MAX];
    uint32_t count, checkpoints[PD_TIERS_MAX]; /* at once, as the check before the first step counts them */
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

static void describe(const struct pd_plan_subject *s)
{
    const struct pd_model_config *m = &s->model->config;
    const struct pd_config *c = s->config;
    const uint64_t tokens = (uint64_t)c->batch.sequences * c->batch.context;
    const struct tiers tiers = tiers_of(s);
    printf("model       %s parameters: %s, %s of %u, %s, vocabulary %u\n", pd_text_count(s->model->parameter_count).text,
           pd_family_names[m->family], pd_counted(m->layers, "block").text, m->hidden, pd_counted(m->heads, "head").text,
           m->vocab);
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

static void begin_memory_table(struct pd_table *table, const char *const *first, uint32_t first_count)
{
    const char *headings[PD_TABLE_COLUMNS_MAX];
    char names[PD_MEMORY_CATEGORY_COUNT][32];
    uint32_t count = 0;
    for (uint32_t i = 0; i < first_count; i++)
        headings[count++] = first[i];
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        snprintf(names[c], sizeof names[c], ">%s", pd_memory_category_name((enum pd_memory_category)c));
        headings[count++] = names[c];
    }
    headings[count++] = ">total";
    pd_table_init(table, headings, count);
}

static void memory_row(struct pd_table *table, const char *const *first, uint32_t first_count,
                       const struct pd_memory_plan *plan)
{
    struct pd_text texts[PD_MEMORY_CATEGORY_COUNT + 1];
    const char *cells[PD_TABLE_COLUMNS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < first_count; i++)
        cells[count++] = first[i];
    for (int c = 0; c <= PD_MEMORY_CATEGORY_COUNT; c++) {
        texts[c] = pd_text_bytes(c == PD_MEMORY_CATEGORY_COUNT ? pd_memory_plan_total(plan) : plan->bytes[c]);
        cells[count++] = texts[c].text;
    }
    pd_table_row(table, cells);
}

static int by_ranks(const void *a, const void *b, void *groups)
{
    const struct pd_memory_group *x = (struct pd_memory_group *)groups + *(const uint32_t *)a,
                                 *y = (struct pd_memory_group *)groups + *(const uint32_t *)b;
    if (x->ranks != y->ranks) return x->ranks > y->ranks ? -1 : 1;
    return (x->first_rank > y->first_rank) - (x->first_rank < y->first_rank);
}

/* The groups to show: all, or the ones with the most ranks. */
struct shown {
    uint32_t groups[GROUPS_SHOWN], count;
};

/* Where it lies and what moves. */
static pd_status print_places(const struct pd_plan_subject *s, const struct pd_planned_world *w, const struct shown *shown,
                              struct pd_error *err)
{
    struct pd_table table;
    PD_TABLE_INIT(&table, ">RANKS", ">FIRST", ">device", ">pinned", ">NVMe", ">to and from it a step");
    for (uint32_t i = 0; i < shown->count; i++) {
        const uint32_t g = shown->groups[i];
        const struct pd_memory_group *group = &w->memory.groups[g];
        const struct pd_offload_plan none = {0}, *offload = w->offload ? &w->offload[g] : &none;
        const uint64_t pinned = pinned_of(s->config, &group->plan);
        PD_TABLE_ROW(&table, pd_text_plain(group->ranks).text, pd_text_plain(group->first_rank).text,
                     pd_text_bytes(pd_memory_plan_total(&group->plan)).text, pinned ? pd_text_bytes(pinned).text : "-",
                     pd_text_bytes(offload->nvme_bytes).text, pd_text_bytes(offload->step_bytes).text);
    }
    return pd_table_print(&table, err);
}

struct part {
    const char *name;
    uint64_t bytes;
};

/* "WHAT: 3 MiB state, 1 MiB gradients", without those of 0 bytes. False: all are, and nothing is printed. */
static bool print_parts(const char *what, const struct part *parts, uint32_t count)
{
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        if (!parts[i].bytes) continue;
        printf("%s%s%s %s", any ? "" : what, any ? ", " : ": ", pd_text_bytes(parts[i].bytes).text, parts[i].name);
        any = true;
    }
    return any;
}

static pd_status print_groups(const struct pd_world_memory *m, const struct shown *shown, struct pd_error *err)
{
    static const char *const headings[] = {">RANKS", ">FIRST"};
    struct pd_table table;
    uint32_t rest = 0;
    begin_memory_table(&table, headings, 2);
    for (uint32_t g = 0; g < m->group_count; g++)
        rest += m->groups[g].ranks;
    for (uint32_t i = 0; i < shown->count; i++) {
        const struct pd_memory_group *group = &m->groups[shown->groups[i]];
        rest -= group->ranks;
        memory_row(&table, (const char *const[]){pd_text_plain(group->ranks).text, pd_text_plain(group->first_rank).text}, 2,
                   &group->plan);
    }
    PD_TRY(pd_table_print(&table, err));
    if (rest)
        printf("and %s with %s in all; --json lists them\n", pd_counted(m->group_count - shown->count, "smaller group").text,
               pd_counted(rest, "rank").text);
    return PD_OK;
}

static const char *exchange_name(const struct pd_laid_out *laid_out)
{
    return laid_out->by_lane ? "lane" : "step";
}

static void print_traffic(const struct pd_step_cost *c, const struct pd_laid_out *laid_out)
{
    const struct part parts[] = {{"parameters", c->parameter_bytes},
                                 {"gradients", c->gradient_bytes},
                                 {"sums of tensor parallelism", c->tensor_bytes},
                                 {"keys, values and queries", c->sequence_bytes},
                                 {"between stages", c->pipeline_bytes}};
    printf(print_parts("a rank receives in a step, at most", parts, 5) ? "\n" : "nothing is exchanged\n");
    const struct part between[] = {{"parameters", c->parameter_bytes_host}, {"gradients", c->gradient_bytes_host}};
    if (print_parts("a host sends to others in a step, at most", between, 2)) printf("\n");
    if (c->gradient_bytes_lane != c->gradient_bytes_step)
        printf("layout.exchange is %s: gradients once a step are %s a rank and %s between hosts, as lanes end %s and %s\n",
               exchange_name(laid_out), pd_text_bytes(c->gradient_bytes_step).text,
               pd_text_bytes(c->gradient_bytes_step_host).text, pd_text_bytes(c->gradient_bytes_lane).text,
               pd_text_bytes(c->gradient_bytes_lane_host).text);
    if (c->tensor_beside_bytes)
        printf("of the tensor-parallel sums, %s travel during compute\n", pd_text_bytes(c->tensor_beside_bytes).text);
    if (c->padding)
        printf("%u of the slots of a step %s: each gathers %s of parameters and computes nothing\n", c->padding,
               c->padding == 1 ? "is a padding micro-batch" : "are padding micro-batches",
               pd_text_bytes(c->padding_bytes).text);
}

static void print_time(const struct pd_planned_world *w, const struct pd_machine *machine)
{
    const struct pd_step_cost *c = &w->cost;
    printf("step %s on %s: compute %s", seconds_text(c->step_seconds).text, machine->name,
           seconds_text(c->compute_seconds).text);
    if (c->recompute_seconds > 0) printf(", recomputation %s", seconds_text(c->recompute_seconds).text);
    if (c->exposed_seconds > 0) printf(", transfers that nothing hides %s", seconds_text(c->exposed_seconds).text);
    if (c->bubble > 0) printf(", bubble %s (%.1f %%)", seconds_text(c->bubble_seconds).text, 100 * c->bubble);
    printf(", optimizer %s", seconds_text(c->optimizer_seconds).text);
    if (c->nvme_seconds > 0)
        printf("; NVMe is busy for %s at %s/s", seconds_text(c->nvme_seconds).text,
               pd_text_bytes((uint64_t)machine->nvme).text);
    if (c->bus_seconds > 0)
        printf("; the bus is busy for %s at %s/s each way", seconds_text(c->bus_seconds).text,
               pd_text_bytes((uint64_t)machine->bus).text);
    printf("\n");
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

static void print_update(const struct pd_plan_subject *s, const struct pd_planned_world *w)
{
    struct pd_laid_out other = w->laid_out;
    struct pd_step_cost cost;
    if (!has_choice_of_update(s->config)) return;
    other.updates_on_device = !other.updates_on_device;
    pd_step_cost(s->config, s->model, &other, s->machine, &cost);
    printf("offload.update is %s: optimizer %s, by bus and memory of hosts; on the %s it would be %s\n",
           update_name(&w->laid_out), seconds_text(w->cost.optimizer_seconds).text, update_name(&other),
           seconds_text(cost.optimizer_seconds).text);
}

static void print_warnings(const struct pd_planned_world *w)
{
    const uint32_t tp = w->laid_out.layout.tp;
    if (w->without_heads)
        printf("note: %u of %u tensor-parallel ranks have no attention head, since a chunk is a whole number of heads; a "
               "smaller layout.tp wastes nothing\n",
               w->without_heads, tp);
    if (w->without_ffn) printf("note: %u of %u tensor-parallel ranks have no column of the MLP\n", w->without_ffn, tp);
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
    } more[] = {{"tp", l->tp}, {"pp", l->pp}, {"sp", l->sp}, {"interleave", l->interleave}};
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

/* The most that a rank has or moves, and what all have together. */
struct totals {
    uint64_t pinned, pinned_all, nvme, nvme_all, bus_in, bus_out, library;
    const struct pd_offload_plan *busiest; /* of the group whose ranks move most on NVMe */
};

static struct totals totals_of(const struct pd_plan_subject *s, const struct pd_planned_world *w)
{
    static const struct pd_offload_plan none;
    struct totals t = {.busiest = w->offload ? w->offload : &none};
    for (uint32_t g = 0; g < w->memory.group_count; g++) {
        const struct pd_memory_group *group = &w->memory.groups[g];
        const struct pd_offload_plan *offload = w->offload ? &w->offload[g] : &none;
        const uint64_t pinned = pinned_of(s->config, &group->plan);
        t.pinned = pd_max_u64(t.pinned, pinned);
        t.pinned_all += pinned * group->ranks;
        t.nvme = pd_max_u64(t.nvme, offload->nvme_bytes);
        t.nvme_all += offload->nvme_bytes * group->ranks;
        t.bus_in = pd_max_u64(t.bus_in, offload->bus_in_bytes);
        t.bus_out = pd_max_u64(t.bus_out, offload->bus_out_bytes);
        t.library = pd_max_u64(t.library, group->plan.library_bytes);
        if (offload->step_bytes > t.busiest->step_bytes) t.busiest = offload;
    }
    return t;
}

/* What lies where and what moves, of a rank at most. */
static void print_totals(const struct pd_plan_subject *s, const struct pd_planned_world *w)
{
    const struct totals t = totals_of(s, w);
    const struct pd_offload_plan *p = t.busiest;
    const struct part parts[] = {{"state", p->state_traffic},
                                 {"parameters", p->parameter_traffic},
                                 {"gradients", p->gradient_traffic},
                                 {"activations", p->activation_traffic}};
    printf("on the device: worst rank %s, mean %s, all ranks %s\n", pd_text_bytes(w->memory.worst_bytes).text,
           pd_text_bytes((uint64_t)w->memory.mean_bytes).text,
           pd_text_bytes((uint64_t)(w->memory.mean_bytes * w->ranks)).text);
    if (t.pinned)
        printf("pinned on the host: worst rank %s, all ranks %s\n", pd_text_bytes(t.pinned).text,
               pd_text_bytes(t.pinned_all).text);
    if (t.nvme) printf("on NVMe: worst rank %s, all ranks %s\n", pd_text_bytes(t.nvme).text, pd_text_bytes(t.nvme_all).text);
    if (!t.pinned && !t.nvme) printf("nothing on host or NVMe\n");
    if (t.library)
        printf("in that, beside the table: NCCL's own buffers, %s a rank at most, by an estimate that was not measured on a "
               "GPU; NCCL_BUFFSIZE and fewer neighbours make them smaller\n",
               pd_text_bytes(t.library).text);
    if (print_parts("a rank reads and writes on NVMe in a step, at most", parts, 4)) printf("\n");
    if (p->nvme_bytes) {
        if (p->generations)
            printf("state takes %u files of %s: one being read, one being written, and one per kept checkpoint",
                   p->generations, pd_text_bytes(p->generation_bytes).text);
        if (p->scratch_bytes)
            printf("%s%s", p->generations ? "; scratch " : "scratch ", pd_text_bytes(p->scratch_bytes).text);
        printf("\npage cache: none, by direct I/O; on a file system that refuses it all of these bytes pass through the "
               "cache\n");
    }
    if (t.bus_in || t.bus_out)
        printf("offload moves over a rank's bus in a step, at most: %s to the device, %s from it\n",
               pd_text_bytes(t.bus_in).text, pd_text_bytes(t.bus_out).text);
}

static pd_status print_details(const struct pd_plan_subject *s, const struct pd_planned_world *w, struct pd_error *err)
{
    char text[128];
    layout_text(&w->laid_out, text, sizeof text);
    printf("\nworld %u: %s%s; %s a rank and step%s, %s a rank\n", w->ranks, text,
           pd_is_breadth_first(s->config, &w->laid_out.layout) ? " order=breadth_first" : "",
           pd_counted(w->cost.slots, "micro-batch").text, w->cost.padding ? " at most" : "",
           pd_counted(w->threads, "thread").text);
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
    print_totals(s, w);
    const enum pd_place places[] = {s->config->offload.optimizer, s->config->offload.parameters,
                                    s->config->offload.gradients, s->config->offload.activations};
    bool any = false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        any = any || places[i] == PD_PLACE_CPU;
    if (any && !is_on_gpu(s->config)) printf("note: the device is the CPU, where offload.*=cpu is the same as device\n");
    printf("a process takes about %s beside the memory of its ranks: program, libraries, stacks, tables\n",
           pd_text_bytes(w->process_bytes).text);
    if (!fits(s->machine, w->memory.worst_bytes))
        printf("note: this does not fit the %s of %s%s%s\n", pd_text_bytes((uint64_t)s->machine->device_bytes).text,
               s->machine->name, w->remedy[0] ? ": " : "", w->remedy);
    print_warnings(w);
    print_traffic(&w->cost, &w->laid_out);
    print_time(w, s->machine);
    print_update(s, w);
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
        const struct pd_degrees degrees = degrees_of(&w->laid_out.layout);
        const struct pd_text ranks = pd_text_plain(w->ranks);
        char layout[64];
        if (w->refusal[0]) {
            PD_TABLE_ROW(&table, ranks.text, "none, see below", "-", "-", "-", "-", "-", "-");
            continue;
        }
        pd_degrees_text(&degrees, layout, sizeof layout);
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

pd_status pd_plan_print(const struct pd_plan_subject *s, const struct pd_planned_world *worlds, uint32_t count,
                        struct pd_error *err)
{
    describe(s);
    return count == 1 ? print_details(s, &worlds[0], err) : print_summary(worlds, count, err);
}

pd_status pd_plan_print_ladder(const struct pd_plan_subject *s, const struct pd_plan_rung *rungs, uint32_t count,
                               struct pd_error *err)
{
    static const char *const headings[] = {"A RANK OF", ">RANKS", ""};
    struct pd_table table;
    uint64_t library = 0;
    describe(s);
    printf("\n");
    begin_memory_table(&table, headings, s->machine->device_bytes > 0 ? 3 : 2);
    for (uint32_t i = 0; i < count; i++) {
        if (rungs[i].worst.library_bytes > library) library = rungs[i].worst.library_bytes;
        memory_row(&table,
                   (const char *const[]){rungs[i].name, pd_text_plain(rungs[i].world).text,
                                         rung_fits(s->machine, &rungs[i]) ? "fits" : "too large"},
                   s->machine->device_bytes > 0 ? 3 : 2, &rungs[i].worst);
    }
    PD_TRY(pd_table_print(&table, err));
    if (library)
        printf("a verdict counts NCCL's own buffers too, %s a rank at most, by an estimate\n", pd_text_bytes(library).text);
    if (s->machine->device_bytes > 0) printf("a device has %s\n", pd_text_bytes((uint64_t)s->machine->device_bytes).text);
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

/* Of the rank that has most blocks. */
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
                 {"zero_stage", l->zero_stage}, {"zero_shard", l->zero_shard});
    pd_json_string(w, "recompute", recompute_names[laid_out->recompute]);
    pd_json_u64(w, "recompute_layers", recomputed_blocks(laid_out, model));
    pd_json_string(w, "exchange", exchange_name(laid_out));
    pd_json_object_end(w);
}

static void write_world(struct pd_json_writer *w, const struct pd_config *config, const struct pd_model *model,
                        const struct pd_planned_world *x)
{
    pd_json_object_begin(w, NULL);
    PD_JSON_U64S(w, {"world", x->ranks}, {"threads", x->threads});
    pd_json_string(w, "refusal", x->refusal[0] ? x->refusal : NULL);
    if (x->refusal[0]) {
        pd_json_object_end(w);
        return;
    }
    write_layout(w, &x->laid_out, model);
    if (has_choice_of_update(config)) pd_json_string(w, "update", update_name(&x->laid_out));
    write_groups(w, config, x);
    PD_JSON_U64S(w, {"process_bytes", x->process_bytes}, {"worst_rank_bytes", x->memory.worst_bytes},
                 {"mean_rank_bytes", (uint64_t)x->memory.mean_bytes}, {"ranks_without_heads", x->without_heads},
                 {"ranks_without_ffn", x->without_ffn});
    const struct pd_step_cost *c = &x->cost;
    PD_JSON_U64S(w, {"slots", c->slots}, {"padding_micro_batches", c->padding}, {"padding_bytes", c->padding_bytes},
                 {"parameter_bytes_received", c->parameter_bytes}, {"gradient_bytes_received", c->gradient_bytes},
                 {"gradient_bytes_by_step", c->gradient_bytes_step}, {"gradient_bytes_by_lane", c->gradient_bytes_lane},
                 {"host_parameter_bytes_sent", c->parameter_bytes_host},
                 {"host_gradient_bytes_sent", c->gradient_bytes_host},
                 {"host_gradient_bytes_by_step", c->gradient_bytes_step_host},
                 {"host_gradient_bytes_by_lane", c->gradient_bytes_lane_host}, {"tensor_bytes_received", c->tensor_bytes},
                 {"tensor_bytes_beside_compute", c->tensor_beside_bytes}, {"sequence_bytes_received", c->sequence_bytes},
                 {"pipeline_bytes_received", c->pipeline_bytes});
    PD_JSON_DOUBLES(w, {"bubble", c->bubble}, {"compute_seconds", c->compute_seconds},
                    {"recompute_seconds", c->recompute_seconds}, {"exposed_seconds", c->exposed_seconds},
                    {"bubble_seconds", c->bubble_seconds}, {"optimizer_seconds", c->optimizer_seconds},
                    {"nvme_seconds", c->nvme_seconds}, {"bus_seconds", c->bus_seconds}, {"step_seconds", c->step_seconds});
    pd_json_array_begin(w, "alternatives");
    for (uint32_t i = 0; i < x->alternative_count; i++) {
        pd_json_object_begin(w, NULL);
        write_layout(w, &x->alternatives[i].laid_out, model);
        pd_json_double(w, "step_seconds", x->alternatives[i].step_seconds);
        pd_json_u64(w, "worst_rank_bytes", x->alternatives[i].worst_bytes);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    pd_json_object_end(w);
}

static void write_ladder(struct pd_json_writer *w, const struct pd_machine *machine, const struct pd_plan_rung *rungs,
                         uint32_t count)
{
    pd_json_array_begin(w, "ladder");
    for (uint32_t i = 0; i < count; i++) {
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "name", rungs[i].name);
        pd_json_u64(w, "world", rungs[i].world);
        write_memory(w, &rungs[i].worst);
        pd_json_bool(w, "fits", rung_fits(machine, &rungs[i]));
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

pd_status pd_plan_print_json(const struct pd_plan_subject *s, const struct pd_planned_world *worlds, uint32_t count,
                             const struct pd_plan_rung *rungs, uint32_t rung_count, double seconds, struct pd_error *err)
{
    const struct pd_config *c = s->config;
    const uint64_t tokens = (uint64_t)c->batch.sequences * c->batch.context;
    const struct tiers tiers = tiers_of(s);
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    PD_JSON_U64S(&w, {"parameters", s->model->parameter_count}, {"tensors", s->model->tensors.count},
                 {"tokens_per_step", tokens});
    pd_json_double(&w, "flops_per_step", (double)tokens * pd_model_flops_per_token(s->model, c->batch.context));
    PD_JSON_U64S(&w, {"micro_batches", c->batch.sequences / c->batch.micro_batch}, {"checkpoint_bytes", tiers.state});
    write_tiers(&w, &tiers);
    if (rung_count) write_ladder(&w, s->machine, rungs, rung_count);
    pd_json_array_begin(&w, "worlds");
    for (uint32_t i = 0; i < count; i++)
        write_world(&w, c, s->model, &worlds[i]);
    pd_json_array_end(&w);
    if (count == 1) { /* once more where programs that know one world look */
        write_groups(&w, c, &worlds[0]);
        pd_json_double(&w, "step_seconds", worlds[0].cost.step_seconds);
    }
    pd_json_double(&w, "plan_seconds", seconds);
    return pd_output_json(&w, err);
}
