#!/usr/bin/env python3
"""Data races, with a tool that is built with -DPERDURE_SANITIZE=thread (tools/test.sh --races).

Short trainings over ranks that are threads of one process, saving at every step: state in memory and in files, on one drive and on two,
over three tiers with a cap and compression, each resumed under the next layout; then the checkpoint is verified and rewritten. Every
report of the sanitizer fails, but for those that races.supp gives a reason for.
"""
import glob
import os
import shutil

import harness

CONFIG = """
run: {{seed: 3, steps: 4}}
model: {{family: llama, vocab: 256, context: 32, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 96}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 32}}
validation: {{every: 0}}
numerics: {{virtual_tp: 2, virtual_sp: 2}}
layout: {{transport: local, threads: 2}}
offload: {{buffer_bytes: 8M}}
"""
EVERYWHERE = [f"offload.{what}=nvme" for what in ("optimizer", "parameters", "gradients", "activations")]
RUNS = [["layout.ranks=2", "layout.dp=2"],
        ["layout.ranks=4", "layout.dp=2", "layout.tp=2", "layout.zero_stage=1", *EVERYWHERE],
        ["layout.ranks=4", "layout.pp=2", "layout.sp=2", "layout.zero_stage=2", "checkpoint.tiers[0].compression=zstd:2"],
        ["layout.ranks=2", "layout.dp=2", "offload.optimizer=nvme"],
        ["layout.ranks=4", "layout.dp=4", "layout.zero_stage=3", "checkpoint.tiers[0].compression=zstd:1"]]


def tiers_of(directory, memory):
    tiers = [{"dir": f"{directory}/near", "every": 1},
             {"dir": f"{directory}/checkpoints", "every": 2, "bandwidth": "64M", "compression": "zstd:1"}, {"dir": memory, "every": 1}]
    return [f"checkpoint.tiers[{i}].{key}={value}" for i, tier in enumerate(tiers) for key, value in tier.items()]


def body(workspace, arguments):
    del arguments
    log = workspace.directory("reports")
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {"TSAN_OPTIONS": f"suppressions={here}/races.supp log_path={log} exitcode=0"}
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
    directory = workspace.directory()
    memory = os.path.join("/dev/shm" if os.access("/dev/shm", os.W_OK) else workspace.path, f"perdure-races-{os.getpid()}")
    try:
        for i, words in enumerate(RUNS):
            workspace.train(config, directory, [*tiers_of(directory, memory), *words, f"run.steps={4 * (i + 1)}"], environment)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    place = os.path.join(directory, "checkpoints")
    for command in (["verify", place], ["reshard", place, os.path.join(directory, "other"), "--layout=dp=2,tp=2"],
                    ["reshard", place, os.path.join(directory, "packed"), "--layout=dp=1", "--compression=zstd:3"]):
        result = workspace.command(["ckpt", *command], environment)
        if result.returncode != 0:
            raise harness.Failure(f"ckpt {' '.join(command)}: exit {result.returncode}\n{result.stderr}")
    reports = "".join(harness.read(path) for path in sorted(glob.glob(log + ".*")))
    if "WARNING: ThreadSanitizer" in reports:
        raise harness.Failure(f"{reports.count('WARNING: ThreadSanitizer')} reports\n{reports[:20000]}")
    print(f"{len(RUNS)} trainings, a verify and two rewrites: no data race")


harness.main(body)
