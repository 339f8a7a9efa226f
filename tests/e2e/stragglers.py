#!/usr/bin/env python3
"""A rank that is stopped for two thirds of the time, in heartbeats of some milliseconds, is named with what it is slow at, in log and metrics; one
that is left alone again is as fast as the others. Ranks that are all pulsed alike raise no alarm."""
import json
import os
import re
import signal
import subprocess
import threading
import time

import harness
from hangs import workers

WINDOW = 1.0
CONFIG = """
run: {{seed: 3, steps: 100000}}
model: {{family: llama, vocab: 256, context: 128, layers: 4, hidden: 96, heads: 4, kv_heads: 4, head_size: 24, ffn: 256}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 6, micro_batch: 1, context: 128}}
checkpoint: {{every: 0}}
layout: {{ranks: 3, transport: mpi, threads: 1}}
restart: {{straggler_seconds: {window}}}
"""


class Pulses:
    """Stops the processes for 40 of every 60 milliseconds."""

    def __init__(self, pids):
        self.pids, self.is_over = pids, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.is_over.is_set():
            for number, seconds in ((signal.SIGSTOP, 0.04), (signal.SIGCONT, 0.02)):
                for pid in self.pids:
                    os.kill(pid, number)
                time.sleep(seconds)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *exc):
        self.is_over.set()
        self.thread.join()


class Run:
    def __init__(self, workspace, config):
        self.directory, self.log = workspace.directory(), os.path.join(workspace.path, "log")
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={self.directory}"],
                                            env=dict(os.environ, PERDURE_PROGRESS="off"), stderr=out)
        self.wait(lambda: harness.steps_done(self.directory) >= 4, "four steps")

    def wait(self, condition, what):
        def look():
            if self.process.poll() is not None:
                raise harness.Failure(f"the launch ended with {self.process.returncode} before: {what}\n{harness.read(self.log)}")
            return condition()
        harness.wait_for(look, what)

    def rank_of(self, pid):
        environment = harness.read(f"/proc/{pid}/environ")
        return int(re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", environment)[1])

    def lines(self):
        return [json.loads(line) for line in harness.read(os.path.join(self.directory, "metrics.jsonl")).split("\n")[:-1]]

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=harness.PATIENCE)


def one_is_slow(workspace, config):
    run = Run(workspace, config)
    pid = workers(run.process)[-1]
    rank = run.rank_of(pid)
    said = rf"rank {rank} \(host \S+\) is slow: \d+% of the median speed .*, by computing, "
    with Pulses([pid]):
        run.wait(lambda: re.search(said, harness.read(run.log)), "the rank is named")
    named = [line["stragglers"] for line in run.lines() if "stragglers" in line]
    run.wait(lambda: f"rank {rank} (host" in harness.read(run.log).split("is slow:")[-1], "it is as fast as the others again")
    run.leave()
    others = re.findall(r"rank (\d) \(host \S+\) is slow", harness.read(run.log))
    if others != [str(rank)] or not named or named[0][0]["rank"] != rank or named[0][0]["at"] != "computing" or not named[0][0]["speed"] < 0.75:
        raise harness.Failure(f"rank {rank} was slowed, named in the log: {others}, in metrics: {named[:1]}\n{harness.read(run.log)}")
    print(re.search(said + ".*", harness.read(run.log))[0], flush=True)


def all_are_slow(workspace, config):
    run = Run(workspace, config)
    with Pulses(workers(run.process)):
        time.sleep(8 * WINDOW)
    run.leave()
    if " is slow" in harness.read(run.log) or any("stragglers" in line for line in run.lines()):
        raise harness.Failure(f"all ranks were slowed alike, and one was named\n{harness.read(run.log)}")


def body(workspace, _):
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000)), window=WINDOW))
    one_is_slow(workspace, config)
    all_are_slow(workspace, config)


if __name__ == "__main__":
    harness.main(body)
