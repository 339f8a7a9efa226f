#!/usr/bin/env python3
"""Makes the golden files of PyTorch's formats: make_torch.py DIRECTORY (torch 2.4 or later, CPU).

Element i of tensor number t and kind k (0 parameter, 1 exp_avg, 2 exp_avg_sq) is ((i * 40503 + t * 9973 + k * 12345) mod 65521) / 64
- 500 in fp32, and (i + t) mod 128 - 64 in bf16: exact, so the tests compute what they expect.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

# name, shape, type, places over (dp 2, tp 2)
TENSORS = [
    ("tok_embeddings.weight", (37, 8), torch.float32, (Shard(0), Shard(0))),
    ("layers.0.attention.wq.weight", (12, 10), torch.float32, (Shard(0), Shard(1))),
    ("layers.0.attention_norm.weight", (10,), torch.float32, (Shard(0), Replicate())),
    ("layers.0.half.weight", (6, 5), torch.bfloat16, (Shard(1), Replicate())),
    ("norm.weight", (3,), torch.float32, (Shard(0), Replicate())),
]


def value(t, k, shape, dtype):
    n = 1
    for s in shape:
        n *= s
    i = torch.arange(n, dtype=torch.int64)
    if dtype == torch.bfloat16:
        return ((i + t) % 128 - 64).to(dtype).reshape(shape)
    return (((i * 40503 + t * 9973 + k * 12345) % 65521).to(torch.float32) / 64 - 500).reshape(shape)


def rank_main(rank, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("GOLDEN_PORT", "29511"))
    dist.init_process_group("gloo", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, state = {}, {}
    for t, (name, shape, dtype, places) in enumerate(TENSORS):
        model[name] = distribute_tensor(value(t, 0, shape, dtype), mesh, places)
        state[name] = {
            "step": torch.tensor(7.0),
            "exp_avg": distribute_tensor(value(t, 1, shape, dtype), mesh, places),
            "exp_avg_sq": distribute_tensor(value(t, 2, shape, dtype), mesh, places),
        }
    groups = [{"lr": 0.25, "betas": (0.9, 0.95), "weight_decay": 0.1, "params": [n for n, *_ in TENSORS]}]
    everything = {
        "model": model,
        "optimizer": {"state": state, "param_groups": groups},
        "train_state": {"step": 9, "ntokens_seen": 1 << 40},
        "rng": torch.get_rng_state(),
    }
    dcp.save(everything, checkpoint_id=os.path.join(out, "dcp"))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    mp.spawn(rank_main, args=(sys.argv[1],), nprocs=4)
    strided = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    torch.save({"t": strided.t(), "row": strided[1], "n": 3, "half": strided.to(torch.float16)}, os.path.join(sys.argv[1], "plain.pt"))
