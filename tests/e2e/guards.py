#!/usr/bin/env python3
"""A gradient norm that is not finite (a fault: engine.norm.nan) ends the run with 70 and names its samples. With guard.non_finite=skip
the batch is consumed and updates nothing: the same bits on one rank, on two processes and after a kill; too many in a row end it.
Gradients that are finite but out of range of the exact sums (optimizer.lr=30) end nothing: the step is computed again."""
import json
import os

import harness

CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
checkpoint: {{every: 4}}
layout: {{ranks: 1, threads: 1}}
"""
NAN = {"PERDURE_FAULT": "engine.norm.nan:5"}
SKIP = "guard.non_finite=skip"


def rows(directory):
    lines = harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()
    return {row["step"]: row for row in map(json.loads, lines)}


def large(workspace, config):
    keys = ["optimizer.lr=30", "optimizer.clip_norm=0", "optimizer.warmup_steps=1", "optimizer.decay_steps=12", "numerics.precision=fp32"]
    alone, pair, cut = (workspace.directory() for _ in range(3))
    said = workspace.train(config, alone, keys).stderr
    workspace.train(config, pair, keys + ["layout.ranks=2", "layout.transport=mpi"])
    for steps in ("5", "12"):
        workspace.train(config, cut, keys + [f"run.steps={steps}"])
    coarser = {step: row["coarser"] for step, row in rows(alone).items() if "coarser" in row}
    if not {5, 6} <= coarser.keys() or "larger than the exact sums hold (their range); the step is computed again with a range 2^16 times larger" not in said:
        raise harness.Failure(f"no step is computed again before and after the cut: {coarser}\n{said}")
    for other in (pair, cut):
        if harness.losses(other) != harness.losses(alone) or workspace.state_digest(other) != workspace.state_digest(alone):
            raise harness.Failure("other bits on two ranks, or where the run was left between")


def body(workspace, _):
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
    stopped = workspace.train(config, workspace.directory(), ["restart.limit=0"], NAN, expect=93).stderr
    ended = workspace.train(config, workspace.directory(), ["checkpoint.every=0"], NAN, expect=70).stderr
    again = workspace.train(config, workspace.directory(), [], dict(NAN, PERDURE_FAULT_ONCE=os.path.join(workspace.path, "once"))).stderr
    if "did not come again" not in again or "did not come again" in ended:
        raise harness.Failure(f"a NaN that a restart does not repeat is not called hardware:\n{again}")
    if any("samples 16 to 19; guard.non_finite=skip" not in text for text in (stopped, ended)):
        raise harness.Failure(f"the samples, or what to do, are not said:\n{stopped}{ended}")
    once = {"PERDURE_FAULT": "engine.gradient.nan@1:20", "PERDURE_FAULT_ONCE": os.path.join(workspace.path, "once-of-rank-1")}
    named = workspace.train(config, workspace.directory(), ["layout.ranks=2", "layout.transport=mpi"], once).stderr
    if f"suspect the hardware of rank 1, on host {os.uname().nodename} (" not in named:
        raise harness.Failure(f"a NaN that one rank computed once is not charged to it:\n{named}")
    plain, alone, pair, cut = (workspace.directory() for _ in range(4))
    workspace.train(config, plain)
    said = workspace.train(config, alone, [SKIP], NAN).stderr
    workspace.train(config, pair, [SKIP, "layout.ranks=2", "layout.transport=mpi"], NAN)
    if "step 5 is skipped (guard.non_finite)" not in said or "samples 16 to 19" not in said:
        raise harness.Failure(f"a skip is not said:\n{said}")
    if [step for step, row in rows(alone).items() if row.get("skipped") == 1] != list(range(5, 13)):
        raise harness.Failure(f"metrics do not count the skip: {rows(alone)[12]}")
    got, before = harness.losses(alone), harness.losses(plain)
    if any(got[step] != before[step] for step in range(1, 6)) or got[7] == before[7]:
        raise harness.Failure("a skipped step changed those before it, or updated all the same")
    if harness.losses(pair) != got or workspace.state_digest(pair) != workspace.state_digest(alone):
        raise harness.Failure("other bits on two ranks")
    for steps in ("6", "12"):  # the first start skips step 5; the second continues after it
        workspace.train(config, cut, [SKIP, f"run.steps={steps}", "optimizer.decay_steps=12", "optimizer.warmup_steps=1"], NAN if steps == "6" else {})
    whole = workspace.directory()
    workspace.train(config, whole, [SKIP, "optimizer.decay_steps=12", "optimizer.warmup_steps=1"], NAN)
    if harness.losses(whole) != harness.losses(cut):
        raise harness.Failure("other bits where the run was left between")
    many = workspace.train(config, workspace.directory(), [SKIP, "guard.skips=2", "restart.limit=0"],
                           {"PERDURE_FAULT": ",".join(f"engine.norm.nan:{n}" for n in (3, 4, 5))}, expect=93).stderr
    if "3 steps in a row were not finite (guard.skips)" not in many:
        raise harness.Failure(f"too many skips:\n{many}")
    large(workspace, config)
    print("not finite: ends, or is skipped with the same bits on one rank and two")


if __name__ == "__main__":
    harness.main(body)
