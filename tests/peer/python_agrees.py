#!/usr/bin/env python3
"""Golden files of other programs: perdure.open reads what the program's own library reads, bit for bit.

usage: python_agrees.py SOURCE

PERDURE_LIBRARY is libperdure.so. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU), safetensors, gguf and h5py. Exit 77: there is none.
"""
import glob
import os
import sys
import tempfile

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
try:
    import gguf
    import h5py
    import numpy
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors import safe_open
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch, safetensors, gguf and h5py", file=sys.stderr)
    sys.exit(77)

SOURCE = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
import perdure  # noqa: E402

GOLDEN = os.path.join(SOURCE, "tests", "golden", "formats")


def agree(path, expected, names=None, convert=None):
    """`expected` is {(kind, name): tensor of torch}; no tensor of the checkpoint but those of `names`, if given, is left over."""
    with perdure.open(path) as checkpoint:
        found = {(kind, name): tensor for kind in ("param", "exp_avg", "exp_avg_sq") for name, tensor in checkpoint.kind(kind).items()}
        assert set(found) == set(expected), f"{path}: {sorted(set(found) ^ set(expected))}"
        for key, want in expected.items():
            got = found[key].torch()
            got = convert(got) if convert else got
            assert got.dtype == want.dtype and got.shape == want.shape, f"{path}: {key}: {got.dtype} {got.shape}, not {want.dtype} {want.shape}"
            bits = [t.contiguous().flatten().view(torch.uint8) for t in (got, want)]
            assert torch.equal(*bits), f"{path}: {key}: other bits"
            if not convert:
                array = found[key].numpy()
                as_float = want.to(torch.float32) if want.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2) else want
                assert array.tobytes() == as_float.contiguous().numpy().tobytes(), f"{path}: {key}: other bits for NumPy"
    return len(expected)


def read_dcp(path):
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def safetensors(path):
    expected = {}
    for file in glob.glob(os.path.join(path, "*.safetensors")):
        with safe_open(file, "pt") as f:
            expected.update({("param", name): f.get_tensor(name) for name in f.keys()})
    return agree(path, expected)


def distributed(path):
    state = read_dcp(path)
    expected = {("param", name): tensor for name, tensor in state["model"].items()}
    expected["param", "rng"] = state["rng"]
    for name, moments in state["optimizer"]["state"].items():
        expected.update({(kind, name): moments[kind] for kind in ("exp_avg", "exp_avg_sq")})
    return agree(path, expected)


def plain(path):
    state, expected = torch.load(path, weights_only=True), {}

    def walk(value, name):
        if isinstance(value, dict):
            for key, below in value.items():
                walk(below, f"{name}.{key}" if name else key)
        elif isinstance(value, torch.Tensor):
            expected["param", name] = value

    walk(state, "")
    return agree(path, expected)


def deepspeed(path, expected_path):
    """What DeepSpeed itself gathered when it saved."""
    expected = {(kind, name): tensor for name, kinds in torch.load(expected_path, weights_only=True).items() for kind, tensor in kinds.items()}
    return agree(path, expected)


def megatron(path):
    """fp32 masters, of which Megatron's model in bf16 is the rounded copy."""
    step = glob.glob(os.path.join(path, "iter_*"))[0]
    with perdure.open(path) as checkpoint:
        kept = set(checkpoint)
        state = read_dcp(step)
        for name in kept:
            want = state[name]
            got = checkpoint[name].torch().to(want.dtype)
            assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), f"{path}: {name}: other bits"
    return len(kept)


def quantized(path):
    count = 0
    with perdure.open(path) as checkpoint:
        tensors = gguf.GGUFReader(path).tensors
        assert set(checkpoint) == {t.name for t in tensors}, f"{path}: {sorted(checkpoint)}"
        for t in tensors:
            want = gguf.quants.dequantize(t.data, t.tensor_type).astype(numpy.float32)
            array = checkpoint[t.name].numpy().astype(numpy.float32)
            assert array.shape == want.shape and array.tobytes() == want.tobytes(), f"{path}: {t.name}: other bits"
            raw = checkpoint[t.name].numpy(raw=True)
            assert raw.tobytes() == t.data.tobytes(), f"{path}: {t.name}: other blocks"
            count += 1
    return count


def llmc(path):
    """A header of 256 integers, then the tensors in their order."""
    with open(path, "rb") as f:
        data = f.read()[1024:]
    with perdure.open(path) as checkpoint:
        raw = b"".join(tensor.numpy(raw=True).tobytes() for tensor in checkpoint.values())
        assert raw == data, f"{path}: other bytes"
        return len(checkpoint)


def complex_numbers(directory):
    """Written by each program, and by perdure, which h5py reads too."""
    single = torch.randn(3, 700, 5, dtype=torch.complex64)
    state, at = {"single": single, "double": single.transpose(0, 1).to(torch.complex128)}, lambda name: os.path.join(directory, name)
    expected = {("param", name): tensor for name, tensor in state.items()}
    torch.save(state, at("plain.pt"))
    save_file({"single": single}, at("one.safetensors"))
    dcp.save(state, checkpoint_id=at("dcp"), no_dist=True)
    for name, compression in (("saved", "none"), ("compressed", "zstd:1")):
        perdure.save(at(name), state, compression=compression)
        (index,) = glob.glob(at(f"{name}/step-*/index.h5"))
        with h5py.File(index) as f:
            for tensor, want in state.items():
                assert f["param"][tensor].dtype == want.numpy().dtype, tensor
                assert compression != "none" or (f["param"][tensor][...] == want.numpy()).all(), tensor
    agree(at("one.safetensors"), {("param", "single"): single})
    return sum(agree(at(name), expected) for name in ("plain.pt", "dcp", "saved", "compressed"))


def main():
    at = lambda *words: os.path.join(GOLDEN, *words)  # noqa: E731
    counts = {}
    for name in ("llama", "qwen3", "gpt2"):
        counts[name] = safetensors(at("transformers", name))
    counts["dcp"] = distributed(at("dcp"))
    counts["torch"] = plain(at("plain.pt"))
    for stage in (1, 2, 3):
        counts[f"zero{stage}"] = deepspeed(at("deepspeed", f"zero{stage}"), at("deepspeed", f"expected-{stage}.pt"))
    counts["universal"] = deepspeed(at("deepspeed", "universal3"), at("deepspeed", "expected-3.pt"))
    for name in ("tp2_pp2", "fully_reshardable", "dp_reshardable"):
        counts[name] = megatron(at("megatron", name))
    counts["gguf"] = quantized(at("golden.gguf"))
    with tempfile.TemporaryDirectory(prefix="perdure-python-") as directory:
        counts["complex"] = complex_numbers(directory)
    counts["llmc"] = llmc(at("llmc", "model_00000003.bin"))
    print("ok, tensors: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


main()
