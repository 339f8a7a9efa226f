#!/usr/bin/env python3
"""perdure bench survive: ranks are killed, stopped, paused and preempted and checkpoints damaged, and the bits stay those of a quiet run. One
minute by default, an hour with PERDURE_TEST_SCALE of 10 or more. --chaos is refused where it says nothing."""
import json
import os
import random
import subprocess

import harness

KINDS = ("kill", "stop", "pause", "preempt", "damage")
PHASES = ("detect", "end", "decide", "start", "join", "open", "load", "step", "total")


def body(workspace, _):
    seed = int(os.environ.get("PERDURE_TEST_SEED", str(random.SystemRandom().randrange(2**31))))
    print(f"seed {seed} (PERDURE_TEST_SEED replays it)", flush=True)
    minutes, every = (60, 60) if harness.scale() >= 10 else (1, 10)
    result = subprocess.run([workspace.perdure, "bench", "survive", f"--minutes={minutes}", f"--every={every}", f"--seed={seed}",
                             f"--dir={workspace.path}", "--json"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise harness.Failure(f"bench survive: exit {result.returncode}\n{result.stdout}{result.stderr}")
    said = json.loads(result.stdout)
    blows = sum(said[f"failures_{kind}"] for kind in KINDS)
    if said["same_bits"] != "yes" or said["differing_losses"] or said["false_alarms"] or not blows or not 0 < said["goodput"] <= 1:
        raise harness.Failure(result.stdout)
    if any(said.get(f"recover_{phase}", 0) < 0 for phase in PHASES):  # a run that ends with its last failure has none
        raise harness.Failure(result.stdout)
    if [name for name in os.listdir(workspace.path) if name.startswith("perdure-bench")]:
        raise harness.Failure("files of the bench stay behind")
    refused = workspace.command(["train", "none.yaml", "--chaos=7"])
    if refused.returncode != 64 or "a seed and failures a minute" not in refused.stderr:
        raise harness.Failure(f"--chaos=7: exit {refused.returncode}: {refused.stderr}")
    print(result.stdout, flush=True)


if __name__ == "__main__":
    harness.main(body)
