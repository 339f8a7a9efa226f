#!/usr/bin/env python3
"""Models of other systems as they lie about: what would make another model than their own program does is refused by name.
foreign.py PERDURE SOURCE [NAME...]"""
import json
import os
import re
import shutil
import struct

from expect import ANY, expect, finish, perdure, report, write

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48, "max_position_embeddings": 512,
          "tie_word_embeddings": True}
SHAPES = {"embed_tokens": [96, 32], "layers.0.input_layernorm": [32], "layers.0.self_attn.q_proj": [32, 32],
          "layers.0.self_attn.k_proj": [16, 32], "layers.0.self_attn.v_proj": [16, 32], "layers.0.self_attn.o_proj": [32, 32],
          "layers.0.post_attention_layernorm": [32], "layers.0.mlp.gate_proj": [48, 32], "layers.0.mlp.up_proj": [48, 32],
          "layers.0.mlp.down_proj": [32, 48], "norm": [32]}
SIZES = {"F32": 4, "F8_E4M3": 1, "U64": 8, "C64": 8}


def tensors(prefix="model.", value=0.01, **changed):
    return {f"{prefix}{name}.weight": ("F32", changed.get(name, shape), value) for name, shape in SHAPES.items()}


def safetensors(path, named):
    header, data = {}, b""
    for name, (dtype, shape, value) in named.items():
        count = 1
        for size in shape:
            count *= size
        one = struct.pack("<f", value) if dtype == "F32" else bytes([56] * SIZES[dtype])  # 56: 1.0 in fp8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count * len(one)]}
        data += one * count
    text = json.dumps(header).encode()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write(path, struct.pack("<Q", len(text)) + text + data)


def model(directory, named=None, **config):
    safetensors(f"{directory}/model.safetensors", named or tensors())
    write(f"{directory}/config.json", json.dumps({**CONFIG, **config}))
    return directory


def take(name, code=0, err="", *options, out=ANY):
    expect(name, ["ckpt", "import", name, f"{name}-in", *options], code, out if code == 0 else "", err)


def refuse(name, words, *options, code=78):
    take(name, code, re.compile(words), *options)


# ---- what a configuration says ----
model("plain")
take("plain", out=re.compile(r"step 0 from safetensors, .*\n22 arrays of moments begin at zero\n$"))
model("unknown-key", attention_sinks=4)
refuse("unknown-key", r"^perdure: unknown-key: config.json: perdure does not know the key attention_sinks \(4\)")
model("longer", tensors(embed_tokens=[128, 32]))
refuse("longer", r"embed_tokens.weight is \[128, 32\], and for .* must be \[96, 32\]: .* vocab_size in config.json")
model("longer-said", tensors(embed_tokens=[128, 32]), vocab_size=128)
take("longer-said")

# ---- which file, which model ----
model("both")
write("both/model.safetensors.index.json", json.dumps({"weight_map": {name: "model-00001-of-00001.safetensors" for name in tensors()}}))
safetensors("both/model-00001-of-00001.safetensors", tensors(value=0.5))
take("both", 0, "not imported: model.safetensors.index.json\n")
expect("both-is-the-one-file", ["ckpt", "diff", "-q", "both", "plain"], 0)
model("two", tensors("policy.model.") | tensors("ref.model.", value=0.5))
refuse("two", r'names begin with "policy.model." and "ref.model."; import one: perdure ckpt import --prefix=policy.model.\n$')
take("two", 0, re.compile("^(not imported: param of tensor ref.model.*\n){11}$"), "--prefix=policy.")
expect("two-is-the-one-asked-for", ["ckpt", "diff", "-q", "two-in", "plain-in"], 0)
refuse("two", "--prefix=actor.: no token embedding has a name with that before it", "--prefix=actor.")
wrapped = {name.replace("layers.0.", "layers.0._orig_mod._checkpoint_wrapped_module."): t for name, t in tensors("_orig_mod.model.").items()}
model("wrapped", wrapped)
take("wrapped")
expect("wrapped-is-the-same", ["ckpt", "diff", "-q", "wrapped-in", "plain-in"], 0)

# ---- types ----
model("types", tensors() | {"steps": ("U64", [3], 0), "freqs": ("C64", [2], 0)})
take("types", 0, "not imported: tensor steps: type U64 is not read\nnot imported: tensor freqs: type C64 is not read\n")
eight = tensors() | {"model.layers.0.self_attn.q_proj.weight": ("F8_E4M3", [32, 32], 0)}
model("fp8", eight)
take("fp8")
model("fp8-scaled", eight | {"model.layers.0.self_attn.q_proj.weight_scale_inv": ("F32", [1, 1], 2)})
refuse("fp8-scaled", r"q_proj.weight is stored as fp8 with a scale \(model.layers.0.self_attn.q_proj.weight_scale_inv\)")
model("needed", tensors() | {"model.norm.weight": ("C64", [32], 0)})
refuse("needed", r"these are missing: model.norm.weight .*; tensor model.norm.weight: type C64 is not read\n$")
finish("foreign")
