#!/usr/bin/env python3
"""What ptxas gave each kernel, beside what resources.tsv allows: registers, bytes of stack (spills lie there) and of shared memory.

resources.py CUOBJDUMP LIBRARY NVCC_VERSION [--write]; CUOBJDUMP may be one that does not exist: then that of the environment of
tests/peer/run.sh. Red: a kernel has more than its row, or no row, or a row has no kernel. --write makes the table anew.
Of architectures other than these three the table has rows of what spills more than on 8.0 alone: architectures.py.
Exit 77: the table is of another compiler, or no row is of an architecture of this build."""
import pathlib
import re
import subprocess
import sys

TABLE = pathlib.Path(__file__).with_name("resources.tsv")
ARCHITECTURES = ("sm_80", "sm_90", "sm_90a")
STEP = 8  # a warp's registers are given out by 8 for each thread
WORDS = {"(pd_dtype)0": "f32", "(pd_dtype)1": "bf16", "(pd_dtype)2": "f16"}


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(77)


def find(cuobjdump):
    if pathlib.Path(cuobjdump).exists():
        return cuobjdump
    for path in pathlib.Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/bin/cuobjdump"):
        path.chmod(0o755)
        return path
    skip("no cuobjdump in the toolkit nor in this environment: pip install nvidia-cuda-cuobjdump")


def name_of(signature):
    """void forward<(pd_dtype)1, 8>(pd_norm) as forward<bf16, 8>"""
    for word, short in WORDS.items():
        signature = signature.replace(word, short)
    depth = 0
    for i, c in enumerate(signature):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return signature[:i].removeprefix("void ")
    return signature


def read(cuobjdump, library):
    """{(file, kernel, architecture): (registers, stack, shared)}"""
    dump = subprocess.run([cuobjdump, "--dump-resource-usage", library], check=True, capture_output=True).stdout
    text = subprocess.run(["c++filt"], input=dump, check=True, capture_output=True).stdout.decode()
    kernels, architecture, source, name = {}, None, None, None
    for line in text.splitlines():
        if found := re.match(r"arch = (\w+)", line):
            architecture = found[1]
        elif found := re.match(r"identifier = .*?([\w.]+)$", line):
            source = found[1]
        elif found := re.match(r" Function (.*):$", line):
            name = name_of(found[1])
        elif found := re.match(r"  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            registers, stack, shared, local = map(int, found.groups())
            assert (source, name, architecture) not in kernels, f"two kernels are {name} of {source}"
            kernels[source, name, architecture] = (-(-registers // STEP) * STEP, stack + local, shared)
    return kernels


def write(kernels, version, architectures):
    """The table's rows of these architectures become these."""
    kernels = kernels | {key: value for key, value in allowed()[1].items() if key[2] not in architectures}
    lines = [f"# nvcc {version}; what kernels may have: tests/gpu/resources.py",
             "# source\tkernel\tarchitecture\tregisters\tstack\tshared"]
    lines += ["\t".join((*key, *map(str, value))) for key, value in sorted(kernels.items())]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(kernels)} rows")


def allowed():
    first, _, *rows = TABLE.read_text(encoding="utf-8").splitlines()
    rows = [row.split("\t") for row in rows]
    return first.split()[2].rstrip(";"), {tuple(row[:3]): tuple(map(int, row[3:])) for row in rows}


def main():
    cuobjdump, library, version = find(sys.argv[1]), sys.argv[2], ".".join(sys.argv[3].split(".")[:2])
    kernels = {key: value for key, value in read(cuobjdump, library).items() if key[2] in ARCHITECTURES}
    if sys.argv[4:] == ["--write"]:
        return write(kernels, version, ARCHITECTURES)
    of, table = allowed()
    if of != version:
        skip(f"the table is of nvcc {of}, this is {version}")
    built = {key[2] for key in kernels}
    if not built:
        skip(f"no kernel of {', '.join(ARCHITECTURES)} in {library}")
    wrong = [f"{' '.join(key)}: no row" for key in kernels.keys() - table.keys()]
    wrong += [f"{' '.join(key)}: no kernel" for key in table.keys() - kernels.keys() if key[2] in built]
    for key in kernels.keys() & table.keys():
        for what, has, may in zip(("registers", "bytes of stack", "bytes of shared memory"), kernels[key], table[key]):
            if has > may:
                wrong.append(f"{' '.join(key)}: {has} {what}, {may} allowed")
    if wrong:
        print("\n".join(sorted(wrong)))
        sys.exit(f"{len(wrong)} differ from {TABLE}; where that is meant: {' '.join(sys.argv)} --write")
    print(f"{len(kernels)} kernels have what {TABLE.name} allows")


if __name__ == "__main__":
    main()
