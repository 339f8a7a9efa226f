#!/usr/bin/env python3
"""perdure bench survive: ranks are killed, stopped, paused and preempted and checkpoints damaged, and the bits stay those of a quiet run. Half a
minute by default, an hour with PERDURE_TEST_SCALE of 10 or more. What passes, a damaged message or a full disk, ends no start. --chaos is
refused where it says nothing. (Failures of other hosts: hosts.py chaos.)"""
import json
import os
import random
import signal
import subprocess

import harness

PHASES = ("detect", "end", "decide", "start", "join", "open", "load", "step", "total")


CONFIG = """
run: {{seed: 3, steps: 100000}}
optimizer: {{warmup_steps: 10, decay_steps: 1000}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 1, context: 64}}
checkpoint: {{every: 1, keep_last: 2}}
layout: {{ranks: 2, threads: 1, transport: {transport}}}
restart: {{limit: 0}}
"""


def one_of(workspace, kind, config, directory, look):
    """Until its first failure has happened, and `look` is true of the log; then it is told to leave."""
    log = directory + ".log"
    with open(log, "w", encoding="utf-8") as out:
        run = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", "--chaos", f"{harness.chaos_seed([kind], 2)},6"],
                               stdout=out, stderr=out, env=dict(os.environ, PERDURE_PROGRESS="off"))
    try:
        harness.wait_for(lambda: run.poll() is not None or (f"--chaos: {kind}, rank" in harness.read(log) and look(harness.read(log))), kind)
        run.send_signal(signal.SIGTERM)
        if run.wait(timeout=harness.PATIENCE) != 75:
            raise harness.Failure(f"--chaos: {kind}: exit {run.returncode}\n{harness.read(log)}")
    finally:
        run.kill()
    return harness.losses(directory)


def passing(workspace):
    """What passes ends no start: a bit of gradients that arrives as another, between processes and threads, and a disk that is full. What ends
    one on purpose is no restart without progress, of which none is allowed here."""
    with harness.Disk(workspace, 128) as disk:
        data = workspace.file("text.txt", harness.text_of(40000))
        configs = {transport: workspace.file(f"{transport}.yaml", CONFIG.format(data=data, transport=transport)) for transport in ("mpi", "local")}
        runs = [one_of(workspace, "flip", configs[transport], workspace.directory(), lambda log: "the step is computed again" in log)
                for transport in configs]
        runs.append(one_of(workspace, "kill", configs["mpi"], workspace.directory(), lambda log: "on purpose, so it is not counted" in log))
        if disk.is_mounted:
            full = os.path.join(disk.path, "run")

            def has_gone_on(_):
                before = harness.steps_done(full)
                return harness.wait_for(lambda: harness.steps_done(full) > before + 5, "steps while the disk is full, or after it") and True

            runs.append(one_of(workspace, "fill", configs["mpi"], full, has_gone_on))
        quiet = workspace.directory()
        workspace.train(configs["local"], quiet, [f"run.steps={max(max(losses) for losses in runs)}"])
        known = harness.losses(quiet)
        if any(known[step] != bits for losses in runs for step, bits in losses.items()):
            raise harness.Failure("a failure changed the bits")


def body(workspace, _):
    passing(workspace)
    seed = int(os.environ.get("PERDURE_TEST_SEED", str(random.SystemRandom().randrange(2**31))))
    print(f"seed {seed} (PERDURE_TEST_SEED replays it)", flush=True)
    minutes, every = (60, 60) if harness.scale() >= 10 else (0.5, 10)  # one failure in each ten seconds
    result = subprocess.run([workspace.perdure, "bench", "survive", f"--minutes={minutes}", f"--every={every}", f"--seed={seed}",
                             f"--dir={workspace.path}", "--json"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise harness.Failure(f"bench survive: exit {result.returncode}\n{result.stdout}{result.stderr}")
    said = json.loads(result.stdout)
    blows = sum(said[f"failures_{kind}"] for kind in harness.CHAOS)
    if said["same_bits"] != "yes" or said["differing_losses"] or said["false_alarms"] or not blows or not 0 < said["goodput"] <= 1:
        raise harness.Failure(result.stdout)
    if any(said.get(f"recover_{phase}", 0) < 0 for phase in PHASES):  # a run that ends with its last failure has none
        raise harness.Failure(result.stdout)
    if [name for name in os.listdir(workspace.path) if name.startswith("perdure-bench")]:
        raise harness.Failure("files of the bench stay behind")
    refused = workspace.command(["train", "none.yaml", "--chaos=7"])
    if refused.returncode != 64 or "a seed and failures a minute" not in refused.stderr:
        raise harness.Failure(f"--chaos=7: exit {refused.returncode}: {refused.stderr}")
    print(result.stdout, flush=True)


if __name__ == "__main__":
    harness.main(body)
