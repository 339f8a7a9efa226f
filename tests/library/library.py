#!/usr/bin/env python3
"""libperdure as a program meets it: installed, found by pkg-config and by CMake, linked shared and static, run.

library.py BUILD PERDURE: installs BUILD's library, compiles the examples against it with a C99 compiler, and runs them on checkpoints of
several programs, under valgrind too. Compares the exported symbols with the header."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

BUILD, PERDURE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
GOLDEN = os.path.join(TOP, "tests", "golden", "formats")
EXAMPLES = os.path.join(TOP, "tools", "library", "examples")


def run(*words, code=0, environment=None, cwd=None):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=cwd, env={**os.environ, **(environment or {})})
    if code is not None and result.returncode != code:
        sys.exit(f"{' '.join(map(str, words))}: exit {result.returncode}, not {code}\n{result.stdout}{result.stderr}")
    return result


def same(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r} is not {want!r}")


def check_symbols(prefix):
    """The shared library exports the functions of the header, exactly; the static one has no other global definitions."""
    with open(os.path.join(prefix, "include", "perdure.h"), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    declared = sorted(set(re.findall(r"\b(perdure_\w+)\(", re.sub(r"#.*", "", text))) - set(re.findall(r"\(\*(perdure_\w+)\)", text)))
    for words in (["-D", "libperdure.so"], ["libperdure.a"]):
        listed = run("nm", "--defined-only", "--extern-only", *words[:-1], os.path.join(prefix, "lib", words[-1])).stdout
        found = sorted(line.split()[2].split("@")[0] for line in listed.splitlines() if len(line.split()) == 3 and line.split()[1] != "A")
        same(words[-1], found, declared)
    needed = run("readelf", "-d", os.path.join(prefix, "lib", "libperdure.so")).stdout
    for name in ("libmpi", "libcuda", "libcublas"):
        if name in needed:
            sys.exit(f"libperdure.so needs {name}")
    print(f"{len(declared)} symbols, those of the header")


def compile_all(prefix, directory):
    """Returns {name: program}, each example linked with what pkg-config says, shared and static."""
    environment = {"PKG_CONFIG_PATH": os.path.join(prefix, "lib", "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "perdure", environment=environment).stdout.split()
    private = run("pkg-config", "--libs", "--static", "perdure", environment=environment).stdout.split()
    include, hdf5 = f"-I{prefix}/include", run("pkg-config", "--libs-only-L", "hdf5", code=None).stdout.split()
    programs = {}
    for name in sorted(os.listdir(EXAMPLES)):
        path, program = os.path.join(EXAMPLES, name), os.path.join(directory, name[:-2])
        with open(path, encoding="utf-8") as f:
            lines = f.read().count("\n")
        if lines >= 60:
            sys.exit(f"{name} has {lines} lines, and an example has fewer than 60")
        strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
        run("cc", *strict, path, *flags, f"-Wl,-rpath,{prefix}/lib", "-o", program)
        run("cc", *strict, path, include, f"{prefix}/lib/libperdure.a", *[word for word in private if word != "-lperdure"], *hdf5, "-o", program + "-static")
        programs[name[:-2]] = program
    run("c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-fsyntax-only", include, os.path.join(prefix, "include", "perdure.h"))
    for name in ("rounds", "copy"):
        run("cc", "-std=gnu17", "-O1", "-g", os.path.join(HERE, f"{name}.c"), *flags, f"-Wl,-rpath,{prefix}/lib", "-pthread", "-o", os.path.join(directory, name))
    return programs


def check_cmake(prefix, directory):
    """A project of somebody else's finds the package."""
    os.makedirs(os.path.join(directory, "project"))
    with open(os.path.join(directory, "project", "CMakeLists.txt"), "w", encoding="utf-8") as f:
        f.write("cmake_minimum_required(VERSION 3.16)\nproject(somebody C)\nfind_package(perdure 0.1 REQUIRED)\n"
                f"add_executable(look {EXAMPLES}/look.c)\ntarget_link_libraries(look PRIVATE perdure::libperdure)\n")
    run("cmake", "-S", os.path.join(directory, "project"), "-B", os.path.join(directory, "out"), f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", os.path.join(directory, "out"))
    return os.path.join(directory, "out", "look")


def check_look(look, ours):
    llama = os.path.join(GOLDEN, "transformers", "llama")
    for path, first in ((llama, "safetensors, step 0, 20 tensors, 18240 bytes"), (os.path.join(GOLDEN, "dcp"), "dcp, step 9, 16 tensors, 10384 bytes"),
                        (os.path.join(GOLDEN, "golden.gguf"), "gguf, step 0, 6 tensors, 24096 bytes"),
                        (os.path.join(GOLDEN, "plain.pt"), "torch, step 0, 3 tensors, 168 bytes"),
                        (os.path.join(GOLDEN, "deepspeed", "zero3"), None), (os.path.join(GOLDEN, "megatron", sorted(os.listdir(os.path.join(GOLDEN, "megatron")))[0]), None)):
        out = run(look, path).stdout.splitlines()
        if first:
            same(path, out[0], f"{path}: {first}")
        if len(out) < 3:
            sys.exit(f"{path}: {out}")
    same("ours", run(look, ours).stdout.splitlines()[0].split(": ")[1], "perdure, step 0, 60 tensors, 54720 bytes")
    same("a tensor", run(look, ours, "model.embed_tokens.weight").stdout, run(look, llama, "model.embed_tokens.weight").stdout)
    result = run(look, ours + "/nothing", code=1)
    same("an error", (result.stdout, result.stderr), ("", f"{ours}/nothing does not exist; name a run, a checkpoint, or one of another program\n"))


def check_damage(look, ours, directory):
    """A flipped byte is an error that names file, tensor and block, and nothing is printed but by the example."""
    bad = os.path.join(directory, "bad")
    shutil.copytree(ours, bad)
    step = next(name for name in os.listdir(bad) if name.startswith("step-"))
    path = os.path.join(bad, step, "shard-00000.h5")
    first = [float(line) for line in run(look, ours, "model.embed_tokens.weight").stdout.splitlines()[:4]]
    with open(path, "r+b") as f:
        at = f.read().index(struct.pack("<4f", *first))
        f.seek(at + 3)
        f.write(b"\x55")
    result = run(look, bad, "model.embed_tokens.weight", code=1)
    if not re.search(r"shard-00000.h5: tensor model.embed_tokens.weight, param, block 0 of 1 .*checksum", result.stderr) or result.stdout:
        sys.exit(f"damage: {result.stdout} {result.stderr}")
    run(look, bad, "model.norm.weight")


def check_save(save, look, directory):
    """Tensors that a program lists: saved, read back, and seen by the commands and by HDF5's."""
    listed = os.path.join(directory, "listed")
    same("save", run(save, listed).stdout, '7 anything, kept as it is {"by": "an example"}\n')
    same("look", run(look, listed).stdout.splitlines()[1:], ["layer.weight fp32 (4, 8)", "layer.weight fp32 (4, 8)", "step uint64 ()", "loader state uint8 (24)"])
    same("ls", [row["step"] for row in json.loads(run(PERDURE, "ckpt", "ls", listed, "--json").stdout)], [2, 1])
    run(PERDURE, "ckpt", "verify", listed)
    shown = json.loads(run(PERDURE, "ckpt", "show", listed, "--json").stdout)
    same("show", [(row["tensor"], row["kind"], row["type"]) for row in shown["tensors"]],
         [("layer.weight", "param", "fp32"), ("layer.weight", "exp_avg", "fp32"), ("step", "param", "uint64"), ("loader~20state", "param", "uint8")])
    same("metadata", run(PERDURE, "ckpt", "show", listed, "--config").stdout, '{"by": "an example"}')
    first, second = (os.path.join(listed, name) for name in sorted(os.listdir(listed)) if name.startswith("step-"))
    differing = json.loads(run(PERDURE, "ckpt", "diff", first, second, "--json", code=65).stdout)["differences"]
    same("diff", [(row["tensor"], row["kind"], row["differing"]) for row in differing],
         [("layer.weight", "param", 1), ("layer.weight", "exp_avg", 1), ("step", "param", 1)])
    for words, part in ((["ckpt", "reshard", listed, os.path.join(directory, "never"), "--layout=dp=2"], "were listed by a program"),
                        (["sample", listed, "--prompt=a"], "no tensor is a token embedding")):
        result = subprocess.run([PERDURE, *words], capture_output=True, text=True, check=False)
        if not result.returncode or part not in result.stderr:
            sys.exit(f"{words}: exit {result.returncode}: {result.stderr}")
    run(PERDURE, "ckpt", "prune", listed, "--keep-last=1")
    same("pruned", len(json.loads(run(PERDURE, "ckpt", "ls", listed, "--json").stdout)), 1)


def check_readme(directory):
    """The commands of README.md, word for word, in a source tree whose build is the one under test."""
    with open(os.path.join(TOP, "README.md"), encoding="utf-8") as f:
        commands = f.read().split("## Use it from C\n")[1].split("```sh\n")[1].split("```")[0]
    tree = os.path.join(directory, "tree")
    os.makedirs(os.path.join(tree, "runs"))
    for name, target in (("build", BUILD), ("tools", os.path.join(TOP, "tools")), ("runs/mine", os.path.join(GOLDEN, "transformers", "llama"))):
        os.symlink(target, os.path.join(tree, name))
    shown = run("bash", "-ec", commands, cwd=tree, environment={"HOME": tree}).stdout
    if "model.norm.weight" not in shown:
        sys.exit(f"README's commands: {shown}")


def check_convert(convert, look, directory):
    """What a program converts is what the command converts."""
    llama, ours, theirs, again = os.path.join(GOLDEN, "transformers", "llama"), *(os.path.join(directory, name) for name in ("converted", "theirs", "by-command"))
    run(convert, llama, ours)
    run(convert, ours, theirs, "safetensors")
    run(PERDURE, "ckpt", "export", ours, again, "--format=safetensors")
    run("diff", "-r", theirs, again)
    same("import", run(look, ours, "model.norm.weight").stdout, run(look, llama, "model.norm.weight").stdout)
    run(convert, ours, os.path.join(directory, "resharded"))
    same("reshard", run(look, os.path.join(directory, "resharded"), "model.norm.weight").stdout, run(look, llama, "model.norm.weight").stdout)
    same("a format", run(convert, ours, os.path.join(directory, "never"), "word", code=1).stderr.strip().split(":")[0], "--format=word")
    same("nothing left", os.path.exists(os.path.join(directory, "never")), False)
    result = run(convert, os.path.join(GOLDEN, "plain.pt"), os.path.join(directory, "never"), code=1)
    if "does not say which model it is" not in result.stderr:
        sys.exit(result.stderr)


def check_listed_model(look, directory):
    """A model that a program listed under transformers' names is imported and exported as transformers' own files are."""
    llama, listed = os.path.join(GOLDEN, "transformers", "llama"), os.path.join(directory, "model")
    run(os.path.join(directory, "copy"), llama, listed)
    same("a type", run(look, listed).stdout.splitlines()[1:], run(look, llama).stdout.splitlines()[1:])
    config = os.path.join(llama, "config.json")
    for name, source in (("of-listed", listed), ("of-files", llama)):
        run(PERDURE, "ckpt", "export", source, os.path.join(directory, name), "--format=safetensors", f"--config={config}")
        run(PERDURE, "ckpt", "import", source, os.path.join(directory, name + "-run"), f"--config={config}", "--fresh-optimizer")
    run("cmp", *(os.path.join(directory, name, "model.safetensors") for name in ("of-listed", "of-files")))
    run(PERDURE, "ckpt", "diff", *(os.path.join(directory, name + "-run") for name in ("of-listed", "of-files")))
    shown = json.loads(run(PERDURE, "ckpt", "show", os.path.join(directory, "of-listed-run"), "--json").stdout)
    same("updates", (shown["step"], shown["updates"]), (5, 5))


def body(directory):
    prefix = os.path.join(directory, "prefix")
    run("cmake", "--install", BUILD, "--component", "library", "--prefix", prefix)
    check_symbols(prefix)
    check_readme(directory)
    programs = compile_all(prefix, directory)
    ours, llama = os.path.join(directory, "ours"), os.path.join(GOLDEN, "transformers", "llama")
    run(PERDURE, "ckpt", "import", llama, ours, "--layout=dp=2,tp=2")
    packed = os.path.join(directory, "packed")
    run(PERDURE, "ckpt", "reshard", ours, packed, "--layout=dp=1", "--compression=zstd:1")
    for look in (programs["look"], programs["look"] + "-static", check_cmake(prefix, directory)):
        check_look(look, ours)
    check_damage(programs["look"], ours, directory)
    check_convert(programs["convert"], programs["look"], directory)
    check_listed_model(programs["look"], directory)
    check_save(programs["save"], programs["look"], directory)
    total = sum(int(run(programs["rank"], ours, "dp=3", rank).stdout.split()[3]) for rank in range(3))
    same("elements of all ranks", total, 54720 // 4)
    same("a layout", run(programs["rank"], ours, "dp=1", 4, code=1).stderr, "there is no rank 4 in a layout of 1; ranks begin at 0\n")
    for path in (ours, packed, llama):
        run(os.path.join(directory, "rounds"), path)
    if shutil.which("valgrind"):
        check = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9"]
        for words in ([programs["look"], ours], [programs["look"], packed, "model.norm.weight"], [programs["look"], os.path.join(GOLDEN, "dcp")],
                      [programs["rank"], ours, "dp=3", "1"], [programs["save"], os.path.join(directory, "again")]):
            run(*check, *words, environment={"PERDURE_IO": "threads"})  # valgrind does not know what io_uring writes
    else:
        print("valgrind: skipped, it is not installed")


with tempfile.TemporaryDirectory(prefix="perdure-library-") as workspace:
    body(workspace)
print("ok")
