#!/usr/bin/env python3
"""A row of the table of families is all that a family needs: the program has one more row (tests/helpers/more_families.c), trains it,
and takes it through every format that has names for it, in both directions.  family.py PERDURE SOURCE [NAME...]"""
import json
import os
import re
import struct

from expect import ANY, MINIMAL, expect, finish, perdure, report, write

MODEL = ["model.family=made_up", "model.layers=2", "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.head_size=24", "model.ffn=96",
         "model.context=32", "model.tie_embeddings=false", "batch.sequences=4", "run.steps=2", "layout.threads=1", "numerics.virtual_tp=2", "checkpoint.every=2"]
SAME = re.compile(r"\n0 of \d+ arrays differ\n$")

write("text.txt", b"In the beginning was the word. " * 4000)
for run, layout in (("run", ["layout.ranks=1"]), ("cut", ["layout.ranks=2", "layout.tp=2"])):
    result = perdure("train", MINIMAL, *MODEL, *layout, f"run.dir={run}")
    report(f"train-{run}", [] if result[0] == 0 else ["it does not train"], result)
expect("same-bits-on-two-ranks", ["ckpt", "diff", "run", "cut"], 0, SAME)

for form, out in (("safetensors", "hf"), ("dcp", "dcp"), ("megatron", "megatron"), ("universal", "universal"), ("gguf", "m.gguf")):
    rounds = ["--dtype=fp32"] if form in ("safetensors", "gguf") else []
    expect(f"export-{form}", ["ckpt", "export", "run", out, f"--format={form}", *rounds], 0, ANY, ANY)
    expect(f"import-{form}", ["ckpt", "import", out, f"{form}-in", "--fresh-optimizer"], 0, ANY, ANY)
    if not rounds:
        expect(f"same-moments-{form}", ["ckpt", "diff", "run", f"{form}-in"], 0, SAME)
    expect(f"from-{form}", ["ckpt", "export", out, f"{form}-hf", "--format=safetensors", "--dtype=fp32"], 0, ANY, ANY)
    expect(f"back-{form}", ["ckpt", "diff", "hf", f"{form}-hf"], 0, SAME, ANY)

os.remove("megatron/iter_0000002/config.json")  # its arguments say the model too
expect("megatron-arguments", ["ckpt", "import", "megatron", "megatron-arguments"], 0, ANY, ANY)
expect("megatron-arguments-same-state", ["ckpt", "diff", "run", "megatron-arguments"], 0, SAME)
with open("hf/model.safetensors", "rb") as file:
    names = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    wanted = {"net.words.weight", "net.cell.0.mix.in_proj.weight", "net.cell.1.mix.in_proj.bias", "net.cell.1.feed.gate.bias", "readout.weight"}
    report("names-in-safetensors", [f"no {name}" for name in wanted - set(names)], (0, str(sorted(names)), ""))
    if not wanted - set(names):
        report("shapes", [] if names["net.cell.0.feed.down.weight"]["shape"] == [96, 64] else ["feed.down is not across"], (0, "", ""))
with open("hf/config.json", "rb") as file:
    config = json.load(file)
    said = {"architectures": ["MadeUpForCausalLM"], "model_type": "made_up", "words": 256, "width": 64, "inner": 96, "gate": "silu", "mix_dropout": 0}
    report("keys-in-config", [f"{key} is {config.get(key)}" for key, value in said.items() if config.get(key) != value], (0, str(config), ""))
with open("m.gguf", "rb") as file:
    head = file.read(65536)
    report("names-in-gguf", [f"no {name}" for name in (b"madeup.block_count", b"blk.1.attn_q_norm.weight", b"blk.1.ffn_gate.bias") if name not in head],
           (0, "", ""))
finish("family")
