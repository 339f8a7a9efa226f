#include "trainer/launch_layout.h"

#include "offload/device.h"
#include "resharder/layout.h"
#include "trainer/config_keys.h"
#include "trainer/cost_model.h"
#include "trainer/gpus.h"
#include "trainer/launched.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

pd_status pd_launch_chooser_init(const struct pd_config *config, struct pd_launch_chooser *ret_chooser, struct pd_error *err)
{
    struct pd_launch_chooser c = {.config = config};
    PD_TRY(pd_model_new(&config->model, &c.model, err));
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

/* The first GPU speaks for all of the host. What several ranks share is divided; a twentieth is left to the driver. */
static bool gpu_machine(const struct pd_config *config, uint32_t ranks, struct pd_machine *ret_machine)
{
    struct pd_gpus gpus;
    if (!gpus_of(config)) return false;
    pd_gpus_find(&gpus);
    if (!gpus.count) return false;
    const char *name = pd_gpu_machine_name(gpus.gpus[0].name);
    const double sharing = (ranks + gpus.count - 1) / gpus.count;
    if (pd_machine_preset(name ? name : "h100-80g", ret_machine, NULL)) return false;
    ret_machine->device_bytes = 0.95 * (double)gpus.gpus[0].bytes / sharing;
    ret_machine->flops /= sharing;
    ret_machine->memory_rate /= sharing;
    ret_machine->bus /= sharing;
    ret_machine->host_ranks = ranks;
    return true;
}

/* Ranks of this host share its memory. A tenth is left to the system. */
static pd_status machine_of(const struct pd_config *config, uint32_t ranks, struct pd_machine *ret_machine,
                            struct pd_error *err)
{
    if (gpu_machine(config, ranks, ret_machine)) return PD_OK;
    PD_TRY(pd_machine_preset("cpu", ret_machine, err));
    ret_machine->device_bytes = 0.9 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / ranks;
    return PD_OK;
}

static pd_status choose_fastest(const struct pd_launch_chooser *c, uint32_t ranks, struct pd_laid_out *ret_laid_out,
                                struct pd_error *err)
{
    struct pd_machine machine;
    struct pd_layout_choice best;
    uint32_t count;
    struct pd_config config = *c->config; /* borrows what it points to */
    PD_TRY(machine_of(c->config, ranks, &machine, err));
    if (gpus_of(c->config)) config.run.device = PD_DEVICE_GPU; /* counted so */
    PD_TRY(pd_choose_layouts(&config, c->model, ranks, pd_launched_threads(c->config->layout.threads, ranks), &machine, 1,
                             &best, &count, err));
    *ret_laid_out = best.laid_out;
    return PD_OK;
}

static pd_status choose_automatic(const struct pd_launch_chooser *c, uint32_t ranks, bool is_restart,
                                  struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    const struct pd_degrees held = {c->config->layout.dp, c->config->layout.tp, c->config->layout.pp, c->config->layout.sp,
                                    0};
    while (is_restart && ranks > 1 && !pd_degrees_list(c->config, ranks, &held, NULL, 0))
        ranks--;
    return choose_fastest(c, ranks, ret_laid_out, err);
}

/* ---- degrees of the configuration ---- */

static pd_status choose_given(struct pd_launch_chooser *c, uint32_t ranks, bool is_restart, struct pd_laid_out *ret_laid_out,
                              struct pd_error *err)
{
    struct pd_degrees degrees;
    if (!is_restart) {
        PD_TRY(pd_degrees_of(c->config, ranks, &degrees, err));
        c->degrees = degrees;
    } else if (ranks == pd_degrees_world(&c->degrees)) {
        degrees = c->degrees;
    } else if (!pd_degrees_fewer(c->config, ranks, &c->degrees, &degrees)) {
        PD_FAIL(err, PD_INVALID, "no layout of %u ranks or fewer is admitted; the smallest has 1", ranks);
    }
    return pd_lay_out_degrees(c->config, c->model, &degrees, ret_laid_out, err);
}

/* ---- words ---- */

static void say(const struct pd_laid_out *laid_out, struct pd_launch_layout *ret)
{
    static const char *const recompute_names[] = {"none", "selective", "full"};
    const struct pd_layout *l = &laid_out->layout;
    const struct pd_degrees degrees = {l->dp, l->tp, l->pp, l->sp, l->interleave};
    ret->ranks = pd_layout_world(l);
    pd_degrees_text(&degrees, ret->summary, sizeof ret->summary);
    snprintf(ret->settings, sizeof ret->settings,
             "dp=%u,tp=%u,pp=%u,sp=%u,interleave=%u,zero_stage=%u,zero_shard=%u,recompute=%s", l->dp, l->tp, l->pp, l->sp,
             l->interleave, l->zero_stage, l->zero_shard, recompute_names[laid_out->recompute]);
}

pd_status pd_launch_choose(struct pd_launch_chooser *c, uint32_t ranks, bool is_restart, struct pd_launch_layout *ret_layout,
                           struct pd_error *err)
{
    struct pd_laid_out laid_out;
    if (!ranks) {
        const uint32_t gpus = gpus_of(c->config);
        ranks = pd_degrees_first_world(c->config, gpus ? gpus : pd_launched_cores());
    }
    if (c->config->layout.automatic)
        PD_TRY(choose_automatic(c, ranks, is_restart, &laid_out, err));
    else
        PD_TRY(choose_given(c, ranks, is_restart, &laid_out, err));
    say(&laid_out, ret_layout);
    return PD_OK;
}

pd_status pd_launch_layout_apply(struct pd_config *config, const char *settings, uint32_t ranks, struct pd_error *err)
{
    char text[sizeof((struct pd_launch_layout *)0)->settings], key[64];
    snprintf(text, sizeof text, "%s", settings);
    config->layout.chosen = config->layout.automatic;
    config->layout.automatic = false;
    config->layout.ranks = ranks;
    for (char *rest = text, *word; (word = strtok_r(rest, ",", &rest));) {
        char *equals = strchr(word, '=');
        if (!equals) PD_FAIL(err, PD_BUG, "\"%s\" is no setting of a layout", word);
        *equals = '\0';
        snprintf(key, sizeof key, "layout.%s", word);
        PD_TRY(pd_key_set(config, key, equals + 1, err));
    }
    return PD_OK;
}
