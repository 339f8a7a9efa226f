#!/usr/bin/env python3
"""Memory of an import of Qwen3-30B-A3B's shape, made of holes: 256 MiB at most.  experts_size.py PERDURE SOURCE [NAME...]

The whole of it, 61 GB with 18,432 tensors of experts, is mapped (--dry-run). Imported are a block of it in full width, and all 48 blocks with
all experts in a small one: 366 GB of parameters and moments would be too much for a test, and compressed zeros are little.
"""
import json
import os
import struct
import subprocess

from expect import PERDURE, finish, report, write

MOST = 256 << 20
SHARD_BYTES = 4 << 30
CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
          "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
          "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
          "rms_norm_eps": 1e-06, "tie_word_embeddings": False}


def shapes(c):
    hidden, head = c["hidden_size"], c["head_dim"]
    q, kv, ffn = head * c["num_attention_heads"], head * c["num_key_value_heads"], c["moe_intermediate_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, shape in (("input_layernorm", (hidden,)), ("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)), ("self_attn.q_norm", (head,)), ("self_attn.k_norm", (head,)),
                            ("self_attn.o_proj", (hidden, q)), ("post_attention_layernorm", (hidden,)), ("mlp.gate", (c["num_experts"], hidden))):
            yield f"{at}{name}.weight", shape
        for expert in range(c["num_experts"]):
            for name, shape in (("gate_proj", (ffn, hidden)), ("up_proj", (ffn, hidden)), ("down_proj", (hidden, ffn))):
                yield f"{at}mlp.experts.{expert}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)


def make(directory, **changed):
    """A directory of bf16 in shards, whose data is a hole. Returns the count of experts' tensors and of their bytes."""
    config, shards, count, total = {**CONFIG, **changed}, [{}], 0, 0
    at = 0
    for name, shape in shapes(config):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        if at + size > SHARD_BYTES:
            shards.append({})
            at = 0
        shards[-1][name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
        if ".experts." in name:
            count, total = count + 1, total + size
    os.mkdir(directory)
    write(f"{directory}/config.json", json.dumps(config))
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    write(f"{directory}/model.safetensors.index.json", json.dumps({"weight_map": {name: file for file, shard in zip(names, shards) for name in shard}}))
    for file, shard in zip(names, shards):
        text = json.dumps(shard).encode()
        write(f"{directory}/{file}", struct.pack("<Q", len(text)) + text)
        os.truncate(f"{directory}/{file}", 8 + len(text) + max(t["data_offsets"][1] for t in shard.values()))
    return count, total


def run(name, *arguments):
    """What it prints, and the most memory that was resident."""
    with open("out", "w+b") as out, open("err", "w+b") as err:
        child = subprocess.Popen([PERDURE, *arguments], stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = [open(file, "rb").read().decode() for file in ("out", "err")]
    peak = usage.ru_maxrss * 1024
    print(f"{name}: {peak / 2**20:.0f} MiB resident, {usage.ru_utime + usage.ru_stime:.1f} s of CPU")
    problems = [f"exit code {child.returncode}"] if child.returncode else []
    problems += [f"{peak} bytes resident"] if peak > MOST else []
    report(name, problems, (child.returncode, texts[0][:400], texts[1][:400]))
    return texts[0]


make("whole")
mapped = run("whole-is-mapped", "ckpt", "import", "whole", "none", "--dry-run", "--json")
found = sum(".experts." in row["tensor"] for row in json.loads(mapped)) if mapped else 0
report("whole-has-all-experts", [] if found == 18432 else [f"{found} of 18432"], (0, "", ""))
for name, changed in (("wide", {"num_hidden_layers": 1, "vocab_size": 32768}),
                      ("many", {"hidden_size": 256, "moe_intermediate_size": 64, "vocab_size": 4096, "head_dim": 32, "num_attention_heads": 8})):
    count, total = make(name, **changed)
    said = run(name, "ckpt", "import", name, f"{name}.in", "--compression=zstd:1", "--json")
    experts = json.loads(said)["experts"] if said else {}
    wanted = {"tensors_in": count, "bytes_in": total, "elements_in": total // 2, "tensors_out": count, "bytes_out": 2 * total, "elements_out": total // 2}
    report(f"{name}-counts", [] if experts == wanted else [f"{experts}"], (0, said, ""))
finish("experts_size")
