#!/usr/bin/env python3
"""The tool on GPUs: simulated ones (tests/simt) or real ones, whatever the tool given has.

alone   one rank: the same bits run after run, whatever the GPU does first; after a kill; after the GPU was lost, again and again. A
        CPU's checkpoint goes on on the GPU, and back. Losses beside the CPU's. Memory after many steps is what it was after few
local   several ranks as threads, sharing the GPU: under every (dp, tp, pp, sp) the bits of one rank
mpi     the same with processes; one of them killed

By default a few of each; with PERDURE_TEST_SCALE of 10 or more, all.
"""
import itertools
import json
import os

import harness

STEPS = 4
CONFIG = """
run: {{seed: 42, steps: {steps}, device: gpu}}
model: {{family: {family}, vocab: 256, context: 16, layers: 2, hidden: {hidden}, heads: {heads}, kv_heads: {kv}, head_size: {head},
        ffn: 48, tie_embeddings: {tied}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1, separate_documents: {apart}, document_token: {token}}}
batch: {{sequences: 4, leaf: 1, context: 16}}
optimizer: {{lr: 0.003, warmup_steps: 2, decay_steps: {steps}}}
numerics: {{precision: {precision}, virtual_tp: {virtual}, virtual_sp: {virtual}}}
checkpoint: {{every: 2, keep_last: 2}}
validation: {{every: 3, sequences: 2}}
layout: {{ranks: 1, threads: 1, transport: local}}
"""
NEAR = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}  # relative, of losses beside the CPU's


class Bench:
    def __init__(self, workspace):
        self.workspace = workspace
        self.data = workspace.file("text.txt", harness.text_of(40000))
        self.known = {}

    def config(self, family="llama", precision="fp32", head=16, virtual=1):
        heads = 1 if head == 64 else 4 // (head // 8)
        text = CONFIG.format(steps=STEPS, family=family, precision=precision, data=self.data, hidden=heads * head, heads=heads,
                             head=head, kv=heads // 2 if family == "llama" and heads > 1 else heads, virtual=virtual,
                             tied="true" if family == "gpt2" else "false", apart="true" if family == "llama" else "false",
                             token=32 if family == "llama" else -1)
        return self.workspace.file(f"{family}-{precision}-{head}-{virtual}.yaml", text)

    def run(self, config, overrides=(), environment=None, directory=None):
        directory = directory or self.workspace.directory()
        self.workspace.train(config, directory, overrides, environment)
        return harness.losses(directory), self.workspace.state_digest(directory)

    def expected(self, config):
        if config not in self.known:
            self.known[config] = self.run(config)
        return self.known[config]

    def same(self, what, config, *arguments, **named):
        got, want = self.run(config, *arguments, **named), self.expected(config)
        if got != want:
            raise harness.Failure(f"{what}, {os.path.basename(config)}: losses and state {got}, of the plain run {want}")
        print(f"same bits: {os.path.basename(config)}: {what}", flush=True)


def loss_rows(directory):
    return {row["step"]: row["loss"] for row in map(json.loads, harness.read(os.path.join(directory, "metrics.jsonl")).splitlines())}


def near(what, got, want, precision):
    for step, loss in want.items():
        error = abs(got[step] - loss) / abs(loss)
        if not error <= NEAR[precision]:
            raise harness.Failure(f"{what}: loss of step {step} is {got[step]}, on the CPU {loss}")
    print(f"near the CPU: {what}", flush=True)


# ---- one rank ----

def beside_the_cpu(bench, family, precision, head):
    config = bench.config(family, precision, head)
    cpu, gpu = bench.workspace.directory(), bench.workspace.directory()
    bench.workspace.train(config, cpu, ["run.device=cpu"])
    bench.known[config] = bench.run(config, directory=gpu)
    near(f"{family} in {precision}, heads of {head}", loss_rows(gpu), loss_rows(cpu), precision)


def whatever_comes_first(bench, config, seeds):
    for streams, order in seeds:
        environment = {"PERDURE_SIMT_STREAMS": streams, "PERDURE_SIMT_ORDER": order}
        bench.same(f"streams {streams}, threads of kernels in order {order}", config, [], environment)


def after_a_kill(bench, config):
    fault = bench.workspace.directory("fault")
    bench.same("killed after step 3", config, [],
               {"PERDURE_FAULT": "worker.stepped@0:3:kill", "PERDURE_FAULT_ONCE": fault})


def saved_at_every_step(bench, config):
    bench.same("saved in the background after every step", config, ["checkpoint.every=1"])


def lost_again_and_again(bench, config):
    """Every process loses its GPU at the same operation, some steps after it began."""
    directory, report = bench.workspace.directory(), bench.workspace.directory("report")
    bench.workspace.train(config, bench.workspace.directory(), [], {"PERDURE_SIMT_REPORT": report})
    counts = json.loads(harness.read(report).splitlines()[-1])
    at = (counts["kernels"] + counts["copies"] + counts["fills"]) * 2 // 3
    result = bench.workspace.train(config, directory, ["checkpoint.every=1"], {"PERDURE_SIMT_FAIL": str(at)})
    if "PERDURE_SIMT_FAIL" not in result.stderr:
        raise harness.Failure(f"nobody lost a GPU at operation {at}:\n{result.stderr}")
    got = harness.losses(directory), bench.workspace.state_digest(directory)
    if got != bench.expected(config):
        raise harness.Failure(f"after GPUs were lost: {got}, of the plain run {bench.expected(config)}")
    print("same bits: GPUs lost on the way", flush=True)


def too_little_memory(bench, config):
    result = bench.workspace.command(["train", config, f"run.dir={bench.workspace.directory()}"], {"PERDURE_SIMT_MEMORY": "2M"})
    if result.returncode == 0 or "device memory" not in result.stderr:
        raise harness.Failure(f"a GPU of 2 MiB: exit {result.returncode}\n{result.stderr}")
    print(f"said: {result.stderr.strip().splitlines()[-1]}", flush=True)


def from_cpu_and_back(bench, config):
    """Six steps on the CPU, beside two on the CPU, two on the GPU, two on the CPU."""
    plain, there_and_back = bench.workspace.directory(), bench.workspace.directory()
    schedule = ["optimizer.decay_steps=6", "checkpoint.every=2"]
    bench.workspace.train(config, plain, [*schedule, "run.steps=6", "run.device=cpu"])
    for steps, device in ((2, "cpu"), (4, "gpu"), (6, "cpu")):
        bench.workspace.train(config, there_and_back, [*schedule, f"run.steps={steps}", f"run.device={device}"])
    near("steps on the CPU, the GPU, the CPU", loss_rows(there_and_back), loss_rows(plain), "fp32")


def memory_stays(bench, config, few, many):
    """What a process had at most, on the device and page-locked, and copies that the host would have waited for."""
    counts = []
    for steps in (few, many):
        report = bench.workspace.directory("report")
        bench.workspace.train(config, bench.workspace.directory(), [f"run.steps={steps}", "checkpoint.every=5"],
                              {"PERDURE_SIMT_REPORT": report})
        counts.append(json.loads(harness.read(report).splitlines()[-1]))
    for key in ("device_bytes_max", "locked_bytes_max", "device_bytes", "locked_bytes", "pageable_copies"):
        if counts[0][key] != counts[1][key]:
            raise harness.Failure(f"{key}: {counts[0][key]} after {few} steps, {counts[1][key]} after {many}")
    if counts[1]["device_bytes"] or counts[1]["locked_bytes"]:
        raise harness.Failure(f"left over at the end: {counts[1]}")
    print(f"memory after {many} steps is that after {few}: {counts[1]['device_bytes_max']} bytes of the device", flush=True)


def alone(bench, is_long):
    everything = itertools.product(("llama", "gpt2"), ("fp32", "bf16", "fp16"), (16, 64))
    some = [("llama", "fp32", 16), ("gpt2", "bf16", 16), ("llama", "fp16", 64)]
    for case in everything if is_long else some:
        beside_the_cpu(bench, *case)
    config = bench.config()
    whatever_comes_first(bench, config, [("7", "1"), ("now", "0"), ("late", "77")] if is_long else [("7", "1")])
    after_a_kill(bench, config)
    saved_at_every_step(bench, config)
    lost_again_and_again(bench, config)
    too_little_memory(bench, config)
    from_cpu_and_back(bench, config)
    memory_stays(bench, config, 10 if is_long else 3, 100 if is_long else 9)
    if is_long:
        for case in itertools.product(("llama", "gpt2"), ("bf16", "fp16"), (16, 64)):
            after_a_kill(bench, bench.config(*case))
            whatever_comes_first(bench, bench.config(*case), [("3", "5")])


# ---- several ranks on one GPU ----

def layouts_of(world):
    for tp, pp, sp in itertools.product((1, 2, 4), (1, 2), (1, 2)):
        if world % (tp * pp * sp) == 0 and world // (tp * pp * sp) <= 4:
            yield world // (tp * pp * sp), tp, pp, sp


def sharing(bench, transport, is_long):
    some = {"local": [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)], "mpi": [(2, 1, 1, 1), (1, 1, 2, 1)]}
    every = [case for world in (2, 4, 8) for case in layouts_of(world)]
    for family, precision in itertools.product(("llama", "gpt2"), ("fp32", "bf16", "fp16")) if is_long else [("llama", "fp32")]:
        for dp, tp, pp, sp in every if is_long else some[transport]:
            for stage in (0, 1, 2, 3) if dp > 1 and is_long else (1,):
                degrees = {"dp": dp, "tp": tp, "pp": pp, "sp": sp, "ranks": dp * tp * pp * sp, "zero_stage": stage}
                config = bench.config(family, precision, 8, 4)
                bench.same(f"{transport}, {' '.join(f'{k}={v}' for k, v in degrees.items())}", config,
                           [f"layout.{k}={v}" for k, v in degrees.items()] + [f"layout.transport={transport}"])


def killed_beside_others(bench):
    fault = bench.workspace.directory("fault")
    bench.same("one of two killed after step 3", bench.config("llama", "fp32", 8, 4),
               ["layout.ranks=2", "layout.dp=2", "layout.transport=mpi"],
               {"PERDURE_FAULT": "worker.stepped@1:3:kill", "PERDURE_FAULT_ONCE": fault})


def body(workspace, arguments):
    what, bench = arguments[0] if arguments else "alone", Bench(workspace)
    is_long = harness.scale() >= 10
    if what == "alone":
        alone(bench, is_long)
    else:
        sharing(bench, what, is_long)
        if what == "mpi":
            killed_beside_others(bench)


harness.main(body)
