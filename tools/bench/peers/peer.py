"""What the files of the peers share. Each is a program that prints its rows as JSON: it measures what others do in this process and what
perdure does in one of its own, in turn, on the same bytes, and says beside each row what is unfair.

A file has prepare(room), which returns two functions, theirs and ours; each does its work once and returns {row: seconds}. Ours may note in
room.moved what a row reads and writes: the row then says too what the bare disk needs for that, which nothing can be faster than. What cannot be
imported or built, or breaks, leaves the file's rows out, with the reason (exit code 77); perdure that fails is an error (70)."""
import argparse
import concurrent.futures
import contextlib
import json
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

LEFT_OUT, FAILED = 77, 70
OPTIONS = (("bytes", "512M", "of a state: parameters and both moments in fp32"), ("pairs", 5, "of measurements of each row"),
           ("dir", ".", "where files live meanwhile: a real disk"), ("threads", 1 << len(os.sched_getaffinity(0)).bit_length() - 1, "of both sides"),
           ("preset", "gpt2-124m", "model of the training step: this, byte-1m, or moe with its 2048 tokens"), ("tokens", 512, "of its micro-batch"))


class PerdureFailed(Exception):
    pass


def parser(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("perdure", help="the program, such as build/perdure")
    for name, default, about in OPTIONS:
        p.add_argument(f"--{name}", default=default, type=type(default), help=about)
    return p


def bytes_of(text):
    unit = "KMGT".find(text[-1].upper())
    return int(text) if unit < 0 else int(text[:-1]) << 10 * (unit + 1)


class Room:
    """A directory of its own, gone at the end, and what both sides are asked for."""

    def __init__(self, options):
        self.perdure, self.pairs, self.threads = os.path.abspath(options.perdure), options.pairs, options.threads
        self.preset, self.tokens, self.bytes = options.preset, options.tokens, bytes_of(options.bytes)
        self.path = tempfile.mkdtemp(prefix="perdure-peers-", dir=options.dir)
        self.moved = {}  # {row: bytes read, bytes written}
        self.stack = contextlib.ExitStack()  # what ends with it

    def at(self, name):
        return os.path.join(self.path, name)

    def run(self, *arguments):
        """perdure's answer, from JSON."""
        done = subprocess.run([self.perdure, *map(str, arguments), "--json"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PerdureFailed(f"perdure {' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout)

    def bench(self, name):
        """A bench of files, one pair: it takes long enough."""
        return self.run("bench", name, "--pairs=1", f"--bytes={self.bytes}", f"--dir={self.path}")

    def seconds_of_run(self, *arguments):
        return self.conversion(*arguments)[0]

    def conversion(self, *arguments):
        """Seconds, and the bytes that it read of the source and wrote."""
        os.sync()
        start = time.perf_counter()
        said = self.run(*arguments)
        return time.perf_counter() - start, (said.get("bytes_read"), said.get("bytes_written"))

    def disk_seconds(self):
        """{row: of direct reads and writes alone, with fsync}, at the speed that the disk has now."""
        if not self.moved:
            return {}
        writes, reads = (self.bytes / direct_seconds(self.at("disk"), self.bytes, is_write) for is_write in (True, False))
        return {row: read / reads + written / writes
                for row, (read, written) in self.moved.items()}

    def adam_seconds(self, elements):
        """Of a step of AdamW in memory."""
        said = self.run("bench", "adam", "--pairs=3", f"--threads={self.threads}", f"--elements={elements}")
        return 28 * elements / said["runs"][-1]["adam_bytes_per_second"]


# ---- what theirs is made of ----


def timed(function, *arguments, **named):
    os.sync()  # what came before is not paid here
    start = time.perf_counter()
    function(*arguments, **named)
    return time.perf_counter() - start


def median_of(count, function):
    return statistics.median(timed(function) for _ in range(count))


BLOCK_BYTES, DEPTH = 4 << 20, 8  # of direct transfers


def direct_seconds(path, number, is_write):
    """Of a file's bytes to or from the disk, past the page cache, several at once; written over one that is there, as a save of perdure is."""
    buffers = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(DEPTH)]
    for buffer in buffers:
        buffer.write(os.urandom(BLOCK_BYTES))
    os.sync()
    start = time.perf_counter()
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    if os.fstat(file).st_size < number:
        os.posix_fallocate(file, 0, number)

    def move(lane):
        for at in range(lane * BLOCK_BYTES, number, DEPTH * BLOCK_BYTES):
            (os.pwritev if is_write else os.preadv)(file, [buffers[lane]], at)

    with concurrent.futures.ThreadPoolExecutor(DEPTH) as pool:
        list(pool.map(move, range(DEPTH)))
    if is_write:
        os.fsync(file)
    os.close(file)
    return time.perf_counter() - start


def files_below(path):
    return [path] if os.path.isfile(path) else [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]


def on_files(path, call):
    for name in [*files_below(path), os.path.dirname(path), *([path] if os.path.isdir(path) else [])]:
        file = os.open(name, os.O_RDONLY)
        call(file)
        os.close(file)


def sync(path):
    """As durable as perdure leaves what it has written."""
    on_files(path, os.fsync)


def forget(path):
    """Out of the page cache: perdure reads past it."""
    os.sync()
    on_files(path, lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))


def remember(path):
    """Into the page cache, where a read of perdure leaves nothing."""
    for name in files_below(path):
        with open(name, "rb", buffering=0) as file:
            while file.read(BLOCK_BYTES):
                pass


def remove(path):
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(path)
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def blocks(parameters):
    """Names and shapes of about so many parameters, like those of a GPT-2."""
    width = 256 if parameters < 64 << 20 else 768
    block = {"attn.qkv": (3 * width, width), "attn.out": (width, width), "mlp.up": (4 * width, width), "mlp.down": (width, 4 * width),
             "norm": (width,)}
    each = sum(r * (c[0] if c else 1) for r, *c in block.values())
    count = max(1, parameters // each)
    return {f"h.{i}.{name}": shape for i in range(count) for name, shape in block.items()}


def state(torch, number_bytes, shapes=None):
    """{kind: {name: tensor}}, random."""
    torch.manual_seed(1)
    shapes = shapes or blocks(number_bytes // 12)
    return {kind: {name: torch.randn(shape) for name, shape in shapes.items()} for kind in ("param", "exp_avg", "exp_avg_sq")}


def bytes_in(tensors):
    """Of a state."""
    return sum(t.numel() * t.element_size() for kind in tensors.values() for t in kind.values())


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_ranks(count, *arguments):
    """This file again, once a rank: its rank(...) is called. What rank 0 printed last, from JSON."""
    port = free_port()
    ranks = [subprocess.Popen([sys.executable, sys.argv[0], "--rank", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                                              "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"})
             for rank in range(count)]
    said = [rank.communicate() for rank in ranks]
    for rank, (_, errors) in zip(ranks, said):
        if rank.returncode:
            raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else f"a rank ended with {rank.returncode}")
    return json.loads(said[0][0].strip().splitlines()[-1])


# ---- pairs ----


def measure(room, theirs, ours):
    """[(theirs, ours, the disk)], who goes first changing from pair to pair."""
    found = []
    for pair in range(room.pairs):
        first, second = (ours, theirs) if pair % 2 else (theirs, ours)
        a, b = first(), second()
        found.append((*((b, a) if pair % 2 else (a, b)), room.disk_seconds()))
    return found


def row(peer, name, unfair, found):
    theirs, ours = [pair[0][name] for pair in found], [pair[1][name] for pair in found]
    seconds = {"perdure": ours, "peer": theirs}
    if name in found[0][2]:
        seconds["disk"] = [pair[2][name] for pair in found]
    result = {"peer": peer, "row": name, "pairs": len(found), "unfair": unfair}
    for of, values in seconds.items():
        result.update({f"{of}_seconds": statistics.median(values), f"{of}_low": min(values), f"{of}_high": max(values)})
    ratios = [b / a for a, b in zip(theirs, ours)]
    return {**result, "ratio": result["perdure_seconds"] / result["peer_seconds"], "ratio_low": min(ratios), "ratio_high": max(ratios)}


def main(peer, prepare, unfair, rank=None):
    """unfair: {row: what is}; rank: what start_ranks runs."""
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps(rank(*sys.argv[2:])))
        return
    room = Room(parser(__doc__).parse_args())
    out = os.dup(1)
    os.dup2(2, 1)  # what packages print is not a result
    try:
        theirs, ours = prepare(room)
        found = measure(room, theirs, ours)
        rows = [row(peer, name, about, found) for name, about in unfair.items() if name in found[0][0]]
        os.write(out, json.dumps(rows).encode())
    except PerdureFailed as failure:
        print(failure, file=sys.stderr)
        sys.exit(FAILED)
    except Exception as failure:  # theirs, whatever it is: it names itself
        print(f"\n{type(failure).__name__}: {' '.join(str(failure).split())[:300]}", file=sys.stderr)
        sys.exit(LEFT_OUT)
    finally:
        room.stack.close()
        shutil.rmtree(room.path, ignore_errors=True)
