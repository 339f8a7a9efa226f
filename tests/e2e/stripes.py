#!/usr/bin/env python3
"""State in files on several drives, killed at random, going on under other stripes.

A run with its optimizer state in files saves at every step. SIGKILL hits it at random moments, and every restart names other drives
or weights, or none; now and then a drive is away meanwhile. At the end loss bits and state are those of the undisturbed run; drives hold nothing that no checkpoint goes by.
14 launches by default, 150 with PERDURE_TEST_SCALE of 10 or more. Argument: local or mpi.
"""
import os
import random
import shutil
import signal
import subprocess
import time

import harness

STEPS = 200
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: 3, hidden: 96, heads: 4, kv_heads: 2, head_size: 24, ffn: 300}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 64}}
validation: {{every: 0}}
layout: {{ranks: 2, threads: 1}}
offload: {{optimizer: nvme, buffer_bytes: 8M}}
checkpoint: {{every: 1, keep_last: 2}}
"""
STRIPES = [[], ["a"], ["a", "b"], ["b", "a"], ["b"]]


def overrides_of(chooser, directory, transport):
    drives = chooser.choice(STRIPES)
    names = ",".join(os.path.join(directory, f"drive-{name}") for name in drives)
    weights = ",".join(str(chooser.randint(1, 9)) for _ in range(len(drives) + 1))
    return [f"checkpoint.stripes=[{names}]", f"checkpoint.stripe_weights={weights if drives else ''}", f"layout.transport={transport}"]


def steps_in(root):
    return {name for name in os.listdir(root) if name.startswith("step-")} if os.path.isdir(root) else set()


class Away:
    """A drive that is not mounted for a while. In its place nothing is made, unless no checkpoint goes by it any more."""

    def __init__(self, directory, name):
        self.drive = os.path.join(directory, f"drive-{name}")
        self.is_away = name is not None and os.path.isdir(self.drive)
        self.holds = steps_in(self.drive)
        if self.is_away:
            os.rename(self.drive, self.drive + "-away")

    def back(self, kept_before):
        if not self.is_away:
            return
        if not os.path.exists(self.drive):
            os.rename(self.drive + "-away", self.drive)
            return
        if self.holds & kept_before:
            raise harness.Failure(f"{self.drive} was made anew, though {self.holds & kept_before} lie there")
        shutil.rmtree(self.drive + "-away")


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    data = workspace.file("text.txt", harness.text_of(40000))
    config = workspace.file("run.yaml", CONFIG.format(steps=STEPS, data=data))
    seed = int(os.environ.get("PERDURE_TEST_SEED", str(random.SystemRandom().randrange(2**31))))
    print(f"seed {seed} (PERDURE_TEST_SEED replays it)")
    chooser = random.Random(seed)
    plain = workspace.directory("undisturbed")
    begin = time.monotonic()
    workspace.train(config, plain, [f"layout.transport={transport}"])
    whole = time.monotonic() - begin
    directory = workspace.directory("killed")
    os.makedirs(directory)
    kills = 0
    for _ in range(150 if harness.scale() >= 10 else 14):
        overrides = overrides_of(chooser, directory, transport)
        away, kept = Away(directory, chooser.choice([None, None, "a", "b"])), steps_in(os.path.join(directory, "checkpoints"))
        with open(directory + ".log", "w", encoding="utf-8") as log:
            process = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides], stdout=log, stderr=log,
                                       env=dict(os.environ, PERDURE_PROGRESS="off"), start_new_session=True)
            try:
                process.wait(timeout=chooser.uniform(0.2, whole / 4))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
                harness.wait_until_gone(directory)
        away.back(kept)
        if process.returncode not in (0, -signal.SIGKILL) and not (away.is_away and process.returncode == 65):
            with open(directory + ".log", encoding="utf-8") as log:
                raise harness.Failure(f"{overrides}: ended by itself with {process.returncode}\n{log.read()}")
    drives = ["drive-a", "drive-b"]
    last = ",".join(os.path.join(directory, name) for name in drives)
    workspace.train(config, directory, [f"checkpoint.stripes={last}", "checkpoint.stripe_weights=3,2,1", f"layout.transport={transport}",
                                        f"run.steps={STEPS}"])
    expected = harness.losses(plain), workspace.state_digest(plain)
    if workspace.state_digest(directory) != expected[1]:
        raise harness.Failure(f"after {kills} kills: the final state differs")
    for step, bits in harness.losses(directory).items():
        if expected[0].get(step) != bits:
            raise harness.Failure(f"after {kills} kills: step {step} has loss bits {bits}, expected {expected[0].get(step)}")
    kept = steps_in(os.path.join(directory, "checkpoints"))
    for name in drives:
        if not steps_in(os.path.join(directory, name)) <= kept:
            raise harness.Failure(f"{name} holds {steps_in(os.path.join(directory, name))}, kept are {kept}")
    result = workspace.command(["ckpt", "verify", os.path.join(directory, "checkpoints")])
    if result.returncode != 0:
        raise harness.Failure(f"verify: {result.stdout}{result.stderr}")
    print(f"{kills} kills under changing stripes: same bits")


harness.main(body)
