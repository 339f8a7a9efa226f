#!/usr/bin/env python3
"""`perdure watch` on a terminal of 80x24 and 200x60 while a rank is stopped, killed and started again: what it shows is what the run's
files and its log say; no line is wider than the terminal; q leaves and gives the terminal back. On a pipe it prints lines until the run is
over; what a run's files can hold besides is written by hand: more steps after a resume, losses that are not finite, lines that
found no room, causes that would move the cursor, a directory that is moved away."""
import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

import harness

CONFIG = """
run: {{seed: 5, steps: 30}}
model: {{family: llama, vocab: 256, context: 32, layers: 1, hidden: 64, heads: 2, kv_heads: 2, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 1, context: 32}}
validation: {{every: 4, sequences: 4}}
checkpoint: {{every: 5}}
layout: {{threads: 1, ranks: 2, transport: {transport}}}
"""
ESCAPE = re.compile("\033\\[[0-9;?]*[a-zA-Z]")


def check(condition, what):
    if not condition:
        raise harness.Failure(what)


class Terminal:
    """perdure watch on a terminal of its own."""

    def __init__(self, workspace, directory, columns, rows):
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave, self.text, self.decoder = slave, "", codecs.getincrementaldecoder("utf-8")()
        self.resize(columns, rows)
        self.process = subprocess.Popen([workspace.perdure, "watch", directory, "--every=1"], stdin=slave, stdout=slave,
                                        start_new_session=True)

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGWINCH)

    def read(self):
        while select.select([self.master], [], [], 0.05)[0]:
            try:
                self.text += self.decoder.decode(os.read(self.master, 65536))
            except OSError:
                return

    def screen(self):
        """The newest that is whole, as lines."""
        self.read()
        screens = self.text.split("\033[H")
        whole = [s for s in screens[1:] if s.endswith("\033[J") or "\033[J" in s]
        return [ESCAPE.sub("", line).rstrip() for line in whole[-1].split("\033[J")[0].split("\r\n")] if whole else []

    def wait_for(self, words, what):
        def look():
            lines = self.screen()
            return lines if any(words in line for line in lines) else None
        lines = harness.wait_for(look, f"{what}: {words}, in {self.screen()}")
        check(len(lines) <= self.rows and max(map(len, lines)) <= self.columns, f"a screen of {self.columns}x{self.rows} has {lines}")
        return lines

    def leave(self):
        os.write(self.master, b"q")
        deadline = time.monotonic() + harness.PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read()
        check(self.process.returncode == 0, f"watch ended with {self.process.returncode}")
        check(self.text.startswith("\033[?1049h") and self.text.rstrip().endswith("\033[?1049l"), "the screen before is not given back")
        check(termios.tcgetattr(self.slave) == self.before, "the terminal is not as it was")
        os.close(self.master)
        os.close(self.slave)


def on_terminal(workspace, config, is_mpi):
    directory = workspace.directory()
    fault = "worker.stepped@1:8:stop" if is_mpi else "worker.stepped:16:stop"
    launcher = subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}"], stderr=subprocess.PIPE, text=True,
                                env=dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT=fault,
                                         PERDURE_FAULT_ONCE=os.path.join(workspace.path, "once")))
    stopped = harness.wait_stopped(launcher)
    small = Terminal(workspace, directory, 80, 24)
    lines = small.wait_for("stopped", "a rank is stopped")
    check(re.search(r"^state .*; %s stopped" % ("rank 1 is" if is_mpi else "all ranks are"), "\n".join(lines), re.M), f"ranks: {lines}")
    line = workspace.command(["watch", directory, "--once"]).stdout
    check(f"; {'rank 1 is' if is_mpi else 'all ranks are'} stopped\n" in line, f"a rank is stopped, and --once says {line}")
    said = json.loads(workspace.command(["watch", directory, "--json", "--once"]).stdout)["ranks"]
    check([rank["is_stopped"] for rank in said].count(True) == 1 and not any(rank["is_gone"] for rank in said), f"--json says {said}")
    rows = harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()
    check(any(f"step {len(rows)} of 30" in line for line in lines[:1]), f"{len(rows)} steps: {lines[0]}")
    small.resize(60, 8)
    harness.wait_for(lambda: (lambda l: l if l and len(l) <= 8 and max(map(len, l)) <= 60 else None)(small.screen()), "the screen shrinks")
    small.resize(200, 60)
    harness.wait_for(lambda: (lambda l: l if l and len(l) > 8 else None)(small.screen()), "the screen grows")
    small.resize(80, 24)
    os.kill(stopped, signal.SIGKILL)
    lines = small.wait_for("done", "the run continues and ends")
    _, errors = launcher.communicate(timeout=harness.PATIENCE)
    check(launcher.returncode == 0, f"exit {launcher.returncode}: {errors}")
    cause = re.search(r"warn launch: (.*?); restart 1", errors)[1]
    check(cause.replace(" ", "") in "".join(lines).replace(" ", ""), f"the log says {cause}, and the screen {lines}")
    check(any("step 30 of 30, 100 %" in line for line in lines) and "step30,0stepsbehind" in "".join(lines).replace(" ", ""), f"{lines}")
    small.leave()
    print("the screen shows what the log says")
    return directory, errors


def on_pipe(workspace, directory, errors):
    result = workspace.command(["watch", directory])
    check(result.returncode == 0 and result.stdout.isprintable() is False and "\033" not in result.stdout, f"{result}")
    lines = result.stdout.splitlines()
    check(len([line for line in lines if " start " in line]) == 6, f"{lines}")
    resumed = re.search(r"resumed at step (\d+)|fresh start(?!.*fresh start)", errors.split("restart 1", 1)[1])
    check(any(re.search(rf"start 2: .* from step {resumed[1] or 0}$", line) for line in lines), f"{lines}\n{errors}")
    check(lines[-1].startswith("step 30/30 loss ") and lines[-1].endswith("ended"), f"{lines[-1]}")
    said = json.loads(workspace.command(["watch", directory, "--json", "--once"]).stdout)
    check(said["state"] == "ended" and said["step"] == said["saved_step"] == said["steps"] == 30 and said["starts"] == 2, f"{said}")
    check(workspace.command(["watch", workspace.path]).returncode == 78 and workspace.command(["watch"]).returncode == 64, "what is not a run")
    print("on a pipe: lines, until the run is over")


def append(directory, name, *objects):
    with open(os.path.join(directory, name), "a", encoding="utf-8") as f:
        f.write("".join(json.dumps(each) + "\n" for each in objects))


def set_steps(directory, config, steps):
    with open(os.path.join(directory, "new"), "w", encoding="utf-8") as f:
        f.write(re.sub(r"\bsteps: \d+", f"steps: {steps}", config))
    os.rename(os.path.join(directory, "new"), os.path.join(directory, "config.yaml"))


def row(step, **more):
    return {"step": step, "loss": 5.5, "fence": 1, "time": time.time(), "seconds": 1, "tokens_per_second": 100, **more}


def written(workspace, config):
    """A run whose launcher is this process."""
    directory = workspace.directory()
    os.makedirs(directory, exist_ok=True)
    start = {"event": "start", "time": time.time(), "ranks": 2, "process": os.getpid(), "host": socket.gethostname()}
    append(directory, "events.jsonl", start, {"event": "open", "time": time.time(), "fence": 1, "step": 0, "ranks": 2, "dp": 2})
    append(directory, "metrics.jsonl", row(1))
    set_steps(directory, config, 20)
    return directory, start


def line_of(workspace, directory):
    result = workspace.command(["watch", directory, "--once"])
    check(result.returncode == 0, f"{result}")
    return result.stdout.splitlines()[-1]


def not_finite(workspace, config):
    directory, _ = written(workspace, config)
    append(directory, "metrics.jsonl", row(2, loss=None, skipped=1), row(3, loss=None, skipped=2))
    line = line_of(workspace, directory)
    check(line.startswith("step 3/20 loss not finite since step 2; 2 skipped; 100 tok/s"), line)
    said = json.loads(workspace.command(["watch", directory, "--json", "--once"]).stdout)
    check(said["loss"] is None and said["not_finite_since"] == 2 and said["skipped"] == 2, f"{said}")
    terminal = Terminal(workspace, directory, 120, 24)
    terminal.wait_for("; loss not finite since step 2; 2 skipped", "the loss is not finite")
    terminal.leave()
    append(directory, "metrics.jsonl", row(4, skipped=2))
    check("loss 5.5000" in line_of(workspace, directory), "a loss that is finite again")


def causes(workspace, config):
    """A step for which metrics.jsonl found no room, and a cause that is more than text."""
    directory, start = written(workspace, config)
    append(directory, "events.jsonl", {"event": "leave", "step": 20, "tiers": []}, {"event": "end", "time": time.time(), "exit_code": 0})
    lines = workspace.command(["watch", directory]).stdout.splitlines()
    check(lines[-2].endswith("done at step 20") and lines[-1].startswith("step 20/20 "), f"a step without a line: {lines}")
    cause = "\033[2Jone\ntwo\t\x7f\x9bthree"
    append(directory, "events.jsonl", start, {"event": "end", "time": time.time(), "exit_code": 74, "cause": cause})
    lines = workspace.command(["watch", directory]).stdout.splitlines()
    check(lines[-2].endswith("start 2: ended with 74: ?[2Jone two ???three"), f"a cause moves the cursor: {lines}")


def moved(workspace, config):
    """On a pipe: run.steps is raised behind the start, then the directory goes away."""
    directory, start = written(workspace, config)
    terminal = Terminal(workspace, directory, 80, 24)
    terminal.wait_for("step 1 of 20, 5 %", "the first step")
    with subprocess.Popen([workspace.perdure, "watch", directory, "--every=1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as watch:
        impatient = threading.Timer(harness.PATIENCE, watch.kill)
        impatient.start()

        def wait_line(words):
            while words not in (line := watch.stdout.readline()):
                check(line, f"watch ends without {words}: {watch.stderr.read() if not line else ''}")
        wait_line("step 1/20 ")
        append(directory, "events.jsonl", start)
        wait_line("start 2: ")
        append(directory, "metrics.jsonl", row(2))
        set_steps(directory, config, 200)
        wait_line("step 2/200 ")
        os.rename(directory, directory + ".moved")
        wait_line("run.dir is gone")
        _, errors = watch.communicate(timeout=harness.PATIENCE)
        impatient.cancel()
        check(watch.returncode == 74 and "run.dir is gone" in errors, f"exit {watch.returncode}: {errors}")
    terminal.wait_for("run.dir is gone", "the directory is moved")
    terminal.leave()


def abandoned(workspace, config, transport):
    """The launcher is killed, and its ranks with it."""
    directory = workspace.directory()
    with subprocess.Popen([workspace.perdure, "train", config, f"run.dir={directory}", f"layout.transport={transport}", "run.steps=100000"],
                          stderr=subprocess.DEVNULL, env=dict(os.environ, PERDURE_PROGRESS="off")) as launcher:
        metrics = os.path.join(directory, "metrics.jsonl")
        harness.wait_for(lambda: os.path.exists(metrics) and os.path.getsize(metrics), "the first step")
        launcher.kill()
    harness.wait_for(lambda: line_of(workspace, directory).endswith("its launcher is gone; all ranks are gone"), "all ranks are gone")


def body(workspace, arguments):
    transport = arguments[0]
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(20000)), transport=transport))
    directory, errors = on_terminal(workspace, config, transport == "mpi")
    on_pipe(workspace, directory, errors)
    if transport == "local":
        saved = harness.read(os.path.join(directory, "config.yaml"))
        for part in (not_finite, causes, moved):
            part(workspace, saved)
    abandoned(workspace, config, transport)
    print("what a run's files can hold besides is said")


if __name__ == "__main__":
    sys.exit(harness.main(body))
