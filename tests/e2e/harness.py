"""Runs the real tool in a temporary directory, as a user would, and reads what it leaves behind."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time


class Failure(Exception):
    pass


class Workspace:
    """A directory of its own for every run; gone at the end unless PERDURE_TEST_KEEP is set."""

    def __init__(self, perdure):
        self.perdure = os.path.abspath(perdure)
        self.path = tempfile.mkdtemp(prefix="perdure-e2e-")
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if not os.environ.get("PERDURE_TEST_KEEP"):
            shutil.rmtree(self.path, ignore_errors=True)

    def directory(self, name="run"):
        self.count += 1
        return os.path.join(self.path, f"{name}-{self.count}")

    def file(self, name, text):
        path = os.path.join(self.path, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def command(self, arguments, environment=None, timeout=600):
        env = dict(os.environ, PERDURE_PROGRESS="off")
        env.update(environment or {})
        return subprocess.run([self.perdure, *arguments], env=env, capture_output=True, text=True, timeout=timeout, check=False)

    def train(self, config, directory, overrides=(), environment=None, expect=0, timeout=600):
        result = self.command(["train", config, f"run.dir={directory}", *overrides], environment, timeout)
        if result.returncode != expect:
            raise Failure(f"perdure train {' '.join(overrides)} with {environment}: exit {result.returncode}, expected {expect}\n"
                          f"{result.stdout}{result.stderr}")
        return result

    def state_digest(self, directory, place="checkpoints"):
        """Digest of the newest checkpoint: one number for parameters and both moments, whatever the layout."""
        result = self.command(["ckpt", "stats", os.path.join(directory, place), "--json"])
        if result.returncode != 0:
            raise Failure(f"perdure ckpt stats {directory}: exit {result.returncode}\n{result.stderr}")
        return json.loads(result.stdout)["state_digest"]


def wait_until_gone(directory):
    """Processes that name the directory, or what lies in it, on their command lines."""
    for _ in range(2000):
        found = subprocess.run(["pgrep", "-f", f"{directory}(/| |$)"], capture_output=True, text=True, check=False).stdout
        if not found.strip():
            return
        time.sleep(0.02)
    raise Failure(f"processes of {directory} outlive their killed launcher: {found.split()}")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def losses(directory):
    """Loss bits by step; a step that was computed more than once must have had the same bits every time."""
    found = {}
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            before = found.setdefault(row["step"], row["loss_bits"])
            if before != row["loss_bits"]:
                raise Failure(f"{directory}: step {row['step']} had loss bits {before} and later {row['loss_bits']}")
    return found


def text_of(length):
    """Text with structure to learn, the same on every machine."""
    words = ["in", "the", "beginning", "was", "word", "and", "light", "upon", "deep", "waters", "day", "night"]
    state, out, size = 12345, [], 0
    while size < length:
        state = (state * 1103515245 + 12345) % 2**31
        word = words[(state >> 16) % len(words)]
        out.append(word)
        size += len(word) + 1
    return " ".join(out)[:length]


def scale():
    return int(os.environ.get("PERDURE_TEST_SCALE", "1"))


def main(body):
    if len(sys.argv) < 2:
        print(f"usage: {sys.argv[0]} PERDURE [ARGUMENT ...]", file=sys.stderr)
        sys.exit(64)
    try:
        with Workspace(sys.argv[1]) as workspace:
            body(workspace, sys.argv[2:])
    except Failure as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        sys.exit(1)
