#!/usr/bin/env python3
"""Blocks with experts give the same bits under every layout.

For a softmax router (mixtral) and a sigmoid one (glm4_moe: dense first block, shared experts, groups, selection bias), in each precision:
loss bits, gradient norm, auxiliary losses, counts of tokens, validation loss and the digest of the state equal those of the one-rank run,
whatever dp, tp, pp, ep, ZeRO stage, recomputation, schedule, exchange, threads and place of the state; and after a run that ended in between
and went on under another layout. A layout that cannot spread the experts is refused in one sentence before any work.
"""
import json
import os
import random

import harness

STEPS = 3
COMPARED = ["loss_bits", "gradient_norm", "validation_loss", "router_loss", "experts", "loss_scale", "skipped"]
CONFIG = """
run: {{seed: 42, steps: {steps}}}
model: {{preset: {preset}, vocab: 257, context: 32, layers: 4, hidden: 48, heads: 6, kv_heads: 3, head_size: 8, z_loss: 0.01, {more}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 8, micro_batch: 1, context: 32}}
optimizer: {{lr: 0.003, warmup_steps: 2}}
numerics: {{precision: {precision}, virtual_tp: 4, virtual_sp: {virtual_sp}{scaling}}}
checkpoint: {{every: 0, keep_last: 1}}
validation: {{every: 2, sequences: 5}}
"""
FAMILIES = {"mixtral-1m": "ffn: 42, balance_loss: 0.1",
            "glm4-moe-1m": "ffn: 80, expert_ffn: 26, rotated: 4, router_groups: 4, router_groups_kept: 2, bias_step: 0.01"}
LAYOUTS = ["layout.ranks=2 layout.dp=2 layout.ep=2 layout.zero_stage=0",
           "layout.ranks=3 layout.dp=3 layout.zero_stage=3 layout.recompute=full",
           "layout.ranks=2 layout.tp=2 layout.recompute=selective",
           "layout.ranks=4 layout.dp=4 layout.ep=2 layout.zero_stage=1 layout.zero_shard=2",
           "layout.ranks=2 layout.pp=2 layout.interleave=2 layout.recompute=full layout.recompute_layers=1",
           "layout.ranks=8 layout.dp=2 layout.ep=2 layout.tp=2 layout.pp=2 layout.zero_stage=2 layout.exchange=lane",
           "layout.ranks=6 layout.dp=6 layout.ep=2 layout.zero_stage=3 layout.order=breadth_first",
           "layout.ranks=4 layout.dp=4 layout.ep=4 layout.ep_rows=1 layout.recompute=selective layout.zero_stage=2",
           "layout.ranks=2 layout.dp=2 layout.ep=2 offload.optimizer=nvme offload.parameters=nvme offload.gradients=nvme offload.activations=nvme"]
# Of sequences that are cut: sp divides virtual_sp, and ep divides dp x sp.
CUT_LAYOUTS = {2: ["layout.ranks=2 layout.sp=2 layout.ep=2 layout.zero_stage=1",
                   "layout.ranks=8 layout.dp=2 layout.sp=2 layout.ep=4 layout.pp=2 layout.zero_stage=3 layout.recompute=full",
                   "layout.ranks=4 layout.sp=2 layout.tp=2 layout.zero_stage=0 layout.exchange=lane"],
               4: ["layout.ranks=6 layout.dp=3 layout.sp=2 layout.ep=2 layout.zero_stage=2 layout.recompute=selective",
                   "layout.ranks=4 layout.sp=4 layout.ep=2 layout.zero_stage=2 offload.optimizer=nvme offload.activations=nvme",
                   "layout.ranks=8 layout.dp=2 layout.sp=4 layout.ep=8 layout.ep_rows=1 layout.zero_stage=3 layout.order=breadth_first"]}
EP_REFUSED = {"layout.ranks=3 layout.ep=2": "does not divide dp x sp, which is 3; use layout.ep=1",
              "layout.ranks=6 layout.ep=3": "does not divide model.experts, which is 8; use layout.ep=2",
              "layout.ranks=8 layout.ep=4 layout.zero_shard=2": "does not divide layout.zero_shard, which is 2; use layout.ep=2"}
SCHEDULE = ["optimizer.decay_steps=3", "optimizer.warmup_steps=2"]
FACTORS = {"tp": (1, 2, 4), "pp": (1, 2), "zero_stage": (0, 1, 2, 3), "recompute": ("none", "selective", "full"), "threads": (1, 2),
           "ep_rows": (1, 2), "exchange": ("step", "lane"), "order": ("auto", "breadth_first"), "transport": ("local", "local", "mpi"),
           "optimizer": ("device", "nvme"), "parameters": ("device", "nvme"), "gradients": ("device", "nvme"), "activations": ("device", "nvme")}


def drawn(chooser, virtual_sp):
    """Overrides of a layout of at most 8 ranks, with experts spread wherever there are data ranks."""
    while True:
        c = {name: chooser.choice(values) for name, values in FACTORS.items()}
        ep, sp = chooser.choice((1, 2, 4, 8)), chooser.choice([n for n in (1, 2, 4) if n <= virtual_sp])
        spread = ep * chooser.choice((1, 1, 2, 3))
        away = "nvme" in (c["parameters"], c["gradients"])
        ranks = spread * c["tp"] * c["pp"]
        if spread % sp or ranks > 8 or (c["pp"] > 1 and (c["order"] != "auto" or c["gradients"] == "nvme")):
            continue
        if (away and c["optimizer"] != "nvme") or (c["zero_stage"] == 0 and c["optimizer"] == "nvme"):
            continue
        places = [f"offload.{name}={c.pop(name)}" for name in ("optimizer", "parameters", "gradients", "activations")]
        return " ".join([f"layout.ranks={ranks} layout.dp={spread // sp} layout.sp={sp} layout.ep={ep}",
                         *(f"layout.{name}={value}" for name, value in c.items()), *places])


class Bench:
    def __init__(self, workspace):
        self.workspace = workspace
        self.data = workspace.file("text.txt", harness.text_of(20000))

    def config(self, preset, precision, virtual_sp=1):
        scaling = {"fp16": ", loss_scale: 32768", "bf16": ", terms: 32", "fp8": ", linears: fp8"}.get(precision, "")
        return self.workspace.file(f"{preset}-{precision}-{virtual_sp}.yaml", CONFIG.format(
            steps=STEPS, preset=preset, more=FAMILIES[preset], data=self.data, virtual_sp=virtual_sp, scaling=scaling,
            precision="bf16" if precision == "fp8" else precision))

    def run(self, config, *stretches, kill=None):
        """Overrides of each stretch of one run; all but the last end after a step. kill: where the first is killed once."""
        directory = self.workspace.directory("case")
        if kill:
            fault = {"PERDURE_FAULT": f"{kill}@0:1:kill", "PERDURE_FAULT_ONCE": directory + ".once"}
            command = ["train", config, f"run.dir={directory}", *stretches[0].split(), "run.steps=1", "checkpoint.every=1", *SCHEDULE]
            result = self.workspace.command(command, fault)
            if result.returncode not in (-9, 0) or not os.path.exists(directory + ".once"):
                raise harness.Failure(f"{config} {stretches}, killed at {kill}: exit {result.returncode}: {result.stderr}")
        for number, overrides in enumerate(stretches, 1):
            ends = [f"run.steps={number}"] if number < len(stretches) else []
            transport = [] if "transport" in overrides else ["layout.transport=local"]
            self.workspace.train(config, directory, [*overrides.split(), *transport, *ends, *SCHEDULE])
        found = {}
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
            for row in map(json.loads, f):
                found[f"step {row['step']}"] = {key: row[key] for key in COMPARED if key in row}
                if row["step"] % 2:  # a run that ends validates
                    found[f"step {row['step']}"].pop("validation_loss", None)
        found["state"] = self.workspace.state_digest(directory)
        return found

    def check(self, config, expected, *stretches, kill=None):
        have = self.run(config, *stretches, kill=kill)
        for key in sorted(set(expected) | set(have)):
            if kill and key != "state" and "experts" not in have.get(key, "experts"):
                continue  # the row was lost with the killed run, and written again from the checkpoint, which knows less
            if expected.get(key) != have.get(key):
                raise harness.Failure(f"{config} {stretches}: {key}: {have.get(key)}, the one-rank run has {expected.get(key)}")


def check_counts(found, preset, precision):
    """Every token chose two of eight experts; the dense block reports nothing; biases move unless fp16 skips the step."""
    blocks = found[f"step {STEPS}"]["experts"]
    if [row["block"] for row in blocks] != list(range(1 if preset.startswith("glm") else 0, 4)):
        raise harness.Failure(f"{preset}: {blocks}")
    for row in blocks:
        if not (0 <= row["idlest"] <= 0.125 <= row["busiest"] <= 0.5 and 0 < row["entropy"] <= 2.0795):
            raise harness.Failure(f"{preset}: {row}")
        if preset.startswith("glm") and precision != "fp16" and not 0 < row["bias_range"] <= 2 * 0.01 * STEPS + 1e-3:
            raise harness.Failure(f"{preset} {precision}: {row}")


def campaign(workspace, bench, cases):
    """Random runs of two layouts; some are killed in between. A seed draws the same ones again."""
    seed = harness.seed()
    expected = {}
    for number in range(cases):
        chooser = random.Random(f"{seed}:{number}")
        virtual_sp = chooser.choice((1, 1, 2, 4))
        config = bench.config(chooser.choice(list(FAMILIES)), chooser.choice(("fp32", "bf16", "fp16", "fp8")), virtual_sp)
        if config not in expected:
            expected[config] = bench.run(config, "layout.ranks=1 layout.threads=1")
        stretches = [drawn(chooser, virtual_sp), drawn(chooser, virtual_sp)]
        try:
            bench.check(config, expected[config], *stretches, kill=chooser.choice((None, "worker.stepped", "worker.saved")))
        except harness.Failure as failure:
            raise harness.Failure(f"PERDURE_TEST_SEED={seed}, case {number}: {failure}") from None


def body(workspace, arguments):
    bench, count = Bench(workspace), 0
    if arguments:
        campaign(workspace, bench, int(arguments[0]))
        print(f"{arguments[0]} random runs of two layouts with spread experts: same bits")
        return
    for which, preset in enumerate(FAMILIES):
        for number, precision in harness.share_of(enumerate(["fp32", "bf16", "fp16", "fp8"]), 2, lambda place, _, which=which: place + which):
            config = bench.config(preset, precision)
            expected = bench.run(config, "layout.ranks=1 layout.threads=1")
            check_counts(expected, preset, precision)
            layouts = LAYOUTS if harness.scale() >= 4 else harness.share_of(LAYOUTS[number::3], 2, lambda place, _, n=number + which: place + n)
            for layout in layouts:
                bench.check(config, expected, layout if "threads" in layout else f"{layout} layout.threads=1")
            bench.check(config, expected, LAYOUTS[number], LAYOUTS[number + 3], LAYOUTS[8 - number])
            count += len(layouts) + 1
    for number, (preset, virtual_sp) in enumerate((preset, n) for preset in FAMILIES for n in CUT_LAYOUTS):
        config = bench.config(preset, ("fp32", "fp8", "fp16", "bf16")[number], virtual_sp)
        expected = bench.run(config, "layout.ranks=1 layout.threads=1")
        layouts = harness.share_of(CUT_LAYOUTS[virtual_sp], 2, lambda place, _, number=number: place + number)
        for layout in layouts:
            bench.check(config, expected, f"{layout} layout.threads=1")
        bench.check(config, expected, CUT_LAYOUTS[virtual_sp][number % 3], CUT_LAYOUTS[virtual_sp][(number + 1) % 3])
        count += len(layouts) + 1
    config = bench.config("mixtral-1m", "bf16")
    for override, reason in EP_REFUSED.items():
        directory = workspace.directory("refused")
        result = workspace.train(config, directory, override.split(), expect=78)
        if os.path.exists(directory) or reason not in result.stderr:
            raise harness.Failure(f"{override}: {result.stderr}")
    print(f"{count} layouts of models with experts: same bits; {len(EP_REFUSED)} refused")


harness.main(body)
