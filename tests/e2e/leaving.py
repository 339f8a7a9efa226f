#!/usr/bin/env python3
"""Who writes and is asked to leave: import, export, reshard, data pack, eval of another program's checkpoint, doctor's trial of a directory,
and the import of init.from. Each is stopped at several moments, gets TERM, INT, HUP or USR1, and ends with 75 and one sentence; the tree is as before,
to the byte and the name, and the same command then does its work. USR2 asks nobody to leave; a second INT ends at once, and what it
leaves the same command clears. What cannot be removed is named; a disk that is full is not a hindrance.
    leaving.py PERDURE
"""
import glob
import os
import re
import shutil
import signal
import subprocess

import harness
import refuse

CONFIG = """
run: {{dir: {run}, steps: 2}}
model: {{preset: byte-1m, layers: 2, hidden: 64, heads: 2, ffn: 96, context: 32}}
data: {{train: {text}}}
batch: {{sequences: 4, context: 32}}
layout: {{ranks: 1, threads: 1}}
checkpoint: {{every: 1, keep_last: 2}}
"""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
AGAIN = "; run the same command to start over"
NOTE = re.compile(r"^not (exported|imported): .*\n|^(warn|info) .*\n|^the tokenizer .*\n", re.M)


def default_signals():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # ignored where a shell starts this in the background


class Stopped:
    """A command at the n-th passage of a place."""

    def __init__(self, workspace, words, fault, refused=None, environment=None):
        def begin():
            default_signals()
            if refused:
                refuse.refusing(refused)()

        self.what = f"{' '.join(words)} at {fault}"
        self.process = subprocess.Popen([workspace.perdure, *words], cwd=workspace.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, preexec_fn=begin,
                                        env=dict(os.environ, PERDURE_PROGRESS="off", PERDURE_FAULT=f"{fault}:stop", **(environment or {})))
        self.wait()

    def wait(self):
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.process.returncode = os.waitstatus_to_exitcode(status)
            raise harness.Failure(f"{self.what}: ended with {self.process.returncode} before it stopped\n{self.process.stderr.read()}")

    def tell(self, number):
        """A signal waits until the process continues."""
        self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)

    def end(self, code, words):
        """words: what stderr says beside notes, or a pattern in it."""
        out, said = self.process.communicate(timeout=harness.PATIENCE)
        said = NOTE.sub("", said)
        fits = words.search(said) if isinstance(words, re.Pattern) else words == said
        if self.process.returncode != code or not fits or (code and out):
            raise harness.Failure(f"{self.what}: exit {self.process.returncode}, not {code}; it says\n{out}{said}instead of\n{words}")


def tree(directory):
    """Every name, and what it holds. A fence is spent, also by who leaves."""
    found = {}
    for root, folders, files in os.walk(directory):
        for name in folders:
            found[os.path.join(root, name)] = None
        for name in files:
            if name.startswith("fence-") or name == "owner":
                continue
            with open(os.path.join(root, name), "rb") as file:
                found[os.path.join(root, name)] = file.read()
    return found


def check_same(before, directory, what):
    after = tree(directory)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name, "") != after.get(name, ""))
    if changed:
        raise harness.Failure(f"{what}: left or changed: {', '.join(changed)}")


def leaves_nothing(workspace, words, fault, number, said, environment=None):
    before = tree(workspace.path)
    command = Stopped(workspace, words, fault, environment=environment)
    command.tell(number)
    command.end(75, f"perdure: asked to leave{said}{AGAIN}\n")
    check_same(before, workspace.path, command.what)


def run(workspace, words, code=0, begin=default_signals):
    result = subprocess.run([workspace.perdure, *words], cwd=workspace.path, capture_output=True, text=True, check=False,
                            timeout=harness.PATIENCE, env=dict(os.environ, PERDURE_PROGRESS="off"), preexec_fn=begin)
    if result.returncode != code:
        raise harness.Failure(f"{' '.join(words)}: exit {result.returncode}\n{result.stderr}")
    return result


def remove(workspace, name):
    path = os.path.join(workspace.path, name)
    (shutil.rmtree if os.path.isdir(path) else os.remove)(path)


def conversions(workspace):
    """Words; what becomes of the output; places and passages."""
    os.makedirs(os.path.join(workspace.path, "empty"))
    export = ["export.write.band:1", "export.write.band:7", "export.sync.file:1", "export.read_back.piece:1", "export.read_back.piece:9"]
    move = ["rewrite.copy.piece:1", "rewrite.copy.piece:30"]
    back = [*move, "rewrite.read_back.block:1", "rewrite.read_back.block:40", "store.begin.made:1"]
    for name in ("old.bin", "old.idx"):
        with open(os.path.join(workspace.path, name), "wb") as file:
            file.write(bytes(range(100)))
    pack = ["data.pack.piece:1", "data.pack.piece:2"]
    yield ["ckpt", "export", "run", "out", "--format=safetensors"], "out", ": what was written of out is removed", export
    yield ["ckpt", "export", "run", "out.gguf", "--format=gguf"], "out.gguf", ": what was written of out.gguf is removed", export
    yield ["ckpt", "export", "run", "out", "--format=universal"], "out", ": what was written of out is removed", export
    yield ["ckpt", "export", "hf", "out", "--format=dcp", "--fresh-optimizer"], "out", ": what was written of out is removed", export
    yield ["ckpt", "import", "hf", "in", "--fresh-optimizer", "--layout=dp=2"], "in", ": what was written in in is removed", back
    yield ["ckpt", "import", "hf", "empty", "--fresh-optimizer", "--compression=zstd:1"], "empty", ": what was written in empty is removed", back
    yield ["ckpt", "reshard", "run", "wide", "--layout=dp=3,tp=1"], "wide", ": what was written in wide is removed", move
    yield ["ckpt", "reshard", "run", "both", "--layout=dp=2", "--compression=zstd:1"], None, ": what was written in both is removed", move
    for name, form in (("new.bin", "nanogpt"), ("old.bin", "llmc"), ("old", "megatron")):
        yield ["data", "pack", f"--output={name}", f"--format={form}", "--overwrite", "text.txt"], None, f"; {name} is as it was", pack


def moments(workspace):
    count = 0
    for words, output, said, faults in conversions(workspace):
        for fault in faults:
            leaves_nothing(workspace, words, fault, SIGNALS[count % len(SIGNALS)], said)
            count += 1
        run(workspace, words)
        if output:
            remove(workspace, output)
    print(f"{count} moments of conversions: 75, and nothing is left")


def temporary(workspace):
    """Who makes a checkpoint for the moment, and a run that begins with one."""
    os.makedirs(room := os.path.join(workspace.path, "room"))
    evaluate = ["eval", "hf", "--data=text.txt", "--windows=4", "--threads=1"]
    for fault in ("rewrite.copy.piece:5", "rewrite.read_back.block:2", "evaluate.window:2"):
        leaves_nothing(workspace, evaluate, fault, signal.SIGTERM, "", {"TMPDIR": room})
    leaves_nothing(workspace, ["doctor", "room"], "store.probe.written:1", signal.SIGTERM, "")
    train = ["train", workspace.file("tune.yaml", CONFIG.format(run="tuned", text="text.txt") + "init: {from: hf}\n")]

    def ask_beforehand():
        """A launch holds signals from its first moment on: this one waits for the import."""
        default_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.kill(os.getpid(), signal.SIGTERM)

    result = run(workspace, train, 75, ask_beforehand)
    if not re.search(r"^perdure: init\.from: asked to leave: what was written in \S*tuned/checkpoints is removed" + AGAIN, result.stderr, re.M):
        raise harness.Failure(f"train with init.from, asked to leave: {result.stderr}")
    if left := [name for name in tree(os.path.join(workspace.path, "tuned")) if "/checkpoints/" in name]:
        raise harness.Failure(f"train with init.from, asked to leave: left {left}")
    run(workspace, train)
    print("eval, doctor and init.from: 75, and nothing is left")


def second(workspace):
    """USR2 asks nobody to leave. A second INT ends what is being removed; what it or a kill leaves the same command clears."""
    words = ["ckpt", "reshard", "run", "again", "--layout=dp=2"]
    command = Stopped(workspace, words, "rewrite.copy.piece:3")
    command.tell(signal.SIGUSR2)
    command.process.communicate()
    if command.process.returncode:
        raise harness.Failure(f"{command.what}: USR2 ended it with {command.process.returncode}")
    wanted = sorted(name for name in tree(os.path.join(workspace.path, "again")))
    remove(workspace, "again")
    command = Stopped(workspace, words, "rewrite.copy.piece:3:stop,store.remove.hidden:1")
    command.tell(signal.SIGINT)
    command.wait()
    command.tell(signal.SIGINT)
    command.end(75, "")
    if not tree(os.path.join(workspace.path, "again")):
        raise harness.Failure(f"{command.what}: nothing was left to look at")
    run(workspace, words)
    found = sorted(re.sub(r"-[0-9]+(/|$)", r"-1\1", name) for name in tree(os.path.join(workspace.path, "again")))
    if found != wanted:
        raise harness.Failure(f"{command.what}: afterwards there are {found} and not {wanted}")
    remove(workspace, "again")
    words = ["data", "pack", "--output=killed", "--format=megatron", "text.txt"]
    command = Stopped(workspace, words, "data.pack.piece:2")
    busy = run(workspace, words, 74).stderr
    if busy != "perdure: another process is writing killed.bin; wait until it ends, or name another file\n":
        raise harness.Failure(f"{command.what}, and another pack beside it: {busy}")
    command.process.kill()
    command.process.communicate()
    run(workspace, words)
    if sorted(glob.glob("killed*", root_dir=workspace.path)) != ["killed.bin", "killed.idx"]:
        raise harness.Failure(f"{command.what}, killed and run again: {glob.glob('killed*', root_dir=workspace.path)}")
    print("USR2 is not a wish to leave; a second INT ends at once")


def refused(workspace):
    """Nothing can be removed: what stays is named, and the same command goes about it."""
    if not refuse.is_possible():
        return
    for words, fault, output, said in (
            (["ckpt", "export", "run", "out", "--format=dcp"], "export.read_back.piece:2", "out",
             r"; the unfinished output stays in out\.exporting, and the next export to out removes it: \S.*: Read-only file system"),
            (["data", "pack", "--output=new2.bin", "text.txt"], "data.pack.piece:2", "new2.bin",
             r"; new2\.bin\.packing stays behind: Read-only file system; new2.bin is as it was")):
        command = Stopped(workspace, words, fault, "removal")
        command.tell(signal.SIGTERM)
        command.end(75, re.compile(f"^perdure: asked to leave{said}{AGAIN}\n$"))
        run(workspace, words)
        remove(workspace, output)
        if left := [name for name in os.listdir(workspace.path) if name.startswith(output)]:
            raise harness.Failure(f"{command.what}: afterwards there is {left}")
    print("what cannot be removed is named")


def freeze(directory, mark):
    """Whether names in it and below may go (ext4)."""
    for folder in [directory, *[name for name, content in tree(directory).items() if content is None]]:
        subprocess.run(["chattr", mark, folder], check=True)


def on_a_disk(workspace):
    """One without a block left, and one that lets nothing go. Needs root."""
    if os.geteuid() != 0:
        return
    with harness.Disk(workspace, 64) as disk:
        if not disk.is_mounted:
            return
        for words, fault in ((["ckpt", "export", "run", f"{disk.path}/out", "--format=safetensors"], "export.read_back.piece:2"),
                             (["ckpt", "import", "hf", f"{disk.path}/in", "--fresh-optimizer"], "rewrite.read_back.block:2"),
                             (["ckpt", "reshard", "run", f"{disk.path}/in", "--layout=dp=2"], "rewrite.copy.piece:4")):
            before = tree(disk.path)
            command = Stopped(workspace, words, fault)
            disk.fill(0)
            command.tell(signal.SIGTERM)
            command.end(75, re.compile(f"^perdure: asked to leave: what was written (of|in) \\S+ is removed{AGAIN}\n$"))
            disk.free()
            check_same(before, disk.path, command.what)
            if words[1] != "export":
                command = Stopped(workspace, words, fault)
                freeze(words[3], "+a")
                command.tell(signal.SIGTERM)
                command.end(75, re.compile(rf"^perdure: asked to leave; {words[3]}/step-\d+-1\.tmp could not be removed, and the next "
                                           f"checkpoint written there removes it{AGAIN}\n$"))
                freeze(words[3], "-a")
            run(workspace, words)
            shutil.rmtree(words[3])
    print("a disk that is full: nothing is left; one that lets nothing go: what stays is named")


def body(workspace, arguments):
    workspace.file("text.txt", harness.text_of(300000))
    workspace.file("run.yaml", CONFIG.format(run="run", text="text.txt"))
    run(workspace, ["train", "run.yaml"])
    run(workspace, ["ckpt", "export", "run", "hf", "--format=safetensors"])
    first = os.path.basename(min(glob.glob(os.path.join(workspace.path, "run/checkpoints/step-*"))))
    run(workspace, ["ckpt", "reshard", f"run/checkpoints/{first}", "both", "--layout=dp=1"])
    moments(workspace)
    temporary(workspace)
    second(workspace)
    refused(workspace)
    on_a_disk(workspace)


if __name__ == "__main__":
    harness.main(body)
