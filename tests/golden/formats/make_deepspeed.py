#!/usr/bin/env python3
"""Makes the golden files of DeepSpeed's ZeRO checkpoints: make_deepspeed.py DIRECTORY STAGE (deepspeed, torch; CPU, 3 ranks).

Two parameter groups, shapes that 3 does not divide. What it should read as lies beside it in expected-<stage>.pt, a plain
torch.save: {name: {"param", "exp_avg", "exp_avg_sq"}} in fp32, by DeepSpeed's own functions and maps.
"""
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SHAPES = {"embed.weight": (11, 6), "a.weight": (7, 6), "a.bias": (7,), "norm.weight": (7,), "out.weight": (5, 7)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for module in ("embed", "a", "norm", "out"):
            m = torch.nn.Module()
            for name, shape in SHAPES.items():
                if name.split(".")[0] == module:
                    i = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
                    m.register_parameter(name.split(".")[1], torch.nn.Parameter(((i * 37 % 101) / 64 - 0.5).reshape(shape)))
            self.add_module(module, m)

    def forward(self, x):
        h = torch.nn.functional.embedding(x, self.embed.weight)
        h = torch.nn.functional.linear(h, self.a.weight, self.a.bias) * self.norm.weight
        return torch.nn.functional.linear(h, self.out.weight).square().mean()


def groups(model):
    decay = [p for n, p in model.named_parameters() if p.dim() > 1]
    plain = [p for n, p in model.named_parameters() if p.dim() == 1]
    return [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]


def rank_main(rank, out, stage):
    import deepspeed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("GOLDEN_PORT", "29513"))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="3")
    deepspeed.init_distributed("gloo")
    model = Model()
    optimizer = torch.optim.AdamW(groups(model), lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    config = {
        "train_batch_size": 3,
        "zero_optimization": {"stage": stage, "sub_group_size": 60, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    x = torch.arange(11).reshape(1, 11)
    for _ in range(2):
        engine.backward(engine(x))
        engine.step()
    engine.save_checkpoint(os.path.join(out, f"zero{stage}"), tag="global_step2")
    dist.barrier()
    if stage == 3:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        state = {
            n: {
                "param": safe_get_full_fp32_param(p).clone(),
                "exp_avg": safe_get_full_optimizer_state(p, "exp_avg").clone(),
                "exp_avg_sq": safe_get_full_optimizer_state(p, "exp_avg_sq").clone(),
            }
            for n, p in engine.module.named_parameters()
        }
    else:
        state = fragments(os.path.join(out, f"zero{stage}", "global_step2"))
    if rank == 0:
        torch.save(state, os.path.join(out, f"expected-{stage}.pt"))


def fragments(directory):
    """Stages 1 and 2: by the map of fragments that each rank writes beside its partition."""
    pieces = {n: {"param": [], "exp_avg": [], "exp_avg_sq": []} for n in SHAPES}
    for rank in range(3):
        path = os.path.join(directory, f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        all = torch.load(path, weights_only=False)["optimizer_state_dict"]
        for g, names in enumerate(all["param_slice_mappings"]):
            flat = {"param": all["single_partition_of_fp32_groups"][g], **all["base_optimizer_state"]["state"][g]}
            for name, at in names.items():
                for kind in pieces[name]:
                    pieces[name][kind].append(flat[kind].narrow(0, at.start, at.numel))
    return {n: {k: torch.cat(v).detach().clone().reshape(SHAPES[n]) for k, v in kinds.items()} for n, kinds in pieces.items()}


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    mp.spawn(rank_main, args=(sys.argv[1], int(sys.argv[2])), nprocs=3)
