#!/usr/bin/env python3
"""Budgets of placements in files: the same bits whatever they are, across kills, and fewer bytes read the larger they are.

Bytes are what the kernel says the worker has asked for (rchar), with threads in place of io_uring, which it does not count."""
import os
import signal
import subprocess
import time

import harness

STEPS = 12
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: 6, hidden: 128, heads: 4, kv_heads: 4, head_size: 32, ffn: 512}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 1, context: 32}}
optimizer: {{lr: 0.01, warmup_steps: 1, decay_steps: {steps}}}
checkpoint: {{every: 3, keep_last: 2}}
layout: {{ranks: 1, threads: 1, transport: local}}
"""
NARROW = {"128, heads: 4, kv_heads: 4, head_size: 32, ffn: 512": "72, heads: 6, kv_heads: 6, head_size: 12, ffn: 240"}
PLACES = ("optimizer", "parameters", "gradients", "activations")
BUDGETS = {"none": {}, "some": dict(zip(PLACES, ("5M", "1M", "1500k", "300k"))), "all": dict.fromkeys(PLACES, "1G")}


def overrides_of(name):
    return [f"offload.{place}=nvme" for place in PLACES] + ["offload.buffer_bytes=8M"] + [
        f"offload.{place}_budget={size}" for place, size in BUDGETS[name].items()]


def start(workspace, config, directory, name, **more):
    environment = dict(os.environ, PERDURE_PROGRESS="off", PERDURE_IO="threads", **more)
    with open(directory + ".log", "a", encoding="utf-8") as log:
        return subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides_of(name)], stdout=log,
                                stderr=log, env=environment, start_new_session=True)


def whole_run(workspace, config, directory, name):
    """Bytes that the worker had read when it was about to end."""
    read = []

    def look(pid):
        rows = harness.read(f"/proc/{pid}/io").splitlines()
        read.append(int(dict(row.split(": ") for row in rows)["rchar"]))

    process = start(workspace, config, directory, name, PERDURE_FAULT="worker.ended:1:stop")
    harness.look_at_stops(process, look)
    if process.returncode != 0:
        raise harness.Failure(f"budgets {name}: exit {process.returncode}\n{harness.read(directory + '.log')}")
    return read[0]


def killed_run(workspace, config, directory, name, step):
    process = start(workspace, config, directory, name)
    while process.poll() is None and harness.steps_done(directory) < step:
        time.sleep(0.01)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    harness.wait_until_gone(directory)


def over_ranks(workspace, text):
    """Three matrices of a block are large enough for files, so one of four ranks has none of them there, whatever the budget."""
    for wide, narrow in NARROW.items():
        text = text.replace(wide, narrow)
    config, alone = workspace.file("narrow.yaml", text), workspace.directory("alone")
    overrides = ["run.steps=3", "checkpoint.every=3"]
    workspace.train(config, alone, overrides)
    expected = harness.losses(alone), workspace.state_digest(alone)
    for name in BUDGETS:
        directory = workspace.directory(name)
        workspace.train(config, directory, [*overrides, *overrides_of(name), "layout.ranks=4", "layout.dp=4"])
        if (harness.losses(directory), workspace.state_digest(directory)) != expected:
            raise harness.Failure(f"budgets {name}, four ranks: other bits")


def body(workspace, _arguments):
    data = workspace.file("text.txt", harness.text_of(40000))
    text = CONFIG.format(steps=STEPS, data=data)
    config = workspace.file("run.yaml", text)
    plain = workspace.directory("plain")
    workspace.train(config, plain)
    expected, read = (harness.losses(plain), workspace.state_digest(plain)), {}
    for name in BUDGETS:
        directory = workspace.directory(name)
        read[name] = whole_run(workspace, config, directory, name)
        if (harness.losses(directory), workspace.state_digest(directory)) != expected:
            raise harness.Failure(f"budgets {name}: other bits")
    print("read: " + ", ".join(f"{name} {count / 1e6:.0f} MB" for name, count in read.items()))
    if not read["all"] < read["some"] < 0.9 * read["none"] or read["all"] > read["none"] / 3:
        raise harness.Failure("larger budgets do not read less")
    mixed = workspace.directory("mixed")
    for name, step in (("some", 4), ("all", 7), ("none", 10)):
        killed_run(workspace, config, mixed, name, step)
    whole_run(workspace, config, mixed, "some")
    if (harness.losses(mixed), workspace.state_digest(mixed)) != expected:
        raise harness.Failure("killed and resumed under other budgets: other bits")
    over_ranks(workspace, text)
    print("the same bits under every budget and over four ranks, and killed and resumed under others each time")


harness.main(body)
