#!/usr/bin/env python3
"""Same bits: loss at every step and final state do not depend on ranks, threads, kills, resumes, recomputation or instruction set.

Every case is compared with the one-rank, one-thread, undisturbed run of the same family and precision. By default a pairwise
cover of all factors is run, of ranks that are processes half of it, the other half in another share (PERDURE_TEST_SHARE picks it); with
PERDURE_TEST_SCALE of 10 or more, every combination. Argument: local or mpi.
"""
import itertools
import random

import harness

STEPS = 6
FACTORS = {
    "world": [1, 2, 3, 5, 8],
    "threads": [1, 2],
    "disturbance": ["none", "kill", "resume"],
    "family": ["llama", "gpt2"],
    "precision": ["fp32", "bf16"],
    "recompute": ["none", "full"],
    "isa": ["avx512", "avx2", "portable"],
    "terms": [64, 32],
}


def available_isas():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        flags = set(next(line for line in f if line.startswith("flags")).split())
    found = ["portable"]
    if {"avx2", "fma", "f16c"} <= flags:
        found.insert(0, "avx2")
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        found.insert(0, "avx512")
    return found


def pairwise(factors, seed=1):
    """A small set of cases in which every pair of values of two factors occurs: greedy, with random candidates."""
    names = list(factors)
    chooser = random.Random(seed)

    def pairs_of(case):
        return {(a, case[a], b, case[b]) for a, b in itertools.combinations(names, 2)}

    missing = {(a, x, b, y) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]}
    cases = []
    while missing:
        a, x, b, y = min(missing, key=str)
        candidates = []
        for _ in range(60):
            case = {name: chooser.choice(factors[name]) for name in names}
            case[a], case[b] = x, y
            candidates.append(case)
        best = max(candidates, key=lambda case: len(pairs_of(case) & missing))
        missing -= pairs_of(best)
        cases.append(best)
    return cases


def every(factors):
    names = list(factors)
    return [dict(zip(names, values)) for values in itertools.product(*factors.values())]


CONFIG = """
run: {{seed: 42, steps: {steps}}}
model: {{family: {family}, vocab: 256, context: 32, layers: 2, hidden: 48, heads: 3, kv_heads: {kv}, head_size: 16, ffn: 96,
        tie_embeddings: {tied}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 8, micro_batch: 1, context: 32}}
optimizer: {{lr: 0.003, warmup_steps: 2}}
numerics: {{precision: {precision}, terms: {terms}}}
checkpoint: {{every: 2, keep_last: 2}}
validation: {{every: 3, sequences: 8}}
"""


def config_of(workspace, data, family, precision, terms):
    text = CONFIG.format(steps=STEPS, family=family, precision=precision, terms=terms, data=data, kv=1 if family == "llama" else 3,
                         tied="true" if family == "gpt2" else "false")
    return workspace.file(f"{family}-{precision}-{terms}.yaml", text)


def overrides_of(case, transport):
    return [f"layout.ranks={case['world']}", f"layout.threads={case['threads']}", f"layout.recompute={case['recompute']}",
            f"layout.transport={transport}"]


def run_case(workspace, config, case, transport, chooser):
    directory = workspace.directory("case")
    environment = {"PERDURE_ISA": case["isa"]}
    overrides = overrides_of(case, transport)
    if case["disturbance"] == "kill":
        victim, step = chooser.randrange(case["world"]), chooser.randrange(1, STEPS)
        environment["PERDURE_FAULT"] = f"worker.stepped@{victim}:{step}:kill"
        environment["PERDURE_FAULT_ONCE"] = directory + ".fault"
        workspace.train(config, directory, overrides, environment)
    elif case["disturbance"] == "resume":
        first = chooser.choice([w for w in FACTORS["world"] if w != case["world"]])
        workspace.train(config, directory, [*overrides_of(dict(case, world=first), transport), "run.steps=3",
                                            f"optimizer.decay_steps={STEPS}"], environment)
        workspace.train(config, directory, [*overrides, f"optimizer.decay_steps={STEPS}"], environment)
    else:
        workspace.train(config, directory, overrides, environment)
    return harness.losses(directory), workspace.state_digest(directory)


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    data = workspace.file("text.txt", harness.text_of(60000))
    factors = dict(FACTORS, isa=available_isas())
    for isa in sorted(set(FACTORS["isa"]) - set(factors["isa"])):
        print(f"skipped: {isa}: this processor does not have it")
    cases = every(factors) if harness.scale() >= 10 else pairwise(factors)
    if transport == "mpi":
        cases = harness.share_of(cases, 2)
    chooser = random.Random(7)
    expected = {}
    for kind in itertools.product(factors["family"], factors["precision"], factors["terms"]):
        case = {"world": 1, "threads": 1, "disturbance": "none", "recompute": "none", "isa": factors["isa"][0]}
        config = config_of(workspace, data, *kind)
        expected[kind] = config, run_case(workspace, config, case, "local", chooser)
    for number, case in enumerate(cases):
        config, want = expected[case["family"], case["precision"], case["terms"]]
        have = run_case(workspace, config, case, transport, chooser)
        if set(want[0]) - set(have[0]):
            raise harness.Failure(f"case {number} {case}: no loss for steps {sorted(set(want[0]) - set(have[0]))}")
        for step, bits in want[0].items():
            if have[0][step] != bits:
                raise harness.Failure(f"case {number} {case}: step {step} has loss bits {have[0][step]}, expected {bits}")
        if have[1] != want[1]:
            raise harness.Failure(f"case {number} {case}: state digest {have[1]}, expected {want[1]}")
    print(f"{len(cases)} cases over {transport} ranks: same bits")


harness.main(body)
