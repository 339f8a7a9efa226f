#!/usr/bin/env python3
"""Mixtures of experts in every format, in and out: the same bits come back, what was there is counted, and a file with too few, too many
or other experts is refused by name.  experts.py PERDURE SOURCE [NAME...]"""
import glob
import io
import json
import os
import re
import shutil
import struct
import zipfile

from expect import ANY, MINIMAL, expect, finish, perdure, report, said, write
from torch_file import Pickler, Storage, Tensor, torch_names

EXPERTS, LAYERS, HIDDEN, FFN = 4, 3, 32, 24
SIZES = ["batch.context=32", "batch.sequences=2", "batch.micro_batch=2", "run.steps=1", "checkpoint.every=1", "layout.ranks=1",
         "layout.threads=1", f"model.layers={LAYERS}", f"model.hidden={HIDDEN}", "model.heads=2", "model.kv_heads=1", "model.head_size=16",
         f"model.ffn={FFN}", f"model.expert_ffn={FFN}", f"model.experts={EXPERTS}", "model.experts_per_token=2", "model.context=32"]
FAMILIES = {"mixtral": [], "qwen3-moe": [], "olmoe": ["model.kv_heads=2"], "glm4-moe": ["model.dense_blocks=1", "model.router_groups=2"]}
FORMATS = {"mixtral": ("dcp", "universal", "megatron", "gguf"), "qwen3-moe": ("dcp", "torchtitan", "universal", "megatron", "gguf"),
           "olmoe": ("dcp", "universal", "gguf"), "glm4-moe": ("dcp", "torchtitan", "universal", "megatron", "gguf")}


def read(directory):
    """{name: (dtype, shape, bytes)} of one safetensors file."""
    data = open(f"{directory}/model.safetensors", "rb").read()
    (length,) = struct.unpack_from("<Q", data)
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for name, t in json.loads(data[8:8 + length]).items() if name != "__metadata__"}


def save(directory, like, tensors, **config):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    os.makedirs(directory, exist_ok=True)
    write(f"{directory}/model.safetensors", struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
    write(f"{directory}/config.json", json.dumps({**json.load(open(f"{like}/config.json")), **config}))


def same(name, first, second):
    report(name, [] if read(first) == read(second) else ["other tensors"], (0, first, second))


def counted(name, text, **sides):
    found = json.loads(text)["experts"] if text else {}
    wrong = {key: found.get(key) for key, value in sides.items() if found.get(key) != value}
    report(name, [f"counts {wrong}"] if wrong else [], (0, text, ""))


def convert(name, command, source, target, *options):
    return expect(name, ["ckpt", command, source, target, *options, "--json"], 0, ANY, ANY)


write("text.txt", b"In the beginning was the word. " * 400)
for family, options in FAMILIES.items():
    result = perdure("train", MINIMAL, f"model.preset={family}-1m", *SIZES, *options, f"run.dir={family}")
    report(f"train-{family}", [] if result[0] == 0 else ["no checkpoint to export"], result)
    blocks = LAYERS - (family == "glm4-moe")
    one = 3 * FFN * HIDDEN * EXPERTS * blocks
    apart = {"tensors": 3 * EXPERTS * blocks, "bytes": 4 * one, "elements": one}
    together = {**apart, "tensors": 2 * blocks}
    sides = {f"{key}_{side}": value for side in ("in", "out") for key, value in apart.items()}

    # ---- one tensor an expert, and fused ----
    counted(f"{family}-out-counts", convert(f"{family}-out", "export", family, f"{family}.hf", "--format=safetensors"), **sides)
    counted(f"{family}-fused-counts", convert(f"{family}-fused", "export", family, f"{family}.fused", "--format=safetensors", "--experts=fused"),
            **{**sides, **{f"{key}_out": value for key, value in together.items()}})
    names = read(f"{family}.fused").keys() - read(f"{family}.hf").keys()
    wanted = {f"model.layers.{layer}.mlp.{part}" for layer in range(LAYERS - blocks, LAYERS)
              for part in ("experts.gate_up_proj", "experts.down_proj", *(["gate.weight"] if family == "mixtral" else []))}
    report(f"{family}-fused-names", [] if names == wanted else [f"{names ^ wanted}"], (0, "", ""))
    shape = read(f"{family}.fused")[f"model.layers.{LAYERS - 1}.mlp.experts.gate_up_proj"][1]
    report(f"{family}-fused-shape", [] if shape == [EXPERTS, 2 * FFN, HIDDEN] else [f"{shape}"], (0, "", ""))
    counted(f"{family}-in-counts", convert(f"{family}-in", "import", f"{family}.fused", f"{family}.in", "--layout=dp=2"),
            **{**sides, **{f"{key}_in": value for key, value in together.items()}})
    convert(f"{family}-back", "export", f"{family}.in", f"{family}.back", "--format=safetensors", "--experts=separate")
    same(f"{family}-back-is-the-same", f"{family}.hf", f"{family}.back")
    for form, source in (("separate", "fused"), ("fused", "hf")):  # in one pass
        convert(f"{family}-to-{form}", "export", f"{family}.{source}", f"{family}.{form}.again", "--format=safetensors", f"--experts={form}")
    same(f"{family}-to-separate-is-the-same", f"{family}.hf", f"{family}.separate.again")
    same(f"{family}-to-fused-is-the-same", f"{family}.fused", f"{family}.fused.again")

    # ---- every other format ----
    for form in FORMATS[family]:
        convert(f"{family}-{form}", "export", family, f"{family}.{form}", f"--format={form}")
        more = ["--fresh-optimizer"] if form == "gguf" else []
        if form == "torchtitan":
            shutil.copy(f"{family}.hf/config.json", f"{family}.config.json")
        counted(f"{family}-{form}-counts", convert(f"{family}-{form}-in", "import", f"{family}.{form}", f"{family}.{form}.in", *more),
                elements_in=one, elements_out=one, tensors_out=3 * EXPERTS * blocks)
        if form != "gguf":
            expect(f"{family}-{form}-same-moments", ["ckpt", "diff", "-q", family, f"{family}.{form}.in"], 0, ANY, ANY)
        convert(f"{family}-{form}-back", "export", f"{family}.{form}.in", f"{family}.{form}.hf", "--format=safetensors")
        same(f"{family}-{form}-is-the-same", f"{family}.hf", f"{family}.{form}.hf")

expect("words-in", ["ckpt", "import", "mixtral.hf", "words"], 0,
       re.compile(r"^experts: 36 tensors, 108\.0 KiB in; 36 tensors, 108\.0 KiB out; the same 27,648 elements$", re.M), ANY)
expect("words-out", ["ckpt", "export", "words", "words.fused", "--format=safetensors", "--experts=fused", "--dtype=bf16"], 0,
       re.compile(r"^experts: 36 tensors, 108\.0 KiB in; 6 tensors, 54\.0 KiB out; the same 27,648 elements$", re.M), ANY)
expect("words-spread", ["ckpt", "import", "mixtral.hf", "spread", "--layout=dp=2,ep=2"], 0, re.compile(r", under dp 2, tp 1, pp 1, sp 1, ep 2, "), ANY)
expect("words-spread-diff", ["ckpt", "diff", "words", "spread"], 0, re.compile(r"^step 0 under dp 1, tp 1, pp 1, sp 1 and step 0 under dp 2, tp 1, pp 1, sp 1, ep 2"), ANY)

# ---- options ----
expect("no-such-form", ["ckpt", "export", "mixtral", "out", "--format=safetensors", "--experts=apart"], 64,
       err=said("--experts=apart: expected separate or fused"))
expect("one-form", ["ckpt", "export", "mixtral", "out", "--format=gguf", "--experts=fused"], 64,
       err=said("--experts=fused: gguf has one form of experts; leave it out"))

# ---- too few, too many, twice ----
apart, fused = read("qwen3-moe.hf"), read("qwen3-moe.fused")
EXPERT = "model.layers.1.mlp.experts"


def refuse(name, tensors, words, **config):
    save(name, "qwen3-moe.hf", tensors, **config)
    expect(name, ["ckpt", "import", name, f"{name}.in"], 78, err=re.compile(words))


refuse("hole", {n: t for n, t in apart.items() if not n.startswith(f"{EXPERT}.2.up_proj")},
       rf"these are missing: {EXPERT}\.2\.up_proj\.weight \(looked for {EXPERT}\.2\.up_proj\.weight\); ")
refuse("no-expert", {n: t for n, t in apart.items() if not n.startswith(f"{EXPERT}.3.")},
       rf"these are missing: {EXPERT}\.3\.gate_proj\.weight .* {EXPERT}\.3\.down_proj\.weight .*\); ")
refuse("no-block-fused", {n: t for n, t in fused.items() if not n.startswith(f"{EXPERT}.down_proj")},
       rf"these are missing: {EXPERT}\.0\.down_proj\.weight \(looked for {EXPERT}\.down_proj\), .* and 1 more; ")
refuse("one-more", apart | {f"{EXPERT}.4.gate_proj.weight": apart[f"{EXPERT}.0.gate_proj.weight"]},
       rf"tensor {EXPERT}\.4\.gate_proj\.weight is of expert 4, and the model has 4, the first of which is 0; ")
refuse("fewer-said", apart, r"is \[4, 32\], and for model.layers.0.mlp.gate.weight it must be \[3, 32\]", num_experts=3)
dtype, shape, data = fused[f"{EXPERT}.down_proj"]
refuse("three-fused", fused | {f"{EXPERT}.down_proj": (dtype, [3, *shape[1:]], data[:len(data) // 4 * 3])},
       rf"tensor {EXPERT}\.down_proj is \[3, 32, 24\], and .* it must be \[4, 32, 24\]: it has 3 experts, and the model has 4; ")
mixed = {n: t for n, t in apart.items() if not n.startswith(f"{EXPERT}.")} | {n: t for n, t in fused.items() if n.startswith(f"{EXPERT}.")}
refuse("mixed", mixed, rf"experts are stored in two forms, as model\.layers\.0\.mlp\.experts\.0\.gate_proj\.weight and as {EXPERT}\.gate_up_proj; keep one")
refuse("twice", apart | {n: t for n, t in fused.items() if n.startswith(f"{EXPERT}.")},
       rf"experts are stored in two forms, as model\.layers\.0\.mlp\.experts\.0\.gate_proj\.weight and as {EXPERT}\.(gate_up|down)_proj; keep one")
further = {n.replace("layers.1.", "layers.3."): t for n, t in apart.items() if n.startswith("model.layers.1.")}  # predicts further tokens
save("further", "qwen3-moe.hf", apart | further)
expect("further", ["ckpt", "import", "further", "further.in"], 0, ANY, re.compile(rf"^(not imported: param of tensor model\.layers\.3\..*\n){{{len(further)}}}$"))

# ---- DeepSpeed: a file an expert ----
rebuild = torch_names()
WITHIN = re.compile(r"(model\.layers\.(\d+)\.mlp)\.experts\.(\d+)\.(.*)")


def torch_file(path, tensors, around=lambda state: state):
    out, state = io.BytesIO(), {}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, (_, shape, data)) in enumerate(tensors.items()):
            archive.writestr(f"archive/data/{number}", data)
            state[name] = Tensor(Storage(number, len(data) // 4), 0, tuple(shape), (1,) if len(shape) == 1 else (shape[1], 1), False, {})
        Pickler(out, protocol=2).dump(around(state))
        archive.writestr("archive/data.pkl", out.getvalue())
        archive.writestr("archive/byteorder", "little")


def deepspeed(directory, source="qwen3-moe.hf", number=lambda expert: expert, experts=EXPERTS):
    tensors, files, rest = read(source), {}, {}
    for name, tensor in tensors.items():
        found = WITHIN.match(name)
        if found:
            mlp, layer, expert, inner = found[1], int(found[2]), int(found[3]), found[4]
            files.setdefault((layer, expert), {})[f"{mlp}.deepspeed_moe.experts.deepspeed_experts.{number(expert)}.{inner}"] = tensor
        else:
            rest[re.sub(r"\.mlp\.gate\.weight$", ".mlp.deepspeed_moe.gate.wg.weight", name)] = tensor
    tag = f"{directory}/global_step7"
    for (layer, expert), inside in files.items():
        torch_file(f"{tag}/layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt", inside)
    torch_file(f"{tag}/mp_rank_00_model_states.pt", rest, lambda state: {"module": state, "num_experts": [experts], "global_steps": 7,
                                                                        "global_samples": 56, "mp_world_size": 1})
    write(f"{tag}/expp_rank_0_mp_rank_00_optim_states.pt", b"")
    write(f"{directory}/latest", "global_step7")
    shutil.copy(f"{source}/config.json", directory)


deepspeed("ds")
counted("ds-counts", convert("ds", "import", "ds", "ds.in", "--fresh-optimizer"), tensors_in=3 * EXPERTS * LAYERS, elements_in=one // 2 * 3,
        elements_out=one // 2 * 3)
expect("ds-says-what-it-leaves", ["ckpt", "import", "ds", "ds.again", "--fresh-optimizer"], 0, re.compile("step 7 from deepspeed"),
       "not imported: expp_rank_0_mp_rank_00_optim_states.pt\n")
expect("ds-out", ["ckpt", "export", "ds.in", "ds.hf", "--format=safetensors"], 0, ANY, ANY)
same("ds-is-the-same", "qwen3-moe.hf", "ds.hf")
LOST = "global_step7/layer_1_expert_2_mp_rank_00_model_states.pt"
os.remove(f"ds/{LOST}")
expect("ds-hole", ["ckpt", "import", "ds", "out"], 65, err=said(f"ds/{LOST} is missing: MoE layer 1 has 4 experts, and 3 files; fetch it again, or take another copy"))
deepspeed("ds-rank", number=lambda expert: expert % 2)
expect("ds-one-rank-for-all", ["ckpt", "import", "ds-rank", "out"], 65, err=re.compile(
    r"layer_0_expert_2_mp_rank_00_model_states.pt: it holds model.layers.0.mlp.deepspeed_moe.experts.deepspeed_experts.0.gate_proj.weight, which is not of expert 2; "))
deepspeed("ds-more", experts=3)
expect("ds-more", ["ckpt", "import", "ds-more", "out"], 65, err=said(
    "ds-more/global_step7: MoE layer 0 has 4 files of experts, and num_experts is 3; fetch it again, or take another copy"))
report("refused-makes-nothing", glob.glob("out*") + glob.glob("hole.*"), (0, "", ""))
finish("experts")
