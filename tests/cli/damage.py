#!/usr/bin/env python3
"""Damaged files of other programs: an import ends with an error that names the file, or takes what no checksum protects; it never
crashes and leaves nothing half done.  damage.py PERDURE SOURCE [FORMAT...]

8 damaged copies of each format; with PERDURE_TEST_SCALE=N above 1, 200 N."""
import glob
import os
import random
import shutil
import struct

from expect import MINIMAL, ONLY, SOURCE, finish, perdure, report, write
from torch_file import torch_save

SCALE = int(os.environ.get("PERDURE_TEST_SCALE", "1"))
COPIES = 8 if SCALE <= 1 else 200 * SCALE
SEED = int(os.environ.get("PERDURE_TEST_SEED", "1"))
TINY = ["model.preset=byte-1m", "model.layers=2", "model.hidden=32", "model.heads=2", "batch.context=32", "model.context=32",
        "batch.sequences=4", "run.steps=2", "layout.ranks=1", "layout.threads=1", "checkpoint.every=2"]
ALL_NEEDED = ("safetensors", "shards", "gguf", "llmc")  # every byte of the data files is the model's


def flip(random, data):
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def cut(random, data):
    del data[random.randrange(len(data)):]


def swap(random, data):
    size = 1 + random.randrange(min(64, len(data) // 2))
    a, b = random.randrange(len(data) - size + 1), random.randrange(len(data) - size + 1)
    data[a:a + size], data[b:b + size] = data[b:b + size], data[a:a + size]


def lie(random, data):
    """A length: where metadata lies, at the begin or the end."""
    size = random.choice((4, 8))
    near = min(len(data) - size, 2048)
    at = random.randrange(near + 1) if random.randrange(2) else len(data) - size - random.randrange(near + 1)
    value = random.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, random.getrandbits(64)))
    data[at:at + size] = struct.pack("<Q", value)[:size]


def damage(source, seed):
    """Returns what was done, in words."""
    rng = random.Random(seed)
    files = sorted(p for p in glob.glob(f"{source}/**", recursive=True) + [source] if os.path.isfile(p) and os.path.getsize(p) > 16)
    path, how = rng.choice(files), rng.choice((flip, cut, swap, lie))
    with open(path, "rb") as f:
        data = bytearray(f.read())
    how(rng, data)
    with open(path, "wb") as f:
        f.write(data)
    return path, how


def copy(source, target):
    (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, target)


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def check(name, source, seed, arguments):
    target = source + ".damaged"
    copy(source, target)
    path, how = damage(target, f"{name} {seed}")
    before = set(os.listdir("."))
    result = perdure(*(a.format(source=target) for a in arguments))
    made = set(os.listdir(".")) - before
    problems = []
    if result[0] == 0:
        if how is cut and name in ALL_NEEDED and not path.endswith(".json"):
            problems.append("a file that is cut off was taken for whole")
    elif result[0] not in (65, 74, 78):
        problems.append(f"exit code {result[0]}")
    elif not result[2].startswith("perdure: ") and "\nperdure: " not in result[2] or target not in result[2]:
        problems.append("the error does not name what is damaged")
    elif result[0] == 65 and arguments[0] == "ckpt" and not result[2].endswith("; fetch it again, or take another copy\n"):
        problems.append("the error does not say what to do")
    if result[0] and made:
        problems.append(f"left behind: {made}")
    report(f"{name}-{seed}", problems and [*problems, f"{how.__name__} in {path}"], result)
    for left in made | {target}:
        remove(left)


def prepare():
    """{name: (checkpoint, command)}"""
    imports = ["ckpt", "import", "{source}", "into", "--fresh-optimizer"]
    cases = {"deepspeed": ("zero3", ["ckpt", "stats", "{source}"]), "shards": ("llama-shards", imports), "buckets": ("buckets", imports),
             "tokenizer": ("tokenizer.json", ["data", "pack", "text.txt", "--output=into", "--tokenizer={source}"])}
    for golden, name in (("formats/deepspeed/zero3", "zero3"), ("formats/transformers/llama", "llama-shards"),
                         ("formats/megatron/dp_reshardable", "buckets"), ("tokenizers/gpt2.json", "tokenizer.json")):
        copy(os.path.join(SOURCE, "tests/golden", golden), name)
    write("text.txt", b"In the beginning was the word. " * 4000)
    for family in ("llama", "gpt2"):
        result = perdure("train", MINIMAL, *TINY, f"model.family={family}", f"run.dir={family}")
        report(f"train-{family}", [] if result[0] == 0 else ["no checkpoint to export"], result)
    for name, family in (("safetensors", "llama"), ("dcp", "llama"), ("megatron", "llama"), ("universal", "llama"), ("gguf", "llama"),
                         ("llmc", "gpt2")):
        result = perdure("ckpt", "export", family, f"of.{name}", f"--format={name}")
        report(f"export-{name}", [] if result[0] == 0 else ["not exported"], result)
        cases[name] = (f"of.{name}", imports)
    os.mkdir("of.torch")
    shutil.copy("of.safetensors/config.json", "of.torch")
    torch_save("of.safetensors/model.safetensors", "of.torch/pytorch_model.bin")
    cases["torch"] = ("of.torch", imports)
    return cases


for name, (source, arguments) in prepare().items():
    for seed in range(SEED, SEED + COPIES):
        if not ONLY or name in ONLY:
            check(name, source, seed, arguments)
print(f"{COPIES} damaged copies of each format, seeds from {SEED}")
finish("damage")
