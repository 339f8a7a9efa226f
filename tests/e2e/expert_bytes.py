#!/usr/bin/env python3
"""What experts on two hosts (namespaces.py) send each other, counted on the hosts' interfaces, headers included: at most 1.05 of the bytes of
tokens there and back, in forward and backward, that choose an expert of the other host. Each token chooses both of two experts, so half of
what it sends leaves. All else that travels is the same in a step of more sequences, and drops out of the difference."""
import json
import os
import subprocess
import sys

import harness
import namespaces

STEPS, LENGTH, LAYERS, HIDDEN = 2, 256, 2, 512
CONFIG = f"""
run: {{{{seed: 3, steps: {STEPS}}}}}
model: {{{{family: mixtral, vocab: 256, context: {LENGTH}, layers: {LAYERS}, hidden: {HIDDEN}, heads: 4, kv_heads: 1, head_size: 16, ffn: 32, experts: 2, experts_per_token: 2}}}}
data: {{{{train: [{{{{path: {{data}}}}}}], validation_fraction: 0}}}}
optimizer: {{{{warmup_steps: 1}}}}
numerics: {{{{precision: bf16, lanes: 2}}}}
layout: {{{{ranks: 2, ep: 2, threads: 1, zero_stage: 1}}}}
checkpoint: {{{{every: 0}}}}
"""
MOST = 1.05


def sent(net):
    """Bytes that have left both hosts."""
    total = 0
    for pid in net.pids.values():
        said = json.loads(namespaces.run(pid, "ip", "-s", "-j", "link", "show", "eth0").stdout)
        total += said[0]["stats64"]["tx"]["bytes"]
    return total


def train(workspace, net, config, sequences):
    place = f"{net.root}/run-{sequences}"
    before, log = sent(net), f"{place}.log"
    words = [f"run.dir={place}", f"launch.hosts={net.root}/hosts", f"launch.agent={namespaces.AGENT}", f"batch.sequences={sequences}",
             "batch.micro_batch=1", f"batch.context={LENGTH}"]
    with open(log, "w", encoding="utf-8") as out:
        run = net.popen("a", [workspace.perdure, "train", config, *words], env=dict(os.environ, PERDURE_PROGRESS="off"), stdout=out, stderr=out)
        if run.wait(timeout=harness.PATIENCE) or len(harness.losses(place)) != STEPS:
            raise harness.Failure(f"{sequences} sequences: exit {run.returncode}\n{harness.read(log)}")
    return sent(net) - before


def body(workspace, _):
    if not namespaces.can_make():
        print("skipped: namespaces of networks, mounts and processes need root")
        sys.exit(77)
    with namespaces.Network(workspace.directory("net"), ["a", "b"]) as net:
        with open(f"{net.root}/hosts", "w", encoding="utf-8") as f:
            f.write("a\nb\n")
        config = f"{net.root}/run.yaml"
        with open(config, "w", encoding="utf-8") as f:
            f.write(CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
        few, many = 4, 20
        difference = train(workspace, net, config, many) - train(workspace, net, config, few)
    tokens = (many - few) * LENGTH * STEPS * LAYERS
    ratio = difference / (tokens * 2 * HIDDEN * 2 * 2 * 2 * 0.5)  # experts of a token, bytes, directions, passes, share that leaves
    if not 1 < ratio <= MOST:
        raise harness.Failure(f"{difference} bytes leave the hosts for {tokens} tokens of a block: {ratio:.4f} of the necessary ones, at most {MOST}")
    print(f"{ratio:.4f} of the bytes of tokens and results leave the hosts")


if __name__ == "__main__":
    harness.main(body)
