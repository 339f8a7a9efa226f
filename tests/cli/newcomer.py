#!/usr/bin/env python3
"""A newcomer's path: init, train, eval, install.  newcomer.py PERDURE SOURCE"""
import json
import math
import os
import pty
import re
import subprocess
import sys
import tempfile

PERDURE, SOURCE = os.path.abspath(sys.argv[1]), sys.argv[2]
sys.path.insert(0, os.path.join(SOURCE, "tests", "e2e"))
import harness  # noqa: E402

failures = 0


def check(condition, what):
    global failures
    if not condition:
        failures += 1
        print(f"FAILED: {what}", file=sys.stderr)


def perdure(*arguments, expect=0, stdin=subprocess.DEVNULL):
    result = subprocess.run([PERDURE, *arguments], capture_output=True, text=True, timeout=600, check=False, stdin=stdin,
                            env=dict(os.environ, PERDURE_PROGRESS="off"))
    check(result.returncode == expect, f"{arguments}: exit {result.returncode}, not {expect}: {result.stderr}")
    return result


# ---- init ----

def init():
    said = perdure("init", "--data=text.txt", "--model=byte-1m", "--dir=run").stderr
    check("next: perdure train run.yaml" in said, said)
    text = harness.read("run.yaml")
    check(all("#" in text for _ in [0]) and "preset: \"byte-1m\"" in text and "all of it fits into memory" in text, text)
    check("run.yaml: File exists; name another file with -o FILE" in perdure("init", "--data=a", "--model=byte-1m", expect=78).stderr, "overwrites")
    check("give --data=FILE" in perdure("init", expect=64).stderr, "without data")
    check("model.preset byte-1x is unknown" in perdure("init", "--data=a", "--model=byte-1x", "-o", "x", expect=78).stderr, "an unknown size")
    small = perdure("init", "--data=a.txt", "--model=llama-1.5b", "--memory=100M", "-o", "-", expect=78).stderr
    check("fits 1 rank of cpu; take more ranks or a smaller model" in small and "100.0 MiB" in small, small)
    for memory, words in (("64G", "all of it fits"), ("20G", "streams from the drive")):
        text = perdure("init", "--data=a.bin", "--model=llama-1.5b", f"--memory={memory}", "-o", "-").stdout
        check(words in text and ("offload:" in text) == (memory == "20G"), f"{memory}: {text}")
        with open("planned.yaml", "w", encoding="utf-8") as f:
            f.write(text)
        plan = perdure("plan", "planned.yaml", "--world=1", f"--device-memory={memory}", "--json").stdout
        check(json.loads(plan), "init's configuration is planned")
    said = json.loads(perdure("init", "--data=a.bin", "--model=llama-1.5b", "--memory=20G", "-o", "planned.json.yaml", "--json").stdout)
    check("streams from the drive" in said["why"] and 0 < said["memory_bytes"] <= 20 << 30 and said["ranks"] == 1, f"{said}")
    for words, micro_batch, lanes in (([], 4, 8), (["--data-ranks=1"], 4, 1), (["--data-ranks=9"], 2, 9), (["--machine=h100-80g", "--ranks=2"], 4, 2)):
        text = perdure("init", "--data=a.bin", "--model=byte-1m", *words, "-o", "-").stdout
        check(f"\n  micro_batch: {micro_batch} " in text and f"\n  lanes: {lanes} " in text, f"{words}: {text}")
    said = perdure("init", "--data=a.bin", "--model=byte-1m", "--data-ranks=33", "-o", "-", expect=78).stderr
    check("--data-ranks=33: a step has 32 sequences, and a data rank computes at least one; give at most 32" in said, said)
    check("--data-ranks=0: give a number from 1 to 65536" in perdure("init", "--data=a", "--data-ranks=0", expect=64).stderr, "no data rank")
    os.makedirs("empty")
    for name in ("empty", "short.txt", "absent.txt"):
        said = perdure("init", f"--data={name}", "--model=byte-1m", "-o", f"{name}.yaml").stderr
        check("the data is not ready yet: " in said and name in said and f"next: perdure train {name}.yaml" in said, f"{name}: {said}")
    asked()


def all_of(master):
    """What is written to a terminal until nobody has it open."""
    said = b""
    try:
        while True:
            said += os.read(master, 65536)
    except OSError:
        os.close(master)
    return said


def on_terminal(output, answers):
    master, slave = pty.openpty()
    process = subprocess.Popen([PERDURE, "init", "-o", output], stdin=slave, stdout=slave, stderr=slave, env=dict(os.environ, HOME=os.getcwd()))
    os.close(slave)
    os.write(master, answers)
    said = all_of(master)
    return process.wait(timeout=600), said.decode()


def asked():
    """On a terminal it asks for what is not given, and again for what is wrong."""
    with open("long.txt", "w", encoding="utf-8") as f:
        f.write(harness.text_of(60000))
    code, said = on_terminal("asked.yaml", b"\n~/long.txt\nbyte-1x\n\nnowhere\nauto\nmany\n16\n")
    text = harness.read("asked.yaml") if code == 0 else ""
    check("\n  micro_batch: 2 " in text and "\n  lanes: 16 " in text, text)
    check('"~/long.txt"' in text and "byte-1m" in text and "not ready" not in said, f"asked: {code}, {said}")
    check(all(said.count(question) == 2 for question in ("or a directory: ", "[byte-1m]: ", "[auto]: ", "can never be added later [8]: ")), f"wrong answers: {said}")
    code, said = on_terminal("asked.yaml", b"")
    check(code == 78 and "asked.yaml: File exists" in said and "What text" not in said, f"before questions: {said}")


# ---- eval ----

TINY = ["model.layers=1", "model.hidden=64", "model.heads=2", "model.kv_heads=2", "model.ffn=96", "batch.context=32", "batch.sequences=4", "run.steps=4",
        "batch.micro_batch=4", "numerics.lanes=1", "layout.ranks=1", "layout.threads=1"]


def evaluate():
    """Bits of the loss are those of a validation over the same windows, of ours and of what was exported. 22 windows, 5 micro-batches and
    a half: the last is filled up."""
    with open("test.txt", "w", encoding="utf-8") as f:
        f.write(harness.text_of(90000)[70000:70000 + 22 * 32 + 7])
    perdure("train", "run.yaml", *TINY, "data.validation_fraction=0", "data.validation=[test.txt]", "validation.sequences=100000", "validation.every=4")
    measured = json.loads(harness.read("run/metrics.jsonl").splitlines()[-1])["validation_loss"]
    found = json.loads(perdure("eval", "run", "--data=test.txt", "--json").stdout)
    check(found["loss"] == measured and found["windows"] == 22 and found["tokens"] == 22 * 32 and found["step"] == 4, f"{found}, not {measured}")
    check(abs(found["perplexity"] - math.exp(measured)) < 1e-9, f"{found}")
    perdure("ckpt", "export", "run", "theirs", "--format=safetensors")
    theirs = json.loads(perdure("eval", "theirs", "--data=test.txt", "--context=32", "--precision=bf16", "--json").stdout)
    check(theirs["loss"] == measured, f"of safetensors: {theirs}, not {measured}")
    check(not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("perdure-eval-") and os.path.exists(
        os.path.join(tempfile.gettempdir(), name, "checkpoints", "theirs"))], "left behind")
    check(json.loads(perdure("eval", "run", "--data=test.txt", "--windows=3", "--json").stdout)["windows"] == 3, "--windows")
    check("is too short" in perdure("eval", "run", "--data=short.txt", expect=78).stderr, "a short file")
    check("--context=300 is longer than the model's" in perdure("eval", "run", "--data=test.txt", "--context=300", expect=78).stderr, "a long context")
    check("eval needs a model and a file" in perdure("eval", "run", expect=64).stderr, "no file")
    check("--data=none.txt: No such file or directory; name a file of text or tokens" in perdure("eval", "run", "--data=none.txt", expect=78).stderr, "an absent file")


# ---- install ----

def installed():
    build = os.path.dirname(PERDURE)
    if not os.path.exists(os.path.join(build, "tools", "cmake_install.cmake")):
        return
    subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={os.getcwd()}/usr", "-P", os.path.join(build, "tools", "cmake_install.cmake")],
                   stdout=subprocess.DEVNULL, check=True)
    version = subprocess.run(["usr/bin/perdure", "--version"], capture_output=True, text=True, check=False)
    check(version.stdout == perdure("--version").stdout, f"what is installed says {version}")


with tempfile.TemporaryDirectory(prefix="perdure-newcomer-") as temporary:
    SOURCE = os.path.abspath(SOURCE)
    os.chdir(temporary)
    with open("text.txt", "w", encoding="utf-8") as out:
        out.write(harness.text_of(20000))
    with open("short.txt", "w", encoding="utf-8") as out:
        out.write("short")
    init()
    evaluate()
    installed()
print("failed" if failures else "newcomer: init, eval and install do as they say")
sys.exit(failures > 0)
