#!/usr/bin/env python3
"""How a launch ends, and what it says: a table of endings, each with the exit code and the words that it must have. What a run
records does not depend on signals; one launch owns a run directory; descriptors that are closed are nobody's."""
import contextlib
import fcntl
import glob
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import termios
import time

import harness

CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
validation: {{every: 2, sequences: 4}}
checkpoint: {{every: 4}}
layout: {{ranks: 2, transport: local, threads: 1}}
"""


class Bench:
    def __init__(self, workspace, config):
        self.workspace, self.config = workspace, config

    def command(self, directory, *words):
        return [self.workspace.perdure, "train", self.config, f"run.dir={directory}", *words]

    def start(self, directory, *words, popen=None, **environment):
        return subprocess.Popen(self.command(directory, *words), env=dict({**os.environ, "PERDURE_PROGRESS": "off"}, **environment),
                                stderr=subprocess.PIPE, text=True, **(popen or {}))

    def run(self, directory, *words, **options):
        return subprocess.run(self.command(directory, *words), env=dict(os.environ, PERDURE_PROGRESS="off"), capture_output=True,
                              text=True, timeout=harness.PATIENCE, check=False, **options)


def expect(name, code, found, words, text):
    if code != found or not re.search(words, text):
        raise harness.Failure(f"{name}: exit {found}, not {code}, or \"{words}\" is not said:\n{text}")


def closed_descriptors(bench, transport):
    """A program that is started without stdin, stdout or stderr trains all the same."""
    for closed in ([0], [1], [2], [0, 1], [0, 1, 2]):
        directory = bench.workspace.directory("closed")
        shell = " ".join(f"{fd}>&-" if fd else "0<&-" for fd in closed)
        words = " ".join(f"'{word}'" for word in bench.command(directory, f"layout.transport={transport}"))
        code = subprocess.call(["sh", "-c", f"exec {words} {shell}"], env=dict(os.environ, PERDURE_PROGRESS="off"),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=harness.PATIENCE)
        if code != 0 or len(harness.losses(directory)) != 12:
            raise harness.Failure(f"descriptors {closed} closed over {transport}: exit {code}")


def moved(bench, transport):
    for what, elsewhere in (("moved", False), ("deleted", False), ("deleted file by file", False), ("moved", True)):
        directory = bench.workspace.directory(what)
        words = [f"checkpoint.dir={directory}.checkpoints", "checkpoint.every=100000"] if elsewhere else ["checkpoint.leave_seconds=1"]
        with bench.start(directory, "run.steps=1000000", f"layout.transport={transport}", *words, PERDURE_FAULT="worker.stepped:1:sleep") as run:
            harness.wait_for(lambda: harness.steps_done(directory) >= 5 or run.poll() is not None, "five steps")
            if what == "deleted file by file":  # as rm does while ranks make new ones
                subprocess.call(["find", directory, "-mindepth", "1", "-maxdepth", "1", "-not", "-name", "checkpoints", "-exec", "rm", "-rf", "{}", "+"])
            else:
                os.rename(directory, directory + ".away")
            if what == "deleted":
                subprocess.call(["rm", "-rf", directory + ".away"])
            log = run.communicate(timeout=harness.PATIENCE)[1]
        words = rf"run.dir \({re.escape(directory)}\) was moved or deleted; put it back, then run this again"
        expect(f"run.dir {what} over {transport}", 74, run.returncode, words, log)


def first_moments(bench):
    """From the moment that main has blocked them, a signal asks to leave."""
    directory = bench.workspace.directory("early")
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        for ms in (0, 5, 15, 30, 60):
            with bench.start(directory, "run.steps=100000") as run:
                harness.wait_for_signals(run)
                time.sleep(ms / 1000)
                run.send_signal(number)
                log = run.communicate(timeout=harness.PATIENCE)[1]
            expect(f"signal {number} after {ms} ms", 75, run.returncode, "asked to leave", log)


def pipe_as_configuration(bench):
    """One that nobody writes to is left when asked; what comes through one is a configuration."""
    pipe = bench.workspace.directory("pipe.yaml")
    os.mkfifo(pipe)
    command = [bench.workspace.perdure, "train", pipe, "run.dir=none"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
            harness.wait_for_signals(run)
            run.send_signal(number)
            try:
                log = run.communicate(timeout=60)[1]
            except subprocess.TimeoutExpired as error:
                run.kill()
                raise harness.Failure(f"signal {number}: still waiting for a configuration") from error
        expect(f"signal {number} before a configuration", 75, run.returncode, "asked to leave while waiting for the text of the configuration", log)
    for source in (pipe, "/dev/stdin"):
        with subprocess.Popen([*command[:2], source, "run.dir=none", "--print-config"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
            with open(pipe, "w", encoding="utf-8") if source == pipe else run.stdin as text:
                for line in harness.read(bench.config).splitlines(keepends=True):
                    text.write(line)
                    text.flush()
            expect(f"a configuration through {source}", 0, run.wait(), "steps: 12", run.stdout.read())


def during_validation(bench):
    """TERM in a validation that lasts for minutes: the save that was due comes first, the validation stops on all ranks, and the next start makes it once."""
    layouts = [["layout.transport=local"], ["layout.transport=mpi", "layout.pp=2"], ["layout.order=breadth_first", "layout.ranks=1"],
               ["checkpoint.every=100"]]  # the last: no save is due at the step of the validation
    steps = ["validation.every=4", "run.steps=8"]
    text = harness.text_of(40000)
    long = bench.workspace.file("long.txt", text * 400)
    bench = Bench(bench.workspace, bench.workspace.file("long.yaml", CONFIG.format(data=bench.workspace.file("short.txt", text)).replace(
        "validation_fraction: 0.1", f"validation: [{{path: {long}}}]")))
    undisturbed = bench.workspace.directory("unvalidated")
    bench.workspace.train(bench.config, undisturbed, steps)
    for layout in layouts:
        directory = bench.workspace.directory("validating")
        before = 3 if layout == layouts[-1] else 4
        with bench.start(directory, *steps, *layout, "validation.sequences=10000000") as run:
            harness.wait_for(lambda: harness.steps_done(directory) >= before or run.poll() is not None, f"{layout}: step {before}")
            time.sleep(0.5)  # it may have begun or not
            run.send_signal(signal.SIGTERM)
            log = run.communicate(timeout=harness.PATIENCE)[1]
        expect(f"TERM in a validation, {layout}", 75, run.returncode, "the state of step 4 is saved, the same command continues", log)
        log = bench.workspace.train(bench.config, directory, [*steps, *layout]).stderr
        expect(f"after TERM in a validation, {layout}", 0, 0, "resumed at step 4", log)
        lines = [json.loads(line) for line in harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()]
        losses = [(row["step"], row["validation_loss"]) for row in lines if "validation_loss" in row]
        rows = {row["step"]: row for row in lines}
        kept = [[(step, of[step].get("validation_loss"), of[step]["loss_bits"], of[step]["gradient_norm"]) for step in sorted(of)] for of in
                (rows, {row["step"]: row for row in map(json.loads, harness.read(os.path.join(undisturbed, "metrics.jsonl")).splitlines())})]
        if kept[0] != kept[1] or [step for step, _ in losses] != [4, 8]:
            raise harness.Failure(f"validations after TERM in one, {layout}: {losses}\n{kept[0]}\nundisturbed:\n{kept[1]}")
        if bench.workspace.state_digest(directory) != bench.workspace.state_digest(undisturbed):
            raise harness.Failure(f"{layout}: TERM in a validation changed the state")


def saved_in_validation(bench):
    """USR2 in a validation that lasts for minutes: the step is saved at once, and the validation continues."""
    text = harness.text_of(40000)
    long = bench.workspace.file("long.txt", text * 400)
    bench = Bench(bench.workspace, bench.workspace.file("long.yaml", CONFIG.format(data=bench.workspace.file("short.txt", text)).replace(
        "validation_fraction: 0.1", f"validation: [{{path: {long}}}]")))
    for layout in (["layout.transport=local"], ["layout.transport=mpi", "layout.pp=2"], ["layout.order=breadth_first", "layout.ranks=1"]):
        directory = bench.workspace.directory("saving")

        def newest(directory=directory):
            listed = bench.workspace.command(["ckpt", "ls", directory, "--json"])
            return max((one["step"] for one in json.loads(listed.stdout)), default=0) if listed.returncode == 0 else 0

        with bench.start(directory, "validation.every=4", "checkpoint.every=100", *layout, "validation.sequences=10000000") as run:
            harness.wait_for(lambda: harness.steps_done(directory) >= 3 or run.poll() is not None, f"{layout}: step 3")
            time.sleep(0.5)  # the validation has begun, unless this machine is slow: then another USR2 comes
            while newest() < 4 and run.poll() is None:
                run.send_signal(signal.SIGUSR2)
                time.sleep(0.5)
            rows = [json.loads(line) for line in harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()]
            run.send_signal(signal.SIGTERM)
            log = run.communicate(timeout=harness.PATIENCE)[1]
        expect(f"USR2 in a validation, {layout}", 75, run.returncode, "the state of step 4 is saved, the same command continues", log)
        if rows[-1]["step"] != 4 or any("validation_loss" in row for row in rows):
            raise harness.Failure(f"USR2 in a validation, {layout}: saved after it, or before the line of the step: {rows[-1]}\n{log}")
        log = bench.workspace.train(bench.config, directory, [*layout, "validation.every=4", "run.steps=8"]).stderr
        rows = [json.loads(line) for line in harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()]
        if [row["step"] for row in rows if "validation_loss" in row] != [4, 8] or harness.losses(directory).keys() != set(range(1, 9)):
            raise harness.Failure(f"after USR2 in a validation, {layout}: {rows}\n{log}")


def few_windows(bench):
    """More validation sequences than there are: each counts once, and the log says so."""
    losses = []
    for sequences in (62, 1000):
        directory = bench.workspace.directory("few")
        result = bench.run(directory, f"validation.sequences={sequences}", "run.steps=2")
        said = f"validation.sequences is {sequences} and the validation data holds 62 of 64 tokens: each counts once"
        if result.returncode != 0 or (said in result.stderr) != (sequences > 62):
            raise harness.Failure(f"{sequences} validation sequences: exit {result.returncode}\n{result.stderr}")
        losses.append(json.loads(harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()[-1])["validation_loss"])
    if losses[0] != losses[1]:
        raise harness.Failure(f"validation of all windows and of more: {losses}")


def few_threads(bench):
    """Threads that cannot start: what one rank misses ends all of them, wherever they are. A save that finds no memory is not tried again for an hour."""
    said = set()
    for mebibytes in range(240, 1200, 40):
        directory = bench.workspace.directory("few-threads")
        limit = mebibytes << 20
        result = bench.run(directory, "layout.ranks=4", "batch.sequences=8", "run.steps=1", "checkpoint.give_up_minutes=0.01",
                           preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        if result.returncode not in (0, 70, 78) or (result.returncode and "perdure: " not in result.stderr):
            raise harness.Failure(f"{mebibytes} MiB of address space: exit {result.returncode}\n{result.stderr}")
        said.add("a thread" if "raise the limit of processes (ulimit -u" in result.stderr else result.returncode)
    if not {0, "a thread"} <= said:
        raise harness.Failure(f"no limit of memory keeps just a thread from starting, or all do: {said}")


def few_descriptors(bench):
    """Open MPI hangs where it can make no pipes."""
    result = bench.run(bench.workspace.directory("few-descriptors"), "layout.transport=mpi",
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
    expect("24 descriptors", 78, result.returncode, r"mpirun needs more than \d+ open files for 2 ranks, and the limit is 24: raise it",
           result.stderr)


def little_address_space(bench):
    """Open MPI crashes where it has little, and would do so at every restart."""
    result = bench.run(bench.workspace.directory("little-space"), "layout.transport=mpi",
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20)))
    expect("100 MiB of address space", 78, result.returncode, r"^perdure: mpirun and its ranks need more than 256 MiB of address space each, "
           r"and the limit is 100: raise it \(ulimit -v\)$", result.stderr.splitlines()[-1])


def starter_that_hangs(bench):
    starter = bench.workspace.file("hangs.sh", "#!/bin/sh\nexec sleep 600\n")
    os.chmod(starter, 0o755)
    hangs = {"PERDURE_MPIRUN": starter}
    with bench.start(bench.workspace.directory("hangs"), "layout.transport=mpi", "restart.begin_seconds=1", **hangs) as run:
        log = run.communicate(timeout=harness.PATIENCE)[1]
    expect("a starter that hangs", 78, run.returncode, "did not start all ranks in restart.begin_seconds", log)
    with bench.start(bench.workspace.directory("hangs"), "layout.transport=mpi", **hangs) as run:
        run.stderr.readline()
        run.send_signal(signal.SIGTERM)
        log = run.communicate(timeout=harness.PATIENCE)[1]
    expect("TERM to a starter that hangs", 75, run.returncode, "asked to leave before the first step", log)


def stuck_opening(bench):
    """TERM works at any time: a worker that is stuck before its first step has nothing to save, and is ended."""
    with bench.start(bench.workspace.directory("stuck"), PERDURE_FAULT="store.open.recovered@0:1:stop") as run:
        harness.wait_stopped(run)
        run.send_signal(signal.SIGTERM)
        log = run.communicate(timeout=harness.PATIENCE)[1]
    expect("TERM to a worker that is stuck", 75, run.returncode, "asked to leave before the first step; there was nothing to save", log)


# What happens to whom while a worker stands at a place, the exit code of the launch, and what it says. Where the launch continues
# it must come to its end with the metrics of an undisturbed run.
OPENED, STEPPED, SAVED = "worker.opened@0:1:stop", "worker.stepped@0:3:stop", "worker.saved@0:1:stop"
PREPARED = "store.prepare.synced@0:1:stop"  # nothing but the fence stands between this and a commit
# A busy machine delivers a signal some steps later.
LEFT_OPENING = r"asked to leave(?: before the first step; there was nothing to save|; the state of step \d+ is saved)"
LEFT_STEPPED = LEFT_SAVING = r"asked to leave; the state of step \d+ is saved, the same command continues from there"
TABLE = [
    # place, to whom, signals, exit code, words
    (OPENED, "launch", [signal.SIGTERM], 75, LEFT_OPENING),
    (OPENED, "launch", [signal.SIGUSR1], 75, LEFT_OPENING),
    (OPENED, "launch", [signal.SIGINT], 75, LEFT_OPENING),
    (OPENED, "launch", [signal.SIGHUP], 75, LEFT_OPENING),
    (OPENED, "launch", [signal.SIGINT, signal.SIGINT], 75, "interrupted twice: left without saving"),
    (OPENED, "launch", [signal.SIGUSR2], 0, "SIGUSR2: saving and continuing"),
    (OPENED, "launch", [signal.SIGKILL], -9, ""),
    (OPENED, "worker", [signal.SIGTERM], 75, LEFT_OPENING),
    (OPENED, "worker", [signal.SIGKILL], 0, "{lost}: killed by SIGKILL.*; restart 1 of 3"),
    (STEPPED, "launch", [signal.SIGTERM], 75, LEFT_STEPPED),
    (STEPPED, "launch", [signal.SIGUSR1], 75, LEFT_STEPPED),
    (STEPPED, "launch", [signal.SIGINT], 75, LEFT_STEPPED),
    (STEPPED, "launch", [signal.SIGHUP], 75, LEFT_STEPPED),
    (STEPPED, "launch", [signal.SIGINT, signal.SIGINT], 75, "interrupted twice: left without saving"),
    (STEPPED, "launch", [signal.SIGUSR2], 0, "SIGUSR2: saving and continuing"),
    (STEPPED, "launch", [signal.SIGKILL], -9, ""),
    (STEPPED, "worker", [signal.SIGTERM], 75, LEFT_STEPPED),
    (STEPPED, "worker", [signal.SIGUSR2], 0, "done: step 12"),
    (STEPPED, "worker", [signal.SIGKILL], 0, "{lost}: killed by SIGKILL.*; restart 1 of 3"),
    (STEPPED, "worker", [signal.SIGSEGV], 0, "{lost}: killed by SIGSEGV.*; restart 1 of 3"),
    (STEPPED, "worker", [signal.SIGABRT], 0, "{lost}: killed by SIGABRT.*; restart 1 of 3"),
    (SAVED, "launch", [signal.SIGTERM], 75, LEFT_SAVING),
    (SAVED, "launch", [signal.SIGINT, signal.SIGINT], 75, "interrupted twice: left without saving"),
    (SAVED, "launch", [signal.SIGUSR2], 0, "SIGUSR2: saving and continuing"),
    (SAVED, "launch", [signal.SIGKILL], -9, ""),
    (SAVED, "worker", [signal.SIGTERM], 75, LEFT_SAVING),
    (SAVED, "worker", [signal.SIGKILL], 0, "{lost}: killed by SIGKILL.*; restart 1 of 3"),
    (OPENED, "stopped worker", [signal.SIGTERM], 75, "asked to leave before the first step; there was nothing to save"),
    (STEPPED, "stopped worker", [signal.SIGTERM], 75, "asked to leave while a rank was stopped .SIGSTOP., which cannot save: ended"),
    (OPENED, "moved directory", [], 74, "run.dir .* was moved or deleted; put it back"),
    (STEPPED, "moved directory", [], 74, "run.dir .* was moved or deleted; put it back"),
    (STEPPED, "deleted directory", [], 74, "run.dir .* was moved or deleted; put it back"),
    (STEPPED, "deleted checkpoints", [], 74, r"checkpoints was removed while the run used it: nothing can be saved"),
    (STEPPED, "deleted pool", [], 0, "pool-1 was removed from .*; it is made again"),
    (PREPARED, "newer fence", [], 74, "saving step 4: .*launch 2 has taken over .* this one must stop"),
    (STEPPED, "full disk", [], 74, "saving step 4: .*No space left on device"),
    (STEPPED, "closed stdin and stdout", [signal.SIGTERM], 75, LEFT_STEPPED),
    (STEPPED, "launch that was told to ignore it", [signal.SIGTERM], 75, LEFT_STEPPED),
    (STEPPED, "launch under nohup", [signal.SIGHUP], 0, "done: step 12"),
]
# What those of the directory need beside the usual; where {disk} cannot be mounted its row is left out.
WITH = {"full disk": ["checkpoint.dir={disk}/checkpoints", "checkpoint.give_up_minutes=0"],
        "moved directory": ["checkpoint.leave_seconds=1"], "deleted directory": ["checkpoint.leave_seconds=1"]}


def strike(whom, directory, worker, numbers, run, disk):
    """Does to whom the row names what it names; the line that says a signal was heard, which has been read."""
    heard = ""
    if whom == "worker":
        os.kill(worker, numbers[0])
    elif whom == "full disk":
        disk.fill(0)
    elif whom == "newer fence":
        with open(os.path.join(directory, "checkpoints", "fence-2"), "w", encoding="utf-8"):
            pass
    elif whom == "deleted checkpoints":
        os.rename(os.path.join(directory, "checkpoints"), directory + ".away")
    elif whom == "deleted pool":
        for pool in glob.glob(os.path.join(directory, "checkpoints", "pool-*")):
            shutil.rmtree(pool, ignore_errors=True)
    elif whom == "launch under nohup":
        run.send_signal(numbers[0])
    elif whom.endswith("directory"):
        os.rename(directory, directory + ".away")
        if whom.startswith("deleted"):
            shutil.rmtree(directory + ".away", ignore_errors=True)
        harness.wait_for(lambda: "was moved or deleted" in (line := run.stderr.readline()) or not line, "the launcher sees it")
    else:
        run.send_signal(numbers[0])
        while numbers != [signal.SIGKILL] and f"{signal.Signals(numbers[0]).name}: saving" not in heard:
            heard = run.stderr.readline()
        for number in numbers[1:]:
            run.send_signal(number)
        time.sleep(0.1)  # it hands signals on at its next tick
    return heard


def one_ending(bench, transport, undisturbed, row, disk=None):
    place, whom, numbers, code, words = row
    name = f"{[signal.Signals(n).name for n in numbers]} to the {whom} at {place} over {transport}"
    directory = bench.workspace.directory("ending")
    steps = 100000 if code in (74, 75) else 12  # whoever is to leave has not come to its end before it hears of it
    overrides = [word.format(disk=disk.path if disk else "") for word in WITH.get(whom, [])]
    before = {"closed stdin and stdout": lambda: (os.close(0), os.close(1)),
              "launch that was told to ignore it": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
              "launch under nohup": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    closed = {"preexec_fn": before[whom]} if whom in before else {"stdin": subprocess.DEVNULL}
    with bench.start(directory, f"layout.transport={transport}", f"run.steps={steps}", *overrides, popen=closed, PERDURE_FAULT=place,
                     PERDURE_FAULT_ONCE=directory + ".once") as run:
        worker = harness.wait_stopped(run)
        heard = strike(whom, directory, worker, numbers, run, disk)
        try:
            if whom != "stopped worker":
                os.kill(worker, signal.SIGCONT)
        except ProcessLookupError:
            pass
        log = heard + run.communicate(timeout=harness.PATIENCE)[1]
    lost = r"rank 0 \(process \d+\) died" if transport == "mpi" else r"the worker \(process \d+\) ended without a message"
    expect(name, code, run.returncode, words.format(lost=lost), log)
    if whom == "newer fence" and glob.glob(os.path.join(directory, "checkpoints", "step-*[0-9]")):
        raise harness.Failure(f"{name}: it has committed under an old fence")
    if code == -9:
        harness.wait_until_gone(directory)
    if code == 0 and harness.losses(directory) != harness.losses(undisturbed):
        raise harness.Failure(f"{name}: other losses than an undisturbed run")


def all_endings(bench, transport, undisturbed, rows):
    with harness.Disk(bench.workspace, 32) if os.geteuid() == 0 else contextlib.nullcontext() as disk:
        for row in rows:
            if row[1] != "full disk" or (disk and disk.is_mounted):
                one_ending(bench, transport, undisturbed, row, disk)


def on_a_terminal(bench, columns):
    """What a terminal shows: the bytes that reach it, with a width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = subprocess.Popen(bench.command(bench.workspace.directory("terminal")), stderr=theirs, stdout=theirs,
                           env={k: v for k, v in os.environ.items() if k not in ("PERDURE_PROGRESS", "COLUMNS")})
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # its other end is closed
    os.close(ours)
    expect("a run on a terminal", 0, run.wait(), "", "")
    return shown.decode().replace("\r\n", "\n")


def progress(bench):
    """A bar is shorter than the terminal is wide, and nothing is written behind one; a log has a line for every validation."""
    wide = ""
    for columns in (40, 72, 250):
        shown = on_a_terminal(bench, columns)
        pieces = re.split("\r\033\\[K|\n", shown)
        bars = [piece for piece in pieces if piece.startswith("step ")]
        glued = [piece for piece in pieces if re.search(r".step \d+/12 |..\d{4}-\d\d-\d\dT", piece)]
        if len(bars) != 12 or max(map(len, bars)) >= columns or glued or min(map(len, bars)) <= len(wide):
            raise harness.Failure(f"{columns} columns: {len(bars)} bars, glued {glued}:\n{shown!r}")
        wide = min(bars, key=len)
    with bench.start(bench.workspace.directory("log"), PERDURE_PROGRESS="line:1000") as run:
        log = run.communicate(timeout=harness.PATIENCE)[1]
    expect("a log of the progress", 0, run.returncode, "", log)
    if re.findall(r"^step (\d+)/12 .* val ", log, re.M) != ["2", "4", "6", "8", "10", "12"]:
        raise harness.Failure(f"not a line for every validation:\n{log}")


def for_programs(bench, undisturbed):
    drawn = json.loads(bench.workspace.command(["sample", undisturbed, "--prompt=ab", "--count=20", "--json"]).stdout)
    if not drawn["text"] or len(drawn["tokens"]) != 20:
        raise harness.Failure(f"sample --json has no text: {drawn}")
    result = bench.run(undisturbed, "--json")
    said = json.loads(result.stdout)
    last = json.loads(harness.read(os.path.join(undisturbed, "metrics.jsonl")).splitlines()[-1])
    if result.returncode or said["error"] is not None or said["exit_code"] != 0 or said["loss"] != last["loss"]:
        raise harness.Failure(f"train --json: {said}, and its last line is {last}")
    result = bench.run(undisturbed, "--json", "model.hidden=64")
    said = json.loads(result.stdout)
    if result.returncode != said["exit_code"] or said["exit_code"] == 0 or said["error"] not in result.stderr:
        raise harness.Failure(f"train --json of a run that is refused, exit {result.returncode}: {said}\n{result.stderr}")


def full_context(bench, undisturbed):
    """What a model will not have seen is said before the first token."""
    for count, is_said in ((63, False), (64, True)):
        result = bench.workspace.command(["sample", undisturbed, "--prompt=ab", f"--count={count}", "--json"])
        words = "context is 64 tokens: each time it is full, the older half is dropped, the prompt first; --count=63 is the most that drops nothing"
        if result.returncode != 0 or (words in result.stderr) != is_said:
            raise harness.Failure(f"sample --count={count}: exit {result.returncode}\n{result.stderr}")
    result = bench.workspace.command(["sample", undisturbed, f"--prompt={'x' * 70}", "--count=1", "--json"])
    expect("a long prompt", 0, result.returncode, "the prompt has 70 tokens and the model's context 64: only its last 38 are seen", result.stderr)


def one_owner(bench):
    directory, other = bench.workspace.directory("owned"), bench.workspace.directory("other")
    with bench.start(directory, "run.steps=100000") as first:
        harness.wait_for(lambda: harness.steps_done(directory) >= 5 or first.poll() is not None, "five steps")
        with bench.start(directory, f"checkpoint.dir={other}") as second:
            line = second.stderr.readline()
            log = line + second.communicate(timeout=harness.PATIENCE)[1]
        expect("a second launch, at once", 74, second.returncode, f"waiting for another launch .*process {first.pid} of this host", line)
        expect("a second launch", 74, second.returncode, f"another launch is using {re.escape(directory)} .process {first.pid}", log)
        with bench.start(directory + ".second", f"checkpoint.dir={directory}/checkpoints") as second:
            lines = [second.stderr.readline(), second.stderr.readline()]
            log = "".join(lines) + second.communicate(timeout=harness.PATIENCE)[1]
        expect("checkpoints in use, at once", 74, second.returncode, "waiting for another launch that is using .*/checkpoints .*process", "".join(lines))
        expect("checkpoints in use", 74, second.returncode, "another run or writer is using this directory", log)
        with bench.start(directory) as third:
            third.stderr.readline()
            third.send_signal(signal.SIGTERM)
            expect("TERM to one that waits", 75, third.wait(timeout=harness.PATIENCE), "", "")
        first.send_signal(signal.SIGTERM)
        expect("the first launch", 75, first.wait(timeout=harness.PATIENCE), "", "")
    if os.path.exists(os.path.join(other, "step")) or other in harness.read(os.path.join(directory, "config.yaml")):
        raise harness.Failure("the refused launch wrote to the run of the other")
    before = harness.read(os.path.join(directory, "metrics.jsonl"))
    result = bench.run(directory, f"checkpoint.dir={other}")
    expect("other checkpoints in a run", 78, result.returncode, "name the directory that has them, move them there, or choose another run.dir",
           result.stderr)
    if before != harness.read(os.path.join(directory, "metrics.jsonl")):
        raise harness.Failure("the refused launch wrote metrics")
    os.rename(os.path.join(directory, "checkpoints"), other)
    result = bench.run(directory, f"checkpoint.dir={other}", f"run.steps={before.count(chr(10)) + 5}")
    expect("checkpoints that were moved", 0, result.returncode, "resumed at step", result.stderr)


def closed_pipe(bench, undisturbed):
    for words in (["ckpt", "ls"], ["ckpt", "show", "--config"], ["ckpt", "stats"], ["ckpt", "stats", "--json"], ["sample", "--count=400"]):
        for _ in range(3):
            read_end, write_end = os.pipe()
            os.close(read_end)
            run = subprocess.run([bench.workspace.perdure, *words[:2], undisturbed, *words[2:]] if words[0] == "ckpt" else
                                 [bench.workspace.perdure, words[0], undisturbed, *words[1:]], stdout=write_end, stderr=subprocess.PIPE, text=True,
                                 check=False, timeout=harness.PATIENCE)
            os.close(write_end)
            if run.returncode != 0 or "stdout" in run.stderr:
                raise harness.Failure(f"{words} into a pipe that is closed: exit {run.returncode}\n{run.stderr}")


def body(workspace, arguments):
    transport = arguments[0] if arguments else "local"
    bench = Bench(workspace, workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000)))))
    closed_descriptors(bench, transport)
    moved(bench, transport)
    undisturbed = workspace.directory("undisturbed")
    workspace.train(bench.config, undisturbed)
    all_endings(bench, transport, undisturbed, harness.share_of(TABLE, 2) if transport == "local" else TABLE[::4])
    if transport == "mpi":
        few_descriptors(bench)
        little_address_space(bench)
        starter_that_hangs(bench)
    else:
        few_threads(bench)
        stuck_opening(bench)
        progress(bench)
        for_programs(bench, undisturbed)
        first_moments(bench)
        pipe_as_configuration(bench)
        during_validation(bench)
        saved_in_validation(bench)
        one_owner(bench)
        few_windows(bench)
        full_context(bench, undisturbed)
        closed_pipe(bench, undisturbed)
    print(f"endings over {transport} ranks: each with its exit code and its words")


if __name__ == "__main__":
    harness.main(body)
