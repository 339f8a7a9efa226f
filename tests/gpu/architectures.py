#!/usr/bin/env python3
"""Kernels of every row of trainer/math/cuda/architectures.c, compiled by name without such a GPU.

architectures.py CUOBJDUMP NVCC DIRECTORY [--write]; CUOBJDUMP as for resources.py. DIRECTORY gets a build of what the default compiles and
of rows that it has no code for (8.6 and 8.9 run code of 8.0, but `native` there names them): one source a share, PERDURE_TEST_SHARE
picks another, PERDURE_TEST_SCALE=10 takes all. --write: all, and their stacks into resources.tsv.
Red: a GPU would not get the code of its row, one that has no row no PTX; a kernel is missing somewhere; wgmma is not in sm_90a alone;
a kernel has more stack (spills lie there) than its row allows, and without one than on 8.0. Exit 77: no cuobjdump."""
import os
import pathlib
import re
import subprocess
import sys

import resources

SOURCE = pathlib.Path(__file__).parents[2]
CUDA = SOURCE / "trainer/math/cuda"
LONG = {"attention_forward.cu", "attention_keys.cu", "attention_plain_backward.cu", "norm.cu"}  # more than a minute of nvcc: never the day's
OBJECTS = "trainer/math/CMakeFiles/{}.dir/cuda/{}.o"


def rows():
    """{capability: (code, attention)}"""
    text = (CUDA / "architectures.c").read_text(encoding="utf-8")
    found = re.findall(r'\{(\d+), (\d+), "[^"]*", PD_ATTENTION_(\w+), \d+ << 10\}', text)
    count = re.search(r"PD_ARCHITECTURES (\d+)u", (CUDA / "architectures.h").read_text(encoding="utf-8"))
    assert len(found) == int(count[1]), f"{len(found)} rows are read of {count[1]}"
    return {int(capability): (int(code), attention) for capability, code, attention in found}


def call(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def configure(directory, nvcc, architectures):
    """What PERDURE_CUDA_ARCHITECTURES is then."""
    launcher = [] if subprocess.run(["sh", "-c", "command -v ccache"], capture_output=True, check=False).returncode else \
        [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CUDA")]
    call("cmake", "-S", SOURCE, "-B", directory, "-G", "Ninja", "-DPERDURE_TESTS=OFF", "-DPERDURE_MPI=OFF", "-DPERDURE_ONEDNN=OFF", "-DPERDURE_CUDA=ON",
         f"-DCMAKE_CUDA_COMPILER={nvcc}", *launcher, *([f"-DPERDURE_CUDA_ARCHITECTURES={';'.join(architectures)}"] if architectures else ["-UPERDURE_CUDA_ARCHITECTURES"]))
    cache = (directory / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(r"^PERDURE_CUDA_ARCHITECTURES:\w+=(.*)$", cache, re.MULTILINE)[1].split(";")


def taken(capability, machine):
    """The machine code that a GPU takes of these: of its major number, no later than itself, the latest. None: it compiles PTX."""
    return max((code for code in machine if code // 10 == capability // 10 and code <= capability), default=None)


def judge_list(default, listed, wrong):
    machine = [int(word.removesuffix("-real")) for word in default if word.endswith("-real")]
    for capability, (code, _) in listed.items():
        if taken(capability, machine) != code:
            wrong.append(f"{capability / 10}: its row says sm_{code}, and by default it gets {taken(capability, machine)} of {machine}")
    if [word for word in default if word.endswith("-virtual")] != ["80-virtual"]:
        wrong.append(f"by default there is no PTX of 8.0 alone for GPUs without a row: {default}")


def kernels_in_ptx(cuobjdump, built):
    names = re.findall(r"\.entry (\w+)", call(cuobjdump, "--dump-ptx", built))
    return {resources.name_of(name) for name in subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout.split("\n") if name}


def judge_object(cuobjdump, built, expected, wrong):
    """expected: architectures. What there is, as resources.read says it."""
    kernels = resources.read(cuobjdump, built)
    of = {}
    for source, kernel, architecture in kernels:
        of.setdefault(architecture, set()).add(kernel)
    every = set().union(*of.values())
    ptx = kernels_in_ptx(cuobjdump, built)
    if set(of) != expected:
        wrong.append(f"{built.name} has code of {sorted(of)}, expected {sorted(expected)}")
    for architecture, names in sorted(of.items()):
        wrong.extend(f"{built.name}: no {kernel} in {architecture}" for kernel in sorted(every - names))
    if ptx != (set() if expected == {"sm_90a"} else every):
        wrong.append(f"{built.name}: kernels of PTX and of machine code are not the same: {sorted(ptx ^ every)}")
    return kernels


def with_more_stack(kernels, table, own_rows):
    """Of architectures other than the table's, those with more stack than on 8.0, or than their own row says."""
    found = {}
    for key, value in kernels.items():
        if key[2] not in resources.ARCHITECTURES and value[1] > (own_rows.get(key) or table[(*key[:2], "sm_80")])[1]:
            found[key] = value
    return found


def chosen(sources, everything):
    if everything:
        return sources
    seed = int(os.environ.get("PERDURE_TEST_SHARE", "0"))
    print(f"PERDURE_TEST_SHARE={seed}")
    short = [source for source in sources if source not in LONG]
    return [short[seed % len(short)]]


def main():
    cuobjdump, nvcc, directory = resources.find(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    writes = sys.argv[4:] == ["--write"]
    known = call(nvcc, "--list-gpu-code").split()
    listed = {capability: row for capability, row in rows().items() if f"sm_{row[0]}" in known}
    wrong, kernels = [], {}

    default = configure(directory, nvcc, None)
    judge_list([word for word in default if f"sm_{word.split('-')[0]}" in known], listed, wrong)
    named = [str(capability) for capability, (code, _) in listed.items() if code != capability]
    configure(directory, nvcc, default + [f"{capability}-real" for capability in named])
    expected = {f"sm_{code}" for code, _ in listed.values()} | {f"sm_{capability}" for capability in named}

    of, table = resources.allowed()
    everything = writes or int(os.environ.get("PERDURE_TEST_SCALE", "1")) >= 10
    built = {}
    for name in chosen(sorted({key[0] for key in table}), everything):
        is_wgmma = name.startswith("attention_wgmma_")
        built[OBJECTS.format("pd_attention_sm_90a" if is_wgmma else "pd_math_cuda", name)] = {"sm_90a"} if is_wgmma else expected
    call("ninja", "-C", directory, *built)
    for name, architectures in built.items():
        kernels |= judge_object(cuobjdump, directory / name, architectures, wrong)

    version = re.search(r"release (\d+\.\d+)", call(nvcc, "--version"))[1]
    if writes:
        resources.write(with_more_stack(kernels, table, {}), version, {key[2] for key in kernels} - set(resources.ARCHITECTURES))
    elif of == version:
        wrong += [f"{' '.join(key)}: {value[1]} bytes of stack" for key, value in with_more_stack(kernels, table, table).items()]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(built)} sources, {len(kernels)} kernels: {', '.join(sorted({key[2] for key in kernels}))}, PTX of 8.0")


main()
