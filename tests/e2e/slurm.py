#!/usr/bin/env python3
"""tools/launch/slurm.sbatch under a real Slurm (slurmctld, three slurmd, munged) of this test's own: a job that is signalled as
before its time limit, then preempted twice, the second time to fewer nodes, has the bits of a run that nobody disturbed. Skipped (77) where Slurm or root is not there.
"""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import harness

SKIP = 77
STEPS = 400
CONFIG = """
run: {{seed: 7, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 64, layers: 4, hidden: 96, heads: 4, kv_heads: 2, ffn: 256}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 6, micro_batch: 1, context: 64}}
optimizer: {{lr: 0.003, warmup_steps: 2, decay_steps: {steps}}}
checkpoint: {{every: 50, keep_last: 2}}
layout: {{threads: 1}}
"""
SLURM = """
ClusterName=perdure
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={d}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool.%n
TmpFS={d}/tmp.%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
KillWait=60
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,requeue_delay=0
NodeName=n[0-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=1 RealMemory=100 State=UNKNOWN
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE Default=YES State=UP
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF State=UP
"""
NODES = ("n0", "n1", "n2")


def ports(count):
    """Free ones, that follow each other."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            base = first.getsockname()[1]
            try:
                for port in range(base + 1, base + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base


class Cluster:
    def __init__(self, workspace):
        self.d = d = workspace.directory("slurm")
        for name in ("munge", "state", *(f"spool.{n}" for n in NODES), *(f"tmp.{n}" for n in NODES)):
            os.makedirs(os.path.join(d, name))
        os.chmod(os.path.join(d, "munge"), 0o755)  # munged wants others to come to its socket
        base = ports(4)
        self.conf = os.path.join(d, "slurm.conf")
        with open(self.conf, "w", encoding="utf-8") as f:
            f.write(SLURM.format(host=socket.gethostname().split(".")[0], port=base, d=d, first=base + 1, last=base + 3))
        os.environ["SLURM_CONF"] = self.conf

    def __enter__(self):
        d = self.d
        with open(os.open(f"{d}/munge/key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
            key.write(os.urandom(1024))
        self.start(["munged", "--force", f"--key-file={d}/munge/key", f"--socket={d}/munge/socket", f"--pid-file={d}/munged.pid",
                    f"--log-file={d}/munged.log", f"--seed-file={d}/munge/seed"])
        self.start(["slurmctld", "-c", "-f", self.conf])
        for node in NODES:
            self.start(["slurmd", "-f", self.conf, "-N", node])
        harness.wait_for(lambda: self.ask("sinfo", "-h", "-p", "low", "-o", "%D %T").strip() == "3 idle", "three idle nodes", 0.2)
        return self

    def __exit__(self, *exc):
        self.ask("scancel", "--user=root")
        for name in (*(f"slurmd.{n}" for n in NODES), "slurmctld", "munged"):
            subprocess.run(["pkill", "-F", os.path.join(self.d, name + ".pid")], check=False, stderr=subprocess.DEVNULL)
        for _ in range(300):
            if harness.is_gone(self.d):
                return
            time.sleep(0.1)
        # A slurmd that is told to leave may wait for one of its threads for ever, which is none of ours.
        subprocess.run(["pkill", "-KILL", "-f", f"slurmd -f {self.conf}"], check=False)
        harness.wait_until_gone(self.d)

    @staticmethod
    def start(command):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise harness.Failure(f"{command[0]}: {made.stderr}")

    @staticmethod
    def ask(*command):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def submit(self, *arguments, environment=None):
        made = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True, check=False,
                              env=dict(os.environ, **(environment or {})))
        if made.returncode:
            raise harness.Failure(f"sbatch {' '.join(arguments)}: {made.stderr}")
        return made.stdout.strip()

    def job(self, number):
        text = self.ask("scontrol", "show", "job", number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)


def step_of(directory):
    try:
        lines = harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()
        return json.loads(lines[-1])["step"] if lines else 0
    except (OSError, ValueError):
        return 0


ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")


def await_job(cluster, job, condition, what):
    def is_so():
        found = cluster.job(job)
        if found["JobState"] in ENDED and what != "it ends":
            raise harness.Failure(f"{what}: the job has ended: {found}\n{harness.read(found['StdOut'])}")
        return condition(found)

    harness.wait_for(is_so, what, 0.1)


def preempted(cluster, job, directory, others):
    """Once it has gone a while on, a job of the other partition takes all nodes away; returns that one's number."""
    begin = step_of(directory)
    await_job(cluster, job, lambda _: step_of(directory) >= begin + 20, "the job goes on")
    other = cluster.submit("--partition=high", "--output=/dev/null", *others)
    await_job(cluster, job, lambda found: found["JobState"] == "PENDING", "the job is queued again")
    print(f"preempted at step {step_of(directory)}, by a job with {others[0]}", flush=True)
    return other


def signalled(cluster, job, directory):
    """As two minutes before its time limit: nobody else wants the nodes, and the script queues the job again by itself."""
    await_job(cluster, job, lambda _: step_of(directory) >= 20, "the job goes on")
    cluster.ask("scancel", "--signal=USR1", "--full", job)
    await_job(cluster, job, lambda found: found["JobState"] == "PENDING", "the job is queued again")
    print(f"signalled at step {step_of(directory)}", flush=True)


def start_now(cluster, job, *settings):
    """Slurm lets a job that was requeued wait for two minutes. Its credentials count seconds: in the one in which the last start was killed
    it refuses the next."""
    made = subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2", *settings], capture_output=True, text=True, check=False)
    if made.returncode:
        raise harness.Failure(f"scontrol update: {made.stderr}")


def body(workspace, _):
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
    missing = [p for p in programs if not shutil.which(p)]
    if os.geteuid() or missing:
        print(f"skipped: {'not root' if os.geteuid() else ' '.join(missing) + ': not here; apt-get install slurm-wlm munge'}")
        sys.exit(SKIP)
    config = workspace.file("run.yaml", CONFIG.format(steps=STEPS, data=workspace.file("text.txt", harness.text_of(40000))))
    quiet, directory, output = workspace.directory("quiet"), workspace.directory("job"), workspace.directory("output")
    workspace.train(config, quiet, ["layout.ranks=3", "layout.transport=local"])
    script = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "launch", "slurm.sbatch")
    with Cluster(workspace) as cluster:
        job = cluster.submit("--partition=low", "--nodes=3", "--ntasks-per-node=1", f"--output={output}", script, config, f"run.dir={directory}",
                             environment={"PERDURE": workspace.perdure, "OMPI_MCA_btl_tcp_if_include": "lo"})
        signalled(cluster, job, directory)
        start_now(cluster, job)
        preempted(cluster, job, directory, ["--nodes=3", "--wrap=sleep 1"])
        start_now(cluster, job)
        other = preempted(cluster, job, directory, ["--nodes=1", "--wrap=sleep 3600"])
        start_now(cluster, job, "NumNodes=2-2", "NumCPUs=2", "NumTasks=2")
        await_job(cluster, job, lambda found: found["JobState"] in ENDED, "it ends")
        found = cluster.job(job)
        cluster.ask("scancel", other)
        said = harness.read(output)
        if found["JobState"] != "COMPLETED" or found["Restarts"] != "3" or found["NumNodes"] != "2":
            raise harness.Failure(f"the job: {found}\n{said}")
    if "--mpi" in said or "OPAL ERROR" in said:
        raise harness.Failure(f"ranks did not find each other at once:\n{said}")
    got = harness.losses(directory), workspace.state_digest(directory)
    if got != (harness.losses(quiet), workspace.state_digest(quiet)):
        raise harness.Failure(f"other bits than a quiet run\n{said}")
    starts = [line for line in said.splitlines() if "launch: starting" in line]
    print(f"same bits after {found['Restarts']} requeues, {len(starts)} launches, the last on {found['NumNodes']} nodes", flush=True)


harness.main(body)
