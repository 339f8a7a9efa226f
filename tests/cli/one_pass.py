#!/usr/bin/env python3
"""`perdure ckpt export` of a checkpoint of another program: the files are those that an import and an export of it would make, byte by
byte, from every format to every format.  one_pass.py PERDURE SOURCE [NAME...]"""
import glob
import json
import os
import re
import shutil
import struct

from expect import ANY, MINIMAL, SOURCE, expect, finish, perdure, report, said, write
from torch_file import torch_save

GOLDEN = os.path.join(SOURCE, "tests/golden/formats")
TINY = ["model.preset=byte-1m", "model.layers=2", "model.hidden=64", "model.heads=4", "batch.context=32", "model.context=32",
        "batch.sequences=4", "run.steps=2", "layout.ranks=1", "layout.threads=1", "checkpoint.every=2"]
FAMILIES = {"llama": ["model.kv_heads=2", "model.ffn=96"], "gpt2": ["model.family=gpt2", "model.ffn=256"]}
WRITTEN = {"llama": ("safetensors", "dcp", "megatron", "universal", "gguf"),
           "gpt2": ("safetensors", "dcp", "megatron", "universal", "gguf", "llmc")}
ROUNDS = ("safetensors", "dcp", "gguf", "llmc")  # the others hold fp32 alone


def files(place):
    """{name: bytes}"""
    names = [place] if os.path.isfile(place) else glob.glob(f"{place}/**", recursive=True, include_hidden=True)
    return {os.path.relpath(name, place): open(name, "rb").read() for name in names if os.path.isfile(name)}


def remove(place):
    if os.path.isdir(place):
        shutil.rmtree(place)
    elif os.path.exists(place):
        os.remove(place)


def both_ways(name, source, stored, form):
    """What `stored` is the import of."""
    asked = [f"--format={form}", "--fresh-optimizer", *(["--dtype=bf16"] if form in ROUNDS else [])]
    made = {}
    for way, origin in (("two", stored), ("one", source)):
        remove(way)
        result = perdure("ckpt", "export", origin, way, *asked)
        made[way] = files(way) if result[0] == 0 else result
    differ = [] if made["one"] == made["two"] else [f"{form}: one pass and two differ"]
    report(f"{name}-to-{form}", differ or ([] if isinstance(made["one"], dict) else ["not exported"]), (0, "", str(made["two"])[:300]))


def from_every_format(name, source, formats):
    remove("stored")
    expect(f"{name}-import", ["ckpt", "import", source, "stored", "--fresh-optimizer"], 0, ANY, ANY)
    for form in formats:
        both_ways(name, source, "stored", form)


write("text.txt", b"In the beginning was the word. " * 4000)
for family, options in FAMILIES.items():
    result = perdure("train", MINIMAL, *TINY, *options, f"run.dir={family}")
    report(f"train-{family}", [] if result[0] == 0 else ["no checkpoint to export"], result)
    for form in WRITTEN[family]:
        expect(f"{family}-{form}", ["ckpt", "export", family, f"{family}.{form}", f"--format={form}"], 0, ANY, ANY)
        from_every_format(f"{family}-{form}", f"{family}.{form}", WRITTEN[family])
from_every_format("zero3", f"{GOLDEN}/deepspeed/llama3", WRITTEN["llama"])
expect("zero3-tied-head-is-not-lost", ["ckpt", "export", f"{GOLDEN}/deepspeed/llama3", "tied", "--format=universal"], 0, re.compile("^tied: "))
for kind in ("fully_reshardable", "dp_reshardable", "tp2_pp2"):
    from_every_format(kind, f"{GOLDEN}/megatron/{kind}", ("safetensors", "universal"))

# ---- what it needs, and says ----
expect("no-moments", ["ckpt", "export", "llama.safetensors", "begins", "--format=universal"], 0, re.compile("^begins: universal, "),
       "llama.safetensors has no moments: the export's are zero\n")
expect("no-moments-needed", ["ckpt", "export", "llama.safetensors", "weights.gguf", "--format=gguf"], 0, re.compile(r"^weights.gguf: gguf, "))
text = expect("weights-alone", ["ckpt", "export", "llama.universal", "weights", "--format=safetensors", "--json"], 0, re.compile('"bytes_read": '),
              "not exported: moments of the optimizer, which safetensors has no place for\n")
if text:
    read, written = (int(re.search(rf'"{key}": (\d+)', text)[1]) for key in ("bytes_read", "bytes_written"))
    report("weights-alone-are-read", [] if read < 1.2 * written else [f"{read} bytes are read for {written}"], (0, text, ""))
expect("one-step", ["ckpt", "export", "llama.dcp", "out", "--format=gguf", "--step=2"], 64,
       err=said("--step=2: llama.dcp is one checkpoint (dcp); leave it out"))
expect("config-of-ours", ["ckpt", "export", "llama", "out", "--format=gguf", f"--config={MINIMAL}"], 64,
       err=re.compile(r"^perdure: --config=run.yaml: \S+ describes its model itself; leave it out\n$"))
shutil.copytree("llama.dcp", "bare", ignore=shutil.ignore_patterns("*.json"))
expect("no-model", ["ckpt", "export", "bare", "out", "--format=gguf"], 78, err=said(
    "bare does not say which model it is; give the config.json of transformers, or a configuration of a run with its model section: --config=run.yaml"))
expect("dry-run", ["ckpt", "export", "gpt2.llmc", "out", "--format=gguf", "--dry-run", "--only=attn_qkv.weight"], 0, re.compile(
    r"^TENSOR +KIND +TO +TYPE +FROM *\n(?:\S+(?:q|k|v)_proj\.weight +param +blk\.[01]\.attn_qkv\.weight +fp32 +qkvw *\n){6}$"))
for name, words in (("absent", "absent does not exist; name a run, a checkpoint, or one of another program"),
                    ("text.txt", "text.txt is a file in no format that perdure reads (safetensors, megatron, dcp, deepspeed, universal, gguf, llmc, torch): `perdure ckpt "
                     "import --help` lists the files of each, and runs and checkpoints of perdure are directories")):
    expect(f"no-source-{name}", ["ckpt", "export", name, "out", "--format=gguf"], 78, err=said(words))
os.symlink("nowhere", "link")
for form, kind in (("gguf", "file"), ("safetensors", "directory")):
    expect(f"onto-link-{form}", ["ckpt", "export", "llama.safetensors", "link", f"--format={form}"], 64,
           err=said(f"link exists already; name a {kind} that does not exist yet"))


def tie(place, byte):
    """Embeddings are tied, and an output matrix lies there all the same, with a byte of its own."""
    shutil.copytree("llama.safetensors", place)
    path = f"{place}/model.safetensors"
    data = open(path, "rb").read()
    (length,) = struct.unpack_from("<Q", data)
    header, values = json.loads(data[8:8 + length]), data[8 + length:]
    tokens = header["model.embed_tokens.weight"]
    begin, end = tokens["data_offsets"]
    header["lm_head.weight"] = {**tokens, "data_offsets": [len(values), len(values) + end - begin]}
    head = bytearray(values[begin:end])
    head[5] ^= byte
    text = json.dumps(header).encode()
    write(path, struct.pack("<Q", len(text)) + text + values + head)


os.mkdir("bin")
shutil.copy("llama.safetensors/config.json", "bin")
torch_save("llama.safetensors/model.safetensors", "bin/pytorch_model.bin")
sources = {"directory": "llama.safetensors", "file": "llama.safetensors/model.safetensors", "torch": "bin", "torch-file": "bin/pytorch_model.bin"}
for name, source in sources.items():
    remove("as.gguf")
    expect(f"weights-of-{name}", ["ckpt", "export", source, "as.gguf", "--format=gguf"], 0, re.compile("^as.gguf: gguf, "),
           "not exported: note\n" if name.startswith("torch") else "")
    made = files("as.gguf")
    report(f"weights-of-{name}-are-the-same", [] if made == (first := made if name == "directory" else first) else ["other bytes"], (0, "", ""))
write("bin/pytorch_model.bin", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M")
expect("torch-before-1.6", ["ckpt", "export", "bin", "out", "--format=gguf"], 78, err=re.compile(
    r"^perdure: bin/pytorch_model.bin is not an archive, as torch saved before 1.6; save it again: python3 -c 'import torch; f = \"bin/pytorch_model.bin\"; "))

# ---- tokens that begin and end a text ----
result = perdure("train", MINIMAL, *TINY, "model.vocab=320", "run.dir=wide")
report("train-wide", [] if result[0] == 0 else ["no checkpoint to export"], result)
for name in ("llama", "wide"):
    expect(f"tokens-{name}", ["ckpt", "export", name, f"{name}.hf", "--format=safetensors"], 0, ANY, ANY)
    config = json.load(open(f"{name}.hf/config.json"))
    write(f"{name}.hf/config.json", json.dumps({**config, "bos_token_id": 1}))
    write(f"{name}.hf/generation_config.json", '{"eos_token_id": [3, 2], "top_k": 7}')
    for step, (source, target, form) in enumerate(((f"{name}.hf", f"{name}.ids.gguf", "gguf"), (f"{name}.ids.gguf", f"{name}.back", "safetensors"),
                                                   (f"{name}.hf", f"{name}.again", "safetensors"))):
        expect(f"tokens-{name}-{step}", ["ckpt", "export", source, target, f"--format={form}"], 0, ANY, ANY if step == 1 else "")
    found = [json.load(open(f"{name}.{place}")).get(key) for place in ("back/config.json", "again/generation_config.json")
             for key in ("bos_token_id", "eos_token_id", "top_k")]
    report(f"tokens-{name}-stay", [] if found == [1, 3, None, None, [3, 2], 7] else [f"{found}"], (0, "", ""))
    made = {file for file in os.listdir(f"{name}.back") if file.startswith("tokenizer")}
    expected = {"tokenizer.gguf"} if name == "llama" else set()
    report(f"tokens-{name}-tokenizer", [] if made == expected else [f"{made}"], (0, "", ""))

# ---- show says which tokenizer ----
expect("tokenizer-import", ["ckpt", "import", "llama.ids.gguf", "with", "--fresh-optimizer"], 0, ANY, ANY)
expect("show-tokenizer-of-file", ["ckpt", "show", "llama.ids.gguf"], 0, re.compile(r"^tokenizer: 256 tokens, digest [0-9a-f]{16}$", re.M))
expect("show-tokenizer", ["ckpt", "show", "with"], 0, re.compile(r"^tokenizer   [0-9a-f]{16}; it is with/tokenizer.gguf$", re.M))
write("with/tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
expect("show-another-tokenizer", ["ckpt", "show", "with"], 0, re.compile(r"^tokenizer   [0-9a-f]{16}; another lies in with/tokenizer.json$", re.M))
os.remove("with/tokenizer.json")
os.remove("with/tokenizer.gguf")
expect("show-no-tokenizer", ["ckpt", "show", "with"], 0, re.compile(r"^tokenizer   [0-9a-f]{16}; not beside the checkpoint$", re.M))
expect("show-bytes", ["ckpt", "show", "llama"], 0, re.compile(r"^tokenizer   bytes$", re.M))

tie("copy", 0)
tie("own", 1)
expect("tied-copy", ["ckpt", "export", "copy", "copy.gguf", "--format=gguf"], 0, re.compile("^copy.gguf: "))
for name, command in (("export", ["export", "own", "out", "--format=gguf"]), ("import", ["import", "own", "out", "--fresh-optimizer"])):
    expect(f"tied-own-{name}", ["ckpt", *command], 78, err=re.compile(
        "^perdure: own: the model ties its output matrix to the token embedding, and lm_head.weight is not equal to model.embed_tokens.weight; "))
shutil.copytree("llama.safetensors", "cut")
os.truncate("cut/model.safetensors", 20000)
expect("damaged", ["ckpt", "export", "cut", "out", "--format=gguf"], 65, err=re.compile(r"^perdure: cut/model.safetensors"))
report("refused-makes-nothing", glob.glob("out*"), (0, "", ""))
finish("one_pass")
