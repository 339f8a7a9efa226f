#!/usr/bin/env python3
"""Learning rate and bias correction of a whole run against numbers computed here: both go by updates, not by steps. In fp16 the first
steps overflow and are skipped; the first update that is applied is Adam's first, whatever its step."""
import glob
import json
import math
import os

import harness

PEAK, FLOOR, WARMUP, DECAY, STEPS = 1e-3, 1e-4, 4, 20, 24
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
numerics: {{precision: fp16, loss_scale: 16777216}}
optimizer: {{lr: {peak}, min_lr: {floor}, warmup_steps: {warmup}, decay_steps: {decay}, weight_decay: 0, clip_norm: 0}}
checkpoint: {{every: 1, keep_last: {steps}}}
layout: {{ranks: 1, transport: local, threads: 1}}
"""


def rate(updates):
    """Linear warm-up, then a cosine (Loshchilov and Hutter 2017), of the update that comes after so many."""
    if updates < WARMUP:
        return PEAK * (updates + 1) / WARMUP
    if updates >= DECAY:
        return FLOOR
    return FLOOR + 0.5 * (PEAK - FLOOR) * (1 + math.cos(math.pi * (updates - WARMUP) / (DECAY - WARMUP)))


def largest_changes(workspace, directory, step):
    """Of each array of parameters, from the step before; empty: none changed."""
    paths = [glob.glob(os.path.join(directory, "checkpoints", f"step-{s:012d}-*"))[0] for s in (step - 1, step)]
    found = json.loads(workspace.command(["ckpt", "diff", "--json", *paths]).stdout)
    return [row["max_abs"] for row in found["differences"] if row["kind"] == "param"]


def body(workspace, _):
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000)), peak=PEAK, floor=FLOOR,
                                                      warmup=WARMUP, decay=DECAY, steps=STEPS))
    directory = workspace.directory()
    workspace.train(config, directory)
    rows = [json.loads(line) for line in harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()]
    skipped = 0
    for row in rows:
        expected = rate(row["step"] - 1 - skipped)
        if not math.isclose(row["learning_rate"], expected, rel_tol=1e-9):
            raise harness.Failure(f"step {row['step']} after {skipped} skips: rate {row['learning_rate']}, expected {expected}")
        skipped = row["skipped"]
    first = next(row["step"] for row in rows if row["gradient_norm"] is not None)
    if first < 5 or first + 4 > STEPS:
        raise harness.Failure(f"the first update is that of step {first} of {STEPS}: this proves nothing")
    if largest_changes(workspace, directory, first - 1):
        raise harness.Failure(f"step {first - 1} is skipped and changed parameters")
    # m / (1 - b1) over the root of v / (1 - b2) is the gradient's sign: Adam's first update moves an element by the rate.
    for change in largest_changes(workspace, directory, first):
        if not math.isclose(change, rate(0), rel_tol=2e-3):
            raise harness.Failure(f"the first update moved an element by {change}, expected {rate(0)}")
    print(f"{STEPS} rates and the first update are those of updates, after {skipped} skipped steps")


if __name__ == "__main__":
    harness.main(body)
