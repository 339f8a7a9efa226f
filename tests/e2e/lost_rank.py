#!/usr/bin/env python3
"""One rank of a pipeline of tensor-parallel stages is killed: the launcher counts one and starts all again. Killed once more before a
newer checkpoint is there it is left out, and the others continue with the layout that they admit. Bits are the undisturbed run's."""
import os
import re
import signal
import subprocess

import harness

CONFIG = """
run: {{seed: 3, steps: 20}}
model: {{family: llama, vocab: 256, context: 64, layers: 4, hidden: 48, heads: 6, kv_heads: 3, head_size: 8, ffn: 96}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 64}}
numerics: {{virtual_tp: 2}}
checkpoint: {{every: 4}}
layout: {{ranks: 4, tp: 2, pp: 2, transport: mpi, threads: 1}}
"""


# Ranks that leave because of the lost one race with the one that ends them: one round sees a miscount in about one of five.
ROUNDS = 3


def disturb(workspace, config, undisturbed, step):
    directory = workspace.directory("disturbed")
    environment = dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT=f"worker.stepped@3:{step}:stop")
    with subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}"], env=environment,
                          stderr=subprocess.PIPE, text=True) as run:
        killed = harness.wait_stopped(run)
        os.kill(killed, signal.SIGKILL)
        harness.wait_for(lambda: killed not in harness.stopped(run), "the rank dies")
        os.kill(harness.wait_stopped(run), signal.SIGKILL)
        log = run.communicate(timeout=harness.PATIENCE)[1]
    # mpirun gives the code of the first that it sees end; where that is one that left because of the lost one, how that died is not known.
    lost = re.findall(r"rank 3 \(process \d+\) (?:died: killed by SIGKILL|ended without a message); restart ([12]) of", log)
    if run.returncode != 0 or lost != ["1", "2"] or "restart 1: 4 ranks (dp=1 tp=2 pp=2" not in log or "restart 2: 3 ranks (dp=1 pp=3" not in log:
        raise harness.Failure(f"the run ended with {run.returncode}:\n{log}")
    if harness.losses(directory) != harness.losses(undisturbed):
        raise harness.Failure("losses differ from those of the undisturbed run")


def body(workspace, _):
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
    undisturbed = workspace.directory("undisturbed")
    workspace.train(config, undisturbed, ["layout.ranks=1", "layout.tp=1", "layout.pp=1", "layout.transport=local"])
    for number in range(ROUNDS):
        disturb(workspace, config, undisturbed, 1 + number)
    print(f"one of four ranks killed twice, {ROUNDS} times: four went on, then three as pp=3, same bits")


if __name__ == "__main__":
    harness.main(body)
