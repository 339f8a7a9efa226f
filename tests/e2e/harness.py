"""Runs the real tool in a temporary directory, as a user would, and reads what it leaves behind."""
import errno
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("PERDURE_GRACE_S", "600")  # a busy machine is not a batch system that takes it away

# Ignored under nohup, or where a shell starts this in the background, and then by every run too.
for ignored in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)

# Nothing here takes a hundredth of it: who waits so long waits for something that does not come. Slow machines are no failure.
PATIENCE = 600


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

    def command(self, arguments, environment=None, timeout=PATIENCE):
        env = dict(os.environ, PERDURE_PROGRESS="off")
        env.update(environment or {})
        return subprocess.run([self.perdure, *arguments], env=env, capture_output=True, text=True, timeout=timeout, check=False)

    def train(self, config, directory, overrides=(), environment=None, expect=0, timeout=PATIENCE):
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


class Disk:
    """A small ext4 in a file; None is mounted where that is refused, or where nothing makes one."""

    def __init__(self, workspace, megabytes):
        self.image = workspace.directory("image")
        self.path = workspace.directory("disk")
        os.makedirs(self.path)
        with open(self.image, "wb") as f:
            f.truncate(megabytes << 20)
        is_made = shutil.which("mkfs.ext4") and not subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", self.image],
                                                                   check=False).returncode
        self.is_mounted = is_made and not subprocess.run(["mount", "-o", "loop", self.image, self.path], capture_output=True,
                                                          check=False).returncode

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.is_mounted:
            subprocess.run(["umount", "-l", self.path], check=False)

    def fill(self, left_bytes):
        """0: to the last block."""
        space = os.statvfs(self.path)
        with open(os.path.join(self.path, "ballast"), "wb", buffering=0) as f:
            os.posix_fallocate(f.fileno(), 0, space.f_bavail * space.f_frsize - (left_bytes or 1 << 20))
            f.seek(0, os.SEEK_END)
            try:
                while not left_bytes:
                    f.write(bytes(space.f_frsize))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self):
        os.unlink(os.path.join(self.path, "ballast"))


def wait_for(condition, what, interval=0.02):
    """What the condition returns, once it is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failure(f"{what}: not within {PATIENCE} s")
        time.sleep(interval)


def wait_for_signals(process):
    """Until main has blocked the signals that ask to leave. Whoever starts a process blocks them all for a moment, SIGSEGV too."""
    def waits():
        found = re.search(r"SigBlk:\s*([0-9a-f]+)", read(f"/proc/{process.pid}/status"))
        mask = int(found[1], 16) if found else 0
        return process.poll() is not None or mask >> (signal.SIGTERM - 1) & 1 and not mask >> (signal.SIGSEGV - 1) & 1
    wait_for(waits, "signals wait", 0.0005)


def is_gone(directory):
    """No process names the directory, or what lies in it, on its command line."""
    return not subprocess.run(["pgrep", "-f", f"{directory}(/| |$)"], capture_output=True, text=True, check=False).stdout.strip()


def wait_until_gone(directory):
    wait_for(lambda: is_gone(directory), f"processes of {directory} end after their killed launcher", 0.1)


def processes():
    """The state and the parent of every process. Asked many times a second while ranks start: read as bytes, without a file object."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:
            continue  # it left while we looked
        try:
            words = os.read(stat, 4096).rpartition(b")")[2].split(None, 2)
            found[int(name)] = words[0].decode(), int(words[1])
        except (OSError, IndexError):
            pass
        finally:
            os.close(stat)
    return found


def stopped(launcher):
    """Workers of a launcher that are stopped, as by PERDURE_FAULT=place:n:stop: they can be looked at in peace, and be killed
    before they end, however slow this machine is."""
    seen = processes()

    def is_below(pid):
        while pid in seen:
            pid = seen[pid][1]
            if pid == launcher.pid:
                return True
        return False

    return [pid for pid, (state, _) in seen.items() if state == "T" and is_below(pid)]


def wait_stopped(launcher):
    """One of them."""

    def look():
        found = stopped(launcher)
        if not found and launcher.poll() is not None:
            raise Failure(f"the launch ended with {launcher.returncode} before a worker stopped")
        return found

    return wait_for(look, "a worker stops")[0]


def look_at_stops(launcher, look):
    """Calls look(pid) for every stop of every worker, and lets it continue, until the launcher has ended."""
    while launcher.poll() is None:
        for pid in stopped(launcher):
            look(pid)
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def boxes_of(shard):
    """How many a shard holds. Its last page says where its table begins (ckpt/FORMAT.md)."""
    with open(shard, "rb") as f:
        f.seek(-4096 + 24, os.SEEK_END)
        f.seek(struct.unpack("<Q", f.read(8))[0] + 80)
        return struct.unpack("<Q", f.read(8))[0]


def flip(path, at, bit):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << bit]))


def steps_done(directory):
    """Lines of metrics, of a run that may be writing the next one."""
    path = os.path.join(directory, "metrics.jsonl")
    return read(path).count("\n") if os.path.exists(path) else 0


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


def share():
    """tools/test.sh derives it from the commit, so that a commit has the same tests every time."""
    return int(os.environ.get("PERDURE_TEST_SHARE", "0"))


def seed():
    """Of what a test draws at random; PERDURE_TEST_SEED replays another."""
    found = int(os.environ.get("PERDURE_TEST_SEED", share()))
    print(f"PERDURE_TEST_SEED={found}", flush=True)
    return found


def share_of(cases, shares, number=lambda place, case: place):
    """One share of so many: a case is of the share that its number has as remainder. With PERDURE_TEST_SCALE of 4 or more, all."""
    cases = list(cases)
    if scale() >= 4:
        return cases
    found = [case for place, case in enumerate(cases) if (number(place, case) - share()) % shares == 0]
    print(f"PERDURE_TEST_SHARE={share()}: {len(found)} of {len(cases)} cases, share {share() % shares + 1} of {shares}", flush=True)
    return found


def main(body):
    if len(sys.argv) < 2:
        print(f"usage: {sys.argv[0]} PERDURE [ARGUMENT ...]", file=sys.stderr)
        sys.exit(64)
    try:
        with Workspace(sys.argv[1]) as workspace:
            body(workspace, sys.argv[2:])
    except Failure as failure:
        why, *details = str(failure).split("\n", 1)
        print(*details, f"FAILED: {why}", sep="\n", file=sys.stderr)  # why comes last: of a long output little else is kept
        sys.exit(1)
