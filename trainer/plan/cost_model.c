#include "trainer/plan/cost_model.h"
#include "ckpt/base/nearest.h"
#include "trainer/engine/gpus.h"

#include "resharder/layout.h"
#include "trainer/engine/engine.h"
#include "trainer/parallel/schedule.h"

#include <math.h>
#include <string.h>

/* Rates reached in training: about half of a GPU's dense data sheet rate, and what our kernels reach on some eight cores,
 * which compute in fp32 whatever is stored. On a GPU fp32 means no tensor cores: cuBLASLt is not asked for TF32 (NVIDIA
 * A100: 19.5, 312 Tflop/s in fp32, bf16; H100 and H200 SXM: 67, 989, 1,979 in fp32, bf16, fp8). A GPU's host: half the rated
 * memory bandwidth of two sockets, four fifths of PCIe. */
static const struct pd_machine machines[] = {
    {"cpu", 0, {200e9, 200e9, 200e9}, 20e9, 5e9, 1e9, 2e-5, 8, 2e9, 0, 0, 0},
    {"a100-40g", 40e9, {9.7e12, 156e12, 156e12}, 1.5e12, 250e9, 20e9, 1e-5, 8, 3e9, 200e9, 25e9, 80},
    {"a100-80g", 80e9, {9.7e12, 156e12, 156e12}, 2.0e12, 250e9, 20e9, 1e-5, 8, 3e9, 200e9, 25e9, 80},
    {"h100-80g", 80e9, {33e12, 450e12, 900e12}, 3.3e12, 400e9, 45e9, 1e-5, 8, 3e9, 300e9, 50e9, 90},
    {"h200-141g", 141e9, {33e12, 450e12, 900e12}, 4.8e12, 400e9, 45e9, 1e-5, 8, 3e9, 300e9, 50e9, 90},
};
enum { MACHINES = sizeof machines / sizeof machines[0] };

pd_status pd_machine_preset(const char *name, struct pd_machine *ret_machine, struct pd_error *err)
{
    for (int i = 0; i < MACHINES; i++) {
        if (strcmp(machines[i].name, name) != 0) continue;
        *ret_machine = machines[i];
        return PD_OK;
    }
    const char *names[MACHINES];
    uint32_t near;
    for (int i = 0; i < MACHINES; i++)
        names[i] = machines[i].name;
    pd_nearest_names(name, names, MACHINES, &near, 1);
    PD_FAIL(
        err, PD_USAGE,
        "device %s is unknown; the nearest is %s; known are cpu, a100-40g, a100-80g, h100-80g and h200-141g, and perdure "
        "plan takes the memory and the speed of any other from --device-memory and --flops",
        name, names[near]);
}

bool pd_machine_of_gpu(const struct pd_gpu *gpu, struct pd_machine *ret_machine)
{
    const char *name = pd_gpu_machine_name(gpu->name);
    const pd_status st = pd_machine_preset(name ? name : "h100-80g", ret_machine, NULL);
    PD_CHECK(!st);
    if (name) return true;
    ret_machine->device_bytes = (double)gpu->bytes;
    ret_machine->capability = gpu->major * 10 + gpu->minor;
    return false;
}

void pd_machine_set_flops(struct pd_machine *machine, double flops)
{
    for (int r = 0; r < PD_RATE_COUNT; r++)
        machine->flops[r] = flops;
}

void pd_machine_share(struct pd_machine *machine, double ranks)
{
    for (int r = 0; r < PD_RATE_COUNT; r++)
        machine->flops[r] /= ranks;
    machine->device_bytes /= ranks;
    machine->memory_rate /= ranks;
    machine->bus /= ranks;
}

/* ---- one pipeline rank ---- */

struct stage {
    uint32_t blocks;
    bool has_embedding, has_head;
    double seconds, block_seconds, logit_seconds; /* per token, forward, uncut; logits: multiplied a second time */
    double moved_seconds;                         /* approximate time of norms and activations, by memory */
    double elements, block_elements;              /* a tensor-parallel rank's */
    double spread_elements;                       /* of experts, if ep divides them */
};

struct setting {
    const struct pd_config *config;
    const struct pd_model *model;
    const struct pd_layout *layout;
    const struct pd_machine *machine;
    enum pd_recompute recompute;
    uint32_t recompute_layers;
    double rows;                      /* of a micro-batch on a rank */
    double act;                       /* bytes of an activation */
    double share;                     /* of the work, that the busiest tensor-parallel rank has */
    double parts, copies;             /* a stage's state, and sums, are cut into `parts`; `copies` of each */
    double parts_leave, copies_leave; /* the fraction of a rank's collectives that leaves the host */
    double experts_leave;             /* the same of what it sends to other ranks of its expert group */
    double slots_once;                /* micro-batches that share one pass over the parameters */
    bool by_heads;                    /* sequence-parallel ranks exchange rows for heads */
    bool updates_on_device;           /* state is the host's, and AdamW the GPU's */
    uint32_t slots, interleave, micro_batches;
    double exchanges, lanes; /* of a block's gradients in a step; as lanes end */
};

/* Tensors that ep ranks divide, or all. */
static double tp_elements(const struct setting *s, uint32_t unit, bool only_spread)
{
    double sum = 0;
    for (uint32_t t = s->model->unit_first[unit]; t < s->model->unit_first[unit + 1]; t++) {
        const struct pd_tensor *tensor = &s->model->tensors.tensors[t];
        if (only_spread && !pd_layout_is_spread(s->layout, tensor)) continue;
        sum += (double)pd_tensor_elements(tensor) * (tensor->tp_dim < 0 ? 1 : s->share);
    }
    return sum;
}

static double seconds_of(const struct setting *s, double flops)
{
    return flops / s->machine->flops[s->config->numerics.precision == PD_F32 ? PD_RATE_F32 : PD_RATE_HALF];
}

/* In a block only linear layers use eight bits. */
static double block_seconds(const struct setting *s)
{
    const double all = pd_unit_flops(s->model, s->config->batch.context, s->model->unit_count - 2),
                 attention = pd_attention_flops(&s->model->config, s->config->batch.context);
    if (s->config->numerics.linears != PD_LINEARS_FP8) return seconds_of(s, all);
    return (all - attention) / s->machine->flops[PD_RATE_FP8] + seconds_of(s, attention);
}

static struct stage stage_of(const struct setting *s, uint32_t pp)
{
    struct stage g = {.has_embedding = pp == 0, .has_head = pp + 1 == s->layout->pp};
    const uint32_t last = s->model->unit_count - 1;
    for (uint32_t chunk = 0; chunk < s->interleave; chunk++)
        g.blocks += pd_grid_stage(s->layout, s->model, pp, chunk).block_count;
    if (s->layout->pp == 1) g.blocks = last - 1;
    const uint32_t length = s->config->batch.context;
    g.block_seconds = g.blocks * block_seconds(s);
    g.moved_seconds = 0.05 * g.blocks * pd_unit_flops(s->model, length, last - 1) / s->machine->flops[PD_RATE_HALF];
    g.block_elements = g.blocks * tp_elements(s, last - 1, false);
    g.spread_elements = g.blocks * tp_elements(s, last - 1, true);
    g.seconds = g.block_seconds;
    g.elements = g.block_elements;
    if (g.has_embedding)
        g.seconds += seconds_of(s, pd_unit_flops(s->model, length, 0)), g.elements += tp_elements(s, 0, false);
    if (g.has_head) {
        const double head = seconds_of(s, pd_unit_flops(s->model, length, last));
        g.seconds += head;
        if (s->config->numerics.logits == PD_LOGITS_OF_COLUMNS) g.logit_seconds = head;
        g.elements += tp_elements(s, last, false);
        if (s->model->config.tie_embeddings && s->layout->pp > 1) g.elements += tp_elements(s, 0, false);
    }
    return g;
}

static double term_bytes(const struct setting *s)
{
    return s->config->numerics.terms == PD_TERMS_32 ? sizeof(int32_t) : sizeof(int64_t);
}

/* What a rank receives of the parts of others, and what it holds: of some elements, some of which ep ranks divide. */
static double received(const struct setting *s, double elements, double spread)
{
    const double ep = pd_layout_ep(s->layout);
    return (elements - spread) * (s->parts - 1) / s->parts + spread / ep * (1 - fmin(1, ep / s->parts));
}

static double block_terms(const struct setting *s, const struct stage *g)
{
    return received(s, g->block_elements, g->spread_elements) * term_bytes(s);
}

static double held(const struct setting *s, const struct stage *g)
{
    return (g->elements - g->spread_elements) / s->parts + g->spread_elements / fmax(s->parts, pd_layout_ep(s->layout));
}

/* Bytes of one micro-batch. */
struct traffic {
    double parameters, gradients, tensor, sequence, pipeline, experts;
    double backward; /* of tensor: beside gradients of weights */
    double calls;    /* transfers that nothing hides */
};

/* Blocks of a stage recomputed according to `recompute`. */
static double recomputed(const struct setting *s, const struct stage *g)
{
    if (s->recompute == PD_RECOMPUTE_NONE) return 0;
    return s->recompute_layers < g->blocks ? s->recompute_layers : g->blocks;
}

/* Transfers from other stages: streams, and gradients. */
struct links {
    double in, back;
};

static struct links links_of(const struct setting *s, const struct stage *g)
{
    const double chunks = s->interleave;
    if (s->layout->pp == 1) return (struct links){0, 0};
    return (struct links){g->has_embedding ? chunks - 1 : chunks, g->has_head ? chunks - 1 : chunks};
}

/* fp32 terms of sums, to the ranks that keep the rows; rows, to all; embedding rows, to their keepers; and three numbers per
 * row of logits. Shared key-value heads and norms of heads are small in comparison. */
static double tensor_bytes(const struct setting *s, const struct stage *g, double again, double gradients)
{
    const double tp = s->layout->tp, row = s->model->config.hidden * (tp - 1) / tp;
    const double sums = g->blocks * 4 + again + g->has_head,
                 gathers = g->blocks * 6 + 2 * again + 2 * g->has_head + gradients + g->has_embedding / tp;
    return s->rows * (row * (sums * sizeof(float) + gathers * s->act) + g->has_head * 3 * sizeof(float) * (tp - 1));
}

/* Tokens to experts and results back, and the same in backward; recomputation sends tokens again. A row goes there with its
 * router weight, and back once for each chunk of columns, in backward with a gradient for each. All experts get as many. */
static double expert_bytes(const struct setting *s, const struct stage *g, double again)
{
    const struct pd_model_config *m = &s->model->config;
    const double ep = pd_layout_ep(s->layout), blocks = g->spread_elements > 0 ? g->blocks : 0, row = m->hidden * s->act,
                 chunks = s->layout->virtual_tp / s->layout->tp, weight = sizeof(float);
    return blocks ? (ep - 1) / ep * s->rows * m->experts_per_token *
                        (blocks * (2 * (1 + chunks) * row + (1 + chunks) * weight) + again * (row + weight))
                  : 0;
}

/* The part of a GPU's tensor-parallel exchanges that overlaps compute (trainer/model/README.md, "Behind exchanges"). None in
 * fp8, nor on a CPU, whose ranks compute while they move bytes. */
static void count_beside(const struct setting *s, const struct stage *g, struct traffic *t)
{
    const double tp = s->layout->tp, kept = s->rows * s->model->config.hidden * (tp - 1) / tp * s->act,
                 terms = kept / s->act * sizeof(float);
    if (tp == 1 || !s->machine->capability || s->config->numerics.linears == PD_LINEARS_FP8) return;
    t->backward = g->blocks * (2 * terms + 2 * kept);
    t->calls -= g->blocks * 3;
}

static struct traffic traffic_of(const struct setting *s, const struct stage *g)
{
    const struct pd_layout *l = s->layout;
    const struct pd_model_config *m = &s->model->config;
    const double tp = l->tp, sp = l->sp;
    const double again = s->recompute == PD_RECOMPUTE_FULL ? recomputed(s, g) : 0;
    struct traffic t = {0};
    if (l->zero_stage == 3) {
        double elements = g->elements + g->block_elements;
        if (m->tie_embeddings && l->pp == 1) elements += tp_elements(s, 0, false);
        t.parameters = received(s, elements, 2 * g->spread_elements) * s->act / s->slots_once;
    }
    t.gradients = s->exchanges > 1 ? block_terms(s, g) * s->exchanges / s->slots : 0;
    t.experts = expert_bytes(s, g, again);
    const struct links links = links_of(s, g);
    t.tensor = tensor_bytes(s, g, again, links.back);
    const double key_value = 2.0 * m->kv_heads * m->head_size * s->share, query = 2.0 * m->heads * m->head_size * s->share;
    t.sequence = s->rows * (sp - 1) * s->act * (key_value * (2 * g->blocks + again) + query * g->blocks);
    if (s->by_heads)
        t.sequence =
            s->rows * (sp - 1) / sp *
            ((key_value + query) * s->act * (2 * g->blocks + again) + m->heads * s->share * sizeof(float) * g->blocks);
    t.pipeline = (links.in + links.back) * s->rows / tp * m->hidden * s->act;
    t.calls = (tp > 1 ? g->blocks * 8 + 3 * again + g->has_embedding + 5 * g->has_head + links.back : 0) +
              (t.experts > 0 ? g->blocks * (3 + 2.0 * l->virtual_tp / tp) + 2 * again : 0) +
              (sp > 1 ? g->blocks * (s->by_heads ? 4 : 3) + again * (s->by_heads ? 2 : 1) : 0) + links.in + links.back;
    count_beside(s, g, &t);
    return t;
}

/* Approximate bytes of a block's saved activations per token. */
static double kept_bytes(const struct setting *s, enum pd_recompute recompute)
{
    const struct pd_model_config *m = &s->model->config;
    const double heads = ((double)m->heads + 2.0 * m->kv_heads) * m->head_size * s->share, ffn = m->ffn * s->share;
    const double row = (double)m->hidden / s->layout->tp, norms = s->layout->tp == 1 ? 2 * row : 0;
    if (recompute == PD_RECOMPUTE_FULL) return row * s->act;
    const double gemms = row * 2 + heads * 2 + ffn * 2;
    return (gemms + (recompute == PD_RECOMPUTE_NONE ? norms + ffn : 0)) * s->act;
}

/* Bytes to and from drives, into a GPU and out of it: of one micro-batch, and of the update. */
struct streams {
    double micro_batch, micro_batch_in, micro_batch_out, update, update_in, update_out;
};

/* The part of `bytes` beyond a budget. */
static double away(double bytes, uint64_t budget)
{
    return bytes > (double)budget ? bytes - (double)budget : 0;
}

/* To memory other than the device's; on a CPU cpu equals device. */
static bool crosses(const struct setting *s, enum pd_place place)
{
    return s->machine->host_rate > 0 && place != PD_PLACE_DEVICE;
}

static void add_copies(const struct setting *s, const struct stage *g, struct streams *x)
{
    const struct pd_config *c = s->config;
    const double copies = away(g->block_elements / s->parts * s->act, c->offload.parameters_budget),
                 sums = away(g->block_elements / s->parts * sizeof(float), c->offload.gradients_budget);
    if (c->offload.parameters == PD_PLACE_NVME) x->micro_batch += 2 * copies / s->slots_once, x->update += copies;
    if (crosses(s, c->offload.parameters)) x->micro_batch_in += 2 * copies / s->slots_once, x->update_out += copies;
    if (c->offload.gradients == PD_PLACE_NVME) x->micro_batch += sums / s->slots, x->update += sums;
    if (crosses(s, c->offload.gradients)) x->micro_batch_out += sums / s->slots, x->update_in += sums;
}

static struct streams streams_of(const struct setting *s, const struct stage *g)
{
    const struct pd_config *c = s->config;
    const double again = recomputed(s, g),
                 token = again * kept_bytes(s, s->recompute) + (g->blocks - again) * kept_bytes(s, PD_RECOMPUTE_NONE);
    /* micro-batches kept at once */
    const double alive = s->slots_once > s->layout->pp ? s->slots_once : s->layout->pp,
                 kept = away(alive * s->rows * token, c->offload.activations_budget) / alive, own = held(s, g);
    struct streams x = {0};
    add_copies(s, g, &x);
    const double state = own * pd_kinds_bytes(c->optimizer.moments);
    if (c->offload.optimizer == PD_PLACE_NVME) x.update += state + away(state, c->offload.optimizer_budget);
    if (s->updates_on_device)
        x.update_in += state, x.update_out += state;
    else if (crosses(s, c->offload.optimizer))
        x.update_in += own * s->act, x.update_out += own * sizeof(float);
    if (c->offload.activations == PD_PLACE_NVME) x.micro_batch += 2 * kept;
    if (crosses(s, c->offload.activations)) x.micro_batch_in += kept, x.micro_batch_out += kept;
    return x;
}

static double rate_of(const struct setting *s, uint32_t span)
{
    return span <= s->machine->ranks_per_host ? s->machine->link : s->machine->network;
}

/* Seconds of AdamW on `elements`, limited by memory: three states read and written, and the gradient. Off the device it is
 * the host's memory (offload/host_update.h), which gradients and copies also pass through. If the device updates host state,
 * that memory has only the state. */
static double adam_seconds(const struct setting *s, double elements)
{
    const struct pd_machine *m = s->machine;
    const double state = 2.0 * pd_kinds_bytes(s->config->optimizer.moments), gradient = sizeof(float);
    if (m->host_rate <= 0 || s->config->offload.optimizer == PD_PLACE_DEVICE)
        return elements * (state + gradient) / m->memory_rate;
    const uint32_t world = pd_layout_world(s->layout), sharing = world < m->ranks_per_host ? world : m->ranks_per_host;
    const double copied = s->updates_on_device ? 0 : 2 * (gradient + s->act); /* the bus: streams_of */
    return elements * (state + copied) * sharing / m->host_rate;
}

static double bus_seconds(const struct setting *s, double in, double out)
{
    return s->machine->bus > 0 ? fmax(in, out) / s->machine->bus : 0;
}

static double streams_seconds(const struct setting *s, double drives, double in, double out)
{
    return fmax(drives / s->machine->nvme, bus_seconds(s, in, out));
}

/* Converting the fp32 sums of a rank's lanes to terms, limited by memory. The first lane writes a term, later ones add to
 * it; a step of one lane makes no terms. It may round blocks' sums to bf16 after each micro-batch; all but the first, the norm
 * and the update make them fp32 again. */
static double terms_seconds(const struct setting *s, const struct stage *g)
{
    const double first = sizeof(float) + term_bytes(s), more = sizeof(float) + 2 * term_bytes(s);
    const double conversion = sizeof(float) + sizeof(uint16_t);
    if (s->config->numerics.gradients == PD_BF16)
        return g->block_elements * (2.0 * s->slots + 1) * conversion / s->machine->memory_rate;
    if (s->config->numerics.lanes == 1) return 0;
    return g->elements * (first + (s->lanes - 1) * more) / s->machine->memory_rate;
}

/* ---- between data ranks ---- */

/* In a reduce-scatter or all-gather among `ranks` that are `apart`, n of them per host, a rank sends (n - 1) / n inside its
 * host and (ranks - n) / (ranks * n) to other hosts (trainer/comm/README.md). */
static double leaving_share(const struct pd_machine *machine, double ranks, double apart)
{
    const double here = fmin(ranks, fmax(1, floor(machine->ranks_per_host / apart)));
    return ranks > here ? (ranks - here) / here / (ranks - 1) : 0;
}

static double seconds_between(const struct setting *s, double bytes, double leaving)
{
    return bytes * (1 - leaving) / s->machine->link + bytes * leaving / s->machine->network;
}

/* ---- the step ---- */

/* Terms of ends; and sums between replicas, there and back. */
static double end_terms(const struct setting *s, const struct stage *g)
{
    return (g->elements - g->block_elements) * term_bytes(s) * (s->parts - 1) / s->parts;
}

static double replica_sums(const struct setting *s, const struct stage *g)
{
    const double ep = pd_layout_ep(s->layout), apart = s->parts == 1 && ep > 1 ? s->copies / ep : s->copies,
                 spread = held(s, g) - (g->elements - g->spread_elements) / s->parts, common = held(s, g) - spread;
    return 2 * term_bytes(s) * (common * (s->copies - 1) / s->copies + spread * (apart - 1) / apart);
}

static void keep_most(uint64_t *most, double bytes)
{
    *most = (uint64_t)fmax((double)*most, bytes);
}

/* Bytes received by a rank of the stage, and sent by a host of such ranks to others. */
static void count_bytes(const struct setting *s, const struct stage *g, double parameters, struct pd_step_cost *c)
{
    const uint32_t world = pd_layout_world(s->layout);
    const double here = fmin(world, s->machine->ranks_per_host), replicas = replica_sums(s, g), ends = end_terms(s, g),
                 terms[] = {ends + block_terms(s, g), ends + s->lanes * block_terms(s, g)};
    uint64_t *const received[] = {&c->gradient_bytes_step, &c->gradient_bytes_lane}, *const sent[] = {
                                                                                         &c->gradient_bytes_step_host,
                                                                                         &c->gradient_bytes_lane_host};
    for (int i = 0; i < 2; i++) {
        keep_most(received[i], terms[i] + replicas);
        keep_most(sent[i], here * (terms[i] * s->parts_leave + replicas * s->copies_leave));
    }
    c->gradient_bytes = s->exchanges > 1 ? c->gradient_bytes_lane : c->gradient_bytes_step;
    c->gradient_bytes_host = s->exchanges > 1 ? c->gradient_bytes_lane_host : c->gradient_bytes_step_host;
    keep_most(&c->parameter_bytes, parameters);
    keep_most(&c->parameter_bytes_host, here * parameters * s->parts_leave);
}

static void add_stage(const struct setting *s, const struct stage *g, struct pd_step_cost *c, double *slowest)
{
    const struct pd_layout *l = s->layout;
    const struct traffic t = traffic_of(s, g);
    const uint32_t place = l->tp * l->sp, stage = place * l->dp;
    const double work = s->rows * s->share;
    const double again = s->recompute == PD_RECOMPUTE_FULL ? g->block_seconds : g->moved_seconds; /* norms, activations */
    const double compute = 3 * g->seconds * work;
    const double recompute = (g->blocks ? again * recomputed(s, g) / g->blocks : 0) * work + g->logit_seconds * work;
    const double hidden = fmin(t.backward / rate_of(s, l->tp), g->block_seconds * work);
    const double exposed = t.tensor / rate_of(s, l->tp) - hidden + t.sequence / rate_of(s, place) +
                           t.calls * s->machine->latency + seconds_between(s, t.experts, s->experts_leave);
    const double beside =
        seconds_between(s, t.parameters + t.gradients, s->parts_leave) + t.pipeline / rate_of(s, 2 * stage);
    const struct streams streams = streams_of(s, g);
    const double micro_batch =
                     fmax(fmax(compute + recompute + exposed, beside),
                          streams_seconds(s, streams.micro_batch, streams.micro_batch_in, streams.micro_batch_out)),
                 slots = s->slots;
    double once = 0;
    if (l->zero_stage == 1 || l->zero_stage == 2) once = received(s, g->elements, g->spread_elements) * s->act;
    const double sums = seconds_between(s, end_terms(s, g) + (s->exchanges > 1 ? 0 : block_terms(s, g)), s->parts_leave) +
                        seconds_between(s, replica_sums(s, g), s->copies_leave);
    count_bytes(s, g, t.parameters * slots + once, c);
    keep_most(&c->tensor_bytes, t.tensor * slots);
    keep_most(&c->tensor_beside_bytes, t.backward * slots);
    keep_most(&c->sequence_bytes, t.sequence * slots);
    keep_most(&c->pipeline_bytes, t.pipeline * slots);
    keep_most(&c->expert_bytes, t.experts * slots);
    keep_most(&c->expert_bytes_host,
              fmin(pd_layout_world(l), s->machine->ranks_per_host) * t.experts * slots * s->experts_leave);
    if (c->padding) keep_most(&c->padding_bytes, t.parameters);
    const double optimizer = fmax(adam_seconds(s, held(s, g)),
                                  streams_seconds(s, streams.update, streams.update_in, streams.update_out)),
                 exposed_sums = fmax(0, sums - compute * 2 / 3), /* beside the last backward */
        after = seconds_between(s, once, s->parts_leave) + exposed_sums;
    c->nvme_seconds = fmax(c->nvme_seconds, (streams.micro_batch * slots + streams.update) / s->machine->nvme);
    c->bus_seconds = fmax(c->bus_seconds, bus_seconds(s, streams.micro_batch_in * slots + streams.update_in,
                                                      streams.micro_batch_out * slots + streams.update_out));
    c->optimizer_seconds = fmax(c->optimizer_seconds, optimizer + after);
    c->terms_seconds = fmax(c->terms_seconds, terms_seconds(s, g));
    if (micro_batch <= *slowest) return;
    *slowest = micro_batch;
    c->compute_seconds = compute * slots;
    c->recompute_seconds = recompute * slots;
    c->exposed_seconds = (micro_batch - (compute + recompute)) * slots; /* nothing exposed: exactly 0 */
}

static struct setting setting_of(const struct pd_config *config, const struct pd_model *model,
                                 const struct pd_laid_out *laid_out, const struct pd_machine *machine)
{
    const struct pd_layout *l = &laid_out->layout;
    const struct pd_partition p = {.tp = l->tp, .virtual_tp = l->virtual_tp, .sp = l->sp, .virtual_sp = l->virtual_sp};
    const struct pd_range heads = pd_partition_units(&p, model->config.heads),
                          ffn = pd_partition_units(&p, model->config.ffn);
    struct setting s = {.config = config,
                        .model = model,
                        .layout = l,
                        .machine = machine,
                        .recompute = laid_out->recompute,
                        .recompute_layers = laid_out->recompute_layers,
                        .rows = (double)config->batch.micro_batch * config->batch.context / l->sp,
                        .act = pd_dtype_bytes(config->numerics.precision),
                        .parts = l->zero_stage ? l->zero_shard : 1,
                        .by_heads = pd_partition_exchanges_heads(&model->config, &p, config->batch.context),
                        .interleave = l->pp > 1 ? l->interleave : 1,
                        .micro_batches = config->batch.sequences / config->batch.micro_batch};
    s.share =
        fmax((double)(heads.end - heads.begin) / model->config.heads, (double)(ffn.end - ffn.begin) / model->config.ffn);
    s.copies = l->dp * l->sp / s.parts;
    s.parts_leave = leaving_share(machine, s.parts, l->tp);
    const double ep = pd_layout_ep(l), here = fmin(ep, fmax(1, floor(machine->ranks_per_host / (double)l->tp)));
    s.experts_leave = ep > here ? (ep - here) / (ep - 1) : 0;
    s.copies_leave = leaving_share(machine, s.copies, l->tp * s.parts);
    const struct pd_lanes lanes = pd_lanes_of(config, l->dp);
    s.slots = pd_schedule_slots(pd_lanes_slots(&lanes), l->pp, s.interleave);
    s.lanes = l->virtual_sp > 1 ? s.slots : (lanes.count + l->dp - 1) / l->dp;
    s.exchanges = laid_out->by_lane ? s.lanes : 1;
    s.slots_once = pd_is_breadth_first(config, l) ? s.slots : 1;
    s.updates_on_device = laid_out->updates_on_device && config->offload.optimizer == PD_PLACE_CPU && machine->host_rate > 0;
    return s;
}

void pd_step_cost(const struct pd_config *config, const struct pd_model *model, const struct pd_laid_out *laid_out,
                  const struct pd_machine *machine, struct pd_step_cost *ret_cost)
{
    const struct setting s = setting_of(config, model, laid_out, machine);
    const struct pd_layout *l = &laid_out->layout;
    struct pd_step_cost c = {.slots = s.slots, .padding = s.slots * l->dp - s.micro_batches};
    double slowest = -1;
    for (uint32_t pp = 0; pp < l->pp; pp++) {
        const struct stage g = stage_of(&s, pp);
        add_stage(&s, &g, &c, &slowest);
    }
    c.bubble = pd_schedule_bubble(l->pp, s.interleave, s.slots);
    c.bubble_seconds = slowest * (l->pp - 1) / s.interleave;
    c.step_seconds = slowest * s.slots + c.bubble_seconds + c.optimizer_seconds + c.terms_seconds;
    *ret_cost = c;
}

void pd_lay_out_update(const struct pd_config *config, const struct pd_model *model, const struct pd_machine *machine,
                       struct pd_laid_out *laid_out)
{
    struct pd_step_cost by_host, by_device;
    if (config->offload.update != PD_UPDATES_AUTO || config->offload.optimizer != PD_PLACE_CPU) return;
    laid_out->updates_on_device = false;
    pd_step_cost(config, model, laid_out, machine, &by_host);
    laid_out->updates_on_device = true;
    pd_step_cost(config, model, laid_out, machine, &by_device);
    laid_out->updates_on_device = by_device.optimizer_seconds < by_host.optimizer_seconds;
}
