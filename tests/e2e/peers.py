#!/usr/bin/env python3
"""Second copies of shards on other hosts, with real files: a host that is gone takes no step with it.

Each rank runs in a mount namespace of its own, which makes it a host, and sees a directory of its own where the only tier of the run
lies. SIGKILL hits the run at a random moment; then one host loses all that it had, or the whole host is gone and one rank fewer goes
on. The restart takes a step not older than the newest that metrics.jsonl calls copied, or the newest of all where nothing was lost,
and loss bits and state are those of the undisturbed run. Every other run also has its optimizer state in files and a second tier for
all hosts, under a cap and compressed. 6 losses by default, 60 with PERDURE_TEST_SCALE of 10 or more; a number after the tool says how
many.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import harness

STEPS = 60
CONFIG = """
run: {{seed: 3, steps: {steps}}}
model: {{family: llama, vocab: 256, context: 32, layers: 3, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 6, micro_batch: 2, context: 32}}
validation: {{every: 0}}
layout: {{threads: 1, zero_stage: 1, transport: mpi}}
restart: {{limit: 0}}
"""
STARTER = """#!/usr/bin/env python3
import os, sys
program = next(i for i, word in enumerate(sys.argv) if os.path.basename(word) == "perdure")
os.execvp("mpirun", ["mpirun", "--allow-run-as-root", "--oversubscribe", *sys.argv[1:program], {host!r}, *sys.argv[program:]])
"""
HOST = """#!/bin/sh
set -- "$OMPI_COMM_WORLD_RANK" "$@"
host=$(echo "$PEERS_HOSTS" | cut -d, -f$(($1 + 1)))
shift
exec unshare -m sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' "$PEERS_ROOT/host-$host" "$PEERS_ROOT/local" "$@"
"""


# What else continues beside copies.
FILES = ["offload.optimizer=nvme", "checkpoint.tiers[1].dir={root}/run/far", "checkpoint.tiers[1].every=4",
         "checkpoint.tiers[1].bandwidth=32M", "checkpoint.tiers[1].compression=zstd:1"]


def can_pretend():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "sh", "-c", "mount --bind /tmp /mnt"], capture_output=True,
                                                check=False).returncode == 0


class Cluster:
    """Hosts with a directory of their own each, the run's directory for all."""

    def __init__(self, workspace, name, more=()):
        self.workspace = workspace
        self.root = workspace.directory(name)
        self.more = [key.format(root=self.root) for key in more]
        self.run = os.path.join(self.root, "run")
        for part in ["local", "run"]:
            os.makedirs(os.path.join(self.root, part))
        for host in range(3):
            os.makedirs(self.host(host))
        self.starter = self.program("starter", STARTER.format(host=os.path.join(self.root, "as-host")))
        self.program("as-host", HOST)

    def program(self, name, text):
        path = os.path.join(self.root, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, 0o755)
        return path

    def host(self, number):
        return os.path.join(self.root, f"host-{number}")

    def lose(self, number):
        shutil.rmtree(self.host(number))
        os.makedirs(self.host(number))

    def start(self, config, hosts, log, copies=1, **more):
        env = dict(os.environ, PERDURE_PROGRESS="off", PERDURE_MPIRUN=self.starter, PEERS_ROOT=self.root,
                   PEERS_HOSTS=",".join(map(str, hosts)), **more)
        tier = os.path.join(self.root, "local", "tier")
        command = [self.workspace.perdure, "train", config, f"run.dir={self.run}", f"layout.ranks={len(hosts)}",
                   f"checkpoint.tiers[0].dir={tier}", "checkpoint.tiers[0].every=1", "checkpoint.tiers[0].keep_last=2",
                   f"checkpoint.tiers[0].replicas={copies}", *self.more]
        with open(log, "w", encoding="utf-8") as f:
            return subprocess.Popen(command, env=env, stdout=f, stderr=f, start_new_session=True)

    def tiers(self):
        """Of the newest line of metrics: what the first tier says."""
        try:
            with open(os.path.join(self.run, "metrics.jsonl"), encoding="utf-8") as f:
                lines = f.read().splitlines()
            return json.loads(lines[-1])["tiers"][0]
        except (OSError, IndexError, KeyError, ValueError):
            return {"newest": 0, "replicated": 0}

    def digest(self, hosts):
        """As a person finds it who copies the directories of the hosts together."""
        whole = os.path.join(self.root, "whole")
        shutil.rmtree(whole, ignore_errors=True)
        for host in hosts:
            shutil.copytree(os.path.join(self.host(host), "tier"), whole, dirs_exist_ok=True)
        names = [re.fullmatch(r"step-0*(\d+)-(\d+)", name) for name in os.listdir(whole)]
        newest = max((int(m.group(1)), int(m.group(2)), m.group(0)) for m in names if m)[2]
        verified = self.workspace.command(["ckpt", "verify", os.path.join(whole, newest)])
        if verified.returncode != 0:
            raise harness.Failure(f"ckpt verify: {verified.stdout}{verified.stderr}")
        return json.loads(self.workspace.command(["ckpt", "stats", whole, "--json"]).stdout)["state_digest"]


def resumed_at(text):
    found = re.findall(r"resumed at step (\d+)", text)
    if not found and "fresh start" not in text:
        raise harness.Failure(f"it did not start:\n{text}")
    return int(found[-1]) if found else 0


def finish(cluster, config, hosts, log):
    process = cluster.start(config, hosts, log)
    if process.wait(timeout=harness.PATIENCE) != 0:
        raise harness.Failure(f"exit {process.returncode}\n{harness.read(log)}")


def check(cluster, hosts, expected):
    if harness.losses(cluster.run) != expected[0]:
        raise harness.Failure("loss bits differ from those of the undisturbed run")
    if cluster.digest(hosts) != expected[1]:
        raise harness.Failure("the state differs from that of the undisturbed run")


def without_copies(workspace, config):
    """The same loss costs the run then: nothing whole is left, and it says so."""
    cluster = Cluster(workspace, "without")
    log = os.path.join(cluster.root, "log")
    process = cluster.start(config, [0, 1], log, copies=0, PERDURE_FAULT="worker.stepped@0:8:stop")
    harness.wait_stopped(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    harness.wait_until_gone(cluster.root)
    cluster.lose(0)
    process = cluster.start(config, [0, 1], log, copies=0)
    if process.wait(timeout=harness.PATIENCE) != 65:
        raise harness.Failure(f"without copies: exit {process.returncode}, expected 65\n{harness.read(log)}")


def losses_of_hosts(workspace, config, expected, chooser, count):
    done, steps, runs = 0, [], 0
    while done < count:
        cluster = Cluster(workspace, "run", [] if runs % 2 else FILES)
        runs += 1
        log = os.path.join(cluster.root, "log")
        hosts = [0, 1, 2]
        before = least = 0
        while done < count:
            process = cluster.start(config, hosts, log)
            wait = chooser.randrange(2, 15)
            while process.poll() is None and cluster.tiers().get("replicated", 0) < before + wait:
                time.sleep(0.02)
            time.sleep(chooser.uniform(0, 0.3))
            if process.poll() is not None:
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            harness.wait_until_gone(cluster.root)
            step = resumed_at(harness.read(log))
            if step < least:
                raise harness.Failure(f"loss {done}: resumed at step {step}, and {least} was copied\n{harness.read(log)}")
            steps.append(step)
            before = least = cluster.tiers()["replicated"]
            lost = chooser.choice(hosts)
            cluster.lose(lost)
            if len(hosts) > 1 and chooser.random() < 0.4:
                hosts.remove(lost)
            done += 1
        finish(cluster, config, hosts, log)
        if done and resumed_at(harness.read(log)) < least:
            raise harness.Failure(f"resumed at step {resumed_at(harness.read(log))}, and {least} was copied\n{harness.read(log)}")
        check(cluster, hosts, expected)
        for host in range(3):
            shutil.rmtree(cluster.host(host))
    return max(steps, default=0)


def body(workspace, arguments):
    if not can_pretend():
        print("skipped: mount namespaces need root")
        sys.exit(77)
    seed = harness.seed()
    config = workspace.file("run.yaml", CONFIG.format(steps=STEPS, data=workspace.file("text.txt", harness.text_of(50000))))
    plain = workspace.directory("undisturbed")
    workspace.train(config, plain, ["layout.ranks=1", "layout.transport=local"])
    expected = harness.losses(plain), workspace.state_digest(plain)
    refused = workspace.train(config, workspace.directory("alone"), ["layout.ranks=2", "layout.transport=local",
                                                                     "checkpoint.tiers[0].replicas=1"], expect=78)
    if "all ranks are on one" not in refused.stderr:
        raise harness.Failure(f"one host: the cause is not said\n{refused.stderr}")
    without_copies(workspace, config)
    count = int(arguments[0]) if arguments else 60 if harness.scale() >= 10 else 6
    newest = losses_of_hosts(workspace, config, expected, random.Random(seed), count)
    print(f"{count} times a host of two or three was lost with all its files: every restart came from a copied step or a newer one "
          f"(up to step {newest}), same bits; without copies the run was lost, and with one host copies were refused")


if __name__ == "__main__":
    harness.main(body)
