#!/usr/bin/env python3
"""Makes the golden ZeRO-3 checkpoint of a whole model: make_deepspeed_llama.py DIRECTORY (deepspeed, torch, transformers; CPU).

Two ranks, one step, config.json beside the tags as transformers' trainer leaves it. An odd width, so that ranks share rows.
"""
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.multiprocessing as mp
import transformers

CONFIG = dict(vocab_size=48, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
              head_dim=6, max_position_embeddings=32, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)


def rank_main(rank, out):
    import deepspeed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("GOLDEN_PORT", "29514"))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_batch_size": 2,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    })
    ids = torch.arange(16).reshape(1, 16) + rank
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    engine.save_checkpoint(out, tag="global_step1")
    if rank == 0:
        model.config.save_pretrained(out)


if __name__ == "__main__":
    mp.spawn(rank_main, args=(sys.argv[1],), nprocs=2)
