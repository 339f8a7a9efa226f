#include "tools/bench/bench.h"

static const struct pd_command benches[] = {
    {"ckpt", "[--dir DIR] [--bytes 2G] [--every N]", "saving and loading a checkpoint against raw direct I/O",
     pd_bench_ckpt},
    {"reshard", "[--dir DIR] [--bytes 1G]", "loading and rewriting under other layouts", pd_bench_reshard},
    {"objects", "s3://BUCKET/PREFIX [--bytes 2G]", "a checkpoint into a bucket and back against raw requests",
     pd_bench_objects},
    {"offload", "[--dir DIR] [--bytes 1536M]", "an optimizer step on state in files against the disk", pd_bench_offload},
    {"step", "[--preset NAME]", "a training step against its GEMMs alone", pd_bench_step},
    {"exchange", "[--hosts N] [--ranks N]", "bytes and time of a step between hosts", pd_bench_exchange},
    {"attention", "[--device NAME]", "attention alone, forward and backward", pd_bench_attention},
    {"adam", "[--threads N]", "the AdamW update against the bandwidth of memory", pd_bench_adam},
    {0},
};

pd_status pd_cmd_bench(int argc, char **argv, struct pd_error *err)
{
    return pd_command_dispatch(benches, "perdure bench", argc, argv, err);
}
