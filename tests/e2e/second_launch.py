#!/usr/bin/env python3
"""A second launch on the same run directory is refused and changes nothing of the one that runs: when a rank of the first dies
afterwards, its restart continues with the first launch's configuration."""
import os
import signal
import subprocess

import harness

CONFIG = """
run: {{seed: 3, steps: 30}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 64}}
checkpoint: {{every: 4}}
layout: {{ranks: 2, transport: mpi, threads: 1}}
"""


def workers_of(workspace, directory):
    found = subprocess.run(["pgrep", "-f", f" worker {directory}/"], capture_output=True, text=True, check=True)
    pids = [int(pid) for pid in found.stdout.split()]
    return [pid for pid in pids if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "perdure"]


def body(workspace, _):
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
    undisturbed, directory = workspace.directory("undisturbed"), workspace.directory("first")
    workspace.train(config, undisturbed)
    environment = dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT="worker.stepped@1:6:stop",
                       PERDURE_FAULT_ONCE=os.path.join(workspace.path, "stopped"))
    with subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}"], env=environment,
                          stderr=subprocess.PIPE, text=True) as first:
        harness.wait_stopped(first)
        ranks = workers_of(workspace, directory)
        for rank in ranks:  # they stay where they are, with their locks, until the second launch has given up waiting
            os.kill(rank, signal.SIGSTOP)
        second = workspace.command(["train", config, f"run.dir={directory}", "optimizer.lr=0.5"])
        for rank in ranks[:-1]:  # before they are ended because of the one that dies
            os.kill(rank, signal.SIGCONT)
        os.kill(ranks[-1], signal.SIGKILL)
        log = first.communicate(timeout=harness.PATIENCE)[1]
    if second.returncode != 74 or "another launch" not in second.stderr:
        raise harness.Failure(f"the second launch ended with {second.returncode}:\n{second.stderr}")
    if first.returncode != 0 or "restart 1" not in log:
        raise harness.Failure(f"the first launch ended with {first.returncode}:\n{log}")
    if harness.losses(directory) != harness.losses(undisturbed):
        raise harness.Failure(f"the first launch's losses changed after the second was refused\n{log}")
    if workspace.state_digest(directory) != workspace.state_digest(undisturbed):
        raise harness.Failure("the first launch's state changed after the second was refused")
    known = ("checkpoints", "config.yaml", "events.jsonl", "last-steps", "metrics.jsonl")
    left = [name for name in os.listdir(directory) if name not in known and not name.startswith(".data-scan-")]
    if left:
        raise harness.Failure(f"left behind in the run directory: {left}")
    print("a refused launch changes nothing")


if __name__ == "__main__":
    harness.main(body)
