#!/usr/bin/env python3
"""Files of tools/launch but for Slurm's: manifests are YAML whose Kubernetes objects have the fields of the published schema (where the package
kubernetes-validate is there), our exit codes mean what they mean, and what containers and services run does run, with kubectl, the operator's
program and ssh made by hand. 75 starts again, every other code ends, TERM leaves."""
import json
import os
import re
import signal
import subprocess
import sys
import time

import harness

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml reads manifests: apt-get install python3-yaml")
    sys.exit(77)

FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/launch")
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]
FINAL = (64, 65, 70, 74, 78, 93)
CONFIG = """
run: {{seed: 3, steps: 4}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 1, context: 64}}
layout: {{threads: 1}}
"""
KUBECTL = """#!/bin/sh
# get prints worker pods; exec POD --container=perdure -- COMMAND runs it here.
[ "$1" = get ] && { echo worker-0:2; exit; }
shift 4
exec "$@"
"""
# Ends with the codes of the file `codes`, one a start; 0 at last. TERM ends it with 75.
FAKE = """#!/bin/sh
echo "$@" >> {place}/starts
trap 'exit 75' TERM
read -r code rest < {place}/codes || code=0
echo "$rest" > {place}/codes
[ "$code" = wait ] && while :; do sleep 0.05; done
exit "$code"
"""
# The run ends with the first word of `orders`, after it has come to the step that is the second, by the real program, as all else is.
SLURM_FAKE = """#!/bin/sh
read -r code steps < {place}/orders
case "$steps $*" in
  "unread ckpt "*) exit 74 ;;
  *--print-config* | *" ckpt "*) exec {perdure} "$@" ;;
esac
[ "$steps" -gt 0 ] 2>/dev/null && {perdure} "$@" layout.ranks=1 run.steps="$steps"
exit "$code"
"""


def load(name):
    with open(os.path.join(FILES, name), encoding="utf-8") as f:
        return list(yaml.safe_load_all(f))


def find(documents, kind):
    return next(d for d in documents if d["kind"] == kind)


def check_schema(objects):
    try:
        import kubernetes_validate
    except ImportError:
        print("kubernetes-validate is not there: fields are not compared with the schema", flush=True)
        return
    for one in objects:
        try:
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as error:
            raise harness.Failure(f"{one['kind']}: {'.'.join(map(str, error.path))}: {error.message}") from error
    print(f"{len(objects)} objects have the fields of Kubernetes {kubernetes_validate.latest_version()}", flush=True)


def objects_of(jobset, mpijob):
    """What of the manifests is Kubernetes' own: the templates of jobs and pods too."""
    found = [d for d in [*jobset, *mpijob] if d["kind"] not in ("JobSet", "MPIJob")]
    for job in find(jobset, "JobSet")["spec"]["replicatedJobs"]:
        found.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]})
    for name, replicas in mpijob[0]["spec"]["mpiReplicaSpecs"].items():
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, "spec": replicas["template"]["spec"]})
    return found


# Of jobset.x-k8s.io/v1alpha2 and kubeflow.org/v2beta1, as their types say in November 2026: names of fields, by place, and what must be there.
# A place ends at what is Kubernetes' own.
FIELDS = {
    "JobSet": {"spec": "coordinator failurePolicy managedBy network replicatedJobs startupPolicy successPolicy suspend ttlSecondsAfterFinished volumeClaimPolicies",
               "spec.failurePolicy": "maxRestarts restartStrategy rules", "spec.failurePolicy.rules": "name! action! onJobFailureReasons onJobFailureMessagePatterns targetReplicatedJobs",
               "spec.successPolicy": "operator! targetReplicatedJobs", "spec.replicatedJobs": "name! groupName template! replicas dependsOn"},
    "MPIJob": {"spec": "slotsPerWorker! runPolicy mpiReplicaSpecs! sshAuthMountPath! launcherCreationPolicy mpiImplementation runLauncherAsWorker",
               "spec.runPolicy": "cleanPodPolicy! ttlSecondsAfterFinished activeDeadlineSeconds backoffLimit schedulingPolicy suspend managedBy",
               "spec.mpiReplicaSpecs": "Launcher! Worker", "spec.mpiReplicaSpecs.Launcher": "replicas! template! restartPolicy!", "spec.mpiReplicaSpecs.Worker": "replicas! template! restartPolicy!"}}
VALUES = {"operator": ("All", "Any"), "action": ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts"),
          "cleanPodPolicy": ("None", "Running", "All"), "restartPolicy": ("Never", "OnFailure"),
          "onJobFailureReasons": ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy")}


def check_fields(document):
    for place, names in FIELDS[document["kind"]].items():
        found = document
        for word in place.split("."):
            found = found[word]
        known, needed = names.replace("!", "").split(), [name[:-1] for name in names.split() if name.endswith("!")]
        for one in found if isinstance(found, list) else [found]:
            wrong = [key for key in one if key not in known] + [key for key in needed if key not in one]
            wrong += [f"{key}: {value}" for key, values in VALUES.items() for value in (one.get(key) if isinstance(one.get(key), list) else [one.get(key)])
                      if key in one and value not in values]
            if wrong:
                raise harness.Failure(f"{document['kind']}, {place}: {wrong}")
    print(f"{document['kind']} has the fields of {document['apiVersion']}", flush=True)


def check_codes(jobset):
    """The launcher's job fails at once with the codes that want a person, and not with those that want another start."""
    launcher = find(jobset, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]
    rules = [rule["onExitCodes"] for rule in launcher["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    fails = [code for code in (75, *FINAL) if any(code not in rule["values"] for rule in rules)]
    if fails != list(FINAL) or rules[0]["operator"] != "NotIn" or rules[0]["containerName"] != "perdure":
        raise harness.Failure(f"podFailurePolicy: {rules}")


def pods_of(jobset, mpijob):
    """The launcher's and the workers' of each manifest."""
    jobs, replicas = find(jobset, "JobSet")["spec"]["replicatedJobs"], mpijob[0]["spec"]["mpiReplicaSpecs"]
    return {"kubernetes-jobset.yaml": {job["name"]: job["template"]["spec"]["template"]["spec"] for job in jobs},
            "kubernetes-mpijob.yaml": {"launcher": replicas["Launcher"]["template"]["spec"], "workers": replicas["Worker"]["template"]["spec"]}}


def check_grace(jobset, mpijob):
    """Launchers give up a save a few seconds before Kubernetes, systemd or Slurm kills them."""
    found = {}
    for name, pods in pods_of(jobset, mpijob).items():
        ours = next((e["value"] for e in pods["launcher"]["containers"][0].get("env", []) if e["name"] == "PERDURE_GRACE_S"), 0)
        found.update({f"{name}, {what}": (pod.get("terminationGracePeriodSeconds", 30), ours) for what, pod in pods.items()})
    for name, given, ours in (("cloud-init.yaml", r"TimeoutStopSec=(\d+)$", r"Environment=PERDURE_GRACE_S=(\d+)$"),
                              ("slurm.sbatch", r"#SBATCH --signal=B:USR1@(\d+)$", r"PERDURE_GRACE_S:-(\d+)\}")):
        text = harness.read(os.path.join(FILES, name))
        found[name] = tuple(one.group(1) if one else 0 for one in (re.search(pattern, text, re.MULTILINE) for pattern in (given, ours)))
    for name, (given, ours) in found.items():
        if not 3 <= int(given) - int(ours) <= 15:
            raise harness.Failure(f"{name}: it gives {given} seconds, and PERDURE_GRACE_S is {ours}: set it 3 to 15 below")


class Place:
    """Programs of its own before those of PATH."""

    def __init__(self, workspace):
        self.workspace, self.path = workspace, workspace.directory("place")
        os.makedirs(self.path)
        self.config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(20000))))

    def program(self, name, text):
        path = os.path.join(self.path, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, 0o755)
        return path

    def environment(self, **more):
        path = os.pathsep.join([self.path, os.path.dirname(self.workspace.perdure), os.environ["PATH"]])
        return dict(os.environ, PATH=path, PERDURE_PROGRESS="off", **more)

    def run(self, words, **more):
        result = subprocess.run(words, env=self.environment(**more), capture_output=True, text=True, check=False, timeout=harness.PATIENCE)
        return result.returncode, result.stdout + result.stderr


def jobset_runs(place, jobset):
    """The launcher's command, with ranks in a pod that only `kubectl exec` reaches."""
    place.program("kubectl", KUBECTL)
    for name, text in find(jobset, "ConfigMap")["data"].items():
        place.program(name, text)
    container = find(jobset, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    words = [word.replace("/run/perdure/run.yaml", place.config).replace("/etc/perdure", place.path) for word in container["command"]]
    directory = place.workspace.directory("jobset")
    code, said = place.run([*words, f"run.dir={directory}"])
    if code != 0 or "processes on worker-0:2" not in said or len(harness.losses(directory)) != 4:
        raise harness.Failure(f"the launcher of the JobSet: exit {code}\n{said}")


def codes_are_heard(place, what, words):
    """75 again, and then the end of each; TERM leaves although it is 75."""
    place.program("perdure", FAKE.format(place=place.path))
    for codes, expected, starts in (("75 75 0", 0, 3), ("75 78", 78, 2), *((str(code), code, 1) for code in FINAL)):
        with open(os.path.join(place.path, "starts"), "w", encoding="utf-8"):
            pass
        with open(os.path.join(place.path, "codes"), "w", encoding="utf-8") as f:
            f.write(codes + "\n")
        code, said = place.run(words, PAUSE="0")
        count = harness.read(os.path.join(place.path, "starts")).count("\n")
        if (code, count) != (expected, starts):
            raise harness.Failure(f"{what}: codes {codes}: exit {code} after {count} starts\n{said}")
    with open(os.path.join(place.path, "codes"), "w", encoding="utf-8") as f:
        f.write("wait\n")
    started = os.path.join(place.path, "starts")
    os.unlink(started)
    with subprocess.Popen(words, env=place.environment(PAUSE="0")) as process:
        harness.wait_for(lambda: os.path.exists(started) and harness.read(started), "it runs")
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        if process.wait(timeout=harness.PATIENCE) != 75:
            raise harness.Failure(f"{what}: TERM: exit {process.returncode}")
    os.unlink(os.path.join(place.path, "perdure"))


def mpijob_runs(place, mpijob):
    hosts = place.program("discover_hosts.sh", "#!/bin/sh\necho localhost:2\n")
    directory = place.workspace.directory("mpijob")
    script = mpijob[0]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    script = [word.replace("/run/perdure/run.yaml", f"{place.config} run.dir={directory}").replace("/etc/mpi/discover_hosts.sh", hosts)
              for word in script]
    code, said = place.run(script)
    if code != 0 or "processes on localhost:2" not in said or len(harness.losses(directory)) != 4:
        raise harness.Failure(f"the launcher of the MPIJob: exit {code}\n{said}")
    codes_are_heard(place, "MPIJob", script)


def ssh_runs(place):
    hosts = place.workspace.file("hosts", "localhost:2\n")
    directory = place.workspace.directory("ssh")
    words = [os.path.join(FILES, "ssh.sh"), hosts, place.config, f"run.dir={directory}"]
    code, said = place.run(words)
    if code != 0 or "processes on localhost:2" not in said or len(harness.losses(directory)) != 4:
        raise harness.Failure(f"ssh.sh: exit {code}\n{said}")
    codes_are_heard(place, "ssh.sh", words)


def slurm_hears(place):
    """Its run under Slurm is that of slurm.py; here a run that ends at once gives its code all the same. 75 is queued again, until three
    launches in a row leave no newer checkpoint; one whose checkpoints cannot be listed is no such launch."""
    place.program("scontrol", f"#!/bin/sh\necho $1 >> {place.path}/requeued\n")
    place.program("perdure", SLURM_FAKE.format(place=place.path, perdure=place.workspace.perdure))
    directory, again = place.workspace.directory("slurm"), 0
    os.makedirs(directory)
    launches = [(f"{code} 0", code) for code in FINAL]
    launches += [("75 2", 75), ("75 0", 75), ("75 0", 75), ("75 4", 75), ("75 0", 75), ("75 unread", 75), ("75 0", 75), ("75 0", 93), ("75 0", 75), ("75 4", 75)]
    for number, (orders, expected) in enumerate(launches):
        with open(os.path.join(place.path, "orders"), "w", encoding="utf-8") as f:
            f.write(orders + "\n")
        words = ["bash", os.path.join(FILES, "slurm.sbatch"), place.config, f"run.dir={directory}"]
        found, said = place.run(words, SLURM_TASKS_PER_NODE="2", SLURM_JOB_ID="1")
        again += expected == 75
        requeued = harness.read(os.path.join(place.path, "requeued")).count("requeue\n") if again else 0
        is_said = ("cannot be listed" in said, "left no newer checkpoint" in said) == ("unread" in orders, orders.startswith("75") and expected == 93)
        if found != expected or requeued != again or not is_said:
            raise harness.Failure(f"slurm.sbatch: launch {number}, {orders}: exit {found}, queued again {requeued} times and not {again}\n{said}")
    os.unlink(os.path.join(place.path, "perdure"))


def cloud_runs(place):
    """The unit that it writes, and the command in it."""
    cloud = load("cloud-init.yaml")[0]
    unit = dict(line.split("=", 1) for line in cloud["write_files"][0]["content"].splitlines() if "=" in line and line[0] != "#")
    directory = place.workspace.directory("cloud")
    words = unit["ExecStart"].replace("/usr/local/bin/perdure", "perdure").replace("/mnt/run/run.yaml", place.config).split()
    code, said = place.run([*words, f"run.dir={directory}", "layout.ranks=1"])
    if code != 0 or len(harness.losses(directory)) != 4 or (unit["Restart"], unit["RestartForceExitStatus"], unit["KillMode"]) != ("no", "75", "mixed"):
        raise harness.Failure(f"cloud-init.yaml: exit {code}, {unit}\n{said}")


def worker_leaves(place, name, pod):
    """TERM to PID 1 of a worker pod, which runs the manifest's own command (sshd is left out): the ranks in it save before it ends."""
    command = [word.replace("/usr/sbin/sshd -De", "sleep infinity") for word in pod["containers"][0]["command"]]
    directory = place.workspace.directory("pod")
    words = [place.workspace.perdure, "train", place.config, f"run.dir={directory}", "run.steps=1000000", "launch.hosts=echo worker-0:2"]
    with subprocess.Popen([*UNSHARE, "--kill-child", *command]) as namespace:
        try:
            children = f"/proc/{namespace.pid}/task/{namespace.pid}/children"
            first = int(harness.wait_for(lambda: harness.read(children).strip(), "the pod runs"))
            agent = place.program("agent", f"#!/bin/sh\nshift\nexec nsenter --target {first} --pid --mount -- sh -c \"$*\"\n")
            with subprocess.Popen([*words, f"launch.agent={agent}"], env=place.environment()) as launcher:
                harness.wait_for(lambda: harness.steps_done(directory) >= 5, "the run continues")
                os.kill(first, signal.SIGTERM)
                begin = harness.steps_done(directory)
                harness.wait_for(lambda: launcher.poll() is not None or harness.steps_done(directory) > begin + 1000, "the run leaves")
                launcher.send_signal(signal.SIGKILL)
            code = namespace.wait(timeout=harness.PATIENCE) if launcher.returncode == 75 else None
        finally:
            namespace.kill()
    listed = json.loads(place.run(["perdure", "ckpt", "ls", directory, "--json"])[1])
    found = launcher.returncode, code, max((one["step"] for one in listed), default=0)
    if found != (75, 143, harness.steps_done(directory)):
        raise harness.Failure(f"{name}: TERM to a worker pod after step {begin}: exit of the launcher, of the pod, newest checkpoint: {found}")
    print(f"{name}: TERM to a worker pod saved step {found[2]}", flush=True)


def pods_leave(workspace, jobset, mpijob):
    refused = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if refused.returncode:
        print(f"skipped: {' '.join(UNSHARE)}: {refused.stderr.strip()}")
        sys.exit(77)
    for name, pods in pods_of(jobset, mpijob).items():
        worker_leaves(Place(workspace), name, pods["workers"])


def body(workspace, arguments):
    jobset, mpijob = load("kubernetes-jobset.yaml"), load("kubernetes-mpijob.yaml")
    if arguments == ["pods"]:
        pods_leave(workspace, jobset, mpijob)
        return
    check_schema(objects_of(jobset, mpijob))
    check_fields(find(jobset, "JobSet"))
    check_fields(mpijob[0])
    check_codes(jobset)
    check_grace(jobset, mpijob)
    place = Place(workspace)
    slurm_hears(place)
    ssh_runs(place)
    mpijob_runs(place, mpijob)
    cloud_runs(place)
    jobset_runs(place, jobset)
    print("ssh.sh, the MPIJob, the unit of cloud-init and the JobSet each trained 4 steps", flush=True)


if __name__ == "__main__":
    harness.main(body)
