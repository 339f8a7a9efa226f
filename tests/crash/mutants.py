#!/usr/bin/env python3
"""Takes away, one at a time, what a commit rests on (a sync, a rename, a link, an agreement between ranks, the comparison of a checksum),
and wants a test that turns red each time.

    mutants.py [--only EXPRESSION] [--keep DIR [--minutes N]] [--list]

Syncs, renames and agreements are found in the sources, so that a new one is a mutant without further ado; the rest is in a table. The tree
is copied and built once, in a temporary folder or in DIR, which stays: in the copy each of these places asks PERDURE_MUTANT whether it is the
one that does nothing. results.json in DIR says which test killed which mutant and which stayed green, and that is believed while the test
program is the same: a run that ends, after N minutes or in any other way, is continued by the same command. First come the tests that killed
this mutant or others of its file, then those of its room, the quickest first; a round tries all mutants that are left for longer than the
one before. A mutant is killed by a test that fails, crashes or does not end; the first one is printed. Exit code 1 when one survives or was
not tried to the end, or when a line of the table is no longer in the tree.
"""
import argparse
import collections
import concurrent.futures
import filecmp
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Where a commit and what follows it are made.
SOURCES = ["ckpt/shard/copy.c", "ckpt/shard/stream.c", "ckpt/store/dir.c", "ckpt/store/lease.c", "ckpt/store/quarantine.c", "ckpt/store/recover.c",
           "ckpt/store/remove.c", "ckpt/store/replicas.c", "ckpt/store/save.c", "ckpt/store/scan.c", "ckpt/store/store.c",
           "ckpt/tiers/copy.c", "ckpt/tiers/replicate.c"]
CALL = re.compile(r"(?<!pd_status )\b(pd_file_sync|pd_vfs_sync_dir|store_sync_dir|pd_vfs_rename|pd_group_agree)\(")

# file, what is there (of an `if` its condition is meant), what takes its place
TABLE = [
    ("ckpt/store/save.c", "bytes ? STORE_FILE_SYNC : STORE_FILE_LEAVE", "STORE_FILE_LEAVE"),
    ("ckpt/store/save.c", "record ? STORE_FILE_CUT_SYNC : STORE_FILE_SYNC", "STORE_FILE_LEAVE"),
    ("ckpt/store/save.c", "if (mine == PD_OK && root->dir.leads_share) mine = store_lease_check_here(&root->lease, err);", "0"),
    ("ckpt/store/save.c", "if (root->words[r] != root->words[0])", "0"),
    ("ckpt/store/save.c", "if (owner != PD_BUSY && has_peers)", "owner != PD_BUSY"),
    ("ckpt/store/save.c", "if (owner != PD_BUSY && has_peers)", "has_peers"),
    # ---- nothing damaged is believed ----
    ("ckpt/store/commit.c", "if (pd_digest64(&t, sizeof t - sizeof t.self_digest, 0) != t.self_digest)", "0"),
    ("ckpt/store/commit.c", "if (pd_digest64(data, bytes - sizeof t, PD_SHARD_SEED) != t.body_digest)", "0"),
    ("ckpt/store/scan.c", "if (all_agree(rows, count, record)) return PD_OK;", "1"),
    ("ckpt/store/scan.c", "if (store_has_other_shards(dir, step, commit))", "!dir"),
    ("ckpt/shard/open.c", "if (digest != trailer->self_digest)", "0"),
    ("ckpt/shard/open.c", "if (trailer->table_digest != expect->digest)", "0"),
    ("ckpt/shard/open.c", "if (digest != shard->trailer.table_digest)", "0"),
    ("ckpt/shard/open.c", "if (!wanted || memcmp(have, wanted, sizeof *have) == 0) return PD_OK;", "1"),
    ("ckpt/shard/verify.c", "if (digest != shard->checksums[place->first_block + block])", "0"),
    ("ckpt/shard/verify.c", "if (digest == head->rest_digest) return PD_OK;", "1"),
    ("ckpt/shard/decompress.c",
     "if (pd_shard_chunk_digest(shard->box_seeds[box], chunk->number, pages, row->stored_bytes) != row->digest)", "0"),
    ("ckpt/shard/copy.c", "if (memcmp(&made->trailer, &c->source->trailer, sizeof made->trailer) != 0)", "0"),
    ("ckpt/tiers/replicate.c", "if (pd_digest64(in->buffer, h->bytes, 0) != h->digest)", "0"),
]

# A call that no test misses: file, how it begins, why none can.
SPARED = [
    ("ckpt/store/lease.c", "store_sync_dir(dir, dir->root, err)", "a server that loses power alone would forget the fence of a launch that continues, "
     "and give its number again; the simulated disk has no such server, and where all hosts stop names of checkpoints and pools count too"),
    ("ckpt/store/quarantine.c", 'store_sync_dir(root, store_at(root, "quarantine").text, err)', "the sync of the root that follows is enough where "
     "a directory moves in one piece, as with a journal and on the simulated disk"),
]

TESTS = ["unit_store_*", "unit_tiers_*", "unit_shard_*", "unit_load_*", "crash_nth_store", "crash_nth_tiers", "crash_store_damage",
         "crash_store_faults", "crash_store_generations", "crash_store_states", "crash_store_zombies", "crash_tiers_*"]


ROUNDS = [15, 60, 240, float("inf")]  # seconds of tests that a mutant gets before the next one has its turn

# Before each file of the copy, so without headers: some ask for more of them by a macro that comes first.
ASKS = """static inline int is_mutant(int number)
{
    extern char *getenv(const char *);
    extern int atoi(const char *);
    const char *chosen = getenv("PERDURE_MUTANT");
    return chosen && atoi(chosen) == number;
}
"""


def run(command, folder, limit=None, mutant=None):
    """Exit code, or None when it did not end; what it printed. Seconds in which the machine stands still do not count."""
    settings = dict(os.environ, PERDURE_TEST_SCALE="2")
    if mutant is not None:
        settings["PERDURE_MUTANT"] = str(mutant)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=settings)
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


def arguments_at(text, begin):
    """Of a call or a condition whose parenthesis opens at `begin`: what stands between its commas, and where it ends."""
    depth, at, first, arguments = 0, begin, begin + 1, []
    while True:
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0 or (depth == 1 and text[at] == ","):
            arguments.append(" ".join(text[first:at].split()))
            first = at + 1
        at += 1
        if depth == 0:
            return arguments, at


def read(path):
    with open(os.path.join(TOP, path)) as file:
        return file.read()


def places(path, text):
    """Each sync and rename that does nothing, each agreement in which every rank has its own way: where it begins, how it is called."""
    for match in CALL.finditer(text):
        there = " ".join(text[match.start():arguments_at(text, match.end() - 1)[1]].split())
        if not any(path == file and there.startswith(begins) for file, begins, _ in SPARED):
            yield match.start(), f"{text.count(chr(10), 0, match.start()) + 1}: {there}"


def either(text, begin, end, number, instead):
    return f"{text[:begin]}(is_mutant({number}) ? ({instead}) : ({text[begin:end]})){text[end:]}"


def find_mutants():
    """Of each its file and what is taken away; of each file its text in the copy."""
    found, texts = [], {path: read(path) for path in SOURCES + [path for path, _, _ in TABLE]}
    for path in SOURCES:
        here = list(places(path, texts[path]))
        for number, (begin, _) in reversed(list(enumerate(here, len(found)))):  # what is within another's arguments comes behind it
            text = texts[path]
            arguments, end = arguments_at(text, text.index("(", begin))
            texts[path] = either(text, begin, end, number, arguments[1] if text.startswith("pd_group_agree", begin) else "PD_OK")
        found += [(path, what) for _, what in here]
    for path, there, instead in TABLE:
        whole = read(path)
        if whole.count(there) != 1:
            sys.exit(f"{path}: {there!r} is there {whole.count(there)} times: bring the table up to date")
        condition = there[4:arguments_at(there, 3)[1] - 1] if there.startswith("if (") else there
        text = texts[path]
        begin = text.index(condition, text.index(there[:there.index(condition)]) if text.count(there) else 0)
        texts[path] = either(text, begin, begin + len(condition), len(found), instead)
        found.append((path, f"{there} -> {instead}"))
    for path, begins, _ in SPARED:
        if begins not in " ".join(read(path).split()):
            sys.exit(f"{path}: {begins!r} is no longer there: take it from SPARED")
    return found, texts


def write_where_it_differs(path, text):
    if not os.path.exists(path) or open(path, errors="replace").read() != text:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as out:
            out.write(text)


def copy_tree(target, texts):
    """What differs is copied, and so is newer than what was made of it."""
    files = subprocess.run(["git", "-C", TOP, "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, files.decode().split("\0")):
        source, copy = os.path.join(TOP, name), os.path.join(target, name)
        if name in texts:
            write_where_it_differs(copy, texts[name])
        elif os.path.isfile(source) and not (os.path.exists(copy) and filecmp.cmp(source, copy, shallow=False)):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)


def build_tests(folder, texts):
    """Names of the test programs, which are in build/bin."""
    tree, build, asks = (os.path.join(folder, name) for name in ("tree", "build", "asks.h"))
    copy_tree(tree, texts)
    write_where_it_differs(asks, ASKS)
    configured = ["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DPERDURE_TESTS=ON", "-DPERDURE_CUDA=OFF", "-DCMAKE_BUILD_TYPE=None",
                  f"-DCMAKE_C_FLAGS=-w -O1 -include {asks}", *(["-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold"] if shutil.which("mold") else [])]
    if shutil.which("ccache"):
        configured.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
    subprocess.run(configured, check=True, stdout=subprocess.DEVNULL)
    listed = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], check=True, capture_output=True, text=True).stdout
    known = {line.split(":")[0] for line in listed.splitlines()}
    names = [name for pattern in TESTS for name in sorted(known) if fnmatch.fnmatchcase(name, pattern) and "/" not in name and "." not in name]
    code, output = run(["ninja", "-C", build, *names], build)
    if code:
        sys.exit(f"the build fails:\n{output[-3000:]}")
    return names


class Bench:
    """The test programs, and what is known of them and of mutants."""

    def __init__(self, folder, until):
        self.bin = os.path.join(folder, "build", "bin")
        self.file = os.path.join(folder, "results.json")
        self.until = until
        self.lock = threading.Lock()  # over what is known
        self.turns = collections.defaultdict(threading.Lock)  # of a test program: one tries it without a mutant
        self.digests = {}  # of those that are known to be green without
        self.known = {"tests": {}, "mutants": {}, "killers": {}}
        if os.path.exists(self.file):
            with open(self.file) as kept:
                self.known = json.load(kept)

    def save(self):
        with self.lock:
            with open(self.file + ".new", "w") as out:
                json.dump(self.known, out, indent=1)
            os.replace(self.file + ".new", self.file)

    def is_late(self):
        return time.monotonic() > self.until

    def seconds(self, name):
        return self.known["tests"].get(name, {}).get("seconds", 60 if name.startswith("crash_") else 3)

    def try_without(self, name):
        """Its digest. It is wanted green without a mutant where it is another than it was."""
        with self.turns[name]:
            if name not in self.digests:
                program = os.path.join(self.bin, name)
                with open(program, "rb") as binary:
                    digest = hashlib.sha256(binary.read()).hexdigest()[:16]
                if self.known["tests"].get(name, {}).get("digest") != digest:
                    begin = time.monotonic()
                    code, output = run([program], self.bin, 1800)
                    if code != 0:
                        raise RuntimeError(f"red without a mutant: {name}\n{output[-3000:]}")
                    with self.lock:
                        self.known["tests"][name] = {"digest": digest, "seconds": time.monotonic() - begin}
                    self.save()
                self.digests[name] = digest
            return self.digests[name]

    def try_with(self, number, name):
        """What the test says that kills it, or None. It is given five times as long as without the mutant, and half a minute."""
        code, output = run([os.path.join(self.bin, name), "--fail-fast"], self.bin, 5 * self.seconds(name) + 30, number)
        if code == 0:
            return None
        said = [line for line in output.splitlines() if "FAIL" in line or "CRASH" in line]
        return f"{name}: " + ("does not end" if code is None else said[0].strip() if said else f"exit code {code}")


def key_of(mutant):
    return mutant[0] + ":" + re.sub(r"^[0-9]+: ", "", mutant[1])


def order(bench, mutant, names):
    """The most likely ones for what they take."""
    room = "_" + mutant[0].split("/")[1] + "_"
    is_agreement = "pd_group_agree(" in mutant[1]  # what fails on one rank fails on all
    killers = [killer for what, killer in bench.known["killers"].items() if what.startswith(mutant[0] + ":")]

    def cost(name):
        if bench.known["killers"].get(key_of(mutant)) == name:
            return 0
        chance = (2 if room in name + "_" else 0.2) * (8 if is_agreement and "_nth_" in name else 1)
        return (bench.seconds(name) + 1) / (killers.count(name) + chance)

    return sorted(names, key=cost)


def turn(bench, number, mutant, names, limit):
    """Tries one for `limit` seconds of tests. Its record, and whether no test is left."""
    with bench.lock:
        record = bench.known["mutants"].setdefault(f"{number} {key_of(mutant)}", {"green": {}, "killed": None})
        ordered = order(bench, mutant, names)
    if record["killed"] and record["killed"][1] == bench.try_without(record["killed"][0]):
        return record, True
    record["killed"] = None
    spent = 0
    for name in ordered:
        if spent > limit or bench.is_late():
            return record, False
        digest = bench.try_without(name)
        if record["green"].get(name) == digest:
            continue
        red = bench.try_with(number, name)
        with bench.lock:
            if red:
                record["killed"] = [name, digest, red]
                bench.known["killers"][key_of(mutant)] = name
            else:
                record["green"][name] = digest
        bench.save()
        if red:
            return record, True
        spent += bench.seconds(name)
    return record, True


def try_all(bench, names, found, only):
    """How many are not known to be killed."""
    left = [number for number, (path, what) in enumerate(found) if re.search(only, path + ":" + what)]
    count, killed, survived = len(left), 0, 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for limit in ROUNDS:
            undecided = []
            for number, (record, is_done) in zip(left, pool.map(lambda number: turn(bench, number, found[number], names, limit), left)):
                what = f"{found[number][0]}:{found[number][1][:110].splitlines()[0]}"
                if record["killed"]:
                    killed += 1
                    print(f"killed   {what} | {record['killed'][2]}", flush=True)
                elif is_done:
                    survived += 1
                    print(f"SURVIVED {what}", flush=True)
                else:
                    undecided.append(number)
            left = undecided
    for number in left:
        print(f"not yet  {found[number][0]}:{found[number][1][:110].splitlines()[0]}")
    print(f"{count} mutants, {killed} of them killed, {survived} not, {len(left)} not tried to the end")
    return survived + len(left)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="mutants whose file and text this expression is found in")
    parser.add_argument("--keep", help="folder of the copy and its build")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="how long; the rest is tried by the next run")
    parser.add_argument("--list", action="store_true", help="name them, try none")
    options = parser.parse_args()
    found, texts = find_mutants()
    if options.list:
        for path, what in found:
            if re.search(options.only, path + ":" + what):
                print(f"{path}:{what}")
        return
    folder = os.path.abspath(options.keep) if options.keep else tempfile.mkdtemp(prefix="perdure-mutants-")
    until = time.monotonic() + 60 * options.minutes
    try:
        names = build_tests(folder, texts)
        sys.exit(1 if try_all(Bench(folder, until), names, found, options.only) else 0)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


main()
