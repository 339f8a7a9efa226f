#!/usr/bin/env python3
"""A rank that is stopped from outside (SIGSTOP) while it computes, exchanges, reads data or waits for a save is named, with where it is,
ended, and the run continues with the bits of a quiet one. A launch whose ranks are all stopped is suspended, and nobody is ended.

By default in an exchange and while it computes; with PERDURE_TEST_SCALE of 4 or more in all places, three times each, at random moments
before the first step, and once each with the default restart.hang_seconds."""
import os
import random
import re
import signal
import struct
import subprocess
import time

import harness

CONFIG = """
run: {{seed: 3, steps: 100000}}
model: {{family: llama, vocab: 256, context: 128, layers: 4, hidden: 96, heads: 4, kv_heads: 4, head_size: 24, ffn: 256}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 6, micro_batch: 1, context: 128}}
optimizer: {{warmup_steps: 10, decay_steps: 100000}}
checkpoint: {{every: {every}}}
layout: {{ranks: 3, transport: mpi, threads: 1}}
restart: {{hang_seconds: 5}}
"""
PLACES = {"computing": 1, "reading data": 2, "waiting for a save": 3}


def heartbeat(pid):
    """Its place, exchanges under way and step (ckpt/base/heartbeat.h)."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        if "perdure-heartbeat" in os.readlink(f"/proc/{pid}/fd/{name}"):
            with open(f"/proc/{pid}/fd/{name}", "rb") as f:
                words = struct.unpack("<QQQIIIIII", f.read(48))
                return words[5], words[6], words[1]
    return 0, 0, 0


def workers(launcher, everywhere=False):
    """Ranks below it; everywhere: all of this machine."""
    seen = harness.processes()

    def is_below(pid):
        while pid in seen:
            pid = seen[pid][1]
            if pid == launcher.pid:
                return True
        return False

    found = []
    for pid in seen if everywhere else filter(is_below, seen):
        try:
            if "\0worker\0" in harness.read(f"/proc/{pid}/cmdline") and "mpirun" not in harness.read(f"/proc/{pid}/comm"):
                found.append(pid)
        except OSError:
            pass
    return sorted(found)


def stop_at(find, where):
    """One of the ranks that are found, in the place."""
    def is_there(pid):
        place, exchanges, step = heartbeat(pid)
        return step >= 4 and (exchanges > 0 if where == "in exchange" else place == PLACES[where] and not exchanges)

    deadline = time.monotonic() + harness.PATIENCE
    while time.monotonic() < deadline:
        for pid in find():
            try:
                for _ in range(20000):
                    if is_there(pid):
                        break
                os.kill(pid, signal.SIGSTOP)
                harness.wait_for(lambda: harness.processes().get(pid, ("T",))[0] == "T", "it stops")
                if is_there(pid):
                    return pid
                os.kill(pid, signal.SIGCONT)
            except OSError:
                pass
    raise harness.Failure(f"no rank was ever {where}")


def stop_early(launcher, chooser):
    """One of the ranks, at a moment of the start."""
    harness.wait_for(lambda: len(workers(launcher)) == 3 or launcher.poll() is not None, "ranks")
    pid = chooser.choice(workers(launcher))
    time.sleep(chooser.choice([0, 0.01, 0.1, 0.5]) * chooser.random())
    os.kill(pid, signal.SIGSTOP)
    return pid


def hang(workspace, config, known, where, overrides=(), chooser=None):
    directory = workspace.directory()
    log = os.path.join(workspace.path, "log")
    with open(log, "w", encoding="utf-8") as out, subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides],
                                                                    env=dict(os.environ, PERDURE_PROGRESS="off"), stderr=out) as run:
        if not chooser:
            harness.wait_for(lambda: harness.steps_done(directory) >= 4 or run.poll() is not None, "four steps")
        pid = stop_early(run, chooser) if chooser else stop_at(lambda: workers(run), where)
        began = time.monotonic()
        harness.wait_for(lambda: "restart 1:" in harness.read(log) or run.poll() is not None, "a restart")
        took = time.monotonic() - began
        done = harness.steps_done(directory)
        harness.wait_for(lambda: harness.steps_done(directory) > done + 2 or run.poll() is not None, "steps of the restart")
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=harness.PATIENCE)
    said = re.search(rf"rank \d \(process {pid}\) holds up the run: .*stopped \(SIGSTOP\), at (step \d+, micro-batch \d, |opening|its beginning).*: ending it", harness.read(log))
    if run.returncode != 75 or not said or where not in said[0] or harness.read(log).count(" holds up the run: ") != 1:
        raise harness.Failure(f"{where}: exit {run.returncode}, said {said and said[0]}\n{harness.read(log)}")
    losses = harness.losses(directory)
    if any(losses[step] != bits for step, bits in known.items() if step in losses):
        raise harness.Failure("other bits after a hang")
    print(f"named {took:.1f} s after it stopped: {said[0]}", flush=True)


def stopped_for_a_while(workspace, config, known):
    """For about as long as the limit is: it may be ended or not, but nobody is lost for good. Nor is one that is stopped for longer, and ended."""
    directory = workspace.directory()
    log = os.path.join(workspace.path, "log")
    with open(log, "w", encoding="utf-8") as out, subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}"],
                                                                    env=dict(os.environ, PERDURE_PROGRESS="off"), stderr=out) as run:
        for number, seconds in enumerate((8, 5.06, 5.06)):
            done = harness.steps_done(directory)
            harness.wait_for(lambda done=done: harness.steps_done(directory) >= done + 6 or run.poll() is not None, "six steps")
            ranks = workers(run)
            if len(ranks) != 3:
                raise harness.Failure(f"ranks {ranks} after six steps, exit {run.poll()}\n{harness.read(log)}")
            pid = ranks[number % 2]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        done = harness.steps_done(directory)
        harness.wait_for(lambda: harness.steps_done(directory) > done + 6 or run.poll() is not None, "steps after that")
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=harness.PATIENCE)
    starts = re.findall(r"launch: (?:starting|restart \d+:) (\d+) ranks", harness.read(log))
    losses = harness.losses(directory)
    if run.returncode != 75 or set(starts) != {"3"} or len(starts) < 2 or any(losses[step] != bits for step, bits in known.items() if step in losses):
        raise harness.Failure(f"stopped for 5.06 s: exit {run.returncode}, starts with {starts} ranks, or other bits\n{harness.read(log)}")
    print(f"ranks stopped for 8, 5.06 and 5.06 s, where a hang takes 5 s: 3 ranks in every start ({len(starts)})", flush=True)


def suspended(workspace, config):
    directory = workspace.directory()
    with subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", "restart.hang_seconds=0.5", "restart.limit=0"],
                          env=dict(os.environ, PERDURE_PROGRESS="off"), stderr=subprocess.PIPE, text=True) as run:
        harness.wait_for(lambda: harness.steps_done(directory) >= 4 or run.poll() is not None, "four steps")
        ranks = workers(run)
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        done = harness.steps_done(directory)
        harness.wait_for(lambda: harness.steps_done(directory) > done + 2 or run.poll() is not None, "steps after that")
        run.send_signal(signal.SIGTERM)
        log = run.communicate(timeout=harness.PATIENCE)[1]
    if run.returncode != 75 or "holds up" in log:
        raise harness.Failure(f"ranks that were all stopped for three seconds: exit {run.returncode}\n{log}")


def body(workspace, _):
    data = workspace.file("text.txt", harness.text_of(40000))
    quiet = workspace.directory("quiet")
    configs = {every: workspace.file(f"run-{every}.yaml", CONFIG.format(data=data, every=every)) for every in (1, 4)}
    workspace.train(configs[4], quiet, ["layout.ranks=1", "layout.transport=local", "run.steps=30"])
    known = harness.losses(quiet)
    is_long = harness.scale() >= 4
    for where in ["in exchange", "computing", *(["reading data", "waiting for a save"] if is_long else [])] * (3 if is_long else 1):
        hang(workspace, configs[1 if where == "waiting for a save" else 4], known, where)
    stopped_for_a_while(workspace, configs[4], known)
    if is_long:
        seed = harness.seed()
        for _ in range(12):
            hang(workspace, configs[4], known, "", chooser=random.Random(seed := seed + 1))
        for where in ["in exchange", *PLACES]:
            hang(workspace, configs[1 if where == "waiting for a save" else 4], known, where, ["restart.hang_seconds=30"])
        suspended(workspace, configs[4])


if __name__ == "__main__":
    harness.main(body)
