#!/usr/bin/env python3
"""Saves continue while training does: what fails or dies in the background is everybody's business in the foreground.

- Saves that fail (files may not grow any more) are said each time, with the next try; when they have failed for checkpoint.give_up_minutes the run
  ends with 74, the checkpoint before them untouched; without the limit the same command continues to the same bits.
- A rank that dies inside the saver's thread, at each moment of the protocol, ends the launch like any lost rank: no hang, a
  restart from a committed step, the same bits.
- TERM saves the newest step, whatever is under way, and waits for it; USR2 saves and continues.

Argument: mpi adds the deaths, which need ranks that are processes.
"""
import json
import os
import re
import resource
import signal
import subprocess

import harness

STEPS = 12
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: 3, hidden: 96, heads: 4, kv_heads: 2, head_size: 24, ffn: 192}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 64}}
optimizer: {{warmup_steps: 2, decay_steps: {steps}}}
validation: {{every: 0}}
checkpoint: {{every: 1, keep_last: 2}}
layout: {{ranks: 2, threads: 1}}
"""
MOMENTS = ["store.begin.made@0", "store.prepare.written@1", "store.prepare.synced@0", "store.commit.recorded@0", "store.commit.done@1",
           "store.remove.hidden@0", "worker.saved@0", "worker.saved@1"]


def arguments_of(config, directory, overrides):
    return ["train", config, f"run.dir={directory}", *overrides]


def expect_same(workspace, directory, expected, what):
    have = harness.losses(directory), workspace.state_digest(directory)
    if have != expected:
        raise harness.Failure(f"{what}: {have}, expected {expected}")


def failing(workspace, config, expected):
    directory = workspace.directory("failing")
    local = ["layout.transport=local"]
    workspace.train(config, directory, [*local, "run.steps=4"])
    before = workspace.state_digest(directory)
    command = [workspace.perdure, *arguments_of(config, directory, [*local, "checkpoint.give_up_minutes=0.2"])]
    with open(directory + ".log", "w+", encoding="utf-8") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT="worker.stepped@0:1:stop"))
        worker = harness.wait_stopped(run)
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # from here on: a start would refuse it
        os.kill(worker, signal.SIGCONT)
        code, text = run.wait(timeout=harness.PATIENCE), harness.read(log.name)
    said = re.findall(r"step (\d+) is not saved, the newest checkpoint is of step 4; the next try is in \d s, [^:]*: checkpoint .*"
                      r"File too large \(ulimit -f shows the limit\)\n", text)
    last = "no save since step 4 has worked; fix this, and the same command continues from there: saving step "
    if code != 74 or said[:1] != ["5"] or len(said) < 2 or last not in text:
        raise harness.Failure(f"saves that fail: exit {code}, said of {said}\n{text}")
    if "did not get step" in text:
        raise harness.Failure(f"a save of the only tier that fails is said twice\n{text}")
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    if rows[-1]["last_checkpoint"] != 4 or workspace.state_digest(directory) != before:
        raise harness.Failure(f"saves that fail: the checkpoint before them is not what it was: {rows[-1]}")
    workspace.train(config, directory, local)
    expect_same(workspace, directory, expected, "after saves that failed")


def dying(workspace, config, expected):
    for moment in MOMENTS:
        directory = workspace.directory("dying")
        environment = {"PERDURE_FAULT": f"{moment}:3:kill", "PERDURE_FAULT_ONCE": directory + ".fault"}
        workspace.train(config, directory, ["layout.transport=mpi", "restart.ranks=[2]"], environment)
        if not os.path.exists(directory + ".fault"):
            raise harness.Failure(f"nobody died at {moment}")
        expect_same(workspace, directory, expected, f"a rank died at {moment}")


def rows_of(directory):
    """Whole lines of a file that grows."""
    path = os.path.join(directory, "metrics.jsonl")
    lines = harness.read(path).split("\n")[:-1] if os.path.exists(path) else []
    return [json.loads(line) for line in lines]


def has_saved_and_gone_on(directory):
    saved = [row["last_checkpoint"] > 0 for row in rows_of(directory)]
    return sum(saved) >= 3


def signalled(workspace, config, transport, overrides, is_saved_before):
    """A run without an end: when some steps are done it is told to leave, perhaps to save and to continue before that."""
    directory = workspace.directory("signalled")
    command = arguments_of(config, directory, ["run.steps=100000", *overrides, f"layout.transport={transport}"])
    with subprocess.Popen([workspace.perdure, *command], env=dict(os.environ, PERDURE_PROGRESS="off"), stderr=subprocess.PIPE,
                          text=True) as process:
        try:
            harness.wait_for(lambda: len(rows_of(directory)) >= 3 or process.poll() is not None, "three steps")
            if is_saved_before:
                process.send_signal(signal.SIGUSR2)
                harness.wait_for(lambda: has_saved_and_gone_on(directory) or process.poll() is not None, "a save on demand")
            process.send_signal(signal.SIGTERM)
            log = process.communicate(timeout=harness.PATIENCE)[1]
        finally:
            process.kill()
    return directory, process.returncode, log


def leaving(workspace, config, transport):
    for every in (0, 1):
        directory, code, log = signalled(workspace, config, transport, [f"checkpoint.every={every}"], False)
        done = len(harness.losses(directory))
        shown = json.loads(workspace.command(["ckpt", "ls", directory, "--json"]).stdout)
        newest = max(entry["step"] for entry in shown)
        if code != 75 or newest != done:
            raise harness.Failure(f"TERM, every {every}: exit {code}, {done} steps are done and {newest} are saved\n{log}")


def saving_on_demand(workspace, config, transport):
    directory, code, log = signalled(workspace, config, transport, ["checkpoint.every=0"], True)
    saved = sorted({row["last_checkpoint"] for row in rows_of(directory)} - {0})
    if code != 75 or len(saved) != 1:
        raise harness.Failure(f"USR2: exit {code}, checkpoints of steps {saved} were seen on the way\n{log}")


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    config = workspace.file("run.yaml", CONFIG.format(steps=STEPS, data=workspace.file("text.txt", harness.text_of(50000))))
    undisturbed = workspace.directory("undisturbed")
    workspace.train(config, undisturbed, ["layout.transport=local"])
    expected = harness.losses(undisturbed), workspace.state_digest(undisturbed)
    if transport == "mpi":
        dying(workspace, config, expected)
    else:
        failing(workspace, config, expected)
    leaving(workspace, config, transport)
    saving_on_demand(workspace, config, transport)
    print(f"background saves over {transport} ranks: failures said, deaths survived, signals waited for")


harness.main(body)
