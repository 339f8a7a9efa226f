#!/usr/bin/env python3
"""`perdure train --trace FILE`: valid JSON, spans of a thread that nest, transfers with two ends, every kind of work, names of
threads and ranks; a file for each process and each restart; nothing without the option. With `gpu`: lanes of streams."""
import json
import os
import sys

import harness

CONFIG = """
run: {{seed: 5, steps: 3}}
model: {{family: llama, vocab: 256, context: 32, layers: 2, hidden: 128, heads: 2, kv_heads: 2, ffn: 512}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 1, context: 32}}
validation: {{every: 0}}
checkpoint: {{every: 1}}
layout: {{threads: 1}}
"""
WORK = {("step", "step"), ("step", "forward"), ("step", "backward"), ("step", "update"), ("compute", "block forward"),
        ("compute", "block backward"), ("compute", "head and its gradients"), ("save", "save"), ("io", "sync")}
EXCHANGE = {("comm", "gather of parameters"), ("comm", "exchange of gradients"), ("wait", "gather of parameters"), ("wait", "exchange of gradients")}
SLACK = 0.002  # times have three digits of a microsecond


def check(condition, what):
    if not condition:
        raise harness.Failure(what)


def check_nesting(path, spans):
    """Spans of one thread: each lies inside the one that is open when it begins, or behind it."""
    spans.sort(key=lambda e: (e["ts"], -e["dur"]))
    stack = []
    for e in spans:
        check(e["dur"] >= 0, f"{path}: {e} lasts less than nothing")
        while stack and stack[-1] <= e["ts"] + SLACK:
            stack.pop()
        end = e["ts"] + e["dur"]
        check(not stack or end <= stack[-1] + SLACK, f"{path}: {e} ends after the span around it")
        stack.append(end)


def read(path):
    with open(path, encoding="utf-8") as f:
        events = json.load(f)
    by_thread, ends = {}, {}
    for e in events:
        if e["ph"] == "X":
            by_thread.setdefault((e["pid"], e["tid"]), []).append(e)
        elif e["ph"] in "be":
            ends.setdefault(e["id"], {})[e["ph"]] = e["ts"]
    for spans in by_thread.values():
        check_nesting(path, spans)
    for number, both in ends.items():
        check(set(both) == {"b", "e"} and both["b"] <= both["e"], f"{path}: transfer {number} has ends {both}")
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    check(set(by_thread) <= named, f"{path}: threads without a name: {set(by_thread) - named}")
    check(ends, f"{path}: no transfer to or from the disk")
    return events, {(e["cat"], e["name"]) for e in events if e["ph"] == "X"}


# ---- the disk: what each transfer is of ----

IN_FILES = [f"offload.{what}=nvme" for what in ("optimizer", "parameters", "gradients", "activations")] + ["offload.buffer_bytes=4M"]


def transfers(workspace, config, directory, overrides):
    trace = os.path.join(workspace.path, "disk.json")
    workspace.train(config, directory, ["layout.ranks=1", f"--trace={trace}", *overrides])
    return {e["name"] for e in read(trace)[0] if e["ph"] == "b"}


def on_disks(workspace, config):
    directory = workspace.directory()
    tiers = [f"checkpoint.tiers[{i}].{key}" for i in range(2) for key in (f"dir={workspace.directory('tier')}", "every=1")]
    expected = {"write of a shard", "read of a copy between tiers", "write of a copy between tiers"}
    found = transfers(workspace, config, directory, tiers)
    check(expected <= found, f"a save into two tiers transfers {found}")
    found = transfers(workspace, config, directory, [*tiers, "run.steps=4"])
    check("read of a load" in found, f"a resumed run transfers {found}")
    found = transfers(workspace, config, workspace.directory(), [*IN_FILES, "model.layers=4", "layout.order=breadth_first"])
    expected = {f"{way} of {what}" for way in ("read", "write") for what in ("state", "parameters", "gradients", "activations")}
    check(expected <= found, f"state in files transfers {found}, not {expected - found}")
    print("transfers say of what they are")


# ---- on GPUs: a lane each stream ----

LANES = {"GPU compute": {"gemm"}, "GPU saves": {"state for a save"}, "GPU exchanges": {"exchange"}, "GPU gathers": {"gather of parameters"},
         "GPU parameters in": {"parameters"}, "GPU parameters out": {"parameters"},
         "GPU gradients in": {"gradients"}, "GPU gradients out": {"gradients"},
         "GPU activations in": {"activations"}, "GPU activations out": {"activations"},
         "GPU optimizer in": {"updated parameters"}, "GPU optimizer out": {"gradients"}}
STREAMED = {**LANES, "GPU optimizer in": {"state"}, "GPU optimizer out": {"state"}}  # offload.update: device


def lanes_of(events):
    """Names of spans by rank and lane; those of a lane follow each other."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    lanes = {}
    for e in events:
        if e["ph"] == "X" and e["cat"] == "gpu":
            lanes.setdefault((e["pid"], e["tid"]), []).append(e)
    for key, spans in lanes.items():
        spans.sort(key=lambda e: e["ts"])
        for before, after in zip(spans, spans[1:]):
            check(before["ts"] + before["dur"] <= after["ts"] + SLACK, f"{names[key]}: {before} continues in {after}")
    return {(key[0], names[key]): {e["name"] for e in spans} for key, spans in lanes.items()}


def traced(workspace, config, overrides, known=LANES):
    """Lanes of a run, one for each stream of its GPUs, all of which were given work, and no other. What is not computing has a lane for
    each kind. A launcher that only asks what GPUs there are reports no streams."""
    trace, report = os.path.join(workspace.path, "gpu.json"), workspace.directory("report")
    workspace.train(config, workspace.directory(), ["run.device=gpu", f"--trace={trace}", *overrides],
                    {"PERDURE_SIMT_REPORT": report})
    events, _ = read(trace)
    lanes, counts = lanes_of(events), [json.loads(line) for line in harness.read(report).splitlines()]
    streams, made = (max(of[name] for of in counts) for name in ("streams", "streams_made"))
    check(len(lanes) == streams == made, f"{overrides}: {streams} of {made} streams were given work, and there are lanes {sorted(lanes)}")
    for key, names in lanes.items():
        check(key[1] in known, f"{overrides}: nobody expects a lane {key}")
        fits = names >= known[key[1]] if key[1] == "GPU compute" else names == known[key[1]]
        check(fits, f"{overrides}: lane {key} has {sorted(names)}, expected {sorted(known[key[1]])}")
    return lanes


def kinds(*names):
    """Lanes of one GPU where these leave it."""
    return {"GPU compute"} | {f"GPU {name} {way}" for name in names for way in ("in", "out")}


def expect(lanes, expected):
    """By rank."""
    found = {rank: {key[1] for key in lanes if key[0] == rank} for rank in {key[0] for key in lanes}}
    check(found == expected, f"lanes of ranks: {found}, not {expected}")


def on_gpus(workspace):
    text = CONFIG.format(data=workspace.file("text.txt", harness.text_of(20000))).replace("context: 32", "context: 16")
    config = workspace.file("gpu.yaml", text.replace("sequences: 4", "sequences: 2").replace("steps: 3", "steps: 2"))
    saves, far = {"GPU saves"}, ["layout.ranks=1", "model.layers=4", "layout.order=breadth_first"]
    lanes = traced(workspace, config, ["layout.ranks=1"])
    expect(lanes, {0: {"GPU compute"} | saves})
    check({"adam", "copy"} <= lanes[0, "GPU compute"], f"computing is {lanes[0, 'GPU compute']}")
    for name in harness.share_of(("parameters", "gradients", "activations"), 3):
        expect(traced(workspace, config, [*far, f"offload.{name}=cpu"]), {0: kinds(name) | saves})
    everything = kinds("parameters", "gradients", "activations", "optimizer")
    for place, update, known in harness.share_of((("cpu", "host", LANES), ("cpu", "device", STREAMED), ("nvme", "host", LANES)), 3):
        expect(traced(workspace, config, [*far, f"offload.optimizer={place}", f"offload.update={update}"], known), {0: kinds("optimizer")})
    expect(traced(workspace, config, [*far, *IN_FILES]), {0: everything})
    lanes = traced(workspace, config, ["layout.ranks=2", "layout.transport=local", "layout.zero_stage=3"])
    expect(lanes, dict.fromkeys((0, 1), {"GPU compute", "GPU exchanges", "GPU gathers"} | saves))
    print("lanes of GPUs: one a stream, spans follow each other")
    shares(workspace)


def bench_step(workspace, away, *shape):
    """Of a small model, with what leaves the GPU for the host: shares of stages and of busy streams."""
    shape = (*shape, "heads=2", "kv_heads=2", "vocab=256")
    result = workspace.command(["bench", "step", "--device=gpu", "--preset=gpt2-124m", *(f"--set=model.{key}" for key in shape),
                                *(f"--set=offload.{name}=cpu" for name in away), "--context=16", "--sequences=2", "--micro-batch=1",
                                "--steps=1", "--mode=invariant", "--json"])
    check(result.returncode == 0, f"exit {result.returncode}: {result.stderr}")
    found = json.loads(result.stdout)
    stages, busy = found["stage_shares"], found["busy_shares"]
    check(abs(sum(stages.values()) - 1) < 1e-9 and all(0 <= share < 1 for share in stages.values()), f"stages {stages}")
    ways = {name for name in busy if name.endswith(("_in", "_out")) and busy[name] > 0}
    check(ways == {f"{name}_{way}" for name in away for way in ("in", "out")}, f"{away} leave, and streams are busy for {busy}")
    check(found["operations_not_timed"] == 0 and busy["compute"] < 1, f"{found}")
    return stages, busy


def shares(workspace):
    """Stages of a step, with what was waited for in place of compute and what stood between: the step. Streams may be busy together."""
    stages, busy = bench_step(workspace, ["optimizer"], "layers=1", "hidden=32", "head_size=16", "ffn=64")
    check(stages["gemms"] > 0 and stages["host_optimizer"] > 0 and stages["exchange"] == 0, f"stages {stages}")
    check(busy["host_optimizer"] >= stages["host_optimizer"], f"stages {stages}, streams {busy}")
    bench_step(workspace, ["optimizer", "parameters", "activations"], "layers=4", "hidden=128", "head_size=64", "ffn=512")
    print("stages and what stands between them are the step")


def body(workspace, arguments):
    if "gpu" in arguments:
        on_gpus(workspace)
        return
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(20000))))
    trace = os.path.join(workspace.path, "trace.json")
    workspace.train(config, workspace.directory(), ["layout.ranks=1"])
    check(not os.path.exists(trace), "a trace that nobody asked for")

    directory = workspace.directory()
    workspace.train(config, directory, ["layout.ranks=2", "layout.transport=local", f"--trace={trace}"])
    events, work = read(trace)
    check(WORK | EXCHANGE <= work, f"not in the trace: {(WORK | EXCHANGE) - work}")
    steps = [e for e in events if e["ph"] == "X" and e["name"] == "step"]
    check(len(steps) == 6, f"{len(steps)} steps of two ranks in the trace, not 6")
    check({e["pid"] for e in steps} == {0, 1}, "steps of both ranks")
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    check("pd-saver" in names, f"threads are called {names}")

    fault = {"PERDURE_FAULT": "worker.stepped:2:kill", "PERDURE_FAULT_ONCE": os.path.join(workspace.path, "once")}
    workspace.train(config, workspace.directory(), ["layout.ranks=1", f"--trace={trace}"], environment=fault)
    read(os.path.join(workspace.path, "trace.restart1.json"))
    killed = harness.read(trace)
    check(killed.startswith("[\n"), f"the file of a rank that was killed begins with {killed[:20]!r}")
    lines = killed[:killed.rindex("\n")].rstrip(",")
    json.loads(lines + "]")

    if "mpi" in arguments:
        workspace.train(config, workspace.directory(), ["layout.ranks=2", "layout.transport=mpi", f"--trace={trace}"])
        read(trace)
        events, work = read(os.path.join(workspace.path, "trace.rank1.json"))
        check(WORK | EXCHANGE <= work, f"not in the trace of rank 1: {(WORK | EXCHANGE) - work}")
        check({e["pid"] for e in events if e["ph"] == "X"} == {1}, "rank 1 alone in its file")

    inside = workspace.directory()
    workspace.train(config, inside, ["layout.ranks=1", f"--trace={inside}/trace.json"])  # before there is a run.dir
    read(os.path.join(inside, "trace.json"))

    if "mpi" not in arguments:
        on_disks(workspace, config)

    for name, word in [("/nowhere/trace.json", "mkdir -p /nowhere"), (workspace.path, "is a directory"), (workspace.path + "/", "is a directory"),
                       ("", "empty name")]:
        result = workspace.command(["train", config, f"run.dir={workspace.directory()}", f"--trace={name}"])
        check(result.returncode == 64 and word in result.stderr, f"--trace={name!r}: exit {result.returncode}: {result.stderr}")
    print("traces are whole, nest and name their threads")
    sys.stdout.flush()


harness.main(body)
