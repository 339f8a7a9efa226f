#!/usr/bin/env python3
"""A machine with a GPU that this program cannot use: its driver is too old, or the program is built without CUDA. A run that may
choose continues on the CPU and says so, one that is to take a GPU does not start, and doctor says the same of both."""
import json
import os
import re

import harness

CONFIG = """
run: {{seed: 3, steps: 2}}
model: {{family: llama, vocab: 256, context: 16, layers: 1, hidden: 16, heads: 2, kv_heads: 2, head_size: 8, ffn: 32}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 2, micro_batch: 1, context: 16}}
layout: {{ranks: 2, threads: 1, transport: local}}
"""


def body(workspace, arguments):
    environment = dict(os.environ, LD_LIBRARY_PATH=arguments[0])
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(20000))))
    findings = json.loads(workspace.command(["doctor", "--json"], environment).stdout)["findings"]
    rows = {row["what"]: row for row in findings}
    if "H100" not in rows["gpu"]["here"] or rows["gpu use"]["state"] != "limited" or "auto" not in rows["gpu use"]["advice"]:
        raise harness.Failure(f"doctor says {rows['gpu']} and {rows.get('gpu use')}")
    why = rows["gpu use"]["here"]

    result = workspace.train(config, workspace.directory(), [], environment)
    said = [line for line in result.stderr.splitlines() if " warn " in line and "NVIDIA H100" in line and why in line]
    if len(said) != 1 or "run.device=cpu" not in said[0]:
        raise harness.Failure(f"a run that may choose says of {why}:\n{result.stderr}")
    result = workspace.train(config, workspace.directory(), ["run.device=cpu"], environment)
    if re.search(" warn (?!io)", result.stderr):  # io_uring's limits are no matter of GPUs
        raise harness.Failure(f"a run that is to take the CPU says:\n{result.stderr}")
    result = workspace.command(["train", config, f"run.dir={workspace.directory()}", "run.device=gpu", "restart.limit=0"], environment)
    if result.returncode == 0 or why not in result.stderr or "restarts" in result.stderr or "launch" in result.stderr:
        raise harness.Failure(f"a run that is to take a GPU: exit {result.returncode}\n{result.stderr}")
    print(f"a GPU that cannot be used, {why}: said, and the CPU taken where that is allowed")


harness.main(body)
