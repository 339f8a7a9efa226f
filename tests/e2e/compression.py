#!/usr/bin/env python3
"""Compressed checkpoints, as a user has them: a run that saves them is killed and continues under other layouts with the bits of one
that saves plain ones; they are resharded both ways and back to the same bytes; a damaged chunk is found, named and fallen back from."""
import glob
import json
import os
import re
import shutil

import harness

CONFIG = """
run: {{seed: 5, steps: 12}}
model: {{family: llama, vocab: 512, context: 32, layers: 3, hidden: 128, heads: 4, kv_heads: 2, head_size: 32, ffn: 700}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2}}
checkpoint: {{every: 2, keep_last: 3}}
numerics: {{virtual_tp: 2}}
layout: {{transport: local, threads: 2}}
"""
LAYOUTS = (["layout.ranks=2"], ["layout.ranks=4", "layout.tp=2", "layout.dp=2"], ["layout.ranks=3"])


def expect(condition, what, result):
    if not condition:
        raise harness.Failure(f"{what}: exit {result.returncode}\n{result.stdout}{result.stderr}")


def newest(directory):
    return sorted(glob.glob(os.path.join(directory, "checkpoints", "step-*")) or glob.glob(os.path.join(directory, "step-*")))[-1]


def shards(checkpoint):
    return sorted(glob.glob(os.path.join(checkpoint, "shard-*.h5")))


def size(checkpoint):
    return sum(os.path.getsize(shard) for shard in shards(checkpoint))


def same(workspace, left, right, what):
    for place in (left, right):
        result = workspace.command(["ckpt", "verify", place])
        expect(result.returncode == 0, f"{what}: verify {place}", result)
    result = workspace.command(["ckpt", "diff", left, right])
    expect(result.returncode == 0 and "\n0 of " in result.stdout, f"{what}: the same state", result)


def killed_and_resumed(workspace, config, compression, plain):
    """Dies in the middle of saves; what is left is taken up by another number of ranks each time."""
    directory = workspace.directory("killed")
    overrides = [f"checkpoint.compression={compression}"]
    for layout, place in zip(LAYOUTS, ("store.prepare.written:2:kill", "store.commit.recorded:2:kill")):
        workspace.train(config, directory, [*overrides, "restart.limit=0", *layout], {"PERDURE_FAULT": place}, expect=93)
    result = workspace.train(config, directory, overrides + LAYOUTS[2])
    expect("resumed at step" in result.stderr, f"{compression}: continues", result)
    if harness.losses(directory) != harness.losses(plain):
        raise harness.Failure(f"{compression}: loss bits differ from those of plain checkpoints")
    same(workspace, directory, plain, compression)
    return directory


def reshard(workspace, source, compression, layout):
    target = workspace.directory("resharded")
    result = workspace.command(["ckpt", "reshard", source, target, f"--layout={layout}", f"--compression={compression}", "--json"])
    expect(result.returncode == 0, f"reshard --compression={compression}", result)
    expect(json.loads(result.stdout)["compression"] == compression, "reshard says how it compressed", result)
    return target


def resharded_both_ways(workspace, directory, plain):
    """Plain to compressed, on to another level under a third layout, and back: the plain shards are byte for byte what they would have been."""
    packed = reshard(workspace, plain, "zstd:3", "dp=2,tp=2")
    other = reshard(workspace, packed, "zstd:1", "dp=3")
    back = reshard(workspace, other, "none", "dp=4")
    at_once = reshard(workspace, plain, "none", "dp=4")
    from_compressed = reshard(workspace, directory, "none", "dp=4")
    for place in (packed, other, back, from_compressed):
        same(workspace, plain, place, "reshard")
    for left, right in zip(shards(newest(at_once)), shards(newest(back)), strict=True):
        with open(left, "rb") as a, open(right, "rb") as b:
            if a.read() != b.read():
                raise harness.Failure(f"{left} and {right} differ")
    if size(newest(packed)) > 0.9 * size(newest(at_once)):
        raise harness.Failure(f"zstd:3 made {size(newest(packed))} bytes of {size(newest(at_once))}")
    return packed


def damaged_chunk(workspace, config, directory, compression):
    """Stored bytes of the newest step that are wrong: verify names them, a run continues from the step before."""
    copy = workspace.directory("damaged")
    shutil.copytree(directory, copy)
    shard = shards(newest(copy))[0]
    with open(shard, "r+b") as f:
        f.seek(os.path.getsize(shard) * 3 // 4)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 16]))
    result = workspace.command(["ckpt", "verify", copy])
    named = re.findall(r"shard-00000\.h5: tensor \S+, (?:param|exp_avg\w*), (?:chunk|block) ", result.stdout)
    expect(result.returncode == 65 and named, f"{compression}: verify names the damage", result)
    result = workspace.command(["ckpt", "reshard", newest(copy), workspace.directory("refused"), "--layout=dp=1"])
    expect(result.returncode == 65 and "shard-00000.h5" in result.stderr, f"{compression}: reshard refuses it", result)
    result = workspace.train(config, copy, [f"checkpoint.compression={compression}", "run.steps=14", *LAYOUTS[1]])
    expect("resumed at step 10," in result.stderr, f"{compression}: falls back to the step before", result)


def body(workspace, _):
    data = workspace.file("text", harness.text_of(20000))
    config = workspace.file("run.yaml", CONFIG.format(data=data))
    plain = workspace.directory("plain")
    workspace.train(config, plain, LAYOUTS[0])
    for compression in ("zstd:3", "zstd:1"):
        directory = killed_and_resumed(workspace, config, compression, plain)
        packed = resharded_both_ways(workspace, directory, plain)
        damaged_chunk(workspace, config, directory, compression)
    loaded = workspace.directory("from-resharded")
    shutil.copytree(packed, os.path.join(loaded, "checkpoints"))
    result = workspace.train(config, loaded, ["run.steps=14", *LAYOUTS[0]])
    expect("resumed at step 12" in result.stderr, "a run continues from a resharded, compressed checkpoint", result)
    print("ok: zstd:3 and zstd:1, killed, resumed under other layouts, resharded both ways, damaged")


harness.main(body)
