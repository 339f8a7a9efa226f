#!/usr/bin/env python3
"""Blocks with experts on simulated GPUs: losses beside the CPU's, and the GPU's own bits under other orders of its work, recomputation,
layouts, and after a kill. A softmax router (mixtral) and a sigmoid one (glm4_moe: dense first block, shared experts, groups, bias)."""
import json
import os
import re

import harness

STEPS = 3
COMPARED = ["loss_bits", "gradient_norm", "validation_loss", "router_loss", "experts"]
CONFIG = """
run: {{seed: 42, steps: {steps}, device: gpu}}
model: {{preset: {preset}, vocab: 257, context: 16, layers: 2, hidden: 48, heads: 6, kv_heads: 3, head_size: 8, z_loss: 0.01, {more}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 1, context: 16}}
optimizer: {{lr: 0.003, warmup_steps: 2, decay_steps: {steps}}}
numerics: {{precision: {precision}, virtual_tp: {virtual_tp}, virtual_sp: {virtual_sp}, lanes: 4}}
checkpoint: {{every: 0, keep_last: 1}}
validation: {{every: 2, sequences: 2}}
layout: {{ranks: 1, threads: 1, transport: local}}
"""
FAMILIES = {"mixtral-1m": "ffn: 42, balance_loss: 0.1",
            "glm4-moe-1m": "ffn: 80, expert_ffn: 26, rotated: 4, router_groups: 4, router_groups_kept: 2, bias_step: 0.01"}
LAYOUTS = ["layout.ranks=2 layout.dp=2 layout.zero_stage=0",
           "layout.ranks=2 layout.tp=2 layout.recompute=selective",
           "layout.ranks=2 layout.pp=2 layout.recompute=full",
           "layout.ranks=1 offload.optimizer=cpu offload.activations=cpu",
           "layout.ranks=2 layout.dp=2 layout.ep=2 layout.zero_stage=1",
           "layout.ranks=3 layout.dp=3 layout.zero_stage=3 layout.recompute=full layout.recompute_layers=1",
           "layout.ranks=4 layout.dp=4 layout.ep=2 layout.ep_rows=1 layout.zero_stage=2 layout.recompute=selective"]
# Over the stand-in for NCCL, which has a GPU for each rank.
NCCL = ["layout.ranks=2 layout.dp=2 layout.ep=2 layout.zero_stage=3", "layout.ranks=4 layout.dp=2 layout.ep=2 layout.pp=2 layout.recompute=full",
        "layout.ranks=4 layout.dp=4 layout.ep=4 layout.ep_rows=1 layout.zero_stage=2"]
NEAR = {"fp32": 2e-5, "bf16": 2e-2}  # relative, of losses beside the CPU's


def stand_in(workspace):
    """tests/simt/libsimt_nccl.so of the build that the tool is from."""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(workspace.perdure))), "tests", "simt", "libsimt_nccl.so")


class Bench:
    def __init__(self, workspace):
        self.workspace = workspace
        self.data = workspace.file("text.txt", harness.text_of(20000))

    def config(self, preset, precision, virtual_tp, virtual_sp):
        return self.workspace.file(f"{preset}-{precision}-{virtual_tp}-{virtual_sp}.yaml", CONFIG.format(
            steps=STEPS, preset=preset, more=FAMILIES[preset], data=self.data, precision=precision, virtual_tp=virtual_tp,
            virtual_sp=virtual_sp))

    def run(self, config, overrides="", environment=None):
        directory = self.workspace.directory("case")
        said = self.workspace.train(config, directory, overrides.split(), environment).stderr
        if "was not loaded before the first exchange" in said or ("PERDURE_NCCL" in (environment or {}) and "through the host" in said):
            raise harness.Failure(f"{config} {overrides} {environment}: {said}")
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
            rows = {row["step"]: row for row in map(json.loads, f)}
        found = {f"step {step}": {key: row[key] for key in COMPARED if key in row} for step, row in rows.items()}
        found["state"] = self.workspace.state_digest(directory)
        return found, rows

    def same(self, expected, config, overrides="", environment=None):
        have, _ = self.run(config, overrides, environment)
        for key in sorted(set(expected) | set(have)):
            if environment and "PERDURE_FAULT" in environment and key != "state" and "experts" not in have.get(key, "experts"):
                continue  # the row was lost with the killed run, and written again from the checkpoint, which knows less
            if expected.get(key) != have.get(key):
                raise harness.Failure(f"{config} {overrides} {environment}: {key}: {have.get(key)}, the plain run has {expected.get(key)}")
        print(f"same bits: {os.path.basename(config)} {overrides} {environment or ''}", flush=True)

    def near(self, config, precision, rows, overrides=""):
        """What is counted of experts is nearly the CPU's too: a choice changes only where two scores are equal but for rounding."""
        _, want = self.run(config, overrides + "run.device=cpu")
        for step, row in want.items():
            for key in ("loss", "router_loss"):
                if not abs(rows[step][key] - row[key]) <= NEAR[precision] * abs(row[key]):
                    raise harness.Failure(f"{config}: {key} of step {step} is {rows[step][key]}, on the CPU {row[key]}")
            for have, there in zip(rows[step]["experts"], row["experts"]):
                if have["block"] != there["block"] or abs(have["busiest"] - there["busiest"]) > 0.05:
                    raise harness.Failure(f"{config}: experts of step {step}: {have}, on the CPU {there}")
                if abs(have.get("bias_range", 0) - there.get("bias_range", 0)) > 1e-3:
                    raise harness.Failure(f"{config}: biases of step {step}: {have}, on the CPU {there}")
        print(f"near the CPU: {os.path.basename(config)}", flush=True)


def body(workspace, arguments):
    os.environ["PERDURE_TEST_GPU_THREADS"] = "1"  # the stand-in for NCCL takes only threads
    bench, cases = Bench(workspace), list(zip(FAMILIES, NEAR))
    if harness.scale() >= 4:
        cases = [(preset, precision) for preset in FAMILIES for precision in NEAR]
    for number, (preset, precision) in enumerate(cases):
        config = bench.config(preset, precision, 2, 1)
        expected, rows = bench.run(config)
        bench.near(config, precision, rows)
        bench.same(expected, config, "", {"PERDURE_SIMT_STREAMS": "7", "PERDURE_SIMT_ORDER": "1"})
        if number % 2:
            fault = {"PERDURE_FAULT": "worker.stepped@0:2:kill", "PERDURE_FAULT_ONCE": workspace.directory("fault")}
            bench.same(expected, config, "checkpoint.every=1", fault)
        for layout in NCCL if harness.scale() >= 4 else NCCL[number % 3:][:1]:
            ranks = re.search(r"ranks=(\d)", layout)[1]
            bench.same(expected, config, layout, {"PERDURE_NCCL": stand_in(workspace), "PERDURE_SIMT_GPUS": ranks})
        for layout in LAYOUTS if harness.scale() >= 4 else harness.share_of(LAYOUTS[number % 2::2], 2):
            bench.same(expected, config, layout)
    # every expert gets every token, 17 from one rank and 16 from the other: shapes of the larger one are loaded by both
    config = bench.config("mixtral-1m", "bf16", 1, 2)
    uneven = "model.experts=2 model.experts_per_token=2 model.context=33 batch.context=33 "
    expected, _ = bench.run(config, uneven)
    bench.same(expected, config, uneven + "layout.ranks=2 layout.sp=2 layout.ep=2",
               {"PERDURE_NCCL": stand_in(workspace), "PERDURE_SIMT_GPUS": "2"})
    config = bench.config("glm4-moe-1m", "bf16", 1, 2)
    expected, _ = bench.run(config)
    for layout in harness.share_of(["layout.ranks=2 layout.sp=2", "layout.ranks=4 layout.sp=2 layout.dp=2 layout.zero_stage=2"], 2):
            bench.same(expected, config, layout)
    # codes of experts, made for every pass over them or kept for a step
    for number, preset in enumerate(FAMILIES):
        config = bench.config(preset, "bf16", 1 + number, 1)
        eight = "numerics.linears=fp8 model.hidden=64 model.ffn=64 model.expert_ffn=32 "
        expected, rows = bench.run(config, eight)
        bench.near(config, "bf16", rows, eight)
        bench.same(expected, config, eight + "layout.fp8_codes=micro_batch layout.recompute=full")
        bench.same(expected, config, eight + NCCL[number], {"PERDURE_NCCL": stand_in(workspace), "PERDURE_SIMT_GPUS": str(2 + 2 * number)})


harness.main(body)
