#!/usr/bin/env python3
"""With --json a program gets one JSON value, whatever it did wrong: every command, every kind of wrong input, and the exit code.
json_errors.py PERDURE SOURCE_DIRECTORY"""
import json
import os
import re

from expect import MINIMAL, SOURCE, finish, perdure, report, write

CODES = {64: {"usage"}, 65: {"corrupt"}, 74: {"exists", "busy", "no_space", "io"}, 78: {"invalid", "not_found", "unsupported"}}


def commands(path=()):
    """The command lines that have help of their own and take options, with it."""
    text = perdure(*path, "--help")[1]
    below = re.findall(r"^  (\w+) ", text, re.M) if text.startswith("usage: ") else []
    if not below:
        yield list(path), text
    for name in below:
        yield from commands((*path, name))


def check(name, words, codes=(64,)):
    result = perdure(*words)
    problems = [] if result[0] in codes else [f"exit code {result[0]} instead of {codes}"]
    try:
        said = json.loads(result[1])
        wrong = [f"{key} is {said.get(key)!r}" for key, good in (
            ("exit_code", said.get("exit_code") == result[0]), ("code", said.get("code") in CODES.get(result[0], ())),
            ("error", isinstance(said.get("error"), str) and f"perdure: {said['error']}\n" in result[2])) if not good]
        problems += wrong
    except (ValueError, AttributeError) as error:
        problems.append(f"no JSON: {error}")
    report(name, problems, result)


write("text.txt", "In the beginning\n" * 2000)
write("broken.yaml", "run: {dir: run\n")
write("bytes.bin", bytes(range(256)) * 40)
os.mkdir("empty")

for words in ([], ["nocmd"], ["ckpt"], ["ckpt", "rm"], ["data", "nocmd"], ["help", "nocmd"], ["version"], ["-v"]):
    check(f"no-command-{'-'.join(words)}", [*words, "--json"])
check("before-the-command", ["--json", "train", MINIMAL])

walked = 0
for path, text in commands():
    walked += 1
    name = "-".join(path)
    check(f"{name}-unknown-option", [*path, "--json", "--colour=red"])
    check(f"{name}-shortened", [*path, "--colour", "--js"])
    check(f"{name}-unknown-letter", [*path, "-Q", "--json"])
    check(f"{name}-empty-argument", [*path, "", "--json"])
    check(f"{name}-too-many", [*path, *["word"] * 300, "--json"], (64, 78))
    for option, argument in sorted(set(re.findall(r"--([a-z0-9-]+)(\[?=\S+)?", text))):
        if option not in ("json", "help"):
            check(f"{name}-{option}-empty", [*path, f"--{option}=", "--colour", "--json"])
            check(f"{name}-{option}-nonsense", [*path, f"--{option}=\x01\xe4", "--colour", "--json"])
            check(f"{name}-{option}-huge", [*path, f"--{option}=99999999999999999999999", "--colour", "--json"])
    usage = re.match(rf"[Uu]sage: perdure {' '.join(path)} (?:\[OPTION\.\.\.\] )?(.*)", text)[1]
    if "--json" in text and re.match(r"[A-Z]", usage):
        check(f"{name}-no-argument", [*path, "--json"])
        for place in ("nowhere", "nowhere/deeper", "empty", "bytes.bin", "text.txt", "broken.yaml", "\u00fcml\u00e4ut", "a" * 5000):
            more = [f"{place}2"] if len(re.findall(r"\b[A-Z]+\b", usage.split("--")[0])) > 1 else []
            options = [f"{o}={v}" for o, v in re.findall(r"(--[a-z]+)[ =]([A-Z]+)", usage)]
            if os.path.isfile(place) and path[0] == "data" or place == "empty" and path in (["ckpt", "ls"], ["ckpt", "verify"]):
                continue  # text that they read; a list of nothing
            check(f"{name}-{place[:20]}", [*path, place, *more, *options, "--json"], (64, 65, 74, 78))
for key in ("run.steps=x", "nokey=3", "optimizer.lr=9e9", "data.train=nowhere", "run.dir=text.txt", "layout.tp=3", "=3"):
    for command in ("train", "plan"):
        if (command, key) in (("plan", "data.train=nowhere"), ("plan", "run.dir=text.txt")):
            continue  # which it does not open
        check(f"{command}-{key}", [command, MINIMAL, key, "--json"], (64, 74, 78))
report("commands-walked", [] if walked >= 25 else [f"only {walked}"], (0, "", ""))

version = perdure("--version", "--json")
source = re.search(r"\((.*)\)", perdure("--version")[1])[1]
with open(os.path.join(SOURCE, "CMakeLists.txt"), encoding="utf-8") as file:
    number = re.search(r"project\(perdure VERSION (\S+)", file.read())[1]
report("version", [] if version[0] == 0 and json.loads(version[1]) == {"version": number, "source": source} else ["not that"], version)
for command in (["train"], ["train", MINIMAL], ["plan", MINIMAL]):
    words = [*command, "--print-config", *(["run.dir=run", "data.train=text.txt"] if len(command) == 1 else [])]
    shown = perdure(*words, "--json")
    report(f"config-of-{'-'.join(command)}", [] if shown[0] == 0 and json.loads(shown[1]) == {"config": perdure(*words)[1]} else ["not that"], shown)
finish("json_errors")
