#!/usr/bin/env python3
"""The tool on GPUs: simulated ones (tests/simt) or real ones, whatever the tool given has.

alone   one rank: the same bits run after run, whatever the GPU does first; after a kill; after the GPU was lost, again and again. A
        CPU's checkpoint continues on the GPU, and back. Losses beside the CPU's. Memory after step 40 (100 where there is time) is what it was after step 10
local   several ranks as threads, sharing the GPU: under every (dp, tp, pp, sp) the bits of one rank
nccl    several ranks as threads, a GPU each: what they exchange goes by NCCL's stand-in, on streams, and no host waits for it
mpi     the same with processes; one of them killed
deaf    of `alone`, what simulated GPUs are told to do, with GPUs that cannot be told: as on real ones, where it is skipped with its
        reason, or measured by other means

By default a few of each, of layouts, stages and schedules a share (harness.share_of); with PERDURE_TEST_SCALE of 4, every layout of 2,
3 and 4 ranks; of 10 or more, those of 8 too, and what each was run with (cases_of).
"""
import functools
import itertools
import json
import math
import os
import re

import harness

STEPS = 4
CONFIG = """
run: {{seed: 42, steps: {steps}, device: gpu}}
model: {{family: {family}, vocab: 256, context: 16, layers: 2, hidden: {hidden}, heads: {heads}, kv_heads: {kv}, head_size: {head},
        ffn: 48, tie_embeddings: {tied}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1, separate_documents: {apart}, document_token: {token}}}
batch: {{sequences: 4, micro_batch: {micro_batch}, context: 16}}
optimizer: {{lr: 0.003, warmup_steps: 2, decay_steps: {steps}}}
numerics: {{precision: {precision}, virtual_tp: {virtual}, virtual_sp: {pieces}}}
checkpoint: {{every: 2, keep_last: 2}}
validation: {{every: {validate}, sequences: 2}}
layout: {{ranks: 1, threads: 1, transport: local}}
"""
NEAR = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}  # relative, of losses beside the CPU's


class Bench:
    def __init__(self, workspace):
        self.workspace = workspace
        self.data = workspace.file("text.txt", harness.text_of(40000))
        self.known = {}
        self.is_simulated = "gpu use" not in self.findings({"PERDURE_SIMT_GPUS": "0"})  # a real GPU is there all the same
        if self.is_simulated:  # the stand-in for NCCL takes only threads
            os.environ["PERDURE_TEST_GPU_THREADS"] = "1"

    def findings(self, environment=None):
        found = json.loads(self.workspace.command(["doctor", "--json"], environment).stdout)["findings"]
        return {row["what"]: row["here"] for row in found}

    def config(self, family="llama", precision="fp32", head=16, virtual=1, steps=STEPS, micro_batch=1, pieces=None):
        heads, is_llama = 1 if head == 64 else 4 // (head // 8), family == "llama"
        text = CONFIG.format(steps=steps, validate=min(steps, 3), family=family, precision=precision, data=self.data,
                             hidden=heads * head, heads=heads, head=head, kv=heads // 2 if is_llama and heads > 1 else heads,
                             virtual=virtual, pieces=pieces or virtual, micro_batch=micro_batch, tied="false" if is_llama else "true", apart="true" if is_llama else "false",
                             token=32 if is_llama else -1)
        return self.workspace.file(f"{family}-{precision}-{head}-{virtual}-{steps}-{micro_batch}-{pieces}.yaml", text)

    def train(self, *arguments, **named):
        result = self.workspace.train(*arguments, **named)
        if "was not loaded before the first exchange between GPUs" in result.stderr:  # of a kernel that NCCL's may keep from being loaded
            raise harness.Failure(f"a product that no rehearsal had: {result.stderr}")
        return result

    def run(self, config, overrides=(), environment=None, directory=None):
        directory = directory or self.workspace.directory()
        self.train(config, directory, overrides, environment)
        return harness.losses(directory), self.workspace.state_digest(directory)

    def expected(self, config):
        if config not in self.known:
            self.known[config] = self.run(config)
        return self.known[config]

    def same(self, what, config, *arguments, **named):
        got, want = self.run(config, *arguments, **named), self.expected(config)
        if got != want:
            raise harness.Failure(f"{what}, {os.path.basename(config)}: losses and state {got}, of the plain run {want}")
        print(f"same bits: {os.path.basename(config)}: {what}", flush=True)


def loss_rows(directory):
    return {row["step"]: row["loss"] for row in map(json.loads, harness.read(os.path.join(directory, "metrics.jsonl")).splitlines())}


def near(bench, what, got, want, precision):
    """Simulated GPUs add in the CPU's order almost everywhere, cuBLASLt in its own."""
    tolerance = NEAR[precision] * (1 if bench.is_simulated else 10 if precision == "fp32" else 2)
    for step, loss in want.items():
        error = abs(got[step] - loss) / abs(loss)
        if not error <= tolerance:
            raise harness.Failure(f"{what}: loss of step {step} is {got[step]}, on the CPU {loss}")
    print(f"near the CPU: {what}", flush=True)


def simulated_only(reason):
    """A case that a real GPU skips."""
    def wrap(case):
        @functools.wraps(case)
        def run(bench, *arguments):
            if bench.is_simulated:
                case(bench, *arguments)
            else:
                print(f"skipped: {case.__name__}: {reason}", flush=True)
        return run
    return wrap


# ---- one rank ----

def beside_the_cpu(bench, family, precision, head):
    config = bench.config(family, precision, head)
    cpu, gpu = bench.workspace.directory(), bench.workspace.directory()
    bench.train(config, cpu, ["run.device=cpu"])
    bench.known[config] = bench.run(config, directory=gpu)
    near(bench, f"{family} in {precision}, heads of {head}", loss_rows(gpu), loss_rows(cpu), precision)


def whatever_comes_first(bench, config, seeds):
    for streams, order in seeds:
        environment = {"PERDURE_SIMT_STREAMS": streams, "PERDURE_SIMT_ORDER": order}
        bench.same(f"streams {streams}, threads of kernels in order {order}", config, [], environment)


def after_a_kill(bench, config):
    fault = bench.workspace.directory("fault")
    bench.same("killed after step 3", config, [],
               {"PERDURE_FAULT": "worker.stepped@0:3:kill", "PERDURE_FAULT_ONCE": fault})


def recomputed_by_block(bench, config):
    for recompute in ("selective", "full"):
        bench.same(f"{recompute} recomputation of one block", config, [f"layout.recompute={recompute}", "layout.recompute_layers=1"])


def saved_at_every_step(bench, config):
    bench.same("saved in the background after every step", config, ["checkpoint.every=1"])


@simulated_only("a real GPU cannot be told to fail; a kill stands for it")
def lost_again_and_again(bench, config):
    """Every process loses its GPU at the same operation, several steps after it began: the newest save may not have left the GPU by
    then, and one before it has."""
    directory, report = bench.workspace.directory(), bench.workspace.directory("report")
    bench.train(config, bench.workspace.directory(), [], {"PERDURE_SIMT_REPORT": report})
    counts = json.loads(harness.read(report).splitlines()[-1])
    at = (counts["kernels"] + counts["copies"] + counts["fills"]) * 2 // 3
    result = bench.train(config, directory, ["checkpoint.every=1"], {"PERDURE_SIMT_FAIL": str(at)})
    if "PERDURE_SIMT_FAIL" not in result.stderr:
        raise harness.Failure(f"nobody lost a GPU at operation {at}:\n{result.stderr}")
    got = harness.losses(directory), bench.workspace.state_digest(directory)
    if got != bench.expected(config):
        raise harness.Failure(f"after GPUs were lost: {got}, of the plain run {bench.expected(config)}")
    if not re.search(r"PERDURE_SIMT_FAIL names; nothing on GPU 0 \(.*\) of .* nvidia-smi -q .* perdure doctor .*; restart 1 of ", result.stderr):
        raise harness.Failure(f"a lost GPU, and no word of what to do next:\n{result.stderr}")
    print("same bits: GPUs lost on the way", flush=True)


# Activations of more than 900 GB under a small model.
HUGE = ["batch.sequences=65536", "batch.micro_batch=65536", "model.layers=600", "validation.every=0"]


def does_not_fit(bench, config, words, overrides, environment):
    """The last line of a run that is refused before a step is made, and not tried again."""
    directory = bench.workspace.directory()
    result = bench.workspace.command(["train", config, f"run.dir={directory}", *overrides], environment)
    said = result.stderr.strip()
    if result.returncode != 78 or "restart" in said or not re.search(words, said):
        raise harness.Failure(f"{overrides} with {environment}: exit {result.returncode}, expected 78 and {words}\n{said}")
    if os.path.exists(os.path.join(directory, "metrics.jsonl")):
        raise harness.Failure("a step was made without the memory for it")
    print(f"said: {said.splitlines()[-1]}", flush=True)
    return said.splitlines()[-1]


TOO_LITTLE = r"needs [\d.]+ MiB of device memory, and [\d.]+ of [\d.]+ are free.*; .*perdure plan"


@simulated_only("a real GPU's memory is not for a test to choose")
def a_little_too_little(bench, config):
    """What a rank is told to change is enough, and changes no bits. Of two that share a GPU the second does not fit."""
    need = float(re.search(r"needs ([\d.]+) MiB", does_not_fit(bench, config, TOO_LITTLE, [], {"PERDURE_SIMT_MEMORY": "2M"}))[1])
    memory = {"PERDURE_SIMT_MEMORY": str(int((need - 0.1) * 1048576))}
    said = does_not_fit(bench, config, TOO_LITTLE, [], memory)
    helps = re.findall(r"([a-z_]+\.[a-z_]+=\w+)(?:,| or|;|\.)", said.partition("; take ")[2])
    if not {"layout.recompute=full", "offload.optimizer=cpu"} <= set(helps):
        raise harness.Failure(f"nothing of what helps is named: {said}")
    bench.same("on a GPU that is too small for it otherwise", config, helps, memory)
    plan = json.loads(bench.workspace.command(["plan", config, "--world=1", "run.dir=r", "--json"]).stdout)
    bench.same("where the planner chooses by what is free", config, ["layout=auto"],
               {"PERDURE_SIMT_MEMORY": str(int((plan["groups"][0]["device_bytes"] - 1) / 0.95))})  # a twentieth is the driver's
    taken = {"PERDURE_SIMT_MEMORY": "256M", "PERDURE_SIMT_TAKEN": f"{int(256 - need)}M"}
    does_not_fit(bench, config, "GPU 0: .* of 256.0 MiB are free, .*no layout of 1 rank fits .* take ", ["layout=auto"], taken)
    does_not_fit(bench, config, "does not fit into what other processes leave free|others hold the rest",
                 ["layout.ranks=2", "layout.dp=2", "layout.zero_stage=0"], {"PERDURE_SIMT_MEMORY": f"{int(need * 1.2)}M"})


def from_cpu_and_back(bench, config):
    """Six steps on the CPU, beside two on the CPU, two on the GPU, two on the CPU."""
    plain, there_and_back = bench.workspace.directory(), bench.workspace.directory()
    schedule = ["optimizer.decay_steps=6", "checkpoint.every=2"]
    bench.train(config, plain, [*schedule, "run.steps=6", "run.device=cpu"])
    for steps, device in ((2, "cpu"), (4, "gpu"), (6, "cpu")):
        bench.train(config, there_and_back, [*schedule, f"run.steps={steps}", f"run.device={device}"])
    near(bench, "steps on the CPU, the GPU, the CPU", loss_rows(there_and_back), loss_rows(plain), "fp32")


@simulated_only("how much a driver pins is the machine's to say")
def too_little_to_lock(bench, config):
    """Memory that cannot be pinned is missed before the first step: by name, with what to look at."""
    does_not_fit(bench, config, "pinned memory.*perdure plan", [], {"PERDURE_SIMT_LOCKED": "64K"})


def warning_of(bench, directory, steps, environment, *overrides):
    """What a resume says of bits."""
    result = bench.train(bench.config(), directory, [f"run.steps={steps}", *overrides], environment)
    return [line for line in result.stderr.splitlines() if "bits may differ" in line]


def told_apart(bench):
    """A GPU of another name, or a CPU after a GPU, computes other bits: said once, with the step from which on. The same GPU is not."""
    directory, gpu = bench.workspace.directory(), bench.findings()["gpu use"].split(";")[0][len("opens as "):]
    cards = ((2, "card A", (), None), (3, "card A", (), None), (4, "card B", (), ("card A", "card B", "from step 4 on")),
             (5, "card B", ("run.device=cpu",), ("card B", "a CPU", "from step 5 on")), (6, "card B", ("run.device=cpu",), None))
    one_card = ((2, "", (), None), (3, "", (), None), (4, "", ("run.device=cpu",), (gpu, "a CPU", "from step 4 on")))
    for steps, name, overrides, expected in cards if bench.is_simulated else one_card:
        said = warning_of(bench, directory, steps, {"PERDURE_SIMT_NAME": name} if name else {}, "checkpoint.every=1", *overrides)
        if (len(said) != 1 or not all(word in said[0] for word in expected)) if expected else said:
            raise harness.Failure(f"to step {steps} on {name} {overrides}: said {said}, expected {expected}")
    print("said: from which step on bits may differ", flush=True)


def different_tensors(bench, one, other):
    """Names that `ckpt diff` gives."""
    result = bench.workspace.command(["ckpt", "diff", os.path.join(one, "checkpoints"), os.path.join(other, "checkpoints")])
    return {line.split()[0] for line in result.stdout.splitlines() if " different " in line}


@simulated_only("a real GPU's memory is not for a test to choose")
def codes_that_do_not_fit(bench, config, fp8):
    """What a run with too little memory is told to do without, behind selective recomputation: codes of weights between micro-batches."""
    wide = [*fp8, "model.ffn=1024", "layout.recompute=selective", "run.steps=2"]
    need = float(re.search(r"needs ([\d.]+) MiB", does_not_fit(bench, config, TOO_LITTLE, wide, {"PERDURE_SIMT_MEMORY": "2M"}))[1])
    memory = {"PERDURE_SIMT_MEMORY": str(int((need - 0.1) * 1048576))}
    said, codes = does_not_fit(bench, config, TOO_LITTLE, wide, memory), "layout.fp8_codes=micro_batch"
    if codes not in said or bench.run(config, [*wide, codes], memory) != bench.run(config, wide):
        raise harness.Failure(f"with room for all but the codes of weights: {said}, or other bits with {codes}")


def eight_bits(bench):
    """Linears in fp8: after a step the CPU's bits but for weights of norms, whose gradients sum tokens in another order; its own after a
    kill; from the CPU to the GPU and back."""
    config, fp8 = bench.config(), ["numerics.linears=fp8", "numerics.virtual_tp=2"]  # with one chunk a GPU's losses are its own
    capability = re.search(r"compute capability (\d+)\.(\d+)", bench.findings()["gpu"])
    if capability and tuple(map(int, capability.groups())) < (8, 9):
        print(f"skipped: eight_bits: {bench.findings()['gpu']}, and fp8 needs 8.9", flush=True)
        return
    first = {device: bench.workspace.directory() for device in ("cpu", "gpu")}
    for device, directory in first.items():
        bench.train(config, directory, [*fp8, f"run.device={device}", "run.steps=1"])
    others = {name for name in different_tensors(bench, *first.values()) if "norm" not in name}
    if bench.is_simulated and (others or harness.losses(first["cpu"]) != harness.losses(first["gpu"])):
        raise harness.Failure(f"linears in fp8, a step on the GPU and one on the CPU: other losses, or {sorted(others)}")
    plain = bench.run(config, fp8)
    if plain == bench.expected(config):
        raise harness.Failure("linears in fp8 have the bits of those in fp32")
    fault = bench.workspace.directory("fault")
    killed = bench.run(config, fp8, {"PERDURE_FAULT": "worker.stepped@0:3:kill", "PERDURE_FAULT_ONCE": fault})
    if killed != plain:
        raise harness.Failure(f"linears in fp8, killed after step 3: {killed}, of the plain run {plain}")
    if bench.run(config, [*fp8, "layout.fp8_codes=micro_batch"]) != plain:
        raise harness.Failure("linears in fp8: other bits where codes of weights are made for every micro-batch")
    codes_that_do_not_fit(bench, config, fp8[:1])
    for steps, device in ((2, "gpu"), (3, "cpu"), (STEPS, "gpu")):
        bench.train(config, first["cpu"], [*fp8, f"run.steps={steps}", f"run.device={device}"])
    cpu = bench.workspace.directory()
    bench.train(config, cpu, [*fp8, "run.device=cpu"])
    near(bench, "linears in fp8, on the CPU, the GPU, the CPU, the GPU", loss_rows(first["cpu"]), loss_rows(cpu),
         "fp32" if bench.is_simulated else "bf16")
    print(f"same bits: linears in fp8, {'on the CPU and ' if bench.is_simulated else ''}after a kill", flush=True)


def planned(bench, config):
    """What NCCL takes is part of what must find room, in a column of its own; alone there is none. Staging of exchanges is pinned."""
    def plan(world, *options):
        result = bench.workspace.command(["plan", config, f"--world={world}", "run.dir=r", "--device=h100-80g", f"layout.ranks={world}",
                                          f"layout.dp={world}", *options])
        if result.returncode:
            raise harness.Failure(f"plan of {world}: {result.stderr}")
        return result.stdout
    alone_, four = (json.loads(plan(world, "--json"))["worlds"][0] for world in (1, 4))
    for world in (alone_, four):
        most = max(group["device_bytes"] + group["nccl_bytes_estimated"] for group in world["groups"])
        if world["worst_rank_bytes"] != most or (world is four) != (world["groups"][0]["nccl_bytes_estimated"] > 0):
            raise harness.Failure(f"plan of {world['world']}: worst {world['worst_rank_bytes']}, groups {world['groups']}")
    pinned = [json.loads(plan(world, f"layout.transport={transport}", "--json"))["worlds"][0]["groups"][0]["pinned_bytes"]
              for world, transport in ((1, "local"), (4, "local"), (4, "mpi"))]
    if pinned[1] < pinned[0] + (3 << 20) or pinned[2] != pinned[1]:
        raise harness.Failure(f"pinned of one rank, and of four that stage what they exchange, as threads and as processes: {pinned}")
    for world, pattern in ((1, r"NCCL, estimated\n.* 0 B\n"), (4, r"NCCL, estimated\n.* \d[\d.]+ MiB\n")):
        if not re.search(pattern, plan(world)):
            raise harness.Failure(f"plan of {world}:\n{plan(world)}")
    print("planned: what NCCL takes, and staging", flush=True)


@simulated_only("what it says of an H100 does not depend on the GPU that is here")
def seven_billion(bench):
    """7B on one 80 GB GPU, state on the host: micro-batches of 8 fit with one lane, without which that is the first advice."""
    config = bench.workspace.file("seven.yaml", "run: {dir: r, device: gpu}\ndata: {train: a}\nmodel: {preset: llama2-7b}\n"
                                  "batch: {sequences: 512, micro_batch: 8, context: 1024}\noffload: {optimizer: cpu}\n")

    def plan(*options):
        result = bench.workspace.command(["plan", config, "--world=1", "--device=h100-80g", *options])
        if result.returncode:
            raise harness.Failure(f"plan of 7B {options}: {result.stderr}")
        return result.stdout
    for recompute in ("selective", "none"):
        one = plan("numerics.lanes=1", f"layout.recompute={recompute}")
        if "does not fit" in one or f"recompute={recompute} " not in one:
            raise harness.Failure(f"7B with one lane:\n{one}")
    several = plan("layout.recompute=selective")
    if "of h100-80g: with numerics.lanes=1 it does (" not in several:
        raise harness.Failure(f"7B with eight lanes:\n{several}")
    print("planned: 7B on one GPU", flush=True)


@simulated_only("a driver takes memory of its own there")
def held_is_planned(bench, config):
    """What a run takes of its GPU at any time, to the byte: the product that its rate is measured by lies in memory that is planned, in that
    of the gradients where they have enough."""
    for ranks in (1, 4):
        report = bench.workspace.directory("report")
        options = [f"layout.ranks={ranks}", f"layout.dp={ranks}", "layout.zero_stage=3", "model.layers=1", "model.hidden=64", "run.steps=2"]
        bench.train(config, bench.workspace.directory(), options, {"PERDURE_SIMT_REPORT": report})
        told = json.loads(harness.read(report).splitlines()[-1])
        held = told["device_bytes_max"]
        result = bench.workspace.command(["plan", config, f"--world={ranks}", "run.dir=r", *options, "--json"])
        groups = json.loads(result.stdout)["worlds"][0]["groups"]
        if held != sum(group["ranks"] * group["device_bytes"] for group in groups):
            raise harness.Failure(f"{ranks} ranks held {held} bytes of the GPU, planned: {groups}")
    print("planned: all that is held of a GPU", flush=True)


def memory_stays(bench, early, late):
    """What is free on the device at two steps of one run that saves. Simulated: what is live there, and pinned; nothing at the end."""
    watch, report, directory = (bench.workspace.directory(name) for name in ("watch", "report", "run"))
    small = ["model.layers=1", "batch.sequences=1", "validation.every=4", "validation.sequences=1", "checkpoint.every=5"]
    bench.train(bench.config(), directory, [f"run.steps={late}", *small],
                          {"PERDURE_SIMT_WATCH": watch, "PERDURE_SIMT_REPORT": report})
    rows = {row["step"]: row for row in map(json.loads, harness.read(os.path.join(directory, "metrics.jsonl")).splitlines())}
    free = [rows[step].get("device_free_bytes", 0) for step in (early, late)]
    if not 0 < free[0] == free[1]:
        raise harness.Failure(f"free at step {early}: {free[0]}, at step {late}: {free[1]}")
    print(f"memory free at step {late} is that at step {early}: {free[1]}", flush=True)
    if not bench.is_simulated:
        return
    live = [json.loads(line) for line in harness.read(watch).splitlines()]  # one a step, after what comes before the first
    if len(live) < late or live[early - 1 - late] != live[-1] or not live[-1]["device_bytes"] or not live[-1]["locked_bytes"]:
        raise harness.Failure(f"live at step {early}: {live[early - 1 - late:][:1]}, at step {late}: {live[-1:]}")
    left = json.loads(harness.read(report).splitlines()[-1])
    if left["device_bytes"] or left["locked_bytes"]:
        raise harness.Failure(f"left over at the end: {left}")
    print(f"so is what is live: {live[-1]}", flush=True)


@simulated_only("a real GPU's memory is not for a test to choose")
def benched_as_it_fits(bench):
    """A micro-batch that does not fit with all kept is recomputed, in no more blocks than must be."""
    shape = ("layers=3", "hidden=64", "heads=1", "kv_heads=1", "head_size=64", "ffn=256", "vocab=256")

    def step(memory, *options):
        result = bench.workspace.command(["bench", "step", "--device=gpu", "--preset=gpt2-124m", *(f"--set=model.{key}" for key in shape),
                                          "--set=offload.optimizer=cpu", "--context=16", "--sequences=4", "--micro-batch=4", "--steps=1",
                                          "--mode=invariant", "--json", *options], {"PERDURE_SIMT_MEMORY": str(memory)})
        if result.returncode:
            raise harness.Failure(f"bench step: exit {result.returncode}: {result.stderr}")
        return json.loads(result.stdout)

    kept = step(256 << 20, "--recompute=none")
    found = step(kept["device_bytes"] * 32 // 31 - 4096)
    if (kept["recompute_layers"], found["recompute"], found["recompute_layers"]) != (0, "selective", 1):
        raise harness.Failure(f"recomputed: {kept}, in memory a little short of that: {found}")
    told = step(256 << 20, "--set=layout.recompute=full")
    if (told["recompute"], told["recompute_layers"]) != ("full", 3):
        raise harness.Failure(f"layout.recompute=full is benched and called otherwise: {told}")
    print(f"bench step: {kept['device_bytes']} bytes with all kept, {found['device_bytes']} with one block recomputed", flush=True)


def limits(bench):
    config = bench.config()
    for case in harness.share_of((lambda: benched_as_it_fits(bench), lambda: lost_again_and_again(bench, bench.config(steps=10)),
                                  lambda: does_not_fit(bench, config, TOO_LITTLE, HUGE, {}), lambda: a_little_too_little(bench, config),
                                  lambda: told_apart(bench), lambda: too_little_to_lock(bench, config),
                                  lambda: held_is_planned(bench, config), lambda: eight_bits(bench),
                                  lambda: memory_stays(bench, 10, 100 if harness.scale() >= 4 else 40)), 2):
        case()


def deaf(workspace):
    """The tool on simulated GPUs that cannot be told anything, which is how real ones are."""
    path = workspace.file("deaf", "#!/bin/sh\nunset $(env | sed -n 's/^\\(PERDURE_SIMT_[A-Z]*\\)=.*/\\1/p')\n"
                          f"exec '{workspace.perdure}' \"$@\"\n")
    os.chmod(path, 0o755)
    return path


@simulated_only("how many spans a step has is not asked of a real GPU")
def fewer_are_watched(bench):
    """Where a step has more operations than can be timed, the stages are those of fewer sequences, which is said."""
    said = bench.workspace.command(["bench", "step", "--device=gpu", "--preset=byte-1m", "--mode=invariant", "--sequences=8", "--micro-batch=1",
                                    "--context=16", "--steps=1", "--set=model.layers=1", "--json"], {"PERDURE_TEST_SPANS": "150"})
    found = json.loads(said.stdout)
    if found["operations_not_timed"] or not 0 < found["watched_sequences"] < 8 or "sequences, so the optimizer's share" not in said.stderr:
        raise harness.Failure(f"of 8 sequences were watched: {found}\n{said.stderr}")
    print(f"said: {found['watched_sequences']} of 8 sequences are watched", flush=True)


def alone(bench, is_long):
    everything = itertools.product(("llama", "gpt2"), ("fp32", "bf16", "fp16"), (16, 64))
    some = [("llama", "fp32", 16), ("gpt2", "bf16", 16), ("llama", "fp16", 64)]
    for case in everything if is_long else harness.share_of(some, 3):
        beside_the_cpu(bench, *case)
    config = bench.config()
    whatever_comes_first(bench, config, [("7", "1"), ("now", "0"), ("late", "77")] if is_long else [("7", "1")])
    for case in harness.share_of((after_a_kill, recomputed_by_block, saved_at_every_step, from_cpu_and_back), 2):
        case(bench, config)
    planned(bench, config)
    seven_billion(bench)
    fewer_are_watched(bench)
    limits(bench)
    if is_long:
        for case in itertools.product(("llama", "gpt2"), ("bf16", "fp16"), (16, 64)):
            after_a_kill(bench, bench.config(*case))
            whatever_comes_first(bench, bench.config(*case), [("3", "5")])


# ---- several ranks on one GPU ----

SOME = {"local": [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)], "mpi": [(2, 1, 1, 1), (1, 1, 2, 1)]}
FAMILIES, PRECISIONS, STAGES = ("llama", "gpt2"), ("fp32", "bf16", "fp16"), (0, 1, 2, 3)


def layouts_of(world):
    for tp, pp, sp in itertools.product((1, 2, 4), (1, 2), (1, 2)):
        if world % (tp * pp * sp) == 0 and world // (tp * pp * sp) <= 4:
            yield world // (tp * pp * sp), tp, pp, sp


def cases_of(transport):
    """(layout, family, precision, stage): of a few layouts, or of those of 2, 3 and 4 ranks with two models. Of 8 ranks too, each
    with every family, precision and stage, but not with every combination of them, which would take hours to say the same."""
    if harness.scale() < 4:
        return [(layout, "llama", "fp32", 1) for layout in harness.share_of(SOME[transport], 2)]
    if harness.scale() < 10:
        models = (("llama", "fp32"), ("gpt2", "bf16"))
        return [(layout, *model, 1) for world in (2, 3, 4) for layout in layouts_of(world) for model in models]
    models = zip(itertools.cycle(FAMILIES), itertools.cycle(PRECISIONS))  # any three in a row: each family, each precision
    return [(layout, *next(models), stage) for world in (2, 3, 4, 8) for layout in layouts_of(world)
            for stage in (STAGES if layout[0] > 1 else (1, 1, 1))]


def sharing(bench, transport):
    """Two steps: what the first does to gradients and moments is in the second's loss and in the state."""
    cases = cases_of(transport)
    for (dp, tp, pp, sp), family, precision, stage in cases:
        degrees = {"dp": dp, "tp": tp, "pp": pp, "sp": sp, "ranks": dp * tp * pp * sp, "zero_stage": stage}
        bench.same(f"{transport}, {' '.join(f'{k}={v}' for k, v in degrees.items())}", bench.config(family, precision, 8, 4, 2),
                   [f"layout.{k}={v}" for k, v in degrees.items()] + [f"layout.transport={transport}"])
    layouts, families, precisions, stages = ({case[i] for case in cases} for i in range(4))
    print(f"covered: {transport}: {len(cases)} runs, {len(layouts)} layouts of up to "
          f"{max(dp * tp * pp * sp for dp, tp, pp, sp in layouts)} ranks, {', '.join(sorted(families))}, "
          f"{', '.join(sorted(precisions))}, stages {sorted(stages)}", flush=True)


def sums_in_place(bench, transport):
    """Where nothing is cut, products of one rank add to the sums of gradients by themselves. Two ranks send each other micro-batches and add."""
    for model in harness.share_of((("llama", "fp32"), ("gpt2", "bf16")), 2):
        config = bench.config(*model, 8, 1, 2)
        for overrides in (["layout.dp=2", "layout.ranks=2"], ["layout.pp=2", "layout.ranks=2"], ["layout.order=breadth_first"],
                          ["layout.order=breadth_first", "offload.gradients=cpu"]):
            bench.same(f"{transport}, sums in place, {' '.join(overrides)}", config, [*overrides, f"layout.transport={transport}"])


def replicas(bench, transport):
    """Of what a GPU holds for others the host has no mirror: the owner's boxes are saved, and come back to all that hold them."""
    for more in (["layout.zero_stage=0"], ["layout.zero_shard=2", "layout.dp=4", "layout.ranks=4"]):
        bench.same(f"{transport}, {' '.join(more)}, killed after step 3", bench.config("llama", "fp32", 8, 1),
                   ["layout.dp=2", "layout.ranks=2", *more, f"layout.transport={transport}"],
                   {"PERDURE_FAULT": "worker.stepped@0:3:kill", "PERDURE_FAULT_ONCE": bench.workspace.directory("fault")})


@simulated_only("how many GPUs there are is the machine's to say")
def gpus_of_their_own(bench, transport):
    """Through the host all the same: NCCL's own library knows nothing of simulated GPUs, and is not asked."""
    config, directory = bench.config("llama", "fp32", 8, 4, 2), bench.workspace.directory()
    result = bench.train(config, directory, ["layout.ranks=2", "layout.dp=2", f"layout.transport={transport}"],
                                   {"PERDURE_SIMT_GPUS": "2"})
    if " warn " in result.stderr or "PERDURE_NCCL=off" not in result.stderr:
        raise harness.Failure(f"two GPUs warn, or do not say that NCCL is off: {result.stderr}")
    if (harness.losses(directory), bench.workspace.state_digest(directory)) != bench.expected(config):
        raise harness.Failure("other bits on two GPUs")
    print(f"same bits: {transport}, a GPU for each of two ranks", flush=True)


def devices_of(log):
    """By rank: its number on its host, and its GPU."""
    return {int(rank): (int(here), int(gpu)) for rank, here, gpu in re.findall(r" r(\d+): rank (\d+) of the host, on GPU (\d+)", log)}


def in_turn_on_hosts(bench):
    """Ranks that a starter gives to two hosts in turn, and three beside one: no two share a GPU while one idles."""
    config = bench.config("llama", "fp32", 8, 4, 2)
    for hosts, expected in (("0,1,0,1", {0: (0, 0), 1: (0, 0), 2: (1, 1), 3: (1, 1)}),
                            ("0,1,1,1", {0: (0, 0), 1: (0, 0), 2: (1, 1), 3: (2, 2)})):
        directory = bench.workspace.directory()
        result = bench.train(config, directory, ["layout.ranks=4", "layout.dp=4", "layout.transport=mpi"],
                                       {"PERDURE_SIMT_GPUS": "3", "PERDURE_TEST_HOSTS": hosts, "PERDURE_LOG": "info,worker=debug"})
        if devices_of(result.stderr) != expected:
            raise harness.Failure(f"ranks on hosts {hosts} take GPUs {devices_of(result.stderr)}, expected {expected}\n{result.stderr}")
        if (harness.losses(directory), bench.workspace.state_digest(directory)) != bench.expected(config):
            raise harness.Failure(f"other bits on hosts {hosts}")
    print("same bits: ranks placed in turn on hosts, a GPU for each", flush=True)


# Micro-batches are more than slots for their input, and the host is ahead of its GPU by as many as it can.
ASYNCHRONOUS = [((1, 2), "late"), ((2, 2), "5"), ((2, 2), "late"), ((1, 4), "late")]  # dp and pp, streams; two of them a share
ASYNCHRONOUS_LONG = [((1, 2), "late"), ((2, 2), "late"), ((1, 4), "late"), ((2, 4), "late")]  # where there is time
WIDE = ["model.layers=4", "validation.every=0"]
LARGE = ["validation.every=0", "batch.sequences=2", "checkpoint.every=0", "layout.transport=local", "optimizer.decay_steps=9",
         *(f"model.{key}" for key in ("layers=2", "hidden=256", "heads=4", "kv_heads=4", "head_size=64", "ffn=256"))]
COUNTED = [{"dp": 2, "zero_stage": 3}, {"tp": 2}, {"dp": 2, "zero_stage": 1}, {"pp": 2}, {"dp": 2, "zero_stage": 0}, {"sp": 2},
           {"dp": 2, "zero_stage": 1, "terms": 32, "logits_type": "precision"}]  # one of them a share


def never_waiting(bench):
    """The host of a stage that has no head waits for nothing inside a step: what it fills again must not be on its way to the GPU."""
    is_long = harness.scale() >= 4
    steps = 200 if is_long else 6
    config = bench.config("llama", "fp32", 8, 1, steps)
    common = [*WIDE, f"batch.sequences={12 if is_long else 16}", f"checkpoint.every={steps}"]
    directory = bench.workspace.directory()
    bench.train(config, directory, common, timeout=10 * harness.PATIENCE)
    expected = harness.losses(directory), bench.workspace.state_digest(directory)
    for (dp, pp), streams in ASYNCHRONOUS_LONG if is_long else harness.share_of(ASYNCHRONOUS, 2):
        directory = bench.workspace.directory()
        environment = {"PERDURE_NCCL": simt_nccl(bench.workspace), "PERDURE_SIMT_GPUS": str(dp * pp), "PERDURE_SIMT_STREAMS": streams}
        overrides = [*common, f"layout.ranks={dp * pp}", f"layout.dp={dp}", f"layout.pp={pp}", "layout.transport=local"]
        result = bench.train(config, directory, overrides, environment, timeout=10 * harness.PATIENCE)
        if "through the host" in result.stderr:
            raise harness.Failure(f"NCCL's stand-in was not taken: {result.stderr}")
        got = harness.losses(directory), bench.workspace.state_digest(directory)
        if got != expected:
            raise harness.Failure(f"dp={dp} pp={pp} over NCCL, streams {streams}: losses and state {got}, of one rank {expected}")
        print(f"same bits: {steps} steps, dp={dp} pp={pp} over NCCL, streams {streams}", flush=True)


def places_that_differ(bench):
    """Of three ranks that hold unequally much, no collective has a registered buffer elsewhere than the others; gathers keep theirs."""
    report, shape = bench.workspace.directory("report"), ("hidden=200", "heads=5", "kv_heads=5", "head_size=40", "ffn=200")
    overrides = [*(f"model.{key}" for key in shape), "layout.ranks=3", "layout.dp=3", "layout.zero_stage=1", "batch.sequences=6", "run.steps=1",
                 "validation.every=0", "checkpoint.every=0"]
    environment = {"PERDURE_NCCL": simt_nccl(bench.workspace), "PERDURE_SIMT_GPUS": "3", "FAKE_NCCL_REPORT": report}
    bench.train(bench.config("llama", "bf16", 8, 1), bench.workspace.directory(), overrides, environment)
    found = next(line for line in map(json.loads, harness.read(report).splitlines()) if line["collectives"])
    if found["unequal_places"] or not 0 < found["registered_collectives"] < found["collectives"]:
        raise harness.Failure(f"ranks whose buffers lie at different places: {found}")
    print(f"registered only where all ranks have it: {found['registered_collectives']} of {found['collectives']}", flush=True)


def beside_megatron(parameters, ranks, received, terms):
    """Bytes of gradients and parameters that a rank receives over those of Megatron's distributed optimizer, 4 + 2 a parameter."""
    ratios = [each / (6 * parameters * (ranks - 1) / ranks) for each in received]
    if max(ratios) > (1.05 if terms == 32 else 1.7):
        raise harness.Failure(f"a rank receives {ratios} of Megatron's bytes with terms of {terms} bits")
    print(f"beside Megatron: {ratios} with terms of {terms} bits", flush=True)


def counted(bench):
    """What the stand-in moves in a step is what `plan` says of a rank, and what every collective reads and writes was registered."""
    config = bench.config("llama", "bf16", 8, 2)
    for layout in harness.share_of(COUNTED, len(COUNTED)):
        ranks = math.prod(layout.get(name, 1) for name in ("dp", "tp", "pp", "sp"))
        overrides = [*LARGE, f"layout.ranks={ranks}",
                     *(f"{'numerics' if key in ('terms', 'logits_type') else 'layout'}.{key}={value}" for key, value in layout.items())]
        found = []
        for steps in (1, 2):
            report = bench.workspace.directory("report")
            environment = {"PERDURE_NCCL": simt_nccl(bench.workspace), "PERDURE_SIMT_GPUS": str(ranks), "FAKE_NCCL_REPORT": report}
            bench.train(config, bench.workspace.directory(), [*overrides, f"run.steps={steps}"], environment)
            lines = [json.loads(line) for line in harness.read(report).splitlines()]
            found.append(next(line for line in lines if line["collectives"] or line["received_bytes"]))
        step = {key: (found[1][key] - found[0][key]) / ranks for key in found[0]}
        if found[1]["registered"] or step["registered_collectives"] != step["collectives"]:
            raise harness.Failure(f"{layout}: of {found[1]['collectives']} collectives are in registered memory: {found[1]}")
        if found[1]["unequal_places"]:
            raise harness.Failure(f"{layout}: ranks have registered buffers at different places: {found[1]}")
        said = bench.workspace.command(["plan", config, f"run.dir={bench.workspace.directory()}", *overrides, "--json"])
        plan = json.loads(said.stdout)
        world = plan["worlds"][0]
        planned = {key: world[f"{key}_bytes_received"] for key in ("parameter", "gradient", "tensor", "sequence", "pipeline")}
        pairs = [(step["gathered_bytes"] + step["scattered_bytes"], planned["parameter"] + planned["gradient"]),
                 (step["received_bytes"], planned["tensor"] + planned["sequence"] + planned["pipeline"])]
        # Parts of equal length, checks, and of tensor ranks what plan leaves out as small
        if any(not least <= count <= 1.02 * least for count, least in pairs):
            raise harness.Failure(f"{layout}: a rank and step have {step}, planned are {planned}")
        if layout.get("zero_stage") == 1:
            beside_megatron(plan["parameters"], ranks, pairs[0], layout.get("terms", 64))
        print(f"counted: {layout}: {pairs} bytes, found and planned", flush=True)


@simulated_only("a profiler of its own sees a real GPU")
def ranges(bench):
    """What a profiler is shown of two steps of two ranks: every range ends, and each collective and block has one."""
    report, config = bench.workspace.directory("ranges"), bench.config("llama", "fp32", 8, 1, 2)
    library = os.path.join(os.path.dirname(simt_nccl(bench.workspace)), "libnvtx_report.so")
    if not os.path.exists(library):
        print("skipped: ranges, without NVTX of the CUDA toolkit", flush=True)
        return
    environment = {"PERDURE_NCCL": simt_nccl(bench.workspace), "PERDURE_SIMT_GPUS": "2", "NVTX_INJECTION64_PATH": library, "NVTX_REPORT": report}
    bench.train(config, bench.workspace.directory(), ["layout.ranks=2", "layout.dp=2", "layout.transport=local", "validation.every=0"],
                          environment)
    found = {name: int(count) for count, name in (line.split(" ", 1) for line in harness.read(report).splitlines())}
    backward = found.get("backward", 0)
    if found.get("step") != 4 or found.get("update") != 4 or found["open"] or not backward or found.get("forward") != backward:
        raise harness.Failure(f"ranges of two steps of two ranks: {found}")
    if found["block"] % (2 * backward) or not found.get("gather of parameters") or not found.get("exchange of gradients"):
        raise harness.Failure(f"a block or a collective without a range: {found}")
    print(f"ranges: {found}", flush=True)


@simulated_only("NCCL's own library damages nothing on request")
def damaged_on_its_way(bench):
    """A sum that NCCL's stand-in gives back with a wrong bit costs a step, in every stage and exchange, and no bits. In stage 0 the
    first 24 sums (kinds, units, ranks) are the state's, for replicas."""
    config = bench.config("llama", "fp32", 8, 1)
    flips = ["28", "layout.zero_stage=0"], ["5", "layout.zero_stage=2"], ["5", "layout.zero_stage=3", "layout.exchange=lane"]
    for flip, *words in harness.share_of(flips, len(flips)):
        directory = bench.workspace.directory()
        overrides = [*words, "layout.ranks=2", "layout.dp=2", "layout.transport=local", "checkpoint.every=1"]
        environment = {"PERDURE_NCCL": simt_nccl(bench.workspace), "PERDURE_SIMT_GPUS": "2", "FAKE_NCCL_FLIP": flip}
        result = bench.train(config, directory, overrides, environment)
        rows = map(json.loads, harness.read(os.path.join(directory, "metrics.jsonl")).splitlines())
        again = sum(row.get("recomputed", 0) for row in rows)
        if again != 1 or "arrived damaged" not in result.stderr:
            raise harness.Failure(f"{words}: steps computed again: {again}\n{result.stderr}")
        if (harness.losses(directory), bench.workspace.state_digest(directory)) != bench.expected(config):
            raise harness.Failure(f"{words}: other bits after a damaged sum")
    print("same bits: a sum that NCCL damaged", flush=True)


def simt_nccl(workspace):
    """Built beside the tests of kernels: build/tests/simt/libsimt_nccl.so for build/bin/perdure_simt."""
    path = os.path.join(os.path.dirname(workspace.perdure), "..", "tests", "simt", "libsimt_nccl.so")
    if not os.path.exists(path):
        raise harness.Failure(f"{path} is missing: ninja simt_nccl")
    return os.path.abspath(path)


@simulated_only("a real GPU cannot be told to fail")
def left_out(bench, transport):
    """GPU 1 of three fails whoever uses it. With a spare one as many ranks continue, without fewer, and nobody opens it again."""
    config = bench.config("llama", "fp32", 8, 1, 6)
    log = {"PERDURE_SIMT_FAIL_GPU": "1", "PERDURE_LOG": "info,worker=debug"}
    expected, gpus = {0: (0, 0), 1: (1, 2)}, 3
    for ranks in (2, 3) if transport == "local" else (2,):
        directory, report = bench.workspace.directory(), bench.workspace.directory("report")
        overrides = [f"layout.ranks={ranks}", f"layout.dp={ranks}", f"layout.transport={transport}", "restart.limit=1", "checkpoint.every=1"]
        environment = {**log, "PERDURE_SIMT_GPUS": str(gpus), "PERDURE_SIMT_FAIL": "300", "PERDURE_SIMT_REPORT": report}
        result = bench.train(config, directory, overrides, environment)
        after = result.stderr[result.stderr.index("restart 1:"):]
        if devices_of(after) != expected or "is left out for now" not in result.stderr or "restart 2:" in after:
            raise harness.Failure(f"{ranks} ranks, {gpus} GPUs, of which one fails: then {devices_of(after)}, expected {expected}\n{result.stderr}")
        if (harness.losses(directory), bench.workspace.state_digest(directory)) != bench.expected(config):
            raise harness.Failure("other bits after a GPU was left out")
    print(f"same bits: {transport}, a GPU that fails is left out of the next start", flush=True)


def killed_beside_others(bench):
    fault = bench.workspace.directory("fault")
    bench.same("one of two killed after step 3", bench.config("llama", "fp32", 8, 1),
               ["layout.ranks=2", "layout.dp=2", "layout.transport=mpi"],
               {"PERDURE_FAULT": "worker.stepped@1:3:kill", "PERDURE_FAULT_ONCE": fault})


@simulated_only("how much a driver pins is the machine's to say, and what it copies through buffers of its own nobody tells")
def staged_in_locked_memory(bench):
    """What two processes exchange goes through pinned memory; where that is refused, through memory as it is, which is said once a
    rank."""
    config, report = bench.config("llama", "fp32", 8, 1), bench.workspace.directory("report")
    two = ["layout.ranks=2", "layout.dp=2", "layout.transport=mpi"]

    def counts():
        lines = map(json.loads, harness.read(report).splitlines())
        return [line for line in lines if line["locked_bytes_max"]]  # no launcher
    bench.same("two ranks that exchange through pinned memory", config, two, {"PERDURE_SIMT_REPORT": report})
    every = counts()
    if len(every) != 2 or any(line["pageable_copies"] or line["locked_bytes"] for line in every):
        raise harness.Failure(f"copies through pageable memory, or memory that stays locked: {every}")
    os.unlink(report)
    directory, limit = bench.workspace.directory(), str(min(line["locked_bytes_max"] for line in every) - 1)
    result = bench.train(config, directory, two, {"PERDURE_SIMT_REPORT": report, "PERDURE_SIMT_LOCKED": limit})
    said = [line for line in result.stderr.splitlines() if "not pinned" in line]
    if len(said) != 2 or not all(line["pageable_copies"] for line in counts()):
        raise harness.Failure(f"{limit} bytes that may be pinned: said {said}, counted {counts()}")
    if (harness.losses(directory), bench.workspace.state_digest(directory)) != bench.expected(config):
        raise harness.Failure("other bits where exchanges are not pinned")
    print(f"said: {said[0]}", flush=True)


def body(workspace, arguments):
    what = arguments[0] if arguments else "alone"
    if what == "deaf":
        workspace.perdure = deaf(workspace)
    bench, is_long = Bench(workspace), harness.scale() >= 10
    if what == "alone":
        alone(bench, is_long)
    elif what == "deaf":
        if bench.is_simulated:
            raise harness.Failure("a GPU that hears nothing is taken for a simulated one")
        limits(bench)
    elif what == "nccl":
        counted(bench)
        places_that_differ(bench)
        never_waiting(bench)
        damaged_on_its_way(bench)
        ranges(bench)
    else:
        sharing(bench, what)
        gpus_of_their_own(bench, what)
        left_out(bench, what)
        if what == "local":
            sums_in_place(bench, what)
            replicas(bench, what)
        if what == "mpi":
            in_turn_on_hosts(bench)
            killed_beside_others(bench)
            staged_in_locked_memory(bench)


harness.main(body)
