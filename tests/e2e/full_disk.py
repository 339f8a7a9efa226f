#!/usr/bin/env python3
"""A disk that is full for a while ends no run: training continues, saves are tried again with backoff, and the bits stay.

While training, or after the last step; state in memory or in files. A disk that stays full ends the run with 74 when
checkpoint.give_up_minutes are over, and who asks to leave meanwhile waits for checkpoint.leave_seconds. Needs root: a file system
of its own. Argument: the transport.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

import harness

CONFIG = """
run: {{seed: 3, steps: 100000}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 256, heads: 4, kv_heads: 4, head_size: 64, ffn: 256}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
optimizer: {{warmup_steps: 2, decay_steps: 12}}
validation: {{every: 0}}
checkpoint: {{every: 1, keep_last: 2}}
layout: {{ranks: 2, threads: 1, transport: {transport}}}
"""
FILES = ["offload.optimizer=nvme", "offload.buffer_bytes=8M"]


class Run:
    """Stopped after its first step, before its first save. Then it waits between steps: most of the time passes between tries."""

    def __init__(self, workspace, config, disk, overrides):
        self.directory, self.disk = workspace.directory(), disk
        command = [workspace.perdure, "train", config, f"run.dir={self.directory}", f"checkpoint.dir={disk.path}/{os.path.basename(self.directory)}",
                   *overrides]
        env = dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT="worker.stepped@0:1:stop,worker.stepped:2:sleep")
        with open(self.directory + ".log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        self.worker = harness.wait_stopped(self.process)

    def go_on_full(self):
        self.disk.fill(0)
        self.begun = time.monotonic()
        os.kill(self.worker, signal.SIGCONT)
        harness.wait_for(lambda: "is not saved" in self.log() or self.process.poll() is not None, "a save fails")

    def log(self):
        return harness.read(self.directory + ".log")

    def end(self, code, words):
        found = self.process.wait(timeout=harness.PATIENCE)
        if code != found or not re.search(words, self.log()):
            raise harness.Failure(f"{words}: exit {found}, not {code}\n{self.log()}")

    def rows(self):
        """Whole lines, of a run that may be writing the next one."""
        path = os.path.join(self.directory, "metrics.jsonl")
        return [json.loads(line) for line in (harness.read(path) if os.path.exists(path) else "").splitlines(True) if line.endswith("\n")]

    def wait_for_rows(self, condition, what):
        harness.wait_for(lambda: condition(self.rows()) or self.process.poll() is not None, what)


def has_trained_between_tries(rows):
    """Two saves have failed, and later steps ended while none was tried. The pauses grow until steps of any length do."""
    counts = [row.get("save_failures", 0) for row in rows]
    return any(count >= 2 and counts.count(count) >= 3 for count in counts)


def works_again(rows):
    return any("save_failures" in row for row in rows) and "save_failures" not in rows[-1] and rows[-1]["last_checkpoint"] >= 2


def passes(workspace, config, disk, overrides, what):
    """Full while training continues, until saves have been tried again; left when they work. The bits are those of a run whose disk had room."""
    run = Run(workspace, config, disk, overrides)
    run.go_on_full()
    run.wait_for_rows(has_trained_between_tries, "training continues between tries")
    disk.free()
    run.wait_for_rows(works_again, "saves work again")
    run.process.send_signal(signal.SIGTERM)
    run.end(75, r"saves work again: step \d+ is saved, after \d+ failures since step 1\b")
    said = len(re.findall(r"error worker r0: step \d+ is not saved, there is no checkpoint yet; the next try is in \d+ s, the last one in \d+ minutes: ", run.log()))
    rows = run.rows()
    failing = [row for row in rows if "save_failures" in row]
    counts = [row["save_failures"] for row in failing]
    if f", after {said} failures since" not in run.log() or any(row["save_failures_since"] != 1 or row["last_checkpoint"] for row in failing) or counts != sorted(counts):
        raise harness.Failure(f"{what}: said {said} times, rows {failing}\n{run.log()}")
    plain = workspace.directory("plain")
    workspace.train(config, plain, [*overrides, f"run.steps={rows[-1]['step']}"])
    found = harness.losses(run.directory), workspace.state_digest(disk.path, os.path.basename(run.directory))
    if found != (harness.losses(plain), workspace.state_digest(plain)):
        raise harness.Failure(f"{what}: other bits")
    print(f"{what}: {max(counts)} saves failed while {len(failing)} steps were made, the run went on with the same bits")


def passes_at_the_end(workspace, config, disk):
    """After the last step nothing is left to do but to save."""
    run = Run(workspace, config, disk, ["run.steps=1"])
    run.go_on_full()
    time.sleep(1.5)  # the try after the first failure comes within it, or later: whichever, the run ends well
    disk.free()
    run.end(0, r"training is over, and step 1 is not saved, there is no checkpoint yet; the next try is in 1 s, the last one in 10 minutes; "
            r"TERM or Ctrl-C ends it within 20 s: [^\n]*No space left[^$]*saves work again: step 1 is saved, after \d+ failures? since step 1\b")
    print("after the last step: the run waited until there was room, and ended well")


def stays(workspace, config, disk):
    """74 when the limit is over; the metrics and the message say since when."""
    run = Run(workspace, config, disk, ["checkpoint.give_up_minutes=0.03"])
    run.go_on_full()
    run.end(74, r"no save has worked; fix this, then run the same command again.*No space left")
    seconds = time.monotonic() - run.begun
    disk.free()
    if seconds < 1.8:
        raise harness.Failure(f"given up after {seconds:.1f} s\n{run.log()}")
    run = Run(workspace, config, disk, ["checkpoint.leave_seconds=2"])
    run.go_on_full()
    run.process.send_signal(signal.SIGTERM)
    run.end(74, r"no save has worked.*No space left")
    disk.free()
    run = Run(workspace, config, disk, [])
    run.go_on_full()
    run.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    disk.free()
    run.end(75, r"asked to leave; the state of step \d+ is saved")
    print("a disk that stays full: 74 after the limit, and soon for who asks to leave; freed meanwhile, 75 and saved")


def run_dir_alone(workspace, config, disk):
    """Checkpoints are elsewhere: training and saves continue, and lines of metrics are lost, which is said once and counted. A start on the full disk
    continues from the newest step, or says what is full."""
    directory, saved, log = os.path.join(disk.path, "run"), workspace.directory("saved"), workspace.directory("log")
    words = [config, f"run.dir={directory}", f"checkpoint.dir={saved}"]
    with open(log, "w", encoding="utf-8") as out, subprocess.Popen([workspace.perdure, "train", *words], env=dict(os.environ, PERDURE_PROGRESS="off"),
                                                                    stdout=out, stderr=out) as run:
        harness.wait_for(lambda: harness.steps_done(directory) >= 5 or run.poll() is not None, "five steps")
        disk.fill(0)
        harness.wait_for(lambda: "are lost: " in harness.read(log) or run.poll() is not None, "it is said")
        full = harness.steps_done(directory)
        before = set(os.listdir(saved))
        harness.wait_for(lambda: set(os.listdir(saved)) - before or run.poll() is not None, "a save continues")
        disk.free()
        harness.wait_for(lambda: harness.steps_done(directory) > full + 2 or run.poll() is not None, "metrics continue")
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=harness.PATIENCE)
    said = harness.read(log)
    rows = [json.loads(line)["step"] for line in harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()]
    gone = re.findall(r"metrics.jsonl is written again from step \d+ on; (\d+) lines? lost", said)
    if run.returncode != 75 or said.count("are lost: ") != len(gone) or rows[-1] - len(rows) != sum(map(int, gone)) or "restart 1" in said:
        raise harness.Failure(f"run.dir is full: exit {run.returncode}, {len(rows)} rows up to step {rows[-1]}, {gone} are said to be lost\n{said}")
    disk.fill(0)
    result = workspace.command(["train", *words, f"run.steps={rows[-1] + 2}"])
    if result.returncode not in (0, 74) or (result.returncode and "No space left" not in result.stderr):
        raise harness.Failure(f"a start with a full run.dir: exit {result.returncode}\n{result.stderr}")
    disk.free()
    workspace.train(config, directory, [f"checkpoint.dir={saved}", f"run.steps={rows[-1] + 4}"])
    harness.losses(directory)
    print(f"run.dir alone is full: {sum(map(int, gone))} lines of metrics lost and counted, no step; a start on it ends with {result.returncode}")


def body(workspace, arguments):
    if os.geteuid() != 0:
        print("skipped: a file system of its own needs root")
        sys.exit(77)
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(50000)), transport=arguments[0]))
    for overrides, what in (([], "state in memory"), (FILES, "state in files")):
        with harness.Disk(workspace, 160) as disk:
            if not disk.is_mounted:
                print("skipped: mounting is refused here")
                sys.exit(77)
            passes(workspace, config, disk, overrides, what)
    with harness.Disk(workspace, 160) as disk:
        passes_at_the_end(workspace, config, disk)
        stays(workspace, config, disk)
    with harness.Disk(workspace, 160) as disk:
        run_dir_alone(workspace, config, disk)


harness.main(body)
