#!/usr/bin/env python3
"""Files of state are there before the first step: as many and as large as `plan` says, so that a disk that fills up later stops
nothing, and one that is too small is said before anything is made. Needs root: a file system of its own.
"""
import glob
import json
import os
import signal
import subprocess
import sys

import harness

CONFIG = """
run: {{seed: 3, steps: 30}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 192, heads: 4, head_size: 48, ffn: 600}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 64}}
validation: {{every: 0}}
offload: {{optimizer: nvme, gradients: nvme, buffer_bytes: 4M}}
layout: {{ranks: 2, transport: local, threads: 1}}
checkpoint: {{every: 1, keep_last: 3}}
"""
LEFT_BYTES = 3 << 20  # for records and directories


def planned(workspace, config):
    result = workspace.command(["plan", config, "run.dir=unused", "--world", "2", "--json"])
    if result.returncode != 0:
        raise harness.Failure(f"perdure plan: exit {result.returncode}\n{result.stderr}")
    return json.loads(result.stdout)["worlds"][0]["groups"]


def files_of_state(path):
    found = [name for pattern in ("pool-*/recycle-*", "pool-*/generation-*", "step-*/shard-*")
             for name in glob.glob(os.path.join(path, pattern))]
    return {os.stat(name).st_ino: os.stat(name).st_blocks * 512 for name in found}


def start(workspace, config, directory, disk):
    env = dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT="worker.stepped@0:2:stop")
    with open(directory + ".log", "w", encoding="utf-8") as log:
        return subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", f"checkpoint.tiers[0].dir={disk.path}"],
                                env=env, stdout=log, stderr=log, start_new_session=True)


def fills_up(workspace, config, disk, groups):
    """Stopped after its first steps, everything is there; the disk is filled to the brim, and it continues."""
    directory = workspace.directory("filled")
    process = start(workspace, config, directory, disk)
    worker = harness.wait_stopped(process)
    files = files_of_state(disk.path)
    disk.fill(LEFT_BYTES)
    os.kill(worker, signal.SIGCONT)
    code = process.wait(timeout=harness.PATIENCE)
    with open(directory + ".log", encoding="utf-8") as f:
        log = f.read()
    if code != 0:
        raise harness.Failure(f"on a disk that was filled after the start: exit {code}\n{log}")
    expected = sum(group["ranks"] * group["nvme_generations"] for group in groups)
    if len(files) != expected:
        raise harness.Failure(f"{len(files)} files of state after the first step, {expected} are planned")
    least = min(group["nvme_generation_bytes"] for group in groups)
    if any(size < least for size in files.values()):
        raise harness.Failure(f"files of state have {sorted(files.values())} bytes, planned are {least}")
    print(f"{len(files)} files of state at the start, as planned; the disk was filled, nothing stopped")
    return harness.losses(directory)


def is_too_small(workspace, config, disk):
    directory = workspace.directory("small")
    result = workspace.train(config, directory, [f"checkpoint.tiers[0].dir={disk.path}"], expect=74)
    if os.path.exists(os.path.join(directory, "metrics.jsonl")) or files_of_state(disk.path):
        raise harness.Failure(f"a disk that is too small: not refused before anything is made\n{result.stderr}")
    for part in [disk.path, "MiB"]:
        if part not in result.stderr:
            raise harness.Failure(f"a disk that is too small: \"{part}\" is not said\n{result.stderr}")
    print("a disk that is too small: refused before anything is made")


def body(workspace, _):
    if os.geteuid() != 0:
        print("skipped: a file system of its own needs root")
        sys.exit(77)
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
    plain = workspace.directory("plain")
    workspace.train(config, plain)
    groups = planned(workspace, config)
    needed = sum(group["ranks"] * group["nvme_bytes"] for group in groups)
    with harness.Disk(workspace, (needed >> 20) + 24) as disk, harness.Disk(workspace, (needed >> 21) + 8) as small:
        if not disk.is_mounted or not small.is_mounted:
            print("skipped: mounting is refused here")
            sys.exit(77)
        if fills_up(workspace, config, disk, groups) != harness.losses(plain):
            raise harness.Failure("other bits")
        is_too_small(workspace, config, small)


harness.main(body)
