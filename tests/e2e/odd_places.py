#!/usr/bin/env python3
"""Ranks start where mpirun would not: without a name and a home, on a root that is read-only, on fewer cores than ranks, below another mpirun.
odd_places.py PERDURE [beside]: with the mpirun beside this interpreter, which is another version (Open MPI 5), and then with its library, too."""
import glob
import os
import re
import shutil
import signal
import subprocess
import sys

import harness

SKIP = 77
RANKS = 4
CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 8, micro_batch: 2, context: 64}}
validation: {{every: 0}}
checkpoint: {{every: 4}}
layout: {{ranks: {ranks}, threads: 1, transport: mpi}}
"""
NOBODY = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
# In a namespace of its own: everything but one directory becomes read-only, /tmp and /dev/shm too.
READ_ONLY = """
set -e
at=$1; shift
mount --make-rprivate /
mount --bind "$at" "$at"
while read -r _ _ _ _ on _; do case $on in /proc*|/sys*|"$at") ;; *) mount -o remount,bind,ro "$on" ;; esac; done </proc/self/mountinfo
if { : >/tmp/perdure-read-only; } 2>/dev/null; then rm /tmp/perdure-read-only; exit 99; fi
exec "$@"
"""


class Place:
    """What starts there, and whether its bits are those of a quiet run."""

    def __init__(self, workspace, environment):
        self.environment = dict(environment, PERDURE_PROGRESS="off")
        self.workspace = workspace
        self.open = workspace.directory("open")  # for a user without a name, whatever may read the build
        os.chmod(workspace.path, 0o755)
        os.makedirs(self.open)
        os.chmod(self.open, 0o777)
        self.perdure = shutil.copy(workspace.perdure, workspace.path)
        self.config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(50000)), ranks=RANKS))
        quiet = workspace.directory("quiet")
        workspace.train(self.config, quiet, ["layout.ranks=1", "layout.transport=local"])
        self.bits = harness.losses(quiet), workspace.state_digest(quiet)

    def train(self, what, before=(), environment=None, expect=0):
        directory = os.path.join(self.open, what.replace(" ", "-"))
        env = {**({"HOME": "/root"} if environment is None else environment), **self.environment}
        run = subprocess.run([*before, self.perdure, "train", self.config, f"run.dir={directory}"], env=env, capture_output=True, text=True,
                             timeout=harness.PATIENCE, check=False)
        if run.returncode != expect:
            raise harness.Failure(f"{what}: exit {run.returncode}\n{run.stdout}{run.stderr}")
        if not expect:
            self.check(what, directory, run.stderr)
        return run.stderr

    def check(self, what, directory, said):
        if (harness.losses(directory), self.workspace.state_digest(directory)) != self.bits:
            raise harness.Failure(f"{what}: other bits than those of a quiet run\n{said}")
        left = [name for name in os.listdir(directory) if name.startswith(".launch-")]
        if left:
            raise harness.Failure(f"{what}: the launch left {left}\n{said}")
        print(f"{what}: same bits", flush=True)


def with_nothing(place):
    if os.geteuid() or not shutil.which("setpriv"):
        print("not tried without a name and on a read-only root: not root, or no setpriv")
        return
    place.train("a user without a name, a home and HOME", NOBODY, {})
    place.train("a home that cannot be written", NOBODY, {"HOME": "/root", "TMPDIR": "/root"})
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        print("not tried on a read-only root: unshare is refused")
        return
    apart = ["unshare", "-m", "bash", "-c", READ_ONLY, "bash", place.open]
    place.train("a read-only root", apart)
    place.train("a read-only root, and a user without a name", [*apart, *NOBODY], {})


def below_mpirun(place):
    """One launcher below another mpirun is one launcher; several are a mistake. What a dead one left does not matter."""
    words = ["mpirun", "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"]
    place.train("below mpirun -n 1", [*words, "-n", "1"])
    said = place.train("below mpirun -n 2", [*words, "-n", "2"], expect=64)
    if "OMPI_COMM_WORLD_SIZE=2 and process" not in said or "env -u OMPI_COMM_WORLD_SIZE perdure" not in said:
        raise harness.Failure(f"two launchers below mpirun: {said}")
    left = subprocess.run([*words, "-n", "2", "env", "-0"], env={"HOME": "/root", **place.environment}, capture_output=True, check=True).stdout
    environment = dict(word.split("=", 1) for word in left.decode().split("\0") if "=" in word)
    if environment.get("OMPI_COMM_WORLD_SIZE") != "2":
        raise harness.Failure(f"mpirun passed on: {environment}")
    torchrun = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    place.train("with what a dead mpirun and a torchrun left", (), {**environment, **torchrun})


def refused_by_mpirun(place):
    """An mpirun that starts nothing says why, and that is shown."""
    words = "mpirun --host localhost:1 --nooversubscribe"  # refused in silence where mpirun is asked to be quiet
    said = place.train("too few slots", (), {"HOME": "/root", **place.environment, "PERDURE_MPIRUN": words}, expect=78)
    if not re.search(r"^(?!\d{4}-|perdure:|-+$).*\w", said, re.MULTILINE):
        raise harness.Failure(f"what mpirun printed is not shown: {said}")
    print("mpirun's own words are shown", flush=True)


def segments_of(rank):
    """The segments in memory that a rank shares, each without the number of the rank that made it: other tests run beside this one."""
    mapped = re.findall(r"/dev/shm/\S*segment\S*", harness.read(f"/proc/{rank}/maps"))
    return {path.rpartition(".")[0] for path in mapped}


def killed(place):
    """One rank dies: the others are ended, all start again, and nothing of theirs stays in memory."""
    shared = set()
    directory = os.path.join(place.open, "killed")
    env = {"HOME": "/root", **place.environment, "PERDURE_FAULT": "worker.stepped@3:6:stop"}
    with subprocess.Popen([place.perdure, "train", place.config, f"run.dir={directory}"], env=env, stderr=subprocess.PIPE, text=True) as run:
        for number in range(2):
            rank = harness.wait_stopped(run)
            shared |= segments_of(rank)
            os.kill(rank, signal.SIGCONT if number else signal.SIGKILL)
            harness.wait_for(lambda gone=rank: gone not in harness.stopped(run), "it goes")
        said = run.communicate(timeout=harness.PATIENCE)[1]
    named = re.search(r"rank 3 \(process \d+\) (died: killed by SIGKILL|ended without a message); restart 1 of", said)
    if run.returncode or not named or f"restart 1: {RANKS} ranks" not in said:
        raise harness.Failure(f"a rank was killed: exit {run.returncode}\n{said}")
    place.check("a rank killed", directory, said)
    left = [path for one in shared for path in glob.glob(f"{glob.escape(one)}.*")]
    if left or len(shared) < 2:
        raise harness.Failure(f"a killed rank left {left} of {shared}")


def versions(arguments):
    """What chooses mpirun, and the library that ranks are linked with."""
    if arguments != ["beside"]:
        return [{"PATH": os.environ["PATH"]}]
    beside = os.path.dirname(os.path.abspath(sys.executable))
    if not os.path.exists(os.path.join(beside, "mpirun")):
        print(f"skipped: no mpirun beside {sys.executable}")
        sys.exit(SKIP)
    path = {"PATH": f"{beside}:{os.environ['PATH']}"}
    return [path, {**path, "LD_LIBRARY_PATH": os.path.join(os.path.dirname(beside), "lib")}]


def body(workspace, arguments):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:2])  # fewer than ranks
    for environment in versions(arguments):
        version = subprocess.run(["mpirun", "--version"], env={"HOME": "/root", **environment}, capture_output=True, text=True, check=True).stdout
        print(f"{version.splitlines()[0]}{', and its library' if 'LD_LIBRARY_PATH' in environment else ''}", flush=True)
        with harness.Workspace(workspace.perdure) as own:
            place = Place(own, environment)
            for tried in (with_nothing, below_mpirun, refused_by_mpirun, killed):
                tried(place)


harness.main(body)
