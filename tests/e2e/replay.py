#!/usr/bin/env python3
"""perdure replay: a quiet run agrees from every checkpoint and under any layout that computed it, fp16 and skips too; a bit that was flipped
in one micro-batch (a fault: engine.gradient.flip) is found, in the losses behind it or in the state alone, and names where to continue."""
import json
import os

import harness

CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 1, context: 64}}
checkpoint: {{every: 4}}
layout: {{ranks: 1, threads: 1}}
"""
MICRO_BATCHES, LAYERS = 4, 2


def replay(workspace, run, step, *more, expect=0):
    result = workspace.command(["replay", run, f"--step={step}", "--json", *more])
    if result.returncode != expect:
        raise harness.Failure(f"replay of step {step} of {run}: exit {result.returncode}, expected {expect}\n{result.stdout}{result.stderr}")
    return (json.loads(result.stdout) if result.stdout else {}), result.stderr


def check(is_true, what):
    if not is_true:
        raise harness.Failure(what)


def flipped(workspace, config, step):
    """A run of one rank whose first micro-batch of `step` went wrong in one bit."""
    run = workspace.directory()
    workspace.train(config, run, ["numerics.precision=fp32"], {"PERDURE_FAULT": f"engine.gradient.flip:{(step - 1) * MICRO_BATCHES * LAYERS + 1}"})
    return run


def agreements(workspace, config, data):
    quiet, half, skipped = (workspace.directory() for _ in range(3))
    workspace.train(config, quiet, ["layout.ranks=2", "layout.tp=2", "numerics.virtual_tp=2"])
    for step, start, end in ((1, 0, 4), (4, 0, 4), (5, 4, 8), (12, 8, 12)):
        found, _ = replay(workspace, quiet, step)
        check((found["from_step"], found["to_step"], found["losses_compared"]) == (start, end, end - start), f"step {step}: {found}")
        check(found["result"] == "agrees" and found["recorded_state_digest"] == found["computed_state_digest"], f"step {step}: {found}")
    found, _ = replay(workspace, quiet, 6, "--loss-only")
    check((found["to_step"], found["losses_compared"]) == (6, 2) and "checkpoint" not in found, f"--loss-only: {found}")
    workspace.train(config, half, ["numerics.precision=fp16", "numerics.loss_scale=16777216", "numerics.loss_scale_interval=2"])
    workspace.train(config, skipped, ["guard.non_finite=skip"], {"PERDURE_FAULT": "engine.norm.nan:3"})
    check(replay(workspace, half, 6)[0]["result"] == "agrees", "fp16")
    check(replay(workspace, skipped, 9)[0]["result"] == "agrees", "behind a skip")
    moved = data + ".moved"
    os.rename(data, moved)
    check(data in replay(workspace, quiet, 6, expect=78)[1], "data that is gone is not named")
    check(replay(workspace, quiet, 6, f"data.train[0].path={moved}")[0]["result"] == "agrees", "data that was moved")
    os.rename(moved, data)
    check("has no record of step 13" in replay(workspace, quiet, 13, expect=65)[1], "a step that is not there yet")


def differences(workspace, config):
    early, late = flipped(workspace, config, 6), flipped(workspace, config, 8)
    found, said = replay(workspace, early, 7, expect=65)
    check(found["first_different_step"] == 7 and found["result"] == "differs", f"a flip at step 6: {found}")
    check("losses of steps 5 to 8 are not" in said and "continue from step 4" in said, f"words: {said}")
    check(replay(workspace, early, 3)[0]["result"] == "agrees" and replay(workspace, early, 9)[0]["result"] == "agrees", "steps without a flip")
    found, said = replay(workspace, late, 8, expect=65)
    check(found["losses_different"] == 0 and "the state behind the last of steps 5 to 8 is not" in said, f"a flip at step 8: {found} {said}")


def body(workspace, _):
    data = workspace.file("text.txt", harness.text_of(40000))
    config = workspace.file("run.yaml", CONFIG.format(data=data))
    agreements(workspace, config, data)
    differences(workspace, config)
    print("replay: quiet runs agree, one flipped bit is found")


if __name__ == "__main__":
    harness.main(body)
