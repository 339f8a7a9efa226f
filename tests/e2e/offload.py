#!/usr/bin/env python3
"""Same bits wherever state lives: placements, orders, ranks, threads, ways to the disk, sizes of the ring, tiers, resumes.

Every case is compared with the run of one rank that has everything in memory. By default a sample drawn by seed that has every value
of every factor at least once; with PERDURE_TEST_SCALE of 10 or more, 200 cases. Argument: local or mpi.
"""
import os
import random

import harness

STEPS = 5
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: {family}, vocab: 256, context: 64, layers: 5, hidden: 72, heads: 6, kv_heads: {kv}, head_size: 12, ffn: {ffn}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 14, micro_batch: 2, context: 48}}
validation: {{every: 2, sequences: 20}}
numerics: {{virtual_tp: 2, virtual_sp: 2, precision: {precision}}}
optimizer: {{lr: 0.01, warmup_steps: 1, decay_steps: {steps}, moments: {moments}}}
checkpoint: {{every: 2, keep_last: 2}}
"""
FAMILIES = {"llama": (3, 300), "gpt2": (6, 288)}  # key-value heads, ffn: boxes of more and of less than a block
FACTORS = {
    "optimizer": ["device", "nvme"],
    "parameters": ["device", "cpu", "nvme"],
    "gradients": ["device", "nvme"],
    "activations": ["device", "nvme"],
    "order": ["auto", "breadth_first"],
    "layout": ["dp=1", "dp=3", "dp=7", "tp=2", "sp=2", "pp=2", "dp=2,tp=2", "pp=3", "tp=2,sp=2", "dp=2,pp=2"],
    "zero_stage": ["1", "2", "3"],
    "recompute": ["none", "selective", "full", "selective,recompute_layers=1", "full,recompute_layers=2"],
    "threads": ["1", "2"],
    "io": ["uring", "threads"],
    "buffer": ["4M", "16M"],
    "budget": ["0", "0", "300k", "2M", "1G"],
    "tiers": ["one", "two"],
    "stop": ["never", "after 3"],
    "family": list(FAMILIES),
    "precision": ["fp32", "bf16", "fp16"],
    "moments": ["fp32", "bf16"],
}


def admitted(case):
    """What the configuration would refuse is asked for in the nearest way that it takes."""
    if "nvme" in (case["parameters"], case["gradients"]):
        case["optimizer"] = "nvme"
    if "pp=" in case["layout"]:
        case["order"] = "auto"
        case["gradients"] = "device"
    return case


def cases(count, chooser):
    columns = {}
    for name, values in FACTORS.items():
        column = [values[i % len(values)] for i in range(count)]
        chooser.shuffle(column)
        columns[name] = column
    return [admitted({name: columns[name][i] for name in FACTORS}) for i in range(count)]


def ranks_of(layout):
    ranks = 1
    for part in layout.split(","):
        name, value = part.split("=")
        ranks *= int(value) if name in ("dp", "tp", "pp", "sp") else 1
    return ranks


def overrides_of(case, directory, transport):
    overrides = [f"offload.{name}={case[name]}" for name in ("optimizer", "parameters", "gradients", "activations")]
    overrides += [f"layout.{part}" for part in f"{case['layout']},recompute={case['recompute']}".split(",")]
    overrides += [f"layout.ranks={ranks_of(case['layout'])}", f"layout.transport={transport}", f"layout.order={case['order']}",
                  f"layout.zero_stage={case['zero_stage']}",
                  f"layout.threads={case['threads']}", f"offload.buffer_bytes={case['buffer']}"]
    overrides += [f"offload.{name}_budget={case['budget']}" for name in ("optimizer", "parameters", "gradients", "activations")
                  if case[name] == "nvme"]
    if case["tiers"] == "two":
        overrides += [f"checkpoint.tiers[0].dir={directory}/fast", "checkpoint.tiers[0].every=1",
                      f"checkpoint.tiers[1].dir={directory}/checkpoints", "checkpoint.tiers[1].every=2"]
    return overrides


def run(workspace, config, case, transport):
    directory = workspace.directory("case")
    environment = {"PERDURE_IO": case["io"]}
    overrides = overrides_of(case, directory, transport)
    if case["stop"] != "never":
        workspace.train(config, directory, [*overrides, "run.steps=3"], environment)
    workspace.train(config, directory, overrides, environment)
    return directory


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    data = workspace.file("text.txt", harness.text_of(40000))
    seed = harness.seed()
    count = (200 if harness.scale() >= 10 else 10) if transport == "local" else 6
    configs, expected = {}, {}
    for case in cases(count, random.Random(seed)):
        key = case["family"], case["precision"], case["moments"]
        if key not in configs:
            kv, ffn = FAMILIES[case["family"]]
            configs[key] = workspace.file(f"{'-'.join(key)}.yaml", CONFIG.format(steps=STEPS, data=data, family=case["family"], kv=kv,
                                                                                ffn=ffn, precision=case["precision"], moments=case["moments"]))
            plain = workspace.directory("plain")
            workspace.train(configs[key], plain, ["layout.ranks=1", "layout.transport=local"])
            expected[key] = harness.losses(plain), workspace.state_digest(plain)
        directory = run(workspace, configs[key], case, transport)
        if (harness.losses(directory), workspace.state_digest(directory)) != expected[key]:
            raise harness.Failure(f"other bits: {case}")
        leftover = [name for name in os.listdir(os.path.join(directory, "checkpoints")) if name.startswith("pool-")]
        if leftover:
            raise harness.Failure(f"{leftover} stays behind: {case}")
    print(f"{count} cases over {transport} ranks: same bits")


harness.main(body)
