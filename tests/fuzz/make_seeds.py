#!/usr/bin/env python3
"""Makes the seeds of targets whose inputs are no files as they are, out of tests/golden: make_seeds.py (torch)"""
import os
import struct
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "../golden")
PAGE = 4096


def read(path):
    with open(os.path.join(GOLDEN, path), "rb") as f:
        return f.read()


def pickle_of(path):
    with zipfile.ZipFile(os.path.join(GOLDEN, path)) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("/data.pkl")))


def save(target, name, data):
    os.makedirs(os.path.join(HERE, "seeds", target), exist_ok=True)
    with open(os.path.join(HERE, "seeds", target, name), "wb") as f:
        f.write(data)


def record(part, data):
    return struct.pack("<BH", part, len(data)) + data


def deepspeed():
    for stage in (1, 2, 3):
        at = f"formats/deepspeed/zero{stage}/global_step2"
        model = "zero_pp_rank_0_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"
        ranks = [record(1 + r, pickle_of(f"{at}/zero_pp_rank_{r}_mp_rank_00_optim_states.pt")) for r in range(3)]
        save("deepspeed", f"zero{stage}", record(0, b"global_step2") + b"".join(ranks) +
             record(5 if stage == 3 else 6, pickle_of(f"{at}/{model}")))


def universal():
    at = "formats/deepspeed/universal3/global_step2"
    parts = [f"{at}/zero/a.weight/{kind}.pt" for kind in ("fp32", "exp_avg", "exp_avg_sq")]
    data = record(0, b"global_step2") + b"".join(record(1 + i, pickle_of(part)) for i, part in enumerate(parts))
    save("universal", "shapes", data + record(5, pickle_of(f"{at}/zero/a.bias/fp32.pt")) +
         record(7, pickle_of(f"{at}/zero_pp_rank_0_mp_rank_00_model_states.pt")))


def dcp():
    import tempfile
    import torch
    import torch.distributed.checkpoint as checkpoint
    with tempfile.TemporaryDirectory() as directory:
        state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "optim": {"state": {"w": {"exp_avg": torch.ones(2, 3), "step": torch.tensor(3.0)}}}}
        checkpoint.save(state, checkpoint_id=directory, no_dist=True)
        save("dcp", "small", b"".join(record(i, read(f"{directory}/{name}")) for i, name in enumerate((".metadata", "__0_0.distcp"))))


def llmc():
    t, v, layers, heads, c, padded = 4, 5, 1, 1, 4, 8
    elements = padded * c + t * c + layers * (2 * c + 3 * c * c + 3 * c + c * c + c + 2 * c + 4 * c * c + 4 * c + 4 * c * c + c) + 2 * c
    model = struct.pack("<8i", 20240326, 3, t, v, layers, heads, c, padded)

    def state(ranks, rank, master):
        head = struct.pack("<11i", 20240527, 1, ranks, rank, master, 0, 0, 0, 0, 0, 2).ljust(1024, b"\0")
        return struct.pack("<I", 1024 + (2 + master) * elements // ranks * 4) + head

    whole = record(0, struct.pack("<I", 1024 + elements * 4) + model.ljust(1024, b"\0"))
    save("llmc", "model", whole)
    save("llmc", "state", whole + record(1, state(1, 0, 0)))
    save("llmc", "cut", whole + record(1, state(2, 0, 1)) + record(2, state(2, 1, 1)))


def commit_and_shard():
    for version in ("v1", "v2"):
        data = read(f"{version}/commit.h5")
        save("commit", version, data[-PAGE:-PAGE + 512] + data[:-PAGE])
        data = read(f"{version}/shard-00000.h5")
        offset, count = struct.unpack_from("<QQ", data, len(data) - PAGE + 24)
        save("shard", version, data[offset:offset + count])


for make in (deepspeed, universal, dcp, llmc, commit_and_shard):
    make()
