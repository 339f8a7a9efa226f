#!/usr/bin/env python3
"""Every kernel of the sources in a folder was launched: kernels.py FOLDER LAUNCHES, with the file of PERDURE_SIMT_KERNELS."""
import pathlib
import re
import sys

KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\s*\(")


def main():
    folder, launches = map(pathlib.Path, sys.argv[1:])
    there = {}
    for path in sorted(folder.iterdir()):
        text = path.read_text(encoding="utf-8") if path.suffix in (".cu", ".h") else ""
        names = KERNEL.findall(text)
        if len(names) != text.count("__global__ void"):
            sys.exit(f"{path}: not every kernel's name is found")
        there.update((name, path.name) for name in names)
    launched = set(re.findall(r"\w+", launches.read_text(encoding="utf-8"))) if launches.exists() else set()
    missing = [f"{name} of {path}" for name, path in there.items() if name not in launched]
    if missing or not there:
        sys.exit(f"{len(there)} kernels in {folder}, and these are launched by none of the tests: {', '.join(missing)}")
    print(f"all {len(there)} kernels were launched")


main()
