#!/usr/bin/env python3
"""The house rules a compiler does not know: arrows between modules, sizes, banned calls, third-party headers in one file each,
no words of unfinished work. Prints every breach with file and line; exit code 1 when there is one."""
import glob
import os
import re
import sys

TOP = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", ".."))
CODE = ("ckpt", "resharder", "offload", "trainer", "tools")
# The house: columns, and in each its modules from the lowest up. A file includes its own module, modules before it in its column, and the
# columns named behind it. Rooms of one entry stand beside each other: neither includes the other.
COLUMNS = {
    "ckpt": (["ckpt/base", "ckpt/io", ("ckpt/group", "ckpt/tensor"), "ckpt/hdf5", "ckpt/shard", "ckpt/store", "ckpt/objects",
              ("ckpt/tiers", "ckpt/inspect")], []),
    "resharder": (["resharder", ("resharder/load", "resharder/catalog"), "resharder/torch", "resharder/formats", "resharder/convert"], ["ckpt"]),
    "offload": (["offload"], ["ckpt"]),
    "trainer": (["trainer/tokenizer", ("trainer/math", "trainer/data"), "trainer/comm", "trainer/model", "trainer/parallel", "trainer/config",
                 "trainer/engine", "trainer/plan", "trainer/status", "trainer/run", ("trainer/launch", "trainer/sample")],
                ["offload", "resharder", "ckpt"]),
    "tools": (["tools/library", "tools", ("tools/bench", "tools/bundle", "tools/report"), "tools/commands"],
              ["trainer", "resharder", "offload", "ckpt"]),
}
ABOVE_ALL = {"tools/main.c": "tools/commands"}  # file -> the module whose place it has
BESIDE = {"trainer/math/cuda": "trainer/math", "tools/library/examples": "tools/library"}  # folders of a module
SOURCES_MAX = 30  # .c files of a folder


def make_allowed():
    allowed, columns = {}, {}
    for column, (entries, below) in COLUMNS.items():
        known = [module for other in below for module in columns[other]]
        modules = []
        for entry in entries:
            beside = [entry] if isinstance(entry, str) else list(entry)
            for module in beside:
                allowed[module] = set(known + modules + [module])
            modules += beside
        columns[column] = modules
    return allowed


ALLOWED = make_allowed()  # module -> modules that its files may include
BANNED = re.compile(r"\b(atoi|atol|atof|strcpy|strcat|sprintf|vsprintf|gets|strtok|alloca)\s*\(")
THREADS = re.compile(r"\bpthread_create\s*\(")  # pd_thread_start blocks signals
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented", re.IGNORECASE)
THIRD_PARTY = re.compile(r"#\s*include\s*<((?:hdf5|H5|liburing|xxhash|jansson|cyaml|yaml|zstd|zlib|pcre2|utf8proc|microhttpd|mpi|nccl|cuda|cublas|dnnl)[^>]*)>")
# Headers that two files share, with the reason in the folder's README.
SHARED_THIRD_PARTY = {"zlib.h"}  # CRC-32 of what is uploaded; training data that is compressed
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


def module_of(relative):
    if relative in ABOVE_ALL:
        return ABOVE_ALL[relative]
    folder = os.path.dirname(relative)
    return BESIDE.get(folder, folder)


def check_arrows(path, lines):
    relative = os.path.relpath(path, TOP)
    module = module_of(relative)
    if module not in ALLOWED:
        breach(path, 1, f"{module} is not a module of the house")
        return
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        # words.inc is made of words.txt beside it
        if not any(os.path.exists(os.path.join(TOP, name)) for name in (target, re.sub(r"\.inc$", ".txt", target))):
            breach(path, number, f'"{target}" is not written from the root')
        elif module_of(target) not in ALLOWED[module]:
            breach(path, number, f"{module} may not include {target}: arrows only go down")
    for number, line in enumerate(lines, 1):
        if module.startswith(("ckpt", "resharder")) and re.search(r"<(cuda|nccl|mpi|cublas)", line):
            breach(path, number, "neither CUDA nor MPI below trainer/ and offload/")


def check_folders():
    for folder in {os.path.dirname(path) for path in sources(CODE + ("tests",), (".c",))}:
        count = sum(name.endswith(".c") for name in os.listdir(folder))
        if count > SOURCES_MAX:
            breaches.append(f"{os.path.relpath(folder, TOP)}: {count} .c files, at most {SOURCES_MAX}: what is the second module in there?")


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
    is_public = path.endswith("library/perdure.h")  # one header is what it is for
    if is_header and len(lines) > (400 if is_public else HEADER_LINES_MAX + 60):
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
        if THREADS.search(line) and os.path.relpath(path, TOP) != "ckpt/base/thread.c":
            breach(path, number, "a thread that takes signals: pd_thread_start")
        if UNFINISHED.search(line):
            breach(path, number, f"unfinished: {line.strip()[:60]}")
        if "\t" in line:
            breach(path, number, "tab")


# A struct that many files write has no owner. Counted are assignments through pointers (p->field = ..., p->field++) to structs of
# headers; a pointer's type is the one of its first declaration in the function.
WRITERS_MAX = 3
POINTERS = re.compile(r"(?<!const )\bstruct (\w+) (\*(?:const )?\w+(?:\[[^\]]*\])?(?:(?: = [^,;()]*)?, \*\w+)*)")
ASSIGNED = re.compile(r"\b(\w+)->\w+(?:\[[^\]]*\])?\s*(?:(?:[-+|&^*/%]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)(\w+)->\w+(?!\w|\.|->)")


def without_comments(text, keep_strings=False):
    """Lines stay lines."""
    def shorten(match):
        return match[0] if match[0].startswith('"') and keep_strings else "\n" * match[0].count("\n")
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', shorten, text, flags=re.S)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def check_writers():
    shared, writers = set(), {}
    for path in sources(CODE, (".h",)):
        shared.update(re.findall(r"^struct (\w+) \{", read(path), flags=re.M))
    for path in sources(CODE, (".c", ".cu")):
        for function in re.split(r"\n}\n", without_comments(read(path))):
            types = {}
            for struct, names in POINTERS.findall(function):
                for name in re.findall(r"\*(?:const )?(\w+)", names):
                    types.setdefault(name, struct)
            for assigned, counted in ASSIGNED.findall(function):
                struct = types.get(assigned or counted)
                if struct in shared:
                    writers.setdefault(struct, set()).add(os.path.relpath(path, TOP))
    for struct, files in sorted(writers.items()):
        if len(files) > WRITERS_MAX:
            breaches.append(f"struct {struct} is written by {len(files)} files, at most {WRITERS_MAX}: {', '.join(sorted(files))}")


FAMILIES = "resharder/catalog/families.c"
# Named sizes say their family, benchmarks choose a model, and tokenizers have such names of their own.
NAME_FAMILIES = ("trainer/model/presets.c", "tools/bench/", "trainer/tokenizer/")


def check_families():
    """Nothing but its row knows a family by name: no literal is one, no identifier has one in it (llama3 is a scaling of RoPE)."""
    table = without_comments(read(os.path.join(TOP, FAMILIES)), True)
    names = {name for row in re.findall(r'\{("\w+"), ("\w+"), ("\w+"), \.', table) for name in row}
    if len(names) < 5:
        breaches.append(f"{FAMILIES}: no rows of classes are found")
    words = {name.strip('"').lower() for name in names if "For" not in name and "Head" not in name}
    identifier = re.compile(rf"\b\w*({'|'.join(sorted(words))})(?!3|_?\d)\w*", re.IGNORECASE)
    for path in sources(CODE):
        relative = os.path.relpath(path, TOP)
        if relative == FAMILIES or relative.startswith(NAME_FAMILIES):
            continue
        for number, line in enumerate(without_comments(read(path), True).split("\n"), 1):
            if found := identifier.search(re.sub(r'"(?:\\.|[^"\\])*"', "", line)):
                breach(path, number, f"{found[0]} names a family of models: a column of {FAMILIES} says what differs")
            for literal in re.findall(r'"(?:\\.|[^"\\])*"', line):
                if literal in names:
                    breach(path, number, f"{literal} is a family of models: {FAMILIES} has its names")


# Files that call one another; the folder's README says why.
CIRCLES = {("all_gather", "progress", "reduce_scatter"), ("nccl", "nccl_launch"), ("compare", "step"),
           ("zero", "zero_exchange", "zero_files", "zero_gather", "zero_terms", "zero_tied")}


def check_circles():
    """Calls between files of one folder go one way: whoever is called calls nobody above."""
    text = {path: re.sub(r"\b(struct|enum|union) \w+", "", without_comments(read(path))) for path in sources(CODE, (".c",))}
    defined = {name: path for path in text for name in re.findall(r"^(?!static)\w[\w *]*?\b(\w+)\([^;{}]*\)\s*\n\{", text[path], flags=re.M)}
    calls = {path: {defined[word] for word in set(re.findall(r"\b\w+\b", text[path])) & set(defined)
                    if defined[word] != path and os.path.dirname(defined[word]) == os.path.dirname(path)} for path in text}
    reached = {}
    for path in text:
        seen, ahead = set(), list(calls[path])
        while ahead:
            if (one := ahead.pop()) not in seen:
                seen.add(one)
                ahead += calls[one]
        reached[path] = seen
    for path in sorted(text):
        circle = sorted({path} | {other for other in reached[path] if path in reached[other]})
        if len(circle) > 1 and path == circle[0] and tuple(os.path.basename(one)[:-2] for one in circle) not in CIRCLES:
            breach(path, 1, "files that call one another: " + ", ".join(os.path.basename(one) for one in circle))


STATIC = re.compile(r"^static (?:inline )?(?:const )?[\w ]+?[ *]+(\w+)\(", re.M)


def check_names():
    """grep, gdb and perf find a file-private function by its name: no more than three files may have one of the same name."""
    files = {}
    for path in sources(CODE, (".c",)):
        for name in set(STATIC.findall(without_comments(read(path)))):
            files.setdefault(name, []).append(os.path.basename(path))
    for name, paths in sorted(files.items()):
        if len(paths) > 3:
            breaches.append(f"{name}() is in {', '.join(sorted(paths))}: let its name begin with the file's")


# Words that make a reader stop in a message.
STILTED = re.compile(r"\b(?:(?:is|are|was|were) (?:told|said)|(?:those|that) of|(?:is|are) none|must be said|goes on|passed over|without a word|(?:is|are) waited for|tells|is there (?:already|twice)"
                      r"|is taken as|what is (?:read|written)|(?<!there )is no(?! longer))\b(?! of)")


def check_words():
    """Texts that users see: string literals of more than a word."""
    for path in sources(CODE, (".c", ".h")):
        for number, line in enumerate(without_comments(read(path), keep_strings=True).split("\n"), 1):
            for literal in re.findall(r'"((?:\\.|[^"\\])*)"', line):
                found = STILTED.search(literal)
                if found and " " in literal and not line.startswith("#"):
                    breach(path, number, f'"{found[0]}" in a text that users see: say who does what')


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
    for module in sorted({*ALLOWED, "trainer/math/cuda", *CODE, "tests", "tests/simt", "tests/simulated_disk"}):
        folder = os.path.join(TOP, module)
        if os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "README.md")):
            breaches.append(f"{module}/README.md is missing")


def readme_path_exists(folder, path):
    """From the root, from the README's folder or from its parent; * and one {a,b} stand for any of several files."""
    braces = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
    paths = [braces[1] + middle + braces[3] for middle in braces[2].split(",")] if braces else [path]
    bases = (TOP, folder, os.path.dirname(folder))
    return all(any(glob.glob(os.path.join(base, one)) for base in bases) for one in paths)


def check_readme_paths():
    for readme in [os.path.join(TOP, "README.md"), *sources((*CODE, "tests"), ("README.md",))]:
        with open(readme, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                for path in re.findall(r"`([^`\s<]+\.(?:c|h|py|sh|md))`", line):
                    if not readme_path_exists(os.path.dirname(readme), path):
                        breach(readme, number, f"{path} does not exist")


READMES_WORDS_MAX = 25000


def check_readme_sizes_and_names():
    """A README has at most 1,500 words (the first one 200 lines too) and six lines a paragraph, all have 25,000 words, and the functions
    that they name exist."""
    code = "".join(open(path, encoding="utf-8").read() for path in sources((*CODE, "tests"), (".c", ".h", ".cu", ".py", "CMakeLists.txt")))
    names, total = set(re.findall(r"\b[A-Za-z_]\w*", code)), 0
    for readme in [os.path.join(TOP, "README.md"), *sources((*CODE, "tests"), ("README.md",))]:
        with open(readme, encoding="utf-8") as f:
            text = f.read()
        words = len(re.findall(r"\S*\w\S*", text))
        total += len(text.split())  # as wc -w counts
        if words > 1500:
            breach(readme, 1, f"{words} words, 1500 at most")
        if readme == os.path.join(TOP, "README.md") and text.count("\n") > 200:
            breach(readme, 1, "more than 200 lines")
        for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", re.sub(r"```.*?```", "", text, flags=re.S)):
            if sum(not line.lstrip().startswith(("|", "#")) for line in block.strip().split("\n")) > 6:
                breach(readme, text[:text.find(block)].count("\n") + 1, "a paragraph of more than six lines")
        for number, line in enumerate(text.split("\n"), 1):
            for name in re.findall(r"`(pd_[a-z0-9_]+)`", line):
                if name not in names:
                    breach(readme, number, f"{name} does not exist")
            for name, path in re.findall(r"`([a-z_0-9]+)` (?:in |\()`([\w/]+\.[ch])`", line):
                if os.path.exists(os.path.join(TOP, path)) and not re.search(rf"\b{name}\b", open(os.path.join(TOP, path), encoding="utf-8").read()):
                    breach(readme, number, f"{path} has no {name}")
    if total > READMES_WORDS_MAX:
        breaches.append(f"the READMEs have {total} words, {READMES_WORDS_MAX} at most")


def check_top_level():
    allowed = {*CODE, "tests", "CMakeLists.txt", "README.md", "LICENSE", "CHANGELOG.md"}
    for name in os.listdir(TOP):
        if name not in allowed and not name.startswith(".") and not re.fullmatch(r"(build|runs)([-.].*)?", name):
            breaches.append(f"{name} does not belong at the top level")


for source in sources(CODE):
    check_file(source)
check_families()
check_circles()
check_words()
check_names()
check_third_party()
check_folders()
check_writers()
check_readmes()
check_readme_paths()
check_readme_sizes_and_names()
check_top_level()
print("\n".join(breaches) if breaches else "tidy")
sys.exit(1 if breaches else 0)
