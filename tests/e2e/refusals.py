#!/usr/bin/env python3
"""What kernels, containers and file systems refuse: hard links, io_uring, locked memory, direct I/O.

Each run continues, says it in one line, and has the bits of one that is refused nothing, with state in memory and in files, saved
into two tiers.
"""
import os
import subprocess

import harness
import refuse

CONFIG = """
run: {{seed: 3, steps: 6}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 64}}
validation: {{every: 0}}
layout: {{ranks: 2, threads: 1, transport: local}}
"""
# What is said, and whether it is said with state in memory: no state in files, no need of links.
SAID = {
    "links": ("refuses hard links", False),
    "io_uring": ("io_uring is refused here", True),
    "locked memory": ("raise the memlock limit", True),
    "direct I/O": ("refuses direct I/O", True),
}


def train(workspace, config, place, what):
    directory = workspace.directory(place)
    tiers = [f"checkpoint.tiers[{i}].{key}={value}" for i, tier in enumerate([("near", 1), ("far", 3)])
             for key, value in (("dir", os.path.join(directory, tier[0])), ("every", tier[1]), ("keep_last", 2))]
    command = [workspace.perdure, "train", config, f"run.dir={directory}", f"offload.optimizer={place}", *tiers]
    result = subprocess.run(command, env=dict(os.environ, PERDURE_PROGRESS="off"), capture_output=True, text=True, timeout=harness.PATIENCE, check=False,
                            preexec_fn=refuse.refusing(what) if what else None)
    if result.returncode != 0:
        raise harness.Failure(f"{what} refused, state on {place}: exit {result.returncode}\n{result.stderr}")
    stats = subprocess.run([workspace.perdure, "ckpt", "stats", directory, "--json"], capture_output=True, text=True, timeout=harness.PATIENCE,
                           check=False, preexec_fn=refuse.refusing(what) if what else None)
    if stats.returncode != 0 or stats.stderr:  # only a run warns
        raise harness.Failure(f"{what} refused, state on {place}: exit {stats.returncode}\n{stats.stderr}")
    return (harness.losses(directory), stats.stdout.split("state_digest")[1].split(",")[0]), result.stderr


def body(workspace, arguments):
    del arguments
    if not refuse.is_possible():
        print("skipped: refusals (the filter is for x86-64)")
        return
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(50000))))
    for place in ["device", "nvme"]:
        expected, before = train(workspace, config, place, None)
        for what, (words, is_said_in_memory) in SAID.items():
            have, text = train(workspace, config, place, what)
            wanted = 1 if place == "nvme" or is_said_in_memory else 0
            lines = [line for line in text.splitlines() if (" warn " in line or " error " in line)
                     and "lies on the same file system" not in line]  # both tiers do here
            if have != expected:
                raise harness.Failure(f"{what} refused, state on {place}: other bits")
            if words not in before and (len(lines) != wanted or sum(words in line for line in lines) != wanted):
                raise harness.Failure(f"{what} refused, state on {place}: said {len(lines)} times\n{text}")
    print("hard links, io_uring, locked memory and direct I/O refused: said once, same bits")


harness.main(body)
