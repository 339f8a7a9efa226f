#!/usr/bin/env python3
"""`perdure ckpt import` and `export`: exact words and exit codes, and that what goes out comes in.  convert.py PERDURE SOURCE [NAME...]"""
import glob
import json
import os
import re
import shutil
import struct

from torch_file import torch_save
from expect import finish, ANY, MINIMAL, SOURCE, expect, perdure, report, said, write

write("text.txt", b"In the beginning was the word. " * 4000)
TINY = ["model.preset=byte-1m", "model.layers=2", "model.hidden=64", "model.heads=2", "model.ffn=96", "batch.context=32",
        "model.context=32", "batch.sequences=4", "run.steps=2", "layout.ranks=1", "layout.threads=1", "checkpoint.every=2"]
result = perdure("train", MINIMAL, *TINY)
report("train", [] if result[0] == 0 else ["no checkpoint to export"], result)
MOMENTS = "not exported: moments of the optimizer, which safetensors has no place for\n"

# ---- export ----
expect("export-no-format", ["ckpt", "export", "run", "out"], 64,
       err=re.compile(r"^perdure: choose a format: --format=safetensors; there are safetensors, "))
expect("export-unknown-format", ["ckpt", "export", "run", "out", "--format=zip"], 64,
       err=re.compile(r"^perdure: --format=zip: expected one of safetensors, "))
expect("export-our-format", ["ckpt", "export", "run", "out", "--format=perdure"], 64, err=re.compile("--format=perdure: expected one of"))
expect("export-dtype", ["ckpt", "export", "run", "out", "--format=safetensors", "--dtype=int8"], 64,
       err=said("--dtype=int8: expected fp32, bf16 or fp16"))
expect("export-one-path", ["ckpt", "export", "run", "--format=safetensors"], 64,
       err=re.compile(r"name a checkpoint and the directory to create"))
expect("export-dry-run", ["ckpt", "export", "run", "out", "--format=safetensors", "--dry-run", "--only=layers.0.mlp"], 0,
       re.compile(r"^TENSOR +KIND +TO +TYPE *\n(model\.layers\.0\.mlp\S+ +param +model\.layers\.0\.mlp\S+ +fp32 *\n){3}$"))
report("export-dry-run-writes-nothing", ["out is there"] if os.path.exists("out") else [], (0, "", ""))
expect("export", ["ckpt", "export", "run", "hf", "--format=safetensors"], 0,
       re.compile(r"^hf: safetensors, \d+ tensors in 1 file, .* KiB, .* s\n$"), MOMENTS)
expect("export-again", ["ckpt", "export", "run", "hf", "--format=safetensors"], 64,
       err=MOMENTS + said("hf exists already; name a directory that does not exist yet"))
expect("export-only-nothing", ["ckpt", "export", "run", "none", "--format=safetensors", "--only=xyz"], 64,
       err=re.compile(r"^perdure: --only=xyz: no tensor has that in its name; perdure ckpt stats \S+ lists them\n$"))
expect("export-only", ["ckpt", "export", "run", "norms", "--format=safetensors", "--only=norm"], 0, re.compile("^norms: "), MOMENTS)
expect("export-dcp", ["ckpt", "export", "run", "dcp", "--format=dcp"], 0, re.compile(r"^dcp: dcp, \d+ tensors in 1 file, "))
expect("export-nowhere", ["ckpt", "export", "run", "no/where", "--format=dcp"], 78, err=re.compile("the directory above no/where does not exist"))
expect("export-gguf", ["ckpt", "export", "run", "m.gguf", "--format=gguf"], 0, re.compile(r"^m.gguf: gguf, \d+ tensors in 1 file, "),
       MOMENTS.replace("safetensors", "gguf"))
expect("export-gguf-again", ["ckpt", "export", "run", "m.gguf", "--format=gguf"], 64,
       err=MOMENTS.replace("safetensors", "gguf") + said("m.gguf exists already; name a file that does not exist yet"))
expect("export-gguf-same-state", ["ckpt", "diff", "hf", "m.gguf"], 0, re.compile(r"\n0 of \d+ arrays differ\n$"))
expect("export-gguf-q8", ["ckpt", "export", "run", "q8.gguf", "--format=gguf", "--dtype=q8_0"], 0, re.compile("^q8.gguf: "), ANY)
expect("export-q8-elsewhere", ["ckpt", "export", "run", "out", "--format=dcp", "--dtype=q8_0"], 64,
       err=said("--dtype=q8_0: expected fp32, bf16 or fp16"))
expect("export-gguf-types", ["ckpt", "export", "run", "out", "--format=gguf", "--dtype=q8_0", "--dry-run", "--only=blk.0"], 0,
       re.compile(r"\S+input_layernorm\S+ +param +blk\.0\.attn_norm\.weight +fp32 *\n.* blk\.0\.attn_q\.weight +q8_0 *\n", re.S))
report("export-gguf-leaves-files", [] if os.path.isfile("m.gguf") and not glob.glob("*.exporting") else glob.glob("*"), (0, "", ""))
expect("import-gguf", ["ckpt", "import", "m.gguf", "in-gguf", "--fresh-optimizer"], 0, ANY)
write("run/tokenizer.json", b'{"model":{"type":"Unigram","vocab":[]}}')
expect("export-gguf-unigram", ["ckpt", "export", "run", "unigram.gguf", "--format=gguf"], 0, ANY, MOMENTS.replace("safetensors", "gguf") +
       "the tokenizer is stored as tokenizer.huggingface.json, which llama.cpp does not read: tokenizer.json: model.type Unigram is not supported; BPE is\n")
expect("import-gguf-unigram", ["ckpt", "import", "unigram.gguf", "in-unigram", "--fresh-optimizer"], 0, ANY)
expect("sample-unigram", ["sample", "in-unigram", "--prompt=In"], 78, err=re.compile("in-unigram/tokenizer.gguf: model.type Unigram is not supported; BPE is"))
os.remove("run/tokenizer.json")
texts = [expect(f"sample-{name}", ["sample", name, "--prompt=In", "--count=8", "--temperature=0", "--json"], 0, ANY) for name in ("run", "in-gguf")]
if all(texts):
    tokens = [json.loads(text)["tokens"] for text in texts]
    report("import-gguf-same-tokens", [] if tokens[0] == tokens[1] else [str(tokens)], (0, "", ""))

def go_round(name, source, form, words):
    """Out, in under another layout, and the same state again; both sides compare as they are too."""
    expect(f"{name}-export", ["ckpt", "export", source, name, f"--format={form}"], 0, re.compile(words))
    expect(f"{name}-import", ["ckpt", "import", name, f"{name}-in", "--layout=dp=3,tp=2"], 0,
           re.compile(rf": step 2 from {form}, under dp 3, tp 2, "), re.compile("^(not imported: _extra_state .*\\n)?$"))
    expect(f"{name}-same-state", ["ckpt", "diff", source, f"{name}-in"], 0, re.compile(r"\n0 of \d+ arrays differ\n$"))
    expect(f"{name}-same-as-it-lies", ["ckpt", "diff", source, name], 0, re.compile(rf"^perdure and {form}\n0 of \d+ arrays differ\n$"))


go_round("universal", "run", "universal", r"^universal: universal, \d+ tensors in \d+ files, ")
go_round("megatron", "run", "megatron", r"^megatron: megatron, \d+ tensors in 1 file, ")
expect("megatron-dtype", ["ckpt", "export", "run", "none", "--format=megatron", "--dtype=bf16"], 78, err=re.compile("and rounds them itself: leave out --dtype\n$"))
with open("megatron/latest_checkpointed_iteration.txt") as file:
    report("megatron-tracker", [] if file.read() == "2" else ["latest_checkpointed_iteration.txt"], (0, "", ""))
expect("megatron-iteration", ["ckpt", "diff", "-q", "run", "megatron/iter_0000002"], 0)
os.remove("megatron/iter_0000002/config.json")  # its arguments say the model too
expect("megatron-arguments", ["ckpt", "import", "megatron", "megatron-arguments"], 0, ANY, "not imported: _extra_state (of fp8) of 16 modules\n")
common = "megatron/iter_0000002/common.pt"
with open(common, "rb") as file:
    plain = file.read()
write(common, plain.replace(b"norm_epsilon", b"squared_relu"))  # an argument that is as long, and not 0
expect("megatron-other-arguments", ["ckpt", "import", "megatron", "none"], 78,
       err=re.compile("perdure does not know the key megatron.squared_relu \\(1e-05\\)"))
write(common, plain)
os.remove("megatron/iter_0000002/.metadata")
expect("megatron-no-metadata", ["ckpt", "import", "megatron", "none"], 78, err=re.compile("megatron is of Megatron, and the iteration .* has no .metadata"))
expect("universal-dtype", ["ckpt", "export", "run", "none", "--format=universal", "--dtype=bf16"], 78,
       err=said("universal checkpoints hold fp32 only, and DeepSpeed rounds them itself: leave out --dtype"))
with open("universal/latest_universal") as file:
    report("universal-tag", [] if file.read() == "global_step2" else ["latest_universal"], (0, "", ""))

# ---- what a checkpoint of another program, or of another name, is to commands that take ours ----
for name, command, code in (("ls", "ls", 0), ("verify", "verify", 65)):
    told = re.compile(r"/hf is a checkpoint of another program \(safetensors\), and this command reads only perdure.s: perdure ckpt import ")
    expect(f"{name}-of-another-system", ["ckpt", command, "hf"], code, *((told,) if code == 0 else ("", told)))
expect("sample-of-another-system", ["sample", "hf", "--prompt=In", "--count=0"], 0, re.compile("^In"))
shutil.copytree(glob.glob("run/checkpoints/step-*")[-1], "renamed")
expect("show-no-step", ["ckpt", "show", "run", "--step=9"], 65, err=re.compile("no valid checkpoint of step 9; there is step 2\n$"))
expect("verify-renamed", ["ckpt", "verify", "renamed"], 65, err=re.compile(r"/renamed is a checkpoint without the name that its save gave it"))

# ---- import ----
expect("import-missing", ["ckpt", "import", "absent", "in"], 78, err=said("absent does not exist; name a file or a directory of another program"))
if help_text := expect("import-help", ["ckpt", "import", "--help"], 0, ANY):
    report("import-help-lists-formats", [name for name in ("safetensors", "megatron", "dcp", "deepspeed", "universal", "gguf", "llmc", "torch")
                                         if not re.search(rf"^  {name} +\S", help_text, re.M)], (0, help_text, ""))
    listed = help_text.split("Formats:\n")[1].splitlines()
    report("import-help-a-line-each", [line for line in listed if not line.startswith("  ")], (0, help_text, ""))
for name, place in (("run", "run"), ("directory", "run/checkpoints"), ("checkpoint", glob.glob("run/checkpoints/step-*")[-1])):
    expect(f"import-of-our-{name}", ["ckpt", "import", place, "in"], 64, err=re.compile(f"^perdure: {place} is perdure's own: a run resumes from it"))
expect("import-unknown", ["ckpt", "import", "text.txt", "in"], 78,
       err=re.compile(r"^perdure: text.txt is a file in no format that perdure reads \(safetensors, megatron, dcp, .*torch\): .* --help` lists .*\n$"))
expect("import-no-moments", ["ckpt", "import", "hf", "in-model"], 0, re.compile(r": step 0 from .*\n40 arrays of moments begin at zero\nweights are fp32; train, .* compute in bf16 .*\n$"))
expect("import-dry-run", ["ckpt", "import", "hf", "in", "--dry-run"], 0,
       re.compile(r"^TENSOR +KIND +FROM +TYPE *\n(.*\n)*model\.norm\.weight +param +model\.norm\.weight +fp32 *\n"))
result = perdure("train", MINIMAL, *TINY, "run.dir=deep", "model.layers=6", "run.steps=1", "checkpoint.every=1")
report("train-deep", [] if result[0] == 0 else ["no checkpoint of more blocks than models have by default"], result)
expect("export-deep", ["ckpt", "export", "deep", "deep-hf", "--format=safetensors"], 0, ANY, ANY)
for name, layout, under in (("stages", "pp=6", "dp 1, tp 1, pp 6, sp 1"), ("ranks", "dp=20", "dp 20, tp 1, pp 1, sp 1")):
    expect(f"import-{name}", ["ckpt", "import", "deep-hf", f"deep-{name}", "--fresh-optimizer", f"--layout={layout}"], 0, re.compile(f", under {under}, "))
expect("import-too-many-stages", ["ckpt", "import", "hf", "in", "--fresh-optimizer", "--layout=pp=4"], 78,
       err=re.compile("layout.pp 4 x layout.interleave 1 is 4 pipeline stages, but the model has 2 blocks; use layout.pp=2 at most, with layout.interleave=1\n$"))
expect("import-no-power", ["ckpt", "import", "hf", "in", "--fresh-optimizer", "--layout=tp=6"], 78, err=said("--layout: tp=6 must be a power of two"))
expect("reshard-no-power", ["ckpt", "reshard", "run", "in", "--layout=tp=3"], 78, err=re.compile("--layout: tp=3 "))
expect("reshard-beyond", ["ckpt", "reshard", "deep-stages", "in", "--layout=tp=2"], 78, err=said(
    "--layout: tp=2 does not divide numerics.virtual_tp of the checkpoint, 1, on which its bits depend; take a divisor of it"))
for command, words in (("import", ["--fresh-optimizer"]), ("export", ["--format=dcp", "--fresh-optimizer"]), ("reshard", ["--layout=dp=1"])):
    source = "run" if command == "reshard" else "hf"
    expect(f"{command}-under-a-file", ["ckpt", command, source, "text.txt/in", *words], 78,
           err=said("the parent of text.txt/in is not a directory; name another place"))
shard = glob.glob("run/checkpoints/step-*/shard-00000.h5")[-1]
for name, file, form in (("distcp", glob.glob("dcp/*.distcp")[0], "dcp"), ("config", "hf/config.json", "safetensors"), ("shard", shard, "perdure")):
    expect(f"import-one-file-{name}", ["ckpt", "import", file, "in"], 78, err=said(
        f"{file} is one file of a checkpoint ({form}) that is a directory; name that: {os.path.dirname(file)}"))
with open("m.gguf", "rb") as file:
    write("cut.gguf", file.read(400))
expect("import-cut-gguf", ["ckpt", "import", "cut.gguf", "in", "--fresh-optimizer"], 65, err=re.compile("^perdure: cut.gguf: .*(cut short|ends)"))
shutil.copytree("dcp", "bare", ignore=shutil.ignore_patterns("*.json"))
expect("import-no-model", ["ckpt", "import", "bare", "in"], 78,
       err=said("bare does not say which model it is; give the config.json of transformers, or a configuration of a run with its model section: --config=run.yaml"))
expect("import-part", ["ckpt", "import", "norms", "in", "--fresh-optimizer"], 78, err=re.compile("^perdure: norms"))
expect("import-onto-file", ["ckpt", "import", "hf", "text.txt", "--fresh-optimizer"], 64,
       err=said("text.txt is not a directory; name one for the checkpoint"))
expect("import-layout", ["ckpt", "import", "hf", "in", "--fresh-optimizer", "--layout=dp=x"], 64, err=said('--layout: "x" is not a number up to 65536; write --layout=dp=4,tp=2'))
report("import-refused-makes-nothing", ["in is there"] if os.path.exists("in") else [], (0, "", ""))
expect("import", ["ckpt", "import", "hf", "in", "--fresh-optimizer", "--layout=dp=2,tp=2"], 0,
       re.compile(r"^\S+/in/step-000000000000-1: step 0 from safetensors, under dp 2, tp 2, pp 1, sp 1, .* in 4 shards, .* s\n"
                  r"\d+ arrays of moments begin at zero\nweights are fp32; .*\n$"))
expect("import-again", ["ckpt", "import", "hf", "in", "--fresh-optimizer"], 64,
       err=re.compile(r"/in holds checkpoints already; name another directory"))
expect("import-verifies", ["ckpt", "verify", "in"], 0, re.compile(r"^ok: .*, 0 findings\n$"))
expect("import-shown", ["ckpt", "show", "in"], 0, re.compile(r"\nstep        0, lineage 0, "))
shutil.copy("hf/config.json", "theirs.json")
expect("import-model-file", ["ckpt", "import", "bare", "in-bare", "--config=theirs.json", "--layout=tp=2"], 0, re.compile(", under dp 1, tp 2, "))
expect("import-model-file-same-state", ["ckpt", "diff", "dcp", "in-bare"], 0, re.compile(r"\n0 of \d+ arrays differ\n$"))
torch_save("hf/model.safetensors", "trainer.pt", "model_state_dict")
expect("import-torch-nested", ["ckpt", "import", "trainer.pt", "in-nested", "--config=theirs.json", "--fresh-optimizer"], 0, re.compile(" from torch, "),
       "not imported: step\nnot imported: optimizer\n")
expect("import-torch-nested-same-state", ["ckpt", "diff", "trainer.pt", "hf"], 0, re.compile(r"^torch and safetensors\n0 of \d+ arrays differ\n$"))
expect("import-no-model-file", ["ckpt", "import", "bare", "in-bare2", "--config=absent.json"], 78, err=re.compile("absent.json"))
config = write("model.yaml", "run: {dir: other}\ndata: {train: text.txt}\nmodel: {preset: byte-1m, layers: 2, hidden: 64, heads: 2, ffn: 96, context: 32}\n"
               "batch: {context: 32, sequences: 4}\n")
text = expect("import-dcp-json", ["ckpt", "import", "dcp", "in-dcp", f"--config={config}", "--compression=zstd:1", "--json"], 0, ANY)
if text:
    said_of = json.loads(text)
    good = said_of["format"] == "dcp" and said_of["zeroed"] == 0 and said_of["bytes_read_back"] > 0
    report("import-dcp-json-content", [] if good else ["format, zeroed or bytes"], (0, text, ""))
expect("import-dcp-same-state", ["ckpt", "diff", "run", "in-dcp"], 0, re.compile(r"\n0 of \d+ arrays differ\n$"))

# ---- out again, and on ----
expect("export-of-import", ["ckpt", "export", "in", "hf2", "--format=safetensors"], 0, re.compile("^hf2: "), MOMENTS)
with open("hf/model.safetensors", "rb") as a, open("hf2/model.safetensors", "rb") as b:
    report("export-of-import-same-bytes", [] if a.read() == b.read() else ["model.safetensors differs"], (0, "", ""))
os.makedirs("other")
os.rename("in-dcp", "other/checkpoints")
expect("train-onto-import", ["train", config, "run.dir=other", "run.steps=4", "layout.ranks=1", "layout.threads=1"], 0, ANY,
       re.compile("resumed at step 2"))
text = expect("train-onto-import-ls", ["ckpt", "ls", "other", "--json"], 0, ANY)
if text:
    lineages = [(row["step"], row["lineage"]) for row in json.loads(text)]
    report("train-onto-import-lineage", [] if lineages[0] == (4, 1) and (2, 0) in lineages else [str(lineages)], (0, text, ""))

# ---- train from it ----
small = write("from.yaml", "run: {dir: begun, steps: 2}\ndata: {train: text.txt}\ninit: {from: hf}\nbatch: {context: 32, sequences: 4}\n")
expect("train-from", ["train", small, "layout.ranks=1", "layout.threads=1"], 0, ANY, re.compile(r"importing hf\n(.*\n)*.*resumed at step 0, "))
expect("train-from-again", ["train", small, "run.steps=3", "layout.ranks=1", "layout.threads=1"], 0, ANY, re.compile("resumed at step 2, "))
expect("train-from-lists", ["ckpt", "ls", "begun"], 0, re.compile(r"\nstep-000000000000-1 +0 +0 +1 +1 +0 +- +\S+ \S+\n"))
expect("train-from-shows", ["ckpt", "show", "begun", "--step=0"], 0, re.compile(r"\nloss        -\n"))
os.rename("hf", "gone")  # a run that has begun does not need it
expect("train-from-gone", ["train", small, "run.steps=4", "layout.ranks=1", "layout.threads=1"], 0, ANY, re.compile("resumed at step 3, "))
os.rename("gone", "hf")
expect("train-from-absent", ["train", small, "run.dir=never", "init.from=nothing"], 78,
       err=said("init.from: nothing does not exist; name a file or a directory of another program"))
expect("train-from-ours", ["train", small, "run.dir=never", "init.from=run"], 78,
       err=said("init.from: run is perdure's own: a run resumes from it, and perdure ckpt reshard rewrites it"))
expect("train-from-one-file", ["train", small, "run.dir=never", "init.from=hf/config.json"], 78,
       err=said("init.from: hf/config.json is one file of a checkpoint (safetensors) that is a directory; name that: hf"))

# ---- a run continues after the samples of what it began from: 2 steps of 4 ----
for form, samples, words in (("dcp", 16, "sample 16, which is its steps times batch.sequences"), ("universal", 8, "sample 8, as its system counted")):
    expect(f"train-from-{form}", ["train", small, f"run.dir=from-{form}", f"init.from={form}", "run.steps=3", "batch.sequences=8", "layout.ranks=1",
                                  "layout.threads=1"], 0, ANY, re.compile(f"imported at step 2: the data continues after {words}"))
    text = expect(f"train-from-{form}-shows", ["ckpt", "show", f"from-{form}", "--json"], 0, ANY)
    if text:
        report(f"train-from-{form}-samples", [] if json.loads(text)["samples"] == samples + 8 else ["samples"], (0, text, ""))

# ---- a model that comes with its tokenizer remembers it ----
shutil.copytree("hf", "with-tokenizer")
write("with-tokenizer/tokenizer.json", '{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},'
      '"model":{"type":"BPE","vocab":{"I":0,"n":1,"In":2},"merges":["I n"]}}')
expect("import-tokenizer", ["ckpt", "import", "with-tokenizer", "in-tokenizer", "--fresh-optimizer"], 0, ANY)
expect("import-tokenizer-same", ["sample", "in-tokenizer", "--prompt=In", "--count=1"], 0, ANY, re.compile(r"\A(?!(.|\n)*warn )"))
expect("import-tokenizer-other", ["sample", "in-tokenizer", "--prompt=In", "--count=1", "--tokenizer=byte"], 0, ANY,
       re.compile("byte is not the tokenizer that the model was trained with"))
expect("export-tokenizer-same", ["ckpt", "export", "in-tokenizer", "same", "--format=safetensors"], 0, ANY, MOMENTS)
for name, words, change in (("other", "the exported tokenizer is not the one the model was trained with", lambda path: write(path, open(path).read().replace(
        '"In":2},"merges":["I n"]', '"nI":2},"merges":["n I"]'))), ("gone", "not exported: the tokenizer that the model was trained with", os.remove)):
    change("in-tokenizer/tokenizer.json")
    expect(f"export-tokenizer-{name}", ["ckpt", "export", "in-tokenizer", f"tokenizer-{name}", "--format=safetensors"], 0, ANY, re.compile("^" + words, re.M))
expect("train-on-other-tokens", ["train", small, "run.dir=others", "init.from=with-tokenizer", "layout.ranks=1", "layout.threads=1"], 0, ANY,
       re.compile("the checkpoint was trained on tokens of another tokenizer"))

# ---- show, stats, diff of any format ----
expect("show-foreign", ["ckpt", "show", "hf"], 0,
       re.compile(r"^hf: safetensors, \d+ tensors in 1 file, .*\nmodel: llama, 86,336 parameters, 2 blocks, .* vocabulary 256, context 32\ntypes: 20 of fp32\nwith config.json, .*\nwith generation_config.json, .*\nTENSOR "))
text = expect("show-foreign-json", ["ckpt", "show", "dcp", "--json"], 0, ANY)
if text:
    shown = json.loads(text)
    good = shown["format"] == "dcp" and {"tensor", "kind", "type", "shape"} == set(shown["tensors"][0])
    report("show-foreign-json-content", [] if good else ["format or tensors"], (0, text, ""))
text = expect("stats-foreign-json", ["ckpt", "stats", "hf", "--json", "--tensor=norm"], 0, ANY)
ours = expect("stats-ours-json", ["ckpt", "stats", "run", "--json", "--tensor=norm"], 0, ANY)
if text and ours:
    digests = [{row["tensor"]: (row["digest"], row["rms"]) for row in json.loads(t)["tensors"] if row["kind"] == "param"} for t in (text, ours)]
    same = all(digests[0][name][0] == digests[1][name][0] for name in digests[0]) and len(digests[0]) == len(digests[1])
    report("stats-same-digests", [] if same else ["digests differ"], (0, text, ""))
expect("diff-formats-same", ["ckpt", "diff", "run", "dcp"], 0, re.compile(r"^perdure and dcp\n0 of \d+ arrays differ\n$"))
expect("diff-formats-moments", ["ckpt", "diff", "run", "hf"], 65,
       re.compile(r"^perdure and safetensors\n(\d+) arrays of moments only in the first\n\1 of \d+ arrays differ\n$"), re.compile("hold different state"))
expect("export-bf16", ["ckpt", "export", "run", "half", "--format=safetensors", "--dtype=bf16"], 0, re.compile("^half: "), MOMENTS)
expect("diff-formats-rounded", ["ckpt", "diff", "hf", "half"], 65,
       re.compile(r"\nmodel.embed_tokens.weight +param +different +\S+ of \S+ +[\d.e-]+ +0 "), re.compile("hf and half hold different state"))
for command in ("show", "stats"):
    expect(f"{command}-foreign-step", ["ckpt", command, "hf", "--step=2"], 64,
           err=said("--step=2: hf is one checkpoint (safetensors); leave it out"))
with open("hf/config.json") as file:
    expect("show-foreign-config", ["ckpt", "show", "hf", "--config"], 0, file.read())
expect("show-foreign-no-config", ["ckpt", "show", "trainer.pt", "--config"], 78,
       err=said("trainer.pt does not say which model it is; leave out --config to see its tensors"))
expect("stats-foreign-none", ["ckpt", "stats", "hf", "--tensor=xyz"], 64,
       err=said('no tensor has "xyz" in its name; leave --tensor out to see all'))
expect("diff-part", ["ckpt", "diff", "norms", "hf"], 65, re.compile(r"^safetensors and safetensors\nTENSOR .*\n(model\.\S+ +param +only in the second *\n)+"
       r"\d+ of \d+ arrays differ\n$"), re.compile("norms and hf hold different state"))
expect("import-part", ["ckpt", "import", "norms", "in", "--fresh-optimizer"], 78, err=re.compile(
    r"^perdure: norms: no tensor is a token embedding of a llama by any known system's names; it has 5 tensors, the first is \S+norm.weight; "
    r"perdure ckpt show lists what it has, and --config=FILE describes another model\n$"))
for name in ("transformers/llama", "transformers/qwen3", "transformers/gpt2", "llmc"):
    golden, made = os.path.join(SOURCE, "tests/golden/formats", name), f"golden-{os.path.basename(name)}"
    expect(f"{made}-import", ["ckpt", "import", golden, made, "--fresh-optimizer", "--layout=dp=3,tp=2"], 0, ANY,
           "not imported: 28 rows of tensor wte beyond the vocabulary of 100\n" if name == "llmc" else "")
    expect(f"{made}-same", ["ckpt", "diff", golden, made], 65, re.compile(
        r"^\S+ and perdure\n(\d+) arrays of moments only in the second\n\1 of \d+ arrays differ\n$"), ANY)
expect("diff-foreign-same", ["ckpt", "diff", "hf", "hf2"], 0, re.compile(r"^safetensors and safetensors\n0 of "))

# ---- GPT-2: matrices lie turned, q, k and v in one ----
result = perdure("train", MINIMAL, *TINY, "run.dir=gpt2", "model.family=gpt2")
report("gpt2-train", [] if result[0] == 0 else ["no checkpoint to export"], result)
expect("gpt2-export", ["ckpt", "export", "gpt2", "gpt2-hf", "--format=safetensors"], 0, ANY, ANY)
expect("gpt2-import", ["ckpt", "import", "gpt2-hf", "gpt2-in", "--fresh-optimizer", "--layout=dp=3,tp=2"], 0, ANY, ANY)
text = expect("gpt2-diff-json", ["ckpt", "diff", "gpt2", "gpt2-in", "--json"], 65, ANY, ANY)
if text:
    kinds = {row["kind"] for row in json.loads(text)["differences"]}
    report("gpt2-same-parameters", [] if kinds == {"exp_avg", "exp_avg_sq"} else [f"{kinds} differ"], (0, "", ""))
expect("gpt2-diff-turned", ["ckpt", "diff", "gpt2-in", "gpt2-hf", "-q"], 65)
text = expect("gpt2-show", ["ckpt", "show", "gpt2-hf"], 0, re.compile(r"attn.c_attn.weight +param +fp32 +64 x 192\b"))

# ---- llm.c: GPT-2 of whose MLP the width is four times the model's ----
result = perdure("train", MINIMAL, *TINY, "run.dir=gpt2c", "model.family=gpt2", "model.ffn=256")
report("llmc-train", [] if result[0] == 0 else ["no checkpoint to export"], result)
go_round("llmc", "gpt2c", "llmc", r"^llmc: llmc, 48 tensors in 1 file, ")
expect("llmc-bf16", ["ckpt", "export", "gpt2c", "llmc16", "--format=llmc", "--dtype=bf16"], 0, ANY)
with open("llmc/model_00000002.bin", "rb") as whole, open("llmc16/model_00000002.bin", "rb") as half, open("llmc16/state_00000002_00000.bin", "rb") as state:
    header, values = struct.unpack("<256i", whole.read(1024)), whole.read()
    half_header, rounded = struct.unpack("<256i", half.read(1024)), half.read()
    state_header, moments = struct.unpack("<256i", state.read(1024)), state.read()
report("llmc-header", [] if header[:8] == (20240326, 3, 32, 256, 2, 2, 64, 256) and half_header[:8] == (20240326, 5, *header[2:8]) else [str(header[:8])], (0, "", ""))
report("llmc-state", [] if state_header[:5] == (20240527, 1, 1, 0, 1) and state_header[10] == 2 and moments[2 * len(values):] == values
       else ["fp32 parameters of the state"], (0, "", ""))
to_even = b"".join(struct.pack("<H", (b + 0x7FFF + (b >> 16 & 1)) >> 16) for b, in struct.iter_unpack("<I", values))
report("llmc-rounds", [] if to_even == rounded else ["bf16 of the model's file"], (0, "", ""))
expect("llmc-only", ["ckpt", "export", "gpt2c", "none", "--format=llmc", "--only=wte"], 78, err=said("files of llm.c hold a whole model: leave out --only"))
expect("llmc-fp16", ["ckpt", "export", "gpt2c", "none", "--format=llmc", "--dtype=fp16"], 78, err=said("llm.c has models in fp32 or bf16, not in fp16"))
expect("llmc-width", ["ckpt", "export", "gpt2", "none", "--format=llmc"], 78, err=said("llm.c's models have another shape of fcw than this one"))
expect("llmc-family", ["ckpt", "export", "run", "none", "--format=llmc"], 78, err=said("llmc has no names for models of family llama; take another format"))
report("llmc-refused-makes-nothing", glob.glob("none*"), (0, "", ""))

# ---- damage: an error that names the file, and no output ----
with open("hf/model.safetensors", "rb") as file:
    whole = file.read()
header = struct.unpack("<Q", whole[:8])[0]
for name, damaged in (("short", whole[:len(whole) // 2]), ("length", b"\xff" * 8 + whole[8:]), ("json", whole[:9] + b"!" + whole[10:]),
                      ("offsets", whole.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1))):
    os.makedirs(f"bad-{name}")
    write(f"bad-{name}/model.safetensors", damaged)
    write(f"bad-{name}/config.json", open("hf/config.json").read())
    expect(f"import-damaged-{name}", ["ckpt", "import", f"bad-{name}", "never", "--fresh-optimizer"], 65,
           err=re.compile(f"^perdure: .*bad-{name}/model.safetensors"))
def shard(name, file):
    os.makedirs(name)
    shutil.copy("hf/config.json", name)
    write(f"{name}/model.safetensors.index.json", json.dumps({"weight_map": {"model.norm.weight": "a.safetensors", "x": file}}).encode())
    tensor = b'{"model.norm.weight":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}'
    write(f"{name}/a.safetensors", struct.pack("<Q", len(tensor)) + tensor + bytes(256))


shard("painted", "\x1b[2J")
expect("import-control-characters", ["ckpt", "import", "painted", "never", "--fresh-optimizer"], 78, err=re.compile(r"^perdure: painted/\?\[2J "))
shard("missing", "b.safetensors")
expect("import-missing-shard", ["ckpt", "import", "missing", "never", "--fresh-optimizer"], 78, err=said(
    "missing/b.safetensors does not exist, and model.safetensors.index.json names tensors in it: copy all files of the model"))
shard("lacking", "a.safetensors")
expect("import-lacking-shard", ["ckpt", "import", "lacking", "never", "--fresh-optimizer"], 65,
       err=said("lacking/a.safetensors should, by model.safetensors.index.json, have tensor x, and does not; fetch it again, or take another copy"))
report("import-damaged-makes-nothing", ["never is there"] if os.path.exists("never") else [], (0, "", ""))

finish("convert")
