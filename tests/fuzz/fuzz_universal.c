/* A universal checkpoint of DeepSpeed: two parameters, and the states of the model that have the shapes. */
#include "resharder/formats/deepspeed.h"
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {"/input/latest_universal", INPUT_BYTES},
    {"/input/global_step2/zero/a.weight/fp32.pt", INPUT_PICKLE},
    {"/input/global_step2/zero/a.weight/exp_avg.pt", INPUT_PICKLE},
    {"/input/global_step2/zero/a.weight/exp_avg_sq.pt", INPUT_PICKLE},
    {"/input/global_step2/zero/a.weight/step.pt", INPUT_PICKLE},
    {"/input/global_step2/zero/a.bias/fp32.pt", INPUT_PICKLE},
    {"/input/global_step2/zero/optimizer_state.pt", INPUT_PICKLE},
    {"/input/global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt", INPUT_PICKLE},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_directory_read(data, bytes, parts, sizeof parts / sizeof parts[0], NULL, &pd_format_universal);
    return 0;
}
