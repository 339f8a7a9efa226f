#!/usr/bin/env python3
"""Makes the golden models of Hugging Face: make_transformers.py DIRECTORY (torch, transformers, safetensors).

llama is in shards, of fp32, ties its embeddings and has two key-value heads for four heads; qwen3 is bf16 and has norms of q and k and
heads of a size of their own; gpt2 is fp16. Element i of tensor number t, counted by name, is ((i * 37 + t * 11) mod 101) / 64 - 0.75,
which is exact in all three.
"""
import sys

import torch
import transformers

SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=32, bos_token_id=None, eos_token_id=None, pad_token_id=None)
MODELS = {
    "llama": (transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), torch.float32, "4KB"),
    "qwen3": (transformers.Qwen3Config(**SIZES, tie_word_embeddings=False, head_dim=8), torch.bfloat16, "1GB"),
    "gpt2": (transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=None, eos_token_id=None),
             torch.float16, "1GB"),
}


def fill(parameters):
    """Tied ones are one parameter, under its first name."""
    for t, name in enumerate(sorted(parameters)):
        i = torch.arange(parameters[name].numel())
        parameters[name].copy_((((i * 37 + t * 11) % 101) / 64 - 0.75).reshape(parameters[name].shape))


for family, (config, dtype, shard) in MODELS.items():
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        fill(dict(model.named_parameters()))
    model.save_pretrained(f"{sys.argv[1]}/{family}", max_shard_size=shard)
