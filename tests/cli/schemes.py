#!/usr/bin/env python3
"""Paths with a scheme that perdure does not speak are refused wherever a path is taken, and nothing is made.
schemes.py PERDURE SOURCE"""
import os
import re

from expect import MINIMAL, expect, finish, report, write

URL = "s3://bucket/x"
WHERE = r"\. Name a file or directory of a mounted file system\n$"
SPOKEN, OTHER = r"only checkpoints and data are read from s3:// \(.*\)" + WHERE, r"perdure does not read or write {}:// \(.*\); the scheme that works is s3://, for checkpoints and data" + WHERE
write("text.txt", "the quick brown fox jumps over the lazy dog. " * 200)
before = sorted(os.listdir("."))


def refused(name, arguments, code, what, scheme="s3"):
    said = SPOKEN if scheme == "s3" else OTHER.format(re.escape(scheme))
    expect(name, arguments, code, err=re.compile(rf"{re.escape(what)}: " + said))


for key in ("run.dir", "checkpoint.dir", "data.cache_dir", "launch.hosts"):
    refused(f"key-{key}", ["train", MINIMAL, f"{key}={URL}"], 78, key)
    refused(f"plan-{key}", ["plan", MINIMAL, "--world=1", f"{key}={URL}"], 78, key)
refused("tier", ["train", MINIMAL, "checkpoint.tiers=[{dir: a}, {dir: 'gs://bucket/x'}]"], 78, "checkpoint.tiers[1].dir", "gs")
expect("first-tier", ["plan", MINIMAL, "--world=1", f"checkpoint.tiers=[{{dir: '{URL}'}}]"], 78,
       err=re.compile(r"checkpoint\.tiers\[0\]\.dir, s3://bucket/x, is a bucket: a save goes into memory or to a disk first"))
expect("compressed-again", ["plan", MINIMAL, "--world=1", f"checkpoint.tiers=[{{dir: a}}, {{dir: '{URL}', compression: 'zstd:1'}}]"], 78,
       err=re.compile(r"checkpoint\.tiers\[1\]\.compression is zstd:1: files go into a bucket as they are in the tier before it, none"))
expect("no-bucket", ["plan", MINIMAL, "--world=1", "checkpoint.tiers=[{dir: a}, {dir: b, upload_memory: 64M}]"], 78,
       err=re.compile(r"checkpoint\.tiers\[1\]\.upload_memory: b is not a bucket"))
write("bucket.yaml", f"run: {{dir: '{URL}'}}\ndata: {{train: text.txt}}\n")
refused("file", ["train", "bucket.yaml"], 78, "run.dir")
for scheme in ("gs", "file", "hdfs", "S3", "https", "a+b-c.d"):
    refused(f"scheme-{scheme}", ["train", MINIMAL, f"run.dir={scheme}://x/y"], 78, "run.dir", scheme)
for command in (["train"], ["plan"], ["report"], ["watch"], ["replay"]):
    refused("-".join(command), [*command, URL], 64, " ".join(["perdure", *[c for c in command if c[0] != "-"]]))
# A checkpoint is read from s3:// and from no other scheme (tests/objects).
for command in (["sample"], ["ckpt", "ls"], ["ckpt", "show"], ["ckpt", "verify"], ["ckpt", "stats"], ["ckpt", "prune"], ["data", "inspect"], ["data", "pack"]):
    refused("-".join(command), [*command, "gs://bucket/x"], 64, " ".join(["perdure", *command]), "gs")
for key in ("data.train", "data.validation"):
    refused(key, ["train", MINIMAL, f"{key}=gs://bucket/x"], 78, key, "gs")
refused("init.from", ["train", MINIMAL, "init.from=gs://bucket/x"], 78, "init.from", "gs")
refused("diff-to", ["ckpt", "diff", "run", "gs://bucket/x"], 64, "perdure ckpt diff", "gs")
for command in ("reshard", "import", "export"):
    refused(f"{command}-from", ["ckpt", command, "gs://bucket/x", "out"], 64, f"perdure ckpt {command}", "gs")
    refused(f"{command}-to", ["ckpt", command, "run", URL], 64, f"perdure ckpt {command}")
for arguments, what in ((["data", "pack", "text.txt", f"--output={URL}"], "--output"), (["data", "pack", "text.txt", f"--tokenizer={URL}"], "--tokenizer"),
                        (["eval", "run", f"--tokenizer={URL}"], "--tokenizer"), (["report", "run", f"--output={URL}"], "--output"),
                        (["init", "--data=text.txt", f"--dir={URL}"], "--dir"),
                        (["ckpt", "import", "a", "b", f"--config={URL}"], "--config")):
    refused("-".join(arguments[:2]) + what, arguments, 64, what)
os.unlink("bucket.yaml")
made = [n for n in sorted(os.listdir(".")) if n not in before]
report("nothing-made", [f"left {made}"] if made else [], (0, "", ""))
expect("no-scheme", ["plan", MINIMAL, "--world=1", "run.dir=a:/b", "checkpoint.dir=1s3://c"], 0, out=re.compile(""), err=re.compile(""))
finish("schemes")
