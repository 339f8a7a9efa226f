#!/usr/bin/env python3
"""Commit records whose digests are right and whose numbers are not: every command says so, and none crashes.
sealed.py PERDURE SOURCE"""
import ctypes
import ctypes.util
import glob
import os
import re
import shutil
import struct

from expect import ANY, MINIMAL, expect, finish, perdure, write

PAGE, SEED = 4096, 0x5045524455524531
TINY = ["model.preset=byte-1m", "model.layers=2", "model.hidden=32", "model.heads=2", "batch.context=32", "model.context=32",
        "batch.sequences=4", "run.steps=2", "layout.ranks=1", "layout.threads=1", "checkpoint.every=2"]
xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]


def put(path, dataset, word, value):
    """One word of a dataset of the record (FORMAT.md: number of its extent), under digests that are right again."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    at = struct.unpack_from("<Q", data, len(data) - PAGE + 32 + 16 * dataset)[0] + 8 * word
    data[at:at + 8] = value if isinstance(value, bytes) else struct.pack("<Q", value)
    struct.pack_into("<Q", data, len(data) - 16, xxhash.XXH3_64bits_withSeed(bytes(data[:-PAGE]), len(data) - PAGE, SEED))
    struct.pack_into("<Q", data, len(data) - 8, xxhash.XXH3_64bits_withSeed(bytes(data[-PAGE:-8]), PAGE - 8, 0))
    with open(path, "wb") as f:
        f.write(data)


STATE, LAYOUT = 0, 1
write("text.txt", "the quick brown fox jumps over the lazy dog. " * 200)
code, _, err = perdure("train", MINIMAL, *TINY)
assert code == 0, err
shutil.copytree("run", "whole")
for name, dataset, word, value, says in (
        ("zero_shard-0", LAYOUT, 6, 0, "zero_shard is 0"), ("zero_shard-100000", LAYOUT, 6, 100000, "zero_shard is 100000"),
        ("virtual_tp-0", LAYOUT, 4, 0, "virtual_tp is 0"),
        ("updates", STATE, 5, 2**64 - 1, "updates is 18446744073709551615"),
        ("loss_scale", STATE, 8, struct.pack("<d", float("nan")), "loss_scale is")):
    shutil.rmtree("run")
    shutil.copytree("whole", "run")
    step = glob.glob("run/checkpoints/step-*")[0]
    put(os.path.join(step, "commit.h5"), dataset, word, value)
    what = re.compile(r"commit\.h5: its digests match, but it is invalid: .*" + says)
    for command in ("show", "stats"):
        expect(f"{name}-{command}", ["ckpt", command, step], 65, err=what)
    expect(f"{name}-verify", ["ckpt", "verify", step], 65, out=what, err=ANY)
    expect(f"{name}-diff", ["ckpt", "diff", step, glob.glob("whole/checkpoints/step-*")[0]], 65, out=ANY, err=what)
    expect(f"{name}-export", ["ckpt", "export", step, "out", "--format=safetensors"], 65, err=what)
    expect(f"{name}-reshard", ["ckpt", "reshard", step, "copy", "--layout=dp=2"], 65, err=what)
    expect(f"{name}-sample", ["sample", "run", "--prompt=a"], 65, err=what)
    expect(f"{name}-ls", ["ckpt", "ls", "run"], 0, out=ANY, err=what)
    expect(f"{name}-train", ["train", MINIMAL, *TINY, "run.steps=4"], 65, err=what)
finish("sealed records")
