#!/usr/bin/env python3
"""Everything that builds a model builds the same one: the loss of `perdure eval` has the bits of the run's own validation, and `perdure replay`
those of its steps, with each key of model and data at a value that is not its default, and with numerics that change bits."""
import json
import os
import re

import harness

CONFIG = """
run: {{seed: 3, steps: 3}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 4, kv_heads: 2, head_size: 8, ffn: 48}}
data: {{train: [{{path: {train}}}], validation: [{{path: {validation}}}]}}
batch: {{sequences: 4, micro_batch: 2, context: 48}}
optimizer: {{lr: 0.01, warmup_steps: 1}}
validation: {{every: 3, sequences: 7}}
layout: {{ranks: 1, threads: 1}}
"""
FRACTION = 0.25
LLAMA3 = ["model.rope_scaling=llama3", "model.rope_factor=4", "model.rope_low_frequency_factor=2", "model.rope_high_frequency_factor=8",
          "model.rope_original_context=16"]
EXPERTS = ["model.family=glm4_moe", "model.experts=4", "model.experts_per_token=2", "model.layers=3"]
SOFTMAX = ["model.family=mixtral", *EXPERTS[1:]]
KEYS = {  # what gives a key another value than its default, or than that of CONFIG
    "model.preset": ["model.preset=gpt2-124m", "model.family=llama"], "model.family": ["model.family=qwen3"], "model.vocab": ["model.vocab=300"],
    "model.context": ["model.context=96"], "model.layers": ["model.layers=3"], "model.hidden": ["model.hidden=40"],
    "model.heads": ["model.heads=2"], "model.kv_heads": ["model.kv_heads=1"], "model.head_size": ["model.head_size=12"],
    "model.ffn": ["model.ffn=56"], "model.qkv_bias": ["model.qkv_bias=true"], "model.tie_embeddings": ["model.tie_embeddings=false"],
    "model.norm_epsilon": ["model.norm_epsilon=0.01"], "model.rope_theta": ["model.rope_theta=50"],
    "model.rope_scaling": ["model.rope_scaling=linear", "model.rope_factor=2"], "model.rope_factor": LLAMA3,
    "model.rope_low_frequency_factor": LLAMA3, "model.rope_high_frequency_factor": LLAMA3, "model.rope_original_context": LLAMA3,
    "model.init_std": ["model.init_std=0.1"],
    "model.qk_norm": [*EXPERTS, "model.qk_norm=true"], "model.rotated": [*EXPERTS, "model.rotated=4"], "model.experts": EXPERTS,
    "model.experts_per_token": [*EXPERTS, "model.experts_per_token=3"], "model.expert_ffn": [*EXPERTS, "model.expert_ffn=40"],
    "model.shared_experts": [*EXPERTS, "model.shared_experts=2"], "model.dense_blocks": [*EXPERTS, "model.dense_blocks=2"],
    "model.router_groups": [*EXPERTS, "model.router_groups=2", "model.router_groups_kept=1"],
    "model.router_groups_kept": [*EXPERTS, "model.experts=8", "model.router_groups=4", "model.router_groups_kept=3"],
    "model.renormalise": [*EXPERTS, "model.renormalise=true"], "model.routed_scale": [*EXPERTS, "model.routed_scale=2.5"],
    "model.balance_loss": [*SOFTMAX, "model.balance_loss=0.1"], "model.z_loss": [*SOFTMAX, "model.z_loss=0.1"],
    "model.bias_step": [*EXPERTS, "model.bias_step=0.05"],
    "data.train": [], "data.cache_dir": [], "data.cache_bytes": [],
    "data.validation": [], "data.validation_fraction": [f"data.validation_fraction={FRACTION}", "data.validation=[]"],
    "data.separate_documents": ["data.separate_documents=true", "data.document_token=46"], "data.document_token": ["data.document_token=46"],
}
MORE = {
    "gpt2": ["model.family=gpt2", "model.kv_heads=4", "data.separate_documents=true", "data.document_token=46"],
    "fp32": ["numerics.precision=fp32"], "fp16": ["numerics.precision=fp16"], "columns": ["numerics.logits=columns", "model.vocab=9000"],
    "logits": ["numerics.logits_type=precision"], "gradients": ["numerics.gradients=bf16"],
    "virtual_tp": ["numerics.virtual_tp=2", "data.separate_documents=true", "data.document_token=46"],
    "virtual_sp": ["numerics.virtual_sp=2", "data.separate_documents=true", "data.document_token=46"],
    "moments": ["optimizer.moments=bf16"],
}


def json_of(workspace, arguments):
    result = workspace.command([*arguments, "--json"])
    if result.returncode:
        raise harness.Failure(f"perdure {' '.join(arguments)}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return json.loads(result.stdout)


def keys_of(workspace, config):
    keys, section = set(), ""
    for line in workspace.command(["train", config, "run.dir=unused", "--print-config"]).stdout.splitlines():
        section = line.split(":")[0] if line[:1].strip() else section
        if section in ("model", "data") and re.match("  [a-z]", line):
            keys.add(f"{section}.{line.split(':')[0].strip()}")
    return keys


def validation_of(run):
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        return [row["validation_loss"] for row in map(json.loads, f) if "validation_loss" in row][-1]


def body(workspace, _):
    text = "\n".join(f"{i}. {harness.text_of(40 + i % 31)[i % 11:]}." for i in range(700))
    train, validation = workspace.file("train.txt", text[:24000]), workspace.file("validation.txt", text[24000:32000])
    tail = workspace.file("tail.txt", text[:24000][int(24000 * (1 - FRACTION)):])
    config = workspace.file("run.yaml", CONFIG.format(train=train, validation=validation))
    if keys_of(workspace, config) != KEYS.keys():
        raise harness.Failure(f"keys without a value here, or values of no key: {keys_of(workspace, config) ^ KEYS.keys()}")
    losses = {}
    for name, overrides in [*KEYS.items(), *MORE.items()]:
        run = workspace.directory()
        workspace.train(config, run, overrides)
        found = json_of(workspace, ["eval", run, f"--data={tail if 'validation_fraction' in name else validation}", "--windows=7", "--tokenizer=byte"])
        losses[name] = found["loss"]
        if found["loss"] != validation_of(run):
            raise harness.Failure(f"{name}: eval computes {found['loss']!r}, the run itself {validation_of(run)!r} ({overrides})")
        if json_of(workspace, ["replay", run, "--step=3"])["result"] != "agrees":
            raise harness.Failure(f"{name}: replay computes other bits than the run ({overrides})")
    expert_keys = [key for key, overrides in KEYS.items() if set(EXPERTS[1:3]) & set(overrides)]
    if len({losses[key] for key in expert_keys}) != len(expert_keys) or len({losses[key] for key in ("data.train", "data.separate_documents", "model.rope_theta", "model.norm_epsilon")}) != 4:
        raise harness.Failure(f"a key changes nothing: {losses}")
    print(f"eval, validation and replay agree over {len(KEYS)} keys and {len(MORE)} other settings")


if __name__ == "__main__":
    harness.main(body)
