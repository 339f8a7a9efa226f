#!/usr/bin/env python3
"""Configurations and what `perdure plan` says of them: exact words and exit codes.  plan.py PERDURE SOURCE_DIRECTORY [NAME...]"""
import json
import os
import re

from expect import finish, ANY, COUNTED, MINIMAL, SOURCE, expect, perdure, report, said, write

# ---- configuration: 78, and 64 for what is not an override ----
expect("config-missing", ["plan", "none.yaml"], 78,
       err=said("there is no configuration none.yaml; name another, or let perdure init write one"))
expect("config-none", ["plan"], 64, err=said("name the configuration; see perdure plan --help"))
expect("config-directory", ["plan", "."], 78, err=said("configuration . is a directory; name the file in it"))
expect("config-unknown-key", ["plan", write("unknown.yaml", "run: {dir: run}\noptimiser:\n  lr: 3\n")], 78,
       err=said("unknown.yaml:3:7: unknown key optimiser.lr; did you mean optimizer.lr?"))
expect("config-wrong-type", ["plan", write("type.yaml", "batch:\n  sequences: many\n")], 78,
       err=said('type.yaml:2:14: batch.sequences: expected a whole number, such as 500, 10k or 1e4, found "many"'))
expect("config-no-yaml", ["plan", write("tab.yaml", "run:\n\tdir: x\n")], 78,
       err=said("tab.yaml:2:1: a tab indents this line; use spaces, YAML takes no tabs"))
expect("config-override-unknown", ["plan", MINIMAL, "lr=1"], 78,
       err=said("command line: unknown key lr; did you mean optimizer.lr?"))
expect("config-override-malformed", ["plan", MINIMAL, "faster"], 64,
       err=said('"faster" is not an override; write section.key=value, such as optimizer.lr=3e-4'))
expect("config-micro-batch", ["plan", MINIMAL, "batch.micro_batch=5"], 78,
       err=said("run.yaml: batch.sequences 32 is not a multiple of batch.micro_batch 5; the nearest micro-batch that fits is 4"))
expect("config-preset", ["plan", MINIMAL, "model.preset=gpt2-125m"], 78,
       err=re.compile(r"^perdure: .*model.preset gpt2-125m is unknown; the nearest are gpt2-124m, "))

expect("print-config-min-lr", ["plan", MINIMAL, "--print-config"], 0, re.compile(r"\n  lr: 0\.0003 .*\n  min_lr: 3e-05 "))
text = expect("print-config", ["plan", MINIMAL, "model.preset=gpt2-124m", "--print-config"], 0, re.compile("preset: \"gpt2-124m\""))
if text:
    again = expect("print-config-loads-back", ["plan", write("printed.yaml", text), "--print-config"], 0, text)

# ---- plan ----
expect("plan-world-word", ["plan", MINIMAL, "--world=2,x"], 64,
       err=said("--world=x: expected a number of ranks, 1 to 65536"))
text = expect("plan-worlds-some-refused", ["plan", MINIMAL, "--world=8,7,11", "--threads=1"], 0,
              re.compile(r"\n +8  dp=8 .*\n +7  dp=7 .*\n +11  none, see below .*\nworld 11: layout: dp 11 of 11 ranks is more than "))
text = expect("plan-worlds-some-refused-json", ["plan", MINIMAL, "--world=8,11", "--json"], 0, ANY)
if text:
    fits, refused = json.loads(text)["worlds"]
    good = fits["refusal"] is None and fits["groups"] and refused["refusal"].startswith("layout: dp 11 ") and "groups" not in refused
    report("plan-worlds-some-refused-json-content", [] if good else ["refusals"], (0, text, ""))
expect("plan-worlds-all-refused", ["plan", MINIMAL, "--world=9,11"], 78, re.compile("\nworld 9: .*\nworld 11: "),
       re.compile("^perdure: none of the 2 worlds asked for has a layout; 9 ranks: layout: dp 9 of 9 ranks is more than "))
expect("plan-of-one", ["plan", MINIMAL, "model.layers=1", "model.hidden=32", "model.heads=1", "batch.sequences=1", "batch.micro_batch=1",
                       "--world=1", "--threads=1"], 0,
       re.compile(r"llama, 1 block of 32, 1 head, .*\nstep +1 sequence of 256: .*; 1 micro-batch of 1\n(.*\n)+world 1: .*; 1 micro-batch a rank and step, 1 thread a rank; a rank on cpu\n"))
EXPERTS = ["plan", MINIMAL, "model.preset=mixtral-1m", "batch.sequences=32", "--threads=1"]
expect("plan-experts-spread", [*EXPERTS, "layout.ep=4", "--world=4"], 0, re.compile(r"\nworld 4: dp=4 ep=4 zero_stage=\d .*\n(.*\n)*ALTERNATIVE .*\n(dp=4 ep=4 .*\n)+"))
expect("plan-experts-worlds", [*EXPERTS, "layout.ep=2", "--world=4,2"], 0, re.compile(r"\n +4  dp=4 ep=2 .*\n +2  dp=2 ep=2 "))
expect("plan-offload", ["plan", MINIMAL, "--world=1", "--threads=1", "offload.optimizer=nvme", "offload.activations=cpu"], 0,
       re.compile(r"\nRANKS +FIRST +device +pinned +NVMe .*\n +1 +0 +[\d.]+ MiB +0 B +[\d.]+ MiB +5 +[\d.]+ MiB .*\nprocess +(.*\n)*nvme +.* [um]?s\n"
                  r"step +.* [um]?s\nnote: the device is the CPU, "))
ON_GPU = ["plan", MINIMAL, "--world=1", "--device=h100-80g", "run.device=gpu"]
for name, words, where in (
        ("device", [], r" +1 +0 +\S+ \S+ +[1-9].*\nprocess +(.*\n)*step +.* [um]?s\n"),
        ("cpu", ["offload.optimizer=cpu"], r" +1 +0 +\S+ \S+ +[1-9].*\nprocess +(.*\n)*bus +.*\nstep +.*\nupdate +(host|device)\noptimizer seconds otherwise "),
        ("nvme", ["offload.optimizer=nvme"], r" +1 +0 +\S+ \S+ +[1-9]\S+ \S+ +[1-9]\S+ \S+ +\d +[1-9].*\nprocess +(.*\n)*bus +")):
    result = perdure(*ON_GPU, *words)
    if "this build has no CUDA" not in result[2]:
        report(f"plan-where-{name}", [] if result[0] == 0 and re.search(r"\nRANKS +FIRST +device +pinned .*\n" + where, result[1]) else ["not said where bytes are"], result)
expect("plan-where-all", ["plan", MINIMAL, "--world=1"], 0, re.compile(r"\nworst rank +.*\nmean rank +(?!(.*\n)*RANKS +FIRST +device)"))
for words, flags in (([], r"\nflags: layout.ranks=1 layout.dp=1 "), (["--threads=3"], r"\nflags: layout.ranks=1 layout.threads=3 layout.dp=1 "),
                     (["layout.threads=2"], r"\nflags: layout.ranks=1 layout.threads=2 layout.dp=1 ")):
    expect(f"plan-flags-{''.join(words)}", ["plan", MINIMAL, "--world=1", *words], 0, re.compile(flags))  # this machine's cores are not the run's
expect("plan-too-little", ["plan", MINIMAL, "--world=1", "--device=h100-80g", "--device-memory=1M", "layout=auto", "batch.micro_batch=1"], 78,
       err=re.compile(r"fits 1\.00 MiB a rank; the smallest needs (more than )?[\d.]+ MiB: take (?!.*batch\.micro-batch)"))
# Threads are as many as the cores that a run started in this place may use.
allowed = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(allowed)})
text = expect("plan-affinity", ["plan", MINIMAL, "--world=1", "--json"], 0, ANY)
os.sched_setaffinity(0, allowed)
if text:
    threads = json.loads(text)["worlds"][0]["threads"]
    report("plan-affinity-threads", [] if threads == 1 else [f"{threads} threads on one core"], (0, text, ""))
# A run that does not fit is told what does.
TIGHT = ["plan", MINIMAL, "--world=1", "--device=h100-80g", "batch.micro_batch=1", "batch.sequences=64", "layout.pp=1"]
for name, words, expected in (("auto", ["--device-memory=16M", "layout.zero_stage=0"], "with layout=auto it does|take "),
                              ("nothing", ["--device-memory=1M"], r"take numerics\.lanes=1 \(other bits\)(,| or) more (ranks|GPUs)")):
    expect(f"plan-does-not-fit-{name}", [*TIGHT, *words], 0, re.compile(rf"\nnote: this does not fit the [\d.]+ MiB of h100-80g: ({expected})"), err=COUNTED)
NOTE = r"\nnote: numerics.lanes is 8, and .* with numerics.lanes=1 a rank needs [\d.]+ MiB and a step [\d.]+ m?s, but the run never uses more than 1 data rank\n"
text = expect("plan-lanes", [*TIGHT, "--json"], 0, ANY, COUNTED)
one = expect("plan-one-lane", [*TIGHT, "numerics.lanes=1", "--json"], 0, ANY, COUNTED)
if text and one:
    several, one = json.loads(text)["worlds"][0], json.loads(one)["worlds"][0]
    parameters = json.loads(text)["parameters"]
    good = several["fewer_lanes"] == 1 and several["fewer_lanes_worst_rank_bytes"] == one["worst_rank_bytes"] and one["fewer_lanes"] == 0
    good = good and several["worst_rank_bytes"] - one["worst_rank_bytes"] >= 4 * parameters and one["terms_seconds"] == 0 < several["terms_seconds"]
    good = good and several["fewer_lanes_step_seconds"] == one["step_seconds"] < several["step_seconds"]
    report("plan-lanes-content", [] if good else ["the price of lanes"], (0, text[:200], ""))
    half = (several["worst_rank_bytes"] + one["worst_rank_bytes"]) // 2
    expect("plan-lanes-first", [*TIGHT, f"--device-memory={half}"], 0, re.compile(r"\nnote: this does not fit .* of h100-80g: with numerics.lanes=1 it does "
           r"\(other bits, and never more than 1 data rank\)\n(.*\n)*" + NOTE[2:]), err=COUNTED)
expect("plan-elastic", [*TIGHT, "elastic.max=4", "--world=4"], 0, re.compile(r"^(?!(.*\n)*note: numerics.lanes)"), err=COUNTED)
expect("plan-too-many-data-ranks", ["plan", MINIMAL, "batch.micro_batch=1", "batch.sequences=64", "layout.dp=16", "--world=16"], 78,
       err=said("command line: layout.dp is 16, but a step has only 8 lanes (batch.sequences 64 / batch.micro_batch 1); set it to at most 8, or take numerics.lanes=16, "
                "which gives other bits"))
expect("plan-order", ["plan", MINIMAL, "--world=1", "offload.optimizer=nvme", "offload.parameters=nvme"], 0,
       re.compile(r"\nworld 1: dp=1 .* order=breadth_first; "))
expect("plan-rate-bound", ["plan", MINIMAL, "--world=1", "--flops=1e99"], 64,
       err=said("--flops=1e99: expected a rate such as 25G or 312T, 1 to 1e20"))
TIERS = ["checkpoint.tiers[0].dir=near", "checkpoint.tiers[0].keep_last=2", "checkpoint.tiers[1].dir=far", "checkpoint.tiers[1].keep_last=3"]
for place, first in (("cpu", 4), ("nvme", 5)):  # kept, written, copied; state in files is read from one more
    text = expect(f"plan-tiers-{place}", ["plan", MINIMAL, "--world=1", "--threads=1", f"offload.optimizer={place}", *TIERS, "--json"], 0, ANY)
    if text:
        plan = json.loads(text)
        found = [[tier["checkpoints"], tier["bytes"]] for tier in plan["tiers"]]
        problems = [] if found == [[n, n * plan["checkpoint_bytes"]] for n in (first, 4)] else [f"tiers hold {found}"]
        if plan["groups"][0]["nvme_generations"] != (first if place == "nvme" else 0):
            problems.append("files of state")
        report(f"plan-tiers-{place}-json", problems, (0, text, ""))
expect("plan-tiers-text", ["plan", MINIMAL, "--world=1", "--threads=1", "offload.optimizer=nvme", *TIERS], 0,
       re.compile(r"^tier 0 +near: 5 checkpoints at once: ", re.M))
expect("plan-files-text", ["plan", MINIMAL, "--world=1", "--threads=1", "offload.optimizer=nvme"], 0,
       re.compile(r"^checkpoint .*; \d+ are kept, one is read and one is being written: ", re.M))
text = expect("plan-offload-json", ["plan", MINIMAL, "--world=1,4", "--threads=1", "offload.optimizer=nvme", "--json"], 0, ANY)
if text:
    plan = json.loads(text)
    for world in plan["worlds"]:
        groups = world["groups"]
        moved = sum(group["ranks"] * group["nvme_step_bytes"] for group in groups)
        held = sum(group["ranks"] * group["nvme_bytes"] for group in groups)
        bad = [f"{moved} bytes move"] if not 0.9 * 24 * plan["parameters"] < moved <= 24 * plan["parameters"] else []
        bad += [f"{held} bytes are held"] if not 5 * 12 * plan["parameters"] < held < 1.2 * 5 * 12 * plan["parameters"] else []
        bad += [key for key in ("host_bytes", "pinned_bytes") if groups[0][key] != 0]
        bad += [] if groups[0]["device_bytes"] == groups[0]["memory_bytes"]["total"] and world["process_bytes"] > 0 else ["device"]
        report(f"plan-offload-json-{world['world']}", bad, (0, text, ""))
expect("plan-nvme", ["plan", MINIMAL, "--nvme=slow"], 64, err=said("--nvme=slow: expected a rate such as 25G or 312T, 1 to 1e20"))
expect("plan-last-counts", ["plan", MINIMAL, "layout.dp=2", "layout.dp=4", "--print-config"], 0, re.compile(r"\n  dp: 4 "))
expect("plan-twice-in-file", ["plan", write("twice.yaml", "layout: {dp: 2, dp: 3}\n")], 78,
       err=said("twice.yaml:1:21: layout.dp is already set in line 1; keep one of them"))
for number, text in enumerate(["1,", ",1", "1,,2"]):
    expect(f"plan-world-comma-{number}", ["plan", MINIMAL, f"--world={text}"], 64,
           err=said(f"--world={text}: expected a number of ranks, or several such as 4,8"))
expect("compression-of-the-command-line", ["train", MINIMAL, "checkpoint.compression=zstd:40"], 78,
       err=re.compile("^perdure: command line: checkpoint.compression: "))
expect("plan-world-empty", ["plan", MINIMAL, "--world="], 64,
       err=said("--world=: expected a number of ranks, or several such as 4,8"))
expect("plan-threads", ["plan", MINIMAL, "--threads=0"], 64, err=said("--threads=0: expected a number from 1 to 4096"))
expect("plan-device", ["plan", MINIMAL, "--device=a100"], 64,
       err=re.compile("^perdure: device a100 is unknown; the nearest is a100-40g; known are cpu, a100-40g, .* --device-memory and --flops\n$"))
expect("plan-device-near", ["plan", MINIMAL, "--device=h100"], 64, err=re.compile("the nearest is h100-80g;"))
expect("plan-preset-near", ["plan", MINIMAL, "model.preset=llama-3-8b"], 78, err=re.compile("the nearest are llama3.1-8b,"))
for name, capability in (("a100-40g", "8.0"), ("a100-80g", "8.0")):
    expect(f"plan-fp8-{name}", ["plan", MINIMAL, "--world=1", f"--device={name}", "run.device=gpu", "numerics.linears=fp8"], 78,
           err=said(f"numerics.linears is fp8, which needs a GPU of compute capability 8.9, and {name} has {capability}; set "
                    "numerics.linears=precision or run.device=cpu"))
for name, device in (("h100-80g", "gpu"), ("h200-141g", "gpu"), ("a100-40g", "cpu")):
    expect(f"plan-fp8-{name}-{device}", ["plan", MINIMAL, "--world=1", f"--device={name}", f"run.device={device}", "numerics.linears=fp8"], 0,
           ANY, ANY)
expect("plan-flops", ["plan", MINIMAL, "--flops=fast"], 64, err=said("--flops=fast: expected a rate such as 25G or 312T, 1 to 1e20"))
expect("plan-memory", ["plan", MINIMAL, "--device-memory=0"], 64,
       err=said("--device-memory=0: expected a size such as 40G"))
expect("plan-host", ["plan", MINIMAL, "--ranks-per-host=0"], 64, err=said("--ranks-per-host=0: expected a number from 1 to 65536"))
for name in ("kjv", "gpt2-124m", "llama-1b"):
    expect(f"plan-{name}", ["plan", os.path.join(SOURCE, "tools/configs", name + ".yaml"), "--world=1,2", "--threads=1"], 0,
           re.compile(r"^model  .*\nstep  .*\ncheckpoint .*\n\nWORLD  .*\n +1 .*\n +2 .*\n--world=N"))

for options in ([], ["run.device=gpu"]):  # gathers and sums that hide behind blocks leave nothing, not 4e-16 s
    text = expect("plan-hidden", ["plan", os.path.join(SOURCE, "tools/configs/llama-1b.yaml"), "--world=2", "--device=h100-80g",
                                  "--threads=1", "--json", *options], 0, ANY, COUNTED)
    if text:
        report("plan-hidden-nothing", [] if json.loads(text)["worlds"][0]["exposed_seconds"] == 0 else ["something"], (0, text, ""))
text = expect("plan-gpu", ["plan", MINIMAL, "--world=1", "--device=h100-80g", "--threads=1", "--json"], 0, ANY, COUNTED)
same = expect("plan-gpu-asked", ["plan", MINIMAL, "--world=1", "run.device=gpu", "--threads=1", "--json"], 0, ANY, COUNTED)
if text and same and not os.path.exists("/dev/nvidia0"):
    report("plan-gpu-default", [] if json.loads(same)["groups"] == json.loads(text)["groups"] else ["counts otherwise than --device=h100-80g"],
           (0, same, ""))
if text:
    plan = json.loads(text)
    group = plan["groups"][0]
    # what a save reads lies in the host's memory too, where the build can count a GPU's part
    good = group["device_bytes"] == group["memory_bytes"]["total"] == plan["worlds"][0]["worst_rank_bytes"]
    good = good and (group["pinned_bytes"] == 0 or group["pinned_bytes"] > 12 * plan["parameters"])
    report("plan-gpu-places", [] if good and group["pinned_bytes"] == group["host_bytes"] else ["device or pinned bytes"], (0, text, ""))
text = expect("plan-8b", ["plan", os.path.join(SOURCE, "tools/configs/llama-8b.yaml"), "--world=16", "--ranks-per-host=8", "--device=h100-80g",
                          "--threads=1", "--json"], 0, ANY, COUNTED)
if text:
    plan = json.loads(text)
    good = plan["parameters"] == 8030261248 and plan["worlds"][0]["worst_rank_bytes"] < 76e9
    report("plan-8b-fits", [] if good else ["the parameters, or it does not fit"], (0, text, ""))
text = expect("plan-1t", ["plan", os.path.join(SOURCE, "tools/configs/gpt-1t.yaml"), "--world=16384", "--threads=1", "--device=h100-80g",
                          "--json"], 0, ANY, COUNTED)
if text:
    plan = json.loads(text)
    problems = [] if sum(group["ranks"] for group in plan["groups"]) == 16384 and plan["groups"] == plan["worlds"][0]["groups"] else ["groups"]
    if plan["step_seconds"] <= 0 or plan["plan_seconds"] <= 0 or plan["parameters"] != 1008038758400:
        problems.append("seconds or parameters")
    total = sum(group["ranks"] * group["memory_bytes"]["optimizer"] for group in plan["groups"])
    if not 12 * plan["parameters"] <= total < 12.1 * plan["parameters"]:
        problems.append("moments and master of all ranks")
    report("plan-1t-content", problems, (0, text[:200], ""))

# ---- layouts that nothing admits: 78 and one sentence, whatever the command, before anything is made ----
# Layouts that are refused; 4 blocks, 8 micro-batches of 4 sequences of 256 tokens.
REFUSED = {
    "tp": (["numerics.virtual_tp=4", "layout.tp=3"],
           "layout.tp is 3, and it must divide numerics.virtual_tp, which is 4: the number of parts in which sums are made, so that bits do "
           "not depend on layout.tp; use layout.tp=2 or layout.tp=4"),
    "tp-lineage": (["layout.tp=2"], "layout.tp is 2, and it must divide numerics.virtual_tp, which is 1: the number of parts in which sums are "
                                    "made, so that bits do not depend on layout.tp; use layout.tp=1, or set numerics.virtual_tp=2 as well, which "
                                    "gives other bits"),
    "sp": (["numerics.virtual_sp=2", "layout.sp=4"],
           "layout.sp is 4, and it must divide numerics.virtual_sp, which is 2: the number of parts in which sums are made, so that bits do "
           "not depend on layout.sp; use layout.sp=2, or set numerics.virtual_sp=4 as well, which gives other bits"),
    "virtual-tp": (["numerics.virtual_tp=6"], "numerics.virtual_tp 6 is not a power of two; the nearest are 4 and 8"),
    "virtual-sp": (["numerics.virtual_sp=3"], "numerics.virtual_sp 3 is not a power of two; the nearest are 2 and 4"),
    "pieces": (["numerics.virtual_sp=256"],
               "numerics.virtual_sp 256 cuts a sequence into 512 pieces, but batch.context is only 256 tokens; use "
               "numerics.virtual_sp=128 at most"),
    "dp": (["layout.dp=9"], "layout.dp is 9, but a step has only 8 micro-batches (batch.sequences 32 / batch.micro_batch 4); set it to at "
                            "most 8, or take a smaller batch.micro_batch with numerics.lanes=9, which gives other bits"),
    "dp-micro-batch": (["layout.dp=33", "batch.micro_batch=1"], "layout.dp is 33, but a step has only 8 lanes (batch.sequences 32 / batch.micro_batch 1); "
                                                  "set it to at most 8, or take more batch.sequences with numerics.lanes=33, which gives other bits"),
    "ranks-micro-batch": (["layout.ranks=37", "batch.micro_batch=1"], "layout: dp 37 of 37 ranks is more than the 8 lanes of a step (batch.sequences 32 "
                                                        "/ batch.micro_batch 1); 32 ranks fit as dp=8 pp=4; or take "
                                                        "more batch.sequences with numerics.lanes=37, which gives other bits"),
    "stages": (["layout.pp=5"], "layout.pp 5 x layout.interleave 1 is 5 pipeline stages, but the model has 4 blocks; use layout.pp=4 at most, with layout.interleave=1"),
    "interleave": (["layout.pp=2", "layout.interleave=3"],
                   "layout.pp 2 x layout.interleave 3 is 6 pipeline stages, but the model has 4 blocks; use "
                   "layout.pp=2 at most, with layout.interleave=2"),
    "interleave-alone": (["layout.interleave=2"], "layout.interleave is 2 and layout.pp is 1, so there are no stages to "
                                                  "interleave; use layout.interleave=1 or layout.pp=2"),
    "product": (["layout.ranks=2", "layout.dp=4"],
                "layout: dp 4 x tp 1 x pp 1 x sp 1 is 4 ranks, and there are 2; 2 ranks fit as dp=2 or dp=1 pp=2"),
    "divides": (["layout.ranks=6", "layout.pp=4"],
                "layout: tp 1 x pp 4 x sp 1 does not divide 6 ranks; 6 ranks fit as dp=2 pp=3, dp=3 pp=2 or dp=6"),
    "ranks": (["layout.ranks=11"],
              "layout: dp 11 of 11 ranks is more than the 8 micro-batches of a step (batch.sequences 32 / batch.micro_batch 4); 10 ranks fit "
              "as dp=5 pp=2; or take a smaller batch.micro_batch with numerics.lanes=11, which gives other bits"),
    "zero-shard": (["layout.dp=4", "layout.zero_shard=3"],
                   "layout.zero_shard is 3 and does not divide dp x sp, which is 4; use layout.zero_shard=2 or "
                   "layout.zero_shard=4"),
    "copies-shard": (["layout.dp=4", "layout.zero_shard=2", "offload.optimizer=nvme"],
                     "layout.zero_shard is 2 of dp x sp 4, which keeps the state 2 times, and offload.optimizer is nvme, which "
                     "keeps it once; use layout.zero_shard=0, or offload.optimizer=device"),
    "copies-stage": (["layout.dp=4", "layout.zero_stage=0", "offload.optimizer=nvme"],
                     "layout.zero_stage is 0, which keeps the whole state on each of 4 ranks, and offload.optimizer is nvme, which "
                     "keeps it once; use layout.zero_stage=1, or offload.optimizer=device"),
    "buffers": (["offload.optimizer=nvme", "offload.buffer_bytes=3M"],
                "offload.buffer_bytes is 3145728, and state on nvme streams through 4194304 at least; set "
                "offload.buffer_bytes=4M"),
    "recompute-layers": (["layout.recompute=full", "layout.recompute_layers=5"], "layout.recompute_layers is 5, and the model has 4 "
                         "blocks; set layout.recompute_layers=4, or leave it out for all"),
    "order": (["layout.pp=2", "layout.order=breadth_first"], "layout.order is breadth_first and layout.pp is 2, but pipeline stages take micro-batch "
                                                      "after micro-batch; use layout.pp=1 or layout.order=depth_first"),
    "restart": (["restart.ranks=8,11"],
                "restart.ranks[1] is 11, and no layout of 11 ranks is admitted; the next below is 10"),
    "loss-scale": (["numerics.precision=fp16", "numerics.loss_scale=1000"],
                   "numerics.loss_scale 1000 is not a power of two; the nearest are 512 and 1024"),
    "loss-scale-bf16": (["numerics.loss_scale=2048"], "numerics.loss_scale is 2048, but only fp16 scales the loss; leave it "
                                                      "out, or set numerics.precision=fp16"),
}
for name, (overrides, sentence) in REFUSED.items():
    for command in ("plan", "train"):
        blamed = "command line" if re.match(r"[a-z_.]+", sentence)[0] in [o.split("=")[0] for o in overrides] else "run.yaml"
        expect(f"refused-{name}-{command}", [command, MINIMAL, *overrides], 78, err=said(f"{blamed}: {sentence}"))
expect("refused-world", ["plan", MINIMAL, "--world=6", "layout.pp=4"], 78,
       err=said("layout: tp 1 x pp 4 x sp 1 does not divide 6 ranks; 6 ranks fit as dp=2 pp=3, dp=3 pp=2 or dp=6"))
expect("plan-world-before-ranks", ["plan", MINIMAL, "--world=4", "layout.ranks=3", "layout.pp=4"], 0,
       re.compile("flags: layout.ranks=4 "))
expect("refused-memory", ["plan", MINIMAL, "layout=auto", "--world=4", "--device-memory=1M"], 78,
       err=said("layout: no layout of 4 ranks fits 1.00 MiB a rank; the smallest needs more than 3.88 MiB: take numerics.lanes=4 (other bits) or more ranks"))
report("refused-makes-nothing", ["run is there"] if os.path.exists("run") else [], (0, "", ""))

# By hand: 4 + 8 + 8 bytes a parameter in fp32, sums being integers at first; bf16 adds a copy of 2; ZeRO-3 cuts everything but two blocks.
def memory_by_hand(*words):
    said = expect("plan-by-hand", ["plan", MINIMAL, "model.preset=llama-65b", "batch.sequences=64", "batch.micro_batch=1", "batch.context=2048", "numerics.lanes=64",
                                   "layout.recompute=none", "layout.zero_stage=3", "--alternatives=0", "--json", *words], 0, ANY)
    return (json.loads(said)["parameters"], json.loads(said)["groups"][0]["memory_bytes"]) if said else (0, None)


whole, half, cut = [memory_by_hand(*words) for words in (("--world=1", "numerics.precision=fp32"), ("--world=1", "numerics.precision=bf16"),
                                                         ("--world=64", "numerics.precision=bf16"))]
if whole[1] and half[1] and cut[1]:
    n, memory = whole[0], [whole[1], half[1], cut[1]]
    state = [one["parameters"] + one["gradients"] + one["optimizer"] for one in memory]
    block = 2 * (4 * 8192 * 8192 + 3 * 8192 * 22016)  # bf16
    problems = []
    if not 65e9 < n < 66e9 or not 20 * n <= state[0] < 20 * n + 8 * block or memory[0]["total"] < 1000e9:
        problems.append("fp32")
    if memory[0]["optimizer"] // 2**20 != 12 * n // 2**20 or memory[1]["optimizer"] != memory[0]["optimizer"]:
        problems.append("optimizer")
    if not 22 * n <= state[1] < 22 * n + 8 * block:
        problems.append("bf16")
    if not 12 * n / 64 <= memory[2]["optimizer"] < 12.1 * n / 64 or memory[2]["parameters"] > 2 * n / 64 + 5 * block:
        problems.append("ZeRO-3")
    report("plan-memory-by-hand", problems, (0, f"{memory}", ""))
text = expect("plan-alternatives", ["plan", MINIMAL, "model.preset=gpt2-124m", "--world=2", "--alternatives=9"], 0, ANY)
if text:
    lines = re.findall(r"^(dp=2 .*?)  ", text, re.MULTILINE)
    report("plan-alternatives-differ", [] if len(lines) > 2 and len(set(lines)) == len(lines) else ["two alternatives look the same"], (0, text, ""))
# Where a plan does not fit, the ladder under it shows which rungs would.
text = expect("plan-ladder", ["plan", MINIMAL, "model.preset=llama-65b", "batch.sequences=64", "batch.micro_batch=1", "batch.context=2048", "numerics.lanes=64",
                              "layout.zero_stage=1", "layout.recompute=none", "numerics.precision=bf16", "--world=64", "--device=a100-80g",
                              "--alternatives=0"], 0, ANY, COUNTED)
if text:
    rungs = re.findall(r"^  (\S.*\S) +(1 rank|64 ranks) +([\d.]+) ([GT])iB  (fits|too large)$", text, re.MULTILINE)
    sizes = [float(rung[2]) * (1024 if rung[3] == "T" else 1) for rung in rungs]
    expected = [("fp32, whole", "1 rank", "too large"), ("bf16, ZeRO-3, full recomputation", "64 ranks", "fits")]
    right = len(rungs) == 7 and [(rungs[i][0], rungs[i][1], rungs[i][4]) for i in (0, -1)] == expected and sizes[1:] == sorted(sizes[1:], reverse=True)
    report("plan-ladder-rungs", [] if right and all((size <= 80e9 / 2**30) == (rung[4] == "fits") for size, rung in zip(sizes, rungs)) else ["rungs"],
           (0, text, ""))
text = expect("plan-json", ["plan", MINIMAL, "--world=1,3", "--threads=1", "--json"], 0, ANY)
if text:
    plan = json.loads(text)
    problems = []
    if plan["parameters"] != 1016960 or plan["checkpoint_bytes"] != 12 * 1016960 or plan["micro_batches"] != 8:
        problems.append("sizes")
    for world in plan["worlds"]:
        if sum(group["ranks"] for group in world["groups"]) != world["world"]:
            problems.append("ranks of groups do not add up")
        for group in world["groups"]:
            memory = dict(group["memory_bytes"])
            if memory.pop("total") != sum(memory.values()):
                problems.append("total")
        if world["worst_rank_bytes"] != max(group["memory_bytes"]["total"] for group in world["groups"]):
            problems.append("worst rank")
        if world["slots"] * world["world"] - world["padding_micro_batches"] != plan["micro_batches"]:
            problems.append("padding_micro_batches")
    report("plan-json-content", problems, (0, text, ""))

finish("plan")
