#!/usr/bin/env python3
"""Every allocation of a command fails once: the command says that memory is missing, with an exit code of its own, or does without. It
does not crash, what it was to make is absent or whole, and the same command afterwards makes it.

By default some allocations of each command, by seed; with PERDURE_TEST_SCALE of 10 or more all of them.
    allocations.py PERDURE_STARVED [--only WORD] [--at N]
"""
import json
import os
import random
import shutil
import sys

import harness

CONFIG = """
run: {{seed: 7, steps: 4}}
model: {{family: llama, vocab: 256, context: 16, layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 1, context: 16}}
optimizer: {{lr: 0.003, warmup_steps: 2, decay_steps: 4}}
checkpoint: {{every: 2, keep_last: 2}}
validation: {{every: 2, sequences: 2}}
layout: {{ranks: {ranks}, dp: {ranks}, threads: 1, transport: local}}
"""
CODES = (0, 70, 74, 75, 78)  # 70: what failed was in the middle of something that is given up
SAMPLES = 12                 # of each command


class Starved:
    def __init__(self, workspace):
        self.workspace = workspace
        self.data = workspace.file("text.txt", harness.text_of(20000))
        self.config = workspace.file("run.yaml", CONFIG.format(data=self.data, ranks=2))
        self.run = workspace.directory("trained")
        workspace.train(self.config, self.run)
        self.checkpoints = os.path.join(self.run, "checkpoints")
        newest = json.loads(workspace.command(["ckpt", "ls", self.checkpoints, "--json"]).stdout)
        self.newest = os.path.join(self.checkpoints, newest[0]["name"])
        self.model = workspace.directory("model")
        made = workspace.command(["ckpt", "export", self.newest, self.model, "--format=safetensors"])
        if made.returncode:
            raise harness.Failure(f"export: {made.stderr}")

    def commands(self):
        """Name, arguments (OUT: a path that is not there), what tells that OUT is whole."""
        verify = lambda out: self.workspace.command(["ckpt", "verify", out]).returncode == 0
        exported = lambda out: self.workspace.command(["ckpt", "stats", out]).returncode == 0
        return [
            ("verify", ["ckpt", "verify", self.checkpoints], None),
            ("ls", ["ckpt", "ls", self.checkpoints], None),
            ("show", ["ckpt", "show", self.newest], None),
            ("stats", ["ckpt", "stats", self.newest, "--json"], None),
            ("diff", ["ckpt", "diff", self.newest, self.newest], None),
            ("reshard", ["ckpt", "reshard", self.newest, "OUT", "--layout=dp=3"], verify),
            ("import", ["ckpt", "import", self.model, "OUT", "--fresh-optimizer", "--layout=dp=2"], verify),
            ("export", ["ckpt", "export", self.newest, "OUT", "--format=dcp"], exported),
            ("plan", ["plan", self.config, "--world=2", "run.dir=r"], None),
            ("sample", ["sample", self.newest, "--prompt=It was", "--count=4", "--json"], None),
            ("train", ["train", self.config, "run.dir=OUT"], self.has_trained),
        ]

    def has_trained(self, out):
        try:
            return self.workspace.state_digest(out) == self.workspace.state_digest(self.run)
        except harness.Failure:
            return False  # no checkpoint yet

    def invoke(self, arguments, out, environment):
        return self.workspace.command([out if a == "OUT" else a.replace("=OUT", "=" + out) for a in arguments], environment)


def is_there(out):
    return os.path.exists(out) and bool(os.listdir(out))


def try_at(starved, name, arguments, is_whole, at):
    """The at-th allocation fails in the first process that comes to it."""
    out, once = starved.workspace.directory(name), starved.workspace.directory("once")
    environment = {"PERDURE_STARVE": at, "PERDURE_STARVE_ONCE": once}
    result = starved.invoke(arguments, out, environment)
    what = f"{name}: allocation {at}"
    if not os.path.exists(once): # threads: there are a few more at one time than at another
        return 0
    if result.returncode not in CODES:
        raise harness.Failure(f"{what}: exit {result.returncode}\n{result.stderr}")
    if result.returncode and "memory" not in result.stderr:
        raise harness.Failure(f"{what}: exit {result.returncode}, and no word of memory\n{result.stderr}")
    if is_whole:
        is_made = is_there(out) and is_whole(out)
        if result.returncode == 0 and not is_made:
            raise harness.Failure(f"{what}: exit 0, and what it made is not whole\n{result.stderr}")
        if not is_made:
            again = starved.invoke(arguments, out, {})
            if again.returncode or not is_whole(out):
                raise harness.Failure(f"{what}: the same command afterwards: exit {again.returncode}\n{again.stderr}\nbefore: {result.stderr}")
    shutil.rmtree(out, ignore_errors=True)
    return result.returncode


def count_of(starved, name, arguments):
    report, out = starved.workspace.directory("count"), starved.workspace.directory(name)
    result = starved.invoke(arguments, out, {"PERDURE_STARVE_COUNT": report})
    if result.returncode:
        raise harness.Failure(f"{name}: exit {result.returncode}\n{result.stderr}")
    shutil.rmtree(out, ignore_errors=True)
    return max(map(int, harness.read(report).split()))


def body(workspace, arguments):
    seed = harness.seed()
    dice = random.Random(seed)
    only = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
    starved = Starved(workspace)
    failures = 0
    for name, command, is_whole in starved.commands():
        if only not in name:
            continue
        count = count_of(starved, name, command)
        places = range(1, count + 1)
        if "--at" in arguments:
            places = [int(arguments[arguments.index("--at") + 1])]
        elif harness.scale() < 10:
            places = sorted(dice.sample(places, min(SAMPLES, count)))
        codes = set()
        for at in places:
            try:
                codes.add(try_at(starved, name, command, is_whole, str(at)))
            except harness.Failure as failure:
                failures += 1
                print(f"FAILED: {failure}", flush=True)
        print(f"{name}: {len(places)} of {count} allocations failed, exit codes {sorted(codes)}", flush=True)
    if failures:
        raise harness.Failure(f"{failures} allocations, each with its number above")


harness.main(body)
