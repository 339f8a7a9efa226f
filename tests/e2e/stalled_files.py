#!/usr/bin/env python3
"""A file system that stalls (helpers/stalling_files.c) is not a hung rank: while reads of data, state in files, saves, metrics, the reading of a
checkpoint or the beginning of a rank wait for it, nobody is blamed and nobody is ended, the log says what waits for storage, and the run ends with
the bits of one that never waited. A rank that was killed and cannot end, because it waits there, has no other started beside it.

By default each stall takes 22 s and a hang 10 s; with PERDURE_TEST_SCALE of 10 or more, 45 and 150 s too, in more places. A limit is short
only where it has to pass during a stall: a busy machine may need long for a start or a step.
Arguments: PERDURE STALLING_FILES."""
import glob
import os
import re
import signal
import subprocess
import sys
import time

import harness
from hangs import workers

CONFIG = """
run: {{seed: 3, steps: 1000000}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 192, heads: 4, head_size: 48, ffn: 600}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 6, micro_batch: 1, context: 64}}
optimizer: {{warmup_steps: 2, decay_steps: 100000}}
checkpoint: {{every: 3, keep_last: 2, leave_seconds: 400}}
layout: {{ranks: 2, threads: 1}}
restart: {{hang_seconds: 10}}
"""
SLOW = {"PERDURE_FAULT": "worker.stepped:1:sleep"}  # nothing is asked of a run while it only trains
AT_START = "at start: "  # what it holds is held before the run starts
EVENTS = "write /begins/run/events.jsonl"  # by the launcher, before it starts ranks
# Of the runs `state`, `saves` and `begins`; -PID are all threads but the launcher's first: its ranks, which are not heard of.
STALLS = [("read /state/text.txt", "* /saves/checkpoints*", "* /begins/run/.launch-* -PID"),
          ("names /state/checkpoints/pool-*/generation-*", "write /saves/run/metrics.jsonl", EVENTS),
          ("* /state/checkpoints/pool-*/generation-*", AT_START + "read /saves/checkpoints/step-*/shard-*", "* /begins/run/.launch-* PID")]
MORE_STALLS = [("write /state/run/last-steps*", AT_START + "* /saves/run/last-steps*", EVENTS)]
NVME = ["offload.optimizer=nvme", "offload.buffer_bytes=4M"]
BLAME = re.compile(r"ending it|restart 1|lost|failed|died|does not end|gone", re.I)


class Stalling:
    """A directory behind a file system that stalls on demand."""

    def __init__(self, workspace, helper):
        self.path, self.control = workspace.directory("mount"), workspace.directory("control")
        directory = workspace.directory("files")
        os.makedirs(directory)
        os.makedirs(self.path)
        with open(self.control + ".log", "wb") as log:
            self.process = subprocess.Popen([helper, directory, self.path, self.control], stderr=log)
        harness.wait_for(lambda: os.path.ismount(self.path) or self.process.poll() is not None, "a mount")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.wait()
        subprocess.run(["umount", "-l", self.path], stderr=subprocess.DEVNULL, check=False)

    def hold(self, lines):
        with open(self.control + ".new", "w", encoding="utf-8") as f:
            f.write("".join(line + "\n" for line in lines))
        os.rename(self.control + ".new", self.control)

    def held(self):
        return harness.read(self.control).strip().replace("\n", "; ") if os.path.exists(self.control) else "nothing"

    def let_go(self):
        if os.path.exists(self.control):
            os.unlink(self.control)


class Run:
    """In the directory `name` of the mount, with text, checkpoints and run.dir of its own there."""

    def __init__(self, workspace, config, files, name, *words):
        self.name, self.files, self.workspace, self.config = name, files, workspace, config
        self.process, place = None, os.path.join(files.path, name)
        self.directory, self.log_path = os.path.join(place, "run"), workspace.file(name + ".log", "")
        os.makedirs(place)
        with open(os.path.join(place, "text.txt"), "w", encoding="utf-8") as f:
            f.write(harness.text_of(50000))
        self.command = [workspace.perdure, "train", config, f"run.dir={self.directory}", f"data.train[0].path={place}/text.txt",
                        f"checkpoint.dir={place}/checkpoints", *words]

    def start(self, *words):
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command + list(words), env=dict(os.environ, PERDURE_PROGRESS="off", **SLOW), stdout=log, stderr=log)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.files.let_go()  # nobody who waits there can be killed
        if self.process:
            self.process.kill()
            self.process.wait()

    def log(self):
        return harness.read(self.log_path)

    def waited(self):
        """Of ranks, of saves beside which training continues, of run.dir, and of the launcher itself."""
        return [line for line in self.log().split("\n") if "Its storage is slow or stuck" in line]

    def fail(self, why):
        """In a dozen short lines: why, what is held, where its processes are in the kernel, and the end of its log."""
        lines = [f"{self.name}: {why}; held: {self.files.held()}"]
        for pid in [self.process.pid, *workers(self.process)]:
            try:
                stack = " < ".join(re.findall(r"\] (\w+)", harness.read(f"/proc/{pid}/stack"))[:6])
                lines.append(f"process {pid}, state {harness.processes()[pid][0]}: {stack}")
            except (OSError, KeyError):
                lines.append(f"process {pid}: gone, or not to be looked at")
        raise harness.Failure("\n".join(line[:300] for line in lines + self.log().split("\n")[-9:-1]))

    def look(self, doing, may_blame=False):
        blamed = None if may_blame else BLAME.search(self.log())
        if blamed:
            self.fail(f'"{blamed[0]}" while {doing}')
        if self.process.poll() is not None:
            self.fail(f"exit {self.process.returncode} while {doing}")

    def end(self):
        try:
            if self.process.wait(timeout=harness.PATIENCE) != 75:
                self.fail(f"left with exit {self.process.returncode}")
        except subprocess.TimeoutExpired:
            self.fail("does not leave")

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        self.end()

    def compare(self):
        found, plain = harness.losses(self.directory), self.workspace.directory("plain")
        self.workspace.train(self.config, plain, [f"run.steps={max(found)}", "restart.hang_seconds=30", "layout.ranks=1"])
        if found != harness.losses(plain):
            self.fail("other bits than without a stall")


def wait(runs, condition, doing, may_blame=False):
    """Until it holds for each of them, whose launchers live, and blame nobody unless they may."""
    deadline = time.monotonic() + harness.PATIENCE
    while True:
        for run in runs:
            run.look(doing, may_blame)
        missing = [run for run in runs if not condition(run)]
        if not missing:
            return
        if time.monotonic() > deadline:
            missing[0].fail(f"not within {harness.PATIENCE} s: {doing}")
        time.sleep(0.1)


def steps(runs, more=4, may_blame=False):
    done = {run: harness.steps_done(run.directory) for run in runs}
    wait(runs, lambda run: harness.steps_done(run.directory) >= done[run] + more, "it continues", may_blame)


def stall(files, seconds, lines):
    """What each run waits for, until it has waited for so long and its log has named the rank that waits."""
    before, until = {run: len(run.waited()) for run in lines}, time.monotonic() + seconds
    files.hold(lines.values())
    wait(lines, lambda run: time.monotonic() > until and len(run.waited()) > before[run], f"{seconds} s of a stall are not over, or not in its log")
    files.let_go()
    for run, line in lines.items():
        print(f"{seconds} s, {line}: {run.waited()[-1]}", flush=True)


def starts(run):
    return run.log().count("starting 2 ranks")


def stalls(workspace, config, files):
    """Each stall is of a start of its own: what took long before is waited for longer."""
    state, saves = Run(workspace, config, files, "state", *NVME), Run(workspace, config, files, "saves")
    begins = Run(workspace, config, files, "begins", "restart.begin_seconds=18")
    is_long = harness.scale() >= 10
    for seconds in [22, 45, 150] if is_long else [22]:
        for held_state, held_saves, held_begins in STALLS + (MORE_STALLS if is_long else []):
            lines = {state: held_state, saves: held_saves.removeprefix(AT_START)}
            early = [lines[saves]] if held_saves.startswith(AT_START) else []
            files.hold(early)
            with state.start(), saves.start("restart.open_seconds=10" if early else "restart.open_seconds=300"), begins:
                steps([state] if early else [state, saves])
                files.hold(early + [EVENTS])
                before = starts(begins)
                begins.start()
                wait([begins], lambda run, before=before: starts(run) > before, "it starts")
                lines[begins] = held_begins.replace("PID", str(begins.process.pid))
                stall(files, seconds, lines)
                steps(lines)
                for run in lines:
                    run.leave()
    return state, saves, begins


def cannot_be_killed(run, files):
    """The starter is killed, and so are the ranks, one of which waits for a read."""
    with run.start():
        steps([run])
        before = len(run.waited())
        files.hold([f"read /{run.name}/text.txt"])
        wait([run], lambda run: len(run.waited()) > before, "a rank reads")
        starter = [pid for pid, (_, parent) in harness.processes().items() if parent == run.process.pid]
        for pid in starter + workers(run.process):
            os.kill(pid, signal.SIGKILL)
        wait([run], lambda run: "no other is started before it is gone" in run.log() or "restart 1:" in run.log(), "it sees what is left", True)
        time.sleep(1)
        if "restart 1:" in run.log():
            run.fail("another rank is started beside one that is not gone")
        files.let_go()
        wait([run], lambda run: "restart 1:" in run.log(), "it starts again", True)
        steps([run], 4, True)
        run.leave()
    print([line for line in run.log().split("\n") if "does not end" in line][0], flush=True)


def launcher_waits(run, files):
    """Its ranks hear TERM, save and end although the launcher's main thread waits for a file, and when it is answered it ends with 75."""
    events = os.path.join(run.directory, "events.jsonl")
    files.hold([f"read /{run.name}/run/.launch-*"])  # ranks begin when they have read the secret
    with run.start():
        wait([run], lambda _: os.path.exists(events) and '"start"' in harness.read(events), "it starts")
        # Where the launcher writes which ranks have begun. Its open alone is held, in which it has no lock that ranks need.
        files.hold([f"open /{run.name}/run/events.jsonl {run.process.pid}"])
        steps([run])
        wait([run], lambda run: run.waited(), "the launcher waits")
        run.process.send_signal(signal.SIGTERM)
        wait([run], lambda run: not workers(run.process), "its ranks save and end")
        done = harness.steps_done(run.directory)
        if not glob.glob(os.path.join(run.directory, f"../checkpoints/step-{done:012}-*", "commit.h5")):
            run.fail(f"step {done} is not saved")
        files.let_go()
        run.end()
    print(f"step {done} is saved while the launcher waits", flush=True)


def body(workspace, arguments):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not os.path.exists(arguments[0]) or not os.access("/dev/fuse", os.W_OK):
        print("skipped: there is no libfuse3 to build with, or no /dev/fuse")
        sys.exit(77)
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(50000))))
    with Stalling(workspace, arguments[0]) as files:
        if files.process.poll() is not None:
            print(f"skipped: mounting is refused here: {harness.read(files.control + '.log')}")
            sys.exit(77)
        launcher_waits(Run(workspace, config, files, "leaves", "checkpoint.every=100000"), files)
        runs = stalls(workspace, config, files)
        cannot_be_killed(runs[1], files)
        for run in runs:
            run.compare()


if __name__ == "__main__":
    harness.main(body)
