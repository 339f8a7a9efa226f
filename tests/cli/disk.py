#!/usr/bin/env python3
"""Keeping the disk in order: checkpoints that cannot be removed.  disk.py PERDURE SOURCE [NAME...]

Needs root for what nobody else can set up, and says what it leaves out."""
import glob
import os
import re
import shutil
import subprocess

from expect import ANY, MINIMAL, expect, finish, perdure, report, write

TINY = ["model.preset=byte-1m", "model.layers=2", "model.hidden=32", "model.heads=2", "batch.context=32", "model.context=32",
        "batch.sequences=4", "layout.ranks=1", "layout.threads=1", "checkpoint.every=2", "checkpoint.keep_last=2"]


def chattr(flag, path):
    return shutil.which("chattr") is not None and subprocess.run(["chattr", flag, path], stderr=subprocess.DEVNULL).returncode == 0


def steps(run):
    return sorted(int(os.path.basename(p)[5:17]) for p in glob.glob(f"{run}/step-*"))


def check(name, wanted, found):
    report(name, [] if wanted == found else [f"{found!r}, not {wanted!r}"], (0, "", ""))


def train(run, last, *more):
    return ["train", MINIMAL, *TINY, f"run.dir={run}", f"run.steps={last}", *more]


def one_that_cannot_be_removed(name, of_what):
    """Retention continues with the others, says so once, and `prune` does the same."""
    code, _, said = perdure(*train(name, 4))
    report(f"{name}-begin", [] if code == 0 else ["no checkpoints"], (code, "", said))
    fixed = of_what(glob.glob(f"{name}/checkpoints/step-000000000002-*")[0])
    if not chattr("+i", fixed):
        print(f"SKIPPED {name}: chattr +i needs e2fsprogs, root and a file system that knows it")
        return
    try:
        result = perdure(*train(name, 16))
        times = len(re.findall("not all older checkpoints could be removed: removing checkpoint step-000000000002-", result[2]))
        report(f"{name}-train", [] if result[0] == 0 and times == 1 else [f"said {times} times"], result)
        is_there = fixed.endswith(".h5") < 1
        check(f"{name}-kept", ([2] if is_there else []) + [14, 16], steps(f"{name}/checkpoints"))
        if is_there:
            expect(f"{name}-prune", ["ckpt", "prune", "--keep-last=1", name], 74, out=re.compile("^1 of 3 checkpoints removed, 2 kept$", re.M),
                   err=re.compile("removing checkpoint step-000000000002-.*Operation not permitted"))
            check(f"{name}-pruned", [2, 16], steps(f"{name}/checkpoints"))
    finally:
        for path in {fixed, *glob.glob(f"{name}/checkpoints/pool-*/trash-*/*")}:
            chattr("-i", path)
    expect(f"{name}-again", ["ckpt", "prune", "--keep-last=1", name], 0, out=ANY, err=ANY)
    check(f"{name}-done", [16], steps(f"{name}/checkpoints"))
    check(f"{name}-pools", [], glob.glob(f"{name}/checkpoints/pool-*"))


def fill(path):
    """Until not even a directory can be made."""
    with open(f"{path}/fill", "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(1024))
        except OSError:
            os.fsync(f.fileno())
    try:
        os.mkdir(f"{path}/one-more")
        os.rmdir(f"{path}/one-more")
        return False
    except OSError:
        return True


def on_an_image(name, megabytes, body):
    """ext4 in a file, mounted at `name`."""
    os.mkdir(name)
    with open(f"{name}.image", "wb") as f:
        f.truncate(megabytes << 20)
    steps = ["mkfs.ext4", "-q", "-m", "0", "-b", "1024", f"{name}.image"], ["mount", "-o", "loop", f"{name}.image", name]
    if not shutil.which("mkfs.ext4") or any(subprocess.run(step, stderr=subprocess.DEVNULL).returncode for step in steps):
        print(f"SKIPPED {name}: a loop mount of ext4 needs root, mkfs.ext4 and loop devices")
        return
    try:
        body(name)
    finally:
        subprocess.run(["umount", name], check=True)


def names(run):
    return sorted(re.sub(r"-\d+$", "", p) for p in os.listdir(run) if not p.startswith("step-"))


def on_a_full_disk(name):
    """To free space takes none."""
    run = f"{name}/checkpoints"
    here = [f"checkpoint.dir={run}"]
    code, _, said = perdure(*train(f"{name}-run", 10, "checkpoint.keep_last=5", *here))
    report(f"{name}-begin", [] if code == 0 else ["no checkpoints"], (code, "", said))
    check(f"{name}-is-full", True, fill(name))
    check(f"{name}-names", ["fence", "lock", "owner"], names(run))
    expect(f"{name}-none", ["ckpt", "prune", "--keep-last=9", run], 74, err=re.compile("No space left on device"))
    check(f"{name}-names-left", ["fence", "lock", "owner"], names(run))
    check(f"{name}-steps-left", [2, 4, 6, 8, 10], steps(run))
    expect(f"{name}-prune", ["ckpt", "prune", "--keep-last=3", run], 0, out=re.compile("^2 of 5 checkpoints removed, 3 kept$", re.M),
           err=re.compile("is full: removing step-000000000002-.*, which retention would not keep"))
    check(f"{name}-pruned", [6, 8, 10], steps(run))
    os.unlink(f"{name}/fill")
    check(f"{name}-is-full-again", True, fill(name))
    result = perdure(*train(f"{name}-run", 12, "checkpoint.keep_last=1", *here))
    report(f"{name}-resume", [] if result[0] == 0 else ["no room was made"], result)
    check(f"{name}-resumed", [12], steps(run))


write("text.txt", "the quick brown fox jumps over the lazy dog. " * 200)
one_that_cannot_be_removed("directory", lambda step: step)
one_that_cannot_be_removed("shard", lambda step: f"{step}/shard-00000.h5")
on_an_image("full", 16, on_a_full_disk)
finish("disk")
