#!/usr/bin/env python3
"""Commands that messages suggest: every one in the sources names a command and options that exist, and those of a table of
mistakes are run and work.  suggestions.py PERDURE SOURCE"""
import glob
import os
import re
import shlex

from expect import MINIMAL, SOURCE, finish, perdure, report, write

# ---- all: commands and options exist ----
HELP = {}


def help_of(words):
    if words not in HELP:
        HELP[words] = perdure(*words, "--help")
    return HELP[words]


literal = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\s*(?:PRIu64|PRId64|PRIu32)?\s*"((?:[^"\\]|\\.)*)")*')
found = set()
for folder in ("ckpt", "offload", "resharder", "trainer", "tools"):
    for path in glob.glob(f"{SOURCE}/{folder}/**/*.c", recursive=True):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for whole in literal.finditer(text):
            said = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', whole[0]))
            found |= {(os.path.relpath(path, SOURCE), m[0]) for m in re.finditer(r"(?<![\w/.-])perdure(?: [a-z-]+)+(?: [^;,`\\]*)?", said)}
groups = {"ckpt", "data", "bench"}
commands = set(re.findall(r"^  ([a-z]+) ", help_of(())[1], re.M))
checked = 0
for path, text in sorted(found):
    words = text.split()[1:]
    if words[0] not in commands or path.startswith("tools/bench/"):
        continue  # a sentence about perdure
    take = 2 if words[0] in groups and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]) else 1
    code, out, err = help_of(tuple(words[:take]))
    problems = [] if code == 0 else [f"there is no perdure {' '.join(words[:take])}"]
    problems += [f"{option} is not an option of it" for option in re.findall(r"(?<= )--[a-z-]+", text) if option not in out + " --help --json --version"]
    checked += 1
    if problems:
        report(f"{path}: {text}", problems, (code, "", err))
report("suggestions-are-found", [] if checked > 40 else [f"only {checked}"], (0, "", ""))

# ---- some: run as they stand ----
TINY = ["model.preset=byte-1m", "model.layers=1", "model.hidden=32", "model.heads=2", "model.ffn=48", "batch.context=32", "model.context=32",
        "batch.sequences=2", "run.steps=1", "layout.ranks=1", "layout.threads=1", "checkpoint.every=1"]
write("text.txt", b"In the beginning was the word. " * 400)
assert perdure("train", MINIMAL, *TINY)[0] == 0
assert perdure("ckpt", "export", "run", "hf", "--format=safetensors")[0] == 0
assert perdure("ckpt", "export", "run", "m.gguf", "--format=gguf")[0] == 0
os.mkdir("bare")
os.link("hf/model.safetensors", "bare/model.safetensors")
PLACES = {"DIR": "new", "OUT": "new", "FILE": "text.txt", "run.yaml": MINIMAL, "RUN": "run"}


def follow(name, arguments, count=1):
    """Runs a command that fails, then what its message says, and expects that to work."""
    code, _, err = perdure(*arguments)
    said = re.findall(r"(?:: |; |\? |see |with |mean |`)perdure (?![a-z ]+ has no)((?:ckpt|data|sample|eval|train|init|plan)\b[^;,\n`?]*)", err)
    said = [re.split(r" (?:lists|writes|says|makes|looks|first|instead|tells)\b", text)[0].strip() for text in said]
    report(f"{name}-fails", [] if code else ["it does not fail"], (code, "", err))
    report(f"{name}-suggests", [] if len(said) >= count else [f"{said}"], (code, "", err))
    for text in said:
        words = [PLACES.get(word, word) for word in shlex.split(text)]
        if words[0] in ("train", "init"):
            words.append("--help")  # what they ask for is in other tests
        if words[0] == "sample":
            words.append("--count=0")  # a model of one step draws bytes that are no text
        result = perdure(*words)
        report(f"{name}: perdure {text}", [] if result[0] == 0 else ["what is suggested fails"], result)


follow("model-unknown", ["ckpt", "import", "bare", "in"], 0)
follow("unknown-format", ["ckpt", "import", "text.txt", "in"])
follow("ls-foreign", ["ckpt", "ls"])
follow("show-nothing", ["ckpt", "show"])
follow("sample-nothing", ["sample"], 0)
follow("config-missing", ["train"])
follow("unknown-option", ["ckpt", "verify", "-dash"])
follow("export-nothing", ["ckpt", "export", "run", "out", "--format=safetensors", "--only=xyz"])
finish("suggestions")
