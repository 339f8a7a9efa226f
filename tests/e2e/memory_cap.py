#!/usr/bin/env python3
"""A model whose state is eight times the memory it gets: everything on NVMe, in a memory cgroup of 1/8 of 12 bytes a parameter.

It trains, is resumed, and ends with the digest of the same run in memory and without a limit. Peak resident memory of the
worker is within 5% of what `perdure plan` says: memory of the rank and what a process takes beside it. That the group stays
under its limit is the kernel's to see to; what it counted is printed, page cache included. What the first run read from drives and
wrote to them is what `plan` says, too.

Needs root and a memory cgroup, version 1 or 2; without them it is skipped (77), and says why."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import cgroups
import harness

SKIPPED = 77
MIB = 1 << 20
CONFIG = """
run: {{seed: 5, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: {layers}, hidden: 384, heads: 6, kv_heads: 6, head_size: 64, ffn: 1024}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 2, micro_batch: 1, context: 64}}
optimizer: {{lr: 1e-3, min_lr: 1e-3, warmup_steps: 1, decay_steps: 100}}
validation: {{every: 0}}
checkpoint: {{every: 0, keep_last: 1}}
layout: {{ranks: 1, threads: 1, transport: local, recompute: full}}
"""
AWAY = [f"offload.{what}=nvme" for what in ("optimizer", "parameters", "gradients", "activations")] + ["offload.buffer_bytes=32M"]


class Seen:
    """Of the worker when it is about to end: highest resident memory, bytes read from and written to drives."""

    def __init__(self):
        self.resident = self.moved = 0

    def look(self, pid):
        with open(f"/proc/{pid}/status", encoding="utf-8") as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    self.resident = max(self.resident, int(line.split()[1]) * 1024)
        with open(f"/proc/{pid}/io", encoding="utf-8") as f:
            counts = dict(line.split(": ") for line in f.read().splitlines())
        self.moved = max(self.moved, int(counts["read_bytes"]) + int(counts["write_bytes"]))


def train(workspace, config, directory, overrides, group=None):
    log, seen = directory + ".log", Seen()
    with open(log, "a", encoding="utf-8") as f:
        process = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides], stdout=f, stderr=f,
                                   preexec_fn=group.join if group else None,
                                   env=dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT="worker.ended:1:stop"))
        harness.look_at_stops(process, seen.look)
    if process.returncode != 0:
        with open(log, encoding="utf-8") as f:
            raise harness.Failure(f"perdure train {' '.join(overrides)}: exit {process.returncode}\n{f.read()}")
    return seen


def plan_of(workspace, config):
    result = workspace.command(["plan", config, "run.dir=unused", "--world=1", *AWAY, "--json"])
    if result.returncode != 0:
        raise harness.Failure(f"perdure plan: exit {result.returncode}\n{result.stderr}")
    return json.loads(result.stdout)


def check_peak(what, seen, planned, limit, group):
    counted, peak = group.peak(), seen.resident
    line = (f"{what}: resident at most {peak / MIB:.1f} MiB, planned {planned / MIB:.1f} MiB (ratio {peak / planned:.3f}), limit "
            f"{limit / MIB:.1f} MiB, the group counted {'?' if counted is None else f'{counted / MIB:.1f}'} MiB")
    if not 0.95 * planned <= peak <= 1.05 * planned or peak > limit or (counted or 0) > limit:
        raise harness.Failure(line)
    print(line)


def check_moved(seen, plan):
    """One step, after everything was written once: the state, and copies of what is not embedding and head."""
    group = plan["groups"][0]
    copies = 2 * (plan["parameters"] - 2 * 256 * 384)
    expected = group["nvme_step_bytes"] + group["nvme_generation_bytes"] + copies
    line = f"first state and a step: {seen.moved / MIB:.0f} MiB to and from drives, planned {expected / MIB:.0f} MiB"
    if not 0.98 * expected <= seen.moved <= 1.02 * expected:
        raise harness.Failure(line)
    print(line)


def run(workspace, group, layers):
    data = workspace.file("text.txt", harness.text_of(50000))
    files = {steps: workspace.file(f"{steps}.yaml", CONFIG.format(steps=steps, layers=layers, data=data)) for steps in (1, 2)}
    plan = plan_of(workspace, files[1])
    planned = plan["groups"][0]["device_bytes"] + plan["worlds"][0]["process_bytes"]
    limit = plan["checkpoint_bytes"] // 8 // 4096 * 4096
    if planned > limit:
        raise harness.Failure(f"planned {planned} bytes of a limit of {limit}: the test needs a larger model")
    group.set_limit(limit)
    capped, free = workspace.directory("capped"), workspace.directory("free")
    first = train(workspace, files[1], capped, AWAY, group)
    check_peak("from the beginning", first, planned, limit, group)
    check_moved(first, plan)
    check_peak("resumed", train(workspace, files[2], capped, AWAY, group), planned, limit, group)
    train(workspace, files[2], free, [])
    if workspace.state_digest(capped) != workspace.state_digest(free) or harness.losses(capped) != harness.losses(free):
        raise harness.Failure("the run with a limit and the one without have different bits")


def body(workspace, _arguments):
    group = cgroups.Group()
    # what lies in memory counts as memory: a directory on a drive
    place = os.environ.get("PERDURE_TEST_DISK", "/var/tmp")
    shutil.rmtree(workspace.path)
    workspace.path = tempfile.mkdtemp(prefix="perdure-e2e-", dir=place)
    try:
        run(workspace, group, 50)
    finally:
        group.remove()


try:
    harness.main(body)
except cgroups.Skipped as skipped:
    print(f"skipped: {skipped}")
    sys.exit(SKIPPED)
