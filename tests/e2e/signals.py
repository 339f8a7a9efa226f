#!/usr/bin/env python3
"""TERM, USR1, USR2 and a second INT at random moments of runs that spend their time in one of eight phases: initialisation, data, forward,
evaluation, communication, save, drain (the last copy to a slow tier), loader (packed tokens). After TERM and USR1 the run has
ended with 75 within PERDURE_GRACE_S, and the step that it says it has saved is the newest whole checkpoint; after USR2 a newer checkpoint
appears and the run continues; a second INT ends it with 75.

A signal a phase by default, 400 with PERDURE_TEST_SCALE of 10 or more; prints the seconds of leaving (median, 99th percentile, longest).
    signals.py PERDURE [COUNT [quickstart]]    with the model and the batch of tools/configs/kjv.yaml
"""
import json
import os
import random
import re
import signal
import subprocess
import time

import harness

GRACE = 25
CONFIG = """
run: {{seed: 3, steps: 1000000}}
{shape}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
optimizer: {{decay_steps: 100, warmup_steps: 1}}
checkpoint: {{every: 0}}
layout: {{ranks: 2, transport: local, threads: 1}}
"""
SMALL = """model: {family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}
batch: {sequences: 8, micro_batch: 2, context: 64}"""
QUICKSTART = """model: {preset: byte-1m}
batch: {sequences: 16, micro_batch: 2, context: 256}"""
EVERYWHERE = ["checkpoint.every=1"]
PHASES = {"initialisation": [], "data": ["batch.sequences=64", "model.layers=1"], "forward": ["model.hidden=128", "model.ffn=512"],
          "evaluation": ["validation.every=1", "validation.sequences=64"], "communication": ["layout.transport=mpi"],
          "save": EVERYWHERE, "drain": ["checkpoint.tiers[0].dir={run}/near", "checkpoint.tiers[0].every=1", "checkpoint.tiers[1].dir={run}/far",
                                        "checkpoint.tiers[1].every=1", "checkpoint.tiers[1].bandwidth=1M"], "loader": ["data.train=[{packed}]"]}
SIGNALS = ("TERM", "USR1", "USR2", "INT")


def saved_steps(workspace, run):
    """Of whole checkpoints in any tier."""
    found = set()
    for place in ("checkpoints", "near", "far"):
        result = workspace.command(["ckpt", "ls", os.path.join(run, place), "--json"])
        if result.returncode == 0:
            found |= {row["step"] for row in json.loads(result.stdout)}
    return found


def leave(process, numbers):
    """What it said, and how long it took."""
    begin = time.monotonic()
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.01 if len(numbers) > 1 else 0)
    said = process.communicate(timeout=harness.PATIENCE)[1]
    return said, time.monotonic() - begin


def check(is_true, what, said):
    if not is_true:
        raise harness.Failure(f"{what}\n{said}")


def one(workspace, config, packed, phase, name, dice, pace):
    run, number = workspace.directory(phase), getattr(signal, f"SIG{name}")
    words = [word.format(run=run, packed=packed) for word in PHASES[phase]]
    what = f"{name} in {phase}"
    begin = time.monotonic()
    with subprocess.Popen([workspace.perdure, "train", config, f"run.dir={run}", *words], stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, PERDURE_PROGRESS="off", PERDURE_GRACE_S=str(GRACE))) as process:
        if phase == "initialisation":
            harness.wait_for_signals(process)
            time.sleep(dice.random() * pace.get("start", 0.5))
        else:
            harness.wait_for(lambda: harness.steps_done(run) > 2 or process.poll() is not None, "steps", 0.01)
            pace.setdefault("start", time.monotonic() - begin)
            time.sleep(dice.random() * (time.monotonic() - begin) / 10)
        if name == "USR2":
            process.send_signal(number)
            if phase != "initialisation":
                harness.wait_for(lambda: saved_steps(workspace, run) or process.poll() is not None, f"{what}: a checkpoint", 0.1)
            done = harness.steps_done(run)
            harness.wait_for(lambda: harness.steps_done(run) > done or process.poll() is not None, f"{what}: it continues")
            check(process.poll() is None, f"{what}: it has ended", "")
            number = signal.SIGTERM
        said, seconds = leave(process, [number] * (2 if name == "INT" else 1))
    check(process.returncode == 75, f"{what}: exit {process.returncode}", said)
    saved = re.findall(r"the state of step (\d+) is saved", said)
    check(saved or "nothing to save" in said or "left without saving" in said or (name == "INT" or phase == "initialisation"), f"{what}: not saved", said)
    if saved:
        found = saved_steps(workspace, run)
        check(found and max(found) == int(saved[-1]), f"{what}: step {saved[-1]} is said and {sorted(found)} are there", said)
    check(seconds < GRACE or harness.scale() < 10, f"{what}: {seconds:.1f} s", said)
    return seconds


def body(workspace, arguments):
    seed = harness.seed()
    dice, pace, seconds = random.Random(seed), {}, []
    text = harness.text_of(200000)
    is_quickstart = "quickstart" in arguments
    shape = QUICKSTART if is_quickstart else SMALL
    for phase in PHASES if is_quickstart else []:
        PHASES[phase] = [word.replace("bandwidth=1M", "bandwidth=4M") for word in PHASES[phase] if not word.startswith("model.")]
    config = workspace.file("run.yaml", CONFIG.format(shape=shape, data=workspace.file("text.txt", text)))
    packed = os.path.join(workspace.path, "text.bin")
    result = workspace.command(["data", "pack", f"--output={packed}", os.path.join(workspace.path, "text.txt")])
    check(result.returncode == 0, "data pack", result.stderr)
    count = int(arguments[0]) if arguments else 400 if harness.scale() >= 10 else len(PHASES)
    phases = list(PHASES)
    for i in range(count):
        phase, name = phases[i % len(phases)], SIGNALS[(i + i // len(phases)) % len(SIGNALS)]
        seconds.append(one(workspace, config, packed, phase, name, dice, pace))
    seconds.sort()
    print(f"{count} of {count} signals in {len(PHASES)} phases: exit 75; seconds of leaving: median {seconds[count // 2]:.2f}, "
          f"99th percentile {seconds[min(count - 1, int(0.99 * count))]:.2f}, longest {seconds[-1]:.2f}")


if __name__ == "__main__":
    harness.main(body)
