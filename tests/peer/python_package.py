#!/usr/bin/env python3
"""The Python package on checkpoints of perdure and on a file of 10 GB that is sparse: what is read, what is verified, what is raised.

usage: python_package.py SOURCE PERDURE

Needs NumPy; PERDURE_LIBRARY is libperdure.so.
"""
import contextlib
import gc
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy

SOURCE, PERDURE = (os.path.abspath(path) for path in sys.argv[1:3])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
import perdure  # noqa: E402

HIDDEN, VOCAB = 64, 4096
EMBED = "model.embed_tokens.weight"
BLOCK = 65536


def write_safetensors(path, shapes, data=None):
    """`data` maps names to arrays of fp32; without it the file is sparse."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in shapes if data else ():
            f.write(data[name].tobytes())
        f.truncate(8 + len(text) + at)
    return 8 + len(text)


def make_model(directory):
    """A model in safetensors, and the same as a checkpoint of perdure in two shards."""
    layer, half = "model.layers.0.", HIDDEN // 2
    shapes = {EMBED: (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), layer + "input_layernorm.weight": (HIDDEN,),
              layer + "post_attention_layernorm.weight": (HIDDEN,), layer + "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
              layer + "self_attn.k_proj.weight": (half, HIDDEN), layer + "self_attn.v_proj.weight": (half, HIDDEN),
              layer + "self_attn.o_proj.weight": (HIDDEN, HIDDEN), layer + "mlp.gate_proj.weight": (112, HIDDEN),
              layer + "mlp.up_proj.weight": (112, HIDDEN), layer + "mlp.down_proj.weight": (HIDDEN, 112)}
    draw = numpy.random.default_rng(7)
    data = {name: draw.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()}
    theirs, ours = os.path.join(directory, "theirs"), os.path.join(directory, "ours")
    os.mkdir(theirs)
    write_safetensors(os.path.join(theirs, "model.safetensors"), shapes, data)
    with open(os.path.join(theirs, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "vocab_size": VOCAB, "intermediate_size": 112,
                   "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
                   "hidden_act": "silu", "tie_word_embeddings": True, "rope_theta": 10000.0}, f)
    subprocess.run([PERDURE, "ckpt", "import", theirs, ours, "--layout=dp=2"], check=True, capture_output=True)
    return theirs, ours, data


@contextlib.contextmanager
def raises(kind, *words):
    try:
        yield
    except kind as e:
        assert all(word in str(e) for word in words), e
        return
    raise AssertionError(f"{kind} was not raised")


def check_mapping(theirs, ours, data):
    for path in (theirs, ours):
        with perdure.open(path) as c:
            assert set(c) == set(data) and len(c) == len(data) and c.format == ("perdure" if path == ours else "safetensors"), c
            for name, want in data.items():
                assert c[name].shape == want.shape and c[name].nbytes == want.nbytes and c[name].dtype == "fp32"
                assert numpy.array_equal(c[name].numpy(), want) and numpy.array_equal(numpy.asarray(c[name]), want)
            for name, want in perdure.load(path).items():
                assert numpy.array_equal(want, data[name])
            assert list(c.texts) == ["config.yaml" if path == ours else "config.json"] and str(HIDDEN) in next(iter(c.texts.values()))
            assert "nothing" not in c and 3 not in c
            with raises(KeyError):
                c["nothing"]
        with raises(ValueError, "closed"):
            c[EMBED].numpy()
    with perdure.open(ours) as c:
        assert c["exp_avg/" + EMBED] is c.kind("exp_avg")[EMBED] and c[EMBED].has_moments and not c["exp_avg/" + EMBED].numpy().any()
        again = pickle.loads(pickle.dumps(c))
        assert again is not c and numpy.array_equal(again[EMBED][5].numpy(), data[EMBED][5])
    entry, = perdure.list_checkpoints(ours)
    assert entry.step == 0 and entry.shards == 2 and entry.path.startswith(ours), entry
    assert perdure.prune(ours, 1) == 0


def check_slices(ours, data):
    """Lazy parts equal NumPy's, and what they read is counted."""
    want = data[EMBED]
    with perdure.open(ours) as c:
        tensor = c[EMBED]
        for index in (3, -1, slice(1, 2), slice(5, 1), (slice(None), 3), (7, 9), (slice(10, 90, 7), slice(None, None, 5)), ..., (..., 1), (2, ...),
                      slice(-10, None), (slice(0, 4096, 4095), slice(60, 100))):
            got = tensor[index]
            assert got.shape == want[index].shape and numpy.array_equal(got.numpy(), want[index]), index
        assert numpy.array_equal(tensor[100:200][::3][4:, 5].numpy(), want[100:200][::3][4:, 5])
        assert len(tensor[4:9]) == 5 and tensor[1].ndim == 1 and tensor[1, 2].size == 1
        for bad in (VOCAB, (0, 0, 0), "x", None, slice(None, None, -1), (..., ...), True, numpy.ones(VOCAB, bool), numpy.arange(3)):
            with raises((IndexError, TypeError)):
                tensor[bad]
        with raises(IndexError, f"{EMBED}: index {VOCAB} of dimension 0, which has {VOCAB}"):
            tensor[VOCAB]
        rows = BLOCK // (4 * HIDDEN)
        for index, blocks in ((slice(0, 1), 1), (slice(rows - 1, rows + 1), 2), (slice(3 * rows, 5 * rows), 2)):
            before = c.bytes_read
            tensor[index].numpy()
            assert c.bytes_read - before == blocks * BLOCK, (index, c.bytes_read - before)


def check_sparse(directory):
    """10 GB of which a slice takes 40 KB."""
    path, rows = os.path.join(directory, "sparse.safetensors"), 2_500_000
    write_safetensors(path, {"big": (rows, 1000)})
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) - 4000)
        f.write(numpy.arange(1000, dtype=numpy.float32).tobytes())
    with perdure.open(path) as c:
        assert c.nbytes == 10_000_000_000
        last = c["big"][rows - 10:].numpy()
        assert not last[:9].any() and numpy.array_equal(last[9], numpy.arange(1000)) and c.bytes_read <= 2 * BLOCK, c.bytes_read
        assert c["big"][::rows - 1, 999][1:].shape == (1,)
        count = c.bytes_read
    os.unlink(path)
    print(f"a slice of 40,000 bytes of 10 GB read {count} bytes")


def check_damage(ours, data):
    shard = next(os.path.join(root, name) for root, _, names in os.walk(ours) for name in names if name == "shard-00001.h5")
    with perdure.open(ours) as c:
        c.verify()
    with open(shard, "r+b") as f:
        rows = VOCAB // 2 + 700  # of the second shard's half: block 700 * 256 / 65536
        at = f.read().index(data[EMBED][rows].tobytes())
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes([byte[0] ^ 1]))
    with perdure.open(ours) as c:
        for read in (c[EMBED].numpy, c[EMBED][rows, 3].numpy, c.load):
            try:
                read()
            except perdure.CorruptError as e:
                assert (e.file.endswith("shard-00001.h5"), e.tensor, e.block) == (True, EMBED, 2), (e, e.file, e.tensor, e.block)
            else:
                raise AssertionError("damage was not found")
        assert numpy.array_equal(c[EMBED][:rows - 256].numpy(), data[EMBED][:rows - 256])
        try:
            c.verify()
        except perdure.CorruptError as e:
            found, = e.damage
            assert (found.tensor, found.kind, found.block, found.is_proven) == (EMBED, "param", 2, True), found
            assert found.file.endswith("shard-00001.h5") and e.file == found.file and e.tensor == EMBED and e.block == 2, found
        else:
            raise AssertionError("damage was not found")
    with open(shard, "r+b") as f:
        f.seek(at)
        f.write(byte)


def check_errors(theirs, directory):
    with raises(perdure.NotFoundError, "does not exist"):
        perdure.open(os.path.join(directory, "nothing"))
    with raises(FileNotFoundError):
        perdure.open(os.path.join(directory, "nothing"))
    with raises(perdure.InvalidError):
        perdure.open(__file__)
    with perdure.open(theirs) as c, raises(perdure.UnsupportedError, "without checksums"):
        c.verify()
    with raises(perdure.Error, "step"):
        perdure.open(theirs, step=12)
    with raises(ValueError, "framework"):
        perdure.load(theirs, framework="jax")
    with raises(TypeError, EMBED):
        perdure.load(theirs, EMBED)
    with raises(ValueError, "zero byte"):
        perdure.open(theirs + "\0")
    with raises(perdure.NotFoundError, "the empty path"):
        perdure.open("")
    for call in (lambda: perdure.open(theirs, step=-1), lambda: perdure.prune(theirs, 1 << 32), lambda: perdure.Writer(directory, keep_last=-1)):
        with raises(perdure.InvalidError, "give 0 to"):
            call()


def check_threads(ours, data):
    """Ten threads read one checkpoint, and another closes it under them: they end with an error, or with what they asked for."""
    failures = []
    c = perdure.open(ours)

    def read(seed):
        draw = numpy.random.default_rng(seed)
        try:
            for _ in range(200):
                name = sorted(data)[draw.integers(len(data))]
                first, last = sorted(draw.integers(0, data[name].shape[0], 2))
                if not numpy.array_equal(c[name][first:last].numpy(), data[name][first:last]):
                    failures.append((seed, name, first, last))
        except ValueError as e:
            if "closed" not in str(e):
                failures.append(e)

    for is_closed in (False, True):
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(10)]
        for thread in threads:
            thread.start()
        if is_closed:
            c.close()
        for thread in threads:
            thread.join()
    assert not failures, failures[:3]


def check_interrupts(ours, directory):
    """What a progress function raises, and an interrupt, ends the call and comes out of it."""
    class Enough(Exception):
        pass

    def raise_enough(done, total):
        raise Enough

    def interrupt(done, total):
        if not sent:
            sent.append(done)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

    with perdure.open(ours) as c:
        for call in (c.verify, lambda progress: c[EMBED].numpy(progress=progress)):
            with raises(Enough):
                call(progress=raise_enough)
            sent = []
            with raises(KeyboardInterrupt):
                call(progress=interrupt)
            with raises(perdure.StoppedError):
                call(progress=lambda done, total: True)
            seen = []
            call(progress=lambda done, total: seen.append((done, total)))
            assert seen and all(done <= total for done, total in seen), seen
    slow = {"slow": numpy.random.default_rng(1).random(3 << 20)}
    for seconds in (0.1, 0.15, 0.2):  # in the library's code, not in Python's
        path = os.path.join(directory, f"interrupted {seconds}")
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with raises(KeyboardInterrupt):
            perdure.save(path, slow, 1, compression="zstd:19")
            timer.join()
            time.sleep(1)
        assert not perdure.list_checkpoints(path)


def check_fork(ours, directory):
    with perdure.open(ours) as c, perdure.Writer(os.path.join(directory, "forked")) as writer:
        c[EMBED].numpy()
        pid = os.fork()
        if pid == 0:
            try:
                with raises(perdure.InvalidError, "fork"):
                    c[EMBED].numpy()
                with raises(perdure.InvalidError, "fork"):
                    writer.save({"w": numpy.zeros(1)}, 1)
                again = pickle.loads(pickle.dumps(c))
                again[EMBED].numpy()
                del c, again
                gc.collect()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        c[EMBED].numpy()


def check_save(directory):
    """What is saved comes back, under its name and of its type; what cannot be saved is refused, and leaves no trace."""
    path = os.path.join(directory, "saved")
    draw = numpy.random.default_rng(1)
    tensors = {"w": draw.standard_normal((300, 200), dtype=numpy.float32), "exp_avg/w": numpy.ones((300, 200), "f4"),
               "exp_avg_sq/w": numpy.zeros((300, 200), "f4"), "a name/of [any] % text": numpy.arange(7), "scalar": numpy.float64(3.5),
               "object": b"not\0a number", "flags": numpy.array([True, False]), "big-endian": numpy.arange(5, dtype=">i4"),
               "transposed": draw.standard_normal((6, 4)).T, "deep": draw.standard_normal((2, 3, 2, 3, 2, 3, 2, 3)), "empty": numpy.zeros((0, 3), "u2"),
               "also empty": numpy.zeros((2, 3, 0, 1, 1)), "no bytes": b""}
    tensors.update({str(numpy.dtype(code)): numpy.arange(3).astype(code) for code in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "f2")})
    tensors.update({code: draw.standard_normal((2, 3, 70, 50)).astype(code)[:, 1] + 1j for code in ("complex64", "complex128")})
    perdure.save(path, tensors, 7, metadata="of the test")
    with perdure.open(path) as c:
        c.verify()
        assert numpy.array_equal(c["complex64"][1, 2:9].numpy(), tensors["complex64"][1, 2:9])
        with raises(perdure.InvalidError, "complex64 is complex"):
            c.read([perdure.checkpoint.Read(c["complex64"], as_=0)])
        assert c.step == 7 and c.texts["metadata"] == "of the test" and c["w"].has_moments and not c["transposed"].has_moments
        assert len(c) + 2 == len(tensors) and c["object"].is_bytes and c["object"].numpy().tobytes() == tensors["object"]
        assert numpy.array_equal(c["deep"][1, :, 1, 0, 1, 2:, ..., 1].numpy(), tensors["deep"][1, :, 1, 0, 1, 2:, ..., 1])
        assert c["no bytes"].is_bytes and c["no bytes"].numpy().tobytes() == b""
        for name, want in tensors.items():
            if name not in ("object", "no bytes"):
                got, want = c[name].numpy(), numpy.asarray(want)
                assert got.shape == want.shape and got.dtype == want.dtype.newbyteorder("=") and numpy.array_equal(got, want), name
    for bad, words in (({"w": numpy.zeros(3, "c8"), "exp_avg/w": numpy.zeros(3, "S1")}, ("S1",)), ({"w": numpy.array([object()])}, ("object",)),
                       ({"w": numpy.zeros((1,) * 9)}, ("9 dimensions", "at most 8")), ({"n" * 200: numpy.zeros(1)}, ("159",)),
                       ({"w": {"inner": numpy.zeros(1)}}, ("w is a dict",)), ({"w": "text"}, ("w is a str",)), ({}, ("nothing to save",))):
        with raises(perdure.InvalidError, *words):
            perdure.save(path, bad, 8)
    for kind, name, step, words in ((TypeError, 5, 8, "give a str"), (ValueError, "n\0n", 8, "zero byte"), (ValueError, "n\udc80", 8, "at 1 is half a character"),
                                    (perdure.InvalidError, "n", -1, "step is -1"),
                                    (perdure.InvalidError, "n", 1 << 64, "give 0 to")):
        with raises(kind, words):
            perdure.save(path, {name: numpy.zeros(1)}, step)
    with raises(RuntimeError, "enough"):
        perdure.save(path, tensors, 8, progress=lambda done, total: (_ for _ in ()).throw(RuntimeError("enough")))
    large = {"large": numpy.random.default_rng(1).random((10, 1 << 19)), "odd": numpy.ones((9 << 20) + 1, "u1")}
    for compression in ("none", "zstd:1"):
        seen = []
        with raises(perdure.StoppedError):  # in the middle, without a trace
            perdure.save(path, large, 8, compression=compression, progress=lambda done, total, seen=seen: seen.append(done) or done > 16 << 20)
        assert len(seen) > 2 and seen == sorted(seen) and seen[-1] < 32 << 20, seen
        assert [entry.step for entry in perdure.list_checkpoints(path)] == [7] and not [n for n in os.listdir(path) if n.endswith(".tmp")]
    with perdure.Writer(path, keep_last=2) as writer:
        with raises(perdure.BusyError):
            perdure.save(path, tensors, 8)
        for step in (8, 9):
            writer.save([perdure.Piece("w", tensors["w"])], step)
        with raises(perdure.ExistsError):
            writer.save([perdure.Piece("w", tensors["w"])], 9)
        with raises(perdure.InvalidError, "w"):
            writer.save([perdure.Piece("w", tensors["w"], start=(0, 0), shape=(400, 200))], 10)  # a gap
        with raises(perdure.InvalidError, "w, param: rank 0 gives the same part of it twice"):
            writer.save([perdure.Piece("w", tensors["w"])] * 2, 10)
    with raises(ValueError, "closed"):
        writer.save([], 10)
    assert [entry.step for entry in perdure.list_checkpoints(path)] == [9, 8]
    with perdure.Writer(path) as writer:
        writer.save({**large, "w": tensors["w"]}, 10, progress=lambda done, total: writer.close())
    with perdure.Writer(path), perdure.open(path) as c:
        assert c.step == 10 and numpy.array_equal(c["w"].numpy(), tensors["w"])
    os.close(os.open(os.path.join(directory, "file"), os.O_CREAT | os.O_WRONLY))
    for kind, below, words in ((perdure.InvalidError, "file", "is not a directory"), (perdure.InvalidError, "file/below", "not a directory"),
                               (perdure.NotFoundError, "missing/below", "mkdir -p")):
        with raises(kind, words):
            perdure.save(os.path.join(directory, below), large)


def check_convert(ours, data, directory):
    """Into other formats and back: the same values; a conversion that is stopped leaves nothing."""
    warnings.simplefilter("ignore")
    for format, options in (("safetensors", {}), ("dcp", {}), ("safetensors", {"dtype": "bf16"}), ("perdure", {"layout": "dp=3", "compression": "zstd:1"})):
        path = os.path.join(directory, f"converted-{format}-{len(options)}")
        perdure.convert(ours, path, format=format, **options)
        with perdure.open(path) as c:
            assert c.format == format and set(c) >= set(data), c
            for name, want in data.items():
                got = c[name].numpy()
                assert numpy.array_equal(got, want) if not options.get("dtype") else numpy.allclose(got, want, rtol=1 / 128), (path, name)
                if options.get("dtype"):
                    assert c[name].dtype == "bf16" and c[name].numpy(raw=True).dtype == numpy.uint16
                    assert numpy.array_equal(c[name].numpy(raw=True).astype(numpy.uint32) << 16, got.view(numpy.uint32))
    path = os.path.join(directory, "never")
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        perdure.convert(ours, path, format="safetensors")
    assert any("moments" in str(note.message) for note in noted), noted
    shutil.rmtree(path)
    with raises(perdure.StoppedError):
        perdure.convert(ours, path, format="safetensors", progress=lambda done, total: True)
    with raises(perdure.InvalidError, "format"):
        perdure.convert(ours, path, format="pickle")
    assert not os.path.exists(path)
    run = os.path.join(directory, "experts")
    subprocess.run([PERDURE, "train", "/dev/null", f"data.train={__file__}", f"run.dir={run}", "run.steps=1", "model.preset=mixtral-1m"],
                   check=True, capture_output=True)
    with perdure.open(run) as c:
        gates = sorted(name for name in c if name.startswith("model.layers.0.") and name.endswith("w1.weight"))
        stacked = numpy.stack([c[name].numpy() for name in gates])
    perdure.convert(run, path, format="safetensors", experts="fused")
    with perdure.open(path) as c:
        assert len(gates) > 1 and numpy.array_equal(c["model.layers.0.mlp.experts.gate_up_proj"][:, :stacked.shape[1]].numpy(), stacked), list(c)
    for format, experts, words in (("gguf", "fused", "has one form"), ("safetensors", "joined", "separate or fused")):
        with raises(perdure.InvalidError, words):
            perdure.convert(run, path + format, format=format, experts=experts)


class Barrel:
    """Four ranks as threads."""

    def __init__(self, size):
        self.size, self.parts, self.barrier = size, [b""] * size, threading.Barrier(size, timeout=60)

    def exchange(self, rank, data):
        self.parts[rank] = data
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


class Rank:
    def __init__(self, barrel, rank, dies_at=None):
        self.barrel, self.rank, self.size, self.calls, self.dies_at = barrel, rank, barrel.size, 0, dies_at

    def _count(self):
        self.calls += 1
        if self.calls == self.dies_at:
            self.barrel.barrier.abort()
            raise ConnectionError("the test's")

    def gather(self, root, data):
        self._count()
        parts = self.barrel.exchange(self.rank, data)
        return parts if self.rank == root else None

    def broadcast(self, root, data):
        self._count()
        return self.barrel.exchange(self.rank, data)[root]


def check_group(directory):
    """Ranks save one checkpoint together. One that dies ends the save on all, with what its group raised."""
    path, whole, outcomes = os.path.join(directory, "together"), numpy.arange(4 * 5 * 6, dtype="f4").reshape(20, 6), {}

    def save(rank, step):
        try:
            with perdure.Writer(path, rank) as writer:
                r = rank.rank
                own = [perdure.Piece(f"own {r}", numpy.full(r + 1, r))] if r != 2 else []
                writer.save([perdure.Piece("w", whole[5 * r:5 * r + 5], start=(5 * r, 0), shape=whole.shape), *own], step)
            outcomes[r] = None
        except Exception as e:
            outcomes[rank.rank] = e

    for step, dies_at in ((1, None), (2, 3)):
        barrel = Barrel(4)
        threads = [threading.Thread(target=save, args=(Rank(barrel, rank, dies_at if rank == 1 else None), step)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not dies_at:
            assert not any(outcomes.values()), outcomes
    assert all(isinstance(e, perdure.PeerLostError) for e in outcomes.values()) and isinstance(outcomes[1].__cause__, ConnectionError), outcomes
    with perdure.open(path) as c:
        c.verify()
        assert c.step == 1 and numpy.array_equal(c["w"].numpy(), whole) and set(c) == {"w", "own 0", "own 1", "own 3"}
        assert perdure.list_checkpoints(path)[0].shards == 4
    short = Rank(Barrel(2), 0)
    short.gather = lambda root, data: [data, data[:-1]]
    short.broadcast = lambda root, data: data[:-1]
    with raises(perdure.PeerLostError), perdure.Writer(path + " shortly", short):
        pass


def check_readme(directory):
    """The example with NumPy of README.md, word for word."""
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
        block = f.read().split("```python\n")[1].split("```")[0]
    here = os.getcwd()
    os.chdir(directory)
    exec(compile(block, "README.md", "exec"), {})
    os.chdir(here)


def resident():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_leaks(theirs, ours):
    def go(path):
        with perdure.open(path) as c:
            c[EMBED][:300].numpy()
        with contextlib.suppress(perdure.NotFoundError):
            perdure.open(path + "/nothing")

    for path in (theirs, ours):
        for _ in range(300):
            go(path)
        gc.collect()
        files, grown = len(os.listdir("/proc/self/fd")), []
        for _ in range(5):
            memory = resident()
            for _ in range(200):
                go(path)
            gc.collect()
            grown.append(resident() - memory)
        assert len(os.listdir("/proc/self/fd")) == files, f"{len(os.listdir('/proc/self/fd'))} descriptors, and {files} before"
        # Threads that take turns at malloc's arenas enlarge one now and then; a leak enlarges every round.
        assert min(grown) < 64 << 10, f"{path}: each round of 200 opens grew, by {grown} bytes"


def main():
    with tempfile.TemporaryDirectory(prefix="perdure-python-") as directory:
        theirs, ours, data = make_model(directory)
        check_mapping(theirs, ours, data)
        check_slices(ours, data)
        check_sparse(directory)
        check_damage(ours, data)
        check_errors(theirs, directory)
        check_interrupts(ours, directory)
        check_fork(ours, directory)
        check_threads(ours, data)
        check_save(directory)
        check_readme(directory)
        check_group(directory)
        check_convert(ours, data, directory)
        check_leaks(theirs, ours)
    print("ok")


main()
