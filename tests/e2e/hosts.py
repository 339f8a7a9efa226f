#!/usr/bin/env python3
"""Hosts out of namespaces (namespaces.py), one rank each, what they save on disks of their own with a copy on another one: hosts are
lost and come back, the launcher's too. Losses and state are those of a quiet run, no loss ends the launch, although restart.limit is
0, and every start continues from the newest step that was copied, or a newer one.

PERDURE_TEST_SCALE of 4: hosts that come back, hosts that are waited for, and a rank of another host that hangs. Of 10 or more: 50 random losses, 10 of them the launcher's own host, 10 with the host back later; a number after
the tool says how many, names of cases which of them are tried."""
import json
import os
import random
import re
import shutil
import signal
import sys
import time

import hangs
import harness
import namespaces

SLOW = {"PERDURE_FAULT": "worker.stepped:1:sleep"}
QUIET_STEPS = 80  # more than a test looks at: runs continue until they are told to leave
CONFIG = """
run: {{seed: 3, steps: 100000}}
optimizer: {{warmup_steps: 10}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 6, micro_batch: 1, context: 64}}
layout: {{threads: 1, zero_stage: 1}}
restart: {{limit: 0}}
"""


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def lines_of(path):
    return harness.read(path).split("\n")[:-1] if os.path.exists(path) else []


class Bench:
    """Each host has its own disk: the launcher's has the configuration and the list of hosts, all have the text, and run.dir is made.
    is_shared: these are files of all hosts, as without the launcher's socket."""

    def __init__(self, workspace, net, config, text, is_shared=False):
        self.workspace, self.net, self.config, self.is_shared = workspace, net, config, is_shared
        self.log = os.path.join(net.root, "log")
        self.place = f"{net.root}/shared" if is_shared else f"{net.root}/disk"
        self.places = [self.place] if is_shared else [f"{net.root}/disk-{name}" for name in net.names]
        self.directories = [os.path.join(place, "run") for place in self.places]
        self.hosts = os.path.join(self.place, "hosts")
        for place in self.places:
            os.makedirs(place, exist_ok=True)
            write(os.path.join(place, "text.txt"), text)
        self.list_hosts(net.names)

    def list_hosts(self, names):
        for place in self.places:
            write(os.path.join(place, "hosts"), "# hosts of the test\n" + "".join(name + "\n" for name in names))

    def start(self, name, *overrides, is_fast=False):
        """Waits between steps, so that hosts which only train meanwhile leave the cores to others. is_fast: no wait."""
        tier = {"dir": f"{self.net.root}/disk/tier", "every": 1, "keep_last": 2, "replicas": 1}
        words = [f"checkpoint.tiers[0].{key}={value}" for key, value in tier.items()]
        words += [f"run.dir={self.place}/run", f"launch.hosts={self.hosts}", f"launch.agent={namespaces.AGENT}", *overrides]
        write(os.path.join(self.place if self.is_shared else f"{self.net.root}/disk-{name}", "run.yaml"), self.config.format(data=f"{self.place}/text.txt"))
        with open(self.log, "w", encoding="utf-8") as out:
            return self.net.popen(name, [self.workspace.perdure, "train", f"{self.place}/run.yaml", *words],
                                  env=dict(os.environ, PERDURE_PROGRESS="off", **({} if is_fast else SLOW)), stdout=out, stderr=out)

    def leave(self, run):
        os.kill(namespaces.child_of(run), signal.SIGTERM)
        if run.wait(timeout=harness.PATIENCE) != 75:
            self.fail(f"asked to leave: exit {run.returncode}")

    def said(self):
        return harness.read(self.log)

    def fail(self, what):
        raise harness.Failure(f"{what}\n{self.said()}")

    def wait(self, run, condition, what):
        def look():
            if run.poll() is not None and not condition():
                self.fail(f"the launch ended with {run.returncode} before: {what}")
            return condition()
        harness.wait_for(look, what)

    def steps(self, run, more):
        """Of this start: so many steps are copied beyond what there was."""
        before = self.copied()
        self.wait(run, lambda: self.copied() >= before + more, f"{more} steps")

    def copied(self):
        """The newest step that any whole line of metrics calls copied; they are where rank 0 ran."""
        lines = [line for directory in self.directories for line in lines_of(os.path.join(directory, "metrics.jsonl"))]
        return max((json.loads(line)["tiers"][0]["replicated"] for line in lines if '"replicated"' in line), default=0)

    def starts(self, which):
        return re.findall(r"launch: (?:starting|restart \d+:) (\d+) ranks? \(.* on (.*?)\)", self.said())[which:]


def one_and_the_launchers(bench):
    """A host is lost and the others continue; then the launcher's own is lost, and the same command continues elsewhere."""
    run = bench.start("a")
    bench.steps(run, 4)
    least = bench.copied()
    bench.net.lose("c")
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a restart without the host")
    if bench.starts(1) != [("2", "a:1,b:1")] or "lost host c (1 rank): no answer" not in bench.said():
        bench.fail("the loss of host c")
    bench.steps(run, 2)
    resumed_from(bench, least)
    bench.net.boot("c")
    least = bench.copied()
    bench.net.lose("a")
    run.wait(timeout=harness.PATIENCE)
    run = bench.start("b")
    bench.wait(run, lambda: bench.starts(0), "the start on another host")
    if bench.starts(0) != [("2", "b:1,c:1")]:
        bench.fail("the launcher's host was lost")
    bench.steps(run, 1)
    resumed_from(bench, least)
    told_what_is_lost(bench)
    bench.leave(run)


def taken_away(bench):
    """A host is told that it will be taken away: all save, and the others continue from there; when the launcher's own is told too, all leave."""
    notice = f"test -e {bench.net.root}/disk/notice"
    for name in "bc":  # a host runs no command that its own copy does not name
        write(f"{bench.net.root}/disk-{name}/run.yaml", bench.config.format(data=f"{bench.place}/text.txt") + f"preempt: {{notice: '{notice}'}}\n")
    run = bench.start("a", f"preempt.notice={notice}")
    bench.steps(run, 2)
    open(f"{bench.net.root}/disk-b/notice", "w", encoding="utf-8").close()
    bench.wait(run, lambda: "resumed at" in bench.said(), "a start on the others")
    saved, resumed = (int(re.search(words, bench.said())[1]) for words in (r"the state of step (\d+) is saved", r"resumed at step (\d+)"))
    if bench.starts(1) != [("2", "a:1,c:1")] or saved != resumed or "b will be taken away (preempt.notice): the others continue" not in bench.said():
        bench.fail(f"host b was told: saved step {saved}, resumed at {resumed}")
    bench.steps(run, 2)
    open(f"{bench.net.root}/disk-a/notice", "w", encoding="utf-8").close()
    if run.wait(timeout=harness.PATIENCE) != 75 or len(bench.starts(0)) != 2:
        bench.fail(f"the launcher's own host was told: exit {run.returncode}")




def cable_pulled(bench):
    """A host whose processes are all stopped is waited for: its kernel answers. With its cable pulled it is lost without a sign, and
    probes find it, before any connection ends. Every phase of the way back is told."""
    run = bench.start("a")
    bench.steps(run, 2)
    bench.net.freeze("c")
    time.sleep(5)
    bench.net.thaw("c")
    bench.steps(run, 2)
    if len(bench.starts(0)) != 1:
        bench.fail("host c was stopped, and is not lost")
    least = bench.copied()
    bench.net.lose("c", is_cable_pulled=True)
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a restart without the host")
    if not re.search(r"c: neither its kernel nor launch.agent answers(?s:.*)lost host c \(1 rank\): no answer; the others continue", bench.said()):
        bench.fail("probes find out that host c is gone")
    bench.steps(run, 2)
    resumed_from(bench, least)
    bench.leave(run)
    events = [json.loads(line) for line in lines_of(os.path.join(bench.directories[0], "events.jsonl"))]
    kinds = [event["event"] for event in events if event["event"] in ("start", "end")]
    if kinds != ["start", "end", "start", "end"]:
        bench.fail(f"events {kinds}")


def back_again(bench):
    """A host is lost, comes back, and is taken in at once."""
    run = bench.start("a", "launch.grow=now")
    bench.steps(run, 2)
    bench.net.lose("c")
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a restart without the host")
    bench.steps(run, 2)
    bench.net.boot("c")
    bench.wait(run, lambda: len(bench.starts(0)) == 3, "a restart with the host that is back")
    if bench.starts(2) != [("3", "a:1,b:1,c:1")]:
        bench.fail("host c is back")
    bench.steps(run, 2)
    bench.leave(run)


def space_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def stopped_elsewhere(bench):
    """A rank of another host is stopped: its relay says so, and where it is, though others of other hosts wait for it too."""
    run = bench.start("a", "restart.hang_seconds=8", "restart.limit=3", is_fast=True)
    space = space_of(bench.net.pids["c"])
    for number, where in enumerate(["in exchange", "computing"], 1):
        bench.steps(run, 4)
        hangs.stop_at(lambda: [pid for pid in hangs.workers(run, everywhere=True) if space_of(pid) == space], where)
        began = time.monotonic()
        said = rf"rank 2 \(process \d+ of host c\) holds up the run: .*; it is stopped \(SIGSTOP\), at step \d+, micro-batch \d+, (?:block \d+|embedding), {where}.*: ending it"
        bench.wait(run, lambda number=number, said=said: len(bench.starts(0)) == number + 1, f"it is named, stopped {where}, and a restart")
        if not re.search(said, bench.said()):
            bench.fail(f"stopped {where}, on another host")
        print(f"named and started again {time.monotonic() - began:.1f} s after it stopped {where}, on another host", flush=True)
    bench.steps(run, 2)
    bench.leave(run)


def killed_in_turn(bench):
    """A rank on one remote host after the other is killed: it is named, with its process there, and not the launcher's host nor one whose rank
    the starter ended. All start again every time."""
    run = bench.start("a", "restart.limit=3")
    count = 20 if harness.scale() >= 10 else 2
    for number in range(1, count + 1):
        bench.steps(run, 2)
        rank = 1 + number % 2
        space = space_of(bench.net.pids[bench.net.names[rank]])
        pid, = [pid for pid in hangs.workers(run, everywhere=True) if space_of(pid) == space]
        there = re.search(r"^NSpid:.*\s(\d+)$", harness.read(f"/proc/{pid}/status"), re.M)[1]
        os.kill(pid, signal.SIGKILL)
        bench.wait(run, lambda number=number: len(bench.starts(0)) == number + 1, "a restart")
        said = re.findall(r"rank (\d+) \(process (\d+)\) (?:died|ended without a message)", bench.said())
        if said[number - 1:] != [(str(rank), there)] or bench.starts(number) != [("3", "a:1,b:1,c:1")]:
            bench.fail(f"kill {number}: rank {rank} (process {there}) was killed, named are {said[number - 1:]}")
    bench.steps(run, 2)
    bench.leave(run)
    print(f"{count} kills on two remote hosts in turn: each was named", flush=True)


def link_cut(bench):
    """The link between two hosts is cut for 9 s: less than a hang takes, and nobody is lost. Where a hang takes 5 s it stays cut until one of them
    is left out, who is back when the link is."""
    for seconds, settings in ((30, []), (5, ["launch.grow=now"])):
        run = bench.start("a", f"restart.hang_seconds={seconds}", "restart.limit=3", *settings)
        bench.steps(run, 2)
        bench.net.drop("b", "c")
        bench.net.drop("c", "b")
        if settings:
            bench.wait(run, lambda: bench.starts(0)[-1][0] == "2", "one of them is left out")
        else:
            time.sleep(9)
        bench.net.mend("b", "c")
        bench.net.mend("c", "b")
        bench.wait(run, lambda: bench.starts(0)[-1] == ("3", "a:1,b:1,c:1"), "all hosts")
        bench.steps(run, 4)
        ends = [line for line in bench.said().splitlines() if re.search(r"died|without a message", line)]
        if ends or (seconds > 9 and len(bench.starts(0)) != 1) or bench.starts(0)[-1] != ("3", "a:1,b:1,c:1"):
            bench.fail(f"a link was cut, and a hang takes {seconds} s: {ends}, {bench.starts(0)}")
        print(f"a link cut, restart.hang_seconds={seconds}: {len(bench.starts(0))} starts, the last with all", flush=True)
        bench.leave(run)


def data_verified(bench):
    """What a scan found is kept on each host, and --verify-data scans anew on each."""

    def scans():
        return [os.stat(f"{directory}/.data-scan-{name}").st_mtime_ns for name, directory in zip(bench.net.names, bench.directories)]

    time.sleep(1.5)  # what has just been written is not kept
    found = []
    for words in ([], [], ["--verify-data"]):
        run = bench.start("a", *words)
        bench.wait(run, lambda: re.search("fresh start|resumed at", bench.said()), "a start")
        bench.steps(run, 1)
        bench.leave(run)
        found.append(scans())
    if found[0] != found[1] or any(new == old for new, old in zip(found[2], found[1])):
        bench.fail(f"scans of {found}")


def relays(bench, name):
    return [int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if space_of(pid) == space_of(bench.net.pids[name])
            and harness.read(f"/proc/{pid}/cmdline").startswith("perdure\0relay\0")]


def relay_killed(bench):
    """The relay of a host is killed alone: the run continues. A rank of it that then is stopped is found all the same, and the
    next start has a relay again."""
    run = bench.start("a", "restart.hang_seconds=8", "restart.limit=3")
    bench.steps(run, 2)
    os.kill(*harness.wait_for(lambda: relays(bench, "c"), "the relay of host c"), signal.SIGKILL)
    bench.steps(run, 2)
    if len(bench.starts(0)) != 1:
        bench.fail("the relay alone was killed")
    space = space_of(bench.net.pids["c"])
    hangs.stop_at(lambda: [pid for pid in hangs.workers(run, everywhere=True) if space_of(pid) == space], "in exchange")
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a restart")
    if not re.search(r"rank 2 \(process \d+ of host c\) holds up the run: .*; it is on another host, and has said nothing for \d+ s: ending it", bench.said()):
        bench.fail("a rank that is stopped on a host without a relay")
    bench.steps(run, 2)
    harness.wait_for(lambda: relays(bench, "c"), "the next start has a relay there")
    bench.leave(run)


def one_way(bench):
    """What the launcher's host sends to another one is dropped without a word, and what comes from there arrives: that one is lost."""
    run = bench.start("a")
    bench.steps(run, 2)
    least = bench.copied()
    bench.net.drop("a", "c")
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a restart without the host")
    if bench.starts(1) != [("2", "a:1,b:1")] or not re.search(r"lost host c \(1 rank\): no answer; the others continue", bench.said()):
        bench.fail("host c hears nothing")
    bench.steps(run, 2)
    resumed_from(bench, least)
    bench.leave(run)


def between_two(bench):
    """The same between two hosts other than the launcher's, which all answer it: which two is found out, and one is left out until they reach
    one another again."""
    run = bench.start("a", "launch.grow=now", "restart.hang_seconds=8", "restart.join_seconds=20")
    bench.steps(run, 2)
    least = bench.copied()
    bench.net.drop("b", "c")
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a restart without one of them")
    if bench.starts(1) != [("2", "a:1,b:1")] or "left out, and asked again at the next start: c and b cannot reach each other" not in bench.said():
        bench.fail("hosts b and c cannot reach each other")
    bench.steps(run, 2)
    resumed_from(bench, least)
    bench.net.mend("b", "c")
    bench.wait(run, lambda: len(bench.starts(0)) == 3, "a restart with both")
    if bench.starts(2) != [("3", "a:1,b:1,c:1")]:
        bench.fail("hosts b and c reach one another again")
    bench.steps(run, 2)
    bench.leave(run)


def wrong_names(bench):
    """A name that has no address is left out; so is one that leads to a machine of another name in the list, or to this one."""
    for alias, address in (("c", bench.net.address("b")), ("d", "127.0.0.1")):
        bench.net.name("a", alias, address)
    bench.list_hosts(["c", "b", "d", "nowhere.invalid", "a"])
    run = bench.start("a")
    bench.wait(run, lambda: bench.starts(0), "a start")
    said = ["b is the same machine as c", "d is the same machine as a", "nowhere.invalid does not answer, and its name has no address here"]
    if bench.starts(0) != [("2", "a:1,c:1")] or any(words not in bench.said() for words in said):
        bench.fail("names that are wrong")
    bench.steps(run, 2)
    bench.leave(run)


PORT = 7411


def port_closed(bench):
    """A packet filter keeps other hosts from the launcher's port: what they say goes through files where run.dir is shared, a rank that
    is stopped falls silent, and the run continues."""
    bench.net.block("b", PORT)
    bench.net.block("c", PORT)
    run = bench.start("a", f"launch.port={PORT}", "restart.hang_seconds=8", "restart.limit=3")
    bench.steps(run, 4)
    if bench.said().count("on another host, does not reach this launcher at 10.77.0.1:7411") != 1:
        bench.fail("hosts cannot reach the launcher")
    space = space_of(bench.net.pids["c"])
    hangs.stop_at(lambda: [pid for pid in hangs.workers(run, everywhere=True) if space_of(pid) == space], "in exchange")
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a restart")
    if not re.search(r"rank 2 holds up the run: .*; it is on another host, and has said nothing for \d+ s: ending it", bench.said()):
        bench.fail("a rank that is stopped where notes are files")
    bench.steps(run, 2)
    bench.leave(run)


def port_closed_and_nothing_shared(bench):
    """The same where hosts share no files: the rank says what it cannot reach, and the launch ends."""
    bench.net.block("c", PORT)
    run = bench.start("a", f"launch.port={PORT}")
    if run.wait(timeout=harness.PATIENCE) != 78 or "host c cannot reach the launcher at 10.77.0.1:7411" not in bench.said():
        bench.fail(f"nothing can be said: exit {run.returncode}")


def other_program(bench):
    """A host without the program is left out; one with another build of it is refused."""
    exe = os.path.realpath(bench.workspace.perdure)
    bench.net.hide("b", exe)
    run = bench.start("a")
    bench.wait(run, lambda: bench.starts(0), "a start")
    if bench.starts(0) != [("2", "a:1,c:1")] or "b has not this program at the same path" not in bench.said():
        bench.fail("host b has no program")
    bench.steps(run, 2)
    bench.leave(run)
    bench.net.replace("c", exe, harness_copy(exe, f"{bench.net.root}/other-build"))
    run = bench.start("a")
    if run.wait(timeout=harness.PATIENCE) != 78 or not re.search(r"host c has another build of \S+ \(.*, build \w+\) than the launcher \(.*, build \w+\)", bench.said()):
        bench.fail(f"host c has another build: exit {run.returncode}")


def harness_copy(source, path):
    """The same program with a byte behind it."""
    shutil.copy(source, path)
    with open(path, "ab") as f:
        f.write(b"x")
    return path


def other_data(bench):
    """A host whose text differs in one byte, or in its length, is refused and named; the run of before is untouched."""
    run = bench.start("a")
    bench.steps(run, 2)
    bench.leave(run)
    path = os.path.join(bench.places[2], "text.txt")
    text = harness.read(path)
    for other in (text[:-1], "X" + text[1:]):
        write(path, other)
        run = bench.start("a", f"run.dir={bench.place}/other", f"checkpoint.tiers[0].dir={bench.place}/other-tier")
        said = rf"host c has other data than rank 0: \S*/text\.txt has {len(other)} bytes \(digest \w{{16}}\), and there {len(text)} bytes \(digest \w{{16}}\); give all"
        if run.wait(timeout=harness.PATIENCE) != 78 or not re.search(said, bench.said()):
            bench.fail(f"host c has another text: exit {run.returncode}")
    write(path, text)
    run = bench.start("a")
    bench.steps(run, 2)
    bench.leave(run)


SHARED = ["port_closed"]


def resumed_from(bench, least):
    found = [int(step) for step in re.findall(r"resumed at step (\d+), saved by .*; from \S*/disk/tier", bench.said())]
    if not found or found[-1] < least:
        bench.fail(f"resumed at steps {found}, and {least} was copied")


def told_what_is_lost(bench):
    """By hosts that do not see what rank 0 wrote on the lost one: up to the step before or behind its last line."""
    steps = [json.loads(line)["step"] for line in lines_of(os.path.join(bench.directories[0], "metrics.jsonl"))]
    found = re.search(r"resumed at step (\d+), saved [^\n]*?(?:: (\d+) steps? lost)?\n", bench.said())
    if not found or abs(int(found[1]) + int(found[2] or 0) - steps[-1]) > 1:
        bench.fail(f"what is lost: step {steps[-1]} was the last on the launcher's host")


def launchers_copies_away(bench):
    """The launcher's host is lost with another one. On the third, which alone has an older step whole, it is known that a newer one was
    copied: the launch does not continue without it until those two are out of the list, and then says what that costs."""
    bench.list_hosts(["b", "c"])
    run = bench.start("b")
    bench.steps(run, 2)
    bench.leave(run)
    bench.list_hosts(bench.net.names)
    run = bench.start("a", "checkpoint.tiers[0].keep_last=1000")
    bench.wait(run, lambda: "resumed at" in bench.said(), "a start with all hosts")
    begun = int(re.search(r"resumed at step (\d+)", bench.said())[1])
    bench.wait(run, lambda: bench.copied() > begun + 2, "it has copied steps of its own")
    bench.net.lose("b")
    bench.net.lose("a")
    run.wait(timeout=harness.PATIENCE)
    least = bench.copied()
    run = bench.start("c", "launch.wait_seconds=1")
    said = rf"too few of the hosts that hold step (\d+) take part \(without a, b\), and step {begun} is the newest complete one here"
    harness.wait_for(lambda: run.poll() is not None or "resumed at" in bench.said(), "an end, or a start from what is there")
    if run.poll() != 75 or not (found := re.search(said, bench.said())) or int(found[1]) < least:
        bench.fail(f"step {least} was copied: exit {run.returncode}")
    bench.list_hosts(["c"])
    run = bench.start("c")
    bench.wait(run, lambda: f"resumed at step {begun}," in bench.said(), "it continues from an older step")
    told_what_is_lost(bench)
    bench.leave(run)


def too_few(bench):
    """Fewer hosts than elastic.min: waited for; not for ever, and then it is 75."""
    run = bench.start("a", "elastic.min=3", "launch.wait_seconds=600")
    bench.steps(run, 2)
    bench.net.lose("b")
    bench.wait(run, lambda: "waiting for hosts" in bench.said(), "the launch waits")
    bench.net.boot("b")
    bench.wait(run, lambda: len(bench.starts(0)) == 2, "a start when the host is back")
    bench.net.lose("c")
    bench.wait(run, lambda: bench.said().count("waiting for hosts") == 2, "the launch waits again")
    bench.leave(run)
    run = bench.start("a", "elastic.min=3", "launch.wait_seconds=1")
    if run.wait(timeout=harness.PATIENCE) != 75 or not re.search(r"2 ranks can run and elastic.min is 3.*c does not answer", bench.said()):
        bench.fail(f"too few hosts: exit {run.returncode}")


def copies_away(bench):
    """Two of three hosts are lost at once, and the other has not all of the copied step: the launch waits, and continues from it. Where no host
    comes back it ends with 75; an older step is taken once nobody is to come."""
    run = bench.start("a")
    bench.steps(run, 4)
    least = bench.copied()
    bench.net.lose("b")
    bench.net.lose("c")
    bench.wait(run, lambda: "waiting for hosts, up to 600 s" in bench.said(), "the launch waits")
    bench.net.boot("b")
    bench.wait(run, lambda: "resumed at" in bench.said(), "it continues")
    resumed_from(bench, least)
    bench.steps(run, 2)
    bench.leave(run)
    bench.net.boot("c")
    run = bench.start("a", "launch.wait_seconds=1", "checkpoint.tiers[0].keep_last=1000")  # the step that it begins with stays
    bench.wait(run, lambda: "resumed at" in bench.said(), "a start with all hosts")
    begun = int(re.search(r"resumed at step (\d+)", bench.said())[1])
    bench.wait(run, lambda: bench.copied() > begun, "it has copied steps of its own")
    bench.net.lose("b")
    bench.net.lose("c")
    if run.wait(timeout=harness.PATIENCE) != 75 or not re.search(r"take part \(without b, c\).*no host came back in 1 s .*b does not answer", bench.said()):
        bench.fail(f"copies are away: exit {run.returncode}")
    bench.list_hosts(["a"])
    run = bench.start("a")
    bench.wait(run, lambda: f"resumed at step {begun}" in bench.said(), "it continues from an older step")
    bench.leave(run)


def random_losses(bench, chooser, count):
    """One after the other, at random moments; every fifth takes the launcher with it, every fifth host is back before the next loss."""
    lost, launcher = [], "a"
    run = bench.start(launcher, "launch.grow=now")
    for number in range(count):
        bench.steps(run, chooser.randrange(1, 4))
        least = bench.copied()
        up = [name for name in bench.net.names if name not in lost]
        victim = launcher if number % 5 == 4 else chooser.choice([name for name in up if name != launcher])
        before = bench.said().count("resumed at")
        bench.net.lose(victim)
        lost.append(victim)
        if victim == launcher:
            run.wait(timeout=harness.PATIENCE)
            launcher = next(name for name in bench.net.names if name not in lost)
            run = bench.start(launcher, "launch.grow=now")
            before = 0
        bench.wait(run, lambda: bench.said().count("resumed at") > before, "the next start")
        resumed_from(bench, least)
        while len(lost) > len(bench.net.names) - 2 or (lost and number % 5 == 2):
            bench.net.boot(lost.pop(0))
    bench.leave(run)


def body(workspace, arguments):
    if not namespaces.can_make():
        print("skipped: namespaces of networks, mounts and processes need root")
        sys.exit(77)
    seed = harness.seed()
    named = [globals()[name] for name in arguments if not name.isdigit()]
    count = 0 if named else int(arguments[0]) if arguments else 50 if harness.scale() >= 10 else 0
    names = ["a", "b", "c", "d"] if count else ["a", "b", "c"]
    text = harness.text_of(40000)
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", text)))
    quiet = workspace.directory("quiet")
    workspace.train(config, quiet, ["layout.ranks=1", f"run.steps={QUIET_STEPS * max(1, count // 4)}", "optimizer.decay_steps=100000"])
    known = harness.losses(quiet)
    cases = [lambda bench: random_losses(bench, random.Random(seed), count)] if count else \
        named or harness.share_of([one_and_the_launchers, cable_pulled, copies_away, taken_away, killed_in_turn, stopped_elsewhere, data_verified, link_cut], 2) + \
        ([back_again, launchers_copies_away, relay_killed, one_way, between_two, wrong_names, too_few, port_closed, port_closed_and_nothing_shared, other_program, other_data] if harness.scale() >= 4 else [])
    for case in cases:
        with namespaces.Network(workspace.directory("net"), names) as net:
            bench = Bench(workspace, net, CONFIG, text, is_shared=case.__name__ in SHARED)
            case(bench)
            found = {}
            for directory in filter(lambda path: lines_of(os.path.join(path, "metrics.jsonl")), bench.directories):
                found.update(harness.losses(directory))
            if any(found[step] != bits for step, bits in known.items() if step in found):
                bench.fail("other losses than those of the quiet run")
            print(f"same bits: {len(found)} steps", flush=True)


if __name__ == "__main__":
    harness.main(body)
