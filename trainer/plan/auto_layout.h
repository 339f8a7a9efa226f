/* From a configuration and a number of ranks to a layout. Degrees that the configuration gives hold; dp takes what is left of
 * the world. With layout.auto the planner chooses dp, tp, pp, sp, recomputation, of how many blocks, and the ZeRO stage but for
 * what is given, among what the numerics admit, by the memory plan and a model of step time (cost_model.h).
 *
 *   errors   PD_INVALID: no admitted layout of this many ranks; the message names the degree, the cause and the nearest
 *            layouts that fit
 */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/store/commit.h"
#include "trainer/config/laid_out.h"

struct pd_machine;

/* Pure, so that ranks which call it agree. With layout.auto memory has no limit here: a launcher that knows its devices
 * chooses with pd_choose_layouts and tells the ranks. */
PD_MUST_USE pd_status pd_lay_out(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                 struct pd_laid_out *ret_laid_out, struct pd_error *err);
struct pd_layout_choice {
    struct pd_laid_out laid_out;
    double step_seconds;
    uint64_t worst_bytes; /* of a rank */
};
/* The fastest layouts of `world` ranks that fit the machine's memory, fastest first: all degrees that are admitted and not
 * given, every ZeRO stage and recomputation or the given one, and of blocks that are recomputed the fewest with which it
 * fits; all where nothing needs to be. Writes at most `capacity`.
 *   errors  PD_INVALID: nothing is admitted, or nothing fits: then with what the smallest would take */
PD_MUST_USE pd_status pd_choose_layouts(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                        uint32_t threads, const struct pd_machine *machine, uint32_t capacity,
                                        struct pd_layout_choice *ret_choices, uint32_t *ret_count, struct pd_error *err);

#define PD_LAYOUT_ADVICE_BYTES 256u
/* Whether pd_choose_layouts finds one. ret_advice: where nothing fits what would help, "take more ranks"; else empty. */
bool pd_layouts_fit(const struct pd_config *config, const struct pd_model *model, uint32_t world, uint32_t threads,
                    const struct pd_machine *machine, char ret_advice[PD_LAYOUT_ADVICE_BYTES]);

/* What makes a rank's share of device memory smaller, of what this configuration admits and does not have yet: "take more
 * ranks or a smaller batch.micro_batch (other bits)". places: what is on the device may go to a GPU's host, too.
 * state_alone: parameters, their sums and the optimizer's state are too large already, so that fewer tokens at once are no
 * help. */
void pd_less_memory_text(const struct pd_config *config, uint32_t world, bool places, bool state_alone, char *ret,
                         size_t bytes);

/* The one search for what would fit: the planner, advice and benchmarks of a GPU ask it. */
/* Whether it fits with so many. More never fits less. */
typedef pd_status (*pd_fit_probe)(void *context, uint32_t count, bool *ret_fits, struct pd_error *err);

/* The fewest of 1 to `enough` with which it fits, where it is known to fit with `enough`. About log2(enough) probes. */
PD_MUST_USE pd_status pd_fit_fewest(pd_fit_probe probe, void *context, uint32_t enough, uint32_t *ret_fewest,
                                    struct pd_error *err);
