#!/usr/bin/env python3
"""A launch in a cgroup of 300 MiB. What cannot fit is refused with the arithmetic before anything starts, `plan`, `doctor` and layout: auto
count with the limit, and a rank that the kernel kills there is reported with the limit. A CPU quota counts where threads are chosen.

Needs root and cgroups, version 1 or 2; without them it is skipped (77), and says why."""
import json
import os
import re
import signal
import subprocess
import sys

import cgroups
import harness
from hangs import workers

SKIPPED = 77
LIMIT = 300 << 20
CONFIG = """
run: {{seed: 5, steps: 2}}
model: {{family: llama, vocab: 256, context: 64, layers: {layers}, hidden: 256, heads: 4, kv_heads: 4, head_size: 64, ffn: 1024}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 1, context: 64}}
validation: {{every: 0}}
checkpoint: {{every: 1, keep_last: 1}}
layout: {{ranks: 2, threads: 1}}
"""
# Takes so many MiB, and waits to be ended.
HOG = """
import sys, time
held = [bytearray(b'x') * (1 << 20) for i in range(int(sys.argv[1]))]
time.sleep(3600)
"""


def check(condition, what, text):
    if not condition:
        raise harness.Failure(f"{what}\n{text}")


class Bench:
    def __init__(self, workspace, memory):
        self.workspace, self.memory = workspace, memory
        data = workspace.file("text.txt", harness.text_of(20000))
        self.small, self.large = (workspace.file(f"{layers}.yaml", CONFIG.format(layers=layers, data=data)) for layers in (2, 24))

    def start(self, words, group=None, **environment):
        return subprocess.Popen([self.workspace.perdure, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=(group or self.memory).join, env=dict({**os.environ, "PERDURE_PROGRESS": "off"}, **environment))

    def run(self, words, code, group=None):
        with self.start(words, group) as run:
            out, log = run.communicate(timeout=harness.PATIENCE)
        check(code in (None, run.returncode), f"{words}: exit {run.returncode}, not {code}", out + log)
        return out, log


def fewer(bench):
    """Ranks of one host share its memory: fewer of them are what helps, and the number that is named starts."""
    words = ["train", bench.small, f"run.dir={bench.workspace.directory('fewer')}", "run.steps=1", "checkpoint.every=1"]
    _, log = bench.run([*words, "batch.sequences=8", "layout.ranks=8"], 78)
    said = re.search(r"8 ranks of this host would take .*; take layout.ranks=([1-7])\b", log)
    check(said, "no number of ranks that fit", log)
    bench.run([*words, "batch.sequences=8", f"layout.ranks={said[1]}"], 0)


def refused(bench):
    name = "memory.limit_in_bytes" if bench.memory.version == 1 else "memory.max"
    for transport in ("local", "mpi"):
        directory = bench.workspace.directory("refused")
        _, log = bench.run(["train", bench.large, f"run.dir={directory}", f"layout.transport={transport}"], 78)
        said = re.search(rf"2 ranks of this host would take [\d.]+ MiB each and their processes [\d.]+ MiB, [\d.]+ [MG]iB in all, and {name} of "
                         rf"{re.escape(bench.memory.path)} ends at 300.0 MiB; .*perdure plan CONFIG --world=2", log)
        check(said, "no arithmetic", log)
        check("starting" not in log, "something was started", log)
        rungs = re.findall(r"^  (.*\S) +([12]) ranks? +[\d.]+ [MG]iB  (fits|too large)$", log, re.MULTILINE)
        check(len(rungs) == 7 and rungs[-1][:2] == ("bf16, ZeRO-3, full recomputation", "2"), "no ladder", log)
    _, log = bench.run(["train", bench.large, f"run.dir={directory}", "layout=auto", "layout.ranks=2"], 78)
    check("ends at 300.0 MiB" in log, "layout: auto does not say what limits it", log)
    fewer(bench)
    out, _ = bench.run(["plan", bench.large, "run.dir=none"], 0)
    check(re.search("note: this does not fit the 1[0-9.]+ MiB", out), "plan does not count the limit", out)
    out, _ = bench.run(["doctor"], None)
    check(f"{name} of {bench.memory.path} ends at 300" in out, "doctor does not count the limit", out)
    print("what cannot fit is refused with the arithmetic")


def killed(bench):
    for transport in ("local", "mpi"):
        directory = bench.workspace.directory("killed")
        words = ["train", bench.small, f"run.dir={directory}", "run.steps=1000000", "checkpoint.every=1000", f"layout.transport={transport}"]
        log = bench.workspace.directory("killed") + ".log"

        with open(log, "w", encoding="utf-8") as out:
            run = subprocess.Popen([bench.workspace.perdure, *words], stdout=out, stderr=out, preexec_fn=bench.memory.join,
                                   env=dict(os.environ, PERDURE_PROGRESS="off"))
            harness.wait_for(lambda: harness.steps_done(directory) >= 3 or run.poll() is not None, "three steps")
            for rank in workers(run):  # these alone, before what takes the memory: the kernel may want more than one process
                bench.memory.write(f"/proc/{rank}/oom_score_adj", "1000")
            hog = subprocess.Popen([sys.executable, "-c", HOG, "260"], preexec_fn=bench.memory.join)
            harness.wait_for(lambda: "memory limit" in harness.read(log) or run.poll() is not None, "a rank that is killed")
            hog.kill()
            hog.wait()
            run.send_signal(signal.SIGTERM)
            run.wait(timeout=harness.PATIENCE)
        said = re.search(r"rank [01] \(process \d+\) was killed by the kernel: the memory limit, 300.0 MiB \(memory\.\w+ of \S+\), is reached",
                         harness.read(log))
        check(said, "the limit is not named", harness.read(log))
    print("a rank that the kernel killed is reported with the limit")


def threads(bench):
    group = cgroups.Group("cpu")
    try:
        group.set_cores(1.5)
        directory = bench.workspace.directory("quota")
        _, log = bench.run(["train", bench.small, f"run.dir={directory}", "layout.ranks=1", "layout.threads=0"], 0, group)
        check("on 1 rank x 1 thread" in log, "more threads than whole cores of the quota", log)
    finally:
        group.remove()
    print("a CPU quota counts")


def body(workspace, _arguments):
    memory = cgroups.Group()
    try:
        memory.set_limit(LIMIT)
        bench = Bench(workspace, memory)
        refused(bench)
        killed(bench)
        threads(bench)
    finally:
        memory.remove()


if __name__ == "__main__":
    try:
        harness.main(body)
    except cgroups.Skipped as skipped:
        print(f"skipped: {skipped}")
        sys.exit(SKIPPED)
