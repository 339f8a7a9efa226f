#!/usr/bin/env python3
"""Tiers of a run: memory and disk, killed at random, rebooted, too small, asked to leave.

A run saves into a directory in memory at every step and into two others now and then. SIGKILL hits all of its processes at random
moments, and after some of the kills memory is emptied, as a reboot does. Every restart takes the newest step that is whole in any
tier, and at the end loss bits and state are those of the undisturbed run. 10 kills by default, 150 with PERDURE_TEST_SCALE of 10
or more. What needs root (mounts, memory cgroups) is left out with its reason where we are not root.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

import harness

STEPS = 120
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 32, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 32}}
validation: {{every: 0}}
layout: {{ranks: 2, threads: 1}}
"""
RECORDED = re.compile(r"step-(\d{12})-\d+(\.tmp)?$")


def run_of(workspace, memory, name="run"):
    """A run directory and its overrides."""
    directory = workspace.directory(name)
    shm = os.path.join(memory, os.path.basename(directory))
    tiers = [shm, os.path.join(directory, "disk"), os.path.join(directory, "far")]
    return directory, tiers, tier_overrides([(tiers[0], 1, 2), (tiers[1], 4, 2), (tiers[2], 10, 3)])


def tier_overrides(rows):
    out = []
    for i, (path, every, keep) in enumerate(rows):
        out += [f"checkpoint.tiers[{i}].dir={path}", f"checkpoint.tiers[{i}].every={every}", f"checkpoint.tiers[{i}].keep_last={keep}"]
    return out


def steps_in(root):
    """Sealed steps, and higher ones whose record is written."""
    sealed, recorded = [0], []
    for name in os.listdir(root) if os.path.isdir(root) else []:
        match = RECORDED.match(name)
        if match and os.path.exists(os.path.join(root, name, "commit.h5")):
            (recorded if match.group(2) else sealed).append(int(match.group(1)))
    return max(sealed), set(recorded)


def may_resume(tiers):
    found = [steps_in(tier) for tier in tiers]
    newest = max(sealed for sealed, _ in found)
    return {newest, *(step for _, recorded in found for step in recorded if step > newest)}


def newest(directory):
    return max(int(step) for step in re.findall(r"step-0*(\d+)-\d+\s", " ".join(os.listdir(directory)) + " "))


def digest(workspace, directory):
    result = workspace.command(["ckpt", "stats", directory, "--json"])
    if result.returncode != 0:
        raise harness.Failure(f"ckpt stats {directory}: {result.stderr}")
    return json.loads(result.stdout)["state_digest"]


def start(workspace, config, directory, overrides, log):
    env = dict(os.environ, PERDURE_PROGRESS="off")
    with open(log, "w", encoding="utf-8") as f:
        return subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", *overrides], env=env, stdout=f, stderr=f,
                                start_new_session=True)


def kills(workspace, memory, config, transport, chooser, count):
    plain = workspace.directory("undisturbed")
    workspace.train(config, plain, [f"layout.transport={transport}"])
    directory, _, overrides = run_of(workspace, memory, "all-tiers")
    begin = time.monotonic()
    workspace.train(config, directory, [*overrides, f"layout.transport={transport}"])
    whole = time.monotonic() - begin
    expected = harness.losses(plain), workspace.state_digest(plain)
    if (harness.losses(directory), digest(workspace, directory)) != expected:
        raise harness.Failure("tiers change loss bits or state")
    done = resumed = reboots = 0
    while done < count:
        directory, tiers, overrides = run_of(workspace, memory, "killed")
        os.makedirs(directory)
        log = directory + ".log"
        while done < count:
            if chooser.random() < 0.3:
                shutil.rmtree(tiers[0], ignore_errors=True)
                reboots += 1
            before = may_resume(tiers)
            process = start(workspace, config, directory, [*overrides, f"layout.transport={transport}"], log)
            try:
                process.wait(timeout=chooser.uniform(0.0, whole))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            harness.wait_until_gone(directory)
            text = harness.read(log)
            found = re.findall(r"resumed at step (\d+)", text)
            if found or "fresh start" in text:
                step = int(found[-1]) if found else 0
                resumed += step > 0
                if step not in before:
                    raise harness.Failure(f"kill {done}: resumed at step {step}, the newest of any tier is {before}\n{text}")
            done += 1
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                raise harness.Failure(f"kill {done}: ended by itself with {process.returncode}\n{text}")
        workspace.train(config, directory, [*overrides, f"layout.transport={transport}"])
        if digest(workspace, directory) != expected[1]:
            raise harness.Failure(f"after {done} kills: the final state differs")
        for step, bits in harness.losses(directory).items():
            if expected[0].get(step) != bits:
                raise harness.Failure(f"after {done} kills: step {step} has loss bits {bits}, expected {expected[0].get(step)}")
        if {newest(tier) for tier in tiers} != {STEPS}:
            raise harness.Failure(f"not every tier got the last step: {[newest(tier) for tier in tiers]}")
    print(f"{count} kills over {transport} ranks with three tiers, memory emptied {reboots} times: {resumed} restarts from a checkpoint, "
          "each from the newest of any tier, same bits")


def leave(workspace, memory, config):
    """TERM: the last step outlives a reboot, though the disk was not due."""
    directory, tiers, _ = run_of(workspace, memory, "asked")
    os.makedirs(directory)
    overrides = [*tier_overrides([(tiers[0], 1, 2), (tiers[1], 0, 2)]), "run.steps=100000"]
    log = directory + ".log"
    process = start(workspace, config, directory, overrides, log)
    harness.wait_for(lambda: steps_in(tiers[0])[0] >= 5 or process.poll() is not None, "five steps in memory")
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=harness.PATIENCE)
    steps = [steps_in(tier)[0] for tier in tiers[:2]]
    if code != 75 or steps[0] != steps[1] or steps[0] < 5:
        raise harness.Failure(f"TERM: exit {code}, newest steps {steps}\n{harness.read(log)}")
    print(f"asked to leave: step {steps[0]} is on the disk too")


def too_small(workspace, memory, config):
    """A file system in memory that does not hold what it would have to: left out, or alone refused before the first step."""
    if os.geteuid() != 0:
        print("skipped: memory that is too small (mounting needs root)")
        return
    mount = os.path.join(memory, "small")
    os.makedirs(mount)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True, check=False).returncode:
        print("skipped: memory that is too small (mounting is refused here)")
        return
    try:
        directory, tiers, _ = run_of(workspace, memory, "small")
        result = workspace.train(config, directory, [*tier_overrides([(mount, 1, 2), (tiers[1], 10, 2)]), "run.steps=12"])
        for part in ["left out of saves", mount, "is in memory (tmpfs)", "lower its keep_last"]:
            if part not in result.stderr:
                raise harness.Failure(f"memory too small: \"{part}\" is not said\n{result.stderr}")
        if newest(tiers[1]) != 12 or any(name.startswith("step-") for name in os.listdir(mount)):
            raise harness.Failure("memory too small: steps are not where they belong")
        directory = workspace.directory("small-alone")
        result = workspace.train(config, directory, tier_overrides([(mount, 1, 2)]), expect=74)
        if os.path.exists(os.path.join(directory, "metrics.jsonl")) or "is in memory (tmpfs)" not in result.stderr:
            raise harness.Failure(f"memory too small and alone: not refused before the first step\n{result.stderr}")
        print("memory that is too small: left out beside a disk, refused alone")
    finally:
        subprocess.run(["umount", "-l", mount], check=False)


def tight_group(workspace, memory, config):
    """A memory cgroup that would be outgrown: tmpfs would not say so."""
    group = f"/sys/fs/cgroup/memory/perdure-tiers-{os.getpid()}"
    if os.geteuid() != 0 or not os.path.isdir("/sys/fs/cgroup/memory"):
        print("skipped: a tight memory cgroup (needs root and version 1 groups)")
        return
    try:
        os.mkdir(group)
        with open(f"{group}/memory.limit_in_bytes", "w", encoding="utf-8") as f:
            f.write(str(192 << 20))
    except OSError as error:
        print(f"skipped: a tight memory cgroup ({error})")
        return
    try:
        directory, tiers, _ = run_of(workspace, memory, "tight")
        command = [workspace.perdure, "train", config, f"run.dir={directory}", "layout.transport=local", "run.steps=6", "model.hidden=96",
                   *tier_overrides([(tiers[0], 1, 120), (tiers[1], 3, 2)])]
        env = dict(os.environ, PERDURE_PROGRESS="off")
        script = f"echo $$ > {group}/cgroup.procs && exec \"$@\""
        result = subprocess.run(["sh", "-c", script, "sh", *command], env=env, capture_output=True, text=True, timeout=harness.PATIENCE,
                                check=False)
        if result.returncode != 0 or "left out of saves" not in result.stderr or "memory cgroup" not in result.stderr:
            raise harness.Failure(f"tight memory cgroup: exit {result.returncode}\n{result.stderr}")
        if newest(tiers[1]) != 6:
            raise harness.Failure("tight memory cgroup: the disk has not the last step")
        print("a memory cgroup that would be outgrown: the tier in memory is left out, with the cause")
    finally:
        for _ in range(100):
            try:
                os.rmdir(group)
                break
            except OSError:
                time.sleep(0.05)


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    if not os.access("/dev/shm", os.W_OK):
        print("skipped: /dev/shm is not there to be written to")
        return
    data = workspace.file("text.txt", harness.text_of(50000))
    config = workspace.file("run.yaml", CONFIG.format(steps=STEPS, data=data))
    seed = harness.seed()
    memory = tempfile.mkdtemp(prefix="perdure-e2e-", dir="/dev/shm")
    try:
        kills(workspace, memory, config, transport, random.Random(seed), 150 if harness.scale() >= 10 else 10)
        leave(workspace, memory, config)
        too_small(workspace, memory, config)
        tight_group(workspace, memory, config)
    finally:
        shutil.rmtree(memory, ignore_errors=True)


harness.main(body)
