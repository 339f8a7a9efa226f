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
import time

import harness

MIB = 1 << 20
TINY = """
run: {{seed: 5, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 32, layers: 1, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 2, leaf: 1, context: 32}}
validation: {{every: 0}}
checkpoint: {{every: 1, keep_last: 2}}
"""
LARGE = """
run: {{seed: 5, steps: 2}}
model: {{family: gpt2, vocab: 8192, context: 256, layers: 10, hidden: 640, heads: 10}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 2, leaf: 1, context: 256}}
validation: {{every: 0}}
checkpoint: {{every: 1, keep_last: 1}}
"""


def children_of(pid):
    """Every living descendant."""
    parents = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as f:
                parents.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
        except OSError:
            continue  # it left while we looked
    found, queue = [], [pid]
    while queue:
        queue.extend(parents.get(queue[0], []))
        found.append(queue.pop(0))
    return found[1:]


def is_worker(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
    except OSError:
        return False
    return len(words) > 1 and os.path.basename(words[0]) == b"perdure" and words[1] == b"worker"


def status_bytes(pid, key):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as f:
            for line in f:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def watch(workspace, config, directory, overrides, look):
    """Runs a training and calls look(workers) until it ends."""
    log_path = directory + ".log"
    env = dict(os.environ, PERDURE_PROGRESS="off")
    with open(log_path, "w", encoding="utf-8") as log:
        process = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides], env=env, stdout=log,
                                   stderr=log)
        while process.poll() is None:
            look([pid for pid in children_of(process.pid) if is_worker(pid)])
            time.sleep(0.01)
    if process.returncode != 0:
        with open(log_path, encoding="utf-8") as f:
            raise harness.Failure(f"perdure train {' '.join(overrides)}: exit {process.returncode}\n{f.read()}")


def peak(workspace, config, overrides):
    """Sum over the workers of their highest resident memory."""
    highest = {}

    def look(workers):
        for pid in workers:
            highest[pid] = max(highest.get(pid, 0), status_bytes(pid, "VmHWM"))

    watch(workspace, config, workspace.directory("memory"), overrides, look)
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


def last_step(directory):
    path = os.path.join(directory, "metrics.jsonl")
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as f:
        rows = f.read().split(b"\n")
    return len(rows) - 1


def own_bytes(pid):
    """Resident memory without what is shared: the MPI runtime touches the pages of its shared memory one after the other, over
    hundreds of messages, up to a size that is fixed."""
    return status_bytes(pid, "RssAnon") + status_bytes(pid, "RssFile")


def check_flat(workspace, config, transport, ranks, saves):
    """Memory and descriptors of each worker after ten saves and at the last look before the end."""
    directory = workspace.directory("saves")
    first, last = {}, {}

    def look(workers):
        step = last_step(directory)
        for pid in workers:
            try:
                seen = step, own_bytes(pid), len(os.listdir(f"/proc/{pid}/fd"))
            except OSError:
                continue
            if step >= 10 and seen[1]:
                first.setdefault(pid, seen)
            if first.get(pid) and step < saves - 2:  # not while it cleans up
                last[pid] = seen

    watch(workspace, config, directory, [f"layout.ranks={ranks}", f"layout.transport={transport}", "layout.threads=1"], look)
    for pid, (step, memory, descriptors) in first.items():
        end_step, end_memory, end_descriptors = last[pid]
        line = (f"{ranks} {transport} ranks: {memory / MIB:.1f} MiB and {descriptors} descriptors after {step} saves, "
                f"{end_memory / MIB:.1f} MiB and {end_descriptors} after {end_step}")
        if end_step < saves // 2:
            raise harness.Failure(f"{line}: too early to tell, the looks missed the end of the run")
        # a save opens and closes files while we look: a few descriptors come and go
        if end_memory > memory + MIB or end_descriptors > descriptors + 6:
            raise harness.Failure(line)
        print(line)
    if len(first) < (ranks if transport == "mpi" else 1):
        raise harness.Failure(f"only {len(first)} workers were seen after ten saves")


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
