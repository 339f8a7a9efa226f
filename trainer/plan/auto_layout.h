/* Chooses a layout for a configuration and a number of ranks. Given degrees are kept; dp gets the rest of the world. With
 * layout.auto the planner chooses dp, tp, pp, sp, recomputation and its blocks, and the ZeRO stage, unless given. It uses
 * the memory plan and a model of step time (cost_model.h), within what the numerics allow.
 *
 *   errors   PD_INVALID: no valid layout for this many ranks; names the degree, the cause and the nearest layouts that fit
 */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/store/commit.h"
#include "trainer/config/laid_out.h"

struct pd_machine;

/* Pure, so ranks that call it agree. With layout.auto it assumes unlimited memory: a launcher that knows its devices uses
 * pd_choose_layouts and passes the result to the ranks. */
PD_MUST_USE pd_status pd_lay_out(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                 struct pd_laid_out *ret_laid_out, struct pd_error *err);
struct pd_layout_choice {
    struct pd_laid_out laid_out;
    double step_seconds;
    uint64_t worst_bytes; /* of any rank */
};
/* The fastest layouts of `world` ranks that fit the machine's memory, fastest first. Tries all valid degrees, every ZeRO
 * stage and recomputation (unless given), each with the fewest recomputed blocks that fit. Writes at most `capacity`.
 *   errors  PD_INVALID: none is valid, or none fits: then says what the smallest would need */
PD_MUST_USE pd_status pd_choose_layouts(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                        uint32_t threads, const struct pd_machine *machine, uint32_t capacity,
                                        struct pd_layout_choice *ret_choices, uint32_t *ret_count, struct pd_error *err);

/* What a layout would need if each of its data ranks had one lane, which then accumulates in place and holds no sums. */
struct pd_fewer_lanes {
    uint32_t lanes; /* the layout's dp; 0: no rank has several lanes */
    uint64_t worst_bytes;
    double step_seconds;
};
PD_MUST_USE pd_status pd_plan_fewer_lanes(const struct pd_config *config, const struct pd_model *model, uint32_t threads,
                                          const struct pd_laid_out *laid_out, const struct pd_machine *machine,
                                          struct pd_fewer_lanes *ret_fewer, struct pd_error *err);

#define PD_LAYOUT_ADVICE_BYTES 256u
/* Whether pd_choose_layouts finds one. ret_advice: if nothing fits, what would help, as "take more ranks"; else empty. */
bool pd_layouts_fit(const struct pd_config *config, const struct pd_model *model, uint32_t world, uint32_t threads,
                    const struct pd_machine *machine, char ret_advice[PD_LAYOUT_ADVICE_BYTES]);

/* Lists what this configuration could still change to need less device memory: "take more ranks or a smaller
 * batch.micro_batch (other bits)". places: data may also move to a GPU's host. state_alone: parameters, sums and optimizer
 * state alone are too large, so fewer tokens at once do not help. */
void pd_less_memory_text(const struct pd_config *config, uint32_t world, bool places, bool state_alone, char *ret,
                         size_t bytes);

/* The search for a fitting count, used by the planner, advice and GPU benchmarks. */
/* Whether it fits with `count`. A larger count never fits less. */
typedef pd_status (*pd_fit_probe)(void *context, uint32_t count, bool *ret_fits, struct pd_error *err);

/* The smallest count from 1 to `enough` that fits; `enough` must fit. About log2(enough) probes. */
PD_MUST_USE pd_status pd_fit_fewest(pd_fit_probe probe, void *context, uint32_t enough, uint32_t *ret_fewest,
                                    struct pd_error *err);
