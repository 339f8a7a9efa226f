#include "trainer/plan/ladder.h"

#include "ckpt/base/words.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/plan/memory_plan.h"

static const struct rung {
    const char *name;
    enum pd_dtype precision;
    bool is_alone; /* one rank that holds everything */
    uint32_t zero_stage;
    enum pd_recompute recompute;
} rungs[] = {
    {"fp32, whole", PD_F32, true, 3, PD_RECOMPUTE_NONE},
    {"bf16 beside an fp32 master, whole", PD_BF16, true, 3, PD_RECOMPUTE_NONE},
    {"bf16, ZeRO-1", PD_BF16, false, 1, PD_RECOMPUTE_NONE},
    {"bf16, ZeRO-2", PD_BF16, false, 2, PD_RECOMPUTE_NONE},
    {"bf16, ZeRO-3", PD_BF16, false, 3, PD_RECOMPUTE_NONE},
    {"bf16, ZeRO-3, selective recomputation", PD_BF16, false, 3, PD_RECOMPUTE_SELECTIVE},
    {"bf16, ZeRO-3, full recomputation", PD_BF16, false, 3, PD_RECOMPUTE_FULL},
};
#define RUNG_COUNT (sizeof rungs / sizeof *rungs)

/* Bytes of the largest rank. `degrees` are for `world` ranks; a rung of one rank ignores them. states: of all other rungs,
 * which have one precision. */
static pd_status rung_bytes(const struct rung *rung, const struct pd_config *config, const struct pd_model *model,
                            const struct pd_degrees *degrees, uint32_t threads, struct pd_memory_states *states,
                            uint64_t *ret_bytes, struct pd_error *err)
{
    static const struct pd_degrees one = {1, 1, 1, 1, 1};
    struct pd_config changed = *config; /* shares what it points to */
    struct pd_laid_out laid_out;
    struct pd_world_memory memory;
    changed.numerics.precision = rung->precision;
    if (rung->precision == PD_F32) changed.numerics.linears = PD_LINEARS_PRECISION; /* in fp32 too */
    changed.layout.automatic = false;
    changed.layout.zero_stage = rung->zero_stage;
    changed.layout.recompute = rung->recompute;
    changed.layout.recompute_layers = PD_LAYERS_ALL;
    PD_TRY(pd_lay_out_degrees(&changed, model, rung->is_alone ? &one : degrees, &laid_out, err));
    PD_TRY(pd_world_memory_plan(&changed, model, threads, &laid_out, rung->is_alone ? NULL : states, &memory, err));
    *ret_bytes = memory.worst_bytes;
    pd_world_memory_deinit(&memory);
    return PD_OK;
}

pd_status pd_plan_ladder_print(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                               uint32_t threads, double allowed_bytes, FILE *out, struct pd_error *err)
{
    struct pd_laid_out laid_out;
    uint64_t bytes[RUNG_COUNT];
    PD_TRY(pd_lay_out(config, model, world, &laid_out, err));
    const struct pd_layout *l = &laid_out.layout;
    const struct pd_degrees degrees = {l->dp, l->tp, l->pp, l->sp, l->interleave};
    struct pd_memory_states states = {0};
    pd_status st = PD_OK;
    for (size_t i = 0; i < RUNG_COUNT && !st; i++)
        st = rung_bytes(&rungs[i], config, model, &degrees, threads, &states, &bytes[i], err);
    pd_memory_states_deinit(&states);
    PD_TRY(st);
    fprintf(out, "A rank may take %s here. It would take:\n", pd_bytes_text(allowed_bytes).text);
    for (size_t i = 0; i < RUNG_COUNT; i++)
        fprintf(out, "  %-38s %8s %10s  %s\n", rungs[i].name, pd_counted(rungs[i].is_alone ? 1 : world, "rank").text,
                pd_bytes_text((double)bytes[i]).text, (double)bytes[i] <= allowed_bytes ? "fits" : "too large");
    return PD_OK;
}
