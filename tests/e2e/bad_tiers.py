#!/usr/bin/env python3
"""Tiers that are bad when a run starts, or while it continues: read-only, unreadable, absent, full; and damaged copies.

What can be read is read, what can be written is written, and where the newest checkpoint may be hidden the start is refused with
what to do. The tools take a whole copy where the newest one is damaged. What needs root (mounts) is left out with its reason where
we are not root.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile

import harness

CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 256, heads: 4, kv_heads: 4, head_size: 64, ffn: 256}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
optimizer: {{warmup_steps: 2, decay_steps: 12}}
validation: {{every: 0}}
layout: {{ranks: 2, threads: 1, transport: local}}
"""


def overrides_of(tiers, more=()):
    """Of (directory, interval)."""
    return [*(f"checkpoint.tiers[{i}].{key}={value}" for i, (path, every) in enumerate(tiers)
              for key, value in (("dir", path), ("every", every), ("keep_last", 2))), *more]


def newest(directory):
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return max([int(match.group(1)) for match in (re.fullmatch(r"step-0*(\d+)-\d+", name) for name in names) if match], default=0)


def expect(condition, what, text):
    if not condition:
        raise harness.Failure(f"{what}\n{text}")


def digest(workspace, path, code=0):
    result = workspace.command(["ckpt", "stats", path, "--json"])
    expect(result.returncode == code, f"ckpt stats {path}: exit {result.returncode}", result.stderr)
    return json.loads(result.stdout)["state_digest"] if code == 0 else None, result.stderr


def mount(*arguments):
    return os.geteuid() == 0 and subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def unmount(path):
    subprocess.run(["umount", "-l", path], capture_output=True, check=False)


def read_only(workspace, config, expected):
    """The newest step lies in a tier that can only be read: it is taken, other tiers are saved into, the exit code tells."""
    directory, disk = workspace.directory("read-only"), workspace.directory("disk")
    tiers = [(os.path.join(directory, "near"), 1), (os.path.join(disk, "far"), 4)]
    workspace.train(config, directory, overrides_of(tiers, ["run.steps=8"]))
    shutil.rmtree(tiers[0][0])
    if not mount("--bind", disk, disk) or not mount("-o", "remount,bind,ro", disk):
        unmount(disk)
        print("skipped: a tier that is mounted read-only (needs root and mounts)")
        return
    try:
        text = workspace.train(config, directory, overrides_of(tiers), expect=74).stderr
        expect(f"{tiers[1][0]} is used for reading only, until it can be written" in text and "resumed at step 8" in text, "not read", text)
        last = text.strip().splitlines()[-1]
        expect(f"{tiers[1][0]} did not get the last step, 12, which is safe in {tiers[0][0]}" in last and "Read-only" in last,
               "the last line names no tier, step and cause", text)
        text = workspace.train(config, workspace.directory("alone"), overrides_of(tiers[1:]), expect=74).stderr
        expect("mounted read-only" in text, "alone it is refused", text)
        offload = overrides_of([tiers[1], tiers[0]], ["offload.optimizer=nvme"])
        text = workspace.train(config, directory, offload, expect=74).stderr
        expect("offloaded state lies in the first of checkpoint.tiers" in text, "files need the first tier", text)
    finally:
        unmount(disk)
    workspace.train(config, directory, overrides_of(tiers))
    expect(newest(tiers[1][0]) == 12, "it did not get the last step when it could be written", "")
    expect(digest(workspace, directory)[0] == expected, "other state", "")
    print("a read-only tier: read, left out of saves, told by the exit code, caught up later")


def unreadable(workspace, config):
    """Nobody can tell what is in it: refused, until it is taken out of the list."""
    directory = workspace.directory("unreadable")
    tiers = [(os.path.join(directory, "near"), 1), (os.path.join(directory, "far"), 4)]
    workspace.train(config, directory, overrides_of(tiers, ["run.steps=4"]))
    os.rename(tiers[1][0], tiers[1][0] + "-away")
    os.symlink("far", tiers[1][0])
    text = workspace.train(config, directory, overrides_of(tiers), expect=74).stderr
    expect("may hold the newest checkpoint and cannot be read" in text and "taking it out of checkpoint.tiers" in text, "unclear", text)
    listed = workspace.command(["ckpt", "ls", directory])
    expect(listed.returncode == 74 and "step-000000000004-1" in listed.stdout and "cannot be read" in listed.stderr,
           f"ckpt ls: exit {listed.returncode}", listed.stdout + listed.stderr)
    _, said = digest(workspace, directory)
    expect(f"{tiers[1][0]} is a tier of this run and cannot be read" in said, "ckpt stats does not say what it cannot read", said)
    workspace.train(config, directory, overrides_of(tiers[:1], ["run.steps=6"]))
    print("an unreadable tier: refused with what to do; the tools look at the others")


def absent(workspace, config):
    """One that never held anything may be absent; one that did and cannot be made is refused; one that can be made begins empty."""
    directory = workspace.directory("absent")
    loop = os.path.join(workspace.path, "loop")
    os.symlink("loop", loop)
    near = (os.path.join(directory, "near"), 1)
    tiers = [near, (os.path.join(loop, "far"), 4)]
    for steps in (4, 6):
        text = workspace.train(config, directory, overrides_of(tiers, [f"run.steps={steps}"]), expect=74).stderr
        expect("does not exist and holds nothing of this run" in text and f"did not get the last step, {steps}" in text, "unclear", text)
    os.unlink(loop)
    text = workspace.train(config, directory, overrides_of(tiers, ["run.steps=8"])).stderr
    expect(newest(tiers[1][0]) == 8 and "error" not in text, "it is made and used", text)
    shutil.rmtree(loop)
    listed = workspace.command(["ckpt", "ls", directory])
    expect(listed.returncode == 0 and f"{tiers[1][0]} is a tier of this run and does not exist" in listed.stderr, "ckpt ls", listed.stderr)
    os.symlink("loop", loop)
    text = workspace.train(config, directory, overrides_of(tiers, ["run.steps=10"]), expect=74).stderr
    expect("may hold the newest checkpoint and cannot be read" in text, "it held checkpoints", text)
    os.unlink(loop)
    text = workspace.train(config, directory, overrides_of(tiers, ["run.steps=10"])).stderr
    expect("held checkpoints of this run, was absent, and begins empty" in text, "not said", text)
    print("an absent tier: left out where it never held anything, refused where it did and cannot be made")


def absent_memory(workspace, config):
    """In memory nothing outlives a reboot: it is left out, whatever it held, and that is not an error."""
    if not os.access("/dev/shm", os.W_OK):
        print("skipped: memory that is absent (/dev/shm cannot be written)")
        return
    directory = workspace.directory("absent-memory")
    memory = tempfile.mkdtemp(prefix="perdure-absent-", dir="/dev/shm")
    try:
        place = os.path.join(memory, "place")
        tiers = [(os.path.join(place, "near"), 1), (os.path.join(directory, "far"), 4)]
        workspace.train(config, directory, overrides_of(tiers, ["run.steps=4"]))
        shutil.rmtree(place)
        os.symlink("place", place)
        text = workspace.train(config, directory, overrides_of(tiers, ["run.steps=8"])).stderr
        expect("resumed at step 4" in text and text.count(f"{tiers[0][0]} is left out of saves") == 1, "unclear", text)
        expect(newest(tiers[1][0]) == 8, "the disk did not get the last step", text)
    finally:
        shutil.rmtree(memory)
    print("absent memory: left out")


def full(workspace, config, expected):
    """A disk without room: each step goes to the next tier in the same step."""
    image, disk = os.path.join(workspace.path, "image"), workspace.directory("full")
    os.makedirs(disk)
    with open(image, "wb") as f:
        f.truncate(6 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", image], capture_output=True, check=False).returncode == 0 if shutil.which("mkfs.ext4") else False
    if not made or not mount("-o", "loop", image, disk):
        print("skipped: a full disk (needs root, mkfs.ext4 and loop devices)")
        return
    try:
        directory = workspace.directory("run")
        tiers = [(os.path.join(disk, "near"), 1), (os.path.join(directory, "far"), 100)]
        text = workspace.train(config, directory, overrides_of(tiers), expect=74).stderr
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        expect("is not saved" not in text and newest(tiers[1][0]) == 12, "a step was lost", text)
        expect(all(row["last_checkpoint"] >= row["step"] - 3 for row in rows), f"saves come late: {rows}", text)
        expect(f"{tiers[0][0]} did not get the last step, 12, which is safe in {tiers[1][0]}" in text.strip().splitlines()[-1], "unclear",
               text)
        expect(digest(workspace, tiers[1][0])[0] == expected, "other state", text)
    finally:
        unmount(disk)
    print("a full disk: every step is saved in the next tier, and the end tells")


def elsewhere(workspace, config):
    """A relative checkpoint.dir, looked for from another directory; absent, it is not begun anew unless that is meant."""
    directory = workspace.directory("elsewhere")
    os.makedirs(directory)
    command = [workspace.perdure, "train", config, f"run.dir={directory}/run", "checkpoint.dir=kept", "run.steps=1"]
    for code, word, words in ((0, [], "done: step 1"), (65, [], "that saved step 1 in kept, and kept holds no checkpoint"), (0, ["--fresh"], "done: step 1")):
        shutil.rmtree(os.path.join(directory, "kept"), ignore_errors=True)
        started = subprocess.run([*command, *word], cwd=directory, capture_output=True, text=True, check=False)
        expect(started.returncode == code and words in started.stderr, "train", started.stderr)
    listed = workspace.command(["ckpt", "ls", os.path.join(directory, "run")])
    expect(listed.returncode == 78 and f"{directory}/run/config.yaml names kept for its checkpoints (checkpoint.dir), which is not there "
           "from here; name the directory itself" in listed.stderr, f"ckpt ls: exit {listed.returncode}", listed.stdout + listed.stderr)
    listed = workspace.command(["ckpt", "ls", os.path.join(directory, "kept")])
    expect(listed.returncode == 0 and "step-000000000001-1" in listed.stdout, "ckpt ls of the directory itself", listed.stderr)
    print("checkpoints elsewhere: the tools say where")


def in_each_other(workspace, config):
    directory = workspace.directory("nested")
    os.makedirs(directory)
    os.symlink("near", os.path.join(directory, "link"))
    near, link = os.path.join(directory, "near"), os.path.join(directory, "link")
    for far, words in ((os.path.join(near, "far"), "lies inside"), (near + "/.", "is the same directory as"),
                       (os.path.join(link, "far"), "lies inside")):
        os.makedirs(near, exist_ok=True)
        text = workspace.train(config, directory, overrides_of([(near, 1), (far, 4)]), expect=78).stderr
        expect(f"checkpoint.tiers[1].dir, {far}, {words} checkpoint.tiers[0].dir, {near}" in text, "unclear", text)
    expect(os.listdir(near) == [], "something was made", "")
    for key in ("run.dir", "checkpoint.dir", "checkpoint.tiers[0].dir"):
        text = workspace.command(["train", config, *([] if key == "run.dir" else [f"run.dir={directory}"]), f"{key}=/proc/xx"]).stderr
        last = text.strip().splitlines()[-1]
        expect(f"{key}: /proc/xx" in last and f"name another directory with {key}=DIR" in last, "unclear", text)
    print("directories in each other, or that cannot be made: refused by their keys")


def spoil(path):
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        data = f.read(64)
        f.seek(-len(data), os.SEEK_CUR)
        f.write(bytes(byte ^ 0x5A for byte in data))


def damaged(workspace, config, expected):
    directory = workspace.directory("damaged")
    tiers = [(os.path.join(directory, "near"), 1), (os.path.join(directory, "far"), 4)]
    for steps in (8, 12):  # the end of a run waits for the far one
        workspace.train(config, directory, overrides_of(tiers, ["checkpoint.tiers[1].compression=zstd:1", f"run.steps={steps}"]))
    other = workspace.directory("other")
    shutil.copytree(directory, other)
    spoil(os.path.join(tiers[0][0], "step-000000000012-2", "shard-00001.h5"))
    have, said = digest(workspace, directory)
    expect(have == expected and f"using the copy in {tiers[1][0]}" in said, "ckpt stats", said)
    for left, right in ((directory, other), (other, directory)):
        diff = workspace.command(["ckpt", "diff", left, right])
        expect(diff.returncode == 0 and "using the copy in" in diff.stderr, f"ckpt diff: exit {diff.returncode}", diff.stdout + diff.stderr)
    target = workspace.directory("target")
    reshard = workspace.command(["ckpt", "reshard", directory, target, "--layout=dp=1"])
    expect(reshard.returncode == 0 and "using the copy in" in reshard.stderr, f"ckpt reshard: exit {reshard.returncode}", reshard.stderr)
    expect(digest(workspace, target)[0] == expected, "ckpt reshard: other state", "")
    for step, code, words in ((8, 0, "step        8,"), (11, 0, "step        11,"), (5, 65, "holds no valid checkpoint of step 5")):
        shown = workspace.command(["ckpt", "show", directory, f"--step={step}"])
        expect(shown.returncode == code and words in shown.stdout + shown.stderr, f"ckpt show of step {step}: exit {shown.returncode}",
               shown.stdout + shown.stderr)
    named = workspace.command(["ckpt", "stats", os.path.join(tiers[0][0], "step-000000000012-2")])
    expect(named.returncode == 65, f"the one that is named is the one that is looked at: exit {named.returncode}", named.stderr)
    spoil(os.path.join(tiers[0][0], "step-000000000012-2", "commit.h5"))
    have, said = digest(workspace, directory)
    expect(have == expected and "is not a complete checkpoint" in said, "a damaged record", said)
    spoil(os.path.join(tiers[1][0], "step-000000000012-2", "shard-00001.h5"))
    verified = workspace.command(["ckpt", "verify", directory])
    lines = [line for line in verified.stdout.splitlines() if "stored bytes do not match" in line]
    expect(verified.returncode == 65 and len(lines) == 1, f"one chunk is damaged, and {len(lines)} lines say so", verified.stdout)
    digest(workspace, directory, 65)
    print("damaged copies: the tools take the whole one, and say so")


def quarantined(workspace, config):
    directory = workspace.directory("quarantined")
    workspace.train(config, directory, ["run.steps=2", "checkpoint.every=2"])
    spoil(os.path.join(directory, "checkpoints", "step-000000000002-1", "shard-00000.h5"))
    workspace.train(config, directory, ["run.steps=4"], expect=65)
    for command in ("ls", "stats"):
        result = workspace.command(["ckpt", command, directory])
        text = result.stdout + result.stderr
        expect("holds 1 checkpoint in its quarantine directory" in text and "no checkpoint yet" not in text, f"ckpt {command}", text)
    print("all in quarantine: said")


def body(workspace, arguments):
    del arguments
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(50000))))
    plain = workspace.directory("plain")
    workspace.train(config, plain)
    expected = workspace.state_digest(plain)
    read_only(workspace, config, expected)
    unreadable(workspace, config)
    absent(workspace, config)
    absent_memory(workspace, config)
    full(workspace, config, expected)
    in_each_other(workspace, config)
    elsewhere(workspace, config)
    damaged(workspace, config, expected)
    quarantined(workspace, config)


harness.main(body)
