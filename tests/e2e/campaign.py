#!/usr/bin/env python3
"""Random models in random layouts, with state in random places, that are killed, damaged and left without room.

A case trains twice: once quietly on one rank with everything in memory, and once disturbed. The disturbed run is hit by a signal
at a random moment, its newest checkpoint is damaged, it continues under another layout, and its disk fills up meanwhile. Each
launch must end with an exit code that fits what was done to it (DISTURBED below), each restart must begin at the newest step
that was committed and is whole, and in the end loss bits and state are those of the quiet run and nothing is damaged.

There are 40 cases, chosen greedily so that every pair of two factors' values that may occur together does. By default a quarter of them runs (PERDURE_TEST_SHARE);
with PERDURE_TEST_SCALE of 4 or more all, of 10 or more 400 more, drawn at random. Moments come from PERDURE_TEST_SEED. Arguments: nothing; `random N` for N cases drawn at random; or the name of one case, as a failure prints it.
"""
import concurrent.futures
import functools
import glob
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import harness

STEPS = 9
COVER_SEED, COVER_CASES, CANDIDATES = 3, 40, 40
MODEL = {
    "family": ("llama", "llama_bias", "gpt2"), "shape": ("plain", "grouped", "odd"), "tied": (False, True),
    "precision": ("fp32", "bf16", "fp16", "fp8"),
}
LAYOUT = {
    "dp": (1, 2, 3), "tp": (1, 2), "pp": (1, 2), "sp": (1, 2), "interleave": (1, 2),
    "order": ("auto", "breadth_first"), "zero": (0, 1, 2, 3), "recompute": ("none", "selective", "full"),
    "optimizer": ("device", "cpu", "nvme"), "parameters": ("device", "cpu", "nvme"), "gradients": ("device", "cpu", "nvme"),
    "activations": ("device", "cpu", "nvme"), "in_flight": (1, 2), "transport": ("local", "mpi"),
}
PLACES = {"tiers": (1, 2, 3), "compression": (False, True)}
DISTURBED = {
    # what is done to the first launch: its exit codes (0: it was done before)
    "signal": {"launch": (-9, 0), "rank": (0,), "TERM": (75, 0), "USR1": (75, 0), "USR2": (0,)},
    "damage": {"none": (), "flip": (), "truncate": (), "remove": ()},
    "full": {False: (), True: ()},
}
FACTORS = {**MODEL, **LAYOUT, **PLACES, **{name: tuple(values) for name, values in DISTURBED.items()}}
FAULTS = ("worker.opened", "worker.stepped", "worker.saved", "store.begin.made", "store.prepare.written", "store.prepare.synced",
          "store.commit.checked", "store.commit.recorded", "store.commit.renamed", "store.commit.done", "store.remove.hidden",
          "store.remove.unrecorded", "tiers.copy.copied", "tiers.copy.sealed", "store.open.recovered")
CONFIG = """
run: {{seed: {seed}, steps: {steps}}}
model: {{family: {family}, vocab: {vocab}, context: 32, layers: {layers}, hidden: {hidden}, heads: {heads}, kv_heads: {kv_heads},
        head_size: {head_size}, ffn: {ffn}, tie_embeddings: {tied}{bias}}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 1, context: 32}}
numerics: {{precision: {precision}, linears: {linears}, virtual_tp: 2, virtual_sp: 2}}
checkpoint: {{every: 1, keep_last: 3, leave_seconds: 60}}
layout: {{threads: 1}}
"""


# ---- what a case is ----


def may_be(drawn):
    """The rules of trainer/config/README.md, and what follows from them for factors that are not drawn yet."""
    c = dict(drawn)
    if "nvme" in (c.get("parameters"), c.get("gradients")):
        if c.setdefault("optimizer", "nvme") != "nvme":
            return False
    if c.get("interleave", 1) > 1 and c.setdefault("pp", 2) == 1:
        return False
    if c.get("pp") == 2 and (c.get("order") == "breadth_first" or c.get("gradients") == "nvme"):
        return False
    if c.get("dp", 1) * c.get("tp", 1) * c.get("pp", 1) * c.get("sp", 1) > 4:
        return False
    return c.get("optimizer") != "nvme" or (c.get("zero") != 0 and not (c.get("compression") and c.get("tiers") == 1))


def draw(chooser, fixed, factors):
    """The other factors at random, in random order, so that rules fall upon each of them."""
    case = dict(fixed)
    names = [name for name in factors if name not in fixed]
    chooser.shuffle(names)
    for name in names:
        values = list(factors[name])
        chooser.shuffle(values)
        case[name] = next((value for value in values if may_be({**case, name: value})), None)
        if case[name] is None:
            return draw(chooser, fixed, factors)
    return case


def pairs_of(case):
    return {((a, case[a]), (b, case[b])) for a, b in itertools.combinations(sorted(case), 2)}


@functools.cache
def covering():
    """COVER_CASES cases in which every pair that may occur does."""
    chooser = random.Random(COVER_SEED)
    left = {((a, x), (b, y)) for a, b in itertools.combinations(sorted(FACTORS), 2) for x in FACTORS[a] for y in FACTORS[b]
            if may_be({a: x, b: y})}
    cases = []
    while left:
        wanted = sorted(left, key=str)
        candidates = [draw(chooser, dict(chooser.choice(wanted)), FACTORS) for _ in range(CANDIDATES)]
        best = max(candidates, key=lambda case: len(pairs_of(case) & left))
        left -= pairs_of(best)
        cases.append(best)
    return cases + [draw(chooser, {}, FACTORS) for _ in range(COVER_CASES - len(cases))]


# ---- what a case is made of ----


def config_of(case, chooser, data):
    gpt2 = case["family"] == "gpt2"
    heads, head_size, ffn, vocab = {"plain": (2, 16, 64, 256), "grouped": (4, chooser.choice((8, 16)), 96, 256),
                                    "odd": (3, 10, chooser.choice((50, 83)), 259)}[case["shape"]]
    return CONFIG.format(seed=chooser.randrange(1000), steps=STEPS, family="gpt2" if gpt2 else "llama", vocab=vocab, layers=4, heads=heads,
                         hidden=heads * head_size, head_size=head_size, ffn=ffn, tied=str(case["tied"]).lower(), data=data,
                         kv_heads=heads if gpt2 or case["shape"] == "plain" else chooser.choice((1, heads // 2 or 1)),
                         bias="" if gpt2 else f", qkv_bias: {str(case['family'] == 'llama_bias').lower()}",
                         precision="bf16" if case["precision"] == "fp8" else case["precision"],
                         linears="fp8" if case["precision"] == "fp8" else "precision")


def layout_of(case):
    ranks = case["dp"] * case["tp"] * case["pp"] * case["sp"]
    words = [f"layout.ranks={ranks}", *(f"layout.{name}={case[name]}" for name in ("dp", "tp", "pp", "sp", "interleave", "order", "recompute",
                                                                                 "transport")),
             f"layout.zero_stage={case['zero']}", f"checkpoint.in_flight={case['in_flight']}", "offload.buffer_bytes=8M",
             *(f"offload.{name}={case[name]}" for name in ("optimizer", "parameters", "gradients", "activations"))]
    return words


class Case:
    def __init__(self, workspace, name, factors, seed, data):
        self.workspace, self.name, self.factors = workspace, name, factors
        self.chooser = random.Random(f"{seed}:{name}")
        self.directory, self.quiet = workspace.directory("run"), workspace.directory("quiet")
        self.config = workspace.file(os.path.basename(self.directory) + ".yaml", config_of(factors, self.chooser, data))
        self.first = {name: factors[name] for name in LAYOUT}
        self.then = draw(self.chooser, {name: factors[name] for name in PLACES}, {**LAYOUT, **PLACES})
        self.log, self.said, self.damaged, self.unread = "", [], None, None

    def fail(self, what):
        raise harness.Failure(f"{what}\n{self.factors}\nthen {self.then}\n" + "\n".join(self.said[-2:]))

    def tiers_of(self, place):
        """Where checkpoints go; the first of several is in memory where that can be written."""
        last = f"{place}/checkpoints"
        if self.factors["tiers"] == 1:
            self.roots = [last]
            return [f"checkpoint.dir={last}", *(["checkpoint.compression=zstd:1"] if self.factors["compression"] else [])]
        memory = "/dev/shm" + self.directory if os.access("/dev/shm", os.W_OK) else f"{self.directory}.fast"
        self.roots = [memory, last, f"{place}/far"][:self.factors["tiers"]]
        os.makedirs(memory, exist_ok=True)
        words = [word for i, root in enumerate(self.roots) for word in (f"checkpoint.tiers[{i}].dir={root}", f"checkpoint.tiers[{i}].every={i + 1}")]
        return words + ([f"checkpoint.tiers[{len(self.roots) - 1}].compression=zstd:1"] if self.factors["compression"] else [])

    # ---- what is there ----

    def recorded(self):
        """Directories with a record, but the one that was damaged: (step, path, has its final name)."""
        found = []
        for root in self.roots:
            for path in glob.glob(os.path.join(root, "step-*", "commit.h5")):
                name = os.path.basename(os.path.dirname(path))
                if os.path.dirname(path) != self.damaged and os.path.getsize(path):  # empty while the checkpoint is prepared
                    found.append((int(name[5:17]), os.path.dirname(path), not name.endswith(".tmp")))
        return found

    def may_resume(self):
        """The newest step with its final name, or one whose record was written and that was about to get it."""
        found = self.recorded()
        sealed = max((step for step, _, final in found if final), default=0)
        return {sealed, *(step for step, _, final in found if not final and step > sealed)}

    # ---- what is done ----

    def start(self, words, **environment):
        self.log = self.workspace.directory("log")
        with open(self.log, "w", encoding="utf-8") as log:
            return subprocess.Popen([self.workspace.perdure, "train", self.config, f"run.dir={self.directory}", *words], stdout=log, stderr=log,
                                    env=dict({**os.environ, "PERDURE_PROGRESS": "off"}, **environment), start_new_session=True)

    def end(self, process, codes, what):
        try:
            code = process.wait(timeout=harness.PATIENCE)
        except subprocess.TimeoutExpired:
            code = "none, it hangs"
        self.said.append(f"-- {what}: exit {code}\n{harness.read(self.log)}")
        if code not in codes:
            self.fail(f"{what}: exit {code}, expected one of {codes}")
        return code

    def disturb(self, words):
        kind = self.factors["signal"]
        if kind == "rank":
            fault = f"{self.chooser.choice(FAULTS)}@0:{self.chooser.randint(1, 4)}:kill"
            process = self.start(words, PERDURE_FAULT=fault, PERDURE_FAULT_ONCE=self.directory + ".once")
            self.end(process, DISTURBED["signal"][kind], f"a rank killed at {fault}")
            return
        process = self.start([*words, f"run.steps={STEPS}"])
        wanted = self.chooser.randint(0, STEPS - 3)
        harness.wait_for(lambda: harness.steps_done(self.directory) >= wanted or process.poll() is not None, f"step {wanted}", 0.002)
        if kind == "launch":
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        else:
            process.send_signal(signal.Signals["SIG" + kind])
        early = (75, 0) if kind in ("TERM", "USR1") else DISTURBED["signal"][kind]
        code = self.end(process, (*early, -getattr(signal, "SIG" + kind, 0)) if wanted == 0 else early, f"{kind} after step {wanted}")
        if code == -9:
            harness.wait_until_gone(self.directory)

    def damage(self):
        """Of the newest checkpoint of each place that has that step, so that an older one, or a copy of it, must do."""
        way = self.factors["damage"]
        sealed = [(step, path) for step, path, final in self.recorded() if final]
        if way == "none" or not sealed:
            return
        newest = max(sealed)[0]
        step = self.chooser.choice([path for at, path in sealed if at == newest])
        path = self.chooser.choice(sorted(glob.glob(os.path.join(step, "shard-*.h5"))) + [os.path.join(step, "commit.h5")])
        if way == "remove":
            os.unlink(path)
        elif way == "truncate":
            os.truncate(path, self.chooser.randrange(os.path.getsize(path)))
        else:
            place = path, self.chooser.randrange(os.path.getsize(path)), self.chooser.randrange(8)
            # Whatever a shard without boxes says, no load opens it: the run continues from this step, and verify names the shard.
            if not path.endswith("commit.h5") and harness.boxes_of(path) == 0:
                self.unread = place
            harness.flip(*place)
        self.said.append(f"-- {way} {path}")
        self.verify(65, 74)
        self.damaged = None if self.unread else step

    def verify(self, *codes):
        for root in self.roots:
            if not glob.glob(os.path.join(root, "step-*")):
                continue
            result = self.workspace.command(["ckpt", "verify", root])
            if result.returncode in codes:
                return
            if 0 in codes or result.returncode not in (0, 65, 74):
                self.fail(f"ckpt verify {root}: exit {result.returncode}, expected {codes}\n{result.stdout}{result.stderr}")
        if 0 not in codes:
            self.fail(f"ckpt verify: the damage is not found, expected {codes}")

    def resumes_at(self, allowed):
        found = re.search(r"resumed at step (\d+)", harness.read(self.log))
        step = int(found.group(1)) if found else 0
        if step not in allowed:
            self.fail(f"the launch began at step {step}, and one of {sorted(allowed)} is committed and whole")

    def go_on(self, words, disk):
        """To the end, under the other layout; where there is a disk it is full for some time."""
        self.damage()
        allowed = self.may_resume()
        if self.damaged and not self.recorded():
            self.end(self.start(words), (65,), "nothing is whole")
            shutil.rmtree(self.directory)
            for root in self.roots:
                shutil.rmtree(root, ignore_errors=True)
        if not disk:
            self.end(self.start(words), (0,), "the end")
        else:
            process = self.start(words, PERDURE_FAULT="worker.stepped@0:1:stop", PERDURE_FAULT_ONCE=self.directory + ".full")
            harness.wait_for(lambda: harness.stopped(process) or process.poll() is not None, "a worker stops, or is done")
            if process.poll() is None:
                disk.fill(0)
                for worker in harness.stopped(process):
                    os.kill(worker, signal.SIGCONT)
                harness.wait_for(lambda: re.search("No space left", harness.read(self.log)) or process.poll() is not None, "no space is left")
                disk.free()
            if self.end(process, (0, 74), "a disk that is full for a while") == 74:
                self.resumes_at(allowed)
                allowed = self.may_resume()
                self.end(self.start(words), (0,), "the end, with room again")
        self.resumes_at(allowed)

    def compare(self):
        if self.damaged:  # what only lacks a shard stays where it is, and verify says so
            shutil.rmtree(self.damaged, ignore_errors=True)
        if self.unread and os.path.exists(self.unread[0]):
            harness.flip(*self.unread)
        expected, found = harness.losses(self.quiet), harness.losses(self.directory)
        if expected != found:
            self.fail(f"loss bits: {found}\nquiet: {expected}")
        result = self.workspace.command(["ckpt", "diff", self.directory, self.quiet])
        if result.returncode != 0:
            self.fail(f"ckpt diff: exit {result.returncode}\n{result.stdout}{result.stderr}")
        self.verify(0)

    def body(self, disk):
        place = disk.path if disk else self.directory + ".places"
        os.makedirs(place, exist_ok=True)
        tiers = self.tiers_of(place)
        self.workspace.train(self.config, self.quiet, ["layout.ranks=1", "layout.transport=local", "checkpoint.every=0"])
        self.disturb([*layout_of(self.first), *tiers])
        self.go_on([*layout_of(self.then), *tiers], disk)
        self.compare()

    def run(self):
        try:
            if self.factors["full"] and os.geteuid() == 0:
                with harness.Disk(self.workspace, 96) as disk:
                    self.body(disk if disk.is_mounted else None)
            else:
                self.body(None)
        finally:
            shutil.rmtree("/dev/shm" + self.directory, ignore_errors=True)
            for path in [self.directory, *glob.glob(self.directory + ".*")] if not os.environ.get("PERDURE_TEST_KEEP") else []:
                shutil.rmtree(path, ignore_errors=True)


# ---- the campaign ----


def one(workspace, name, seed, data):
    kind, number = name.split("-")
    factors = dict(covering()[int(number)]) if kind == "pairs" else draw(random.Random(f"{seed}:{number}"), {}, FACTORS)
    try:
        Case(workspace, name, factors, seed, data).run()
    except Exception as error:  # pylint: disable=broad-except
        return f"{name}: PERDURE_TEST_SEED={seed} {sys.argv[0]} {sys.argv[1]} {name}\n{error if isinstance(error, harness.Failure) else repr(error)}"
    return None


def body(workspace, arguments):
    seed = harness.seed()
    data = workspace.file("text.txt", harness.text_of(20000))
    pairs = len(covering())
    if pairs > COVER_CASES:
        raise harness.Failure(f"{pairs} cases cover every pair, and at most {COVER_CASES} are to: choose another COVER_SEED")
    if arguments:
        names = [f"random-{i}" for i in range(int(arguments[1]))] if arguments[0] == "random" else arguments[:1]
    else:
        names = harness.share_of([f"pairs-{i}" for i in range(pairs)], 4) + [f"random-{i}" for i in range(400 if harness.scale() >= 10 else 0)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        failures = [failure for failure in pool.map(lambda name: one(workspace, name, seed, data), names) if failure]
    if failures:
        raise harness.Failure(f"{len(failures)} of {len(names)} cases failed\n" + "\n\n".join(failures))
    print(f"{len(names)} cases of seed {seed}: exit codes, resumed steps, loss bits and states as they must be")


if __name__ == "__main__":
    harness.main(body)
