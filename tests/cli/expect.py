"""What tests of the command line share: run perdure, compare words and exit code.  SCRIPT PERDURE SOURCE_DIRECTORY [NAME...]"""
import os
import re
import subprocess
import sys
import tempfile

PERDURE, SOURCE = os.path.abspath(sys.argv[1]), sys.argv[2]
ONLY = sys.argv[3:]
failures, ran = [], 0


def perdure(*arguments, environment=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "ARGP_"))}
    env.update(environment or {})
    done = subprocess.run([PERDURE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, timeout=300)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def report(name, problems, result):
    global ran
    ran += 1
    if problems:
        failures.append(name)
        print(f"FAILED {name}: {'; '.join(problems)}\n  exit code {result[0]}\n  stdout: {result[1]!r}\n  stderr: {result[2]!r}")


PLURAL_OF_ONE = re.compile(r"(?<![\w.,])1 (micro-batches|(?:array|block|checkpoint|document|file|finding|head|pair|part|rank|restart|sequence|shard"
                           r"|skip|stage|step|thread|token)s)\b")


# What plan says of a GPU in a build that cannot count one.
COUNTED = re.compile(r"^(perdure: plan: this build has no CUDA and counts .*\n)?$")


def expect(name, arguments, code, out="", err="", environment=None):
    """out and err: the whole text, or a compiled pattern that must be found in it."""
    if ONLY and name not in ONLY:
        return None
    result = perdure(*arguments, environment=environment)
    problems = []
    if result[0] != code:
        problems.append(f"exit code {result[0]} instead of {code}")
    for label, wanted, found in (("stdout", out, result[1]), ("stderr", err, result[2])):
        fits = wanted.search(found) if isinstance(wanted, re.Pattern) else wanted == found
        if not fits:
            problems.append(f"{label} is not {wanted!r}")
    problems += [f'it says "{found[0]}"' for found in [PLURAL_OF_ONE.search(result[1] + result[2])] if found]
    report(name, problems, result)
    return result[1]


def said(text):
    return f"perdure: {text}\n"


ANY = re.compile("")
os.chdir((ROOM := tempfile.TemporaryDirectory(prefix="perdure-cli-")).name)


def write(name, content):
    with open(name, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return name


MINIMAL = write("run.yaml", "run: {dir: run}\ndata: {train: text.txt}\n")


def finish(what):
    print(f"{what}: {ran} checks, {len(failures)} failed")
    sys.exit(1 if failures else 0)
