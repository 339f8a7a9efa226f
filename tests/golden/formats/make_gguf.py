#!/usr/bin/env python3
"""Makes the golden GGUF file: make_gguf.py FILE (gguf, numpy).

Element i of tensor number t is ((i * 37 + t * 11) mod 101) / 64 - 0.75 before it is stored; halves and blocks are what gguf makes
of it.
"""
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

TENSORS = [
    ("token_embd.weight", (32, 64), Q.Q8_0),
    ("blk.0.attn_q.weight", (64, 64), Q.F16),
    ("blk.0.attn_k.weight", (32, 64), Q.Q4_0),
    ("blk.0.attn_norm.weight", (64,), Q.F32),
    ("blk.0.ffn_down.weight", (64, 96), Q.BF16),
    ("rope_freqs.weight", (8,), Q.F32),
]


def values(t, shape):
    i = np.arange(np.prod(shape))
    return (((i * 37 + t * 11) % 101) / 64 - 0.75).astype(np.float32).reshape(shape)


def rope_factors(count, theta=500000.0, factor=8.0, low=1.0, high=4.0, original=8192.0):
    out = []
    for i in range(count):
        length = 2 * np.pi * theta ** (i / count)
        smooth = (original / length - low) / (high - low)
        middle = 1 / ((1 - smooth) / factor + smooth)
        out.append(1.0 if length < original / high else factor if length > original / low else middle)
    return np.array(out, dtype=np.float32)


w = gguf.GGUFWriter(sys.argv[1], "llama")
w.add_name("golden")
w.add_context_length(128)
w.add_embedding_length(64)
w.add_block_count(1)
w.add_feed_forward_length(96)
w.add_head_count(4)
w.add_head_count_kv(2)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_freq_base(500000.0)
w.add_rope_dimension_count(16)
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("llama-bpe")
w.add_token_list([f"t{i}" for i in range(31)] + ["\u0120x"])
w.add_token_types([1] * 32)
w.add_token_merges(["t 1", "\u0120 x"])
w.add_bos_token_id(1)
w.add_add_bos_token(True)
for t, (name, shape, kind) in enumerate(TENSORS):
    data = rope_factors(*shape) if name.startswith("rope") else values(t, shape)
    w.add_tensor(name, data if kind == Q.F32 else gguf.quants.quantize(data, kind), raw_dtype=None if kind == Q.F32 else kind)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
