#!/usr/bin/env python3
"""guard.non_finite=rollback and guard.spike_z: k steps are undone and their batches left out. That is what skipping each of these k steps comes
to, so it has those bits; a spike that the data makes is judged alike on one rank and on two, in files, and wherever the run is killed and goes
on; a replay goes the same way. Too many in a row end the run."""
import json
import os
import random

import harness

CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
optimizer: {{lr: 3e-3}}
checkpoint: {{every: 4, keep_last: 4}}
restart: {{limit: 20}}
layout: {{ranks: 1, threads: 1}}
"""
PAIR = ["layout.ranks=2", "layout.transport=mpi"]
SPIKES = ["guard.spike_z=2", "guard.spike_window=2", "guard.rollback_steps=6"]


def check(is_true, what):
    if not is_true:
        raise harness.Failure(what)


def nan(*passages):
    return {"PERDURE_FAULT": ",".join(f"engine.norm.nan:{n}" for n in passages)}


def rows(directory):
    return list(map(json.loads, harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()))


def rolled_back(directory):
    return {row["step"]: row["rolled_back_to"] for row in rows(directory) if "rolled_back_to" in row}


def undo(workspace, config):
    """k steps ending with step 7, from a checkpoint, from the beginning, on two ranks, with state in files."""
    for k, more in ((3, []), (6, []), (3, PAIR), (2, ["offload.optimizer=nvme"]), (3, ["numerics.precision=fp16"])):
        back, skipped = workspace.directory(), workspace.directory()
        given = [f"guard.rollback_steps={k}", "guard.non_finite=rollback", *more]
        fault = {"PERDURE_FAULT": "engine.loss.nan:7"} if "numerics.precision=fp16" in more else nan(7)
        said = workspace.train(config, back, given, fault).stderr
        check(f"back to the state of step {7 - k}" in said and "continuing with step 8" in said, f"words: {said}")
        check(rolled_back(back) == {7: 7 - k}, f"metrics: {rolled_back(back)}")
        if fault != nan(7):
            continue  # a skip of fp16 changes the loss scale
        workspace.train(config, skipped, ["guard.non_finite=skip"], nan(*range(8 - k, 8)))
        got, wanted = ({row["step"]: row["loss_bits"] for row in rows(d)} for d in (back, skipped))
        check(all(got[step] == wanted[step] for step in (*range(1, 9 - k), *range(8, 13))), f"k {k} {more}: other losses than with skips")
        check(workspace.state_digest(back) == workspace.state_digest(skipped), f"k {k} {more}: another state than with skips")
        check(rows(back)[-1]["skipped"] == k, "skips are not counted")
        check(workspace.command(["ckpt", "verify", back]).returncode == 0, f"k {k} {more}: checkpoints that are not of this run")
    workspace.train(config, back := workspace.directory(), ["guard.rollback_steps=5", "guard.non_finite=rollback"], nan(12))
    check(rolled_back(back) == {12: 7} and "12" in workspace.command(["ckpt", "ls", back]).stdout, "a rollback of the last step")


def spikes(workspace, data):
    config = workspace.file("spikes.yaml", CONFIG.format(data=data, steps=40))
    quiet = workspace.directory()
    workspace.train(config, quiet, SPIKES)
    found = rolled_back(quiet)
    check(len(found) >= 2, f"the data makes no spikes: {found}")
    draw = random.Random(int(os.environ.get("PERDURE_TEST_SEED", "1")))
    for number in range(3 * harness.scale()):
        run, more = workspace.directory(), (PAIR, [], ["layout.ranks=2"])[number % 3]
        kills = ",".join(f"worker.stepped{'@0' if more == PAIR else ''}:{draw.randint(1, 12)}" for _ in range(1))
        for _ in range(3):  # each start dies after some of its steps
            workspace.command(["train", config, f"run.dir={run}", *SPIKES, *more, "restart.limit=0"], {"PERDURE_FAULT": kills})
        workspace.train(config, run, SPIKES + more)
        check(rolled_back(run) == found, f"{kills}: rollbacks {rolled_back(run)}, and {found} of a quiet run")
        check(harness.losses(run) == harness.losses(quiet) and workspace.state_digest(run) == workspace.state_digest(quiet),
              f"{more}, {kills}: other bits than those of a quiet run")
    for step in (min(found), max(found), max(found) + 1, 40):
        result = workspace.command(["replay", quiet, f"--step={step}", "--json"])
        check(result.returncode == 0, f"replay of step {step}: {result.stdout}{result.stderr}")
    check(workspace.command(["report", quiet, "--json"]).returncode == 0, "report")


def body(workspace, _):
    text = harness.text_of(4000)
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000)), steps=12))
    undo(workspace, config)
    odd = os.path.join(workspace.path, "odd.txt")
    with open(odd, "wb") as f:
        f.write(text[:2000].encode() + bytes(200 + i * i % 56 for i in range(256)) + text[2000:].encode())
    spikes(workspace, odd)
    many = workspace.train(config, workspace.directory(), ["guard.non_finite=rollback", "guard.skips=2", "restart.limit=0"],
                           nan(*range(3, 8)), expect=93).stderr
    check("still after 2 rollbacks (guard.skips)" in many, f"too many rollbacks:\n{many}")
    refused = workspace.train(config, workspace.directory(), ["guard.spike_z=5", "guard.rollback_steps=100"], expect=78).stderr
    check("guard.rollback_steps is 100, and checkpoints reach 13 steps back" in refused, refused)
    print("rollbacks: the bits of skips, wherever the run is killed")


if __name__ == "__main__":
    harness.main(body)
