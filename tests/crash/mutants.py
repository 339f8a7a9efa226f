#!/usr/bin/env python3
"""Takes away, one at a time, what a commit rests on (a sync, a rename, an agreement between ranks, the comparison of a checksum), and wants
a test that turns red each time.

    mutants.py [--only WORD] [--keep DIR]

The tree is copied and built in a temporary folder, or in DIR, which stays for the next time. A mutant is killed by a test that fails, crashes or does not end; the first one
is printed. Exit code 1 when one survives, or when its line is no longer in the tree: then this table is behind the code.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# file, what is there, what takes its place
AGREE = "PD_TRY(pd_group_agree(root->group, {0}, err));"
MUTANTS = [
    # ---- what is durable before the record ----
    ("ckpt/shard/stream.c", "return pd_file_sync(stream->file, err);", "return PD_OK;"),
    ("ckpt/store/save.c", 'PD_TRY(store_sync_dir(root, store_at(root, "%s.tmp", save->name).text, err));', ""),
    ("ckpt/store/save.c", "PD_TRY(store_stripes_sync(save->drives, save->name, err));", ""),
    ("ckpt/store/save.c", "return root->has_other_shares && root->leads_share ? store_sync_dir(root, root->root, err) : PD_OK;",
     "return PD_OK;"),
    ("ckpt/store/save.c", AGREE.format("root->leads_host ? sync_prepared(save, err) : PD_OK"),
     "PD_TRY(root->leads_host ? sync_prepared(save, err) : PD_OK);"),
    # ---- the record ----
    ("ckpt/store/save.c", "record ? STORE_FILE_CUT_SYNC : STORE_FILE_SYNC", "STORE_FILE_LEAVE"),
    ("ckpt/store/save.c", 'PD_TRY(pd_vfs_rename(root->vfs, store_at(root, "%s", from).text, store_at(root, "%s", to).text, err));', ";"),
    ("ckpt/store/save.c", "return store_sync_dir(root, root->root, err);\n}\n\n/* Hosts", "return PD_OK;\n}\n\n/* Hosts"),
    ("ckpt/store/save.c", "st = pd_group_agree(root->group, root->leads_share ? commit_prepared(save, record, bytes, err) : PD_OK, err);",
     "st = root->leads_share ? commit_prepared(save, record, bytes, err) : PD_OK;"),
    ("ckpt/store/save.c", "pd_status st = pd_group_agree(root->dir.group, mine, err);", "pd_status st = mine;"),
    ("ckpt/store/save.c", "if (mine == PD_OK && root->dir.leads_share) mine = store_lease_check_here(&root->lease, err);", ""),
    ("ckpt/store/save.c", "if (root->words[r] != root->words[0])", "if (false)"),
    ("ckpt/store/save.c", "if (owner != PD_BUSY && has_peers)", "if (owner != PD_BUSY)"),
    ("ckpt/store/save.c", "if (owner != PD_BUSY && has_peers)", "if (has_peers)"),
    ("ckpt/store/save.c", "pd_status st = pd_group_agree(group, check_begin(save, identity, err), err);",
     "pd_status st = check_begin(save, identity, err);"),
    ("ckpt/store/save.c", "st = pd_group_agree(group, leads ? prepare_directory(save, err) : PD_OK, err);",
     "st = leads ? prepare_directory(save, err) : PD_OK;"),
    # ---- removing goes record first ----
    ("ckpt/store/remove.c", 'return store_sync_dir(root, store_at(root, "%s", dir).text, err);', "return PD_OK;"),
    ("ckpt/store/remove.c", AGREE.format("leads ? remove_records_here(root, name, err) : PD_OK"),
     "PD_TRY(leads ? remove_records_here(root, name, err) : PD_OK);"),
    ("ckpt/store/remove.c", AGREE.format("leads ? trash_here(drives, name, err) : PD_OK"),
     "PD_TRY(leads ? trash_here(drives, name, err) : PD_OK);"),
    ("ckpt/store/remove.c", 'store_sync_dir(root, strcmp(path.text, store_at(root, "%s", name).text) == 0 ? path.text : root->root, err)',
     "PD_OK"),
    # ---- who may write ----
    ("ckpt/store/dir.c", "if (st == PD_OK && end != STORE_FILE_LEAVE) st = pd_file_sync(file, err);", ""),
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
    # ---- copies ----
    ("ckpt/shard/copy.c", "return pd_file_sync(c->target, c->err);", "return PD_OK;"),
    ("ckpt/shard/copy.c", "if (memcmp(&made->trailer, &c->source->trailer, sizeof made->trailer) != 0)", "if (false)"),
    ("ckpt/tiers/replicate.c", "if (pd_digest64(in->buffer, h->bytes, 0) != h->digest)", "if (false)"),
    ("ckpt/tiers/replicate.c", "return pd_file_sync(in->file, err);", "return PD_OK;"),
    ("ckpt/tiers/replicate.c", "st = pd_group_agree(tier->group, judge(&v, err), err);", "st = judge(&v, err);"),
]

# What is quick comes first.
TESTS = ["unit_store_*", "unit_shard_*", "unit_tiers_*", "crash_store_zombies", "crash_store_faults", "crash_tiers_faults",
         "crash_tiers_peer", "crash_store_generations", "crash_tiers_others", "crash_tiers_flow", "crash_tiers_growth", "crash_tiers_bad", "unit_load_*"]
LIMIT_S = 900


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


def copy_tree(target):
    files = subprocess.run(["git", "-C", TOP, "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, files.decode().split("\0")):
        if os.path.isfile(os.path.join(TOP, name)):
            os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
            shutil.copy2(os.path.join(TOP, name), os.path.join(target, name))


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


def first_red(build, names):
    for name in names:
        code, output = run([os.path.join(build, "bin", name)], build, LIMIT_S)
        if code != 0:
            said = [line for line in output.splitlines() if "FAIL" in line or "CRASH" in line]
            return f"{name}: " + ("does not end" if code is None else said[0].strip() if said else f"exit code {code}")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="mutants whose file or text has this in it")
    parser.add_argument("--keep", help="folder of the copy and its build")
    options = parser.parse_args()
    folder = options.keep or tempfile.mkdtemp(prefix="perdure-mutants-")
    tree, build = os.path.join(folder, "tree"), os.path.join(folder, "build")
    try:
        copy_tree(tree)
        configured = ["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DPERDURE_TESTS=ON", "-DPERDURE_CUDA=OFF", "-DCMAKE_C_FLAGS=-w"]
        if shutil.which("ccache"):
            configured.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
        subprocess.run(configured, check=True, stdout=subprocess.DEVNULL)
        names = targets(build)
        build_all(build, names)
        red = first_red(build, names)
        if red:
            sys.exit(f"red without a mutant: {red}")
        print(f"{len(names)} test programs are green", flush=True)
        sys.exit(1 if try_all(tree, build, names, options.only) else 0)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def try_all(tree, build, names, only):
    tried = survived = 0
    for path, there, instead in MUTANTS:
        if only not in path + there:
            continue
        file = os.path.join(tree, path)
        text = open(file).read()
        tried += 1
        if text.count(there) != 1:
            print(f"BEHIND   {path}: {there!r} is there {text.count(there)} times", flush=True)
            survived += 1
            continue
        begin = time.monotonic()
        with open(file, "w") as out:
            out.write(text.replace(there, instead))
        build_all(build, names)
        red = first_red(build, names)
        with open(file, "w") as out:
            out.write(text)
        survived += red is None
        print(f"{'killed  ' if red else 'SURVIVED'} {path}: {there[:90].splitlines()[0]} | {red} | {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{tried} mutants, {survived} of them not killed")
    return survived


main()
