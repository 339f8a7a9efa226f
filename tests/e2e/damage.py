#!/usr/bin/env python3
"""Every way to damage a checkpoint, of the newest and of all: verify names the file and gives 65; a launch falls back to what is
whole, or gives 65 when nothing is, however often it is asked, and never begins again at step 1."""
import glob
import os
import re
import shutil
import tempfile

import harness

CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 32, layers: 2, hidden: 32, heads: 2, kv_heads: 1, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2}}
checkpoint: {{every: 2, keep_last: 2}}
layout: {{ranks: 2, transport: local, threads: 1}}
"""


def flip(path, _):
    harness.flip(path, os.path.getsize(path) // 2, 0)


def truncate(path, _):
    os.truncate(path, os.path.getsize(path) - 1000)


def delete(path, _):
    os.unlink(path)


def empty(path, _):
    os.truncate(path, 0)


def append(path, _):
    with open(path, "ab") as f:
        f.write(b"more")


def swap(path, other):
    shutil.copy(other, path)


WAYS = (flip, truncate, delete, empty, append, swap)


def expect(condition, what, result):
    if not condition:
        raise harness.Failure(f"{what}: exit {result.returncode}\n{result.stdout}{result.stderr}")


def checkpoints(directory):
    return sorted(glob.glob(os.path.join(directory, "checkpoints", "step-*")))


def expect_fallback(workspace, config, directory, what):
    """Step 6 is gone, step 4 is whole: the run continues from there, and once more from where it then is."""
    result = workspace.train(config, directory, ["run.steps=8"])
    expect("resumed at step 4," in result.stderr, f"{what}: continues from step 4", result)
    result = workspace.train(config, directory, ["run.steps=10"])
    expect("resumed at step 8," in result.stderr, f"{what}: continues from step 8", result)


def expect_no_beginning(result, directory, what, newest):
    """Where only the bytes are damaged the launcher knows a step; else it says what is there. Never that the run begins."""
    expect("from the beginning" not in result.stderr, f"{what}: does not begin", result)
    first = result.stderr.splitlines()[0]
    said = ("there are checkpoints in .* none is complete.* the newest is " + newest, "no complete checkpoint in .* quarantine")
    known = re.search(r"starting .* from step 6$", first) or any(
        re.search(words, first) and f"perdure ckpt verify {directory}" in first for words in said)
    expect(known, f"{what}: says what there is, and the command to look closer", result)


def expect_refusal(workspace, config, directory, what):
    aside = os.path.join(directory, "checkpoints", "quarantine")
    for launch in (1, 2, 3):
        result = workspace.train(config, directory, ["run.steps=12"], expect=65)
        count = len(os.listdir(aside)) if os.path.isdir(aside) else 0
        told = f"damaged or incomplete ones{f' ({count} in its quarantine directory)' if count else ''}: restore"
        expect("holds no complete checkpoint" in result.stderr and told in result.stderr, f"{what}, launch {launch}: says why", result)
        expect_no_beginning(result, directory, f"{what}, launch {launch}", "step-000000000006-")
    root = os.path.join(directory, "checkpoints")
    left = glob.glob(os.path.join(root, "step-*", "*.h5")) + glob.glob(os.path.join(root, "quarantine", "step-*", "*.h5"))
    expect(len(left) >= 6, f"{what}: the files are still there", result)


def damage_one(workspace, config, base, way, name, of_all):
    what = f"{way.__name__} {name} of {'all' if of_all else 'the newest'}"
    directory = workspace.directory()
    shutil.copytree(base, directory)
    found = checkpoints(directory)
    others = [os.path.join(at, name) for at in checkpoints(base)]
    for i, checkpoint in enumerate(found):
        if of_all or i == len(found) - 1:
            way(os.path.join(checkpoint, name), others[i - 1])
    result = workspace.command(["ckpt", "verify", directory])
    expect(result.returncode == 65 and name in result.stdout, f"{what}: verify names the file", result)
    for checkpoint in found if of_all else found[-1:]:
        expect(re.search(f"^DAMAGED: {os.path.basename(checkpoint)}: ", result.stdout, re.M), f"{what}: verify names it", result)
    (expect_refusal if of_all else expect_fallback)(workspace, config, directory, what)
    shutil.rmtree(directory)


def damaged_memory(workspace, config):
    """Memory has no room for many damaged checkpoints; the newest stays aside, so that no launch takes it for a fresh start."""
    directory, fast = workspace.directory(), tempfile.mkdtemp(prefix="perdure-damage-", dir="/dev/shm")
    try:
        workspace.train(config, directory, [f"checkpoint.dir={fast}", "run.steps=6"])
        for checkpoint in glob.glob(os.path.join(fast, "step-*")):
            flip(os.path.join(checkpoint, "shard-00001.h5"), None)
        for launch in (1, 2, 3):
            result = workspace.train(config, directory, [f"checkpoint.dir={fast}", "run.steps=8"], expect=65)
            expect("holds no complete checkpoint" in result.stderr, f"damage in memory, launch {launch}: says why", result)
        left = glob.glob(os.path.join(fast, "quarantine", "step-000000000006-*", "shard-*.h5"))
        expect(len(left) == 2, "damage in memory: the newest is still there", result)
    finally:
        shutil.rmtree(fast, ignore_errors=True)


def shard_without_boxes(workspace, config):
    """No load opens it, so nothing damaged is believed: the run continues from its step, and verify names the shard."""
    directory = workspace.directory()
    words = ["layout.dp=2", "layout.zero_shard=1"]
    result = workspace.train(config, directory, [*words, "run.steps=6"])
    without = [path for path in glob.glob(os.path.join(checkpoints(directory)[-1], "shard-*.h5")) if harness.boxes_of(path) == 0]
    expect(without, "the second of two replicas owns nothing", result)
    flip(without[0], None)
    result = workspace.command(["ckpt", "verify", directory])
    expect(result.returncode == 65 and os.path.basename(without[0]) in result.stdout, "no boxes: verify names the file", result)
    result = workspace.train(config, directory, [*words, "run.steps=8"])
    expect("resumed at step 6," in result.stderr, "no boxes: continues from step 6", result)


def no_checkpoint_yet(workspace, config):
    """What a first launch leaves that dies before it seals is no reason to refuse, whatever it had prepared."""
    directory = workspace.directory()
    workspace.train(config, directory, ["run.steps=2"])
    for checkpoint in checkpoints(directory):
        os.unlink(os.path.join(checkpoint, "commit.h5"))
        os.rename(checkpoint, checkpoint + ".tmp")
    for record in ("events.jsonl", "metrics.jsonl"):
        os.unlink(os.path.join(directory, record))
    result = workspace.train(config, directory, ["run.steps=2"])
    expect("fresh start" in result.stderr, "a prepared checkpoint: begins again", result)
    expect(len(checkpoints(directory)) == 1, "a prepared checkpoint: is cleared", result)


def body(workspace, _):
    data = workspace.file("text", harness.text_of(20000))
    config = workspace.file("run.yaml", CONFIG.format(data=data))
    base = workspace.directory("base")
    workspace.train(config, base, ["run.steps=6"])
    for way in WAYS:
        for name in ("shard-00001.h5", "commit.h5"):
            for of_all in (False, True):
                damage_one(workspace, config, base, way, name, of_all)
    shard_without_boxes(workspace, config)
    no_checkpoint_yet(workspace, config)
    if os.access("/dev/shm", os.W_OK):
        damaged_memory(workspace, config)
    print("ok: 24 kinds of damage, and none")


harness.main(body)
