#!/usr/bin/env python3
"""What is wrong is named, and the exit code says what to do: limits of the system, full file systems, and directories in which
something was removed, linked elsewhere, copied from another run, or is not a regular file."""
import glob
import os
import re
import resource
import shutil
import signal
import subprocess

import harness

CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
checkpoint: {{every: 4}}
layout: {{ranks: 2, transport: local, threads: 1}}
"""
HIGHEST = 2**64 - 1


class Bench:
    def __init__(self, workspace):
        self.workspace = workspace
        self.config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
        self.base = workspace.directory("base")
        workspace.train(self.config, self.base, ["run.steps=8"])

    def copy(self, source=None):
        directory = self.workspace.directory("copy")
        shutil.copytree(source or self.base, directory)
        return directory

    def start(self, directory, *words, **environment):
        command = [self.workspace.perdure, "train", self.config, f"run.dir={directory}", *words]
        return subprocess.Popen(command, env=dict({**os.environ, "PERDURE_PROGRESS": "off"}, **environment), stderr=subprocess.PIPE, text=True)

    def run(self, directory, *overrides, **options):
        command = [self.workspace.perdure, "train", self.config, f"run.dir={directory}", *overrides]
        return subprocess.run(command, env=dict(os.environ, PERDURE_PROGRESS="off"), capture_output=True, text=True,
                              timeout=harness.PATIENCE, check=False, **options)

    def ends(self, name, code, words, directory, *overrides, **options):
        result = self.run(directory, *overrides, **options)
        expect(name, code, words, result.returncode, result.stderr)
        return result


def expect(name, code, words, found, log):
    if code != found or not re.search(words, log):
        raise harness.Failure(f"{name}: exit {found}, not {code}, or \"{words}\" is not said:\n{log}")


def steps_of(directory):
    return sorted(glob.glob(os.path.join(directory, "checkpoints", "step-*")))


def limited(which, soft, hard=None):
    return lambda: resource.setrlimit(which, (soft, hard or soft))


def limits(bench):
    new = bench.workspace.directory
    for size in (0, 1, 4096):
        bench.ends(f"files of {size} bytes", 74, "perdure: run.dir cannot be written.*File too large", new("files"),
                   preexec_fn=limited(resource.RLIMIT_FSIZE, size))
    for transport, who, size in (("local", "rank 0: a checkpoint of this layout", 100000), ("mpi", "mpirun", 100000), ("mpi", "mpirun", 4 << 20)):
        said = bench.ends(f"files smaller than a shard, {transport}", 78, f"perdure: {who} needs a file of .*, and files are limited to .*ulimit -f", new("files"),
                          f"layout.transport={transport}", preexec_fn=limited(resource.RLIMIT_FSIZE, size))
        if "PMIX" in said.stderr or "fresh start" in said.stderr:
            raise harness.Failure(f"files smaller than a shard, {transport}: it was started\n{said.stderr}")
    bench.ends("a small stack", 78, "perdure: the stack is limited to 200 KiB, and perdure needs 1024", new("stack"),
               preexec_fn=limited(resource.RLIMIT_STACK, 200 << 10))
    bench.ends("a small stack that may grow", 0, "done: step 12", new("stack"), preexec_fn=limited(resource.RLIMIT_STACK, 100 << 10, 8 << 20))
    for ranks, files in ((1, 8), (2, 12)):
        said = bench.ends("few open files", 78, rf"perdure: a run needs more than {8 + 3 * ranks} open files for {ranks} ranks?, and the limit is {files}: raise it",
                          new("few"), f"layout.ranks={ranks}", "checkpoint.give_up_minutes=0", preexec_fn=limited(resource.RLIMIT_NOFILE, files))
        if "fresh start" in said.stderr:
            raise harness.Failure(f"few open files: it was started\n{said.stderr}")
        bench.ends("enough open files", 0, "done: step 12", new("few"), f"layout.ranks={ranks}", preexec_fn=limited(resource.RLIMIT_NOFILE, 9 + 3 * ranks))
        bench.ends("few open files that may be more", 0, "done: step 12", new("few"), f"layout.ranks={ranks}",
                   preexec_fn=limited(resource.RLIMIT_NOFILE, files, 1024))
    # Closer together where two ranks are in HDF5 at once with hardly more than it needs.
    for mebibytes in sorted([*range(80, 480, 40), *range(184, 216, 2)]):
        result = bench.run(new("space"), "run.steps=1", "checkpoint.give_up_minutes=0", preexec_fn=limited(resource.RLIMIT_AS, mebibytes << 20))
        if result.returncode == 127 and "shared libraries" in result.stderr and mebibytes < 440:
            continue  # the loader's words: nothing of ours has run
        if result.returncode not in (0, 78) or (result.returncode and not re.search("ulimit -v|cannot be allocated", result.stderr)):
            raise harness.Failure(f"{mebibytes} MiB of address space: exit {result.returncode}\n{result.stderr}")
        if "restart 1" in result.stderr:
            raise harness.Failure(f"{mebibytes} MiB of address space: what they are too little for is begun again\n{result.stderr}")


def few_inodes(bench, transport):
    """Wherever they run out while the run opens: storage, and the reason is among what is said."""
    for inodes in range(4, 20, 2):
        place = bench.workspace.directory("inodes")
        os.makedirs(place)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"nr_inodes={inodes},size=64m", "none", place], capture_output=True, check=False).returncode:
            print("file systems with few inodes: left out, mounting is refused here")
            return
        try:
            bench.ends(f"{inodes} inodes over {transport}", 74, "No space left on device", os.path.join(place, "run"),
                       f"layout.transport={transport}", "checkpoint.give_up_minutes=0")
        finally:
            subprocess.run(["umount", "-l", place], check=False)


def removed_meanwhile(bench, transport):
    """State in memory needs a pool for its saves alone, which make it again; state that lay in it is lost."""
    for overrides in ([], ["offload.optimizer=nvme", "offload.buffer_bytes=8M"]):
        directory = bench.workspace.directory("pool")
        with bench.start(directory, "run.steps=1000000", f"layout.transport={transport}", *overrides) as run:
            harness.wait_for(lambda: harness.steps_done(directory) >= 5 or run.poll() is not None, "five steps")
            for pool in glob.glob(os.path.join(directory, "checkpoints", "pool-*")):
                os.rename(pool, directory + "-gone")  # at once: what is removed file by file gets new ones meanwhile
                shutil.rmtree(directory + "-gone")
            before = steps_of(directory)[-1:]
            if not overrides:
                harness.wait_for(lambda: len([s for s in steps_of(directory) if [s] > before]) > 1 or run.poll() is not None, "later steps are saved")
                run.send_signal(signal.SIGTERM)
            log = run.communicate(timeout=harness.PATIENCE)[1]
        if not overrides:
            expect(f"a pool that is removed over {transport}", 75, "pool-1 was removed from .*; it is made again", run.returncode, log)
            continue
        expect(f"a pool that is removed, {overrides} over {transport}", 74, "pool-1.*(No such file or directory|was removed)|(No such file or directory|was removed).*pool-1", run.returncode, log)


def vanishing(bench, transport):
    """What is removed between the look and the load is passed over at once; when nothing is left, nothing begins again."""
    for what in ("shard-00000.h5", "shard-00001.h5", "commit.h5", "*"):
        for steps, code, words in ((-1, 0, "has lost files since this launch began.*resumed at step 4,"), (0, 65, "holds no complete checkpoint")):
            directory = bench.copy()
            with bench.start(directory, f"layout.transport={transport}", PERDURE_FAULT="store.open.recovered@0:1:stop",
                             PERDURE_FAULT_ONCE=directory + ".once") as run:
                worker = harness.wait_stopped(run)
                for step in steps_of(directory)[steps:]:
                    for path in glob.glob(os.path.join(step, what)):
                        os.unlink(path)
                os.kill(worker, signal.SIGCONT)
                log = run.communicate(timeout=harness.PATIENCE)[1]
            expect(f"{what} vanishes, code {code}, over {transport}", code, words, run.returncode, log.replace("\n", " "))


def foreign_records(bench):
    """The record of another run beside our shards is damage: of another model, or of the same under another seed."""
    for overrides in (["run.seed=9"], ["model.hidden=64"]):
        other = bench.workspace.directory("other")
        bench.workspace.train(bench.config, other, ["run.steps=8", *overrides])
        for count, code, words in ((1, 0, "resumed at step 4,"), (2, 65, "holds no complete checkpoint")):
            directory = bench.copy()
            for ours, theirs in list(zip(steps_of(directory), steps_of(other)))[-count:]:
                shutil.copy(os.path.join(theirs, "commit.h5"), ours)
            result = bench.ends(f"{count} records of a run with {overrides}", code, words, directory)
            if "accept_new_lineage" in result.stderr:
                raise harness.Failure(f"advice to accept another run's record:\n{result.stderr}")


def names(bench):
    """Names with the largest numbers are nobody's: launches continue beside them, and take small numbers."""
    for name in (f"fence-{HIGHEST}", f"fence-{HIGHEST - 1}", f"pool-{HIGHEST}", f"step-000000000008-{HIGHEST}", f"step-{HIGHEST}-1",
                 f"step-{HIGHEST}-{HIGHEST}.tmp"):
        directory = bench.copy()
        path = os.path.join(directory, "checkpoints", name)
        if name.startswith("fence"):
            open(path, "wb").close()
        else:
            os.mkdir(path)
        bench.ends(f"beside {name}", 0, "resumed at step 8,", directory)
        if not os.path.isdir(os.path.join(directory, "checkpoints", "step-000000000012-2")):
            raise harness.Failure(f"beside {name}: {steps_of(directory)}")
    directory = bench.copy()
    open(os.path.join(directory, "checkpoints", f"fence-{10**15}"), "wb").close()
    bench.ends("beside the highest fence", 74, "highest number that a launch can have.*move what has it away", directory)


def links(bench):
    """What is not a file of ours is neither written nor waited for."""
    treasure = bench.workspace.file("treasure", "precious" * 500)
    for name, code in (("checkpoints/owner", 0), ("checkpoints/lock", 74), ("metrics.jsonl", 0), ("config.yaml", 0), ("last-steps", 0)):
        for kind in ("link", "dangling", "fifo", "device", "twin"):
            directory = bench.copy()
            path = os.path.join(directory, name)
            if os.path.lexists(path):
                os.unlink(path)
            if kind == "fifo":
                os.mkfifo(path)
            elif kind == "twin":
                os.link(treasure, path)
            else:
                os.symlink({"link": treasure, "dangling": "/tmp/nowhere/at/all", "device": "/dev/zero"}[kind], path)
            wanted = code
            if name == "metrics.jsonl" and kind not in ("link", "twin"):
                wanted = 74
            if name == "checkpoints/owner" and kind == "fifo":
                wanted = 74
            if name == "checkpoints/lock" and kind == "twin":
                wanted = 0
            bench.ends(f"{name} is a {kind}", wanted, name.split("/")[-1] if wanted else "resumed at step 8,", directory)
            if harness.read(treasure)[:4000] != "precious" * 500:
                raise harness.Failure(f"{name} is a {kind}: it was written through")
            if name == "metrics.jsonl" and kind in ("link", "twin"):
                bench.workspace.file("treasure", "precious" * 500)


def unreadable(bench):
    """The newest step that cannot be read is named with its own cause, and nothing older is taken."""
    for kind, words in (("directory", "commit.h5: Is a directory"), ("fifo", "commit.h5: it is not a regular file"),
                        ("loop", "commit.h5: Too many levels of symbolic links")):
        directory = bench.copy()
        path = os.path.join(steps_of(directory)[-1], "commit.h5")
        os.unlink(path)
        {"directory": os.mkdir, "fifo": os.mkfifo, "loop": lambda at: os.symlink("commit.h5", at)}[kind](path)
        bench.ends(f"a record that is a {kind}", 74, f"step-000000000008-1 is newer than what can be read.*{words}", directory)
    for whole in (True, False):
        directory = bench.workspace.directory("dangling")
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        if not whole:
            os.makedirs(directory)
        os.symlink("/tmp/nowhere/at/all", directory if whole else os.path.join(directory, "checkpoints"))
        bench.ends("a link to a directory that is not there", 74, "is a link to a missing target: mount or create the target", directory)


def out_of_sight(bench):
    """A run that has saved steps does not begin at step 1 because none is in sight, and says what to do."""
    directory = bench.copy()
    root = os.path.join(directory, "checkpoints")
    lost = "has the record of a run that saved step 8 in .*/checkpoints, and .*/checkpoints holds no checkpoint: put back .*--fresh or another run.dir"
    os.rename(root, root + ".away")
    for _ in range(2):
        bench.ends("checkpoints moved away", 65, lost, directory)
    shutil.rmtree(root)
    os.rename(root + ".away", root)
    before = [os.path.basename(step) for step in steps_of(directory)]
    for n, name in enumerate(before):
        os.rename(os.path.join(root, name), os.path.join(root, f"old{n}"))
    for _ in range(2):
        bench.ends("checkpoints renamed", 65, f"no checkpoint under its own name, but old{n} .step 8.: its record is of {before[-1]}: rename it to that", directory)
    os.rename(os.path.join(root, "old0"), os.path.join(root, before[0]))
    bench.ends("one of them renamed", 0, f"old{n} is skipped: its record is of {before[-1]}: rename it to that(?s:.*)resumed at step 4,", directory, "run.steps=4")
    os.rename(os.path.join(root, f"old{n}"), os.path.join(root, before[-1]))
    bench.ends("named as before", 0, "resumed at step 8,", directory)
    shutil.rmtree(root)
    bench.ends("a fresh start beside the record", 0, "fresh start: ", directory, "--fresh", "run.steps=2")
    bench.ends("after a fresh start", 0, "the learning rate of the next step is 0.000165, and was to be 3e-05: optimizer.decay_steps was 2 and is now 4 .it is run.steps "
               "where it is not set.. Steps from here on follow it; to keep the schedule, give optimizer.decay_steps=2\n(?s:.*)resumed at step 2,", directory, "run.steps=4")
    shutil.rmtree(root)
    bench.ends("the fresh run's checkpoints removed", 65, "saved step 4 in", directory)


def out_of_sight_of_an_import(bench):
    """What a run began from is not imported once more."""
    model, directory = bench.workspace.directory("model"), bench.workspace.directory("imported")
    bench.workspace.command(["ckpt", "export", bench.copy(), model, "--format=safetensors"])
    words = (f"init.from={model}", "run.steps=2")
    bench.ends("from a model", 0, "importing ", directory, *words)
    shutil.rmtree(os.path.join(directory, "checkpoints"))
    result = bench.ends("from a model, its checkpoints removed", 65, "has the record of a run that saved step 2", directory, *words)
    if "importing" in result.stderr:
        raise harness.Failure(f"imported again:\n{result.stderr}")


def two_runs(bench):
    """One directory of checkpoints for two runs, by turns; and a new run.dir that continues from another run's."""
    ours, theirs = bench.copy(), bench.workspace.directory("theirs")
    shared = f"checkpoint.dir={ours}/checkpoints"
    os.rename(f"{ours}/checkpoints", f"{ours}/away")
    bench.ends("a second run, first", 0, "done: step 4", theirs, shared, "run.steps=4")
    bench.ends("two runs by turns", 78, "step-000000000004-1 is of run .*, and run.dir, .*, has the record of run .*: two runs cannot share", ours)
    result = bench.ends("its own run.dir", 0, "nothing to train", theirs, shared, "run.steps=4")
    if "another run's" in result.stderr:
        raise harness.Failure(f"a run's own checkpoints are another run's:\n{result.stderr}")
    bench.ends("a new run.dir", 0, f"are another run's: step 4 was saved with run.dir={theirs};(?s:.*)nothing to train", bench.workspace.directory("new"),
               shared, "run.steps=4")
    moved = theirs + ".moved"
    os.rename(theirs, moved)
    result = bench.ends("a run.dir that was moved", 0, "nothing to train", moved, shared, "run.steps=4")
    if "another run's" in result.stderr:
        raise harness.Failure(f"a moved run's checkpoints are another run's:\n{result.stderr}")


def events_elsewhere(bench):
    """Starts and ends that cannot be recorded are said, once."""
    directory = bench.copy()
    os.unlink(os.path.join(directory, "events.jsonl"))
    os.mkfifo(os.path.join(directory, "events.jsonl"))
    result = bench.ends("events.jsonl is a fifo", 0, "resumed at step 8,", directory)
    if len(re.findall("events.jsonl: starts and ends of this run are not recorded: it is not a regular file; move it away", result.stderr)) != 1:
        raise harness.Failure(f"said not once:\n{result.stderr}")


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    bench = Bench(workspace)
    few_inodes(bench, transport)
    removed_meanwhile(bench, transport)
    vanishing(bench, transport)
    if transport == "local":
        limits(bench)
        foreign_records(bench)
        names(bench)
        links(bench)
        unreadable(bench)
        out_of_sight(bench)
        out_of_sight_of_an_import(bench)
        two_runs(bench)
        events_elsewhere(bench)
    print(f"causes over {transport} ranks: each with its exit code and its words")


if __name__ == "__main__":
    harness.main(body)
