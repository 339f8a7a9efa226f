#!/usr/bin/env python3
"""guard.replay_every: a rank whose gradients, weights or activations go wrong in one bit, from a random moment on (a fault), is found at the next
comparison and named, under every layout that has a third group; what was computed since ranks agreed goes to quarantine, and the run ends with
the bits of a quiet one. Quiet runs have the same bits with comparisons as without."""
import json
import os
import random
import re

import harness

CONFIG = """
run: {{seed: 3, steps: 24}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 12, micro_batch: 1, context: 64}}
numerics: {{lanes: 12}}
checkpoint: {{every: 3, keep_last: 3}}
layout: {{ranks: 3, threads: 1, transport: local}}
"""
EXPERTS = CONFIG.replace("{{family: llama,", "{{family: mixtral, experts: 8, experts_per_token: 2, balance_loss: 0.01,").replace("steps: 24", "steps: 4")
EVERY = 4
COMPARE = f"guard.replay_every={EVERY}"
LAYERS, MICRO_BATCHES = 2, 12


def check(is_true, what):
    if not is_true:
        raise harness.Failure(what)


def agree(workspace, config):
    """Placements and layouts, a share of them: comparing finds nothing and changes nothing."""
    quiet, digest = workspace.directory(), None
    workspace.train(config, quiet)
    digest = workspace.state_digest(quiet)
    for words in harness.share_of((
            ["layout.ranks=1"], ["layout.ranks=2", "layout.transport=mpi"], [], ["layout.ranks=3", "layout.zero_stage=0"],
            ["layout.ranks=4", "layout.pp=2"], ["layout.ranks=2", "layout.pp=2", "layout.interleave=1"], ["layout.ranks=3", "layout.exchange=lane"],
            ["offload.optimizer=nvme", "offload.parameters=nvme", "offload.gradients=nvme", "offload.activations=nvme"]), 2):
        run = workspace.directory()
        workspace.train(config, run, [*words, COMPARE])
        check(workspace.state_digest(run) == digest, f"{words}: comparing changes the bits")
    for words in harness.share_of((
            ["numerics.virtual_tp=2", "layout.ranks=4", "layout.tp=2"], ["numerics.virtual_sp=2", "layout.ranks=4", "layout.sp=2"],
            ["numerics.lanes=4"], ["numerics.precision=bf16", "numerics.lanes=6"], ["numerics.precision=fp16"]), 2):
        alone, run = workspace.directory(), workspace.directory()
        numerics = [word for word in words if word.startswith("numerics")]
        workspace.train(config, alone, [*numerics, "layout.ranks=1"])
        workspace.train(config, run, [*words, COMPARE])
        check(workspace.state_digest(run) == workspace.state_digest(alone), f"{words}: comparing changes the bits")
    return digest


def step_of(passage):
    """Of a rank of three: its micro-batches' blocks, and one micro-batch more where ranks compare."""
    step = 0
    while passage > 0:
        step += 1
        passage -= LAYERS * (MICRO_BATCHES // 3 + (step % EVERY == 0))
    return step


def wrong(workspace, config, digest):
    draw = random.Random(int(os.environ.get("PERDURE_TEST_SEED", "1")))
    for number in range(6 * harness.scale()):
        what = ("gradient", "weight", "activation")[number % 3]
        rank, moment = draw.randrange(3), draw.randint(1, 20 * LAYERS * MICRO_BATCHES // 3)
        run = workspace.directory()
        fault = {"PERDURE_FAULT": f"engine.{what}.wrong@{rank}:{moment}", "PERDURE_FAULT_ONCE": run + ".once"}
        more = ["layout.zero_stage=0"] if number % 2 else []
        said = workspace.train(config, run, [COMPARE, *more], fault).stderr
        found = re.search(r"rank (\d) computes wrong results: at step (\d+) .*it is on host", said)
        check(found and int(found[1]) == rank, f"{fault}: rank {rank} is not named:\n{said}")
        begun = step_of(moment)
        check(begun <= int(found[2]) <= begun + EVERY, f"{fault}: wrong from step {begun} on, found at step {found[2]}")
        agreed = int(found[2]) - EVERY
        starts = [json.loads(line) for line in harness.read(os.path.join(run, "events.jsonl")).splitlines()]
        last = [event for event in starts if event["event"] == "open"][-1]
        check(last["step"] <= agreed, f"{fault}: went on from step {last['step']}, and ranks last agreed at step {agreed}")
        check(workspace.state_digest(run) == digest, f"{fault}: other bits than a quiet run")


def few(workspace, config, digest):
    """Two groups, and one: what does not last is found, and whose it was; what lasts can be told by nobody."""
    held = {"ranks": 2, "slots": MICRO_BATCHES // 2}
    found = 0
    for passage in range(1, 2 * held["slots"] * LAYERS * EVERY + 1, LAYERS):
        if found or passage <= held["slots"] * LAYERS * (EVERY - 1):
            continue  # of the step that is compared
        run = workspace.directory()
        fault = {"PERDURE_FAULT": f"engine.gradient.flip@1:{passage}", "PERDURE_FAULT_ONCE": run + ".once"}
        said = workspace.train(config, run, ["layout.ranks=2", "run.steps=4", COMPARE], fault).stderr
        found += "rank 1 computes wrong results: at step 4" in said
        check("rank 0 computes" not in said, said)
    check(found, "one flip in the micro-batch that two ranks compare is not found")
    run = workspace.directory()
    said = workspace.train(config, run, ["layout.ranks=2", COMPARE], {"PERDURE_FAULT": "engine.gradient.wrong@1:30", "PERDURE_FAULT_ONCE": run + ".once"}).stderr
    check("two groups nobody can tell who is wrong" in said and workspace.state_digest(run) == digest, said)


def experts(workspace):
    """What micro-batches of other ranks give a rank's experts is compared too, with another group's experts or with the same ones again."""
    config = workspace.file("experts.yaml", EXPERTS.format(data=workspace.file("words.txt", harness.text_of(30000))))
    alone = {}
    for words in harness.share_of((
            ["layout.ranks=1"], ["layout.ranks=2", "layout.ep=2"], ["layout.ranks=4", "layout.ep=2"],
            ["layout.ranks=6", "layout.ep=2", "layout.zero_stage=0"], ["layout.ranks=4", "layout.ep=4", "layout.exchange=lane"],
            ["layout.ranks=4", "layout.sp=2", "layout.ep=4", "numerics.virtual_sp=2"],
            ["layout.ranks=8", "layout.sp=2", "layout.ep=4", "numerics.virtual_sp=2"]), 2):
        numerics = " ".join(word for word in words if word.startswith("numerics"))
        if numerics not in alone:
            alone[numerics] = workspace.directory()
            workspace.train(config, alone[numerics], [*numerics.split(), "layout.ranks=1"])
        run = workspace.directory()
        workspace.train(config, run, [*words, COMPARE])
        check(workspace.state_digest(run) == workspace.state_digest(alone[numerics]), f"{words}: comparing changes the bits")
    for ranks in (2, 4):
        slots, found = MICRO_BATCHES // ranks, 0
        for passage in range(slots * LAYERS * (EVERY - 1) + 1, slots * LAYERS * EVERY + 1):
            run = workspace.directory()
            fault = {"PERDURE_FAULT": f"engine.expert.flip@1:{passage}", "PERDURE_FAULT_ONCE": run + ".once"}
            said = workspace.train(config, run, [f"layout.ranks={ranks}", "layout.ep=2", COMPARE], fault).stderr
            found += "rank 1 computes wrong results: at step 4" in said
            check(not re.search("rank [^1] computes", said), said)
            if found:
                break
        check(found, f"{ranks} ranks: a wrong gradient of an expert is not found")


def body(workspace, _):
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
    digest = agree(workspace, config)
    wrong(workspace, config, digest)
    few(workspace, config, digest)
    experts(workspace)
    said = workspace.train(config, workspace.directory(), [COMPARE, "numerics.lanes=1", "layout.ranks=1"], expect=78).stderr
    check("numerics.lanes=1 makes none" in said, said)
    said = workspace.train(config, workspace.directory(), ["guard.replay_every=50"], expect=78).stderr
    check("guard.replay_every is 50, and checkpoints reach 7 steps back" in said, said)
    print("comparisons: a wrong rank is found and named, and the run has the bits of a quiet one")


if __name__ == "__main__":
    harness.main(body)
