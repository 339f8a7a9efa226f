#!/usr/bin/env python3
"""Placements on GPUs, simulated (tests/simt) or real: whatever leaves the device for the host or for files, the bits are those of
all on the device. With streams that do what they were given as late as they may, copies that nobody waits for show.

By default a share of the cases (harness.share_of), each case in one of five; with PERDURE_TEST_SCALE of 4 or more all of them, of
10 or more under every precision and order of streams."""
import collections
import itertools
import json
import os

import harness

STEPS = 3
CONFIG = """
run: {{seed: 7, steps: {steps}, device: gpu}}
model: {{family: llama, vocab: 256, context: 16, layers: 4, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 272}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 1, context: 16}}
optimizer: {{lr: 0.003, warmup_steps: 1, decay_steps: {steps}}}
numerics: {{precision: {precision}}}
checkpoint: {{every: 2, keep_last: 2}}
layout: {{ranks: 1, threads: 1, transport: local}}
"""
PLACES = ("optimizer", "parameters", "gradients", "activations")
BUFFERS = "offload.buffer_bytes=4M"
STREAMED = ["offload.update=device", "offload.buffer_bytes=1M"]


def placed(**places):
    return [f"offload.{name}={place}" for name, place in places.items()] + [BUFFERS]


CASES = {
    "state on the host": placed(optimizer="cpu"),
    "state on the host, updated by the GPU": placed(optimizer="cpu") + STREAMED,
    "state in files": placed(optimizer="nvme"),
    "state in files, some of it kept": placed(optimizer="nvme") + ["offload.optimizer_budget=1M"],
    "activations on the host": placed(activations="cpu"),
    "activations in files": placed(activations="nvme"),
    "activations in files, breadth first, recomputed": placed(activations="nvme") + ["layout.order=breadth_first", "layout.recompute=full"],
    "activations in files, two blocks recomputed": placed(activations="nvme") + ["layout.recompute=full", "layout.recompute_layers=2"],
    "activations in files, some of them kept": placed(activations="nvme") + ["offload.activations_budget=100k"],
    "copies on the host, state on the device": placed(parameters="cpu"),
    "copies and state on the host": placed(optimizer="cpu", parameters="cpu"),
    "sums on the host, state on the device": placed(gradients="cpu") + ["layout.order=breadth_first"],
    "copies and sums on the host, state in files": placed(optimizer="nvme", parameters="cpu", gradients="cpu") + ["layout.order=breadth_first"],
    "all on the host": placed(**dict.fromkeys(PLACES, "cpu")) + ["layout.order=breadth_first"],
    "all on the host, updated by the GPU": placed(**dict.fromkeys(PLACES, "cpu")) + STREAMED + ["layout.order=breadth_first"],
    "all in files": placed(**dict.fromkeys(PLACES, "nvme")),
    "all in files, some of it kept": placed(**dict.fromkeys(PLACES, "nvme")) + [
        "offload.optimizer_budget=1M", "offload.parameters_budget=40k", "offload.gradients_budget=300k", "offload.activations_budget=50k"],
}
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


def moved(workspace, config, steps, overrides):
    """Bytes that offload moved into the GPU and out of it, by the trace."""
    directory = workspace.directory()
    path, total = os.path.join(directory, "trace.json"), collections.Counter()
    workspace.train(config, directory, [f"run.steps={steps}", "checkpoint.every=100", *overrides, f"--trace={path}"])
    events = json.loads(harness.read(path))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        lane = names.get((event["pid"], event["tid"]), "") if event["ph"] == "X" else ""
        if lane.startswith("GPU ") and lane.endswith((" in", " out")):
            total["bus_in_bytes" if lane.endswith(" in") else "bus_out_bytes"] += event["args"]["value"]
    return total


def moved_is_planned(workspace, config, what):
    """Of one step, the last; a plan counts what spans hold in whole pages."""
    several = moved(workspace, config, STEPS, CASES[what])
    several.subtract(moved(workspace, config, STEPS - 1, CASES[what]))
    planned = json.loads(workspace.command(["plan", config, "run.dir=r", "--world=1", *CASES[what], "--json"]).stdout)["groups"][0]
    for way, found in several.items():
        if not found <= planned[way] <= 1.01 * found:
            raise harness.Failure(f"{what}: a step moved {found}, planned are {planned[way]} of {way}")
    print(f"planned: what crosses the bus: {what}: {dict(several)}", flush=True)


def losses_on(workspace, config, device, overrides):
    directory = workspace.directory()
    workspace.train(config, directory, [*overrides, f"run.device={device}"])
    return [json.loads(line)["loss"] for line in harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()]


def rounded_sums(workspace, config):
    """Sums of blocks in bf16: of all on the device, the bits of other places, of another order and of a killed run; near the CPU's."""
    rounded = ["numerics.gradients=bf16"]
    expected = run(workspace, config, rounded)
    if expected == run(workspace, config, ["numerics.lanes=1"]):
        raise harness.Failure("sums in bf16 have the bits of those in fp32")
    cases = ("state on the host", "state on the host, updated by the GPU", "copies and state on the host", "activations in files, breadth first, recomputed")
    for what in harness.share_of(cases, 2):
        check(workspace, config, expected, f"sums in bf16, {what}", rounded + CASES[what], {"PERDURE_SIMT_STREAMS": "late"})
    check(workspace, config, expected, "sums in bf16, killed", rounded, killed(workspace))
    cpu, gpu = (losses_on(workspace, config, device, rounded) for device in ("cpu", "gpu"))
    if len(cpu) != len(gpu) or any(abs(a - b) > 2e-2 * abs(a) for a, b in zip(cpu, gpu)):
        raise harness.Failure(f"sums in bf16: losses {gpu}, on the CPU {cpu}")


def body(workspace, _arguments):
    data, is_long = workspace.file("text.txt", harness.text_of(20000)), harness.scale() >= 10
    for precision in ("fp32", "bf16", "fp16") if is_long else ("bf16",):
        config = workspace.file(f"{precision}.yaml", CONFIG.format(steps=STEPS, data=data, precision=precision))
        expected = run(workspace, config, [])
        for what in harness.share_of(CASES, 5):
            for streams in ("late", "now", "7", "8") if is_long else ("late",):
                check(workspace, config, expected, what, CASES[what], {"PERDURE_SIMT_STREAMS": streams})
        for what in harness.share_of(("all in files, some of it kept", "state on the host, updated by the GPU"), 2):
            check(workspace, config, expected, f"{what}, killed", CASES[what], killed(workspace))
        rounded_sums(workspace, config)
        ranks = ["layout.ranks=2", "layout.dp=2"]
        for what, stage in itertools.product(("all on the host", "all on the host, updated by the GPU", "all in files"), (1, 3)) if is_long else ():
            check(workspace, config, expected, f"two ranks, stage {stage}: {what}", CASES[what] + ranks + [f"layout.zero_stage={stage}"])
    config = workspace.file("moved.yaml", CONFIG.format(steps=STEPS, data=data, precision="fp32"))
    some = "state on the host", "all on the host", "state on the host, updated by the GPU", "all in files, some of it kept"
    for what in CASES if is_long else harness.share_of(some, 2):
        moved_is_planned(workspace, config, what)


harness.main(body)
