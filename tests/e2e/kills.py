#!/usr/bin/env python3
"""SIGKILL at random moments of a run that checkpoints every step.

Everything of the launch dies at once (launcher and ranks, one process group), at a moment drawn from the launch's own progress, so
that a busy machine draws the same: some part of the time that starting takes, or, mostly, a part of a step after a number of further
steps, early ones more often; the last are beyond the end, where copies drain. One that ends before is not a kill. The same command then continues. Every restart must load the last
committed step (never an older one, never fail), and at the end loss bits and state equal those of the undisturbed run. A second
campaign continues under another layout after every kill. A third has all of offload and tiers at once, drawn anew for every launch: places
of state and what memory keeps of it, bf16 or fp16, a first tier in memory where there is room, over one drive or two, emptied now and
then as by a reboot, a second one with or without a cap, a third that compresses by one level, by what pays, or not. 6, 6 and 8 kills by default (4, 4 and 6 of
ranks that are processes); 200, 120 and 500 with PERDURE_TEST_SCALE of 10 or more. A campaign and a number after the transport, such
as `local offloaded 50`, runs that many kills of that one: rounds of a large campaign, each under a seed of its own. Copies on other
hosts: peers.py.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter

import harness

STEPS = 40
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 32, layers: 3, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 32}}
validation: {{every: 0}}
numerics: {{virtual_tp: {virtual}, virtual_sp: {virtual}}}
checkpoint: {{every: 1, keep_last: 2}}
"""
# ranks, then the layout; zero_stage and zero_shard ride along
SAME = [(2, "dp=2")]
MOVING = [(2, "tp=2"), (4, "dp=2,tp=2,zero_stage=1"), (3, "pp=3"), (2, "sp=2"), (4, "sp=2,pp=2,zero_stage=2"), (1, "zero_stage=0"),
          (4, "dp=4,zero_shard=2"), (4, "tp=2,sp=2"), (3, "dp=3"), (4, "pp=2,tp=2,recompute=full")]
# everything on the drive, parts of it, nothing; what is saved by one is loaded by another
OFFLOADED = [(ranks, f"{layout},{places}")
             for ranks, layout in ((1, "dp=1"), (2, "dp=2"), (3, "dp=3,order=breadth_first"), (2, "tp=2"))
             for places in ("offload.optimizer=nvme,offload.parameters=nvme,offload.gradients=nvme,offload.activations=nvme",
                            "offload.optimizer=nvme,offload.activations=nvme", "offload.optimizer=nvme,offload.gradients=nvme",
                            "offload.optimizer=device")]
RECORDED = re.compile(r"step-(\d{12})-\d+(\.tmp)?$")


def fast_of(directory):
    """The first tier of the third campaign: in memory where that is writable."""
    if os.access("/dev/shm", os.W_OK):
        return "/dev/shm/" + directory.strip("/").replace("/", "-")
    return os.path.join(directory, "fast")


def committed(directory):
    """Steps a restart may take: the highest sealed one, or a higher one whose record was written and whose directory was about
    to get its final name. Looked at while nobody runs."""
    sealed, recorded = 0, []
    for root in (os.path.join(directory, "checkpoints"), os.path.join(directory, "far"), fast_of(directory)):
        for name in os.listdir(root) if os.path.isdir(root) else []:
            match = RECORDED.match(name)
            if not match or not os.path.exists(os.path.join(root, name, "commit.h5")):
                continue
            recorded.append(int(match.group(1)))
            if not match.group(2):
                sealed = max(sealed, recorded[-1])
    return {sealed, *(step for step in recorded if step > sealed)}


def launch(workspace, config, directory, overrides):
    env = dict(os.environ, PERDURE_PROGRESS="off")
    log = open(directory + ".log", "a", encoding="utf-8")  # pylint: disable=consider-using-with
    process = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides], env=env, stdout=log,
                               stderr=log, start_new_session=True)
    log.close()
    return process


def kill_everything(process):
    """The launcher's session and whatever its ranks made of theirs: workers die with their launcher."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def resumed_step(log):
    found = re.findall(r"resumed at step (\d+)", log)
    return int(found[-1]) if found else 0


def wait_for_moment(process, directory, chooser, pace):
    """Returns at the moment to kill at, or when the launch has ended. What starting and a step take is learned on the way."""
    start, before = time.monotonic(), harness.steps_done(directory)
    first = None
    wanted = 1 + int(1.2 * STEPS * chooser.random() ** 2)
    early, part = chooser.random() < 0.3, chooser.random()
    if early:
        wait_for_end(process, 2.0 * part * pace["start"])
        return
    while process.poll() is None:
        done, now = harness.steps_done(directory) - before, time.monotonic()
        if done and first is None:
            first, pace["start"] = now, now - start
        if done > 1:
            pace["step"] = (now - first) / (done - 1)
        if done and done >= min(wanted, STEPS - resumed_step(harness.read(directory + ".log"))):
            break
        time.sleep(0.003)
    wait_for_end(process, part * pace["step"] * (2.0 if wanted < STEPS else 10.0))


def wait_for_end(process, seconds):
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        pass


def overrides_of(layout, transport):
    ranks, keys = layout
    return [f"layout.ranks={ranks}", f"layout.transport={transport}", "layout.threads=1",
            *(key if key.startswith("offload.") else f"layout.{key}" for key in keys.split(","))]


def one_tier(_directory, _layout, _chooser):
    return [], []


def three_tiers(directory, layout, chooser):
    """Overrides, and what is worth counting about them."""
    out, words = [], []
    tiers = [(fast_of(directory), 1), (f"{directory}/checkpoints", 3), (f"{directory}/far", 5)]
    for i, (path, every) in enumerate(tiers):
        out += [f"checkpoint.tiers[{i}].dir={path}", f"checkpoint.tiers[{i}].every={every}"]
    if chooser.random() < 0.5:
        out.append("checkpoint.tiers[1].bandwidth=32M")
        words.append("cap")
    words.append(chooser.choice(["none", "zstd:1", "zstd:3"]))
    out.append(f"checkpoint.tiers[2].compression={words[-1]}")
    kept = [what for what in ("optimizer", "parameters", "gradients", "activations") if f"offload.{what}=nvme" in layout[1]]
    if kept and chooser.random() < 0.3:
        out += [f"offload.{what}_budget={chooser.choice(['200K', '1M'])}" for what in kept]
        words.append("budgets")
    if "offload.optimizer=nvme" in layout[1]:
        words.append("files")
    return out, words


def lose_memory(directory):
    """As a reboot does."""
    shutil.rmtree(fast_of(directory), ignore_errors=True)


def undisturbed(workspace, config, layout, transport):
    """Loss bits and state."""
    directory = workspace.directory("undisturbed")
    workspace.train(config, directory, overrides_of(layout, transport))
    return harness.losses(directory), workspace.state_digest(directory)


def campaign(workspace, configs, transport, layouts, kills, chooser, tiers):  # pylint: disable=too-many-locals
    plain = {config: undisturbed(workspace, config, layouts[0], transport) for config in configs}
    done = training = resumed = 0
    seen, pace = Counter(), {"start": 0.5, "step": 0.1}
    while done < kills:
        directory = workspace.directory("killed")
        os.makedirs(directory)
        config = configs[workspace.count % len(configs)]
        expected = plain[config]
        while done < kills:
            if tiers is not one_tier and chooser.random() < 0.15:
                lose_memory(directory)
                seen["memory emptied"] += 1
            before = committed(directory)
            layout = chooser.choice(layouts)
            more, words = tiers(directory, layout, chooser)
            process = launch(workspace, config, directory, overrides_of(layout, transport) + more)
            wait_for_moment(process, directory, chooser, pace)
            if process.poll() is None:
                kill_everything(process)
            harness.wait_until_gone(directory)
            log = harness.read(directory + ".log")
            os.unlink(directory + ".log")
            if "resumed at step" in log or "fresh start" in log:
                training += process.returncode != 0
                resumed += resumed_step(log) > 0
                if resumed_step(log) not in before:
                    raise harness.Failure(f"kill {done}: {layout} resumed at step {resumed_step(log)}, committed is {before}\n{log}")
            if process.returncode == 0:
                break
            done += 1
            seen.update([*words, os.path.basename(config)])
            if process.returncode != -signal.SIGKILL:
                raise harness.Failure(f"kill {done}: {layout} {more} ended by itself with {process.returncode}\n{log}")
        layout = chooser.choice(layouts)
        workspace.train(config, directory, overrides_of(layout, transport) + tiers(directory, layout, chooser)[0])
        lose_memory(directory)
        for place in ["checkpoints"] if tiers is one_tier else ["checkpoints", "far"]:
            if workspace.state_digest(directory, place) != expected[1]:
                raise harness.Failure(f"after {done} kills: the final state in {place} differs")
        for step, bits in harness.losses(directory).items():
            if expected[0].get(step) != bits:
                raise harness.Failure(f"after {done} kills: step {step} has loss bits {bits}, expected {expected[0].get(step)}")
    print(f"{kills} kills over {transport} ranks, {training} of them while training, {len(layouts)} layouts: {resumed} restarts from a "
          "checkpoint, each from the last committed step, same bits; kills by what was on: "
          + ", ".join(f"{word} {count}" for word, count in sorted(seen.items())), flush=True)


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    data = workspace.file("text.txt", harness.text_of(50000))
    config = workspace.file("bf16", CONFIG.format(steps=STEPS, data=data, virtual=1))
    cut = workspace.file("bf16-cut", CONFIG.format(steps=STEPS, data=data, virtual=2))
    half = workspace.file("fp16-cut", harness.read(cut).replace("numerics: {", "numerics: {precision: fp16, "))
    seed = harness.seed()
    counts = (200, 120, 500) if harness.scale() >= 10 else (6, 6, 8) if transport == "local" else (4, 4, 6)
    campaigns = {"same": ([config], SAME, counts[0], one_tier), "moving": ([cut], MOVING, counts[1], one_tier),
                 "offloaded": ([cut, half], OFFLOADED, counts[2], three_tiers)}
    only = arguments[1] if len(arguments) > 1 else None
    for name, (configs, layouts, kills, tiers) in campaigns.items():
        if only in (None, name):
            campaign(workspace, configs, transport, layouts, int(arguments[2]) if only else kills, random.Random(seed), tiers)


harness.main(body)
