/* What a step costs: operations over a device's rate, bytes over a link's, and the pipeline's bubble. Good for comparing
 * layouts of one model on one machine; absolute figures are as good as the rates that are given.
 *
 *   a micro-batch on a stage   GEMMs and attention over flops in their precision, then the keys and values of
 *                              sequence-parallel ranks, which nothing hides, and sums and rows of tensor-parallel ones but
 *                              for what goes beside compute; or gathers, gradients and what drives or the bus move, which
 *                              run beside all of that: whichever takes longest
 *   a step                     (slots + (pp - 1) / interleave) times the slowest stage's micro-batch, then what comes once:
 *                              parameters of ZeRO 1 and 2, sums to replicas, the optimizer. The optimizer takes what memory
 *                              takes, the device's or, where state is away from a GPU, the host's or the bus; or drives
 *
 * Breadth first parameters are gathered, and read, twice a step instead of twice a micro-batch.
 * A group of ranks uses the links inside a host where it fits into one, the network otherwise; gathers and sums go host by
 * host. Bytes are those that the rank receives, and the host sends, which has most; parts are taken to be of equal length. */
#pragma once

#include "trainer/plan/auto_layout.h"

struct pd_gpu;

/* Precisions of GEMMs and attention. Where a device has no fp8, its rate is that of halves. */
enum pd_rate { PD_RATE_F32, PD_RATE_HALF, PD_RATE_FP8, PD_RATE_COUNT };

struct pd_machine {
    const char *name;
    double device_bytes;         /* memory of a rank; 0: no limit */
    double flops[PD_RATE_COUNT]; /* a second and rank, as training reaches them */
    double memory_rate;          /* bytes a second */
    double link, network;        /* bytes a second and rank: inside a host, between hosts */
    double latency;              /* seconds before a transfer begins */
    uint32_t ranks_per_host;     /* ranks of a host */
    double nvme;                 /* bytes a second and rank, to and from drives together */
    double host_rate;            /* bytes a second of a host's memory, its ranks together; 0: the device is the host */
    double bus;                  /* bytes a second and rank between device and host, each way */
    uint32_t capability;         /* major * 10 + minor; 0: no GPU */
};

/* By name: cpu, or a GPU's (cost_model.c). */
PD_MUST_USE pd_status pd_machine_preset(const char *name, struct pd_machine *ret_machine, struct pd_error *err);
/* The GPU's by its name. False: it is none of them; then h100-80g's rates stand for its, memory and capability are its own.
 */
bool pd_machine_of_gpu(const struct pd_gpu *gpu, struct pd_machine *ret_machine);
/* Somebody knows better, whatever the precision. */
void pd_machine_set_flops(struct pd_machine *machine, double flops);
/* So many ranks share a device: its memory, and what each gets of its rates. */
void pd_machine_share(struct pd_machine *machine, double ranks);

struct pd_step_cost {
    uint32_t slots;   /* micro-batches a rank runs, padding included */
    uint32_t padding; /* padding micro-batches of all data-parallel ranks together */
    double bubble;    /* share of a step, by theory */
    double step_seconds, compute_seconds, recompute_seconds, exposed_seconds; /* exposed: transfers that nothing hides */
    double bubble_seconds, optimizer_seconds;
    uint64_t parameter_bytes, gradient_bytes, tensor_bytes, sequence_bytes, pipeline_bytes; /* received a step */
    uint64_t gradient_bytes_step, gradient_bytes_lane; /* gradient_bytes by either layout.exchange */
    uint64_t tensor_beside_bytes;                      /* of tensor_bytes: on their way while a GPU computes */
    /* The same, as a host sends them to others. */
    uint64_t parameter_bytes_host, gradient_bytes_host, gradient_bytes_step_host, gradient_bytes_lane_host;
    uint64_t padding_bytes; /* of parameter_bytes: gathered for padding micro-batches, by a rank that runs one */
    double nvme_seconds; /* drives are busy with what offload.* puts there; beside computation, and part of what is exposed
                           * or of the optimizer where they are slower */
    double bus_seconds;  /* likewise the bus to a GPU's host, the busier way */
};

/* With offload.update auto: whether state on the host is updated sooner by its GPUs, through which it streams, than by the host,
 * whose memory they share. */
void pd_lay_out_update(const struct pd_config *config, const struct pd_model *model, const struct pd_machine *machine,
                       struct pd_laid_out *laid_out);
/* Pure; a few microseconds a stage. */
void pd_step_cost(const struct pd_config *config, const struct pd_model *model, const struct pd_laid_out *laid_out,
                  const struct pd_machine *machine, struct pd_step_cost *ret_cost);
