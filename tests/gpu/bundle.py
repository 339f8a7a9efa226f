#!/usr/bin/env python3
"""The bundle for machines where nothing can be installed, with simulated GPUs in it: bundle.py SOURCE BUILD.

Its run.sh goes through to the end, whatever fails; results.json holds every step; the exit code tells no GPU from a failure."""
import json
import os
import subprocess
import sys
import tempfile

SOURCE, BUILD = sys.argv[1:3]


def run(bundle, out, only, environment=None):  # what run.sh says, its results, its steps by name
    arguments = [word for name in only for word in ("--only", name)]
    env = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    env.update(environment or {})
    done = subprocess.run([f"{bundle}/run.sh", "--quick", "--out", out, *arguments], env=env, capture_output=True, text=True, check=False)
    with open(f"{out}/results.json", encoding="utf-8") as f:
        results = json.load(f)
    return done, results, {step["name"]: step for step in results["steps"]}


def expect(good, what, done):
    if not good:
        sys.exit(f"FAILED: {what}: exit {done.returncode}\n{done.stdout}{done.stderr}")


with tempfile.TemporaryDirectory(prefix="perdure-bundle-test-") as room:
    bundle = f"{room}/bundle"
    done = subprocess.run([f"{SOURCE}/tools/gpu_bundle.sh", BUILD, bundle, "--simulated"], capture_output=True, text=True, check=False)
    expect(done.returncode == 0 and os.path.getsize(f"{bundle}/share/text.txt") > 1 << 20, "making it", done)

    done, results, steps = run(bundle, f"{room}/one", ["doctor", "step_byte-1m", "attention_64", "training_alone"])
    expect(done.returncode == 0 and results["device"] == "simulated GPU", "a run", done)
    expect(steps["step_byte-1m"]["result"]["tokens_per_second"] > 0 and steps["attention_64"]["result"]["forward_tflops"] > 0, "figures", done)
    expect(steps["training_alone"]["state"] == "skipped" and "step_byte-1m" in done.stdout, "what is left out", done)

    done, results, steps = run(bundle, f"{room}/none", ["doctor", "operations", "train", "step_0.5B"], {"PERDURE_SIMT_GPUS": "0"})
    expect(done.returncode == 77 and results["device"] == "" and steps["doctor"]["state"] == "ok", "no GPU", done)
    expect(all(steps[name]["state"] == "skipped" for name in ("operations", "train", "step_0.5B")), "no GPU: nothing is tried", done)

    with open(f"{bundle}/bin/gpu_operations", "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\necho it broke >&2\nexit 3\n")
    done, results, steps = run(bundle, f"{room}/broken", ["operations", "attention_64", "doctor"])
    expect(done.returncode == 1 and steps["operations"]["state"] == "failed" and steps["operations"]["reason"] == "it broke", "a failure", done)
    expect(steps["attention_64"]["state"] == "ok", "a failure ends nothing", done)
print("bundle: made, run, run without a GPU, run past a failure")
