/* A directory of DeepSpeed's ZeRO: the pickles of three ranks. */
#include "resharder/formats/deepspeed.h"
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/target.h"

static const struct input_part parts[] = {
    {"/input/latest", INPUT_BYTES},
    {"/input/global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt", INPUT_PICKLE},
    {"/input/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt", INPUT_PICKLE},
    {"/input/global_step2/zero_pp_rank_2_mp_rank_00_optim_states.pt", INPUT_PICKLE},
    {"/input/global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", INPUT_PICKLE},
    {"/input/global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt", INPUT_PICKLE},
    {"/input/global_step2/mp_rank_00_model_states.pt", INPUT_PICKLE},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_directory_read(data, bytes, parts, sizeof parts / sizeof parts[0], NULL, &pd_format_deepspeed);
    return 0;
}
