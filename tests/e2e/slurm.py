#!/usr/bin/env python3
"""tools/launch/slurm.sbatch under a real Slurm (slurmctld, three slurmd, munged) of this test's own: a job that is signalled as
before its time limit, then preempted twice, the second time to fewer nodes, has the bits of a run that nobody disturbed. So has one whose srun is
killed, one that loses a rank while the others wait for it in MPI_Init, and one that runs in a step of its own. Skipped (77) where Slurm or root
is not there.
"""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "helpers"))
import free_ports  # noqa: E402
import harness  # noqa: E402

SKIP = 77
STEPS = 400
CONFIG = """
run: {{seed: 7, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 32, layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 6, micro_batch: 1, context: 32}}
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
KillWait={wait}
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,requeue_delay=0
NodeName=n[0-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=1 RealMemory=100 State=UNKNOWN
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE Default=YES State=UP
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF State=UP
"""
NODES = ("n0", "n1", "n2")
SLOW = {"PERDURE_FAULT": "worker.stepped:1:sleep"}  # a job is not through before Slurm has acted, and leaves the cores to others


class Cluster:
    def __init__(self, workspace):
        self.d = d = workspace.directory("slurm")
        for name in ("munge", "state", *(f"spool.{n}" for n in NODES), *(f"tmp.{n}" for n in NODES)):
            os.makedirs(os.path.join(d, name))
        os.chmod(os.path.join(d, "munge"), 0o755)  # munged wants others to come to its socket
        base = free_ports.following(4)
        self.conf = os.path.join(d, "slurm.conf")
        with open(self.conf, "w", encoding="utf-8") as f:
            f.write(SLURM.format(host=socket.gethostname().split(".")[0], port=base, d=d, first=base + 1, last=base + 3,
                                 wait=6 * harness.PATIENCE))
        os.environ["SLURM_CONF"] = self.conf

    def __enter__(self):
        return self

    def begin(self):
        d = self.d
        with open(os.open(f"{d}/munge/key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
            key.write(os.urandom(1024))
        self.start(["munged", "--force", f"--key-file={d}/munge/key", f"--socket={d}/munge/socket", f"--pid-file={d}/munged.pid",
                    f"--log-file={d}/munged.log", f"--seed-file={d}/munge/seed"])
        self.start(["slurmctld", "-c", "-f", self.conf])
        for node in NODES:
            self.start(["slurmd", "-f", self.conf, "-N", node])
        harness.wait_for(lambda: self.ask("sinfo", "-h", "-p", "low", "-o", "%D %T").strip() == "3 idle", "three idle nodes", 0.2)

    def __exit__(self, *exc):
        harness.wait_for(lambda: not self.kill_all(), "all processes of this Slurm end", 0.1)

    def kill_all(self):
        """By their environment: no slurmstepd names this Slurm on its command line. Returns those that were there."""
        found = [pid for pid in harness.processes() if variables(pid).get("SLURM_CONF") == self.conf]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

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
        """scontrol says nothing here where a busy slurmctld does not answer it."""
        text = harness.wait_for(lambda: self.ask("scontrol", "show", "job", number), "scontrol answers", 0.1)
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
    await_job(cluster, job, lambda _: step_of(directory) >= begin + 20, "the job continues")
    other = cluster.submit("--partition=high", "--output=/dev/null", *others)
    await_job(cluster, job, lambda found: found["JobState"] == "PENDING", "the job is queued again")
    print(f"preempted at step {step_of(directory)}, by a job with {others[0]}", flush=True)
    return other


def signalled(cluster, job, directory):
    """As two minutes before its time limit: nobody else wants the nodes, and the script queues the job again by itself."""
    await_job(cluster, job, lambda _: step_of(directory) >= 20, "the job continues")
    cluster.ask("scancel", "--signal=USR1", "--full", job)
    await_job(cluster, job, lambda found: found["JobState"] == "PENDING", "the job is queued again")
    print(f"signalled at step {step_of(directory)}", flush=True)


def start_now(cluster, job, *settings):
    """Slurm lets a job that was requeued wait for two minutes. Its credentials count seconds: in the one in which the last start was killed
    it refuses the next."""
    made = subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2", *settings], capture_output=True, text=True, check=False)
    if made.returncode:
        raise harness.Failure(f"scontrol update: {made.stderr}")


class Bits:
    """Those of a quiet run, which every job must have."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.config = workspace.file("run.yaml", CONFIG.format(steps=STEPS, data=workspace.file("text.txt", harness.text_of(40000))))
        quiet = workspace.directory("quiet")
        workspace.train(self.config, quiet, ["layout.ranks=3", "layout.transport=local"])
        self.of_quiet = self.of(quiet)

    def of(self, directory):
        return harness.losses(directory), self.workspace.state_digest(directory)

    def check(self, directory, said):
        if self.of(directory) != self.of_quiet:
            raise harness.Failure(f"other bits than a quiet run\n{said}")


def ended(cluster, job, said_at):
    await_job(cluster, job, lambda found: found["JobState"] in ENDED, "it ends")
    found, said = cluster.job(job), harness.read(said_at)
    if found["JobState"] != "COMPLETED":
        raise harness.Failure(f"the job: {found}\n{said}")
    return found, said


def requeued(workspace, cluster, bits):
    directory, output = workspace.directory("job"), workspace.directory("output")
    script = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "launch", "slurm.sbatch")
    job = cluster.submit("--partition=low", "--nodes=3", "--ntasks-per-node=1", f"--output={output}", script, bits.config, f"run.dir={directory}",
                         environment={**SLOW, "PERDURE": workspace.perdure, "OMPI_MCA_btl_tcp_if_include": "lo"})
    signalled(cluster, job, directory)
    start_now(cluster, job)
    other = preempted(cluster, job, directory, ["--nodes=3", "--wrap=sleep 1"])
    await_job(cluster, other, lambda found: found["JobState"] in ENDED, "it ends")  # else it would take the nodes of the next start, too
    start_now(cluster, job)
    other = preempted(cluster, job, directory, ["--nodes=1", "--wrap=sleep 3600"])
    await_job(cluster, other, lambda found: found["JobState"] == "RUNNING", "it has its node")
    start_now(cluster, job, "NumNodes=2-2", "NumCPUs=2", "NumTasks=2")
    found, said = ended(cluster, job, output)
    cluster.ask("scancel", other)
    if found["Restarts"] != "3" or found["NumNodes"] != "2":
        raise harness.Failure(f"the job: {found}\n{said}")
    if "--mpi" in said or "OPAL ERROR" in said:
        raise harness.Failure(f"ranks did not find each other at once:\n{said}")
    bits.check(directory, said)
    starts = [line for line in said.splitlines() if "launch: starting" in line]
    print(f"same bits after {found['Restarts']} requeues, {len(starts)} launches, the last on {found['NumNodes']} nodes", flush=True)


def variables(pid):
    """Of a process that may be gone, and then has none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(word.split("=", 1) for word in f.read().decode().split("\0") if "=" in word)
    except (OSError, UnicodeDecodeError):
        return {}


def processes_of(directory, name):
    found = []
    for pid in harness.processes():
        try:
            line, comm = harness.read(f"/proc/{pid}/cmdline"), harness.read(f"/proc/{pid}/comm").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if comm == name and f"{directory}/" in line:
            found.append(pid)
    return found


def tasks(directory):
    """The step and the rank of every rank."""
    found = {pid: variables(pid) for pid in processes_of(directory, "perdure")}
    return {pid: (own["SLURM_STEP_ID"], own["SLURM_PROCID"]) for pid, own in found.items() if "SLURM_STEP_ID" in own}


def srun_killed(workspace, cluster, bits):
    """One of its tasks is stopped, so that it does not end by itself, and seems to be on another host, so that the launcher cannot kill it: Slurm
    has to, before the next start."""
    directory, output = workspace.directory("killed"), workspace.directory("output")
    job = cluster.submit("--partition=low", "--nodes=3", "--ntasks-per-node=1", f"--output={output}",
                         f"--wrap=exec {workspace.perdure} train {bits.config} run.dir={directory} layout.ranks=3",
                         environment={**SLOW, "PERDURE_TEST_HOSTS": "3", "PERDURE_PROGRESS": "off", "OMPI_MCA_btl_tcp_if_include": "lo"})
    await_job(cluster, job, lambda _: step_of(directory) >= 20, "the job continues")
    before = tasks(directory)
    os.kill(next(pid for pid, (_, rank) in before.items() if rank == "2"), signal.SIGSTOP)
    sruns = processes_of(directory, "srun")
    seen = harness.processes()
    os.kill(next(pid for pid in sruns if seen[pid][1] not in sruns), signal.SIGKILL)  # the other is a child of it

    def is_next_begun():
        after = [pid for pid in tasks(directory) if pid not in before]
        left = [pid for pid in before if variables(pid)]
        if after and left:
            raise harness.Failure(f"{left} of the start before are there beside {after}")
        return after

    harness.wait_for(is_next_begun, "the next start begins")
    _, said = ended(cluster, job, output)
    if "restart 1: 3 ranks" not in said:
        raise harness.Failure(f"no restart with all ranks:\n{said}")
    bits.check(directory, said)
    print("srun killed, one task stopped: Slurm ended it before the next start, same bits", flush=True)


def lost_while_joining(workspace, cluster, bits):
    """The others wait for it in MPI_Init, and end when srun sends them TERM: KILL comes after KillWait, which is longer than this test waits."""
    directory, output = workspace.directory("lost"), workspace.directory("output")
    job = cluster.submit("--partition=low", "--nodes=3", "--ntasks-per-node=1", f"--output={output}",
                         f"--wrap=exec {workspace.perdure} train {bits.config} run.dir={directory} layout.ranks=3",
                         environment={"PERDURE_FAULT": "worker.begun:1:kill", "PERDURE_FAULT_ONCE": workspace.directory("fired"),
                                      "PERDURE_PROGRESS": "off", "OMPI_MCA_btl_tcp_if_include": "lo"})
    _, said = ended(cluster, job, output)
    if "restart 1: 3 ranks" not in said:
        raise harness.Failure(f"no restart with all ranks:\n{said}")
    bits.check(directory, said)
    print("a rank killed before it had joined the others: they ended when srun asked them to, same bits", flush=True)


def in_a_step(workspace, cluster, bits):
    """Ranks that mpirun starts are in the launcher's own step, which must not be ended when one of them dies."""
    directory, output = workspace.directory("step"), workspace.directory("output")
    job = cluster.submit("--partition=low", "--nodes=1", "--ntasks=1", f"--output={output}",
                         f"--wrap=exec srun --ntasks=1 --mpi=none {workspace.perdure} train {bits.config} run.dir={directory} layout.ranks=2",
                         environment={"PERDURE_FAULT": "worker.stepped@1:60:stop", "PERDURE_PROGRESS": "off", "OMPI_MCA_ras": "^slurm",
                                      "OMPI_MCA_plm": "^slurm"})
    for number in (signal.SIGKILL, signal.SIGCONT):

        def stopped():
            seen = harness.processes()
            return [pid for pid in tasks(directory) if pid in seen and seen[pid][0] == "T"]

        await_job(cluster, job, lambda _, look=stopped: look(), "a rank stops")
        rank = stopped()[0]
        os.kill(rank, number)
        harness.wait_for(lambda gone=rank, look=stopped: gone not in look(), "it goes")
    _, said = ended(cluster, job, output)
    if "restart 1: 2 ranks" not in said:
        raise harness.Failure(f"no restart:\n{said}")
    bits.check(directory, said)
    print("a rank killed below mpirun in a step of srun: the step continues, same bits", flush=True)


def body(workspace, _):
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
    missing = [p for p in programs if not shutil.which(p)]
    if os.geteuid() or missing:
        print(f"skipped: {'not root' if os.geteuid() else ' '.join(missing) + ': not here; apt-get install slurm-wlm munge'}")
        sys.exit(SKIP)
    bits = Bits(workspace)
    with Cluster(workspace) as cluster:
        cluster.begin()
        for tried in harness.share_of((requeued, srun_killed, lost_while_joining, in_a_step), 2):
            tried(workspace, cluster, bits)


harness.main(body)
