#!/usr/bin/env python3
"""Takes away, one at a time, what a commit rests on (a sync, a rename, a link, an agreement between ranks, the comparison of a checksum),
and wants a test that turns red each time.

    mutants.py [--only EXPRESSION] [--keep DIR] [--list]

Syncs, renames and agreements are found in the sources, so that a new one is a mutant without further ado; the rest is in a table. The tree
is copied and built in a temporary folder, or in DIR, which stays for the next time. A mutant is killed by a test that fails, crashes or
does not end; the first one is printed. Exit code 1 when one survives, or when a line of the table is no longer in the tree.
"""
import argparse
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Where a commit and what follows it are made.
SOURCES = ["ckpt/shard/copy.c", "ckpt/shard/stream.c", "ckpt/store/dir.c", "ckpt/store/lease.c", "ckpt/store/quarantine.c", "ckpt/store/recover.c",
           "ckpt/store/remove.c", "ckpt/store/replicas.c", "ckpt/store/save.c", "ckpt/store/scan.c", "ckpt/store/store.c", "ckpt/store/stripes.c",
           "ckpt/tiers/copy.c", "ckpt/tiers/replicate.c"]
CALL = re.compile(r"(?<!pd_status )\b(pd_file_sync|pd_vfs_sync_dir|store_sync_dir|pd_vfs_rename|pd_group_agree)\(")

# file, what is there, what takes its place
TABLE = [
    ("ckpt/store/save.c", "bytes ? STORE_FILE_SYNC : STORE_FILE_LEAVE", "STORE_FILE_LEAVE"),
    ("ckpt/store/save.c", "record ? STORE_FILE_CUT_SYNC : STORE_FILE_SYNC", "STORE_FILE_LEAVE"),
    ("ckpt/store/save.c", "if (mine == PD_OK && root->dir.leads_share) mine = store_lease_check_here(&root->lease, err);", ""),
    ("ckpt/store/save.c", "if (root->words[r] != root->words[0])", "if (false)"),
    ("ckpt/store/save.c", "if (owner != PD_BUSY && has_peers)", "if (owner != PD_BUSY)"),
    ("ckpt/store/save.c", "if (owner != PD_BUSY && has_peers)", "if (has_peers)"),
    # ---- nothing damaged is believed ----
    ("ckpt/store/commit.c", "if (pd_digest64(&t, sizeof t - sizeof t.self_digest, 0) != t.self_digest)", "if (false)"),
    ("ckpt/store/commit.c", "if (pd_digest64(data, bytes - sizeof t, PD_SHARD_SEED) != t.body_digest)", "if (false)"),
    ("ckpt/store/scan.c", "if (all_agree(rows, count, record)) return PD_OK;", "return PD_OK;"),
    ("ckpt/store/scan.c", "if (store_has_other_shards(dir, step, commit))", "if (!dir)"),
    ("ckpt/shard/open.c", "if (digest != trailer->self_digest)", "if (false)"),
    ("ckpt/shard/open.c", "if (trailer->table_digest != expect->digest)", "if (false)"),
    ("ckpt/shard/open.c", "if (digest != shard->trailer.table_digest)", "if (false)"),
    ("ckpt/shard/open.c", "if (!wanted || memcmp(have, wanted, sizeof *have) == 0) return PD_OK;", "return PD_OK;"),
    ("ckpt/shard/verify.c", "if (digest != shard->checksums[place->first_block + block])", "if (false)"),
    ("ckpt/shard/verify.c", "if (digest == head->rest_digest) return PD_OK;", "return PD_OK;"),
    ("ckpt/shard/decompress.c",
     "if (pd_shard_chunk_digest(shard->box_seeds[box], chunk->number, pages, row->stored_bytes) != row->digest)", "if (false)"),
    ("ckpt/shard/copy.c", "if (memcmp(&made->trailer, &c->source->trailer, sizeof made->trailer) != 0)", "if (false)"),
    ("ckpt/tiers/replicate.c", "if (pd_digest64(in->buffer, h->bytes, 0) != h->digest)", "if (false)"),
]

# A call that no test misses: file, how it begins, why none can.
SPARED = [
    ("ckpt/store/lease.c", "store_sync_dir(dir, dir->root, err)", "a server that loses power alone would forget the fence of a launch that goes on, "
     "and give its number again; the simulated disk has no such server, and where all hosts stop names of checkpoints and pools count too"),
    ("ckpt/store/quarantine.c", 'store_sync_dir(root, store_at(root, "quarantine").text, err)', "the sync of the root that follows is enough where "
     "a directory moves in one piece, as with a journal and on the simulated disk"),
]

TESTS = ["unit_store_*", "crash_nth_store", "crash_store_zombies", "unit_tiers_*", "crash_tiers_others", "crash_tiers_flow", "crash_tiers_growth",
         "crash_tiers_bad", "crash_nth_tiers", "unit_shard_*", "crash_store_faults", "crash_tiers_peer", "crash_tiers_faults",
         "crash_store_generations", "unit_load_*"]


def run(command, folder, limit=None):
    """Exit code, or None when it did not end; what it printed."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               start_new_session=True, env=dict(os.environ, PERDURE_TEST_SCALE="1"))
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None, ""


def split_arguments(text, begin):
    """Of a call whose parenthesis opens at `begin`: its arguments, and where it ends."""
    depth, at, first, arguments = 0, begin, begin + 1, []
    while True:
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0 or (depth == 1 and text[at] == ","):
            arguments.append(" ".join(text[first:at].split()))
            first = at + 1
        at += 1
        if depth == 0:
            return arguments, at


def calls(path):
    """Each sync and rename that does nothing, each agreement in which every rank has its own way."""
    text = open(os.path.join(TOP, path)).read()
    for match in CALL.finditer(text):
        arguments, end = split_arguments(text, match.end() - 1)
        there = " ".join(text[match.start():end].split())
        if any(path == file and there.startswith(begins) for file, begins, _ in SPARED):
            continue
        instead = f"({arguments[1]})" if match.group(1) == "pd_group_agree" else "PD_OK"
        line = text.count("\n", 0, match.start()) + 1
        yield path, f"{line}: {there}", text[:match.start()] + instead + text[end:]


def of_table(path, there, instead):
    text = open(os.path.join(TOP, path)).read()
    if text.count(there) != 1:
        sys.exit(f"{path}: {there!r} is there {text.count(there)} times: bring the table up to date")
    return path, there, text.replace(there, instead)


def mutants(only):
    """File, what is taken away, the text of the file without it."""
    found = [mutant for path in SOURCES for mutant in calls(path)] + [of_table(*row) for row in TABLE]
    for path, begins, _ in SPARED:
        if begins not in " ".join(open(os.path.join(TOP, path)).read().split()):
            sys.exit(f"{path}: {begins!r} is no longer there: take it from SPARED")
    return [mutant for mutant in found if re.search(only, mutant[0] + ":" + mutant[1])]


def copy_tree(target):
    """What differs is copied and so is newer than what was made of it: an earlier run may have ended in the middle of a mutant."""
    files = subprocess.run(["git", "-C", TOP, "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, files.decode().split("\0")):
        source, copy = os.path.join(TOP, name), os.path.join(target, name)
        if os.path.isfile(source) and not (os.path.exists(copy) and filecmp.cmp(source, copy, shallow=False)):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)


def targets(build):
    known = [line.split(":")[0] for line in subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], check=True, capture_output=True,
                                                             text=True).stdout.splitlines()]
    names = []
    for pattern in TESTS:
        names += sorted({t for t in known if t == pattern or (pattern.endswith("*") and t.startswith(pattern[:-1]))})
    return names


def build_all(build, names):
    code, output = run(["ninja", "-C", build, *names], build)
    if code:
        sys.exit(f"the build fails:\n{output[-3000:]}")


def first_red(build, names, seconds):
    """`seconds`: what each has taken without a mutant; it is given ten times as long, and half a minute."""
    for name in names:
        begin = time.monotonic()
        code, output = run([os.path.join(build, "bin", name)], build, 10 * seconds[name] + 30 if name in seconds else None)
        seconds.setdefault(name, time.monotonic() - begin)
        if code != 0:
            said = [line for line in output.splitlines() if "FAIL" in line or "CRASH" in line]
            return f"{name}: " + ("does not end" if code is None else said[0].strip() if said else f"exit code {code}")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="mutants whose file and text this expression is found in")
    parser.add_argument("--keep", help="folder of the copy and its build")
    parser.add_argument("--list", action="store_true", help="name them, try none")
    options = parser.parse_args()
    found = mutants(options.only)
    if options.list:
        for path, what, _ in found:
            print(f"{path}:{what}")
        return
    folder = options.keep or tempfile.mkdtemp(prefix="perdure-mutants-")
    tree, build = os.path.join(folder, "tree"), os.path.join(folder, "build")
    try:
        copy_tree(tree)
        configured = ["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DPERDURE_TESTS=ON", "-DPERDURE_CUDA=OFF", "-DCMAKE_BUILD_TYPE=None",
                      "-DCMAKE_C_FLAGS=-w -O1",
                      *(["-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold"] if shutil.which("mold") else [])]
        if shutil.which("ccache"):
            configured.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
        subprocess.run(configured, check=True, stdout=subprocess.DEVNULL)
        names = targets(build)
        build_all(build, names)
        seconds = {}
        red = first_red(build, names, seconds)
        if red:
            sys.exit(f"red without a mutant: {red}")
        print(f"{len(names)} test programs are green in {sum(seconds.values()):.0f} s", flush=True)
        sys.exit(1 if try_all(tree, build, sorted(names, key=seconds.get), seconds, found) else 0)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def try_all(tree, build, names, seconds, found):
    survived = 0
    for path, what, text in found:
        file = os.path.join(tree, path)
        before = open(file).read()
        begin = time.monotonic()
        with open(file, "w") as out:
            out.write(text)
        build_all(build, names)
        red = first_red(build, names, seconds)
        with open(file, "w") as out:
            out.write(before)
        survived += red is None
        print(f"{'killed  ' if red else 'SURVIVED'} {path}:{what[:90].splitlines()[0]} | {red} | {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(found)} mutants, {survived} of them not killed")
    return survived


main()
