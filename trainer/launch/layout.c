#include "trainer/launch/layout.h"

#include "ckpt/base/cpu.h"
#include "ckpt/base/log.h"
#include "ckpt/base/words.h"
#include "offload/device.h"
#include "resharder/layout.h"
#include "trainer/engine/gpus.h"
#include "trainer/plan/cost_model.h"
#include "trainer/plan/ladder.h"
#include "trainer/plan/memory_plan.h"
#include "trainer/plan/offload_plan.h"
#include "trainer/run/launched.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

pd_status pd_launch_chooser_init(const struct pd_config *config, struct pd_launch_chooser *ret_chooser, struct pd_error *err)
{
    struct pd_launch_chooser c = {.config = config};
    PD_TRY(pd_config_model(config, &c.model, err));
    *ret_chooser = c;
    return PD_OK;
}

void pd_launch_chooser_deinit(struct pd_launch_chooser *chooser)
{
    pd_model_free(chooser->model);
    *chooser = (struct pd_launch_chooser){0};
}

/* ---- layout.auto ---- */

/* How many GPUs ranks of this host would be; 0: they are CPU ranks. */
static uint32_t gpus_of(const struct pd_config *config)
{
    return config->run.device == PD_DEVICE_CPU ? 0 : pd_dev_cuda_count();
}

/* As ranks see it: run.device auto is gpu if there are any. The copy borrows what it points to */
static struct pd_config counted(const struct pd_launch_chooser *c)
{
    struct pd_config config = *c->config;
    if (gpus_of(c->config)) config.run.device = PD_DEVICE_GPU;
    return config;
}

static void find_fullest(uint32_t gpus, uint32_t ranks, struct pd_launch_gpu *ret)
{
    struct pd_error ignored; /* the rank that opens it reports it */
    for (uint32_t i = 0; i < gpus && i < ranks; i++) {
        struct pd_launch_gpu r = {.gpu = i};
        if (pd_dev_cuda_memory(i, r.name, &r.memory, &ignored)) continue;
        if (!ret->memory.total_bytes || r.memory.free_bytes < ret->memory.free_bytes) *ret = r;
    }
}

static uint32_t threads_of(const struct pd_launch_chooser *c, uint32_t ranks)
{
    return pd_launched_threads(c->config->layout.threads, pd_launch_ranks_of_a_host(c->config, ranks));
}

/* Divides what several ranks share; leaves a twentieth to the driver and libraries. */
static bool gpu_machine(struct pd_launch_chooser *c, uint32_t ranks, struct pd_machine *ret_machine)
{
    const uint32_t gpus = gpus_of(c->config);
    const struct pd_dev_memory *m = &c->fullest.memory;
    const uint32_t here = pd_launch_ranks_of_a_host(c->config, ranks);
    if (!gpus) return false;
    if (!m->total_bytes) find_fullest(gpus, here, &c->fullest);
    const char *name = pd_gpu_machine_name(c->fullest.name);
    if (pd_machine_preset(name ? name : "h100-80g", ret_machine, NULL)) return false;
    if (m->total_bytes) ret_machine->device_bytes = fmax(1, (double)m->free_bytes - 0.05 * (double)m->total_bytes);
    pd_machine_share(ret_machine, (here + gpus - 1) / gpus);
    ret_machine->ranks_per_host = here;
    return true;
}

/* Memory of processes on this host beyond their ranks' plans: threads of a process share it. */
static double process_bytes(const struct pd_launch_chooser *c, uint32_t ranks)
{
    const uint32_t here = pd_launch_ranks_of_a_host(c->config, ranks), threads = threads_of(c, ranks);
    const bool are_processes = c->config->layout.transport == PD_TRANSPORT_MPI || here < ranks;
    return (double)(are_processes ? here * pd_process_bytes(c->model, threads) : pd_process_bytes(c->model, here * threads));
}

/* Ranks of this host share its memory, or a cgroup's limit. A tenth is left to the system. */
static pd_status machine_of(struct pd_launch_chooser *c, uint32_t ranks, struct pd_machine *ret_machine,
                            struct pd_error *err)
{
    if (gpu_machine(c, ranks, ret_machine)) return PD_OK;
    PD_TRY(pd_machine_preset("cpu", ret_machine, err));
    ret_machine->ranks_per_host = pd_launch_ranks_of_a_host(c->config, ranks);
    if (!pd_memory_limit_read(NULL, &c->memory)) return PD_OK;
    const double most = (double)c->memory.most_bytes, rest = most - process_bytes(c, ranks);
    ret_machine->device_bytes = fmax(1, fmin(0.9 * most, rest)) / ret_machine->ranks_per_host;
    return PD_OK;
}

/* The error says what helps; the ladder shows how much. */
static void show_ladder(struct pd_launch_chooser *c, const struct pd_config *config, uint32_t ranks,
                        const struct pd_machine *machine)
{
    (void)!pd_plan_ladder_print(config, c->model, ranks, threads_of(c, ranks), machine->device_bytes, stderr, NULL);
}

static pd_status choose_fastest(struct pd_launch_chooser *c, uint32_t ranks, bool is_admitted,
                                struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    struct pd_machine machine;
    struct pd_layout_choice best;
    uint32_t count;
    const struct pd_config config = counted(c);
    const struct pd_launch_gpu *fullest = &c->fullest;
    PD_TRY(machine_of(c, ranks, &machine, err));
    const pd_status st = pd_choose_layouts(&config, c->model, ranks, threads_of(c, ranks), &machine, 1, &best, &count, err);
    if (st == PD_INVALID && is_admitted && machine.device_bytes > 0) show_ladder(c, &config, ranks, &machine);
    if (st == PD_INVALID && is_admitted && fullest->memory.total_bytes)
        return pd_error_context(err, st, "GPU %u: %s of %s are free, and a twentieth is kept for the driver", fullest->gpu,
                                pd_bytes_text((double)fullest->memory.free_bytes).text,
                                pd_bytes_text((double)fullest->memory.total_bytes).text);
    if (st == PD_INVALID && is_admitted && c->memory.is_most_of_group)
        return pd_error_context(err, st, "%s ends at %s", c->memory.most_who,
                                pd_bytes_text((double)c->memory.most_bytes).text);
    PD_TRY(st);
    *ret_laid_out = best.laid_out;
    return PD_OK;
}

static pd_status choose_automatic(struct pd_launch_chooser *c, uint32_t ranks, bool is_restart,
                                  struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    const struct pd_degrees held = {c->config->layout.dp, c->config->layout.tp, c->config->layout.pp, c->config->layout.sp,
                                    0};
    const struct pd_config config = counted(c);
    while (is_restart && ranks > 1 && !pd_degrees_list(&config, ranks, &held, NULL, 0))
        ranks--;
    return choose_fastest(c, ranks, pd_degrees_list(&config, ranks, &held, NULL, 0) > 0, ret_laid_out, err);
}

/* ---- degrees of the configuration ---- */

static pd_status choose_given(struct pd_launch_chooser *c, uint32_t ranks, bool is_restart, struct pd_laid_out *ret_laid_out,
                              struct pd_error *err)
{
    struct pd_degrees degrees;
    const struct pd_config config = counted(c);
    if (!is_restart) {
        PD_TRY(pd_degrees_of(&config, ranks, &degrees, err));
        c->degrees = degrees;
    } else if (ranks == pd_degrees_world(&c->degrees)) {
        degrees = c->degrees;
    } else if (!pd_degrees_fewer(&config, ranks, &c->degrees, &degrees)) {
        PD_FAIL(err, PD_INVALID, "no layout of %u ranks or fewer is admitted; the smallest has 1", ranks);
    }
    PD_TRY(pd_lay_out_degrees(c->config, c->model, &degrees, ret_laid_out, err));
    struct pd_machine machine;
    if (config.offload.optimizer == PD_PLACE_CPU && gpu_machine(c, ranks, &machine))
        pd_lay_out_update(c->config, c->model, &machine, ret_laid_out);
    return PD_OK;
}

/* ---- fitting ---- */

/* Bytes of this host under a layout: `each` of its ranks, and the processes `beside` them. */
static pd_status host_bytes(struct pd_launch_chooser *c, const struct pd_config *config, const struct pd_laid_out *laid_out,
                            double *ret_each, double *ret_beside, struct pd_error *err)
{
    const uint32_t ranks = pd_layout_world(&laid_out->layout);
    struct pd_world_memory memory;
    PD_TRY(pd_world_memory_plan(config, c->model, threads_of(c, ranks), laid_out, NULL, &memory, err));
    *ret_each = memory.mean_bytes;
    *ret_beside = process_bytes(c, ranks);
    pd_world_memory_deinit(&memory);
    return PD_OK;
}

/* The most ranks below `ranks` that fit on one host; 0: none. More ranks on a host need more memory in total. */
static uint32_t fewer_that_fit(struct pd_launch_chooser *c, const struct pd_config *config, uint32_t ranks, double most)
{
    const struct pd_degrees any = {0};
    for (uint32_t fewer = ranks - 1; fewer > 0; fewer--) {
        struct pd_degrees degrees;
        struct pd_laid_out laid_out;
        double each, beside;
        if (!pd_degrees_fewer(config, fewer, &any, &degrees) || pd_degrees_world(&degrees) != fewer) continue;
        if (pd_lay_out_degrees(config, c->model, &degrees, &laid_out, NULL)) continue;
        if (host_bytes(c, config, &laid_out, &each, &beside, NULL) == PD_OK && fewer * each + beside <= most) return fewer;
    }
    return 0;
}

/* If ranks together need more memory than exists, the kernel would kill every start. GPUs check their own. */
static pd_status check_memory(struct pd_launch_chooser *c, const struct pd_laid_out *laid_out, struct pd_error *err)
{
    const uint32_t ranks = pd_layout_world(&laid_out->layout), here = pd_launch_ranks_of_a_host(c->config, ranks);
    struct pd_config config = counted(c);
    struct pd_machine machine;
    char advice[PD_LAYOUT_ADVICE_BYTES], and_swap[48], ranks_that_fit[32] = "more hosts";
    double each, beside;
    if (gpus_of(c->config)) return PD_OK;
    config.run.device = PD_DEVICE_CPU;
    PD_TRY(machine_of(c, ranks, &machine, err));
    PD_TRY(host_bytes(c, &config, laid_out, &each, &beside, err));
    const double all = here * each + beside, most = (double)c->memory.most_bytes, swap = (double)c->memory.swap_bytes;
    if (most <= 0 || all <= most) return PD_OK;
    snprintf(and_swap, sizeof and_swap, swap > 0 ? " and %s of swap" : "", pd_bytes_text(swap).text);
    if (all <= most + swap) {
        pd_log_warn("launch",
                    "%s of this host take %s, and %s ends at %s: the rest is swapped, and steps take many times longer",
                    pd_counted(here, "rank").text, pd_bytes_text(all).text, c->memory.most_who, pd_bytes_text(most).text);
        return PD_OK;
    }
    show_ladder(c, &config, ranks, &machine);
    static const char more_ranks[] = "take more ranks"; /* which would share this host's memory */
    if (pd_layouts_fit(&config, c->model, ranks, threads_of(c, ranks), &machine, advice))
        snprintf(advice, sizeof advice, "with layout=auto they fit");
    const bool is_more = strncmp(advice, more_ranks, sizeof more_ranks - 1) == 0;
    const uint32_t fewer = is_more && here == ranks ? fewer_that_fit(c, &config, ranks, most) : 0;
    if (fewer) snprintf(ranks_that_fit, sizeof ranks_that_fit, "layout.ranks=%u", fewer);
    PD_FAIL(err, PD_INVALID,
            "%s of this host would take %s each and their processes %s, %s in all, and %s ends at %s%s; %s%s%s. What a rank "
            "is made "
            "of: perdure plan CONFIG --world=%u",
            pd_counted(here, "rank").text, pd_bytes_text(each).text, pd_bytes_text(beside).text, pd_bytes_text(all).text,
            c->memory.most_who, pd_bytes_text(most).text, and_swap, is_more ? "take " : "", is_more ? ranks_that_fit : "",
            is_more ? advice + sizeof more_ranks - 1 : advice, ranks);
}

/* ---- words ---- */

static void layout_describe(const struct pd_laid_out *laid_out, struct pd_launch_layout *ret)
{
    char recompute[48];
    const struct pd_layout *l = &laid_out->layout;
    const struct pd_degrees degrees = {l->dp, l->tp, l->pp, l->sp, l->interleave};
    ret->ranks = pd_layout_world(l);
    pd_recompute_text(laid_out->recompute, laid_out->recompute_layers, ",", recompute, sizeof recompute);
    pd_degrees_text(&degrees, ret->summary, sizeof ret->summary);
    const size_t used = strlen(ret->summary);
    if (l->ep > 1) snprintf(ret->summary + used, sizeof ret->summary - used, " ep=%u", l->ep);
    snprintf(ret->settings, sizeof ret->settings,
             "dp=%u,tp=%u,pp=%u,sp=%u,ep=%u,interleave=%u,zero_stage=%u,zero_shard=%u,%s%s%s", l->dp, l->tp, l->pp, l->sp,
             pd_layout_ep(l), l->interleave, l->zero_stage, l->zero_shard, recompute,
             laid_out->by_lane ? ",exchange=lane" : "", laid_out->updates_on_device ? ",offload.update=device" : "");
}

pd_status pd_launch_choose(struct pd_launch_chooser *c, uint32_t ranks, bool is_restart, struct pd_launch_layout *ret_layout,
                           struct pd_error *err)
{
    struct pd_laid_out laid_out;
    if (!ranks) {
        const uint32_t gpus = gpus_of(c->config);
        ranks = pd_degrees_first_world(c->config, gpus ? gpus : pd_cpu_cores());
    }
    if (c->config->layout.automatic)
        PD_TRY(choose_automatic(c, ranks, is_restart, &laid_out, err));
    else
        PD_TRY(choose_given(c, ranks, is_restart, &laid_out, err));
    PD_TRY(check_memory(c, &laid_out, err));
    layout_describe(&laid_out, ret_layout);
    return PD_OK;
}
