/* Estimates the time of a step: operations over a device's rate, bytes over a link's, and the pipeline's bubble. It compares
 * layouts of one model on one machine; absolute figures are only as good as the given rates.
 *
 *   a micro-batch on a stage   the longer of two. (1) GEMMs and attention over flops in their precision, then keys and
 *                              values of sequence-parallel ranks, which nothing hides, then sums and rows of tensor-parallel
 *                              ranks that do not overlap compute. (2) Concurrent transfers: gathers, gradients, drives or
 *                              the bus, whichever takes longest
 *   a step                     (slots + (pp - 1) / interleave) times the slowest stage's micro-batch, then what comes once:
 *                              parameters of ZeRO 1 and 2, sums to replicas, the optimizer. The optimizer is limited by
 *                              memory (the device's, or the host's or the bus for state away from a GPU), or by drives
 *
 * Breadth first, parameters are gathered and read twice a step, not twice a micro-batch. A group of ranks uses links inside
 * a host if it fits into one, else the network; gathers and sums go host by host. Bytes are those received by the busiest
 * rank, and sent by the busiest host, with parts of equal length. */
#pragma once

#include "trainer/plan/auto_layout.h"

struct pd_gpu;

/* Precisions of GEMMs and attention. A device without fp8 uses its half-precision rate. */
enum pd_rate { PD_RATE_F32, PD_RATE_HALF, PD_RATE_FP8, PD_RATE_COUNT };

struct pd_machine {
    const char *name;
    double device_bytes;         /* memory of a rank; 0: no limit */
    double flops[PD_RATE_COUNT]; /* per second and rank, as reached in training */
    double memory_rate;          /* bytes per second */
    double link, network;        /* bytes per second and rank: inside a host, between hosts */
    double latency;              /* seconds until a transfer begins */
    uint32_t ranks_per_host;     /* ranks of a host */
    double nvme;                 /* bytes per second and rank, reads and writes together */
    double host_rate;            /* bytes per second of a host's memory, for all its ranks; 0: the device is the host */
    double bus;                  /* bytes per second and rank between device and host, each way */
    uint32_t capability;         /* major * 10 + minor; 0: no GPU */
};

/* Preset by name: cpu, or a GPU (cost_model.c). */
PD_MUST_USE pd_status pd_machine_preset(const char *name, struct pd_machine *ret_machine, struct pd_error *err);
/* Preset for a GPU by its name. False: unknown; uses the rates of h100-80g with the GPU's own memory and capability. */
bool pd_machine_of_gpu(const struct pd_gpu *gpu, struct pd_machine *ret_machine);
/* Overrides the rate of every precision. */
void pd_machine_set_flops(struct pd_machine *machine, double flops);
/* Divides memory and rates of a device among `ranks` ranks. */
void pd_machine_share(struct pd_machine *machine, double ranks);

struct pd_step_cost {
    uint32_t slots;   /* micro-batches per rank, padding included */
    uint32_t padding; /* padding micro-batches of all data-parallel ranks */
    double bubble;    /* fraction of a step, in theory */
    double step_seconds, compute_seconds, recompute_seconds, exposed_seconds; /* exposed: transfers not hidden */
    double bubble_seconds, optimizer_seconds, terms_seconds;                  /* terms: converting sums */
    uint64_t parameter_bytes, gradient_bytes, tensor_bytes, sequence_bytes, pipeline_bytes; /* received per step */
    uint64_t gradient_bytes_step, gradient_bytes_lane; /* gradient_bytes for either layout.exchange */
    uint64_t tensor_beside_bytes;                      /* part of tensor_bytes that moves while a GPU computes */
    /* The same, sent by a host to others. */
    uint64_t parameter_bytes_host, gradient_bytes_host, gradient_bytes_step_host, gradient_bytes_lane_host;
    uint64_t expert_bytes, expert_bytes_host; /* tokens to experts and back: received by a rank; sent by a host to others */
    uint64_t padding_bytes; /* part of parameter_bytes gathered for padding micro-batches, on a rank that has one */
    double nvme_seconds;    /* drives busy with offload.*; concurrent with compute; counted in exposed or optimizer time if
                          * slower */
    double bus_seconds;     /* likewise the bus to a GPU's host, the busier way */
};

/* With offload.update auto: whether GPUs, streaming the host's state, update it faster than the host, whose memory they
 * share. */
void pd_lay_out_update(const struct pd_config *config, const struct pd_model *model, const struct pd_machine *machine,
                       struct pd_laid_out *laid_out);
/* Pure; takes a few microseconds per stage. */
void pd_step_cost(const struct pd_config *config, const struct pd_model *model, const struct pd_laid_out *laid_out,
                  const struct pd_machine *machine, struct pd_step_cost *ret_cost);
