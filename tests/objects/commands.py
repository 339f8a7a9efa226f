#!/usr/bin/env python3
"""Every command that reads a checkpoint says the same of one in a bucket as of the same files on disk, and makes the same of it.
Arguments: PERDURE own|weed|moto"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from answers import CLEAN
from stores import BUCKET, opened

PERDURE = os.path.abspath(sys.argv[1])
SIZES = ["model.layers=2", "model.hidden=32", "model.heads=4", "model.kv_heads=2", "model.ffn=48", "model.context=32", "batch.sequences=4",
         "run.steps=4", "checkpoint.every=2", "layout.threads=1"]
PREFIX = "a place/run=1+ä"  # what a signature has to encode
ran = 0


def perdure(environment, *arguments):
    done = subprocess.run([PERDURE, *arguments], capture_output=True, text=True, errors="replace", env={**CLEAN, **environment}, timeout=300)
    return done.returncode, done.stdout, done.stderr


def must(environment, *arguments, code=0):
    result = perdure(environment, *arguments)
    if result[0] != code:
        raise SystemExit(f"{' '.join(arguments)}: exit code {result[0]}\n{result[1]}{result[2]}")
    return result


def upload(store, folder, prefix):
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as f:
                store.put(f"{prefix}/{os.path.relpath(path, folder)}", f.read())


def digests(folder):
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(place, name), "rb") as f:
                found[os.path.relpath(os.path.join(place, name), folder)] = hashlib.sha256(f.read()).hexdigest()
    return found


def plain(text, place):
    text = text.replace(place, "PLACE").replace("no such object", "No such file or directory")
    return re.sub(r'\d{4}-\d\d-\d\dT[\d:.]+Z|\b(seconds"?:? +|time +|in )[0-9.]+( [um]?s)?|[0-9.]+ [KMG]?i?B/s', "TIME", text)  # what a clock says


class Pair:
    """One directory in a bucket and on disk."""

    def __init__(self, store, local, prefix):
        self.store, self.local, self.url = store, os.path.abspath(local), f"s3://{BUCKET}/{prefix}"
        upload(store, local, prefix)

    def same(self, *arguments, code=0, below=""):
        """{} is the place."""
        global ran
        ran += 1
        results = []
        for place in (self.local, self.url):
            result = perdure(self.store.environment, *[a.replace("{}", place + below) for a in arguments])
            results.append((result[0], plain(result[1], place), plain(result[2], place)))
        if results[0] != results[1] or results[0][0] != code:
            raise SystemExit(f"{arguments}: exit code {code} was expected\non disk: {results[0]}\nin the bucket: {results[1]}")
        return results[0]

    def makes_same(self, *arguments, compare=digests):
        """{} is the place, and what is made is called made."""
        global ran
        ran += 1
        made = []
        for place in (self.local, self.url):
            shutil.rmtree("made", ignore_errors=True)
            must(self.store.environment, *[a.replace("{}", place) for a in arguments])
            made.append(compare("made"))
        if made[0] != made[1] or not made[0]:
            raise SystemExit(f"{arguments}: what is made of the bucket differs\n{made[0]}\n{made[1]}")


def state(environment, place):
    return must(environment, "ckpt", "stats", place, "--json")[1]


def ours(store, run):
    pair = Pair(store, f"{run}/checkpoints", f"{PREFIX}/checkpoints")
    steps = sorted(name for name in os.listdir(pair.local) if name.startswith("step-"))
    for below in ("", "/", f"/{steps[0]}", f"/{steps[1]}/"):
        for command in ("ls", "show", "verify", "stats"):
            pair.same("ckpt", command, "{}", below=below)
            pair.same("ckpt", command, "{}", "--json", below=below)
    pair.same("ckpt", "diff", f"{{}}/{steps[0]}", f"{{}}/{steps[1]}", code=65)
    pair.same("ckpt", "diff", "{}", f"{run}/checkpoints")
    pair.same("ckpt", "verify", "{}", "--step=2")
    pair.same("ckpt", "show", "{}", "--step=3", code=65)
    pair.same("sample", "{}", "--prompt=the", "--count=20", "--threads=1")
    pair.same("eval", "{}", "--data=text.txt", "--windows=4", "--threads=1")
    for name in ("safetensors", "dcp"):
        pair.makes_same("ckpt", "export", f"--format={name}", "{}", "made")
    pair.makes_same("ckpt", "reshard", "--layout=dp=3", "{}", "made", compare=lambda made: state(store.environment, made))
    # The directory of a run in a bucket holds its checkpoints.
    if f"s3://{BUCKET}/{PREFIX}/checkpoints" not in must(store.environment, "ckpt", "ls", f"s3://{BUCKET}/{PREFIX}", "--json")[1]:
        raise SystemExit("ls of a run in a bucket lists another directory than its checkpoints")
    damaged(store, pair, steps)
    return pair


def damaged(store, pair, steps):
    shard = sorted(name for name in os.listdir(f"{pair.local}/{steps[1]}") if name.startswith("shard-"))[0]
    path = f"{pair.local}/{steps[1]}/{shard}"
    with open(path, "rb") as f:
        whole = f.read()
    key = f"{PREFIX}/checkpoints/{steps[1]}/{shard}"
    for data in (whole[:-5000] + b"X" * 5000, whole[:len(whole) // 2], whole[:len(whole) // 2] + b"\1" + whole[len(whole) // 2 + 1:], b"", None):
        if data is None:
            os.unlink(path)
            store.delete(key)
        else:
            with open(path, "wb") as f:
                f.write(data)
            store.put(key, data)
        pair.same("ckpt", "verify", "{}", code=65)
        pair.same("ckpt", "ls", "{}")
        pair.same("ckpt", "export", "--format=safetensors", f"{{}}/{steps[1]}", "never", code=65)
    with open(path, "wb") as f:
        f.write(whole)
    store.put(key, whole)


def theirs(store, run):
    """Checkpoints of other systems."""
    for name in ("safetensors", "dcp", "gguf"):
        target = "theirs/model.gguf" if name == "gguf" else "theirs"
        shutil.rmtree("theirs", ignore_errors=True)
        if name == "gguf":
            os.makedirs("theirs")
        must(store.environment, "ckpt", "export", f"--format={name}", run, target)
        pair = Pair(store, "theirs", f"{PREFIX}/{name}")
        below = "/model.gguf" if name == "gguf" else ""
        for command in ("show", "stats"):
            pair.same("ckpt", command, "{}", below=below)
        pair.same("ckpt", "verify", "{}", below=below, code=78 if below else 65)
        if name == "dcp":
            pair.same("ckpt", "diff", "{}", run)
        fresh = [] if name == "dcp" else ["--fresh-optimizer"]
        pair.makes_same("ckpt", "import", f"{{}}{below}", "made", *fresh, compare=lambda made: state(store.environment, made))
        if name == "safetensors":
            pair.same("sample", "{}", "--tokens=1,2,3", "--count=5", "--threads=1")
            pair.makes_same("train", "run.yaml", "run.steps=1", "batch.sequences=4", "layout.threads=1", "run.dir=made", "init.from={}",
                            compare=lambda made: state(store.environment, made))


def of_run(store):
    """The run is here and its checkpoints are in the bucket alone: named by its configuration."""
    near = os.path.abspath("near")
    must(store.environment, "train", "run.yaml", *SIZES, "run.dir=tiered", f"checkpoint.tiers=[{{dir: {near}}}, {{dir: s3://{BUCKET}/far}}]")
    said = {}
    for command in (("ckpt", "ls"), ("ckpt", "verify"), ("ckpt", "stats"), ("eval", "--data=text.txt", "--windows=4", "--threads=1")):
        said[command] = plain(must(store.environment, *command, "tiered", "--json")[1], near)
    shutil.rmtree(near)
    for command in said:
        result = must(store.environment, *command, "tiered", "--json")
        far = plain(result[1], f"s3://{BUCKET}/far")
        same = json.loads(said[command])[:2] == json.loads(far) if command[1] == "ls" else command[1] == "verify" or said[command] == far
        if not same or "near is a tier of this run and does not exist" not in result[2]:
            raise SystemExit(f"{command}: {said[command]}\nwith the bucket alone: {far}{result[2]}")


def uploads(store):
    """ckpt upload: what is there afterwards is what was here, once, and nothing of another run is mixed with it."""
    near, far = os.path.abspath("run/checkpoints"), f"s3://{BUCKET}/copies"
    first, last = (json.loads(must(store.environment, "ckpt", "upload", near, far, *step, "--memory=8M", "--json")[1]) for step in (["--step=2"], []))
    again = must(store.environment, "ckpt", "upload", "run", far)[1]
    if (first["step"], last["step"], first["was_there"], last["was_there"]) != (2, 4, False, False) or again != f"{far} has step 4 already\n":
        raise SystemExit(f"ckpt upload: {first}, {last}, {again}")
    must(store.environment, "ckpt", "verify", far)
    must(store.environment, "ckpt", "diff", near, far)
    must(store.environment, "ckpt", "reshard", "--layout=dp=1", far, "made-of-copy")
    must(store.environment, "ckpt", "upload", "--keep-last=1", near, far)
    steps = [one["step"] for one in json.loads(must(store.environment, "ckpt", "ls", far, "--json")[1])]
    if steps != [4]:
        raise SystemExit(f"ckpt upload --keep-last=1 keeps {steps}")
    must(store.environment, "train", "run.yaml", *SIZES, "run.dir=other")
    for what, code, part in (((near, "elsewhere"), 64, "cp -r"), (("theirs", far), 65, "perdure ckpt import"), ((near, far, "--memory=1M"), 64, "8M"),
                             (("other", far), 78, "another run"), ((near, far, "--step=3"), 65, "of step 3")):
        code_found, _, said = perdure(store.environment, "ckpt", "upload", *what)
        if code_found != code or part not in said:
            raise SystemExit(f"ckpt upload {what}: exit code {code_found}, {code} was expected\n{said}")


def absent(store):
    for command in ("ls", "show", "verify", "stats"):
        said = must(store.environment, "ckpt", command, f"s3://{BUCKET}/nothing/here", code=78)[2]
        if "s3://bucket/nothing/here does not exist" not in said:
            raise SystemExit(f"{command} of nothing: {said}")


def asks_little(store):
    """Each request is a round trip, and a directory of a run is looked at by many."""
    requests = store.server.store.requests
    requests.clear()
    must(store.environment, "sample", f"s3://{BUCKET}/{PREFIX}/checkpoints", "--prompt=the", "--count=3")
    names = sum(method == "HEAD" or not key for method, key, _, _ in requests)
    if names > 100:
        raise SystemExit(f"sample looks for names {names} times")


def benches(store):
    """What a bench uploads is complete in the bucket before it counts, and gone at the end."""
    said = json.loads(must(store.environment, "bench", "ckpt", "--every=1", "--bytes=32M", "--pairs=1", f"--bucket=s3://{BUCKET}/benches", "--json")[1])
    if not said["upload_bytes_per_second"] > 0 or "work_every_step" not in said:
        raise SystemExit(f"bench ckpt --bucket: {said}")
    left = [key for key in store.server.store.objects if key.startswith("benches")]
    if left:
        raise SystemExit(f"bench ckpt --bucket leaves {left}")


def main():
    name = sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="perdure-objects-") as folder, opened(name) as store:
        os.chdir(folder)
        with open("text.txt", "w") as f:
            f.write("".join(f"{i}. the quick brown fox jumps over {i * i} lazy dogs. " for i in range(400)))
        with open("run.yaml", "w") as f:
            f.write("run: {dir: run, seed: 3}\ndata: {train: text.txt}\n")
        must(store.environment, "train", "run.yaml", *SIZES, "layout.ranks=2")
        ours(store, "run")
        if name == "own":
            asks_little(store)
            benches(store)
        theirs(store, "run")
        if name != "moto":  # of PUTs of one name at the same time it may let two succeed, which a start refuses
            of_run(store)
            uploads(store)
        absent(store)
        print(f"{name}: {ran} comparisons, the same in the bucket as on disk")


main()
