#!/usr/bin/env python3
"""Every layout gives the same bits.

For every world of 1 to 8 ranks every admitted (dp, tp, pp, sp), with the ZeRO stages, zero_shard groups, interleaving, recomputation
and precisions that apply: loss bits and gradient norm of every step, validation loss and the digest of the state must equal those
of the one-rank run of the same model and numerics. Layouts that are not admitted must be refused with one sentence and exit code 78
before any work; the sentences are printed.

By default every (dp, tp, pp, sp) and every pair of two factors' values occurs in three shares, with one precision a share for each family
and virtual degrees, so that a share has few one-rank runs to make (PERDURE_TEST_SHARE picks another; with PERDURE_TEST_SCALE of 4 or more all
shares at once); with PERDURE_TEST_SCALE of 10 or more, every combination. Arguments: local or mpi; then KEY=VALUE pairs of factors to run only the cases
that have them.
"""
import itertools
import json
import os
import random

import harness

STEPS = 3
LAYERS = 5
MICRO_BATCHES = 8
VIRTUAL = {"8x8": (8, 8), "2x2": (2, 2), "1x1": (1, 1)}
COST = {"8x8": 6, "2x2": 2, "1x1": 1}  # of a run, about: small pieces are many products
RECOMPUTE = ["none", "selective", "full", "selective,recompute_layers=2", "full,recompute_layers=1"]
PRECISION = ["fp32", "bf16", "fp16"]
FAMILY = ["llama", "gpt2"]
CONFIG = """
run: {{seed: 42, steps: {steps}}}
model: {{family: {family}, vocab: 257, context: 32, layers: {layers}, hidden: 48, heads: 6, kv_heads: {kv}, head_size: 8, ffn: 80,
        tie_embeddings: {tied}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1, separate_documents: {apart}, document_token: {token}}}
batch: {{sequences: {micro_batches}, micro_batch: 1, context: 32}}
optimizer: {{lr: 0.003, warmup_steps: 2}}
numerics: {{precision: {precision}, virtual_tp: {tp}, virtual_sp: {sp}{scaling}}}
checkpoint: {{every: 0, keep_last: 1}}
validation: {{every: 2, sequences: 5}}
"""
COMPARED = ["loss_bits", "gradient_norm", "validation_loss", "loss_scale", "skipped"]
CONFIGURATION = 78


def factorisations(world):
    """All (dp, tp, pp, sp) whose product is the world."""
    divisors = [d for d in range(1, world + 1) if world % d == 0]
    for tp, pp, sp in itertools.product(divisors, repeat=3):
        if world % (tp * pp * sp) == 0:
            yield world // (tp * pp * sp), tp, pp, sp


def admitted(degrees, virtual):
    dp, tp, pp, sp = degrees
    return dp <= MICRO_BATCHES and virtual[0] % tp == 0 and virtual[1] % sp == 0 and pp <= LAYERS


def interleaves_of(pp):
    return range(1, max(LAYERS // pp, 1) + 1) if pp > 1 else [1]


def every_case(worlds):
    cases = []
    for world in worlds:
        for degrees in factorisations(world):
            shards = [d for d in range(1, degrees[0] * degrees[3] + 1) if degrees[0] * degrees[3] % d == 0]
            for virtual, interleave, stage, shard in itertools.product(VIRTUAL, interleaves_of(degrees[2]), range(4), shards):
                if not admitted(degrees, VIRTUAL[virtual]):
                    continue
                for recompute, precision, family in itertools.product(RECOMPUTE, PRECISION, FAMILY):
                    cases.append({"world": world, "degrees": degrees, "dp": degrees[0], "tp": degrees[1], "pp": degrees[2],
                                  "sp": degrees[3], "virtual": virtual, "interleave": interleave, "stage": stage, "shard": shard,
                                  "recompute": recompute, "precision": precision, "family": family})
    return cases


def parts_of(case, pairs):
    """What a case covers: every value of a factor; where `pairs`, every (dp, tp, pp, sp) and every pair of values."""
    single = {name: case[name] for name in case}
    single["shard"] = "whole" if case["shard"] == case["dp"] * case["sp"] else "groups" if case["shard"] > 1 else "one"
    found = {(name, value) for name, value in single.items() if pairs or name not in ("degrees", "world")}
    names = [name for name in single if name not in ("degrees", "world")]
    return found | ({(a, single[a], b, single[b]) for a, b in itertools.combinations(names, 2)} if pairs else set())


def cover(cases, pairs=True, seed=1):
    """A small set of cases that covers what all of them cover: greedy, with random candidates."""
    chooser = random.Random(seed)
    parts = [parts_of(case, pairs) for case in cases]
    holders = {}
    for number, covered in enumerate(parts):
        for part in covered:
            holders.setdefault(part, []).append(number)
    missing, chosen = set(holders), []
    for part in sorted(holders, key=lambda p: (len(holders[p]), str(p))):
        if part not in missing:
            continue
        candidates = chooser.sample(holders[part], min(40, len(holders[part])))
        best = max(candidates, key=lambda number: len(parts[number] & missing) / COST[cases[number]["virtual"]])
        missing -= parts[best]
        chosen.append(cases[best])
    return chosen


def kind_of(_place, case):
    """By which the one-rank run is chosen, as a number: in three in a row every precision has its turn with each family and virtual degrees."""
    return PRECISION.index(case["precision"]) + FAMILY.index(case["family"]) + list(VIRTUAL).index(case["virtual"])


def overrides_of(case, transport):
    return [f"layout.ranks={case['world']}", f"layout.dp={case['dp']}", f"layout.tp={case['tp']}", f"layout.pp={case['pp']}",
            f"layout.sp={case['sp']}", f"layout.interleave={case['interleave']}",
            f"layout.zero_stage={case['stage']}", f"layout.zero_shard={case['shard']}",
            *(f"layout.{part}" for part in f"recompute={case['recompute']}".split(",")), f"layout.transport={transport}", "layout.threads=1"]


class Bench:
    """Configurations, one-rank references and what a run left behind."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.data = workspace.file("text.txt", harness.text_of(20000))
        self.references = {}

    def config(self, family, precision, virtual):
        tp, sp = VIRTUAL[virtual]
        text = CONFIG.format(steps=STEPS, layers=LAYERS, micro_batches=MICRO_BATCHES, family=family, precision=precision, data=self.data,
                             kv=3 if family == "llama" else 6, tied="true" if family == "gpt2" else "false", tp=tp, sp=sp,
                             apart="true" if precision == "bf16" else "false", token=32 if precision == "bf16" else -1,
                             # some steps overflow and are skipped, others are not
                             scaling=", loss_scale: 32768" if precision == "fp16" else "")
        return self.workspace.file(f"{family}-{precision}-{virtual}.yaml", text)

    def run(self, config, overrides):
        directory = self.workspace.directory("case")
        self.workspace.train(config, directory, overrides)
        found = {}
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
            for line in f:
                row = json.loads(line)
                found[f"step {row['step']}"] = {key: row[key] for key in COMPARED if key in row}
        found["state"] = self.workspace.state_digest(directory)
        return found

    def expected(self, case):
        key = case["family"], case["precision"], case["virtual"]
        if key not in self.references:
            config = self.config(*key)
            found = self.run(config, ["layout.ranks=1", "layout.transport=local", "layout.threads=1"])
            skipped = found[f"step {STEPS}"].get("skipped", 0)
            if case["precision"] == "fp16" and not 0 < skipped < STEPS:
                raise harness.Failure(f"{key}: {skipped} of {STEPS} steps are skipped: choose another loss scale")
            self.references[key] = config, found
        return self.references[key]

    def check(self, case, transport):
        """None, or what differs."""
        config, want = self.expected(case)
        try:
            have = self.run(config, overrides_of(case, transport))
        except harness.Failure as failure:
            return str(failure)
        for key in sorted(set(want) | set(have)):
            if want.get(key) != have.get(key):
                return f"{key}: {have.get(key)}, the one-rank run has {want.get(key)}"
        return None


def check_refusals(bench):
    """Products of 1 to 8 ranks that the numerics or the model do not admit."""
    config = bench.config("llama", "fp32", "8x8")
    count = 0
    for world in range(1, 9):
        for degrees in factorisations(world):
            if admitted(degrees, VIRTUAL["8x8"]):
                continue
            case = {"world": world, "dp": degrees[0], "tp": degrees[1], "pp": degrees[2], "sp": degrees[3], "stage": 3,
                    "interleave": 1, "shard": 0, "recompute": "none"}
            directory = bench.workspace.directory("refused")
            result = bench.workspace.train(config, directory, overrides_of(case, "local"), expect=CONFIGURATION)
            said = [line for line in result.stderr.splitlines() if line.strip()]
            if os.path.exists(directory) or not said:
                raise harness.Failure(f"{degrees}: refused in silence or after work began: {result.stderr}")
            print(f"refused: dp {degrees[0]} tp {degrees[1]} pp {degrees[2]} sp {degrees[3]}: {said[-1]}")
            count += 1
    return count


def selected(case, wanted):
    return all(str(case[name]) == value for name, value in wanted)


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    wanted = [argument.split("=", 1) for argument in arguments[1:]]
    cases = [case for case in every_case(range(1, 9)) if selected(case, wanted)]
    total = len(cases)
    if transport == "mpi":
        # Processes start slowly: every value of every factor, and all of the pairs only when asked for.
        cases = cover([c for c in cases if c["world"] in (4, 6, 8)], pairs=harness.scale() >= 10)
    elif harness.scale() < 10:
        cases = harness.share_of(cover(cases), 3, kind_of)
    bench = Bench(workspace)
    failures = []
    for case in cases:
        difference = bench.check(case, transport)
        if difference:
            failures.append(f"{case}: {difference}")
            print(f"differs: {failures[-1]}", flush=True)
        if len(failures) >= 10:
            break
    if failures:
        raise harness.Failure(f"{len(failures)} of {len(cases)} layouts are not the one-rank run (the first is: {failures[0]})")
    refused = check_refusals(bench) if transport == "local" and not wanted else 0
    print(f"{len(cases)} of {total} cases over {transport} ranks: same bits; {refused} layouts refused")


harness.main(body)
