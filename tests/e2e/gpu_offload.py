#!/usr/bin/env python3
"""Placements on GPUs, simulated (tests/simt) or real: whatever leaves the device for the host or for files, the bits are those of
all on the device. With streams that do what they were given as late as they may, copies that nobody waits for show.

By default a few cases; with PERDURE_TEST_SCALE of 10 or more, every one under every precision and order of streams."""
import itertools

import harness

STEPS = 3
CONFIG = """
run: {{seed: 7, steps: {steps}, device: gpu}}
model: {{family: llama, vocab: 256, context: 16, layers: 4, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 272}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, leaf: 1, context: 16}}
optimizer: {{lr: 0.003, warmup_steps: 1, decay_steps: {steps}}}
numerics: {{precision: {precision}}}
checkpoint: {{every: 2, keep_last: 2}}
layout: {{ranks: 1, threads: 1, transport: local}}
"""
PLACES = ("optimizer", "parameters", "gradients", "activations")
BUFFERS = "offload.buffer_bytes=4M"


def placed(**places):
    return [f"offload.{name}={place}" for name, place in places.items()] + [BUFFERS]


CASES = {
    "state on the host": placed(optimizer="cpu"),
    "state in files": placed(optimizer="nvme"),
    "state in files, some of it kept": placed(optimizer="nvme") + ["offload.optimizer_budget=1M"],
    "activations on the host": placed(activations="cpu"),
    "activations in files": placed(activations="nvme"),
    "activations in files, by layers, recomputed": placed(activations="nvme") + ["layout.order=layers", "layout.recompute=full"],
    "activations in files, some of them kept": placed(activations="nvme") + ["offload.activations_budget=100k"],
    "copies on the host, state on the device": placed(parameters="cpu"),
    "copies and state on the host": placed(optimizer="cpu", parameters="cpu"),
    "sums on the host, state on the device": placed(gradients="cpu") + ["layout.order=layers"],
    "copies and sums on the host, state in files": placed(optimizer="nvme", parameters="cpu", gradients="cpu") + ["layout.order=layers"],
    "all on the host": placed(**dict.fromkeys(PLACES, "cpu")) + ["layout.order=layers"],
    "all in files": placed(**dict.fromkeys(PLACES, "nvme")),
    "all in files, some of it kept": placed(**dict.fromkeys(PLACES, "nvme")) + [
        "offload.optimizer_budget=1M", "offload.parameters_budget=40k", "offload.gradients_budget=300k", "offload.activations_budget=50k"],
}
SOME = ("state on the host", "state in files, some of it kept", "activations in files, some of them kept", "all on the host", "all in files")
KILL = "worker.stepped@0:3:kill"


def run(workspace, config, overrides, environment=None):
    directory = workspace.directory()
    workspace.train(config, directory, overrides, environment)
    return harness.losses(directory), workspace.state_digest(directory)


def check(workspace, config, expected, what, overrides, environment=None):
    got = run(workspace, config, overrides, environment)
    if got != expected:
        raise harness.Failure(f"{what}, {environment or 'plain'}: losses and state {got}, of the device alone {expected}")
    print(f"same bits: {what}{', ' + str(environment) if environment else ''}", flush=True)


def killed(workspace):
    return {"PERDURE_FAULT": KILL, "PERDURE_FAULT_ONCE": workspace.directory("fault")}


def body(workspace, _arguments):
    data, is_long = workspace.file("text.txt", harness.text_of(20000)), harness.scale() >= 10
    for precision in ("fp32", "bf16", "fp16") if is_long else ("bf16",):
        config = workspace.file(f"{precision}.yaml", CONFIG.format(steps=STEPS, data=data, precision=precision))
        expected = run(workspace, config, [])
        for what in CASES if is_long else SOME:
            for streams in ("late", "now", "7", "8") if is_long else ("late",):
                check(workspace, config, expected, what, CASES[what], {"PERDURE_SIMT_STREAMS": streams})
        check(workspace, config, expected, "all in files, killed", CASES["all in files, some of it kept"], killed(workspace))
        ranks = ["layout.ranks=2", "layout.dp=2"]
        for what, stage in itertools.product(("all on the host", "all in files"), (1, 3)) if is_long else ():
            check(workspace, config, expected, f"two ranks, stage {stage}: {what}", CASES[what] + ranks + [f"layout.zero_stage={stage}"])


harness.main(body)
