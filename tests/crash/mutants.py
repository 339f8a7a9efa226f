#!/usr/bin/env python3
"""Takes away, one at a time, what a commit rests on (a sync, a rename, a link, an agreement between ranks, the comparison of a checksum),
and wants a test that turns red each time.

    mutants.py [--only EXPRESSION] [--keep DIR [--minutes N]] [--list]

Syncs, renames and agreements are found in the sources, so that a new one is a mutant without further ado; the rest is in a table. The tree
is copied and built in a temporary folder, or in DIR, which stays: results.json there says which test killed which mutant and which stayed
green, and that is believed while the mutant and the test program without it are the same. So a run that ends, after N minutes or in any
other way, is continued by the same command. First come the tests that killed this mutant or others of its file, then those of its room,
the quickest first; a round tries all mutants that are left for longer than the one before. A mutant is killed by a test that fails,
crashes or does not end; the first one is printed. Exit code 1 when one survives or was not tried to the end, or when a line of the table
is no longer in the tree.
"""
import argparse
import filecmp
import hashlib
import json
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


ROUNDS = [15, 60, 240, float("inf")]  # seconds of tests that a mutant gets before the next one has its turn


def run(command, folder, limit=None):
    """Exit code, or None when it did not end; what it printed. Seconds in which the machine stands still do not count."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                   env=dict(os.environ, PERDURE_TEST_SCALE="2"))
        waited = 0
        while process.poll() is None and (limit is None or waited < limit):
            try:
                process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                waited += 0.5
        code = process.poll()
        if code is None:
            os.killpg(process.pid, 9)
            process.wait()
        output.seek(0)
        return code, output.read()


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


class Bench:
    """The copy and its build; which test programs are green in it without a mutant, and what is known of mutants."""

    def __init__(self, folder, until):
        self.tree, self.build = os.path.join(folder, "tree"), os.path.join(folder, "build")
        self.file = os.path.join(folder, "results.json")
        self.until = until
        self.known = {"tests": {}, "mutants": {}, "killers": {}}
        if os.path.exists(self.file):
            with open(self.file) as kept:
                self.known = json.load(kept)
        self.current = {}  # test program: digest of it without a mutant

    def save(self):
        with open(self.file + ".new", "w") as out:
            json.dump(self.known, out, indent=1)
        os.replace(self.file + ".new", self.file)

    def is_late(self):
        return time.monotonic() > self.until

    def make(self, name):
        code, output = run(["ninja", "-C", self.build, name], self.build)
        if code:
            sys.exit(f"the build fails:\n{output[-3000:]}")
        return os.path.join(self.build, "bin", name)

    def seconds(self, name):
        return self.known["tests"].get(name, {}).get("seconds", 10)

    def try_without(self, name):
        """Builds it from the tree as it is, and wants it green where it is another than it was."""
        if name in self.current:
            return
        program = self.make(name)
        with open(program, "rb") as binary:
            digest = hashlib.sha256(binary.read()).hexdigest()[:16]
        if self.known["tests"].get(name, {}).get("digest") != digest:
            begin = time.monotonic()
            code, output = run([program], self.build, 1800)
            if code != 0:
                sys.exit(f"red without a mutant: {name}\n{output[-3000:]}")
            self.known["tests"][name] = {"digest": digest, "seconds": time.monotonic() - begin}
            self.save()
        self.current[name] = digest

    def try_with(self, mutant, name):
        """What the test says that kills it, or None. It is given five times as long as without the mutant, and half a minute."""
        self.try_without(name)
        path, _, text = mutant
        source = os.path.join(self.tree, path)
        with open(source) as file:
            before = file.read()
        try:
            with open(source, "w") as out:
                out.write(text)
            code, output = run([self.make(name), "--fail-fast"], self.build, 5 * self.seconds(name) + 30)
        finally:
            with open(source, "w") as out:
                out.write(before)
        if code == 0:
            return None
        said = [line for line in output.splitlines() if "FAIL" in line or "CRASH" in line]
        return f"{name}: " + ("does not end" if code is None else said[0].strip() if said else f"exit code {code}")


def without_line(mutant):
    return mutant[0] + ":" + re.sub(r"^[0-9]+: ", "", mutant[1])


def order(bench, mutant, names):
    """The most likely ones for what they take."""
    path = mutant[0]
    room = "_" + path.split("/")[1] + "_"
    killers = [killer for what, killer in bench.known["killers"].items() if what.startswith(path + ":")]

    def cost(name):
        if bench.known["killers"].get(without_line(mutant)) == name:
            return 0
        chance = (0.5 if room in name else 0.1) * (10 if name.startswith("crash_") else 1)
        return (bench.seconds(name) + 2) / (killers.count(name) + chance)

    return sorted(names, key=cost)


def turn(bench, mutant, names, limit):
    """Tries one for `limit` seconds of tests. Its record, and whether no test is left."""
    path, _, text = mutant
    record = bench.known["mutants"].setdefault(hashlib.sha256((path + text).encode()).hexdigest()[:16], {"green": {}, "killed": None})
    record["what"] = path + ":" + mutant[1]
    if record["killed"]:
        bench.try_without(record["killed"][0])
        if record["killed"][1] == bench.current[record["killed"][0]]:
            return record, True
        record["killed"] = None
    spent = 0
    for name in order(bench, mutant, names):
        if spent > limit or bench.is_late():
            return record, False
        bench.try_without(name)
        if record["green"].get(name) == bench.current[name]:
            continue
        red = bench.try_with(mutant, name)
        if red:
            record["killed"] = [name, bench.current[name], red]
            bench.known["killers"][without_line(mutant)] = name
            bench.save()
            return record, True
        record["green"][name] = bench.current[name]
        bench.save()
        spent += bench.seconds(name)
    return record, True


def try_all(bench, names, found):
    """How many are not known to be killed."""
    left, killed, survived = found, 0, 0
    for limit in ROUNDS:
        undecided = []
        for mutant in left:
            if bench.is_late():
                undecided.append(mutant)
                continue
            record, is_done = turn(bench, mutant, names, limit)
            name = f"{mutant[0]}:{mutant[1][:90].splitlines()[0]}"
            if record["killed"]:
                killed += 1
                print(f"killed   {name} | {record['killed'][2]}", flush=True)
            elif is_done:
                survived += 1
                print(f"SURVIVED {name}", flush=True)
            else:
                undecided.append(mutant)
        left = undecided
    for mutant in left:
        print(f"not yet  {mutant[0]}:{mutant[1][:90].splitlines()[0]}")
    print(f"{len(found)} mutants, {killed} of them killed, {survived} not, {len(left)} not tried to the end")
    return survived + len(left)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="mutants whose file and text this expression is found in")
    parser.add_argument("--keep", help="folder of the copy and its build")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="how long; the rest is tried by the next run")
    parser.add_argument("--list", action="store_true", help="name them, try none")
    options = parser.parse_args()
    found = mutants(options.only)
    if options.list:
        for path, what, _ in found:
            print(f"{path}:{what}")
        return
    folder = options.keep or tempfile.mkdtemp(prefix="perdure-mutants-")
    bench = Bench(folder, time.monotonic() + 60 * options.minutes)
    try:
        copy_tree(bench.tree)
        configured = ["cmake", "-S", bench.tree, "-B", bench.build, "-G", "Ninja", "-DPERDURE_TESTS=ON", "-DPERDURE_CUDA=OFF",
                      "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-w -O1",
                      *(["-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold"] if shutil.which("mold") else [])]
        if shutil.which("ccache"):
            configured.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
        subprocess.run(configured, check=True, stdout=subprocess.DEVNULL)
        sys.exit(1 if try_all(bench, targets(bench.build), found) else 0)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


main()
