#!/usr/bin/env python3
"""The command line: exact words on stdout and stderr, exact exit codes.  cli.py PERDURE SOURCE_DIRECTORY [NAME...]"""
import glob
import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import time

from expect import finish, ANY, MINIMAL, ONLY, PERDURE, SOURCE, expect, perdure, report, said, write

# ---- the tool itself ----
version = re.search(r"project\(perdure VERSION (\S+)", open(os.path.join(SOURCE, "CMakeLists.txt")).read()).group(1)
expect("version", ["--version"], 0, re.compile(rf"^perdure {re.escape(version)} \(([0-9a-f]{{12,}}( with changes)?|no commit)\)\n$"))
expect("no-command", [], 64, err=said("a command is missing; perdure --help lists them"))
expect("unknown-command", ["doctr"], 64,
       err=said("perdure has no command doctr; did you mean perdure doctor? perdure --help lists all"))
result = perdure("train", "--print-config", "optimizer.lr=0.5")
report("keys-without-configuration", [] if result[0] == 0 and re.search(r"^optimizer:\n  lr: 0\.5  +# peak learning rate\n", result[1], re.M) and
       subprocess.run([PERDURE, "plan", write("keys.yaml", result[1]), "--print-config"], capture_output=True, text=True, check=False).stdout == result[1] else
       ["it is not a configuration"], result)
for word in ("version", "-v", "-V"):
    expect(f"version-as-{word}", [word], 64, err=said(f"perdure has no command {word}; perdure --version says which this is"))
for words in (["train"], ["ckpt", "show"]):
    expect(f"help-{'-'.join(words)}", ["help", *words], 0, perdure(*words, "--help")[1])
expect("help-subcommand", ["ckpt", "help", "show"], 0, perdure("ckpt", "show", "--help")[1])
expect("help-unknown", ["help", "trian"], 64, err=said("perdure has no command trian; did you mean perdure train? perdure --help lists all"))
expect("unknown-subcommand", ["data", "inspekt"], 64,
       err=said("perdure data has no command inspekt; did you mean perdure data inspect? perdure data --help lists all"))
expect("option-before-command", ["-x"], 64, err=said("a command comes first, and -x is not one; perdure --help lists them"))
expect("option-before-subcommand", ["ckpt", "--json"], 64, ANY,
       err=said("a command comes first, and --json is not one; perdure ckpt --help lists them"))
expect("unknown-option", ["doctor", "--jsn"], 64,
       err=said("perdure doctor has no option --jsn; did you mean --json? perdure doctor --help lists all"))
expect("option-size", ["init", "--data=text.txt", "--model=byte-1m", "--memory=lots"], 64, err=said("--memory=lots: expected a size such as 512M or 2G"))
for name, command, meant in (("near", ["ckpt", "verfy"], "perdure ckpt verify"), ("nothing", ["nocmd"], None), ("nothing-below", ["ckpt", "zz"], None)):
    parent = " ".join(["perdure", *command[:-1]])
    expect(f"command-meant-{name}", command, 64,
           err=said(f"{parent} has no command {command[-1]}; {f'did you mean {meant}? ' if meant else ''}{parent} --help lists all"))
for name, words, answer in (
        ("near", ["ckpt", "reshard", "--layuot", "dp=4"], "ckpt reshard has no option --layuot; did you mean --layout? perdure ckpt reshard --help lists all"),
        ("nothing", ["doctor", "--colour"], "doctor has no option --colour; perdure doctor --help lists all"),
        ("step", ["train", "--step", "5"], "train has no option --step; a key is written without dashes: run.steps=VALUE"),
        ("key", ["train", MINIMAL, "--learning-rate=1e-3"], "train has no option --learning-rate; a key is written without dashes: optimizer.lr=1e-3"),
        ("value", ["plan", MINIMAL, "--bf16"], "plan has no option --bf16; a key is written without dashes: numerics.precision=bf16"),
        ("explained", ["train", MINIMAL, "--resume"],
         "train has no option --resume: the same command always resumes, from the newest checkpoint of run.dir"),
        ("key-nothing", ["train", MINIMAL, "--verbose"], "train has no option --verbose; perdure train --help lists all")):
    expect(f"option-meant-{name}", words, 64, err=said(f"perdure {answer}"))
expect("unknown-short-option", ["doctor", "-q"], 64, err=said("perdure doctor has no option -q; see perdure doctor --help"))
expect("option-without-value", ["plan", MINIMAL, "--world"], 64,
       err=said("--world needs a value: --world=N[,N...]; see perdure plan --help"))
expect("option-with-value", ["plan", MINIMAL, "--json=yes"], 64, err=said("--json takes no value; see perdure plan --help"))
for command in (["train"], ["plan"], ["sample"], ["doctor"], ["ckpt", "ls"], ["data", "inspect"], ["bench", "adam"]):
    expect(f"empty-argument-{'-'.join(command)}", [*command, ""], 64,
           err=said(f"one of the arguments is empty: is it a variable that is not set? perdure {' '.join(command)} --help"))
expect("unexpected-argument", ["bench", "adam", "fast"], 64,
       err=said('perdure bench adam takes no argument such as "fast"; see perdure bench adam --help'))
expect("bad-log-level", ["--version"], 64, err=re.compile("PERDURE_LOG"), environment={"PERDURE_LOG": "loud"})

# Every command is listed, has help, and its help names it.
listing = perdure("--help")
report("help", [] if listing[0] == 0 and listing[2] == "" else ["no help"], listing)
for alias in ("-h", "help"):
    expect(f"help-{alias}", [alias], 0, listing[1])
commands = re.findall(r"^  (\w+) ", listing[1], re.M)
if not {"plan", "data", "doctor", "ckpt", "train"} <= set(commands):
    report("help-lists-commands", [f"only {commands}"], listing)


def check_help(path):
    result = perdure(*path, "--help")
    name = " ".join(["perdure", *path])
    below = re.findall(r"^  (\w+) ", result[1], re.M) if result[1].startswith("usage: ") else []
    usage = re.compile(f"^[Uu]sage: {name} ")
    problems = [] if result[0] == 0 and usage.match(result[1]) and result[2] == "" else ["no help"]
    if not below and "--help" not in result[1]:
        problems.append("no list of options")
    report(f"help-of-{'-'.join(path)}", problems, result)
    for command in below:
        check_help([*path, command])


for command in commands:
    check_help([command])
for command in ("ckpt", "data", "bench"):
    below = re.findall(r"^  (\w+) ", perdure(command, "--help")[1], re.M)
    row = re.search(rf"^  {command} .*", listing[1], re.M)[0]
    report(f"help-names-all-of-{command}", [name for name in below if not re.search(rf"\b{name}\b", row)], listing)
for words in (["train"], ["ckpt", "import"]):
    expect(f"short-help-{'-'.join(words)}", [*words, "-h"], 0, perdure(*words, "--help")[1])

# ---- data ----
write("text.txt", "In the beginning\n\nGod created\n\n")
expect("pack-no-input", ["data", "pack"], 64, err=said("name at least one file or directory of text; see perdure data pack --help"))
expect("pack-no-output", ["data", "pack", "text.txt"], 64,
       err=said("name the token file with --output=FILE; see perdure data pack --help"))
expect("pack-nowhere", ["data", "pack", "text.txt", "-o", "no/t.bin"], 78,
       err=said("no/t.bin cannot be created, since its directory does not exist: No such file or directory"))
expect("pack-format", ["data", "pack", "text.txt", "-o", "t.bin", "--format=parquet"], 64,
       err=said("--format=parquet: expected nanogpt, llmc or megatron"))
expect("pack-format-text", ["data", "pack", "text.txt", "-o", "t.bin", "--format=text"], 64,
       err=said("--format=text: expected nanogpt, llmc or megatron"))
expect("pack-token", ["data", "pack", "text.txt", "-o", "t.bin", "--document-token=x"], 64,
       err=said("--document-token=x: without --tokenizer it is a whole number"))
expect("pack", ["data", "pack", "text.txt", "-o", "t.bin", "--separator", "\\n\\n", "--document-token", "256"], 0,
       "t.bin: 29 tokens (nanogpt, u16) of 2 documents, 58 B\nempty documents left out: 1\n")
expect("pack-again", ["data", "pack", "text.txt", "-o", "t.bin"], 64, err=said("t.bin exists already; --overwrite replaces it"))
os.mkfifo("pipe")
expect("pack-over-a-pipe", ["data", "pack", "text.txt", "-o", "pipe", "--overwrite"], 78,
       err=said("pipe is not a regular file, and would be replaced by one; name another"))
report("pack-leaves-the-pipe", [] if stat.S_ISFIFO(os.stat("pipe").st_mode) else ["it was replaced"], result)
os.unlink("pipe")
expect("pack-overwrite", ["data", "pack", "text.txt", "-o", "t.bin", "--overwrite"], 0,
       "t.bin: 31 tokens (nanogpt, u16) of 1 document, 62 B\n")
write("lines.jsonl", '{"text": "one"}\n{"text": "two"}\n')
expect("pack-lines", ["data", "pack", "lines.jsonl", "-o", "l.bin"], 0, "l.bin: 6 tokens (nanogpt, u16) of 2 documents, 12 B\n"
       "nothing separates the documents: --document-token=256 ends each, and model.vocab is then 257\n")
expect("pack-lines-field", ["data", "pack", "lines.jsonl", "-o", "f.bin", "--field=body"], 78,
       err=said('lines.jsonl:1: the object has no "body", it has text; name the field of the text with --field'))
os.mkdir("corpus")
write("corpus/b.jsonl.gz", gzip.compress(b'{"text": "one"}\n'))
write("corpus/a.txt", b"\xef\xbb\xbfzero\r\n")
write("corpus/c.zip", b"PK\x03\x04rest")
expect("pack-directory", ["data", "pack", "corpus", "-o", "c.bin", "--document-token=256"], 0,
       "c.bin: 10 tokens (nanogpt, u16) of 2 documents, 20 B\n",
       "corpus: 2 files: a.txt, b.jsonl.gz; left out: c.zip (a zip archive)\n"
       "corpus/a.txt had a byte order mark, which was dropped\n"
       "corpus/a.txt had lines that end in CRLF: LF was written\n")
expect("pack-glob", ["data", "pack", "corpus/*.none", "-o", "g.bin"], 78,
       err=said("no file matches corpus/*.none; check with ls"))
write("corpus/cut.txt.gz", gzip.compress(b"words " * 1000)[:-9])
expect("pack-cut", ["data", "pack", "corpus/cut.txt.gz", "-o", "g.bin"], 65,
       err=said("corpus/cut.txt.gz ends in the middle of its compressed data: it was cut off; copy it again "
                "(gzip -t corpus/cut.txt.gz looks)"))
expect("pack-zip", ["data", "pack", "corpus/c.zip", "-o", "g.bin"], 78,
       err=said("corpus/c.zip is a zip archive; give text in UTF-8 or JSON lines, which data pack also reads compressed with gzip or zstd, "
                "or a token file and its format"))
os.remove("corpus/cut.txt.gz")
expect("train-directory", ["train", MINIMAL, "data.train=corpus"], 78,
       err=said("data.train[0]: corpus/b.jsonl.gz is compressed with gzip, and training reads plain text or tokens; pack it once "
                "with perdure data pack, and name its output"))
expect("train-lines", ["train", MINIMAL, "data.train=lines.jsonl", "data.document_token=0"], 78,
       err=said("data.train[0]: lines.jsonl is JSON lines, and training reads plain text or tokens; pack it once with "
                "perdure data pack, and name its output"))
text = expect("pack-json", ["data", "pack", "text.txt", "-o", "m", "-f", "megatron", "--json"], 0, ANY)
if text and (json.loads(text)["type"], json.loads(text)["tokens"]) != ("u8", 31):
    report("pack-json-content", ["type or tokens"], (0, text, ""))
text = expect("inspect-json", ["data", "inspect", "t.bin", "m.bin", "text.txt", "--json"], 0, ANY)
if text:
    files = json.loads(text)
    good = [f["format"] for f in files] == ["nanogpt", "megatron", "text"] and {f["tokens"] for f in files} == {31}
    report("inspect-json-content", [] if good else ["formats or tokens"], (0, text, ""))
expect("inspect", ["data", "inspect", "text.txt"], 0, re.compile(r"^text.txt\n  format     text, u8, 31 B\n  tokens     31, from 10 to 116\n"))
TOKENIZER = os.path.join(SOURCE, "tests/golden/tokenizers/gpt2.json")
text = expect("pack-tokenizer", ["data", "pack", "text.txt", "-o", "k.bin", f"--tokenizer={TOKENIZER}"], 0, re.compile("model.vocab must be at least"))
if text:
    digest, vocab = re.search(r"^tokenizer (\w+), .* at least (\d+)$", text, re.M).groups()
    expect("inspect-tokenizer", ["data", "inspect", "k.bin"], 0,
           re.compile(rf"\n  tokenizer  {digest}\n  needs      model.vocab of at least {vocab}\n$"))
expect("inspect-missing", ["data", "inspect", "none.bin"], 78, err=said("none.bin cannot be read: No such file or directory"))
expect("inspect-none", ["data", "inspect"], 64, err=said("name at least one file; see perdure data inspect --help"))

expect("precision-fp8", ["train", MINIMAL, "numerics.precision=fp8"], 78, err=said('command line: numerics.precision: expected fp32, bf16 or fp16, '
       'found "fp8"; linears of blocks are in fp8 by numerics.linears=fp8'))

# ---- doctor ----
expect("doctor", ["doctor"], 0, re.compile(r"^perdure \S+\n(.*\n)*.*\d+ missing, \d+ limited\n$"))
os.mkdir("nothing")
expect("doctor-without-programs", ["doctor"], 0, re.compile(r"no mpirun on PATH(.*\n)*.*no h5ls on PATH(.*\n)*- +remote shell +no ssh on PATH\n +for hosts of launch\.hosts: "),
       environment={"PATH": os.path.abspath("nothing")})
expect("doctor-two", ["doctor", "a", "b"], 64, err=said('perdure doctor looks at one directory; "b" is another'))
text = expect("doctor-json", ["doctor", "--json", "none"], 74, ANY, re.compile(r"^perdure: none cannot take checkpoints; name "))
if text:
    rows = {row["what"]: row for row in json.loads(text)["findings"]}
    good = rows["directory"]["state"] == "missing" and rows["directory"]["advice"] == "it does not exist: mkdir -p none" and rows["cores"]["state"] != "missing"
    report("doctor-json-content", [] if good else ["directory or cores"], (74, text, ""))
report("doctor-leaves-nothing", [f for f in os.listdir(".") if "probe" in f], (0, "", ""))

# ---- ckpt: a tiny run of six steps, saved at 2, 4 and 6 ----
tiny = ["run.dir=run", "run.steps=6", "model.layers=1", "model.hidden=32", "model.heads=2", "model.context=32", "batch.sequences=4",
        "checkpoint.every=2", "layout.transport=local", "layout.ranks=2", "layout.threads=1", "numerics.precision=fp32"]
write("text.txt", "In the beginning God created the heaven and the earth. " * 40)
if not ONLY or any(name.startswith("ckpt") for name in ONLY):
    trained = perdure("train", MINIMAL, *tiny)
    report("ckpt-train", [] if trained[0] == 0 else ["no run to look at"], trained)
ONE = write("one.yaml", "run: {dir: one, steps: 1}\ndata: {train: text.txt}\nmodel: {layers: 1, hidden: 32, heads: 2, context: 32}\n"
                        "batch: {sequences: 1, micro_batch: 1}\nlayout: {ranks: 1, threads: 1, transport: local}\n")
expect("train-without-gpu", ["train", ONE, "run.dir=unmade", "run.device=gpu"], 78, environment={"CUDA_VISIBLE_DEVICES": ""},
       err=re.compile(r"^perdure: run.device is gpu, and this host has none: run.device=cpu needs none, .*\n$"))  # no rank was started
# what is wrong with data is said before ranks are started, and nothing is made
write("short.txt", "In the beginning")
os.mkdir("holes")
write("holes/a.txt", "In the beginning God created the heaven and the earth. " * 40)
write("holes/b.txt", "")
expect("train-data-missing", ["train", ONE, "run.dir=unmade", "data.train=nothing.txt"], 78,
       err=said("data.train[0]: nothing.txt cannot be read: No such file or directory"))
expect("train-data-commas", ["train", ONE, "run.dir=unmade", "data.train=nothing.txt,none.txt"], 78,
       err=said("data.train[0]: nothing.txt,none.txt: there is no such file; several are a list: data.train=[nothing.txt,none.txt]"))
expect("train-data-short", ["train", ONE, "run.dir=unmade", "data.train=[text.txt, short.txt]"], 78,
       err=re.compile(r"^perdure: short.txt is too short: 16 tokens, and a sample takes 33 \(batch.context 32 and the token after\); "))
expect("train-data-empty", ["train", ONE, "run.dir=unmade", "data.train=[holes/a.txt, holes/b.txt]"], 78,
       err=said("data.train[1]: holes/b.txt is empty; leave it out or write it again"))
report("train-data-refused-makes-nothing", ["unmade is there"] if os.path.exists("unmade") else [], (0, "", ""))
for name, entry, files in (("directory", "holes", "holes: 1 file: a.txt; left out: b.txt"),
                           ("glob", "holes/*.txt", "holes/*.txt: 1 file: holes/a.txt; left out: holes/b.txt")):
    expect(f"train-data-{name}-with-an-empty-file", ["train", ONE, f"run.dir=with-{name}", f"data.train={entry}"], 0,
           err=re.compile(re.escape(f"{files} (empty)\n") + r"(.*\n)*.* done: step 1, "))
while time.time() < os.stat("text.txt").st_ctime + 1.1:  # a file that changed a moment ago is scanned again
    time.sleep(0.05)
expect("train-of-one", ["train", ONE], 0, err=re.compile("starting 1 rank (.*\n)*.* on 1 rank x 1 thread\n"))
write("hosts", "localhost\n")
expect("train-of-fewer-places", ["train", ONE, "run.dir=few", "layout.ranks=2", "layout.transport=auto", "batch.sequences=2", "launch.hosts=hosts"], 0,
       err=re.compile("starting 1 rank .*\n.*layout.ranks asks for 2; a line NAME:N in launch.hosts gives a host N ranks\n(.*\n)*.* done: step 1, "))
if not ONLY:
    kept = [os.stat(path).st_mtime_ns for path in glob.glob("one/.data-scan-*")]
    for name, words, is_new in (("again", [], False), ("verified", ["--verify-data"], True)):
        result = perdure("train", ONE, *words, "run.steps=1")
        found = [os.stat(path).st_mtime_ns for path in glob.glob("one/.data-scan-*")]
        report(f"train-data-{name}", [] if len(kept) == 1 and result[0] == 0 and (found != kept) == is_new else [f"scans of {kept}, then {found}"], result)
write("options", "localhost\n-oProxyCommand=touch${IFS}obeyed\n")
for name, source in (("file", "options"), ("command", "tail -n1 options")):
    expect(f"train-host-is-an-option-of-ssh-{name}", ["train", ONE, "run.dir=unmade", "layout.transport=auto", f"launch.hosts={source}"], 78,
           err=re.compile(rf'^perdure: launch.hosts \({source}\): line [12], "-oProxyCommand=touch\$.*", must be: name, name:4 '))
report("train-host-is-obeyed", ["obeyed is there"] if os.path.exists("obeyed") else [], (0, "", ""))
expect("train-of-one-done", ["train", ONE], 0, err=re.compile("nothing to train: run.steps is 1, and step 1 is saved; set a larger run.steps to continue\n$"))
expect("train-of-one-again", ["train", ONE, "--fresh"], 78, err=re.compile("one/checkpoints holds 1 checkpoint, the newest of step 1; "))
if not ONLY:
    sealed = glob.glob("one/checkpoints/step-*")[0]
    os.rename(sealed, sealed + ".tmp")  # as a kill between record and name leaves it
    expect("train-fresh-unnamed", ["train", ONE, "--fresh"], 78,
           err=said(f"--fresh: {sealed}.tmp is a complete checkpoint whose save was killed before it was renamed, and a start continues from "
                    "it; choose another run.dir, move it away, or leave --fresh out to continue"))
    report("train-fresh-unnamed-stays", [] if os.path.isdir(sealed + ".tmp") else ["it was renamed"], (0, "", ""))
    expect("train-unnamed", ["train", ONE], 0, err=re.compile("is whole: rolled forward\n(.*\n)*.*resumed at step 1, "))
    os.rename(sealed, sealed + ".tmp")
    os.unlink(sealed + ".tmp/commit.h5")
    expect("train-fresh-unsealed", ["train", ONE, "--fresh"], 0, err=re.compile("fresh start: "))  # no checkpoint: nobody was promised it
    shutil.copy("text.txt", "renamed.txt")
    expect("train-data-renamed", ["train", ONE, "data.train=renamed.txt"], 0, err=re.compile("resumed at step 1, "))
    write("other.txt", "And the earth was without form, and void; and darkness was upon the face of the deep. " * 40)
    expect("train-data-other", ["train", ONE, "data.train=other.txt"], 78,
           err=re.compile(r"perdure: rank 0: other.txt \(then text.txt\) changed since the checkpoint \(content, format, weight or order\); "
                          r"put the data back, or continue with what there is now \(accept_new_lineage=true\)\n$"))
    expect("train-data-more", ["train", ONE, "data.train=[text.txt, other.txt]"], 78,
           err=re.compile(r"the list of data files changed since the checkpoint: 1 file then, 2 now; new: other.txt; put "
                          r"the data back"))
    changed = ["train", ONE, "run.steps=2", "optimizer.beta2=0.9"]
    expect("train-lineage-refused", changed, 78, err=re.compile("optimizer.beta2 was .* and is now 0.9: .*accept_new_lineage=true"))
    expect("train-lineage-accepted", [*changed, "accept_new_lineage=true"], 0,
           err=re.compile("accept_new_lineage: optimizer.beta2 was .* and is now 0.9: a new lineage, number 2, from step 2 on, whose bits "))
    text = perdure(*changed, "accept_new_lineage=true", "run.steps=3")
    report("train-lineage-once", ["said again"] if text[0] or "accept_new_lineage: " in text[2] else [], text)
    perdure("data", "pack", "text.txt", "--output=words.bin", f"--tokenizer={SOURCE}/tests/golden/tokenizers/metaspace.json")
    words = ["train", ONE, "run.dir=words", "model.vocab=1996"]
    expect("train-tokenizer", words, 0, err=ANY)
    expect("train-tokenizer-other", [*words, "run.steps=2", "data.train=words.bin", "accept_new_lineage=true"], 0,
           err=re.compile(r"warn \S+( \S+)?: the checkpoint was trained on tokens of another tokenizer \(digest [0-9a-f]{16}\) than the data is now "
                          r"\([0-9a-f]{16}\): what the model learned of a token does not hold for it\n"))
    result = perdure(*words, "run.steps=3", "data.train=words.bin")
    report("train-tokenizer-same", ["it warns"] if result[0] or "another tokenizer" in result[2] else [], result)
    shutil.rmtree("one")
    expect("train-of-one-anew", ["train", ONE], 0, err=ANY)
    with open("one/metrics.jsonl", encoding="utf-8") as f:
        measured = f.read()
    write("one/metrics.jsonl", re.sub('"loss": *[^,]*,', '"loss": null,', measured))  # as a loss that is not finite is written
    result = perdure("train", ONE, "--json")
    report("train-json-unmeasured", [] if json.loads(result[1])["loss"] is None else ["a loss that nobody measured"], result)
    write("one/metrics.jsonl", measured)
expect("train-of-one-shown", ["ckpt", "show", "one"], 0, re.compile(r"^checkpoint .* in 1 shard\n(.*\n)*layout .* state in 1 part, "))
expect("train-of-one-refused", ["train", ONE, "layout.dp=2"], 78, err=re.compile("but a step has only 1 micro-batch "))
# a step that fp16 skips has no gradient norm: null, which every reader of JSON takes
if not ONLY or "metrics-skipped" in ONLY:
    half = [word for word in tiny if not word.startswith(("run.dir", "numerics"))]
    trained = perdure("train", MINIMAL, *half, "run.dir=half", "numerics.precision=fp16", "numerics.loss_scale=16777216")
    lines = [json.loads(line) for line in open("half/metrics.jsonl")] if trained[0] == 0 else []
    norms = [line["gradient_norm"] for line in lines]
    report("metrics-gemm-share", [] if all(0 < line["gemm_share"] <= 1 for line in lines) else ["beyond its bound"], trained)
    report("metrics-skipped", [] if None in norms and not any(isinstance(norm, str) for norm in norms) else [f"norms {norms}"], trained)
expect("ckpt-none", ["ckpt", "ls", "nowhere"], 78, err=said("nowhere does not exist; name a run, its checkpoints or one of them"))
THEIRS = "safetensors, megatron, dcp, deepspeed, universal, gguf, llmc, torch"
os.makedirs("strange", exist_ok=True)
write("strange/text.txt", b"text")
NO_FORMAT = (f"text.txt is a file in no format that perdure reads ({THEIRS}): `perdure ckpt import --help` lists the files of each, and runs "
             "and checkpoints of perdure are directories")
NOTHING = r" holds no checkpoint; a run saves its own in <run.dir>/checkpoints, and `perdure ckpt import --help` lists the files of other programs\n$"
STRANGE = "/.*/strange" + NOTHING
for command in (["ls"], ["show"], ["stats"], ["verify"], ["prune", "--keep-last=1"], ["diff", "run"], ["diff", "strange"]):
    expect(f"ckpt-file-{'-'.join(command)}", ["ckpt", *command, "text.txt"], 65 if command[-1] == "strange" else 78,
           err=re.compile("^perdure: " + STRANGE) if command[-1] == "strange" else said(NO_FORMAT))
for command in ("show", "stats", "verify"):
    expect(f"ckpt-strange-{command}", ["ckpt", command, "strange"], 65, err=re.compile("^perdure: " + STRANGE))
expect("ckpt-strange-ls", ["ckpt", "ls", "strange"], 0, re.compile("^" + STRANGE))
write("strange.gguf", b"GGUF\3\0\0\0" + bytes(16))
expect("ckpt-ls-gguf", ["ckpt", "ls", "strange.gguf"], 78, err=said(
    "strange.gguf is a checkpoint of another program (gguf), and this command reads only perdure's: perdure ckpt import converts it; ckpt show, stats "
    "and diff read it as it is"))
expect("ckpt-no-path", ["ckpt", "show"], 64, err=said("name a run or a directory of checkpoints; see perdure ckpt show --help"))
expect("ckpt-two-paths", ["ckpt", "show", "run", "run"], 64, err=said('"run" is one path too many: at most 1; see perdure ckpt show --help'))
os.makedirs("empty", exist_ok=True)
NO_CHECKPOINT = "/.*/empty" + NOTHING
expect("ckpt-ls-empty", ["ckpt", "ls", "empty"], 0, re.compile("^" + NO_CHECKPOINT))
expect("ckpt-ls-empty-json", ["ckpt", "ls", "empty", "--json"], 0, "[]\n")
report("ckpt-ls-changes-nothing", os.listdir("empty"), (0, "", ""))
expect("ckpt-show-empty", ["ckpt", "show", "empty"], 65, err=re.compile("^perdure: " + NO_CHECKPOINT))
expect("ckpt-verify-empty", ["ckpt", "verify", "empty"], 65, err=re.compile("^perdure: " + NO_CHECKPOINT))
text = expect("ckpt-verify-empty-json", ["ckpt", "verify", "empty", "--json"], 65, ANY, ANY)
if text:
    found = json.loads(text)
    report("ckpt-verify-empty-json-content", [] if (found["ok"], found["checkpoints"]) == (False, []) else ["ok"], (65, text, ""))
expect("ckpt-ls", ["ckpt", "ls", "run"], 0,
       re.compile(r"^CHECKPOINT .*\nstep-000000000006-\d+ .*\nstep-000000000004-\d+ .*\nstep-000000000002-\d+ .*\n$"))
text = expect("ckpt-stats-line-ends", ["ckpt", "stats", "run"], 0, re.compile("DIGEST\n"))
report("ckpt-stats-line-ends", [line for line in (text or "").splitlines() if line.endswith(" ")], (0, text, ""))
os.makedirs("away", exist_ok=True)
write("away/config.yaml", "run: {dir: away}\ndata: {train: [{path: text.txt}]}\ncheckpoint: {dir: run/checkpoints}\n")
expect("ckpt-ls-elsewhere", ["ckpt", "ls", "away"], 0, re.compile(r"^CHECKPOINT .*SIZE\n(step-00000000000[642]-.*\n){3}$"))
expect("ckpt-show-elsewhere", ["ckpt", "show", "away"], 0, re.compile(r"\nstep        6, lineage 1, "))
rows = []
text = expect("ckpt-ls-json", ["ckpt", "ls", "run/checkpoints", "--json"], 0, ANY)
if text:
    rows = json.loads(text)
    good = [(row["step"], row["world"], row["lineage"]) for row in rows] == [(6, 2, 1), (4, 2, 1), (2, 2, 1)]
    report("ckpt-ls-json-content", [] if good else ["steps, worlds or lineages"], (0, text, ""))
    one = os.path.join("run/checkpoints", rows[1]["name"])
    text = expect("ckpt-show-one", ["ckpt", "show", one, "--json"], 0, ANY)
    shown = json.loads(text)
    if shown["best_validation_loss"] is not None:
        report("ckpt-show-no-validation", ["a loss that was never measured is not null"], (0, text, ""))
    good = shown["step"] == 4 and shown["layout"]["dp"] == 2 and shown["samples"] == 16 and "batch:" in shown["config"]
    report("ckpt-show-one-content", [] if good else ["step, layout, samples or configuration"], (0, text, ""))
expect("ckpt-show", ["ckpt", "show", "run"], 0, re.compile(r"^checkpoint  step-000000000006-.*\nrun .*\nstep        6, lineage 1, "))
expect("ckpt-show-device", ["ckpt", "show", "run"], 0, re.compile(r"\ncomputed    on a CPU\n$"))
expect("ckpt-show-step", ["ckpt", "show", "run", "--step=2"], 0, re.compile(r"\nstep        2, "))
expect("ckpt-show-absent", ["ckpt", "show", "run", "--step=3"], 65,
       err=re.compile(r"holds no valid checkpoint of step 3; there are steps 6, 4, 2\n$"))
text = expect("ckpt-show-config", ["ckpt", "show", "run", "--config"], 0, ANY)
if text:
    expect("ckpt-show-config-loads", ["plan", write("shown.yaml", text), "--print-config"], 0, text)
expect("ckpt-verify", ["ckpt", "verify", "run"], 0, 
       re.compile(r"^(ok: step-\d{12}-1: .* checked in .* s, 0 findings\n){3}$"))
if not ONLY or any(name.startswith("ckpt-verify-foreign") for name in ONLY):
    alien = shutil.copytree(glob.glob("one/checkpoints/step-*")[0], "run/checkpoints/step-000000000001-1")
    expect("ckpt-verify-foreign", ["ckpt", "verify", "run"], 65,
           re.compile(r"^(ok: .*\n){3}step-000000000001-1: it belongs to run \w+, and most .*\nFOREIGN: step-000000000001-1: .*, 0 findings\n$"),
           re.compile(r"^perdure: .*/run/checkpoints/step-000000000001-1: it belongs to run \w+, .*: move it to where that run keeps its own\n$"))
    text = expect("ckpt-verify-foreign-json", ["ckpt", "verify", "run", "--json"], 65, ANY, ANY)
    found = json.loads(text) if text else {"checkpoints": []}
    good = [bool(c["foreign"]) for c in found["checkpoints"]] == [False, False, False, True] and not found["damaged"] and not found["ok"]
    report("ckpt-verify-foreign-json-content", [] if good and found["foreign"] == 1 else ["which are foreign"], (65, text, ""))
    shutil.rmtree(alien)
expect("ckpt-verify-step", ["ckpt", "verify", "run", "--step=4"], 0,
       re.compile(r"^ok: step-000000000004-\d+: .* checked in .* s, 0 findings\n$"))
expect("ckpt-diff-same", ["ckpt", "diff", "run", "run"], 0,
       re.compile(r"^step 6 under dp 2, tp 1, pp 1, sp 1 and step 6 under dp 2, tp 1, pp 1, sp 1\n0 of \d+ arrays differ\n$"))
if rows:
    newest, older = (os.path.join("run/checkpoints", rows[i]["name"]) for i in (0, 2))
    expect("ckpt-diff", ["ckpt", "diff", older, newest], 65,
           re.compile(r"^step 2 under dp 2, .* and step 6 under dp 2, .*\nTENSOR .*\n(.* different .*\n)+(\d+) of \d+ arrays differ\n$"),
           re.compile("hold different state"))
    os.rename(os.path.join("run/checkpoints", rows[1]["name"]), "run/checkpoints/step-000000000005-1")
    renamed = "step-000000000005-1 is skipped: its record is of step-000000000004-1: rename it to that\n"
    expect("ckpt-ls-renamed", ["ckpt", "ls", "run"], 0, ANY, re.compile(rf"^\S+ warn ckpt: /\S+/run/checkpoints/{renamed}$"))
    expect("ckpt-diff-renamed", ["ckpt", "diff", "run", "run"], 0, ANY, re.compile(rf"^\S+ warn ckpt: /\S+/run/checkpoints/{renamed}$"))
    expect("ckpt-diff-renamed-other", ["ckpt", "diff", older, newest], 65, ANY, re.compile(r"^perdure: \S+ and \S+ hold different state\n$"))
    expect("ckpt-verify-renamed", ["ckpt", "verify", "run"], 65,
           re.compile("\nstep-000000000005-1: its record is of step-000000000004-1: rename it to that\nMISNAMED: "), ANY)
    os.rename("run/checkpoints/step-000000000005-1", "run/checkpoints/old")
    expect("ckpt-ls-other-name", ["ckpt", "ls", "run"], 0, ANY,
           re.compile(r"checkpoints/old is skipped: its record is of step-000000000004-1: rename it to that\n$"))
    expect("ckpt-verify-other-name", ["ckpt", "verify", "run"], 65,
           re.compile(r"\nold: its record is of step-000000000004-1: rename it to that\nMISNAMED: old: .*, 0 findings\n"),
           re.compile(r"^perdure: .*/checkpoints/old: its record is of step-000000000004-1: rename it to that\n$"))
    expect("ckpt-show-other-name", ["ckpt", "show", "run/checkpoints/old"], 65,
           err=re.compile("/checkpoints/old is a checkpoint without the name that its save gave it: rename it to step-000000000004-1\n$"))
    os.rename("run/checkpoints/old", os.path.join("run/checkpoints", rows[1]["name"]))
    aside = os.path.join("run/checkpoints/quarantine", rows[1]["name"])
    os.makedirs("run/checkpoints/quarantine")
    os.rename(os.path.join("run/checkpoints", rows[1]["name"]), aside)
    expect("ckpt-ls-aside", ["ckpt", "ls", "run"], 0, re.compile(r"^CHECKPOINT .*\nstep-000000000006-\d+ .*\nstep-000000000002-\d+ .*\n$"),
           re.compile(r"^perdure: \S+/quarantine has 1 checkpoint that launches moved aside; a file in each says why\n$"))
    os.rename(aside, os.path.join("run/checkpoints", rows[1]["name"]))
    os.rmdir("run/checkpoints/quarantine")
    expect("ckpt-diff-quiet", ["ckpt", "diff", older, newest, "--quiet"], 65)
    expect("ckpt-diff-quiet-same", ["ckpt", "diff", "-q", newest, newest], 0)
    text = expect("ckpt-diff-json", ["ckpt", "diff", older, newest, "--json"], 65, ANY, ANY)
    quiet = expect("ckpt-diff-json-quiet", ["ckpt", "diff", older, newest, "--json", "--quiet"], 65, ANY)
    report("ckpt-diff-json-quiet-same", [] if quiet == text else ["another object"], (65, quiet, ""))
    if text:
        differences = json.loads(text)
        good = differences["different"] == len(differences["differences"]) > 0
        report("ckpt-diff-json-content", [] if good else ["counts"], (65, text, ""))
text = expect("ckpt-stats-json", ["ckpt", "stats", "run", "--json"], 0, ANY)
if text:
    stats = json.loads(text)
    norm = {row["kind"]: row for row in stats["tensors"] if row["tensor"] == "model.norm.weight"}
    good = re.fullmatch("[0-9a-f]{16}", stats["state_digest"]) and abs(norm["param"]["mean"] - 1) < 0.01 and norm["param"]["nan"] == 0
    report("ckpt-stats-json-content", [] if good else ["digest or norm"], (0, text, ""))
expect("ckpt-stats", ["ckpt", "stats", "run", "--tensor=norm"], 0,
       re.compile(r"^TENSOR .*\n(\S*norm\S* +(param|exp_avg|exp_avg_sq) .*\n)+$"))
text = expect("ckpt-stats-one", ["ckpt", "stats", "run", "--tensor=model.norm.weight", "--json"], 0, ANY)
if text:
    one = json.loads(text)
    # direct reads are of whole pages, and small boxes that lie together are read at once
    good = 0 < one["bytes_read"] <= 4096 * len(one["tensors"]) and "state_digest" not in one
    report("ckpt-stats-one-reads-its-blocks", [] if good else ["bytes_read or state_digest"], (0, text, ""))
expect("ckpt-stats-none", ["ckpt", "stats", "run", "--tensor=xyz"], 64,
       err=said('no tensor has "xyz" in its name; leave --tensor out to see all'))
# progress is talk: on stderr, beside JSON too, and none where it is off
PROGRESS = re.compile(r"^(\d+%, [\d.]+ \w+ of [\d.]+ \w+, [\d.]+ \w+/s, \d+:\d\d left\n)+$")
for arguments in (["verify", "run", "--step=6"], ["stats", "run"], ["diff", "run", "run"], ["reshard", "run", "progress", "--layout=dp=1"]):
    name = f"ckpt-progress-{arguments[0]}"
    text = expect(name, ["ckpt", *arguments, "--json"], 0, ANY, PROGRESS, environment={"PERDURE_PROGRESS": "line:0"})
    if text is not None:
        report(f"{name}-json", [] if json.loads(text) else ["no JSON"], (0, text, ""))
expect("ckpt-progress-off", ["ckpt", "verify", "run"], 0, ANY, environment={"PERDURE_PROGRESS": "off"})
# reshard: the same state under another layout; what cannot be is refused before anything is made
expect("ckpt-reshard", ["ckpt", "reshard", "run", "other", "--layout=dp=4,zero_shard=2"], 0,
       re.compile(r"^/.*/other/step-000000000006-1: step 6, under dp 4, tp 1, pp 1, sp 1, .* in 4 shards, .* s\n$"))
expect("ckpt-reshard-verifies", ["ckpt", "verify", "other"], 0, re.compile(r"^ok: step-000000000006-1: .*, 0 findings\n$"))
expect("ckpt-reshard-same-state", ["ckpt", "diff", "run", "other"], 0,
       re.compile(r"^step 6 under dp 2, tp 1, pp 1, sp 1 and step 6 under dp 4, tp 1, pp 1, sp 1\n0 of \d+ arrays differ\n$"))
text = expect("ckpt-reshard-shown", ["ckpt", "show", "other", "--json"], 0, ANY)
if text:
    shown = json.loads(text)
    good = shown["layout"]["dp"] == 4 and shown["layout"]["zero_shard"] == 2 and shown["shards"] == 4 and shown["step"] == 6
    report("ckpt-reshard-shown-content", [] if good else ["layout, shards or step"], (0, text, ""))
expect("ckpt-reshard-again", ["ckpt", "reshard", "run", "other", "--layout=dp=2"], 64,
       err=re.compile(r"^perdure: /.*/other holds step 6 of this run already, as step-000000000006-1; name another directory\n$"))
expect("ckpt-reshard-onto-itself", ["ckpt", "reshard", "run", "run", "--layout=dp=1"], 64, err=re.compile("holds step 6 of this run already"))
text = expect("ckpt-reshard-json", ["ckpt", "reshard", "run", "third", "--layout=dp=1", "--step=4", "--json"], 0, ANY)
if text:
    done = json.loads(text)
    good = done["step"] == 4 and done["shards"] == 1 and done["layout"]["dp"] == 1 and done["bytes_read"] > 0 and done["index"]
    report("ckpt-reshard-json-content", [] if good else ["step, shards or layout"], (0, text, ""))
# compressed, then as the source is without a word, then plain again: the same state each time, and the first file once more
expect("ckpt-reshard-compressed", ["ckpt", "reshard", "run", "packed", "--layout=dp=2", "--compression=zstd:3"], 0,
       re.compile(r" in 2 shards, compression zstd:3, [\d.]+ s\n$"))
text = expect("ckpt-reshard-as-the-source", ["ckpt", "reshard", "packed", "repacked", "--layout=dp=3", "--json"], 0, ANY)
if text:
    report("ckpt-reshard-as-the-source-content", [] if json.loads(text)["compression"] == "zstd:3" else ["compression"], (0, text, ""))
expect("ckpt-reshard-auto", ["ckpt", "reshard", "repacked", "auto", "--layout=dp=2", "--compression=auto"], 64,
       err=said("--compression=auto: expected none, or zstd:1 to zstd:19"))
expect("ckpt-reshard-plain-again", ["ckpt", "reshard", "repacked", "plain", "--layout=dp=4,zero_shard=2", "--compression=none"], 0,
       re.compile(r"step 6, under dp 4, .* in 4 shards, compression none, [\d.]+ s\n$"))
for place in ("packed", "repacked", "plain"):
    expect(f"ckpt-reshard-{place}-verifies", ["ckpt", "verify", place], 0, re.compile(r"^ok: step-000000000006-1: .*, 0 findings\n$"))
    expect(f"ckpt-reshard-{place}-same-state", ["ckpt", "diff", "run", place], 0, re.compile(r"^step 6 .* and step 6 .*\n0 of \d+ arrays differ\n$"))
if not ONLY:
    shards = [[open(os.path.join(place, "step-000000000006-1", f"shard-0000{n}.h5"), "rb").read() for n in range(4)] for place in ("other", "plain")]
    report("ckpt-reshard-plain-same-bytes", [] if shards[0] == shards[1] else ["shards differ"], (0, "", ""))
before = sorted(os.listdir("plain")) if not ONLY else []
expect("train-onto-resharded", ["train", MINIMAL, *tiny, "run.dir=plain"], 78,
       err=said("run.dir, plain, holds checkpoints itself, as a directory that ckpt reshard wrote; to continue from them name it "
                "checkpoint.dir=plain, and another run.dir=DIR"))
if not ONLY:
    report("train-onto-resharded-made-nothing", [] if sorted(os.listdir("plain")) == before else ["more lies in plain"], (0, "", ""))
expect("train-from-resharded", ["train", MINIMAL, *tiny, "run.dir=onward", "checkpoint.dir=plain", "run.steps=7"], 0,
       err=re.compile(r"(from|at) step 6\n"))
expect("ckpt-reshard-compression-unknown", ["ckpt", "reshard", "run", "refused", "--layout=dp=1", "--compression=zstd:40"], 64,
       err=said("--compression=zstd:40: expected none, or zstd:1 to zstd:19"))
expect("ckpt-reshard-no-parent", ["ckpt", "reshard", "run", "no/such", "--layout=dp=1"], 78,
       err=said('the directory above no/such does not exist; make it first: mkdir -p "$(dirname "no/such")"'))
expect("ckpt-reshard-onto-file", ["ckpt", "reshard", "run", "text.txt", "--layout=dp=1"], 78,
       err=said("text.txt is not a directory; name one to put the new checkpoint in"))
expect("ckpt-reshard-no-destination", ["ckpt", "reshard", "run", "", "--layout=dp=1"], 64, err=re.compile("one of the arguments is empty"))
expect("train-onto-file", ["train", MINIMAL, "run.dir=text.txt/run"], 78,
       err=re.compile("perdure: run.dir: text.txt is not a directory, so text.txt/run cannot be created; give another directory for it\n$"))
expect("train-nowhere", ["train", MINIMAL, "run.dir=/proc/xx"], 78,
       err=said("run.dir: /proc/xx: making the directory: No such file or directory; see to it that it can be made, or name another "
                "directory with run.dir=DIR"))
expect("train-not-written", ["train", MINIMAL, "run.dir=/proc"], 78,
       err=re.compile(r"perdure: run.dir cannot be written; make it so, or name another with run.dir=DIR: /proc/\.config-.*: writing it: "))
expect("plan-nested", ["plan", MINIMAL, "--world=1", "checkpoint.tiers[0].dir=/x/a", "checkpoint.tiers[1].dir=/x/a/b"], 78,
       err=said("checkpoint.tiers[1].dir, /x/a/b, lies inside checkpoint.tiers[0].dir, /x/a: each holds checkpoints of its own; name "
                "another directory with checkpoint.tiers[1].dir=DIR"))
expect("sample-absent", ["sample", "nowhere"], 78, err=said("nowhere does not exist; name a run or its directory of checkpoints"))
expect("sample-file", ["sample", "text.txt"], 78, err=said("text.txt is not a directory; name a run or its directory of checkpoints"))
expect("sample-count", ["sample", "run", "--count=x"], 64,
       err=said("--count=x: expected a whole number; see perdure sample --help"))
expect("sample-temperature", ["sample", "run", "--temperature=-1"], 64,
       err=said("--temperature=-1: expected a number from 0 on; see perdure sample --help"))
# a model over bytes with a token that ends documents: it takes text, begins as a document begins, and ends with one
if not ONLY or any(name.startswith("sample-documents") for name in ONLY):
    write("documents.jsonl", '{"text": "ab\\n"}\n' * 200)
    perdure("data", "pack", "documents.jsonl", "--output=documents.bin", "--document-token=256")
    for name, apart in (("sample-documents", "false"), ("sample-documents-apart", "true")):
        trained = perdure("train", MINIMAL, f"run.dir={name}", "data.train=documents.bin", "data.document_token=256", "run.steps=200",
                          f"data.separate_documents={apart}", "model.vocab=257", "model.layers=1", "model.hidden=64", "model.heads=2",
                          "model.context=16", "batch.sequences=16", "layout.ranks=1", "optimizer.lr=1e-2", "numerics.precision=fp32")
        report(f"{name}-trained", [] if trained[0] == 0 else ["it fails"], trained)
        expect(name, ["sample", name, "--prompt=a", "--temperature=0", "--count=8"], 0, "ab\n\n")
    expect("sample-documents-none", ["sample", "sample-documents", "--temperature=0", "--count=8", "--json"], 0,
           '{"step":200,"tokens":[97,98,10,256],"text":"ab\\n"}\n')
expect("ckpt-step-word", ["ckpt", "show", "run", "--step=x"], 64, err=said("--step=x: expected a whole number, such as --step=4"))
for name, layout, code, words in (("zero", "dp=0", 78, "--layout: dp is 0 and must be at least 1"),
                                  ("power", "tp=3", 78, "--layout: tp=3 must be a power of two"),
                                  ("tp", "tp=4", 78, "tp=4 does not divide numerics.virtual_tp of the checkpoint, 1, "),
                                  ("stages", "pp=50", 78, "pipeline stages, but the model has"),
                                  ("shard", "dp=2,zero_shard=3", 78, "zero_shard"),
                                  ("word", "dq=2", 64, '"dq=2" is not understood'),
                                  ("numerics", "virtual_tp=2", 64, "numerics such as virtual_tp stay as they are"),
                                  ("empty", "", 64, '"" is not understood'),
                                  ("comma", "dp=2,", 64, '"" is not understood'),
                                  ("world", "dp=300,tp=256", 78, "dp=300,tp=256 are 76800 ranks, and there are 65536 at most; take smaller"),
                                  ("number", "dp=x", 64, '"x" is not a number'),
                                  ("twice", "dp=2,tp=1,dp=3", 64, "--layout: dp is given twice, 2 and then 3; leave one of them out")):
    expect(f"ckpt-reshard-refuses-{name}", ["ckpt", "reshard", "run", "refused", f"--layout={layout}"], code,
           err=re.compile(re.escape(words)))
for place in ("rewrite.shard.finished:2", "store.commit.checked:1", "store.commit.recorded:1", "store.commit.renamed:1"):
    killed = f"killed-{place.split(':')[0]}"
    expect(f"ckpt-reshard-{killed}", ["ckpt", "reshard", "run", killed, "--layout=dp=3"], -9, environment={"PERDURE_FAULT": place})
    if place.startswith("rewrite"):  # nothing was sealed: every command says so in the same words
        begun = rf"/.*/{killed} holds no checkpoint yet: step-000000000006-1.tmp was begun and not finished; "
        expect("ckpt-ls-begun", ["ckpt", "ls", killed], 0, re.compile("^" + begun))
        for command in ("show", "verify", "stats"):
            expect(f"ckpt-{command}-begun", ["ckpt", command, killed], 65, err=re.compile("^perdure: " + begun))
    expect(f"ckpt-reshard-{killed}-again", ["ckpt", "reshard", "run", killed, "--layout=dp=3"],
           64 if "renamed" in place or "recorded" in place else 0, ANY, ANY)
    expect(f"ckpt-reshard-{killed}-same-state", ["ckpt", "diff", "run", killed], 0, re.compile(r"^step 6 .* and step 6 .*\n0 of \d+ arrays differ\n$"))
expect("ckpt-reshard-needs-layout", ["ckpt", "reshard", "run", "refused"], 64,
       err=said("choose a layout: --layout=dp=4,tp=2; see perdure ckpt reshard --help"))
if not ONLY:
    report("ckpt-reshard-refused-made-nothing", ["refused exists"] if os.path.exists("refused") else [], (0, "", ""))
if rows:  # one bit of the middle of a shard of step 4
    shard = os.path.join("run/checkpoints", rows[1]["name"], "shard-00001.h5")
    with open(shard, "r+b") as file:
        file.seek(os.path.getsize(shard) // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    expect("ckpt-verify-damage", ["ckpt", "verify", "run", "--step=4"], 65, re.compile(r"shard-00001.h5"),
           re.compile(r"^perdure: checkpoint /.*step-000000000004-\d+: \d+ findings?; "))
    damaged = os.path.join("run/checkpoints", rows[1]["name"])
    names = re.compile(r"shard-00001.h5: .*; perdure ckpt verify shows which checkpoints are complete: name one of them\n$")
    for arguments in (["stats", damaged], ["diff", damaged, "run"]):
        expect(f"ckpt-damage-{arguments[0]}", ["ckpt", *arguments], 65, ANY, names)

    def listed(place):  # but for the number of the launch that was there last
        return sorted(re.sub(r"^fence-\d+$", "fence", name) for name in os.listdir(place)) if os.path.isdir(place) else None

    os.makedirs("bare")
    for place in ("refused", "bare", "other"):  # that is not there, that is empty, that holds a checkpoint
        before = listed(place)
        expect(f"ckpt-damage-reshard-{place}", ["ckpt", "reshard", damaged, place, "--layout=dp=1"], 65, ANY, names)
        report(f"ckpt-damage-reshard-{place}-left-nothing", [] if listed(place) == before else [f"{before} is {listed(place)}"], (65, "", ""))
    text = expect("ckpt-verify-damage-json", ["ckpt", "verify", "run", "--step=4", "--json"], 65, ANY, ANY)
    if text:
        found = json.loads(text)
        good = not found["ok"] and found["checkpoints"][0]["damage"][0]["file"] == "shard-00001.h5"
        report("ckpt-verify-damage-json-content", [] if good else ["damage"], (65, text, ""))

    text = expect("ckpt-verify-older-damage", ["ckpt", "verify", "run", "--json"], 65, ANY,
                  re.compile(r"^perdure: checkpoint /.*step-000000000004-\d+: "))
    if text:
        good = [row["ok"] for row in json.loads(text)["checkpoints"]] == [True, False, True]
        report("ckpt-verify-older-damage-content", [] if good else ["which are ok"], (65, text, ""))
    index = os.path.join("run/checkpoints", rows[0]["name"], "index.h5")
    os.rename(index, "index.h5")
    expect("ckpt-verify-no-index", ["ckpt", "verify", "run", "--step=6"], 0,
           re.compile(r"^warning: step-000000000006-\d+: index.h5 is absent; .*\nok: .* 0 findings\n$"))
    whole = open("index.h5", "rb").read()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for name, content in (("text", b"a" * 100), ("empty", b""), ("short", whole[:-100]), ("flipped", bytes(flipped))):
        write(index, content)
        expect(f"ckpt-verify-index-{name}", ["ckpt", "verify", "run", "--step=6"], 65,
               re.compile(r"^warning: step-000000000006-\d+: index.h5 is damaged: other bytes than commit.h5 promises; .*"
                          r"perdure ckpt reshard writes the checkpoint again with one.*\nINDEX DAMAGED, state ok: step-000000000006-1: "),
               re.compile(r"^perdure: index.h5 of /\S+/step-000000000006-1 is damaged; its state is complete, and a run continues from it: "))
    text = expect("ckpt-verify-index-json", ["ckpt", "verify", "run", "--step=6", "--json"], 65, ANY, ANY)
    found = json.loads(text) if text else {}
    good = found and (found["ok"], found["damaged"], found["index_damaged"], found["checkpoints"][0]["damage"]) == (False, 0, 1, [])
    report("ckpt-verify-index-json-content", [] if good else ["an index that is damaged"], (65, text, ""))
    os.replace("index.h5", index)

if rows:
    shutil.copytree("run", "absent")
    lacking = os.path.join("absent/checkpoints", rows[0]["name"])
    os.unlink(os.path.join(lacking, "shard-00000.h5"))
    absent = re.compile(r"(^|\n)perdure: /.*/step-000000000006-1 is not a valid checkpoint: shard-00000.h5 is absent; perdure ckpt verify ")
    for name, arguments in {"reshard": ["reshard", lacking, "refused", "--layout=dp=1"], "ls": ["ls", lacking], "show": ["show", lacking],
                            "reshard-step": ["reshard", "absent", "refused", "--layout=dp=1", "--step=6"]}.items():
        expect(f"ckpt-absent-shard-{name}", ["ckpt", *arguments], 65, err=absent)
    told = re.compile(r"^shard .*/shard-00000.h5: .*No such file or directory\nDAMAGED: step-000000000006-1: .*, 1 finding\n(?!.*00006-1)")
    expect("ckpt-verify-says-it-once", ["ckpt", "verify", "absent"], 65, told, re.compile(r"^perdure: .*00006-1.*\n$"))
    for row in rows[1:]:
        os.unlink(os.path.join("absent/checkpoints", row["name"], "shard-00000.h5"))
    expect("ckpt-prune-all-damaged", ["ckpt", "prune", "absent", "--keep-last=1"], 0,
           re.compile(r"^nothing is removed: /.*/absent/checkpoints holds 3 checkpoints, damaged or incomplete, and none that is complete; "), ANY)
    os.unlink(os.path.join(lacking, "commit.h5"))
    expect("ckpt-absent-record", ["ckpt", "show", lacking], 65, err=re.compile(r"is not a valid checkpoint: commit.h5 is absent; "))
    os.makedirs("run/checkpoints/step-000000000009-1")
    expect("ckpt-no-record", ["ckpt", "show", "run/checkpoints/step-000000000009-1"], 65,
           err=re.compile(r"step-000000000009-1 is not a valid checkpoint: "))
    os.rmdir("run/checkpoints/step-000000000009-1")
expect("ckpt-prune-nothing", ["ckpt", "prune", "empty", "--keep-last=1"], 0,
       re.compile("^nothing is removed: " + NO_CHECKPOINT))
expect("ckpt-prune-nothing-json", ["ckpt", "prune", "empty", "--keep-last=1", "--json"], 0, ANY)
report("ckpt-prune-writes-nothing", os.listdir("empty"), (0, "", ""))
expect("ckpt-prune-how-many", ["ckpt", "prune", "run"], 64,
       err=said("say how many checkpoints to keep, at least one: --keep-last=N; see perdure ckpt prune --help"))
expect("ckpt-prune", ["ckpt", "prune", "run", "--keep-last=1", "--keep-every=4"], 0, "1 of 3 checkpoints removed, 2 kept\n")
text = expect("ckpt-prune-json", ["ckpt", "prune", "run", "--keep-last=1", "--json"], 0, ANY)
if text:
    done = json.loads(text)
    good = done["removed"] == 1 and len(done["kept"]) == 1 and done["kept"][0].startswith("step-000000000006-")
    report("ckpt-prune-json-content", [] if good else ["removed or kept"], (0, text, ""))

# ---- bench: what it says, not how fast it is ----
expect("bench-bytes", ["bench", "ckpt", "--bytes=5"], 64, err=said("--bytes=5: expected 32M or more, such as 512M or 2G"))
expect("bench-pairs", ["bench", "ckpt", "--pairs=0"], 64, err=said("--pairs=0: expected a number from 1 to 99"))
expect("bench-no-directory", ["bench", "ckpt", "--dir=none"], 78,
       err=said("--dir=none: there is no such directory; name one on the disk to be measured"))
expect("bench-no-space", ["bench", "ckpt", "--bytes=32T"], 74, err=re.compile(r"^perdure: \. has .* free"))
if os.path.isdir("/dev/shm") and os.stat("/dev/shm").st_dev != os.stat("/dev").st_dev:
    expect("bench-in-memory", ["bench", "ckpt", "--dir=/dev/shm"], 78, err=re.compile("is in memory.*give a directory on one with --dir"))
for bench, keys in (("ckpt", {"save_ratio", "save_ratio_recycled", "load_ratio"}), ("reshard", {"load_ratio", "offline_ratio", "peak_rss_bytes"})):
    result = perdure("bench", bench, "--bytes=32M", "--pairs=1", "--json")
    if "is in memory" in result[2]:
        print(f"skipped bench-{bench}: {os.getcwd()} is in memory")
        continue
    values = json.loads(result[1]) if result[0] == 0 else {}
    problems = [] if keys <= set(values) and all(values[key] > 0 for key in keys) else ["no ratios"]
    if [name for name in os.listdir(".") if name.startswith("perdure-bench-")]:
        problems.append("files stay behind")
    report(f"bench-{bench}", problems, result)

expect("bench-step-device", ["bench", "step", "--device=tpu"], 64, err=said("--device=tpu: expected auto, cpu or gpu"))
expect("bench-step-mode", ["bench", "step", "--device=gpu", "--mode=slow"], 64, err=said("--mode=slow: expected invariant or fast"))
expect("bench-step-nvme", ["bench", "step", "--device=gpu", "--set=offload.optimizer=nvme"], 64, err=said(
    "bench step: offload.* is nvme, and a bench of a GPU has no drive to it; use cpu"))
expect("bench-step-micro-batch", ["bench", "step", "--device=gpu", "--micro-batch=3", "--sequences=4"], 64,
       err=said("--micro-batch=3: --sequences 4 is not a multiple of it"))
for name, options, message in (
        ("micro_batch", ["--micro-batch=7"], "--micro-batch works on a GPU alone: add --device=gpu"),
        ("set", ["--set=foo=bar", "--mode=fast"], "--set works on a GPU alone: add --device=gpu"),
        ("size", ["--preset=0.5B"], "--preset=0.5B is for a GPU alone: --device=gpu"),
        ("preset", ["--preset=9B"], "--preset=9B: model.preset 9B is unknown; the nearest are byte-1m, byte-10m and llama-3b; on a GPU also 0.5B, 1.5B, 3B, "
         "7B and 14B"),
        ("range", ["--threads=0"], "--threads=0: expected a number from 1 to 1024"),
        ("ranks", ["--ranks=3"], "--ranks=3: 2 threads cannot be shared evenly; give --threads=3"),
        ("nothing", ["--pairs=0"], "--pairs=0 without --ranks leaves nothing to measure")):
    expect(f"bench-step-cpu-{name}", ["bench", "step", "--device=cpu", *options], 64, err=said(message))
expect("bench-step-gpu-pairs", ["bench", "step", "--device=gpu", "--pairs=3"], 64,
       err=said("--pairs works on a CPU alone: add --device=cpu"))
os.makedirs("it's, {a} #b")
expect("bench-step-small-vocabulary", ["bench", "step", "--device=cpu", "--preset=byte-1m", "--pairs=1", "--precision=fp32"], 0,
       re.compile("^device +cpu\ngemm ratio fp32 +[\\d.]+ "), ANY, environment={"TMPDIR": "it's, {a} #b"})
result = perdure("bench", "step", "--device=cpu", "--preset=byte-1m", "--pairs=1", "--tokens=64", "--precision=fp32", "--stages", "--json")
shares = json.loads(result[1]).get("stage_shares_fp32", {}) if result[0] == 0 else {}
report("bench-step-stages", [] if abs(sum(shares.values()) - 1) < 1e-9 and all(0 < shares[name] < 1 for name in (
    "gemms", "attention", "norms", "loss", "optimizer", "between")) else [f"shares {shares}"], result)
expect("bench-step-ranks", ["bench", "step", "--device=cpu", "--pairs=0", "--ranks=2", "--rank-pairs=1", "--tokens=64", "--preset=byte-1m"], 0,
       re.compile("^device +cpu\ndp efficiency +[\\d.]+ .*\nreplay cost +-?[\\d.]+(e-\\d+)? "), ANY)
expect("bench-attention-device", ["bench", "attention", "--device=tpu"], 64, err=said("--device=tpu: expected auto, cpu or gpu"))
expect("bench-attention-heads", ["bench", "attention", "--heads=3", "--kv-heads=2"], 64,
       err=said("--heads=3 does not divide by --kv-heads=2: give a multiple of it"))
result = perdure("bench", "attention", "--device=cpu", "--tokens=64", "--length=32", "--calls=1", "--json")
values = json.loads(result[1]) if result[0] == 0 else {}
report("bench-attention", [] if values.get("forward_tflops", 0) > 0 and values.get("backward_tflops", 0) > 0 else ["no rates"], result)
report("bench-attention-kernels", [] if values.get("kernels") in ("portable", "avx2", "avx512") else ["no kernels named"], result)

expect("bench-every-no-space", ["bench", "ckpt", "--every=1", "--bytes=32T", "--device=cpu"], 74, err=re.compile("the bench needs 72[.]0 TiB"))
expect("bench-every-no-gpu", ["bench", "ckpt", "--every=1", "--bytes=32T", "--device=gpu"], 78, err=re.compile("run.device=cpu needs no GPU"),
       environment={"CUDA_VISIBLE_DEVICES": ""})
expect("bench-every", ["bench", "ckpt", "--every=0"], 64, err=said("--every=0: expected a number of steps from 1 to 1000"))
result = perdure("bench", "ckpt", "--every=2", "--bytes=32M", "--pairs=1", "--dir=.", "--json")
values = json.loads(result[1]) if result[0] == 0 else {}
problems = [] if {"stall_p50", "stall_p99", "slowdown_every_step"} <= set(values) and values["every"] == 2 else ["no shares"]
if [name for name in os.listdir(".") if name.startswith("perdure-bench-")]:
    problems.append("files stay behind")
report("bench-ckpt-every", problems, result)
for name, options, message in (("state", ["--state=nvme"], "--state, --device, --steps and --bucket are for --every"),
                               ("steps", ["--every=1", "--steps=1"], "--steps is for --state nvme"),
                               ("where", ["--every=1", "--state=disk"], "--state=disk: expected memory or nvme")):
    expect(f"bench-ckpt-{name}", ["bench", "ckpt", *options], 64, err=said(message))


def leave_bench():
    """A turn of a thousand steps would take many minutes: TERM ends it between two micro-batches. Rehearsals save steps 1 to 7, and one
    more save comes before the turn's."""
    with subprocess.Popen([PERDURE, "bench", "ckpt", "--every=1000", "--bytes=64M", "--pairs=1", "--dir=."],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as bench:
        while bench.poll() is None and not any(int(re.search(r"step-(\d+)", name)[1]) > 7 for name in glob.glob("perdure-bench-*/store/step-*")):
            time.sleep(0.05)
        time.sleep(3)
        bench.terminate()
        out, err = bench.communicate(timeout=120)
    return bench.returncode, out, err


result = leave_bench()
problems = [] if result[0] == 75 and "asked to leave, its files are removed" in result[2] else ["it did not leave"]
if [name for name in os.listdir(".") if name.startswith("perdure-bench-")]:
    problems.append("its files stayed behind")
report("bench-ckpt-every-leaves", problems, result)
result = perdure("bench", "ckpt", "--every=1", "--state=nvme", "--bytes=64M", "--pairs=1", "--steps=2", "--dir=.", "--json")
values = json.loads(result[1]) if result[0] == 0 else {}
problems = [] if {"stall_p50", "stall_p99", "slowdown_every_step"} <= set(values) else ["no shares"]
problems += [] if values and values["extra_bytes"] < 0.01 and values["flushes"] <= values["shards"] + 5 else ["bytes or flushes"]
report("bench-ckpt-every-nvme", problems, result)

# ---- stdout that cannot be written ----
if os.path.exists("/dev/full"):
    with open("/dev/full", "w") as full:
        done = subprocess.run([PERDURE, "--version"], stdout=full, stderr=subprocess.PIPE)
    problems = [] if done.returncode == 74 and b"stdout could not be written" in done.stderr else ["said nothing"]
    report("stdout-full", problems, (done.returncode, "", done.stderr.decode()))

# ---- a reader that has seen enough: the end is quiet, and the exit code is the command's own ----
def closed_pipe(name, arguments, code, err=""):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([PERDURE, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=300)
    os.close(writer)
    told = done.stderr.decode()
    problems = [] if done.returncode == code else [f"exit code {done.returncode} instead of {code}"]
    problems += [] if re.search(err or "^$", told) else ["it complains"]
    report(f"closed-pipe-{name}", problems, (done.returncode, "", told))


for name, arguments in (("version", ["--version"]), ("help", ["--help"]), ("plan", ["plan", MINIMAL, "--world=1", "--threads=1"]),
                        ("plan-json", ["plan", MINIMAL, "--world=1", "--threads=1", "--json"]), ("doctor-json", ["doctor", "--json"]),
                        ("config", ["plan", MINIMAL, "--print-config"]), ("inspect", ["data", "inspect", "text.txt"])):
    closed_pipe(name, arguments, 0)
if rows:
    for name, arguments in (("ls", ["ckpt", "ls", "run"]), ("show-json", ["ckpt", "show", "run", "--json"]), ("stats", ["ckpt", "stats", "run"]),
                            ("sample", ["sample", "run", "--count=20", "--threads=1"])):
        closed_pipe(name, arguments, 0)
    closed_pipe("diff", ["ckpt", "diff", "run", "one"], 65, "hold different state")

finish("cli")
