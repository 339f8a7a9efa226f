#!/usr/bin/env python3
"""A newcomer's path: init, train, eval; completion and man pages that the tables of options make.  newcomer.py PERDURE SOURCE"""
import json
import math
import os
import pty
import re
import shutil
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
    code, said = on_terminal("asked.yaml", b"\n~/long.txt\nbyte-1x\n\nnowhere\nauto\n")
    text = harness.read("asked.yaml") if code == 0 else ""
    check('"~/long.txt"' in text and "byte-1m" in text and "not ready" not in said, f"asked: {code}, {said}")
    check(all(said.count(question) == 2 for question in ("or a directory: ", "[byte-1m]: ", "[auto]: ")), f"wrong answers: {said}")
    code, said = on_terminal("asked.yaml", b"")
    check(code == 78 and "asked.yaml: File exists" in said and "What text" not in said, f"before questions: {said}")


# ---- eval ----

TINY = ["model.layers=1", "model.hidden=64", "model.heads=2", "model.kv_heads=2", "model.ffn=96", "batch.context=32", "batch.sequences=4", "run.steps=4",
        "batch.micro_batch=4", "layout.ranks=1", "layout.threads=1"]


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


# ---- what the tables say ----

def commands_of(path):
    listing = perdure(*path, "--help").stdout
    return re.findall(r"^  (\w+) ", listing, re.M) if listing.startswith("usage: ") else []


def complete(script, words):
    program = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _perdure; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    check(not result.stderr, f"bash, {words}: {result.stderr}")
    return result.stdout.splitlines() if result.stdout.strip() else []


def typed(text):
    """What a bash on a terminal makes of it."""
    master, slave = pty.openpty()
    process = subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], stdin=slave, stdout=slave, stderr=slave, env=dict(os.environ, TERM="dumb", HISTFILE=""))
    os.write(master, b"source completion.bash\n" + text.encode() + b"\x01echo \nexit\n")
    process.wait(timeout=60)
    os.close(slave)
    said = all_of(master)
    return said.decode(errors="replace")


def completion():
    shutil.copy("text.txt", "my text.txt")
    os.makedirs("man1", exist_ok=True)
    for shell in ("bash", "zsh", "fish"):
        with open(f"completion.{shell}", "w", encoding="utf-8") as f:
            f.write(perdure("completion", shell).stdout)
        if shutil.which(shell):
            check(subprocess.run([shell, "-n", f"completion.{shell}"], check=False).returncode == 0, f"{shell} does not read its script")
    check("bash, zsh or fish" in perdure("completion", "csh", expect=64).stderr, "an unknown shell")
    check(sorted(complete("completion.bash", ["perdure", "''"])) == sorted(commands_of([])), "commands")
    check(sorted(complete("completion.bash", ["perdure", "ckpt", "''"])) == sorted(commands_of(["ckpt"])), "commands of ckpt")
    check(complete("completion.bash", ["perdure", "ckpt", "ex"]) == ["export"], "export")
    check(complete("completion.bash", ["perdure", "data", "pack", "--form"]) == ["--format="], "--format")
    check({"nanogpt", "megatron"} <= set(complete("completion.bash", ["perdure", "data", "pack", "--format", "=", "''"])), "values")
    for words, wanted in (("watch ''", {"my text.txt", "man1"}), ("report -o ''", {"my text.txt"}), ("report --output ''", {"my text.txt"}),
                          ("train ''", {"my text.txt"}), ("ckpt export --format = ''", {"safetensors", "gguf"}), ("init --model = byte", {"byte-1m"}),
                          ("completion ''", {"bash", "zsh", "fish"}), ("--ver", {"--version"}), ("eval --d", {"--data="})):
        found = complete("completion.bash", ["perdure", *words.split()])
        check(wanted <= set(found) and "--help" not in found, f"{words}: {found}")
    check("optimizer.lr=" in complete("completion.bash", ["perdure", "train", "run.yaml", "optimizer.l"]), "keys")
    check("perdure watch my\\ text.txt" in typed("perdure watch my\t"), "a file name with a space is two words")
    check("perdure train optimizer.lr=" in typed("perdure train optimizer.lr\t"), "a key is quoted")
    for shell in ("zsh", "fish"):
        text = harness.read(f"completion.{shell}")
        check(all(word in text for word in ("optimizer.lr=", "export", "megatron")), f"{shell} lacks words")


def manual():
    perdure("manual", "man1")
    pages = {name.removesuffix(".1") for name in os.listdir("man1")}
    expected = {"perdure"}

    def add(path):
        for command in commands_of(path):
            expected.add("-".join(["perdure", *path, command]))
            add([*path, command])

    add([])
    check(pages == expected, f"pages {pages ^ expected}")
    top = harness.read("man1/perdure.1").replace("\\-", "-")
    codes = [code for code in range(100) if f"\n.B {code}\n" in top.partition(".SH EXIT STATUS")[2]]
    listed = harness.read(os.path.join(SOURCE, "tools", "README.md")).partition("Exit codes:")[2].partition("\n5. ")[0]
    check(codes == [int(code) for code in re.findall(r"(?:^|;)\s+(\d+)\s", listed)], f"perdure(1) has exit codes {codes}")
    check(all(f".BR perdure-{command} (1)" in top for command in commands_of([])), f"perdure(1) sees not all: {top[-600:]}")
    check(".BR perdure\\-ckpt\\-ls (1)" in harness.read("man1/perdure-ckpt.1"), "perdure-ckpt(1) does not see perdure-ckpt-ls(1)")
    for page in pages:
        text, path = harness.read(f"man1/{page}.1").replace("\\-", "-"), page.split("-")[1:]
        options = re.findall(r"--(\w[\w-]*)", perdure(*path, "--help").stdout) if not commands_of(path) else []
        check(text.startswith(".TH PERDURE") and all(f"--{option}" in text for option in options), f"{page} lacks options of {options}")


def installed():
    """cmake --install puts man pages and completion where they are looked for."""
    build = os.path.dirname(PERDURE)
    if not os.path.exists(os.path.join(build, "tools", "cmake_install.cmake")):
        return
    subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={os.getcwd()}/usr", "-P", os.path.join(build, "tools", "cmake_install.cmake")],
                   stdout=subprocess.DEVNULL, check=True)
    version = subprocess.run(["usr/bin/perdure", "--version"], capture_output=True, text=True, check=False)
    check(version.stdout == perdure("--version").stdout, f"what is installed says {version}")
    for name in ("bin/perdure", "share/man/man1/perdure-train.1", "share/bash-completion/completions/perdure", "share/zsh/site-functions/_perdure",
                 "share/fish/vendor_completions.d/perdure.fish"):
        check(os.path.getsize(os.path.join("usr", name)) > 100, f"{name} is not installed")


with tempfile.TemporaryDirectory(prefix="perdure-newcomer-") as temporary:
    SOURCE = os.path.abspath(SOURCE)
    os.chdir(temporary)
    with open("text.txt", "w", encoding="utf-8") as out:
        out.write(harness.text_of(20000))
    with open("short.txt", "w", encoding="utf-8") as out:
        out.write("short")
    init()
    evaluate()
    completion()
    manual()
    installed()
print("failed" if failures else "newcomer: init, eval, completion and manual do as they say")
sys.exit(failures > 0)
