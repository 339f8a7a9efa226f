#!/usr/bin/env python3
"""Symbolic links laid where perdure removes things: what they lead to stays.  links.py PERDURE SOURCE"""
import glob
import os
import re
import shutil

from expect import ANY, MINIMAL, expect, finish, perdure, report, write

TINY = ["model.preset=byte-1m", "model.layers=2", "model.hidden=32", "model.heads=2", "batch.context=32", "model.context=32",
        "batch.sequences=4", "layout.ranks=1", "layout.threads=1", "checkpoint.every=2", "checkpoint.keep_last=1"]
NAMES = ("recycle-00000-0", "lock-00000", "generation-00000-0.h5", "index-1", "shard-00000.h5", "commit.h5", "index.h5")


def plant(link):
    """A directory with files of all names that perdure takes for its own, and a link to it."""
    shutil.rmtree("victim", ignore_errors=True)
    os.mkdir("victim")
    for name in NAMES:
        write(f"victim/{name}", "somebody's")
    os.mkdir("victim/trash-step-000000000001-1")
    write("victim/trash-step-000000000001-1/shard-00000.h5", "somebody's")
    os.symlink(os.path.abspath("victim"), link)


def check(name):
    left = sorted(os.listdir("victim"))
    wanted = sorted((*NAMES, "trash-step-000000000001-1"))
    problems = [] if left == wanted else [f"victim holds {left}"]
    if not os.path.exists("victim/trash-step-000000000001-1/shard-00000.h5"):
        problems.append("the directory in it was emptied")
    report(name, problems, (0, "", ""))


def train(name, steps, err=ANY):
    expect(name, ["train", MINIMAL, *TINY, f"run.steps={steps}"], 0, out=ANY, err=err)
    check(f"{name}-victim")


write("text.txt", "the quick brown fox jumps over the lazy dog. " * 200)
code, _, said = perdure("train", MINIMAL, *TINY, "run.steps=2")
assert code == 0, said
plant("run/checkpoints/pool-0")
train("dead-pool", 4, re.compile(r"cannot remove what an earlier launch left in \S*pool-0: .*pool-0 is a symbolic link, and nothing is removed through one: remove the link"))
os.unlink("run/checkpoints/pool-0")
for name in ("step-000000000009-1.tmp", "step-000000000003-1"):
    plant(f"run/checkpoints/{name}")
    train(name, 4)
    if os.path.lexists(f"run/checkpoints/{name}"):
        os.unlink(f"run/checkpoints/{name}")
os.mkdir("run/checkpoints/pool-1")
plant("run/checkpoints/pool-1/trash-step-000000000001-1")
train("trash", 6)
shutil.rmtree("run/checkpoints/pool-1", ignore_errors=True)
os.mkdir("run/checkpoints/step-000000000099-1")
write("run/checkpoints/step-000000000099-1/commit.h5", "damaged")
shutil.rmtree("run/checkpoints/quarantine", ignore_errors=True)
plant("run/checkpoints/quarantine")
train("quarantine", 8, re.compile("quarantine is a symbolic link"))
os.unlink("run/checkpoints/quarantine")
export = ["ckpt", "export", glob.glob("run/checkpoints/step-000000000008-*")[0], "out", "--format=safetensors"]
plant("out.exporting")
expect("exporting", export, 74, err=re.compile("out.exporting is a symbolic link, and nothing is removed through one: remove the link"))
check("exporting-victim")
os.unlink("out.exporting")
os.mkdir("out.exporting")
plant("out.exporting/link")
expect("exporting-below", export, 0, out=ANY, err=ANY)
check("exporting-below-victim")
finish("links")
