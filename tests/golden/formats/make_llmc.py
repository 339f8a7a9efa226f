#!/usr/bin/env python3
"""Makes the golden model of llm.c by llm.c's own writer: make_llmc.py LLM.C FILE (torch; LLM.C is a clone of karpathy/llm.c).

Its train_gpt2.py pads vocabularies of 50257 alone, so padding to 128 is done here; header and order are the writer's. Element i of
tensor number t of the file, through all layers, is ((i * 37 + t * 11) mod 101) / 64 - 0.75, exact in bf16. Its state files are written by
its CUDA program alone, and there are none here.
"""
import sys

import torch

sys.path.insert(0, sys.argv[1])
import train_gpt2  # noqa: E402

LAYERS, VOCAB = 2, 100
BLOCK = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",
         "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")
TENSORS = [["wte.weight"], ["wpe.weight"], *([f"h.{layer}.{name}" for layer in range(LAYERS)] for name in BLOCK), ["ln_f.weight"],
           ["ln_f.bias"]]


def fill(parameters):
    for t, names in enumerate(TENSORS):
        begin = 0
        for parameter in (parameters[f"transformer.{name}"] for name in names):
            i = begin + torch.arange(parameter.numel())
            parameter.copy_((((i * 37 + t * 11) % 101) / 64 - 0.75).reshape(parameter.shape))
            begin += parameter.numel()


train_gpt2.pad_vocab = lambda tensor: torch.nn.functional.pad(tensor, (0, 0, 0, -len(tensor) % 128))
model = train_gpt2.GPT(train_gpt2.GPTConfig(block_size=16, vocab_size=VOCAB, n_layer=LAYERS, n_head=2, n_embd=16))
with torch.no_grad():
    fill(dict(model.named_parameters()))
train_gpt2.write_model(model, sys.argv[2], "bfloat16")
