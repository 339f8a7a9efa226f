#!/usr/bin/env python3
"""Models of other programs as they lie about: what would make another model than their own program does is refused by name.
foreign.py PERDURE SOURCE [NAME...]"""
import json
import os
import re
import struct

from torch_file import torch_save
from expect import ANY, MINIMAL, expect, failures, finish, write

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48, "max_position_embeddings": 512,
          "tie_word_embeddings": True}
SHAPES = {"embed_tokens": [96, 32], "layers.0.input_layernorm": [32], "layers.0.self_attn.q_proj": [32, 32],
          "layers.0.self_attn.k_proj": [16, 32], "layers.0.self_attn.v_proj": [16, 32], "layers.0.self_attn.o_proj": [32, 32],
          "layers.0.post_attention_layernorm": [32], "layers.0.mlp.gate_proj": [48, 32], "layers.0.mlp.up_proj": [48, 32],
          "layers.0.mlp.down_proj": [32, 48], "norm": [32]}
SIZES = {"F32": 4, "F8_E4M3": 1, "U64": 8, "F8_E8M0": 1}


def tensors(prefix="model.", value=0.01, **changed):
    return {f"{prefix}{name}.weight": ("F32", changed.get(name, shape), value) for name, shape in SHAPES.items()}


def safetensors(path, named):
    header, data = {}, b""
    for name, (dtype, shape, value) in named.items():
        count = 1
        for size in shape:
            count *= size
        one = struct.pack("<f", value) if dtype == "F32" else bytes([56] * SIZES[dtype])  # 56: 1.0 in fp8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count * len(one)]}
        data += one * count
    text = json.dumps(header).encode()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write(path, struct.pack("<Q", len(text)) + text + data)


def model(directory, named=None, **config):
    safetensors(f"{directory}/model.safetensors", named or tensors())
    write(f"{directory}/config.json", json.dumps({**CONFIG, **config}))
    return directory


def take(name, code=0, err="", *options, out=ANY):
    expect(name, ["ckpt", "import", name, f"{name}-in", *options], code, out if code == 0 else "", err)


def refuse(name, words, *options, code=78):
    take(name, code, re.compile(words), *options)


# ---- what a configuration says ----
model("plain")
take("plain", out=re.compile(r"step 0 from safetensors, .*\n22 arrays of moments begin at zero\nweights are fp32; train, sample and eval compute in bf16 .*\n$"))
model("unknown-key", attention_sinks=4)
refuse("unknown-key", r"^perdure: unknown-key: config.json: perdure does not know the key attention_sinks \(4\)")
model("longer", tensors(embed_tokens=[128, 32]))
refuse("longer", r"embed_tokens.weight is \[128, 32\], and for .* must be \[96, 32\]: .* vocab_size in config.json")
model("longer-said", tensors(embed_tokens=[128, 32]), vocab_size=128)
take("longer-said")

TITAN = {"embed_tokens": "tok_embeddings", "layers.0.input_layernorm": "layers.0.attention_norm", "norm": "norm",
         "layers.0.self_attn.q_proj": "layers.0.attention.wq", "layers.0.self_attn.k_proj": "layers.0.attention.wk",
         "layers.0.self_attn.v_proj": "layers.0.attention.wv", "layers.0.self_attn.o_proj": "layers.0.attention.wo",
         "layers.0.post_attention_layernorm": "layers.0.ffn_norm", "layers.0.mlp.gate_proj": "layers.0.feed_forward.w1",
         "layers.0.mlp.up_proj": "layers.0.feed_forward.w3", "layers.0.mlp.down_proj": "layers.0.feed_forward.w2"}
for rows in (96, 128):
    model(f"titan-{rows}", {f"{TITAN[name]}.weight": ("F32", [rows, 32] if name == "embed_tokens" else shape, 0.01) for name, shape in SHAPES.items()})
take("titan-96")
refuse("titan-128", r"tok_embeddings.weight is \[128, 32\], and for .* must be \[96, 32\]: .* vocab_size in config.json")
MEGATRON = {"embed_tokens": "embedding.word_embeddings.weight", "norm": "decoder.final_layernorm.weight",
            "layers.0.input_layernorm": "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
            "layers.0.post_attention_layernorm": "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
            "layers.0.self_attn.q_proj": "decoder.layers.0.self_attention.linear_qkv.weight",
            "layers.0.self_attn.o_proj": "decoder.layers.0.self_attention.linear_proj.weight",
            "layers.0.mlp.gate_proj": "decoder.layers.0.mlp.linear_fc1.weight", "layers.0.mlp.down_proj": "decoder.layers.0.mlp.linear_fc2.weight"}
LONGER = {"embed_tokens": [128, 32], "layers.0.self_attn.q_proj": [64, 32], "layers.0.mlp.gate_proj": [96, 32]}
model("megatron-128", {name: ("F32", LONGER.get(ours, SHAPES[ours]), 0.01) for ours, name in MEGATRON.items()})
take("megatron-128", 0, "not imported: 32 rows of tensor embedding.word_embeddings.weight beyond the vocabulary of 96\n")

# ---- which file, which model ----
model("both")
write("both/model.safetensors.index.json", json.dumps({"weight_map": {name: "model-00001-of-00001.safetensors" for name in tensors()}}))
safetensors("both/model-00001-of-00001.safetensors", tensors(value=0.5))
take("both", 0, "not imported: model.safetensors.index.json\n")
expect("both-is-the-one-file", ["ckpt", "diff", "-q", "both", "plain"], 0)
model("two", tensors("policy.model.") | tensors("ref.model.", value=0.5))
refuse("two", r'names begin with "policy.model." and "ref.model."; import one: perdure ckpt import --prefix=policy.model.\n$')
take("two", 0, re.compile("^(not imported: param of tensor ref.model.*\n){11}$"), "--prefix=policy.")
expect("two-is-the-one-asked-for", ["ckpt", "diff", "-q", "two-in", "plain-in"], 0)
refuse("two", "--prefix=actor.: no token embedding has a name with that before it", "--prefix=actor.")
wrapped = {name.replace("layers.0.", "layers.0._orig_mod._checkpoint_wrapped_module."): t for name, t in tensors("_orig_mod.model.").items()}
model("wrapped", wrapped)
take("wrapped")
expect("wrapped-is-the-same", ["ckpt", "diff", "-q", "wrapped-in", "plain-in"], 0)

# ---- types ----
model("types", tensors() | {"steps": ("U64", [3], 0), "freqs": ("F8_E8M0", [2], 0)})
take("types", 0, "not imported: param of tensor steps\nnot imported: tensor freqs: type F8_E8M0 is not read\n")
eight = tensors() | {"model.layers.0.self_attn.q_proj.weight": ("F8_E4M3", [32, 32], 0)}
model("fp8", eight)
take("fp8")
model("fp8-scaled", eight | {"model.layers.0.self_attn.q_proj.weight_scale_inv": ("F32", [1, 1], 2)})
refuse("fp8-scaled", r"q_proj.weight is stored as fp8 with a scale \(model.layers.0.self_attn.q_proj.weight_scale_inv\)")
model("needed", tensors() | {"model.norm.weight": ("F8_E8M0", [32], 0)})
refuse("needed", r"these are missing: model.norm.weight .*; tensor model.norm.weight: type F8_E8M0 is not read\n$")

# ---- GGUF: in parts, and what it says of RoPE ----
NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "layers.0.input_layernorm": "blk.0.attn_norm",
         "layers.0.post_attention_layernorm": "blk.0.ffn_norm", "layers.0.self_attn.q_proj": "blk.0.attn_q",
         "layers.0.self_attn.k_proj": "blk.0.attn_k", "layers.0.self_attn.v_proj": "blk.0.attn_v",
         "layers.0.self_attn.o_proj": "blk.0.attn_output", "layers.0.mlp.gate_proj": "blk.0.ffn_gate",
         "layers.0.mlp.up_proj": "blk.0.ffn_up", "layers.0.mlp.down_proj": "blk.0.ffn_down"}
PAIRS = {"general.architecture": "llama", "llama.context_length": 512, "llama.embedding_length": 32, "llama.block_count": 1,
         "llama.feed_forward_length": 48, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
         "llama.attention.layer_norm_rms_epsilon": 1e-6, "general.name": "small", "llama.rope.dimension_count": 16}


def gguf(path, names, pairs):
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    head, data = b"", b""
    for key, value in pairs.items():
        head += text(key)
        head += (struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<If", 6, value)
                 if isinstance(value, float) else struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
                 if isinstance(value, list) and isinstance(value[0], str) else struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
                 if isinstance(value, list) else struct.pack("<II", 4, value))
    for name in names:
        shape = SHAPES[name]
        head += text(NAMES[name] + ".weight") + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", 0, len(data))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data += struct.pack("<f", 0.01) * count
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(pairs)) + head
    write(path, head + bytes(-len(head) % 32) + data)


order = list(SHAPES)
gguf("whole.gguf", order, PAIRS)
take("whole.gguf")
expect("gguf-is-the-same", ["ckpt", "diff", "-q", "whole.gguf-in", "plain-in"], 0)
gguf("part-00001-of-00002.gguf", order[:4], PAIRS | {"split.no": 0, "split.count": 2})
gguf("part-00002-of-00002.gguf", order[4:], {"split.no": 1, "split.count": 2})
for part in ("part-00001-of-00002.gguf", "part-00002-of-00002.gguf"):
    take(part)
    expect("gguf-parts-are-the-same", ["ckpt", "diff", "-q", f"{part}-in", "plain-in"], 0)
for counted, (names, said) in enumerate(((["part-00001-of-00002.gguf", "part-00002-of-00002.gguf"], None), (["whole.gguf"], None), ([], "gguf-in-2 is a directory in no format"),
                    (["whole.gguf", "part-00001-of-00002.gguf"], "gguf-in-3 holds several models, .*: name the file of one"),
                    (["part-00002-of-00002.gguf"], "gguf-in-4/part-00001-of-00002.gguf does not exist: copy all parts"))):
    directory = f"gguf-in-{counted}"
    os.mkdir(directory)
    for name in names:
        os.link(name, f"{directory}/{name}")
    if said:
        refuse(directory, said)
    else:
        take(directory)
        expect("gguf-directory-is-the-same", ["ckpt", "diff", "-q", f"{directory}-in", "plain-in"], 0)
os.rename("part-00002-of-00002.gguf", "elsewhere.gguf")
refuse("part-00001-of-00002.gguf", "part-00002-of-00002.gguf does not exist: copy all parts", code=78)
refuse("elsewhere.gguf", r"elsewhere.gguf is one of 2 parts \(split.count\)")
write("smaller.json", json.dumps({**CONFIG, "vocab_size": 64}))
refuse("whole.gguf", r"token_embd.weight is \[96, 32\], and for .* must be \[64, 32\]: .* vocab_size in config.json", "--config=smaller.json")
gguf("scaled.gguf", order, PAIRS | {"llama.rope.scale_linear": 4.0})
expect("gguf-factor", ["ckpt", "show", "scaled.gguf", "--config"], 0, re.compile(r'"rope_type": "linear",\s*"factor": 4\b'))
gguf("sinks.gguf", order, PAIRS | {"llama.attention.sinks": 4})
refuse("sinks.gguf", r"^perdure: sinks.gguf: perdure does not compute the key llama.attention.sinks \(4\), .*: perdure ckpt import --config=FILE\n$")
take("sinks.gguf", 0, "", "--config=plain/config.json")
for counted, (key, value, code, said) in enumerate((
        ("head_count", [2], 0, ""), ("head_count", [2, 4], 78, "differs from layer to layer, which perdure does not support"),
        ("head_count", [2, 2], 78, "has 2 entries, and block_count is 1, which perdure does not support"),
        ("head_count_kv", [1, 2], 78, "differs from layer to layer, which perdure does not support"),
        ("head_count", "2", 78, "is a text, not a number, which perdure does not support"),
        ("head_count", None, 65, "is missing; fetch it again, or take another copy"),
        ("head_count", 0, 65, "is not a whole number from 1 to 4294967295; fetch it again, or take another copy"))):
    name, key = f"list-{counted}.gguf", f"llama.attention.{key}"
    gguf(name, order, {k: v for k, v in (PAIRS | {key: value}).items() if v is not None})
    take(name, code, said and f"perdure: {name}: {key} {said}\n")
for other, value in (("rope.dimension_count", 8), ("attention.value_length", 8), ("vocab_size", 64), ("rope.scaling.type", "yarn")):
    gguf("other.gguf", order, PAIRS | {f"llama.{other}": value})
    refuse("other.gguf", rf"^perdure: other.gguf: perdure does not compute the key llama.{other} \({value}\)")
gguf("words.gguf", order, PAIRS | {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a", "b"]})
unread = "words.gguf: tokenizer.ggml.model: rwkv is not supported"
write("some.txt", "some words")
expect("gguf-tokenizer-shown", ["ckpt", "show", "words.gguf"], 0, re.compile(f"tokenizer: one that perdure does not read: {unread}"))
expect("gguf-tokenizer-of-sample", ["sample", "words.gguf", "--prompt=a"], 78, "", re.compile(f"^perdure: {unread}"))
expect("gguf-tokenizer-of-eval", ["eval", "words.gguf", "--data=some.txt"], 78, ANY, re.compile(f"^perdure: {unread}"))
expect("gguf-shown-all-the-same", ["ckpt", "show", "sinks.gguf"], 0, ANY)

# ---- what is common and not read ----
for file, words in (("meta/consolidated.00.pth", "meta is Meta's own form of a Llama; .*convert_llama_weights_to_hf"),
                    ("fsdp/pytorch_model_fsdp_0/.metadata", "fsdp is of accelerate; .* pytorch_model_fsdp_0 in it: name that"),
                    ("old/mp_rank_00/model_optim_rng.pt", "old is Megatron's old form.*--ckpt-convert-format torch_dist")):
    os.makedirs(os.path.dirname(file))
    write(file, b"")
    refuse(file.split("/")[0], words)
model("trainer")
write("trainer/optimizer.bin", b"")
take("trainer", 0, "not imported: optimizer.bin\n")
torch_save("plain/model.safetensors", "ckpt.pt", "model")
take("ckpt.pt", 0, ANY, "--config=plain/config.json")
torch_save("plain/model.safetensors", "nano.pt", "model", {"model_args": {"n_layer": 1}, "iter_num": 3})
os.mkdir("nano")
os.link("nano.pt", "nano/ckpt.pt")
refuse("nano", "nano is a directory with a checkpoint of torch in it: name that, nano/ckpt.pt")
refuse("nano.pt", "nano.pt is nanoGPT's, with the exact GELU")

# ---- init.from reads the model first ----
write("text.txt", b"In the beginning was the word. " * 400)
RUN = ["train", MINIMAL, "init.from=plain", "run.steps=1", "batch.sequences=2", "layout.ranks=1", "layout.threads=1", "--print-config"]
expect("init-context", [*RUN, "batch.context=300"], 0, re.compile(r"\n  context: 300 "))
expect("init-context-beyond", [*RUN, "batch.context=600"], 78,
       err=re.compile("batch.context 600 is longer than model.context 512, beyond which there are no positions; set batch.context=512\n$"))
for context, code, words in ((400, 0, "^$"), (600, 78, "batch.context 600 is longer than model.context 512")):
    write("run.yaml", f"run: {{dir: never}}\ndata: {{train: text.txt}}\nbatch: {{context: {context}}}\n")
    expect(f"import-config-{context}", ["ckpt", "import", "plain", f"import-{context}", "--config=run.yaml"], code, ANY if code == 0 else "",
           re.compile(words))
expect("import-config-kept", ["ckpt", "show", "import-400", "--config"], 0, re.compile(r'(?s)from: "" .*\n  context: 512 .*\n  context: 400 '))
expect("print-keys-of-init-from", ["train", "init.from=plain", "--print-config"], 0, re.compile(r"\n  context: 512 "))
planned = json.loads(expect("plan-init-from", ["plan", "run.dir=never", "data.train=text.txt", "init.from=plain", "--json"], 0, ANY) or "{}")
if planned.get("parameters") != 10848:
    failures.append(f"plan counts another model than that of init.from: {planned.get('parameters')}")
expect("plan-init-from-absent", ["plan", MINIMAL, "init.from=nothing"], 78, err=re.compile("init.from: nothing does not exist"))

# ---- a model with a tokenizer reads text ----
WORDS = {chr(97 + i): i for i in range(26)} | {" ": 26, ".": 27, "I": 28, "th": 29, "the": 30}
TOKENIZER = {"model": {"type": "BPE", "vocab": WORDS, "merges": ["t h", "th e"]}}
safetensors("words/model.safetensors", tensors())
write("words/config.json", json.dumps(CONFIG))
write("words/tokenizer.json", json.dumps(TOKENIZER))
write("small.txt", "In the beginning was the word. " * 40)
expect("show-begins-with-a-summary", ["ckpt", "show", "words"], 0,
       re.compile(r"KiB\nmodel: llama, 10,848 parameters, 1 block, hidden 32, 2 heads \(1 of keys\), vocabulary 96, context 512\n"
                  r"types: 11 of fp32\ntokenizer: 31 tokens, "))
EVAL = ["--data=small.txt", "--context=16", "--json"]
text = expect("eval-tokenizes", ["eval", "words", *EVAL], 0, ANY)
count = len("In the beginning was the word. ") - 4  # "the" is one token, twice
if text and json.loads(text)["tokens"] > count * 40:
    failures.append(f"eval took bytes: {text}")
model("hundreds", tensors(embed_tokens=[600, 32]), vocab_size=600)
expect("eval-refuses-bytes", ["eval", "hundreds", "--data=small.txt", "--context=16"], 78,
       err=re.compile("small.txt is text, and this model has 600 tokens and no tokenizer beside it: name one with --tokenizer=PATH"))
for vocab in (96, 200):
    small = model(f"vocab-{vocab}", tensors(embed_tokens=[vocab, 32]), vocab_size=vocab)
    take(small)
    write("upper.txt", "IN THE BEGINNING WAS THE WORD. " * 40)
    for name in (small, f"{small}-in"):
        expect(f"eval-refuses-bytes-{name}", ["eval", name, "--data=upper.txt", "--context=16"], 78,
               err=re.compile(f"upper.txt is text, and this model has {vocab} tokens and no tokenizer beside it: name one with --tokenizer=PATH"))
        expect(f"eval-bytes-{name}", ["eval", name, "--data=upper.txt", "--context=16", "--tokenizer=byte"], 0, ANY)
expect("eval-named-tokenizer", ["eval", "hundreds", "--tokenizer=words", *EVAL], 0, ANY)
losses = [json.loads(expect(f"eval-{p}", ["eval", "words", f"--precision={p}", *EVAL], 0, ANY) or "{}").get("loss") for p in ("saved", "bf16", "fp32")]
if losses[0] != losses[2]:
    failures.append(f"eval --precision: {losses}")
expect("sample-foreign", ["sample", "words", "--prompt=the", "--count=2"], 0, re.compile("^the"))
expect("sample-gguf", ["sample", "whole.gguf", "--tokens=1,2", "--count=2", "--precision=fp32"], 0, re.compile(r"^.*\n$", re.S))
expect("sample-bad-precision", ["sample", "words", "--precision=int8"], 64, err=re.compile("--precision=int8: expected saved, fp32, bf16 or fp16"))

# ---- trained on bytes, with a tokenizer of other tokens beside it ----
model("words-300", tensors(embed_tokens=[300, 32]), vocab_size=300)
write("words-300/tokenizer.json", json.dumps(TOKENIZER))
model("vocab-128", tensors(embed_tokens=[128, 32]), vocab_size=128)
for name, warned in (("words-300", r"^\S+ warn eval: words-300-run was trained on bytes, so \S+tokenizer.json is not used; to choose so, give --tokenizer=byte\n$"), ("vocab-128", "^$")):
    expect(f"train-{name}", ["train", MINIMAL, f"run.dir={name}-run", f"init.from={name}", "data.train=small.txt", "run.steps=1", "batch.sequences=2",
                             "batch.context=16", "layout.ranks=1", "layout.threads=1"], 0, ANY, ANY)
    run = ["eval", f"{name}-run", *EVAL]
    found = [json.loads(expect(f"eval-{name}-{i}", words, 0, ANY, re.compile(err)) or "{}")
             for i, (words, err) in enumerate(((run, warned), ([*run, "--tokenizer=byte"], "^$")))]
    if found[0].get("loss") != found[1].get("loss"):
        failures.append(f"eval of {name} took other tokens than bytes: {found}")
    expect(f"eval-{name}-other", [*run[:-1], "--tokenizer=words"], 78,
           err=re.compile(f"^perdure: {name}-run was trained on tokens of another tokenizer \\(byte\\) than words; give --tokenizer=byte\n$"))
finish("foreign")
