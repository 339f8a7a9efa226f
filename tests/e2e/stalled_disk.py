#!/usr/bin/env python3
"""A disk that hangs (a file system that is frozen) is not a lost peer: the message says which rank waits for which tier, nobody is ended, training
continues where the state was copied before, and all continues with the same bits once the disk does. Needs root: a file system of its own."""
import json
import os
import signal
import subprocess
import sys
import time

import harness

CONFIG = """
run: {{seed: 3, steps: 1000000}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
optimizer: {{warmup_steps: 2, decay_steps: 12}}
checkpoint: {{every: 2}}
layout: {{ranks: 2, threads: 1, transport: local}}
restart: {{hang_seconds: 2, limit: 0, begin_seconds: 60}}
"""


def last_checkpoint(directory):
    path = os.path.join(directory, "metrics.jsonl")
    lines = harness.read(path).split("\n")[:-1] if os.path.exists(path) else []
    return json.loads(lines[-1])["last_checkpoint"] if lines else 0


def frozen(disk, is_frozen):
    subprocess.run(["fsfreeze", "-f" if is_frozen else "-u", disk.path], check=True)


SLOW = "worker.stepped:1:sleep"  # nothing is asked of a run while it only trains


class Run:
    def __init__(self, workspace, config, disk, *words, **environment):
        self.directory, self.disk, self.workspace = workspace.directory(), disk, workspace
        self.log_path, self.tier = self.directory + ".log", os.path.join(disk.path, os.path.basename(self.directory))
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={self.directory}", f"checkpoint.dir={self.tier}", *words],
                                            env={**os.environ, "PERDURE_PROGRESS": "off", "PERDURE_FAULT": SLOW, **environment}, stdout=log, stderr=log)

    def wait(self, condition, what):
        harness.wait_for(lambda: condition() or self.process.poll() is not None, what)
        if self.process.poll() is not None:
            raise harness.Failure(f"the launch ended before: {what}\n{harness.read(self.log_path)}")

    def wait_said(self, *words):
        self.wait(lambda: any(one in harness.read(self.log_path) for one in words), words[0])

    def end(self, config):
        before = last_checkpoint(self.directory)
        self.wait(lambda: last_checkpoint(self.directory) > before + 2, "saves work again")
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=harness.PATIENCE) != 75 or "restart 1" in harness.read(self.log_path):
            raise harness.Failure(f"exit {self.process.returncode}\n{harness.read(self.log_path)}")
        found, plain = harness.losses(self.directory), self.workspace.directory("plain")
        self.workspace.train(config, plain, [f"run.steps={max(found)}", "restart.hang_seconds=30", "layout.ranks=1"])
        if found != harness.losses(plain):
            raise harness.Failure("other bits than with a disk that never hung")


def hangs(workspace, config, disk):
    """At a random moment of a save. Where the state is still to be copied training waits, and the launcher says for what. Ranks wait for each
    other's disks longer than for silent peers."""
    run = Run(workspace, config, disk)
    run.wait(lambda: last_checkpoint(run.directory) >= 2, "a checkpoint")
    frozen(disk, True)
    try:
        run.wait_said(f"waiting for a save into tier {run.tier}", f"into tier {run.tier} has not ended for")
        time.sleep(20)
    finally:
        frozen(disk, False)
    run.end(config)


def goes_on(workspace, config, disk):
    """The state is copied, and the disk hangs before it is durable: training continues without further saves."""
    run = Run(workspace, config, disk, "layout.ranks=1", PERDURE_FAULT=f"store.prepare.written@0:2:stop,{SLOW}")
    worker = harness.wait_stopped(run.process)
    frozen(disk, True)
    try:
        os.kill(worker, signal.SIGCONT)
        run.wait_said(f"into tier {run.tier} has not ended for")
        done = harness.steps_done(run.directory)
        run.wait(lambda: harness.steps_done(run.directory) > done + 4, "training continues")
    finally:
        frozen(disk, False)
    run.end(config)


def body(workspace, _):
    if os.geteuid() != 0:
        print("skipped: a file system of its own needs root")
        sys.exit(77)
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(50000))))
    with harness.Disk(workspace, 96) as disk:
        if not disk.is_mounted:
            print("skipped: mounting is refused here")
            sys.exit(77)
        hangs(workspace, config, disk)
        goes_on(workspace, config, disk)
    print("a disk that hangs: named with its tier, waited for, the same bits")


if __name__ == "__main__":
    harness.main(body)
