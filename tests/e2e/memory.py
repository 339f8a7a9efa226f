#!/usr/bin/env python3
"""Memory discipline of the real tool.

Peak: for a plan of 1 GiB and more, the peak resident memory of the worker processes, beyond what a process with a tiny model
takes (libraries, the MPI runtime, code), is at most 1.05 times the plan of all ranks plus 64 MiB. Saves included.

Flat: after many saves resident memory of a process's own and open descriptors are what they were after ten (1 MiB tolerance). 200
saves by default, 1,000 with PERDURE_TEST_SCALE of 10 or more.
"""
import json
import os
import subprocess

import harness

MIB = 1 << 20
TINY = """
run: {{seed: 5, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 32, layers: 1, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 2, micro_batch: 1, context: 32}}
validation: {{every: 0}}
checkpoint: {{every: 1, keep_last: 2}}
"""
LARGE = """
run: {{seed: 5, steps: 2}}
model: {{family: gpt2, vocab: 8192, context: 256, layers: 10, hidden: 640, heads: 10}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 2, micro_batch: 1, context: 256}}
validation: {{every: 0}}
checkpoint: {{every: 1, keep_last: 1}}
"""


def status_bytes(pid, key):
    for line in harness.read(f"/proc/{pid}/status").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise harness.Failure(f"/proc/{pid}/status has no {key}")


def watch(workspace, config, directory, overrides, places, look):
    """Runs a training and calls look(worker) at each of the places."""
    log_path = directory + ".log"
    env = dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT=",".join(f"{place}:stop" for place in places))
    with open(log_path, "w", encoding="utf-8") as log:
        process = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides], env=env, stdout=log,
                                   stderr=log)
        harness.look_at_stops(process, look)
    if process.returncode != 0:
        with open(log_path, encoding="utf-8") as f:
            raise harness.Failure(f"perdure train {' '.join(overrides)}: exit {process.returncode}\n{f.read()}")


def peak(workspace, config, overrides):
    """Sum over the workers of their highest resident memory, as each has it when it is about to end."""
    highest = {}

    def look(pid):
        highest[pid] = status_bytes(pid, "VmHWM")

    watch(workspace, config, workspace.directory("memory"), overrides, ["worker.ended:1"], look)
    if not highest:
        raise harness.Failure(f"no worker was seen with {overrides}")
    return sum(highest.values())


def planned(workspace, config, ranks):
    result = workspace.command(["plan", config, "run.dir=unused", f"--world={ranks}", "--threads=1", "--json"])
    if result.returncode != 0:
        raise harness.Failure(f"perdure plan: exit {result.returncode}\n{result.stderr}")
    return plan_bytes(json.loads(result.stdout))


def plan_bytes(plan):
    """All ranks of the only world that was asked for."""
    world = plan["worlds"][0]
    return sum(group["ranks"] * group["memory_bytes"]["total"] for group in world["groups"])


def check_peak(workspace, tiny, large, transport, ranks):
    overrides = [f"layout.ranks={ranks}", f"layout.transport={transport}", "layout.threads=1"]
    plan, small_plan = planned(workspace, large, ranks), planned(workspace, tiny, ranks)
    if plan < 1 << 30:
        raise harness.Failure(f"the large plan is only {plan} bytes: the test needs a larger model")
    libraries = max(peak(workspace, tiny, overrides) - small_plan, 0)
    beyond = peak(workspace, large, overrides) - libraries
    limit = 1.05 * plan + 64 * MIB
    line = (f"{ranks} {transport} ranks: plan {plan / MIB:.0f} MiB, libraries {libraries / MIB:.0f} MiB, peak beyond them "
            f"{beyond / MIB:.0f} MiB, limit {limit / MIB:.0f} MiB")
    if beyond > limit:
        raise harness.Failure(line)
    print(line)


def own_bytes(pid):
    """Resident memory without what is shared: the MPI runtime touches the pages of its shared memory one after the other, over
    hundreds of messages, up to a size that is fixed."""
    return status_bytes(pid, "RssAnon") + status_bytes(pid, "RssFile")


def check_flat(workspace, config, transport, ranks, saves):
    """Memory and descriptors of each worker after ten saves and after nearly all."""
    directory = workspace.directory("saves")
    steps = [10, saves - 2]
    rank = "@0" if transport == "local" else ""  # threads of one process
    found = {}

    def look(pid):
        found.setdefault(pid, []).append((own_bytes(pid), len(os.listdir(f"/proc/{pid}/fd"))))

    watch(workspace, config, directory, [f"layout.ranks={ranks}", f"layout.transport={transport}", "layout.threads=1"],
          [f"worker.stepped{rank}:{step}" for step in steps], look)
    for (memory, descriptors), (end_memory, end_descriptors) in found.values():
        line = (f"{ranks} {transport} ranks: {memory / MIB:.1f} MiB and {descriptors} descriptors after {steps[0]} saves, "
                f"{end_memory / MIB:.1f} MiB and {end_descriptors} after {steps[1]}")
        # a save opens and closes files while we look: a few descriptors come and go
        if end_memory > memory + MIB or end_descriptors > descriptors + 6:
            raise harness.Failure(line)
        print(line)
    if len(found) < (ranks if transport == "mpi" else 1):
        raise harness.Failure(f"only {len(found)} workers were seen after ten saves")


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    saves = 1000 if harness.scale() >= 10 else 200
    data = workspace.file("text.txt", harness.text_of(50000))
    tiny = workspace.file("tiny.yaml", TINY.format(steps=12, data=data))
    many = workspace.file("many.yaml", TINY.format(steps=saves, data=data))
    large = workspace.file("large.yaml", LARGE.format(data=data))
    for ranks in [1, 2]:
        check_peak(workspace, tiny, large, transport, ranks)
        check_flat(workspace, many, transport, ranks, saves)


harness.main(body)
