#!/usr/bin/env python3
"""The house rules a compiler does not know: arrows between folders, sizes, banned calls, third-party headers in one file each,
no words of unfinished work. Prints every breach with file and line; exit code 1 when there is one."""
import os
import re
import sys

TOP = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", ".."))
CODE = ("ckpt", "resharder", "offload", "trainer", "tools")
ALLOWED = {  # folder -> what its files may include, besides themselves
    "ckpt/base": [],
    "ckpt/io": ["ckpt/base"],
    "ckpt": ["ckpt/io", "ckpt/base"],
    "resharder": ["ckpt"],
    "offload": ["ckpt"],
    "trainer": ["offload", "resharder", "ckpt"],
    "tools": ["trainer", "resharder", "offload", "ckpt"],
}
BANNED = re.compile(r"\b(atoi|atol|atof|strcpy|strcat|sprintf|vsprintf|gets|strtok|alloca)\s*\(")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented", re.IGNORECASE)
THIRD_PARTY = re.compile(r"#\s*include\s*<((?:hdf5|H5|liburing|xxhash|jansson|cyaml|yaml|zstd|mpi|nccl|cuda|cublas|dnnl|cudnn)[^>]*)>")
# Headers that two files share, with the reason in the folder's README.
SHARED_THIRD_PARTY = set()
LINES_MAX, HEADER_LINES_MAX, FUNCTION_LINES_MAX, COLUMNS_MAX = 800, 200, 70, 125

breaches = []


def breach(path, line, text):
    breaches.append(f"{os.path.relpath(path, TOP)}:{line}: {text}")


def sources(folders, endings=(".c", ".h", ".cu", ".cuh")):
    for folder in folders:
        for root, _, names in os.walk(os.path.join(TOP, folder)):
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.join(root, name)


def folder_of(relative):
    for folder in sorted(ALLOWED, key=len, reverse=True):
        if relative.startswith(folder + "/"):
            return folder
    return None


def check_arrows(path, lines):
    relative = os.path.relpath(path, TOP)
    folder = folder_of(relative)
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        if not os.path.exists(os.path.join(TOP, target)):
            breach(path, number, f'"{target}" is not written from the root')
            continue
        other = folder_of(target)
        if other != folder and not any(other == a or other.startswith(a + "/") for a in ALLOWED[folder]):
            breach(path, number, f"{folder} may not include {target}: arrows only go down")
        if folder in ("ckpt", "ckpt/base", "ckpt/io", "resharder") and re.search(r"<(cuda|nccl|mpi|cublas)", line):
            breach(path, number, "neither CUDA nor MPI below trainer/ and offload/")


def check_functions(path, lines):
    start = name = None
    for number, line in enumerate(lines, 1):
        if line == "{" and lines[number - 2] and not lines[number - 2].startswith(("#", "struct", "enum", "union")):
            start, name = number, lines[number - 2]
        elif line == "}" and start:
            if number - start + 1 > FUNCTION_LINES_MAX:
                breach(path, start, f"function of {number - start + 1} lines (at most {FUNCTION_LINES_MAX}): {name.strip()[:60]}")
            start = None


def check_file(path):
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    is_header = path.endswith((".h", ".cuh"))
    if is_header and len(lines) > HEADER_LINES_MAX + 60:
        breach(path, 1, f"header of {len(lines)} lines: what is the second idea in there?")
    if len(lines) > LINES_MAX:
        breach(path, 1, f"{len(lines)} lines: what is the second idea in there?")
    check_arrows(path, lines)
    check_functions(path, lines)
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX + 5:
            breach(path, number, f"{len(line)} columns")
        if BANNED.search(line):
            breach(path, number, f"banned call: {BANNED.search(line).group(1)}")
        if UNFINISHED.search(line):
            breach(path, number, f"unfinished: {line.strip()[:60]}")
        if "\t" in line:
            breach(path, number, "tab")


def check_third_party():
    users = {}
    for path in sources(CODE):
        with open(path, encoding="utf-8") as f:
            for header in THIRD_PARTY.findall(f.read()):
                users.setdefault(header, []).append(os.path.relpath(path, TOP))
    for header, paths in sorted(users.items()):
        if len(paths) > 1 and header not in SHARED_THIRD_PARTY:
            breaches.append(f"<{header}> enters more than one file: {', '.join(sorted(paths))}")


def check_readmes():
    for folder in ("ckpt", "ckpt/base", "ckpt/io", "resharder", "offload", "trainer", "trainer/model", "trainer/math",
                   "trainer/comm", "trainer/data", "trainer/parallel", "tools", "tests"):
        if not os.path.exists(os.path.join(TOP, folder, "README.md")):
            breaches.append(f"{folder}/README.md is missing")


def check_top_level():
    allowed = {*CODE, "tests", "CMakeLists.txt", "README.md", "LICENSE", "CHANGELOG.md"}
    for name in os.listdir(TOP):
        if name not in allowed and not name.startswith(".") and not re.fullmatch(r"(build|runs)([-.].*)?", name):
            breaches.append(f"{name} does not belong at the top level")


for source in sources(CODE):
    check_file(source)
check_third_party()
check_readmes()
check_top_level()
print("\n".join(breaches) if breaches else "tidy")
sys.exit(1 if breaches else 0)
