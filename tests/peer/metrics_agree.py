#!/usr/bin/env python3
"""A real Prometheus scrapes a run, promtool finds nothing to complain of, every expression of the dashboard has an answer; TensorBoard's own
reader has the numbers of metrics.jsonl, a restart included.  metrics_agree.py PERDURE SOURCE prometheus|tensorboard

prometheus is Debian's; tensorboard lies in PERDURE_PEER_PYTHON. Exit 77: it is not here."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

PERDURE, SOURCE, READER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
sys.path[:0] = [os.path.join(SOURCE, "tests", "helpers"), os.path.join(SOURCE, "tests", "e2e")]
import dashboard  # noqa: E402
import free_ports  # noqa: E402
import harness  # noqa: E402

CONFIG = """
run: {{seed: 5, steps: 100000}}
model: {{family: llama, vocab: 256, context: 32, layers: 1, hidden: 64, heads: 2, kv_heads: 2, ffn: 128}}
data: {{train: [{data}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 1, context: 32}}
validation: {{every: 50, sequences: 4}}
checkpoint: {{every: 50, tiers: [{{dir: {tiers}/a}}, {{dir: {tiers}/b, every: 200}}]}}
layout: {{threads: 1, ranks: 2, transport: local}}
metrics: {{tensorboard: true, prometheus_listen: {port}}}
"""
SCALARS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
reader.Reload()
print(json.dumps({tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}))
"""


def check(condition, what):
    if not condition:
        raise harness.Failure(what)


def ask(port, expression):
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(expression)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def prometheus(workspace, port):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    check(result.returncode == 0 and not result.stderr and not result.stdout, f"promtool: {result.stdout.decode()}{result.stderr.decode()}")
    own = free_ports.one()
    config = workspace.file("prometheus.yml", "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: perdure\n"
                                              f"    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n")
    server = subprocess.Popen(["prometheus", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{own}",
                               f"--storage.tsdb.path={workspace.directory('tsdb')}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def scraped():
            try:
                return ask(own, "rate(perdure_step_seconds_count[5m]) > 0") and ask(own, "rate(perdure_save_seconds_count[15m]) > 0")
            except OSError:
                return None
        harness.wait_for(scraped, "Prometheus scrapes the run", 0.5)
        check(ask(own, "up")[0]["value"][1] == "1", "the run is not up")
        for expression in dashboard.expressions(os.path.join(SOURCE, "tools", "dashboards", "perdure.json")):
            if not expression.startswith("changes("):  # of restarts: there was none
                check(ask(own, expression), f"the dashboard asks {expression}, and nothing answers")
    finally:
        server.terminate()
        server.wait()
    print("Prometheus scrapes a run, and every expression of the dashboard has an answer")


def tensorboard(python, directory):
    result = subprocess.run([python, "-c", SCALARS, os.path.join(directory, "tensorboard")], capture_output=True, text=True, check=False)
    check(result.returncode == 0, result.stderr[-2000:])
    found = json.loads(result.stdout)
    rows = {row["step"]: row for row in map(json.loads, harness.read(os.path.join(directory, "metrics.jsonl")).splitlines())}
    for tag, key in {"loss/train": "loss", "loss/validation": "validation_loss", "optimizer/gradient_norm": "gradient_norm"}.items():
        expected = [(step, struct.unpack("<f", struct.pack("<f", row[key]))[0]) for step, row in sorted(rows.items()) if key in row]
        got = [tuple(point) for point in found[tag]]
        check(got == expected, f"TensorBoard has {len(got)} of {tag}, and metrics.jsonl {len(expected)}: {got[:3]} {expected[:3]}")
    print(f"TensorBoard reads {len(rows)} steps over two starts")


def skip(what):
    print(f"skipped: {what}", file=sys.stderr)
    sys.exit(77)


def reader_of(name):
    """Checks a run that continues, and what is to be checked after it has gone on from a checkpoint; None: nothing."""
    if name == "prometheus":
        if not (shutil.which("prometheus") and shutil.which("promtool")):
            skip("no prometheus here: apt-get install prometheus")
        return prometheus, None
    python = os.environ.get("PERDURE_PEER_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import tensorboard"], capture_output=True, check=False).returncode:
        skip("no tensorboard; PERDURE_PEER_PYTHON names an interpreter that has it")
    return None, lambda directory: tensorboard(python, directory)


def body(workspace, _):
    during, afterwards = reader_of(READER)
    port, directory = free_ports.one(), workspace.directory()
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(30000)), tiers=workspace.path, port=port))
    command = [workspace.perdure, "train", config, f"run.dir={directory}"]
    launcher = subprocess.Popen(command, env=dict(os.environ, PERDURE_PROGRESS="off"), stderr=subprocess.PIPE, text=True)
    try:
        harness.wait_for(lambda: harness.steps_done(directory) > 250, "steps")
        if during:
            during(workspace, port)
    finally:
        launcher.kill()
        launcher.communicate()
    harness.wait_until_gone(directory)
    if afterwards:
        step = max(row["step"] for row in map(json.loads, harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()))
        workspace.train(config, directory, [f"run.steps={step + 10}"])  # continues from a checkpoint before: steps are computed again
        afterwards(directory)


if __name__ == "__main__":
    sys.argv[2:] = []
    sys.exit(harness.main(body))
